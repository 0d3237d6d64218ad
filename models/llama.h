/* llama.h - Llama 2 and 3 (Touvron et al. 2023), Mistral, Qwen2 and Qwen3: one block, four families.
 * Inside models/ only.
 *
 * Letters, beside lm.h's: H query heads, K key and value heads (H a multiple of K), D size of a head, I inner width of
 * the MLP. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_MODELS_LLAMA_H
#define DSC_MODELS_LLAMA_H

#include "models/blocks.h"
#include "models/lm.h"
#include "models/rope.h"

#define DSC_LLAMA_HEAD_MAX (2 * DSC_ROPE_PAIRS_MAX)

/* sliding_window: no key; a key for every layer; a key beside a switch. */
typedef enum dsc_window_key { DSC_WINDOW_NONE, DSC_WINDOW_ALL, DSC_WINDOW_IF_USED } dsc_window_key;

/* Parts of a config.json that differ between families. */
typedef struct dsc_llama_traits {
    const char *architecture; /* "LlamaForCausalLM" */
    const dsc_lm_family *family;
    int64_t vocab, inner, positions;
    int64_t kv_heads;    /* without num_key_value_heads; 0: as many as query heads */
    int64_t head_size;   /* without head_dim; 0: C / H */
    bool has_head_size;  /* head_dim is a key */
    bool qkv_bias;       /* always */
    bool attention_bias; /* a key: biases of q, k, v and o */
    bool mlp_bias;       /* a key */
    bool head_norm;      /* q and k are normalised head by head */
    dsc_window_key window;
} dsc_llama_traits;

typedef struct dsc_llama_config {
    dsc_lm_config lm;
    const dsc_llama_traits *traits;
    int64_t heads, kv_heads, head_size, inner;
    bool qkv_bias, out_bias, mlp_bias;
    dsc_rope rope;
} dsc_llama_config;

extern const dsc_lm_family dsc_llama_family, dsc_mistral_family, dsc_qwen2_family, dsc_qwen3_family;
extern const dsc_llama_traits dsc_llama_traits_of_llama, dsc_llama_traits_of_mistral, dsc_llama_traits_of_qwen2,
    dsc_llama_traits_of_qwen3;

/* The parts of the families' tables. llama_config.c, llama_sizes.c */
dsc_status dsc_llama_read_config(dsc_hf_config *reader, dsc_lm_config *out, const dsc_llama_traits *traits);
int dsc_llama_write_config(const dsc_lm_config *config, char *out, size_t bytes);
const char *dsc_llama_builtin(int32_t index, dsc_lm_config *out, const dsc_llama_traits *traits);

#endif
