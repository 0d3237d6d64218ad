/* utf8.c - one character of UTF-8. SPDX-License-Identifier: Apache-2.0 */
#include "base/formats/utf8.h"

/* Length by the first byte; C0, C1 and F5 to FF start no character. */
static int promised_bytes(unsigned char first)
{
    if (first < 0x80)
        return 1;
    if (first >= 0xc2 && first <= 0xdf)
        return 2;
    if ((first & 0xf0) == 0xe0)
        return 3;
    return first >= 0xf0 && first <= 0xf4 ? 4 : 0;
}

int dsc_utf8_char_bytes(const char *at, const char *end)
{
    const unsigned char *c = (const unsigned char *)at;
    if (end - at < 1)
        return 0;
    const int bytes = promised_bytes(c[0]);
    if (bytes <= 1 || end - at < bytes)
        return bytes == 1;
    for (int i = 1; i < bytes; i++)
        if ((c[i] & 0xc0) != 0x80)
            return 0;
    const bool overlong = (c[0] == 0xe0 && c[1] < 0xa0) || (c[0] == 0xf0 && c[1] < 0x90);
    const bool surrogate = c[0] == 0xed && c[1] >= 0xa0;
    const bool too_large = c[0] == 0xf4 && c[1] >= 0x90;
    return overlong || surrogate || too_large ? 0 : bytes;
}

int dsc_utf8_encode(uint32_t code, char out[4])
{
    DSC_ASSERT(code <= 0x10ffff);
    DSC_ASSERT(code < 0xd800 || code > 0xdfff);
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    const int bytes = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (int i = bytes - 1; i > 0; i--, code >>= 6)
        out[i] = (char)(0x80 | (code & 0x3f));
    out[0] = (char)((0xf00 >> bytes & 0xff) | code); /* as many leading ones as bytes */
    return bytes;
}
