/* signs_avx2.c - signs_v16.h on AVX2. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/v16_avx2.h"

V16_INLINE uint32_t v16_signs(v16 x)
{
    return (uint32_t)_mm256_movemask_ps(x.low) | (uint32_t)_mm256_movemask_ps(x.high) << 8;
}
/* Bit `lane` of the lower eight bits, moved to where a float has its sign. */
V16_INLINE __m256 signs_of(uint32_t signs)
{
    const __m256i up = _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24);
    const __m256i moved = _mm256_sllv_epi32(_mm256_set1_epi32((int)signs), up);
    return _mm256_castsi256_ps(_mm256_and_si256(moved, _mm256_set1_epi32(INT32_MIN)));
}
V16_INLINE v16 v16_signed(v16 x, uint32_t signs)
{
    return (v16) { _mm256_xor_ps(x.low, signs_of(signs)), _mm256_xor_ps(x.high, signs_of(signs >> 8)) };
}
V16_INLINE v16 v16_where(v16 x, v16 y)
{
    const __m256 zero = _mm256_setzero_ps();
    return (v16) { _mm256_and_ps(x.low, _mm256_cmp_ps(y.low, zero, _CMP_NEQ_UQ)),
                   _mm256_and_ps(x.high, _mm256_cmp_ps(y.high, zero, _CMP_NEQ_UQ)) };
}

#include "kernels/cpu/signs_v16.h"
