/* base.c - the end of a program whose own invariant broke, and text made safe to print.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void dsc_assert_fail(const char *condition, const char *file, int line)
{
    fprintf(stderr, "dsc: bug: %s:%d: %s\n", file, line, condition);
    abort();
}

void dsc_text_printable(char *text)
{
    unsigned char *c = (unsigned char *)text;
    for (; *c != 0; c++) {
        const bool c1 = c[0] == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0; /* U+0080..U+009F are control characters too */
        if (*c < 0x20 || *c == 0x7f || c1)
            *c = '?';
        if (c1)
            c[1] = '?';
    }
    unsigned char *last = c;
    for (int i = 0; i < 3 && last > (unsigned char *)text && (last[-1] & 0xc0) == 0x80; i++)
        last--;
    if (last == (unsigned char *)text || last[-1] < 0xc0)
        return;
    last--;
    const int wanted = *last >= 0xf0 ? 4 : *last >= 0xe0 ? 3 : 2;
    if (c - last < wanted)
        *last = 0;
}
