/* base.c - the end of a program whose own invariant broke. SPDX-License-Identifier: Apache-2.0 */
#include "base/base.h"

#include <stdio.h>
#include <stdlib.h>

void dsc_assert_fail(const char *condition, const char *file, int line)
{
    fprintf(stderr, "dsc: bug: %s:%d: %s\n", file, line, condition);
    abort();
}
