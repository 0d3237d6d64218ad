/* mean_rows.cu - a thread adds the rows of a channel, in their order. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/elements.h"
#include "kernels/cuda/launchers.h"
#include "kernels/mean_rows.h"

namespace
{

enum { THREADS = 256 };

template <class T>
__global__ void __launch_bounds__(THREADS)
    forward_kernel(T *some, const T *all, const int32_t *last, int64_t batch, int64_t tokens, int64_t channels)
{
    const int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x, b = i / channels;
    if (b >= batch)
        return;
    const T *x = all + b * tokens * channels + i % channels;
    const int32_t count = last[b] + 1;
    float sum = 0;
    for (int32_t t = 0; t < count; t++, x += channels)
        sum += to_f32(*x);
    some[i] = element<T>::from(sum / static_cast<float>(count));
}

template <class T>
__global__ void __launch_bounds__(THREADS)
    backward_kernel(T *all, const T *some, const int32_t *last, int64_t rows, int64_t tokens, int64_t channels)
{
    const int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x, row = i / channels;
    if (row >= rows)
        return;
    const int64_t b = row / tokens;
    const int32_t count = last[b] + 1;
    const float share = to_f32(some[b * channels + i % channels]) / static_cast<float>(count);
    all[i] = element<T>::from(row % tokens < count ? share : 0.0f);
}

template <class T> void run(const dsc_cuda_launch *at, const dsc_mean_rows_args *a, bool back)
{
    const int64_t rows = back ? a->batch * a->tokens : a->batch;
    const unsigned blocks = grid_size(dsc_div_ceil(rows * a->channels, THREADS));
    T *const all = static_cast<T *>(a->all), *const some = static_cast<T *>(a->some);
    if (back)
        DSC_CUDA_LAUNCH((backward_kernel<T>), blocks, THREADS, 0, at->stream, all, some, a->last, rows, a->tokens,
                        a->channels);
    else
        DSC_CUDA_LAUNCH((forward_kernel<T>), blocks, THREADS, 0, at->stream, some, all, a->last, rows, a->tokens,
                        a->channels);
}

dsc_status mean_rows(const dsc_cuda_launch *at, const dsc_mean_rows_args *a, bool back, const char *name,
                     dsc_error *err)
{
    DSC_TRY(dtype_check(name, a->dtype, err));
    DSC_ASSERT(a->tokens >= 1 && a->channels >= 1);
    if (a->batch > 0)
        DSC_CUDA_FOR_DTYPE(a->dtype, T, run<T>(at, a, back));
    return DSC_OK;
}

} // namespace

dsc_status dsc_cuda_run_MEAN_ROWS_FWD(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    return mean_rows(at, static_cast<const dsc_mean_rows_args *>(args), false, "MEAN_ROWS_FWD", err);
}

dsc_status dsc_cuda_run_MEAN_ROWS_BWD(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    return mean_rows(at, static_cast<const dsc_mean_rows_args *>(args), true, "MEAN_ROWS_BWD", err);
}
