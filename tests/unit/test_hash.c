/* test_hash.c - published vectors, Python's hashlib, and the plain C forms beside the CPU's instructions.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/hash.h"

static void digest_of(const void *data, size_t bytes, bool plain_c, uint8_t digest[32])
{
    dsc_sha256 sha;
    dsc_sha256_init(&sha);
    if (plain_c)
        sha.blocks = dsc_sha256_blocks_ref;
    dsc_sha256_update(&sha, data, bytes);
    dsc_sha256_final(&sha, digest);
}

static void check_sha256(const void *data, size_t bytes, const char *want)
{
    for (int plain_c = 0; plain_c < 2; plain_c++) {
        uint8_t digest[32];
        char text[65];
        digest_of(data, bytes, plain_c, digest);
        dsc_hex(text, digest, sizeof digest);
        assert_string_equal(text, want);
    }
}

/* FIPS 180-4 examples and the million letters of FIPS 180-2. */
static void sha256_vectors(void **state)
{
    (void)state;
    check_sha256("", 0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    check_sha256("abc", 3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    const char *two_blocks = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    check_sha256(two_blocks, 56, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    const char *longer =
        "abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrs"
        "mnopqrstnopqrstu";
    check_sha256(longer, 112, "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
    char *million = malloc(1000000);
    assert_non_null(million);
    memset(million, 'a', 1000000);
    check_sha256(million, 1000000, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    free(million);
}

/* All lengths around block and padding borders: the digest over the digests of 0 to 300 bytes. hashlib's program is
 *     for n in range(301): h.update(sha256(bytes((i * 7 + 3) & 255 for i in range(n))).digest()) */
static void sha256_every_length(void **state)
{
    (void)state;
    uint8_t data[300];
    for (int i = 0; i < 300; i++)
        data[i] = (uint8_t)(i * 7 + 3);
    for (int plain_c = 0; plain_c < 2; plain_c++) {
        dsc_sha256 all;
        dsc_sha256_init(&all);
        uint8_t digest[32];
        for (size_t n = 0; n <= 300; n++) {
            digest_of(data, n, plain_c, digest);
            dsc_sha256_update(&all, digest, sizeof digest);
        }
        char text[65];
        dsc_sha256_final(&all, digest);
        dsc_hex(text, digest, sizeof digest);
        assert_string_equal(text, "7d917fbd2cf49ddff9ad0a8706bba32d204e92e71d2e369c5a03d6af29278c9f");
    }
}

static void sha256_in_pieces(void **state)
{
    (void)state;
    uint8_t data[1000], whole[32], pieces[32];
    for (int i = 0; i < 1000; i++)
        data[i] = (uint8_t)(i * 131 >> 3);
    digest_of(data, sizeof data, false, whole);
    for (size_t piece = 1; piece < 200; piece++) {
        dsc_sha256 sha;
        dsc_sha256_init(&sha);
        for (size_t at = 0; at < sizeof data; at += piece)
            dsc_sha256_update(&sha, data + at, piece < sizeof data - at ? piece : sizeof data - at);
        dsc_sha256_update(&sha, data, 0);
        dsc_sha256_final(&sha, pieces);
        assert_memory_equal(whole, pieces, 32);
    }
}

/* RFC 3720, appendix B.4, and the check value of the CRC catalogues. */
static void crc32c_vectors(void **state)
{
    (void)state;
    uint8_t zeros[32] = { 0 }, ones[32], up[32], down[32];
    for (int i = 0; i < 32; i++) {
        ones[i] = 0xff;
        up[i] = (uint8_t)i;
        down[i] = (uint8_t)(31 - i);
    }
    const struct { const void *data; size_t bytes; uint32_t crc; } vectors[] = {
        { zeros, 32, 0x8a9136aa }, { ones, 32, 0x62a8ab43 },      { up, 32, 0x46dd794e },
        { down, 32, 0x113fdb5c },  { "123456789", 9, 0xe3069283 }, { "", 0, 0 },
    };
    for (size_t i = 0; i < DSC_COUNT(vectors); i++) {
        assert_int_equal(dsc_crc32c(0, vectors[i].data, vectors[i].bytes), vectors[i].crc);
        assert_int_equal(dsc_crc32c_ref(0, vectors[i].data, vectors[i].bytes), vectors[i].crc);
    }
}

/* Every length over the borders of all forms' inner loops, at every alignment, from every kind of start. */
/* The check value of the polynomial's catalogue, zlib's of a long text, and chaining. */
static void crc32_vectors(void **state)
{
    static const char text[] = "The quick brown fox jumps over the lazy dog";
    assert_int_equal(dsc_crc32(0, "", 0), 0);
    assert_int_equal(dsc_crc32(0, "123456789", 9), 0xCBF43926);
    assert_int_equal(dsc_crc32(0, text, sizeof text - 1), 0x414FA339);
    assert_int_equal(dsc_crc32(dsc_crc32(0, text, 7), text + 7, sizeof text - 8), 0x414FA339);
}

static void crc32c_chains_and_variants_agree(void **state)
{
    (void)state;
    enum { BYTES = 9000 };
    dsc_crc32c_variant variants[DSC_CRC32C_VARIANTS_MAX];
    const size_t variant_count = dsc_crc32c_variants(variants);
    uint8_t *data = malloc(BYTES);
    assert_non_null(data);
    for (int i = 0; i < BYTES; i++)
        data[i] = (uint8_t)(i * i >> 2 ^ i >> 9);
    for (size_t start = 0; start < 9; start++)
        for (size_t bytes = 0; bytes + start <= BYTES; bytes += bytes < 1100 ? 1 + bytes / 64 : 61) {
            const uint32_t seed = (uint32_t)(bytes * 2654435761u) * (start % 2);
            const uint32_t want = dsc_crc32c_ref(seed, data + start, bytes);
            for (size_t v = 0; v < variant_count; v++)
                assert_int_equal(variants[v].run(seed, data + start, bytes), want);
            assert_int_equal(dsc_crc32c(seed, data + start, bytes), want);
            const uint32_t half = dsc_crc32c(seed, data + start, bytes / 3);
            assert_int_equal(dsc_crc32c(half, data + start + bytes / 3, bytes - bytes / 3), want);
        }
    free(data);
}

/* Swap's blocks: 4 KiB behind 16 bytes. */
static void crc32c_of_blocks_agrees(void **state)
{
    (void)state;
    uint8_t block[4096 + 16];
    for (uint32_t seed = 1; seed < 50; seed++) {
        uint32_t random = seed;
        for (size_t i = 0; i < sizeof block; i++)
            block[i] = (uint8_t)((random = random * 1664525u + 1013904223u) >> 24);
        const uint32_t place = dsc_crc32c(0, block, 16);
        assert_int_equal(dsc_crc32c(place, block + 16, 4096), dsc_crc32c_ref(0, block, sizeof block));
    }
}

static void xxh3_values(void **state)
{
    (void)state;
    const dsc_hash128 empty = dsc_xxh3_128("", 0, 0); /* XXH128 of nothing, as xxhsum -H2 prints it */
    assert_true(empty.high == UINT64_C(0x99aa06d3014798d8));
    assert_true(empty.low == UINT64_C(0x6001c324468d497f));
    const dsc_hash128 a = dsc_xxh3_128("block", 5, 1), b = dsc_xxh3_128("block", 5, 2);
    assert_true(a.low != b.low); /* the seed counts */
}

static void hex_is_lower_case(void **state)
{
    (void)state;
    char out[7];
    dsc_hex(out, (const uint8_t[]){ 0x00, 0xaf, 0x9C }, 3);
    assert_string_equal(out, "00af9c");
    dsc_hex(out, NULL, 0);
    assert_string_equal(out, "");
}

static void bench_one(const char *name, void (*run)(const void *, size_t), const void *data, size_t bytes)
{
    int64_t best = INT64_MAX;
    for (int i = 0; i < 5; i++) {
        const int64_t start = dsc_clock_ns();
        run(data, bytes);
        best = dsc_min_i64(best, dsc_clock_ns() - start);
    }
    printf("# %-24s %6.2f GB/s\n", name, (double)bytes / (double)best);
}

static void run_sha(const void *data, size_t bytes) { uint8_t d[32]; digest_of(data, bytes, false, d); }
static void run_sha_ref(const void *data, size_t bytes) { uint8_t d[32]; digest_of(data, bytes, true, d); }
static void run_xxh(const void *data, size_t bytes) { dsc_xxh3_128(data, bytes, 0); }

/* In blocks of 4 KiB, as swap checks them; `times` passes, the best one told. */
static double crc_gb_per_s(const dsc_crc32c_variant *variant, const uint8_t *data, size_t bytes, int times)
{
    volatile uint32_t sink = 0;
    int64_t best = INT64_MAX;
    for (int i = 0; i < times; i++) {
        const int64_t start = dsc_clock_ns();
        uint32_t sum = 0;
        for (size_t at = 0; at + 4096 <= bytes; at += 4096)
            sum ^= variant->run((uint32_t)at, data + at, 4096);
        sink = sum;
        best = dsc_min_i64(best, dsc_clock_ns() - start);
    }
    (void)sink;
    return (double)bytes / (double)best;
}

static void bench_crc(const uint8_t *data, size_t bytes)
{
    dsc_crc32c_variant variants[DSC_CRC32C_VARIANTS_MAX];
    const size_t variant_count = dsc_crc32c_variants(variants);
    for (size_t v = 0; v < variant_count; v++)
        printf("# crc32c by %-22s %6.2f GB/s from cache, %6.2f from memory\n", variants[v].name,
               crc_gb_per_s(&variants[v], data, 64 << 10, 1000), crc_gb_per_s(&variants[v], data, bytes, 5));
}

/* DSC_BENCH=1: what hashing a checkpoint costs. */
static void bench(void)
{
    const size_t bytes = 256 << 20;
    void *data = malloc(bytes);
    if (data == NULL)
        return;
    memset(data, 0x5a, bytes);
    bench_one("sha256", run_sha, data, bytes);
    bench_one("sha256 plain C", run_sha_ref, data, bytes);
    bench_one("xxh3-128", run_xxh, data, bytes);
    bench_crc(data, bytes);
    free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sha256_vectors),
        cmocka_unit_test(sha256_every_length),
        cmocka_unit_test(sha256_in_pieces),
        cmocka_unit_test(crc32c_vectors),
        cmocka_unit_test(crc32_vectors),
        cmocka_unit_test(crc32c_chains_and_variants_agree),
        cmocka_unit_test(crc32c_of_blocks_agrees),
        cmocka_unit_test(xxh3_values),
        cmocka_unit_test(hex_is_lower_case),
    };
    if (getenv("DSC_BENCH") != NULL)
        bench();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
