/* settings.c - see settings.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/generate/settings.h"

#include <stdio.h>
#include <string.h>

#include "base/formats/json.h"
#include "base/io.h"

#define CONFIG_BYTES_MAX (INT64_C(1) << 20)
#define TRANSFORMERS_TOP_K 50 /* of GenerationConfig */

/* ---- End tokens ---- */

bool dsc_generation_ends(const dsc_generation_settings *s, int32_t id)
{
    for (int32_t i = 0; i < s->end_count; i++)
        if (s->end[i] == id)
            return true;
    return false;
}

dsc_status dsc_generation_add_end(dsc_generation_settings *s, int32_t id, dsc_error *err)
{
    if (id < 0 || dsc_generation_ends(s, id))
        return DSC_OK;
    if (s->end_count == DSC_GENERATION_ENDS_MAX)
        return DSC_FAIL(err, DSC_ERR_INPUT, "eos_token_id", "more than %d tokens end a text; give fewer",
                        DSC_GENERATION_ENDS_MAX);
    s->end[s->end_count++] = id;
    return DSC_OK;
}

/* A negative number stands for no end. */
static dsc_status read_end(dsc_generation_settings *s, const dsc_json *json, const cJSON *item, dsc_error *err)
{
    char where[256];
    int64_t token = -1;
    if (!dsc_json_integer(item, -DSC_JSON_INTEGER_MAX, INT32_MAX - 1, &token))
        return DSC_FAIL(err, DSC_ERR_INPUT, dsc_json_where(json, item, where, sizeof where),
                        "\"eos_token_id\" must be a whole number, or a list of them, below %d", INT32_MAX);
    return dsc_generation_add_end(s, (int32_t)dsc_max_i64(token, -1), err);
}

static dsc_status read_ends(dsc_generation_settings *s, const dsc_json *json, dsc_error *err)
{
    const cJSON *ends = cJSON_GetObjectItemCaseSensitive(dsc_json_root(json), "eos_token_id");
    if (ends == NULL || cJSON_IsNull(ends))
        return DSC_OK;
    if (!cJSON_IsArray(ends))
        return read_end(s, json, ends, err);
    for (const cJSON *item = ends->child; item != NULL; item = item->next)
        DSC_TRY(read_end(s, json, item, err));
    return DSC_OK;
}

/* ---- The choice of tokens ---- */

/* *value keeps its default where the key is missing or null. */
static dsc_status read_number(const dsc_json *json, const char *key, double low, double high, double *value,
                              dsc_error *err)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(dsc_json_root(json), key);
    char where[256];
    if (item == NULL || cJSON_IsNull(item))
        return DSC_OK;
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= low && item->valuedouble <= high))
        return DSC_FAIL(err, DSC_ERR_INPUT, dsc_json_where(json, item, where, sizeof where),
                        "\"%s\" must be a number from %g to %g", key, low, high);
    *value = item->valuedouble;
    return DSC_OK;
}

static dsc_status read_integer(const dsc_json *json, const char *key, int64_t *value, dsc_error *err)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(dsc_json_root(json), key);
    char where[256];
    if (item == NULL || cJSON_IsNull(item))
        return DSC_OK;
    if (!dsc_json_integer(item, 0, 1 << 24, value))
        return DSC_FAIL(err, DSC_ERR_INPUT, dsc_json_where(json, item, where, sizeof where),
                        "\"%s\" must be a whole number from 0 to %d", key, 1 << 24);
    return DSC_OK;
}

static dsc_status read_choice(dsc_generation_settings *s, const dsc_json *json, dsc_error *err)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(dsc_json_root(json), "do_sample");
    char where[256];
    if (item != NULL && !cJSON_IsBool(item) && !cJSON_IsNull(item))
        return DSC_FAIL(err, DSC_ERR_INPUT, dsc_json_where(json, item, where, sizeof where),
                        "\"do_sample\" must be true or false");
    DSC_TRY(read_number(json, "repetition_penalty", 1e-3, 1000, &s->repetition_penalty, err));
    DSC_TRY(read_integer(json, "max_new_tokens", &s->max_new_tokens, err));
    s->samples = cJSON_IsTrue(item);
    if (!s->samples)
        return DSC_OK;
    s->temperature = 1;
    s->top_k = TRANSFORMERS_TOP_K;
    DSC_TRY(read_number(json, "temperature", 0, 1000, &s->temperature, err));
    DSC_TRY(read_integer(json, "top_k", &s->top_k, err));
    return read_number(json, "top_p", 1e-9, 1, &s->top_p, err);
}

/* ---- Keys without support ---- */

/* Keys of transformers' GenerationConfig that change the text, with the number that means no effect. */
static const struct { const char *key; double neutral; } others[] = {
    { "num_beams", 1 }, { "num_beam_groups", 1 }, { "penalty_alpha", 0 }, { "dola_layers", 0 }, { "min_p", 0 },
    { "top_h", 1 }, { "typical_p", 1 }, { "epsilon_cutoff", 0 }, { "eta_cutoff", 0 },
    { "encoder_repetition_penalty", 1 }, { "no_repeat_ngram_size", 0 }, { "encoder_no_repeat_ngram_size", 0 },
    { "bad_words_ids", 0 }, { "force_words_ids", 0 }, { "constraints", 0 }, { "forced_bos_token_id", -1 },
    { "forced_eos_token_id", -1 }, { "suppress_tokens", 0 }, { "begin_suppress_tokens", 0 }, { "sequence_bias", 0 },
    { "exponential_decay_length_penalty", 0 }, { "guidance_scale", 1 }, { "min_length", 0 }, { "min_new_tokens", 0 },
    { "stop_strings", 0 }, { "watermarking_config", 0 }, { "token_healing", 0 }, { "max_time", 0 } };

static bool has_effect(const cJSON *value, double neutral)
{
    if (value == NULL || cJSON_IsNull(value) || cJSON_IsFalse(value))
        return false;
    if (cJSON_IsNumber(value))
        return value->valuedouble < neutral || value->valuedouble > neutral;
    return !(cJSON_IsArray(value) || cJSON_IsObject(value)) || value->child != NULL;
}

static void list_ignored(dsc_generation_settings *s, const dsc_json *json)
{
    size_t used = 0;
    for (size_t i = 0; i < DSC_COUNT(others) && used < sizeof s->ignored; i++)
        if (has_effect(cJSON_GetObjectItemCaseSensitive(dsc_json_root(json), others[i].key), others[i].neutral))
            used += (size_t)snprintf(s->ignored + used, sizeof s->ignored - used, "%s%s", used > 0 ? ", " : "",
                                     others[i].key);
}

/* ---- Files ---- */

static dsc_status read_object(dsc_alloc *alloc, const char *model, const char *name, dsc_json **out, dsc_error *err)
{
    const dsc_json_limits limits = { CONFIG_BYTES_MAX, 32, 100000 };
    char path[1024], *text = NULL;
    int64_t bytes = 0;
    *out = NULL;
    DSC_TRY(dsc_path_join(path, sizeof path, model, name, err));
    if (dsc_io_kind(path) != DSC_PATH_FILE)
        return DSC_OK;
    DSC_TRY(dsc_io_read_all(NULL, alloc, path, CONFIG_BYTES_MAX, &text, &bytes, err));
    const dsc_status status = dsc_json_open(alloc, path, text, bytes, DSC_JSON_STRICT, &limits, out, err);
    dsc_alloc_free(alloc, text);
    return status;
}

dsc_status dsc_generation_settings_read(dsc_alloc *alloc, const char *model, dsc_generation_settings *out,
                                        dsc_error *err)
{
    dsc_json *json = NULL;
    *out = (dsc_generation_settings){ .top_p = 1, .repetition_penalty = 1 };
    if (dsc_io_kind(model) != DSC_PATH_DIR)
        return DSC_OK;
    dsc_status status = read_object(alloc, model, "generation_config.json", &json, err);
    if (status == DSC_OK && json != NULL) {
        status = read_ends(out, json, err);
        if (status == DSC_OK)
            status = read_choice(out, json, err);
        list_ignored(out, json);
    }
    dsc_json_close(&json);
    if (status == DSC_OK && out->end_count == 0)
        status = read_object(alloc, model, "config.json", &json, err);
    if (status == DSC_OK && json != NULL)
        status = read_ends(out, json, err);
    dsc_json_close(&json);
    return status;
}
