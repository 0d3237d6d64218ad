/* crc32c.c - CRC-32C: plain C, three chains of SSE4.2's instruction, and carry-less products of 64 bytes.
 *
 * Every block of swap is checked when it is written and when it is read, so the sum has to run at memory's speed.
 * One word per latency of an instruction would be too slow. test_hash.c with DSC_BENCH=1 prints GB/s of each form.
 * Constants are powers of x modulo the polynomial, bits reflected; x^n stands beside each.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/hash.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* Reflected polynomial 0x82F63B78, one byte a step. */
static const uint32_t crc32c_table[256] = {
    0x00000000, 0xf26b8303, 0xe13b70f7, 0x1350f3f4, 0xc79a971f, 0x35f1141c, 0x26a1e7e8, 0xd4ca64eb,
    0x8ad958cf, 0x78b2dbcc, 0x6be22838, 0x9989ab3b, 0x4d43cfd0, 0xbf284cd3, 0xac78bf27, 0x5e133c24,
    0x105ec76f, 0xe235446c, 0xf165b798, 0x030e349b, 0xd7c45070, 0x25afd373, 0x36ff2087, 0xc494a384,
    0x9a879fa0, 0x68ec1ca3, 0x7bbcef57, 0x89d76c54, 0x5d1d08bf, 0xaf768bbc, 0xbc267848, 0x4e4dfb4b,
    0x20bd8ede, 0xd2d60ddd, 0xc186fe29, 0x33ed7d2a, 0xe72719c1, 0x154c9ac2, 0x061c6936, 0xf477ea35,
    0xaa64d611, 0x580f5512, 0x4b5fa6e6, 0xb93425e5, 0x6dfe410e, 0x9f95c20d, 0x8cc531f9, 0x7eaeb2fa,
    0x30e349b1, 0xc288cab2, 0xd1d83946, 0x23b3ba45, 0xf779deae, 0x05125dad, 0x1642ae59, 0xe4292d5a,
    0xba3a117e, 0x4851927d, 0x5b016189, 0xa96ae28a, 0x7da08661, 0x8fcb0562, 0x9c9bf696, 0x6ef07595,
    0x417b1dbc, 0xb3109ebf, 0xa0406d4b, 0x522bee48, 0x86e18aa3, 0x748a09a0, 0x67dafa54, 0x95b17957,
    0xcba24573, 0x39c9c670, 0x2a993584, 0xd8f2b687, 0x0c38d26c, 0xfe53516f, 0xed03a29b, 0x1f682198,
    0x5125dad3, 0xa34e59d0, 0xb01eaa24, 0x42752927, 0x96bf4dcc, 0x64d4cecf, 0x77843d3b, 0x85efbe38,
    0xdbfc821c, 0x2997011f, 0x3ac7f2eb, 0xc8ac71e8, 0x1c661503, 0xee0d9600, 0xfd5d65f4, 0x0f36e6f7,
    0x61c69362, 0x93ad1061, 0x80fde395, 0x72966096, 0xa65c047d, 0x5437877e, 0x4767748a, 0xb50cf789,
    0xeb1fcbad, 0x197448ae, 0x0a24bb5a, 0xf84f3859, 0x2c855cb2, 0xdeeedfb1, 0xcdbe2c45, 0x3fd5af46,
    0x7198540d, 0x83f3d70e, 0x90a324fa, 0x62c8a7f9, 0xb602c312, 0x44694011, 0x5739b3e5, 0xa55230e6,
    0xfb410cc2, 0x092a8fc1, 0x1a7a7c35, 0xe811ff36, 0x3cdb9bdd, 0xceb018de, 0xdde0eb2a, 0x2f8b6829,
    0x82f63b78, 0x709db87b, 0x63cd4b8f, 0x91a6c88c, 0x456cac67, 0xb7072f64, 0xa457dc90, 0x563c5f93,
    0x082f63b7, 0xfa44e0b4, 0xe9141340, 0x1b7f9043, 0xcfb5f4a8, 0x3dde77ab, 0x2e8e845f, 0xdce5075c,
    0x92a8fc17, 0x60c37f14, 0x73938ce0, 0x81f80fe3, 0x55326b08, 0xa759e80b, 0xb4091bff, 0x466298fc,
    0x1871a4d8, 0xea1a27db, 0xf94ad42f, 0x0b21572c, 0xdfeb33c7, 0x2d80b0c4, 0x3ed04330, 0xccbbc033,
    0xa24bb5a6, 0x502036a5, 0x4370c551, 0xb11b4652, 0x65d122b9, 0x97baa1ba, 0x84ea524e, 0x7681d14d,
    0x2892ed69, 0xdaf96e6a, 0xc9a99d9e, 0x3bc21e9d, 0xef087a76, 0x1d63f975, 0x0e330a81, 0xfc588982,
    0xb21572c9, 0x407ef1ca, 0x532e023e, 0xa145813d, 0x758fe5d6, 0x87e466d5, 0x94b49521, 0x66df1622,
    0x38cc2a06, 0xcaa7a905, 0xd9f75af1, 0x2b9cd9f2, 0xff56bd19, 0x0d3d3e1a, 0x1e6dcdee, 0xec064eed,
    0xc38d26c4, 0x31e6a5c7, 0x22b65633, 0xd0ddd530, 0x0417b1db, 0xf67c32d8, 0xe52cc12c, 0x1747422f,
    0x49547e0b, 0xbb3ffd08, 0xa86f0efc, 0x5a048dff, 0x8ecee914, 0x7ca56a17, 0x6ff599e3, 0x9d9e1ae0,
    0xd3d3e1ab, 0x21b862a8, 0x32e8915c, 0xc083125f, 0x144976b4, 0xe622f5b7, 0xf5720643, 0x07198540,
    0x590ab964, 0xab613a67, 0xb831c993, 0x4a5a4a90, 0x9e902e7b, 0x6cfbad78, 0x7fab5e8c, 0x8dc0dd8f,
    0xe330a81a, 0x115b2b19, 0x020bd8ed, 0xf0605bee, 0x24aa3f05, 0xd6c1bc06, 0xc5914ff2, 0x37faccf1,
    0x69e9f0d5, 0x9b8273d6, 0x88d28022, 0x7ab90321, 0xae7367ca, 0x5c18e4c9, 0x4f48173d, 0xbd23943e,
    0xf36e6f75, 0x0105ec76, 0x12551f82, 0xe03e9c81, 0x34f4f86a, 0xc69f7b69, 0xd5cf889d, 0x27a40b9e,
    0x79b737ba, 0x8bdcb4b9, 0x988c474d, 0x6ae7c44e, 0xbe2da0a5, 0x4c4623a6, 0x5f16d052, 0xad7d5351,
};

uint32_t dsc_crc32c_ref(uint32_t crc, const void *data, size_t bytes)
{
    const uint8_t *p = data;
    crc = ~crc;
    for (size_t i = 0; i < bytes; i++)
        crc = crc32c_table[(crc ^ p[i]) & 0xff] ^ (crc >> 8);
    return ~crc;
}

#if defined(__x86_64__)
/* The CPU's own prefetch begins anew with each page of 4 KiB. The bytes after the last one are mostly checked next;
 * a prefetch outside of mapped memory has no effect. */
enum { AHEAD = 8192, LINE = 64 };

static inline void read_ahead(const uint8_t *p)
{
    __builtin_prefetch((const void *)((uintptr_t)p + AHEAD));
}

/* ---- SSE4.2: three chains at once, since one result takes three cycles and a new one can start in each ---- */

#define SSE42 __attribute__((target("sse4.2,pclmul")))

SSE42 static uint64_t word_at(const uint8_t *p)
{
    uint64_t word;
    memcpy(&word, p, 8);
    return word;
}

/* The state after as many zero bytes as `power` stands for: x^(8 bytes - 33). */
SSE42 static uint64_t shifted(uint64_t state, uint32_t power)
{
    const __m128i product = _mm_clmulepi64_si128(_mm_cvtsi64_si128((int64_t)state), _mm_cvtsi32_si128((int)power), 0);
    return _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(product));
}

/* 3 * `third` bytes; far: x^(16 third - 33), near: x^(8 third - 33). */
SSE42 static uint64_t three_chains(uint64_t state, const uint8_t *p, size_t third, uint32_t far, uint32_t near)
{
    uint64_t second = 0, last = 0;
    for (size_t i = 0; i < third; i += 8) {
        if (i % LINE == 0)
            for (size_t chain = 0; chain < 3; chain++)
                read_ahead(p + chain * third + i);
        state = _mm_crc32_u64(state, word_at(p + i));
        second = _mm_crc32_u64(second, word_at(p + third + i));
        last = _mm_crc32_u64(last, word_at(p + 2 * third + i));
    }
    return shifted(state, far) ^ shifted(second, near) ^ last;
}

/* One chain, for what is too short for more. */
SSE42 static uint64_t one_chain(uint64_t state, const uint8_t *p, size_t bytes)
{
    for (; bytes >= 8; bytes -= 8, p += 8)
        state = _mm_crc32_u64(state, word_at(p));
    for (; bytes > 0; bytes--, p++)
        state = _mm_crc32_u8((uint32_t)state, *p);
    return state;
}

SSE42 static uint32_t crc32c_sse42(uint32_t crc, const void *data, size_t bytes)
{
    const uint8_t *p = data;
    uint64_t state = (uint32_t)~crc;
    for (; bytes >= 3 * 1360; bytes -= 3 * 1360, p += 3 * 1360) /* nearly all of a block of 4 KiB */
        state = three_chains(state, p, 1360, 0x5aa1f3cf, 0x3f70cc6f);
    for (; bytes >= 3 * 168; bytes -= 3 * 168, p += 3 * 168)
        state = three_chains(state, p, 168, 0xa60ce07b, 0x1b3d8f29);
    return ~(uint32_t)one_chain(state, p, bytes);
}

/* ---- AVX-512 with VPCLMULQDQ: four registers of 64 bytes, each folded 256 bytes ahead ---- */

#define WIDE __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,vpclmulqdq,pclmul,sse4.2")))

/* Each 128-bit lane moved ahead and added to `next`: its low half times x^(bits + 32), its high one x^(bits - 32). */
WIDE static __m512i fold(__m512i lanes, __m512i powers, __m512i next)
{
    const __m512i low = _mm512_clmulepi64_epi128(lanes, powers, 0x00);
    const __m512i high = _mm512_clmulepi64_epi128(lanes, powers, 0x11);
    return _mm512_ternarylogic_epi64(low, high, next, 0x96); /* exclusive or of the three */
}

WIDE static __m512i powers_of(int64_t low, int64_t high)
{
    return _mm512_broadcast_i32x4(_mm_set_epi64x(high, low));
}

WIDE static __m128i fold_lane(__m128i lane, int64_t low, int64_t high, __m128i next)
{
    const __m128i powers = _mm_set_epi64x(high, low);
    return _mm_ternarylogic_epi64(_mm_clmulepi64_si128(lane, powers, 0x00), _mm_clmulepi64_si128(lane, powers, 0x11),
                                  next, 0x96);
}

WIDE static __m512i load(const uint8_t *p)
{
    return _mm512_loadu_si512(p);
}

/* A multiple of 64 bytes, at least 256. */
WIDE static uint64_t fold_all(uint64_t state, const uint8_t *p, size_t bytes)
{
    const __m512i ahead_256 = powers_of(0xdcb17aa4, 0xb9e02b86);  /* x^2080, x^2016 */
    const __m512i ahead_64 = powers_of(0x740eef02, 0x9e4addf8);   /* x^544, x^480 */
    __m512i a = _mm512_xor_si512(load(p), _mm512_zextsi128_si512(_mm_cvtsi64_si128((int64_t)state)));
    __m512i b = load(p + 64), c = load(p + 128), d = load(p + 192);
    for (p += 256, bytes -= 256; bytes >= 256; p += 256, bytes -= 256) {
        for (size_t line = 0; line < 256; line += LINE)
            read_ahead(p + line);
        a = fold(a, ahead_256, load(p));
        b = fold(b, ahead_256, load(p + 64));
        c = fold(c, ahead_256, load(p + 128));
        d = fold(d, ahead_256, load(p + 192));
    }
    a = fold(fold(fold(a, ahead_64, b), ahead_64, c), ahead_64, d);
    for (; bytes > 0; p += 64, bytes -= 64)
        a = fold(a, ahead_64, load(p));
    __m128i sum = _mm512_extracti32x4_epi32(a, 3);
    sum = fold_lane(_mm512_extracti32x4_epi32(a, 0), 0x1c291d04, 0x1d82c63da, sum); /* x^416, x^352 */
    sum = fold_lane(_mm512_extracti32x4_epi32(a, 1), 0x1384aa63a, 0xba4fc28e, sum); /* x^288, x^224 */
    sum = fold_lane(_mm512_extracti32x4_epi32(a, 2), 0xf20c0dfe, 0x14cd00bd6, sum); /* x^160, x^96 */
    return _mm_crc32_u64(_mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(sum)), (uint64_t)_mm_extract_epi64(sum, 1));
}

WIDE static uint32_t crc32c_vpclmul(uint32_t crc, const void *data, size_t bytes)
{
    const uint8_t *p = data;
    const size_t whole = bytes >= 256 ? bytes / 64 * 64 : 0;
    uint64_t state = (uint32_t)~crc;
    if (whole > 0)
        state = fold_all(state, p, whole);
    return ~(uint32_t)one_chain(state, p + whole, bytes - whole);
}

static bool has_sse42(void)
{
    return __builtin_cpu_supports("sse4.2") != 0 && __builtin_cpu_supports("pclmul") != 0;
}

static bool has_vpclmul(void)
{
    return has_sse42() && __builtin_cpu_supports("vpclmulqdq") != 0 && __builtin_cpu_supports("avx512f") != 0 &&
           __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
           __builtin_cpu_supports("avx512dq") != 0;
}
#endif

size_t dsc_crc32c_variants(dsc_crc32c_variant out[DSC_CRC32C_VARIANTS_MAX])
{
    size_t count = 0;
#if defined(__x86_64__)
    if (has_vpclmul())
        out[count++] = (dsc_crc32c_variant){ "AVX-512 and VPCLMULQDQ", crc32c_vpclmul };
    if (has_sse42())
        out[count++] = (dsc_crc32c_variant){ "SSE4.2", crc32c_sse42 };
#endif
    out[count++] = (dsc_crc32c_variant){ "plain C", dsc_crc32c_ref };
    return count;
}

uint32_t dsc_crc32c(uint32_t crc, const void *data, size_t bytes)
{
#if defined(__x86_64__)
    if (bytes >= 256 && has_vpclmul())
        return crc32c_vpclmul(crc, data, bytes);
    if (has_sse42())
        return crc32c_sse42(crc, data, bytes);
#endif
    return dsc_crc32c_ref(crc, data, bytes);
}
