/* nf4_range.h - the body of the variants of NF4_UNPACK, which differ in how they unpack one block.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CPU_NF4_RANGE_H
#define DSC_KERNELS_CPU_NF4_RANGE_H

#include "kernels/cpu/range.h"
#include "kernels/nf4.h"

/* Codes of a block. */
static inline const uint8_t *nf4_codes_at(const dsc_nf4_unpack_args *a, int64_t at)
{
    const int64_t unit_bytes = dsc_nf4_unit_bytes(a->tops != NULL ? DSC_NF4_NESTED : DSC_NF4_PLAIN);
    return (const uint8_t *)a->units + at / DSC_NF4_UNIT * unit_bytes + at % DSC_NF4_UNIT / 2;
}

/* Scale of the block that begins at element `at` of the units, `i` elements after the first one. */
static inline float nf4_scale_at(const dsc_nf4_unpack_args *a, int64_t at, int64_t i)
{
    const int64_t b = at % DSC_NF4_UNIT / DSC_NF4_BLOCK;
    const uint8_t *scales = nf4_codes_at(a, at - at % DSC_NF4_UNIT) + DSC_NF4_CODE_BYTES;
    if (a->tops == NULL)
        return ((const float *)(const void *)scales)[b];
    return dsc_nf4_scale(scales[b], a->tops[(a->block + i / DSC_NF4_BLOCK) / DSC_NF4_NESTED_BLOCK], a->offset);
}

/* to[at .. at + count - 1] of a block. */
typedef void (*nf4_block_fn)(void *to, int64_t at, int64_t count, const uint8_t *codes, float scale, dsc_dtype dtype);

static inline __attribute__((always_inline)) void nf4_range(const dsc_nf4_unpack_args *a, int64_t first, int64_t last,
                                                            dsc_dtype dtype, nf4_block_fn unpack_block)
{
    for (int64_t i = first; i < last; i += DSC_NF4_BLOCK)
        unpack_block(a->to, i, dsc_min_i64(DSC_NF4_BLOCK, last - i), nf4_codes_at(a, a->first + i),
                     nf4_scale_at(a, a->first + i, i), dtype);
}

#define NF4_DEFINE(isa, unpack_block)                                                                                  \
    void dsc_nf4_unpack_##isa(const void *args, int64_t first, int64_t last)                                           \
    {                                                                                                                  \
        const dsc_nf4_unpack_args *a = args;                                                                           \
        const int64_t end = dsc_min_i64(last * DSC_NF4_PART, a->count);                                                \
        DSC_FOR_DTYPE(a->to_dtype, nf4_range(a, first *DSC_NF4_PART, end, dtype, unpack_block));                       \
    }

#endif
