/* augment.h - what is done with a picture between its file and the model: a random or the central part, a size, a
 * mirror image, and other colours. The algorithms are those of torchvision.transforms.
 *
 * Every random number is one of the stream (seed, epoch), at a place that the sample's number alone decides. Ranks,
 * threads and the step at which a run began have no part in it. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_DATA_IMAGES_AUGMENT_H
#define DSC_ENGINE_DATA_IMAGES_AUGMENT_H

#include "engine/data/images/resample.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dsc_image_transform {
    bool random_crop;                             /* RandomResizedCrop; else `resize` and the central part */
    double scale[2], ratio[2];                    /* of the random part: share of the area, width / height */
    double flip;                                  /* probability of the mirror image */
    double brightness, contrast, saturation, hue; /* ColorJitter; 0: as they are */
    int32_t rand_ops, rand_level; /* RandAugment: operations, and their level from 0 to 30; 0 operations: none */
    /* Size before the central part is taken: of the shorter side, or of both. All 0: the picture has its size. */
    int32_t resize, resize_width, resize_height;
    int32_t width, height; /* of the result */
    dsc_resample_filter filter;
} dsc_image_transform;

/* The place of a sample's random numbers. */
typedef struct dsc_image_key {
    uint64_t seed, sample;
    uint32_t epoch;
} dsc_image_key;

/* The part that RandomResizedCrop takes of a picture (torchvision: RandomResizedCrop.get_params). */
void dsc_image_random_box(const dsc_image_transform *transform, const dsc_image_key *key, int32_t width, int32_t height,
                          dsc_box *out);
bool dsc_image_is_mirrored(const dsc_image_transform *transform, const dsc_image_key *key);

/* The part of a picture of this size that is resized, and the size that this part gets; the result is the centre of
 * that. False: the picture is taken as it is. */
typedef struct dsc_image_cut {
    dsc_box box;
    int32_t width, height;
} dsc_image_cut;
void dsc_image_plan_cut(const dsc_image_transform *transform, const dsc_image_key *key, int32_t width, int32_t height,
                        dsc_image_cut *out);

/* One thread's memory, zeroed at first. */
typedef struct dsc_augmenter {
    dsc_resampler resampler;
    dsc_image resized;
} dsc_augmenter;
void dsc_augmenter_free(dsc_augmenter *augmenter);
/* out <- the picture of transform->width x height; `cut` is that of its size, `name` for messages. A picture whose
 * resized form is smaller than the result or far too long: DSC_ERR_INPUT. */
DSC_MUST_USE dsc_status dsc_image_augment(dsc_augmenter *augmenter, const dsc_image_transform *transform,
                                          const dsc_image_key *key, const dsc_image_cut *cut, const char *name,
                                          const dsc_image *from, dsc_image *out, dsc_error *err);
/* colors.c: the picture with other brightness, contrast, saturation and hue, in a random order. */
void dsc_image_jitter(const dsc_image_transform *transform, const dsc_image_key *key, dsc_image *image);
/* One of these changes: 0 brightness, 1 contrast, 2 saturation by a factor, 3 hue by a part of the circle. */
void dsc_image_recolor(dsc_image *image, int kind, float factor);
/* randaugment.c: transform->rand_ops operations at random. `spare`: memory. */
enum { DSC_IMAGE_RAND_OPS_MAX = 16 };
DSC_MUST_USE dsc_status dsc_image_rand_augment(const dsc_image_transform *transform, const dsc_image_key *key,
                                               const char *name, dsc_image *spare, dsc_image *image, dsc_error *err);
/* A number in [0,1) with 53 bits: number `draw` of the sample, below DSC_IMAGE_DRAWS. */
enum { DSC_IMAGE_DRAWS = 128 };
double dsc_image_uniform(const dsc_image_key *key, int32_t draw);

#ifdef __cplusplus
}
#endif
#endif
