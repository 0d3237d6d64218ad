/* hmac.h - HMAC-SHA-256 (RFC 2104, FIPS 198-1). SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_COMM_RENDEZVOUS_HMAC_H
#define DSC_COMM_RENDEZVOUS_HMAC_H

#include "base/hash.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dsc_hmac {
    dsc_sha256 inner;
    uint8_t outer_key[64];
} dsc_hmac;
void dsc_hmac_init(dsc_hmac *hmac, const void *key, size_t key_bytes);
void dsc_hmac_update(dsc_hmac *hmac, const void *data, size_t bytes);
void dsc_hmac_final(dsc_hmac *hmac, uint8_t digest[32]);
/* Takes the same time whatever differs. */
bool dsc_digest_equal(const uint8_t a[32], const uint8_t b[32]);

#ifdef __cplusplus
}
#endif
#endif
