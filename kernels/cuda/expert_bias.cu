/* expert_bias.cu - biases of experts' products: a block a row forward, a thread a column of an expert backward.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/elements.h"
#include "kernels/cuda/launchers.h"

namespace
{

enum { THREADS = 256 };

__device__ __forceinline__ int32_t expert_of(const int32_t *starts, int32_t experts, int64_t row)
{
    int32_t low = 0, high = experts - 1;
    while (low < high) {
        const int32_t middle = low + (high - low) / 2;
        if (row >= starts[middle + 1])
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

template <class T, int W>
__global__ void __launch_bounds__(THREADS)
    add_kernel(T *x, const T *bias, const int32_t *starts, int32_t experts, int64_t cols)
{
    const int64_t row = blockIdx.x, first = row * cols, of = expert_of(starts, experts, row) * cols;
    for (int64_t c = static_cast<int64_t>(threadIdx.x) * W; c < cols; c += static_cast<int64_t>(blockDim.x) * W) {
        float v[W], b[W];
        load<W>(v, x + first + c);
        load<W>(b, bias + of + c);
#pragma unroll
        for (int j = 0; j < W; j++)
            v[j] += b[j];
        store_fast<W>(x + first + c, v);
    }
}

template <class T>
__global__ void __launch_bounds__(THREADS) sum_kernel(float *d_bias, const T *d_x, const int32_t *starts, int64_t cols)
{
    const int64_t c = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x, expert = blockIdx.y;
    if (c >= cols)
        return;
    float sum = 0;
#pragma unroll 8
    for (int64_t row = starts[expert]; row < starts[expert + 1]; row++)
        sum += to_f32(d_x[row * cols + c]);
    d_bias[expert * cols + c] = sum;
}

template <class T> void forward(const dsc_cuda_launch *at, const dsc_expert_bias_fwd_args *a)
{
    constexpr int W = 16 / static_cast<int>(sizeof(T));
    T *x = static_cast<T *>(a->x);
    const T *bias = static_cast<const T *>(a->bias);
    const bool aligned = is_aligned(x) && is_aligned(bias) && a->cols % W == 0;
    const unsigned threads = threads_for(aligned ? a->cols / W : a->cols, THREADS);
    if (aligned)
        DSC_CUDA_LAUNCH((add_kernel<T, W>), grid_size(a->rows), threads, 0, at->stream, x, bias, a->starts, a->experts,
                        a->cols);
    else
        DSC_CUDA_LAUNCH((add_kernel<T, 1>), grid_size(a->rows), threads, 0, at->stream, x, bias, a->starts, a->experts,
                        a->cols);
}

template <class T> void backward(const dsc_cuda_launch *at, const dsc_expert_bias_bwd_args *a)
{
    const unsigned threads = threads_for(a->cols, THREADS);
    const dim3 grid(grid_size(dsc_div_ceil(a->cols, threads)), static_cast<unsigned>(a->experts));
    DSC_CUDA_LAUNCH((sum_kernel<T>), grid, threads, 0, at->stream, a->d_bias, static_cast<const T *>(a->d_x), a->starts,
                    a->cols);
}

} // namespace

dsc_status dsc_cuda_run_EXPERT_BIAS_FWD(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_expert_bias_fwd_args *a = static_cast<const dsc_expert_bias_fwd_args *>(args);
    DSC_TRY(dtype_check("EXPERT_BIAS_FWD", a->dtype, err));
    DSC_ASSERT(a->experts >= 1 && a->cols >= 1);
    if (a->rows > 0)
        DSC_CUDA_FOR_DTYPE(a->dtype, T, forward<T>(at, a));
    return DSC_OK;
}

dsc_status dsc_cuda_run_EXPERT_BIAS_BWD(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_expert_bias_bwd_args *a = static_cast<const dsc_expert_bias_bwd_args *>(args);
    DSC_TRY(dtype_check("EXPERT_BIAS_BWD", a->dtype, err));
    DSC_ASSERT(a->experts >= 1 && a->experts <= 65535 && a->cols >= 1);
    DSC_CUDA_FOR_DTYPE(a->dtype, T, backward<T>(at, a));
    return DSC_OK;
}
