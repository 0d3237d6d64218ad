/* trial.h - shared by the trials that compare two kernels on the same input before one is chosen.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CUDA_TRIAL_H
#define DSC_KERNELS_CUDA_TRIAL_H

#include "base/clock.h"
#include "kernels/cuda/measure.h"

namespace
{

enum { COMPARE_BLOCKS = 64, COMPARE_THREADS = 256 };

__device__ __forceinline__ unsigned is_far(float a, float b, float near)
{
    return !(fabsf(a - b) <= near); /* NaN is far */
}

/* Integers: the order in which blocks add does not matter. */
__device__ __forceinline__ void add_found(unsigned *found, unsigned mine)
{
    if (mine > 0)
        atomicAdd(found, mine);
}

/* Bits of words that are the results, poison included. */
__global__ void compare_words_kernel(const uint16_t *x, const uint16_t *y, int64_t count, unsigned *found)
{
    const int64_t step = static_cast<int64_t>(gridDim.x) * COMPARE_THREADS;
    unsigned mine = 0;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * COMPARE_THREADS + threadIdx.x; i < count; i += step)
        mine += x[i] != y[i];
    add_found(found, mine);
}

/* The part of the trial's memory for `count` elements; NULL: for none. */
template <class T> T *cut(char **at, int64_t count)
{
    T *const x = reinterpret_cast<T *>(*at);
    *at += dsc_align_up(count * static_cast<int64_t>(sizeof(T)), 256);
    return count > 0 ? x : NULL;
}

/* A kernel that a card, driver or compiler breaks may never end: its user gets a line instead. */
constexpr int64_t TRIAL_WAIT_NS = INT64_C(10000000000), TRIAL_POLL_NS = INT64_C(20000);

/* `of`: "ATTENTION"; `kernel`: its name; `without`: how a run goes on without it, or "". */
inline dsc_status trial_wait(cudaStream_t stream, const char *of, const char *kernel, const char *without,
                             dsc_error *err)
{
    const int64_t start_ns = dsc_clock_ns();
    cudaError_t error;
    while ((error = cudaStreamQuery(stream)) == cudaErrorNotReady) {
        (void)cudaGetLastError();
        if (dsc_clock_ns() - start_ns > TRIAL_WAIT_NS)
            return DSC_FAIL(err, DSC_ERR_DEVICE, of, "the kernel %s has not ended within 10 s%s", kernel, without);
        dsc_clock_sleep_ns(TRIAL_POLL_NS);
    }
    if (error == cudaSuccess)
        return DSC_OK;
    (void)cudaGetLastError();
    return DSC_FAIL(err, DSC_ERR_DEVICE, of, "the kernel %s: %s%s", kernel, cudaGetErrorString(error), without);
}

/* The count of the comparisons since `found` was set to 0. */
inline dsc_status fetch_found(const char *of, cudaStream_t stream, const unsigned *found, unsigned *out, dsc_error *err)
{
    DSC_TRY(measure_try(of, cudaGetLastError(), "a launch", err));
    DSC_TRY(measure_try(of, cudaMemcpyAsync(out, found, sizeof *out, cudaMemcpyDeviceToHost, stream), "a copy", err));
    return measure_try(of, cudaStreamSynchronize(stream), "a kernel", err);
}

} // namespace

#endif
