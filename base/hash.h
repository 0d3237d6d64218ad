/* hash.h - SHA-256 (FIPS 180-4), CRC-32C (RFC 3720 appendix B.4), XXH3-128 (libxxhash).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_BASE_HASH_H
#define DSC_BASE_HASH_H

#include "base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dsc_sha256 {
    uint32_t state[8];
    uint64_t bytes;
    uint8_t block[64];
    void (*blocks)(uint32_t state[8], const uint8_t *data, size_t block_count); /* chosen by init for this CPU */
} dsc_sha256;
void dsc_sha256_init(dsc_sha256 *sha);
void dsc_sha256_update(dsc_sha256 *sha, const void *data, size_t bytes);
void dsc_sha256_final(dsc_sha256 *sha, uint8_t digest[32]);
void dsc_hex(char *out, const uint8_t *bytes, size_t count); /* out[2 * count + 1], lower case */

/* CRC-32C; chain by passing the previous value, start with 0. By the CPU's fastest instructions. */
uint32_t dsc_crc32c(uint32_t crc, const void *data, size_t bytes);

/* CRC-32, zlib's and that of ZIP files; chained likewise. Bit by bit: for little data. */
uint32_t dsc_crc32(uint32_t crc, const void *data, size_t bytes);

typedef struct dsc_hash128 { uint64_t low, high; } dsc_hash128;
dsc_hash128 dsc_xxh3_128(const void *data, size_t bytes, uint64_t seed);

/* The plain C forms, which the tests compare the CPU's instructions with. */
void dsc_sha256_blocks_ref(uint32_t state[8], const uint8_t *data, size_t block_count);
uint32_t dsc_crc32c_ref(uint32_t crc, const void *data, size_t bytes);

/* The forms of dsc_crc32c that this CPU can run, fastest first, the plain C one last: for tests and benches. */
#define DSC_CRC32C_VARIANTS_MAX 3
typedef struct dsc_crc32c_variant {
    const char *name;
    uint32_t (*run)(uint32_t crc, const void *data, size_t bytes);
} dsc_crc32c_variant;
size_t dsc_crc32c_variants(dsc_crc32c_variant out[DSC_CRC32C_VARIANTS_MAX]);

#ifdef __cplusplus
}
#endif
#endif
