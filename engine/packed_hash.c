/* packed_hash.c - see packed_hash.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/packed_hash.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define BLOCK_BYTES_MAX (DSC_NF4_BLOCK / 2 + 4)

static uint64_t key_of(const char *name) { return dsc_xxh3_128(name, strlen(name), 0).low; }

void dsc_packed_hash_add(dsc_hash128 *sum, dsc_hash128 hash)
{
    sum->low += hash.low;
    sum->high += hash.high;
}

void dsc_packed_hash_tensor(dsc_hash128 *sum, dsc_nf4 kind, const char *name, int64_t elements, const float *tops,
                            float offset)
{
    struct {
        int64_t kind, elements, offset_bits;
    } facts = { kind, elements, 0 };
    const uint64_t key = key_of(name);
    DSC_ASSERT(kind != DSC_NF4_NONE && elements > 0);
    if (kind == DSC_NF4_NESTED)
        memcpy(&facts.offset_bits, &offset, sizeof offset);
    dsc_packed_hash_add(sum, dsc_xxh3_128(&facts, sizeof facts, key));
    if (kind == DSC_NF4_NESTED)
        dsc_packed_hash_add(sum, dsc_xxh3_128(tops, (size_t)dsc_nf4_tops(elements) * sizeof *tops, key + 1));
}

void dsc_packed_hash_blocks(dsc_hash128 *sum, dsc_nf4 kind, const char *name, int64_t first, int64_t count,
                            const uint8_t *codes, const void *scales)
{
    const uint64_t key = key_of(name);
    const int64_t scale_bytes = dsc_nf4_scale_bytes(kind);
    const uint8_t *scale = scales;
    uint8_t block[BLOCK_BYTES_MAX];
    DSC_ASSERT(first >= 0 && count > 0);
    for (int64_t done = 0; done < count; done += DSC_NF4_BLOCK, scale += scale_bytes) {
        const int64_t bytes = dsc_min_i64(DSC_NF4_BLOCK, count - done + 1) / 2;
        memcpy(block, codes + done / 2, (size_t)bytes);
        memcpy(block + bytes, scale, (size_t)scale_bytes);
        /* An odd factor keeps the keys of a tensor's blocks apart. */
        const uint64_t number = (uint64_t)(first + done / DSC_NF4_BLOCK) + 2;
        dsc_packed_hash_add(
            sum, dsc_xxh3_128(block, (size_t)(bytes + scale_bytes), key + number * UINT64_C(0x9e3779b97f4a7c15)));
    }
}

void dsc_packed_hash_text(dsc_hash128 sum, char out[DSC_PACKED_HASH_TEXT])
{
    snprintf(out, DSC_PACKED_HASH_TEXT, "nf4-%016" PRIx64 "%016" PRIx64, sum.high, sum.low);
}
