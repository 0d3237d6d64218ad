/* preprocessor.h - sizes in a model folder's preprocessor_config.json, as image processors of transformers write it.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_DATA_IMAGES_PREPROCESSOR_H
#define DSC_ENGINE_DATA_IMAGES_PREPROCESSOR_H

#include "base/io.h"
#include "engine/data/images/augment.h"

/* Fills the resize and the filter of *out, whose width and height are the model's. do_resize, size (a number, height
 * and width, or shortest_edge), do_center_crop, crop_pct and resample count. Without the file or without `folder`: a
 * shorter side of the model's larger side / 0.875, and bilinear. DSC_ERR_INPUT: an invalid value. */
DSC_MUST_USE dsc_status dsc_image_preprocessor_read(const dsc_io *io, dsc_alloc *alloc, const char *folder,
                                                    dsc_image_transform *out, dsc_error *err);

#endif
