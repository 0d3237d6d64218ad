/* arcee.c - AFM (Arcee 2025): Llama's block with an MLP without a gate. SPDX-License-Identifier: Apache-2.0 */
#include "models/decoder.h"

static const dsc_decoder_traits traits = {
    .activation = DSC_RELU2, .family = &dsc_arcee_family, .vocab = 32000, .channels = 2560, .inner = 18432,
    .positions = 4096, .has_head_size = true, .attention_bias = true, .mlp_bias = true, .norm_eps = 1e-5
};

static void emit_block(dsc_program *program, const dsc_lm_config *base, int64_t layer)
{
    const dsc_decoder_config *config = dsc_decoder_config_of(base);
    const dsc_block block = dsc_decoder_block(program, config);
    const dsc_block_attention attention = dsc_decoder_attention(config, layer);
    dsc_block_mlp mlp = dsc_decoder_mlp(config);
    mlp.gate = NULL;
    dsc_decoder_emit(&block, &attention, &mlp);
}

const dsc_lm_family dsc_arcee_family = { DSC_DECODER_BY_TRAITS("arcee", traits), .norm = DSC_NORM_RMS,
                                         .emit_block = emit_block, .lora_layers = dsc_decoder_lora_layers };
