/* attention_rows.h - the softmax of a warp's query rows, tile of keys by tile of keys, in the registers of a product's
 * result. One arithmetic for the forward kernels: where their products agree bit by bit, so do they.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CUDA_ATTENTION_ATTENTION_ROWS_H
#define DSC_KERNELS_CUDA_ATTENTION_ATTENTION_ROWS_H

#include "kernels/cuda/attention/attention.h"

namespace {

/* State of a warp's rows; element half h of m is row 16 m + 8 h + lane / 4. */
template <int DP, int MT> struct row_state {
    float out[MT][DP / 8][4];
    float max[MT][2], sum[MT][2]; /* maximum of raw scores; sum over this lane's columns */
};

template <int MT, int BC>
__device__ __forceinline__ void mask_future(float (&score)[MT][BC / 8][4], int32_t row, int32_t key)
{
    const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, t = lane % 4;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < BC / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (key + 8 * n + 2 * t + (e & 1) > row + 16 * m + 8 * (e / 2) + g)
                    score[m][n][e] = -INFINITY;
}

/* Scores of keys from `key` on. */
template <int MT, int BC>
__device__ __forceinline__ void mask_hidden(float (&score)[MT][BC / 8][4], const dsc_attention_keys &keys,
                                            int64_t batch, int32_t tokens, int32_t key)
{
    const int t = static_cast<int>(threadIdx.x % 4);
#pragma unroll
    for (int n = 0; n < BC / 8; n++)
#pragma unroll
        for (int side = 0; side < 2; side++)
            if (is_hidden(keys, batch, tokens, key + 8 * n + 2 * t + side))
#pragma unroll
                for (int m = 0; m < MT; m++)
                    score[m][n][side] = score[m][n][2 + side] = LOW_SCORE;
}

/* Scores of keys from `key` on for queries from `row` on: those before what a query sees. */
template <int MT, int BC, bool MORE = false>
__device__ __forceinline__ void mask_before(float (&score)[MT][BC / 8][4], const dsc_attention_keys &keys,
                                            int64_t batch, int32_t tokens, int32_t row, int32_t key)
{
    const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, t = lane % 4;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int32_t first = first_key<MORE>(keys, batch, tokens, row + 16 * m + 8 * half + g);
#pragma unroll
            for (int n = 0; n < BC / 8; n++)
#pragma unroll
                for (int side = 0; side < 2; side++)
                    if (key + 8 * n + 2 * t + side < first)
                        score[m][n][2 * half + side] = LOW_SCORE;
        }
}

/* With `all`: scores of keys that do not see a query, which does not see them then. */
template <int MT, int BC>
__device__ __forceinline__ void mask_behind(float (&score)[MT][BC / 8][4], const dsc_attention_keys &keys,
                                            int64_t batch, int32_t tokens, int32_t row, int32_t key)
{
    const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, t = lane % 4;
#pragma unroll
    for (int n = 0; n < BC / 8; n++)
#pragma unroll
        for (int side = 0; side < 2; side++) {
            const int32_t first = first_key<true>(keys, batch, tokens, key + 8 * n + 2 * t + side);
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int half = 0; half < 2; half++)
                    if (row + 16 * m + 8 * half + g < first)
                        score[m][n][2 * half + side] = LOW_SCORE;
        }
}

/* Scores become probabilities under the new maxima; `old` is what the rows' output so far is to be multiplied with.
 * scale2: to powers of 2. */
template <int DP, int MT, int BC>
__device__ __forceinline__ void soften(row_state<DP, MT> &s, float (&score)[MT][BC / 8][4], float (&old)[MT][2],
                                       float scale2)
{
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float max = s.max[m][half];
#pragma unroll
            for (int n = 0; n < BC / 8; n++)
                max = fmaxf(max, fmaxf(score[m][n][2 * half], score[m][n][2 * half + 1]));
            max = quad_max(max);
            const float offset = max * scale2;
            old[m][half] = fast_exp2((s.max[m][half] - max) * scale2);
            float sum = __fmul_rn(s.sum[m][half], old[m][half]); /* not a part of a multiply-add here and not there */
#pragma unroll
            for (int n = 0; n < BC / 8; n++)
#pragma unroll
                for (int e = 2 * half; e < 2 * half + 2; e++) {
                    score[m][n][e] = fast_exp2(fmaf(score[m][n][e], scale2, -offset));
                    sum += score[m][n][e];
                }
            s.max[m][half] = max;
            s.sum[m][half] = sum;
        }
}

template <int DP, int MT> __device__ __forceinline__ void rescale(row_state<DP, MT> &s, const float (&old)[MT][2])
{
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < DP / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                s.out[m][n][e] *= old[m][e / 2];
}

template <int DP, int MT> __device__ __forceinline__ void begin_rows(row_state<DP, MT> &s)
{
#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int n = 0; n < DP / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                s.out[m][n][e] = 0.0f;
        s.max[m][0] = s.max[m][1] = -INFINITY;
        s.sum[m][0] = s.sum[m][1] = 0.0f;
    }
}

/* Sums of all columns; 1 / sum into `factor`; log-sum-exp of rows that exist. */
template <int DP, int MT>
__device__ __forceinline__ void end_rows(row_state<DP, MT> &s, float (&factor)[MT][2], float *lse, int32_t row,
                                         int32_t rows, float scale)
{
    const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, t = lane % 4;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float sum = quad_sum(s.sum[m][half]);
            const int32_t r = row + 16 * m + 8 * half + g;
            factor[m][half] = 1.0f / sum;
            if (lse != NULL && t == 0 && r < rows)
                lse[r] = fmaf(s.max[m][half], scale, logf(sum));
        }
}

/* The head's sink becomes a part of the sums: the variant of end_rows with it. */
template <int DP, int MT>
__device__ __forceinline__ void end_rows_with(float sink, row_state<DP, MT> &s, float (&factor)[MT][2], float *lse,
                                              int32_t row, int32_t rows, float scale)
{
    const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, t = lane % 4;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float max = s.max[m][half] * scale, top = fmaxf(max, sink);
            const float old = fast_exp2((max - top) * LOG2_E);
            const float sum = fmaf(quad_sum(s.sum[m][half]), old, fast_exp2((sink - top) * LOG2_E));
            const int32_t r = row + 16 * m + 8 * half + g;
            factor[m][half] = old / sum;
            if (lse != NULL && t == 0 && r < rows)
                lse[r] = top + logf(sum);
        }
}

} // namespace

#endif
