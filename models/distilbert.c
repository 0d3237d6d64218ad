/* distilbert.c - DistilBERT (Sanh et al. 2019): BERT's block and masked language model's head under names of its own,
 * without types of tokens. SPDX-License-Identifier: Apache-2.0 */
#include "models/dense.h"

static const dsc_dense_traits traits = { .norm1 = "sa_layer_norm",
                                         .qkv = { "attention.q_lin", "attention.k_lin", "attention.v_lin" },
                                         .proj = "attention.out_lin",
                                         .norm2 = "output_layer_norm",
                                         .fc = "ffn.lin1",
                                         .out = "ffn.lin2",
                                         .kind = DSC_QKV_APART,
                                         .out_in = true };

/* PEFT has no entry for the family; these are the layers that it takes in BERT. */
static const char *const lora_layers[] = { "q_lin", "v_lin", NULL };

static const char *const beside[][2] = { { "embeddings.position_ids", NULL }, { NULL, NULL } };

static const char *const beside_labels[][2] = { { "embeddings.position_ids", NULL },
                                                { "vocab_", "masked language model's head" },
                                                { NULL, NULL } };

static const dsc_lm_classifier classifier = { .class_prefix = "DistilBert",
                                              .transform = "pre_classifier",
                                              .table = "classifier.weight",
                                              .bias = "classifier.bias",
                                              .relu = true,
                                              .beside = beside_labels };

static const dsc_lm_classifier token_classifier = {
    .class_prefix = "DistilBert", .table = "classifier.weight", .bias = "classifier.bias", .beside = beside_labels
};

static dsc_status read_config(dsc_hf_config *reader, dsc_lm_config *lm)
{
    static const char *const dropouts[] = { "dropout", "attention_dropout" };
    dsc_dense_config *out = (dsc_dense_config *)(void *)lm;
    bool sinusoidal = false;
    out->traits = &traits;
    out->scale_attention = out->attention_bias = out->post_norm = lm->masked = true;
    lm->norm_eps = 1e-12;
    DSC_TRY(dsc_hf_int(reader, "vocab_size", DSC_LM_VOCAB_MAX, 30522, &lm->vocab));
    DSC_TRY(dsc_hf_int(reader, "max_position_embeddings", DSC_LM_POSITIONS_MAX, 512, &lm->positions));
    DSC_TRY(dsc_hf_int(reader, "n_layers", DSC_LM_LAYERS_MAX, 6, &lm->layers));
    DSC_TRY(dsc_hf_int(reader, "dim", DSC_LM_CHANNELS_MAX, 768, &lm->channels));
    DSC_TRY(dsc_hf_int(reader, "hidden_dim", DSC_LM_INNER_MAX, 3072, &out->inner));
    DSC_TRY(dsc_hf_int(reader, "n_heads", DSC_LM_CHANNELS_MAX, 12, &out->heads));
    DSC_TRY(dsc_dense_check_heads(reader, out, "dim", "n_heads"));
    DSC_TRY(dsc_hf_bool(reader, "tie_word_embeddings", true, &lm->tied));
    DSC_TRY(dsc_lm_read_padding(reader, 0, lm));
    DSC_TRY(dsc_hf_number(reader, "initializer_range", (dsc_hf_range) { 0, 1000 }, 0.02, &lm->init_std));
    DSC_TRY(dsc_dense_read_activation(reader, "activation", DSC_GELU_ERF, &out->activation));
    lm->activation = out->activation;
    DSC_TRY(dsc_hf_bool(reader, "sinusoidal_pos_embds", false, &sinusoidal));
    if (sinusoidal)
        dsc_hf_warn(reader->warnings, reader->warnings_bytes,
                    "\"sinusoidal_pos_embds\": positions are those of the folder's files, and are trained; without "
                    "files they begin at random");
    return dsc_dense_read_dropout(reader, dropouts, DSC_COUNT(dropouts), 0.1);
}

const dsc_lm_family dsc_distilbert_family = { .model_type = "distilbert",
                                              .layers_key = "n_layers",
                                              .base = "distilbert.",
                                              .layer = "transformer.layer.",
                                              .token_table = "embeddings.word_embeddings.weight",
                                              .position_table = "embeddings.position_embeddings.weight",
                                              .embed_norm = "embeddings.LayerNorm",
                                              .transform = "vocab_transform",
                                              .final_norm = "vocab_layer_norm",
                                              .head_table = "vocab_projector.weight",
                                              .head_bias = "vocab_projector.bias",
                                              .norm = DSC_NORM_LAYER,
                                              .config_bytes = sizeof(dsc_dense_config),
                                              .read_config = read_config,
                                              .emit_block = dsc_dense_emit_block,
                                              .lora_layers = lora_layers,
                                              .beside = beside,
                                              .classifier = &classifier,
                                              .token_classifier = &token_classifier };
