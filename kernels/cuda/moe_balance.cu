/* moe_balance.cu - loads of experts and the losses that keep them even.
 *
 * A block sums a run of tokens: each of its warps takes every fourth token, and lane l has the experts l, l + 32 and so
 * on. So each sum has one order, and no atomics. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/elements.h"
#include "kernels/cuda/launchers.h"

namespace
{

enum { THREADS = 128, WARPS = THREADS / 32, SUM_THREADS = 256 };

__device__ __forceinline__ int32_t warp_sum_int(int32_t x)
{
#pragma unroll
    for (int width = 16; width >= 1; width /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, width);
    return x;
}

/* Tokens of a sample up to the one that its last counted target names; a warp for each sample. */
__global__ void __launch_bounds__(32) real_kernel(int32_t *real, const int32_t *targets, int64_t length)
{
    const int32_t *own = targets + blockIdx.x * length;
    int32_t end = 0;
    for (int64_t i = threadIdx.x; targets != NULL && i < length; i += 32)
        if (own[i] >= 0)
            end = static_cast<int32_t>(i) + 1;
#pragma unroll
    for (int width = 16; width >= 1; width /= 2)
        end = max(end, __shfl_xor_sync(0xffffffffu, end, width));
    if (targets == NULL)
        end = static_cast<int32_t>(length);
    if (threadIdx.x == 0)
        real[blockIdx.x] = end == 0 ? 0 : static_cast<int32_t>(min(static_cast<int64_t>(end) + 1, length));
}

/* Statistics of a token's logits. */
struct softmax_of {
    float largest, sum;
    __device__ __forceinline__ float at(float x) const { return expf(x - largest) / sum; }
    __device__ __forceinline__ float lse() const { return largest + logf(sum); }
};

template <class T> __device__ softmax_of softmax_make(const T *logits, int32_t experts)
{
    const int32_t lane = static_cast<int32_t>(threadIdx.x % 32);
    float largest = to_f32(logits[0]), sum = 0;
    for (int32_t e = lane; e < experts; e += 32)
        largest = fmaxf(largest, to_f32(logits[e]));
    largest = warp_max(largest);
    for (int32_t e = lane; e < experts; e += 32)
        sum += expf(to_f32(logits[e]) - largest);
    return { largest, warp_sum(sum) };
}

template <class T>
__global__ void __launch_bounds__(THREADS) tally_kernel(const dsc_moe_tally_args a, const T *all_logits)
{
    __shared__ int32_t load[WARPS][DSC_MOE_EXPERTS_MAX];
    __shared__ float sum[WARPS][DSC_MOE_EXPERTS_MAX];
    __shared__ float squares[WARPS];
    const int32_t lane = static_cast<int32_t>(threadIdx.x % 32), warp = static_cast<int32_t>(threadIdx.x / 32);
    const int64_t tokens = a.samples * a.length, part = blockIdx.x;
    const int64_t end = (part + 1) * tokens / DSC_MOE_TALLY_PARTS;
    float z = 0;
    for (int32_t e = lane; e < a.experts; e += 32) {
        load[warp][e] = 0;
        sum[warp][e] = 0;
    }
    __syncwarp();
    for (int64_t t = part * tokens / DSC_MOE_TALLY_PARTS + warp; t < end; t += WARPS) {
        if (t % a.length >= a.out.real[t / a.length])
            continue;
        if (lane < a.top_k) /* the slots of a token have different experts */
            load[warp][a.chosen[t * a.top_k + lane]]++;
        __syncwarp();
        if (all_logits == NULL)
            continue;
        const T *logits = all_logits + t * a.experts;
        const softmax_of softmax = softmax_make(logits, a.experts);
        for (int32_t e = lane; e < a.experts; e += 32)
            sum[warp][e] += softmax.at(to_f32(logits[e]));
        z = fmaf(softmax.lse(), softmax.lse(), z);
    }
    if (lane == 0)
        squares[warp] = z;
    __syncthreads();
    float *out = a.work + part * (2 * a.experts + 1);
    for (int32_t e = static_cast<int32_t>(threadIdx.x); e < a.experts; e += THREADS) {
        int32_t count = 0;
        float all = 0;
        for (int w = 0; w < WARPS; w++) {
            count += load[w][e];
            all += sum[w][e];
        }
        out[e] = __int_as_float(count);
        out[a.experts + e] = all;
    }
    if (threadIdx.x != 0)
        return;
    z = 0;
    for (int w = 0; w < WARPS; w++)
        z += squares[w];
    out[2 * a.experts] = z;
}

/* The sum of a number of each thread; one block, all of which calls it. */
__device__ int32_t block_sum_int(int32_t x)
{
    __shared__ int32_t sums[SUM_THREADS / 32];
    x = warp_sum_int(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        sums[threadIdx.x / 32] = x;
    __syncthreads();
    int32_t all = 0;
    for (int w = 0; w < SUM_THREADS / 32; w++)
        all += sums[w];
    return all;
}

/* One block. */
__global__ void __launch_bounds__(SUM_THREADS) finish_kernel(const dsc_moe_tally_args a)
{
    const int64_t words = 2 * a.experts + 1, targets = a.samples * a.length;
    int32_t tokens = 0, counted = 0;
    for (int32_t e = static_cast<int32_t>(threadIdx.x); e < a.experts; e += SUM_THREADS) {
        int32_t load = 0;
        float sum = 0;
        for (int64_t part = 0; part < DSC_MOE_TALLY_PARTS; part++) {
            load += __float_as_int(a.work[part * words + e]);
            sum += a.work[part * words + a.experts + e];
        }
        a.out.load[e] = load;
        a.out.probability[e] = sum;
    }
    for (int64_t s = threadIdx.x; s < a.samples; s += SUM_THREADS)
        tokens += a.out.real[s];
    for (int64_t i = threadIdx.x; i < targets; i += SUM_THREADS)
        counted += a.targets == NULL || a.targets[i] >= 0;
    tokens = block_sum_int(tokens);
    counted = block_sum_int(counted);
    if (threadIdx.x != 0)
        return;
    float z = 0;
    for (int64_t part = 0; part < DSC_MOE_TALLY_PARTS; part++)
        z += a.work[part * words + 2 * a.experts];
    *a.out.z = z;
    *a.out.tokens = tokens;
    *a.out.counted = counted;
}

/* ---- gradients ---- */

/* work[e]: the factor of expert e's probability; work[experts]: that of the log-sum-exp. One block. */
__global__ void __launch_bounds__(SUM_THREADS) factors_kernel(const dsc_moe_balance_bwd_args a)
{
    const int32_t *records = static_cast<const int32_t *>(a.records);
    const int64_t words = 2 * a.experts + 3 + a.samples; /* dsc_moe_record_words */
    const float tokens = static_cast<float>(*a.own.tokens), n = tokens * static_cast<float>(a.layers);
    const float share = static_cast<float>(*a.own.counted) / static_cast<float>(a.samples * a.length);
    const float w = a.by_counted ? share : 1.0f;
    for (int32_t e = static_cast<int32_t>(threadIdx.x); e <= a.experts; e += SUM_THREADS) {
        int64_t load = 0;
        for (int32_t l = 0; l < a.layers && e < a.experts; l++)
            load += records[l * words + e];
        const float of_expert = static_cast<float>(load) / n * static_cast<float>(a.experts);
        const float factor = e < a.experts ? a.balance * of_expert : a.z * 2.0f;
        a.work[e] = tokens == 0 ? 0 : w * (factor / n);
    }
}

template <class T, class D>
__global__ void __launch_bounds__(THREADS)
    add_kernel(const dsc_moe_balance_bwd_args a, D *all_d_logits, const T *all_logits)
{
    const int64_t t = static_cast<int64_t>(blockIdx.x) * WARPS + threadIdx.x / 32;
    const int32_t lane = static_cast<int32_t>(threadIdx.x % 32);
    if (t >= a.samples * a.length || t % a.length >= a.own.real[t / a.length])
        return;
    const T *logits = all_logits + t * a.experts;
    D *d_logits = all_d_logits + t * a.experts;
    const softmax_of softmax = softmax_make(logits, a.experts);
    float mean = 0;
    for (int32_t e = lane; e < a.experts; e += 32)
        mean = fmaf(a.work[e], softmax.at(to_f32(logits[e])), mean);
    mean = warp_sum(mean);
    const float of_lse = a.work[a.experts] * softmax.lse();
    for (int32_t e = lane; e < a.experts; e += 32) {
        const float p = softmax.at(to_f32(logits[e]));
        d_logits[e] = element<D>::from(to_f32(d_logits[e]) + p * ((a.work[e] - mean) + of_lse));
    }
}

template <class T, class D> void add(const dsc_cuda_launch *at, const dsc_moe_balance_bwd_args *a)
{
    DSC_CUDA_LAUNCH((add_kernel<T, D>), grid_size(dsc_div_ceil(a->samples * a->length, WARPS)), THREADS, 0, at->stream,
                    *a, static_cast<D *>(a->d_logits), static_cast<const T *>(a->logits));
}

} // namespace

dsc_status dsc_cuda_run_MOE_TALLY(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_moe_tally_args *a = static_cast<const dsc_moe_tally_args *>(args);
    DSC_TRY(dtype_check("MOE_TALLY", a->dtype, err));
    DSC_ASSERT(a->experts >= 1 && a->experts <= DSC_MOE_EXPERTS_MAX);
    DSC_ASSERT(a->top_k >= 1 && a->top_k <= DSC_MOE_TOP_K_MAX && a->top_k <= a->experts);
    DSC_ASSERT(a->samples >= 1 && a->length >= 1);
    DSC_CUDA_LAUNCH(real_kernel, grid_size(a->samples), 32, 0, at->stream, a->out.real, a->targets, a->length);
    DSC_CUDA_FOR_DTYPE(a->dtype, T,
                       DSC_CUDA_LAUNCH((tally_kernel<T>), DSC_MOE_TALLY_PARTS, THREADS, 0, at->stream, *a,
                                       static_cast<const T *>(a->logits)));
    DSC_CUDA_LAUNCH(finish_kernel, 1, SUM_THREADS, 0, at->stream, *a);
    return DSC_OK;
}

dsc_status dsc_cuda_run_MOE_BALANCE_BWD(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_moe_balance_bwd_args *a = static_cast<const dsc_moe_balance_bwd_args *>(args);
    DSC_TRY(dtype_check("MOE_BALANCE_BWD", a->dtype, err));
    DSC_TRY(dtype_check("MOE_BALANCE_BWD", a->d_dtype, err));
    DSC_ASSERT(a->d_dtype == a->dtype || a->dtype == DSC_F32);
    DSC_ASSERT(a->experts >= 1 && a->experts <= DSC_MOE_EXPERTS_MAX);
    DSC_ASSERT(a->layers >= 1 && a->samples >= 1 && a->length >= 1);
    DSC_CUDA_LAUNCH(factors_kernel, 1, SUM_THREADS, 0, at->stream, *a);
    if (a->dtype == a->d_dtype)
        DSC_CUDA_FOR_DTYPE(a->dtype, T, (add<T, T>(at, a)));
    else
        DSC_CUDA_FOR_DTYPE(a->d_dtype, D, (add<float, D>(at, a)));
    return DSC_OK;
}
