/* vision.c - see vision.h. SPDX-License-Identifier: Apache-2.0 */
#include "models/vision.h"

#include <string.h>

#include "models/blocks.h"

enum { PLANES_MAX = 64, SIDE_MAX = 1 << 14 };

static const dsc_vision_config *config_of(const dsc_lm_config *base)
{
    return (const dsc_vision_config *)(const void *)base;
}

static dsc_block block_of(dsc_program *program, const dsc_lm_config *base)
{
    return (dsc_block) { .program = program,
                         .norm = { .kind = DSC_NORM_LAYER, .groups = 1, .eps = base->norm_eps },
                         .out_in = true,
                         .std = base->init_std };
}

/* ---- modules ----------------------------------------------------------------------------------------------------- */

/* `rows` rows of C, with leading dimensions of 1 or as a vector and a matrix. */
static int32_t declare_rows(dsc_program *program, const dsc_lm_config *base, const char *name, int64_t rows, bool flat)
{
    const dsc_program_param param = { .name = name,
                                      .part = "",
                                      .dim_count = !flat      ? 3
                                                   : rows > 1 ? 2
                                                              : 1,
                                      .dim = { !flat      ? 1
                                               : rows > 1 ? rows
                                                          : base->channels,
                                               !flat ? rows : base->channels, base->channels },
                                      .init = DSC_INIT_NORMAL,
                                      .std = base->init_std };
    return dsc_program_declare(program, &param);
}

/* The parameter of masked pictures, which stays as it is. */
static void declare_mask_token(dsc_program *program, const dsc_lm_config *base, const char *name)
{
    const dsc_program_param param = {
        .name = name, .part = "", .dim_count = 2, .dim = { 1, base->channels }, .init = DSC_INIT_ZEROS, .frozen = true
    };
    (void)dsc_program_declare(program, &param);
}

void dsc_vision_emit_first(dsc_program *program, const dsc_lm_config *base)
{
    const dsc_vision_config *config = config_of(base);
    const dsc_vision_traits *traits = config->traits;
    const dsc_block block = block_of(program, base);
    const int64_t p = config->patch, dims[4] = { base->channels, config->planes, p, p };
    const dsc_op_data picture = { DSC_LM_TOKENS, config->planes, config->height, config->width, p, 0 };
    const dsc_program_linear_args convolution = { .name = traits->patches,
                                                  .shape = { .out = base->channels, .out_in = true },
                                                  .bias = traits->patch_bias,
                                                  .whole = true,
                                                  .no_adapter = true,
                                                  .dims = dims,
                                                  .dim_count = 4,
                                                  .std = base->init_std };
    const int64_t rows = base->sequence - config->registers;
    const int32_t token = declare_rows(program, base, traits->class_token, 1, traits->flat);
    const int32_t positions = declare_rows(program, base, traits->positions, rows, traits->flat);
    if (traits->mask_token != NULL && !config->no_mask_token)
        declare_mask_token(program, base, traits->mask_token);
    int16_t x = dsc_program_linear(program, dsc_program_patches(program, &picture), &convolution);
    x = dsc_program_table(program, dsc_program_prepend(program, x, token, 1), positions);
    if (config->registers > 0)
        x = dsc_program_prepend(program, x, declare_rows(program, base, traits->registers, config->registers, false),
                                config->registers);
    dsc_program_end(program, traits->embed_norm != NULL ? dsc_block_norm(&block, x, traits->embed_norm) : x);
}

/* The class token and the mean of the patches, side by side. */
static int16_t pool_both(dsc_program *program, const dsc_vision_config *config, int16_t x)
{
    const int64_t token = config->registers, patches = config->dense.lm.sequence - token - 1;
    const dsc_op_heads both = { .heads = 1, .width = 2 * config->dense.lm.channels };
    const int16_t first = dsc_program_pick(program, x, token, 1, false);
    return dsc_program_heads(program, first, dsc_program_pick(program, x, token + 1, patches, true), &both);
}

/* A row's norm reads that row alone, so the class token's is the norm of one row. */
void dsc_vision_emit_last(dsc_program *program, const dsc_lm_config *base)
{
    const dsc_vision_config *config = config_of(base);
    const dsc_block block = block_of(program, base);
    const dsc_program_linear_args classifier = { .name = config->traits->classifier != NULL ? config->traits->classifier
                                                                                            : "classifier",
                                                 .shape = { .out = base->vocab, .out_in = true },
                                                 .bias = true,
                                                 .whole = true,
                                                 .no_adapter = true,
                                                 .std = base->init_std };
    int16_t x = program->input;
    if (!config->pools_mean && !config->pools_both)
        x = dsc_program_pick(program, x, 0, 1, false);
    if (config->traits->final_norm != NULL)
        x = dsc_block_norm(&block, x, config->traits->final_norm);
    if (config->pools_mean)
        x = dsc_program_pick(program, x, 1, base->sequence - 1, true);
    if (config->pools_both)
        x = pool_both(program, config, x);
    dsc_program_end(program, dsc_program_linear(program, x, &classifier));
}

/* ---- config.json ------------------------------------------------------------------------------------------------- */

/* A number, or a list of the same two sizes: height and width. */
static dsc_status read_sides(dsc_hf_config *reader, const char *key, int64_t fallback, int64_t out[2])
{
    const cJSON *item = dsc_hf_field(reader, key);
    out[0] = out[1] = fallback;
    if (!cJSON_IsArray(item)) {
        DSC_TRY(dsc_hf_int(reader, key, SIDE_MAX, fallback, &out[0]));
        out[1] = out[0];
        return DSC_OK;
    }
    for (int i = 0; i < 2; i++)
        if (cJSON_GetArraySize(item) != 2 || !dsc_json_integer(cJSON_GetArrayItem(item, i), 1, SIDE_MAX, &out[i]))
            return DSC_HF_REFUSE(reader, DSC_ERR_INPUT, "\"%s\" must be a whole number from 1 to %d, or a list of two",
                                 key, SIDE_MAX);
    return DSC_OK;
}

/* Patches of a picture and the class token are the rows of a sample. */
static dsc_status read_picture(dsc_hf_config *reader, dsc_vision_config *out)
{
    dsc_lm_config *lm = &out->dense.lm;
    int64_t sides[2], patch[2];
    DSC_TRY(dsc_hf_int(reader, "num_channels", PLANES_MAX, 3, &out->planes));
    DSC_TRY(read_sides(reader, "image_size", 224, sides));
    DSC_TRY(read_sides(reader, "patch_size", out->traits->patch, patch));
    if (patch[0] != patch[1])
        return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED,
                             "\"patch_size\" [%lld,%lld] is not built; what exists: "
                             "patches that are as high as wide",
                             (long long)patch[0], (long long)patch[1]);
    if (patch[0] > sides[0] || patch[0] > sides[1] || out->planes * patch[0] * patch[0] > DSC_LM_INNER_MAX)
        return DSC_HF_REFUSE(reader, DSC_ERR_INPUT,
                             "\"patch_size\" %lld does not suit \"image_size\" %lld by %lld: a "
                             "patch lies in the picture and has at most %d numbers",
                             (long long)patch[0], (long long)sides[0], (long long)sides[1], DSC_LM_INNER_MAX);
    out->height = sides[0], out->width = sides[1], out->patch = patch[0];
    lm->positions = 1 + (sides[0] / patch[0]) * (sides[1] / patch[0]);
    if (lm->positions > DSC_LM_POSITIONS_MAX)
        return DSC_HF_REFUSE(reader, DSC_ERR_INPUT, "a picture has %lld patches; at most %d are possible",
                             (long long)lm->positions - 1, DSC_LM_POSITIONS_MAX - 1);
    lm->data = (dsc_batch_spec) {
        .name = DSC_BATCH_PIXELS, .dtype = DSC_F32, .dim_count = 3, .dim = { out->planes, out->height, out->width }
    };
    return DSC_OK;
}

/* As transformers counts them: the names of "id2label", else "num_labels", else two. */
static dsc_status read_classes(dsc_hf_config *reader, dsc_lm_config *lm)
{
    int64_t count = 0;
    DSC_TRY(dsc_hf_int_or_null(reader, "num_labels", DSC_LABELS_MAX, 2, &lm->vocab));
    const cJSON *names = dsc_hf_field(reader, "id2label");
    if (names != NULL) {
        lm->vocab = cJSON_IsObject(names) ? cJSON_GetArraySize(names) : 0;
        for (const cJSON *name = names->child; name != NULL; name = name->next)
            count += cJSON_IsString(name);
        if (count != lm->vocab || count == 0)
            return DSC_HF_REFUSE(reader, DSC_ERR_INPUT, "\"id2label\" must have the name of each class");
    }
    if (lm->vocab < 2 || lm->vocab > DSC_LABELS_MAX)
        return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED,
                             "a classifier of %lld classes is not built; what exists: 2 to %d classes in \"id2label\"",
                             (long long)lm->vocab, DSC_LABELS_MAX);
    return dsc_hf_field(reader, "problem_type") != NULL
               ? dsc_hf_only_word(reader, "problem_type", "single_label_classification")
               : DSC_OK;
}

/* 1.702 and SiLU make the quick GELU. */
static dsc_status read_activation(dsc_hf_config *reader, dsc_dense_config *out, bool usually_quick)
{
    const cJSON *item = dsc_hf_field(reader, "hidden_act");
    const bool quick =
        item == NULL ? usually_quick : cJSON_IsString(item) && strcmp(item->valuestring, "quick_gelu") == 0;
    out->activation = DSC_SILU;
    out->activation_scale = quick ? 1.702 : 0;
    return quick ? DSC_OK : dsc_dense_read_activation(reader, "hidden_act", DSC_GELU_ERF, &out->activation);
}

dsc_status dsc_vision_read(dsc_hf_config *reader, dsc_lm_config *lm)
{
    const dsc_vision_traits *traits = reader->traits;
    dsc_vision_config *out = (dsc_vision_config *)(void *)lm;
    dsc_dense_config *dense = &out->dense;
    out->traits = traits;
    dense->traits = &traits->block;
    dense->scale_attention = dense->attention_bias = true;
    dsc_hf_skip(reader, traits->without_effect);
    DSC_TRY(read_picture(reader, out));
    DSC_TRY(read_classes(reader, lm));
    DSC_TRY(dsc_hf_int(reader, "num_hidden_layers", DSC_LM_LAYERS_MAX, 12, &lm->layers));
    DSC_TRY(dsc_hf_int(reader, "hidden_size", DSC_LM_CHANNELS_MAX, 768, &lm->channels));
    DSC_TRY(dsc_hf_int(reader, "intermediate_size", DSC_LM_INNER_MAX, 3072, &dense->inner));
    DSC_TRY(dsc_hf_int(reader, "num_attention_heads", DSC_LM_CHANNELS_MAX, 12, &dense->heads));
    if (lm->channels % dense->heads != 0)
        return DSC_HF_REFUSE(reader, DSC_ERR_INPUT,
                             "\"hidden_size\" %lld is not a multiple of \"num_attention_heads\" %lld",
                             (long long)lm->channels, (long long)dense->heads);
    DSC_TRY(dsc_hf_number(reader, "layer_norm_eps", (dsc_hf_range) { 1e-30, 1 }, traits->eps, &lm->norm_eps));
    DSC_TRY(dsc_hf_number(reader, "initializer_range", (dsc_hf_range) { 0, 1000 }, 0.02, &lm->init_std));
    if (traits->bias_key != NULL)
        DSC_TRY(dsc_hf_bool(reader, traits->bias_key, true, &dense->attention_bias));
    DSC_TRY(read_activation(reader, dense, traits->quick));
    if (traits->read_more != NULL)
        DSC_TRY(traits->read_more(reader, out));
    int32_t dropouts = 0;
    while (dropouts < (int32_t)DSC_COUNT(traits->dropouts) && traits->dropouts[dropouts] != NULL)
        dropouts++;
    return dsc_dense_read_dropout(reader, traits->dropouts, dropouts, 0);
}
