/* phi3.c - Phi-3, Phi-3.5 and Phi-4 (Abdin et al. 2024): Llama's block with fused products.
 * SPDX-License-Identifier: Apache-2.0 */
#include "models/decoder.h"

static const dsc_decoder_traits traits = {
    .activation = DSC_SILU, .family = &dsc_phi3_family, .qkv = "self_attn.qkv_proj", .up = "mlp.gate_up_proj",
    .gate_in_up = true, .vocab = 32064, .channels = 3072, .inner = 8192, .positions = 4096, .has_head_size = true,
    .norm_eps = 1e-5, .partial = "partial_rotary_factor", .window = DSC_WINDOW_ALL, .window_default = DSC_WINDOW_OFF,
    .one_window = true, .dropouts = { "resid_pdrop", "embd_pdrop" }
};

static const char *const lora_layers[] = { "qkv_proj", NULL };

const dsc_lm_family dsc_phi3_family = { DSC_DECODER_BY_TRAITS("phi3", traits), .norm = DSC_NORM_RMS,
                                        .lora_layers = lora_layers };
