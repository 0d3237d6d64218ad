/* norm_v16.h - layer normalisation on 16 lanes, forward and backward. RMS normalisation is the same without means and
 * bias (`rms`, a constant in each instance), and comes with layer norm's arguments. Included by layernorm_v16.h and
 * rmsnorm_v16.h after the v16 words. A row is read once more for its mean, if it has one; all but the first reads are
 * from the L1 cache. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CPU_NORM_V16_H
#define DSC_KERNELS_CPU_NORM_V16_H

#include <math.h>
#include <string.h>

#include "kernels/cpu/range.h"

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

/* Factors of channels c.. : without a weight 1. */
V16_INLINE v16 norm_weight(const void *weight, bool plus_one, int64_t c, int64_t left, dsc_dtype dtype)
{
    if (weight == NULL)
        return v16_set(1.0f);
    const v16 w = v16_load(weight, c, left, dtype);
    return plus_one ? v16_add(v16_set(1.0f), w) : w;
}

/* ---- forward ---- */

/* Purpose of this instance of a function. */
typedef struct norm_kind {
    dsc_dtype dtype;
    bool rms;
    bool weights; /* backward: they are not frozen */
} norm_kind;

V16_INLINE void fwd_part(const dsc_layernorm_fwd_args *a, const void *row, int64_t at, int64_t c, int64_t left,
                         norm_kind k, v16 mean, v16 rstd)
{
    const v16 x = v16_load(row, c, left, k.dtype), x_hat = v16_mul(k.rms ? x : v16_sub(x, mean), rstd);
    const v16 weight = norm_weight(a->weight, a->plus_one, c, left, k.dtype);
    const v16 bias = a->bias != NULL ? v16_load(a->bias, c, left, k.dtype) : v16_set(0.0f);
    v16_store(a->out, at + c, left, k.dtype, k.rms ? v16_mul(x_hat, weight) : v16_fma(x_hat, weight, bias));
}

V16_INLINE void norm_fwd(const dsc_layernorm_fwd_args *args, int64_t first, int64_t last, norm_kind k)
{
    const dsc_layernorm_fwd_args local = *args, *a = &local;
    const int64_t channels = a->channels;
    for (int64_t r = first; r < last; r++) {
        const int64_t at = r * channels;
        if (a->add != NULL)
            row_add(a->sum, a->in, a->add, at, channels, k.dtype);
        const void *in = a->add != NULL ? a->sum : a->in;
        const int64_t in_at = dsc_norm_row_at(&a->wide, r, channels);
        const void *row = (const char *)in + in_at * (int64_t)dsc_dtype_bytes(k.dtype);
        const float mean = k.rms ? 0.0f : row_sum(row, channels, k.dtype, false, 0.0f) / (float)channels;
        const float variance = row_sum(row, channels, k.dtype, true, mean) / (float)channels;
        const float rstd = 1.0f / sqrtf(variance + a->eps);
        int64_t c = 0;
        for (; c + 16 <= channels; c += 16)
            fwd_part(a, row, at, c, 16, k, v16_set(mean), v16_set(rstd));
        if (c < channels)
            fwd_part(a, row, at, c, channels - c, k, v16_set(mean), v16_set(rstd));
        if (!k.rms)
            a->mean[r] = mean;
        a->rstd[r] = rstd;
    }
}

/* ---- backward: over several rows at once. So the block's weight gradients are loaded and stored once for all of
 * them (they still add up row by row), and their chains of additions overlap. ---- */

#define ROWS_AT_ONCE 4

typedef struct bwd_rows {
    const dsc_layernorm_bwd_args *a;
    float *sum_weight, *sum_bias; /* this block's scratch rows; RMS norm has only the first */
    int64_t first;                /* row */
    int64_t at[ROWS_AT_ONCE];     /* first elements of `in` and `d_in` */
    v16 d[ROWS_AT_ONCE], dx[ROWS_AT_ONCE];
} bwd_rows;

/* How many rows of scratch a block has. */
V16_INLINE int64_t sums_of(norm_kind k) { return k.rms ? 1 : 2; }

/* `at`: the element's place, in row r. */
V16_INLINE v16 x_hat_of(const dsc_layernorm_bwd_args *a, int64_t r, int64_t at, int64_t left, norm_kind k)
{
    const v16 x = v16_load(a->in, at, left, k.dtype);
    return v16_mul(k.rms ? x : v16_sub(x, v16_set(a->mean[r])), v16_set(a->rstd[r]));
}

V16_INLINE void bwd_sums(bwd_rows *b, int64_t c, int64_t left, int rows, norm_kind k)
{
    const dsc_layernorm_bwd_args *a = b->a;
    const v16 weight = norm_weight(a->weight, a->plus_one, c, left, k.dtype);
    v16 sum_weight = v16_set(0.0f), sum_bias = v16_set(0.0f);
    if (k.weights)
        sum_weight = v16_load(b->sum_weight, c, left, DSC_F32);
    if (k.weights && !k.rms)
        sum_bias = v16_load(b->sum_bias, c, left, DSC_F32);
    for (int i = 0; i < rows; i++) {
        const v16 g = v16_load(a->d_out, (b->first + i) * a->channels + c, left, k.dtype);
        const v16 x_hat = x_hat_of(a, b->first + i, b->at[i] + c, left, k), d = v16_mul(g, weight);
        if (!k.rms)
            b->d[i] = v16_add(b->d[i], d);
        b->dx[i] = v16_fma(d, x_hat, b->dx[i]);
        sum_weight = v16_fma(g, x_hat, sum_weight);
        sum_bias = v16_add(sum_bias, g);
    }
    if (k.weights)
        v16_store(b->sum_weight, c, left, DSC_F32, sum_weight);
    if (k.weights && !k.rms)
        v16_store(b->sum_bias, c, left, DSC_F32, sum_bias);
}

V16_INLINE void bwd_input(const bwd_rows *b, int row, int64_t c, int64_t left, norm_kind k, v16 mean_d, v16 mean_dx)
{
    const dsc_layernorm_bwd_args *a = b->a;
    const int64_t r = b->first + row, i = r * a->channels + c, at = b->at[row] + c;
    const v16 x_hat = x_hat_of(a, r, at, left, k);
    const v16 weight = norm_weight(a->weight, a->plus_one, c, left, k.dtype);
    const v16 d = v16_mul(v16_load(a->d_out, i, left, k.dtype), weight);
    const v16 through = v16_fnma(x_hat, mean_dx, k.rms ? d : v16_sub(d, mean_d));
    const v16 residual = a->d_residual != NULL ? v16_load(a->d_residual, i, left, k.dtype) : v16_set(0.0f);
    v16_store(a->d_in, at, left, k.dtype, v16_fma(v16_set(a->rstd[r]), through, residual));
}

V16_INLINE void bwd_group(bwd_rows *b, int rows, norm_kind k)
{
    const dsc_layernorm_bwd_args *a = b->a;
    const int64_t channels = a->channels;
    for (int i = 0; i < rows; i++) {
        b->d[i] = b->dx[i] = v16_set(0.0f);
        b->at[i] = dsc_norm_row_at(&a->wide, b->first + i, channels);
    }
    int64_t c = 0;
    for (; c + 16 <= channels; c += 16)
        bwd_sums(b, c, 16, rows, k);
    if (c < channels)
        bwd_sums(b, c, channels - c, rows, k);
    for (int i = 0; i < rows; i++) {
        const v16 mean_d = v16_set(k.rms ? 0.0f : v16_sum_lanes(b->d[i]) / (float)channels);
        const v16 mean_dx = v16_set(v16_sum_lanes(b->dx[i]) / (float)channels);
        for (c = 0; c + 16 <= channels; c += 16)
            bwd_input(b, i, c, 16, k, mean_d, mean_dx);
        if (c < channels)
            bwd_input(b, i, c, channels - c, k, mean_d, mean_dx);
    }
}

V16_INLINE void norm_bwd(const dsc_layernorm_bwd_args *args, int64_t first, int64_t last, norm_kind k)
{
    const dsc_layernorm_bwd_args local = *args, *a = &local;
    for (int64_t block = first; block < last; block++) {
        bwd_rows b = { .a = a, .first = block * DSC_LAYERNORM_BWD_ROWS };
        if (k.weights) {
            b.sum_weight = (float *)a->scratch + block * sums_of(k) * a->channels;
            b.sum_bias = b.sum_weight + a->channels;
            memset(b.sum_weight, 0, (size_t)(sums_of(k) * a->channels) * sizeof(float));
        }
        const int64_t end = dsc_min_i64(b.first + DSC_LAYERNORM_BWD_ROWS, a->rows);
        for (; b.first + ROWS_AT_ONCE <= end; b.first += ROWS_AT_ONCE)
            bwd_group(&b, ROWS_AT_ONCE, k);
        for (; b.first < end; b.first++)
            bwd_group(&b, 1, k);
    }
}

V16_INLINE void norm_bwd_sum(const dsc_layernorm_bwd_args *a, int64_t first, int64_t last, norm_kind k)
{
    const int64_t blocks = dsc_div_ceil(a->rows, DSC_LAYERNORM_BWD_ROWS), channels = a->channels;
    const int64_t end = dsc_min_i64(last * DSC_LAYERNORM_SUM_COLS, channels);
    for (int64_t c = first * DSC_LAYERNORM_SUM_COLS; c < end; c += 16) {
        v16 weight = v16_set(0.0f), bias = v16_set(0.0f);
        for (int64_t block = 0; block < blocks; block++) {
            const float *sums = (const float *)a->scratch + block * sums_of(k) * channels;
            weight = v16_add(weight, v16_load(sums, c, channels - c, DSC_F32));
            if (!k.rms)
                bias = v16_add(bias, v16_load(sums + channels, c, channels - c, DSC_F32));
        }
        if (a->d_weight != NULL)
            v16_store(a->d_weight, c, channels - c, DSC_F32, weight);
        if (!k.rms && a->d_bias != NULL)
            v16_store(a->d_bias, c, channels - c, DSC_F32, bias);
    }
}

/* ---- one instance for each kind ---- */

V16_INLINE void norm_fwd_any(const dsc_layernorm_fwd_args *a, int64_t first, int64_t last, bool rms)
{
    DSC_FOR_DTYPE(a->dtype, norm_fwd(a, first, last, (norm_kind){ dtype, rms, false }));
}

V16_INLINE void norm_bwd_any(const dsc_layernorm_bwd_args *a, int64_t first, int64_t last, bool rms)
{
    const bool weights = a->d_weight != NULL || a->d_bias != NULL;
    if (weights)
        DSC_FOR_DTYPE(a->dtype, norm_bwd(a, first, last, (norm_kind){ dtype, rms, true }));
    else
        DSC_FOR_DTYPE(a->dtype, norm_bwd(a, first, last, (norm_kind){ dtype, rms, false }));
}

#endif
