/* conv.cu - columns copied out of and into wider tensors, and the causal convolution over tokens: a thread an element.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/elements.h"
#include "kernels/cuda/launchers.h"

namespace
{

enum { THREADS = 256, WARPS = THREADS / 32 };

template <class T>
__global__ void __launch_bounds__(THREADS)
    copy_columns_kernel(T *out, const T *in, int64_t count, int64_t cols, dsc_columns to, dsc_columns from)
{
    const int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (i < count)
        out[dsc_columns_at(&to, i / cols, i % cols)] = in[dsc_columns_at(&from, i / cols, i % cols)];
}

template <class T> void copy_columns(const dsc_cuda_launch *at, const dsc_copy_columns_args *a)
{
    const int64_t count = a->rows * a->cols;
    if (count > 0)
        DSC_CUDA_LAUNCH((copy_columns_kernel<T>), grid_size(dsc_div_ceil(count, THREADS)), THREADS, 0, at->stream,
                        static_cast<T *>(a->out), static_cast<const T *>(a->in), count, a->cols, a->out_columns,
                        a->in_columns);
}

/* ---- convolution ---- */

template <class T> struct conv_shape {
    const T *in, *weight, *tail;
    const int32_t *positions;
    int64_t rows, tokens, channels, stride;
    dsc_columns columns;
    int32_t width;
    bool resume;

    /* Rows in front of a row that belong to its document and its sample, at most K - 1. */
    __device__ __forceinline__ int64_t before(int64_t row) const
    {
        int64_t place = row % tokens;
        if (positions != nullptr && positions[row] < place)
            place = positions[row];
        return resume || place > width - 1 ? width - 1 : place;
    }
    __device__ __forceinline__ float weight_of(int64_t c, int64_t j) const
    {
        return to_f32(weight[c * width + width - 1 - j]);
    }
    /* A row below 0 is in the tail. */
    __device__ __forceinline__ float input_at(int64_t row, int64_t c) const
    {
        if (row >= 0)
            return to_f32(in[dsc_columns_at(&columns, row, c)]);
        return resume ? to_f32(tail[(width - 1 + row) * channels + c]) : 0.0f;
    }
};

template <class T> __global__ void __launch_bounds__(THREADS) conv_fwd_kernel(T *out, const conv_shape<T> of)
{
    const int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (i >= of.rows * of.channels)
        return;
    const int64_t t = i / of.channels, c = i % of.channels, before = of.before(t);
    float sum = 0;
    for (int64_t j = 0; j <= before; j++)
        sum = sum + of.input_at(t - j, c) * of.weight_of(c, j);
    out[t * of.stride + c] = element<T>::from(sum);
}

/* The oldest row first, so that none is lost. */
template <class T> __global__ void __launch_bounds__(THREADS) conv_tail_kernel(T *tail, const conv_shape<T> of)
{
    const int64_t c = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (c >= of.channels)
        return;
    for (int64_t i = 0; i < of.width - 1; i++)
        tail[i * of.channels + c] = element<T>::from(of.input_at(of.rows - (of.width - 1) + i, c));
}

template <class T> void conv_fwd(const dsc_cuda_launch *at, const dsc_conv_fwd_args *a)
{
    const conv_shape<T> of = { static_cast<const T *>(a->in),
                               static_cast<const T *>(a->weight),
                               static_cast<const T *>(a->tail),
                               a->positions,
                               a->rows,
                               a->tokens,
                               a->channels,
                               a->out_stride,
                               a->in_columns,
                               a->width,
                               a->resume };
    if (a->rows > 0)
        DSC_CUDA_LAUNCH((conv_fwd_kernel<T>), grid_size(dsc_div_ceil(a->rows * a->channels, THREADS)), THREADS, 0,
                        at->stream, static_cast<T *>(a->out), of);
    if (a->tail != nullptr)
        DSC_CUDA_LAUNCH((conv_tail_kernel<T>), grid_size(dsc_div_ceil(a->channels, THREADS)), THREADS, 0, at->stream,
                        static_cast<T *>(a->tail), of);
}

template <class T>
__global__ void __launch_bounds__(THREADS)
    conv_bwd_kernel(T *d_in, const T *d_out, const conv_shape<T> of, dsc_columns columns)
{
    const int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (i >= of.rows * of.channels)
        return;
    const int64_t t = i / of.channels, c = i % of.channels, left = of.tokens - 1 - t % of.tokens;
    float sum = 0;
    for (int64_t j = 0; j < of.width && j <= left; j++)
        if (of.before(t + j) >= j)
            sum = sum + to_f32(d_out[(t + j) * of.stride + c]) * of.weight_of(c, j);
    d_in[dsc_columns_at(&columns, t, c)] = element<T>::from(sum);
}

/* A block has 32 channels of one of the K columns of the weight; its warps share out the rows. */
template <class T>
__global__ void __launch_bounds__(THREADS) conv_weight_kernel(float *d_weight, const T *d_out, const conv_shape<T> of)
{
    __shared__ float shared[WARPS][32];
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const int64_t c = static_cast<int64_t>(blockIdx.x) * 32 + lane, j = blockIdx.y;
    float sum = 0;
    if (c < of.channels)
        for (int64_t t = warp; t < of.rows; t += WARPS)
            if (of.before(t) >= j)
                sum = sum + to_f32(d_out[t * of.stride + c]) * of.input_at(t - j, c);
    shared[warp][lane] = sum;
    __syncthreads();
    if (warp != 0 || c >= of.channels)
        return;
    for (int k = 1; k < WARPS; k++)
        sum = sum + shared[k][lane];
    d_weight[c * of.width + of.width - 1 - j] = sum;
}

template <class T> void conv_bwd(const dsc_cuda_launch *at, const dsc_conv_bwd_args *a)
{
    const conv_shape<T> of = { static_cast<const T *>(a->in),
                               static_cast<const T *>(a->weight),
                               nullptr,
                               a->positions,
                               a->rows,
                               a->tokens,
                               a->channels,
                               a->out_stride,
                               a->in_columns,
                               a->width,
                               false };
    const T *d_out = static_cast<const T *>(a->d_out);
    const dim3 grid(grid_size(dsc_div_ceil(a->channels, 32)), static_cast<unsigned>(a->width));
    if (a->d_weight != nullptr)
        DSC_CUDA_LAUNCH((conv_weight_kernel<T>), grid, THREADS, 0, at->stream, a->d_weight, d_out, of);
    if (a->rows > 0)
        DSC_CUDA_LAUNCH((conv_bwd_kernel<T>), grid_size(dsc_div_ceil(a->rows * a->channels, THREADS)), THREADS, 0,
                        at->stream, static_cast<T *>(a->d_in), d_out, of, a->d_in_columns);
}

} // namespace

dsc_status dsc_cuda_run_COPY_COLUMNS(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_copy_columns_args *a = static_cast<const dsc_copy_columns_args *>(args);
    DSC_ASSERT(a->out_columns.width >= 1 && a->in_columns.width >= 1);
    DSC_TRY(dtype_check("COPY_COLUMNS", a->dtype, err));
    DSC_CUDA_FOR_DTYPE(a->dtype, T, copy_columns<T>(at, a));
    return DSC_OK;
}

dsc_status dsc_cuda_run_CONV_FWD(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_conv_fwd_args *a = static_cast<const dsc_conv_fwd_args *>(args);
    DSC_ASSERT(a->width >= 1 && a->width <= DSC_CONV_WIDTH_MAX);
    DSC_ASSERT(!a->resume || a->tail != nullptr);
    DSC_TRY(dtype_check("CONV_FWD", a->dtype, err));
    DSC_CUDA_FOR_DTYPE(a->dtype, T, conv_fwd<T>(at, a));
    return DSC_OK;
}

dsc_status dsc_cuda_run_CONV_BWD(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_conv_bwd_args *a = static_cast<const dsc_conv_bwd_args *>(args);
    DSC_ASSERT(a->width >= 1 && a->width <= DSC_CONV_WIDTH_MAX);
    DSC_TRY(dtype_check("CONV_BWD", a->dtype, err));
    DSC_CUDA_FOR_DTYPE(a->dtype, T, conv_bwd<T>(at, a));
    return DSC_OK;
}
