/* torch_vit.c - the vision transformers of torchvision, with its names of tensors and first values. config.json is that
 * of torchvision's other networks. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "models/conv/conv.h"
#include "models/families.h"
#include "models/vision.h"

#define IN_PROJ "self_attention.in_proj_" /* torch joins "weight" to it without a point */

static const dsc_vision_traits traits = {
    .class_token = "class_token", .positions = "encoder.pos_embedding", .patches = "conv_proj", .patch_bias = true,
    .block = { .norm1 = "ln_1", .qkv = { IN_PROJ }, .proj = "self_attention.out_proj", .norm2 = "ln_2", .fc = "mlp.0",
               .out = "mlp.3", .kind = DSC_QKV_PARTS, .out_in = true, .out_bias = true },
    .final_norm = "encoder.ln", .classifier = "heads.head", .eps = 1e-6
};

static const struct {
    const char *name;
    int32_t layers, channels, heads, inner, patch;
} sizes[] = { { "vit_b_16", 12, 768, 12, 3072, 16 },
              { "vit_b_32", 12, 768, 12, 3072, 32 },
              { "vit_l_16", 24, 1024, 16, 4096, 16 },
              { "vit_l_32", 24, 1024, 16, 4096, 32 },
              { "vit_h_14", 32, 1280, 16, 5120, 14 } };

static int32_t size_of(const char *name)
{
    for (size_t i = 0; i < DSC_COUNT(sizes); i++)
        if (strcmp(sizes[i].name, name) == 0)
            return (int32_t)i;
    return -1;
}

bool dsc_torch_vit_has(const char *architecture) { return size_of(architecture) >= 0; }

/* ---- first values ------------------------------------------------------------------------------------------------ */

static dsc_program_param *find_param(dsc_program *program, const char *name, const char *part)
{
    for (int32_t i = 0; i < program->param_count; i++)
        if (strcmp(program->param[i].name, name) == 0 && strcmp(program->param[i].part, part) == 0)
            return &program->param[i];
    return NULL;
}

static void begin(dsc_program *program, const char *name, const char *part, dsc_init_kind init, double std)
{
    dsc_program_param *param = program->status == DSC_OK ? find_param(program, name, part) : NULL;
    if (param != NULL)
        param->init = init, param->std = std;
}

/* Glorot's rule. */
static double bound_of(int64_t in, int64_t out) { return sqrt(6 / (double)(in + out)); }

static void emit_first(dsc_program *program, const dsc_lm_config *lm)
{
    const dsc_vision_config *config = (const dsc_vision_config *)(const void *)lm;
    dsc_vision_emit_first(program, lm);
    begin(program, traits.class_token, "", DSC_INIT_ZEROS, 0);
    begin(program, traits.patches, "weight", DSC_INIT_NORMAL,
          1 / sqrt((double)(config->planes * config->patch * config->patch)));
}

static void emit_block(dsc_program *program, const dsc_lm_config *lm, int64_t layer)
{
    const dsc_dense_traits *block = &traits.block;
    const int64_t c = lm->channels, inner = ((const dsc_dense_config *)(const void *)lm)->inner;
    dsc_dense_emit_block(program, lm, layer);
    if (program->status != DSC_OK)
        return;
    begin(program, IN_PROJ, "weight", DSC_INIT_UNIFORM, bound_of(c, 3 * c));
    begin(program, block->proj, "weight", DSC_INIT_UNIFORM, 1 / sqrt((double)c));
    begin(program, block->fc, "weight", DSC_INIT_UNIFORM, bound_of(c, inner));
    begin(program, block->out, "weight", DSC_INIT_UNIFORM, bound_of(c, inner));
    begin(program, block->fc, "bias", DSC_INIT_NORMAL, 1e-6);
    begin(program, block->out, "bias", DSC_INIT_NORMAL, 1e-6);
    for (int32_t i = 0; i < program->layer_count; i++) /* parameters of torch's attention, not a layer there */
        program->layer[i].no_adapter |= strcmp(program->layer[i].name, IN_PROJ) == 0;
}

static void emit_last(dsc_program *program, const dsc_lm_config *lm)
{
    dsc_vision_emit_last(program, lm);
    begin(program, traits.classifier, "weight", DSC_INIT_ZEROS, 0);
}

/* ---- config.json ------------------------------------------------------------------------------------------------- */

static const char *const without_effect[] = { "label_names", "label_descriptions", NULL };

static dsc_status read_size(dsc_hf_config *reader, dsc_vision_config *out)
{
    dsc_dense_config *dense = &out->dense;
    const cJSON *item = dsc_hf_field(reader, "architecture");
    const int32_t i = cJSON_IsString(item) ? size_of(item->valuestring) : -1;
    if (i < 0)
        return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED,
                             "\"architecture\" must be a vision transformer of torchvision, as \"vit_b_16\"");
    dense->lm.layers = sizes[i].layers, dense->lm.channels = sizes[i].channels;
    dense->heads = sizes[i].heads, dense->inner = sizes[i].inner;
    out->patch = sizes[i].patch;
    return DSC_OK;
}

static dsc_status read_config(dsc_hf_config *reader, dsc_lm_config *lm)
{
    dsc_vision_config *out = (dsc_vision_config *)(void *)lm;
    dsc_dense_config *dense = &out->dense;
    int64_t size[3] = { 3, 224, 224 };
    out->traits = &traits;
    dense->traits = &traits.block;
    dense->scale_attention = dense->attention_bias = true;
    dense->activation = DSC_GELU_ERF;
    lm->norm_eps = traits.eps, lm->init_std = 0.02;
    dsc_hf_skip(reader, without_effect);
    DSC_TRY(read_size(reader, out));
    DSC_TRY(dsc_conv_read_picture(reader, size));
    DSC_TRY(dsc_conv_refuse_frames(reader));
    DSC_TRY(dsc_conv_read_classes(reader, 1000, &lm->vocab));
    out->planes = size[0], out->height = size[1], out->width = size[2];
    if (out->height % out->patch != 0 || out->width % out->patch != 0)
        return DSC_HF_REFUSE(reader, DSC_ERR_INPUT,
                             "pictures of %lld by %lld; this model takes multiples of its patches of %lld pixels: give "
                             "another \"image_size\" (dsc.image_size)",
                             (long long)out->height, (long long)out->width, (long long)out->patch);
    lm->positions = 1 + (out->height / out->patch) * (out->width / out->patch);
    DSC_ASSERT(lm->positions <= DSC_LM_POSITIONS_MAX);
    lm->data = (dsc_batch_spec) {
        .name = DSC_BATCH_PIXELS, .dtype = DSC_F32, .dim_count = 3, .dim = { out->planes, out->height, out->width }
    };
    return DSC_OK;
}

static const char *const lora_layers[] = { "out_proj", NULL };

const dsc_lm_family dsc_torch_vit_family = { .model_type = "vision transformer of torchvision",
                                             .layers_key = "layers",
                                             .base = "",
                                             .layer = "encoder.layers.encoder_layer_",
                                             .token_table = "",
                                             .head_table = "heads.head.weight",
                                             .norm = DSC_NORM_LAYER,
                                             .config_bytes = sizeof(dsc_vision_config),
                                             .read_config = read_config,
                                             .emit_first = emit_first,
                                             .emit_block = emit_block,
                                             .emit_last = emit_last,
                                             .lora_layers = lora_layers,
                                             .any_picture = true };
