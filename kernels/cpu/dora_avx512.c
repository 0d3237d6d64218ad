/* dora_avx512.c - dora_v16.h on AVX-512. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/v16_avx512.h"

/* A square is exact in double, so that an fma rounds as the sum alone does. */
V16_INLINE void add_squares(double *lane, v16 x)
{
    const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(x)),
                  high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));
    _mm512_storeu_pd(lane, _mm512_fmadd_pd(low, low, _mm512_loadu_pd(lane)));
    _mm512_storeu_pd(lane + 8, _mm512_fmadd_pd(high, high, _mm512_loadu_pd(lane + 8)));
}

#include "kernels/cpu/dora_v16.h"
