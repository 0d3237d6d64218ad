/* glm.c - GLM-4 (GLM team 2024) and GLM-4 0414: neighbouring elements of half a head turn, and the MLP's products are
 * fused. The later one has norms behind the parts too. SPDX-License-Identifier: Apache-2.0 */
#include "models/decoder.h"

static dsc_status read_more(dsc_hf_config *reader, dsc_decoder_config *config)
{
    DSC_TRY(dsc_hf_bool(reader, "attention_bias", true, &config->qkv_bias)); /* the product behind has none */
    return dsc_lm_read_padding(reader, 151329, &config->lm);
}

#define GLM_TRAITS                                                                                                     \
    .activation = DSC_SILU, .vocab = 151552, .layers = 40, .channels = 4096, .heads = 32, .kv_heads = 2,               \
    .inner = 13696, .positions = 131072, .head_size = 128, .norm_eps = 1.5625e-7, .partial = "partial_rotary_factor",  \
    .partial_default = 0.5, .up = "mlp.gate_up_proj", .gate_in_up = true, .rope_neighbours = true,                     \
    .read_more = read_more

static const dsc_decoder_traits glm_traits = { GLM_TRAITS, .family = &dsc_glm_family };
static const dsc_decoder_traits glm4_traits = {
    GLM_TRAITS, .family = &dsc_glm4_family,
    .steps = { { .before = "input_layernorm", .behind = "post_self_attn_layernorm" },
               { .before = "post_attention_layernorm", .behind = "post_mlp_layernorm" } }
};

const dsc_lm_family dsc_glm_family = { DSC_DECODER_RMS("glm", glm_traits) };
const dsc_lm_family dsc_glm4_family = { DSC_DECODER_RMS("glm4", glm4_traits) };
