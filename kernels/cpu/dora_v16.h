/* dora_v16.h - DoRA's kernels on 16 lanes; compiled by dora_avx2.c and dora_avx512.c after their v16 words and
 * add_squares, which adds the squares of 16 lanes to as many sums. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "kernels/cpu/range.h"

#define PIECE 64 /* inputs whose elements are in registers together */
#define RANKS 32 /* rows of A that are copied together: side by side they stay in the nearest cache */

/* Of a block of outputs: the sums of squares, the adapter's elements, those of a weight [in,out], a part of A. */
typedef struct dora_work {
    double lane[DSC_DORA_OUTPUTS][DSC_DORA_LANES];
    float d[DSC_DORA_OUTPUTS][PIECE], w[DSC_DORA_OUTPUTS][PIECE], a[RANKS][PIECE];
} dora_work;

/* 0 where there are no more elements. */
V16_INLINE v16 load_left(const void *x, int64_t i, int64_t left, dsc_dtype dtype)
{
    return left > 0 ? v16_load(x, i, left, dtype) : v16_set(0);
}

/* The terms of `ranks` of A's rows, from `first` on. */
V16_INLINE void add_terms(const dsc_dora_factors_args *a, dora_work *work, int64_t row, int64_t o, int64_t first,
                          int64_t ranks, dsc_dtype dtype)
{
    v16 d[PIECE / 16];
    for (int n = 0; n < PIECE / 16; n++)
        d[n] = first == 0 ? v16_set(0) : v16_load(work->d[row], 16 * n, 16, DSC_F32);
    for (int64_t k = 0; k < ranks; k++) {
        const v16 b = v16_set(dsc_get(a->b, o * a->rank + first + k, dtype));
        for (int n = 0; n < PIECE / 16; n++)
            d[n] = v16_fma(b, v16_load(work->a[k], 16 * n, 16, DSC_F32), d[n]);
    }
    for (int n = 0; n < PIECE / 16; n++)
        v16_store(work->d[row], 16 * n, 16, DSC_F32, d[n]);
}

/* The squares of elements i.. of an output. */
V16_INLINE void square_piece(const dsc_dora_factors_args *a, dora_work *work, int64_t row, int64_t o, int64_t i,
                             dsc_dtype dtype)
{
    for (int n = 0; n < PIECE / 16; n++) {
        const v16 w = a->in_out ? v16_load(work->w[row], 16 * n, 16, DSC_F32)
                                : load_left(a->weight, o * a->in + i + 16 * n, a->in - i - 16 * n, dtype);
        const v16 d = v16_load(work->d[row], 16 * n, 16, DSC_F32);
        add_squares(work->lane[row] + i % DSC_DORA_LANES + 16 * n, v16_fma(v16_set(a->scale), d, w));
    }
}

V16_INLINE void read_weight(const dsc_dora_factors_args *a, dora_work *work, int64_t o, int64_t outputs, int64_t i,
                            dsc_dtype dtype)
{
    for (int64_t j = 0; j < PIECE; j++)
        for (int64_t row = 0; row < outputs; row++)
            work->w[row][j] = i + j < a->in ? dsc_get(a->weight, (i + j) * a->out + o + row, dtype) : 0;
}

V16_INLINE void factors_block(const dsc_dora_factors_args *a, int64_t o, dsc_dtype dtype)
{
    const int64_t outputs = dsc_min_i64(DSC_DORA_OUTPUTS, a->out - o);
    dora_work work;
    memset(work.lane, 0, sizeof work.lane);
    for (int64_t i = 0; i < a->in; i += PIECE) {
        for (int64_t first = 0; first < a->rank; first += RANKS) {
            const int64_t ranks = dsc_min_i64(RANKS, a->rank - first);
            for (int64_t k = 0; k < ranks; k++)
                for (int n = 0; n < PIECE / 16; n++)
                    v16_store(work.a[k], 16 * n, 16, DSC_F32,
                              load_left(a->a, (first + k) * a->in + i + 16 * n, a->in - i - 16 * n, dtype));
            for (int64_t row = 0; row < outputs; row++)
                add_terms(a, &work, row, o + row, first, ranks, dtype);
        }
        if (a->in_out)
            read_weight(a, &work, o, outputs, i, dtype);
        for (int64_t row = 0; row < outputs; row++)
            square_piece(a, &work, row, o + row, i, dtype);
    }
    for (int64_t row = 0; row < outputs; row++) {
        a->norms[o + row] = dsc_dora_norm(work.lane[row], dtype);
        a->factors[o + row] = dsc_dora_factor(dsc_get(a->magnitude, o + row, dtype), a->norms[o + row]);
    }
}

V16_INLINE void factors_blocks(const dsc_dora_factors_args *args, int64_t first, int64_t last, dsc_dtype dtype)
{
    const dsc_dora_factors_args local = *args;
    for (int64_t block = first; block < last; block++)
        factors_block(&local, block * DSC_DORA_OUTPUTS, dtype);
}

void V16_NAME(dora_factors)(const void *args, int64_t first, int64_t last)
{
    const dsc_dora_factors_args *a = args;
    DSC_FOR_DTYPE(a->dtype, factors_blocks(a, first, last, dtype));
}

V16_INLINE void scale_part(const dsc_dora_scale_args *a, int64_t r, int64_t c, int64_t left, dsc_dtype dtype)
{
    const int64_t at = r * a->cols + c;
    v16 x =
        v16_mul(v16_load(a->x, at, left, dtype), v16_add(v16_load(a->factors, c, left, DSC_F32), v16_set(a->offset)));
    if (a->bias != NULL)
        x = v16_add(x, v16_load(a->bias, c, left, dtype));
    if (a->add != NULL)
        x = v16_add(x, v16_load(a->add, at, left, dtype));
    v16_store(a->out, at, left, dtype, x);
}

V16_INLINE void scale_rows(const dsc_dora_scale_args *args, int64_t first, int64_t last, dsc_dtype dtype)
{
    const dsc_dora_scale_args local = *args;
    for (int64_t r = first; r < last; r++) {
        int64_t c = 0;
        for (; c + 16 <= local.cols; c += 16)
            scale_part(&local, r, c, 16, dtype);
        if (c < local.cols)
            scale_part(&local, r, c, local.cols - c, dtype);
    }
}

void V16_NAME(dora_scale)(const void *args, int64_t first, int64_t last)
{
    const dsc_dora_scale_args *a = args;
    DSC_FOR_DTYPE(a->dtype, scale_rows(a, first, last, dtype));
}

/* `left` of 16 columns from c on. */
V16_INLINE void gradient_part(const dsc_dora_gradient_args *a, int64_t c, int64_t left, dsc_dtype dtype)
{
    v16 total = v16_set(0);
    for (int64_t block = 0; block < a->rows; block += 64) {
        const int64_t end = dsc_min_i64(block + 64, a->rows);
        v16 sum = v16_set(0);
        for (int64_t r = block; r < end; r++) {
            const int64_t at = r * a->cols + c;
            sum = v16_add(sum, v16_mul(v16_load(a->d, at, left, dtype), v16_load(a->z, at, left, dtype)));
        }
        total = v16_add(total, sum);
    }
    float sums[16];
    v16_store(sums, 0, 16, DSC_F32, total);
    for (int64_t j = 0; j < left; j++)
        a->out[c + j] = dsc_dora_factor(sums[j], a->norms[c + j]);
}

V16_INLINE void gradient_cols(const dsc_dora_gradient_args *args, int64_t first, int64_t last, dsc_dtype dtype)
{
    const dsc_dora_gradient_args local = *args;
    const int64_t end = dsc_min_i64(last * DSC_DORA_COLS, local.cols);
    for (int64_t c = first * DSC_DORA_COLS; c < end; c += 16)
        if (end - c >= 16)
            gradient_part(&local, c, 16, dtype);
        else
            gradient_part(&local, c, end - c, dtype);
}

void V16_NAME(dora_gradient)(const void *args, int64_t first, int64_t last)
{
    const dsc_dora_gradient_args *a = args;
    DSC_FOR_DTYPE(a->dtype, gradient_cols(a, first, last, dtype));
}
