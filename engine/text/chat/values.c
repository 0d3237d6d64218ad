/* values.c - lists, dicts, truth, equality and order of values, as in Python.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "engine/text/chat/chat_internal.h"

#define INDEX_FROM 8 /* entries of a dict without an index */

const char *chat_type_name(chat_kind kind)
{
    static const char *const name[CHAT_KIND_COUNT] = {
        "missing", "Undefined", "NoneType", "bool", "int", "float", "str", "list", "tuple", "dict", "dict view",
        "range", "generator", "Namespace", "Macro", "function", "method", "LoopContext"
    };
    DSC_ASSERT(kind < CHAT_KIND_COUNT);
    return name[kind];
}

dsc_status chat_undefined_error(chat_run *r, const chat_value *v)
{
    DSC_ASSERT(v->kind == CHAT_UNDEFINED);
    const int bytes = (int)dsc_min_i64(v->bytes, 200);
    switch (v->flag) {
    case CHAT_NO_NAME: return chat_fail(r, DSC_ERR_INPUT, "'%.*s' is undefined", bytes, v->text);
    case CHAT_NO_MEMBER:
        return chat_fail(r, DSC_ERR_INPUT, "a value of type %s has no member '%.*s'",
                         chat_type_name((chat_kind)v->id), bytes, v->text);
    case CHAT_UNSAFE:
        return chat_fail(r, DSC_ERR_INPUT, "the method '%.*s' changes a %s; templates may not change values", bytes,
                         v->text, chat_type_name((chat_kind)v->id));
    default: return chat_fail(r, DSC_ERR_INPUT, "%.*s", bytes, v->text);
    }
}

/* ---- Lists ---- */

dsc_status chat_new_list(chat_run *r, chat_kind kind, int64_t capacity, chat_value *out)
{
    chat_list *list = NULL;
    DSC_ASSERT(kind == CHAT_LIST || kind == CHAT_TUPLE);
    DSC_TRY(chat_new(r, 1, sizeof *list, &list));
    if (capacity > 0)
        DSC_TRY(chat_new(r, capacity, sizeof *list->item, &list->item));
    list->capacity = capacity;
    *out = (chat_value){ .kind = (uint8_t)kind, .list = list };
    return DSC_OK;
}

dsc_status chat_append(chat_run *r, chat_list *list, chat_value item)
{
    DSC_ASSERT(list->count <= list->capacity && item.kind != CHAT_MISSING);
    DSC_TRY(chat_spend(r, 1));
    if (list->count == list->capacity) {
        chat_value *grown = NULL;
        const int64_t capacity = list->capacity < 8 ? 8 : 2 * list->capacity;
        DSC_TRY(chat_new(r, capacity, sizeof *grown, &grown));
        if (list->count > 0)
            memcpy(grown, list->item, (size_t)list->count * sizeof *grown);
        list->item = grown;
        list->capacity = capacity;
    }
    list->item[list->count++] = item;
    return DSC_OK;
}

/* ---- Dicts ---- */

bool chat_hashable(const chat_value *v)
{
    if (v->kind == CHAT_TUPLE) {
        for (int64_t i = 0; i < v->list->count; i++)
            if (v->list->item[i].kind == CHAT_TUPLE || !chat_hashable(&v->list->item[i]))
                return false; /* a tuple in a tuple is not needed as a key */
        return true;
    }
    return v->kind == CHAT_NONE || v->kind == CHAT_BOOL || v->kind == CHAT_INT || v->kind == CHAT_FLOAT ||
           v->kind == CHAT_STRING;
}

static uint64_t hash_of(const chat_run *r, const chat_value *v)
{
    double number;
    DSC_ASSERT(chat_hashable(v));
    if (v->kind == CHAT_STRING)
        return dsc_text_hash(v->text, v->bytes, r->seed);
    if (v->kind == CHAT_TUPLE)
        return (uint64_t)v->list->count; /* rare: equal tuples have equal lengths */
    if (!chat_is_number(v, &number))
        return 1;
    number += 0.0; /* -0.0 equals 0 */
    return dsc_text_hash((const char *)&number, sizeof number, r->seed + 1);
}

dsc_status chat_new_dict(chat_run *r, chat_value *out)
{
    chat_dict *dict = NULL;
    DSC_TRY(chat_new(r, 1, sizeof *dict, &dict));
    *out = (chat_value){ .kind = CHAT_DICT, .dict = dict };
    return DSC_OK;
}

static dsc_status find_entry(chat_run *r, const chat_dict *dict, const chat_value *key, uint64_t hash, int64_t *at)
{
    bool equal = false;
    *at = -1;
    if (dict->index == NULL) {
        DSC_ASSERT(dict->count <= INDEX_FROM);
        for (int64_t i = 0; i < dict->count && !equal; i++)
            if (dict->entry[i].hash == hash) {
                DSC_TRY(chat_equal(r, &dict->entry[i].key, key, &equal));
                *at = equal ? i : -1;
            }
        return DSC_OK;
    }
    for (uint64_t slot = hash & dict->mask; dict->index[slot] >= 0 && !equal; slot = (slot + 1) & dict->mask) {
        const int32_t i = dict->index[slot];
        DSC_TRY(chat_spend(r, 1));
        if (dict->entry[i].hash == hash)
            DSC_TRY(chat_equal(r, &dict->entry[i].key, key, &equal));
        *at = equal ? i : -1;
    }
    return DSC_OK;
}

static dsc_status grow_dict(chat_run *r, chat_dict *dict)
{
    chat_entry *entry = NULL;
    const int64_t capacity = dict->capacity == 0 ? INDEX_FROM : 2 * dict->capacity;
    DSC_TRY(chat_new(r, capacity, sizeof *entry, &entry));
    if (dict->count > 0)
        memcpy(entry, dict->entry, (size_t)dict->count * sizeof *entry);
    dict->entry = entry;
    dict->capacity = capacity;
    if (capacity == INDEX_FROM)
        return DSC_OK;
    DSC_TRY(chat_new(r, 2 * capacity, sizeof *dict->index, &dict->index));
    dict->mask = (uint64_t)(2 * capacity) - 1;
    memset(dict->index, 0xff, (size_t)(2 * capacity) * sizeof *dict->index);
    for (int32_t i = 0; i < dict->count; i++) {
        uint64_t slot = entry[i].hash & dict->mask;
        while (dict->index[slot] >= 0)
            slot = (slot + 1) & dict->mask;
        dict->index[slot] = i;
    }
    return DSC_OK;
}

dsc_status chat_dict_set(chat_run *r, chat_dict *dict, chat_value key, chat_value value)
{
    int64_t at;
    if (!chat_hashable(&key))
        return chat_fail(r, DSC_ERR_INPUT, "a value of type %s cannot be the key of a dict",
                         chat_type_name((chat_kind)key.kind));
    const uint64_t hash = hash_of(r, &key);
    DSC_TRY(chat_spend(r, chat_text_steps(key.kind == CHAT_STRING ? key.bytes : 0)));
    DSC_TRY(find_entry(r, dict, &key, hash, &at));
    if (at >= 0) {
        dict->entry[at].value = value;
        return DSC_OK;
    }
    if (dict->count == dict->capacity)
        DSC_TRY(grow_dict(r, dict));
    DSC_ASSERT(dict->count < dict->capacity && dict->count < INT32_MAX);
    if (dict->index != NULL) {
        uint64_t slot = hash & dict->mask;
        while (dict->index[slot] >= 0)
            slot = (slot + 1) & dict->mask;
        dict->index[slot] = (int32_t)dict->count;
    }
    dict->entry[dict->count++] = (chat_entry){ key, value, hash };
    return DSC_OK;
}

dsc_status chat_dict_find(chat_run *r, const chat_dict *dict, const chat_value *key, chat_value **out)
{
    int64_t at;
    *out = NULL;
    DSC_ASSERT(chat_hashable(key));
    DSC_TRY(chat_spend(r, chat_text_steps(key->kind == CHAT_STRING ? key->bytes : 0)));
    DSC_TRY(find_entry(r, dict, key, hash_of(r, key), &at));
    if (at >= 0)
        *out = &dict->entry[at].value;
    return DSC_OK;
}

/* ---- Truth, length, numbers ---- */

bool chat_length(const chat_value *v, int64_t *out)
{
    switch (v->kind) {
    case CHAT_UNDEFINED: *out = 0; return true;
    case CHAT_STRING: *out = chat_char_count(v->text, v->bytes); return true;
    case CHAT_LIST: case CHAT_TUPLE: *out = v->list->count; return true;
    case CHAT_DICT: case CHAT_VIEW: *out = v->dict->count; return true;
    case CHAT_RANGE: *out = v->range->count; return true;
    default: return false;
    }
}

bool chat_truth(const chat_value *v)
{
    int64_t length;
    switch (v->kind) {
    case CHAT_NONE: return false;
    case CHAT_BOOL: return v->boolean;
    case CHAT_INT: return v->integer != 0;
    case CHAT_FLOAT: return v->number != 0;
    case CHAT_STRING: return v->bytes != 0;
    default: return !chat_length(v, &length) || length != 0;
    }
}

bool chat_is_integer(const chat_value *v, int64_t *out)
{
    *out = v->kind == CHAT_BOOL ? v->boolean : v->kind == CHAT_INT ? v->integer : 0;
    return v->kind == CHAT_BOOL || v->kind == CHAT_INT;
}

bool chat_is_number(const chat_value *v, double *out)
{
    int64_t integer;
    const bool is_integer = chat_is_integer(v, &integer);
    *out = v->kind == CHAT_FLOAT ? v->number : (double)integer;
    return is_integer || v->kind == CHAT_FLOAT;
}

/* ---- Equality and order ---- */

/* -1, 0, 1; 2 with a NaN. Exact: the mantissa of a long double holds 64 bits. */
static int compare_numbers(const chat_value *a, const chat_value *b)
{
    int64_t i, j;
    const bool a_integer = chat_is_integer(a, &i), b_integer = chat_is_integer(b, &j);
    if (a_integer && b_integer)
        return (i > j) - (i < j);
    const long double x = a_integer ? (long double)i : (long double)a->number;
    const long double y = b_integer ? (long double)j : (long double)b->number;
    DSC_ASSERT(a_integer || a->kind == CHAT_FLOAT);
    return isnan(x) || isnan(y) ? 2 : (x > y) - (x < y);
}

static dsc_status equal_lists(chat_run *r, const chat_list *a, const chat_list *b, bool *out)
{
    *out = a->count == b->count;
    DSC_TRY(chat_enter(r));
    for (int64_t i = 0; *out && i < a->count; i++)
        DSC_TRY(chat_equal(r, &a->item[i], &b->item[i], out));
    r->depth--;
    return DSC_OK;
}

static dsc_status equal_dicts(chat_run *r, const chat_dict *a, const chat_dict *b, bool *out)
{
    chat_value *other;
    *out = a->count == b->count;
    DSC_TRY(chat_enter(r));
    for (int64_t i = 0; *out && i < a->count; i++) {
        DSC_TRY(chat_dict_find(r, b, &a->entry[i].key, &other));
        *out = other != NULL;
        if (other != NULL)
            DSC_TRY(chat_equal(r, &a->entry[i].value, other, out));
    }
    r->depth--;
    return DSC_OK;
}

dsc_status chat_equal(chat_run *r, const chat_value *a, const chat_value *b, bool *out)
{
    double x, y;
    DSC_TRY(chat_spend(r, 1));
    *out = false;
    if (chat_is_number(a, &x) && chat_is_number(b, &y)) {
        *out = compare_numbers(a, b) == 0;
        return DSC_OK;
    }
    if (a->kind != b->kind)
        return DSC_OK;
    switch (a->kind) {
    case CHAT_STRING:
        DSC_TRY(chat_spend(r, a->bytes / 64));
        *out = a->bytes == b->bytes && memcmp(a->text, b->text, (size_t)a->bytes) == 0;
        return DSC_OK;
    case CHAT_LIST: case CHAT_TUPLE: return equal_lists(r, a->list, b->list, out);
    case CHAT_DICT: return equal_dicts(r, a->dict, b->dict, out);
    case CHAT_RANGE:
        *out = a->range->count == b->range->count &&
               (a->range->count == 0 || (a->range->start == b->range->start &&
                                         (a->range->count == 1 || a->range->step == b->range->step)));
        return DSC_OK;
    case CHAT_VIEW:
    case CHAT_METHOD:
        return chat_fail(r, DSC_ERR_UNSUPPORTED, "the comparison of two values of type %s is not supported",
                         chat_type_name((chat_kind)a->kind));
    case CHAT_FUNCTION: *out = a->id == b->id; return DSC_OK;
    case CHAT_UNDEFINED: case CHAT_NONE: *out = true; return DSC_OK;
    default: *out = a->list == b->list; return DSC_OK; /* one object */
    }
}

static dsc_status order_lists(chat_run *r, const chat_list *a, const chat_list *b, const char *op, int *out)
{
    bool equal = true;
    DSC_TRY(chat_enter(r));
    for (int64_t i = 0; i < a->count && i < b->count; i++) {
        DSC_TRY(chat_equal(r, &a->item[i], &b->item[i], &equal));
        if (!equal) {
            DSC_TRY(chat_order(r, &a->item[i], &b->item[i], op, out));
            r->depth--;
            return DSC_OK;
        }
    }
    r->depth--;
    *out = (a->count > b->count) - (a->count < b->count);
    return DSC_OK;
}

/* -1, 0 or 1, and 2 when a NaN has no order; `op` is for the error. */
dsc_status chat_order(chat_run *r, const chat_value *a, const chat_value *b, const char *op, int *out)
{
    double x, y;
    DSC_TRY(chat_spend(r, 1));
    if (a->kind == CHAT_UNDEFINED || b->kind == CHAT_UNDEFINED)
        return chat_undefined_error(r, a->kind == CHAT_UNDEFINED ? a : b);
    if (chat_is_number(a, &x) && chat_is_number(b, &y)) {
        *out = compare_numbers(a, b);
        return DSC_OK;
    }
    if (a->kind == CHAT_STRING && b->kind == CHAT_STRING) {
        const int64_t bytes = dsc_min_i64(a->bytes, b->bytes);
        DSC_TRY(chat_spend(r, bytes / 64));
        const int order = memcmp(a->text, b->text, (size_t)bytes);
        *out = order != 0 ? (order > 0) - (order < 0) : (a->bytes > b->bytes) - (a->bytes < b->bytes);
        return DSC_OK;
    }
    if (a->kind == b->kind && (a->kind == CHAT_LIST || a->kind == CHAT_TUPLE))
        return order_lists(r, a->list, b->list, op, out);
    if (a->kind == CHAT_VIEW || b->kind == CHAT_VIEW)
        return chat_fail(r, DSC_ERR_UNSUPPORTED, "%s of dict views is not supported", op);
    return chat_fail(r, DSC_ERR_INPUT, "%s does not order a value of type %s and one of type %s", op,
                     chat_type_name((chat_kind)a->kind), chat_type_name((chat_kind)b->kind));
}

dsc_status chat_contains(chat_run *r, const chat_value *container, const chat_value *item, bool *out)
{
    chat_cursor cursor;
    chat_value value, *found;
    bool end = false;
    *out = false;
    if (container->kind == CHAT_STRING) {
        if (item->kind == CHAT_UNDEFINED)
            return chat_undefined_error(r, item);
        if (item->kind != CHAT_STRING)
            return chat_fail(r, DSC_ERR_INPUT, "'in' of a string needs a string on its left, not a value of type %s",
                             chat_type_name((chat_kind)item->kind));
        DSC_TRY(chat_spend(r, chat_scan_steps(container->bytes)));
        *out = chat_find(container->text, container->text + container->bytes, item) != NULL;
        return DSC_OK;
    }
    if (container->kind == CHAT_DICT || (container->kind == CHAT_VIEW && container->flag == CHAT_KEYS)) {
        if (item->kind == CHAT_UNDEFINED)
            return DSC_OK;
        if (!chat_hashable(item))
            return chat_fail(r, DSC_ERR_INPUT, "a value of type %s cannot be the key of a dict",
                             chat_type_name((chat_kind)item->kind));
        DSC_TRY(chat_dict_find(r, container->dict, item, &found));
        *out = found != NULL;
        return DSC_OK;
    }
    DSC_TRY(chat_iterate(r, container, &cursor));
    while (!*out) {
        DSC_TRY(chat_next(r, &cursor, &value, &end));
        if (end)
            return DSC_OK;
        DSC_TRY(chat_equal(r, &value, item, out));
    }
    return DSC_OK;
}
