/* average.cu - moving averages of flat arrays. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/average.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/launchers.h"

namespace
{

struct average_op {
    float *average;
    const float *value;
    float share;
    template <int W> __device__ __forceinline__ void run(int64_t i) const
    {
        float a[W], v[W];
        load<W>(a, average + i);
        load<W>(v, value + i);
#pragma unroll
        for (int j = 0; j < W; j++)
            a[j] = share == 1.0f ? v[j] : a[j] + share * (v[j] - a[j]);
        store<W>(average + i, a);
    }
};

} // namespace

dsc_status dsc_cuda_run_AVERAGE(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    (void)err;
    const dsc_average_args *a = static_cast<const dsc_average_args *>(args);
    DSC_ASSERT(a->count >= 0 && a->share >= 0 && a->share <= 1);
    const average_op op = { a->average, a->value, a->share };
    each<4>(at, op, a->count, is_aligned(a->average) && is_aligned(a->value));
    return DSC_OK;
}
