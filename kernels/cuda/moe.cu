/* moe.cu - routing, the order of rows, and rows of mixture of experts, without atomics on numbers.
 *
 * A warp routes a token: lane l has the experts l, l + 32 and so on. The order is a counting sort with a block for each
 * expert, which reads all slots in order. A warp or block makes a row. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/elements.h"
#include "kernels/cuda/launchers.h"

namespace
{

enum { THREADS = 128, WARPS = THREADS / 32, ORDER_THREADS = 256, ORDER_WARPS = ORDER_THREADS / 32 };

/* ---- routing ---- */

/* Whether expert a stands before b: a larger logit, or an equal one and a lower number; NaN last. -1: no expert. */
__device__ __forceinline__ bool stands_before(float x, int32_t a, float y, int32_t b)
{
    if (a < 0 || b < 0)
        return a >= 0;
    const bool x_known = x == x, y_known = y == y;
    if (x_known != y_known)
        return x_known;
    return x_known && x != y ? x > y : a < b;
}

/* A logit's score: e^(x - largest) / sum, or a sigmoid. */
struct score_of {
    float largest, sum;
    bool softmax;
    __device__ __forceinline__ float at(float x) const
    {
        return softmax ? expf(x - largest) / sum : 1.0f / (1.0f + expf(-x));
    }
};

template <class T> __device__ score_of score_make(const T *logits, const dsc_moe_rule &rule)
{
    const int32_t lane = static_cast<int32_t>(threadIdx.x % 32);
    float largest = to_f32(logits[0]), sum = 0;
    for (int32_t e = lane; e < rule.experts; e += 32)
        largest = fmaxf(largest, to_f32(logits[e]));
    largest = warp_max(largest);
    for (int32_t e = lane; e < rule.experts; e += 32)
        sum += expf(to_f32(logits[e]) - largest);
    return { largest, warp_sum(sum), rule.score == DSC_MOE_SOFTMAX };
}

/* The choice of a token's experts: by logits, or by scores with a bias. */
template <class T> struct choice_of {
    const T *logits;
    const float *bias;
    score_of score;
    bool scores;
    __device__ __forceinline__ float at(int32_t e) const
    {
        const float x = to_f32(logits[e]);
        return scores ? score.at(x) + (bias != nullptr ? bias[e] : 0.0f) : x;
    }
};

/* The best of the lanes' candidates, in all lanes. -1: a lane has none. */
__device__ __forceinline__ int32_t best_of_lanes(float best_x, int32_t best)
{
#pragma unroll
    for (int width = 16; width >= 1; width /= 2) {
        const float x = __shfl_xor_sync(0xffffffffu, best_x, width);
        const int32_t e = __shfl_xor_sync(0xffffffffu, best, width);
        if (stands_before(x, e, best_x, best)) {
            best_x = x;
            best = e;
        }
    }
    return best;
}

template <class T> __device__ int32_t next_expert(const choice_of<T> &choice, int32_t experts, uint32_t taken)
{
    const int32_t lane = static_cast<int32_t>(threadIdx.x % 32);
    float best_x = 0;
    int32_t best = -1;
#pragma unroll 1
    for (int32_t e = lane, i = 0; e < experts; e += 32, i++) {
        const float x = choice.at(e);
        if ((taken >> i & 1) == 0 && stands_before(x, e, best_x, best)) {
            best_x = x;
            best = e;
        }
    }
    return best_of_lanes(best_x, best);
}

/* The lane's experts, as bits, of groups that are not among the best; lane g finds out how good group g is. */
template <class T> __device__ uint32_t other_groups(const choice_of<T> &choice, const dsc_moe_rule &rule)
{
    const int32_t lane = static_cast<int32_t>(threadIdx.x % 32), each = rule.experts / rule.groups;
    float first_x = 0, second_x = 0;
    int32_t first = -1, second = -1;
#pragma unroll 1
    for (int32_t e = lane * each; lane < rule.groups && e < (lane + 1) * each; e++) {
        const float x = choice.at(e);
        if (stands_before(x, e, first_x, first)) {
            second_x = first_x, second = first;
            first_x = x, first = e;
        } else if (stands_before(x, e, second_x, second)) {
            second_x = x, second = e;
        }
    }
    const float value = rule.group_pairs ? first_x + second_x : first_x;
    uint32_t best = 0, others = 0;
    for (int32_t n = 0; n < rule.best_groups; n++)
        best |= 1u << best_of_lanes(value, lane < rule.groups && (best >> lane & 1) == 0 ? lane : -1);
    for (int32_t e = lane, i = 0; e < rule.experts; e += 32, i++)
        others |= (best >> (e / each) & 1) == 0 ? 1u << i : 0;
    return others;
}

template <class T>
__global__ void __launch_bounds__(THREADS) route_fwd_kernel(float *weights, int32_t *chosen, const T *all_logits,
                                                            const float *bias, int64_t tokens, dsc_moe_rule rule)
{
    const int64_t t = static_cast<int64_t>(blockIdx.x) * WARPS + threadIdx.x / 32;
    const int32_t lane = static_cast<int32_t>(threadIdx.x % 32);
    if (t >= tokens)
        return;
    const T *logits = all_logits + t * rule.experts;
    const score_of score = score_make(logits, rule);
    const choice_of<T> choice = { logits, bias, score, bias != nullptr || rule.group_pairs };
    uint32_t taken = rule.groups > 1 ? other_groups(choice, rule) : 0;
    float mine = 0, sum = 0; /* lane `slot` has that slot's score */
#pragma unroll 1
    for (int32_t slot = 0; slot < rule.top_k; slot++) {
        const int32_t expert = next_expert(choice, rule.experts, taken);
        if (expert % 32 == lane)
            taken |= 1u << (expert / 32);
        const float x = score.at(to_f32(logits[expert]));
        sum += x;
        if (slot == lane) {
            mine = x;
            chosen[t * rule.top_k + slot] = expert;
        }
    }
    if (lane < rule.top_k)
        weights[t * rule.top_k + lane] = (rule.renormalize ? mine / sum : mine) * rule.factor;
}

template <class T, class D>
__global__ void __launch_bounds__(THREADS)
    route_bwd_kernel(D *d_logits, const float *d_weights, const T *all_logits, const int32_t *all_chosen,
                     int64_t tokens, dsc_moe_rule rule)
{
    const int64_t t = static_cast<int64_t>(blockIdx.x) * WARPS + threadIdx.x / 32;
    const int32_t lane = static_cast<int32_t>(threadIdx.x % 32), k = rule.top_k;
    if (t >= tokens)
        return;
    const T *logits = all_logits + t * rule.experts;
    const int32_t *chosen = all_chosen + t * k;
    const score_of score = score_make(logits, rule);
    const float p = lane < k ? score.at(to_f32(logits[chosen[lane]])) : 0;
    const float g = lane < k ? d_weights[t * k + lane] * rule.factor : 0;
    const float divisor = rule.renormalize ? warp_sum(p) : 1.0f;
    const float part = rule.renormalize ? warp_sum(g * p) / divisor : 0.0f;
    const float d = lane < k ? (g - part) / divisor : 0; /* gradient of the score of slot `lane` */
    const float mean = score.softmax ? warp_sum(d * p) : 0.0f;
    for (int32_t first = 0; first < rule.experts; first += 32) {
        const int32_t e = first + lane;
        const float x = e < rule.experts ? score.at(to_f32(logits[e])) : 0;
        float out = -mean * x;
        for (int32_t slot = 0; slot < k; slot++) {
            const float of_slot = __shfl_sync(0xffffffffu, d, slot);
            if (chosen[slot] == e)
                out = score.softmax ? x * (of_slot - mean) : of_slot * x * (1.0f - x);
        }
        if (e < rule.experts)
            d_logits[t * rule.experts + e] = element<D>::from(out);
    }
}

template <class T, class D> void route_bwd(const dsc_cuda_launch *at, const dsc_moe_route_bwd_args *a)
{
    DSC_CUDA_LAUNCH((route_bwd_kernel<T, D>), grid_size(dsc_div_ceil(a->tokens, WARPS)), THREADS, 0, at->stream,
                    static_cast<D *>(a->d_logits), a->d_weights, static_cast<const T *>(a->logits), a->chosen,
                    a->tokens, a->rule);
}

/* ---- the order of rows ---- */

/* starts[e + 1] = the number of slots of expert e. */
__global__ void __launch_bounds__(ORDER_THREADS) count_kernel(int32_t *starts, const int32_t *chosen, int64_t slots)
{
    __shared__ int32_t counts[ORDER_WARPS];
    const int32_t e = static_cast<int32_t>(blockIdx.x);
    int32_t count = 0;
    for (int64_t i = threadIdx.x; i < slots; i += ORDER_THREADS)
        count += chosen[i] == e;
#pragma unroll
    for (int width = 16; width >= 1; width /= 2)
        count += __shfl_xor_sync(0xffffffffu, count, width);
    if (threadIdx.x % 32 == 0)
        counts[threadIdx.x / 32] = count;
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    for (int w = 1; w < ORDER_WARPS; w++)
        count += counts[w];
    starts[e + 1] = count;
    if (e == 0)
        starts[0] = 0;
}

/* Counts become ends; one block. */
__global__ void __launch_bounds__(DSC_MOE_EXPERTS_MAX) ends_kernel(int32_t *starts, int32_t experts)
{
    __shared__ int32_t sums[DSC_MOE_EXPERTS_MAX];
    const int t = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    sums[t] = t < experts ? starts[t + 1] : 0;
    __syncthreads();
    for (int step = 1; step < threads; step *= 2) {
        const int32_t below = t >= step ? sums[t - step] : 0;
        __syncthreads();
        sums[t] += below;
        __syncthreads();
    }
    if (t < experts)
        starts[t + 1] = sums[t];
}

/* The rows of an expert in the order of slots: each slot's number is that of the earlier slots of the expert. */
__global__ void __launch_bounds__(ORDER_THREADS)
    place_kernel(int32_t *place, int32_t *source, const int32_t *starts, const int32_t *chosen, int64_t slots)
{
    __shared__ int32_t counts[2][ORDER_WARPS];
    const int32_t e = static_cast<int32_t>(blockIdx.x), warp = static_cast<int32_t>(threadIdx.x / 32);
    const uint32_t below = (1u << threadIdx.x % 32) - 1;
    int32_t row = starts[e];
    for (int64_t first = 0, step = 0; first < slots; first += ORDER_THREADS, step++) {
        const int64_t i = first + threadIdx.x;
        const bool mine = i < slots && chosen[i] == e;
        const uint32_t lanes = __ballot_sync(0xffffffffu, mine);
        int32_t *const now = counts[step % 2]; /* the other one is still read */
        if (threadIdx.x % 32 == 0)
            now[warp] = __popc(lanes);
        __syncthreads();
        int32_t before = 0, all = 0;
        for (int32_t w = 0; w < ORDER_WARPS; w++) {
            before += w < warp ? now[w] : 0;
            all += now[w];
        }
        if (mine) {
            const int32_t at = row + before + __popc(lanes & below);
            place[i] = at;
            source[at] = static_cast<int32_t>(i);
        }
        row += all;
    }
}

/* ---- rows ---- */

/* V is what one access moves, `width` of them a row. */
template <class V>
__global__ void dispatch_kernel(V *out, const V *in, const int32_t *source, int32_t top_k, int64_t width)
{
    const int64_t r = blockIdx.x;
    const V *from = in + source[r] / top_k * width;
    for (int64_t c = threadIdx.x; c < width; c += blockDim.x)
        out[r * width + c] = from[c];
}

template <class V> void dispatch(const dsc_cuda_launch *at, const dsc_moe_dispatch_args *a, int64_t width)
{
    DSC_CUDA_LAUNCH((dispatch_kernel<V>), grid_size(a->tokens * a->top_k), threads_for(width, 256), 0, at->stream,
                    static_cast<V *>(a->out), static_cast<const V *>(a->in), a->order, a->top_k, width);
}

/* The sum of a token's rows: each times its weight where there are weights. */
template <class T, int W>
__global__ void sum_kernel(T *out, const T *rows, const float *weights, const int32_t *place, const T *add,
                           int32_t top_k, int64_t channels)
{
    const int64_t t = blockIdx.x;
    for (int64_t c = static_cast<int64_t>(threadIdx.x) * W; c < channels; c += static_cast<int64_t>(blockDim.x) * W) {
        float sum[W] = {}, x[W];
        for (int64_t i = t * top_k; i < (t + 1) * top_k; i++) {
            load<W>(x, rows + place[i] * channels + c);
            const float weight = weights != NULL ? weights[i] : 1.0f;
#pragma unroll
            for (int j = 0; j < W; j++)
                sum[j] = weights != NULL ? fmaf(weight, x[j], sum[j]) : i == t * top_k ? x[j] : sum[j] + x[j];
        }
        if (add != NULL) {
            load<W>(x, add + t * channels + c);
#pragma unroll
            for (int j = 0; j < W; j++)
                sum[j] += x[j];
        }
        store<W>(out + t * channels + c, sum);
    }
}

struct sum_arrays {
    void *out;
    const void *rows, *add;
    const float *weights;
    const int32_t *place;
    int64_t tokens, channels;
    int32_t top_k;
};

template <class T> void sum_rows(const dsc_cuda_launch *at, const sum_arrays &a)
{
    constexpr int W = 16 / static_cast<int>(sizeof(T));
    const bool aligned = a.channels % W == 0 && is_aligned(a.out) && is_aligned(a.rows) && is_aligned(a.add);
    T *out = static_cast<T *>(a.out);
    const T *rows = static_cast<const T *>(a.rows), *add = static_cast<const T *>(a.add);
    if (a.tokens == 0)
        return;
    if (aligned)
        DSC_CUDA_LAUNCH((sum_kernel<T, W>), grid_size(a.tokens), threads_for(a.channels / W, 256), 0, at->stream, out,
                        rows, a.weights, a.place, add, a.top_k, a.channels);
    else
        DSC_CUDA_LAUNCH((sum_kernel<T, 1>), grid_size(a.tokens), threads_for(a.channels, 256), 0, at->stream, out, rows,
                        a.weights, a.place, add, a.top_k, a.channels);
}

/* A warp for each slot. Elements are read before they are written, and a row is one warp's. */
template <class T, int W>
__global__ void __launch_bounds__(THREADS)
    combine_bwd_kernel(T *d_rows, float *d_weights, const T *d_out, const T *rows, const float *weights,
                       const int32_t *place, int64_t slots, int32_t top_k, int64_t channels)
{
    const int64_t i = static_cast<int64_t>(blockIdx.x) * WARPS + threadIdx.x / 32;
    if (i >= slots)
        return;
    const int64_t row = place[i] * channels, token = i / top_k * channels;
    const float weight = weights[i];
    float dot = 0;
    for (int64_t c = static_cast<int64_t>(threadIdx.x % 32) * W; c < channels; c += 32 * W) {
        float d[W], x[W];
        load<W>(d, d_out + token + c);
        load<W>(x, rows + row + c);
#pragma unroll
        for (int j = 0; j < W; j++) {
            dot = fmaf(d[j], x[j], dot);
            d[j] *= weight;
        }
        store<W>(d_rows + row + c, d);
    }
    dot = warp_sum(dot);
    if (threadIdx.x % 32 == 0)
        d_weights[i] = dot;
}

template <class T> void combine_bwd(const dsc_cuda_launch *at, const dsc_moe_combine_bwd_args *a)
{
    constexpr int W = 16 / static_cast<int>(sizeof(T));
    const int64_t slots = a->tokens * a->top_k;
    const bool aligned = a->channels % W == 0 && is_aligned(a->d_rows) && is_aligned(a->d_out) && is_aligned(a->rows);
    T *d_rows = static_cast<T *>(a->d_rows);
    const T *d_out = static_cast<const T *>(a->d_out), *rows = static_cast<const T *>(a->rows);
    if (slots == 0)
        return;
    if (aligned)
        DSC_CUDA_LAUNCH((combine_bwd_kernel<T, W>), grid_size(dsc_div_ceil(slots, WARPS)), THREADS, 0, at->stream,
                        d_rows, a->d_weights, d_out, rows, a->weights, a->place, slots, a->top_k, a->channels);
    else
        DSC_CUDA_LAUNCH((combine_bwd_kernel<T, 1>), grid_size(dsc_div_ceil(slots, WARPS)), THREADS, 0, at->stream,
                        d_rows, a->d_weights, d_out, rows, a->weights, a->place, slots, a->top_k, a->channels);
}

} // namespace

dsc_status dsc_cuda_run_MOE_ROUTE_FWD(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_moe_route_fwd_args *a = static_cast<const dsc_moe_route_fwd_args *>(args);
    DSC_TRY(dtype_check("MOE_ROUTE_FWD", a->dtype, err));
    DSC_ASSERT(dsc_moe_rule_is_valid(&a->rule));
    if (a->tokens == 0)
        return DSC_OK;
    const unsigned blocks = grid_size(dsc_div_ceil(a->tokens, WARPS));
    DSC_CUDA_FOR_DTYPE(a->dtype, T,
                       DSC_CUDA_LAUNCH((route_fwd_kernel<T>), blocks, THREADS, 0, at->stream, a->weights, a->chosen,
                                       static_cast<const T *>(a->logits), a->bias, a->tokens, a->rule));
    return DSC_OK;
}

dsc_status dsc_cuda_run_MOE_ROUTE_BWD(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_moe_route_bwd_args *a = static_cast<const dsc_moe_route_bwd_args *>(args);
    DSC_TRY(dtype_check("MOE_ROUTE_BWD", a->dtype, err));
    DSC_TRY(dtype_check("MOE_ROUTE_BWD", a->d_dtype, err));
    DSC_ASSERT(a->d_dtype == a->dtype || a->dtype == DSC_F32);
    DSC_ASSERT(dsc_moe_rule_is_valid(&a->rule));
    if (a->tokens == 0)
        return DSC_OK;
    if (a->dtype == a->d_dtype)
        DSC_CUDA_FOR_DTYPE(a->dtype, T, (route_bwd<T, T>(at, a)));
    else
        DSC_CUDA_FOR_DTYPE(a->d_dtype, D, (route_bwd<float, D>(at, a)));
    return DSC_OK;
}

dsc_status dsc_cuda_run_MOE_ORDER(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_moe_order_args *a = static_cast<const dsc_moe_order_args *>(args);
    DSC_ASSERT(a->slots >= 0 && a->slots <= INT32_MAX);
    DSC_ASSERT(a->experts >= 1 && a->experts <= DSC_MOE_EXPERTS_MAX);
    const unsigned experts = grid_size(a->experts);
    DSC_CUDA_LAUNCH(count_kernel, experts, ORDER_THREADS, 0, at->stream, a->starts, a->chosen, a->slots);
    DSC_CUDA_LAUNCH(ends_kernel, 1, threads_for(a->experts, DSC_MOE_EXPERTS_MAX), 0, at->stream, a->starts, a->experts);
    DSC_CUDA_LAUNCH(place_kernel, experts, ORDER_THREADS, 0, at->stream, a->place, a->source, a->starts, a->chosen,
                    a->slots);
    return DSC_OK;
}

dsc_status dsc_cuda_run_MOE_DISPATCH_FWD(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_moe_dispatch_args *a = static_cast<const dsc_moe_dispatch_args *>(args);
    const int64_t bytes = a->channels * static_cast<int64_t>(dsc_dtype_bytes(a->dtype));
    DSC_TRY(dtype_check("MOE_DISPATCH_FWD", a->dtype, err));
    if (a->tokens == 0)
        return DSC_OK;
    if (bytes % 16 == 0 && is_aligned(a->out) && is_aligned(a->in))
        dispatch<uint4>(at, a, bytes / 16);
    else
        dispatch<uint16_t>(at, a, bytes / 2);
    return DSC_OK;
}

dsc_status dsc_cuda_run_MOE_DISPATCH_BWD(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_moe_dispatch_args *a = static_cast<const dsc_moe_dispatch_args *>(args);
    const sum_arrays arrays = { a->out, a->in, a->add, NULL, a->order, a->tokens, a->channels, a->top_k };
    DSC_TRY(dtype_check("MOE_DISPATCH_BWD", a->dtype, err));
    DSC_CUDA_FOR_DTYPE(a->dtype, T, sum_rows<T>(at, arrays));
    return DSC_OK;
}

dsc_status dsc_cuda_run_MOE_COMBINE_FWD(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_moe_combine_fwd_args *a = static_cast<const dsc_moe_combine_fwd_args *>(args);
    const sum_arrays arrays = { a->out, a->rows, NULL, a->weights, a->place, a->tokens, a->channels, a->top_k };
    DSC_TRY(dtype_check("MOE_COMBINE_FWD", a->dtype, err));
    DSC_CUDA_FOR_DTYPE(a->dtype, T, sum_rows<T>(at, arrays));
    return DSC_OK;
}

dsc_status dsc_cuda_run_MOE_COMBINE_BWD(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_moe_combine_bwd_args *a = static_cast<const dsc_moe_combine_bwd_args *>(args);
    DSC_TRY(dtype_check("MOE_COMBINE_BWD", a->dtype, err));
    DSC_CUDA_FOR_DTYPE(a->dtype, T, combine_bwd<T>(at, a));
    return DSC_OK;
}
