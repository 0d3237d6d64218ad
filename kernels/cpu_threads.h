/* cpu_threads.h - floating-point mode and number of a thread of a compute pool.
 *
 * The one parallel region is dsc_thread_pool_run's (thread_pool.c). It calls dsc_fp_strict() first: the threads of an
 * OpenMP pool belong to the host program and may have been started with flush-to-zero on, which changes bits.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CPU_THREADS_H
#define DSC_KERNELS_CPU_THREADS_H

#include <omp.h>

#include "kernels/kernels.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

enum { DSC_MXCSR_DAZ = 0x0040, DSC_MXCSR_ROUNDING = 0x6000, DSC_MXCSR_FTZ = 0x8000 };
#define DSC_MXCSR_MODE ((uint32_t)(DSC_MXCSR_DAZ | DSC_MXCSR_ROUNDING | DSC_MXCSR_FTZ))

/* Turns flush-to-zero and denormals-are-zero off and rounding to nearest on, on the calling thread; returns the old
 * control word. */
static inline uint32_t dsc_fp_strict(void)
{
#if defined(__x86_64__)
    const uint32_t old = _mm_getcsr();
    if ((old & DSC_MXCSR_MODE) != 0)
        _mm_setcsr(old & ~DSC_MXCSR_MODE);
    return old;
#else
    return 0;
#endif
}

/* Gives the calling thread its control word back (status flags as they are now). */
static inline void dsc_fp_restore(uint32_t old)
{
#if defined(__x86_64__)
    if ((old & DSC_MXCSR_MODE) != 0)
        _mm_setcsr((_mm_getcsr() & ~DSC_MXCSR_MODE) | (old & DSC_MXCSR_MODE));
#else
    (void)old;
#endif
}

static inline int32_t dsc_thread_index(void) { return omp_get_thread_num(); }

/* Threads of the region this is called in; it can be fewer than asked for. */
static inline int32_t dsc_thread_count(void) { return omp_get_num_threads(); }

#endif
