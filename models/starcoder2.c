/* starcoder2.c - StarCoder2 (Lozhkov et al. 2024): layer norms, biases, and an MLP without a gate.
 * SPDX-License-Identifier: Apache-2.0 */
#include "models/decoder.h"

static dsc_status read_more(dsc_hf_config *reader, dsc_decoder_config *config)
{
    bool bias = true;
    DSC_TRY(dsc_hf_bool(reader, "use_bias", true, &bias));
    config->qkv_bias = config->out_bias = config->mlp_bias = bias;
    return DSC_OK;
}

static const dsc_decoder_traits traits = {
    .family = &dsc_starcoder2_family, .no_gate = true, .up = "mlp.c_fc", .down = "mlp.c_proj", .vocab = 49152,
    .layers = 30, .channels = 3072, .heads = 24, .kv_heads = 2, .inner = 12288, .positions = 4096,
    .has_head_size = true, .norm_key = "norm_epsilon", .norm_eps = 1e-5, .init_std = 0.018042, .tied = true,
    .window = DSC_WINDOW_ALL, .window_default = DSC_WINDOW_OFF, .dropouts = { "residual_dropout", "embedding_dropout" },
    .one_window = true, .activation = DSC_GELU_TANH, .read_more = read_more
};

const dsc_lm_family dsc_starcoder2_family = { DSC_DECODER_LAYER_NORM("starcoder2", traits) };
