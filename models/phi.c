/* phi.c - Phi-1, Phi-1.5 and Phi-2 (Gunasekar et al. 2023): attention and MLP read one layer norm, and every product
 * has a bias, the head too. SPDX-License-Identifier: Apache-2.0 */
#include "models/decoder.h"

static dsc_status read_more(dsc_hf_config *reader, dsc_decoder_config *config)
{
    config->qkv_bias = config->out_bias = config->mlp_bias = config->parallel = true;
    (void)reader;
    return DSC_OK;
}

static const dsc_decoder_traits traits = {
    .family = &dsc_phi_family, .attention_out = "self_attn.dense", .no_gate = true, .up = "mlp.fc1", .down = "mlp.fc2",
    .vocab = 51200, .layers = 24, .channels = 2048, .heads = 32, .inner = 8192, .positions = 2048,
    .has_head_size = true, .norm_key = "layer_norm_eps", .norm_eps = 1e-5, .partial = "partial_rotary_factor",
    .partial_default = 0.5, .dropouts = { "resid_pdrop", "embd_pdrop" }, .activation = DSC_GELU_TANH,
    .read_more = read_more
};

static const char *const lora_layers[] = { "q_proj", "v_proj", "fc1", "fc2", NULL };

const dsc_lm_family dsc_phi_family = { DSC_DECODER_FAMILY("phi", traits, dsc_decoder_config, "final_layernorm"),
                                       .norm = DSC_NORM_LAYER, .head_bias = "lm_head.bias",
                                       .read_config = dsc_decoder_read, .emit_block = dsc_decoder_emit_block,
                                       .lora_layers = lora_layers };
