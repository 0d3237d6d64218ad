/* python_format.c - "%s" % x, "{}".format(x) and strftime, each with the conversions that templates use.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <time.h>

#include "engine/text/chat/chat_internal.h"

/* ---- % ---- */

static dsc_status add_decimal(chat_run *r, chat_bytes *b, const chat_value *v)
{
    double number;
    int64_t integer;
    if (chat_is_integer(v, &integer))
        return chat_add_integer(r, b, integer);
    if (!chat_is_number(v, &number))
        return chat_fail(r, DSC_ERR_INPUT, "%%d needs a number, not a value of type %s",
                         chat_type_name((chat_kind)v->kind));
    if (!(fabs(number) < 9e15))
        return chat_fail(r, DSC_ERR_UNSUPPORTED, "%%d of a float beyond 53 bits is not supported");
    return chat_add_integer(r, b, (int64_t)number);
}

static dsc_status add_percent(chat_run *r, chat_bytes *b, char letter, const chat_value *v)
{
    switch (letter) {
    case 's': return chat_add_str(r, b, v);
    case 'r': return chat_add_repr(r, b, v);
    case 'd': case 'i': return add_decimal(r, b, v);
    default:
        return chat_fail(r, DSC_ERR_UNSUPPORTED, "the conversion %%%c is not supported; %%s, %%r and %%d are", letter);
    }
}

dsc_status chat_percent_format(chat_run *r, const chat_value *format, const chat_value *values, chat_value *out)
{
    chat_value only = *values;
    const chat_list one = { &only, 1, 1 };
    const chat_list *list = values->kind == CHAT_TUPLE ? values->list : &one;
    chat_bytes b = { 0 };
    int64_t used = 0;
    if (format->flag || values->kind == CHAT_DICT)
        return chat_fail(r, DSC_ERR_UNSUPPORTED, "%% of a safe string or with a dict is not supported");
    DSC_TRY(chat_spend(r, chat_char_steps(format->bytes)));
    for (int64_t i = 0; i < format->bytes; i++) {
        const char c = format->text[i];
        if (c != '%' || (i + 1 < format->bytes && format->text[i + 1] == '%')) {
            DSC_TRY(chat_add(r, &b, &c, 1));
            i += c == '%';
            continue;
        }
        if (++i == format->bytes)
            return chat_fail(r, DSC_ERR_INPUT, "a format that ends with %%");
        if (used == list->count)
            return chat_fail(r, DSC_ERR_INPUT, "a format with more conversions than values");
        DSC_TRY(add_percent(r, &b, format->text[i], &list->item[used++]));
    }
    if (used < list->count && (values->kind == CHAT_TUPLE || values->kind != CHAT_LIST))
        return chat_fail(r, DSC_ERR_INPUT, "a format with fewer conversions than values");
    *out = chat_bytes_value(&b);
    return DSC_OK;
}

/* ---- format ---- */

static bool is_digits(const char *text, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i++)
        if (text[i] < '0' || text[i] > '9')
            return false;
    return bytes > 0 && bytes < 4;
}

/* The value of {}, {1} or {name}. */
static dsc_status find_field(chat_run *r, const char *name, int64_t bytes, int64_t *next, const chat_args *args,
                             const chat_value **out)
{
    int64_t index = 0;
    DSC_ASSERT(*next >= -1); /* -1: fields have numbers */
    *out = NULL;
    if (bytes == 0 ? *next < 0 : is_digits(name, bytes) && *next > 0)
        return chat_fail(r, DSC_ERR_INPUT, "format with {} and {0} at once");
    if (bytes == 0 || is_digits(name, bytes)) {
        *next = bytes == 0 ? *next : -1;
        for (int64_t i = 0; i < bytes; i++)
            index = index * 10 + (name[i] - '0');
        index = bytes == 0 ? (*next)++ : index;
        *out = index < args->count ? &args->value[index] : NULL;
    }
    for (int64_t i = 0; *out == NULL && i < args->keyword_count; i++)
        if (args->keyword[i].bytes == bytes && memcmp(args->keyword[i].name, name, (size_t)bytes) == 0)
            *out = &args->keyword[i].value;
    if (*out != NULL)
        return DSC_OK;
    for (int64_t i = 0; i < bytes; i++)
        if (strchr(".[!:", name[i]) != NULL)
            return chat_fail(r, DSC_ERR_UNSUPPORTED, "format supports {}, {0} and {name} only");
    return chat_fail(r, DSC_ERR_INPUT, "format has no value for the field '%.*s'", (int)dsc_min_i64(bytes, 60), name);
}

dsc_status chat_brace_format(chat_run *r, const chat_value *format, const chat_args *args, chat_value *out)
{
    const char *at = format->text, *end = format->text + format->bytes;
    chat_bytes b = { 0 };
    int64_t next = 0;
    DSC_TRY(chat_spend(r, chat_char_steps(format->bytes)));
    for (; at < end; at++) {
        const chat_value *value;
        if (*at != '{' && *at != '}') {
            DSC_TRY(chat_add(r, &b, at, 1));
            continue;
        }
        if (at + 1 < end && at[1] == *at) {
            DSC_TRY(chat_add(r, &b, at++, 1));
            continue;
        }
        const char *close = *at == '{' ? memchr(at, '}', (size_t)(end - at)) : NULL;
        if (close == NULL)
            return chat_fail(r, DSC_ERR_INPUT, "a single '%c' in a format", *at);
        DSC_TRY(find_field(r, at + 1, close - at - 1, &next, args, &value));
        DSC_TRY(chat_add_str(r, &b, value));
        at = close;
    }
    *out = chat_bytes_value(&b);
    return DSC_OK;
}

/* ---- strftime ---- */

/* English names, whatever the locale of the program is. */
static bool time_field(char letter, bool padded, const struct tm *t, char out[32])
{
    static const char *const month[] = { "January", "February", "March", "April", "May", "June", "July", "August",
                                         "September", "October", "November", "December" };
    static const char *const day[] = { "Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday" };
    const char *two = padded ? "%02d" : "%d";
    DSC_ASSERT(t->tm_mon >= 0 && t->tm_mon < 12 && t->tm_wday >= 0 && t->tm_wday < 7);
    switch (letter) {
    case 'Y': snprintf(out, 32, "%d", t->tm_year + 1900); return true;
    case 'y': snprintf(out, 32, two, t->tm_year % 100); return true;
    case 'm': snprintf(out, 32, two, t->tm_mon + 1); return true;
    case 'd': snprintf(out, 32, two, t->tm_mday); return true;
    case 'H': snprintf(out, 32, two, t->tm_hour); return true;
    case 'I': snprintf(out, 32, two, (t->tm_hour + 11) % 12 + 1); return true;
    case 'M': snprintf(out, 32, two, t->tm_min); return true;
    case 'S': snprintf(out, 32, two, t->tm_sec); return true;
    case 'j': snprintf(out, 32, padded ? "%03d" : "%d", t->tm_yday + 1); return true;
    case 'p': snprintf(out, 32, "%s", t->tm_hour < 12 ? "AM" : "PM"); return true;
    case 'B': snprintf(out, 32, "%s", month[t->tm_mon]); return true;
    case 'b': snprintf(out, 32, "%.3s", month[t->tm_mon]); return true;
    case 'A': snprintf(out, 32, "%s", day[t->tm_wday]); return true;
    case 'a': snprintf(out, 32, "%.3s", day[t->tm_wday]); return true;
    case 'F': snprintf(out, 32, "%d-%02d-%02d", t->tm_year + 1900, t->tm_mon + 1, t->tm_mday); return true;
    case 'T': snprintf(out, 32, "%02d:%02d:%02d", t->tm_hour, t->tm_min, t->tm_sec); return true;
    case '%': snprintf(out, 32, "%%"); return true;
    default: return false;
    }
}

dsc_status chat_strftime(chat_run *r, const chat_value *format, chat_value *out)
{
    const time_t seconds = (time_t)r->options->now_s;
    struct tm t;
    chat_bytes b = { 0 };
    char field[32];
    if (gmtime_r(&seconds, &t) == NULL)
        return chat_fail(r, DSC_ERR_INPUT, "the time %lld has no date", (long long)r->options->now_s);
    DSC_TRY(chat_spend(r, chat_char_steps(format->bytes)));
    for (int64_t i = 0; i < format->bytes; i++) {
        if (format->text[i] != '%') {
            DSC_TRY(chat_add(r, &b, format->text + i, 1));
            continue;
        }
        const bool padded = i + 1 >= format->bytes || format->text[i + 1] != '-';
        i += padded ? 1 : 2;
        if (i >= format->bytes || !time_field(format->text[i], padded, &t, field))
            return chat_fail(r, DSC_ERR_UNSUPPORTED,
                             "a field of strftime_now is not supported; supported are %%Y %%y %%m %%d %%H %%I %%M %%S "
                             "%%j %%p %%B %%b %%A %%a %%F %%T and %%-d");
        DSC_TRY(chat_add_text(r, &b, field));
    }
    *out = chat_bytes_value(&b);
    return DSC_OK;
}
