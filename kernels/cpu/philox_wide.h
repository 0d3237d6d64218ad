/* philox_wide.h - as many Philox4x32-10 blocks (base/rng.c) at once as a register has 32-bit lanes, for stochastic
 * rounding. Written with the primitives of philox_avx2.h or philox_avx512.h, which include it.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdint.h>

/* Upper and lower halves of a's lanes times b. */
static inline __attribute__((always_inline)) void philox_multiply(wide a, uint32_t b, wide *high, wide *low)
{
    const wide factor = wide_set64(b);
    const wide even = WIDE(mul_epu32)(a, factor), odd = WIDE(mul_epu32)(WIDE(srli_epi64)(a, 32), factor);
    *high = wide_odd_lanes(WIDE(srli_epi64)(even, 32), odd);
    *low = wide_odd_lanes(even, WIDE(slli_epi64)(odd, 32));
}

/* Blocks counter, counter + 1, ..., the words of each side by side. The lower half of `counter` has room for all. */
static inline __attribute__((always_inline)) void philox_blocks(uint64_t seed, uint64_t stream, uint64_t counter,
                                                                wide block[4])
{
    wide c0 = WIDE(add_epi32)(WIDE(set1_epi32)((int)(uint32_t)counter), wide_order());
    wide c1 = WIDE(set1_epi32)((int)(uint32_t)(counter >> 32));
    wide c2 = WIDE(set1_epi32)((int)(uint32_t)stream), c3 = WIDE(set1_epi32)((int)(uint32_t)(stream >> 32));
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        wide high0, low0, high1, low1;
        philox_multiply(c0, 0xD2511F53u, &high0, &low0);
        philox_multiply(c2, 0xCD9E8D57u, &high1, &low1);
        c0 = wide_xor(wide_xor(high1, c1), WIDE(set1_epi32)((int)k0));
        c2 = wide_xor(wide_xor(high0, c3), WIDE(set1_epi32)((int)k1));
        c1 = low1;
        c3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    const wide low01 = WIDE(unpacklo_epi32)(c0, c1), high01 = WIDE(unpackhi_epi32)(c0, c1);
    const wide low23 = WIDE(unpacklo_epi32)(c2, c3), high23 = WIDE(unpackhi_epi32)(c2, c3);
    block[0] = WIDE(unpacklo_epi64)(low01, low23);
    block[1] = WIDE(unpackhi_epi64)(low01, low23);
    block[2] = WIDE(unpacklo_epi64)(high01, high23);
    block[3] = WIDE(unpackhi_epi64)(high01, high23);
}
