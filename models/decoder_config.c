/* decoder_config.c - config.json of decoders with rotary positions as Hugging Face writes it.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "models/decoder.h"

static int64_t or_else(int64_t given, int64_t usual) { return given > 0 ? given : usual; }
static double or_else_number(double given, double usual) { return given > 0 ? given : usual; }

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

static dsc_status read_heads(dsc_hf_config *reader, dsc_decoder_config *out)
{
    const dsc_decoder_traits *traits = out->traits;
    DSC_TRY(dsc_hf_int(reader, "num_attention_heads", DSC_LM_CHANNELS_MAX, or_else(traits->heads, 32), &out->heads));
    /* null is as many as query heads; only a key that is not there has the family's default. */
    const bool named = cJSON_GetObjectItemCaseSensitive(reader->object, "num_key_value_heads") != NULL;
    DSC_TRY(dsc_hf_int_or_null(reader, "num_key_value_heads", DSC_LM_CHANNELS_MAX,
                               named || traits->kv_heads == 0 ? out->heads : traits->kv_heads, &out->kv_heads));
    if (out->heads % out->kv_heads != 0)
        return DSC_HF_REFUSE(reader, DSC_ERR_INPUT,
                             "\"num_attention_heads\" %lld is not a multiple of \"num_key_value_heads\" %lld",
                             (long long)out->heads, (long long)out->kv_heads);
    int64_t size = 0;
    if (traits->head_size > 0)
        DSC_TRY(dsc_hf_int(reader, traits->head_size_key != NULL ? traits->head_size_key : "head_dim",
                           DSC_DECODER_HEAD_MAX, traits->head_size, &size));
    else /* transformers asks for the key in families too whose configs have no such member */
        DSC_TRY(dsc_hf_int_or_null(reader, "head_dim", DSC_DECODER_HEAD_MAX, 0, &size));
    if (size > 0) {
        out->head_size = size;
    } else {
        out->head_size = out->lm.channels / out->heads;
        if (out->lm.channels % out->heads != 0)
            return DSC_HF_REFUSE(reader, DSC_ERR_INPUT,
                                 "\"hidden_size\" %lld is not a multiple of \"num_attention_heads\" %lld",
                                 (long long)out->lm.channels, (long long)out->heads);
    }
    if (out->head_size % 2 != 0 || out->head_size > DSC_DECODER_HEAD_MAX)
        return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED,
                             "heads of %lld elements are not built; what exists: even "
                             "sizes up to %d",
                             (long long)out->head_size, DSC_DECODER_HEAD_MAX);
    return DSC_OK;
}

static dsc_status read_sizes(dsc_hf_config *reader, dsc_decoder_config *out)
{
    const dsc_decoder_traits *traits = out->traits;
    dsc_lm_config *lm = &out->lm;
    DSC_TRY(dsc_hf_int(reader, "vocab_size", DSC_LM_VOCAB_MAX, traits->vocab, &lm->vocab));
    DSC_TRY(dsc_hf_int(reader, "max_position_embeddings", DSC_LM_POSITIONS_MAX, traits->positions, &lm->positions));
    DSC_TRY(dsc_hf_int(reader, "num_hidden_layers", DSC_LM_LAYERS_MAX, or_else(traits->layers, 32), &lm->layers));
    DSC_TRY(dsc_hf_int(reader, "hidden_size", DSC_LM_CHANNELS_MAX, or_else(traits->channels, 4096), &lm->channels));
    DSC_TRY(dsc_hf_int(reader, "intermediate_size", DSC_LM_INNER_MAX, traits->inner, &out->inner));
    return read_heads(reader, out);
}

dsc_status dsc_decoder_read_layer_types(dsc_hf_config *reader, int64_t layers, const char *other, bool *full, bool *any)
{
    const cJSON *types = dsc_hf_field(reader, "layer_types"), *type = NULL;
    int64_t layer = 0;
    *any = false;
    if (types == NULL)
        return DSC_OK;
    if (!cJSON_IsArray(types) || cJSON_GetArraySize(types) != layers)
        return DSC_HF_REFUSE(reader, DSC_ERR_INPUT, "\"layer_types\" must be a list of %lld kinds, one for each layer",
                             (long long)layers);
    cJSON_ArrayForEach(type, types)
    {
        const char *name = cJSON_IsString(type) ? type->valuestring : "";
        full[layer] = strcmp(name, "full_attention") == 0;
        if (!full[layer] && strcmp(name, other) != 0)
            return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED,
                                 "a kind of layer in \"layer_types\" is not built; what exists: full_attention, %s",
                                 other);
        *any |= !full[layer++];
    }
    return DSC_OK;
}

/* Which layers have a window: those that "layer_types" names, or without it those from `first` on but for each
 * `full_every`-th (0: none). `off`: the reason
 * why none has one; NULL: there is none. */
static dsc_status read_layers(dsc_hf_config *reader, dsc_decoder_config *config, double first, const char *off,
                              bool *on)
{
    dsc_lm_config *lm = &config->lm;
    int64_t full_every = config->traits->full_every;
    bool sliding = false;
    if (config->traits->full_every_key != NULL)
        DSC_TRY(dsc_hf_int(reader, config->traits->full_every_key, DSC_LM_LAYERS_MAX, full_every, &full_every));
    *on = off == NULL && first < (double)lm->layers;
    for (int64_t layer = 0; layer < lm->layers; layer++)
        lm->full[layer] = (double)layer < first || (full_every > 0 && (layer + 1) % full_every == 0);
    if (config->traits->one_window || dsc_hf_field(reader, "layer_types") == NULL) {
        (void)dsc_hf_field(reader, "sliding_window");
        if (off != NULL && full_every > 1)
            return DSC_HF_REFUSE(reader, DSC_ERR_INPUT,
                                 "\"sliding_window\" must be a whole number: without \"layer_types\" most layers have "
                                 "a window");
        return DSC_OK;
    }
    DSC_TRY(dsc_decoder_read_layer_types(reader, lm->layers, "sliding_attention", lm->full, &sliding));
    if (sliding && off != NULL)
        return DSC_HF_REFUSE(reader, DSC_ERR_INPUT,
                             "\"layer_types\" has sliding_attention, but %s that there is no "
                             "window",
                             off);
    *on = sliding;
    return DSC_OK;
}

/* A window that no text reaches the end of changes nothing: a token sees itself and the window - 1 before it. */
static dsc_status read_window(dsc_hf_config *reader, dsc_decoder_config *out)
{
    const char *off = out->traits->window == DSC_WINDOW_NONE ? "\"model_type\" says" : NULL;
    double first = 0;
    int64_t window = 0;
    bool on = true;
    if (out->traits->own_layer_types)
        return DSC_OK;
    if (off == NULL) {
        const int64_t usual = out->traits->window_default;
        DSC_TRY(dsc_hf_int_or_null(reader, "sliding_window", INT32_MAX, usual != 0 ? usual : 4096, &window));
        const bool null = cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(reader->object, "sliding_window"));
        off = null || window == DSC_WINDOW_OFF ? "\"sliding_window\" says" : NULL;
    }
    if (out->traits->window == DSC_WINDOW_IF_USED) {
        DSC_TRY(dsc_hf_bool(reader, "use_sliding_window", false, &on));
        DSC_TRY(dsc_hf_number(reader, "max_window_layers", (dsc_hf_range) { 0, 1e9 }, 28, &first));
        const cJSON *item = dsc_hf_field(reader, "max_window_layers");
        if (item != NULL && !dsc_json_integer(item, 0, INT32_MAX, &(int64_t) { 0 }))
            return DSC_HF_REFUSE(reader, DSC_ERR_INPUT, "\"max_window_layers\" must be a whole number from 0 to %d",
                                 INT32_MAX);
        off = on ? off : "\"use_sliding_window\" says";
    }
    DSC_TRY(read_layers(reader, out, first, off, &on));
    if (on && window < out->lm.positions)
        out->lm.window = window;
    return DSC_OK;
}

/* ---- config.json ------------------------------------------------------------------------------------------------- */

static dsc_status read_biases(dsc_hf_config *reader, dsc_decoder_config *out)
{
    bool attention = false;
    if (out->traits->attention_bias)
        DSC_TRY(dsc_hf_bool(reader, "attention_bias", false, &attention));
    if (out->traits->mlp_bias)
        DSC_TRY(dsc_hf_bool(reader, "mlp_bias", false, &out->mlp_bias));
    out->qkv_bias = out->traits->qkv_bias || attention;
    out->out_bias = attention;
    return DSC_OK;
}

/* One length of texts can change the positions, so both kinds of layers must have the same or one of them none. */
static dsc_status read_rope_layers(dsc_hf_config *reader, const dsc_rope_keys *keys, dsc_decoder_config *out)
{
    dsc_rope ropes[DSC_DECODER_ROPES];
    DSC_TRY(dsc_rope_read_layers(reader, keys, out->traits->rope_layers, DSC_DECODER_ROPES, ropes));
    const int64_t longest[] = { dsc_rope_short_positions(&ropes[0]), dsc_rope_short_positions(&ropes[1]) };
    out->rope = ropes[0];
    out->sliding_rope = ropes[1];
    out->lm.short_positions = dsc_max_i64(longest[0], longest[1]);
    if (longest[0] > 0 && longest[1] > 0 && longest[0] != longest[1])
        return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED,
                             "\"original_max_position_embeddings\" %lld and %lld of two kinds of layers are not "
                             "built; what exists: the same",
                             (long long)longest[0], (long long)longest[1]);
    return DSC_OK;
}

static dsc_status read_rope(dsc_hf_config *reader, dsc_decoder_config *out)
{
    const dsc_decoder_traits *traits = out->traits;
    const dsc_rope_keys keys = { .theta = "rope_theta",
                                 .theta_default = or_else_number(traits->theta, 10000),
                                 .partial = traits->partial,
                                 .partial_default = or_else_number(traits->partial_default, 1),
                                 .positions = out->lm.positions,
                                 .head_size = out->head_size,
                                 .neighbours = traits->rope_neighbours };
    if (traits->rope_layers != NULL)
        return read_rope_layers(reader, &keys, out);
    DSC_TRY(dsc_rope_read(reader, &keys, &out->rope));
    out->lm.short_positions = dsc_rope_short_positions(&out->rope);
    return DSC_OK;
}

/* Hugging Face's names; some functions have several. */
dsc_status dsc_decoder_read_activation(dsc_hf_config *reader, const char *key, dsc_activation fallback,
                                       dsc_activation *out)
{
    static const char *const names[] = {
        "silu", "swish", "gelu", "gelu_python", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "relu", "relu2"
    };
    static const dsc_activation kinds[] = { DSC_SILU,      DSC_SILU,      DSC_GELU_ERF, DSC_GELU_ERF, DSC_GELU_TANH,
                                            DSC_GELU_TANH, DSC_GELU_TANH, DSC_RELU,     DSC_RELU2 };
    int32_t index = 0;
    const bool given = dsc_hf_field(reader, key) != NULL;
    DSC_TRY(dsc_hf_choice(reader, key, names, DSC_COUNT(names), &index));
    *out = given ? kinds[index] : fallback;
    return DSC_OK;
}

/* Dropout is off; one warning has all keys. */
static dsc_status read_dropouts(dsc_hf_config *reader, const dsc_decoder_traits *traits)
{
    const char *const keys[] = { "attention_dropout", traits->dropouts[0], traits->dropouts[1], traits->dropouts[2] };
    char list[200] = "";
    for (size_t i = 0; i < DSC_COUNT(keys); i++) {
        double dropout = 0;
        if (keys[i] == NULL)
            continue;
        DSC_TRY(dsc_hf_number(reader, keys[i], (dsc_hf_range) { 0, 1 }, 0, &dropout));
        const size_t used = strlen(list);
        if (dropout > 0)
            snprintf(list + used, sizeof list - used, "%s%s %g", used > 0 ? ", " : "", keys[i], dropout);
    }
    if (list[0] != 0)
        dsc_hf_warn(reader->warnings, reader->warnings_bytes, "the model's dropout is off (config.json: %s)", list);
    return DSC_OK;
}

dsc_status dsc_decoder_read(dsc_hf_config *reader, dsc_lm_config *lm)
{
    static const dsc_hf_range eps = { 1e-30, 1 };
    const dsc_decoder_traits *traits = reader->traits;
    dsc_decoder_config *out = (dsc_decoder_config *)(void *)lm;
    out->traits = traits;
    DSC_TRY(read_sizes(reader, out));
    DSC_TRY(dsc_hf_number(reader, traits->norm_key != NULL ? traits->norm_key : "rms_norm_eps", eps,
                          or_else_number(traits->norm_eps, 1e-6), &lm->norm_eps));
    DSC_TRY(dsc_hf_number(reader, "initializer_range", (dsc_hf_range) { 0, 1000 },
                          or_else_number(traits->init_std, 0.02), &lm->init_std));
    DSC_TRY(dsc_hf_bool(reader, "tie_word_embeddings", traits->tied, &lm->tied));
    DSC_TRY(dsc_decoder_read_activation(reader, traits->activation_key != NULL ? traits->activation_key : "hidden_act",
                                        traits->activation, &out->activation));
    DSC_TRY(read_biases(reader, out));
    DSC_TRY(read_window(reader, out));
    DSC_TRY(dsc_lm_read_padding(reader, traits->has_padding ? traits->padding : -1, lm));
    DSC_TRY(read_rope(reader, out));
    DSC_TRY(read_dropouts(reader, traits));
    return traits->read_more != NULL ? traits->read_more(reader, out) : DSC_OK;
}

/* The keys that only some families have. */
static void write_traits(const dsc_decoder_config *config, char *out, size_t bytes)
{
    const dsc_decoder_traits *traits = config->traits;
    int used = 0;
    out[0] = 0;
    if (traits->has_head_size)
        used += snprintf(out + used, bytes - (size_t)used, "  \"head_dim\": %lld,\n", (long long)config->head_size);
    if (traits->attention_bias)
        used += snprintf(out + used, bytes - (size_t)used, "  \"attention_bias\": %s,\n",
                         config->out_bias ? "true" : "false");
    if (traits->mlp_bias)
        used +=
            snprintf(out + used, bytes - (size_t)used, "  \"mlp_bias\": %s,\n", config->mlp_bias ? "true" : "false");
    if (traits->window != DSC_WINDOW_ALL) /* those that have a switch have it off */
        return;
    if (config->lm.window > 0)
        snprintf(out + used, bytes - (size_t)used, "  \"sliding_window\": %lld,\n", (long long)config->lm.window);
    else
        snprintf(out + used, bytes - (size_t)used, "  \"sliding_window\": null,\n");
}

int dsc_decoder_write_config(const dsc_lm_config *lm, char *out, size_t bytes)
{
    const dsc_decoder_config *config = (const dsc_decoder_config *)(const void *)lm;
    char eps[32], std[32], theta[32], rope[DSC_ROPE_TEXT_BYTES], traits[300], padding[32];
    dsc_rope_write(&config->rope, rope, sizeof rope);
    write_traits(config, traits, sizeof traits);
    return snprintf(out, bytes,
                    "{\n  \"architectures\": [\"%s\"],\n  \"model_type\": \"%s\",\n  \"hidden_act\": \"silu\",\n"
                    "  \"vocab_size\": %lld,\n  \"max_position_embeddings\": %lld,\n  \"hidden_size\": %lld,\n"
                    "  \"intermediate_size\": %lld,\n  \"num_hidden_layers\": %lld,\n  \"num_attention_heads\": %lld,\n"
                    "  \"num_key_value_heads\": %lld,\n%s  \"rms_norm_eps\": %s,\n  \"initializer_range\": %s,\n"
                    "  \"attention_dropout\": 0.0,\n  \"rope_theta\": %s,\n  \"rope_scaling\": %s,\n"
                    "  \"pad_token_id\": %s,\n  \"tie_word_embeddings\": %s\n}\n",
                    config->traits->architecture, config->traits->family->model_type, (long long)lm->vocab_rows,
                    (long long)lm->positions, (long long)lm->channels, (long long)config->inner, (long long)lm->layers,
                    (long long)config->heads, (long long)config->kv_heads, traits,
                    dsc_hf_number_text(lm->norm_eps, eps, sizeof eps),
                    dsc_hf_number_text(lm->init_std, std, sizeof std),
                    dsc_hf_number_text(config->rope.theta, theta, sizeof theta), rope,
                    dsc_lm_padding_text(lm, padding, sizeof padding), lm->tied ? "true" : "false");
}
