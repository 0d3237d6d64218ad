/* mobilenet.c - MobileNetV2 (Sandler et al. 2018) and MobileNetV3 (Howard et al. 2019).
 * SPDX-License-Identifier: Apache-2.0 */
#include "models/conv/conv.h"

/* Names of timm: of a unit, its convolution and its norm. */
typedef struct layer_names {
    const char *before, *conv, *norm;
} layer_names;

/* Where a unit lies: torchvision counts all units, timm the stages of blocks and the blocks of each. */
static dsc_conv_unit *add_block(dsc_conv_config *config, const dsc_conv_unit *block, const char *end, int stage,
                                int number)
{
    return config->naming == DSC_CONV_TIMM
               ? dsc_conv_add(config, block, "blocks.%d.%d", stage, number)
               : dsc_conv_add(config, block, "features.%d.%s", (int)config->unit_count, end);
}

/* A convolution with its norm and activation, as the first and the last one of features. Names are those of timm. */
static void add_layer(dsc_conv_config *config, int64_t in, int64_t out, const layer_names *names,
                      dsc_activation activation)
{
    const bool timm = config->naming == DSC_CONV_TIMM, first = config->unit_count == 0;
    const dsc_conv_unit layer = { .kind = DSC_CONV_LAYER,
                                  .conv = timm ? names->conv : "0",
                                  .norm = timm ? names->norm : "1",
                                  .in = in,
                                  .out = out,
                                  .kernel = first ? 3 : 1,
                                  .stride = first ? 2 : 1,
                                  .padding = first,
                                  .activation = activation };
    if (timm)
        dsc_conv_add(config, &layer, "%s", names->before);
    else
        dsc_conv_add(config, &layer, "features.%d", (int)config->unit_count);
}

static double rate_of(const dsc_conv_config *config)
{
    return config->drop >= 0 ? config->drop : config->naming == DSC_CONV_TIMM ? 0 : 0.2;
}

/* ---- MobileNetV2 ------------------------------------------------------------------------------------------------- */

static void fill_v2(dsc_conv_config *config, const dsc_conv_architecture *architecture)
{
    static const struct {
        int32_t factor, out, count, stride;
    } stages[] = { { 1, 16, 1, 1 }, { 6, 24, 2, 2 },  { 6, 32, 3, 2 }, { 6, 64, 4, 2 },
                   { 6, 96, 3, 1 }, { 6, 160, 3, 2 }, { 6, 320, 1, 1 } };
    static const layer_names stem = { "", "conv_stem", "bn1" }, head = { "", "conv_head", "bn2" };
    int64_t in = 32;
    if (architecture->variant == DSC_CONV_OF_TIMM)
        config->naming = DSC_CONV_TIMM;
    config->eps = 1e-5, config->momentum = 0.1;
    add_layer(config, config->planes, in, &stem, DSC_RELU6);
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
            in = add_block(config, &block, "conv", (int)s, (int)b)->out;
        }
    add_layer(config, in, 1280, &head, DSC_RELU6);
    config->classifier =
        (dsc_conv_classifier) { .name = { config->naming == DSC_CONV_TIMM ? "classifier" : "classifier.1" },
                                .count = 1,
                                .dropout = rate_of(config) };
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

/* A stage of timm begins where the size or the number of channels changes. */
static bool begins_stage(const v3_block *of, const v3_block *before)
{
    return before != NULL && (of->stride != 1 || of->out != before->out);
}

static void set_classifier(dsc_conv_config *config, int64_t columns)
{
    const bool timm = config->naming == DSC_CONV_TIMM;
    config->classifier =
        (dsc_conv_classifier) { .name = { timm ? "conv_head" : "classifier.0", timm ? "classifier" : "classifier.3" },
                                .columns = { columns },
                                .count = 2,
                                .kernel = timm,
                                .activation = DSC_HARD_SWISH,
                                .dropout = rate_of(config) };
}

static void fill_v3(dsc_conv_config *config, const dsc_conv_architecture *architecture)
{
    static const layer_names stem = { "", "conv_stem", "bn1" },
                             last[] = { { "blocks.5.0", "conv", "bn1" }, { "blocks.6.0", "conv", "bn1" } };
    const bool is_large = architecture->flag;
    const v3_block *blocks = is_large ? large : small;
    const size_t count = is_large ? DSC_COUNT(large) : DSC_COUNT(small);
    int64_t in = 16;
    int stage = 0, number = 0;
    if (architecture->variant == DSC_CONV_OF_TIMM)
        config->naming = DSC_CONV_TIMM;
    config->eps = config->naming == DSC_CONV_TIMM ? 1e-5 : 1e-3;
    config->momentum = config->naming == DSC_CONV_TIMM ? 0.1 : 0.01;
    add_layer(config, config->planes, in, &stem, DSC_HARD_SWISH);
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
        const bool begins = begins_stage(of, b > 0 ? of - 1 : NULL);
        stage += begins, number = begins ? 0 : number + (b > 0);
        in = add_block(config, &block, "block", stage, number)->out;
    }
    add_layer(config, in, 6 * in, &last[is_large], DSC_HARD_SWISH);
    set_classifier(config, is_large ? 1280 : 1024);
}

const dsc_conv_architecture dsc_mobilenets[] = { { "mobilenet_v2", fill_v2, 0, false },
                                                 { "mobilenet_v3_small", fill_v3, 0, false },
                                                 { "mobilenet_v3_large", fill_v3, 0, true },
                                                 { "mobilenetv2_100", fill_v2, DSC_CONV_OF_TIMM, false },
                                                 { "mobilenetv3_small_100", fill_v3, DSC_CONV_OF_TIMM, false },
                                                 { "mobilenetv3_large_100", fill_v3, DSC_CONV_OF_TIMM, true },
                                                 { NULL, NULL, 0, false } };
