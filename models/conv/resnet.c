/* resnet.c - ResNet (He et al. 2015), whose bottlenecks have the stride in the convolution of 3 by 3 as in torchvision.
 * SPDX-License-Identifier: Apache-2.0 */
#include "models/conv/conv.h"

enum { STAGES = 4 };

/* Blocks of a stage. */
static const int32_t depths[][STAGES] = {
    { 2, 2, 2, 2 }, { 3, 4, 6, 3 }, { 3, 4, 6, 3 }, { 3, 4, 23, 3 }, { 3, 8, 36, 3 }
};

static void fill(dsc_conv_config *config, const dsc_conv_architecture *architecture)
{
    const bool bottleneck = architecture->flag;
    const dsc_conv_unit stem = { .kind = DSC_CONV_LAYER,
                                 .conv = "conv1",
                                 .norm = "bn1",
                                 .in = config->planes,
                                 .out = 64,
                                 .kernel = 7,
                                 .stride = 2,
                                 .padding = 3,
                                 .activation = DSC_RELU,
                                 .pool = 3,
                                 .pool_stride = 2,
                                 .pool_padding = 1 };
    config->eps = 1e-5, config->momentum = 0.1;
    config->first = DSC_CONV_FIRST_IN;
    dsc_conv_add(config, &stem, "%s", "");
    int64_t in = 64;
    for (int s = 0; s < STAGES; s++)
        for (int32_t b = 0; b < depths[architecture->variant][s]; b++) {
            const int64_t planes = (int64_t)64 << s;
            const dsc_conv_unit block = { .kind = bottleneck ? DSC_CONV_BOTTLENECK : DSC_CONV_BASIC,
                                          .in = in,
                                          .inner = planes,
                                          .out = bottleneck ? 4 * planes : planes,
                                          .kernel = 3,
                                          .padding = 1,
                                          .stride = b == 0 && s > 0 ? 2 : 1,
                                          .activation = DSC_RELU };
            in = dsc_conv_add(config, &block, "layer%d.%d", s + 1, (int)b)->out;
        }
    config->classifier =
        (dsc_conv_classifier) { .name = { "fc" }, .count = 1, .dropout = config->drop < 0 ? 0 : config->drop };
}

const dsc_conv_architecture dsc_resnets[] = { { "resnet18", fill, 0, false }, { "resnet34", fill, 1, false },
                                              { "resnet50", fill, 2, true },  { "resnet101", fill, 3, true },
                                              { "resnet152", fill, 4, true }, { NULL, NULL, 0, false } };
