/* clip_vision.c - the vision tower of CLIP (Radford et al. 2021), whose class token is normed and, in training, goes
 * into a linear classifier. The tower is CLIPVisionModel of transformers, with its pooled output.
 * SPDX-License-Identifier: Apache-2.0 */
#include "models/dense.h"
#include "models/vision.h"

static const char *const dropouts[] = { "attention_dropout", NULL };

static const dsc_vision_traits traits = { .class_token = "embeddings.class_embedding",
                                          .positions = "embeddings.position_embedding.weight",
                                          .patches = "embeddings.patch_embedding",
                                          .flat = true,
                                          .embed_norm = "pre_layrnorm", /* as the files spell it */
                                          .norm1 = "layer_norm1",
                                          .qkv = { "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj" },
                                          .out = "self_attn.out_proj",
                                          .norm2 = "layer_norm2",
                                          .fc = "mlp.fc1",
                                          .proj = "mlp.fc2",
                                          .final_norm = "vision_model.post_layernorm",
                                          .patch = 32,
                                          .eps = 1e-5,
                                          .quick = true,
                                          .dropouts = dropouts };

/* PEFT has no entry for the family; its guides adapt these. */
static const char *const lora_layers[] = { "q_proj", "v_proj", NULL };

static const char *const beside[][2] = { { "embeddings.position_ids", NULL },
                                         { "visual_projection.", "projection" },
                                         { NULL, NULL } };

static dsc_status read_config(dsc_hf_config *reader, dsc_lm_config *lm)
{
    static const char *const others[] = { "projection_dim", "initializer_factor" };
    for (size_t i = 0; i < DSC_COUNT(others); i++)
        (void)dsc_hf_field(reader, others[i]);
    return dsc_vision_read_config(reader, &traits, lm);
}

const dsc_lm_family dsc_clip_vision_family = { .model_type = "clip_vision_model",
                                               .layers_key = "num_hidden_layers",
                                               .base = "vision_model.",
                                               .layer = "encoder.layers.",
                                               .token_table = "",
                                               .head_table = "classifier.weight",
                                               .final_norm = "post_layernorm",
                                               .norm = DSC_NORM_LAYER,
                                               .config_bytes = sizeof(dsc_vision_config),
                                               .read_config = read_config,
                                               .emit_first = dsc_vision_emit_first,
                                               .emit_block = dsc_vision_emit_block,
                                               .emit_last = dsc_vision_emit_last,
                                               .lora_layers = lora_layers,
                                               .beside = beside };
