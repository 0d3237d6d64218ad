/* python_string.c - operations of Python's str on UTF-8: characters are code points.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/text/chat/chat_internal.h"
#include "engine/text/unicode.h"

int64_t chat_char_count(const char *text, int64_t bytes)
{
    int64_t count = 0;
    DSC_ASSERT(bytes >= 0);
    for (int64_t i = 0; i < bytes; i++)
        count += ((unsigned char)text[i] & 0xc0) != 0x80;
    return count;
}

/* The byte at which a character begins; `bytes` behind the last one. */
int64_t chat_char_offset(const char *text, int64_t bytes, int64_t chars)
{
    int64_t i = 0;
    DSC_ASSERT(chars >= 0);
    for (; i < bytes; i++)
        if (((unsigned char)text[i] & 0xc0) != 0x80 && chars-- == 0)
            break;
    return i;
}

/* str.isspace: also the separators of ASCII, 0x1c to 0x1f. */
bool chat_is_space(uint32_t code)
{
    if (code < 0x80)
        return code == ' ' || (code >= 9 && code <= 13) || (code >= 0x1c && code <= 0x1f);
    return code == 0x85 || code == 0xa0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 ||
           code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

const char *chat_skip_space(const char *at, const char *end)
{
    int bytes;
    while (at < end && chat_is_space(dsc_char_at(at, &bytes)))
        at += bytes;
    DSC_ASSERT(at <= end);
    return at;
}

const char *chat_skip_space_back(const char *at, const char *start)
{
    int bytes;
    while (at > start) {
        const char *before = dsc_char_before(at);
        if (!chat_is_space(dsc_char_at(before, &bytes)))
            break;
        at = before;
    }
    DSC_ASSERT(at >= start);
    return at;
}

const char *chat_find(const char *at, const char *end, const chat_value *what)
{
    DSC_ASSERT(what->kind == CHAT_STRING && at <= end);
    return what->bytes == 0 ? at : memmem(at, (size_t)(end - at), what->text, (size_t)what->bytes);
}

/* A short text is searched for from the end. A long one is found from the start, match by match, in linear time. */
dsc_status chat_find_last(chat_run *r, const char *start, const char *end, const chat_value *what, const char **out)
{
    DSC_ASSERT(what->kind == CHAT_STRING && start <= end);
    *out = NULL;
    if (end - start < what->bytes)
        return DSC_OK;
    if (what->bytes <= 16) {
        const char *at = end - what->bytes;
        while (at > start && memcmp(at, what->text, (size_t)what->bytes) != 0)
            at--;
        *out = memcmp(at, what->text, (size_t)what->bytes) == 0 ? at : NULL;
        return chat_spend(r, chat_char_steps(end - at));
    }
    DSC_TRY(chat_spend(r, chat_scan_steps(end - start)));
    for (const char *at = chat_find(start, end, what); at != NULL; at = chat_find(at + 1, end, what)) {
        DSC_TRY(chat_spend(r, chat_scan_steps(what->bytes)));
        *out = at;
    }
    return DSC_OK;
}

/* ---- strip ---- */

static bool strips(const chat_value *chars, const char *at, int bytes)
{
    if (chars == NULL)
        return chat_is_space(dsc_char_at(at, &bytes));
    return memmem(chars->text, (size_t)chars->bytes, at, (size_t)bytes) != NULL;
}

dsc_status chat_strip(chat_run *r, const chat_value *s, const chat_value *chars, bool left, bool right, chat_value *out)
{
    const char *start = s->text, *end = s->text + s->bytes;
    int bytes;
    if (chars->kind != CHAT_STRING && chars->kind != CHAT_NONE && chars->kind != CHAT_MISSING)
        return chat_fail(r, DSC_ERR_INPUT, "strip needs a string of characters, not a value of type %s",
                         chat_type_name((chat_kind)chars->kind));
    const chat_value *set = chars->kind == CHAT_STRING ? chars : NULL;
    const int64_t steps = 1 + (set != NULL ? set->bytes / 16 : 0);
    for (; left && start < end; start += bytes) {
        dsc_char_at(start, &bytes);
        DSC_TRY(chat_spend(r, steps));
        if (!strips(set, start, bytes))
            break;
    }
    while (right && end > start) {
        const char *before = dsc_char_before(end);
        DSC_TRY(chat_spend(r, steps));
        if (!strips(set, before, (int)(end - before)))
            break;
        end = before;
    }
    DSC_ASSERT(start <= end);
    *out = chat_string(start, end - start);
    return DSC_OK;
}

/* ---- split ---- */

static dsc_status add_part(chat_run *r, chat_value *list, const char *start, const char *end)
{
    DSC_ASSERT(start <= end);
    return chat_append(r, list->list, chat_string(start, end - start));
}

static void reverse(chat_list *list)
{
    for (int64_t i = 0; i < list->count / 2; i++) {
        const chat_value item = list->item[i];
        list->item[i] = list->item[list->count - 1 - i];
        list->item[list->count - 1 - i] = item;
    }
}

static dsc_status split_blanks(chat_run *r, const char *start, const char *end, int64_t most, chat_value *out)
{
    int bytes;
    for (start = chat_skip_space(start, end); start < end; start = chat_skip_space(start, end)) {
        const char *at = start;
        if (most-- == 0)
            return add_part(r, out, start, chat_skip_space_back(end, start));
        while (at < end && !chat_is_space(dsc_char_at(at, &bytes)))
            at += bytes;
        DSC_TRY(add_part(r, out, start, at));
        start = at;
    }
    return DSC_OK;
}

static dsc_status split_blanks_back(chat_run *r, const char *start, const char *end, int64_t most, chat_value *out)
{
    int bytes;
    for (end = chat_skip_space_back(end, start); end > start; end = chat_skip_space_back(end, start)) {
        const char *at = end;
        if (most-- == 0)
            return add_part(r, out, chat_skip_space(start, end), end);
        while (at > start && !chat_is_space(dsc_char_at(dsc_char_before(at), &bytes)))
            at = dsc_char_before(at);
        DSC_TRY(add_part(r, out, at, end));
        end = at;
    }
    return DSC_OK;
}

/* most < 0: no limit. Without a separator, runs of blanks separate. */
dsc_status chat_split(chat_run *r, const chat_value *s, const chat_value *separator, int64_t most, bool from_right,
                      chat_value *out)
{
    const char *start = s->text, *end = s->text + s->bytes, *at;
    const bool by_blanks = separator->kind != CHAT_STRING;
    DSC_TRY(chat_spend(r, by_blanks ? chat_char_steps(s->bytes) : chat_scan_steps(s->bytes)));
    DSC_TRY(chat_new_list(r, CHAT_LIST, 0, out));
    if (by_blanks) {
        DSC_TRY(from_right ? split_blanks_back(r, start, end, most, out) : split_blanks(r, start, end, most, out));
    } else if (separator->bytes == 0) {
        return chat_fail(r, DSC_ERR_INPUT, "split with an empty separator");
    } else if (from_right) {
        while (most-- != 0) {
            DSC_TRY(chat_find_last(r, start, end, separator, &at));
            if (at == NULL)
                break;
            DSC_TRY(add_part(r, out, at + separator->bytes, end));
            end = at;
        }
        DSC_TRY(add_part(r, out, start, end));
    } else {
        while (most-- != 0 && (at = chat_find(start, end, separator)) != NULL) {
            DSC_TRY(add_part(r, out, start, at));
            start = at + separator->bytes;
        }
        DSC_TRY(add_part(r, out, start, end));
    }
    if (from_right)
        reverse(out->list);
    return DSC_OK;
}

static bool is_line_end(uint32_t code)
{
    return (code >= 10 && code <= 13) || (code >= 0x1c && code <= 0x1e) || code == 0x85 || code == 0x2028 ||
           code == 0x2029;
}

dsc_status chat_split_lines(chat_run *r, const chat_value *s, bool keep_ends, chat_value *out)
{
    const char *start = s->text, *end = s->text + s->bytes;
    int bytes;
    DSC_TRY(chat_spend(r, chat_char_steps(s->bytes)));
    DSC_TRY(chat_new_list(r, CHAT_LIST, 0, out));
    for (const char *at = start; at < end;) {
        const char *line_end = at;
        const uint32_t code = dsc_char_at(at, &bytes);
        at += bytes;
        if (!is_line_end(code))
            continue;
        if (code == '\r' && at < end && *at == '\n')
            at++;
        DSC_TRY(add_part(r, out, start, keep_ends ? at : line_end));
        start = at;
    }
    return start < end ? add_part(r, out, start, end) : DSC_OK;
}

/* ---- replace, join, repeat ---- */

/* An empty `from` stands before each character and at the end. */
static dsc_status replace_empty(chat_run *r, const chat_value *s, const chat_value *to, int64_t most, chat_bytes *b)
{
    int bytes;
    for (int64_t i = 0; i < s->bytes; i += bytes) {
        if (most-- != 0)
            DSC_TRY(chat_add_str(r, b, to));
        else
            most = 0;
        dsc_char_at(s->text + i, &bytes);
        DSC_TRY(chat_add(r, b, s->text + i, bytes));
    }
    return most != 0 ? chat_add_str(r, b, to) : DSC_OK;
}

/* most < 0: all. */
dsc_status chat_replace(chat_run *r, const chat_value *s, const chat_value *from, const chat_value *to, int64_t most,
                        chat_value *out)
{
    const char *start = s->text, *end = s->text + s->bytes, *at;
    chat_bytes b = { 0 };
    DSC_ASSERT(from->kind == CHAT_STRING && to->kind == CHAT_STRING);
    DSC_TRY(chat_spend(r, chat_scan_steps(s->bytes)));
    if (from->bytes == 0) {
        DSC_TRY(chat_spend(r, s->bytes));
        DSC_TRY(replace_empty(r, s, to, most, &b));
        *out = chat_bytes_value(&b);
        return DSC_OK;
    }
    if (chat_find(start, end, from) == NULL) {
        *out = chat_string(s->text, s->bytes);
        return DSC_OK;
    }
    while (most-- != 0 && (at = chat_find(start, end, from)) != NULL) {
        DSC_TRY(chat_add(r, &b, start, at - start));
        DSC_TRY(chat_add_str(r, &b, to));
        start = at + from->bytes;
    }
    DSC_TRY(chat_add(r, &b, start, end - start));
    *out = chat_bytes_value(&b);
    return DSC_OK;
}

/* any_type: the filter, which writes each item as str(); the method accepts strings only. */
dsc_status chat_join(chat_run *r, const chat_value *separator, const chat_value *items, bool any_type, chat_value *out)
{
    chat_bytes b = { 0 };
    chat_cursor cursor;
    chat_value item;
    DSC_ASSERT(separator->kind == CHAT_STRING);
    DSC_TRY(chat_iterate(r, items, &cursor));
    for (int64_t i = 0;; i++) {
        bool end;
        DSC_TRY(chat_next(r, &cursor, &item, &end));
        if (end)
            break;
        if (!any_type && item.kind != CHAT_STRING)
            return chat_fail(r, DSC_ERR_INPUT, "join needs strings, and item %lld has the type %s", (long long)i,
                             chat_type_name((chat_kind)item.kind));
        if (i > 0)
            DSC_TRY(chat_add_str(r, &b, separator));
        DSC_TRY(chat_add_str(r, &b, &item));
    }
    *out = chat_bytes_value(&b);
    return DSC_OK;
}

dsc_status chat_repeat(chat_run *r, const chat_value *s, int64_t times, chat_value *out)
{
    int64_t bytes = 0;
    char *text = NULL;
    times = times < 0 ? 0 : times;
    if (!dsc_mul_i64(s->bytes, times, &bytes) || bytes > r->memory_limit)
        return chat_fail(r, DSC_ERR_INPUT, "a text of more than %lld bytes is above the limit of memory",
                         (long long)r->memory_limit);
    DSC_TRY(chat_spend(r, chat_text_steps(bytes)));
    DSC_TRY(chat_new_text(r, bytes, &text));
    if (s->bytes == 1)
        memset(text, s->text[0], (size_t)bytes);
    for (int64_t i = 0; s->bytes > 1 && i < times; i++)
        memcpy(text + i * s->bytes, s->text, (size_t)s->bytes);
    *out = chat_string(text, bytes);
    return DSC_OK;
}
