/* preference.cu - a block has a pair: its threads are the lanes of both sums. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/elements.h"
#include "kernels/cuda/launchers.h"
#include "kernels/preference.h"

namespace
{

enum { LANES = DSC_PREFERENCE_LANES };

struct pairs {
    float *weights;
    const float *losses;
    const double *reference;
    int64_t items;
    double beta, smoothing;
};

/* Minus the log-probability of a sequence, in every thread; `lane` is shared memory. */
__device__ double sequence_sum(const float *losses, int64_t items, double *lane)
{
    const int t = static_cast<int>(threadIdx.x);
    double sum = 0;
    for (int64_t i = t; i < items; i += LANES)
        sum += static_cast<double>(losses[i]);
    lane[t] = sum;
    __syncthreads();
#pragma unroll 1
    for (int half = LANES / 2; half > 0; half /= 2) {
        if (t < half)
            lane[t] += lane[t + half];
        __syncthreads();
    }
    return lane[0];
}

__global__ void __launch_bounds__(LANES) preference_kernel(const pairs a)
{
    __shared__ double lane[2][LANES];
    const int64_t pair = blockIdx.x, at = 2 * pair * a.items;
    const double chosen = -sequence_sum(a.losses + at, a.items, lane[0]) - a.reference[2 * pair];
    const double rejected = -sequence_sum(a.losses + at + a.items, a.items, lane[1]) - a.reference[2 * pair + 1];
    const double x = a.beta * (chosen - rejected);
    const double weight = a.beta * ((1 - a.smoothing) / (1 + exp(x)) - a.smoothing / (1 + exp(-x)));
    const float rounded = static_cast<float>(weight);
    for (int64_t i = static_cast<int64_t>(threadIdx.x); i < a.items; i += LANES) {
        a.weights[at + i] = rounded;
        a.weights[at + a.items + i] = -rounded;
    }
}

} // namespace

dsc_status dsc_cuda_run_PREFERENCE(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_preference_args *a = static_cast<const dsc_preference_args *>(args);
    DSC_ASSERT(a->pairs >= 0 && a->items >= 1);
    if (a->pairs == 0)
        return DSC_OK;
    const pairs all = { a->weights, a->losses, a->reference, a->items, a->beta, a->smoothing };
    DSC_CUDA_LAUNCH(preference_kernel, grid_size(a->pairs), LANES, 0, at->stream, all);
    return DSC_OK;
}
