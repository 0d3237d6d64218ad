/* arcee.c - AFM (Arcee 2025): Llama's block with an MLP without a gate. SPDX-License-Identifier: Apache-2.0 */
#include "models/decoder.h"

static const dsc_decoder_traits traits = {
    .activation = DSC_RELU2, .family = &dsc_arcee_family, .no_gate = true, .vocab = 32000, .channels = 2560,
    .inner = 18432, .positions = 4096, .has_head_size = true, .attention_bias = true, .mlp_bias = true, .norm_eps = 1e-5
};

const dsc_lm_family dsc_arcee_family = { DSC_DECODER_RMS("arcee", traits) };
