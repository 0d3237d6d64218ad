/* zero_ranges.cu - a block for each range, and the ranges are in the launch. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/elements.h"
#include "kernels/cuda/launchers.h"

namespace {

enum { THREADS = 256 };

__global__ void zero_ranges_kernel(const dsc_zero_ranges_args a)
{
    float *x = a.x + a.first[blockIdx.x];
    const int32_t count = a.count[blockIdx.x];
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < count; i += THREADS)
        x[i] = 0.0f;
}

} // namespace

dsc_status dsc_cuda_run_ZERO_RANGES(const dsc_cuda_launch *at, const void *args, dsc_error *)
{
    const dsc_zero_ranges_args *a = static_cast<const dsc_zero_ranges_args *>(args);
    DSC_ASSERT(a->range_count >= 0 && a->range_count <= DSC_ZERO_RANGES_MAX);
    for (int32_t r = 0; r < a->range_count; r++)
        DSC_ASSERT(a->count[r] >= 0 && a->count[r] <= DSC_ZERO_RANGES_ELEMENTS_MAX);
    if (a->range_count > 0)
        DSC_CUDA_LAUNCH(zero_ranges_kernel, grid_size(a->range_count), THREADS, 0, at->stream, *a);
    return DSC_OK;
}
