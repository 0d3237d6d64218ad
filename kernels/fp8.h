/* fp8.h - matrices in 8-bit floating point with one scale each, and the cast to them: exact, the same bits everywhere.
 *
 * E4M3 has 4 bits of exponent and 3 of mantissa: up to 448, no infinity, 0x7f is NaN. E5M2 has 5 and 2: up to 57344.
 * Both follow Micikevicius et al. 2022, "FP8 formats for deep learning", as GPUs have them. A matrix x is kept as
 * q = x * 2^e, rounded to the nearest of the format, the even one of two; its values are q * 2^-e. With top, the
 * largest |x|, e is the largest integer with top * 2^e <= 448 (57344), within -60 .. 60, and 0 if top is 0. A power of
 * two is exact, so each number is rounded once, and bf16 holds each value. A number that is still too large
 * becomes the largest. If top is an Inf or a NaN, e is 0, and each Inf and NaN becomes NaN.
 * reference: cpu/fp8_ref.c   variants: fp8_avx2.c fp8_avx512.c cuda/fp8.cu   check and bench: tests/checkkern/fp8.c
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_FP8_H
#define DSC_KERNELS_FP8_H

#include <dsc/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum dsc_fp8 { DSC_FP8_NONE, DSC_FP8_E4M3, DSC_FP8_E5M2 } dsc_fp8;

#define DSC_FP8_UNIT 16 /* rows and columns are multiples: products of a GPU's library need that */
#define DSC_FP8_PARTS_MAX 1024
#define DSC_FP8_EXPONENT_MAX 60

/* Beside the numbers, 256-byte aligned. */
typedef struct dsc_fp8_scale {
    float step; /* 2^-e: a value is q * step */
    float unused[63];
    uint32_t part[DSC_FP8_PARTS_MAX]; /* work space */
} dsc_fp8_scale;

/* Blocks of a matrix with a scale each (DeepSeek-V3, section 3.3.2). BLOCKS_ROW: of 1 x 128 numbers along a product's
 * sum, for activations and gradients. BLOCKS_SQUARE: of 128 x 128, for weights. The last block of a side may be
 * shorter. A block's e follows from its own largest number as that of a matrix does. */
typedef enum dsc_fp8_blocks { DSC_FP8_BLOCKS_NONE, DSC_FP8_BLOCKS_ROW, DSC_FP8_BLOCKS_SQUARE } dsc_fp8_blocks;
#define DSC_FP8_BLOCK 128

/* Steps of the blocks of q [outer, inner], whose sum is along `inner`, as cuBLASLt reads them. BLOCKS_ROW:
 * step[inner / 128][outer]. BLOCKS_SQUARE: step[outer / 128][inner / 128], rows of it 4 * n steps apart. */
static inline int64_t dsc_fp8_block_count(int64_t size) { return (size + DSC_FP8_BLOCK - 1) / DSC_FP8_BLOCK; }
static inline int64_t dsc_fp8_square_stride(int64_t inner) { return (dsc_fp8_block_count(inner) + 3) / 4 * 4; }
static inline int64_t dsc_fp8_step_count(dsc_fp8_blocks blocks, int64_t outer, int64_t inner)
{
    return blocks == DSC_FP8_BLOCKS_NONE  ? 0
           : blocks == DSC_FP8_BLOCKS_ROW ? dsc_fp8_block_count(inner) * outer
                                          : dsc_fp8_block_count(outer) * dsc_fp8_square_stride(inner);
}

/* q of x [row_count, col_count], dense, as it is, transposed, or both. Arrays are 16-byte aligned and do not overlap.
 * With blocks, `scale` is not used, and row_steps and column_steps get the steps of `rows` and `columns`, which in
 * BLOCKS_ROW are cast apart: each in blocks along its own rows. */
typedef struct dsc_cast_fp8_args {
    uint8_t *rows;    /* [row_count, col_count], or NULL */
    uint8_t *columns; /* [col_count, row_count], or NULL */
    dsc_fp8_scale *scale;
    const void *from; /* BF16; with from_fp8 numbers that are cast already, of which `columns` alone are made */
    int64_t row_count, col_count;
    dsc_fp8 format;
    bool from_fp8; /* `scale` is not used */
    dsc_fp8_blocks blocks;
    float *row_steps, *column_steps;
} dsc_cast_fp8_args;

/* A matrix in E4M3 of which each of several ranks casts a piece, all with the scale of the whole matrix. Each rank
 * finds its own largest number (TOP), the largest of all ranks gives the scale (SCALE), then pieces are cast (CAST).
 * The numbers are those that CAST_FP8 makes of the whole matrix. */
typedef enum dsc_fp8_piece_work { DSC_FP8_PIECE_TOP, DSC_FP8_PIECE_SCALE, DSC_FP8_PIECE_CAST } dsc_fp8_piece_work;
typedef struct dsc_fp8_piece_args {
    dsc_fp8_piece_work work;
    const void *from;     /* TOP, CAST: BF16 [count], 16-byte aligned */
    int64_t count;        /* a multiple of DSC_FP8_UNIT, may be 0 */
    uint32_t *top;        /* TOP: becomes the bits of the largest |x| if they are larger */
    const uint32_t *tops; /* SCALE: [top_count], top_stride apart */
    int64_t top_count, top_stride;
    dsc_fp8_scale *scale; /* SCALE writes it, CAST reads it */
    uint8_t *to;          /* CAST: [count], 8-byte aligned */
} dsc_fp8_piece_args;

/* Bits of |x| from which on it is at least as large as the largest number of the format; the exponent of that. */
static inline uint32_t dsc_fp8_largest_bits(dsc_fp8 format)
{
    return format == DSC_FP8_E4M3 ? 0x43e00000u : 0x47600000u;
}

/* e of the bits of the largest |x|. */
static inline int dsc_fp8_exponent(uint32_t top, dsc_fp8 format)
{
    const uint32_t largest = dsc_fp8_largest_bits(format);
    if (top == 0 || top >= 0x7f800000u)
        return 0;
    /* Denormals count as 2^-126, whose e is beyond the limit too. */
    int e = (int)(largest >> 23) - (int)(top >> 23);
    if ((top & 0x7fffffu) > (largest & 0x7fffffu))
        e--;
    return e > DSC_FP8_EXPONENT_MAX ? DSC_FP8_EXPONENT_MAX : e < -DSC_FP8_EXPONENT_MAX ? -DSC_FP8_EXPONENT_MAX : e;
}

/* Bits of the fp32 2^e. */
static inline uint32_t dsc_fp8_power_bits(int e) { return (uint32_t)(e + 127) << 23; }

#ifdef __cplusplus
}
#endif
#endif
