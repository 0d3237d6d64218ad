/* glm.c - GLM-4 (GLM team 2024) and GLM-4 0414: neighbouring elements of half a head turn, and the MLP's products are
 * fused. The later one has norms behind the parts too. SPDX-License-Identifier: Apache-2.0 */
#include "models/decoder.h"

static dsc_status read_more(dsc_hf_config *reader, dsc_decoder_config *config)
{
    config->rope.neighbours = true;
    DSC_TRY(dsc_hf_bool(reader, "attention_bias", true, &config->qkv_bias)); /* the product behind has none */
    return dsc_lm_read_padding(reader, 151329, &config->lm);
}

#define GLM_TRAITS                                                                                                     \
    .activation = DSC_SILU, .vocab = 151552, .layers = 40, .channels = 4096, .heads = 32, .kv_heads = 2,               \
    .inner = 13696, .positions = 131072, .head_size = 128, .norm_eps = 1.5625e-7, .partial = "partial_rotary_factor",  \
    .partial_default = 0.5, .up = "mlp.gate_up_proj", .gate_in_up = true, .read_more = read_more

static const dsc_decoder_traits glm_traits = { GLM_TRAITS, .family = &dsc_glm_family };
static const dsc_decoder_traits glm4_traits = { GLM_TRAITS, .family = &dsc_glm4_family };

static void emit_block(dsc_program *program, const dsc_lm_config *base, int64_t layer)
{
    const dsc_decoder_config *config = dsc_decoder_config_of(base);
    const bool behind = config->traits == &glm4_traits;
    const dsc_step_norms first = { .before = "input_layernorm", .behind = behind ? "post_self_attn_layernorm" : NULL };
    const dsc_step_norms second = { .before = "post_attention_layernorm",
                                    .behind = behind ? "post_mlp_layernorm" : NULL };
    const dsc_block block = dsc_decoder_block(program, config);
    const dsc_block_attention attention = dsc_decoder_attention(config, layer);
    const dsc_block_mlp mlp = dsc_decoder_mlp(config);
    dsc_step step = dsc_block_begin(&block, program->input, &first);
    const int16_t x = dsc_block_end(&block, &step, dsc_block_attend(&block, step.in, &attention), step.x);
    step = dsc_block_begin(&block, x, &second);
    dsc_program_end(program, dsc_block_end(&block, &step, dsc_block_feed(&block, step.in, &mlp), x));
}

const dsc_lm_family dsc_glm_family = { DSC_DECODER_BY_TRAITS("glm", glm_traits), .norm = DSC_NORM_RMS,
                                       .emit_block = emit_block, .lora_layers = dsc_decoder_lora_layers };
const dsc_lm_family dsc_glm4_family = { DSC_DECODER_BY_TRAITS("glm4", glm4_traits), .norm = DSC_NORM_RMS,
                                        .emit_block = emit_block, .lora_layers = dsc_decoder_lora_layers };
