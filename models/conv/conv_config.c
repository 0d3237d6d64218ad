/* conv_config.c - config.json of a convolutional network: as timm writes it, with the architecture's name and the
 * number of classes. SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "models/conv/conv.h"
#include "models/families.h"

enum { PLANES_MAX = 64, SIDE_MAX = 1 << 14, CLASSES = 1000, PLANES = 3, SIDE = 224 };
enum { BASIC_CLASSES = 10, BASIC_SIDE = 28 }; /* MNIST's, without keys */

/* ---- the table of units ------------------------------------------------------------------------------------------ */

const char *dsc_conv_digits(int64_t number)
{
    static const char *const digits[] = { "0",  "1",  "2",  "3",  "4",  "5",  "6",  "7",  "8",  "9",  "10", "11", "12",
                                          "13", "14", "15", "16", "17", "18", "19", "20", "21", "22", "23", "24", "25",
                                          "26", "27", "28", "29", "30", "31", "32", "33", "34", "35", "36", "37", "38",
                                          "39", "40", "41", "42", "43", "44", "45", "46", "47", "48", "49", "50", "51",
                                          "52", "53", "54", "55", "56", "57", "58", "59", "60", "61", "62", "63" };
    DSC_ASSERT(number >= 0);
    DSC_ASSERT(number < (int64_t)DSC_COUNT(digits));
    return digits[number];
}

int64_t dsc_conv_round(double channels)
{
    int64_t rounded = (int64_t)(channels + 4) / 8 * 8;
    if (rounded < 8)
        rounded = 8;
    return (double)rounded < 0.9 * channels ? rounded + 8 : rounded;
}

/* Places of a window on a side. */
static int64_t places(int64_t side, int64_t kernel, int64_t stride, int64_t padding)
{
    const int64_t room = side + 2 * padding - kernel;
    return side < 1 || room < 0 ? 0 : room / stride + 1;
}

void dsc_conv_size(const dsc_conv_unit *unit, int64_t *height, int64_t *width)
{
    *height = places(unit->height, unit->kernel, unit->stride, unit->padding);
    *width = places(unit->width, unit->kernel, unit->stride, unit->padding);
    if (unit->pool == 0)
        return;
    *height = places(*height, unit->pool, unit->pool_stride, unit->pool_padding);
    *width = places(*width, unit->pool, unit->pool_stride, unit->pool_padding);
}

dsc_conv_unit *dsc_conv_add(dsc_conv_config *config, const dsc_conv_unit *unit, const char *format, ...)
{
    DSC_ASSERT(config->unit_count < DSC_CONV_UNITS_MAX);
    dsc_conv_unit *out = &config->unit[config->unit_count++];
    va_list args;
    *out = *unit;
    va_start(args, format);
    const int bytes = vsnprintf(out->name, sizeof out->name, format, args);
    va_end(args);
    DSC_ASSERT(bytes < (int)sizeof out->name);
    out->height = config->height / config->frames, out->width = config->width;
    if (config->unit_count > 1)
        dsc_conv_size(out - 1, &out->height, &out->width);
    return out;
}

/* ---- config.json ------------------------------------------------------------------------------------------------- */

const dsc_conv_architecture *dsc_conv_find(const char *name, char *list, size_t bytes)
{
    const dsc_conv_architecture *table;
    list[0] = 0;
    for (int32_t t = 0; (table = dsc_conv_table(t)) != NULL; t++)
        for (; table->name != NULL; table++) {
            const size_t used = strlen(list);
            if (strcmp(table->name, name) == 0)
                return table;
            if (used < bytes)
                snprintf(list + used, bytes - used, "%s%s", used > 0 ? ", " : "", table->name);
        }
    return NULL;
}

static dsc_status read_architecture(dsc_hf_config *reader, const dsc_conv_architecture **out)
{
    char list[500];
    const cJSON *item = dsc_hf_field(reader, "architecture");
    *out = cJSON_IsString(item) ? dsc_conv_find(item->valuestring, list, sizeof list) : NULL;
    if (*out != NULL)
        return DSC_OK;
    return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED, "architecture \"%.60s\" is not built; what exists: %s",
                         cJSON_IsString(item) ? item->valuestring : "", list);
}

/* Whole numbers of a list. */
static bool read_list(const cJSON *list, int count, int64_t max, int64_t *out)
{
    bool good = cJSON_IsArray(list) && cJSON_GetArraySize(list) == count;
    for (int i = 0; i < count && good; i++)
        good = dsc_json_integer(cJSON_GetArrayItem(list, i), 1, max, &out[i]);
    return good;
}

dsc_status dsc_conv_read_picture(dsc_hf_config *reader, int64_t size[3])
{
    const cJSON *trained = dsc_hf_field(reader, "pretrained_cfg");
    const cJSON *input = cJSON_GetObjectItemCaseSensitive(trained, "input_size");
    if (input != NULL && !read_list(input, 3, SIDE_MAX, size))
        return DSC_HF_REFUSE(reader, DSC_ERR_INPUT,
                             "\"input_size\" in \"pretrained_cfg\" must be planes, height and width, each from 1 to %d",
                             SIDE_MAX);
    const cJSON *side = dsc_hf_field(reader, "image_size");
    if (cJSON_IsArray(side) ? !read_list(side, 2, SIDE_MAX, &size[1])
                            : side != NULL && !dsc_json_integer(side, 1, SIDE_MAX, &size[1]))
        return DSC_HF_REFUSE(reader, DSC_ERR_INPUT,
                             "\"image_size\" must be a whole number from 1 to %d, or a list of height and width",
                             SIDE_MAX);
    if (side != NULL && !cJSON_IsArray(side))
        size[2] = size[1];
    if (reader->picture[0] > 0)
        size[1] = reader->picture[0], size[2] = reader->picture[1];
    DSC_TRY(dsc_hf_int(reader, "num_channels", PLANES_MAX, size[0], &size[0]));
    if (size[0] > PLANES_MAX)
        return DSC_HF_REFUSE(reader, DSC_ERR_INPUT, "a picture of %lld planes; at most %d are possible",
                             (long long)size[0], PLANES_MAX);
    return DSC_OK;
}

dsc_status dsc_conv_refuse_frames(dsc_hf_config *reader)
{
    if (dsc_hf_field(reader, "frames") == NULL)
        return DSC_OK;
    return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED,
                         "\"frames\" (dsc.image_frames) are for \"cnn_lstm\" alone; leave them out");
}

static dsc_status read_picture(dsc_hf_config *reader, const dsc_conv_usual *usual, dsc_conv_config *out)
{
    int64_t size[3] = { usual->planes, usual->side, usual->side };
    DSC_TRY(dsc_conv_read_picture(reader, size));
    out->planes = size[0], out->height = size[1], out->width = size[2];
    out->frames = 1;
    return DSC_OK;
}

dsc_status dsc_conv_read_classes(dsc_hf_config *reader, int64_t usual, int64_t *out)
{
    const cJSON *names = dsc_hf_field(reader, "id2label");
    int64_t count = names != NULL ? cJSON_GetArraySize(names) : usual;
    if (names != NULL && !cJSON_IsObject(names))
        return DSC_HF_REFUSE(reader, DSC_ERR_INPUT, "\"id2label\" must have the name of each class");
    DSC_TRY(dsc_hf_int_or_null(reader, "num_labels", DSC_LABELS_MAX, count, out));
    DSC_TRY(dsc_hf_int_or_null(reader, "num_classes", DSC_LABELS_MAX, *out, out));
    if (names != NULL && *out != count)
        return DSC_HF_REFUSE(reader, DSC_ERR_INPUT, "%lld classes are asked for, and \"id2label\" has %lld names",
                             (long long)*out, (long long)count);
    if (*out < 2 || *out > DSC_LABELS_MAX)
        return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED,
                             "a classifier of %lld classes is not built; what exists: 2 to %d in \"num_classes\"",
                             (long long)*out, DSC_LABELS_MAX);
    return DSC_OK;
}

/* Every unit has an input, and the rows of the largest one fit. */
static dsc_status check_units(dsc_hf_config *reader, dsc_conv_config *config, const char *name)
{
    dsc_lm_config *lm = &config->lm;
    int64_t height = config->height / config->frames, width = config->width;
    lm->positions = height * width;
    for (int32_t i = 0; i < config->unit_count; i++) {
        dsc_conv_size(&config->unit[i], &height, &width);
        if (height < 1 || width < 1)
            return DSC_HF_REFUSE(reader, DSC_ERR_INPUT,
                                 "%s of %lld by %lld are too small for %s: give a larger \"image_size\"",
                                 config->frames > 1 ? "frames" : "pictures", (long long)config->unit[0].height,
                                 (long long)config->width, name);
        lm->positions = dsc_max_i64(lm->positions, height * width);
    }
    lm->positions *= config->frames;
    if (lm->positions > DSC_LM_POSITIONS_MAX)
        return DSC_HF_REFUSE(reader, DSC_ERR_INPUT, "a picture has %lld pixels; at most %d are possible",
                             (long long)lm->positions, DSC_LM_POSITIONS_MAX);
    const int64_t grid = config->classifier.whole ? height * width : config->classifier.grid * config->classifier.grid;
    if (dsc_max_i64(1, grid) * config->unit[config->unit_count - 1].out > INT32_MAX)
        return DSC_HF_REFUSE(reader, DSC_ERR_INPUT, "pictures of %lld by %lld are too large for the linear layer of %s",
                             (long long)config->height, (long long)config->width, name);
    lm->layers = config->unit_count - 1;
    lm->channels = config->unit[lm->layers].out;
    return DSC_OK;
}

/* Keys that describe where weights are from. */
static const char *const others[] = { "num_features", "label_names", "label_descriptions",
                                      "global_pool",  "model_args",  NULL };

static bool is_mean(const cJSON *pool)
{
    return pool == NULL ||
           (cJSON_IsString(pool) && (strcmp(pool->valuestring, "avg") == 0 || pool->valuestring[0] == 0));
}

/* timm repeats in "model_args" what other keys say. */
static bool is_known(const cJSON *arg, const dsc_conv_config *config)
{
    int64_t number = 0;
    const bool whole = dsc_json_integer(arg, 1, INT32_MAX, &number);
    if (strcmp(arg->string, "num_classes") == 0)
        return whole && number == config->lm.vocab;
    if (strcmp(arg->string, "in_chans") == 0)
        return whole && number == config->planes;
    return strcmp(arg->string, "global_pool") == 0 && is_mean(arg);
}

static dsc_status refuse_other_models(dsc_hf_config *reader, const dsc_conv_config *config)
{
    if (!is_mean(dsc_hf_field(reader, "global_pool")))
        return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED, "\"global_pool\" must be \"avg\"; others are not built");
    const cJSON *args = dsc_hf_field(reader, "model_args");
    for (const cJSON *arg = args != NULL ? args->child : NULL; arg != NULL; arg = arg->next)
        if (!cJSON_IsObject(args) || !is_known(arg, config))
            return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED,
                                 "\"model_args\" has \"%.40s\" of a value that is not built: it changes the "
                                 "architecture; what exists: the num_classes, in_chans and global_pool of other keys",
                                 arg->string != NULL ? arg->string : "");
    return DSC_OK;
}

/* VGG and EfficientNet have one name in torchvision and in timm: the folder's tensors tell, else what timm says of the
 * first and the last layer. */
static dsc_conv_naming find_naming(dsc_hf_config *reader)
{
    const cJSON *trained = dsc_hf_field(reader, "pretrained_cfg");
    const cJSON *stem = cJSON_GetObjectItemCaseSensitive(trained, "first_conv");
    const cJSON *head = cJSON_GetObjectItemCaseSensitive(trained, "classifier");
    if (reader->weights != NULL && dsc_weights_count(reader->weights) > 0)
        return dsc_weights_find(reader->weights, "conv_stem.weight") != NULL ||
                       dsc_weights_find(reader->weights, "head.fc.weight") != NULL
                   ? DSC_CONV_TIMM
                   : DSC_CONV_TORCHVISION;
    return (cJSON_IsString(stem) && strcmp(stem->valuestring, "conv_stem") == 0) ||
                   (cJSON_IsString(head) && strcmp(head->valuestring, "head.fc") == 0)
               ? DSC_CONV_TIMM
               : DSC_CONV_TORCHVISION;
}

static dsc_status finish(dsc_hf_config *reader, dsc_conv_config *out, const char *name)
{
    DSC_TRY(check_units(reader, out, name));
    out->lm.data = (dsc_batch_spec) {
        .name = DSC_BATCH_PIXELS, .dtype = DSC_F32, .dim_count = 3, .dim = { out->planes, out->height, out->width }
    };
    return DSC_OK;
}

dsc_status dsc_conv_read_keys(dsc_hf_config *reader, const dsc_conv_usual *usual, dsc_conv_config *out)
{
    dsc_hf_skip(reader, others);
    DSC_TRY(read_picture(reader, usual, out));
    DSC_TRY(dsc_conv_read_classes(reader, usual->classes, &out->lm.vocab));
    DSC_TRY(refuse_other_models(reader, out));
    DSC_TRY(dsc_hf_number(reader, "drop_rate", (dsc_hf_range) { 0, 0.99 }, -1, &out->drop));
    return dsc_hf_number(reader, "drop_path_rate", (dsc_hf_range) { 0, 0.99 }, -1, &out->drop_path);
}

dsc_status dsc_conv_fill(dsc_hf_config *reader, const dsc_conv_architecture *architecture, dsc_conv_config *out)
{
    if (architecture->fill == dsc_cnn_lstms[0].fill)
        DSC_TRY(dsc_conv_read_sequence(reader, out));
    else
        DSC_TRY(dsc_conv_refuse_frames(reader));
    architecture->fill(out, architecture);
    return finish(reader, out, architecture->name);
}

static dsc_status read_config(dsc_hf_config *reader, dsc_lm_config *lm)
{
    static const dsc_conv_usual usual = { PLANES, SIDE, CLASSES }, basic = { 1, BASIC_SIDE, BASIC_CLASSES };
    dsc_conv_config *out = (dsc_conv_config *)(void *)lm;
    const dsc_conv_architecture *architecture = NULL;
    DSC_TRY(read_architecture(reader, &architecture));
    DSC_TRY(dsc_conv_read_keys(reader, architecture->fill == dsc_basic_cnns[0].fill ? &basic : &usual, out));
    out->naming = find_naming(reader);
    return dsc_conv_fill(reader, architecture, out);
}

static dsc_status read_resnet(dsc_hf_config *reader, dsc_lm_config *lm)
{
    static const dsc_conv_usual usual = { PLANES, SIDE, 2 };
    dsc_conv_config *out = (dsc_conv_config *)(void *)lm;
    out->naming = DSC_CONV_TRANSFORMERS;
    DSC_TRY(read_picture(reader, &usual, out));
    DSC_TRY(dsc_conv_read_classes(reader, usual.classes, &lm->vocab));
    DSC_TRY(dsc_conv_read_resnet(reader, out));
    return finish(reader, out, "resnet");
}

/* ---- the family -------------------------------------------------------------------------------------------------- */

const dsc_conv_architecture *dsc_conv_table(int32_t index)
{
    static const dsc_conv_architecture *const tables[] = { dsc_resnets,       dsc_vggs,       dsc_mobilenets,
                                                           dsc_efficientnets, dsc_basic_cnns, dsc_cnn_lstms };
    return index >= 0 && index < (int32_t)DSC_COUNT(tables) ? tables[index] : NULL;
}

/* A first module has a unit too, and the last one the classifier, whose names are whole. */
static void name_block(const dsc_lm_config *lm, int64_t layer, char *out, size_t bytes)
{
    const dsc_conv_config *config = (const dsc_conv_config *)(const void *)lm;
    snprintf(out, bytes, "%s", layer < lm->layers ? config->unit[1 + layer].name : "");
}

static const char *const no_layers[] = { NULL };

#define CONV_FAMILY                                                                                                    \
    .layers_key = "blocks", .layer = "", .token_table = "", .head_table = "", .norm = DSC_NORM_LAYER,                  \
    .config_bytes = sizeof(dsc_conv_config), .name_block = name_block, .begin_block = dsc_conv_begin,                  \
    .emit_first = dsc_conv_emit_first, .emit_block = dsc_conv_emit_block, .emit_last = dsc_conv_emit_last,             \
    .lora_layers = no_layers, .any_picture = true

const dsc_lm_family dsc_conv_family = { CONV_FAMILY, .model_type = "convolutional network", .base = "",
                                        .read_config = read_config, .asks_weights = true };
const dsc_lm_family dsc_resnet_family = { CONV_FAMILY, .model_type = "resnet", .base = "resnet.",
                                          .read_config = read_resnet };
