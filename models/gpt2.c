/* gpt2.c - the family of GPT-2: its names and a block's parameters. SPDX-License-Identifier: Apache-2.0 */
#include "models/gpt2.h"

#include <math.h>
#include <string.h>

static int32_t block_params(const dsc_lm_config *config)
{
    return DSC_GPT2_BLOCK_PARAMS;
}

/* In the order of the enum in gpt2.h. */
static void add_block(dsc_lm *lm, const dsc_lm_config *base)
{
    const dsc_gpt2_config *config = (const dsc_gpt2_config *)(const void *)base;
    const int64_t channels = base->channels, inner = config->inner;
    /* GPT-2's initialisation: what is added to the residual stream is scaled down by the number of additions. */
    const double std = base->init_std, residual_std = std / sqrt(2.0 * (double)base->layers);
    const dsc_lm_linear linears[] = {
        { "attn.c_attn", { channels, 3 * channels, false }, .bias = true, .out_split = true, .std = std },
        { "attn.c_proj", { channels, channels, false }, .bias = true, .out_split = false, .std = residual_std },
        { "mlp.c_fc", { channels, inner, false }, .bias = true, .out_split = true, .std = std },
        { "mlp.c_proj", { inner, channels, false }, .bias = true, .out_split = false, .std = residual_std },
    };
    dsc_lm_add_norm(lm, "ln_1", DSC_NORM_LAYER, channels);
    dsc_lm_add_linear(lm, &linears[0]);
    dsc_lm_add_linear(lm, &linears[1]);
    dsc_lm_add_norm(lm, "ln_2", DSC_NORM_LAYER, channels);
    dsc_lm_add_linear(lm, &linears[2]);
    dsc_lm_add_linear(lm, &linears[3]);
}

/* Causal masks, which older versions saved. */
static bool may_ignore(const char *part)
{
    return strcmp(part, "attn.bias") == 0 || strcmp(part, "attn.masked_bias") == 0;
}

const dsc_lm_family dsc_gpt2_family = {
    .model_type = "gpt2", .layers_key = "n_layer", .base = "transformer.", .layer = "h.", .token_table = "wte.weight",
    .position_table = "wpe.weight", .final_norm = "ln_f", .norm = DSC_NORM_LAYER,
    .config_bytes = sizeof(dsc_gpt2_config), .read_config = dsc_gpt2_read_config,
    .write_config = dsc_gpt2_write_config, .builtin = dsc_gpt2_builtin, .block_params = block_params,
    .add_block = add_block, .block = &dsc_gpt2_block, .may_ignore = may_ignore
};
