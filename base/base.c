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

/* Bytes of the character at `c` if a terminal or a reader would act on it instead of showing it. Such are controls,
 * line and paragraph separators, marks of writing direction, and characters without width. 0: none. */
static int unseen_bytes(const unsigned char *c)
{
    if (c[0] < 0x20 || c[0] == 0x7f)
        return 1;
    if ((c[0] == 0xc2 && ((c[1] >= 0x80 && c[1] < 0xa0) || c[1] == 0xad)) || (c[0] == 0xd8 && c[1] == 0x9c))
        return 2; /* U+0080..U+009F, U+00AD, U+061C */
    if (c[0] == 0xe2 && c[1] == 0x80 && ((c[2] >= 0x8b && c[2] <= 0x8f) || (c[2] >= 0xa8 && c[2] <= 0xae)))
        return 3; /* U+200B..U+200F, U+2028..U+202E */
    if ((c[0] == 0xe2 && c[1] == 0x81 && c[2] >= 0xa0 && c[2] <= 0xaf) ||
        (c[0] == 0xef && c[1] == 0xbb && c[2] == 0xbf))
        return 3; /* U+2060..U+206F, U+FEFF */
    return 0;
}

void dsc_text_printable(char *text)
{
    unsigned char *c = (unsigned char *)text;
    for (; *c != 0; c++)
        for (int bytes = unseen_bytes(c); bytes > 0; bytes--)
            c[bytes - 1] = '?';
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
