/* ck_peak_avx512bf16.c - bf16 dot products in registers only. SPDX-License-Identifier: Apache-2.0 */
#if defined(__AVX512BF16__)
#include "tests/checkkern/ck_peak_loop.h"

double ck_fma_loop_avx512bf16(int64_t rounds)
{
    const __m512bh x = (__m512bh)_mm512_set1_epi16(0x3c00), y = (__m512bh)_mm512_set1_epi16(0x3f80);
#define STEP(sum) _mm512_dpbf16_ps(sum, x, y)
    CK_PEAK_LOOP(__m512, _mm512_setzero_ps(), rounds, STEP);
#undef STEP
    return (double)rounds * CK_CHAINS * 16 * 2 * 2;
}
#else
#include "tests/checkkern/ck.h"

double ck_fma_loop_avx512bf16(int64_t rounds) { return 0 * (double)rounds; }
#endif
