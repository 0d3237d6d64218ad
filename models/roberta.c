/* roberta.c - RoBERTa (Liu et al. 2019) and the families of its block and names: XLM-RoBERTa and CamemBERT. The block
 * is BERT's. Positions count the tokens other than padding, from the row behind that of padding on.
 * SPDX-License-Identifier: Apache-2.0 */
#include "models/dense.h"

static const char *const lora_layers[] = { "query", "value", NULL };

static const char *const aliases[][2] = {
    { "LayerNorm.weight", "LayerNorm.gamma" },
    { "LayerNorm.bias", "LayerNorm.beta" },
    { "layer_norm.weight", "layer_norm.gamma" },
    { "layer_norm.bias", "layer_norm.beta" },
    { "lm_head.bias", "lm_head.decoder.bias" },
    { NULL, NULL },
};

static const char *const beside[][2] = {
    { "embeddings.position_ids", NULL },
    { "lm_head.decoder.bias", NULL },
    { "pooler.", "pooler" },
    { NULL, NULL },
};

static const char *const beside_labels[][2] = {
    { "embeddings.position_ids", NULL },
    { "lm_head.", "masked language model's head" },
    { "pooler.", "pooler" },
    { NULL, NULL },
};

#define ROBERTA_CLASSIFIER(class_name)                                                                                 \
    {                                                                                                                  \
        .class_prefix = (class_name), .transform = "classifier.dense", .table = "classifier.out_proj.weight",          \
        .bias = "classifier.out_proj.bias", .tanh = true, .beside = beside_labels                                      \
    }

#define TOKEN_CLASSIFIER(name)                                                                                         \
    {                                                                                                                  \
        .class_prefix = (name), .table = "classifier.weight", .bias = "classifier.bias", .beside = beside_labels       \
    }

static const dsc_lm_classifier roberta_classifier = ROBERTA_CLASSIFIER("Roberta");
static const dsc_lm_classifier xlm_classifier = ROBERTA_CLASSIFIER("XLMRoberta");
static const dsc_lm_classifier camembert_classifier = ROBERTA_CLASSIFIER("Camembert");

static const dsc_lm_classifier roberta_tokens = TOKEN_CLASSIFIER("Roberta");
static const dsc_lm_classifier xlm_tokens = TOKEN_CLASSIFIER("XLMRoberta");
static const dsc_lm_classifier camembert_tokens = TOKEN_CLASSIFIER("Camembert");

/* transformers counts places by the token of padding, so that there must be one. */
static dsc_status read_positions(dsc_hf_config *reader, dsc_lm_config *lm)
{
    DSC_TRY(dsc_lm_read_padding(reader, 1, lm));
    const cJSON *item = dsc_hf_field(reader, "pad_token_id");
    if (!lm->has_padding || (item != NULL && item->valuedouble < 0))
        return DSC_HF_REFUSE(reader, DSC_ERR_INPUT,
                             "\"pad_token_id\" must be a token, from whose row on positions are counted: a whole "
                             "number from 0");
    lm->places_skip_padding = true;
    lm->position_first = lm->padding + 1;
    if (lm->positions <= lm->position_first) {
        (void)dsc_hf_field(reader, "max_position_embeddings");
        return DSC_HF_REFUSE(reader, DSC_ERR_INPUT,
                             "\"max_position_embeddings\" is %lld; positions are counted behind row \"pad_token_id\" "
                             "%d: expected at least %lld",
                             (long long)lm->positions, (int)lm->padding, (long long)lm->position_first + 1);
    }
    lm->positions -= lm->position_first;
    return DSC_OK;
}

static dsc_status read_config(dsc_hf_config *reader, dsc_lm_config *lm, int64_t vocab)
{
    DSC_TRY(dsc_bert_read_common(reader, lm, vocab));
    lm->activation = DSC_GELU_ERF; /* the head's, whatever the blocks' is */
    return read_positions(reader, lm);
}

static dsc_status read_roberta(dsc_hf_config *reader, dsc_lm_config *lm)
{
    return read_config(reader, lm, 50265);
}

static dsc_status read_later(dsc_hf_config *reader, dsc_lm_config *lm)
{
    return read_config(reader, lm, 30522);
}

#define ROBERTA_FAMILY                                                                                                 \
    .layers_key = "num_hidden_layers", .base = "roberta.", .layer = "encoder.layer.",                                  \
    .token_table = "embeddings.word_embeddings.weight", .position_table = "embeddings.position_embeddings.weight",     \
    .segment_table = "embeddings.token_type_embeddings.weight", .embed_norm = "embeddings.LayerNorm",                  \
    .transform = "lm_head.dense", .final_norm = "lm_head.layer_norm", .head_table = "lm_head.decoder.weight",          \
    .head_bias = "lm_head.bias", .norm = DSC_NORM_LAYER, .config_bytes = sizeof(dsc_dense_config),                     \
    .emit_block = dsc_dense_emit_block, .lora_layers = lora_layers,                   \
    .aliases = aliases, .beside = beside

const dsc_lm_family dsc_roberta_family = { ROBERTA_FAMILY, .model_type = "roberta", .read_config = read_roberta,
                                           .classifier = &roberta_classifier, .token_classifier = &roberta_tokens };
const dsc_lm_family dsc_xlm_roberta_family = { ROBERTA_FAMILY, .model_type = "xlm-roberta", .read_config = read_later,
                                               .classifier = &xlm_classifier, .token_classifier = &xlm_tokens };
const dsc_lm_family dsc_camembert_family = { ROBERTA_FAMILY, .model_type = "camembert", .read_config = read_later,
                                             .classifier = &camembert_classifier,
                                             .token_classifier = &camembert_tokens };
