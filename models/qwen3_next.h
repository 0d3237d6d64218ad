/* qwen3_next.h - Qwen3-Next (Qwen team 2025) and the text models of Qwen3.5 and 3.6, most of whose layers have linear
 * attention by the gated delta rule. Inside models/ only. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_MODELS_QWEN3_NEXT_H
#define DSC_MODELS_QWEN3_NEXT_H

#include "models/moe.h"

typedef struct dsc_qwen3_next_traits {
    dsc_moe_traits moe; /* without experts every layer has an MLP of its own */
    bool together;      /* queries, keys, values and gates are outputs of one product, in groups of a head of keys */
} dsc_qwen3_next_traits;

typedef struct dsc_qwen3_next_config {
    dsc_moe_config moe;
    const dsc_qwen3_next_traits *traits;
    dsc_op_delta delta; /* its sizes */
    int32_t conv_width;
    bool linear[DSC_LM_LAYERS_MAX]; /* layers of linear attention */
} dsc_qwen3_next_config;

extern const dsc_lm_family dsc_qwen3_next_family, dsc_qwen3_5_family, dsc_qwen3_5_moe_family;

int16_t dsc_qwen3_next_linear(const dsc_block *block, const dsc_qwen3_next_config *config, int16_t x);
DSC_MUST_USE dsc_status dsc_qwen3_next_read(dsc_hf_config *reader, dsc_lm_config *out); /* qwen3_next_config.c */

#endif
