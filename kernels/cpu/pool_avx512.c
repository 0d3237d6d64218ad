/* pool_avx512.c - pool_v16.h on AVX-512. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/v16_avx512.h"

/* Numbers of pixels on 16 lanes. */
typedef __m512i chosen_lanes;

V16_INLINE chosen_lanes chosen_set(int32_t pixel) { return _mm512_set1_epi32(pixel); }

/* Where `value` is above `most` or NaN, it and its pixel are taken. */
V16_INLINE void chosen_take(v16 *most, chosen_lanes *best, v16 value, int32_t pixel)
{
    const __mmask16 more =
        _mm512_cmp_ps_mask(value, *most, _CMP_GT_OQ) | _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    *most = _mm512_mask_mov_ps(*most, more, value);
    *best = _mm512_mask_mov_epi32(*best, more, _mm512_set1_epi32(pixel));
}

V16_INLINE void chosen_store(int32_t *to, int64_t left, chosen_lanes best)
{
    _mm512_mask_storeu_epi32(to, dsc_mask_avx512(left), best);
}

/* d where the pixel was chosen, else 0. */
V16_INLINE v16 chosen_where(const int32_t *from, int64_t left, int32_t pixel, v16 d)
{
    const __m512i chosen = _mm512_maskz_loadu_epi32(dsc_mask_avx512(left), from);
    return _mm512_maskz_mov_ps(_mm512_cmpeq_epi32_mask(chosen, _mm512_set1_epi32(pixel)), d);
}

#include "kernels/cpu/pool_v16.h"
