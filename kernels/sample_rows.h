/* sample_rows.h - rows of each sample put elsewhere or summed, and pictures cut into patches that are rows.
 * reference, the only variant: cpu/sample_rows.c   check: tests/checkkern/sample_rows.c
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_SAMPLE_ROWS_H
#define DSC_KERNELS_SAMPLE_ROWS_H
#include <dsc/types.h>
#ifdef __cplusplus
extern "C" {
#endif

/* Rows have C elements. Row r of sample s is out[s * out_apart + r] and in[s * in_apart + r], in rows.
 *
 *     ROWS_PUT: out[s, r] = factor * in[s, r], or factor * in[s, 0] with `same`, or 0 without `in`; r < rows
 *     ROWS_SUM: out[s, 0] = factor * the sum of in[s, r] over r < rows in increasing order
 *
 * Sums and products are in fp32 and rounded once. An in_apart of 0 gives each sample the same rows. */
typedef struct dsc_rows_args {
    void *out;
    const void *in;                  /* does not overlap out; NULL: zeros, for ROWS_PUT */
    int64_t samples, rows, channels; /* C */
    int64_t out_apart, in_apart;
    bool same;
    float factor;
    dsc_dtype dtype;
} dsc_rows_args;

/* Pictures as rows, of which each is a patch of P x P pixels:
 *
 *     out[s, y * across + x, (c * P + i) * P + j] = pixels[s, c, y * P + i, x * P + j]
 *
 * A convolution with windows of P x P that do not overlap is a product over these rows. Pixels beyond the last whole
 * patch are not read. */
typedef struct dsc_patches_args {
    void *out;           /* [samples, down * across, planes * P * P] with down = height / P, across = width / P */
    const float *pixels; /* [samples, planes, height, width] */
    int64_t samples, planes, height, width, patch; /* P */
    dsc_dtype dtype;
} dsc_patches_args;

static inline int64_t dsc_patches_count(const dsc_patches_args *a)
{
    return (a->height / a->patch) * (a->width / a->patch);
}

static inline int64_t dsc_patches_channels(const dsc_patches_args *a) { return a->planes * a->patch * a->patch; }

/* The pixel of element c of patch p of sample s. */
static inline int64_t dsc_patches_pixel(const dsc_patches_args *a, int64_t s, int64_t p, int64_t c)
{
    const int64_t across = a->width / a->patch, area = a->patch * a->patch;
    const int64_t y = p / across * a->patch + c % area / a->patch, x = p % across * a->patch + c % a->patch;
    return ((s * a->planes + c / area) * a->height + y) * a->width + x;
}

#ifdef __cplusplus
}
#endif
#endif
