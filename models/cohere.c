/* cohere.c - Command R, Aya and Command R7B (Cohere 2024): a parallel block of layer norms without biases.
 * SPDX-License-Identifier: Apache-2.0 */
#include "models/decoder.h"

static dsc_status read_more(dsc_hf_config *reader, dsc_decoder_config *config)
{
    config->lm.norm_no_bias = config->parallel = true;
    return dsc_hf_number(reader, "logit_scale", (dsc_hf_range) { 1e-6, 1e6 }, 0.0625, &config->lm.logit_scale);
}

/* Only layers with a window have rotary positions. */
static dsc_status read_more2(dsc_hf_config *reader, dsc_decoder_config *config)
{
    for (int64_t i = 0; i < config->lm.layers; i++)
        config->unturned[i] = config->lm.full[i];
    (void)dsc_hf_field(reader, "_sliding_window_pattern"); /* newer files' copy of what layer_types says */
    return read_more(reader, config);
}

#define COHERE_TRAITS                                                                                                  \
    .activation = DSC_SILU, .vocab = 256000, .layers = 40, .channels = 8192, .heads = 64, .inner = 22528,              \
    .positions = 8192, .has_head_size = true, .attention_bias = true, .tied = true, .has_padding = true,               \
    .norm_key = "layer_norm_eps", .norm_eps = 1e-5, .rope_neighbours = true

static const dsc_decoder_traits traits = {
    COHERE_TRAITS, .family = &dsc_cohere_family, .theta = 500000, .read_more = read_more
};
static const dsc_decoder_traits traits2 = {
    COHERE_TRAITS, .family = &dsc_cohere2_family, .window = DSC_WINDOW_ALL, .full_every = 4,
    .full_every_key = "sliding_window_pattern", .read_more = read_more2
};

const dsc_lm_family dsc_cohere_family = { DSC_DECODER_LAYER_NORM("cohere", traits) };
const dsc_lm_family dsc_cohere2_family = { DSC_DECODER_LAYER_NORM("cohere2", traits2) };
