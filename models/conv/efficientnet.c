/* efficientnet.c - EfficientNet B0 to B7 (Tan and Le 2019). SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "models/conv/conv.h"

/* Factors of channels and of blocks, and the rate of the classifier's dropout. */
static const struct {
    double width, depth, drop;
    bool late;
} sizes[] = { { 1.0, 1.0, 0.2, false }, { 1.0, 1.1, 0.2, false }, { 1.1, 1.2, 0.3, false }, { 1.2, 1.4, 0.3, false },
              { 1.4, 1.8, 0.4, false }, { 1.6, 2.2, 0.4, true },  { 1.8, 2.6, 0.5, true },  { 2.0, 3.1, 0.5, true } };
static const struct {
    int32_t factor, kernel, stride, out, count;
} stages[] = { { 1, 3, 1, 16, 1 },  { 6, 3, 2, 24, 2 },  { 6, 5, 2, 40, 2 }, { 6, 3, 2, 80, 3 },
               { 6, 5, 1, 112, 3 }, { 6, 5, 2, 192, 4 }, { 6, 3, 1, 320, 1 } };

static dsc_conv_unit layer_of(const dsc_conv_config *config, int64_t in, int64_t out, bool first)
{
    const bool timm = config->naming == DSC_CONV_TIMM;
    return (dsc_conv_unit) { .kind = DSC_CONV_LAYER,
                             .conv = !timm   ? "0"
                                     : first ? "conv_stem"
                                             : "conv_head",
                             .norm = !timm   ? "1"
                                     : first ? "bn1"
                                             : "bn2",
                             .in = in,
                             .out = out,
                             .kernel = first ? 3 : 1,
                             .stride = first ? 2 : 1,
                             .padding = first,
                             .activation = DSC_SILU };
}

static void fill(dsc_conv_config *config, const dsc_conv_architecture *architecture)
{
    const double width = sizes[architecture->variant].width, depth = sizes[architecture->variant].depth;
    const bool timm = config->naming == DSC_CONV_TIMM, late = sizes[architecture->variant].late && !timm;
    const double drop_path = config->drop_path >= 0 ? config->drop_path : timm ? 0 : 0.2;
    const double drop = timm ? 0 : sizes[architecture->variant].drop;
    config->eps = late ? 1e-3 : 1e-5;
    config->momentum = late ? 0.01 : 0.1;
    config->first = DSC_CONV_FIRST_OUT;
    int64_t in = dsc_conv_round(32 * width);
    double total = 0, at = 0;
    for (size_t s = 0; s < DSC_COUNT(stages); s++)
        total += ceil(stages[s].count * depth);
    dsc_conv_unit layer = layer_of(config, config->planes, in, true);
    dsc_conv_add(config, &layer, "%s", timm ? "" : "features.0");
    for (size_t s = 0; s < DSC_COUNT(stages); s++)
        for (int b = 0; b < (int)ceil(stages[s].count * depth); b++) {
            const dsc_conv_unit block = { .kind = DSC_CONV_INVERTED,
                                          .in = in,
                                          .inner = dsc_conv_round((double)in * stages[s].factor),
                                          .out = dsc_conv_round(stages[s].out * width),
                                          .kernel = stages[s].kernel,
                                          .padding = stages[s].kernel / 2,
                                          .stride = b == 0 ? stages[s].stride : 1,
                                          .squeeze = in / 4,
                                          .silu_squeeze = true,
                                          .activation = DSC_SILU,
                                          .drop_path = drop_path * at++ / total };
            in = dsc_conv_add(config, &block, timm ? "blocks.%d.%d" : "features.%d.%d.block", (int)s + !timm, b)->out;
        }
    layer = layer_of(config, in, 4 * in, false);
    dsc_conv_add(config, &layer, "%s", timm ? "" : "features.8");
    config->classifier = (dsc_conv_classifier) { .name = { timm ? "classifier" : "classifier.1" },
                                                 .count = 1,
                                                 .dropout = config->drop < 0 ? drop : config->drop };
}

const dsc_conv_architecture dsc_efficientnets[] = {
    { "efficientnet_b0", fill, 0, false }, { "efficientnet_b1", fill, 1, false }, { "efficientnet_b2", fill, 2, false },
    { "efficientnet_b3", fill, 3, false }, { "efficientnet_b4", fill, 4, false }, { "efficientnet_b5", fill, 5, false },
    { "efficientnet_b6", fill, 6, false }, { "efficientnet_b7", fill, 7, false }, { NULL, NULL, 0, false }
};
