/* vit.c - the vision transformer (Dosovitskiy et al. 2021) with a linear classifier on its class token:
 * ViTForImageClassification of transformers. SPDX-License-Identifier: Apache-2.0 */
#include "models/dense.h"
#include "models/vision.h"

static const char *const dropouts[] = { "hidden_dropout_prob", "attention_probs_dropout_prob", NULL };

static const dsc_vision_traits traits = { .class_token = "embeddings.cls_token",
                                          .positions = "embeddings.position_embeddings",
                                          .patches = "embeddings.patch_embeddings.projection",
                                          .patch_bias = true,
                                          .norm1 = "layernorm_before",
                                          .qkv = { "attention.attention.query", "attention.attention.key",
                                                   "attention.attention.value" },
                                          .out = "attention.output.dense",
                                          .norm2 = "layernorm_after",
                                          .fc = "intermediate.dense",
                                          .proj = "output.dense",
                                          .final_norm = "vit.layernorm",
                                          .patch = 16,
                                          .eps = 1e-12,
                                          .bias_key = "qkv_bias",
                                          .dropouts = dropouts };

/* PEFT has no entry for the family; its guides adapt these. */
static const char *const lora_layers[] = { "query", "value", NULL };

static const char *const beside[][2] = { { "pooler.", "pooler" },
                                         { "embeddings.mask_token", "mask token" },
                                         { NULL, NULL } };

static dsc_status read_config(dsc_hf_config *reader, dsc_lm_config *lm)
{
    /* Keys of the pooler and of masked picture modeling, which a classifier does not need. */
    static const char *const others[] = { "encoder_stride", "pooler_act", "pooler_output_size" };
    for (size_t i = 0; i < DSC_COUNT(others); i++)
        (void)dsc_hf_field(reader, others[i]);
    return dsc_vision_read_config(reader, &traits, lm);
}

const dsc_lm_family dsc_vit_family = { .model_type = "vit",
                                       .layers_key = "num_hidden_layers",
                                       .base = "vit.",
                                       .layer = "encoder.layer.",
                                       .token_table = "",
                                       .head_table = "classifier.weight",
                                       .final_norm = "layernorm",
                                       .norm = DSC_NORM_LAYER,
                                       .config_bytes = sizeof(dsc_vision_config),
                                       .read_config = read_config,
                                       .emit_first = dsc_vision_emit_first,
                                       .emit_block = dsc_vision_emit_block,
                                       .emit_last = dsc_vision_emit_last,
                                       .lora_layers = lora_layers,
                                       .beside = beside };
