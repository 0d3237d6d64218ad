/* philox_avx512.h - sixteen Philox4x32-10 blocks at once (base/rng.c), for stochastic rounding. Include only from
 * *_avx512.c. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_PHILOX_AVX512_H
#define DSC_KERNELS_PHILOX_AVX512_H

#include <immintrin.h>
#include <stdint.h>

/* Upper and lower halves of a's lanes times b. */
static inline __attribute__((always_inline)) void philox_multiply(__m512i a, uint32_t b, __m512i *high, __m512i *low)
{
    const __m512i factor = _mm512_set1_epi64(b);
    const __m512i even = _mm512_mul_epu32(a, factor), odd = _mm512_mul_epu32(_mm512_srli_epi64(a, 32), factor);
    *high = _mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd);
    *low = _mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32));
}

/* Blocks counter .. counter + 15, the words of each side by side, four blocks a register. The lower half of `counter`
 * has room for 15 more. */
static inline __attribute__((always_inline)) void philox_blocks(uint64_t seed, uint64_t stream, uint64_t counter,
                                                                __m512i block[4])
{
    /* Transposing words into blocks puts lane 4 q + p into part q of register p: so that lane has block 4 p + q. */
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m512i c0 = _mm512_add_epi32(_mm512_set1_epi32((int)(uint32_t)counter), order);
    __m512i c1 = _mm512_set1_epi32((int)(uint32_t)(counter >> 32));
    __m512i c2 = _mm512_set1_epi32((int)(uint32_t)stream), c3 = _mm512_set1_epi32((int)(uint32_t)(stream >> 32));
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        __m512i high0, low0, high1, low1;
        philox_multiply(c0, 0xD2511F53u, &high0, &low0);
        philox_multiply(c2, 0xCD9E8D57u, &high1, &low1);
        c0 = _mm512_xor_si512(_mm512_xor_si512(high1, c1), _mm512_set1_epi32((int)k0));
        c2 = _mm512_xor_si512(_mm512_xor_si512(high0, c3), _mm512_set1_epi32((int)k1));
        c1 = low1;
        c3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    const __m512i low01 = _mm512_unpacklo_epi32(c0, c1), high01 = _mm512_unpackhi_epi32(c0, c1);
    const __m512i low23 = _mm512_unpacklo_epi32(c2, c3), high23 = _mm512_unpackhi_epi32(c2, c3);
    block[0] = _mm512_unpacklo_epi64(low01, low23);
    block[1] = _mm512_unpackhi_epi64(low01, low23);
    block[2] = _mm512_unpacklo_epi64(high01, high23);
    block[3] = _mm512_unpackhi_epi64(high01, high23);
}

#endif
