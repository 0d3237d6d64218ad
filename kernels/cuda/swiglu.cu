/* swiglu.cu - gated activations and their gradients. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/elements.h"
#include "kernels/cuda/gelu.h"
#include "kernels/cuda/launchers.h"

namespace {

/* Index in gate and up of element i of the dense arrays. */
struct gate_place {
    int64_t cols, stride;
    __device__ __forceinline__ int64_t at(int64_t i) const
    {
        return stride == cols ? i : i / cols * stride + i % cols;
    }
};

template <class T, dsc_activation KIND> struct swiglu_fwd_op {
    T *out;
    const T *gate, *up;
    gate_place place;
    template <int W> __device__ __forceinline__ void run(int64_t i) const
    {
        const int64_t at = place.at(i);
        float g[W], u[W];
        load<W>(g, gate + at);
        load<W>(u, up + at);
#pragma unroll
        for (int j = 0; j < W; j++)
            g[j] = activation_of<KIND, sizeof(T) == 2>(g[j]) * u[j];
        store_fast<W>(out + i, g);
    }
};

template <class T, dsc_activation KIND> struct swiglu_bwd_op {
    T *d_gate, *d_up, *out;
    const T *d_out, *gate, *up;
    gate_place place;
    template <int W> __device__ __forceinline__ void run(int64_t i) const
    {
        const int64_t at = place.at(i);
        float g[W], u[W], d[W], y[W];
        load<W>(g, gate + at);
        load<W>(u, up + at);
        load<W>(d, d_out + i);
#pragma unroll
        for (int j = 0; j < W; j++) {
            const float value = activation_of<KIND, sizeof(T) == 2>(g[j]);
            y[j] = value * u[j];
            g[j] = d[j] * u[j] * activation_slope<KIND, sizeof(T) == 2>(g[j]);
            u[j] = d[j] * value;
        }
        store_fast<W>(d_gate + at, g);
        store_fast<W>(d_up + at, u);
        if (out != NULL)
            store_fast<W>(out + i, y);
    }
};

template <class T, dsc_activation KIND> void fwd(const dsc_cuda_launch *at, const dsc_swiglu_fwd_args *a)
{
    const swiglu_fwd_op<T, KIND> op = { static_cast<T *>(a->out),
                                        static_cast<const T *>(a->gate),
                                        static_cast<const T *>(a->up),
                                        { a->cols, a->in_stride } };
    each<8>(at, op, a->rows * a->cols, a->cols % 8 == 0 && a->in_stride % 8 == 0 && is_aligned(a->out) &&
                                           is_aligned(a->gate) && is_aligned(a->up));
}

template <class T, dsc_activation KIND> void bwd(const dsc_cuda_launch *at, const dsc_swiglu_bwd_args *a)
{
    const swiglu_bwd_op<T, KIND> op = { static_cast<T *>(a->d_gate),     static_cast<T *>(a->d_up),
                                        static_cast<T *>(a->out),        static_cast<const T *>(a->d_out),
                                        static_cast<const T *>(a->gate), static_cast<const T *>(a->up),
                                        { a->cols, a->in_stride } };
    each<8>(at, op, a->rows * a->cols, a->cols % 8 == 0 && a->in_stride % 8 == 0 && is_aligned(a->d_gate) &&
                                           is_aligned(a->d_up) && is_aligned(a->out) && is_aligned(a->d_out) &&
                                           is_aligned(a->gate) && is_aligned(a->up));
}

template <dsc_activation KIND> void fwd_any(const dsc_cuda_launch *at, const dsc_swiglu_fwd_args *a)
{
    DSC_CUDA_FOR_DTYPE(a->dtype, T, (fwd<T, KIND>(at, a)));
}

template <dsc_activation KIND> void bwd_any(const dsc_cuda_launch *at, const dsc_swiglu_bwd_args *a)
{
    DSC_CUDA_FOR_DTYPE(a->dtype, T, (bwd<T, KIND>(at, a)));
}

} // namespace

dsc_status dsc_cuda_run_SWIGLU_FWD(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_swiglu_fwd_args *a = static_cast<const dsc_swiglu_fwd_args *>(args);
    DSC_TRY(dtype_check("SWIGLU_FWD", a->dtype, err));
    DSC_ASSERT(a->cols >= 1 && a->in_stride >= a->cols);
    DSC_ASSERT(static_cast<uint32_t>(a->kind) < DSC_ACTIVATIONS);
    DSC_CUDA_FOR_ACTIVATION(a->kind, fwd_any, at, a);
    return DSC_OK;
}

dsc_status dsc_cuda_run_SWIGLU_BWD(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_swiglu_bwd_args *a = static_cast<const dsc_swiglu_bwd_args *>(args);
    DSC_TRY(dtype_check("SWIGLU_BWD", a->dtype, err));
    DSC_ASSERT(a->cols >= 1 && a->in_stride >= a->cols);
    DSC_ASSERT(static_cast<uint32_t>(a->kind) < DSC_ACTIVATIONS);
    DSC_CUDA_FOR_ACTIVATION(a->kind, bwd_any, at, a);
    return DSC_OK;
}
