/* resample_sums.h - the sums of resample.c and their variants. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_DATA_IMAGES_RESAMPLE_SUMS_H
#define DSC_ENGINE_DATA_IMAGES_RESAMPLE_SUMS_H

#include "engine/data/images/resample.h"

/* A result is (sum of pixel * weight + HALF) >> BITS, cut to 0..255. */
enum { DSC_RESAMPLE_BITS = 22, DSC_RESAMPLE_HALF = 1 << (DSC_RESAMPLE_BITS - 1) };
enum { DSC_RESAMPLE_ROWS = 4 }; /* that share the weights of a result */
/* First pixel and number of pixels, before the weights of a result. */
enum { DSC_RESAMPLE_HEAD = 2 };

/* Weights of one direction: for each result HEAD + most numbers, of which those behind its own are 0. `most` is a
 * multiple of 4. */
typedef struct dsc_resample_weights {
    const int32_t *number;
    int64_t stride;
} dsc_resample_weights;

/* Results of `count` rows along x, at most DSC_RESAMPLE_ROWS. Up to DSC_IMAGE_SPARE_BYTES behind a row are read. */
void dsc_resample_along_avx2(const uint8_t *rows, int64_t pitch, int32_t count, const dsc_resample_weights *weights,
                             int32_t width, uint8_t *out, int64_t out_pitch);
/* One row of the result from rows that follow each other by `pitch` bytes; `head` is that of its weights. Up to
 * DSC_IMAGE_SPARE_BYTES behind a row are read, and behind the result written. */
void dsc_resample_across_avx2(const uint8_t *first, int64_t pitch, const int32_t *head, int64_t bytes, uint8_t *out);

#endif
