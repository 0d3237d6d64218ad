/* sequence_filters.c - filters of lists, dicts and other values with items.
 *
 * Filters that are lazy in jinja2 run at once here, and their result is read once, as a generator of Python is.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/text/chat/chat_internal.h"
#include "engine/text/unicode.h"

/* ---- Attributes: "a.b.0" ---- */

static dsc_status get_part(chat_run *r, const char *part, int64_t bytes, chat_value *item)
{
    chat_value key = chat_string(part, bytes), object = *item;
    int64_t index = 0;
    bool digits = bytes > 0 && bytes < 18;
    for (int64_t i = 0; i < bytes && digits; i++) {
        digits = part[i] >= '0' && part[i] <= '9';
        index = index * 10 + (part[i] - '0');
    }
    if (digits)
        key = chat_int(index);
    return chat_get_item(r, &object, &key, item);
}

/* The attribute of *item; a missing or None attribute is the item. `otherwise` replaces undefined values. */
static dsc_status get_attribute(chat_run *r, const chat_value *attribute, const chat_value *otherwise, chat_value *item)
{
    const chat_value object = *item;
    if (attribute->kind == CHAT_MISSING || attribute->kind == CHAT_NONE)
        return DSC_OK;
    if (attribute->kind == CHAT_INT)
        DSC_TRY(chat_get_item(r, &object, attribute, item));
    else if (attribute->kind != CHAT_STRING)
        return chat_fail(r, DSC_ERR_INPUT, "an attribute must be a string or an integer, not a value of type %s",
                         chat_type_name((chat_kind)attribute->kind));
    const char *at = attribute->text, *end = at + attribute->bytes;
    for (bool more = attribute->kind == CHAT_STRING; more;) {
        const char *dot = memchr(at, '.', (size_t)(end - at));
        more = dot != NULL;
        DSC_TRY(get_part(r, at, (more ? dot : end) - at, item));
        if (item->kind == CHAT_UNDEFINED && otherwise != NULL && otherwise->kind != CHAT_MISSING &&
            otherwise->kind != CHAT_NONE)
            *item = *otherwise;
        at = more ? dot + 1 : end;
    }
    return DSC_OK;
}

static dsc_status ignore_case(chat_run *r, chat_value *v)
{
    const chat_value text = *v;
    return v->kind == CHAT_STRING ? chat_change_case(r, &text, CHAT_LOWER, v) : DSC_OK;
}

/* ---- Ends, lists, joins ---- */

static dsc_status f_first(chat_run *r, const chat_value *v, const chat_value *arg, chat_value *out)
{
    static const char reason[] = "there is no first item: the sequence is empty";
    chat_cursor cursor;
    bool end;
    DSC_TRY(chat_iterate(r, v, &cursor));
    DSC_TRY(chat_next(r, &cursor, out, &end));
    if (end)
        *out = chat_undefined(CHAT_NO_VALUE, reason, (int64_t)sizeof reason - 1, CHAT_UNDEFINED);
    return DSC_OK;
}

static dsc_status reversed(chat_run *r, const chat_value *v, chat_value *out)
{
    DSC_TRY(chat_to_list(r, v, CHAT_LIST, out));
    chat_list *list = out->list;
    for (int64_t i = 0; i < list->count / 2; i++) {
        const chat_value item = list->item[i];
        list->item[i] = list->item[list->count - 1 - i];
        list->item[list->count - 1 - i] = item;
    }
    return DSC_OK;
}

static dsc_status f_last(chat_run *r, const chat_value *v, const chat_value *arg, chat_value *out)
{
    static const char reason[] = "there is no last item: the sequence is empty";
    chat_value list;
    if (v->kind == CHAT_ITERATOR)
        return chat_fail(r, DSC_ERR_INPUT, "last needs a sequence; make one of the generator by the filter list");
    if (v->kind == CHAT_LIST || v->kind == CHAT_TUPLE)
        list = *v;
    else
        DSC_TRY(chat_to_list(r, v, CHAT_LIST, &list));
    DSC_ASSERT(list.list->count >= 0);
    *out = list.list->count > 0 ? list.list->item[list.list->count - 1]
                                : chat_undefined(CHAT_NO_VALUE, reason, (int64_t)sizeof reason - 1, CHAT_UNDEFINED);
    return DSC_OK;
}

static dsc_status f_list(chat_run *r, const chat_value *v, const chat_value *arg, chat_value *out)
{
    return chat_to_list(r, v, CHAT_LIST, out);
}

static dsc_status f_reverse(chat_run *r, const chat_value *v, const chat_value *arg, chat_value *out)
{
    chat_value list;
    const chat_value part[3] = { chat_none(), chat_none(), chat_int(-1) };
    if (v->kind == CHAT_STRING)
        return chat_get_slice(r, v, part, out);
    DSC_TRY(reversed(r, v, &list));
    if (v->kind != CHAT_ITERATOR)
        return chat_new_iterator(r, list, out);
    *out = list;
    return DSC_OK;
}

/* The attribute of each item, as a list. */
static dsc_status map_attribute(chat_run *r, const chat_value *v, const chat_value *attribute,
                                const chat_value *otherwise, chat_value *out)
{
    DSC_TRY(chat_to_list(r, v, CHAT_LIST, out));
    for (int64_t i = 0; i < out->list->count; i++)
        DSC_TRY(get_attribute(r, attribute, otherwise, &out->list->item[i]));
    return DSC_OK;
}

static dsc_status f_join(chat_run *r, const chat_value *v, const chat_value *arg, chat_value *out)
{
    chat_value separator = chat_string("", 0), items = *v;
    if (arg[0].kind != CHAT_MISSING)
        DSC_TRY(chat_str(r, &arg[0], &separator));
    if (arg[1].kind != CHAT_MISSING && arg[1].kind != CHAT_NONE)
        DSC_TRY(map_attribute(r, v, &arg[1], NULL, &items));
    return chat_join(r, &separator, &items, true, out);
}

/* An empty iterator: the result of a lazy filter up to now. */
static dsc_status new_result(chat_run *r, chat_value *out)
{
    chat_value list;
    DSC_TRY(chat_new_list(r, CHAT_LIST, 0, &list));
    return chat_new_iterator(r, list, out);
}

static dsc_status f_items(chat_run *r, const chat_value *v, const chat_value *arg, chat_value *out)
{
    const chat_value view = { .kind = CHAT_VIEW, .flag = CHAT_ITEMS, .dict = v->dict };
    chat_value list;
    DSC_TRY(new_result(r, out));
    if (v->kind != CHAT_DICT && v->kind != CHAT_UNDEFINED)
        return chat_fail(r, DSC_ERR_INPUT, "items needs a dict, not a value of type %s",
                         chat_type_name((chat_kind)v->kind));
    DSC_TRY(chat_to_list(r, v->kind == CHAT_DICT ? &view : v, CHAT_LIST, &list));
    out->iterator->list = list.list;
    return DSC_OK;
}

/* ---- map, select, reject ---- */

/* The items as a new list; like jinja2, these filters take any false value as an empty list. */
static dsc_status items_or_none(chat_run *r, const chat_value *v, chat_value *out)
{
    return chat_truth(v) ? chat_to_list(r, v, CHAT_LIST, out) : chat_new_list(r, CHAT_LIST, 0, out);
}

static dsc_status f_map(chat_run *r, const chat_value *v, const chat_args *args, chat_value *out)
{
    chat_value all, bound[CHAT_PARAMS_MAX];
    chat_args rest = { 0 };
    int filter = -1;
    DSC_TRY(new_result(r, out));
    if (args->count == 0) {
        DSC_TRY(chat_bind(r, "map", "attribute default", 1, args, bound));
    } else {
        const chat_value *name = &args->value[0];
        filter = name->kind == CHAT_STRING ? chat_find_filter(name->text, name->bytes) : -1;
        rest = (chat_args){ args->value + 1, args->keyword, args->count - 1, args->keyword_count };
        if (name->kind != CHAT_STRING)
            return chat_fail(r, DSC_ERR_INPUT, "map needs the name of a filter or attribute=");
        if (filter < 0)
            return chat_no_filter(r, name->text, name->bytes);
    }
    DSC_TRY(items_or_none(r, v, &all));
    DSC_TRY(chat_enter(r)); /* map can call map */
    for (int64_t i = 0; i < all.list->count; i++) {
        chat_value item = all.list->item[i];
        if (filter < 0)
            DSC_TRY(get_attribute(r, &bound[0], &bound[1], &item));
        else
            DSC_TRY(chat_apply_filter(r, filter, &all.list->item[i], &rest, &item));
        DSC_TRY(chat_append(r, out->iterator->list, item));
    }
    r->depth--;
    return DSC_OK;
}

static dsc_status select_items(chat_run *r, const chat_value *v, const chat_args *args, bool by_attribute, bool wanted,
                               chat_value *out)
{
    chat_value all;
    const int64_t off = by_attribute;
    int test = -1;
    chat_args rest = { 0 };
    DSC_TRY(new_result(r, out));
    if (args->count < off)
        return chat_fail(r, DSC_ERR_INPUT, "selectattr and rejectattr need the name of an attribute");
    if (args->count > off) {
        const chat_value *name = &args->value[off];
        if (name->kind != CHAT_STRING)
            return chat_fail(r, DSC_ERR_INPUT, "the name of a test must be a string");
        test = chat_find_test(name->text, name->bytes);
        if (test < 0)
            return chat_no_test(r, name->text, name->bytes);
        rest = (chat_args){ args->value + off + 1, args->keyword, args->count - off - 1, args->keyword_count };
    }
    DSC_TRY(items_or_none(r, v, &all));
    for (int64_t i = 0; i < all.list->count; i++) {
        chat_value item = all.list->item[i];
        bool is;
        if (by_attribute)
            DSC_TRY(get_attribute(r, &args->value[0], NULL, &item));
        if (test >= 0)
            DSC_TRY(chat_apply_test(r, test, &item, &rest, &is));
        else
            is = chat_truth(&item);
        if (is == wanted)
            DSC_TRY(chat_append(r, out->iterator->list, all.list->item[i]));
    }
    return DSC_OK;
}

static dsc_status f_select(chat_run *r, const chat_value *v, const chat_args *args, chat_value *out)
{
    return select_items(r, v, args, false, true, out);
}

static dsc_status f_reject(chat_run *r, const chat_value *v, const chat_args *args, chat_value *out)
{
    return select_items(r, v, args, false, false, out);
}

static dsc_status f_selectattr(chat_run *r, const chat_value *v, const chat_args *args, chat_value *out)
{
    return select_items(r, v, args, true, true, out);
}

static dsc_status f_rejectattr(chat_run *r, const chat_value *v, const chat_args *args, chat_value *out)
{
    return select_items(r, v, args, true, false, out);
}

/* ---- sort, unique, minimum, maximum ---- */

typedef struct sort_item {
    chat_value key, value;
} sort_item;

/* One step of a stable merge sort: two sorted runs of `from` become one of `to`. */
static dsc_status merge(chat_run *r, const sort_item *from, int64_t middle, int64_t end, bool descending, sort_item *to)
{
    int64_t left = 0, right = middle;
    DSC_ASSERT(middle <= end);
    for (int64_t i = 0; i < end; i++) {
        int order = 0;
        if (left < middle && right < end) {
            const sort_item *a = descending ? &from[left] : &from[right];
            const sort_item *b = descending ? &from[right] : &from[left];
            DSC_TRY(chat_order(r, &a->key, &b->key, "sort", &order));
        }
        const bool take_right = left == middle || (right < end && order == -1);
        to[i] = from[take_right ? right++ : left++];
    }
    return DSC_OK;
}

static dsc_status sort_items(chat_run *r, sort_item *item, int64_t count, bool descending, sort_item **out)
{
    sort_item *other = NULL;
    DSC_TRY(chat_new(r, count, sizeof *other, &other));
    for (int64_t width = 1; width < count; width *= 2) {
        for (int64_t i = 0; i < count; i += 2 * width) {
            const int64_t middle = dsc_min_i64(width, count - i), end = dsc_min_i64(2 * width, count - i);
            DSC_TRY(merge(r, item + i, middle, end, descending, other + i));
        }
        sort_item *swap = item;
        item = other;
        other = swap;
    }
    *out = item;
    return DSC_OK;
}

/* The key of jinja2's filter sort: the list of the attributes "a,b" of an item. */
static dsc_status sort_key(chat_run *r, const chat_value *item, const chat_value *attribute, bool case_sensitive,
                           chat_value *out)
{
    chat_value names, key;
    const chat_value comma = chat_string(",", 1);
    DSC_TRY(chat_new_list(r, CHAT_LIST, 1, out));
    DSC_TRY(chat_new_list(r, CHAT_LIST, 1, &names));
    if (attribute->kind == CHAT_STRING)
        DSC_TRY(chat_split(r, attribute, &comma, -1, false, &names));
    else
        DSC_TRY(chat_append(r, names.list, attribute->kind == CHAT_MISSING ? chat_none() : *attribute));
    for (int64_t i = 0; i < names.list->count; i++) {
        key = *item;
        DSC_TRY(get_attribute(r, &names.list->item[i], NULL, &key));
        if (!case_sensitive)
            DSC_TRY(ignore_case(r, &key));
        DSC_TRY(chat_append(r, out->list, key));
    }
    return DSC_OK;
}

static bool is_true(const chat_value *v) { return v->kind != CHAT_MISSING && chat_truth(v); }

static dsc_status f_sort(chat_run *r, const chat_value *v, const chat_value *arg, chat_value *out)
{
    sort_item *item = NULL;
    DSC_TRY(chat_to_list(r, v, CHAT_LIST, out));
    const int64_t count = out->list->count;
    DSC_TRY(chat_new(r, count, sizeof *item, &item));
    for (int64_t i = 0; i < count; i++) {
        item[i].value = out->list->item[i];
        DSC_TRY(sort_key(r, &item[i].value, &arg[2], is_true(&arg[1]), &item[i].key));
    }
    DSC_TRY(sort_items(r, item, count, is_true(&arg[0]), &item));
    for (int64_t i = 0; i < count; i++)
        out->list->item[i] = item[i].value;
    return DSC_OK;
}

static dsc_status f_dictsort(chat_run *r, const chat_value *v, const chat_value *arg, chat_value *out)
{
    sort_item *item = NULL;
    const bool by_value = chat_is(&arg[1], "value");
    if (v->kind == CHAT_UNDEFINED)
        return chat_undefined_error(r, v);
    if (v->kind != CHAT_DICT || (arg[1].kind != CHAT_MISSING && !by_value && !chat_is(&arg[1], "key")))
        return chat_fail(r, DSC_ERR_INPUT, "dictsort needs a dict and by='key' or by='value'");
    const chat_value view = { .kind = CHAT_VIEW, .flag = CHAT_ITEMS, .dict = v->dict };
    DSC_TRY(chat_to_list(r, &view, CHAT_LIST, out));
    const int64_t count = out->list->count;
    DSC_TRY(chat_new(r, count, sizeof *item, &item));
    for (int64_t i = 0; i < count; i++) {
        item[i].value = out->list->item[i];
        item[i].key = item[i].value.list->item[by_value];
        if (!is_true(&arg[0]))
            DSC_TRY(ignore_case(r, &item[i].key));
    }
    DSC_TRY(sort_items(r, item, count, is_true(&arg[2]), &item));
    for (int64_t i = 0; i < count; i++)
        out->list->item[i] = item[i].value;
    return DSC_OK;
}

static dsc_status f_unique(chat_run *r, const chat_value *v, const chat_value *arg, chat_value *out)
{
    chat_value seen, all, *found;
    DSC_TRY(new_result(r, out));
    DSC_TRY(chat_new_dict(r, &seen));
    DSC_TRY(chat_to_list(r, v, CHAT_LIST, &all));
    for (int64_t i = 0; i < all.list->count; i++) {
        chat_value key = all.list->item[i];
        DSC_TRY(get_attribute(r, &arg[1], NULL, &key));
        if (!is_true(&arg[0]))
            DSC_TRY(ignore_case(r, &key));
        if (!chat_hashable(&key))
            return chat_fail(r, DSC_ERR_INPUT, "unique does not compare values of type %s",
                             chat_type_name((chat_kind)key.kind));
        DSC_TRY(chat_dict_find(r, seen.dict, &key, &found));
        if (found != NULL)
            continue;
        DSC_TRY(chat_dict_set(r, seen.dict, key, chat_none()));
        DSC_TRY(chat_append(r, out->iterator->list, all.list->item[i]));
    }
    return DSC_OK;
}

static dsc_status extreme(chat_run *r, const chat_value *v, const chat_value *arg, int wanted, chat_value *out)
{
    static const char reason[] = "min and max of an empty sequence";
    chat_value list, best = { .kind = CHAT_NONE }, key;
    DSC_ASSERT(wanted == 1 || wanted == -1);
    DSC_TRY(chat_to_list(r, v, CHAT_LIST, &list));
    *out = chat_undefined(CHAT_NO_VALUE, reason, (int64_t)sizeof reason - 1, CHAT_UNDEFINED);
    for (int64_t i = 0; i < list.list->count; i++) {
        int order = wanted;
        key = list.list->item[i];
        DSC_TRY(get_attribute(r, &arg[1], NULL, &key));
        if (!is_true(&arg[0]))
            DSC_TRY(ignore_case(r, &key));
        if (i > 0)
            DSC_TRY(chat_order(r, &key, &best, wanted > 0 ? "max" : "min", &order));
        if (order != wanted)
            continue;
        best = key;
        *out = list.list->item[i];
    }
    return DSC_OK;
}

static dsc_status f_min(chat_run *r, const chat_value *v, const chat_value *arg, chat_value *out)
{
    return extreme(r, v, arg, -1, out);
}

static dsc_status f_max(chat_run *r, const chat_value *v, const chat_value *arg, chat_value *out)
{
    return extreme(r, v, arg, 1, out);
}

static dsc_status f_sum(chat_run *r, const chat_value *v, const chat_value *arg, chat_value *out)
{
    chat_value list;
    DSC_TRY(map_attribute(r, v, &arg[0], NULL, &list));
    *out = arg[1].kind != CHAT_MISSING ? arg[1] : chat_int(0);
    if (out->kind == CHAT_STRING)
        return chat_fail(r, DSC_ERR_INPUT, "sum does not add strings; use join");
    for (int64_t i = 0; i < list.list->count; i++) {
        const chat_value sum = *out;
        DSC_TRY(chat_binary(r, '+', &sum, &list.list->item[i], out));
    }
    return DSC_OK;
}

const chat_filter chat_sequence_filter[] = {
    { "first", "", 0, false, f_first, NULL },
    { "last", "", 0, false, f_last, NULL },
    { "list", "", 0, false, f_list, NULL },
    { "reverse", "", 0, false, f_reverse, NULL },
    { "join", "d attribute", 0, false, f_join, NULL },
    { "items", "", 0, true, f_items, NULL },
    { "map", "", 0, true, NULL, f_map },
    { "select", "", 0, true, NULL, f_select },
    { "reject", "", 0, true, NULL, f_reject },
    { "selectattr", "", 0, true, NULL, f_selectattr },
    { "rejectattr", "", 0, true, NULL, f_rejectattr },
    { "sort", "reverse case_sensitive attribute", 0, false, f_sort, NULL },
    { "dictsort", "case_sensitive by reverse", 0, false, f_dictsort, NULL },
    { "unique", "case_sensitive attribute", 0, true, f_unique, NULL },
    { "min", "case_sensitive attribute", 0, false, f_min, NULL },
    { "max", "case_sensitive attribute", 0, false, f_max, NULL },
    { "sum", "attribute start", 0, false, f_sum, NULL },
};
const int chat_sequence_filter_count = (int)DSC_COUNT(chat_sequence_filter);
