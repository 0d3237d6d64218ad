/* quant_avx512.c - quant_v16.h on AVX-512. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/v16_avx512.h"

typedef __m512i v16_ints;

V16_INLINE v16_ints v16_bits(v16 x)
{
    return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff));
}
V16_INLINE v16_ints v16_max_bits(v16_ints a, v16_ints b) { return _mm512_max_epi32(a, b); }
V16_INLINE uint32_t v16_top_bits(v16_ints a) { return (uint32_t)_mm512_reduce_max_epi32(a); }
V16_INLINE __m128i v16_int8(v16 x) { return _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x)); }
V16_INLINE v16 v16_of_int8(__m128i bytes) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)); }
V16_INLINE v16 v16_where_finite(v16 r, v16 x)
{
    return _mm512_maskz_mov_ps(_mm512_cmplt_epi32_mask(v16_bits(r), _mm512_set1_epi32(0x7f800000)), x);
}

#include "kernels/cpu/quant_v16.h"
