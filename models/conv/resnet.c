/* resnet.c - ResNet (He et al. 2015), whose bottlenecks have the stride in the convolution of 3 by 3 as in torchvision.
 * SPDX-License-Identifier: Apache-2.0 */
#include "models/conv/conv.h"

enum { STAGES = 4, STAGES_MAX = 16, CHANNELS_MAX = 1 << 16 };

/* Blocks of a stage. */
static const int32_t depths[][STAGES] = {
    { 2, 2, 2, 2 }, { 3, 4, 6, 3 }, { 3, 4, 6, 3 }, { 3, 4, 23, 3 }, { 3, 8, 36, 3 }
};

static void fill_behind(dsc_conv_config *config, const dsc_conv_architecture *architecture, const dsc_conv_unit *stem)
{
    const bool bottleneck = architecture->flag;
    config->eps = 1e-5, config->momentum = 0.1;
    config->first = DSC_CONV_FIRST_IN;
    dsc_conv_add(config, stem, "%s", "");
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

static dsc_conv_unit stem_of(const dsc_conv_config *config, int32_t kernel, int32_t stride)
{
    return (dsc_conv_unit) { .kind = DSC_CONV_LAYER,
                             .conv = "conv1",
                             .norm = "bn1",
                             .in = config->planes,
                             .out = 64,
                             .kernel = kernel,
                             .stride = stride,
                             .padding = kernel / 2,
                             .activation = DSC_RELU };
}

static void fill(dsc_conv_config *config, const dsc_conv_architecture *architecture)
{
    dsc_conv_unit stem = stem_of(config, 7, 2);
    stem.pool = 3, stem.pool_stride = 2, stem.pool_padding = 1;
    fill_behind(config, architecture, &stem);
}

/* For pictures as small as CIFAR's: the stem has windows of 3 by 3 at stride 1, and no pool. */
static void fill_small(dsc_conv_config *config, const dsc_conv_architecture *architecture)
{
    const dsc_conv_unit stem = stem_of(config, 3, 1);
    fill_behind(config, architecture, &stem);
}

/* ---- transformers ------------------------------------------------------------------------------------------------ */

/* Keys of a backbone, which a classifier does not need. */
static const char *const without_effect[] = { "out_features", "out_indices", "stage_names", NULL };

typedef struct hf_resnet {
    int64_t depths[STAGES_MAX], channels[STAGES_MAX], first;
    int stages;
    int32_t basic;                  /* else bottlenecks */
    bool early_stage, early_stride; /* downsample_in_first_stage, downsample_in_bottleneck */
} hf_resnet;

/* A list of `count` numbers, or of any length if that is 0; returns its length. */
static int read_numbers(const cJSON *list, int count, int64_t max, int64_t *out)
{
    const int length = cJSON_IsArray(list) ? cJSON_GetArraySize(list) : 0;
    if (length < 1 || length > STAGES_MAX || (count > 0 && length != count))
        return 0;
    for (int i = 0; i < length; i++)
        if (!dsc_json_integer(cJSON_GetArrayItem(list, i), 1, max, &out[i]))
            return 0;
    return length;
}

static dsc_status read_stages(dsc_hf_config *reader, hf_resnet *out)
{
    static const int64_t usual[STAGES] = { 256, 512, 1024, 2048 };
    const cJSON *given = dsc_hf_field(reader, "depths");
    int64_t units = 1;
    out->stages = STAGES;
    for (int i = 0; i < STAGES; i++)
        out->depths[i] = depths[2][i], out->channels[i] = usual[i];
    if (given != NULL)
        out->stages = read_numbers(given, 0, DSC_CONV_UNITS_MAX, out->depths);
    for (int i = 0; i < out->stages; i++)
        units += out->depths[i];
    if (out->stages == 0 || units > DSC_CONV_UNITS_MAX)
        return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED,
                             "\"depths\" must be 1 to %d numbers of blocks, with a sum of at most %d", STAGES_MAX,
                             DSC_CONV_UNITS_MAX - 1);
    const cJSON *channels = dsc_hf_field(reader, "hidden_sizes");
    const int sizes = channels != NULL ? read_numbers(channels, out->stages, CHANNELS_MAX, out->channels) : STAGES;
    if (sizes != out->stages)
        return DSC_HF_REFUSE(reader, DSC_ERR_INPUT,
                             "\"hidden_sizes\" must be %d numbers of channels, as \"depths\" has, from 1 to %d",
                             out->stages, CHANNELS_MAX);
    return DSC_OK;
}

static void add_blocks(dsc_conv_config *config, const hf_resnet *of)
{
    int64_t in = of->first;
    for (int s = 0; s < of->stages; s++)
        for (int64_t b = 0; b < of->depths[s]; b++) {
            const dsc_conv_unit block = { .kind = of->basic ? DSC_CONV_BASIC : DSC_CONV_BOTTLENECK,
                                          .in = in,
                                          .inner = of->basic ? of->channels[s] : of->channels[s] / 4,
                                          .out = of->channels[s],
                                          .kernel = 3,
                                          .padding = 1,
                                          .stride = b == 0 && (s > 0 || of->early_stage) ? 2 : 1,
                                          .early_stride = of->early_stride,
                                          .activation = DSC_RELU };
            in = dsc_conv_add(config, &block, "resnet.encoder.stages.%d.layers.%d", s, (int)b)->out;
        }
}

dsc_status dsc_conv_read_resnet(dsc_hf_config *reader, dsc_conv_config *config)
{
    static const char *const kinds[] = { "bottleneck", "basic" };
    hf_resnet of = { 0 };
    dsc_hf_skip(reader, without_effect);
    DSC_TRY(read_stages(reader, &of));
    DSC_TRY(dsc_hf_int(reader, "embedding_size", CHANNELS_MAX, 64, &of.first));
    DSC_TRY(dsc_hf_choice(reader, "layer_type", kinds, DSC_COUNT(kinds), &of.basic));
    DSC_TRY(dsc_hf_only_word(reader, "hidden_act", "relu"));
    DSC_TRY(dsc_hf_bool(reader, "downsample_in_first_stage", false, &of.early_stage));
    DSC_TRY(dsc_hf_bool(reader, "downsample_in_bottleneck", false, &of.early_stride));
    for (int s = 0; s < of.stages && !of.basic; s++)
        if (of.channels[s] < 4)
            return DSC_HF_REFUSE(reader, DSC_ERR_INPUT, "\"hidden_sizes\" of bottlenecks must be 4 or more");
    const dsc_conv_unit stem = { .kind = DSC_CONV_LAYER,
                                 .conv = "convolution",
                                 .norm = "normalization",
                                 .in = config->planes,
                                 .out = of.first,
                                 .kernel = 7,
                                 .stride = 2,
                                 .padding = 3,
                                 .activation = DSC_RELU,
                                 .pool = 3,
                                 .pool_stride = 2,
                                 .pool_padding = 1 };
    config->eps = 1e-5, config->momentum = 0.1;
    config->first = DSC_CONV_FIRST_IN;
    dsc_conv_add(config, &stem, "resnet.embedder.embedder");
    add_blocks(config, &of);
    config->classifier = (dsc_conv_classifier) { .name = { "classifier.1" }, .count = 1 };
    return DSC_OK;
}

const dsc_conv_architecture dsc_resnets[] = {
    { "resnet18", fill, 0, false }, { "resnet34", fill, 1, false }, { "resnet50", fill, 2, true },
    { "resnet101", fill, 3, true }, { "resnet152", fill, 4, true }, { "resnet18_cifar", fill_small, 0, false },
    { NULL, NULL, 0, false }
};
