/* unicode.h - properties of characters for tokenizers, from utf8proc's tables. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_TEXT_UNICODE_H
#define DSC_ENGINE_TEXT_UNICODE_H

#include "engine/text/buffer.h"

/* One character of valid UTF-8: its code point, and its bytes in *bytes. */
static inline uint32_t dsc_char_at(const char *text, int *bytes)
{
    const unsigned char *c = (const unsigned char *)text;
    if (c[0] < 0x80) {
        *bytes = 1;
        return c[0];
    }
    if (c[0] < 0xe0) {
        *bytes = 2;
        return (uint32_t)(c[0] & 0x1f) << 6 | (c[1] & 0x3f);
    }
    if (c[0] < 0xf0) {
        *bytes = 3;
        return (uint32_t)(c[0] & 0x0f) << 12 | (uint32_t)(c[1] & 0x3f) << 6 | (c[2] & 0x3f);
    }
    *bytes = 4;
    return (uint32_t)(c[0] & 0x07) << 18 | (uint32_t)(c[1] & 0x3f) << 12 | (uint32_t)(c[2] & 0x3f) << 6 | (c[3] & 0x3f);
}

/* Start of the character before `at`. */
static inline const char *dsc_char_before(const char *at)
{
    do
        at--;
    while (((unsigned char)*at & 0xc0) == 0x80);
    return at;
}

/* The end of the extended grapheme cluster (UAX 29) that begins at `at` < `end`. */
const char *dsc_char_cluster_end(const char *at, const char *end);

/* General categories as bits: DSC_CATEGORY(LU). The numbers are utf8proc's. */
enum {
    DSC_CATEGORY_CN, DSC_CATEGORY_LU, DSC_CATEGORY_LL, DSC_CATEGORY_LT, DSC_CATEGORY_LM, DSC_CATEGORY_LO,
    DSC_CATEGORY_MN, DSC_CATEGORY_MC, DSC_CATEGORY_ME, DSC_CATEGORY_ND, DSC_CATEGORY_NL, DSC_CATEGORY_NO,
    DSC_CATEGORY_PC, DSC_CATEGORY_PD, DSC_CATEGORY_PS, DSC_CATEGORY_PE, DSC_CATEGORY_PI, DSC_CATEGORY_PF,
    DSC_CATEGORY_PO, DSC_CATEGORY_SM, DSC_CATEGORY_SC, DSC_CATEGORY_SK, DSC_CATEGORY_SO, DSC_CATEGORY_ZS,
    DSC_CATEGORY_ZL, DSC_CATEGORY_ZP, DSC_CATEGORY_CC, DSC_CATEGORY_CF, DSC_CATEGORY_CS, DSC_CATEGORY_CO
};
#define DSC_CATEGORY(name) (UINT32_C(1) << DSC_CATEGORY_##name)
uint32_t dsc_char_category(uint32_t code); /* one bit */
bool dsc_char_is_space(uint32_t code);     /* White_Space */
bool dsc_char_is_word(uint32_t code);      /* letters, marks, decimal digits, connectors, joiners */
/* \w in Oniguruma: no joiners, but, unless it is in brackets, Latin-1's small digits and fractions. */
bool dsc_char_is_pattern_word(uint32_t code, bool in_brackets);
uint32_t dsc_char_lower(uint32_t code);    /* as one character */
/* The i-th range of the script Han; false behind the last. */
bool dsc_char_han_range(int i, uint32_t *low, uint32_t *high);
/* As the tokenizers package's older tables have it: char_class.c. */
bool dsc_char_is_punctuation(uint32_t code); /* P, and ASCII's symbols */
bool dsc_char_is_other(uint32_t code);       /* Cc, Cf, Co */
bool dsc_char_is_nonspacing_mark(uint32_t code);
bool dsc_char_is_mark(uint32_t code);

/* True when all of it is valid UTF-8. */
bool dsc_utf8_is_valid(const char *text, int64_t bytes);
/* Appends the text with each maximal invalid UTF-8 sequence replaced by U+FFFD, like Python's errors="replace". */
dsc_status dsc_utf8_repair(const char *text, int64_t bytes, dsc_text *out, dsc_error *err);

typedef enum dsc_normal_form { DSC_NFC, DSC_NFD, DSC_NFKC, DSC_NFKD } dsc_normal_form;
/* Appends the normal form of valid UTF-8. */
dsc_status dsc_text_normalize(const char *text, int64_t bytes, dsc_normal_form form, dsc_text *out, dsc_error *err);
/* True when the text surely is in this form: a quick look that may say no to text that is. */
bool dsc_text_is_normal(const char *text, int64_t bytes, dsc_normal_form form);

#endif
