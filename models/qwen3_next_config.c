/* qwen3_next_config.c - config.json of Qwen3-Next and Qwen3.5 as Hugging Face writes it.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "kernels/conv.h"
#include "kernels/delta.h"
#include "models/qwen3_next.h"

/* Which layers have linear attention: those that layer_types names, or without it all but each
 * full_attention_interval-th. */
static dsc_status read_layers(dsc_hf_config *reader, dsc_qwen3_next_config *out)
{
    const int64_t layers = out->moe.decoder.lm.layers;
    const cJSON *item = NULL;
    int64_t every = 4, layer = 0;
    DSC_TRY(dsc_hf_int(reader, "full_attention_interval", DSC_LM_LAYERS_MAX, 4, &every));
    for (int64_t i = 0; i < layers; i++)
        out->linear[i] = (i + 1) % every != 0;
    const cJSON *types = dsc_hf_field(reader, "layer_types");
    if (types == NULL)
        return DSC_OK;
    if (!cJSON_IsArray(types) || cJSON_GetArraySize(types) != layers)
        return DSC_HF_REFUSE(reader, DSC_ERR_INPUT, "\"layer_types\" must be a list of %lld kinds, one for each layer",
                             (long long)layers);
    cJSON_ArrayForEach(item, types)
    {
        const char *name = cJSON_IsString(item) ? item->valuestring : "";
        out->linear[layer] = strcmp(name, "linear_attention") == 0;
        if (!out->linear[layer++] && strcmp(name, "full_attention") != 0)
            return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED,
                                 "a kind of layer in \"layer_types\" is not built; what "
                                 "exists: full_attention, linear_attention");
    }
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

/* Keys of published files that transformers does not read: it has one mathematics for them. */
static dsc_status read_fixed(dsc_hf_config *reader)
{
    static const char *const without_effect[] = { "mamba_ssm_dtype", "mtp_num_hidden_layers",
                                                  "mtp_use_dedicated_embeddings", "max_window_layers" };
    bool gated = true;
    for (size_t i = 0; i < DSC_COUNT(without_effect); i++)
        (void)dsc_hf_field(reader, without_effect[i]);
    DSC_TRY(dsc_hf_bool(reader, "attn_output_gate", true, &gated));
    if (!gated)
        return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED,
                             "\"attn_output_gate\": false is not built; what exists: true");
    return DSC_OK;
}

dsc_status dsc_qwen3_next_read_config(dsc_hf_config *reader, dsc_lm_config *lm, const dsc_qwen3_next_traits *traits)
{
    dsc_qwen3_next_config *out = (dsc_qwen3_next_config *)(void *)lm;
    if (traits->experts) {
        DSC_TRY(dsc_moe_read_config(reader, lm, &traits->moe));
    } else {
        DSC_TRY(dsc_decoder_read_config(reader, lm, &traits->moe.decoder));
        for (int64_t i = 0; i < lm->layers; i++)
            out->moe.dense[i] = true;
    }
    out->traits = traits;
    lm->norm_plus_one = true;
    DSC_TRY(read_layers(reader, out));
    DSC_TRY(read_linear(reader, out));
    return read_fixed(reader);
}
