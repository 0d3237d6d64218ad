/* olmo2.c - OLMo 2 (OLMo team 2024): norms behind the parts of a block, and of whole queries and keys. OLMo 3 (2025):
 * the same with windows. SPDX-License-Identifier: Apache-2.0 */
#include "models/decoder.h"

/* A root's "rope_theta" is that of layers without a window alone, as transformers reads it. */
static const dsc_rope_layer olmo3_ropes[DSC_DECODER_ROPES] = { { "full_attention", "rope_theta",
                                                                 .theta_default = 500000, .scaled = true },
                                                               { "sliding_attention", .theta_default = 500000 } };

#define OLMO_TRAITS                                                                                                    \
    .activation = DSC_SILU, .vocab = 50304, .inner = 11008, .positions = 2048, .has_head_size = true,                  \
    .attention_bias = true, .head_norm = true, .norm_eps = 1e-5

static const dsc_decoder_traits traits = { OLMO_TRAITS, .family = &dsc_olmo2_family };
static const dsc_decoder_traits traits3 = {
    OLMO_TRAITS, .family = &dsc_olmo3_family, .has_padding = true, .padding = 1, .window = DSC_WINDOW_ALL,
    .full_every = 4, .rope_layers = olmo3_ropes
};

/* x + norm(attention(x)), then x + norm(mlp(x)). */
static void emit_block(dsc_program *program, const dsc_lm_config *base, int64_t layer)
{
    const dsc_decoder_config *config = dsc_decoder_config_of(base);
    const dsc_block block = dsc_decoder_block(program, config);
    dsc_block_attention attention = dsc_decoder_attention(config, layer);
    const dsc_block_mlp mlp = dsc_decoder_mlp(config);
    attention.norm_whole = true;
    dsc_step step =
        dsc_block_begin(&block, program->input, &(dsc_step_norms) { .behind = "post_attention_layernorm" });
    const int16_t x = dsc_block_end(&block, &step, dsc_block_attend(&block, step.in, &attention), step.x);
    step = dsc_block_begin(&block, x, &(dsc_step_norms) { .behind = "post_feedforward_layernorm" });
    dsc_program_end(program, dsc_block_end(&block, &step, dsc_block_feed(&block, step.in, &mlp), x));
}

#define OLMO_FAMILY(type, table)                                                                                       \
    DSC_DECODER_BY_TRAITS(type, table), .norm = DSC_NORM_RMS, .emit_block = emit_block,                                \
        .lora_layers = dsc_decoder_lora_layers

const dsc_lm_family dsc_olmo2_family = { OLMO_FAMILY("olmo2", traits) };
const dsc_lm_family dsc_olmo3_family = { OLMO_FAMILY("olmo3", traits3) };
