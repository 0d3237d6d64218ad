/* rng_fill.h - the body of dsc_rng_normal, compiled once per instruction set by rng.c, rng_avx2.c and rng_avx512.c.
 *
 * Initialising 124 M weights must not take seconds, and must give equal bits on every CPU and C library. So the
 * logarithm, sine and cosine are our own: straight lines of IEEE additions, multiplications, divisions and square
 * roots. Without libm, contraction into FMAs and branches, every compiler turns them into vectors without changing a
 * bit. Absolute error of z below 1e-14 (tests/unit/test_rng.c), far below the one rounding to float.
 * Only base/rng*.c include this file. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_BASE_RNG_FILL_H
#define DSC_BASE_RNG_FILL_H

#include <math.h>
#include <string.h>

#include "base/rng.h"

/* Writes the 2 * block_count normals of blocks first_block, first_block + 1, ... */
typedef void (*dsc_rng_fill_fn)(uint64_t seed, uint64_t stream, uint64_t first_block, int64_t block_count, float mean,
                                float std, float *out);
void dsc_rng_fill_ref(uint64_t seed, uint64_t stream, uint64_t first_block, int64_t block_count, float mean, float std,
                      float *out);
void dsc_rng_fill_avx2(uint64_t seed, uint64_t stream, uint64_t first_block, int64_t block_count, float mean, float std,
                       float *out);
void dsc_rng_fill_avx512(uint64_t seed, uint64_t stream, uint64_t first_block, int64_t block_count, float mean,
                         float std, float *out);

#define DSC_RNG_TILE 128 /* blocks; the tile's arrays (4 KiB) stay in the first-level cache */

static inline double dsc_rng_double_of(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, 8);
    return x;
}

static inline uint64_t dsc_rng_bits_of(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, 8);
    return bits;
}

/* ln(u) for u in [2^-52, 1]. u = 2^e * m with m in [sqrt(1/2), sqrt(2)). Then ln(m) = 2 atanh((m - 1) / (m + 1)) by its
 * Taylor series. The argument is below 0.1716, so the first omitted term is below 2 * 0.1716^23 / 23 = 2e-19. */
static inline double dsc_rng_ln(double u)
{
    const uint64_t sqrt_half = UINT64_C(0x3fe6a09e667f3bcd);
    const uint64_t one = UINT64_C(0x3ff0000000000000);
    const uint64_t moved = dsc_rng_bits_of(u) - sqrt_half + one;
    const double m = dsc_rng_double_of((moved & UINT64_C(0x000fffffffffffff)) + sqrt_half);
    /* The exponent as a double: 2^52 + its biased value, minus 2^52 and the bias. */
    const double e = dsc_rng_double_of(UINT64_C(0x4330000000000000) | moved >> 52) - (0x1p52 + 1023.0);
    const double s = (m - 1.0) / (m + 1.0);
    const double s2 = s * s;
    double sum = 2.0 / 21;
    sum = sum * s2 + 2.0 / 19;
    sum = sum * s2 + 2.0 / 17;
    sum = sum * s2 + 2.0 / 15;
    sum = sum * s2 + 2.0 / 13;
    sum = sum * s2 + 2.0 / 11;
    sum = sum * s2 + 2.0 / 9;
    sum = sum * s2 + 2.0 / 7;
    sum = sum * s2 + 2.0 / 5;
    sum = sum * s2 + 2.0 / 3;
    return e * 0.693147180559945309417 + (2.0 * s + sum * (s2 * s));
}

/* cos and sin of 2 pi v for v in [0, 1). v is within 1/8 of a quarter turn q / 4. The rest x is at most pi / 4, and
 * there the Taylor series to x^17 omit less than 2e-18. */
static inline void dsc_rng_cos_sin(double v, double *cos_out, double *sin_out)
{
    const double magic = 0x1.8p52; /* adding it rounds to an integer, whose low bits are then the bits of the sum */
    const double turned = 4.0 * v + magic;
    const uint64_t q = dsc_rng_bits_of(turned);
    const double x = (v - 0.25 * (turned - magic)) * 6.28318530717958647693;
    const double x2 = x * x;
    double s = 1.0 / 355687428096000;
    s = s * x2 - 1.0 / 1307674368000;
    s = s * x2 + 1.0 / 6227020800;
    s = s * x2 - 1.0 / 39916800;
    s = s * x2 + 1.0 / 362880;
    s = s * x2 - 1.0 / 5040;
    s = s * x2 + 1.0 / 120;
    s = s * x2 - 1.0 / 6;
    const double sine = x + s * (x2 * x);
    double c = 1.0 / 20922789888000;
    c = c * x2 - 1.0 / 87178291200;
    c = c * x2 + 1.0 / 479001600;
    c = c * x2 - 1.0 / 3628800;
    c = c * x2 + 1.0 / 40320;
    c = c * x2 - 1.0 / 720;
    c = c * x2 + 1.0 / 24;
    c = c * x2 - 1.0 / 2;
    const double cosine = 1.0 + c * x2;
    /* Quarter turns: (c, s), (-s, c), (-c, -s), (s, -c). Swapped and signed as bits, so that no lane branches. */
    const uint64_t odd = (uint64_t)0 - (q & 1);
    const uint64_t cos_bits = (dsc_rng_bits_of(sine) & odd) | (dsc_rng_bits_of(cosine) & ~odd);
    const uint64_t sin_bits = (dsc_rng_bits_of(cosine) & odd) | (dsc_rng_bits_of(sine) & ~odd);
    *cos_out = dsc_rng_double_of(cos_bits ^ (((q + 1) >> 1 & 1) << 63));
    *sin_out = dsc_rng_double_of(sin_bits ^ ((q >> 1 & 1) << 63));
}

static inline void dsc_rng_fill_tile(uint64_t seed, uint64_t stream, uint64_t first_block, int count, float mean,
                                     float std, float *out)
{
    uint64_t low[DSC_RNG_TILE];  /* words 0 and 1 of each block */
    uint64_t high[DSC_RNG_TILE]; /* words 2 and 3 */
    for (int i = 0; i < count; i++) {
        const uint64_t counter = first_block + (uint64_t)i;
        uint32_t c0 = (uint32_t)counter, c1 = (uint32_t)(counter >> 32);
        uint32_t c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);
        uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
        for (int round = 0; round < 10; round++) {
            const uint64_t p0 = (uint64_t)0xD2511F53u * c0;
            const uint64_t p1 = (uint64_t)0xCD9E8D57u * c2;
            c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
            c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
            c1 = (uint32_t)p1;
            c3 = (uint32_t)p0;
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
        low[i] = (uint64_t)c1 << 32 | c0;
        high[i] = (uint64_t)c3 << 32 | c2;
    }
    const uint64_t one = UINT64_C(0x3ff0000000000000);
    for (int i = 0; i < count; i++) {
        /* 52 bits each: u in (0, 1], so that its logarithm is finite, v in [0, 1). */
        const double u = 2.0 - dsc_rng_double_of(one | low[i] >> 12);
        const double v = dsc_rng_double_of(one | high[i] >> 12) - 1.0;
        const double radius = sqrt(-2.0 * dsc_rng_ln(u));
        double cosine, sine;
        dsc_rng_cos_sin(v, &cosine, &sine);
        out[2 * i] = (float)((double)mean + (double)std * (radius * cosine));
        out[2 * i + 1] = (float)((double)mean + (double)std * (radius * sine));
    }
}

/* Defines the function `name` for the instruction set of the including file. */
#define DSC_RNG_DEFINE_FILL(name)                                                                             \
    void name(uint64_t seed, uint64_t stream, uint64_t first_block, int64_t block_count, float mean,          \
              float std, float *out)                                                                          \
    {                                                                                                         \
        for (int64_t done = 0; done < block_count; done += DSC_RNG_TILE) {                                    \
            const int count = (int)dsc_min_i64(block_count - done, DSC_RNG_TILE);                             \
            dsc_rng_fill_tile(seed, stream, first_block + (uint64_t)done, count, mean, std, out + 2 * done);  \
        }                                                                                                     \
    }

#endif
