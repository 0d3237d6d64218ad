/* deepseek.h - DeepSeek-V2 (Liu et al. 2024) and DeepSeek-V3 with Kimi K2, whose attention is latent (mla.h), and
 * GLM-4.5. All have experts that every token goes to, and routers that choose groups of experts before experts. Inside
 * models/ only. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_MODELS_DEEPSEEK_H
#define DSC_MODELS_DEEPSEEK_H

#include "models/moe.h"

typedef struct dsc_deepseek_traits {
    dsc_moe_traits moe; /* top_k 0: the key is needed */
    /* Without n_shared_experts, n_group, topk_group, first_k_dense_replace, routed_scaling_factor. */
    int64_t shared, groups, best_groups, first;
    double factor;
} dsc_deepseek_traits;

/* deepseek_config.c: read_more of the families. */
DSC_MUST_USE dsc_status dsc_deepseek_read_v2(dsc_hf_config *reader, dsc_decoder_config *config);
DSC_MUST_USE dsc_status dsc_deepseek_read_v3(dsc_hf_config *reader, dsc_decoder_config *config);
DSC_MUST_USE dsc_status dsc_deepseek_read_glm(dsc_hf_config *reader, dsc_decoder_config *config);

#endif
