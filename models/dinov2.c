/* dinov2.c - DINOv2 (Oquab et al. 2023) with a linear classifier on its class token and the mean of its patches, with
 * and without registers: Dinov2ForImageClassification and Dinov2WithRegistersForImageClassification of transformers.
 * Each column of a part's sum to the residual stream has a factor. SPDX-License-Identifier: Apache-2.0 */
#include "models/vision.h"

enum { REGISTERS_MAX = 64 };

#define BLOCK(first, last)                                                                                             \
    .norm1 = "norm1",                                                                                                  \
    .qkv = { "attention.attention.query", "attention.attention.key", "attention.attention.value" },                    \
    .proj = "attention.output.dense", .norm2 = "norm2", .fc = (first), .out = (last),                                  \
    .scales = { "layer_scale1.lambda1", "layer_scale2.lambda1" }, .kind = DSC_QKV_APART, .out_in = true,               \
    .out_bias = true

/* The largest size: a gated MLP of two thirds of the width, in eights. */
static const dsc_dense_traits swiglu_block = { BLOCK("mlp.weights_in", "mlp.weights_out"), .gate_in_up = true,
                                               .fc_is_two = true };

static dsc_status read_mlp(dsc_hf_config *reader, dsc_vision_config *out)
{
    dsc_dense_config *dense = &out->dense;
    double ratio = 4;
    bool swiglu = false;
    DSC_TRY(dsc_hf_number(reader, "mlp_ratio", (dsc_hf_range) { 1e-3, 64 }, 4, &ratio));
    DSC_TRY(dsc_hf_bool(reader, "use_swiglu_ffn", false, &swiglu));
    dense->inner = (int64_t)((double)dense->lm.channels * ratio);
    if (swiglu) {
        dense->traits = &swiglu_block;
        dense->activation = DSC_SILU, dense->activation_scale = 0;
        dense->inner = ((int64_t)((double)dense->inner * 2 / 3) + 7) / 8 * 8;
    }
    if (dense->inner < 1 || dense->inner > DSC_LM_INNER_MAX)
        return DSC_HF_REFUSE(reader, DSC_ERR_INPUT, "\"mlp_ratio\" %g makes an MLP of %lld elements; expected 1 to %d",
                             ratio, (long long)dense->inner, DSC_LM_INNER_MAX);
    return DSC_OK;
}

static dsc_status read_registers(dsc_hf_config *reader, dsc_vision_config *out)
{
    dsc_lm_config *lm = &out->dense.lm;
    if (out->traits->registers == NULL)
        return DSC_OK;
    DSC_TRY(dsc_hf_int_from(reader, "num_register_tokens", 0, REGISTERS_MAX, 4, &out->registers));
    lm->positions += out->registers;
    return lm->positions <= DSC_LM_POSITIONS_MAX
               ? DSC_OK
               : DSC_HF_REFUSE(reader, DSC_ERR_INPUT, "a picture has %lld patches and %lld registers; at most %d rows "
                               "are possible", (long long)(lm->positions - out->registers - 1),
                               (long long)out->registers, DSC_LM_POSITIONS_MAX);
}

static dsc_status read_more(dsc_hf_config *reader, dsc_vision_config *out)
{
    double first = 1;
    bool mask_token = true;
    DSC_TRY(read_mlp(reader, out));
    DSC_TRY(read_registers(reader, out));
    if (out->traits->registers == NULL)
        DSC_TRY(dsc_hf_bool(reader, "use_mask_token", true, &mask_token));
    DSC_TRY(dsc_hf_number(reader, "layerscale_value", (dsc_hf_range) { -1e6, 1e6 }, 1, &first));
    if (first != 1)
        dsc_hf_warn(reader->warnings, reader->warnings_bytes,
                    "factors of layer scale that no file has begin with 1 (config.json: layerscale_value %g)", first);
    out->no_mask_token = !mask_token;
    out->pools_both = true;
    return DSC_OK;
}

/* Keys of backbones for other tasks. */
static const char *const others[] = { "apply_layernorm", "reshape_hidden_states", "out_features", "out_indices",
                                      "stage_names", NULL };

#define TRAITS(name)                                                                                                   \
    .class_token = "embeddings.cls_token", .mask_token = "embeddings.mask_token",                                      \
    .positions = "embeddings.position_embeddings", .patches = "embeddings.patch_embeddings.projection",                \
    .patch_bias = true, .block = { BLOCK("mlp.fc1", "mlp.fc2") }, .final_norm = name ".layernorm", .patch = 14,        \
    .eps = 1e-6, .bias_key = "qkv_bias",                                                                               \
    .dropouts = { "hidden_dropout_prob", "attention_probs_dropout_prob", "drop_path_rate" }, .without_effect = others, \
    .read_more = read_more
static const dsc_vision_traits plain = { TRAITS("dinov2") };
static const dsc_vision_traits registers = { TRAITS("dinov2_with_registers"),
                                             .registers = "embeddings.register_tokens" };

/* PEFT has no entry for the family. */
static const char *const lora_layers[] = { "query", "value", NULL };

const dsc_lm_family dsc_dinov2_family = { DSC_VISION_FAMILY("dinov2", plain), .base = "dinov2.",
                                          .layer = "encoder.layer.", .final_norm = "layernorm",
                                          .lora_layers = lora_layers };
const dsc_lm_family dsc_dinov2_registers_family = { DSC_VISION_FAMILY("dinov2_with_registers", registers),
                                                    .base = "dinov2_with_registers.", .layer = "encoder.layer.",
                                                    .final_norm = "layernorm", .lora_layers = lora_layers };
