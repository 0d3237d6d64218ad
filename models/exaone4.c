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
    .full_every = 4, .read_more = read_more
};

static void emit_block(dsc_program *program, const dsc_lm_config *base, int64_t layer)
{
    const dsc_decoder_config *config = dsc_decoder_config_of(base);
    const dsc_block block = dsc_decoder_block(program, config);
    const dsc_block_attention attention = dsc_decoder_attention(config, layer);
    const dsc_block_mlp mlp = dsc_decoder_mlp(config);
    dsc_step step =
        dsc_block_begin(&block, program->input, &(dsc_step_norms) { .behind = "post_attention_layernorm" });
    const int16_t x = dsc_block_end(&block, &step, dsc_block_attend(&block, step.in, &attention), step.x);
    step = dsc_block_begin(&block, x, &(dsc_step_norms) { .behind = "post_feedforward_layernorm" });
    dsc_program_end(program, dsc_block_end(&block, &step, dsc_block_feed(&block, step.in, &mlp), x));
}

const dsc_lm_family dsc_exaone4_family = { DSC_DECODER_BY_TRAITS("exaone4", traits), .norm = DSC_NORM_RMS,
                                           .emit_block = emit_block, .lora_layers = dsc_decoder_lora_layers };
