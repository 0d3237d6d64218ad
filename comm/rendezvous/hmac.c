/* hmac.c - HMAC-SHA-256. SPDX-License-Identifier: Apache-2.0 */
#include "comm/rendezvous/hmac.h"

#include <string.h>

void dsc_hmac_init(dsc_hmac *hmac, const void *key, size_t key_bytes)
{
    uint8_t block[64] = { 0 };
    if (key_bytes > sizeof block) {
        dsc_sha256 sha;
        dsc_sha256_init(&sha);
        dsc_sha256_update(&sha, key, key_bytes);
        dsc_sha256_final(&sha, block);
    } else if (key_bytes > 0) {
        memcpy(block, key, key_bytes);
    }
    uint8_t inner_key[64];
    for (size_t i = 0; i < sizeof block; i++) {
        inner_key[i] = block[i] ^ 0x36;
        hmac->outer_key[i] = block[i] ^ 0x5c;
    }
    dsc_sha256_init(&hmac->inner);
    dsc_sha256_update(&hmac->inner, inner_key, sizeof inner_key);
}

void dsc_hmac_update(dsc_hmac *hmac, const void *data, size_t bytes)
{
    dsc_sha256_update(&hmac->inner, data, bytes);
}

void dsc_hmac_final(dsc_hmac *hmac, uint8_t digest[32])
{
    uint8_t inner[32];
    dsc_sha256 outer;
    dsc_sha256_final(&hmac->inner, inner);
    dsc_sha256_init(&outer);
    dsc_sha256_update(&outer, hmac->outer_key, sizeof hmac->outer_key);
    dsc_sha256_update(&outer, inner, sizeof inner);
    dsc_sha256_final(&outer, digest);
}

bool dsc_digest_equal(const uint8_t a[32], const uint8_t b[32])
{
    uint8_t difference = 0;
    for (int i = 0; i < 32; i++)
        difference |= a[i] ^ b[i];
    return difference == 0;
}
