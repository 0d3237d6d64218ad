/* gemma.c - Gemma (Gemma team 2024) and CodeGemma; Gemma 2 and Gemma 3, which have four norms in a block and windows.
 * SPDX-License-Identifier: Apache-2.0 */
#include "models/decoder.h"

#include <math.h>
#include <string.h>

/* Norms with the factor 1 + weight, and rows of the token table times the root of their width. */
static void set_gemma(dsc_decoder_config *config)
{
    config->lm.norm_plus_one = true;
    config->lm.embed_scale = sqrt((double)config->lm.channels);
    config->lm.embed_scale_rounded = true;
}

/* ---- Gemma ------------------------------------------------------------------------------------------------------- */

/* "gelu" means its tanh form there, as transformers reads the key. */
static dsc_status read_more(dsc_hf_config *reader, dsc_decoder_config *config)
{
    set_gemma(config);
    (void)dsc_hf_field(reader, "hidden_activation"); /* which transformers does not read */
    const cJSON *item = dsc_hf_field(reader, "hidden_act");
    if (cJSON_IsString(item) && strcmp(item->valuestring, "gelu") == 0)
        config->activation = DSC_GELU_TANH;
    return DSC_OK;
}

#define GEMMA_TRAITS                                                                                                   \
    .head_size = 256, .attention_bias = true, .tied = true, .has_padding = true, .activation = DSC_GELU_TANH

static const dsc_decoder_traits gemma_traits = {
    GEMMA_TRAITS, .family = &dsc_gemma_family, .vocab = 256000, .layers = 28, .channels = 3072, .heads = 16,
    .kv_heads = 16, .inner = 24576, .positions = 8192, .read_more = read_more
};

const dsc_lm_family dsc_gemma_family = { DSC_DECODER_RMS("gemma", gemma_traits) };

/* ---- Gemma 2 and 3 ----------------------------------------------------------------------------------------------- */

/* null: no cap. */
static dsc_status read_cap(dsc_hf_config *reader, const char *key, double usual, double *out)
{
    static const dsc_hf_range caps = { 1e-3, 1e6 };
    const bool named = cJSON_GetObjectItemCaseSensitive(reader->object, key) != NULL;
    return dsc_hf_number_or_null(reader, key, caps, named ? 0 : usual, out);
}

static dsc_status read_scalar(dsc_hf_config *reader, dsc_decoder_config *config)
{
    int64_t scalar = 0;
    DSC_TRY(dsc_hf_int(reader, "query_pre_attn_scalar", INT32_MAX, 256, &scalar));
    config->attention_scale = 1 / sqrt((double)scalar);
    return DSC_OK;
}

static dsc_status read_more2(dsc_hf_config *reader, dsc_decoder_config *config)
{
    set_gemma(config);
    DSC_TRY(read_cap(reader, "attn_logit_softcapping", 50, &config->attention_softcap));
    DSC_TRY(read_cap(reader, "final_logit_softcapping", 30, &config->lm.logit_softcap));
    return read_scalar(reader, config);
}

/* A cap of attention is refused: transformers has the key, but its Gemma 3 does not use it. */
static dsc_status read_more3(dsc_hf_config *reader, dsc_decoder_config *config)
{
    set_gemma(config);
    (void)dsc_hf_field(reader, "_sliding_window_pattern"); /* newer files' copy of what layer_types says */
    DSC_TRY(read_cap(reader, "final_logit_softcapping", 0, &config->lm.logit_softcap));
    return read_scalar(reader, config);
}

#define GEMMA2_TRAITS                                                                                                  \
    GEMMA_TRAITS, .layers = 26, .channels = 2304, .heads = 8, .kv_heads = 4, .inner = 9216, .window = DSC_WINDOW_ALL,  \
        .activation_key = "hidden_activation",                                                                         \
        .steps = { { .before = "input_layernorm", .behind = "post_attention_layernorm" },                              \
                   { .before = "pre_feedforward_layernorm", .behind = "post_feedforward_layernorm" } }

static const dsc_decoder_traits gemma2_traits = {
    GEMMA2_TRAITS, .family = &dsc_gemma2_family, .vocab = 256000, .positions = 8192, .full_every = 2,
    .read_more = read_more2
};

static const dsc_rope_layer gemma3_ropes[DSC_DECODER_ROPES] = {
    { "full_attention", "rope_theta", .theta_default = 1000000, .scaled = true },
    { "sliding_attention", "rope_local_base_freq", .theta_default = 10000 }
};

static const dsc_decoder_traits gemma3_traits = {
    GEMMA2_TRAITS, .family = &dsc_gemma3_family, .vocab = 262208, .positions = 131072, .head_norm = true,
    .full_every = 6, .full_every_key = "sliding_window_pattern", .rope_layers = gemma3_ropes, .read_more = read_more3
};

const dsc_lm_family dsc_gemma2_family = { DSC_DECODER_RMS("gemma2", gemma2_traits) };
const dsc_lm_family dsc_gemma3_family = { DSC_DECODER_RMS("gemma3_text", gemma3_traits) };
