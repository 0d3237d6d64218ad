/* json.c - values as json.dumps of Python writes them. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/text/chat/chat_internal.h"
#include "engine/text/unicode.h"

static dsc_status add_value(chat_run *r, chat_bytes *b, const chat_value *v, const chat_json_style *style, int level);

static dsc_status add_escaped(chat_run *r, chat_bytes *b, uint32_t code)
{
    static const char codes[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
    char text[16];
    const char *simple = code != 0 && code < 0x80 ? strchr(codes, (int)code) : NULL;
    if (simple != NULL)
        snprintf(text, sizeof text, "\\%c", letters[simple - codes]);
    else if (code < 0x10000)
        snprintf(text, sizeof text, "\\u%04x", code);
    else
        snprintf(text, sizeof text, "\\u%04x\\u%04x", 0xd800 + ((code - 0x10000) >> 10), 0xdc00 + (code & 0x3ff));
    return chat_add_text(r, b, text);
}

static dsc_status add_string(chat_run *r, chat_bytes *b, const char *text, int64_t bytes, bool ascii)
{
    int64_t written = 0; /* bytes of text */
    int char_bytes;
    DSC_TRY(chat_spend(r, chat_char_steps(bytes)));
    DSC_TRY(chat_add_text(r, b, "\""));
    for (int64_t i = 0; i < bytes; i += char_bytes) {
        const uint32_t code = dsc_char_at(text + i, &char_bytes);
        if (code >= 0x20 && code != '"' && code != '\\' && (!ascii || code < 0x7f))
            continue;
        DSC_TRY(chat_add(r, b, text + written, i - written));
        DSC_TRY(add_escaped(r, b, code));
        written = i + char_bytes;
    }
    DSC_TRY(chat_add(r, b, text + written, bytes - written));
    return chat_add_text(r, b, "\"");
}

static dsc_status add_number(chat_run *r, chat_bytes *b, double f)
{
    if (isnan(f))
        return chat_add_text(r, b, "NaN");
    if (isinf(f))
        return chat_add_text(r, b, f > 0 ? "Infinity" : "-Infinity");
    return chat_add_float(r, b, f);
}

/* Anything but arrays and objects; true when it was one of these. */
static dsc_status add_scalar(chat_run *r, chat_bytes *b, const chat_value *v, bool ascii, bool *done)
{
    *done = true;
    switch (v->kind) {
    case CHAT_NONE: return chat_add_text(r, b, "null");
    case CHAT_BOOL: return chat_add_text(r, b, v->boolean ? "true" : "false");
    case CHAT_INT: return chat_add_integer(r, b, v->integer);
    case CHAT_FLOAT: return add_number(r, b, v->number);
    case CHAT_STRING: return add_string(r, b, v->text, v->bytes, ascii);
    default: *done = false; return DSC_OK;
    }
}

static dsc_status add_line(chat_run *r, chat_bytes *b, const chat_json_style *style, int level)
{
    if (style->indent.kind == CHAT_NONE)
        return DSC_OK;
    DSC_ASSERT(style->indent.kind == CHAT_STRING && level >= 0);
    DSC_TRY(chat_spend(r, level));
    DSC_TRY(chat_add_text(r, b, "\n"));
    for (int i = 0; i < level; i++)
        DSC_TRY(chat_add(r, b, style->indent.text, style->indent.bytes));
    return DSC_OK;
}

static dsc_status add_array(chat_run *r, chat_bytes *b, const chat_list *list, const chat_json_style *style, int level)
{
    if (list->count == 0)
        return chat_add_text(r, b, "[]");
    DSC_TRY(chat_add_text(r, b, "["));
    for (int64_t i = 0; i < list->count; i++) {
        if (i > 0)
            DSC_TRY(chat_add_str(r, b, &style->item_separator));
        DSC_TRY(add_line(r, b, style, level + 1));
        DSC_TRY(add_value(r, b, &list->item[i], style, level + 1));
    }
    DSC_TRY(add_line(r, b, style, level));
    return chat_add_text(r, b, "]");
}

/* Python compares strings by code point, which is the order of their UTF-8 bytes. */
static int compare_keys(const void *a, const void *b)
{
    const chat_value *x = &(*(const chat_entry *const *)a)->key, *y = &(*(const chat_entry *const *)b)->key;
    const int order = memcmp(x->text, y->text, (size_t)dsc_min_i64(x->bytes, y->bytes));
    return order != 0 ? order : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static dsc_status sorted_entries(chat_run *r, const chat_dict *dict, bool sort, const chat_entry ***out)
{
    const chat_entry **entry = NULL;
    DSC_TRY(chat_new(r, dict->count, sizeof *entry, &entry));
    for (int64_t i = 0; i < dict->count; i++) {
        entry[i] = &dict->entry[i];
        if (sort && entry[i]->key.kind != CHAT_STRING)
            return chat_fail(r, DSC_ERR_UNSUPPORTED, "tojson with sort_keys needs keys that are strings");
    }
    DSC_TRY(chat_spend(r, sort ? 16 * dict->count : dict->count));
    if (sort)
        qsort(entry, (size_t)dict->count, sizeof *entry, compare_keys);
    *out = entry;
    return DSC_OK;
}

static dsc_status add_object(chat_run *r, chat_bytes *b, const chat_dict *dict, const chat_json_style *style, int level)
{
    const chat_entry **entry = NULL;
    bool is_scalar;
    if (dict->count == 0)
        return chat_add_text(r, b, "{}");
    DSC_TRY(sorted_entries(r, dict, style->sort, &entry));
    DSC_TRY(chat_add_text(r, b, "{"));
    for (int64_t i = 0; i < dict->count; i++) {
        const chat_value *key = &entry[i]->key;
        if (i > 0)
            DSC_TRY(chat_add_str(r, b, &style->item_separator));
        DSC_TRY(add_line(r, b, style, level + 1));
        DSC_TRY(chat_add_text(r, b, key->kind == CHAT_STRING ? "" : "\""));
        DSC_TRY(add_scalar(r, b, key, style->ascii, &is_scalar));
        if (!is_scalar)
            return chat_fail(r, DSC_ERR_INPUT, "tojson does not write a key of type %s",
                             chat_type_name((chat_kind)key->kind));
        DSC_TRY(chat_add_text(r, b, key->kind == CHAT_STRING ? "" : "\""));
        DSC_TRY(chat_add_str(r, b, &style->key_separator));
        DSC_TRY(add_value(r, b, &entry[i]->value, style, level + 1));
    }
    DSC_TRY(add_line(r, b, style, level));
    return chat_add_text(r, b, "}");
}

static dsc_status add_value(chat_run *r, chat_bytes *b, const chat_value *v, const chat_json_style *style, int level)
{
    bool done;
    DSC_TRY(add_scalar(r, b, v, style->ascii, &done));
    if (done)
        return DSC_OK;
    DSC_TRY(chat_enter(r));
    if (v->kind == CHAT_LIST || v->kind == CHAT_TUPLE)
        DSC_TRY(add_array(r, b, v->list, style, level));
    else if (v->kind == CHAT_DICT)
        DSC_TRY(add_object(r, b, v->dict, style, level));
    else
        return chat_fail(r, DSC_ERR_INPUT, "tojson does not write a value of type %s",
                         chat_type_name((chat_kind)v->kind));
    r->depth--;
    return DSC_OK;
}

dsc_status chat_add_json(chat_run *r, chat_bytes *b, const chat_value *v, const chat_json_style *style)
{
    DSC_ASSERT(style->item_separator.kind == CHAT_STRING && style->key_separator.kind == CHAT_STRING);
    return add_value(r, b, v, style, 0);
}
