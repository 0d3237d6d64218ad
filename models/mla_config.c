/* mla_config.c - config.json's keys of attention by latents. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "models/moe.h"

/* The factor of scores grows with YaRN's, once for queries and once for keys. */
static double scale_of(const dsc_rope *rope, int64_t columns)
{
    const bool longer = rope->kind != DSC_ROPE_DEFAULT && rope->mscale_all_dim > 0 && rope->factor > 1;
    const double temperature = longer ? 0.1 * rope->mscale_all_dim * log(rope->factor) + 1 : 1;
    return temperature * temperature / sqrt((double)columns);
}

dsc_status dsc_mla_read(dsc_hf_config *reader, dsc_decoder_config *config, dsc_mla *mla)
{
    const bool named = cJSON_GetObjectItemCaseSensitive(reader->object, "q_lora_rank") != NULL;
    DSC_TRY(dsc_hf_int_or_null(reader, "q_lora_rank", DSC_LM_CHANNELS_MAX, named ? 0 : 1536, &mla->q_latent));
    DSC_TRY(dsc_hf_int(reader, "kv_lora_rank", DSC_LM_CHANNELS_MAX, 512, &mla->kv_latent));
    DSC_TRY(dsc_hf_int(reader, "v_head_dim", DSC_DECODER_HEAD_MAX, 128, &mla->value));
    DSC_TRY(dsc_hf_int(reader, "qk_nope_head_dim", DSC_DECODER_HEAD_MAX, 128, &mla->plain));
    mla->heads = config->heads, mla->turned = config->head_size;
    mla->latent_bias = config->qkv_bias, mla->out_bias = config->out_bias;
    mla->latent_eps = 1e-6;
    const int64_t size = mla->plain + mla->turned, width = size > mla->value ? size : mla->value;
    mla->scale = scale_of(&config->rope, size);
    if (width % 2 != 0 || width > DSC_DECODER_HEAD_MAX)
        return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED,
                             "\"qk_nope_head_dim\" %lld, \"qk_rope_head_dim\" %lld and \"v_head_dim\" %lld make heads "
                             "of %lld elements, which are not built; what exists: even sizes up to %d",
                             (long long)mla->plain, (long long)mla->turned, (long long)mla->value, (long long)width,
                             DSC_DECODER_HEAD_MAX);
    (void)dsc_hf_field(reader, "head_dim"); /* newer files have that of the turned part again */
    (void)dsc_hf_field(reader, "num_key_value_heads");
    if (config->kv_heads != config->heads)
        return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED,
                             "\"num_key_value_heads\" %lld beside \"num_attention_heads\" %lld is not built for latent "
                             "attention; what exists: the same number",
                             (long long)config->kv_heads, (long long)config->heads);
    return DSC_OK;
}
