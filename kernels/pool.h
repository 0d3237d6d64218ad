/* pool.h - maximum and average of windows of feature maps, as torch.nn.MaxPool2d, AvgPool2d and AdaptiveAvgPool2d.
 * reference: cpu/pool_ref.c   variants: cpu/pool_v16.h   check: tests/checkkern/pool.c
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_POOL_H
#define DSC_KERNELS_POOL_H
#include <dsc/types.h>
#ifdef __CUDACC__
#define DSC_POOL_FN static __host__ __device__ __forceinline__
#else
#define DSC_POOL_FN static inline
#endif
#ifdef __cplusplus
extern "C" {
#endif

typedef enum dsc_pool_kind {
    DSC_POOL_MAX,     /* of the pixels of a window that exist */
    DSC_POOL_MEAN,    /* over kernel * kernel pixels; those of the padding are 0 (count_include_pad) */
    DSC_POOL_ADAPTIVE /* the mean of [floor(o H / O), ceil((o + 1) H / O)) for output o of O */
} dsc_pool_kind;

typedef struct dsc_pool_shape {
    dsc_pool_kind kind;
    int64_t height, width, out_height, out_width;
    int64_t kernel, stride, padding; /* in both directions; not of ADAPTIVE. padding <= kernel / 2 */
} dsc_pool_shape;

/* Output pixels of a side of `size`, as with ceil_mode=False. */
DSC_POOL_FN int64_t dsc_pool_out(int64_t size, int64_t kernel, int64_t stride, int64_t padding)
{
    return (size + 2 * padding - kernel) / stride + 1;
}

/* Pixels [first, end) of a side of `size` that are in window o of `outputs`. */
DSC_POOL_FN void dsc_pool_window(const dsc_pool_shape *of, int64_t o, int64_t size, int64_t outputs, int64_t *first,
                                 int64_t *end)
{
    const bool adaptive = of->kind == DSC_POOL_ADAPTIVE;
    const int64_t from = adaptive ? o * size / outputs : o * of->stride - of->padding;
    const int64_t to = adaptive ? ((o + 1) * size + outputs - 1) / outputs : from + of->kernel;
    *first = from < 0 ? 0 : from;
    *end = to > size ? size : to;
}

/* Windows [first, end) that have pixel i. */
DSC_POOL_FN void dsc_pool_windows_of(const dsc_pool_shape *of, int64_t i, int64_t size, int64_t outputs, int64_t *first,
                                     int64_t *end)
{
    if (of->kind == DSC_POOL_ADAPTIVE) {
        *first = i * outputs / size;
        *end = ((i + 1) * outputs - 1) / size + 1;
        return;
    }
    const int64_t before = i + of->padding - of->kernel; /* the window that ends before the pixel begins at or below */
    *first = before < 0 ? 0 : before / of->stride + 1;
    *end = (i + of->padding) / of->stride + 1;
    *end = *end > outputs ? outputs : *end;
}

/* The number that a sum over a window is divided by; its sides have so many pixels. */
DSC_POOL_FN float dsc_pool_count(const dsc_pool_shape *of, int64_t height, int64_t width)
{
    return (float)(of->kind == DSC_POOL_ADAPTIVE ? height * width : of->kernel * of->kernel);
}

/* FWD: out[b,o,c] of in[b,i,c] over the pixels i of window o. Pixels are taken row by row and left to right. A sum is
 * in fp32 in this order. Of equal maxima the first counts; a NaN is above all. `chosen` is its pixel.
 * BWD: d_in[b,i,c] = the sum over windows o in order of d_out[b,o,c], where i was chosen, or of d_out / count. One
 * rounding to the dtype, and every variant and device gives the same bits. */
typedef struct dsc_pool_args {
    void *out;       /* [samples, out_height, out_width, C]; BWD: the gradient, read */
    void *in;        /* [samples, height, width, C]; BWD: the gradient, written */
    int32_t *chosen; /* MAX: as `out`, a pixel's number in its sample; FWD writes it, BWD reads it */
    dsc_pool_shape shape;
    int64_t samples, channels;
    dsc_dtype dtype; /* F32, BF16 or F16 */
} dsc_pool_args;

#ifdef __cplusplus
}
#endif
#endif
