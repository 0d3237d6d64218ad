/* quant_unit.h - the kernels of quant.h over one unit of 1024 elements: what a variant has to provide.
 * Private to kernels/quant*.c. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CPU_QUANT_UNIT_H
#define DSC_KERNELS_CPU_QUANT_UNIT_H

#include <string.h>

#include "base/bf16.h"
#include "kernels/quant.h"

#define DSC_QUANT_UNIT_BLOCKS (DSC_QUANT_UNIT / DSC_QUANT_BLOCK)

/* Eight scales, and where the packed elements of the unit lie. */
typedef struct dsc_quant_unit {
    uint16_t *scale;
    uint8_t *q;
} dsc_quant_unit;

typedef struct dsc_quant_ops {
    void (*pack)(const dsc_quant_unit *to, const void *from, float *error, dsc_dtype dtype, dsc_quant quant);
    void (*unpack)(void *to, const dsc_quant_unit *from, dsc_dtype dtype, dsc_quant quant);
    /* acc[i] <- start + the leaf, with start 0 or acc[i] */
    void (*ordered_reduce)(float *acc, const dsc_quant_unit *leaf, dsc_quant quant, bool overwrite);
} dsc_quant_ops;

extern const dsc_quant_ops dsc_quant_ref, dsc_quant_avx2, dsc_quant_avx512;

static inline float dsc_quant_levels(dsc_quant quant) { return quant == DSC_QUANT_INT4 ? 7.0f : 127.0f; }
static inline int64_t dsc_quant_block_bytes(dsc_quant quant)
{
    return dsc_quant_bytes(quant, DSC_QUANT_BLOCK) - dsc_quant_scale_bytes(quant, DSC_QUANT_BLOCK);
}
static inline dsc_dtype dsc_quant_half(dsc_quant quant) { return quant == DSC_QUANT_F16 ? DSC_F16 : DSC_BF16; }
/* Code of an element that is 0, and of a pair of them. */
static inline int dsc_quant_zero(dsc_quant quant) { return quant == DSC_QUANT_INT4 ? 0x88 : 0; }

/* Factor of the numbers, from the bits of the largest |x|; 0 if the block has no number that can be packed. For
 * numbers that can, the product is at most 127 (7) and 3 units in the last place. */
static inline float dsc_quant_inverse(uint32_t top_bits, dsc_quant quant, uint16_t *scale)
{
    if (top_bits >= 0x7f800000u) {
        *scale = 0x7fc0;
        return 0.0f;
    }
    float least;
    memcpy(&least, &top_bits, 4);
    least = least / dsc_quant_levels(quant);
    uint32_t bits;
    memcpy(&bits, &least, 4);
    const uint16_t up = (uint16_t)((bits + 0xffffu) >> 16);
    *scale = up < 0x0080 ? 0 : up;
    return *scale == 0 ? 0.0f : 1.0f / dsc_f32_from_bf16(*scale);
}

#endif
