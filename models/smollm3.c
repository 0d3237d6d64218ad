/* smollm3.c - SmolLM3 (Hugging Face 2025): Llama's block, of which some layers have no rotary positions.
 * SPDX-License-Identifier: Apache-2.0 */
#include "models/decoder.h"

/* no_rope_layers has 1 for a layer that turns; without it each no_rope_layer_interval-th layer does not. */
static dsc_status read_unturned(dsc_hf_config *reader, dsc_decoder_config *config)
{
    const cJSON *list = dsc_hf_field(reader, "no_rope_layers"), *item = NULL;
    const int64_t layers = config->lm.layers;
    int64_t interval = 4, layer = 0;
    DSC_TRY(dsc_hf_int(reader, "no_rope_layer_interval", DSC_LM_LAYERS_MAX, 4, &interval));
    for (int64_t i = 0; i < layers; i++)
        config->unturned[i] = (i + 1) % interval == 0;
    if (list == NULL)
        return DSC_OK;
    (void)dsc_hf_field(reader, "no_rope_layers");
    if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) < layers)
        return DSC_HF_REFUSE(reader, DSC_ERR_INPUT, "\"no_rope_layers\" must be a list of %lld numbers, 0 or 1 for "
                             "each layer", (long long)layers);
    cJSON_ArrayForEach(item, list) {
        int64_t turns = 0;
        if (!dsc_json_integer(item, 0, 1, &turns))
            return DSC_HF_REFUSE(reader, DSC_ERR_INPUT, "\"no_rope_layers\" must have 0 or 1 for each layer");
        if (layer < layers)
            config->unturned[layer++] = turns == 0;
    }
    return DSC_OK;
}

/* With use_sliding_window the layers that do not turn have a window, unless layer_types says which. */
static dsc_status read_more(dsc_hf_config *reader, dsc_decoder_config *config)
{
    dsc_lm_config *lm = &config->lm;
    int64_t window = 0;
    bool used = false, sliding;
    DSC_TRY(read_unturned(reader, config));
    DSC_TRY(dsc_hf_bool(reader, "use_sliding_window", false, &used));
    DSC_TRY(dsc_hf_int_or_null(reader, "sliding_window", INT32_MAX, 0, &window));
    used = used && window > 0;
    for (int64_t i = 0; i < lm->layers; i++)
        lm->full[i] = !config->unturned[i];
    DSC_TRY(dsc_decoder_read_layer_types(reader, lm->layers, "sliding_attention", lm->full, &sliding));
    if (used && window < lm->positions)
        lm->window = window;
    return DSC_OK;
}

static const dsc_decoder_traits traits = {
    .activation = DSC_SILU, .family = &dsc_smollm3_family, .vocab = 128256, .layers = 36, .channels = 2048, .heads = 16,
    .kv_heads = 4, .inner = 11008, .positions = 32768, .has_head_size = true, .attention_bias = true, .mlp_bias = true,
    .tied = true, .theta = 2000000, .read_more = read_more
};

const dsc_lm_family dsc_smollm3_family = { DSC_DECODER_RMS("smollm3", traits) };
