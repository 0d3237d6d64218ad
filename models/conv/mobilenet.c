/* mobilenet.c - MobileNetV2 (Sandler et al. 2018) and MobileNetV3 (Howard et al. 2019).
 * SPDX-License-Identifier: Apache-2.0 */
#include "models/conv/conv.h"

/* A convolution with its norm and activation, as the first and the last one of features. */
static void add_layer(dsc_conv_config *config, int64_t in, int64_t out, bool first, dsc_activation activation)
{
    const dsc_conv_unit layer = { .kind = DSC_CONV_LAYER,
                                  .conv = "0",
                                  .norm = "1",
                                  .in = in,
                                  .out = out,
                                  .kernel = first ? 3 : 1,
                                  .stride = first ? 2 : 1,
                                  .padding = first,
                                  .activation = activation };
    dsc_conv_add(config, &layer, "features.%d", (int)config->unit_count);
}

/* ---- MobileNetV2 ------------------------------------------------------------------------------------------------- */

static void fill_v2(dsc_conv_config *config, const dsc_conv_architecture *architecture)
{
    static const struct {
        int32_t factor, out, count, stride;
    } stages[] = { { 1, 16, 1, 1 }, { 6, 24, 2, 2 },  { 6, 32, 3, 2 }, { 6, 64, 4, 2 },
                   { 6, 96, 3, 1 }, { 6, 160, 3, 2 }, { 6, 320, 1, 1 } };
    (void)architecture;
    int64_t in = 32;
    config->eps = 1e-5, config->momentum = 0.1;
    add_layer(config, config->planes, in, true, DSC_RELU6);
    for (size_t s = 0; s < DSC_COUNT(stages); s++)
        for (int32_t b = 0; b < stages[s].count; b++) {
            const dsc_conv_unit block = { .kind = DSC_CONV_INVERTED,
                                          .in = in,
                                          .inner = in * stages[s].factor,
                                          .out = stages[s].out,
                                          .kernel = 3,
                                          .padding = 1,
                                          .stride = b == 0 ? stages[s].stride : 1,
                                          .flat_names = true,
                                          .activation = DSC_RELU6 };
            in = dsc_conv_add(config, &block, "features.%d.conv", (int)config->unit_count)->out;
        }
    add_layer(config, in, 1280, false, DSC_RELU6);
    config->classifier = (dsc_conv_classifier) { .name = { "classifier.1" },
                                                 .count = 1,
                                                 .dropout = config->drop < 0 ? 0.2 : config->drop };
}

/* ---- MobileNetV3 ------------------------------------------------------------------------------------------------- */

typedef struct v3_block {
    int32_t kernel, inner, out;
    bool squeeze, hard;
    int32_t stride;
} v3_block;

static const v3_block large[] = {
    { 3, 16, 16, false, false, 1 }, { 3, 64, 24, false, false, 2 }, { 3, 72, 24, false, false, 1 },
    { 5, 72, 40, true, false, 2 },  { 5, 120, 40, true, false, 1 }, { 5, 120, 40, true, false, 1 },
    { 3, 240, 80, false, true, 2 }, { 3, 200, 80, false, true, 1 }, { 3, 184, 80, false, true, 1 },
    { 3, 184, 80, false, true, 1 }, { 3, 480, 112, true, true, 1 }, { 3, 672, 112, true, true, 1 },
    { 5, 672, 160, true, true, 2 }, { 5, 960, 160, true, true, 1 }, { 5, 960, 160, true, true, 1 }
};
static const v3_block small[] = { { 3, 16, 16, true, false, 2 },  { 3, 72, 24, false, false, 2 },
                                  { 3, 88, 24, false, false, 1 }, { 5, 96, 40, true, true, 2 },
                                  { 5, 240, 40, true, true, 1 },  { 5, 240, 40, true, true, 1 },
                                  { 5, 120, 48, true, true, 1 },  { 5, 144, 48, true, true, 1 },
                                  { 5, 288, 96, true, true, 2 },  { 5, 576, 96, true, true, 1 },
                                  { 5, 576, 96, true, true, 1 } };

static void fill_v3(dsc_conv_config *config, const dsc_conv_architecture *architecture)
{
    const bool is_large = architecture->flag;
    const v3_block *blocks = is_large ? large : small;
    const size_t count = is_large ? DSC_COUNT(large) : DSC_COUNT(small);
    int64_t in = 16;
    config->eps = 1e-3, config->momentum = 0.01;
    add_layer(config, config->planes, in, true, DSC_HARD_SWISH);
    for (size_t b = 0; b < count; b++) {
        const v3_block *of = &blocks[b];
        const dsc_conv_unit block = { .kind = DSC_CONV_INVERTED,
                                      .in = in,
                                      .inner = of->inner,
                                      .out = of->out,
                                      .kernel = of->kernel,
                                      .padding = of->kernel / 2,
                                      .stride = of->stride,
                                      .squeeze = of->squeeze ? dsc_conv_round(of->inner / 4) : 0,

                                      .activation = of->hard ? DSC_HARD_SWISH : DSC_RELU };
        in = dsc_conv_add(config, &block, "features.%d.block", (int)config->unit_count)->out;
    }
    add_layer(config, in, 6 * in, false, DSC_HARD_SWISH);
    config->classifier = (dsc_conv_classifier) { .name = { "classifier.0", "classifier.3" },
                                                 .columns = { is_large ? 1280 : 1024 },
                                                 .count = 2,
                                                 .activation = DSC_HARD_SWISH,
                                                 .dropout = config->drop < 0 ? 0.2 : config->drop };
}

const dsc_conv_architecture dsc_mobilenets[] = { { "mobilenet_v2", fill_v2, 0, false },
                                                 { "mobilenet_v3_small", fill_v3, 0, false },
                                                 { "mobilenet_v3_large", fill_v3, 0, true },
                                                 { NULL, NULL, 0, false } };
