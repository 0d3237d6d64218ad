/* unicode.c - see unicode.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/text/unicode.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/formats/utf8.h"

uint32_t dsc_char_category(uint32_t code)
{
    return UINT32_C(1) << (unsigned)utf8proc_category((utf8proc_int32_t)code);
}

bool dsc_char_is_space(uint32_t code)
{
    if (code < 0x80)
        return code == ' ' || (code >= 9 && code <= 13);
    if (code == 0x85 || code == 0xa0 || code == 0x1680)
        return true;
    return code >= 0x2000 && (code <= 0x200a || code == 0x2028 || code == 0x2029 || code == 0x202f || code == 0x205f ||
                              code == 0x3000);
}

bool dsc_char_is_word(uint32_t code)
{
    const uint32_t word = DSC_CATEGORY(LU) | DSC_CATEGORY(LL) | DSC_CATEGORY(LT) | DSC_CATEGORY(LM) |
                          DSC_CATEGORY(LO) | DSC_CATEGORY(MN) | DSC_CATEGORY(MC) | DSC_CATEGORY(ME) |
                          DSC_CATEGORY(ND) | DSC_CATEGORY(NL) | DSC_CATEGORY(PC);
    /* Letters in circles and squares are symbols that count as alphabetic. */
    return (dsc_char_category(code) & word) != 0 || code == 0x200c || code == 0x200d ||
           (code >= 0x24b6 && code <= 0x24e9) || (code >= 0x1f130 && code <= 0x1f149) ||
           (code >= 0x1f150 && code <= 0x1f169) || (code >= 0x1f170 && code <= 0x1f189);
}

bool dsc_char_is_pattern_word(uint32_t code, bool in_brackets)
{
    if (code >= 0xb2 && code <= 0xbe && dsc_char_category(code) == DSC_CATEGORY(NO))
        return !in_brackets;
    return code != 0x200c && code != 0x200d && dsc_char_is_word(code);
}

uint32_t dsc_char_lower(uint32_t code)
{
    return (uint32_t)utf8proc_tolower((utf8proc_int32_t)code);
}

const char *dsc_char_cluster_end(const char *at, const char *end)
{
    utf8proc_int32_t state = 0;
    int bytes;
    uint32_t last = dsc_char_at(at, &bytes);
    for (at += bytes; at < end; at += bytes) {
        const uint32_t next = dsc_char_at(at, &bytes);
        if (utf8proc_grapheme_break_stateful((utf8proc_int32_t)last, (utf8proc_int32_t)next, &state))
            break;
        last = next;
    }
    return at;
}

/* ---- UTF-8 ---- */

/* Bytes of ASCII at the start, eight at a time. */
static int64_t ascii_bytes(const char *text, int64_t bytes)
{
    int64_t at = 0;
    for (; at + 8 <= bytes; at += 8) {
        uint64_t word;
        memcpy(&word, text + at, sizeof word);
        if ((word & UINT64_C(0x8080808080808080)) != 0)
            break;
    }
    while (at < bytes && (unsigned char)text[at] < 0x80)
        at++;
    return at;
}

/* Bytes of valid UTF-8 at the start. */
static int64_t valid_bytes(const char *text, int64_t bytes)
{
    int64_t at = 0;
    for (;;) {
        at += ascii_bytes(text + at, bytes - at);
        if (at == bytes)
            return at;
        const int length = dsc_utf8_char_bytes(text + at, text + bytes);
        if (length == 0)
            return at;
        at += length;
    }
}

bool dsc_utf8_is_valid(const char *text, int64_t bytes)
{
    return valid_bytes(text, bytes) == bytes;
}

/* The longest beginning of a valid character at `text`, where there is none: at least one byte (Unicode 3.9, U+FFFD
 * substitution of maximal subparts). */
static int64_t maximal_subpart(const unsigned char *c, int64_t bytes)
{
    const int64_t promised = c[0] >= 0xf0 ? 4 : c[0] >= 0xe0 ? 3 : 2;
    if (c[0] < 0xc2 || c[0] > 0xf4 || bytes < 2)
        return 1;
    const unsigned char low = c[0] == 0xe0 ? 0xa0 : c[0] == 0xf0 ? 0x90 : 0x80;
    const unsigned char high = c[0] == 0xed ? 0x9f : c[0] == 0xf4 ? 0x8f : 0xbf;
    if (c[1] < low || c[1] > high)
        return 1;
    int64_t length = 2;
    while (length < promised && length < bytes && (c[length] & 0xc0) == 0x80)
        length++;
    return length;
}

dsc_status dsc_utf8_repair(const char *text, int64_t bytes, dsc_text *out, dsc_error *err)
{
    for (int64_t at = 0; at < bytes;) {
        const int64_t valid = valid_bytes(text + at, bytes - at);
        DSC_TRY(dsc_text_add(out, text + at, valid, err));
        at += valid;
        if (at == bytes)
            break;
        DSC_TRY(dsc_text_add(out, "\xef\xbf\xbd", 3, err));
        at += maximal_subpart((const unsigned char *)text + at, bytes - at);
    }
    return DSC_OK;
}

/* ---- Normal forms ---- */

/* Characters that stay as they are and do not join with what stands before them; what follows may join with them. Not
 * all that there are: ranges that hold most text (tests/unit/test_text.c holds them against utf8proc). */
static bool is_inert(uint32_t code, dsc_normal_form form)
{
    if (code < 0xa0)
        return true;
    if (code >= 0x4e00 && code <= 0x9fff) /* ideographs */
        return true;
    if (form != DSC_NFC)
        return false;
    return code < 0x300 || (code >= 0x400 && code <= 0x482) || (code >= 0x2010 && code <= 0x2027) ||
           (code >= 0x3041 && code <= 0x3096) || (code >= 0x30a1 && code <= 0x30fa) ||
           (code >= 0xac00 && code <= 0xd7a3) || (code >= 0x1f300 && code <= 0x1faff);
}

/* Bytes of inert characters at the start. */
static int64_t inert_bytes(const char *text, int64_t bytes, dsc_normal_form form)
{
    int64_t at = 0;
    while (at < bytes) {
        const int64_t ascii = ascii_bytes(text + at, bytes - at);
        at += ascii;
        if (ascii > 0)
            continue;
        int length;
        if (!is_inert(dsc_char_at(text + at, &length), form))
            break;
        at += length;
    }
    return at;
}

bool dsc_text_is_normal(const char *text, int64_t bytes, dsc_normal_form form)
{
    return inert_bytes(text, bytes, form) == bytes;
}

static dsc_status normalize_run(const char *text, int64_t bytes, dsc_normal_form form, dsc_text *out, dsc_error *err)
{
    static const utf8proc_option_t options[] = {
        [DSC_NFC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE,
        [DSC_NFD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE,
        [DSC_NFKC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
        [DSC_NFKD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT,
    };
    utf8proc_uint8_t *normal = NULL;
    const utf8proc_ssize_t length = utf8proc_map((const utf8proc_uint8_t *)text, bytes, &normal, options[form]);
    if (length < 0)
        return DSC_FAIL(err, DSC_ERR_NOMEM, "", "a text of %lld bytes could not be normalised: %s", (long long)bytes,
                        utf8proc_errmsg(length));
    const dsc_status status = dsc_text_add(out, normal, length, err);
    free(normal);
    return status;
}

/* Runs of inert characters are copied but for their last one, which what follows may change. */
dsc_status dsc_text_normalize(const char *text, int64_t bytes, dsc_normal_form form, dsc_text *out, dsc_error *err)
{
    int64_t at = 0;
    while (at < bytes) {
        int64_t inert = inert_bytes(text + at, bytes - at, form);
        if (at + inert == bytes)
            return dsc_text_add(out, text + at, inert, err);
        if (inert > 0)
            inert = dsc_char_before(text + at + inert) - (text + at);
        DSC_TRY(dsc_text_add(out, text + at, inert, err));
        at += inert;
        int64_t end = at;
        int length;
        (void)dsc_char_at(text + end, &length);
        end += length;
        while (end < bytes && !is_inert(dsc_char_at(text + end, &length), form))
            end += length;
        DSC_TRY(normalize_run(text + at, end - at, form, out, err));
        at = end;
    }
    return DSC_OK;
}
