/* fp8_internal.h - between fp8.c (blocks, threads) and the variants of the cast; also what products unpack.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CPU_FP8_INTERNAL_H
#define DSC_KERNELS_CPU_FP8_INTERNAL_H

#include "kernels/kernels.h"

enum { FP8_ROWS = 64, FP8_COLS = 256 }; /* of a block, and of a square in it */

typedef struct dsc_fp8_variant {
    uint32_t (*top)(const uint16_t *x, int64_t count); /* bits of the largest |x| */
    void (*rows)(const dsc_cast_fp8_args *a, int64_t first, int64_t count, float power);
} dsc_fp8_variant;

#define DSC_FP8_DECL(isa)                                                                                              \
    uint32_t dsc_fp8_top_##isa(const uint16_t *x, int64_t count);                                                      \
    void dsc_fp8_rows_##isa(const dsc_cast_fp8_args *a, int64_t first, int64_t count, float power);
DSC_FP8_DECL(ref)
DSC_FP8_DECL(avx2)
DSC_FP8_DECL(avx512)
#undef DSC_FP8_DECL

/* The value of each q, with its scale, in bf16. */
void dsc_fp8_values(dsc_fp8 format, float step, uint16_t values[256]);
/* A matrix of fp8 as a dense one of bf16. */
typedef struct dsc_fp8_unpack {
    uint16_t *to; /* [rows, cols] */
    const uint8_t *from;
    int64_t rows, cols, ld;
    dsc_fp8 format;
    float step;
    dsc_fp8_blocks blocks;
    const float *steps; /* of blocks, instead of `step` */
} dsc_fp8_unpack;
/* Place of the step of number (r, c) of a matrix [rows, cols] in blocks. */
static inline int64_t dsc_fp8_step_at(dsc_fp8_blocks blocks, int64_t rows, int64_t cols, int64_t r, int64_t c)
{
    DSC_ASSERT(blocks != DSC_FP8_BLOCKS_NONE);
    return blocks == DSC_FP8_BLOCKS_ROW ? c / DSC_FP8_BLOCK * rows + r
                                        : r / DSC_FP8_BLOCK * dsc_fp8_square_stride(cols) + c / DSC_FP8_BLOCK;
}
/* fp8_blocks.c */
dsc_status dsc_fp8_cast_blocks(const dsc_cast_fp8_args *a, const dsc_cpu_threads *pool, dsc_fp8_variant with);
void dsc_fp8_unpack_run(const dsc_fp8_unpack *unpack, const dsc_cpu_threads *pool);

#endif
