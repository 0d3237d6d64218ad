/* quant.h - numbers packed into few bits for the wire, block by block: exact kernels, the same bits on every variant.
 *
 * A piece of `count` elements (a multiple of DSC_QUANT_UNIT) is packed as a bf16 scale for each block of 128 elements,
 * followed by the elements. An element takes one byte (INT8) or half a byte (INT4: of two elements the even one is in
 * the lower half, with 8 added). Tensors are aligned to 128 elements in their groups (zero/core/layout.h), so a block
 * never has numbers of two tensors. The blocks do not depend on how a group is cut into slices. Per block, with
 * L = 127 or 7:
 *   top = the largest |x|;  scale = top / L, up to the next bf16;  inverse = 1 / scale
 *   q = the integer nearest to x * inverse, the even one of two;  unpacked: q * scale, which fp32 holds exactly
 * If a scale is below 2^-126, it and all its numbers become 0. If an Inf or a NaN is among the numbers, the scale is
 * NaN, and so are all unpacked values. ZeRO++ (Wang et al. 2023) packs weights so into 8 bits and gradients into 4.
 *
 * BF16 and F16 are elements rounded to the nearest (CAST), without scales, from and to fp32 only: for `error` below.
 * reference: cpu/quant_ref.c   variants: quant_avx2.c quant_avx512.c   check and bench: tests/checkkern/quant.c
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_QUANT_H
#define DSC_KERNELS_QUANT_H

#include <dsc/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DSC_QUANT_BLOCK 128
#define DSC_QUANT_UNIT 1024 /* eight blocks: packed elements begin at a multiple of 16 bytes */

typedef enum dsc_quant {
    DSC_QUANT_NONE, DSC_QUANT_INT8, DSC_QUANT_INT4, DSC_QUANT_BF16, DSC_QUANT_F16
} dsc_quant;

const char *dsc_quant_text(dsc_quant quant); /* "int8" */
static inline bool dsc_quant_is_half(dsc_quant quant) { return quant == DSC_QUANT_BF16 || quant == DSC_QUANT_F16; }
static inline int64_t dsc_quant_scale_bytes(dsc_quant quant, int64_t count)
{
    return dsc_quant_is_half(quant) ? 0 : count / DSC_QUANT_BLOCK * 2;
}
/* Bytes of a packed piece. */
static inline int64_t dsc_quant_bytes(dsc_quant quant, int64_t count)
{
    return dsc_quant_scale_bytes(quant, count) +
           (dsc_quant_is_half(quant) ? 2 * count : quant == DSC_QUANT_INT4 ? count / 2 : count);
}

/* Every array starts at a multiple of 16 bytes, every piece of it too; arrays do not overlap. Counts are those of one
 * piece and a multiple of DSC_QUANT_UNIT. */

/* to <- from, packed. With `error`, x = from[i] + error[i] (fp32) is packed instead. Then error[i] becomes x minus
 * its unpacked value, or 0 in blocks (BF16 and F16: in elements) that are not finite. */
typedef struct dsc_quantize_args {
    void *to;
    const void *from;
    float *error;         /* NULL, or pieces as those of `from` */
    int64_t count, pieces;
    int64_t from_stride;  /* elements between the starts of two pieces */
    int64_t to_stride_bytes;
    dsc_dtype from_dtype; /* F32, BF16 or F16 */
    dsc_quant quant;
} dsc_quantize_args;

/* to <- from unpacked and rounded to to_dtype. */
typedef struct dsc_dequantize_args {
    void *to;
    const void *from;
    int64_t count, pieces;
    int64_t to_stride; /* elements */
    int64_t from_stride_bytes;
    dsc_dtype to_dtype; /* F32, BF16 or F16 */
    dsc_quant quant;
} dsc_dequantize_args;

/* ORDERED_REDUCE (exact.h) of grad_part_count >= 1 packed leaves:
 *   s = overwrite ? leaf_0[i] : acc[i] + leaf_0[i];  s = s + leaf_k[i] for k = 1..grad_part_count-1;  acc[i] = s */
typedef struct dsc_ordered_reduce_quantized_args {
    float *acc;
    const void *leaf;
    int64_t leaf_stride_bytes, grad_part_count, count;
    dsc_quant quant;
    bool overwrite;
} dsc_ordered_reduce_quantized_args;

#ifdef __cplusplus
}
#endif
#endif
