/* gelu.cu - activations and their gradients over flat arrays. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/elements.h"
#include "kernels/cuda/gelu.h"
#include "kernels/cuda/launchers.h"

namespace {

template <class T, dsc_activation KIND> struct gelu_fwd_op {
    T *out;
    const T *in;
    template <int W> __device__ __forceinline__ void run(int64_t i) const
    {
        float x[W];
        load<W>(x, in + i);
#pragma unroll
        for (int j = 0; j < W; j++)
            x[j] = activation_of<KIND, sizeof(T) == 2>(x[j]);
        store_fast<W>(out + i, x);
    }
};

template <class T, dsc_activation KIND> struct gelu_bwd_op {
    T *d_in;
    const T *d_out, *in;
    template <int W> __device__ __forceinline__ void run(int64_t i) const
    {
        float d[W], x[W];
        load<W>(d, d_out + i);
        load<W>(x, in + i);
#pragma unroll
        for (int j = 0; j < W; j++)
            d[j] *= activation_slope<KIND, sizeof(T) == 2>(x[j]);
        store_fast<W>(d_in + i, d);
    }
};

template <class T, dsc_activation KIND> void fwd(const dsc_cuda_launch *at, const dsc_gelu_fwd_args *a)
{
    const gelu_fwd_op<T, KIND> op = { static_cast<T *>(a->out), static_cast<const T *>(a->in) };
    each<8>(at, op, a->count, is_aligned(a->out) && is_aligned(a->in));
}

template <class T, dsc_activation KIND> void bwd(const dsc_cuda_launch *at, const dsc_gelu_bwd_args *a)
{
    const gelu_bwd_op<T, KIND> op = { static_cast<T *>(a->d_in), static_cast<const T *>(a->d_out),
                                static_cast<const T *>(a->in) };
    each<8>(at, op, a->count, is_aligned(a->d_in) && is_aligned(a->d_out) && is_aligned(a->in));
}

template <dsc_activation KIND> void fwd_any(const dsc_cuda_launch *at, const dsc_gelu_fwd_args *a)
{
    DSC_CUDA_FOR_DTYPE(a->dtype, T, fwd<T, KIND>(at, a));
}

template <dsc_activation KIND> void bwd_any(const dsc_cuda_launch *at, const dsc_gelu_bwd_args *a)
{
    DSC_CUDA_FOR_DTYPE(a->dtype, T, bwd<T, KIND>(at, a));
}

} // namespace

dsc_status dsc_cuda_run_GELU_FWD(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_gelu_fwd_args *a = static_cast<const dsc_gelu_fwd_args *>(args);
    DSC_TRY(dtype_check("GELU_FWD", a->dtype, err));
    DSC_ASSERT(static_cast<uint32_t>(a->kind) < DSC_ACTIVATIONS);
    DSC_CUDA_FOR_ACTIVATION(a->kind, fwd_any, at, a);
    return DSC_OK;
}

dsc_status dsc_cuda_run_GELU_BWD(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_gelu_bwd_args *a = static_cast<const dsc_gelu_bwd_args *>(args);
    DSC_TRY(dtype_check("GELU_BWD", a->dtype, err));
    DSC_ASSERT(static_cast<uint32_t>(a->kind) < DSC_ACTIVATIONS);
    DSC_CUDA_FOR_ACTIVATION(a->kind, bwd_any, at, a);
    return DSC_OK;
}
