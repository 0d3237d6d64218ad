/* roberta.c - RoBERTa (Liu et al. 2019) and the families of its block and names: XLM-RoBERTa and CamemBERT. The block
 * is BERT's. Positions count the tokens other than padding, from the row behind that of padding on.
 * SPDX-License-Identifier: Apache-2.0 */
#include "models/dense.h"

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

static const dsc_lm_classifier classifier = {
    .transform = "classifier.dense", .table = "classifier.out_proj.weight", .bias = "classifier.out_proj.bias",
    .tanh = true, .beside = beside_labels
};
static const dsc_lm_classifier token_classifier = {
    .table = "classifier.weight", .bias = "classifier.bias", .beside = beside_labels
};

static const dsc_lm_classifier embedder = { .beside = beside_labels };

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

static dsc_status read_more(dsc_hf_config *reader, dsc_dense_config *out)
{
    DSC_TRY(dsc_bert_read_more(reader, out));
    out->lm.activation = DSC_GELU_ERF; /* the head's, whatever the blocks' is */
    return read_positions(reader, &out->lm);
}

static const dsc_dense_keys roberta_keys = { DSC_BERT_KEYS(50265, read_more) };
static const dsc_dense_keys later_keys = { DSC_BERT_KEYS(30522, read_more) };

#define ROBERTA_FAMILY(type, keys, prefix)                                                                             \
    DSC_BERT_FAMILY(type, keys), .base = "roberta.", .transform = "lm_head.dense", .final_norm = "lm_head.layer_norm", \
        .head_table = "lm_head.decoder.weight", .head_bias = "lm_head.bias", .aliases = aliases, .beside = beside,     \
        .class_prefix = (prefix), .classifier = &classifier, .token_classifier = &token_classifier,                    \
        .embedder = &embedder

const dsc_lm_family dsc_roberta_family = { ROBERTA_FAMILY("roberta", roberta_keys, "Roberta") };
const dsc_lm_family dsc_xlm_roberta_family = { ROBERTA_FAMILY("xlm-roberta", later_keys, "XLMRoberta") };
const dsc_lm_family dsc_camembert_family = { ROBERTA_FAMILY("camembert", later_keys, "Camembert") };
