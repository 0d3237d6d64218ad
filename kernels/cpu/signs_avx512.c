/* signs_avx512.c - signs_v16.h on AVX-512. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/v16_avx512.h"

V16_INLINE uint32_t v16_signs(v16 x) { return _mm512_movepi32_mask(_mm512_castps_si512(x)); }
V16_INLINE v16 v16_signed(v16 x, uint32_t signs)
{
    const __m512i sign = _mm512_maskz_set1_epi32((__mmask16)signs, INT32_MIN);
    return _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(x), sign));
}
V16_INLINE v16 v16_where(v16 x, v16 y)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(y, _mm512_setzero_ps(), _CMP_NEQ_UQ), x);
}

#include "kernels/cpu/signs_v16.h"
