/* ck_peak_avx2.c - fp32 multiply-adds in registers only. SPDX-License-Identifier: Apache-2.0 */
#include "tests/checkkern/ck.h"

#if defined(__AVX2__)
#include <immintrin.h>

double ck_fma_loop_avx2(int64_t rounds)
{
    enum { CHAINS = 12 }; /* latency 4 times 2 units, and some */
    __m256 sum[CHAINS];
    const __m256 x = _mm256_set1_ps(0.999f), y = _mm256_set1_ps(1e-6f);
    for (int i = 0; i < CHAINS; i++)
        sum[i] = _mm256_set1_ps((float)i);
    for (int64_t r = 0; r < rounds; r++)
        for (int i = 0; i < CHAINS; i++) {
            sum[i] = _mm256_fmadd_ps(sum[i], x, y);
            __asm__("" : "+x"(sum[i])); /* keeps each chain: nothing folds */
        }
    return (double)rounds * CHAINS * 8 * 2;
}
#else
double ck_fma_loop_avx2(int64_t rounds) { return 0 * (double)rounds; }
#endif
