/* phi.c - Phi-1, Phi-1.5 and Phi-2 (Gunasekar et al. 2023): attention and MLP read one layer norm, and every product
 * has a bias, the head too. SPDX-License-Identifier: Apache-2.0 */
#include "models/decoder.h"

static dsc_status read_more(dsc_hf_config *reader, dsc_decoder_config *config)
{
    config->qkv_bias = config->out_bias = config->mlp_bias = true;
    (void)reader;
    return DSC_OK;
}

static const dsc_decoder_traits traits = {
    .family = &dsc_phi_family, .vocab = 51200, .layers = 24, .channels = 2048, .heads = 32, .inner = 8192,
    .positions = 2048, .has_head_size = true, .norm_key = "layer_norm_eps", .norm_eps = 1e-5,
    .partial = "partial_rotary_factor", .partial_default = 0.5, .dropouts = { "resid_pdrop", "embd_pdrop" },
    .activation = DSC_GELU_TANH, .read_more = read_more
};

static void emit_block(dsc_program *program, const dsc_lm_config *base, int64_t layer)
{
    const dsc_decoder_config *config = dsc_decoder_config_of(base);
    const dsc_block block = dsc_decoder_block(program, config);
    dsc_block_attention attention = dsc_decoder_attention(config, layer);
    dsc_block_mlp mlp = dsc_decoder_mlp(config);
    attention.out = "self_attn.dense";
    mlp.gate = NULL;
    mlp.up = "mlp.fc1";
    mlp.down = "mlp.fc2";
    const dsc_step step = dsc_block_begin(&block, program->input, &(dsc_step_norms) { .before = "input_layernorm" });
    const int16_t x = dsc_block_end(&block, &step, dsc_block_attend(&block, step.in, &attention), step.x);
    dsc_program_end(program, dsc_block_end(&block, &step, dsc_block_feed(&block, step.in, &mlp), x));
}

static const char *const lora_layers[] = { "q_proj", "v_proj", "fc1", "fc2", NULL };

const dsc_lm_family dsc_phi_family = {
    .model_type = "phi", .traits = &traits, .read_config = dsc_decoder_read, .builtin = dsc_decoder_no_builtin,
    .layers_key = "num_hidden_layers", .base = "model.", .layer = "layers.", .token_table = "embed_tokens.weight",
    .head_table = "lm_head.weight", .head_bias = "lm_head.bias", .final_norm = "final_layernorm",
    .norm = DSC_NORM_LAYER, .config_bytes = sizeof(dsc_decoder_config), .emit_block = emit_block,
    .lora_layers = lora_layers, .may_ignore = dsc_decoder_may_ignore
};
