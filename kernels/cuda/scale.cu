/* scale.cu - a flat array times a number. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/elements.h"
#include "kernels/cuda/launchers.h"

namespace {

template <class T> struct scale_op {
    T *x;
    float factor;
    template <int W> __device__ __forceinline__ void run(int64_t i) const
    {
        float v[W];
        load<W>(v, x + i);
#pragma unroll
        for (int j = 0; j < W; j++)
            v[j] *= factor;
        store<W>(x + i, v);
    }
};

template <class T, bool GRADIENT> struct cap_op {
    T *x;
    const T *capped;
    float factor, cap;
    template <int W> __device__ __forceinline__ void run(int64_t i) const
    {
        float v[W], y[W];
        load<W>(v, x + i);
        if (GRADIENT)
            load<W>(y, capped + i);
#pragma unroll
        for (int j = 0; j < W; j++) {
            const float z = v[j] * factor, t = GRADIENT ? y[j] / cap : tanhf(z / cap);
            v[j] = GRADIENT ? z * (1.0f - t * t) : cap * t;
        }
        store<W>(x + i, v);
    }
};

template <class T, bool GRADIENT> void soft_cap(const dsc_cuda_launch *at, const dsc_scale_args *a)
{
    const cap_op<T, GRADIENT> op = { static_cast<T *>(a->x), static_cast<const T *>(a->capped), a->factor, a->cap };
    each<8>(at, op, a->count, is_aligned(a->x) && is_aligned(a->capped));
}

template <class T> void scale(const dsc_cuda_launch *at, const dsc_scale_args *a)
{
    const scale_op<T> op = { static_cast<T *>(a->x), a->factor };
    if (a->capped != NULL)
        soft_cap<T, true>(at, a);
    else if (a->cap > 0)
        soft_cap<T, false>(at, a);
    else
        each<8>(at, op, a->count, is_aligned(a->x));
}

} // namespace

dsc_status dsc_cuda_run_SCALE(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_scale_args *a = static_cast<const dsc_scale_args *>(args);
    DSC_TRY(dtype_check("SCALE", a->dtype, err));
    DSC_ASSERT(a->cap >= 0 && (a->capped == NULL || a->cap > 0));
    DSC_CUDA_FOR_DTYPE(a->dtype, T, scale<T>(at, a));
    return DSC_OK;
}
