/* quant_avx2.c - quant_v16.h on AVX2. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/v16_avx2.h"

typedef struct v16_ints { __m256i low, high; } v16_ints;

V16_INLINE v16_ints v16_bits(v16 x)
{
    const __m256i mask = _mm256_set1_epi32(0x7fffffff);
    return (v16_ints) { _mm256_and_si256(_mm256_castps_si256(x.low), mask),
                        _mm256_and_si256(_mm256_castps_si256(x.high), mask) };
}
V16_INLINE v16_ints v16_max_bits(v16_ints a, v16_ints b)
{
    return (v16_ints) { _mm256_max_epi32(a.low, b.low), _mm256_max_epi32(a.high, b.high) };
}
V16_INLINE uint32_t v16_top_bits(v16_ints a)
{
    const __m256i l8 = _mm256_max_epi32(a.low, a.high);
    const __m128i l4 = _mm_max_epi32(_mm256_castsi256_si128(l8), _mm256_extracti128_si256(l8, 1));
    const __m128i l2 = _mm_max_epi32(l4, _mm_unpackhi_epi64(l4, l4));
    return (uint32_t)_mm_cvtsi128_si32(_mm_max_epi32(l2, _mm_shuffle_epi32(l2, 1)));
}
V16_INLINE __m128i v16_int8(v16 x)
{
    const __m256i low = _mm256_cvtps_epi32(x.low), high = _mm256_cvtps_epi32(x.high);
    const __m128i first = _mm_packs_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
    const __m128i second = _mm_packs_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
    return _mm_packs_epi16(first, second);
}
V16_INLINE v16 v16_of_int8(__m128i bytes)
{
    return (v16) { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
                   _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8))) };
}
V16_INLINE v16 v16_where_finite(v16 r, v16 x)
{
    const __m256i most = _mm256_set1_epi32(0x7f800000);
    const v16_ints bits = v16_bits(r);
    return (v16) { _mm256_and_ps(x.low, _mm256_castsi256_ps(_mm256_cmpgt_epi32(most, bits.low))),
                   _mm256_and_ps(x.high, _mm256_castsi256_ps(_mm256_cmpgt_epi32(most, bits.high))) };
}

#include "kernels/cpu/quant_v16.h"
