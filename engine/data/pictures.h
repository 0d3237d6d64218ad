/* pictures.h - files of pictures as samples: normalised floats in planes and a class, in the order of token samples.
 *
 * Samples are the pictures of the files one after the other. Sample g of the run is sample perm_e[g mod n] of epoch
 * e = g div n; the permutation is keyed by (seed, e), and is the identity without shuffling.
 *
 *     value = (pixel * rescale - mean[plane]) / std[plane], in double, rounded once
 *
 * A picture of one channel is given to a model with more planes as equal planes.
 *
 * Encoded pictures (images/list.h) and, where it is asked for, pictures of files get the model's size by a transform.
 * They are RGB for a model of three planes, and gray (ITU-R 601-2) for a model of one.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_DATA_PICTURES_H
#define DSC_ENGINE_DATA_PICTURES_H

#include <dsc/dsc.h>

#include "engine/data/images/augment.h"
#include "engine/data/images/mix.h"
#include "engine/data/images/preprocessor.h"
#include "engine/data/picture_file.h"

typedef struct dsc_pictures dsc_pictures;

typedef struct dsc_picture_norm {
    double rescale;
    double mean[DSC_PICTURE_CHANNELS_MAX], std[DSC_PICTURE_CHANNELS_MAX];
} dsc_picture_norm;

/* Numbers of a folder's preprocessor_config.json, else of timm's config.json. Without both, pixels are scaled to
 * [0,1], and mean and std are 0.5, as in ViTImageProcessor of transformers. DSC_ERR_INPUT: an invalid number, or a
 * wrong count. */
DSC_MUST_USE dsc_status dsc_picture_norm_load(const dsc_image_preprocessor *from, int64_t planes, dsc_picture_norm *out,
                                              dsc_error *err);

/* Changes of pictures, to the size of the model among them. */
typedef struct dsc_picture_changes {
    dsc_image_transform transform; /* to the model's size */
    bool enabled;                  /* also for pictures of files; encoded ones always have a transform */
    bool resize_given;             /* else a picture of a file in the model's size is not resized */
    bool skip_broken;              /* the next picture takes the place of one that cannot be decoded */
    bool dct_scaling;
    int32_t readers; /* threads, 1 or more */
    int64_t pixels_max;
    const char *const *class_names; /* [classes] borrowed until open returns; NULL: numbered in the order of names */
} dsc_picture_changes;

typedef struct dsc_picture_options {
    dsc_alloc *alloc; /* borrowed until close */
    const dsc_io *io;
    const char *const *paths; /* [path_count], borrowed until open returns */
    int64_t path_count;
    int64_t planes, height, width; /* size of the model's pictures and of those in files */
    int64_t classes;
    dsc_picture_norm norm;
    bool shuffle;
    bool loose; /* paths are pictures without classes, or folders of such ones */
    uint64_t seed;
    dsc_picture_changes changes;
    dsc_mix_options mix; /* of each call of the source's fill, which is a micro-batch */
} dsc_picture_options;

/* The files stay open: at most DSC_PICTURE_FILES_MAX. */
#define DSC_PICTURE_FILES_MAX 256
DSC_MUST_USE dsc_status dsc_pictures_open(const dsc_picture_options *options, dsc_pictures **out, dsc_error *err);
void dsc_pictures_close(dsc_pictures **pictures); /* safe on NULL */
/* Source of batches, borrowed: tensor 0 F32 [planes,height,width], tensor 1 int32 [1]. */
dsc_data_source dsc_pictures_as_source(dsc_pictures *pictures);
/* Names of the classes in their order: of encoded or drawn pictures, or those beside packed files; borrowed until
 * close. NULL: classes have numbers alone. */
const char *const *dsc_pictures_class_names(const dsc_pictures *pictures, int64_t *count);
/* Name of sample i: its path, or the path of its file and its place there. */
void dsc_pictures_name(const dsc_pictures *pictures, int64_t i, char *out, size_t out_bytes);
/* Files of class folders that are not pictures, and one of them; 0: none. */
int64_t dsc_pictures_left_out(const dsc_pictures *pictures, const char **first);
/* Pictures that were skipped since the last call, and why the newest one was. May be called while a reader reads. */
int64_t dsc_pictures_take_broken(dsc_pictures *pictures, char *why, size_t why_bytes);
/* Whether the model's first batch tensor is pictures. */
bool dsc_model_sees_pictures(const dsc_model *model);

#endif
