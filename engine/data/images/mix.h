/* mix.h - pictures of a micro-batch mixed in pairs, as torchvision's v2.MixUp and v2.CutMix do, with timm's choice
 * of the two (Zhang et al. 2018; Yun et al. 2019).
 *
 * Each picture gets a share of the picture before it in the micro-batch, and the first one of the last one. MixUp adds
 * both pictures with their shares, and CutMix takes a rectangle of the picture before. All pictures of a micro-batch
 * have the same share, which is a random number of the Beta distribution (alpha, alpha). The random numbers depend on
 * the seed and on the run's number of the first sample alone. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_DATA_IMAGES_MIX_H
#define DSC_ENGINE_DATA_IMAGES_MIX_H

#include "base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* All 0: no mixing. */
typedef struct dsc_mix_options {
    double mixup, cutmix;       /* alpha of each; 0: never that one */
    double probability;         /* of a micro-batch that is mixed */
    double switch_probability;  /* of CutMix, where both have an alpha */
} dsc_mix_options;

/* Change of a micro-batch. */
typedef struct dsc_mix {
    double share; /* of the picture before, and of its label; 0: nothing is mixed */
    bool cut;     /* the rectangle of the picture before takes the place of the picture's own; else both are added */
    int32_t left, top, right, bottom; /* of the rectangle; right and bottom are outside */
} dsc_mix;

static inline bool dsc_mix_is_wanted(const dsc_mix_options *options)
{
    return (options->mixup > 0 || options->cutmix > 0) && options->probability > 0;
}
/* `first`: the run's number of the first sample of the micro-batch. */
void dsc_mix_choose(const dsc_mix_options *options, uint64_t seed, uint64_t first, int64_t height, int64_t width,
                    dsc_mix *out);
/* pixels[count][planes][height][width] in place: fp32, two products and their sum, each rounded once. */
void dsc_mix_run(const dsc_mix *mix, int64_t count, int64_t planes, int64_t height, int64_t width, float *pixels);
/* A random number of the Beta distribution (alpha, alpha), by Johnk's method up to 1 and Cheng's BB above. */
double dsc_mix_beta(double alpha, uint64_t seed, uint64_t first);

#ifdef __cplusplus
}
#endif
#endif
