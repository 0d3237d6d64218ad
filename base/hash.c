/* hash.c - checksums and digests.
 *
 * SHA-256 has a plain C form and one with the CPU's own instructions, chosen at run time: checkpoints of many gigabytes
 * are hashed. CRC-32C is in crc32c.c. Measured by tests/unit/test_hash.c with DSC_BENCH=1.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/hash.h"

#include <string.h>

#include <xxhash.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

/* Cube roots of the first 64 primes, 32 bits after the point (FIPS 180-4, 4.2.2). */
static const uint32_t sha256_k[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t rotr(uint32_t x, int n)
{
    return (x >> n) | (x << (32 - n));
}

static uint32_t load_be32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

void dsc_sha256_blocks_ref(uint32_t state[8], const uint8_t *data, size_t block_count)
{
    for (; block_count > 0; block_count--, data += 64) {
        uint32_t w[64];
        for (int t = 0; t < 16; t++)
            w[t] = load_be32(data + 4 * t);
        for (int t = 16; t < 64; t++) {
            const uint32_t s0 = rotr(w[t - 15], 7) ^ rotr(w[t - 15], 18) ^ (w[t - 15] >> 3);
            const uint32_t s1 = rotr(w[t - 2], 17) ^ rotr(w[t - 2], 19) ^ (w[t - 2] >> 10);
            w[t] = s1 + w[t - 7] + s0 + w[t - 16];
        }
        uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
        uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
        for (int t = 0; t < 64; t++) {
            const uint32_t sum1 = rotr(e, 6) ^ rotr(e, 11) ^ rotr(e, 25);
            const uint32_t sum0 = rotr(a, 2) ^ rotr(a, 13) ^ rotr(a, 22);
            const uint32_t t1 = h + sum1 + ((e & f) ^ (~e & g)) + sha256_k[t] + w[t];
            const uint32_t t2 = sum0 + ((a & b) ^ (a & c) ^ (b & c));
            h = g, g = f, f = e, e = d + t1;
            d = c, c = b, b = a, a = t1 + t2;
        }
        state[0] += a, state[1] += b, state[2] += c, state[3] += d;
        state[4] += e, state[5] += f, state[6] += g, state[7] += h;
    }
}

#if defined(__x86_64__)
/* The instruction SHA256RNDS2 does two rounds on the halves {A,B,E,F} and {C,D,G,H}; SHA256MSG1 and MSG2 extend the
 * message schedule by four words. `quad` holds the last 16 words of the schedule, four to a register. */
__attribute__((target("sha,sse4.1,ssse3"))) static void sha256_blocks_ni(uint32_t state[8], const uint8_t *data,
                                                                         size_t block_count)
{
    const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0bLL, 0x0405060700010203LL);
    const __m128i dcba = _mm_loadu_si128((const __m128i *)state);
    const __m128i hgfe = _mm_loadu_si128((const __m128i *)(state + 4));
    const __m128i cdab = _mm_shuffle_epi32(dcba, 0xB1);
    const __m128i efgh = _mm_shuffle_epi32(hgfe, 0x1B);
    __m128i abef = _mm_alignr_epi8(cdab, efgh, 8);
    __m128i cdgh = _mm_blend_epi16(efgh, cdab, 0xF0);
    for (; block_count > 0; block_count--, data += 64) {
        const __m128i abef_in = abef;
        const __m128i cdgh_in = cdgh;
        __m128i quad[4];
        for (int i = 0; i < 4; i++)
            quad[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(data + 16 * i)), swap);
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) {
            const __m128i now = quad[i & 3];
            const __m128i words = _mm_add_epi32(now, _mm_loadu_si128((const __m128i *)(sha256_k + 4 * i)));
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, words);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(words, 0x0E));
            if (i < 12) {
                /* W[t] = s1(W[t-2]) + W[t-7] + s0(W[t-15]) + W[t-16] for t = 4i+16 .. 4i+19 */
                const __m128i last = quad[(i + 3) & 3];
                const __m128i seven = _mm_alignr_epi8(last, quad[(i + 2) & 3], 4);
                const __m128i sum = _mm_add_epi32(_mm_sha256msg1_epu32(now, quad[(i + 1) & 3]), seven);
                quad[i & 3] = _mm_sha256msg2_epu32(sum, last);
            }
        }
        abef = _mm_add_epi32(abef, abef_in);
        cdgh = _mm_add_epi32(cdgh, cdgh_in);
    }
    const __m128i feba = _mm_shuffle_epi32(abef, 0x1B);
    const __m128i dchg = _mm_shuffle_epi32(cdgh, 0xB1);
    _mm_storeu_si128((__m128i *)state, _mm_blend_epi16(feba, dchg, 0xF0));
    _mm_storeu_si128((__m128i *)(state + 4), _mm_alignr_epi8(dchg, feba, 8));
}

static bool cpu_has_sha(void)
{
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & (1u << 29)) != 0 && __builtin_cpu_supports("sse4.1") &&
           __builtin_cpu_supports("ssse3");
}
#endif

void dsc_sha256_init(dsc_sha256 *sha)
{
    /* Square roots of the first 8 primes, 32 bits after the point. */
    *sha = (dsc_sha256){ .state = { 0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f,
                                    0x9b05688c, 0x1f83d9ab, 0x5be0cd19 },
                         .blocks = dsc_sha256_blocks_ref };
#if defined(__x86_64__)
    if (cpu_has_sha())
        sha->blocks = sha256_blocks_ni;
#endif
}

void dsc_sha256_update(dsc_sha256 *sha, const void *data, size_t bytes)
{
    const uint8_t *from = data;
    if (bytes == 0)
        return;
    const size_t held = (size_t)(sha->bytes % 64);
    sha->bytes += bytes;
    if (held > 0) {
        const size_t take = bytes < 64 - held ? bytes : 64 - held;
        memcpy(sha->block + held, from, take);
        from += take;
        bytes -= take;
        if (held + take < 64)
            return;
        sha->blocks(sha->state, sha->block, 1);
    }
    sha->blocks(sha->state, from, bytes / 64);
    memcpy(sha->block, from + bytes / 64 * 64, bytes % 64);
}

void dsc_sha256_final(dsc_sha256 *sha, uint8_t digest[32])
{
    const uint64_t bits = sha->bytes * 8;
    const size_t held = (size_t)(sha->bytes % 64);
    uint8_t pad[72] = { 0x80 };
    const size_t zeros_end = held < 56 ? 56 - held : 120 - held;
    for (int i = 0; i < 8; i++)
        pad[zeros_end + (size_t)i] = (uint8_t)(bits >> (56 - 8 * i));
    dsc_sha256_update(sha, pad, zeros_end + 8);
    for (int i = 0; i < 32; i++)
        digest[i] = (uint8_t)(sha->state[i / 4] >> (24 - 8 * (i % 4)));
}

void dsc_hex(char *out, const uint8_t *bytes, size_t count)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < count; i++) {
        out[2 * i] = digits[bytes[i] >> 4];
        out[2 * i + 1] = digits[bytes[i] & 15];
    }
    out[2 * count] = 0;
}

dsc_hash128 dsc_xxh3_128(const void *data, size_t bytes, uint64_t seed)
{
    const XXH128_hash_t hash = XXH3_128bits_withSeed(data, bytes, seed);
    return (dsc_hash128){ .low = hash.low64, .high = hash.high64 };
}
