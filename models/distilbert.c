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

static const dsc_lm_classifier classifier = { .transform = "pre_classifier",
                                              .table = "classifier.weight",
                                              .bias = "classifier.bias",
                                              .relu = true,
                                              .beside = beside_labels };

static const dsc_lm_classifier token_classifier = {
    .table = "classifier.weight", .bias = "classifier.bias", .beside = beside_labels
};

static const dsc_lm_classifier embedder = { .beside = beside_labels };

static dsc_status read_more(dsc_hf_config *reader, dsc_dense_config *out)
{
    bool sinusoidal = false;
    out->scale_attention = out->attention_bias = out->post_norm = out->lm.masked = true;
    out->lm.activation = out->activation;
    DSC_TRY(dsc_lm_read_padding(reader, 0, &out->lm));
    DSC_TRY(dsc_hf_bool(reader, "sinusoidal_pos_embds", false, &sinusoidal));
    if (sinusoidal)
        dsc_hf_warn(reader->warnings, reader->warnings_bytes,
                    "\"sinusoidal_pos_embds\": positions are those of the folder's files, and are trained; without "
                    "files they begin at random");
    return DSC_OK;
}

static const dsc_dense_keys keys = {
    .block = &traits, .vocab = 30522, .positions = { .usual = 512 },
    .layers = { .key = { "n_layers", "num_hidden_layers" }, .usual = 6 },
    .channels = { .key = { "dim", "hidden_size" }, .usual = 768 }, .inner = { .key = { "hidden_dim" }, .usual = 3072 },
    .heads = { .key = { "n_heads", "num_attention_heads" }, .usual = 12 },
    .eps_usual = 1e-12, .tied = true, .activation = "activation", .activation_usual = DSC_GELU_ERF,
    .dropouts = { "dropout", "attention_dropout" }, .dropout_usual = 0.1, .read_more = read_more
};

const dsc_lm_family dsc_distilbert_family = {
    DSC_DENSE_FAMILY("distilbert", keys), .layers_key = "n_layers", .base = "distilbert.",
    .layer = "transformer.layer.", .token_table = "embeddings.word_embeddings.weight",
    .position_table = "embeddings.position_embeddings.weight", .embed_norm = "embeddings.LayerNorm",
    .transform = "vocab_transform", .final_norm = "vocab_layer_norm", .head_table = "vocab_projector.weight",
    .head_bias = "vocab_projector.bias", .lora_layers = lora_layers, .beside = beside,
    .class_prefix = "DistilBert", .classifier = &classifier, .token_classifier = &token_classifier,
    .embedder = &embedder
};
