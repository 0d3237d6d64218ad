/* clip_vision.c - the vision tower of CLIP (Radford et al. 2021), whose class token is normed and, in training, goes
 * into a linear classifier. The tower is CLIPVisionModel of transformers, with its pooled output.
 * SPDX-License-Identifier: Apache-2.0 */
#include "models/vision.h"

static const char *const others[] = { "projection_dim", "initializer_factor", NULL };

static const dsc_vision_traits traits = {
    .class_token = "embeddings.class_embedding", .positions = "embeddings.position_embedding.weight",
    .patches = "embeddings.patch_embedding", .flat = true, .embed_norm = "pre_layrnorm", /* as the files spell it */
    .block = { .norm1 = "layer_norm1", .qkv = { "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj" },
               .proj = "self_attn.out_proj", .norm2 = "layer_norm2", .fc = "mlp.fc1", .out = "mlp.fc2",
               .kind = DSC_QKV_APART, .out_in = true, .out_bias = true },
    .final_norm = "vision_model.post_layernorm", .patch = 32, .eps = 1e-5, .quick = true,
    .dropouts = { "attention_dropout" }, .without_effect = others
};

/* PEFT has no entry for the family; its guides adapt these. */
static const char *const lora_layers[] = { "q_proj", "v_proj", NULL };

static const char *const beside[][2] = {
    { "embeddings.position_ids", NULL }, { "visual_projection.", "projection" }, { NULL, NULL }
};

const dsc_lm_family dsc_clip_vision_family = { DSC_VISION_FAMILY("clip_vision_model", traits),
                                               .base = "vision_model.", .layer = "encoder.layers.",
                                               .final_norm = "post_layernorm", .lora_layers = lora_layers,
                                               .beside = beside };
