/* granite.c - Granite 3 (Granite team 2024): Llama's block with four factors.
 * SPDX-License-Identifier: Apache-2.0 */
#include "models/decoder.h"

static dsc_status read_more(dsc_hf_config *reader, dsc_decoder_config *config)
{
    static const dsc_hf_range factors = { 1e-6, 1e6 };
    double divisor = 1;
    DSC_TRY(dsc_hf_number(reader, "embedding_multiplier", factors, 1, &config->lm.embed_scale));
    DSC_TRY(dsc_hf_number(reader, "attention_multiplier", factors, 1, &config->attention_scale));
    DSC_TRY(dsc_hf_number(reader, "residual_multiplier", factors, 1, &config->residual));
    DSC_TRY(dsc_hf_number(reader, "logits_scaling", factors, 1, &divisor));
    config->lm.logit_scale = 1 / divisor;
    return DSC_OK;
}

static const dsc_decoder_traits traits = {
    .activation = DSC_SILU, .family = &dsc_granite_family, .vocab = 32000, .inner = 11008, .positions = 2048,
    .has_head_size = true, .attention_bias = true, .mlp_bias = true, .read_more = read_more
};

const dsc_lm_family dsc_granite_family = { DSC_DECODER_RMS("granite", traits) };
