/* philox_avx512.h - sixteen Philox blocks at once, four a register. Include only from *_avx512.c.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CPU_PHILOX_AVX512_H
#define DSC_KERNELS_CPU_PHILOX_AVX512_H

#include <immintrin.h>

typedef __m512i wide;
#define WIDE(op) _mm512_##op

static inline __attribute__((always_inline)) wide wide_set64(long long x) { return _mm512_set1_epi64(x); }
static inline __attribute__((always_inline)) wide wide_xor(wide a, wide b) { return _mm512_xor_si512(a, b); }
/* Even lanes of a, odd lanes of b. */
static inline __attribute__((always_inline)) wide wide_odd_lanes(wide a, wide b)
{
    return _mm512_mask_blend_epi32(0xaaaa, a, b);
}
/* Transposing words into blocks puts lane 4 q + p into part q of register p: so that lane has block 4 p + q. */
static inline __attribute__((always_inline)) wide wide_order(void)
{
    return _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
}

#include "kernels/cpu/philox_wide.h"

#endif
