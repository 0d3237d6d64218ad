/* nemotron.c - Nemotron-4 and Minitron (NVIDIA 2024): layer norms whose factor is 1 + weight, an MLP without a gate.
 * SPDX-License-Identifier: Apache-2.0 */
#include "models/decoder.h"

static dsc_status read_more(dsc_hf_config *reader, dsc_decoder_config *config)
{
    (void)reader;
    config->lm.norm_plus_one = true;
    return DSC_OK;
}

static const dsc_decoder_traits traits = {
    .activation = DSC_RELU2, .family = &dsc_nemotron_family, .no_gate = true, .vocab = 256000, .channels = 6144,
    .heads = 48, .inner = 24576, .positions = 4096, .has_head_size = true, .attention_bias = true, .mlp_bias = true,
    .norm_key = "norm_eps", .norm_eps = 1e-5, .init_std = 0.0134, .partial = "partial_rotary_factor",
    .partial_default = 0.5, .read_more = read_more
};

const dsc_lm_family dsc_nemotron_family = { DSC_DECODER_LAYER_NORM("nemotron", traits) };
