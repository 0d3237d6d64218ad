/* dense.h - blocks of layer norms, attention, and an MLP of two products: GPT-2, GPT-NeoX, OPT, BERT,
 * RoBERTa, DistilBERT, ModernBERT, BLOOM, GPT-J, Falcon, MPT, ViT and CLIP. Inside models/ only.
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
    const char *scales[2]; /* factors of the columns of the attention's output, and of the MLP's; NULL: none */
    dsc_qkv_kind kind;
    bool out_in; /* weights are stored [out,in] */
    bool out_bias; /* the projection has a bias also where q, k and v have none */
    bool rotary;
    bool two_ropes;   /* layers with a window have rotary positions of their own */
    bool bare_first;  /* the first layer has no norm1 */
    bool gate_in_up;  /* `fc` has the outputs of a gate too */
    bool fc_is_two;   /* which is another layer in transformers' model, so that `fc` has no adapter */
    bool scaled_init; /* addends of the residual stream start smaller by the number of additions: GPT-2, ModernBERT */
} dsc_dense_traits;

/* A size in config.json under one or several names, of which the last one that is there holds. */
typedef struct dsc_dense_size {
    const char *key[3];
    int64_t usual; /* without any */
    uint32_t null; /* bit i: key[i] may be null, which is as no key */
} dsc_dense_size;

typedef struct dsc_dense_config dsc_dense_config;

/* Keys of a family's config.json, and values without them. */
typedef struct dsc_dense_keys {
    const dsc_dense_traits *block; /* NULL: read_more chooses them */
    int64_t vocab;
    /* Without names: max_position_embeddings, num_hidden_layers, hidden_size, intermediate_size (without a usual one
     * 4 C) and num_attention_heads. */
    dsc_dense_size positions, layers, channels, inner, heads;
    bool fixed_inner; /* I = 4 C, which no key says */
    int64_t head_max; /* the largest D; 0: any */
    const char *eps;  /* NULL: no key */
    double eps_usual;
    const char *std; /* NULL: initializer_range */
    bool tied;
    const char *activation; /* NULL: no key */
    dsc_activation activation_usual;
    const char *dropouts[3];
    double dropout_usual;
    dsc_status (*read_more)(dsc_hf_config *reader, dsc_dense_config *out);
} dsc_dense_keys;

struct dsc_dense_config {
    dsc_lm_config lm;
    const dsc_dense_traits *traits;
    int64_t heads, inner;
    int64_t kv_heads; /* 0: as many as heads */
    dsc_activation activation;
    double activation_scale;       /* activation(s x) / s; 0: 1 */
    bool attention_bias;           /* q, k, v and the projection have biases */
    bool bare_mlp;                 /* the MLP has none */
    bool parallel;                 /* x + attention(norm1(x)) + mlp(norm2(x)), else one after the other */
    bool post_norm;                /* m = norm1(x + attention(x)), then norm2(m + mlp(m)); not with parallel */
    bool scale_attention;          /* scores times 1 / sqrt(D) */
    bool scale_attention_by_layer; /* and times 1 / (layer + 1) */
    double scale;                  /* factor of scores; 0: by the two above */
    double alibi, alibi_of_key;    /* as in dsc_op_attention */
    dsc_rope rope, sliding_rope;   /* rotary */
};

extern const dsc_lm_family dsc_gpt2_family, dsc_neox_family, dsc_opt_family, dsc_bert_family;
extern const dsc_lm_family dsc_bloom_family, dsc_gptj_family, dsc_falcon_family, dsc_mpt_family;
extern const dsc_lm_family dsc_roberta_family, dsc_xlm_roberta_family, dsc_camembert_family, dsc_distilbert_family,
    dsc_modernbert_family;
extern const dsc_dense_traits dsc_gpt2_traits, dsc_bert_traits;

void dsc_dense_emit_block(dsc_program *program, const dsc_lm_config *config, int64_t layer);
const char *dsc_gpt2_builtin(const void *traits, int32_t index, dsc_lm_config *out); /* gpt2_sizes.c */

/* dense_config.c: config.json by the reader's traits, a dsc_dense_keys. */
DSC_MUST_USE dsc_status dsc_dense_read(dsc_hf_config *reader, dsc_lm_config *out);
/* Rotary positions of whole heads, or of the share that the key `partial` says. */
DSC_MUST_USE dsc_status dsc_dense_read_rope(dsc_hf_config *reader, dsc_dense_config *out, const char *theta,
                                            const char *partial, double share);
/* By Hugging Face's names; `fallback` without the key. */
DSC_MUST_USE dsc_status dsc_dense_read_activation(dsc_hf_config *reader, const char *key, dsc_activation fallback,
                                                  dsc_activation *out);
const char *dsc_dense_activation_name(dsc_activation activation);
/* Shares of dropout that a config.json has, which are not done: said when one is above 0. keys[0 .. count - 1]. */
DSC_MUST_USE dsc_status dsc_dense_read_dropout(dsc_hf_config *reader, const char *const *keys, int32_t count,
                                               double fallback);

/* Members that the tables of all these families have in common. */
#define DSC_DENSE_FAMILY(type, keys)                                                                                   \
    .model_type = (type), .traits = &(keys), .norm = DSC_NORM_LAYER, .config_bytes = sizeof(dsc_dense_config),         \
    .read_config = dsc_dense_read, .emit_block = dsc_dense_emit_block

/* bert.c: parts of BERT that RoBERTa's families have too. */
extern const char *const dsc_bert_lora_layers[];
DSC_MUST_USE dsc_status dsc_bert_read_more(dsc_hf_config *reader, dsc_dense_config *out);
#define DSC_BERT_KEYS(tokens, more)                                                                                    \
    .block = &dsc_bert_traits, .vocab = (tokens), .positions = { .usual = 512 }, .layers = { .usual = 12 },            \
    .channels = { .usual = 768 }, .inner = { .usual = 3072 }, .heads = { .usual = 12 }, .eps = "layer_norm_eps",       \
    .eps_usual = 1e-12, .tied = true, .activation = "hidden_act", .activation_usual = DSC_GELU_ERF,                    \
    .dropouts = { "hidden_dropout_prob", "attention_probs_dropout_prob" }, .dropout_usual = 0.1, .read_more = (more)
#define DSC_BERT_FAMILY(type, keys)                                                                                    \
    DSC_DENSE_FAMILY(type, keys), .layers_key = "num_hidden_layers", .layer = "encoder.layer.",                        \
        .token_table = "embeddings.word_embeddings.weight",                                                            \
        .position_table = "embeddings.position_embeddings.weight",                                                     \
        .segment_table = "embeddings.token_type_embeddings.weight", .embed_norm = "embeddings.LayerNorm",              \
        .lora_layers = dsc_bert_lora_layers

#endif
