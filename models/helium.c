/* helium.c - Helium (Kyutai 2025) and the dense ERNIE 4.5 (Baidu 2025): Llama's block, where neighbouring elements of a
 * head turn. SPDX-License-Identifier: Apache-2.0 */
#include "models/decoder.h"

static dsc_status read_helium(dsc_hf_config *reader, dsc_decoder_config *config)
{
    config->out_bias = false;
    if (config->heads * config->head_size != config->lm.channels)
        return DSC_HF_REFUSE(reader, DSC_ERR_INPUT, "\"hidden_size\" %lld must be \"num_attention_heads\" %lld times "
                             "\"head_dim\" %lld in Helium", (long long)config->lm.channels, (long long)config->heads,
                             (long long)config->head_size);
    return dsc_lm_read_padding(reader, 3, &config->lm);
}

static dsc_status read_ernie(dsc_hf_config *reader, dsc_decoder_config *config)
{
    bool bias = false;
    DSC_TRY(dsc_hf_bool(reader, "use_bias", false, &bias));
    config->qkv_bias = config->out_bias = config->mlp_bias = bias;
    return dsc_lm_read_padding(reader, 0, &config->lm);
}

static const dsc_decoder_traits helium_traits = {
    .activation = DSC_SILU, .family = &dsc_helium_family, .vocab = 48000, .layers = 24, .channels = 2560, .heads = 20,
    .kv_heads = 20, .inner = 7040, .positions = 4096, .head_size = 128, .attention_bias = true, .mlp_bias = true,
    .norm_eps = 1e-8, .theta = 100000, .rope_neighbours = true, .read_more = read_helium
};
static const dsc_decoder_traits ernie_traits = {
    .activation = DSC_SILU, .family = &dsc_ernie4_5_family, .vocab = 103424, .layers = 18, .channels = 1024,
    .heads = 16, .kv_heads = 2, .inner = 3072, .positions = 131072, .head_size = 128, .norm_eps = 1e-5, .theta = 500000,
    .tied = true, .rope_neighbours = true, .read_more = read_ernie
};

const dsc_lm_family dsc_helium_family = { DSC_DECODER_RMS("helium", helium_traits) };
const dsc_lm_family dsc_ernie4_5_family = { DSC_DECODER_RMS("ernie4_5", ernie_traits) };
