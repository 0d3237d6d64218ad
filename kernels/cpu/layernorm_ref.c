/* layernorm_ref.c - layer normalisation, an operation a line, in the order of sums that layernorm_v16.h has: the
 * variants give these bits. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "kernels/cpu/range.h"
#include "kernels/scalar.h"

void dsc_layernorm_fwd_ref(const void *args, int64_t first, int64_t last)
{
    const dsc_layernorm_fwd_args *a = args;
    const int64_t channels = a->channels;
    const void *in = a->add != NULL ? a->sum : a->in;
    for (int64_t r = first; r < last; r++) {
        for (int64_t i = r * channels; a->add != NULL && i < (r + 1) * channels; i++)
            dsc_put(a->sum, i, a->dtype, dsc_get(a->in, i, a->dtype) + dsc_get(a->add, i, a->dtype));
        const int64_t row = dsc_norm_row_at(&a->wide, r, channels);
        float lane[64] = { 0 };
        for (int64_t c = 0; c < channels; c++)
            lane[c % 64] += dsc_get(in, row + c, a->dtype);
        const float mean = dsc_lanes_sum(lane, 64) / (float)channels;

        memset(lane, 0, sizeof lane);
        for (int64_t c = 0; c < channels; c++) {
            const float d = dsc_get(in, row + c, a->dtype) - mean;
            lane[c % 64] = fmaf(d, d, lane[c % 64]);
        }
        const float rstd = 1.0f / sqrtf(dsc_lanes_sum(lane, 64) / (float)channels + a->eps);

        for (int64_t c = 0; c < channels; c++) {
            const float x_hat = (dsc_get(in, row + c, a->dtype) - mean) * rstd;
            const float weight = dsc_norm_weight(a->weight, a->plus_one, c, a->dtype);
            const float bias = a->bias != NULL ? dsc_get(a->bias, c, a->dtype) : 0.0f;
            dsc_put(a->out, r * channels + c, a->dtype, fmaf(x_hat, weight, bias));
        }
        a->mean[r] = mean;
        a->rstd[r] = rstd;
    }
}

/* Row r's part of the weight gradients into this block's scratch row, and the gradient of its input. */
static void bwd_row(const dsc_layernorm_bwd_args *a, int64_t r, float *sum_weight, float *sum_bias)
{
    const int64_t channels = a->channels, row = dsc_norm_row_at(&a->wide, r, channels);
    const float mean = a->mean[r], rstd = a->rstd[r];
    float lane_d[16] = { 0 }, lane_dx[16] = { 0 };
    for (int64_t c = 0; c < channels; c++) {
        const float x_hat = (dsc_get(a->in, row + c, a->dtype) - mean) * rstd;
        const float g = dsc_get(a->d_out, r * channels + c, a->dtype);
        const float d = g * dsc_norm_weight(a->weight, a->plus_one, c, a->dtype);
        lane_d[c % 16] += d;
        lane_dx[c % 16] = fmaf(d, x_hat, lane_dx[c % 16]);
        if (sum_weight != NULL) {
            sum_weight[c] = fmaf(g, x_hat, sum_weight[c]);
            sum_bias[c] += g;
        }
    }
    const float mean_d = dsc_lanes_sum(lane_d, 16) / (float)channels;
    const float mean_dx = dsc_lanes_sum(lane_dx, 16) / (float)channels;
    for (int64_t c = 0; c < channels; c++) {
        const int64_t i = r * channels + c;
        const float x_hat = (dsc_get(a->in, row + c, a->dtype) - mean) * rstd;
        const float d = dsc_get(a->d_out, i, a->dtype) * dsc_norm_weight(a->weight, a->plus_one, c, a->dtype);
        const float through = fmaf(-x_hat, mean_dx, d - mean_d);
        const float residual = a->d_residual != NULL ? dsc_get(a->d_residual, i, a->dtype) : 0.0f;
        dsc_put(a->d_in, row + c, a->dtype, fmaf(rstd, through, residual));
    }
}

void dsc_layernorm_bwd_ref(const void *args, int64_t first, int64_t last)
{
    const dsc_layernorm_bwd_args *a = args;
    const int64_t channels = a->channels;
    for (int64_t block = first; block < last; block++) {
        const bool sums = a->d_weight != NULL || a->d_bias != NULL;
        float *sum_weight = sums ? (float *)a->scratch + block * 2 * channels : NULL;
        float *sum_bias = sums ? sum_weight + channels : NULL;
        if (sums)
            memset(sum_weight, 0, (size_t)(2 * channels) * sizeof(float));
        const int64_t end = dsc_min_i64((block + 1) * DSC_LAYERNORM_BWD_ROWS, a->rows);
        for (int64_t r = block * DSC_LAYERNORM_BWD_ROWS; r < end; r++)
            bwd_row(a, r, sum_weight, sum_bias);
    }
}

void dsc_layernorm_bwd_sum_ref(const void *args, int64_t first, int64_t last)
{
    const dsc_layernorm_bwd_args *a = args;
    const int64_t blocks = dsc_div_ceil(a->rows, DSC_LAYERNORM_BWD_ROWS), channels = a->channels;
    const int64_t end = dsc_min_i64(last * DSC_LAYERNORM_SUM_COLS, channels);
    for (int64_t c = first * DSC_LAYERNORM_SUM_COLS; c < end; c++) {
        float weight = 0, bias = 0;
        for (int64_t block = 0; block < blocks; block++) {
            weight += ((const float *)a->scratch)[block * 2 * channels + c];
            bias += ((const float *)a->scratch)[block * 2 * channels + channels + c];
        }
        if (a->d_weight != NULL)
            a->d_weight[c] = weight;
        if (a->d_bias != NULL)
            a->d_bias[c] = bias;
    }
}
