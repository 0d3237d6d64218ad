/* seed_oss.c - Seed-OSS (ByteDance 2025): Llama's block, where q, k and v have biases.
 * SPDX-License-Identifier: Apache-2.0 */
#include "models/decoder.h"

static dsc_status read_more(dsc_hf_config *reader, dsc_decoder_config *config)
{
    DSC_TRY(dsc_hf_bool(reader, "attention_bias", true, &config->qkv_bias));
    DSC_TRY(dsc_hf_bool(reader, "attention_out_bias", false, &config->out_bias));
    return dsc_lm_read_padding(reader, 1, &config->lm);
}

static const dsc_decoder_traits traits = {
    .activation = DSC_SILU, .family = &dsc_seed_oss_family, .vocab = 155136, .layers = 64, .heads = 80, .kv_heads = 8,
    .inner = 27648, .positions = 524288, .head_size = 128, .mlp_bias = true, .dropouts = { "residual_dropout" },
    .read_more = read_more
};

const dsc_lm_family dsc_seed_oss_family = { DSC_DECODER_RMS("seed_oss", traits) };
