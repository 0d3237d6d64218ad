/* gpt2.c - the family of GPT-2 (Radford et al. 2019): its names. SPDX-License-Identifier: Apache-2.0 */
#include "models/dense.h"

const dsc_dense_traits dsc_gpt2_traits = {
    .norm1 = "ln_1", .qkv = { "attn.c_attn" }, .proj = "attn.c_proj", .norm2 = "ln_2", .fc = "mlp.c_fc",
    .out = "mlp.c_proj", .kind = DSC_QKV_PARTS, .scaled_init = true
};

static const char *const lora_layers[] = { "c_attn", NULL };

/* Causal masks, which older versions saved. */
static const char *const may_ignore[] = { "attn.bias", "attn.masked_bias", NULL };

const dsc_lm_family dsc_gpt2_family = {
    .model_type = "gpt2", .layers_key = "n_layer", .base = "transformer.", .layer = "h.", .token_table = "wte.weight",
    .position_table = "wpe.weight", .head_table = "lm_head.weight", .final_norm = "ln_f", .norm = DSC_NORM_LAYER,
    .config_bytes = sizeof(dsc_dense_config), .read_config = dsc_gpt2_read_config,
    .write_config = dsc_gpt2_write_config, .builtin = dsc_gpt2_builtin,
    .emit_block = dsc_dense_emit_block, .lora_layers = lora_layers, .may_ignore = may_ignore
};
