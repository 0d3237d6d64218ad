/* ck_peak_avx512.c - fp32 multiply-adds in registers only. SPDX-License-Identifier: Apache-2.0 */
#include "tests/checkkern/ck.h"

#if defined(__AVX512F__)
#include <immintrin.h>

double ck_fma_loop_avx512(int64_t rounds)
{
    enum { CHAINS = 12 };
    __m512 sum[CHAINS];
    const __m512 x = _mm512_set1_ps(0.999f), y = _mm512_set1_ps(1e-6f);
    for (int i = 0; i < CHAINS; i++)
        sum[i] = _mm512_set1_ps((float)i);
    for (int64_t r = 0; r < rounds; r++)
        for (int i = 0; i < CHAINS; i++) {
            sum[i] = _mm512_fmadd_ps(sum[i], x, y);
            __asm__("" : "+v"(sum[i]));
        }
    return (double)rounds * CHAINS * 16 * 2;
}
#else
double ck_fma_loop_avx512(int64_t rounds) { return 0 * (double)rounds; }
#endif
