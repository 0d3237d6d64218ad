/* nf4_avx2.c - nf4_v16.h on AVX2. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/v16_avx2.h"
#include "kernels/nf4.h"

/* Of 16 numbers each register has eight: the code's upper bit chooses. */
V16_INLINE __m256 nf4_eight(__m256i q)
{
    const __m256 low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(dsc_nf4_values), q);
    const __m256 high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(dsc_nf4_values + 8), q);
    return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(q, 28)));
}
V16_INLINE v16 v16_nf4(__m128i q)
{
    return (v16) { nf4_eight(_mm256_cvtepu8_epi32(q)), nf4_eight(_mm256_cvtepu8_epi32(_mm_srli_si128(q, 8))) };
}

#include "kernels/cpu/nf4_v16.h"
