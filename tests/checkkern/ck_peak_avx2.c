/* ck_peak_avx2.c - fp32 multiply-adds in registers only. SPDX-License-Identifier: Apache-2.0 */
#if defined(__AVX2__)
#include "tests/checkkern/ck_peak_loop.h"

double ck_fma_loop_avx2(int64_t rounds)
{
    const __m256 x = _mm256_set1_ps(0.999f), y = _mm256_set1_ps(1e-6f);
#define STEP(sum) _mm256_fmadd_ps(sum, x, y)
    CK_PEAK_LOOP(__m256, _mm256_setzero_ps(), rounds, STEP);
#undef STEP
    return (double)rounds * CK_CHAINS * 8 * 2;
}
#else
#include "tests/checkkern/ck.h"

double ck_fma_loop_avx2(int64_t rounds) { return 0 * (double)rounds; }
#endif
