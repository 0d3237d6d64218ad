/* philox_avx2.h - eight Philox4x32-10 blocks at once, as philox_avx512.h. Include only from *_avx2.c.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_PHILOX_AVX2_H
#define DSC_KERNELS_PHILOX_AVX2_H

#include <immintrin.h>
#include <stdint.h>

static inline __attribute__((always_inline)) void philox_multiply(__m256i a, uint32_t b, __m256i *high, __m256i *low)
{
    const __m256i factor = _mm256_set1_epi64x(b);
    const __m256i even = _mm256_mul_epu32(a, factor), odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), factor);
    *high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
    *low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
}

/* Blocks counter .. counter + 7, the words of each side by side, two blocks a register. The lower half of `counter` has
 * room for 7 more. */
static inline __attribute__((always_inline)) void philox_blocks(uint64_t seed, uint64_t stream, uint64_t counter,
                                                                __m256i block[4])
{
    const __m256i order = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7); /* lane 4 q + p has block 2 p + q */
    __m256i c0 = _mm256_add_epi32(_mm256_set1_epi32((int)(uint32_t)counter), order);
    __m256i c1 = _mm256_set1_epi32((int)(uint32_t)(counter >> 32));
    __m256i c2 = _mm256_set1_epi32((int)(uint32_t)stream), c3 = _mm256_set1_epi32((int)(uint32_t)(stream >> 32));
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        __m256i high0, low0, high1, low1;
        philox_multiply(c0, 0xD2511F53u, &high0, &low0);
        philox_multiply(c2, 0xCD9E8D57u, &high1, &low1);
        c0 = _mm256_xor_si256(_mm256_xor_si256(high1, c1), _mm256_set1_epi32((int)k0));
        c2 = _mm256_xor_si256(_mm256_xor_si256(high0, c3), _mm256_set1_epi32((int)k1));
        c1 = low1;
        c3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    const __m256i low01 = _mm256_unpacklo_epi32(c0, c1), high01 = _mm256_unpackhi_epi32(c0, c1);
    const __m256i low23 = _mm256_unpacklo_epi32(c2, c3), high23 = _mm256_unpackhi_epi32(c2, c3);
    block[0] = _mm256_unpacklo_epi64(low01, low23);
    block[1] = _mm256_unpackhi_epi64(low01, low23);
    block[2] = _mm256_unpacklo_epi64(high01, high23);
    block[3] = _mm256_unpackhi_epi64(high01, high23);
}

#endif
