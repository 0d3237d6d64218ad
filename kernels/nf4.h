/* nf4.h - weights in 4 bits: NF4 codes with a scale for each block of 64, as bitsandbytes has them. Exact kernels, the
 * same bits on every variant.
 *
 * A code is one of 16 numbers in -1..1 (nf4_codes.h); the scale is the largest |x| of the block. Blocks count from the
 * start of a tensor, whose elements follow each other in C order. The last block may be short.
 *   q = the number of midpoints of neighbour codes below clamp(x * (1 / max(scale, 1e-38)), -1, 1)
 *   unpacked: code[q] * scale in fp32, rounded once to the dtype
 * Of two elements in a byte the even one is in the upper half. In a short block x is divided by max(scale, 1e-38),
 * which is then its scale. NESTED scales ("double quantization") are 8-bit codes:
 *   offset = the mean of the tensor's scales, in the order of torch's sum on one thread. Several threads of torch add
 *     more than 32768 scales in another order, and their mean may differ in its last bit
 *   top = the largest |scale - offset| of 256 blocks;  c = the code nearest to (scale - offset) / top (nf4.c)
 *   scale, unpacked: scale_code[c] * top + offset, rounded after each operation
 *
 * Storage: a unit holds 1024 elements, their codes first (512 bytes), then their 16 scales as fp32 (PLAIN) or as 8-bit
 * codes (NESTED). The tops and the offset of a tensor are stored elsewhere. Sources: QLoRA (arXiv:2305.14314);
 * bitsandbytes 0.50, backends/default/ops.py and csrc/cpu_ops.cpp.
 * reference: cpu/nf4_ref.c   variants: nf4_avx2.c nf4_avx512.c   check and bench: tests/checkkern/nf4.c
 * packing: cpu/nf4_pack.c, on the host alone; tests/unit/test_nf4.c   SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_NF4_H
#define DSC_KERNELS_NF4_H

#include <dsc/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DSC_NF4_BLOCK 64
#define DSC_NF4_UNIT 1024
#define DSC_NF4_UNIT_BLOCKS (DSC_NF4_UNIT / DSC_NF4_BLOCK)
#define DSC_NF4_CODE_BYTES (DSC_NF4_UNIT / 2) /* of a unit */
#define DSC_NF4_NESTED_BLOCK 256              /* scales that share a top */

typedef enum dsc_nf4 { DSC_NF4_NONE, DSC_NF4_PLAIN, DSC_NF4_NESTED } dsc_nf4;

static inline int64_t dsc_nf4_scale_bytes(dsc_nf4 kind) { return kind == DSC_NF4_NESTED ? 1 : 4; }
static inline int64_t dsc_nf4_unit_bytes(dsc_nf4 kind)
{
    return DSC_NF4_CODE_BYTES + DSC_NF4_UNIT_BLOCKS * dsc_nf4_scale_bytes(kind);
}
/* Bytes of units; `elements` is a multiple of DSC_NF4_UNIT. */
static inline int64_t dsc_nf4_bytes(dsc_nf4 kind, int64_t elements)
{
    return elements / DSC_NF4_UNIT * dsc_nf4_unit_bytes(kind);
}
/* Blocks of a tensor, and tops of its scales. */
static inline int64_t dsc_nf4_blocks(int64_t elements) { return (elements + DSC_NF4_BLOCK - 1) / DSC_NF4_BLOCK; }
static inline int64_t dsc_nf4_tops(int64_t elements)
{
    return (dsc_nf4_blocks(elements) + DSC_NF4_NESTED_BLOCK - 1) / DSC_NF4_NESTED_BLOCK;
}

/* to[i] <- element first + i of the units, unpacked, for i < count. All of them are elements of one tensor. */
typedef struct dsc_nf4_unpack_args {
    void *to;
    const void *units; /* at a multiple of 16 bytes */
    int64_t first;     /* a multiple of DSC_NF4_BLOCK */
    int64_t count;
    const float *tops; /* of the whole tensor; NULL: scales are fp32 */
    int64_t block;     /* of the tensor, the one that begins with element `first` of the units */
    float offset;
    dsc_dtype to_dtype; /* F32, BF16 or F16 */
} dsc_nf4_unpack_args;

/* ---- packing, on the host ---- */

/* codes[(count + 1) / 2] and scales[blocks] <- x[count], finite, from the start of a block on. An odd count's last half
 * byte is the code of 0. */
void dsc_nf4_pack(const float *x, int64_t count, uint8_t *codes, float *scales);
/* codes[count], tops[(count + 255) / 256] and *offset <- all scales of a tensor. */
void dsc_nf4_pack_scales(const float *scales, int64_t count, uint8_t *codes, float *tops, float *offset);
/* One scale of a tensor, unpacked. */
float dsc_nf4_scale(uint8_t code, float top, float offset);
extern const float dsc_nf4_values[16], dsc_nf4_scale_values[256];

#ifdef __cplusplus
}
#endif
#endif
