/* moe.h - families of Llama's block whose MLP is a mixture of experts. Inside models/ only.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_MODELS_MOE_H
#define DSC_MODELS_MOE_H

#include "models/decoder.h"
#include "models/mla.h"

/* Names and keys that differ between the families. */
typedef struct dsc_moe_traits {
    dsc_decoder_traits decoder;
    const char *router;                /* "mlp.gate" */
    const char *gate, *up, *down;      /* "mlp.experts.*.gate_proj" */
    const char *inner_key;             /* width of an expert; NULL: read_more reads all keys of experts */
    int64_t experts, top_k, moe_inner; /* without their keys */
    int32_t padding;                   /* likewise; -1: none */
    double balance;                    /* factor of the balance loss, without its key; 0: 0.001 */
    bool renormalized;                 /* always, else by norm_topk_prob */
    bool some_dense;                   /* decoder_sparse_step and mlp_only_layers are keys */
    bool shared;                       /* one more expert that every token goes to, by a sigmoid */
    const char *whole[3];              /* gate, up and down of one that every token goes to whole; NULL: none */
    const char *bias;                  /* of the module with "e_score_correction_bias", for the choice; NULL: none */
    bool bias_row;                     /* which is [1,experts], else [experts] */
    bool f32_logits;                   /* transformers makes the router's logits in fp32 in any dtype */
    int64_t shared_inner;              /* its width without the key; 0: 5632 */
    bool renormalized_default;         /* without norm_topk_prob */
} dsc_moe_traits;

typedef struct dsc_moe_config {
    dsc_decoder_config decoder; /* whose `inner` is that of dense layers */
    const dsc_moe_traits *traits;
    dsc_moe_rule rule;
    int64_t inner, shared_inner;
    dsc_mla mla;                   /* kv_latent 0: the attention is the decoder's */
    bool dense[DSC_LM_LAYERS_MAX]; /* layers with an MLP of their own */
} dsc_moe_config;

/* mixtral.c; ernie_moe.c, hunyuan.c, gpt_oss.c; deepseek.c */
extern const dsc_lm_family dsc_mixtral_family, dsc_olmoe_family, dsc_qwen2_moe_family, dsc_qwen3_moe_family;
extern const dsc_lm_family dsc_ernie4_5_moe_family, dsc_hunyuan_moe_family, dsc_gpt_oss_family;
extern const dsc_lm_family dsc_deepseek_v2_family, dsc_deepseek_v3_family, dsc_kimi_k2_family, dsc_glm4_moe_family;

/* moe.c: the mixture of experts of a block; that or a dense layer's MLP; and the whole block. */
int16_t dsc_moe_feed(const dsc_block *block, const dsc_moe_config *config, int16_t x);
int16_t dsc_moe_feed_layer(const dsc_block *block, const dsc_lm_config *base, int64_t layer, int16_t x);
void dsc_moe_emit_block(dsc_program *program, const dsc_lm_config *base, int64_t layer);
/* The products of experts that Mixtral's followers have, with the tensors of all experts. */
#define DSC_MOE_EXPERT_NAMES                                                                                           \
    .gate = "mlp.experts.*.gate_proj", .up = "mlp.experts.*.up_proj", .down = "mlp.experts.*.down_proj"
#define DSC_MOE_WHOLE_NAMES(name) { name ".gate_proj", name ".up_proj", name ".down_proj" }
extern const dsc_lm_stacked dsc_moe_stacked[];

/* mla_config.c: keys of attention by latents. */
DSC_MUST_USE dsc_status dsc_mla_read(dsc_hf_config *reader, dsc_decoder_config *config, dsc_mla *mla);

/* moe_config.c: config.json by the reader's traits. */
DSC_MUST_USE dsc_status dsc_moe_read(dsc_hf_config *reader, dsc_lm_config *out);
/* A choice by softmax whose weights' sum becomes 1; `key` is that of `slots`, for the message. */
DSC_MUST_USE dsc_status dsc_moe_set_rule(dsc_hf_config *reader, dsc_moe_config *out, const char *key, int64_t experts,
                                         int64_t slots);

/* Members that the tables of these families have in common. */
#define DSC_MOE_FAMILY(type, table)                                                                                    \
    DSC_DECODER_FAMILY(type, table, dsc_moe_config, "norm"), .norm = DSC_NORM_RMS, .read_config = dsc_moe_read,        \
        .emit_block = dsc_moe_emit_block, .stacked = dsc_moe_stacked

#endif
