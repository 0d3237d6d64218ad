/* conv2d_micro.h - tiles of a convolution on one thread, as conv2d_direct.c cuts them. Private to kernels/.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CPU_CONV2D_MICRO_H
#define DSC_KERNELS_CPU_CONV2D_MICRO_H

#include "kernels/conv2d.h"
#include "kernels/kernels.h"

enum {
    DSC_CONV2D_PANEL = 64, /* columns of a packed panel at most */
    DSC_CONV2D_TILE = 96,  /* pixels of a tile at most: a multiple of every variant's rows */
    DSC_CONV2D_UNITS = 128, /* units of pixels that a gradient's tile adds at once */
    DSC_CONV2D_INPUTS = 96 /* input channels of a gradient's tile at most */
};

/* Sums of a tile's pixels over taps and channels, with one panel of the weight. */
typedef struct dsc_conv2d_tile {
    const void *const *row; /* [taps, DSC_CONV2D_TILE]: where a pixel's channels lie under a tap */
    const void *panel;      /* [taps, units of `depth`, columns] */
    float *sum;             /* [pixels, DSC_CONV2D_PANEL]: sums between parts of the taps */
    const int64_t *at;      /* [pixels]: a pixel's first element in out */
    void *out;
    const void *add; /* bias, or as out; or NULL */
    int64_t taps, depth, pixels, column, columns;
    bool is_first, is_last, adds_bias;
    dsc_dtype dtype;
} dsc_conv2d_tile;

/* sum[i, o] += x[i, unit] * d[unit, o] over units of pixels. */
typedef struct dsc_conv2d_gradient_tile {
    const void *x, *d; /* [units, DSC_CONV2D_INPUTS] and [units, DSC_CONV2D_PANEL] of 4 bytes */
    float *sum;        /* [inputs, DSC_CONV2D_PANEL] */
    int64_t units, inputs, outputs;
    bool is_first;
} dsc_conv2d_gradient_tile;

/* `columns` channels of pixels as units: `width` of them a unit, zeros where there is none. */
typedef struct dsc_conv2d_pack {
    void *to; /* [units, width] of 4 bytes */
    const void *const *row; /* of each pixel; NULL: zeros */
    int64_t pixels, units, columns, filled, width; /* filled: columns that are written, `columns` and zeros */
    dsc_dtype dtype;
} dsc_conv2d_pack;

/* 4 by 4 outputs of 36 transformed sums (conv2d_winograd.c). */
typedef struct dsc_conv2d_points {
    const float *from; /* columns of point i at from[i step] */
    int64_t step;
    int64_t at[16]; /* as of a tile; -1: outside of the map */
    void *out;
    const void *add; /* as of a tile */
    int64_t column, columns;
    bool adds_bias;
    dsc_dtype dtype;
} dsc_conv2d_points;

typedef struct dsc_conv2d_micro {
    int panel;      /* columns of a panel */
    int bf16_pairs; /* whether units of bf16 are pairs; otherwise they are fp32 */
    void (*tile)(const dsc_conv2d_tile *t);
    void (*gradient)(const dsc_conv2d_gradient_tile *t, dsc_dtype dtype);
    void (*pack)(const dsc_conv2d_pack *p);
    /* 6 by 6 pixels, of which those outside are NULL, as 36 points: point i of the channels at to[i step]. */
    void (*to_points)(float *to, int64_t step, const void *const *row, int64_t depth, dsc_dtype dtype);
    void (*from_points)(const dsc_conv2d_points *p);
} dsc_conv2d_micro;

extern const dsc_conv2d_micro dsc_conv2d_micro_ref, dsc_conv2d_micro_avx2, dsc_conv2d_micro_avx512,
    dsc_conv2d_micro_avx512bf16;

/* conv2d_winograd.c: whether a convolution's windows are transformed, by its shape; the scratch; the launch. */
bool dsc_conv2d_is_transformed(const dsc_conv2d_shape *s, dsc_conv2d_pass pass);
int64_t dsc_conv2d_transformed_scratch(const dsc_conv2d_shape *s, dsc_conv2d_pass pass);
void dsc_conv2d_transformed(const dsc_conv2d_args *a, const dsc_cpu_threads *pool, const dsc_conv2d_micro *micro);

DSC_MUST_USE dsc_status dsc_conv2d_direct(const dsc_conv2d_args *a, const dsc_cpu_threads *pool,
                                          const dsc_conv2d_micro *micro, dsc_error *err);

#endif
