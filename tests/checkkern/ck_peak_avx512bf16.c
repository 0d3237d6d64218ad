/* ck_peak_avx512bf16.c - bf16 dot products in registers only. SPDX-License-Identifier: Apache-2.0 */
#include "tests/checkkern/ck.h"

#if defined(__AVX512BF16__)
#include <immintrin.h>

double ck_fma_loop_avx512bf16(int64_t rounds)
{
    enum { CHAINS = 12 };
    __m512 sum[CHAINS];
    const __m512bh x = (__m512bh)_mm512_set1_epi16(0x3c00), y = (__m512bh)_mm512_set1_epi16(0x3f80);
    for (int i = 0; i < CHAINS; i++)
        sum[i] = _mm512_set1_ps((float)i);
    for (int64_t r = 0; r < rounds; r++)
        for (int i = 0; i < CHAINS; i++) {
            sum[i] = _mm512_dpbf16_ps(sum[i], x, y);
            __asm__("" : "+v"(sum[i]));
        }
    return (double)rounds * CHAINS * 16 * 2 * 2;
}
#else
double ck_fma_loop_avx512bf16(int64_t rounds) { return 0 * (double)rounds; }
#endif
