/* iterate.c - values one after the other out of anything that Python iterates.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/text/chat/chat_internal.h"
#include "engine/text/unicode.h"

bool chat_iterable(chat_kind kind)
{
    return kind == CHAT_UNDEFINED || (kind >= CHAT_STRING && kind <= CHAT_ITERATOR);
}

dsc_status chat_iterate(chat_run *r, const chat_value *v, chat_cursor *out)
{
    if (v->kind == CHAT_LOOP)
        return chat_fail(r, DSC_ERR_UNSUPPORTED, "an iteration over `loop` is not supported");
    if (!chat_iterable((chat_kind)v->kind))
        return chat_fail(r, DSC_ERR_INPUT, "a value of type %s has no items to iterate over",
                         chat_type_name((chat_kind)v->kind));
    *out = (chat_cursor){ .source = *v };
    return DSC_OK;
}

static dsc_status view_item(chat_run *r, const chat_entry *entry, int view, chat_value *out)
{
    if (view != CHAT_ITEMS) {
        *out = view == CHAT_KEYS ? entry->key : entry->value;
        return DSC_OK;
    }
    DSC_TRY(chat_new_list(r, CHAT_TUPLE, 2, out));
    DSC_TRY(chat_append(r, out->list, entry->key));
    return chat_append(r, out->list, entry->value);
}

static void next_char(chat_cursor *cursor, chat_value *out)
{
    int bytes;
    const char *at = cursor->source.text + cursor->next;
    DSC_ASSERT(cursor->next < cursor->source.bytes);
    dsc_char_at(at, &bytes);
    *out = chat_string(at, bytes);
    cursor->next += bytes;
}

dsc_status chat_next(chat_run *r, chat_cursor *cursor, chat_value *out, bool *end)
{
    const chat_value *v = &cursor->source;
    int64_t count = 0;
    DSC_TRY(chat_spend(r, 1));
    *end = false;
    if (v->kind == CHAT_STRING) {
        *end = cursor->next >= v->bytes;
        if (!*end)
            next_char(cursor, out);
        return DSC_OK;
    }
    if (v->kind == CHAT_ITERATOR) {
        chat_iterator *it = v->iterator; /* all users of the iterator share its position */
        *end = it->next >= it->list->count;
        if (!*end)
            *out = it->list->item[it->next++];
        else if (it->failure != NULL)
            *r->err = *it->failure;
        return *end && it->failure != NULL ? it->failure->status : DSC_OK;
    }
    const bool has_length = chat_length(v, &count);
    DSC_ASSERT(has_length);
    const int64_t i = cursor->next++;
    *end = i >= count;
    if (*end)
        return DSC_OK;
    switch (v->kind) {
    case CHAT_LIST: case CHAT_TUPLE: *out = v->list->item[i]; return DSC_OK;
    case CHAT_RANGE: *out = chat_int(v->range->start + i * v->range->step); return DSC_OK;
    default: return view_item(r, &v->dict->entry[i], v->kind == CHAT_DICT ? CHAT_KEYS : v->flag, out);
    }
}

dsc_status chat_to_list(chat_run *r, const chat_value *v, chat_kind kind, chat_value *out)
{
    chat_cursor cursor;
    chat_value item;
    DSC_TRY(chat_iterate(r, v, &cursor));
    DSC_TRY(chat_new_list(r, kind, 0, out));
    for (;;) {
        bool end;
        DSC_TRY(chat_next(r, &cursor, &item, &end));
        if (end)
            return DSC_OK;
        DSC_TRY(chat_append(r, out->list, item));
    }
}

dsc_status chat_new_iterator(chat_run *r, chat_value list, chat_value *out)
{
    chat_iterator *it = NULL;
    DSC_ASSERT(list.kind == CHAT_LIST);
    DSC_TRY(chat_new(r, 1, sizeof *it, &it));
    it->list = list.list;
    *out = (chat_value){ .kind = CHAT_ITERATOR, .iterator = it };
    return DSC_OK;
}
