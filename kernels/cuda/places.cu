/* places.cu - places of tokens other than padding: a warp a sample. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/elements.h"
#include "kernels/cuda/launchers.h"

namespace
{

enum { LANES = 32 };

__global__ void __launch_bounds__(LANES)
    places_kernel(int32_t *places, const int32_t *tokens, int64_t sequence, int32_t padding)
{
    const int lane = static_cast<int>(threadIdx.x);
    const int64_t first = static_cast<int64_t>(blockIdx.x) * sequence;
    int32_t before = padding;
    for (int64_t start = 0; start < sequence; start += LANES) { /* all lanes take part in each round */
        const int64_t t = start + lane;
        const bool counts = t < sequence && tokens[first + t] != padding;
        int32_t up_to = counts ? 1 : 0;
#pragma unroll
        for (int step = 1; step < LANES; step *= 2) {
            const int32_t below = __shfl_up_sync(0xffffffffu, up_to, step);
            up_to += lane >= step ? below : 0;
        }
        if (t < sequence)
            places[first + t] = counts ? before + up_to : padding;
        before += __shfl_sync(0xffffffffu, up_to, LANES - 1);
    }
}

} // namespace

dsc_status dsc_cuda_run_PLACES(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_places_args *a = static_cast<const dsc_places_args *>(args);
    (void)err;
    DSC_ASSERT(a->sequence >= 1 && a->sequence < 1 << 30 && a->padding >= 0);
    if (a->batch > 0)
        DSC_CUDA_LAUNCH(places_kernel, grid_size(a->batch), LANES, 0, at->stream, a->places, a->tokens, a->sequence,
                        a->padding);
    return DSC_OK;
}
