/* qwen3_next_config.c - config.json of Qwen3-Next and Qwen3.5 as Hugging Face writes it.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/conv.h"
#include "kernels/delta.h"
#include "models/qwen3_next.h"

/* Which layers have linear attention: those that layer_types names, or without it all but each
 * full_attention_interval-th. */
static dsc_status read_layers(dsc_hf_config *reader, dsc_qwen3_next_config *out)
{
    const int64_t layers = out->moe.decoder.lm.layers;
    bool full[DSC_LM_LAYERS_MAX], any = false;
    int64_t every = 4;
    DSC_TRY(dsc_hf_int(reader, "full_attention_interval", DSC_LM_LAYERS_MAX, 4, &every));
    for (int64_t i = 0; i < layers; i++)
        out->linear[i] = (i + 1) % every != 0;
    if (dsc_hf_field(reader, "layer_types") == NULL)
        return DSC_OK;
    DSC_TRY(dsc_decoder_read_layer_types(reader, layers, "linear_attention", full, &any));
    for (int64_t i = 0; i < layers; i++)
        out->linear[i] = !full[i];
    return DSC_OK;
}

static dsc_status read_linear(dsc_hf_config *reader, dsc_qwen3_next_config *out)
{
    dsc_op_delta *of = &out->delta;
    int64_t width = 0;
    DSC_TRY(dsc_hf_int(reader, "linear_conv_kernel_dim", DSC_CONV_WIDTH_MAX, 4, &width));
    DSC_TRY(dsc_hf_int(reader, "linear_key_head_dim", DSC_DELTA_SIZE_MAX, 128, &of->key_size));
    DSC_TRY(dsc_hf_int(reader, "linear_value_head_dim", DSC_DELTA_SIZE_MAX, 128, &of->value_size));
    DSC_TRY(dsc_hf_int(reader, "linear_num_key_heads", 4096, 16, &of->key_heads));
    DSC_TRY(dsc_hf_int(reader, "linear_num_value_heads", 4096, 32, &of->value_heads));
    out->conv_width = (int32_t)width;
    if (of->value_heads % of->key_heads != 0)
        return DSC_HF_REFUSE(reader, DSC_ERR_INPUT,
                             "\"linear_num_value_heads\" %lld is not a multiple of \"linear_num_key_heads\" %lld",
                             (long long)of->value_heads, (long long)of->key_heads);
    return DSC_OK;
}

dsc_status dsc_qwen3_next_read(dsc_hf_config *reader, dsc_lm_config *lm)
{
    /* Keys of published files that transformers does not read: it has one mathematics for them. */
    static const char *const without_effect[] = { "mamba_ssm_dtype", "mtp_num_hidden_layers",
                                                  "mtp_use_dedicated_embeddings", "max_window_layers", NULL };
    dsc_qwen3_next_config *out = (dsc_qwen3_next_config *)(void *)lm;
    out->traits = reader->traits;
    DSC_TRY(dsc_moe_read(reader, lm));
    for (int64_t i = 0; i < lm->layers && out->moe.rule.experts == 0; i++)
        out->moe.dense[i] = true;
    lm->norm_plus_one = true;
    DSC_TRY(read_layers(reader, out));
    DSC_TRY(read_linear(reader, out));
    dsc_hf_skip(reader, without_effect);
    return dsc_hf_only(reader, "attn_output_gate", true);
}
