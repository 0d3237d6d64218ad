/* fingerprint.h - a 64-bit number of an array's bits: ranks compare copies with it, and a rank its repeated results.
 *
 * Each word is mixed with its position by a bijection and the results are added modulo 2^64. So the order of additions
 * does not matter, and two arrays that differ in one word always differ in their sums.
 * reference: cpu/fingerprint.c; on GPUs: cuda/fingerprint.cu   check: tests/checkkern/fingerprint.c
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_FINGERPRINT_H
#define DSC_KERNELS_FINGERPRINT_H
#include <dsc/types.h>
#ifdef __CUDACC__
#define DSC_FINGERPRINT_FN static __host__ __device__ __forceinline__
#else
#define DSC_FINGERPRINT_FN static inline
#endif
#ifdef __cplusplus
extern "C" {
#endif

/* *sum += the mixed words of x[word_count], modulo 2^64. x is aligned to its words. */
typedef struct dsc_fingerprint_args {
    uint64_t *sum;
    const uint32_t *x;
    int64_t word_count;
} dsc_fingerprint_args;

/* Bijective in `word` for a fixed `place`. The constants are those of the finalizer of SplitMix64. */
DSC_FINGERPRINT_FN uint64_t dsc_fingerprint_mix(uint32_t word, int64_t place)
{
    uint64_t h = ((uint64_t)place << 32 ^ (uint64_t)place >> 32) ^ word;
    h = (h ^ h >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    h = (h ^ h >> 27) * UINT64_C(0x94d049bb133111eb);
    return h ^ h >> 31;
}

#ifdef __cplusplus
}
#endif
#endif
