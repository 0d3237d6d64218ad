/* conv2d_micro_avx512bf16.c - conv2d_micro_v16.h on AVX-512 with products of pairs of bf16.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/v16_avx512.h"

/* sum + a[2i] b[2i] + a[2i + 1] b[2i + 1] of lanes that hold two bf16. */
V16_INLINE v16 v16_dot(v16 a, v16 b, v16 sum)
{
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}

/* Lanes of one bf16 from each of two rows, which may be NULL. */
V16_INLINE v16 v16_pairs(const void *low, const void *high, int64_t c, int64_t left)
{
    const __mmask16 lanes = dsc_mask_avx512(left > 0 ? left : 0);
    __m512i x = _mm512_setzero_si512(), y = _mm512_setzero_si512();
    if (low != NULL)
        x = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, (const uint16_t *)low + c));
    if (high != NULL)
        y = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, (const uint16_t *)high + c)), 16);
    return _mm512_castsi512_ps(_mm512_or_si512(x, y));
}

#define MICRO_VECS 4
#define MICRO_ROWS(vecs) ((vecs) == 4 ? 6 : (vecs) == 3 ? 8 : 12)
#define MICRO_PAIRS 1
#define MICRO_NAME dsc_conv2d_micro_avx512bf16
#include "kernels/cpu/conv2d_micro_v16.h"
