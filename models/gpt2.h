/* gpt2.h - GPT-2 (Radford et al. 2019) as a list of modules: embedding, L blocks, head. Inside models/ only.
 *
 * Letters: B batch, T tokens of a sample, R = B * T rows, C channels, H heads, D = C / H, I inner width of the MLP,
 * V vocabulary, P rows of the token table (V padded). SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_MODELS_GPT2_H
#define DSC_MODELS_GPT2_H

#include <dsc/model.h>

#include "base/alloc.h"
#include "models/linear.h"
#include "models/weights.h"

typedef struct dsc_gpt2_config {
    int64_t layers, heads, channels, inner;
    int64_t positions; /* rows of the position table */
    int64_t sequence;  /* T <= positions */
    int64_t vocab;     /* V: real tokens, the softmax's width */
    int64_t vocab_rows; /* P >= V */
    double norm_eps, init_std;
    bool scale_attention;          /* scores times 1 / sqrt(D) */
    bool scale_attention_by_layer; /* and times 1 / (layer + 1) */
    bool tied;                     /* the head uses the token table */
} dsc_gpt2_config;

/* What a module points to with `self`. */
typedef struct dsc_gpt2_module {
    const dsc_gpt2_config *config;
    int64_t layer; /* of a block */
} dsc_gpt2_module;

/* Bounds that keep every size of a micro-batch of up to 2^32 rows within int64. */
#define DSC_GPT2_LAYERS_MAX 4096
#define DSC_GPT2_CHANNELS_MAX (1 << 18)
#define DSC_GPT2_INNER_MAX (1 << 20)
#define DSC_GPT2_POSITIONS_MAX (1 << 24)
#define DSC_GPT2_VOCAB_MAX (1 << 24)
#define DSC_GPT2_ROWS_MAX (INT64_C(1) << 31)

/* Builds the model. Everything is allocated from `alloc`, which the model owns on success (and closes), as it owns
 * `weights` (may be NULL: fresh initialisation), `config_json` (NULL: one is written) and `warnings` (may be NULL), all
 * three allocated from `alloc`. On failure they stay the caller's. */
DSC_MUST_USE dsc_status dsc_gpt2_open(dsc_model **out, dsc_alloc *alloc, const char *name,
                                      const dsc_gpt2_config *config, dsc_weights *weights, char *config_json,
                                      char *warnings, dsc_error *err);

/* R for a micro-batch, or DSC_ERR_STATE when no buffer could hold it. */
DSC_MUST_USE dsc_status dsc_gpt2_rows(const dsc_gpt2_config *config, int64_t batch, int64_t *rows, dsc_error *err);

/* Fills one module each (name, self and params are the caller's). gpt2_block.c, gpt2_head.c, gpt2_embed.c */
void dsc_gpt2_embed_init(dsc_module *module);
void dsc_gpt2_block_init(dsc_module *module);
void dsc_gpt2_head_init(dsc_module *module);

enum { DSC_GPT2_WTE, DSC_GPT2_WPE, DSC_GPT2_EMBED_PARAMS };
enum {
    DSC_GPT2_LN1_W, DSC_GPT2_LN1_B, DSC_GPT2_QKV_W, DSC_GPT2_QKV_B, DSC_GPT2_PROJ_W, DSC_GPT2_PROJ_B,
    DSC_GPT2_LN2_W, DSC_GPT2_LN2_B, DSC_GPT2_FC_W, DSC_GPT2_FC_B, DSC_GPT2_OUT_W, DSC_GPT2_OUT_B,
    DSC_GPT2_BLOCK_PARAMS
};
enum { DSC_GPT2_LNF_W, DSC_GPT2_LNF_B, DSC_GPT2_HEAD_W, DSC_GPT2_HEAD_PARAMS };

/* Consecutive pieces of one buffer, each 256-byte aligned. */
static inline int64_t dsc_gpt2_piece(int64_t *end, int64_t bytes)
{
    const int64_t at = *end;
    *end += dsc_align_up(bytes, 256);
    return at;
}

#endif
