/* olmo2.c - OLMo 2 (OLMo team 2024): norms behind the parts of a block, and of whole queries and keys. OLMo 3 (2025):
 * the same with windows. SPDX-License-Identifier: Apache-2.0 */
#include "models/decoder.h"

/* A root's "rope_theta" is that of layers without a window alone, as transformers reads it. */
static const dsc_rope_layer olmo3_ropes[DSC_DECODER_ROPES] = { { "full_attention", "rope_theta",
                                                                 .theta_default = 500000, .scaled = true },
                                                               { "sliding_attention", .theta_default = 500000 } };

#define OLMO_TRAITS                                                                                                    \
    .activation = DSC_SILU, .vocab = 50304, .inner = 11008, .positions = 2048, .has_head_size = true,                  \
    .attention_bias = true, .head_norm = true, .norm_whole = true, .norm_eps = 1e-5,                                   \
    .steps = { { .behind = "post_attention_layernorm" }, { .behind = "post_feedforward_layernorm" } }

static const dsc_decoder_traits traits = { OLMO_TRAITS, .family = &dsc_olmo2_family };
static const dsc_decoder_traits traits3 = {
    OLMO_TRAITS, .family = &dsc_olmo3_family, .has_padding = true, .padding = 1, .window = DSC_WINDOW_ALL,
    .full_every = 4, .rope_layers = olmo3_ropes
};

const dsc_lm_family dsc_olmo2_family = { DSC_DECODER_RMS("olmo2", traits) };
const dsc_lm_family dsc_olmo3_family = { DSC_DECODER_RMS("olmo3", traits3) };
