/* rmsnorm_v16.h - RMS normalisation on 16 lanes, bit by bit what rmsnorm_ref.c does; compiled by rmsnorm_avx2.c and
 * rmsnorm_avx512.c after their v16 words. A row is read twice each way, from the L1 cache but for the first.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/norm_v16.h"

V16_INLINE void fwd_part(const dsc_rmsnorm_fwd_args *a, const void *row, int64_t at, int64_t c, int64_t left,
                         dsc_dtype dtype, v16 rstd)
{
    const v16 x_hat = v16_mul(v16_load(row, c, left, dtype), rstd);
    v16_store(a->out, at + c, left, dtype, v16_mul(x_hat, v16_load(a->weight, c, left, dtype)));
}

V16_INLINE void rmsnorm_fwd(const dsc_rmsnorm_fwd_args *args, int64_t first, int64_t last, dsc_dtype dtype)
{
    const dsc_rmsnorm_fwd_args local = *args, *a = &local;
    const int64_t channels = a->channels;
    for (int64_t r = first; r < last; r++) {
        const int64_t at = r * channels;
        if (a->add != NULL)
            row_add(a->sum, a->in, a->add, at, channels, dtype);
        const void *in = a->add != NULL ? a->sum : a->in;
        const void *row = (const char *)in + at * (int64_t)dsc_dtype_bytes(dtype);
        const float rstd = 1.0f / sqrtf(row_sum(row, channels, dtype, true, 0.0f) / (float)channels + a->eps);
        int64_t c = 0;
        for (; c + 16 <= channels; c += 16)
            fwd_part(a, row, at, c, 16, dtype, v16_set(rstd));
        if (c < channels)
            fwd_part(a, row, at, c, channels - c, dtype, v16_set(rstd));
        a->rstd[r] = rstd;
    }
}

void V16_NAME(rmsnorm_fwd)(const void *args, int64_t first, int64_t last)
{
    const dsc_rmsnorm_fwd_args *a = args;
    if (a->dtype == DSC_F32)
        rmsnorm_fwd(a, first, last, DSC_F32);
    else
        rmsnorm_fwd(a, first, last, DSC_BF16);
}

/* Several rows at once, as layernorm_v16.h does it and for its reasons. */
#define ROWS_AT_ONCE 4

typedef struct bwd_rows {
    const dsc_rmsnorm_bwd_args *a;
    float *sum_weight; /* this block's scratch row */
    int64_t first;     /* row */
    v16 dx[ROWS_AT_ONCE];
} bwd_rows;

V16_INLINE void bwd_sums(bwd_rows *b, int64_t c, int64_t left, int rows, dsc_dtype dtype, bool weights)
{
    const dsc_rmsnorm_bwd_args *a = b->a;
    const v16 weight = v16_load(a->weight, c, left, dtype);
    v16 sum_weight = weights ? v16_load(b->sum_weight, c, left, DSC_F32) : v16_set(0.0f);
    for (int k = 0; k < rows; k++) {
        const int64_t r = b->first + k, i = r * a->channels + c;
        const v16 g = v16_load(a->d_out, i, left, dtype);
        const v16 x_hat = v16_mul(v16_load(a->in, i, left, dtype), v16_set(a->rstd[r]));
        b->dx[k] = v16_fma(v16_mul(g, weight), x_hat, b->dx[k]);
        sum_weight = v16_fma(g, x_hat, sum_weight);
    }
    if (weights)
        v16_store(b->sum_weight, c, left, DSC_F32, sum_weight);
}

V16_INLINE void bwd_input(const dsc_rmsnorm_bwd_args *a, int64_t r, int64_t c, int64_t left, dsc_dtype dtype, v16 mean)
{
    const int64_t i = r * a->channels + c;
    const v16 rstd = v16_set(a->rstd[r]), x_hat = v16_mul(v16_load(a->in, i, left, dtype), rstd);
    const v16 d = v16_mul(v16_load(a->d_out, i, left, dtype), v16_load(a->weight, c, left, dtype));
    const v16 residual = a->d_residual != NULL ? v16_load(a->d_residual, i, left, dtype) : v16_set(0.0f);
    v16_store(a->d_in, i, left, dtype, v16_fma(rstd, v16_fnma(x_hat, mean, d), residual));
}

V16_INLINE void bwd_group(bwd_rows *b, int rows, dsc_dtype dtype, bool weights)
{
    const dsc_rmsnorm_bwd_args *a = b->a;
    const int64_t channels = a->channels;
    for (int k = 0; k < rows; k++)
        b->dx[k] = v16_set(0.0f);
    int64_t c = 0;
    for (; c + 16 <= channels; c += 16)
        bwd_sums(b, c, 16, rows, dtype, weights);
    if (c < channels)
        bwd_sums(b, c, channels - c, rows, dtype, weights);
    for (int k = 0; k < rows; k++) {
        const v16 mean = v16_set(v16_sum_lanes(b->dx[k]) / (float)channels);
        for (c = 0; c + 16 <= channels; c += 16)
            bwd_input(a, b->first + k, c, 16, dtype, mean);
        if (c < channels)
            bwd_input(a, b->first + k, c, channels - c, dtype, mean);
    }
}

V16_INLINE void rmsnorm_bwd(const dsc_rmsnorm_bwd_args *args, int64_t first, int64_t last, dsc_dtype dtype,
                            bool weights)
{
    const dsc_rmsnorm_bwd_args local = *args, *a = &local;
    for (int64_t block = first; block < last; block++) {
        bwd_rows b = { .a = a, .first = block * DSC_LAYERNORM_BWD_ROWS };
        if (weights) {
            b.sum_weight = (float *)a->scratch + block * a->channels;
            memset(b.sum_weight, 0, (size_t)a->channels * sizeof(float));
        }
        const int64_t end = dsc_min_i64(b.first + DSC_LAYERNORM_BWD_ROWS, a->rows);
        for (; b.first + ROWS_AT_ONCE <= end; b.first += ROWS_AT_ONCE)
            bwd_group(&b, ROWS_AT_ONCE, dtype, weights);
        for (; b.first < end; b.first++)
            bwd_group(&b, 1, dtype, weights);
    }
}

void V16_NAME(rmsnorm_bwd)(const void *args, int64_t first, int64_t last)
{
    const dsc_rmsnorm_bwd_args *a = args;
    const bool weights = a->d_weight != NULL;
    if (a->dtype == DSC_F32)
        weights ? rmsnorm_bwd(a, first, last, DSC_F32, true) : rmsnorm_bwd(a, first, last, DSC_F32, false);
    else
        weights ? rmsnorm_bwd(a, first, last, DSC_BF16, true) : rmsnorm_bwd(a, first, last, DSC_BF16, false);
}

void V16_NAME(rmsnorm_bwd_sum)(const void *args, int64_t first, int64_t last)
{
    const dsc_rmsnorm_bwd_args *a = args;
    const int64_t blocks = dsc_div_ceil(a->rows, DSC_LAYERNORM_BWD_ROWS), channels = a->channels;
    const int64_t end = dsc_min_i64(last * DSC_LAYERNORM_SUM_COLS, channels);
    for (int64_t c = first * DSC_LAYERNORM_SUM_COLS; c < end; c += 16) {
        v16 weight = v16_set(0.0f);
        for (int64_t block = 0; block < blocks; block++)
            weight = v16_add(weight, v16_load((const float *)a->scratch + block * channels, c, channels - c, DSC_F32));
        v16_store(a->d_weight, c, channels - c, DSC_F32, weight);
    }
}
