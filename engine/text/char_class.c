/* char_class.c - classes of characters by the tables of the tokenizers package, which are older than utf8proc's.
 *
 * The tables are Unicode 8 for controls, punctuation and nonspacing marks, and Unicode 9 for all marks. A character
 * that is newer than the table has no class. The ranges here cover the newer characters of Unicode 15 and, between
 * those, only characters of other classes. tests/cli/tokenizers_test.py compares every character with the package.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/text/unicode.h"

#include <stdlib.h>

typedef struct range { uint32_t low, high; } range;

static const range behind_unicode_8[] = {
    { 0x61d, 0x61d }, { 0x7fd, 0x7fd }, { 0x890, 0x8e2 }, { 0x9fd, 0x9fe }, { 0xa76, 0xa76 }, { 0xafa, 0xaff },
    { 0xb55, 0xb55 }, { 0xc04, 0xc3c }, { 0xc77, 0xc77 }, { 0xc84, 0xc84 }, { 0xd00, 0xd00 }, { 0xd3b, 0xd3c },
    { 0xd81, 0xd81 }, { 0xeba, 0xeba }, { 0xece, 0xece }, { 0x180f, 0x1886 }, { 0x1abf, 0x1ace }, { 0x1b7d, 0x1b7e },
    { 0x1df6, 0x1dfb }, { 0x2e43, 0x2e5d }, { 0xa82c, 0xa82c }, { 0xa8c5, 0xa8c5 }, { 0xa8ff, 0xa8ff },
    { 0xa9bd, 0xa9bd }, { 0x10d24, 0x10f89 }, { 0x11070, 0x11074 }, { 0x110c2, 0x110cd }, { 0x111c9, 0x111c9 },
    { 0x111cf, 0x111cf }, { 0x1123e, 0x11241 }, { 0x1133b, 0x1133b }, { 0x11438, 0x1145e }, { 0x11660, 0x1166c },
    { 0x116b9, 0x116b9 }, { 0x1182f, 0x11fff }, { 0x12ff1, 0x13455 }, { 0x16e97, 0x16f4f }, { 0x16fe2, 0x16fe4 },
    { 0x1cf00, 0x1cf46 }, { 0x1e000, 0x1e4ef }, { 0x1e944, 0x1e95f },
};
static const range marks_behind_unicode_9[] = {
    { 0x7fd, 0x7fd }, { 0x898, 0x8d3 }, { 0x9fe, 0x9fe }, { 0xafa, 0xaff }, { 0xb55, 0xb55 }, { 0xc04, 0xc3c },
    { 0xcf3, 0xd00 }, { 0xd3b, 0xd3c }, { 0xd81, 0xd81 }, { 0xeba, 0xeba }, { 0xece, 0xece }, { 0x1715, 0x1715 },
    { 0x180f, 0x180f }, { 0x1abf, 0x1ace }, { 0x1cf7, 0x1cf7 }, { 0x1df6, 0x1dfa }, { 0xa82c, 0xa82c },
    { 0xa8ff, 0xa8ff }, { 0x10d24, 0x10f85 }, { 0x11070, 0x11074 }, { 0x110c2, 0x110c2 }, { 0x11145, 0x11146 },
    { 0x111c9, 0x111c9 }, { 0x111ce, 0x111cf }, { 0x11241, 0x11241 }, { 0x1133b, 0x1133b }, { 0x1145e, 0x1145e },
    { 0x1182c, 0x11a99 }, { 0x11d31, 0x13455 }, { 0x16f4f, 0x16f4f }, { 0x16f7f, 0x16f87 }, { 0x16fe4, 0x16ff1 },
    { 0x1cf00, 0x1cf46 }, { 0x1e08f, 0x1e4ef },
};

static int compare(const void *key, const void *element)
{
    const uint32_t code = *(const uint32_t *)key;
    const range *r = element;
    return code < r->low ? -1 : code > r->high;
}

#define IS_IN(code, table) (bsearch(&(code), table, DSC_COUNT(table), sizeof *(table), compare) != NULL)

static bool has_old_category(uint32_t code, uint32_t categories)
{
    return (dsc_char_category(code) & categories) != 0 && !IS_IN(code, behind_unicode_8);
}

bool dsc_char_is_punctuation(uint32_t code)
{
    const uint32_t all = DSC_CATEGORY(PC) | DSC_CATEGORY(PD) | DSC_CATEGORY(PS) | DSC_CATEGORY(PE) | DSC_CATEGORY(PI) |
                         DSC_CATEGORY(PF) | DSC_CATEGORY(PO);
    if (code < 0x80)
        return code > ' ' && code < 0x7f && !((code | 0x20) >= 'a' && (code | 0x20) <= 'z') &&
               !(code >= '0' && code <= '9');
    /* Two that have become a symbol and a mark. */
    return code == 0x166d || code == 0x111c9 || has_old_category(code, all);
}

bool dsc_char_is_other(uint32_t code)
{
    return has_old_category(code, DSC_CATEGORY(CC) | DSC_CATEGORY(CF) | DSC_CATEGORY(CO));
}

bool dsc_char_is_nonspacing_mark(uint32_t code)
{
    return code >= 0x300 && (code == 0x1734 || has_old_category(code, DSC_CATEGORY(MN)));
}

bool dsc_char_is_mark(uint32_t code)
{
    const uint32_t all = DSC_CATEGORY(MN) | DSC_CATEGORY(MC) | DSC_CATEGORY(ME);
    if (code < 0x300)
        return false;
    /* Two that have become letters. */
    return code == 0x1cf2 || code == 0x1cf3 ||
           ((dsc_char_category(code) & all) != 0 && !IS_IN(code, marks_behind_unicode_9));
}

bool dsc_char_han_range(int i, uint32_t *low, uint32_t *high)
{
    static const struct { uint32_t low, high; } ranges[] = {
        { 0x2e80, 0x2e99 },   { 0x2e9b, 0x2ef3 },   { 0x2f00, 0x2fd5 },   { 0x3005, 0x3005 },   { 0x3007, 0x3007 },
        { 0x3021, 0x3029 },   { 0x3038, 0x303b },   { 0x3400, 0x4dbf },   { 0x4e00, 0x9fff },   { 0xf900, 0xfa6d },
        { 0xfa70, 0xfad9 },   { 0x16fe2, 0x16fe3 }, { 0x16ff0, 0x16ff1 }, { 0x20000, 0x2a6df }, { 0x2a700, 0x2b739 },
        { 0x2b740, 0x2b81d }, { 0x2b820, 0x2cea1 }, { 0x2ceb0, 0x2ebe0 }, { 0x2f800, 0x2fa1d }, { 0x30000, 0x3134a },
        { 0x31350, 0x323af },
    };
    if (i >= (int)DSC_COUNT(ranges))
        return false;
    *low = ranges[i].low;
    *high = ranges[i].high;
    return true;
}
