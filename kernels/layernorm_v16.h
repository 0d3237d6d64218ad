/* layernorm_v16.h - layer normalisation on 16 lanes, bit by bit what layernorm_ref.c does; compiled by
 * layernorm_avx2.c and layernorm_avx512.c after their v16 words. A row is read three times forward and twice
 * backward, from the L1 cache but for the first. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/norm_v16.h"

V16_INLINE void fwd_part(const dsc_layernorm_fwd_args *a, const void *row, int64_t at, int64_t c, int64_t left,
                         dsc_dtype dtype, v16 mean, v16 rstd)
{
    const v16 x_hat = v16_mul(v16_sub(v16_load(row, c, left, dtype), mean), rstd);
    const v16 y = v16_fma(x_hat, v16_load(a->weight, c, left, dtype), v16_load(a->bias, c, left, dtype));
    v16_store(a->out, at + c, left, dtype, y);
}

V16_INLINE void layernorm_fwd(const dsc_layernorm_fwd_args *args, int64_t first, int64_t last, dsc_dtype dtype)
{
    const dsc_layernorm_fwd_args local = *args, *a = &local;
    const int64_t channels = a->channels;
    for (int64_t r = first; r < last; r++) {
        const int64_t at = r * channels;
        if (a->add != NULL)
            row_add(a->sum, a->in, a->add, at, channels, dtype);
        const void *in = a->add != NULL ? a->sum : a->in;
        const void *row = (const char *)in + at * (int64_t)dsc_dtype_bytes(dtype);
        const float mean = row_sum(row, channels, dtype, false, 0.0f) / (float)channels;
        const float variance = row_sum(row, channels, dtype, true, mean) / (float)channels;
        const float rstd = 1.0f / sqrtf(variance + a->eps);
        int64_t c = 0;
        for (; c + 16 <= channels; c += 16)
            fwd_part(a, row, at, c, 16, dtype, v16_set(mean), v16_set(rstd));
        if (c < channels)
            fwd_part(a, row, at, c, channels - c, dtype, v16_set(mean), v16_set(rstd));
        a->mean[r] = mean;
        a->rstd[r] = rstd;
    }
}

void V16_NAME(layernorm_fwd)(const void *args, int64_t first, int64_t last)
{
    const dsc_layernorm_fwd_args *a = args;
    if (a->dtype == DSC_F32)
        layernorm_fwd(a, first, last, DSC_F32);
    else
        layernorm_fwd(a, first, last, DSC_BF16);
}

/* Backward goes over several rows at once, so that the block's weight gradients are loaded and stored once for all of
 * them (they still add up row by row) and their chains of additions overlap. */
#define ROWS_AT_ONCE 4

typedef struct bwd_rows {
    const dsc_layernorm_bwd_args *a;
    float *sum_weight, *sum_bias; /* this block's scratch rows */
    int64_t first;                /* row */
    v16 d[ROWS_AT_ONCE], dx[ROWS_AT_ONCE];
} bwd_rows;

V16_INLINE void bwd_sums(bwd_rows *b, int64_t c, int64_t left, int rows, dsc_dtype dtype, bool weights)
{
    const dsc_layernorm_bwd_args *a = b->a;
    const v16 weight = v16_load(a->weight, c, left, dtype);
    v16 sum_weight = v16_set(0.0f), sum_bias = v16_set(0.0f);
    if (weights) {
        sum_weight = v16_load(b->sum_weight, c, left, DSC_F32);
        sum_bias = v16_load(b->sum_bias, c, left, DSC_F32);
    }
    for (int k = 0; k < rows; k++) {
        const int64_t r = b->first + k, i = r * a->channels + c;
        const v16 x = v16_load(a->in, i, left, dtype), g = v16_load(a->d_out, i, left, dtype);
        const v16 x_hat = v16_mul(v16_sub(x, v16_set(a->mean[r])), v16_set(a->rstd[r]));
        const v16 d = v16_mul(g, weight);
        b->d[k] = v16_add(b->d[k], d);
        b->dx[k] = v16_fma(d, x_hat, b->dx[k]);
        sum_weight = v16_fma(g, x_hat, sum_weight);
        sum_bias = v16_add(sum_bias, g);
    }
    if (weights) {
        v16_store(b->sum_weight, c, left, DSC_F32, sum_weight);
        v16_store(b->sum_bias, c, left, DSC_F32, sum_bias);
    }
}

V16_INLINE void bwd_input(const dsc_layernorm_bwd_args *a, int64_t r, int64_t c, int64_t left, dsc_dtype dtype,
                          v16 mean_d, v16 mean_dx)
{
    const int64_t i = r * a->channels + c;
    const v16 rstd = v16_set(a->rstd[r]);
    const v16 x_hat = v16_mul(v16_sub(v16_load(a->in, i, left, dtype), v16_set(a->mean[r])), rstd);
    const v16 d = v16_mul(v16_load(a->d_out, i, left, dtype), v16_load(a->weight, c, left, dtype));
    const v16 through = v16_fnma(x_hat, mean_dx, v16_sub(d, mean_d));
    const v16 residual = a->d_residual != NULL ? v16_load(a->d_residual, i, left, dtype) : v16_set(0.0f);
    v16_store(a->d_in, i, left, dtype, v16_fma(rstd, through, residual));
}

V16_INLINE void bwd_group(bwd_rows *b, int rows, dsc_dtype dtype, bool weights)
{
    const dsc_layernorm_bwd_args *a = b->a;
    const int64_t channels = a->channels;
    for (int k = 0; k < rows; k++)
        b->d[k] = b->dx[k] = v16_set(0.0f);
    int64_t c = 0;
    for (; c + 16 <= channels; c += 16)
        bwd_sums(b, c, 16, rows, dtype, weights);
    if (c < channels)
        bwd_sums(b, c, channels - c, rows, dtype, weights);
    for (int k = 0; k < rows; k++) {
        const v16 mean_d = v16_set(v16_sum_lanes(b->d[k]) / (float)channels);
        const v16 mean_dx = v16_set(v16_sum_lanes(b->dx[k]) / (float)channels);
        for (c = 0; c + 16 <= channels; c += 16)
            bwd_input(a, b->first + k, c, 16, dtype, mean_d, mean_dx);
        if (c < channels)
            bwd_input(a, b->first + k, c, channels - c, dtype, mean_d, mean_dx);
    }
}

V16_INLINE void layernorm_bwd(const dsc_layernorm_bwd_args *args, int64_t first, int64_t last, dsc_dtype dtype,
                              bool weights)
{
    const dsc_layernorm_bwd_args local = *args, *a = &local;
    for (int64_t block = first; block < last; block++) {
        bwd_rows b = { .a = a, .first = block * DSC_LAYERNORM_BWD_ROWS };
        if (weights) {
            b.sum_weight = (float *)a->scratch + block * 2 * a->channels;
            b.sum_bias = b.sum_weight + a->channels;
            memset(b.sum_weight, 0, (size_t)(2 * a->channels) * sizeof(float));
        }
        const int64_t end = dsc_min_i64(b.first + DSC_LAYERNORM_BWD_ROWS, a->rows);
        for (; b.first + ROWS_AT_ONCE <= end; b.first += ROWS_AT_ONCE)
            bwd_group(&b, ROWS_AT_ONCE, dtype, weights);
        for (; b.first < end; b.first++)
            bwd_group(&b, 1, dtype, weights);
    }
}

void V16_NAME(layernorm_bwd)(const void *args, int64_t first, int64_t last)
{
    const dsc_layernorm_bwd_args *a = args;
    const bool weights = a->d_weight != NULL;
    if (a->dtype == DSC_F32)
        weights ? layernorm_bwd(a, first, last, DSC_F32, true) : layernorm_bwd(a, first, last, DSC_F32, false);
    else
        weights ? layernorm_bwd(a, first, last, DSC_BF16, true) : layernorm_bwd(a, first, last, DSC_BF16, false);
}

void V16_NAME(layernorm_bwd_sum)(const void *args, int64_t first, int64_t last)
{
    const dsc_layernorm_bwd_args *a = args;
    const int64_t blocks = dsc_div_ceil(a->rows, DSC_LAYERNORM_BWD_ROWS), channels = a->channels;
    const int64_t end = dsc_min_i64(last * DSC_LAYERNORM_SUM_COLS, channels);
    for (int64_t c = first * DSC_LAYERNORM_SUM_COLS; c < end; c += 16) {
        v16 weight = v16_set(0.0f), bias = v16_set(0.0f);
        for (int64_t block = 0; block < blocks; block++) {
            const float *sums = (const float *)a->scratch + block * 2 * channels;
            weight = v16_add(weight, v16_load(sums, c, channels - c, DSC_F32));
            bias = v16_add(bias, v16_load(sums + channels, c, channels - c, DSC_F32));
        }
        v16_store(a->d_weight, c, channels - c, DSC_F32, weight);
        v16_store(a->d_bias, c, channels - c, DSC_F32, bias);
    }
}
