/* attention_bwd.cu - gradients of attention on tensor cores, without atomics: each output element belongs to one
 * warp, which adds in an order that follows from the shape.
 *
 * Three kernels: delta = sum over d of d_out * out for each row; dk and dv, where a block keeps key rows and goes
 * through the query rows that see them, in transposed scores, so that what a warp has of them is the left operand of
 * the next product; dq, where a block keeps query rows and goes through keys. Scores are computed twice: seven products
 * instead of five, in exchange for no order between blocks. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/attention.h"
#include "kernels/cuda/launchers.h"

namespace {

struct bwd_arrays {
    uint16_t *dq, *dk, *dv;
    const uint16_t *d_out, *out;
    const float *lse;
    float *delta; /* [B,H,T] */
    const uint16_t *q, *k, *v;
    int64_t q_stride, kv_stride, out_stride, head_stride;
    int32_t tokens, heads, kv_heads, size, tiles;
    float scale;
    bool in_vectors, out_vectors, dq_vectors, dkv_vectors, starts;
    dsc_attention_keys keys;
};

__device__ __forceinline__ head_rows query_rows(const bwd_arrays &a, int64_t batch, int64_t head)
{
    return { a.q + batch * a.tokens * a.q_stride + head * a.head_stride, a.q_stride, a.tokens, a.size, a.in_vectors };
}

__device__ __forceinline__ head_rows d_out_rows(const bwd_arrays &a, int64_t batch, int64_t head)
{
    return { a.d_out + batch * a.tokens * a.out_stride + head * a.size, a.out_stride, a.tokens, a.size, a.out_vectors };
}

__device__ __forceinline__ head_rows key_rows(const bwd_arrays &a, const uint16_t *x, int64_t batch, int64_t key_head)
{
    return { x + batch * a.tokens * a.kv_stride + key_head * a.head_stride, a.kv_stride, a.tokens, a.size,
             a.in_vectors };
}

/* ---- delta: eight lanes a row, eight elements each at a time ---- */

enum { DELTA_THREADS = 256, DELTA_LANES = 8, DELTA_ROWS = DELTA_THREADS / DELTA_LANES };

__global__ void __launch_bounds__(DELTA_THREADS) delta_kernel(const bwd_arrays a, int64_t rows)
{
    /* Heads of a token lie side by side: i counts (b, t, h). */
    const int64_t i = static_cast<int64_t>(blockIdx.x) * DELTA_ROWS + threadIdx.x / DELTA_LANES;
    const int lane = static_cast<int>(threadIdx.x % DELTA_LANES);
    const int64_t head = i % a.heads, token = i / a.heads % a.tokens, batch = i / a.heads / a.tokens;
    const int64_t at = (batch * a.tokens + token) * a.out_stride + head * a.size;
    float sum = 0;
    for (int32_t c = 8 * lane; i < rows && c < a.size; c += 8 * DELTA_LANES) {
        float d[8] = {}, o[8] = {};
        if (a.out_vectors) {
            load<8>(d, a.d_out + at + c);
            load<8>(o, a.out + at + c);
        } else {
            for (int j = 0; j < 8 && c + j < a.size; j++) {
                d[j] = to_f32(a.d_out[at + c + j]);
                o[j] = to_f32(a.out[at + c + j]);
            }
        }
#pragma unroll
        for (int j = 0; j < 8; j++)
            sum = fmaf(d[j], o[j], sum);
    }
#pragma unroll
    for (int width = DELTA_LANES / 2; width >= 1; width /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, width);
    if (lane == 0 && i < rows)
        a.delta[(batch * a.heads + head) * a.tokens + token] = sum;
}

/* ---- dk, dv ---- */

template <int DP, int MT, int WARPS, int BQ> constexpr int dkv_shared_bytes()
{
    return 2 * (2 * tile_elements(16 * MT * WARPS, DP) + 4 * tile_elements(BQ, DP)) + 6 * 4 * BQ;
}

/* Two stages of query rows: q, d_out, and for each row its log-sum-exp (to powers of 2; Inf where there is no row, so
 * that its probabilities are 0), delta and, with starts, the first key that it sees. */
template <int DP, int BQ> struct query_stage {
    uint16_t *q, *d_out;
    float *lse2, *delta;
    int32_t *start;
};

template <int DP, int BQ, int THREADS>
__device__ __forceinline__ void load_queries(const query_stage<DP, BQ> &to, int stage, const bwd_arrays &a,
                                             int64_t batch, int64_t head, int32_t row)
{
    load_rows<DP, BQ, THREADS>(to.q + stage * tile_elements(BQ, DP), query_rows(a, batch, head), row);
    load_rows<DP, BQ, THREADS>(to.d_out + stage * tile_elements(BQ, DP), d_out_rows(a, batch, head), row);
    const int64_t at = (batch * a.heads + head) * a.tokens;
    for (int i = static_cast<int>(threadIdx.x); i < BQ; i += THREADS) {
        const bool exists = row + i < a.tokens;
        to.lse2[stage * BQ + i] = exists ? a.lse[at + row + i] * LOG2_E : INFINITY;
        to.delta[stage * BQ + i] = exists ? a.delta[at + row + i] : 0.0f;
        if (a.starts)
            to.start[stage * BQ + i] = first_key(a.keys, batch, a.tokens, row + i);
    }
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
template <int BQ>
__device__ __forceinline__ int32_t end_of_queries(const bwd_arrays &a, int64_t batch, int32_t tile, int32_t last)
{
    int32_t end = (a.tokens + BQ - 1) / BQ;
    while (a.starts && tile < end) {
        const int32_t middle = (tile + end) / 2;
        if (first_key(a.keys, batch, a.tokens, middle * BQ) < last)
            tile = middle + 1;
        else
            end = middle;
    }
    return end;
}

/* Transposed: rows are keys from `key` on, columns queries from `query` on. `score` becomes p, `ds` from dp to p (dp -
 * delta). */
template <int MT, int BQ>
__device__ __forceinline__ void score_gradients(float (&score)[MT][BQ / 8][4], float (&ds)[MT][BQ / 8][4],
                                                const float *lse2, const float *delta, int32_t key, int32_t query,
                                                float scale2, const int32_t *starts, bool all,
                                                const hidden_rows<MT> &hidden)
{
    const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, t = lane % 4;
    const bool mask = !all && key + 16 * MT - 1 > query;
#pragma unroll
    for (int n = 0; n < BQ / 8; n++) {
        const int col = 8 * n + 2 * t;
        const float l[2] = { lse2[col], lse2[col + 1] }, d[2] = { delta[col], delta[col + 1] };
        const int32_t start[2] = { starts != NULL ? starts[col] : 0, starts != NULL ? starts[col + 1] : 0 };
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float p = fast_exp2(fmaf(score[m][n][e], scale2, -l[e & 1]));
                const int32_t row = key + 16 * m + 8 * (e / 2) + g;
                if (hidden.is[m][e / 2] || (mask && row > query + col + (e & 1)) || row < start[e & 1])
                    p = 0.0f;
                score[m][n][e] = p;
                ds[m][n][e] = p * (ds[m][n][e] - d[e & 1]);
            }
    }
}

template <int DP, int MT, int WARPS, int BQ>
__global__ void __launch_bounds__(32 * WARPS) dkv_kernel(const bwd_arrays a)
{
    constexpr int BK = 16 * MT * WARPS, THREADS = 32 * WARPS;
    DSC_CUDA_SHARED(uint16_t, shared);
    uint16_t *const k_tile = shared, *const v_tile = k_tile + tile_elements(BK, DP);
    uint16_t *const q_tile = v_tile + tile_elements(BK, DP);
    float *const numbers = reinterpret_cast<float *>(q_tile + 4 * tile_elements(BQ, DP));
    const query_stage<DP, BQ> stages = { q_tile, q_tile + 2 * tile_elements(BQ, DP), numbers, numbers + 2 * BQ,
                                         reinterpret_cast<int32_t *>(numbers + 4 * BQ) };
    const int64_t pair = blockIdx.x / a.tiles, batch = pair / a.kv_heads, key_head = pair % a.kv_heads;
    const int32_t first = static_cast<int32_t>(blockIdx.x % a.tiles) * BK; /* the first tiles have most queries */
    const int32_t warp_row = static_cast<int32_t>(threadIdx.x / 32) * 16 * MT, key = first + warp_row;
    /* Steps: the query tiles from the first that sees a key of ours to the last, for each head of the group. */
    const int32_t group = a.heads / a.kv_heads, tile_first = a.keys.all ? 0 : first / BQ;
    const int32_t tiles = end_of_queries<BQ>(a, batch, tile_first, first + BK) - tile_first, steps = tiles * group;
    const int64_t head_first = key_head * group;
    const float scale2 = a.scale * LOG2_E;
    const hidden_rows<MT> hidden = find_hidden<MT>(a, batch, key);
    float dk[MT][DP / 8][4] = {}, dv[MT][DP / 8][4] = {};
    load_rows<DP, BK, THREADS>(k_tile, key_rows(a, a.k, batch, key_head), first);
    load_rows<DP, BK, THREADS>(v_tile, key_rows(a, a.v, batch, key_head), first);
    load_queries<DP, BQ, THREADS>(stages, 0, a, batch, head_first, tile_first * BQ);
    cp_async_commit();
    for (int32_t j = 0; j < steps; j++) {
        const int now = j % 2;
        if (j + 1 < steps)
            load_queries<DP, BQ, THREADS>(stages, 1 - now, a, batch, head_first + (j + 1) / tiles,
                                          (tile_first + (j + 1) % tiles) * BQ);
        cp_async_commit();
        cp_async_wait<1>();
        __syncthreads();
        const int32_t query = (tile_first + j % tiles) * BQ;
        if (key < a.tokens && (a.keys.all || key < query + BQ)) {
            const uint16_t *const q = stages.q + now * tile_elements(BQ, DP);
            const uint16_t *const d_out = stages.d_out + now * tile_elements(BQ, DP);
            float score[MT][BQ / 8][4], ds[MT][BQ / 8][4];
            multiply_rows<DP, MT, BQ / 8>(score, k_tile, warp_row, q);
            multiply_rows<DP, MT, BQ / 8>(ds, v_tile, warp_row, d_out);
            score_gradients<MT, BQ>(score, ds, stages.lse2 + now * BQ, stages.delta + now * BQ, key, query, scale2,
                                    a.starts ? stages.start + now * BQ : NULL, a.keys.all, hidden);
            multiply_columns<DP, MT, BQ / 8>(dv, score, d_out);
            multiply_columns<DP, MT, BQ / 8>(dk, ds, q);
        }
        __syncthreads();
    }
    cp_async_wait<0>();
    if (key >= a.tokens)
        return;
    float one[MT][2], scale[MT][2];
#pragma unroll
    for (int m = 0; m < MT; m++) {
        one[m][0] = one[m][1] = 1.0f;
        scale[m][0] = scale[m][1] = a.scale;
    }
    const int64_t at = batch * a.tokens * a.kv_stride + key_head * a.head_stride;
    store_warp_rows<DP, MT>(k_tile, warp_row, dk, scale, a.dk + at, a.kv_stride, key, a.tokens, a.size, a.dkv_vectors);
    store_warp_rows<DP, MT>(v_tile, warp_row, dv, one, a.dv + at, a.kv_stride, key, a.tokens, a.size, a.dkv_vectors);
}

/* ---- dq ---- */

template <int DP, int MT, int WARPS, int BC> constexpr int dq_shared_bytes()
{
    return 2 * (2 * tile_elements(16 * MT * WARPS, DP) + 4 * tile_elements(BC, DP));
}

template <int MT> struct row_numbers {
    float lse2[MT][2], delta[MT][2];
    int32_t start[MT][2];
};

template <int MT>
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
            to.start[m][half] = a.starts ? first_key(a.keys, pair / a.heads, a.tokens, r) : 0;
        }
}

/* ds from dp to p (dp - delta); rows are queries from `row` on, columns keys from `key` on. */
template <int MT, int BC>
__device__ __forceinline__ void row_gradients(const float (&score)[MT][BC / 8][4], float (&ds)[MT][BC / 8][4],
                                              const row_numbers<MT> &numbers, const bwd_arrays &a, int64_t batch,
                                              int32_t row, int32_t key, float scale2)
{
    const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, t = lane % 4;
    const bool mask = !a.keys.all && key + BC - 1 > row;
    bool hidden[BC / 8][2];
#pragma unroll
    for (int n = 0; n < BC / 8; n++)
#pragma unroll
        for (int side = 0; side < 2; side++)
            hidden[n][side] = a.keys.all && is_hidden(a.keys, batch, a.tokens, key + 8 * n + 2 * t + side);
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < BC / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float p = fast_exp2(fmaf(score[m][n][e], scale2, -numbers.lse2[m][e / 2]));
                const int32_t col = key + 8 * n + 2 * t + (e & 1);
                if (hidden[n][e & 1] || (mask && col > row + 16 * m + 8 * (e / 2) + g) ||
                    col < numbers.start[m][e / 2])
                    p = 0.0f;
                ds[m][n][e] = p * (ds[m][n][e] - numbers.delta[m][e / 2]);
            }
}

template <int DP, int MT, int WARPS, int BC>
__global__ void __launch_bounds__(32 * WARPS) dq_kernel(const bwd_arrays a)
{
    constexpr int BR = 16 * MT * WARPS, THREADS = 32 * WARPS;
    DSC_CUDA_SHARED(uint16_t, shared);
    uint16_t *const q_tile = shared, *const d_tile = q_tile + tile_elements(BR, DP);
    uint16_t *const k_tile = d_tile + tile_elements(BR, DP), *const v_tile = k_tile + 2 * tile_elements(BC, DP);
    const int64_t pair = blockIdx.x / a.tiles, batch = pair / a.heads, head = pair % a.heads;
    const int64_t key_head = head / (a.heads / a.kv_heads);
    const int32_t first = (a.tiles - 1 - static_cast<int32_t>(blockIdx.x % a.tiles)) * BR;
    const int32_t warp_row = static_cast<int32_t>(threadIdx.x / 32) * 16 * MT, row = first + warp_row;
    const head_rows k = key_rows(a, a.k, batch, key_head), v = key_rows(a, a.v, batch, key_head);
    const int32_t end = a.keys.all ? a.tokens : min(first + BR, a.tokens), tiles = (end + BC - 1) / BC;
    const int32_t begin = a.starts ? first_key(a.keys, batch, a.tokens, first) / BC : 0;
    const float scale2 = a.scale * LOG2_E;
    row_numbers<MT> numbers;
    load_numbers<MT>(numbers, a, pair, row);
    float dq[MT][DP / 8][4] = {};
    load_rows<DP, BR, THREADS>(q_tile, query_rows(a, batch, head), first);
    load_rows<DP, BR, THREADS>(d_tile, d_out_rows(a, batch, head), first);
    load_rows<DP, BC, THREADS>(k_tile + begin % 2 * tile_elements(BC, DP), k, begin * BC);
    load_rows<DP, BC, THREADS>(v_tile + begin % 2 * tile_elements(BC, DP), v, begin * BC);
    cp_async_commit();
    for (int32_t j = begin; j < tiles; j++) {
        const int now = j % 2 * tile_elements(BC, DP), next = (j + 1) % 2 * tile_elements(BC, DP);
        if (j + 1 < tiles) {
            load_rows<DP, BC, THREADS>(k_tile + next, k, (j + 1) * BC);
            load_rows<DP, BC, THREADS>(v_tile + next, v, (j + 1) * BC);
        }
        cp_async_commit();
        cp_async_wait<1>();
        __syncthreads();
        if (row < a.tokens && (a.keys.all || j * BC < row + 16 * MT)) {
            float score[MT][BC / 8][4], ds[MT][BC / 8][4];
            multiply_rows<DP, MT, BC / 8>(score, q_tile, warp_row, k_tile + now);
            multiply_rows<DP, MT, BC / 8>(ds, d_tile, warp_row, v_tile + now);
            row_gradients<MT, BC>(score, ds, numbers, a, batch, row, j * BC, scale2);
            multiply_columns<DP, MT, BC / 8>(dq, ds, k_tile + now);
        }
        __syncthreads();
    }
    cp_async_wait<0>();
    if (row >= a.tokens)
        return;
    float scale[MT][2];
#pragma unroll
    for (int m = 0; m < MT; m++)
        scale[m][0] = scale[m][1] = a.scale;
    store_warp_rows<DP, MT>(q_tile, warp_row, dq, scale, a.dq + batch * a.tokens * a.q_stride + head * a.head_stride,
                            a.q_stride, row, a.tokens, a.size, a.dq_vectors);
}

/* ---- launches ---- */

bwd_arrays arrays_of(const dsc_attention_bwd_args *a)
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
    x.q_stride = a->q_stride, x.kv_stride = a->kv_stride, x.out_stride = a->out_stride;
    x.head_stride = dsc_attention_head_stride(a->head_stride, a->head_size);
    x.tokens = a->tokens, x.heads = a->heads, x.kv_heads = a->kv_heads, x.size = a->head_size;
    x.scale = a->scale, x.keys = a->keys;
    x.starts = a->keys.positions != NULL || a->keys.window > 0;
    const bool heads_aligned = x.head_stride % 8 == 0;
    x.in_vectors = heads_aligned && rows_are_aligned(a->q, a->q_stride, a->head_size) &&
                   rows_are_aligned(a->k, a->kv_stride, a->head_size) &&
                   rows_are_aligned(a->v, a->kv_stride, a->head_size);
    x.out_vectors = rows_are_aligned(a->out, a->out_stride, a->head_size) &&
                    rows_are_aligned(a->d_out, a->out_stride, a->head_size);
    x.dq_vectors = heads_aligned && rows_are_aligned(a->dq, a->q_stride, a->head_size);
    x.dkv_vectors = heads_aligned && rows_are_aligned(a->dk, a->kv_stride, a->head_size) &&
                    rows_are_aligned(a->dv, a->kv_stride, a->head_size);
    return x;
}

template <int DP, int KEY_MT, int KEY_WARPS, int BQ, int QUERY_MT, int BC>
dsc_status launch(const dsc_cuda_launch *at, const dsc_attention_bwd_args *a, dsc_error *err)
{
    constexpr int QUERY_WARPS = 4, DKV_BYTES = dkv_shared_bytes<DP, KEY_MT, KEY_WARPS, BQ>();
    constexpr int DQ_BYTES = dq_shared_bytes<DP, QUERY_MT, QUERY_WARPS, BC>();
    const int64_t batch = a->batch, rows = batch * a->tokens * a->heads;
    bwd_arrays x = arrays_of(a);
    DSC_TRY(allow_shared(dkv_kernel<DP, KEY_MT, KEY_WARPS, BQ>, DKV_BYTES, err));
    DSC_TRY(allow_shared(dq_kernel<DP, QUERY_MT, QUERY_WARPS, BC>, DQ_BYTES, err));
    DSC_CUDA_LAUNCH(delta_kernel, grid_size(dsc_div_ceil(rows, DELTA_ROWS)), DELTA_THREADS, 0, at->stream, x, rows);
    x.tiles = static_cast<int32_t>(dsc_div_ceil(a->tokens, 16 * KEY_MT * KEY_WARPS));
    DSC_CUDA_LAUNCH((dkv_kernel<DP, KEY_MT, KEY_WARPS, BQ>), grid_size(batch * a->kv_heads * x.tiles), 32 * KEY_WARPS,
                    DKV_BYTES, at->stream, x);
    x.tiles = static_cast<int32_t>(dsc_div_ceil(a->tokens, 16 * QUERY_MT * QUERY_WARPS));
    DSC_CUDA_LAUNCH((dq_kernel<DP, QUERY_MT, QUERY_WARPS, BC>), grid_size(batch * a->heads * x.tiles),
                    32 * QUERY_WARPS, DQ_BYTES, at->stream, x);
    return DSC_OK;
}

} // namespace

dsc_status dsc_cuda_run_ATTENTION_BWD(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_attention_bwd_args *a = static_cast<const dsc_attention_bwd_args *>(args);
    DSC_TRY(dtype_check("ATTENTION_BWD", a->dtype, err));
    DSC_ASSERT(a->kv_heads >= 1 && a->heads % a->kv_heads == 0);
    DSC_ASSERT(a->batch >= 1 && a->tokens >= 1 && a->heads >= 1 && a->head_size >= 1);
    DSC_ASSERT(a->scale > 0);
    DSC_ASSERT(a->scratch != NULL);
    DSC_ASSERT(a->keys.past == 0);
    if (a->dtype != DSC_BF16 || a->head_size > DSC_CUDA_ATTENTION_TENSOR_HEAD_MAX)
        return dsc_cuda_attention_bwd_plain(at, a, err);
    if (a->head_size <= 16)
        return launch<16, 1, 4, 32, 1, 32>(at, a, err);
    if (a->head_size <= 32)
        return launch<32, 2, 4, 32, 2, 32>(at, a, err);
    if (a->head_size <= 64)
        return launch<64, 2, 4, 32, 2, 32>(at, a, err);
    if (a->head_size <= 96)
        return launch<96, 1, 8, 32, 1, 64>(at, a, err);
    return launch<128, 1, 8, 32, 1, 64>(at, a, err);
}
