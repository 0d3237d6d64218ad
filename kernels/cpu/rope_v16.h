/* rope_v16.h - rotary embeddings on 16 lanes, bit by bit what rope_ref.c does; compiled by rope_avx2.c and
 * rope_avx512.c after their v16 words. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "kernels/cpu/range.h"

V16_INLINE void turn_part(const dsc_rope_args *a, int64_t at, int64_t table, int64_t i, int64_t left, dsc_dtype dtype,
                          bool inverse)
{
    const v16 x = v16_load(a->in, at + i, left, dtype), y = v16_load(a->in, at + i + a->pairs, left, dtype);
    const v16 c = v16_load(a->cos, table + i, left, DSC_F32), s = v16_load(a->sin, table + i, left, DSC_F32);
    const v16 xc = v16_mul(x, c), yc = v16_mul(y, c);
    v16_store(a->out, at + i, left, dtype, inverse ? v16_fma(y, s, xc) : v16_fnma(y, s, xc));
    v16_store(a->out, at + i + a->pairs, left, dtype, inverse ? v16_fnma(x, s, yc) : v16_fma(x, s, yc));
}

/* Elements i .. of the turned ones, `left` of them, an even number. Each has its neighbour's product added: even ones
 * with -s, odd ones with s. */
V16_INLINE void turn_neighbours(const dsc_rope_args *a, int64_t at, int64_t table, int64_t i, int64_t left,
                                dsc_dtype dtype, bool inverse)
{
    const v16 x = v16_load(a->in, at + i, left, dtype);
    const v16 c = v16_load_twice(a->cos, table + i / 2, left / 2), s = v16_load_twice(a->sin, table + i / 2, left / 2);
    v16_store(a->out, at + i, left, dtype, v16_fma(v16_swap_pairs(x), v16_negate_pairs(s, inverse), v16_mul(x, c)));
}

/* A head of `pairs` pairs, as halves or as neighbours. */
V16_INLINE void turn_head(const dsc_rope_args *a, int64_t at, int64_t table, dsc_dtype dtype, bool inverse)
{
    const int64_t pairs = a->pairs;
    int64_t i = 0;
    if (a->neighbours) {
        for (; i + 16 <= 2 * pairs; i += 16)
            turn_neighbours(a, at, table, i, 16, dtype, inverse);
        if (i < 2 * pairs)
            turn_neighbours(a, at, table, i, 2 * pairs - i, dtype, inverse);
        return;
    }
    for (; i + 16 <= pairs; i += 16)
        turn_part(a, at, table, i, 16, dtype, inverse);
    if (i < pairs)
        turn_part(a, at, table, i, pairs - i, dtype, inverse);
}

V16_INLINE void turn_rows(const dsc_rope_args *args, int64_t first, int64_t last, dsc_dtype dtype, bool inverse)
{
    const dsc_rope_args local = *args, *a = &local;
    const int64_t pairs = a->pairs, bytes = (int64_t)dsc_dtype_bytes(dtype), rest = a->head_size - 2 * pairs;
    for (int64_t r = first; r < last; r++)
        for (int64_t h = 0; h < a->heads; h++) {
            const int64_t at = r * a->stride + h * a->head_size, table = dsc_rope_position(a, r) * pairs;
            turn_head(a, at, table, dtype, inverse);
            if (rest > 0 && a->out != a->in)
                memcpy((char *)a->out + (at + 2 * pairs) * bytes, (const char *)a->in + (at + 2 * pairs) * bytes,
                       (size_t)(rest * bytes));
        }
}

void V16_NAME(rope)(const void *args, int64_t first, int64_t last)
{
    const dsc_rope_args *a = args;
    if (a->inverse)
        DSC_FOR_DTYPE(a->dtype, turn_rows(a, first, last, dtype, true));
    else
        DSC_FOR_DTYPE(a->dtype, turn_rows(a, first, last, dtype, false));
}
