/* phi3.c - Phi-3, Phi-3.5 and Phi-4 (Abdin et al. 2024): Llama's block with fused products.
 * SPDX-License-Identifier: Apache-2.0 */
#include "models/decoder.h"

static const dsc_decoder_traits traits = {
    .activation = DSC_SILU, .family = &dsc_phi3_family, .vocab = 32064, .channels = 3072, .inner = 8192,
    .positions = 4096, .has_head_size = true, .norm_eps = 1e-5, .partial = "partial_rotary_factor",
    .window = DSC_WINDOW_ALL, .window_default = DSC_WINDOW_OFF, .dropouts = { "resid_pdrop", "embd_pdrop" }
};

static void emit_block(dsc_program *program, const dsc_lm_config *base, int64_t layer)
{
    const dsc_decoder_config *config = dsc_decoder_config_of(base);
    const dsc_block block = dsc_decoder_block(program, config);
    dsc_block_attention attention = dsc_decoder_attention(config, layer);
    dsc_block_mlp mlp = dsc_decoder_mlp(config);
    attention.kind = DSC_QKV_PARTS;
    attention.qkv[0] = "self_attn.qkv_proj";
    mlp.gate = NULL;
    mlp.up = "mlp.gate_up_proj";
    mlp.gate_in_up = true;
    dsc_decoder_emit(&block, &attention, &mlp);
}

static const char *const lora_layers[] = { "qkv_proj", NULL };

const dsc_lm_family dsc_phi3_family = { DSC_DECODER_BY_TRAITS("phi3", traits), .norm = DSC_NORM_RMS,
                                        .emit_block = emit_block, .lora_layers = lora_layers };
