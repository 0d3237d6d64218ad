/* attention_gradients.h - the arithmetic of attention's gradients in the registers of products' results, for the
 * kernels of warps and of warpgroups: where their products agree bit by bit, so do they.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CUDA_ATTENTION_ATTENTION_GRADIENTS_H
#define DSC_KERNELS_CUDA_ATTENTION_ATTENTION_GRADIENTS_H

#include "kernels/cuda/attention/attention.h"

/* Enqueues delta = sum over d of d_out * out for each row, into scratch. */
void dsc_cuda_attention_delta(const dsc_cuda_launch *at, const dsc_attention_bwd_args *a);

namespace {

struct bwd_arrays {
    uint16_t *dq, *dk, *dv;
    const uint16_t *d_out, *out;
    const float *lse;
    float *delta; /* [B,H,T] */
    const uint16_t *q, *k, *v;
    int64_t q_stride, k_stride, v_stride, out_stride, head_stride;
    int32_t tokens, heads, kv_heads, size, tiles;
    float scale;
    bool in_vectors, out_vectors, dq_vectors, dkv_vectors, starts;
    dsc_attention_keys keys;
    logit_rule rule; /* for the kernels of warps */
};

inline bwd_arrays arrays_of(const dsc_attention_bwd_args *a)
{
    bwd_arrays x = {};
    x.dq = static_cast<uint16_t *>(a->dq);
    x.dk = static_cast<uint16_t *>(a->dk);
    x.dv = static_cast<uint16_t *>(a->dv);
    x.d_out = static_cast<const uint16_t *>(a->d_out);
    x.out = static_cast<const uint16_t *>(a->out);
    x.lse = a->lse;
    x.delta = static_cast<float *>(a->scratch);
    x.q = static_cast<const uint16_t *>(a->q);
    x.k = static_cast<const uint16_t *>(a->k);
    x.v = static_cast<const uint16_t *>(a->v);
    x.q_stride = a->q_stride, x.k_stride = a->k_stride, x.v_stride = a->v_stride, x.out_stride = a->out_stride;
    x.head_stride = dsc_attention_head_stride(a->head_stride, a->head_size);
    x.tokens = a->tokens, x.heads = a->heads, x.kv_heads = a->kv_heads, x.size = a->head_size;
    x.scale = a->scale, x.keys = a->keys, x.rule = rule_of(a->logits, a->scale);
    x.starts = a->keys.positions != NULL || a->keys.window > 0;
    const bool heads_aligned = x.head_stride % 8 == 0;
    x.in_vectors = heads_aligned && rows_are_aligned(a->q, a->q_stride, a->head_size) &&
                   rows_are_aligned(a->k, a->k_stride, a->head_size) &&
                   rows_are_aligned(a->v, a->v_stride, a->head_size);
    x.out_vectors = rows_are_aligned(a->out, a->out_stride, a->head_size) &&
                    rows_are_aligned(a->d_out, a->out_stride, a->head_size);
    x.dq_vectors = heads_aligned && rows_are_aligned(a->dq, a->q_stride, a->head_size);
    x.dkv_vectors = heads_aligned && rows_are_aligned(a->dk, a->k_stride, a->head_size) &&
                    rows_are_aligned(a->dv, a->v_stride, a->head_size);
    return x;
}

/* ---- dk, dv: scores are transposed, rows are keys and columns queries ---- */

/* Three values of each query: its log-sum-exp (to powers of 2), delta and, with starts, the first key that it sees.
 * The log-sum-exp is Inf if there is no row, so that its probabilities are 0. */
struct query_numbers {
    float *lse2, *delta;
    int32_t *start;
};

/* Copies the values of query `row` of a head to index i. */
template <bool MORE = false>
__device__ __forceinline__ void load_number(const query_numbers &to, int i, const bwd_arrays &a, int64_t batch,
                                            int64_t head, int32_t row)
{
    const int64_t at = (batch * a.heads + head) * a.tokens + row;
    to.lse2[i] = row < a.tokens ? a.lse[at] * LOG2_E : INFINITY;
    to.delta[i] = row < a.tokens ? a.delta[at] : 0.0f;
    if (a.starts)
        to.start[i] = first_key<MORE>(a.keys, batch, a.tokens, row);
}

/* Whether a warp's key rows are hidden: element half h of m is key row 16 m + 8 h + lane / 4. */
template <int MT> struct hidden_rows { bool is[MT][2]; };

template <int MT>
__device__ __forceinline__ hidden_rows<MT> find_hidden(const bwd_arrays &a, int64_t batch, int32_t key)
{
    const int g = static_cast<int>(threadIdx.x % 32) / 4;
    hidden_rows<MT> hidden;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            hidden.is[m][half] = a.keys.all && is_hidden(a.keys, batch, a.tokens, key + 16 * m + 8 * half + g);
    return hidden;
}

/* The end of the tiles of BQ queries that see a key before `last`: first keys never decrease, so a search by halves. */
template <int BQ, bool MORE = false>
__device__ __forceinline__ int32_t end_of_queries(const bwd_arrays &a, int64_t batch, int32_t tile, int32_t last)
{
    return a.starts ? end_of_tiles<BQ, MORE>(a.keys, batch, a.tokens, tile, last) : (a.tokens + BQ - 1) / BQ;
}

/* With MASKED = false none of the scores is hidden: most tiles are such, and tests take half of the instructions. */
template <bool MASKED, int MT, int BQ>
__device__ __forceinline__ void key_probabilities_of(float (&score)[MT][BQ / 8][4], const query_numbers &numbers,
                                                     int from, const bwd_arrays &a, int32_t key, int32_t query,
                                                     float scale2, const hidden_rows<MT> &hidden)
{
    const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, t = lane % 4;
    const bool mask = !a.keys.all && key + 16 * MT - 1 > query;
#pragma unroll
    for (int n = 0; n < BQ / 8; n++) {
        const int col = 8 * n + 2 * t;
        const float l[2] = { numbers.lse2[from + col], numbers.lse2[from + col + 1] };
        const int32_t start[2] = { MASKED && a.starts ? numbers.start[from + col] : 0,
                                   MASKED && a.starts ? numbers.start[from + col + 1] : 0 };
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int32_t row = key + 16 * m + 8 * (e / 2) + g;
                score[m][n][e] = fast_exp2(fmaf(score[m][n][e], scale2, -l[e & 1]));
                if (MASKED && (hidden.is[m][e / 2] || (mask && row > query + col + (e & 1)) || row < start[e & 1]))
                    score[m][n][e] = 0.0f;
            }
    }
}

/* Scores become probabilities; keys from `key` on, queries from `query` on, whose numbers are those from `from` on. */
template <int MT, int BQ>
__device__ __forceinline__ void key_probabilities(float (&score)[MT][BQ / 8][4], const query_numbers &numbers, int from,
                                                  const bwd_arrays &a, int32_t key, int32_t query, float scale2,
                                                  const hidden_rows<MT> &hidden)
{
    const bool hides = a.keys.all ? a.keys.tokens != NULL || key + 16 * MT > a.tokens : key + 16 * MT - 1 > query;
    if (hides || a.starts)
        key_probabilities_of<true, MT, BQ>(score, numbers, from, a, key, query, scale2, hidden);
    else
        key_probabilities_of<false, MT, BQ>(score, numbers, from, a, key, query, scale2, hidden);
}

/* ds from dp to p (dp - delta). */
template <int MT, int BQ>
__device__ __forceinline__ void key_gradients(float (&ds)[MT][BQ / 8][4], const float (&p)[MT][BQ / 8][4],
                                              const query_numbers &numbers, int from)
{
    const int t = static_cast<int>(threadIdx.x % 4);
#pragma unroll
    for (int n = 0; n < BQ / 8; n++) {
        const int col = from + 8 * n + 2 * t;
        const float d[2] = { numbers.delta[col], numbers.delta[col + 1] };
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                ds[m][n][e] = p[m][n][e] * (ds[m][n][e] - d[e & 1]);
    }
}

/* ---- dq: rows are queries and columns keys ---- */

template <int MT> struct row_numbers {
    float lse2[MT][2], delta[MT][2];
    int32_t start[MT][2];
};

template <int MT, bool MORE = false>
__device__ __forceinline__ void load_numbers(row_numbers<MT> &to, const bwd_arrays &a, int64_t pair, int32_t row)
{
    const int g = static_cast<int>(threadIdx.x % 32) / 4;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int32_t r = row + 16 * m + 8 * half + g;
            to.lse2[m][half] = r < a.tokens ? a.lse[pair * a.tokens + r] * LOG2_E : INFINITY;
            to.delta[m][half] = r < a.tokens ? a.delta[pair * a.tokens + r] : 0.0f;
            to.start[m][half] = a.starts ? first_key<MORE>(a.keys, pair / a.heads, a.tokens, r) : 0;
        }
}

/* MASKED as in key_probabilities_of. */
template <bool MASKED, int MT, int BC>
__device__ __forceinline__ void row_probabilities_of(float (&score)[MT][BC / 8][4], const row_numbers<MT> &numbers,
                                                     const bwd_arrays &a, int64_t batch, int32_t row, int32_t key,
                                                     float scale2)
{
    const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, t = lane % 4;
    const bool mask = !a.keys.all && key + BC - 1 > row;
    bool hidden[BC / 8][2];
#pragma unroll
    for (int n = 0; n < BC / 8; n++)
#pragma unroll
        for (int side = 0; side < 2; side++)
            hidden[n][side] = MASKED && a.keys.all && is_hidden(a.keys, batch, a.tokens, key + 8 * n + 2 * t + side);
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < BC / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int32_t col = key + 8 * n + 2 * t + (e & 1);
                score[m][n][e] = fast_exp2(fmaf(score[m][n][e], scale2, -numbers.lse2[m][e / 2]));
                if (MASKED && (hidden[n][e & 1] || (mask && col > row + 16 * m + 8 * (e / 2) + g) ||
                               col < numbers.start[m][e / 2]))
                    score[m][n][e] = 0.0f;
            }
}

/* Scores become probabilities; queries from `row` on, keys from `key` on. */
template <int MT, int BC>
__device__ __forceinline__ void row_probabilities(float (&score)[MT][BC / 8][4], const row_numbers<MT> &numbers,
                                                  const bwd_arrays &a, int64_t batch, int32_t row, int32_t key,
                                                  float scale2)
{
    const bool hides = a.keys.all ? a.keys.tokens != NULL || key + BC > a.tokens : key + BC - 1 > row;
    if (hides || a.starts)
        row_probabilities_of<true, MT, BC>(score, numbers, a, batch, row, key, scale2);
    else
        row_probabilities_of<false, MT, BC>(score, numbers, a, batch, row, key, scale2);
}

/* ds from dp to p (dp - delta). */
template <int MT, int BC>
__device__ __forceinline__ void row_gradients(float (&ds)[MT][BC / 8][4], const float (&p)[MT][BC / 8][4],
                                              const row_numbers<MT> &numbers)
{
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < BC / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                ds[m][n][e] = p[m][n][e] * (ds[m][n][e] - numbers.delta[m][e / 2]);
}

} // namespace

#endif
