/* resample.h - a part of a picture in another size, within one level of Pillow's Image.resize. A horizontal sum comes
 * before a vertical one, each with weights of 22 bits and rounded to 8 bits. A smaller result averages over as many
 * pixels as it stands for (antialiasing). Formula: the triangle (bilinear) or Keys' cubic with a = -0.5, stretched by
 * the scale. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_DATA_IMAGES_RESAMPLE_H
#define DSC_ENGINE_DATA_IMAGES_RESAMPLE_H

#include "engine/data/images/decode.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum dsc_resample_filter { DSC_RESAMPLE_BILINEAR, DSC_RESAMPLE_BICUBIC } dsc_resample_filter;

/* Pixels x .. x + width - 1 of rows y .. y + height - 1. */
typedef struct dsc_box {
    int32_t x, y, width, height;
} dsc_box;

/* Memory that one thread's calls share, zeroed at first. */
typedef struct dsc_resampler {
    dsc_image middle; /* between both sums */
    int32_t *weights;
    int64_t weight_count;
} dsc_resampler;
void dsc_resampler_free(dsc_resampler *resampler);

/* out <- the box of `from`, as if nothing were around it, in out_width x out_height pixels. Sides of at most 2^14. */
DSC_MUST_USE dsc_status dsc_resample(dsc_resampler *resampler, const dsc_image *from, const dsc_box *box,
                                     dsc_resample_filter filter, int32_t out_width, int32_t out_height, dsc_image *out,
                                     dsc_error *err);

#ifdef __cplusplus
}
#endif
#endif
