/* json_scan.c - one pass over a JSON text that refuses everything cJSON would let through.
 *
 * Invariants: `at` never passes `bytes`; lines, columns and the cleaned copy are kept as it moves; every value gets a
 * place before anything inside it. Keys of open objects lie on one stack, decoded, so that "a" and "\u0061" are equal;
 * an object's are compared when it closes (json_keys.c). Recursion is bounded by limits.depth.
 * SPDX-License-Identifier: Apache-2.0 */
#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/formats/json_scan.h"
#include "base/formats/utf8.h"
#include "base/hash.h"

#define DEPTH_MAX 512       /* cJSON itself stops at 1000 */
#define NUMBER_BYTES_MAX 63 /* cJSON cuts longer numbers off */

typedef struct json_scan {
    dsc_alloc *alloc;
    const char *name;
    const char *text;
    int64_t bytes;
    int64_t at;
    dsc_json_dialect dialect;
    dsc_json_limits limits;
    dsc_error *err;
    uint32_t line;
    int64_t line_start; /* offset of the line's first byte */
    int64_t line_extra; /* bytes of this line that do not start a character */
    char *clean;
    dsc_json_pos *places;
    int64_t place_count, place_room;
    dsc_json_key *keys;
    int64_t key_count, key_room;
    char *key_text;
    int64_t key_bytes, key_text_room;
    locale_t locale;
} json_scan;

static dsc_status scan_value(json_scan *s, int64_t depth);

static dsc_json_pos here(const json_scan *s)
{
    return (dsc_json_pos) { .line = s->line, .column = (uint32_t)(s->at - s->line_start - s->line_extra + 1) };
}

static dsc_status failure_of(const json_scan *s)
{
    return s->dialect == DSC_JSON_CONFIG ? DSC_ERR_CONFIG : DSC_ERR_INPUT;
}

static dsc_status fail_at(json_scan *s, dsc_json_pos place, const char *fmt, ...) DSC_PRINTF(3, 4);

static dsc_status fail_at(json_scan *s, dsc_json_pos place, const char *fmt, ...)
{
    char message[400];
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    return dsc_json_fail_at(s->err, failure_of(s), s->name, place, message);
}

static dsc_status reserve(json_scan *s, void **array, int64_t count, int64_t *capacity, int64_t more,
                          int64_t bytes_each)
{
    return dsc_json_reserve(s->alloc, array, count, capacity, more, bytes_each, s->err);
}

/* The byte at `at`, -1 at the end. */
static int peek(const json_scan *s)
{
    return s->at < s->bytes ? (unsigned char)s->text[s->at] : -1;
}

/* The text at `at`, for a message. */
static const char *found(const json_scan *s, char *out, size_t out_bytes)
{
    const int c = peek(s);
    const int bytes = dsc_utf8_char_bytes(s->text + s->at, s->text + s->bytes);
    if (c < 0)
        snprintf(out, out_bytes, "the end of the text");
    else if (c == '"')
        snprintf(out, out_bytes, "a string");
    else if (c < 0x20 || c == 0x7f || bytes == 0)
        snprintf(out, out_bytes, "byte 0x%02x", (unsigned)c);
    else
        snprintf(out, out_bytes, "'%.*s'", bytes, s->text + s->at);
    return out;
}

/* Moves over one character outside a string; lines and columns follow. */
static dsc_status step(json_scan *s)
{
    const int bytes = dsc_utf8_char_bytes(s->text + s->at, s->text + s->bytes);
    if (bytes == 0)
        return fail_at(s, here(s), "not valid UTF-8 (byte 0x%02x)", (unsigned)peek(s));
    if (s->text[s->at] == 0)
        return fail_at(s, here(s), "a NUL byte");
    s->at += bytes;
    s->line_extra += bytes - 1;
    if (s->text[s->at - 1] == '\n') {
        s->line++;
        s->line_start = s->at;
        s->line_extra = 0;
    }
    return DSC_OK;
}

/* At a comment: moves over it and blanks it in the cleaned copy. */
static dsc_status scan_comment(json_scan *s)
{
    const dsc_json_pos start = here(s);
    const int64_t start_at = s->at;
    const bool block = s->text[s->at] == '/' && s->text[s->at + 1] == '*';
    if (block)
        s->at += 2;
    for (;;) {
        const int c = peek(s);
        if (c < 0 && block)
            return fail_at(s, start, "a comment that is never closed by */");
        if (c < 0 || (!block && c == '\n'))
            break;
        if (block && c == '*' && s->at + 1 < s->bytes && s->text[s->at + 1] == '/') {
            s->at += 2;
            break;
        }
        DSC_TRY(step(s));
    }
    memset(s->clean + start_at, ' ', (size_t)(s->at - start_at));
    return DSC_OK;
}

/* Moves over white space and, in configs, comments. */
static dsc_status skip_blank(json_scan *s)
{
    for (;;) {
        const int c = peek(s);
        const int next = s->at + 1 < s->bytes ? s->text[s->at + 1] : 0;
        const bool comment = c == '#' || (c == '/' && (next == '/' || next == '*'));
        if (c == ' ' || c == '\t' || c == '\n' || c == '\r')
            DSC_TRY(step(s));
        else if (comment && s->dialect == DSC_JSON_CONFIG)
            DSC_TRY(scan_comment(s));
        else if (comment)
            return fail_at(s, here(s), "comments are not allowed in this file");
        else
            return DSC_OK;
    }
}

static int hex_digit(int c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Four hex digits after \u; `at` moves behind them. */
static dsc_status scan_hex4(json_scan *s, uint32_t *out)
{
    *out = 0;
    for (int i = 0; i < 4; i++) {
        const int digit = hex_digit(peek(s));
        if (digit < 0)
            return fail_at(s, here(s), "\\u needs four hexadecimal digits");
        *out = *out << 4 | (uint32_t)digit;
        s->at++;
    }
    return DSC_OK;
}

/* At the backslash: the character it stands for into out; returns its bytes by *bytes. */
static dsc_status scan_escape(json_scan *s, char out[4], int *bytes)
{
    static const char from[] = "\"\\/bfnrt";
    static const char to[] = "\"\\/\b\f\n\r\t";
    const dsc_json_pos start = here(s);
    s->at++;
    const int c = peek(s);
    const char *simple = c > 0 ? strchr(from, c) : NULL;
    if (simple != NULL) {
        out[0] = to[simple - from];
        *bytes = 1;
        s->at++;
        return DSC_OK;
    }
    if (c != 'u')
        return fail_at(s, start, "an unknown escape; known are \\\" \\\\ \\/ \\b \\f \\n \\r \\t \\uXXXX");
    s->at++;
    uint32_t code = 0;
    DSC_TRY(scan_hex4(s, &code));
    if (code == 0)
        return fail_at(s, start, "\\u0000 is not allowed: a string must not hold a NUL");
    if (code >= 0xdc00 && code <= 0xdfff)
        return fail_at(s, start, "half of a surrogate pair (\\u%04X without the first half)", code);
    if (code >= 0xd800 && code <= 0xdbff) {
        uint32_t low = 0;
        if (s->bytes - s->at < 2 || s->text[s->at] != '\\' || s->text[s->at + 1] != 'u')
            return fail_at(s, start, "half of a surrogate pair (\\u%04X without the second half)", code);
        s->at += 2;
        DSC_TRY(scan_hex4(s, &low));
        if (low < 0xdc00 || low > 0xdfff)
            return fail_at(s, start, "half of a surrogate pair (\\u%04X followed by \\u%04X)", code, low);
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    *bytes = dsc_utf8_encode(code, out);
    return DSC_OK;
}

/* At the opening quote. `as_key`: the decoded text is appended to key_text. */
static dsc_status scan_string(json_scan *s, bool as_key)
{
    const dsc_json_pos start = here(s);
    s->at++;
    for (;;) {
        const int c = peek(s);
        char character[4];
        int bytes = 0;
        const dsc_json_pos place = here(s);
        if (c < 0)
            return fail_at(s, start, "a string that is never closed");
        if (c == '"')
            break;
        if (c < 0x20)
            return fail_at(s, place, c == '\n' ? "the line ends inside a string (a quote is missing?)"
                                               : "a control character in a string; write it as an escape");
        if (c == '\\') {
            DSC_TRY(scan_escape(s, character, &bytes));
        } else {
            const int64_t from = s->at;
            DSC_TRY(step(s));
            bytes = (int)(s->at - from);
            memcpy(character, s->text + from, (size_t)bytes);
        }
        if (!as_key)
            continue;
        if (s->dialect != DSC_JSON_DATA && ((unsigned char)character[0] < 0x20 || character[0] == 0x7f))
            return fail_at(s, place, "a control character in a key");
        DSC_TRY(reserve(s, (void **)&s->key_text, s->key_bytes, &s->key_text_room, bytes, 1));
        memcpy(s->key_text + s->key_bytes, character, (size_t)bytes);
        s->key_bytes += bytes;
    }
    s->at++;
    return DSC_OK;
}

static bool is_digit(int c)
{
    return c >= '0' && c <= '9';
}

static int64_t skip_digits(json_scan *s)
{
    const int64_t from = s->at;
    while (is_digit(peek(s)))
        s->at++;
    return s->at - from;
}

/* The value of a number whose grammar is right. */
static dsc_status check_number(json_scan *s, dsc_json_pos start, int64_t from, bool integer)
{
    const int64_t bytes = s->at - from;
    if (bytes > NUMBER_BYTES_MAX)
        return fail_at(s, start, "a number of %lld characters; at most %d are read", (long long)bytes,
                       NUMBER_BYTES_MAX);
    char text[NUMBER_BYTES_MAX + 1];
    memcpy(text, s->text + from, (size_t)bytes);
    text[bytes] = 0;
    const double value = strtod_l(text, NULL, s->locale);
    const size_t mantissa = strcspn(text, "eE");
    const size_t first = strcspn(text, "123456789");
    if (!isfinite(value) || (value == 0 && first < mantissa))
        return fail_at(s, start, "%s is outside the range of a double", text);
    if (!integer || s->dialect == DSC_JSON_CONFIG)
        return DSC_OK;
    const char *digits = text + (text[0] == '-');
    if (strlen(digits) > 16 || strtoull(digits, NULL, 10) > (uint64_t)DSC_JSON_INTEGER_MAX)
        return fail_at(s, start, "the integer %s is above 2^53 and would not be read exactly", text);
    return DSC_OK;
}

static dsc_status scan_number(json_scan *s)
{
    const dsc_json_pos start = here(s);
    const int64_t from = s->at;
    bool integer = true;
    if (peek(s) == '-')
        s->at++;
    if (peek(s) == '0') {
        s->at++;
        if (is_digit(peek(s)))
            return fail_at(s, start, "a number must not start with 0");
    } else if (skip_digits(s) == 0) {
        return fail_at(s, start, "not a number of JSON: digits are missing after the minus");
    }
    if (peek(s) == '.') {
        integer = false;
        s->at++;
        if (skip_digits(s) == 0)
            return fail_at(s, start, "not a number of JSON: digits are missing after the point");
    }
    if (peek(s) == 'e' || peek(s) == 'E') {
        integer = false;
        s->at++;
        if (peek(s) == '+' || peek(s) == '-')
            s->at++;
        if (skip_digits(s) == 0)
            return fail_at(s, start, "not a number of JSON: digits are missing in the exponent");
    }
    s->places[s->place_count - 1].integer = integer;
    return check_number(s, start, from, integer);
}

/* Words: true, false, null, or what people write instead. */
static dsc_status scan_word(json_scan *s)
{
    static const char *const words[] = { "true", "false", "null" };
    static const struct { const char *word, *instead; } near[] = {
        { "True", "true" },         { "False", "false" },        { "None", "null" },
        { "TRUE", "true" },         { "FALSE", "false" },        { "NULL", "null" },
        { "yes", "true" },          { "no", "false" },           { "nan", "a number" },
        { "NaN", "a number" },      { "Infinity", "a number" },  { "inf", "a number" },
        { "-Infinity", "a number" }, { "undefined", "null" },
    };
    const char *at = s->text + s->at;
    const size_t left = (size_t)(s->bytes - s->at);
    for (size_t i = 0; i < DSC_COUNT(words); i++) {
        if (left >= strlen(words[i]) && memcmp(at, words[i], strlen(words[i])) == 0) {
            s->at += (int64_t)strlen(words[i]);
            return DSC_OK;
        }
    }
    if (s->dialect == DSC_JSON_CONFIG && left >= 5 && (memcmp(at, "True", 4) == 0 || memcmp(at, "False", 5) == 0)) {
        s->places[s->place_count - 1].python = true;
        s->clean[s->at] = *at == 'T' ? 't' : 'f';
        s->at += *at == 'T' ? 4 : 5;
        return DSC_OK;
    }
    for (size_t i = 0; i < DSC_COUNT(near); i++)
        if (left >= strlen(near[i].word) && memcmp(at, near[i].word, strlen(near[i].word)) == 0)
            return fail_at(s, here(s), "%s is not JSON; expected %s", near[i].word, near[i].instead);
    char what[32];
    found(s, what, sizeof what);
    if (peek(s) == '\'')
        return fail_at(s, here(s), "strings are written in double quotes");
    return fail_at(s, here(s), "expected a value, found %s", what);
}

/* The closed object's keys start at `first`: reports the duplicate that comes first in the text. */
static dsc_status check_duplicates(json_scan *s, int64_t first)
{
    const dsc_json_key *original = NULL;
    const dsc_json_key *repeat = dsc_json_find_repeat(s->key_text, s->keys + first, s->key_count - first, &original);
    if (repeat == NULL)
        return DSC_OK;
    return dsc_json_fail_repeat(s->err, failure_of(s), s->name, s->key_text, repeat, original);
}

static dsc_status scan_key(json_scan *s)
{
    char what[32];
    if (peek(s) != '"')
        return fail_at(s, here(s), "expected a key in double quotes, found %s", found(s, what, sizeof what));
    dsc_json_key key = { .start = (uint32_t)s->key_bytes, .at = (uint32_t)s->at, .place = here(s) };
    DSC_TRY(reserve(s, (void **)&s->keys, s->key_count, &s->key_room, 1, sizeof *s->keys));
    DSC_TRY(reserve(s, (void **)&s->key_text, s->key_bytes, &s->key_text_room, 1, 1)); /* not NULL for an empty key */
    DSC_TRY(scan_string(s, true));
    key.bytes = (uint32_t)s->key_bytes - key.start;
    key.hash = dsc_xxh3_128(s->key_text + key.start, key.bytes, 0).low;
    s->keys[s->key_count++] = key;
    DSC_TRY(skip_blank(s));
    if (peek(s) != ':')
        return fail_at(s, here(s), "expected ':' after the key, found %s", found(s, what, sizeof what));
    s->at++;
    return skip_blank(s);
}

/* After an element: ends the container, or moves to the next element. In configs a trailing comma is blanked, and the
 * end of a line before the next key stands for a comma that is not there. */
static dsc_status scan_separator(json_scan *s, char closing, bool *ended)
{
    const int64_t element_end = s->at;
    const uint32_t element_line = s->line;
    DSC_TRY(skip_blank(s));
    *ended = peek(s) == closing;
    if (*ended) {
        s->at++;
        return DSC_OK;
    }
    char what[32];
    if (peek(s) == '"' && closing == '}' && s->line > element_line && s->dialect == DSC_JSON_CONFIG) {
        s->clean[element_end] = ',';
        return DSC_OK;
    }
    if (peek(s) != ',')
        return fail_at(s, here(s), "expected ',' or '%c', found %s", closing, found(s, what, sizeof what));
    const int64_t comma_at = s->at;
    const dsc_json_pos comma = here(s);
    s->at++;
    DSC_TRY(skip_blank(s));
    *ended = peek(s) == closing;
    if (!*ended)
        return DSC_OK;
    if (s->dialect != DSC_JSON_CONFIG)
        return fail_at(s, comma, "a comma before '%c' is not allowed in this file", closing);
    s->clean[comma_at] = ' ';
    s->at++;
    return DSC_OK;
}

/* At '{' or '['. */
static dsc_status scan_container(json_scan *s, int64_t depth)
{
    const bool object = peek(s) == '{';
    const char closing = object ? '}' : ']';
    if (depth >= s->limits.depth)
        return fail_at(s, here(s), "nested deeper than %lld levels", (long long)s->limits.depth);
    const int64_t first_key = s->key_count;
    const int64_t first_byte = s->key_bytes;
    s->at++;
    DSC_TRY(skip_blank(s));
    if (peek(s) == closing) {
        s->at++;
        return DSC_OK;
    }
    for (bool ended = false; !ended;) {
        if (object)
            DSC_TRY(scan_key(s));
        DSC_TRY(scan_value(s, depth + 1));
        DSC_TRY(scan_separator(s, closing, &ended));
    }
    if (object)
        DSC_TRY(check_duplicates(s, first_key));
    s->key_count = first_key;
    s->key_bytes = first_byte;
    return DSC_OK;
}

static dsc_status scan_value(json_scan *s, int64_t depth)
{
    if (s->place_count >= s->limits.members)
        return fail_at(s, here(s), "more than %lld values", (long long)s->limits.members);
    DSC_TRY(reserve(s, (void **)&s->places, s->place_count, &s->place_room, 1, sizeof *s->places));
    s->places[s->place_count++] = here(s);
    const int c = peek(s);
    if (c == '{' || c == '[')
        return scan_container(s, depth);
    if (c == '"')
        return scan_string(s, false);
    if (is_digit(c) || (c == '-' && !(s->at + 1 < s->bytes && s->text[s->at + 1] == 'I')))
        return scan_number(s);
    return scan_word(s);
}

static dsc_status scan_text(json_scan *s)
{
    const dsc_json_pos start = { .line = 1, .column = 1 };
    if (s->bytes >= 3 && memcmp(s->text, "\xef\xbb\xbf", 3) == 0)
        return fail_at(s, start, "starts with a byte order mark; save it as plain UTF-8");
    if (s->bytes >= 2 && (memcmp(s->text, "\xff\xfe", 2) == 0 || memcmp(s->text, "\xfe\xff", 2) == 0))
        return fail_at(s, start, "is UTF-16 text (Windows PowerShell's \">\" writes it); save it as plain UTF-8");
    DSC_TRY(skip_blank(s));
    if (s->at == s->bytes)
        return fail_at(s, start, "is empty; expected a JSON value");
    DSC_TRY(scan_value(s, 0));
    DSC_TRY(skip_blank(s));
    char what[32];
    if (s->at < s->bytes)
        return fail_at(s, here(s), "expected the end of the text after the value, found %s",
                       found(s, what, sizeof what));
    return DSC_OK;
}

dsc_status dsc_json_scan(dsc_alloc *alloc, const char *name, const char *text, int64_t bytes, dsc_json_dialect dialect,
                         const dsc_json_limits *limits, dsc_json_scanned *out, dsc_error *err)
{
    DSC_ASSERT(limits->depth <= DEPTH_MAX);
    DSC_ASSERT(limits->bytes < INT32_MAX); /* places are 32-bit */
    *out = (dsc_json_scanned){ 0 };
    json_scan s = { .alloc = alloc, .name = name, .text = text, .bytes = bytes, .dialect = dialect, .limits = *limits,
                    .err = err, .line = 1 };
    if (bytes > limits->bytes)
        return fail_at(&s, (dsc_json_pos) { .line = 1, .column = 1 }, "%lld bytes are more than the %lld allowed here",
                       (long long)bytes, (long long)limits->bytes);
    /* The program may run in a locale whose decimal point is a comma. */
    s.locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (s.locale == (locale_t)0)
        return DSC_FAIL(err, DSC_ERR_NOMEM, name, "out of host memory: no C locale");
    dsc_status status = dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, bytes + 1, 1, &s.clean, err);
    if (status == DSC_OK) {
        if (bytes > 0)
            memcpy(s.clean, text, (size_t)bytes);
        status = scan_text(&s);
    }
    freelocale(s.locale);
    dsc_alloc_free(alloc, s.keys);
    dsc_alloc_free(alloc, s.key_text);
    if (status != DSC_OK) {
        dsc_alloc_free(alloc, s.clean);
        dsc_alloc_free(alloc, s.places);
        return status;
    }
    *out = (dsc_json_scanned){ .clean = s.clean, .places = s.places, .count = s.place_count };
    return DSC_OK;
}
