/* conv2d.h - parts of two-dimensional convolutions over pictures whose pixels are rows (NHWC).
 *
 * x is [B * H * W, Cin], y is [B * H' * W', Cout], both row by row from left to right and downwards. The weight is
 * [Cout, Cin / groups, kh, kw], as PyTorch's Conv2d has it:
 *
 *     y[b,i,j,o] = bias[o] + sum over u, v, c of x[b, i s - p + u d, j s' - p' + v d', c of o's group] w[o,c,u,v]
 *
 * Pixels outside of the picture are 0. H' = (H + 2 p - d (kh - 1) - 1) / s + 1, rounded down, and W' likewise. A tap is
 * a place (u, v) of the window, in this order. Most convolutions are products of gathered windows with weights in
 * another order (conv2d_products.h). With one input channel a group, "depthwise", each channel is summed by itself.
 * reference: cpu/conv2d.c, cpu/conv2d_ref.c, cpu/conv2d_direct.c   on a GPU: cuda/conv2d/conv2d.cu
 * check: tests/checkkern/conv2d.c SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CONV2D_H
#define DSC_KERNELS_CONV2D_H
#include <stdbool.h>

#include <dsc/types.h>
#ifdef __cplusplus
extern "C" {
#endif

enum { DSC_CONV2D_STRIPS = 64 }; /* parts of a depthwise weight gradient's sum at most */

/* Pairs are downwards and across. */
typedef struct dsc_conv2d_shape {
    int64_t batch, height, width, in, out, groups; /* B, H, W, Cin, Cout */
    int64_t kernel[2], stride[2], padding[2], dilation[2];
} dsc_conv2d_shape;

/* On a GPU too. */
#ifdef __CUDACC__
#define DSC_CONV2D_FN static __host__ __device__ __forceinline__
#else
#define DSC_CONV2D_FN static inline
#endif

/* H' and W'; 0: the window does not fit. */
DSC_CONV2D_FN int64_t dsc_conv2d_out(const dsc_conv2d_shape *s, int axis)
{
    const int64_t size = axis == 0 ? s->height : s->width;
    const int64_t room = size + 2 * s->padding[axis] - s->dilation[axis] * (s->kernel[axis] - 1) - 1;
    return room < 0 ? 0 : room / s->stride[axis] + 1;
}

DSC_CONV2D_FN int64_t dsc_conv2d_taps(const dsc_conv2d_shape *s) { return s->kernel[0] * s->kernel[1]; }

/* The input's place at output `at` and tap `tap` of an axis; -1: outside. */
DSC_CONV2D_FN int64_t dsc_conv2d_input(const dsc_conv2d_shape *s, int axis, int64_t at, int64_t tap)
{
    const int64_t place = at * s->stride[axis] - s->padding[axis] + tap * s->dilation[axis];
    return place >= 0 && place < (axis == 0 ? s->height : s->width) ? place : -1;
}

/* The output whose tap `tap` reads input `at`; -1: none does. */
DSC_CONV2D_FN int64_t dsc_conv2d_output(const dsc_conv2d_shape *s, int axis, int64_t at, int64_t tap)
{
    const int64_t place = at + s->padding[axis] - tap * s->dilation[axis];
    if (place < 0 || place % s->stride[axis] != 0 || place / s->stride[axis] >= dsc_conv2d_out(s, axis))
        return -1;
    return place / s->stride[axis];
}

/* Windows as rows. forward: row r is output pixel first + r, and out[r, tap, c] is x of the group's channel c under
 * that tap. `back`: row r is input pixel first + r, and out[r, tap, o] is dy of the group's channel o at the output
 * that reads the pixel by that tap. Places without a pixel are 0. */
typedef struct dsc_windows_args {
    void *out;                  /* [rows, taps, Cin / groups], back: [rows, taps, Cout / groups] */
    const void *in;             /* x; back: dy */
    int64_t first, rows, group; /* rows >= 1 */
    bool back;
    dsc_conv2d_shape shape;
    dsc_dtype dtype;
} dsc_windows_args;

/* Weights in another order, with G groups of O = Cout / G outputs and C = Cin / G inputs. */
typedef enum dsc_conv2d_order {
    DSC_CONV2D_FORWARD,  /* out[Cout, taps, C] of [Cout, C, taps] */
    DSC_CONV2D_BACK,     /* out[G, taps, O, C] of [Cout, C, taps] */
    DSC_CONV2D_GRADIENT, /* out[Cout, C, taps] of [Cout, taps, C] */
    DSC_CONV2D_DEPTHWISE /* out[taps, Cout] of [Cout, 1, taps] */
} dsc_conv2d_order;

typedef struct dsc_conv2d_weight_args {
    void *out;
    const void *in;
    dsc_conv2d_order order;
    dsc_conv2d_shape shape;
    dsc_dtype dtype;
} dsc_conv2d_weight_args;

DSC_CONV2D_FN int64_t dsc_conv2d_weights(const dsc_conv2d_shape *s)
{
    return s->out * (s->in / s->groups) * dsc_conv2d_taps(s);
}

/* The element of `in` that is element i of `out`. */
DSC_CONV2D_FN int64_t dsc_conv2d_weight_from(const dsc_conv2d_shape *s, dsc_conv2d_order order, int64_t i)
{
    const int64_t c = s->in / s->groups, o = s->out / s->groups, taps = dsc_conv2d_taps(s);
    switch (order) {
    case DSC_CONV2D_FORWARD:
        return (i / (taps * c) * c + i % c) * taps + i / c % taps;
    case DSC_CONV2D_BACK:
        return ((i / (taps * o * c) * o + i / c % o) * c + i % c) * taps + i / (o * c) % taps;
    case DSC_CONV2D_GRADIENT:
        return (i / (taps * c) * taps + i % taps) * c + i / taps % c;
    default:
        return i % s->out * taps + i / s->out;
    }
}

/* A whole convolution of one group in one launch: on CPUs, and on GPUs where cuDNN has the pass and is chosen
 * (kernels/device.h). The weight is PyTorch's [Cout, Cin, kh, kw]. Sums are fp32. On a CPU those of Y and DX run over
 * channels within a tap and then over taps. Those of DW run over pixels of a strip, and strips are added in order.
 * Windows of 3 by 3 at stride 1 may be computed by transforms of tiles instead (Winograd 1980; Lavin & Gray 2016),
 * whose error is a few times as large. The way and the strips follow from the shape. On a GPU the gradient of a weight,
 * and dx before a sum, are rounded to the dtype. */
typedef enum dsc_conv2d_pass { DSC_CONV2D_Y, DSC_CONV2D_DX, DSC_CONV2D_DW } dsc_conv2d_pass;

typedef struct dsc_conv2d_args {
    dsc_conv2d_pass pass;
    void *out;              /* Y: y; DX: dx; DW: the weight's gradient, fp32 and overwritten */
    const void *in;         /* Y and DW: x; DX: dy */
    const void *with;       /* Y and DX: the weight; DW: dy */
    const void *add;        /* Y: the bias [Cout]; DX: what dx is added to, which may be out; or NULL */
    void *scratch;          /* dsc_conv2d_scratch bytes; GPU: dsc_conv2d_gpu_scratch */
    dsc_conv2d_shape shape; /* groups: 1 */
    dsc_dtype dtype;        /* F32 or BF16 */
} dsc_conv2d_args;

/* Bytes of a CPU's scratch. */
int64_t dsc_conv2d_scratch(const dsc_conv2d_shape *s, dsc_conv2d_pass pass, dsc_dtype dtype);

/* On a GPU: the weight or its gradient in another order, and DX's result before the sum, from dsc_conv2d_sum_at on.
 * `sums`: DX with `add`. */
DSC_CONV2D_FN int64_t dsc_conv2d_sum_at(const dsc_conv2d_shape *s)
{
    return (dsc_conv2d_weights(s) * 4 + 255) / 256 * 256;
}
DSC_CONV2D_FN int64_t dsc_conv2d_gpu_scratch(const dsc_conv2d_shape *s, bool sums, dsc_dtype dtype)
{
    const int64_t x = s->batch * s->height * s->width * s->in * (dtype == DSC_F32 ? 4 : 2);
    return dsc_conv2d_sum_at(s) + (sums ? (x + 255) / 256 * 256 : 0);
}

/* Whether a CPU has the pass in one launch. */
DSC_CONV2D_FN bool dsc_conv2d_is_whole_on_cpu(const dsc_conv2d_args *a)
{
    return a->shape.groups == 1 && a->dtype != DSC_F16;
}

/* Depthwise, with groups = Cin; output o reads channel o / (Cout / Cin). DEPTHWISE_FWD: out = y, in = x. DEPTHWISE_DX:
 * out = dx, in = dy. Sums are fp32 over taps in order, of one input over its outputs within a tap; then bias or `add`
 * is added, and the sum is rounded once. */
typedef struct dsc_depthwise_args {
    void *out;
    const void *in;
    const void *weight; /* [taps, Cout]: DSC_CONV2D_DEPTHWISE */
    const void *add;    /* forward: the bias [Cout]; backward: what dx is added to, which may be out; or NULL */
    dsc_conv2d_shape shape;
    dsc_dtype dtype;
} dsc_depthwise_args;

/* The weight's gradient, fp32 and overwritten. Lines of all samples' outputs are summed in up to 64 strips, then the
 * strips are added in order. */
typedef struct dsc_depthwise_dw_args {
    float *d_weight; /* [Cout, 1, kh, kw] */
    const void *in, *d_out;
    float *scratch; /* [dsc_depthwise_strips, taps, Cout] */
    dsc_conv2d_shape shape;
    dsc_dtype dtype;
} dsc_depthwise_dw_args;

DSC_CONV2D_FN int64_t dsc_depthwise_strips(const dsc_conv2d_shape *s)
{
    const int64_t lines = s->batch * dsc_conv2d_out(s, 0), most = DSC_CONV2D_STRIPS;
    return lines < most ? lines : most;
}

/* The first line of a strip. */
DSC_CONV2D_FN int64_t dsc_depthwise_line(const dsc_conv2d_shape *s, int64_t strip)
{
    return strip * s->batch * dsc_conv2d_out(s, 0) / dsc_depthwise_strips(s);
}

#ifdef __cplusplus
}
#endif
#endif
