/* bert.c - BERT (Devlin et al. 2019) with its masked language model's head: its names, and its config.json as Hugging
 * Face writes it. SPDX-License-Identifier: Apache-2.0 */
#include "models/dense.h"

const dsc_dense_traits dsc_bert_traits = {
    .norm1 = "attention.output.LayerNorm",
    .qkv = { "attention.self.query", "attention.self.key", "attention.self.value" },
    .proj = "attention.output.dense", .norm2 = "output.LayerNorm", .fc = "intermediate.dense", .out = "output.dense",
    .kind = DSC_QKV_APART, .out_in = true
};

const char *const dsc_bert_lora_layers[] = { "query", "value", NULL };

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

static const dsc_lm_classifier classifier = { .transform = "bert.pooler.dense",
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
    .table = "classifier.weight", .bias = "classifier.bias", .beside = beside_tokens
};

static const dsc_lm_classifier embedder = { .beside = beside_tokens };

/* Keys whose other value is another model are refused. */
dsc_status dsc_bert_read_more(dsc_hf_config *reader, dsc_dense_config *out)
{
    dsc_lm_config *lm = &out->lm;
    bool decoder = false;
    out->scale_attention = out->attention_bias = out->post_norm = lm->masked = true;
    lm->activation = out->activation;
    DSC_TRY(dsc_hf_int(reader, "type_vocab_size", DSC_LM_VOCAB_MAX, 2, &lm->segments));
    DSC_TRY(dsc_hf_only_word(reader, "position_embedding_type", "absolute"));
    DSC_TRY(dsc_hf_bool(reader, "is_decoder", false, &decoder));
    if (decoder)
        return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED, "\"is_decoder\": true is not built; what exists: false, a "
                             "masked language model");
    (void)dsc_hf_field(reader, "tie_word_embeddings");
    if (!lm->tied)
        return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED,
                             "\"tie_word_embeddings\": false is not built for bert and roberta; what exists: true");
    return DSC_OK;
}

static dsc_status read_more(dsc_hf_config *reader, dsc_dense_config *out)
{
    DSC_TRY(dsc_bert_read_more(reader, out));
    return dsc_lm_read_padding(reader, 0, &out->lm);
}

static const dsc_dense_keys keys = { DSC_BERT_KEYS(30522, read_more) };

const dsc_lm_family dsc_bert_family = {
    DSC_BERT_FAMILY("bert", keys), .base = "bert.", .transform = "cls.predictions.transform.dense",
    .final_norm = "cls.predictions.transform.LayerNorm", .head_table = "cls.predictions.decoder.weight",
    .head_bias = "cls.predictions.bias", .aliases = aliases, .beside = beside, .class_prefix = "Bert",
    .classifier = &classifier, .token_classifier = &token_classifier, .embedder = &embedder
};
