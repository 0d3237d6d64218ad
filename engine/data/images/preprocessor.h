/* preprocessor.h - sizes and norms in a model folder's preprocessor_config.json, as image processors of transformers
 * write it; without that file, those in config.json of timm. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_DATA_IMAGES_PREPROCESSOR_H
#define DSC_ENGINE_DATA_IMAGES_PREPROCESSOR_H

#include "base/formats/json.h"
#include "base/io.h"
#include "engine/data/images/augment.h"

/* The open file. Zeroed: there is none. */
typedef struct dsc_image_preprocessor {
    dsc_alloc *alloc;
    dsc_json *json; /* NULL: the folder has no such file */
    bool is_timm;   /* config.json, of which "pretrained_cfg" counts: it has "mean" */
    char *text, path[1024];
} dsc_image_preprocessor;

/* `folder` may be NULL. DSC_ERR_INPUT: the file is not JSON. */
DSC_MUST_USE dsc_status dsc_image_preprocessor_open(const dsc_io *io, dsc_alloc *alloc, const char *folder,
                                                    dsc_image_preprocessor *out, dsc_error *err);
void dsc_image_preprocessor_close(dsc_image_preprocessor *preprocessor);

/* Fills the resize and the filter of *out, whose width and height are the model's. do_resize, size (a number, height
 * and width, or shortest_edge), do_center_crop, crop_pct and resample count; of timm crop_pct, interpolation and
 * crop_mode. Without a file: a shorter side of the model's larger side / 0.875, and bilinear. DSC_ERR_INPUT: an invalid
 * value; DSC_ERR_UNSUPPORTED: one that is not built. */
DSC_MUST_USE dsc_status dsc_image_preprocessor_sizes(const dsc_image_preprocessor *preprocessor,
                                                     dsc_image_transform *out, dsc_error *err);

#endif
