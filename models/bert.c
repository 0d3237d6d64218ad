/* bert.c - BERT (Devlin et al. 2019) with its masked language model's head: its names, and its config.json as Hugging
 * Face writes it. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "models/dense.h"

const dsc_dense_traits dsc_bert_traits = {
    .norm1 = "attention.output.LayerNorm",
    .qkv = { "attention.self.query", "attention.self.key", "attention.self.value" },
    .proj = "attention.output.dense", .norm2 = "output.LayerNorm", .fc = "intermediate.dense", .out = "output.dense",
    .kind = DSC_QKV_APART, .out_in = true
};

static const char *const lora_layers[] = { "query", "value", NULL };

/* Files of the first versions, and of Google's own, have the latter. */
static const char *const aliases[][2] = {
    { "LayerNorm.weight", "LayerNorm.gamma" }, { "LayerNorm.bias", "LayerNorm.beta" },
    { "cls.predictions.bias", "cls.predictions.decoder.bias" }, { NULL, NULL },
};

static const char *const beside[][2] = {
    { "embeddings.position_ids", NULL }, { "cls.predictions.decoder.bias", NULL }, { "pooler.", "pooler" },
    { "cls.seq_relationship.", "next-sentence head" }, { NULL, NULL },
};

static const char *const beside_labels[][2] = {
    { "embeddings.position_ids", NULL },
    { "cls.", "masked language model's head" },
    { NULL, NULL },
};

static const dsc_lm_classifier classifier = { .class_prefix = "Bert",
                                              .transform = "bert.pooler.dense",
                                              .table = "classifier.weight",
                                              .bias = "classifier.bias",
                                              .tanh = true,
                                              .beside = beside_labels };

static const char *const beside_tokens[][2] = {
    { "embeddings.position_ids", NULL },
    { "cls.", "masked language model's head" },
    { "pooler.", "pooler" },
    { NULL, NULL },
};

static const dsc_lm_classifier token_classifier = {
    .class_prefix = "Bert", .table = "classifier.weight", .bias = "classifier.bias", .beside = beside_tokens
};

const dsc_lm_family dsc_bert_family = { .model_type = "bert",
                                        .layers_key = "num_hidden_layers",
                                        .base = "bert.",
                                        .layer = "encoder.layer.",
                                        .token_table = "embeddings.word_embeddings.weight",
                                        .position_table = "embeddings.position_embeddings.weight",
                                        .segment_table = "embeddings.token_type_embeddings.weight",
                                        .embed_norm = "embeddings.LayerNorm",
                                        .transform = "cls.predictions.transform.dense",
                                        .final_norm = "cls.predictions.transform.LayerNorm",
                                        .head_table = "cls.predictions.decoder.weight",
                                        .head_bias = "cls.predictions.bias",
                                        .norm = DSC_NORM_LAYER,
                                        .config_bytes = sizeof(dsc_dense_config),
                                        .read_config = dsc_bert_read_config,
                                        .emit_block = dsc_dense_emit_block,
                                        .lora_layers = lora_layers,
                                        .aliases = aliases,
                                        .beside = beside,
                                        .classifier = &classifier,
                                        .token_classifier = &token_classifier };

/* Keys whose other value is another model. */
static dsc_status refuse_variants(dsc_hf_config *reader, dsc_lm_config *lm)
{
    static const char *const kinds[] = { "absolute" };
    int32_t kind = 0;
    bool decoder = false;
    DSC_TRY(dsc_hf_choice(reader, "position_embedding_type", kinds, DSC_COUNT(kinds), &kind));
    DSC_TRY(dsc_hf_bool(reader, "is_decoder", false, &decoder));
    if (decoder)
        return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED, "\"is_decoder\": true is not built; what exists: false, a "
                             "masked language model");
    DSC_TRY(dsc_hf_bool(reader, "tie_word_embeddings", true, &lm->tied));
    if (!lm->tied)
        return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED,
                             "\"tie_word_embeddings\": false is not built for bert and roberta; what exists: true");
    return DSC_OK;
}

dsc_status dsc_bert_read_common(dsc_hf_config *reader, dsc_lm_config *lm, int64_t vocab)
{
    static const char *const dropouts[] = { "hidden_dropout_prob", "attention_probs_dropout_prob" };
    dsc_dense_config *out = (dsc_dense_config *)(void *)lm;
    out->traits = &dsc_bert_traits;
    out->scale_attention = out->attention_bias = out->post_norm = lm->masked = true;
    DSC_TRY(dsc_hf_int(reader, "vocab_size", DSC_LM_VOCAB_MAX, vocab, &lm->vocab));
    DSC_TRY(dsc_hf_int(reader, "max_position_embeddings", DSC_LM_POSITIONS_MAX, 512, &lm->positions));
    DSC_TRY(dsc_hf_int(reader, "num_hidden_layers", DSC_LM_LAYERS_MAX, 12, &lm->layers));
    DSC_TRY(dsc_hf_int(reader, "hidden_size", DSC_LM_CHANNELS_MAX, 768, &lm->channels));
    DSC_TRY(dsc_hf_int(reader, "intermediate_size", DSC_LM_INNER_MAX, 3072, &out->inner));
    DSC_TRY(dsc_hf_int(reader, "num_attention_heads", DSC_LM_CHANNELS_MAX, 12, &out->heads));
    DSC_TRY(dsc_hf_int(reader, "type_vocab_size", DSC_LM_VOCAB_MAX, 2, &lm->segments));
    DSC_TRY(dsc_dense_check_heads(reader, out, "hidden_size", "num_attention_heads"));
    DSC_TRY(refuse_variants(reader, lm));
    DSC_TRY(dsc_hf_number(reader, "layer_norm_eps", (dsc_hf_range){ 1e-30, 1 }, 1e-12, &lm->norm_eps));
    DSC_TRY(dsc_hf_number(reader, "initializer_range", (dsc_hf_range){ 0, 1000 }, 0.02, &lm->init_std));
    DSC_TRY(dsc_dense_read_activation(reader, "hidden_act", DSC_GELU_ERF, &out->activation));
    lm->activation = out->activation;
    return dsc_dense_read_dropout(reader, dropouts, DSC_COUNT(dropouts), 0.1);
}

dsc_status dsc_bert_read_config(dsc_hf_config *reader, dsc_lm_config *lm)
{
    DSC_TRY(dsc_bert_read_common(reader, lm, 30522));
    return dsc_lm_read_padding(reader, 0, lm);
}
