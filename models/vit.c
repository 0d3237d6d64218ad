/* vit.c - the vision transformer (Dosovitskiy et al. 2021) with a linear classifier on its class token:
 * ViTForImageClassification of transformers. SPDX-License-Identifier: Apache-2.0 */
#include "models/vision.h"

/* Keys of the pooler and of masked picture modeling, which a classifier does not need. */
static const char *const others[] = { "encoder_stride", "pooler_act", "pooler_output_size", NULL };

static const dsc_vision_traits traits = {
    .class_token = "embeddings.cls_token", .positions = "embeddings.position_embeddings",
    .patches = "embeddings.patch_embeddings.projection", .patch_bias = true,
    .block = { .norm1 = "layernorm_before",
               .qkv = { "attention.attention.query", "attention.attention.key", "attention.attention.value" },
               .proj = "attention.output.dense", .norm2 = "layernorm_after", .fc = "intermediate.dense",
               .out = "output.dense", .kind = DSC_QKV_APART, .out_in = true, .out_bias = true },
    .final_norm = "vit.layernorm", .patch = 16, .eps = 1e-12, .bias_key = "qkv_bias",
    .dropouts = { "hidden_dropout_prob", "attention_probs_dropout_prob" }, .without_effect = others
};

/* PEFT has no entry for the family; its guides adapt these. */
static const char *const lora_layers[] = { "query", "value", NULL };

static const char *const beside[][2] = {
    { "pooler.", "pooler" }, { "embeddings.mask_token", "mask token" }, { NULL, NULL }
};

const dsc_lm_family dsc_vit_family = { DSC_VISION_FAMILY("vit", traits), .base = "vit.", .layer = "encoder.layer.",
                                       .final_norm = "layernorm", .lora_layers = lora_layers, .beside = beside };
