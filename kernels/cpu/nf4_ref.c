/* nf4_ref.c - the reference of NF4_UNPACK. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/nf4_range.h"

static void unpack_block(void *to, int64_t at, int64_t count, const uint8_t *codes, float scale, dsc_dtype dtype)
{
    for (int64_t i = 0; i < count; i++) {
        const int q = i % 2 == 0 ? codes[i / 2] >> 4 : codes[i / 2] & 15;
        dsc_put(to, at + i, dtype, dsc_nf4_values[q] * scale);
    }
}

NF4_DEFINE(ref, unpack_block)
