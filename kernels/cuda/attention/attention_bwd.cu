/* attention_bwd.cu - gradients of attention on tensor cores, without atomics: each output element belongs to one warp,
 * which adds in an order that follows from the shape.
 *
 * There are three kernels. The first computes delta = sum over d of d_out * out for each row. The second computes dk
 * and dv: a block keeps key rows and goes through the query rows that see them. It works on transposed scores, so a
 * warp's scores are the left operand of the next product. The third computes dq: a block keeps query rows and goes
 * through keys. Scores are computed twice: seven products instead of five, in exchange for no order between blocks.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/attention/attention_gradients.h"
#include "kernels/cuda/attention/attention_plan.h"
#include "kernels/cuda/attention/attention_sm90.h"
#include "kernels/cuda/launchers.h"

namespace {

__device__ __forceinline__ head_rows query_rows(const bwd_arrays &a, int64_t batch, int64_t head)
{
    return { a.q + batch * a.tokens * a.q_stride + head * a.head_stride, a.q_stride, a.tokens, a.size, a.in_vectors };
}

__device__ __forceinline__ head_rows d_out_rows(const bwd_arrays &a, int64_t batch, int64_t head)
{
    return { a.d_out + batch * a.tokens * a.out_stride + head * a.size, a.out_stride, a.tokens, a.size, a.out_vectors };
}

__device__ __forceinline__ head_rows key_rows(const bwd_arrays &a, int64_t batch, int64_t key_head)
{
    return { a.k + batch * a.tokens * a.k_stride + key_head * a.head_stride, a.k_stride, a.tokens, a.size,
             a.in_vectors };
}

__device__ __forceinline__ head_rows value_rows(const bwd_arrays &a, int64_t batch, int64_t key_head)
{
    return { a.v + batch * a.tokens * a.v_stride + key_head * a.head_stride, a.v_stride, a.tokens, a.size,
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

/* ---- logits, and both sides: see attention.h. dp becomes the gradient of the scaled score over the probability ----
 */

template <int MT, int BQ>
__device__ __forceinline__ void key_logits(float (&score)[MT][BQ / 8][4], float (&dp)[MT][BQ / 8][4],
                                           const query_numbers &numbers, int from, const logit_rule &rule)
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
                dp[m][n][e] -= d[e & 1];
    }
    cap_scores(score, rule);
    cap_gradients(dp, score, rule);
}

template <int MT, int BC>
__device__ __forceinline__ void row_logits(float (&score)[MT][BC / 8][4], float (&dp)[MT][BC / 8][4],
                                           const row_numbers<MT> &numbers, const logit_rule &rule)
{
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < BC / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                dp[m][n][e] -= numbers.delta[m][e / 2];
    cap_scores(score, rule);
    cap_gradients(dp, score, rule);
}

template <int MT, int NT> __device__ __forceinline__ void times(float (&ds)[MT][NT][4], const float (&p)[MT][NT][4])
{
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                ds[m][n][e] *= p[m][n][e];
}

/* Probabilities of queries before the first token that sees a key. */
template <int MT, int BQ>
__device__ __forceinline__ void drop_before(float (&p)[MT][BQ / 8][4], const bwd_arrays &a, int64_t batch, int32_t key,
                                            int32_t query)
{
    const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, t = lane % 4;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int32_t first = first_key<true>(a.keys, batch, a.tokens, key + 16 * m + 8 * half + g);
#pragma unroll
            for (int n = 0; n < BQ / 8; n++)
#pragma unroll
                for (int side = 0; side < 2; side++)
                    if (query + 8 * n + 2 * t + side < first)
                        p[m][n][2 * half + side] = 0.0f;
        }
}

/* Probabilities of keys whose first token is behind a query. */
template <int MT, int BC>
__device__ __forceinline__ void drop_behind(float (&p)[MT][BC / 8][4], const bwd_arrays &a, int64_t batch, int32_t row,
                                            int32_t key)
{
    const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, t = lane % 4;
#pragma unroll
    for (int n = 0; n < BC / 8; n++)
#pragma unroll
        for (int side = 0; side < 2; side++) {
            const int32_t first = first_key<true>(a.keys, batch, a.tokens, key + 8 * n + 2 * t + side);
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int half = 0; half < 2; half++)
                    if (row + 16 * m + 8 * half + g < first)
                        p[m][n][2 * half + side] = 0.0f;
        }
}

/* ---- dk, dv ---- */

template <int DP, int MT, int WARPS, int BQ> constexpr int dkv_shared_bytes()
{
    return 2 * (2 * tile_elements(16 * MT * WARPS, DP) + 4 * tile_elements(BQ, DP)) + 6 * 4 * BQ;
}

/* Two stages of query rows: q, d_out and their numbers. */
template <int DP, int BQ> struct query_stage {
    uint16_t *q, *d_out;
    query_numbers numbers;
};

template <int DP, int BQ, int THREADS, bool MORE>
__device__ __forceinline__ void load_queries(const query_stage<DP, BQ> &to, int stage, const bwd_arrays &a,
                                             int64_t batch, int64_t head, int32_t row)
{
    load_rows<DP, BQ, THREADS>(to.q + stage * tile_elements(BQ, DP), query_rows(a, batch, head), row);
    load_rows<DP, BQ, THREADS>(to.d_out + stage * tile_elements(BQ, DP), d_out_rows(a, batch, head), row);
    for (int i = static_cast<int>(threadIdx.x); i < BQ; i += THREADS)
        load_number<MORE>(to.numbers, stage * BQ + i, a, batch, head, row + i);
}

/* MORE: with what dsc_attention_is_plain says no to. The others do without its registers. */
template <int DP, int MT, int WARPS, int BQ, bool MORE>
__global__ void __launch_bounds__(32 * WARPS) dkv_kernel(const bwd_arrays a)
{
    constexpr int BK = 16 * MT * WARPS, THREADS = 32 * WARPS;
    DSC_CUDA_SHARED(uint16_t, shared);
    uint16_t *const k_tile = shared, *const v_tile = k_tile + tile_elements(BK, DP);
    uint16_t *const q_tile = v_tile + tile_elements(BK, DP);
    float *const numbers = reinterpret_cast<float *>(q_tile + 4 * tile_elements(BQ, DP));
    const query_stage<DP, BQ> stages = {
        q_tile, q_tile + 2 * tile_elements(BQ, DP),
        { numbers, numbers + 2 * BQ, reinterpret_cast<int32_t *>(numbers + 4 * BQ) }
    };
    const int64_t pair = blockIdx.x / a.tiles, batch = pair / a.kv_heads, key_head = pair % a.kv_heads;
    const int32_t first = static_cast<int32_t>(blockIdx.x % a.tiles) * BK; /* the first tiles have most queries */
    const int32_t warp_row = static_cast<int32_t>(threadIdx.x / 32) * 16 * MT, key = first + warp_row;
    /* Steps: the query tiles from the first that sees a key of ours to the last, for each head of the group. */
    const bool both = MORE && a.keys.all && a.starts;
    const int32_t group = a.heads / a.kv_heads;
    const int32_t tile_first = (both ? first_key<MORE>(a.keys, batch, a.tokens, first) : a.keys.all ? 0 : first) / BQ;
    const int32_t tiles = end_of_queries<BQ, MORE>(a, batch, tile_first, first + BK) - tile_first;
    const int32_t steps = tiles * group;
    const int64_t head_first = key_head * group;
    const float scale2 = (MORE && a.rule.any ? 1.0f : a.scale) * LOG2_E;
    const hidden_rows<MT> hidden = find_hidden<MT>(a, batch, key);
    float dk[MT][DP / 8][4] = {}, dv[MT][DP / 8][4] = {};
    load_rows<DP, BK, THREADS>(k_tile, key_rows(a, batch, key_head), first);
    load_rows<DP, BK, THREADS>(v_tile, value_rows(a, batch, key_head), first);
    load_queries<DP, BQ, THREADS, MORE>(stages, 0, a, batch, head_first, tile_first * BQ);
    cp_async_commit();
    for (int32_t j = 0; j < steps; j++) {
        const int now = j % 2;
        if (j + 1 < steps)
            load_queries<DP, BQ, THREADS, MORE>(stages, 1 - now, a, batch, head_first + (j + 1) / tiles,
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
            if (MORE && a.rule.any) {
                key_logits<MT, BQ>(score, ds, stages.numbers, now * BQ, a.rule);
                slope_scores<true>(score, a.rule, slope_of(a.rule, a.heads, head_first + j / tiles), key, query);
            }
            key_probabilities<MT, BQ>(score, stages.numbers, now * BQ, a, key, query, scale2, hidden);
            if (both)
                drop_before<MT, BQ>(score, a, batch, key, query);
            if (MORE && a.rule.any)
                times(ds, score);
            else
                key_gradients<MT, BQ>(ds, score, stages.numbers, now * BQ);
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
    uint16_t *const dk_to = a.dk + batch * a.tokens * a.k_stride + key_head * a.head_stride;
    uint16_t *const dv_to = a.dv + batch * a.tokens * a.v_stride + key_head * a.head_stride;
    store_warp_rows<DP, MT>(k_tile, warp_row, dk, scale, dk_to, a.k_stride, key, a.tokens, a.size, a.dkv_vectors);
    store_warp_rows<DP, MT>(v_tile, warp_row, dv, one, dv_to, a.v_stride, key, a.tokens, a.size, a.dkv_vectors);
}

/* ---- dq ---- */

template <int DP, int MT, int WARPS, int BC> constexpr int dq_shared_bytes()
{
    return 2 * (2 * tile_elements(16 * MT * WARPS, DP) + 4 * tile_elements(BC, DP));
}

template <int DP, int MT, int WARPS, int BC, bool MORE>
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
    const head_rows k = key_rows(a, batch, key_head), v = value_rows(a, batch, key_head);
    const bool both = MORE && a.keys.all && a.starts;
    const int32_t end = a.keys.all ? a.tokens : min(first + BR, a.tokens);
    const int32_t begin = a.starts ? first_key<MORE>(a.keys, batch, a.tokens, first) / BC : 0;
    const int32_t tiles = both ? end_of_tiles<BC, MORE>(a.keys, batch, a.tokens, begin, first + BR)
                               : (end + BC - 1) / BC;
    const float scale2 = (MORE && a.rule.any ? 1.0f : a.scale) * LOG2_E;
    const float slope = MORE ? slope_of(a.rule, a.heads, head) : 0.0f;
    row_numbers<MT> numbers;
    load_numbers<MT, MORE>(numbers, a, pair, row);
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
            if (MORE && a.rule.any) {
                row_logits<MT, BC>(score, ds, numbers, a.rule);
                slope_scores<false>(score, a.rule, slope, row, j * BC);
            }
            row_probabilities<MT, BC>(score, numbers, a, batch, row, j * BC, scale2);
            if (both)
                drop_behind<MT, BC>(score, a, batch, row, j * BC);
            if (MORE && a.rule.any)
                times(ds, score);
            else
                row_gradients<MT, BC>(ds, score, numbers);
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

/* ---- sinks: a block adds up a head, each thread every SINK_THREADS-th row in order ---- */

enum { SINK_THREADS = 256 };

struct sink_arrays {
    float *d_sinks;
    const float *lse, *delta; /* [B,H,T] */
    int64_t rows;             /* samples times tokens */
    int32_t tokens, heads;
};

template <class T> __global__ void __launch_bounds__(SINK_THREADS) sinks_kernel(const sink_arrays a, const T *sinks)
{
    __shared__ float parts[SINK_THREADS / 32];
    const int64_t head = blockIdx.x;
    const float sink = to_f32(sinks[head]);
    float sum = 0;
    for (int64_t i = threadIdx.x; i < a.rows; i += SINK_THREADS) {
        const int64_t at = (i / a.tokens * a.heads + head) * a.tokens + i % a.tokens;
        sum -= expf(sink - a.lse[at]) * a.delta[at];
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0)
        parts[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    for (int i = 1; i < SINK_THREADS / 32; i++)
        sum += parts[i];
    a.d_sinks[head] = sum;
}

/* ---- launches ---- */

enum { QUERY_WARPS = 4 };

template <int DP, int KEY_MT, int KEY_WARPS, int BQ, int QUERY_MT, int BC, bool MORE = false>
dsc_status launch(const dsc_cuda_launch *at, const dsc_attention_bwd_args *a, dsc_error *err)
{
    constexpr int DKV_BYTES = dkv_shared_bytes<DP, KEY_MT, KEY_WARPS, BQ>();
    constexpr int DQ_BYTES = dq_shared_bytes<DP, QUERY_MT, QUERY_WARPS, BC>();
    const int64_t batch = a->batch;
    bwd_arrays x = arrays_of(a);
    DSC_TRY(allow_shared(dkv_kernel<DP, KEY_MT, KEY_WARPS, BQ, MORE>, DKV_BYTES, err));
    DSC_TRY(allow_shared(dq_kernel<DP, QUERY_MT, QUERY_WARPS, BC, MORE>, DQ_BYTES, err));
    dsc_cuda_attention_delta(at, a);
    x.tiles = static_cast<int32_t>(dsc_div_ceil(a->tokens, 16 * KEY_MT * KEY_WARPS));
    DSC_CUDA_LAUNCH((dkv_kernel<DP, KEY_MT, KEY_WARPS, BQ, MORE>), grid_size(batch * a->kv_heads * x.tiles),
                    32 * KEY_WARPS, DKV_BYTES, at->stream, x);
    x.tiles = static_cast<int32_t>(dsc_div_ceil(a->tokens, 16 * QUERY_MT * QUERY_WARPS));
    DSC_CUDA_LAUNCH((dq_kernel<DP, QUERY_MT, QUERY_WARPS, BC, MORE>), grid_size(batch * a->heads * x.tiles),
                    32 * QUERY_WARPS, DQ_BYTES, at->stream, x);
    return DSC_OK;
}

/* The deltas are in scratch. */
void sink_gradients(const dsc_cuda_launch *at, const dsc_attention_bwd_args *a)
{
    const sink_arrays x = {
        a->d_sinks, a->lse,  static_cast<const float *>(a->scratch), static_cast<int64_t>(a->batch) * a->tokens,
        a->tokens,  a->heads
    };
    DSC_CUDA_FOR_DTYPE(a->dtype, T,
                       DSC_CUDA_LAUNCH(sinks_kernel<T>, static_cast<unsigned>(a->heads), SINK_THREADS, 0, at->stream, x,
                                       static_cast<const T *>(a->sinks)));
}

/* Cards like RTX 40 have 99 KiB for a block. Products add up in sixteens of terms, so smaller tiles of them have the
 * same bits. */
template <bool MORE> dsc_status launch_wide(const dsc_cuda_launch *at, const dsc_attention_bwd_args *a, dsc_error *err)
{
    return dkv_shared_bytes<128, 1, 8, 32>() <= at->shared_bytes &&
                   dq_shared_bytes<128, 1, QUERY_WARPS, 64>() <= at->shared_bytes
               ? launch<128, 1, 8, 32, 1, 64, MORE>(at, a, err)
               : launch<128, 1, 8, 16, 1, 32, MORE>(at, a, err);
}

dsc_status launch_more(const dsc_cuda_launch *at, const dsc_attention_bwd_args *a, dsc_error *err)
{
    if (a->head_size <= 16)
        return launch<16, 1, 4, 32, 1, 32, true>(at, a, err);
    if (a->head_size <= 32)
        return launch<32, 2, 4, 32, 2, 32, true>(at, a, err);
    if (a->head_size <= 64)
        return launch<64, 1, 8, 32, 1, 64, true>(at, a, err);
    if (a->head_size <= 96)
        return launch<96, 1, 8, 32, 1, 64, true>(at, a, err);
    return launch_wide<true>(at, a, err);
}

} // namespace

void dsc_cuda_attention_delta(const dsc_cuda_launch *at, const dsc_attention_bwd_args *a)
{
    const int64_t rows = static_cast<int64_t>(a->batch) * a->tokens * a->heads;
    DSC_CUDA_LAUNCH(delta_kernel, grid_size(dsc_div_ceil(rows, DELTA_ROWS)), DELTA_THREADS, 0, at->stream,
                    arrays_of(a), rows);
}

dsc_status dsc_cuda_attention_bwd_warps(const dsc_cuda_launch *at, const dsc_attention_bwd_args *a, dsc_error *err)
{
    if (!dsc_attention_is_plain(&a->keys, &a->logits, a->sinks))
        return launch_more(at, a, err);
    if (a->head_size <= 16)
        return launch<16, 1, 4, 32, 1, 32>(at, a, err);
    if (a->head_size <= 32)
        return launch<32, 2, 4, 32, 2, 32>(at, a, err);
    if (a->head_size <= 64)
        return launch<64, 2, 4, 32, 2, 32>(at, a, err);
    if (a->head_size <= 96)
        return launch<96, 1, 8, 32, 1, 64>(at, a, err);
    return launch_wide<false>(at, a, err);
}

static dsc_status own_gradients(const dsc_cuda_launch *at, const dsc_attention_bwd_args *a, dsc_error *err)
{
    if (a->dtype != DSC_BF16 || a->head_size > DSC_CUDA_ATTENTION_TENSOR_HEAD_MAX)
        return dsc_cuda_attention_bwd_plain(at, a, err);
    const dsc_attention_kind kind = dsc_cuda_attention_bwd_chosen(at->attention, a);
    if (kind == DSC_ATTENTION_WARPS)
        return dsc_cuda_attention_bwd_warps(at, a, err);
    return dsc_cuda_attention_bwd_sm90(at, a, dsc_cuda_attention_encode(at->attention), kind, err);
}

dsc_status dsc_cuda_run_ATTENTION_BWD(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_attention_bwd_args *a = static_cast<const dsc_attention_bwd_args *>(args);
    bool done = false;
    DSC_TRY(dtype_check("ATTENTION_BWD", a->dtype, err));
    DSC_ASSERT(a->kv_heads >= 1 && a->heads % a->kv_heads == 0);
    DSC_ASSERT(a->batch >= 1 && a->tokens >= 1 && a->heads >= 1 && a->head_size >= 1);
    DSC_ASSERT(a->scale > 0);
    DSC_ASSERT(a->scratch != NULL);
    DSC_ASSERT(a->keys.past == 0);
    DSC_TRY(dsc_cuda_attention_bwd_library(at, a, &done, err));
    if (done)
        return DSC_OK;
    DSC_TRY(own_gradients(at, a, err));
    if (a->sinks != NULL && a->d_sinks != NULL)
        sink_gradients(at, a);
    return DSC_OK;
}
