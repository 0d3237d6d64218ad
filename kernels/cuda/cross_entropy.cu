/* cross_entropy.cu - a block has a row of logits. One pass computes maximum and sum together (Milakov & Gimelshein
 * 2018); the other one overwrites the row with its gradient while it is still in the L2 cache.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/elements.h"
#include "kernels/cuda/launchers.h"

namespace
{

enum { CROSS_ENTROPY_THREADS_MAX = 1024 };

/* Maximum so far and the sum of exp(x - maximum). */
struct running {
    float max, sum;
};

__device__ __forceinline__ running both(running a, running b)
{
    const float max = fmaxf(a.max, b.max);
    if (max == -INFINITY)
        return { max, a.sum + b.sum }; /* 0, or a NaN that was met */
    return { max, a.sum * expf(a.max - max) + b.sum * expf(b.max - max) };
}

template <int W> __device__ __forceinline__ running take(running r, const float (&x)[W])
{
    float top = x[0];
#pragma unroll
    for (int j = 1; j < W; j++)
        top = fmaxf(top, x[j]);
    if (top > r.max)
        r = { top, r.max == -INFINITY ? r.sum : r.sum * expf(r.max - top) };
#pragma unroll
    for (int j = 0; j < W; j++)
        r.sum += x[j] == -INFINITY ? 0.0f : expf(x[j] - r.max);
    return r;
}

/* Value of the whole block, in every thread. */
__device__ running block_running(running r)
{
    __shared__ running warps[CROSS_ENTROPY_THREADS_MAX / 32];
#pragma unroll
    for (int width = 16; width >= 1; width /= 2) {
        const running other = { __shfl_xor_sync(0xffffffffu, r.max, width),
                                __shfl_xor_sync(0xffffffffu, r.sum, width) };
        r = both(r, other);
    }
    if (threadIdx.x % 32 == 0)
        warps[threadIdx.x / 32] = r;
    __syncthreads();
    r = warps[0];
    for (unsigned w = 1; w < blockDim.x / 32; w++)
        r = both(r, warps[w]);
    return r;
}

/* Gradients of W columns from c on; padding columns get 0. */
template <int W, class T>
__device__ __forceinline__ void gradient(T *row, int64_t c, int64_t vocab, int32_t target, float lse, float scale)
{
    float x[W];
    load<W>(x, row + c);
#pragma unroll
    for (int j = 0; j < W; j++) {
        const float p = expf(x[j] - lse);
        x[j] = c + j < vocab ? (c + j == target ? p - 1.0f : p) * scale : 0.0f;
    }
    store<W>(row + c, x);
}

/* The row of a target that is not counted. */
template <class T, int W> __device__ __forceinline__ void skip_row(T *row, float *loss, int64_t stride, bool gradient)
{
    const float zeros[W] = {};
    if (threadIdx.x == 0)
        *loss = 0.0f;
    for (int64_t c = static_cast<int64_t>(threadIdx.x) * W; gradient && c < stride;
         c += static_cast<int64_t>(blockDim.x) * W)
        store<W>(row + c, zeros);
}

template <class T, int W>
__global__ void __launch_bounds__(CROSS_ENTROPY_THREADS_MAX)
    cross_entropy_kernel(T *logits, float *losses, const int32_t *targets, int64_t vocab, int64_t stride, float scale,
                         bool write_gradient)
{
    T *row = logits + static_cast<int64_t>(blockIdx.x) * stride;
    const int32_t target = targets[blockIdx.x];
    if (target < 0) { /* the target of all threads */
        skip_row<T, W>(row, losses + blockIdx.x, stride, write_gradient);
        return;
    }
    const float at_target = to_f32(row[target]); /* read before block_running's barrier, overwritten after it */
    const int64_t whole = vocab / W * W;
    running r = { -INFINITY, 0.0f };
    for (int64_t c = static_cast<int64_t>(threadIdx.x) * W; c < whole; c += static_cast<int64_t>(blockDim.x) * W) {
        float x[W];
        load<W>(x, row + c);
        r = take<W>(r, x);
    }
    for (int64_t c = whole + threadIdx.x; c < vocab; c += blockDim.x) {
        const float x[1] = { to_f32(row[c]) };
        r = take<1>(r, x);
    }
    r = block_running(r);
    const float lse = r.max + logf(r.sum);
    if (threadIdx.x == 0)
        losses[blockIdx.x] = lse - at_target;
    if (!write_gradient)
        return;
    for (int64_t c = static_cast<int64_t>(threadIdx.x) * W; c < stride; c += static_cast<int64_t>(blockDim.x) * W)
        gradient<W>(row, c, vocab, target, lse, scale);
}

template <class T> void classify(const dsc_cuda_launch *at, const dsc_cross_entropy_args *a)
{
    constexpr int W = 16 / static_cast<int>(sizeof(T));
    T *logits = static_cast<T *>(a->logits);
    const unsigned rows = grid_size(a->rows), threads = threads_for(a->stride / W, CROSS_ENTROPY_THREADS_MAX);
    if (is_aligned(logits) && a->stride % W == 0)
        DSC_CUDA_LAUNCH((cross_entropy_kernel<T, W>), rows, threads, 0, at->stream, logits, a->losses, a->targets,
                        a->vocab, a->stride, a->scale, a->write_gradient);
    else
        DSC_CUDA_LAUNCH((cross_entropy_kernel<T, 1>), rows, threads, 0, at->stream, logits, a->losses, a->targets,
                        a->vocab, a->stride, a->scale, a->write_gradient);
}

} // namespace

dsc_status dsc_cuda_run_CROSS_ENTROPY(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_cross_entropy_args *a = static_cast<const dsc_cross_entropy_args *>(args);
    DSC_TRY(dtype_check("CROSS_ENTROPY", a->dtype, err));
    DSC_ASSERT(a->vocab >= 1 && a->vocab <= a->stride);
    if (a->rows == 0)
        return DSC_OK;
    DSC_CUDA_FOR_DTYPE(a->dtype, T, classify<T>(at, a));
    return DSC_OK;
}
