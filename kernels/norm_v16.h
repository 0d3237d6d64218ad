/* norm_v16.h - what the norms share on 16 lanes: sums over a row, and the residual that is added to it first. Included
 * by layernorm_v16.h and rmsnorm_v16.h. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_NORM_V16_H
#define DSC_KERNELS_NORM_V16_H

#include <math.h>
#include <string.h>

#include "kernels/range.h"

/* Sum over a row of x, or of (x - mean)^2, in 64 lanes: four chains of additions hide each other's latency. */
V16_INLINE float row_sum(const void *row, int64_t channels, dsc_dtype dtype, bool squares, float mean)
{
    const v16 zero = v16_set(0.0f), shift = v16_set(mean);
    v16 sum[4] = { zero, zero, zero, zero };
    int64_t c = 0;
    for (; c + 64 <= channels; c += 64)
        for (int j = 0; j < 4; j++) {
            const v16 x = v16_load(row, c + 16 * j, 16, dtype);
            const v16 d = v16_sub(x, shift);
            sum[j] = squares ? v16_fma(d, d, sum[j]) : v16_add(sum[j], x);
        }
    for (int j = 0; j < 4; j++) {
        const int64_t left = channels - c - 16 * j;
        if (left > 0) {
            const v16 x = v16_load(row, c + 16 * j, left, dtype);
            const v16 d = v16_first(v16_sub(x, shift), zero, left);
            sum[j] = squares ? v16_fma(d, d, sum[j]) : v16_add(sum[j], x);
        }
    }
    return v16_sum_lanes(v16_add(v16_add(sum[0], sum[2]), v16_add(sum[1], sum[3])));
}

/* to[at + c] = in[at + c] + add[at + c], rounded to the dtype, for a row's channels c; `to` may be either of them. */
V16_INLINE void row_add(void *to, const void *in, const void *add, int64_t at, int64_t channels, dsc_dtype dtype)
{
    int64_t c = 0;
    for (; c + 16 <= channels; c += 16)
        v16_store(to, at + c, 16, dtype, v16_add(v16_load(in, at + c, 16, dtype), v16_load(add, at + c, 16, dtype)));
    if (c < channels) {
        const v16 x = v16_load(in, at + c, channels - c, dtype), y = v16_load(add, at + c, channels - c, dtype);
        v16_store(to, at + c, channels - c, dtype, v16_add(x, y));
    }
}

#endif
