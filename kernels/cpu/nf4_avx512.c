/* nf4_avx512.c - nf4_v16.h on AVX-512. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/v16_avx512.h"
#include "kernels/nf4.h"

V16_INLINE v16 v16_nf4(__m128i q)
{
    return _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(q), _mm512_loadu_ps(dsc_nf4_values));
}

#include "kernels/cpu/nf4_v16.h"
