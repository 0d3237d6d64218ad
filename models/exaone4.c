/* exaone4.c - EXAONE 4.0 (LG AI Research 2025): norms behind the parts of a block and of each head. Beside layers with
 * a window, those without one do not turn. SPDX-License-Identifier: Apache-2.0 */
#include "models/decoder.h"

/* Without layer_types each so many layers one has no window. The text form, as "LLLG", needs layer_types in Hugging
 * Face's code too. */
static dsc_status read_pattern(dsc_hf_config *reader, dsc_decoder_config *config)
{
    const bool listed = dsc_hf_field(reader, "layer_types") != NULL;
    const cJSON *item = dsc_hf_field(reader, "sliding_window_pattern");
    int64_t every = 4;
    if (listed)
        return DSC_OK;
    DSC_TRY(dsc_hf_int_or_null(reader, "sliding_window_pattern", DSC_LM_LAYERS_MAX, 4, &every));
    if (item == NULL && cJSON_GetObjectItemCaseSensitive(reader->object, "sliding_window_pattern") != NULL)
        return DSC_HF_REFUSE(reader, DSC_ERR_INPUT, "\"sliding_window_pattern\" null needs \"layer_types\"");
    for (int64_t i = 0; i < config->lm.layers; i++)
        config->lm.full[i] = (i + 1) % every == 0;
    return DSC_OK;
}

static dsc_status read_more(dsc_hf_config *reader, dsc_decoder_config *config)
{
    const cJSON *window = cJSON_GetObjectItemCaseSensitive(reader->object, "sliding_window");
    const bool mixed = window == NULL || !cJSON_IsNull(window);
    if (mixed)
        DSC_TRY(read_pattern(reader, config));
    else
        (void)dsc_hf_field(reader, "sliding_window_pattern"); /* has no effect */
    for (int64_t i = 0; i < config->lm.layers; i++)
        config->unturned[i] = mixed && config->lm.full[i];
    return DSC_OK;
}

static const dsc_decoder_traits traits = {
    .activation = DSC_SILU, .family = &dsc_exaone4_family, .vocab = 102400, .kv_heads = 32, .inner = 16384,
    .positions = 2048, .has_head_size = true, .head_norm = true, .norm_eps = 1e-5, .window = DSC_WINDOW_ALL,
    .full_every = 4, .steps = { { .behind = "post_attention_layernorm" }, { .behind = "post_feedforward_layernorm" } },
    .read_more = read_more
};

const dsc_lm_family dsc_exaone4_family = { DSC_DECODER_RMS("exaone4", traits) };
