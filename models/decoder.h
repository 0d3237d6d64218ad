/* decoder.h - decoders with rotary positions: Llama, Mistral, Qwen, Phi-3, OLMo, Gemma and others.
 *
 * A family's file has its traits (names and defaults in config.json), what it reads beyond them, and its block as parts
 * of blocks.h. config.json is read here for all of them. Inside models/ only.
 * Letters, beside lm.h's: H query heads, K key and value heads (H a multiple of K), D size of a head, I inner width of
 * the MLP. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_MODELS_DECODER_H
#define DSC_MODELS_DECODER_H

#include "models/blocks.h"
#include "models/lm.h"
#include "models/rope.h"

#define DSC_DECODER_HEAD_MAX (2 * DSC_ROPE_PAIRS_MAX)
enum { DSC_DECODER_ROPES = 2 }; /* with rope_layers: of layers without a window, and of those with one */

/* sliding_window: no key; a key for every layer; a key beside a switch. */
#define DSC_WINDOW_OFF (-1)
typedef enum dsc_window_key { DSC_WINDOW_NONE, DSC_WINDOW_ALL, DSC_WINDOW_IF_USED } dsc_window_key;

typedef struct dsc_decoder_config dsc_decoder_config;

/* Parts of a config.json that differ between families. Defaults are those of Hugging Face's classes. */
typedef struct dsc_decoder_traits {
    const char *architecture; /* "LlamaForCausalLM"; NULL: no config.json is written */
    const dsc_lm_family *family;
    int64_t vocab, inner, positions;
    int64_t layers, channels, heads; /* 0: 32, 4096, 32 */
    int64_t kv_heads;                /* without num_key_value_heads; 0: as many as query heads */
    int64_t head_size;               /* without head_dim; 0: C / H */
    bool has_head_size;              /* head_dim is a key */
    const char *head_size_key;       /* another key of head_size; NULL: head_dim */
    bool qkv_bias;                   /* always */
    bool attention_bias;             /* a key: biases of q, k, v and o */
    bool mlp_bias;                   /* a key */
    bool head_norm;                  /* q and k are normalised head by head, by self_attn.q_norm and k_norm */
    const char *q_norm, *k_norm;     /* other names of these */
    bool norm_whole, norm_turned;    /* over all heads; behind the rotary positions */
    bool tied;                       /* without tie_word_embeddings */
    const char *norm_key;            /* NULL: rms_norm_eps */
    double norm_eps;                 /* 0: 1e-6 */
    double init_std;                 /* 0: 0.02 */
    double theta;                    /* 0: 10000 */
    const char *partial;             /* the key of the share of a head that turns; NULL: all of it */
    double partial_default;
    dsc_window_key window;
    int64_t window_default;  /* without sliding_window; 0: 4096, DSC_WINDOW_OFF: no window */
    int64_t full_every;      /* without layer_types every so many layers have no window; 0: none */
    const char *full_every_key; /* an older key of it; NULL: none */
    const char *dropouts[3]; /* beside attention_dropout */
    dsc_activation activation; /* without hidden_act */
    const char *activation_key; /* NULL: hidden_act */
    bool has_padding;           /* without pad_token_id the token `padding` is padding */
    int32_t padding;
    bool rope_neighbours;              /* pairs that turn are neighbours in a head */
    bool own_layer_types;              /* layer_types is read by read_config of the family */
    bool one_window;                   /* layer_types is not a key: all layers have the window */
    const dsc_rope_layer *rope_layers; /* [DSC_DECODER_ROPES], or NULL: all layers turn alike */
    /* Names of layers in a block; NULL: Llama's. `qkv`: one product of q, k and v. */
    const char *qkv, *attention_out, *up, *down;
    bool no_gate, gate_in_up; /* of the MLP: none, or one product of gate and up */
    dsc_step_norms steps[2];  /* norms of attention and MLP; without names: Llama's */
    /* Further keys, once the others are read; NULL: none. */
    dsc_status (*read_more)(dsc_hf_config *reader, dsc_decoder_config *config);
} dsc_decoder_traits;

struct dsc_decoder_config {
    dsc_lm_config lm;
    const dsc_decoder_traits *traits;
    int64_t heads, kv_heads, head_size, inner;
    bool qkv_bias, out_bias, mlp_bias;
    bool head_norm; /* as the traits', by a key */
    bool parallel;  /* attention and MLP read the same norm */
    double residual;          /* factor of what a part adds to the residual stream; 0: 1 */
    double attention_scale;   /* factor of the scores; 0: 1 / sqrt(D) */
    double attention_softcap; /* 0: none */
    dsc_activation activation;
    dsc_rope rope;
    dsc_rope sliding_rope;            /* with rope_layers: that of layers with a window */
    bool unturned[DSC_LM_LAYERS_MAX]; /* layers without rotary positions */
};

/* Families: each in the file of its name, those of one block together. families.c lists them. */
extern const dsc_lm_family dsc_llama_family, dsc_mistral_family, dsc_qwen2_family, dsc_qwen3_family;
extern const dsc_lm_family dsc_phi3_family, dsc_smollm3_family, dsc_olmo2_family, dsc_stablelm_family,
    dsc_starcoder2_family, dsc_ministral_family, dsc_gemma_family, dsc_gemma2_family, dsc_gemma3_family,
    dsc_granite_family, dsc_olmo3_family, dsc_cohere_family, dsc_cohere2_family;
extern const dsc_lm_family dsc_glm_family, dsc_glm4_family, dsc_phi_family, dsc_seed_oss_family, dsc_arcee_family,
    dsc_helium_family, dsc_ernie4_5_family, dsc_hunyuan_family, dsc_exaone4_family, dsc_nemotron_family;
extern const dsc_decoder_traits dsc_traits_of_llama, dsc_traits_of_mistral, dsc_traits_of_qwen2, dsc_traits_of_qwen3;

/* decoder_config.c */
/* By the reader's traits, which are a decoder's or begin with them. */
DSC_MUST_USE dsc_status dsc_decoder_read(dsc_hf_config *reader, dsc_lm_config *out);
/* full[layers] <- by layer_types: full_attention or `other` for each layer. Without the key nothing changes. Whether
 * there is another one. */
DSC_MUST_USE dsc_status dsc_decoder_read_layer_types(dsc_hf_config *reader, int64_t layers, const char *other,
                                                     bool *full, bool *any);
DSC_MUST_USE dsc_status dsc_decoder_read_activation(dsc_hf_config *reader, const char *key, dsc_activation fallback,
                                                    dsc_activation *out);
int dsc_decoder_write_config(const dsc_lm_config *config, char *out, size_t bytes);
const char *dsc_llama_builtin(const void *traits, int32_t index, dsc_lm_config *out); /* llama_sizes.c */

/* ---- Blocks, decoder.c: a block as its traits say, of parts that a family may replace ---- */

const dsc_decoder_config *dsc_decoder_config_of(const dsc_lm_config *base);
dsc_block dsc_decoder_block(dsc_program *program, const dsc_decoder_config *config);
/* self_attn.q_proj and so on, one product each. */
dsc_block_attention dsc_decoder_attention(const dsc_decoder_config *config, int64_t layer);
/* The function of attention or MLP on their input; the config begins with a decoder's. */
typedef int16_t (*dsc_decoder_part)(const dsc_block *block, const dsc_lm_config *base, int64_t layer, int16_t x);
int16_t dsc_decoder_attend(const dsc_block *block, const dsc_lm_config *base, int64_t layer, int16_t x);
/* mlp.gate_proj, mlp.up_proj, mlp.down_proj */
int16_t dsc_decoder_feed(const dsc_block *block, const dsc_lm_config *base, int64_t layer, int16_t x);
/* x + attention(norm(x)), then x + mlp(norm(x)), with the traits' norms; a parallel block has the first one alone. */
void dsc_decoder_emit(dsc_program *program, const dsc_lm_config *base, int64_t layer, dsc_decoder_part attend,
                      dsc_decoder_part feed);
void dsc_decoder_emit_block(dsc_program *program, const dsc_lm_config *base, int64_t layer);

extern const char *const dsc_decoder_lora_layers[]; /* q_proj, v_proj */
extern const char *const dsc_decoder_may_ignore[];  /* frequencies, which older versions saved */

/* Members that the tables of all these families have in common; `config` is the type of the family's own. */
#define DSC_DECODER_FAMILY(type, table, config, last_norm)                                                             \
    .model_type = (type), .traits = &(table), .config_bytes = sizeof(config), .layers_key = "num_hidden_layers",       \
    .base = "model.", .layer = "layers.", .token_table = "embed_tokens.weight", .head_table = "lm_head.weight",        \
    .final_norm = (last_norm), .may_ignore = dsc_decoder_may_ignore
/* And those of a family of which the traits say all. */
#define DSC_DECODER_BY_TRAITS(type, table)                                                                             \
    DSC_DECODER_FAMILY(type, table, dsc_decoder_config, "norm"), .read_config = dsc_decoder_read,                      \
        .emit_block = dsc_decoder_emit_block
#define DSC_DECODER_RMS(type, table)                                                                                   \
    DSC_DECODER_BY_TRAITS(type, table), .norm = DSC_NORM_RMS, .lora_layers = dsc_decoder_lora_layers
#define DSC_DECODER_LAYER_NORM(type, table)                                                                            \
    DSC_DECODER_BY_TRAITS(type, table), .norm = DSC_NORM_LAYER, .lora_layers = dsc_decoder_lora_layers

#endif
