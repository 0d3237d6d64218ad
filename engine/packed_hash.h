/* packed_hash.h - one hash of all frozen weights in 4 bits, which checkpoints leave out.
 *
 * The hash is a sum of hashes of blocks, each with its tensor's name and its number. So it depends on codes, scales and
 * names alone, and the order and the sizes of pieces do not matter. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_PACKED_HASH_H
#define DSC_ENGINE_PACKED_HASH_H

#include "base/hash.h"
#include "kernels/nf4.h"

#define DSC_PACKED_HASH_TEXT 40 /* "nf4-" and 32 digits */

/* A tensor joins with its elements and with what its scales are unpacked by. tops may be NULL: there are none. */
void dsc_packed_hash_tensor(dsc_hash128 *sum, dsc_nf4 kind, const char *name, int64_t elements, const float *tops,
                            float offset);
/* codes[(count + 1) / 2] and the scales of `count` elements, from block `first` of the tensor on. */
void dsc_packed_hash_blocks(dsc_hash128 *sum, dsc_nf4 kind, const char *name, int64_t first, int64_t count,
                            const uint8_t *codes, const void *scales);
void dsc_packed_hash_add(dsc_hash128 *sum, dsc_hash128 hash); /* of other blocks */
void dsc_packed_hash_text(dsc_hash128 sum, char out[DSC_PACKED_HASH_TEXT]);

#endif
