/* philox_avx2.h - eight Philox blocks at once, two a register. Include only from *_avx2.c.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CPU_PHILOX_AVX2_H
#define DSC_KERNELS_CPU_PHILOX_AVX2_H

#include <immintrin.h>

typedef __m256i wide;
#define WIDE(op) _mm256_##op

static inline __attribute__((always_inline)) wide wide_set64(long long x) { return _mm256_set1_epi64x(x); }
static inline __attribute__((always_inline)) wide wide_xor(wide a, wide b) { return _mm256_xor_si256(a, b); }
/* Even lanes of a, odd lanes of b. */
static inline __attribute__((always_inline)) wide wide_odd_lanes(wide a, wide b)
{
    return _mm256_blend_epi32(a, b, 0xaa);
}
/* Transposing words into blocks puts lane 4 q + p into part q of register p: so that lane has block 2 p + q. */
static inline __attribute__((always_inline)) wide wide_order(void)
{
    return _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
}

#include "kernels/cpu/philox_wide.h"

#endif
