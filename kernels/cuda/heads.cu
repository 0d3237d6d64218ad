/* heads.cu - heads put together and taken apart, a block a row. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/elements.h"
#include "kernels/cuda/launchers.h"

namespace
{

enum { THREADS = 256 };

template <class T> struct heads_arrays {
    T *whole, *own, *shared;
    int64_t own_stride, own_apart, shared_stride;
    int32_t heads, width, own_width, shared_width;
};

template <class T> __global__ void __launch_bounds__(THREADS) together_kernel(const heads_arrays<T> a)
{
    const int64_t r = blockIdx.x;
    const int32_t own = a.own_width < a.width ? a.own_width : a.width, step = static_cast<int32_t>(blockDim.x);
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < a.heads * a.width; i += step) {
        const int32_t h = i / a.width, c = i % a.width;
        T x = element<T>::from(0.0f);
        if (c < own)
            x = a.own[r * a.own_stride + h * a.own_apart + c];
        else if (c < own + a.shared_width)
            x = a.shared[r * a.shared_stride + c - own];
        a.whole[r * a.heads * a.width + i] = x;
    }
}

template <class T> __global__ void __launch_bounds__(THREADS) apart_kernel(const heads_arrays<T> a)
{
    const int64_t r = blockIdx.x;
    const int32_t first = static_cast<int32_t>(threadIdx.x), step = static_cast<int32_t>(blockDim.x);
    const T *whole = a.whole + r * a.heads * a.width;
    for (int32_t i = first; i < a.heads * a.own_width; i += step) {
        const int32_t h = i / a.own_width, c = i % a.own_width;
        a.own[r * a.own_stride + h * a.own_apart + c] = c < a.width ? whole[h * a.width + c] : element<T>::from(0.0f);
    }
    for (int32_t c = first; c < a.shared_width; c += step) {
        float sum = 0;
        for (int32_t h = 0; h < a.heads; h++)
            sum += to_f32(whole[h * a.width + a.own_width + c]);
        a.shared[r * a.shared_stride + c] = element<T>::from(sum);
    }
}

template <class T> void run(const dsc_cuda_launch *at, const dsc_heads_args *a, bool back)
{
    const heads_arrays<T> arrays = { static_cast<T *>(a->whole), static_cast<T *>(a->own), static_cast<T *>(a->shared),
                                     a->own_stride, a->own_apart, a->shared_stride, a->heads, a->width, a->own_width,
                                     a->shared_width };
    const unsigned threads = threads_for(static_cast<int64_t>(a->heads) * a->width, THREADS);
    if (back)
        DSC_CUDA_LAUNCH((apart_kernel<T>), grid_size(a->rows), threads, 0, at->stream, arrays);
    else
        DSC_CUDA_LAUNCH((together_kernel<T>), grid_size(a->rows), threads, 0, at->stream, arrays);
}

dsc_status heads(const dsc_cuda_launch *at, const dsc_heads_args *a, bool back, const char *name, dsc_error *err)
{
    DSC_TRY(dtype_check(name, a->dtype, err));
    DSC_ASSERT(a->rows >= 0);
    DSC_ASSERT(dsc_heads_are_valid(a));
    if (a->rows == 0)
        return DSC_OK;
    DSC_CUDA_FOR_DTYPE(a->dtype, T, run<T>(at, a, back));
    return DSC_OK;
}

} // namespace

dsc_status dsc_cuda_run_HEADS_FWD(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    return heads(at, static_cast<const dsc_heads_args *>(args), false, "HEADS_FWD", err);
}

dsc_status dsc_cuda_run_HEADS_BWD(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    return heads(at, static_cast<const dsc_heads_args *>(args), true, "HEADS_BWD", err);
}
