/* llama_config.c - config.json of Llama, Mistral and Qwen as Hugging Face writes it.
 *
 * Rotary positions are read as older versions wrote them ("rope_theta" and "rope_scaling") and as newer ones do
 * ("rope_parameters"), and written in the older way, which both read. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "models/llama.h"

static const char *const rope_names[] = { [DSC_ROPE_DEFAULT] = "default", [DSC_ROPE_LINEAR] = "linear",
                                          [DSC_ROPE_DYNAMIC] = "dynamic", [DSC_ROPE_LLAMA3] = "llama3",
                                          [DSC_ROPE_YARN] = "yarn" };

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

static dsc_status read_heads(dsc_hf_config *reader, dsc_llama_config *out)
{
    const dsc_llama_traits *traits = out->traits;
    DSC_TRY(dsc_hf_int(reader, "num_attention_heads", DSC_LM_CHANNELS_MAX, 32, &out->heads));
    /* null is as many as query heads; only a key that is not there has the family's default. */
    const bool named = cJSON_GetObjectItemCaseSensitive(reader->object, "num_key_value_heads") != NULL;
    DSC_TRY(dsc_hf_int(reader, "num_key_value_heads", DSC_LM_CHANNELS_MAX,
                       named || traits->kv_heads == 0 ? out->heads : traits->kv_heads, &out->kv_heads));
    if (out->heads % out->kv_heads != 0)
        return DSC_HF_REFUSE(reader, DSC_ERR_INPUT,
                             "\"num_attention_heads\" %lld is not a multiple of \"num_key_value_heads\" %lld",
                             (long long)out->heads, (long long)out->kv_heads);
    int64_t size = 0;
    if (traits->has_head_size)
        DSC_TRY(dsc_hf_int(reader, "head_dim", DSC_LLAMA_HEAD_MAX, dsc_max_i64(1, traits->head_size), &size));
    if (traits->has_head_size && (traits->head_size > 0 || dsc_hf_field(reader, "head_dim") != NULL)) {
        out->head_size = size;
    } else {
        out->head_size = out->lm.channels / out->heads;
        if (out->lm.channels % out->heads != 0)
            return DSC_HF_REFUSE(reader, DSC_ERR_INPUT,
                                 "\"hidden_size\" %lld is not a multiple of \"num_attention_heads\" %lld",
                                 (long long)out->lm.channels, (long long)out->heads);
    }
    if (out->head_size % 2 != 0 || out->head_size > DSC_LLAMA_HEAD_MAX)
        return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED, "heads of %lld elements are not built; what exists: even "
                             "sizes up to %d", (long long)out->head_size, DSC_LLAMA_HEAD_MAX);
    return DSC_OK;
}

static dsc_status read_sizes(dsc_hf_config *reader, dsc_llama_config *out)
{
    const dsc_llama_traits *traits = out->traits;
    dsc_lm_config *lm = &out->lm;
    DSC_TRY(dsc_hf_int(reader, "vocab_size", DSC_LM_VOCAB_MAX, traits->vocab, &lm->vocab));
    DSC_TRY(dsc_hf_int(reader, "max_position_embeddings", DSC_LM_POSITIONS_MAX, traits->positions, &lm->positions));
    DSC_TRY(dsc_hf_int(reader, "num_hidden_layers", DSC_LM_LAYERS_MAX, 32, &lm->layers));
    DSC_TRY(dsc_hf_int(reader, "hidden_size", DSC_LM_CHANNELS_MAX, 4096, &lm->channels));
    DSC_TRY(dsc_hf_int(reader, "intermediate_size", DSC_LM_INNER_MAX, traits->inner, &out->inner));
    return read_heads(reader, out);
}

/* Whether some layer of a model that may switch windows on has one. */
static dsc_status read_window_switch(dsc_hf_config *reader, const dsc_llama_config *config, bool *on)
{
    double first = 28;
    DSC_TRY(dsc_hf_bool(reader, "use_sliding_window", false, on));
    DSC_TRY(dsc_hf_number(reader, "max_window_layers", (dsc_hf_range){ 0, 1e9 }, 28, &first));
    const cJSON *types = dsc_hf_field(reader, "layer_types");
    if (types == NULL) {
        *on = *on && first < (double)config->lm.layers;
        return DSC_OK;
    }
    if (!cJSON_IsArray(types))
        return DSC_HF_REFUSE(reader, DSC_ERR_INPUT, "\"layer_types\" must be a list");
    bool sliding = false;
    const cJSON *type = NULL;
    cJSON_ArrayForEach(type, types) {
        if (!cJSON_IsString(type) || (strcmp(type->valuestring, "full_attention") != 0 &&
                                      strcmp(type->valuestring, "sliding_attention") != 0))
            return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED, "a kind of layer in \"layer_types\" is not built; what "
                                 "exists: full_attention, sliding_attention");
        sliding = sliding || strcmp(type->valuestring, "sliding_attention") == 0;
    }
    *on = *on && sliding;
    return DSC_OK;
}

/* A window that no sample reaches the end of changes nothing: a token sees itself and the window - 1 before it. */
static dsc_status read_window(dsc_hf_config *reader, dsc_llama_config *out)
{
    const bool null = cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(reader->object, "sliding_window"));
    bool on = out->traits->window == DSC_WINDOW_ALL;
    int64_t window = 0;
    if (out->traits->window == DSC_WINDOW_NONE)
        return DSC_OK;
    DSC_TRY(dsc_hf_int(reader, "sliding_window", INT32_MAX, 4096, &window));
    if (out->traits->window == DSC_WINDOW_IF_USED)
        DSC_TRY(read_window_switch(reader, out, &on));
    if (on && !null && window < out->lm.positions)
        out->lm.window = window;
    return DSC_OK;
}

/* ---- rotary positions -------------------------------------------------------------------------------------------- */

static dsc_status need(dsc_hf_config *reader, const char *key, dsc_rope_kind kind)
{
    if (dsc_hf_field(reader, key) != NULL)
        return DSC_OK;
    return DSC_HF_REFUSE(reader, DSC_ERR_INPUT, "rotary positions of type \"%s\" need \"%s\"", rope_names[kind], key);
}

static dsc_status read_llama3(dsc_hf_config *reader, dsc_llama_rope *out)
{
    static const dsc_hf_range factors = { 1e-3, 1e6 };
    DSC_TRY(need(reader, "low_freq_factor", out->kind));
    DSC_TRY(dsc_hf_number(reader, "low_freq_factor", factors, 1, &out->low_freq_factor));
    DSC_TRY(need(reader, "high_freq_factor", out->kind));
    DSC_TRY(dsc_hf_number(reader, "high_freq_factor", factors, 4, &out->high_freq_factor));
    if (!(out->high_freq_factor > out->low_freq_factor))
        return DSC_HF_REFUSE(reader, DSC_ERR_INPUT, "\"high_freq_factor\" %g must be above \"low_freq_factor\" %g",
                             out->high_freq_factor, out->low_freq_factor);
    return DSC_OK;
}

static dsc_status read_yarn(dsc_hf_config *reader, dsc_llama_rope *out)
{
    static const dsc_hf_range turns = { 1e-3, 1e6 };
    static const char *const others[] = { "mscale", "mscale_all_dim" };
    DSC_TRY(dsc_hf_number(reader, "beta_fast", turns, 32, &out->beta_fast));
    DSC_TRY(dsc_hf_number(reader, "beta_slow", turns, 1, &out->beta_slow));
    DSC_TRY(dsc_hf_number(reader, "attention_factor", turns, 0, &out->attention_factor));
    DSC_TRY(dsc_hf_bool(reader, "truncate", true, &out->truncate));
    for (size_t i = 0; i < DSC_COUNT(others); i++)
        if (dsc_hf_field(reader, others[i]) != NULL)
            return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED, "\"%s\" of yarn is not built", others[i]);
    return DSC_OK;
}

/* The reader stands on the object that names the type. */
static dsc_status read_rope_object(dsc_hf_config *reader, dsc_llama_config *out)
{
    dsc_llama_rope *rope = &out->rope;
    const char *key = dsc_hf_field(reader, "rope_type") != NULL ? "rope_type" : "type"; /* the older name */
    int32_t kind = 0;
    double partial = 1;
    DSC_TRY(dsc_hf_choice(reader, key, rope_names, DSC_COUNT(rope_names), &kind));
    rope->kind = (dsc_rope_kind)kind;
    DSC_TRY(dsc_hf_number(reader, "rope_theta", (dsc_hf_range){ 2, 1e30 }, rope->theta, &rope->theta));
    DSC_TRY(dsc_hf_number(reader, "partial_rotary_factor", (dsc_hf_range){ 0, 1 }, 1, &partial));
    if (partial != 1)
        return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED, "\"partial_rotary_factor\" %g is not built; what exists: 1",
                             partial);
    if (rope->kind == DSC_ROPE_DEFAULT)
        return DSC_OK;
    DSC_TRY(need(reader, "factor", rope->kind));
    DSC_TRY(dsc_hf_number(reader, "factor", (dsc_hf_range){ 1e-3, 1e6 }, 1, &rope->factor));
    int64_t original = 0;
    DSC_TRY(dsc_hf_int(reader, "original_max_position_embeddings", DSC_LM_POSITIONS_MAX, out->lm.positions, &original));
    rope->original_positions = (double)original;
    if (rope->kind == DSC_ROPE_LLAMA3)
        return read_llama3(reader, rope);
    return rope->kind == DSC_ROPE_YARN ? read_yarn(reader, rope) : DSC_OK;
}

static dsc_status read_rope(dsc_hf_config *reader, dsc_llama_config *out)
{
    /* As Hugging Face's code chooses when both are there. */
    static const char *const keys[] = { "rope_scaling", "rope_parameters" };
    const cJSON *const root = reader->object, *object = NULL;
    out->rope = (dsc_llama_rope){ .kind = DSC_ROPE_DEFAULT, .truncate = true };
    DSC_TRY(dsc_hf_number(reader, "rope_theta", (dsc_hf_range){ 2, 1e30 }, 10000, &out->rope.theta));
    for (size_t i = 0; i < DSC_COUNT(keys) && object == NULL; i++) {
        object = dsc_hf_field(reader, keys[i]);
        if (object != NULL && !cJSON_IsObject(object))
            return DSC_HF_REFUSE(reader, DSC_ERR_INPUT, "\"%s\" must be an object", keys[i]);
    }
    if (object != NULL) {
        reader->object = object;
        const dsc_status status = read_rope_object(reader, out);
        reader->object = root;
        DSC_TRY(status);
    }
    dsc_llama_set_rope(out);
    return DSC_OK;
}

/* ---- config.json ------------------------------------------------------------------------------------------------- */

static dsc_status read_biases(dsc_hf_config *reader, dsc_llama_config *out)
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

dsc_status dsc_llama_read_config(dsc_hf_config *reader, dsc_lm_config *lm, const dsc_llama_traits *traits)
{
    static const char *const activations[] = { "silu", "swish" }; /* one function under two names */
    dsc_llama_config *out = (dsc_llama_config *)(void *)lm;
    int32_t activation = 0;
    double dropout = 0;
    out->traits = traits;
    DSC_TRY(read_sizes(reader, out));
    DSC_TRY(dsc_hf_number(reader, "rms_norm_eps", (dsc_hf_range){ 1e-30, 1 }, 1e-6, &lm->norm_eps));
    DSC_TRY(dsc_hf_number(reader, "initializer_range", (dsc_hf_range){ 0, 1000 }, 0.02, &lm->init_std));
    DSC_TRY(dsc_hf_bool(reader, "tie_word_embeddings", false, &lm->tied));
    DSC_TRY(dsc_hf_choice(reader, "hidden_act", activations, DSC_COUNT(activations), &activation));
    DSC_TRY(read_biases(reader, out));
    DSC_TRY(read_window(reader, out));
    DSC_TRY(read_rope(reader, out));
    DSC_TRY(dsc_hf_number(reader, "attention_dropout", (dsc_hf_range){ 0, 1 }, 0, &dropout));
    if (dropout > 0)
        dsc_hf_warn(reader->warnings, reader->warnings_bytes,
                    "the model's dropout is off (config.json: attention_dropout %g)", dropout);
    return DSC_OK;
}

static void write_rope(const dsc_llama_rope *rope, char *out, size_t bytes)
{
    char factor[32], low[32], high[32], fast[32], slow[32], attention[48] = "";
    const long long original = (long long)rope->original_positions;
    if (rope->kind == DSC_ROPE_DEFAULT) {
        snprintf(out, bytes, "null");
        return;
    }
    int used = snprintf(out, bytes, "{\"rope_type\": \"%s\", \"factor\": %s", rope_names[rope->kind],
                        dsc_hf_number_text(rope->factor, factor, sizeof factor));
    if (rope->kind == DSC_ROPE_LLAMA3)
        used += snprintf(out + used, bytes - (size_t)used,
                         ", \"low_freq_factor\": %s, \"high_freq_factor\": %s,"
                         " \"original_max_position_embeddings\": %lld",
                         dsc_hf_number_text(rope->low_freq_factor, low, sizeof low),
                         dsc_hf_number_text(rope->high_freq_factor, high, sizeof high), original);
    if (rope->kind == DSC_ROPE_YARN) {
        if (rope->attention_factor > 0)
            snprintf(attention, sizeof attention, ", \"attention_factor\": %s",
                     dsc_hf_number_text(rope->attention_factor, low, sizeof low));
        used += snprintf(out + used, bytes - (size_t)used,
                         ", \"beta_fast\": %s, \"beta_slow\": %s, \"truncate\": %s%s,"
                         " \"original_max_position_embeddings\": %lld",
                         dsc_hf_number_text(rope->beta_fast, fast, sizeof fast),
                         dsc_hf_number_text(rope->beta_slow, slow, sizeof slow), rope->truncate ? "true" : "false",
                         attention, original);
    }
    snprintf(out + used, bytes - (size_t)used, "}");
}

/* The keys that only some families have. */
static void write_traits(const dsc_llama_config *config, char *out, size_t bytes)
{
    const dsc_llama_traits *traits = config->traits;
    int used = 0;
    out[0] = 0;
    if (traits->has_head_size)
        used += snprintf(out + used, bytes - (size_t)used, "  \"head_dim\": %lld,\n", (long long)config->head_size);
    if (traits->attention_bias)
        used += snprintf(out + used, bytes - (size_t)used, "  \"attention_bias\": %s,\n",
                         config->out_bias ? "true" : "false");
    if (traits->mlp_bias)
        used += snprintf(out + used, bytes - (size_t)used, "  \"mlp_bias\": %s,\n",
                         config->mlp_bias ? "true" : "false");
    if (traits->window == DSC_WINDOW_NONE)
        return;
    if (traits->window == DSC_WINDOW_IF_USED)
        used += snprintf(out + used, bytes - (size_t)used,
                         "  \"use_sliding_window\": %s,\n  \"max_window_layers\": 0,\n",
                         config->lm.window > 0 ? "true" : "false");
    if (config->lm.window > 0)
        snprintf(out + used, bytes - (size_t)used, "  \"sliding_window\": %lld,\n", (long long)config->lm.window);
    else
        snprintf(out + used, bytes - (size_t)used, "  \"sliding_window\": null,\n");
}

int dsc_llama_write_config(const dsc_lm_config *lm, char *out, size_t bytes)
{
    const dsc_llama_config *config = (const dsc_llama_config *)(const void *)lm;
    char eps[32], std[32], theta[32], rope[400], traits[300];
    write_rope(&config->rope, rope, sizeof rope);
    write_traits(config, traits, sizeof traits);
    return snprintf(
        out, bytes,
        "{\n  \"architectures\": [\"%s\"],\n  \"model_type\": \"%s\",\n  \"hidden_act\": \"silu\",\n"
        "  \"vocab_size\": %lld,\n  \"max_position_embeddings\": %lld,\n  \"hidden_size\": %lld,\n"
        "  \"intermediate_size\": %lld,\n  \"num_hidden_layers\": %lld,\n  \"num_attention_heads\": %lld,\n"
        "  \"num_key_value_heads\": %lld,\n%s  \"rms_norm_eps\": %s,\n  \"initializer_range\": %s,\n"
        "  \"attention_dropout\": 0.0,\n  \"rope_theta\": %s,\n  \"rope_scaling\": %s,\n"
        "  \"tie_word_embeddings\": %s\n}\n",
        config->traits->architecture, config->traits->family->model_type, (long long)lm->vocab_rows,
        (long long)lm->positions, (long long)lm->channels, (long long)config->inner, (long long)lm->layers,
        (long long)config->heads, (long long)config->kv_heads, traits,
        dsc_hf_number_text(lm->norm_eps, eps, sizeof eps), dsc_hf_number_text(lm->init_std, std, sizeof std),
        dsc_hf_number_text(config->rope.theta, theta, sizeof theta), rope, lm->tied ? "true" : "false");
}
