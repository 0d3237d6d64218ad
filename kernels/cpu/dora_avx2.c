/* dora_avx2.c - dora_v16.h on AVX2. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/v16_avx2.h"

/* A square is exact in double, so that an fma rounds as the sum alone does. */
V16_INLINE void add_squares(double *lane, v16 x)
{
    const __m128 part[4] = { _mm256_castps256_ps128(x.low), _mm256_extractf128_ps(x.low, 1),
                             _mm256_castps256_ps128(x.high), _mm256_extractf128_ps(x.high, 1) };
    for (int n = 0; n < 4; n++) {
        const __m256d wide = _mm256_cvtps_pd(part[n]);
        _mm256_storeu_pd(lane + 4 * n, _mm256_fmadd_pd(wide, wide, _mm256_loadu_pd(lane + 4 * n)));
    }
}

#include "kernels/cpu/dora_v16.h"
