/* measure.h - shared by the files that choose by time: random operands, a stopwatch, and how much faster counts.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CUDA_MEASURE_H
#define DSC_KERNELS_CUDA_MEASURE_H

#include "kernels/cuda/elements.h"

namespace {

enum { MEASURE_ROUNDS = 5 };
/* Another than the first choice must be this much faster, or the difference is noise. */
constexpr float MEASURE_WORTH = 0.97f;

__device__ __forceinline__ uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* In [-1, 1), in steps of 2^-23. */
__device__ __forceinline__ float random_of(uint64_t number)
{
    return static_cast<float>(static_cast<uint32_t>(mix(number) >> 40)) * (1.0f / 8388608.0f) - 1.0f;
}

/* The time between two points of a stream. */
typedef struct stopwatch { cudaEvent_t begin, end; } stopwatch;

inline void watch_close(stopwatch *w)
{
    for (cudaEvent_t event : { w->begin, w->end })
        if (event != NULL)
            (void)cudaEventDestroy(event);
}

/* To be closed also when it fails. */
inline cudaError_t watch_open(stopwatch *w)
{
    *w = {};
    const cudaError_t error = cudaEventCreate(&w->begin);
    return error == cudaSuccess ? cudaEventCreate(&w->end) : error;
}

inline cudaError_t watch_start(const stopwatch *w, cudaStream_t stream) { return cudaEventRecord(w->begin, stream); }

inline cudaError_t watch_stop(const stopwatch *w, cudaStream_t stream, float *ms)
{
    cudaError_t error = cudaEventRecord(w->end, stream);
    if (error == cudaSuccess)
        error = cudaEventSynchronize(w->end);
    return error == cudaSuccess ? cudaEventElapsedTime(ms, w->begin, w->end) : error;
}

/* `of`: what is measured. */
inline dsc_status measure_try(const char *of, cudaError_t error, const char *what, dsc_error *err)
{
    if (error == cudaSuccess)
        return DSC_OK;
    (void)cudaGetLastError();
    return DSC_FAIL(err, error == cudaErrorMemoryAllocation ? DSC_ERR_NOMEM : DSC_ERR_DEVICE, of,
                    "measuring plans: %s: %s", what, cudaGetErrorString(error));
}

} // namespace

#endif
