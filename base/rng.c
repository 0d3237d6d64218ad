/* rng.c - Philox4x32-10 and the distributions built on it.
 *
 * The constants and the round are those of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11.
 * The counter is {counter low, counter high, stream low, stream high}, and the key is {seed low, seed high}.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/rng.h"

#include "base/rng_fill.h"

static void philox(uint32_t c[4], uint32_t k0, uint32_t k1)
{
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)0xD2511F53u * c[0];
        const uint64_t p1 = (uint64_t)0xCD9E8D57u * c[2];
        const uint32_t x0 = (uint32_t)(p1 >> 32) ^ c[1] ^ k0;
        const uint32_t x2 = (uint32_t)(p0 >> 32) ^ c[3] ^ k1;
        c[0] = x0;
        c[1] = (uint32_t)p1;
        c[2] = x2;
        c[3] = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

void dsc_rng_block(uint64_t seed, uint64_t stream, uint64_t counter, uint32_t out[4])
{
    out[0] = (uint32_t)counter;
    out[1] = (uint32_t)(counter >> 32);
    out[2] = (uint32_t)stream;
    out[3] = (uint32_t)(stream >> 32);
    philox(out, (uint32_t)seed, (uint32_t)(seed >> 32));
}

uint32_t dsc_rng_u32(uint64_t seed, uint64_t stream, uint64_t index)
{
    uint32_t words[4];
    dsc_rng_block(seed, stream, index / 4, words);
    return words[index % 4];
}

DSC_RNG_DEFINE_FILL(dsc_rng_fill_ref)

static dsc_rng_fill_fn fill_for_this_cpu(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq"))
        return dsc_rng_fill_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return dsc_rng_fill_avx2;
#endif
    return dsc_rng_fill_ref;
}

void dsc_rng_normal(uint64_t seed, uint64_t stream, int64_t first, int64_t count, float mean, float std, float *out)
{
    DSC_ASSERT(first >= 0);
    DSC_ASSERT(count >= 0);
    if (count == 0)
        return;
    const dsc_rng_fill_fn fill = fill_for_this_cpu();
    float pair[2];
    if (first % 2 != 0) { /* the second half of a block */
        fill(seed, stream, (uint64_t)first / 2, 1, mean, std, pair);
        *out++ = pair[1];
        first++;
        count--;
    }
    fill(seed, stream, (uint64_t)first / 2, count / 2, mean, std, out);
    if (count % 2 != 0) { /* the first half of one */
        fill(seed, stream, ((uint64_t)first + (uint64_t)count) / 2, 1, mean, std, pair);
        out[count - 1] = pair[0];
    }
}

void dsc_rng_uniform(uint64_t seed, uint64_t stream, int64_t first, int64_t count, float bound, float *out)
{
    uint32_t words[4];
    DSC_ASSERT(first >= 0);
    for (int64_t i = 0; i < count; i++) {
        const uint64_t at = (uint64_t)first + (uint64_t)i;
        if (i == 0 || at % 4 == 0)
            dsc_rng_block(seed, stream, at / 4, words);
        out[i] = (float)((((double)words[at % 4] + 0.5) * 0x1p-31 - 1.0) * (double)bound);
    }
}

/* One round function of the Feistel network: a random function of (round, half). */
static uint32_t feistel(uint64_t seed, uint64_t stream, uint32_t round, uint32_t half)
{
    uint32_t words[4];
    dsc_rng_block(seed, stream, ((uint64_t)round << 32) | half, words);
    return words[0];
}

uint64_t dsc_rng_permute(uint64_t seed, uint64_t stream, uint64_t n, uint64_t i)
{
    DSC_ASSERT(n >= 1);
    DSC_ASSERT(i < n);
    if (n == 1)
        return 0;
    /* The network permutes the smallest [0, 2^bits) that holds n, so that a walk leaves [0, n) less than once in two
     * steps. Its halves differ by one bit when `bits` is odd; each round changes one half by a function of the other,
     * which is invertible whatever the widths are. Ten rounds, because halves of one bit mix slowly. */
    const int bits = 64 - __builtin_clzll(n - 1);
    const int low_bits = bits / 2;
    const uint32_t low_mask = (uint32_t)((UINT64_C(1) << low_bits) - 1);
    const uint32_t high_mask = (uint32_t)((UINT64_C(1) << (bits - low_bits)) - 1);
    uint64_t x = i;
    do {
        uint32_t low = (uint32_t)x & low_mask;
        uint32_t high = (uint32_t)(x >> low_bits) & high_mask;
        for (uint32_t round = 0; round < 10; round += 2) {
            high ^= feistel(seed, stream, round, low) & high_mask;
            low ^= feistel(seed, stream, round + 1, high) & low_mask;
        }
        x = ((uint64_t)high << low_bits) | low;
    } while (x >= n);
    return x;
}
