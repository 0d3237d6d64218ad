/* gpt2.h - GPT-2 (Radford et al. 2019). Inside models/ only.
 *
 * Letters, beside lm.h's: H heads, D = C / H, I inner width of the MLP. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_MODELS_GPT2_H
#define DSC_MODELS_GPT2_H

#include "models/lm.h"

typedef struct dsc_gpt2_config {
    dsc_lm_config lm;
    int64_t heads, inner;
    bool scale_attention;          /* scores times 1 / sqrt(D) */
    bool scale_attention_by_layer; /* and times 1 / (layer + 1) */
} dsc_gpt2_config;

extern const dsc_lm_family dsc_gpt2_family;

/* The parts of the family's table. gpt2_config.c, gpt2_sizes.c, gpt2_block.c */
dsc_status dsc_gpt2_read_config(dsc_hf_config *reader, dsc_lm_config *out);
int dsc_gpt2_write_config(const dsc_lm_config *config, char *out, size_t bytes);
const char *dsc_gpt2_builtin(int32_t index, dsc_lm_config *out);
extern const dsc_lm_block dsc_gpt2_block;

/* Parameters of a block. */
enum {
    DSC_GPT2_LN1_W, DSC_GPT2_LN1_B, DSC_GPT2_QKV_W, DSC_GPT2_QKV_B, DSC_GPT2_PROJ_W, DSC_GPT2_PROJ_B,
    DSC_GPT2_LN2_W, DSC_GPT2_LN2_B, DSC_GPT2_FC_W, DSC_GPT2_FC_B, DSC_GPT2_OUT_W, DSC_GPT2_OUT_B,
    DSC_GPT2_BLOCK_PARAMS
};

#endif
