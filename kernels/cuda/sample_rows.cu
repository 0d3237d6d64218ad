/* sample_rows.cu - rows of samples, and patches of pictures: a block a row. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/elements.h"
#include "kernels/cuda/launchers.h"

namespace
{

enum { THREADS = 256 };

template <class T>
__global__ void put_kernel(T *out, const T *in, int64_t rows, int64_t channels, int64_t out_apart, int64_t in_apart,
                           bool same, float factor)
{
    const int64_t s = blockIdx.x / rows, r = blockIdx.x % rows;
    T *to = out + (s * out_apart + r) * channels;
    const T *from = in + (s * in_apart + (same ? 0 : r)) * channels;
    for (int64_t c = threadIdx.x; c < channels; c += blockDim.x)
        to[c] = element<T>::from(in != NULL ? factor * to_f32(from[c]) : 0.0f);
}

/* The y dimension of the grid has the blocks of a row's columns. */
template <class T>
__global__ void sum_kernel(T *out, const T *in, int64_t rows, int64_t channels, int64_t out_apart, int64_t in_apart,
                           float factor)
{
    const int64_t blocks = (channels + THREADS - 1) / THREADS;
    const int64_t s = blockIdx.x / blocks, c = blockIdx.x % blocks * THREADS + threadIdx.x;
    const T *from = in + s * in_apart * channels + c;
    float total = 0;
    if (c >= channels)
        return;
    for (int64_t r = 0; r < rows; r++)
        total += to_f32(from[r * channels]);
    out[s * out_apart * channels + c] = element<T>::from(factor * total);
}

/* As dsc_patches_pixel: a block has patch blockIdx.x of all samples. */
template <class T>
__global__ void patches_kernel(T *out, const float *pixels, int64_t planes, int64_t height, int64_t width,
                               int64_t patch)
{
    const int64_t across = width / patch, count = height / patch * across, area = patch * patch;
    const int64_t s = blockIdx.x / count, p = blockIdx.x % count, channels = planes * area;
    const float *corner = pixels + (s * planes * height + p / across * patch) * width + p % across * patch;
    for (int64_t c = threadIdx.x; c < channels; c += blockDim.x)
        out[blockIdx.x * channels + c] =
            element<T>::from(corner[(c / area * height + c % area / patch) * width + c % patch]);
}

template <class T> void put(const dsc_cuda_launch *at, const dsc_rows_args *a)
{
    DSC_CUDA_LAUNCH((put_kernel<T>), grid_size(a->samples * a->rows), threads_for(a->channels, THREADS), 0, at->stream,
                    static_cast<T *>(a->out), static_cast<const T *>(a->in), a->rows, a->channels, a->out_apart,
                    a->in_apart, a->same, a->factor);
}

template <class T> void sum(const dsc_cuda_launch *at, const dsc_rows_args *a)
{
    DSC_CUDA_LAUNCH((sum_kernel<T>), grid_size(a->samples * dsc_div_ceil(a->channels, THREADS)), THREADS, 0, at->stream,
                    static_cast<T *>(a->out), static_cast<const T *>(a->in), a->rows, a->channels, a->out_apart,
                    a->in_apart, a->factor);
}

template <class T> void cut(const dsc_cuda_launch *at, const dsc_patches_args *a)
{
    DSC_CUDA_LAUNCH((patches_kernel<T>), grid_size(a->samples * dsc_patches_count(a)),
                    threads_for(dsc_patches_channels(a), THREADS), 0, at->stream, static_cast<T *>(a->out), a->pixels,
                    a->planes, a->height, a->width, a->patch);
}

} // namespace

dsc_status dsc_cuda_run_ROWS_PUT(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_rows_args *a = static_cast<const dsc_rows_args *>(args);
    DSC_TRY(dtype_check("ROWS_PUT", a->dtype, err));
    if (a->samples * a->rows > 0)
        DSC_CUDA_FOR_DTYPE(a->dtype, T, put<T>(at, a));
    return DSC_OK;
}

dsc_status dsc_cuda_run_ROWS_SUM(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_rows_args *a = static_cast<const dsc_rows_args *>(args);
    DSC_TRY(dtype_check("ROWS_SUM", a->dtype, err));
    DSC_ASSERT(a->in != NULL);
    if (a->samples > 0)
        DSC_CUDA_FOR_DTYPE(a->dtype, T, sum<T>(at, a));
    return DSC_OK;
}

dsc_status dsc_cuda_run_PATCHES(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_patches_args *a = static_cast<const dsc_patches_args *>(args);
    DSC_TRY(dtype_check("PATCHES", a->dtype, err));
    DSC_ASSERT(a->patch >= 1);
    if (a->samples * dsc_patches_count(a) > 0)
        DSC_CUDA_FOR_DTYPE(a->dtype, T, cut<T>(at, a));
    return DSC_OK;
}
