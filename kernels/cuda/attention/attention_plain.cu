/* attention_plain.cu - attention by shuffles and fp32 multiply-adds, for fp32, fp16 and heads wider than the
 * tensor core kernels have. A warp has one row: scores with its lanes along the other rows, sums with its lanes along
 * the head. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/attention/attention.h"

namespace {

enum { THREADS = 128, WARPS = THREADS / 32, COLUMNS = DSC_CUDA_ATTENTION_HEAD_MAX / 32 };

template <class T> struct plain_arrays {
    T *out, *dq, *dk, *dv;
    float *lse_out, *delta;
    const T *q, *k, *v, *d_out, *out_in;
    const float *lse;
    int64_t q_stride, k_stride, v_stride, out_stride, head_stride, rows;
    int32_t tokens, heads, kv_heads, size;
    float scale;
    const T *sinks;
    logit_rule rule;
    dsc_attention_keys keys;
};

/* Which row a warp has: heads of a token side by side. */
struct row_place { int64_t batch, token, head; };

__device__ __forceinline__ int64_t warp_row() { return static_cast<int64_t>(blockIdx.x) * WARPS + threadIdx.x / 32; }

__device__ __forceinline__ row_place place_of(int64_t i, int32_t tokens, int32_t heads)
{
    return { i / heads / tokens, i / heads % tokens, i % heads };
}

template <class T> __device__ __forceinline__ float dot(const T *x, const T *y, int32_t size)
{
    float sum = 0;
#pragma unroll 4
    for (int32_t d = 0; d < size; d++)
        sum = fmaf(to_f32(x[d]), to_f32(y[d]), sum);
    return sum;
}

/* The end of the keys that query `token` may see, and whether one of them is hidden. */
template <bool MORE, class T>
__device__ __forceinline__ int64_t keys_of(const plain_arrays<T> &a, int64_t batch, int64_t token)
{
    if (!a.keys.all)
        return a.keys.past + token + 1;
    const int32_t t = static_cast<int32_t>(token);
    return MORE ? end_of_tiles<1, true>(a.keys, batch, a.tokens, t, t + 1) : a.tokens;
}

/* The logit of a scaled score, and in *slope how fast it grows with that. */
__device__ __forceinline__ float logit_of(const logit_rule &rule, float score, float head_slope, int64_t distance,
                                          int64_t key, float *slope)
{
    float x = score;
    *slope = 1.0f;
    if (rule.softcap > 0) {
        const float power = fast_exp2(x * (2 * LOG2_E / rule.softcap));
        const float t = fmaf(-2.0f, fast_reciprocal(1.0f + power), 1.0f);
        *slope = 1.0f - t * t;
        x = rule.softcap * t;
    }
    if (rule.of_key > 0)
        return x + dsc_attention_key_addend(rule.of_key, head_slope, static_cast<int32_t>(key));
    return rule.alibi > 0 ? fmaf(-head_slope, fabsf(static_cast<float>(distance)), x) : x;
}

template <class T> __device__ __forceinline__ bool hides(const plain_arrays<T> &a, int64_t batch, int64_t key)
{
    return a.keys.all && is_hidden(a.keys, batch, a.tokens, static_cast<int32_t>(key));
}

template <bool MORE, class T>
__device__ __forceinline__ int64_t start_of(const plain_arrays<T> &a, int64_t batch, int64_t token)
{
    return first_key<MORE>(a.keys, batch, a.tokens, static_cast<int32_t>(token));
}

/* sum[n] += each lane's `factor` times the row that its lane stands for, rows `stride` apart from `row` on. */
template <class T>
__device__ __forceinline__ void add_rows(float (&sum)[COLUMNS], float factor, const T *row, int64_t stride,
                                         int32_t count, int32_t size)
{
    const int lane = static_cast<int>(threadIdx.x % 32);
    for (int32_t k = 0; k < count; k++) {
        const float f = __shfl_sync(0xffffffffu, factor, k);
#pragma unroll
        for (int n = 0; n < COLUMNS; n++)
            if (n * 32 + lane < size)
                sum[n] = fmaf(f, to_f32(row[k * stride + n * 32 + lane]), sum[n]);
    }
}

template <class T>
__device__ __forceinline__ void put_row(T *to, const float (&x)[COLUMNS], float factor, int32_t size)
{
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int n = 0; n < COLUMNS; n++)
        if (n * 32 + lane < size)
            to[n * 32 + lane] = element<T>::from(x[n] * factor);
}

/* MORE: with what dsc_attention_is_plain says no to. The others do without its registers. */
template <class T, bool MORE> __global__ void __launch_bounds__(THREADS) fwd_kernel(const plain_arrays<T> a)
{
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int64_t i = warp_row();
    if (i >= a.rows)
        return;
    const row_place at = place_of(i, a.tokens, a.heads);
    const int64_t sample = at.batch * a.tokens, key_head = at.head / (a.heads / a.kv_heads) * a.head_stride;
    const T *k = a.k + sample * a.k_stride + key_head, *v = a.v + sample * a.v_stride + key_head;
    const T *q = a.q + (at.batch * a.tokens + at.token) * a.q_stride + at.head * a.head_stride;
    const int64_t keys = keys_of<MORE>(a, at.batch, at.token);
    const float head_slope = MORE ? slope_of(a.rule, a.heads, at.head) : 0.0f;
    float out[COLUMNS] = {}, max = -INFINITY, sum = 0, slope;
    if (MORE && a.sinks != NULL)
        max = to_f32(a.sinks[at.head]), sum = 1;
    for (int64_t first = start_of<MORE>(a, at.batch, at.token); first < keys; first += 32) {
        const int64_t key = first + lane;
        float score = -INFINITY;
        if (key < keys)
            score = hides(a, at.batch, key) ? LOW_SCORE : dot(q, k + key * a.k_stride, a.size) * a.scale;
        if (MORE && key < keys && a.rule.any && !hides(a, at.batch, key))
            score = logit_of(a.rule, score, head_slope, a.keys.past + at.token - key, key, &slope);
        const float new_max = fmaxf(max, warp_max(score)), old = expf(max - new_max), p = expf(score - new_max);
        sum = sum * old + warp_sum(p);
        max = new_max;
#pragma unroll
        for (int n = 0; n < COLUMNS; n++)
            out[n] *= old;
        const int32_t count = static_cast<int32_t>(min(keys - first, static_cast<int64_t>(32)));
        add_rows(out, p, v + first * a.v_stride, a.v_stride, count, a.size);
    }
    put_row(a.out + (at.batch * a.tokens + at.token) * a.out_stride + at.head * a.size, out, 1.0f / sum, a.size);
    if (a.lse_out != NULL && lane == 0)
        a.lse_out[(at.batch * a.heads + at.head) * a.tokens + at.token] = max + logf(sum);
}

template <class T> __global__ void __launch_bounds__(THREADS) delta_kernel(const plain_arrays<T> a)
{
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int64_t i = warp_row();
    if (i >= a.rows)
        return;
    const row_place at = place_of(i, a.tokens, a.heads);
    const int64_t row = (at.batch * a.tokens + at.token) * a.out_stride + at.head * a.size;
    float sum = 0;
    for (int32_t d = lane; d < a.size; d += 32)
        sum = fmaf(to_f32(a.d_out[row + d]), to_f32(a.out_in[row + d]), sum);
    sum = warp_sum(sum);
    if (lane == 0)
        a.delta[(at.batch * a.heads + at.head) * a.tokens + at.token] = sum;
}

/* p and ds = p (dp - delta) * scale of one query and one key; of a cap its slope too. */
template <bool MORE, class T>
__device__ __forceinline__ float2 gradients(const plain_arrays<T> &a, const T *q, const T *d_out, int64_t number,
                                            const T *k, const T *v, float head_slope, int64_t distance, int64_t key)
{
    if (!MORE || !a.rule.any) {
        const float p = expf(dot(q, k, a.size) * a.scale - a.lse[number]);
        return make_float2(p, p * (dot(d_out, v, a.size) - a.delta[number]) * a.scale);
    }
    float slope;
    const float logit = logit_of(a.rule, dot(q, k, a.size) * a.scale, head_slope, distance, key, &slope);
    const float p = expf(logit - a.lse[number]);
    return make_float2(p, p * (dot(d_out, v, a.size) - a.delta[number]) * slope * a.scale);
}

template <class T, bool MORE> __global__ void __launch_bounds__(THREADS) dq_kernel(const plain_arrays<T> a)
{
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int64_t i = warp_row();
    if (i >= a.rows)
        return;
    const row_place at = place_of(i, a.tokens, a.heads);
    const int64_t sample = at.batch * a.tokens, key_head = at.head / (a.heads / a.kv_heads) * a.head_stride;
    const T *k = a.k + sample * a.k_stride + key_head, *v = a.v + sample * a.v_stride + key_head;
    const int64_t q_row = (at.batch * a.tokens + at.token) * a.q_stride + at.head * a.head_stride;
    const T *d_out = a.d_out + (at.batch * a.tokens + at.token) * a.out_stride + at.head * a.size;
    const int64_t number = (at.batch * a.heads + at.head) * a.tokens + at.token;
    const int64_t keys = keys_of<MORE>(a, at.batch, at.token);
    const float head_slope = MORE ? slope_of(a.rule, a.heads, at.head) : 0.0f;
    float dq[COLUMNS] = {};
    for (int64_t first = start_of<MORE>(a, at.batch, at.token); first < keys; first += 32) {
        float ds = 0.0f;
        if (first + lane < keys && !hides(a, at.batch, first + lane))
            ds = gradients<MORE>(a, a.q + q_row, d_out, number, k + (first + lane) * a.k_stride,
                                 v + (first + lane) * a.v_stride, head_slope, at.token - first - lane, first + lane)
                     .y;
        const int32_t count = static_cast<int32_t>(min(keys - first, static_cast<int64_t>(32)));
        add_rows(dq, ds, k + first * a.k_stride, a.k_stride, count, a.size);
    }
    put_row(a.dq + q_row, dq, 1.0f, a.size);
}

/* A warp has a key row; its lanes stand for queries. */
template <class T, bool MORE>
__global__ void __launch_bounds__(THREADS) dkv_kernel(const plain_arrays<T> a, int64_t key_rows)
{
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int64_t i = warp_row();
    if (i >= key_rows)
        return;
    const row_place at = place_of(i, a.tokens, a.kv_heads);
    const int64_t row = at.batch * a.tokens + at.token, key_head = at.head * a.head_stride;
    const int64_t k = row * a.k_stride + key_head, v = row * a.v_stride + key_head;
    const int64_t group = a.heads / a.kv_heads;
    float dk[COLUMNS] = {}, dv[COLUMNS] = {};
    const int64_t heads = hides(a, at.batch, at.token) ? 0 : group;
    const int64_t start = !a.keys.all ? at.token : MORE ? start_of<MORE>(a, at.batch, at.token) : 0;
    for (int64_t head = at.head * group; head < at.head * group + heads; head++) {
        const float head_slope = MORE ? slope_of(a.rule, a.heads, head) : 0.0f;
        for (int64_t first = start; first < a.tokens; first += 32) {
            const T *q = a.q + (at.batch * a.tokens + first) * a.q_stride + head * a.head_stride;
            const T *d_out = a.d_out + (at.batch * a.tokens + first) * a.out_stride + head * a.size;
            float2 g = make_float2(0.0f, 0.0f);
            if (start_of<MORE>(a, at.batch, first) > at.token)
                break; /* nor does a later query see our key */
            if (first + lane < a.tokens && start_of<MORE>(a, at.batch, first + lane) <= at.token)
                g = gradients<MORE>(a, q + lane * a.q_stride, d_out + lane * a.out_stride,
                                    (at.batch * a.heads + head) * a.tokens + first + lane, a.k + k, a.v + v, head_slope,
                                    first + lane - at.token, at.token);
            const int32_t count = static_cast<int32_t>(min(a.tokens - first, static_cast<int64_t>(32)));
            add_rows(dv, g.x, d_out, a.out_stride, count, a.size);
            add_rows(dk, g.y, q, a.q_stride, count, a.size);
        }
    }
    put_row(a.dk + k, dk, 1.0f, a.size);
    put_row(a.dv + v, dv, 1.0f, a.size);
}

dsc_status check_size(int32_t size, dsc_error *err)
{
    if (size <= DSC_CUDA_ATTENTION_HEAD_MAX)
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "ATTENTION", "head size %d; GPUs have kernels up to %d",
                    static_cast<int>(size), static_cast<int>(DSC_CUDA_ATTENTION_HEAD_MAX));
}

template <class T> void forward(const dsc_cuda_launch *at, const dsc_attention_fwd_args *a)
{
    plain_arrays<T> x = {};
    x.out = static_cast<T *>(a->out), x.lse_out = a->lse;
    x.q = static_cast<const T *>(a->q), x.k = static_cast<const T *>(a->k), x.v = static_cast<const T *>(a->v);
    x.q_stride = a->q_stride, x.k_stride = a->k_stride, x.v_stride = a->v_stride, x.out_stride = a->out_stride;
    x.head_stride = dsc_attention_head_stride(a->head_stride, a->head_size);
    x.tokens = a->tokens, x.heads = a->heads, x.kv_heads = a->kv_heads, x.size = a->head_size;
    x.scale = a->scale, x.rule = rule_of(a->logits, a->scale), x.sinks = static_cast<const T *>(a->sinks);
    x.keys = a->keys;
    x.rows = static_cast<int64_t>(a->batch) * a->tokens * a->heads;
    const unsigned blocks = grid_size(dsc_div_ceil(x.rows, WARPS));
    if (dsc_attention_is_plain(&a->keys, &a->logits, a->sinks))
        DSC_CUDA_LAUNCH((fwd_kernel<T, false>), blocks, THREADS, 0, at->stream, x);
    else
        DSC_CUDA_LAUNCH((fwd_kernel<T, true>), blocks, THREADS, 0, at->stream, x);
}

template <class T> void backward(const dsc_cuda_launch *at, const dsc_attention_bwd_args *a)
{
    plain_arrays<T> x = {};
    x.dq = static_cast<T *>(a->dq), x.dk = static_cast<T *>(a->dk), x.dv = static_cast<T *>(a->dv);
    x.d_out = static_cast<const T *>(a->d_out), x.out_in = static_cast<const T *>(a->out);
    x.lse = a->lse, x.delta = static_cast<float *>(a->scratch);
    x.q = static_cast<const T *>(a->q), x.k = static_cast<const T *>(a->k), x.v = static_cast<const T *>(a->v);
    x.q_stride = a->q_stride, x.k_stride = a->k_stride, x.v_stride = a->v_stride, x.out_stride = a->out_stride;
    x.head_stride = dsc_attention_head_stride(a->head_stride, a->head_size);
    x.tokens = a->tokens, x.heads = a->heads, x.kv_heads = a->kv_heads, x.size = a->head_size;
    x.scale = a->scale, x.rule = rule_of(a->logits, a->scale), x.sinks = static_cast<const T *>(a->sinks);
    x.keys = a->keys;
    x.rows = static_cast<int64_t>(a->batch) * a->tokens * a->heads;
    const int64_t key_rows = static_cast<int64_t>(a->batch) * a->tokens * a->kv_heads;
    const unsigned blocks = grid_size(dsc_div_ceil(x.rows, WARPS));
    DSC_CUDA_LAUNCH(delta_kernel<T>, blocks, THREADS, 0, at->stream, x);
    const unsigned key_blocks = grid_size(dsc_div_ceil(key_rows, WARPS));
    if (dsc_attention_is_plain(&a->keys, &a->logits, a->sinks)) {
        DSC_CUDA_LAUNCH((dkv_kernel<T, false>), key_blocks, THREADS, 0, at->stream, x, key_rows);
        DSC_CUDA_LAUNCH((dq_kernel<T, false>), blocks, THREADS, 0, at->stream, x);
    } else {
        DSC_CUDA_LAUNCH((dkv_kernel<T, true>), key_blocks, THREADS, 0, at->stream, x, key_rows);
        DSC_CUDA_LAUNCH((dq_kernel<T, true>), blocks, THREADS, 0, at->stream, x);
    }
}

} // namespace

dsc_status dsc_cuda_attention_fwd_plain(const dsc_cuda_launch *at, const dsc_attention_fwd_args *a, dsc_error *err)
{
    DSC_TRY(check_size(a->head_size, err));
    DSC_CUDA_FOR_DTYPE(a->dtype, T, forward<T>(at, a));
    return DSC_OK;
}

dsc_status dsc_cuda_attention_bwd_plain(const dsc_cuda_launch *at, const dsc_attention_bwd_args *a, dsc_error *err)
{
    DSC_TRY(check_size(a->head_size, err));
    DSC_CUDA_FOR_DTYPE(a->dtype, T, backward<T>(at, a));
    return DSC_OK;
}
