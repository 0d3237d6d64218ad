/* gelu.cu - GELU and its gradient over flat arrays. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/elements.h"
#include "kernels/cuda/gelu.h"
#include "kernels/cuda/launchers.h"

namespace {

template <class T> struct gelu_fwd_op {
    T *out;
    const T *in;
    template <int W> __device__ __forceinline__ void run(int64_t i) const
    {
        float x[W];
        load<W>(x, in + i);
#pragma unroll
        for (int j = 0; j < W; j++)
            x[j] = gelu_of<sizeof(T) == 2>(x[j]);
        store<W>(out + i, x);
    }
};

template <class T> struct gelu_bwd_op {
    T *d_in;
    const T *d_out, *in;
    template <int W> __device__ __forceinline__ void run(int64_t i) const
    {
        float d[W], x[W];
        load<W>(d, d_out + i);
        load<W>(x, in + i);
#pragma unroll
        for (int j = 0; j < W; j++)
            d[j] *= gelu_slope<sizeof(T) == 2>(x[j]);
        store<W>(d_in + i, d);
    }
};

template <class T> void fwd(const dsc_cuda_launch *at, const dsc_gelu_fwd_args *a)
{
    const gelu_fwd_op<T> op = { static_cast<T *>(a->out), static_cast<const T *>(a->in) };
    each<8>(at, op, a->count, is_aligned(a->out) && is_aligned(a->in));
}

template <class T> void bwd(const dsc_cuda_launch *at, const dsc_gelu_bwd_args *a)
{
    const gelu_bwd_op<T> op = { static_cast<T *>(a->d_in), static_cast<const T *>(a->d_out),
                                static_cast<const T *>(a->in) };
    each<8>(at, op, a->count, is_aligned(a->d_in) && is_aligned(a->d_out) && is_aligned(a->in));
}

} // namespace

dsc_status dsc_cuda_run_GELU_FWD(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_gelu_fwd_args *a = static_cast<const dsc_gelu_fwd_args *>(args);
    DSC_TRY(dtype_check("GELU_FWD", a->dtype, err));
    a->dtype == DSC_BF16 ? fwd<uint16_t>(at, a) : fwd<float>(at, a);
    return DSC_OK;
}

dsc_status dsc_cuda_run_GELU_BWD(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_gelu_bwd_args *a = static_cast<const dsc_gelu_bwd_args *>(args);
    DSC_TRY(dtype_check("GELU_BWD", a->dtype, err));
    a->dtype == DSC_BF16 ? bwd<uint16_t>(at, a) : bwd<float>(at, a);
    return DSC_OK;
}
