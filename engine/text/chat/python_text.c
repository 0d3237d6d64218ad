/* python_text.c - str() and repr() of values, and numbers as Python writes and reads them.
 * SPDX-License-Identifier: Apache-2.0 */
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/text/chat/chat_internal.h"
#include "engine/text/unicode.h"

/* ---- Numbers ---- */

dsc_status chat_add_integer(chat_run *r, chat_bytes *b, int64_t i)
{
    char text[32];
    const int bytes = snprintf(text, sizeof text, "%lld", (long long)i);
    DSC_ASSERT(bytes > 0 && bytes < (int)sizeof text);
    return chat_add(r, b, text, bytes);
}

/* The shortest decimal digits that read back as f, and the position of the point before which 0 or more of them are. */
static int shortest_digits(double f, char digits[24], int *point)
{
    char text[40];
    int count = 0, precision = 0;
    DSC_ASSERT(isfinite(f) && f > 0);
    do
        snprintf(text, sizeof text, "%.*e", precision, f);
    while (strtod(text, NULL) != f && ++precision < 17);
    const char *e = strchr(text, 'e');
    DSC_ASSERT(e != NULL);
    for (const char *at = text; at < e; at++)
        if (*at >= '0' && *at <= '9')
            digits[count++] = *at;
    *point = atoi(e + 1) + 1;
    while (count > 1 && digits[count - 1] == '0')
        count--;
    return count;
}

dsc_status chat_add_float(chat_run *r, chat_bytes *b, double f)
{
    char digits[24], exponent[16];
    int point;
    DSC_TRY(chat_spend(r, 64)); /* up to 17 conversions */
    if (signbit(f) && !isnan(f))
        DSC_TRY(chat_add_text(r, b, "-"));
    f = fabs(f);
    if (isnan(f) || isinf(f))
        return chat_add_text(r, b, isnan(f) ? "nan" : "inf");
    if (f == 0)
        return chat_add_text(r, b, "0.0");
    const int count = shortest_digits(f, digits, &point);
    if (point > 16 || point < -3) {
        DSC_TRY(chat_add(r, b, digits, 1));
        if (count > 1)
            DSC_TRY(chat_add_text(r, b, "."));
        DSC_TRY(chat_add(r, b, digits + 1, count - 1));
        snprintf(exponent, sizeof exponent, "e%c%02d", point > 0 ? '+' : '-', abs(point - 1));
        return chat_add_text(r, b, exponent);
    }
    if (point <= 0) {
        DSC_TRY(chat_add(r, b, "0.0000", 2 - point));
        return chat_add(r, b, digits, count);
    }
    DSC_TRY(chat_add(r, b, digits, dsc_min_i64(point, count)));
    DSC_TRY(chat_add(r, b, "0000000000000000", dsc_max_i64(point - count, 0)));
    DSC_TRY(chat_add_text(r, b, "."));
    return point < count ? chat_add(r, b, digits + point, count - point) : chat_add_text(r, b, "0");
}

bool chat_parse_float(const char *text, int64_t bytes, double *out)
{
    char copy[160];
    const char *point = localeconv()->decimal_point; /* strtod reads the point of the program's locale */
    int64_t to = 0;
    char *end;
    DSC_ASSERT(bytes >= 0);
    if (bytes > 127 || strlen(point) > 8)
        return false;
    for (int64_t i = 0; i < bytes; i++) {
        if (text[i] != '.')
            copy[to++] = text[i];
        else
            for (const char *p = point; *p != 0; p++)
                copy[to++] = *p;
        if (to > 140)
            return false;
    }
    copy[to] = 0;
    *out = strtod(copy, &end);
    return end == copy + to && isfinite(*out);
}

/* ---- repr() ---- */

static bool is_printable(uint32_t code)
{
    const uint32_t hidden = DSC_CATEGORY(CC) | DSC_CATEGORY(CF) | DSC_CATEGORY(CS) | DSC_CATEGORY(CO) |
                            DSC_CATEGORY(CN) | DSC_CATEGORY(ZL) | DSC_CATEGORY(ZP) | DSC_CATEGORY(ZS);
    return code < 0x80 ? code >= 0x20 && code < 0x7f : (dsc_char_category(code) & hidden) == 0;
}

static dsc_status add_hidden(chat_run *r, chat_bytes *b, uint32_t code)
{
    char text[16];
    if (code == '\n' || code == '\r' || code == '\t')
        return chat_add_text(r, b, code == '\n' ? "\\n" : code == '\r' ? "\\r" : "\\t");
    if (code < 0x100)
        snprintf(text, sizeof text, "\\x%02x", code);
    else
        snprintf(text, sizeof text, code < 0x10000 ? "\\u%04x" : "\\U%08x", code);
    return chat_add_text(r, b, text);
}

static dsc_status add_quoted(chat_run *r, chat_bytes *b, const char *text, int64_t bytes)
{
    const bool has_single = memchr(text, '\'', (size_t)bytes) != NULL;
    const char quote = has_single && memchr(text, '"', (size_t)bytes) == NULL ? '"' : '\'';
    int char_bytes;
    DSC_TRY(chat_spend(r, chat_char_steps(bytes)));
    DSC_TRY(chat_add(r, b, &quote, 1));
    for (int64_t i = 0; i < bytes; i += char_bytes) {
        const uint32_t code = dsc_char_at(text + i, &char_bytes);
        if (code == (uint32_t)quote || code == '\\')
            DSC_TRY(chat_add_text(r, b, "\\"));
        if (is_printable(code))
            DSC_TRY(chat_add(r, b, text + i, char_bytes));
        else
            DSC_TRY(add_hidden(r, b, code));
    }
    return chat_add(r, b, &quote, 1);
}

static dsc_status add_items(chat_run *r, chat_bytes *b, const chat_list *list, const char *brackets)
{
    DSC_ASSERT(strlen(brackets) == 2);
    DSC_TRY(chat_add(r, b, brackets, 1));
    for (int64_t i = 0; i < list->count; i++) {
        if (i > 0)
            DSC_TRY(chat_add_text(r, b, ", "));
        DSC_TRY(chat_add_repr(r, b, &list->item[i]));
    }
    if (list->count == 1 && brackets[0] == '(')
        DSC_TRY(chat_add_text(r, b, ","));
    return chat_add(r, b, brackets + 1, 1);
}

static dsc_status add_entries(chat_run *r, chat_bytes *b, const chat_dict *dict)
{
    DSC_TRY(chat_add_text(r, b, "{"));
    for (int64_t i = 0; i < dict->count; i++) {
        if (i > 0)
            DSC_TRY(chat_add_text(r, b, ", "));
        DSC_TRY(chat_add_repr(r, b, &dict->entry[i].key));
        DSC_TRY(chat_add_text(r, b, ": "));
        DSC_TRY(chat_add_repr(r, b, &dict->entry[i].value));
    }
    return chat_add_text(r, b, "}");
}

static dsc_status add_view(chat_run *r, chat_bytes *b, const chat_value *v)
{
    chat_value list;
    DSC_TRY(chat_to_list(r, v, CHAT_LIST, &list));
    DSC_TRY(chat_add_text(r, b, v->flag == CHAT_KEYS ? "dict_keys(" : v->flag == CHAT_VALUES ? "dict_values("
                                                                                              : "dict_items("));
    DSC_TRY(add_items(r, b, list.list, "[]"));
    return chat_add_text(r, b, ")");
}

static dsc_status add_range(chat_run *r, chat_bytes *b, const chat_range *range)
{
    DSC_TRY(chat_add_text(r, b, "range("));
    DSC_TRY(chat_add_integer(r, b, range->start));
    DSC_TRY(chat_add_text(r, b, ", "));
    DSC_TRY(chat_add_integer(r, b, range->stop));
    if (range->step != 1) {
        DSC_TRY(chat_add_text(r, b, ", "));
        DSC_TRY(chat_add_integer(r, b, range->step));
    }
    return chat_add_text(r, b, ")");
}

static dsc_status add_nested(chat_run *r, chat_bytes *b, const chat_value *v)
{
    DSC_TRY(chat_enter(r));
    switch (v->kind) {
    case CHAT_LIST: DSC_TRY(add_items(r, b, v->list, "[]")); break;
    case CHAT_TUPLE: DSC_TRY(add_items(r, b, v->list, "()")); break;
    case CHAT_DICT: DSC_TRY(add_entries(r, b, v->dict)); break;
    case CHAT_VIEW: DSC_TRY(add_view(r, b, v)); break;
    case CHAT_NAMESPACE:
        DSC_TRY(chat_add_text(r, b, "<Namespace "));
        DSC_TRY(add_entries(r, b, v->dict));
        DSC_TRY(chat_add_text(r, b, ">"));
        break;
    default:
        return chat_fail(r, DSC_ERR_UNSUPPORTED, "the text of a value of type %s is not supported",
                         chat_type_name((chat_kind)v->kind));
    }
    r->depth--;
    return DSC_OK;
}

dsc_status chat_add_repr(chat_run *r, chat_bytes *b, const chat_value *v)
{
    DSC_ASSERT(v->kind != CHAT_MISSING);
    switch (v->kind) {
    case CHAT_UNDEFINED: return chat_add_text(r, b, "Undefined");
    case CHAT_NONE: return chat_add_text(r, b, "None");
    case CHAT_BOOL: return chat_add_text(r, b, v->boolean ? "True" : "False");
    case CHAT_INT: return chat_add_integer(r, b, v->integer);
    case CHAT_FLOAT: return chat_add_float(r, b, v->number);
    case CHAT_STRING:
        if (v->flag)
            return chat_fail(r, DSC_ERR_UNSUPPORTED, "the repr of a safe string is not supported");
        return add_quoted(r, b, v->text, v->bytes);
    case CHAT_RANGE: return add_range(r, b, v->range);
    default: return add_nested(r, b, v);
    }
}

/* ---- str() ---- */

dsc_status chat_add_str(chat_run *r, chat_bytes *b, const chat_value *v)
{
    if (v->kind == CHAT_UNDEFINED)
        return DSC_OK;
    if (v->kind != CHAT_STRING)
        return chat_add_repr(r, b, v);
    DSC_TRY(chat_spend(r, chat_text_steps(v->bytes)));
    return chat_add(r, b, v->text, v->bytes);
}

dsc_status chat_str(chat_run *r, const chat_value *v, chat_value *out)
{
    chat_bytes b = { 0 };
    if (v->kind == CHAT_STRING) {
        *out = chat_string(v->text, v->bytes);
        return DSC_OK;
    }
    DSC_TRY(chat_add_str(r, &b, v));
    *out = chat_bytes_value(&b);
    return DSC_OK;
}

dsc_status chat_escape(chat_run *r, const chat_value *v, chat_value *out)
{
    static const struct { char from; const char *to; } escapes[] = {
        { '&', "&amp;" }, { '>', "&gt;" }, { '<', "&lt;" }, { '\'', "&#39;" }, { '"', "&#34;" }
    };
    chat_bytes b = { 0 };
    DSC_ASSERT(v->kind == CHAT_STRING);
    *out = *v;
    if (v->flag)
        return DSC_OK;
    DSC_TRY(chat_spend(r, chat_char_steps(v->bytes)));
    for (int64_t i = 0; i < v->bytes; i++) {
        const char *to = NULL;
        for (size_t j = 0; j < DSC_COUNT(escapes); j++)
            to = v->text[i] == escapes[j].from ? escapes[j].to : to;
        DSC_TRY(to != NULL ? chat_add_text(r, &b, to) : chat_add(r, &b, v->text + i, 1));
    }
    *out = chat_bytes_value(&b);
    out->flag = true;
    return DSC_OK;
}
