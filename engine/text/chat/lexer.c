/* lexer.c - a template as tokens, with the rules of trim_blocks and lstrip_blocks.
 *
 * The rules are those of jinja2's Lexer. The end of a tag counts only if all brackets are closed. A block or comment
 * drops the line end behind it, and the blanks before it at the start of a line. The signs - and + change this.
 * SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>

#include "base/formats/utf8.h"
#include "engine/text/chat/chat_internal.h"

typedef struct lexer {
    chat_run *r;
    const char *start, *at, *end;
    chat_token *token;
    int64_t count, capacity;
} lexer;

static dsc_status refuse(lexer *l, const char *at, dsc_status status, const char *what)
{
    DSC_ASSERT(at >= l->start && at <= l->end);
    l->r->at = (uint32_t)(at - l->start);
    return chat_fail(l->r, status, "%s", what);
}

static dsc_status push(lexer *l, int type, const char *at, chat_token **out)
{
    DSC_ASSERT(at >= l->start && at <= l->end);
    if (l->count == DSC_CHAT_TOKENS_MAX)
        return refuse(l, at, DSC_ERR_INPUT, "the template has more than 200000 tokens");
    if (l->count == l->capacity) {
        chat_token *grown = NULL;
        const int64_t capacity = l->capacity == 0 ? 256 : 2 * l->capacity;
        DSC_TRY(chat_new(l->r, capacity, sizeof *grown, &grown));
        if (l->count > 0)
            memcpy(grown, l->token, (size_t)l->count * sizeof *grown);
        l->token = grown;
        l->capacity = capacity;
    }
    chat_token *token = &l->token[l->count++];
    *token = (chat_token){ .type = (uint8_t)type, .at = (uint32_t)(at - l->start) };
    if (out != NULL)
        *out = token;
    return DSC_OK;
}

static bool next_is(const lexer *l, const char *text)
{
    const size_t bytes = strlen(text);
    return (size_t)(l->end - l->at) >= bytes && memcmp(l->at, text, bytes) == 0;
}

/* ---- Text between tags ---- */

/* The next place that begins a tag, or the end. */
static const char *find_tag(const char *at, const char *end)
{
    for (; end - at >= 2; at++) {
        at = memchr(at, '{', (size_t)(end - at - 1));
        if (at == NULL)
            return end;
        if (at[1] == '{' || at[1] == '%' || at[1] == '#')
            return at;
    }
    return end;
}

/* Pushes the text before a tag; sign is the character behind the tag's two, or 0. */
static dsc_status push_data(lexer *l, const char *end, char sign, bool strips_line)
{
    const char *start = l->at;
    if (sign == '-') {
        end = chat_skip_space_back(end, start);
    } else if (sign != '+' && strips_line) {
        const char *line = end;
        while (line > start && line[-1] != '\n')
            line--;
        const bool begins_line = line > start || start == l->start || start[-1] == '\n';
        if (begins_line && chat_skip_space(line, end) == end)
            end = line;
    }
    if (end == start)
        return DSC_OK;
    chat_token *token;
    DSC_TRY(push(l, CHAT_T_DATA, start, &token));
    token->value = chat_string(start, end - start);
    return DSC_OK;
}

/* At "%}", "-%}" or "+%}" (of a comment: #): moves behind it and what it drops; false: not there. */
static bool skip_tag_end(lexer *l, char kind, bool may_keep)
{
    const char close[3] = { kind, '}', 0 };
    const char minus[4] = { '-', kind, '}', 0 }, plus[4] = { '+', kind, '}', 0 };
    if (next_is(l, minus)) {
        l->at = chat_skip_space(l->at + 3, l->end);
    } else if (may_keep && next_is(l, plus)) {
        l->at += 3;
    } else if (next_is(l, close)) {
        l->at += 2;
        if (may_keep && l->at < l->end && *l->at == '\n')
            l->at++;
    } else {
        return false;
    }
    return true;
}

static dsc_status skip_comment(lexer *l, const char *tag)
{
    while (l->at < l->end) {
        if (skip_tag_end(l, '#', true))
            return DSC_OK;
        l->at++;
    }
    return refuse(l, tag, DSC_ERR_INPUT, "a comment without its end; close it with #}");
}

static const char *sign_behind(const char *at, const char *end, char *sign)
{
    *sign = at < end && (*at == '-' || *at == '+') ? *at : 0;
    return *sign != 0 ? at + 1 : at;
}

/* The position behind "raw %}" or NULL; `at` is behind the tag's sign. */
static const char *behind_raw(const char *at, const char *end)
{
    at = chat_skip_space(at, end);
    if (end - at < 3 || memcmp(at, "raw", 3) != 0)
        return NULL;
    at = chat_skip_space(at + 3, end);
    if (end - at >= 3 && memcmp(at, "-%}", 3) == 0)
        return chat_skip_space(at + 3, end);
    return end - at >= 2 && memcmp(at, "%}", 2) == 0 ? at + 2 : NULL;
}

/* Behind the tag of a raw block. */
static dsc_status lex_raw(lexer *l, const char *tag)
{
    for (const char *at = l->at; l->end - at >= 2; at++) {
        char sign;
        if (at[0] != '{' || at[1] != '%')
            continue;
        const char *word = chat_skip_space(sign_behind(at + 2, l->end, &sign), l->end);
        if (l->end - word < 6 || memcmp(word, "endraw", 6) != 0)
            continue;
        lexer probe = *l;
        probe.at = chat_skip_space(word + 6, l->end);
        if (!skip_tag_end(&probe, '%', true))
            continue;
        DSC_TRY(push_data(l, at, sign, true));
        l->at = probe.at;
        return DSC_OK;
    }
    return refuse(l, tag, DSC_ERR_INPUT, "a raw block without its {% endraw %}");
}

/* ---- Tokens of a tag ---- */

static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_name_start(char c) { return ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') || c == '_'; }

/* Behind digits with single underscores between them. */
static const char *skip_digits(const char *at, const char *end)
{
    while (at < end && (is_digit(*at) || (*at == '_' && end - at > 1 && is_digit(at[1]) && is_digit(at[-1]))))
        at++;
    return at;
}

/* The end of a float at l->at, NULL when there is none. */
static const char *float_end(const lexer *l)
{
    const char *at = skip_digits(l->at, l->end);
    bool has_part = false;
    if (l->at > l->start && l->at[-1] == '.')
        return NULL;
    if (l->end - at >= 2 && *at == '.' && is_digit(at[1])) {
        at = skip_digits(at + 1, l->end);
        has_part = true;
    }
    if (at < l->end && (*at | 0x20) == 'e') {
        const char *digits = at + 1;
        digits += digits < l->end && (*digits == '-' || *digits == '+');
        if (digits < l->end && is_digit(*digits)) {
            at = skip_digits(digits, l->end);
            has_part = true;
        }
    }
    return has_part ? at : NULL;
}

static int digit_value(char c, int base)
{
    const char lower = (char)(c | 0x20);
    const int value = is_digit(c) ? c - '0' : lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : 99;
    return value < base ? value : -1;
}

static dsc_status lex_integer(lexer *l)
{
    const char *start = l->at;
    int base = 10;
    int64_t value = 0;
    if (*l->at == '0' && l->end - l->at > 2) {
        const char letter = (char)(l->at[1] | 0x20);
        const int other = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 10;
        if (other != 10 && digit_value(l->at[2], other) >= 0) {
            base = other;
            l->at += 2;
        }
    }
    const bool zeros = base == 10 && *l->at == '0';
    for (; l->at < l->end; l->at++) {
        const char c = *l->at == '_' && l->end - l->at > 1 ? l->at[1] : *l->at;
        const int digit = digit_value(c, zeros ? 1 : base);
        if (digit < 0)
            break;
        l->at += *l->at == '_';
        if (__builtin_mul_overflow(value, (int64_t)base, &value) || __builtin_add_overflow(value, digit, &value))
            return refuse(l, start, DSC_ERR_UNSUPPORTED, "an integer beyond 64 bits");
    }
    chat_token *token;
    DSC_TRY(push(l, CHAT_T_INTEGER, start, &token));
    token->value = chat_int(value);
    return DSC_OK;
}

static dsc_status lex_number(lexer *l)
{
    const char *start = l->at, *end = float_end(l);
    char digits[128];
    size_t bytes = 0;
    double value;
    if (end == NULL)
        return lex_integer(l);
    for (const char *at = start; at < end; at++)
        if (*at != '_' && bytes < sizeof digits)
            digits[bytes++] = *at;
    chat_token *token;
    if (bytes == sizeof digits || !chat_parse_float(digits, (int64_t)bytes, &value))
        return refuse(l, start, DSC_ERR_UNSUPPORTED, "a number of more than 127 characters or beyond a double");
    l->at = end;
    DSC_TRY(push(l, CHAT_T_FLOAT, start, &token));
    token->value = chat_float(value);
    return DSC_OK;
}

/* \x41, \u0041, \U00000041 and \101: `at` is behind the letter, or at the first octal digit. */
static dsc_status lex_code(lexer *l, const char **at, const char *end, int base, int digits, char *out, int *bytes)
{
    uint32_t code = 0;
    int count = 0;
    for (; count < digits && *at < end && digit_value(**at, base) >= 0; count++)
        code = code * (uint32_t)base + (uint32_t)digit_value(*(*at)++, base);
    if (base == 16 && count < digits)
        return refuse(l, *at, DSC_ERR_INPUT, "a truncated escape of a character in a string");
    if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
        return refuse(l, *at, DSC_ERR_UNSUPPORTED, "an escape that is not a character of Unicode");
    *bytes = dsc_utf8_encode(code, out);
    return DSC_OK;
}

/* One escape of Python's string literals; `at` is at the backslash. An unknown escape stays as it is. */
static dsc_status lex_escape(lexer *l, const char **at, const char *end, char *out, int *bytes)
{
    static const char letters[] = "abfnrtv\\'\"", codes[] = "\a\b\f\n\r\t\v\\'\"";
    DSC_ASSERT(**at == '\\' && end - *at >= 2);
    const char letter = (*at)[1];
    const char *simple = letter != 0 ? strchr(letters, letter) : NULL;
    *at += 2;
    *bytes = 1;
    if (simple != NULL) {
        *out = codes[simple - letters];
    } else if (letter == '\n') {
        *bytes = 0;
    } else if (letter == 'x' || letter == 'u' || letter == 'U') {
        return lex_code(l, at, end, 16, letter == 'x' ? 2 : letter == 'u' ? 4 : 8, out, bytes);
    } else if (letter >= '0' && letter <= '7') {
        *at -= 1;
        return lex_code(l, at, end, 8, 3, out, bytes);
    } else if (letter == 'N') {
        return refuse(l, *at - 2, DSC_ERR_UNSUPPORTED, "the escape \\N of a string is not supported; use \\u");
    } else {
        *out = '\\';
        *at -= 1;
    }
    return DSC_OK;
}

static dsc_status lex_string(lexer *l)
{
    const char *start = l->at, quote = *l->at;
    const char *end = start + 1;
    while (end < l->end && *end != quote)
        end += *end == '\\' ? 2 : 1;
    if (end >= l->end)
        return refuse(l, start, DSC_ERR_INPUT, "a string without its closing quote");
    char *text = NULL;
    int64_t bytes = 0;
    DSC_TRY(chat_new_text(l->r, end - start + 4, &text));
    for (const char *at = start + 1; at < end;) {
        int more = 1;
        if (*at == '\\')
            DSC_TRY(lex_escape(l, &at, end, text + bytes, &more));
        else
            text[bytes] = *at++;
        bytes += more;
        DSC_ASSERT(bytes <= end - start + 4);
    }
    l->at = end + 1;
    chat_token *token;
    DSC_TRY(push(l, CHAT_T_STRING, start, &token));
    token->value = chat_string(text, bytes);
    return DSC_OK;
}

static dsc_status lex_name(lexer *l)
{
    const char *start = l->at;
    while (l->at < l->end && (is_name_start(*l->at) || is_digit(*l->at)))
        l->at++;
    if (l->at < l->end && (unsigned char)*l->at >= 0x80)
        return refuse(l, l->at, DSC_ERR_UNSUPPORTED, "a name with characters beyond ASCII is not supported");
    chat_token *token;
    DSC_TRY(push(l, CHAT_T_NAME, start, &token));
    token->name = chat_intern(l->r, start, l->at - start);
    return token->name != NULL ? DSC_OK : DSC_ERR_NOMEM;
}

static dsc_status lex_operator(lexer *l, char *open, int *open_count)
{
    static const struct { const char *text; int type; } two[] = {
        { "//", CHAT_T_FLOORDIV }, { "**", CHAT_T_POW }, { "==", CHAT_T_EQ }, { "!=", CHAT_T_NE },
        { ">=", CHAT_T_GE }, { "<=", CHAT_T_LE },
    };
    for (size_t i = 0; i < DSC_COUNT(two); i++)
        if (next_is(l, two[i].text)) {
            l->at += 2;
            return push(l, two[i].type, l->at - 2, NULL);
        }
    const char c = *l->at;
    if (c == 0 || strchr("+-/*%~[](){}><=.:|,;", c) == NULL)
        return refuse(l, l->at, DSC_ERR_INPUT, "a character that no expression has");
    if (c == '(' || c == '[' || c == '{') {
        if (*open_count == DSC_CHAT_NESTING_MAX)
            return refuse(l, l->at, DSC_ERR_INPUT, "more than 100 brackets in each other");
        open[(*open_count)++] = c == '(' ? ')' : (char)(c + 2);
    } else if (c == ')' || c == ']' || c == '}') {
        if (*open_count == 0 || open[*open_count - 1] != c)
            return refuse(l, l->at, DSC_ERR_INPUT, "a closing bracket without its opening one");
        (*open_count)--;
    }
    l->at++;
    return push(l, c, l->at - 1, NULL);
}

/* Behind the opening of a tag, up to and with its end. */
static dsc_status lex_tag(lexer *l, const char *tag, char kind)
{
    char open[DSC_CHAT_NESTING_MAX];
    int open_count = 0;
    const bool block = kind == '%';
    DSC_TRY(push(l, block ? CHAT_T_BLOCK_BEGIN : CHAT_T_VARIABLE_BEGIN, tag, NULL));
    for (;;) {
        const char *at = l->at;
        if (open_count == 0 && skip_tag_end(l, kind, block))
            return push(l, block ? CHAT_T_BLOCK_END : CHAT_T_VARIABLE_END, at, NULL);
        l->at = chat_skip_space(l->at, l->end);
        if (l->at > at)
            continue;
        if (l->at == l->end)
            return refuse(l, tag, DSC_ERR_INPUT, block ? "a tag without its %}" : "an expression without its }}");
        if (is_digit(*l->at))
            DSC_TRY(lex_number(l));
        else if (is_name_start(*l->at) || (unsigned char)*l->at >= 0x80)
            DSC_TRY(lex_name(l));
        else if (*l->at == '\'' || *l->at == '"')
            DSC_TRY(lex_string(l));
        else
            DSC_TRY(lex_operator(l, open, &open_count));
    }
}

dsc_status chat_lex(chat_run *r, chat_token **out)
{
    lexer l = { .r = r, .start = r->source, .at = r->source, .end = r->source + r->source_bytes };
    while (l.at < l.end) {
        char sign = 0;
        const char *tag = find_tag(l.at, l.end);
        if (tag == l.end) {
            DSC_TRY(push_data(&l, l.end, '+', false));
            break;
        }
        const char kind = tag[1] == '{' ? '}' : tag[1];
        const char *inside = sign_behind(tag + 2, l.end, &sign);
        const char *raw = kind == '%' ? behind_raw(inside, l.end) : NULL;
        DSC_TRY(push_data(&l, tag, sign, kind != '}'));
        l.at = raw != NULL ? raw : inside;
        if (raw != NULL)
            DSC_TRY(lex_raw(&l, tag));
        else if (kind == '#')
            DSC_TRY(skip_comment(&l, tag));
        else
            DSC_TRY(lex_tag(&l, tag, kind));
    }
    DSC_TRY(push(&l, CHAT_T_END, l.end, NULL));
    *out = l.token;
    return DSC_OK;
}
