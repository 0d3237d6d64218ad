/* dense.h - blocks of layer norms, attention, and an MLP of two products: GPT-2, GPT-NeoX, OPT, BERT,
 * RoBERTa, DistilBERT, BLOOM, GPT-J, Falcon and MPT. Inside models/ only.
 *
 * Letters, beside lm.h's: H heads, D = C / H, I inner width of the MLP. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_MODELS_DENSE_H
#define DSC_MODELS_DENSE_H

#include "models/blocks.h"
#include "models/lm.h"
#include "models/rope.h"

/* Differences between the families. Names are those of a block's layers, as "attn.c_attn" in "transformer.h.3.". */
typedef struct dsc_dense_traits {
    /* qkv[1] and [2]: DSC_QKV_APART only. norm2 NULL: the MLP of a parallel block reads norm1. */
    const char *norm1, *qkv[3], *proj, *norm2, *fc, *out;
    dsc_qkv_kind kind;
    bool out_in; /* weights are stored [out,in] */
    bool rotary;
    bool scaled_init; /* addends of the residual stream start smaller by the number of additions: GPT-2 */
} dsc_dense_traits;

typedef struct dsc_dense_config {
    dsc_lm_config lm;
    const dsc_dense_traits *traits;
    int64_t heads, inner;
    int64_t kv_heads; /* 0: as many as heads */
    dsc_activation activation;
    bool attention_bias;           /* q, k, v and the projection have biases */
    bool bare_mlp;                 /* the MLP has none */
    bool parallel;                 /* x + attention(norm1(x)) + mlp(norm2(x)), else one after the other */
    bool post_norm;                /* m = norm1(x + attention(x)), then norm2(m + mlp(m)); not with parallel */
    bool scale_attention;          /* scores times 1 / sqrt(D) */
    bool scale_attention_by_layer; /* and times 1 / (layer + 1) */
    double scale;                  /* factor of scores; 0: by the two above */
    double alibi, alibi_of_key;    /* as in dsc_op_attention */
    dsc_rope rope;                 /* rotary */
} dsc_dense_config;

extern const dsc_lm_family dsc_gpt2_family, dsc_neox_family, dsc_opt_family, dsc_bert_family;
extern const dsc_lm_family dsc_bloom_family, dsc_gptj_family, dsc_falcon_family, dsc_mpt_family;
extern const dsc_lm_family dsc_roberta_family, dsc_xlm_roberta_family, dsc_camembert_family, dsc_distilbert_family,
    dsc_modernbert_family;
extern const dsc_dense_traits dsc_gpt2_traits, dsc_neox_traits, dsc_opt_traits, dsc_bert_traits;

/* The parts of the families' tables. dense.c, and a _config.c and _sizes.c for a family */
void dsc_dense_emit_block(dsc_program *program, const dsc_lm_config *config, int64_t layer);
dsc_status dsc_gpt2_read_config(dsc_hf_config *reader, dsc_lm_config *out);
int dsc_gpt2_write_config(const dsc_lm_config *config, char *out, size_t bytes);
const char *dsc_gpt2_builtin(const void *traits, int32_t index, dsc_lm_config *out);
dsc_status dsc_neox_read_config(dsc_hf_config *reader, dsc_lm_config *out);
dsc_status dsc_opt_read_config(dsc_hf_config *reader, dsc_lm_config *out);
dsc_status dsc_bert_read_config(dsc_hf_config *reader, dsc_lm_config *out);
/* All keys that BERT and RoBERTa have in common, which are all but that of padding; `vocab` without vocab_size. */
dsc_status dsc_bert_read_common(dsc_hf_config *reader, dsc_lm_config *out, int64_t vocab);
/* C must be a multiple of the heads; keys are the family's names of both, for the message. */
DSC_MUST_USE dsc_status dsc_dense_check_heads(dsc_hf_config *reader, const dsc_dense_config *config,
                                              const char *channels_key, const char *heads_key);

/* By Hugging Face's names; `fallback` without the key. */
DSC_MUST_USE dsc_status dsc_dense_read_activation(dsc_hf_config *reader, const char *key, dsc_activation fallback,
                                                  dsc_activation *out);
const char *dsc_dense_activation_name(dsc_activation activation);
/* Shares of dropout that a config.json has, which are not done: said when one is above 0. keys[0 .. count - 1]. */
DSC_MUST_USE dsc_status dsc_dense_read_dropout(dsc_hf_config *reader, const char *const *keys, int32_t count,
                                               double fallback);

#endif
