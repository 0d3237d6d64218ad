/* fingerprint.cu - each block adds its words' sum to the result. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/elements.h"
#include "kernels/cuda/launchers.h"
#include "kernels/fingerprint.h"

namespace
{

enum { THREADS = 256, WORDS = 16 }; /* of a thread */

typedef unsigned long long sum_word; /* of atomicAdd */

__global__ void fingerprint_kernel(uint64_t *sum, const uint32_t *x, int64_t word_count)
{
    __shared__ sum_word all;
    if (threadIdx.x == 0)
        all = 0;
    __syncthreads();
    const int64_t first = static_cast<int64_t>(blockIdx.x) * (THREADS * WORDS);
    sum_word own = 0;
    for (int j = 0; j < WORDS; j++) {
        const int64_t i = first + static_cast<int64_t>(j) * THREADS + threadIdx.x;
        if (i < word_count)
            own += dsc_fingerprint_mix(x[i], i);
    }
    atomicAdd(&all, own);
    __syncthreads();
    if (threadIdx.x == 0)
        atomicAdd(reinterpret_cast<sum_word *>(sum), all);
}

} // namespace

dsc_status dsc_cuda_run_FINGERPRINT(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    (void)err;
    const dsc_fingerprint_args *a = static_cast<const dsc_fingerprint_args *>(args);
    DSC_ASSERT(a->word_count >= 0);
    if (a->word_count == 0)
        return DSC_OK;
    const unsigned blocks = grid_size(dsc_div_ceil(a->word_count, static_cast<int64_t>(THREADS * WORDS)));
    DSC_CUDA_LAUNCH(fingerprint_kernel, blocks, THREADS, 0, at->stream, a->sum, a->x, a->word_count);
    return DSC_OK;
}
