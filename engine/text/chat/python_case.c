/* python_case.c - upper, lower and title case as Python's str has them. The tables are utf8proc's, which map one
 * character to one; the few characters with longer mappings are refused, but for the common ones.
 * SPDX-License-Identifier: Apache-2.0 */
#include <utf8proc.h>

#include "base/formats/utf8.h"
#include "engine/text/chat/chat_internal.h"
#include "engine/text/unicode.h"

#define SHARP_S 0xdf
#define CAPITAL_I_DOT 0x130
#define CAPITAL_SIGMA 0x3a3

/* Characters whose upper or title case has several characters (SpecialCasing.txt). */
static bool has_long_case(uint32_t code)
{
    return code == 0x149 || code == 0x1f0 || code == 0x390 || code == 0x3b0 || code == 0x587 ||
           (code >= 0x1e96 && code <= 0x1e9a) || code == 0x1f50 || code == 0x1f52 || code == 0x1f54 || code == 0x1f56 ||
           (code >= 0x1f80 && code <= 0x1fff) || (code >= 0xfb00 && code <= 0xfb17);
}

static bool is_cased(uint32_t code)
{
    const uint32_t letters = DSC_CATEGORY(LU) | DSC_CATEGORY(LL) | DSC_CATEGORY(LT);
    if (code < 0x80)
        return (code | 0x20) >= 'a' && (code | 0x20) <= 'z';
    return code == 0xaa || code == 0xba || (dsc_char_category(code) & letters) != 0;
}

static bool is_case_ignorable(uint32_t code)
{
    const uint32_t kinds = DSC_CATEGORY(MN) | DSC_CATEGORY(ME) | DSC_CATEGORY(CF) | DSC_CATEGORY(LM) | DSC_CATEGORY(SK);
    return code == '\'' || code == '.' || code == ':' || code == 0xb7 || code == 0x2018 || code == 0x2019 ||
           (dsc_char_category(code) & kinds) != 0;
}

static dsc_status add_code(chat_run *r, chat_bytes *b, uint32_t code)
{
    char text[4];
    DSC_ASSERT(code <= 0x10ffff);
    return chat_add(r, b, text, dsc_utf8_encode(code, text));
}

static dsc_status refuse(chat_run *r, uint32_t code)
{
    return chat_fail(r, DSC_ERR_UNSUPPORTED, "a change of case of the character U+%04X is not supported", code);
}

static dsc_status add_upper(chat_run *r, chat_bytes *b, uint32_t code, bool title)
{
    if (code == SHARP_S)
        return chat_add_text(r, b, title ? "Ss" : "SS");
    if (has_long_case(code))
        return refuse(r, code);
    return add_code(r, b, (uint32_t)(title ? utf8proc_totitle((int32_t)code) : utf8proc_toupper((int32_t)code)));
}

/* A capital sigma at the end of a word has a lower case of its own. */
static bool is_final_sigma(const char *start, const char *at, const char *end)
{
    int bytes;
    const char *before = at, *behind = at + 2;
    while (before > start && is_case_ignorable(dsc_char_at(dsc_char_before(before), &bytes)))
        before = dsc_char_before(before);
    if (before == start || !is_cased(dsc_char_at(dsc_char_before(before), &bytes)))
        return false;
    while (behind < end && is_case_ignorable(dsc_char_at(behind, &bytes))) {
        dsc_char_at(behind, &bytes);
        behind += bytes;
    }
    DSC_ASSERT(behind <= end);
    return behind == end || !is_cased(dsc_char_at(behind, &bytes));
}

static dsc_status add_lower(chat_run *r, chat_bytes *b, uint32_t code, const char *start, const char *at,
                            const char *end)
{
    if (code == CAPITAL_SIGMA) {
        DSC_TRY(chat_spend(r, chat_char_steps(end - start)));
        return add_code(r, b, is_final_sigma(start, at, end) ? 0x3c2 : 0x3c3);
    }
    if (code == CAPITAL_I_DOT)
        return chat_add_text(r, b, "i\xcc\x87");
    return add_code(r, b, (uint32_t)utf8proc_tolower((int32_t)code));
}

/* The separators of jinja2's filter `title`. */
static bool ends_word(uint32_t code)
{
    return chat_is_space(code) || (code < 0x80 && code != 0 && strchr("-({[<", (int)code) != NULL);
}

dsc_status chat_change_case(chat_run *r, const chat_value *s, chat_case how, chat_value *out)
{
    const char *end = s->text + s->bytes, *start = s->text; /* start: of the text that a lower sigma sees */
    bool after_cased = false, after_end = true;
    chat_bytes b = { 0 };
    int bytes;
    DSC_ASSERT(s->kind == CHAT_STRING);
    DSC_TRY(chat_spend(r, chat_char_steps(s->bytes)));
    for (const char *at = s->text; at < end; at += bytes) {
        const uint32_t code = dsc_char_at(at, &bytes);
        bool upper = how == CHAT_UPPER, title = false;
        if (how == CHAT_CAPITALIZE)
            upper = title = at == s->text;
        if (how == CHAT_TITLE)
            upper = title = !after_cased;
        if (how == CHAT_JINJA_TITLE)
            upper = after_end && !ends_word(code);
        if (how == CHAT_JINJA_TITLE && upper)
            start = at + bytes;
        DSC_TRY(upper ? add_upper(r, &b, code, title) : add_lower(r, &b, code, start, at, end));
        after_cased = is_cased(code);
        after_end = ends_word(code);
    }
    *out = chat_bytes_value(&b);
    return DSC_OK;
}
