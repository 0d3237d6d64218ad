/* members.c - object.name, object[key] and slices. As in jinja2, a failed subscript by a string tries the member, a
 * failed member of a dict tries the key, and the result of a failure is undefined. A failed slice is an error.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/text/chat/chat_internal.h"
#include "engine/text/unicode.h"

static chat_value no_member(const chat_value *object, const char *name, int64_t bytes)
{
    return chat_undefined(CHAT_NO_MEMBER, name, bytes, (chat_kind)object->kind);
}

/* A method of Python's type, or undefined. */
static dsc_status get_method(chat_run *r, const chat_value *object, const char *name, int64_t bytes, chat_value *out)
{
    const chat_kind kind = (chat_kind)object->kind;
    const int method = chat_find_method(kind, name, bytes);
    *out = no_member(object, name, bytes);
    if (method >= 0) {
        *out = (chat_value){ .kind = CHAT_METHOD, .id = method };
        DSC_TRY(chat_new(r, 1, sizeof *out->self, &out->self));
        *out->self = *object;
    } else if (chat_method_unsafe(kind, name, bytes)) {
        out->flag = CHAT_UNSAFE;
    } else if (chat_method_refused(kind, name, bytes)) {
        return chat_fail(r, DSC_ERR_UNSUPPORTED, "the member '%.*s' of a %s is not supported",
                         (int)dsc_min_i64(bytes, 60), name, chat_type_name(kind));
    }
    return DSC_OK;
}

static dsc_status get_attribute(chat_run *r, const chat_value *object, const char *name, int64_t bytes, chat_value *out)
{
    const chat_value key = chat_string(name, bytes);
    chat_value *found = NULL;
    if (object->kind == CHAT_UNDEFINED)
        return chat_undefined_error(r, object);
    if (object->kind == CHAT_LOOP)
        return chat_loop_member(r, object->loop, name, bytes, out);
    if (object->kind != CHAT_NAMESPACE)
        return get_method(r, object, name, bytes, out);
    DSC_TRY(chat_dict_find(r, object->dict, &key, &found));
    *out = found != NULL ? *found : no_member(object, name, bytes);
    return DSC_OK;
}

dsc_status chat_get_member(chat_run *r, const chat_value *object, const char *name, int64_t bytes, chat_value *out)
{
    const chat_value key = chat_string(name, bytes);
    chat_value *found = NULL;
    DSC_TRY(get_attribute(r, object, name, bytes, out));
    if (object->kind != CHAT_DICT || out->kind != CHAT_UNDEFINED || out->flag == CHAT_UNSAFE)
        return DSC_OK;
    DSC_TRY(chat_dict_find(r, object->dict, &key, &found));
    if (found != NULL)
        *out = *found;
    return DSC_OK;
}

/* False: no such index. */
static bool get_index(const chat_value *object, int64_t index, chat_value *out)
{
    int64_t length = 0;
    int bytes;
    if (!chat_length(object, &length) || index < -length || index >= length)
        return false;
    index += index < 0 ? length : 0;
    switch (object->kind) {
    case CHAT_LIST: case CHAT_TUPLE: *out = object->list->item[index]; return true;
    case CHAT_RANGE: *out = chat_int(object->range->start + index * object->range->step); return true;
    case CHAT_STRING: {
        const char *at = object->text + chat_char_offset(object->text, object->bytes, index);
        DSC_ASSERT(at < object->text + object->bytes);
        dsc_char_at(at, &bytes);
        *out = chat_string(at, bytes);
        return true;
    }
    default: return false;
    }
}

dsc_status chat_get_item(chat_run *r, const chat_value *object, const chat_value *key, chat_value *out)
{
    chat_value *found = NULL;
    int64_t index;
    chat_bytes name = { 0 };
    if (object->kind == CHAT_UNDEFINED)
        return chat_undefined_error(r, object);
    if (object->kind == CHAT_DICT && chat_hashable(key)) {
        DSC_TRY(chat_dict_find(r, object->dict, key, &found));
        if (found != NULL) {
            *out = *found;
            return DSC_OK;
        }
    }
    if (key->kind == CHAT_STRING)
        return get_attribute(r, object, key->text, key->bytes, out);
    if (object->kind == CHAT_STRING)
        DSC_TRY(chat_spend(r, chat_scan_steps(object->bytes)));
    if (chat_is_integer(key, &index)) {
        if (get_index(object, index, out))
            return DSC_OK;
        DSC_TRY(chat_add_integer(r, &name, index));
    } else {
        DSC_TRY(chat_add_text(r, &name, chat_type_name((chat_kind)key->kind)));
    }
    *out = no_member(object, name.ptr, name.bytes);
    return DSC_OK;
}

/* ---- Slices ---- */

/* False: neither None nor an integer. */
static bool slice_part(const chat_value *v, int64_t otherwise, int64_t *out)
{
    *out = otherwise;
    return v->kind == CHAT_NONE || chat_is_integer(v, out);
}

/* First index, step and count of the slice of `length` items. */
static bool slice_range(const chat_value part[3], int64_t length, chat_range *out)
{
    int64_t start, stop, step;
    if (!slice_part(&part[2], 1, &step) || step == 0)
        return false;
    step = step < -INT64_MAX ? -INT64_MAX : step;
    const int64_t low = step < 0 ? -1 : 0, high = step < 0 ? length - 1 : length;
    if (!slice_part(&part[0], step < 0 ? INT64_MAX : 0, &start) ||
        !slice_part(&part[1], step < 0 ? INT64_MIN : INT64_MAX, &stop))
        return false;
    start = start < 0 ? dsc_max_i64(start + length, low) : dsc_min_i64(start, high);
    stop = part[1].kind == CHAT_NONE && step < 0 ? -1
           : stop < 0 ? dsc_max_i64(stop + length, low) : dsc_min_i64(stop, high);
    DSC_ASSERT(start >= -1 && start <= length && stop >= -1 && stop <= length);
    out->start = start;
    out->step = step;
    if (step > 0)
        out->count = stop > start ? (stop - start - 1) / step + 1 : 0;
    else
        out->count = start > stop ? (start - stop - 1) / -step + 1 : 0;
    return true;
}

static dsc_status slice_text(chat_run *r, const chat_value *s, const chat_range *range, chat_value *out)
{
    chat_bytes b = { 0 };
    int64_t *offset = NULL; /* start of each character, for steps other than 1 */
    int64_t count = 0;
    DSC_TRY(chat_spend(r, chat_scan_steps(s->bytes)));
    if (range->step == 1) {
        const int64_t from = chat_char_offset(s->text, s->bytes, range->start);
        const int64_t bytes = chat_char_offset(s->text + from, s->bytes - from, range->count);
        *out = chat_string(s->text + from, bytes);
        return DSC_OK;
    }
    DSC_TRY(chat_spend(r, range->count));
    DSC_TRY(chat_new(r, s->bytes + 1, sizeof *offset, &offset));
    for (int64_t i = 0; i < s->bytes; i++)
        if (((unsigned char)s->text[i] & 0xc0) != 0x80)
            offset[count++] = i;
    offset[count] = s->bytes;
    for (int64_t i = 0; i < range->count; i++) {
        const int64_t at = range->start + i * range->step;
        DSC_ASSERT(at >= 0 && at < count);
        DSC_TRY(chat_add(r, &b, s->text + offset[at], offset[at + 1] - offset[at]));
    }
    *out = chat_bytes_value(&b);
    return DSC_OK;
}

dsc_status chat_get_slice(chat_run *r, const chat_value *object, const chat_value part[3], chat_value *out)
{
    chat_range range = { 0 };
    int64_t length = 0;
    if (object->kind == CHAT_UNDEFINED)
        return chat_undefined_error(r, object);
    if (object->kind == CHAT_RANGE)
        return chat_fail(r, DSC_ERR_UNSUPPORTED, "a slice of a range is not supported");
    const bool has_items = object->kind == CHAT_STRING || object->kind == CHAT_LIST || object->kind == CHAT_TUPLE;
    if (part[2].kind == CHAT_INT && part[2].integer == 0 && has_items)
        return chat_fail(r, DSC_ERR_INPUT, "the step of a slice is 0");
    if (!has_items || !chat_length(object, &length))
        return chat_fail(r, DSC_ERR_INPUT, "a value of type %s has no slices", chat_type_name((chat_kind)object->kind));
    if (!slice_range(part, length, &range))
        return chat_fail(r, DSC_ERR_INPUT, "the parts of a slice must be integers or None");
    if (object->kind == CHAT_STRING) {
        DSC_TRY(slice_text(r, object, &range, out));
        out->flag = object->flag;
        return DSC_OK;
    }
    DSC_TRY(chat_new_list(r, (chat_kind)object->kind, range.count, out));
    for (int64_t i = 0; i < range.count; i++)
        DSC_TRY(chat_append(r, out->list, object->list->item[range.start + i * range.step]));
    return DSC_OK;
}
