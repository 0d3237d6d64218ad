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

template <class T> void scale(const dsc_cuda_launch *at, const dsc_scale_args *a)
{
    const scale_op<T> op = { static_cast<T *>(a->x), a->factor };
    each<8>(at, op, a->count, is_aligned(a->x));
}

} // namespace

dsc_status dsc_cuda_run_SCALE(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_scale_args *a = static_cast<const dsc_scale_args *>(args);
    DSC_TRY(dtype_check("SCALE", a->dtype, err));
    DSC_CUDA_FOR_DTYPE(a->dtype, T, scale<T>(at, a));
    return DSC_OK;
}
