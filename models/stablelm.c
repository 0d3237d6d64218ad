/* stablelm.c - StableLM (Bellagente et al. 2024): layer norms, and a part of each head turns.
 * SPDX-License-Identifier: Apache-2.0 */
#include "models/decoder.h"

static dsc_status read_more(dsc_hf_config *reader, dsc_decoder_config *config)
{
    DSC_TRY(dsc_hf_bool(reader, "use_qkv_bias", false, &config->qkv_bias));
    return dsc_hf_bool(reader, "use_parallel_residual", false, &config->parallel);
}

static const dsc_decoder_traits traits = {
    .activation = DSC_SILU, .family = &dsc_stablelm_family, .vocab = 50304, .channels = 2560, .inner = 6912,
    .positions = 4096, .kv_heads = 32, .norm_key = "layer_norm_eps", .norm_eps = 1e-5,
    .partial = "partial_rotary_factor", .partial_default = 0.25, .dropouts = { "hidden_dropout" },
    .read_more = read_more
};

const dsc_lm_family dsc_stablelm_family = { DSC_DECODER_LAYER_NORM("stablelm", traits) };
