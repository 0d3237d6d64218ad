/* rmsnorm_ref.c - RMS normalisation, an operation a line, in the order of sums that rmsnorm_v16.h has: the variants
 * give these bits. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "kernels/cpu/range.h"
#include "kernels/scalar.h"

void dsc_rmsnorm_fwd_ref(const void *args, int64_t first, int64_t last)
{
    const dsc_rmsnorm_fwd_args *a = args;
    const int64_t channels = a->channels;
    const void *in = a->add != NULL ? a->sum : a->in;
    for (int64_t r = first; r < last; r++) {
        for (int64_t i = r * channels; a->add != NULL && i < (r + 1) * channels; i++)
            dsc_put(a->sum, i, a->dtype, dsc_get(a->in, i, a->dtype) + dsc_get(a->add, i, a->dtype));
        const int64_t row = dsc_norm_row_at(&a->wide, r, channels);
        float lane[64] = { 0 };
        for (int64_t c = 0; c < channels; c++) {
            const float x = dsc_get(in, row + c, a->dtype);
            lane[c % 64] = fmaf(x, x, lane[c % 64]);
        }
        const float rstd = 1.0f / sqrtf(dsc_lanes_sum(lane, 64) / (float)channels + a->eps);
        for (int64_t c = 0; c < channels; c++) {
            const float x_hat = dsc_get(in, row + c, a->dtype) * rstd;
            dsc_put(a->out, r * channels + c, a->dtype, x_hat * dsc_norm_weight(a->weight, a->plus_one, c, a->dtype));
        }
        a->rstd[r] = rstd;
    }
}

/* Row r's part of the weight's gradient into this block's scratch row, and the gradient of its input. */
static void bwd_row(const dsc_rmsnorm_bwd_args *a, int64_t r, float *sum_weight)
{
    const int64_t channels = a->channels, row = dsc_norm_row_at(&a->wide, r, channels);
    const float rstd = a->rstd[r];
    float lane[16] = { 0 };
    for (int64_t c = 0; c < channels; c++) {
        const float x_hat = dsc_get(a->in, row + c, a->dtype) * rstd;
        const float g = dsc_get(a->d_out, r * channels + c, a->dtype);
        const float d = g * dsc_norm_weight(a->weight, a->plus_one, c, a->dtype);
        lane[c % 16] = fmaf(d, x_hat, lane[c % 16]);
        if (a->d_weight != NULL)
            sum_weight[c] = fmaf(g, x_hat, sum_weight[c]);
    }
    const float mean = dsc_lanes_sum(lane, 16) / (float)channels;
    for (int64_t c = 0; c < channels; c++) {
        const int64_t i = r * channels + c;
        const float x_hat = dsc_get(a->in, row + c, a->dtype) * rstd;
        const float d = dsc_get(a->d_out, i, a->dtype) * dsc_norm_weight(a->weight, a->plus_one, c, a->dtype);
        const float through = fmaf(-x_hat, mean, d);
        const float residual = a->d_residual != NULL ? dsc_get(a->d_residual, i, a->dtype) : 0.0f;
        dsc_put(a->d_in, row + c, a->dtype, fmaf(rstd, through, residual));
    }
}

void dsc_rmsnorm_bwd_ref(const void *args, int64_t first, int64_t last)
{
    const dsc_rmsnorm_bwd_args *a = args;
    for (int64_t block = first; block < last; block++) {
        float *sum_weight = (float *)a->scratch + block * a->channels;
        if (a->d_weight != NULL)
            memset(sum_weight, 0, (size_t)a->channels * sizeof(float));
        const int64_t end = dsc_min_i64((block + 1) * DSC_LAYERNORM_BWD_ROWS, a->rows);
        for (int64_t r = block * DSC_LAYERNORM_BWD_ROWS; r < end; r++)
            bwd_row(a, r, sum_weight);
    }
}

void dsc_rmsnorm_bwd_sum_ref(const void *args, int64_t first, int64_t last)
{
    const dsc_rmsnorm_bwd_args *a = args;
    const int64_t blocks = dsc_div_ceil(a->rows, DSC_LAYERNORM_BWD_ROWS), channels = a->channels;
    const int64_t end = dsc_min_i64(last * DSC_LAYERNORM_SUM_COLS, channels);
    for (int64_t c = first * DSC_LAYERNORM_SUM_COLS; c < end; c++) {
        float weight = 0;
        for (int64_t block = 0; block < blocks; block++)
            weight += ((const float *)a->scratch)[block * channels + c];
        a->d_weight[c] = weight;
    }
}
