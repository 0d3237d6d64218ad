/* json_read.c - a JSON text as values. Unlike base/formats/json.h it tells 1 from 1.0, as Python does.
 *
 * The text is RFC 8259 in valid UTF-8. Refused: surrogates without their pair, integers beyond 64 bits, numbers beyond
 * a double, more than 100 nested arrays and objects. Of two equal keys the last one counts, as in Python.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "base/formats/utf8.h"
#include "engine/text/chat/chat_internal.h"
#include "engine/text/unicode.h"

typedef struct reader {
    chat_run *r;
    const char *start, *at, *end;
    int depth;
} reader;

static dsc_status read_value(reader *p, chat_value *out);

static dsc_status refuse(reader *p, const char *what)
{
    int64_t line = 1, column = 1;
    char where[64];
    DSC_ASSERT(p->at >= p->start && p->at <= p->end);
    for (const char *at = p->start; at < p->at; at++) {
        line += *at == '\n';
        column = *at == '\n' ? 1 : column + 1;
    }
    snprintf(where, sizeof where, "chat context:%lld:%lld", (long long)line, (long long)column);
    return DSC_FAIL(p->r->err, DSC_ERR_INPUT, where, "%s", what);
}

static void skip_blanks(reader *p)
{
    while (p->at < p->end && (*p->at == ' ' || *p->at == '\n' || *p->at == '\r' || *p->at == '\t'))
        p->at++;
}

static bool skip(reader *p, char c)
{
    const bool is = p->at < p->end && *p->at == c;
    p->at += is;
    return is;
}

static bool read_hex(reader *p, uint32_t *out)
{
    *out = 0;
    if (p->end - p->at < 4)
        return false;
    for (int i = 0; i < 4; i++) {
        const char c = *p->at++, lower = (char)(c | 0x20);
        if (!(c >= '0' && c <= '9') && !(lower >= 'a' && lower <= 'f'))
            return false;
        *out = *out << 4 | (uint32_t)(c <= '9' ? c - '0' : lower - 'a' + 10);
    }
    return true;
}

/* Behind the backslash. */
static dsc_status read_escape(reader *p, char *out, int *bytes)
{
    static const char letters[] = "\"\\/bfnrt", codes[] = "\"\\/\b\f\n\r\t";
    uint32_t code, low;
    if (p->at == p->end)
        return refuse(p, "a string without its closing quote");
    const char letter = *p->at++;
    const char *simple = letter != 0 ? strchr(letters, letter) : NULL;
    *bytes = 1;
    if (simple != NULL) {
        *out = codes[simple - letters];
        return DSC_OK;
    }
    if (letter != 'u' || !read_hex(p, &code))
        return refuse(p, "an unknown escape in a string");
    if (code >= 0xd800 && code < 0xe000) {
        if (code >= 0xdc00 || !skip(p, '\\') || !skip(p, 'u') || !read_hex(p, &low) || low < 0xdc00 || low >= 0xe000)
            return refuse(p, "a surrogate without its pair in a string");
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    *bytes = dsc_utf8_encode(code, out);
    return DSC_OK;
}

static dsc_status read_string(reader *p, chat_value *out)
{
    const char *close = ++p->at;
    char *text = NULL;
    int64_t bytes = 0;
    while (close < p->end && *close != '"')
        close += *close == '\\' ? 2 : 1;
    if (close >= p->end)
        return refuse(p, "a string without its closing quote");
    DSC_TRY(chat_new_text(p->r, close - p->at + 4, &text));
    const int64_t capacity = close - p->at + 4;
    while (p->at < close) {
        int more = 1;
        if ((unsigned char)*p->at < 0x20)
            return refuse(p, "a control character in a string; write it as \\u00XX");
        if (*p->at == '\\') {
            p->at++;
            DSC_TRY(read_escape(p, text + bytes, &more));
        } else {
            text[bytes] = *p->at++;
        }
        bytes += more;
        DSC_ASSERT(bytes + 4 <= capacity || p->at >= close);
    }
    p->at = close + 1;
    *out = chat_string(text, bytes);
    return DSC_OK;
}

static bool skip_digits(reader *p)
{
    const char *start = p->at;
    while (p->at < p->end && *p->at >= '0' && *p->at <= '9')
        p->at++;
    return p->at > start;
}

static dsc_status read_number(reader *p, chat_value *out)
{
    const char *start = p->at;
    bool is_integer = true, valid;
    const bool negative = skip(p, '-');
    valid = skip(p, '0') || skip_digits(p);
    if (valid && skip(p, '.')) {
        is_integer = false;
        valid = skip_digits(p);
    }
    if (valid && (skip(p, 'e') || skip(p, 'E'))) {
        is_integer = false;
        if (!skip(p, '+'))
            skip(p, '-');
        valid = skip_digits(p);
    }
    if (!valid)
        return refuse(p, "neither a value nor a number of JSON");
    if (!is_integer) {
        double number;
        if (!chat_parse_float(start, p->at - start, &number))
            return refuse(p, "a number of more than 127 characters or beyond a double");
        *out = chat_float(number);
        return DSC_OK;
    }
    int64_t integer = 0;
    for (const char *at = start + negative; at < p->at; at++)
        if (__builtin_mul_overflow(integer, (int64_t)10, &integer) ||
            __builtin_sub_overflow(integer, (int64_t)(*at - '0'), &integer))
            return refuse(p, "an integer beyond 64 bits");
    if (!negative && __builtin_sub_overflow((int64_t)0, integer, &integer))
        return refuse(p, "an integer beyond 64 bits");
    *out = chat_int(integer);
    return DSC_OK;
}

static dsc_status read_array(reader *p, chat_value *out)
{
    chat_value item;
    p->at++;
    DSC_TRY(chat_new_list(p->r, CHAT_LIST, 0, out));
    skip_blanks(p);
    if (skip(p, ']'))
        return DSC_OK;
    for (;;) {
        DSC_TRY(read_value(p, &item));
        DSC_TRY(chat_append(p->r, out->list, item));
        skip_blanks(p);
        if (skip(p, ']'))
            return DSC_OK;
        if (!skip(p, ','))
            return refuse(p, "expected a comma or ]");
    }
}

static dsc_status read_object(reader *p, chat_value *out)
{
    chat_value key, value;
    p->at++;
    DSC_TRY(chat_new_dict(p->r, out));
    skip_blanks(p);
    if (skip(p, '}'))
        return DSC_OK;
    for (;;) {
        skip_blanks(p);
        if (p->at == p->end || *p->at != '"')
            return refuse(p, "expected a key in double quotes");
        DSC_TRY(read_string(p, &key));
        skip_blanks(p);
        if (!skip(p, ':'))
            return refuse(p, "expected a colon");
        DSC_TRY(read_value(p, &value));
        DSC_TRY(chat_dict_set(p->r, out->dict, key, value));
        skip_blanks(p);
        if (skip(p, '}'))
            return DSC_OK;
        if (!skip(p, ','))
            return refuse(p, "expected a comma or }");
    }
}

static dsc_status read_value(reader *p, chat_value *out)
{
    static const struct { const char *text; chat_value value; } words[] = {
        { "null", { .kind = CHAT_NONE } }, { "true", { .kind = CHAT_BOOL, .boolean = true } },
        { "false", { .kind = CHAT_BOOL } },
    };
    DSC_TRY(chat_spend(p->r, 1));
    skip_blanks(p);
    if (p->at == p->end)
        return refuse(p, "a value is missing");
    if (*p->at == '"')
        return read_string(p, out);
    for (size_t i = 0; i < DSC_COUNT(words); i++) {
        const size_t bytes = strlen(words[i].text);
        if ((size_t)(p->end - p->at) >= bytes && memcmp(p->at, words[i].text, bytes) == 0) {
            p->at += bytes;
            *out = words[i].value;
            return DSC_OK;
        }
    }
    if (*p->at != '[' && *p->at != '{')
        return read_number(p, out);
    if (p->depth == DSC_CHAT_NESTING_MAX)
        return refuse(p, "more than 100 arrays and objects in each other");
    p->depth++;
    DSC_TRY(*p->at == '[' ? read_array(p, out) : read_object(p, out));
    p->depth--;
    return DSC_OK;
}

dsc_status chat_read_json(chat_run *r, const char *text, int64_t bytes, chat_value *out)
{
    reader p = { .r = r, .start = text, .at = text, .end = text + bytes };
    if (bytes > DSC_CHAT_CONTEXT_BYTES_MAX)
        return refuse(&p, "a context of more than 64 MiB");
    if (!dsc_utf8_is_valid(text, bytes))
        return refuse(&p, "the context is not valid UTF-8");
    DSC_TRY(read_value(&p, out));
    skip_blanks(&p);
    DSC_ASSERT(p.depth == 0);
    return p.at == p.end ? DSC_OK : refuse(&p, "text behind the value");
}
