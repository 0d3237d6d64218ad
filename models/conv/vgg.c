/* vgg.c - VGG (Simonyan and Zisserman 2014), with and without batch norms. SPDX-License-Identifier: Apache-2.0 */
#include "models/conv/conv.h"

enum { STAGES = 5 };

/* Convolutions of a stage. */
static const int32_t depths[][STAGES] = { { 1, 1, 2, 2, 2 }, { 2, 2, 2, 2, 2 }, { 2, 2, 3, 3, 3 }, { 2, 2, 4, 4, 4 } };

/* Numbers of tensors count convolutions, norms, activations and pools alike. */
static void fill(dsc_conv_config *config, const dsc_conv_architecture *architecture)
{
    int64_t in = config->planes, number = 0;
    config->eps = 1e-5, config->momentum = 0.1;
    for (int s = 0; s < STAGES; s++)
        for (int32_t i = 0; i < depths[architecture->variant][s]; i++) {
            const bool last = i == depths[architecture->variant][s] - 1;
            const dsc_conv_unit layer = { .kind = DSC_CONV_LAYER,
                                          .conv = dsc_conv_digits(number),
                                          .bias = true,
                                          .norm = architecture->flag ? dsc_conv_digits(number + 1) : NULL,
                                          .in = in,
                                          .out = s < 4 ? (int64_t)64 << s : 512,
                                          .kernel = 3,
                                          .stride = 1,
                                          .padding = 1,
                                          .activation = DSC_RELU,
                                          .pool = last ? 2 : 0,
                                          .pool_stride = 2 };
            number += 2 + architecture->flag + last;
            in = dsc_conv_add(config, &layer, "features")->out;
        }
    const double drop = config->drop >= 0 ? config->drop : config->naming == DSC_CONV_TIMM ? 0 : 0.5;
    if (config->naming == DSC_CONV_TIMM)
        config->classifier = (dsc_conv_classifier) { .name = { "pre_logits.fc1", "pre_logits.fc2", "head.fc" },
                                                     .columns = { 4096, 4096 },
                                                     .count = 3,
                                                     .kernel = 7,
                                                     .activation = DSC_RELU,
                                                     .dropout = drop };
    else
        config->classifier = (dsc_conv_classifier) { .name = { "classifier.0", "classifier.3", "classifier.6" },
                                                     .columns = { 4096, 4096 },
                                                     .count = 3,
                                                     .grid = 7,
                                                     .activation = DSC_RELU,
                                                     .dropout = drop };
}

const dsc_conv_architecture dsc_vggs[] = { { "vgg11", fill, 0, false },   { "vgg13", fill, 1, false },
                                           { "vgg16", fill, 2, false },   { "vgg19", fill, 3, false },
                                           { "vgg11_bn", fill, 0, true }, { "vgg13_bn", fill, 1, true },
                                           { "vgg16_bn", fill, 2, true }, { "vgg19_bn", fill, 3, true },
                                           { NULL, NULL, 0, false } };
