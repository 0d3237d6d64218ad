/* ck_peak_avx2.c - fp32 multiply-adds in registers only. SPDX-License-Identifier: Apache-2.0 */
#include "tests/checkkern/ck.h"

#if defined(__AVX2__)
#include <immintrin.h>

double ck_fma_loop_avx2(int64_t rounds)
{
    enum { CHAINS = 12 }; /* latency 4 to 6 times 2 units */
    const __m256 x = _mm256_set1_ps(0.999f), y = _mm256_set1_ps(1e-6f);
    __m256 s0 = _mm256_setzero_ps(), s1 = s0, s2 = s0, s3 = s0, s4 = s0, s5 = s0, s6 = s0, s7 = s0, s8 = s0, s9 = s0,
           s10 = s0, s11 = s0;
    for (int64_t r = 0; r < rounds; r++) {
#define STEP(sum) \
    sum = _mm256_fmadd_ps(sum, x, y); \
    __asm__ volatile("" : "+x"(sum)) /* stays in its register, and equal chains do not become one */
        STEP(s0);
        STEP(s1);
        STEP(s2);
        STEP(s3);
        STEP(s4);
        STEP(s5);
        STEP(s6);
        STEP(s7);
        STEP(s8);
        STEP(s9);
        STEP(s10);
        STEP(s11);
#undef STEP
    }
    return (double)rounds * CHAINS * 8 * 2;
}
#else
double ck_fma_loop_avx2(int64_t rounds) { return 0 * (double)rounds; }
#endif
