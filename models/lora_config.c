/* lora_config.c - see lora_config.h.
 *
 * The tensors of an adapter's folder name the layers that it adapts, so every spelling of them in PEFT's config is
 * read. The config gives rank and scale. An option that changes the mathematics in a way that is not built is refused
 * by name.
 * SPDX-License-Identifier: Apache-2.0 */
#include "models/lora_config.h"

#include <stdio.h>
#include <string.h>

#include "models/hf_config.h"

#define CONFIG_FILE "adapter_config.json"
#define WEIGHTS_FILE "adapter_model.safetensors"
#define ALPHA_MAX 1e9
#define DROPOUT_MAX 0.99

static dsc_status check_numbers(const dsc_lora_config *config, const char *where, dsc_error *err)
{
    if (config->rank < 1 || config->rank > DSC_LORA_RANK_MAX)
        return DSC_FAIL(err, DSC_ERR_INPUT, where, "a rank of %lld; expected 1 to %d", (long long)config->rank,
                        DSC_LORA_RANK_MAX);
    if (!(config->alpha > 0 && config->alpha <= ALPHA_MAX))
        return DSC_FAIL(err, DSC_ERR_INPUT, where, "an alpha of %g; expected more than 0 and at most %g", config->alpha,
                        ALPHA_MAX);
    if (!(config->dropout >= 0 && config->dropout <= DROPOUT_MAX))
        return DSC_FAIL(err, DSC_ERR_INPUT, where, "a dropout of %g; expected 0 to %g", config->dropout, DROPOUT_MAX);
    return DSC_OK;
}

static dsc_status add_saved(dsc_lora_config *config, const char *name, const char *where, dsc_error *err)
{
    if (config->saved_count == DSC_LORA_SAVED_MAX || strlen(name) >= DSC_LORA_NAME_BYTES)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, where,
                        "modules_to_save: at most %d names of less than %d bytes are read", DSC_LORA_SAVED_MAX,
                        DSC_LORA_NAME_BYTES);
    snprintf(config->saved[config->saved_count++], DSC_LORA_NAME_BYTES, "%s", name);
    return DSC_OK;
}

dsc_status dsc_lora_save_head(dsc_lora_config *config, const char *table, dsc_error *err)
{
    char name[DSC_LORA_NAME_BYTES];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(table, "."), table);
    for (int32_t i = 0; i < config->saved_count; i++)
        if (strncmp(config->saved[i], name, strlen(name)) == 0)
            return DSC_OK;
    return config->weights != NULL ? DSC_OK : add_saved(config, name, "dsc.lora", err);
}

/* ---- PEFT's folder ---- */

/* Keys that must be absent, null, false, empty or, for a text, the one given. */
static dsc_status refuse_variants(dsc_hf_config *reader)
{
    static const struct {
        const char *key, *text;
    } plain[] = {
        { "lora_bias", NULL },
        { "layer_replication", NULL },
        { "trainable_token_indices", NULL },
        { "ensure_weight_tying", NULL },
        { "bias", "none" },
        { "peft_type", "LORA" },
        { "use_qalora", NULL },
        { "alora_invocation_tokens", NULL },
        { "kasa_config", NULL },
        { "velora_config", NULL },
        { "monteclora_config", NULL },
        { "arrow_config", NULL },
        { "use_bdlora", NULL },
    };
    for (size_t i = 0; i < DSC_COUNT(plain); i++) {
        const cJSON *item = dsc_hf_field(reader, plain[i].key);
        const bool empty = item == NULL || cJSON_IsFalse(item) ||
                           ((cJSON_IsArray(item) || cJSON_IsObject(item)) && item->child == NULL);
        const bool same = plain[i].text != NULL && cJSON_IsString(item) &&
                          strcmp(item->valuestring, plain[i].text) == 0;
        if (!empty && !same)
            return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED, "\"%s\" of this kind is not built; what exists: %s",
                                 plain[i].key, plain[i].text != NULL ? plain[i].text : "plain LoRA, without the key");
    }
    return DSC_OK;
}

static dsc_status read_patterns(dsc_hf_config *reader, const char *key, double most, dsc_lora_pattern *out,
                                int32_t *count)
{
    const cJSON *const object = dsc_hf_field(reader, key);
    if (object != NULL && !cJSON_IsNull(object) && !cJSON_IsObject(object))
        return DSC_HF_REFUSE(reader, DSC_ERR_INPUT, "\"%s\": expected an object of names and numbers", key);
    for (const cJSON *each = object != NULL ? object->child : NULL; each != NULL; each = each->next) {
        const bool whole = most > DSC_LORA_RANK_MAX || each->valuedouble == (double)(int64_t)each->valuedouble;
        if (*count == DSC_LORA_PATTERNS_MAX || strlen(each->string) >= sizeof out->name)
            return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED, "\"%s\": at most %d names of less than %d bytes are read",
                                 key, DSC_LORA_PATTERNS_MAX, (int)sizeof out->name);
        if (!cJSON_IsNumber(each) || !(each->valuedouble >= (whole && most <= DSC_LORA_RANK_MAX ? 1 : 1e-9)) ||
            each->valuedouble > most || !whole)
            return DSC_HF_REFUSE(reader, DSC_ERR_INPUT,
                                 "\"%s\": the value of \"%.100s\" is not a number above 0 and at "
                                 "most %g",
                                 key, each->string, most);
        snprintf(out[*count].name, sizeof out->name, "%s", each->string);
        out[(*count)++].value = each->valuedouble;
    }
    return DSC_OK;
}

/* A list of names, which `add` takes one by one. */
static dsc_status read_names(dsc_hf_config *reader, const char *key, const char *of,
                             dsc_status (*add)(dsc_lora_config *, const char *, const char *, dsc_error *),
                             dsc_lora_config *out)
{
    const cJSON *const list = dsc_hf_field(reader, key);
    bool good = list == NULL || cJSON_IsNull(list) || cJSON_IsArray(list);
    for (const cJSON *each = good && list != NULL ? list->child : NULL; each != NULL && good; each = each->next) {
        good = cJSON_IsString(each) && each->valuestring[0] != 0;
        if (good)
            DSC_TRY(add(out, each->valuestring, reader->where, reader->err));
    }
    return good ? DSC_OK : DSC_HF_REFUSE(reader, DSC_ERR_INPUT, "\"%s\": expected a list of names of %s", key, of);
}

static dsc_status read_keys(dsc_hf_config *reader, dsc_lora_config *out)
{
    static const char *const starts[] = { "gaussian", "eva", "orthogonal" }; /* those that leave the base as it is */
    if (!cJSON_IsObject(reader->object))
        return DSC_FAIL(reader->err, DSC_ERR_INPUT, reader->where, "expected an object, as PEFT writes it");
    DSC_TRY(refuse_variants(reader));
    DSC_TRY(dsc_hf_int(reader, "r", DSC_LORA_RANK_MAX, 8, &out->rank));
    DSC_TRY(dsc_hf_number(reader, "lora_alpha", (dsc_hf_range){ 1e-9, ALPHA_MAX }, 8, &out->alpha));
    DSC_TRY(read_patterns(reader, "rank_pattern", DSC_LORA_RANK_MAX, out->rank_pattern, &out->rank_pattern_count));
    DSC_TRY(read_patterns(reader, "alpha_pattern", ALPHA_MAX, out->alpha_pattern, &out->alpha_pattern_count));
    DSC_TRY(read_names(reader, "modules_to_save", "modules", add_saved, out));
    if (dsc_hf_field(reader, "use_rslora") != NULL)
        DSC_TRY(dsc_hf_bool(reader, "use_rslora", false, &out->rank_stabilized));
    if (dsc_hf_field(reader, "use_dora") != NULL)
        DSC_TRY(dsc_hf_bool(reader, "use_dora", false, &out->use_dora));
    DSC_TRY(dsc_hf_number(reader, "lora_dropout", (dsc_hf_range) { 0, DROPOUT_MAX }, 0, &out->dropout));
    DSC_TRY(read_names(reader, "target_parameters", "parameters", dsc_lora_add_parameter, out));
    DSC_TRY(dsc_lora_check_parameters(out, reader->where, reader->err));
    const cJSON *start = dsc_hf_field(reader, "init_lora_weights");
    int32_t index = 0;
    return cJSON_IsString(start) ? dsc_hf_choice(reader, "init_lora_weights", starts, DSC_COUNT(starts), &index)
                                 : DSC_OK;
}

static dsc_status read_config(dsc_lora_config *out, dsc_alloc *alloc, const char *dir, dsc_error *err)
{
    static const dsc_json_limits limits = DSC_JSON_LIMITS_CONFIG;
    char path[1024], *text = NULL;
    int64_t bytes = 0;
    dsc_json *json = NULL;
    DSC_TRY(dsc_path_join(path, sizeof path, dir, CONFIG_FILE, err));
    DSC_TRY(dsc_io_read_all(NULL, alloc, path, limits.bytes, &text, &bytes, err));
    dsc_status status = dsc_json_open(alloc, path, text, bytes, DSC_JSON_STRICT, &limits, &json, err);
    if (status == DSC_OK) {
        dsc_hf_config reader = { .json = json, .object = dsc_json_root(json), .err = err, .warnings = out->warnings,
                                 .warnings_bytes = sizeof out->warnings };
        snprintf(reader.where, sizeof reader.where, "%.250s", path);
        status = read_keys(&reader, out);
        if (status == DSC_OK)
            status = dsc_lora_check_patterns(out, err);
    }
    dsc_json_close(&json);
    dsc_alloc_free(alloc, text);
    return status;
}

static dsc_status take_pattern(dsc_lora_pattern *to, int32_t *count, const dsc_lora_value *from, int32_t from_count,
                               const char *where, double most, dsc_error *err)
{
    for (int32_t i = 0; i < from_count; i++) {
        const bool whole = most > DSC_LORA_RANK_MAX || from[i].value == (double)(int64_t)from[i].value;
        if (i == DSC_LORA_PATTERNS_MAX || strlen(from[i].pattern) >= sizeof to->name)
            return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, where, "at most %d patterns of less than %d bytes are read",
                            DSC_LORA_PATTERNS_MAX, (int)sizeof to->name);
        if (!(from[i].value > 0) || from[i].value > most || !whole)
            return DSC_FAIL(err, DSC_ERR_INPUT, where, "\"%.100s\": %g; expected a number above 0 and at most %g%s",
                            from[i].pattern, from[i].value, most,
                            most > DSC_LORA_RANK_MAX ? "" : ", without a fraction");
        snprintf(to[i].name, sizeof to->name, "%s", from[i].pattern);
        to[i].value = from[i].value;
        *count = i + 1;
    }
    return DSC_OK;
}

/* As PEFT refuses them. */
static dsc_status check_layers(const dsc_lora_config *config, dsc_error *err)
{
    if (config->layer_count > DSC_LORA_BLOCKS_MAX)
        return DSC_FAIL(err, DSC_ERR_INPUT, "dsc.lora.layers_to_transform", "%d numbers; expected at most %d",
                        config->layer_count, DSC_LORA_BLOCKS_MAX);
    if (config->layer_count > 0 && config->target_regex != NULL)
        return DSC_FAIL(err, DSC_ERR_INPUT, "dsc.lora.layers_to_transform",
                        "it chooses among the names of a list; the regular expression of target_modules can name "
                        "layers itself");
    if (config->layers_pattern_count > 0 && config->layer_count == 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, "dsc.lora.layers_pattern",
                        "it names what layers_to_transform counts, which is not set");
    return DSC_OK;
}

/* The options of fresh adapters. */
static dsc_status take_options(dsc_lora_config *out, const dsc_lora_options *options, dsc_error *err)
{
    out->dropout = options->dropout;
    out->target_regex = options->target_regex;
    out->exclude_regex = options->exclude_regex;
    out->exclude = options->exclude;
    out->exclude_count = options->exclude_count;
    out->layers = options->layers;
    out->layer_count = options->layer_count;
    out->layers_pattern = options->layers_pattern;
    out->layers_pattern_count = options->layers_pattern_count;
    if (options->exclude_count < 0 || options->exclude_count > DSC_LORA_TARGETS_MAX)
        return DSC_FAIL(err, DSC_ERR_INPUT, "dsc.lora.exclude_modules", "%d names; expected at most %d",
                        options->exclude_count, DSC_LORA_TARGETS_MAX);
    for (int32_t i = 0; i < options->target_parameter_count; i++)
        DSC_TRY(dsc_lora_add_parameter(out, options->target_parameters[i], "dsc.lora.target_parameters", err));
    DSC_TRY(dsc_lora_check_parameters(out, "dsc.lora.target_parameters", err));
    for (int32_t i = 0; i < options->modules_to_save_count; i++)
        DSC_TRY(add_saved(out, options->modules_to_save[i], "dsc.lora", err));
    DSC_TRY(take_pattern(out->rank_pattern, &out->rank_pattern_count, options->rank_pattern,
                         options->rank_pattern_count, "dsc.lora.rank_pattern", DSC_LORA_RANK_MAX, err));
    DSC_TRY(take_pattern(out->alpha_pattern, &out->alpha_pattern_count, options->alpha_pattern,
                         options->alpha_pattern_count, "dsc.lora.alpha_pattern", ALPHA_MAX, err));
    DSC_TRY(check_layers(out, err));
    DSC_TRY(dsc_lora_check_patterns(out, err));
    return check_numbers(out, "dsc.lora", err);
}

dsc_status dsc_lora_config_open(dsc_lora_config *out, dsc_alloc *alloc, const dsc_lora_options *options,
                                dsc_error *err)
{
    if (options->struct_bytes < sizeof *options)
        return DSC_FAIL(err, DSC_ERR_STATE, "", "dsc_lora_options.struct_bytes is %u; use DSC_LORA_OPTIONS_INIT",
                        options->struct_bytes);
    *out = (dsc_lora_config) { .rank = options->rank,
                               .alpha = options->alpha,
                               .rank_stabilized = options->rank_stabilized,
                               .use_dora = options->use_dora,
                               .targets = options->targets,
                               .target_count = options->target_count };
    if (options->target_count < 0 || options->target_count > DSC_LORA_TARGETS_MAX)
        return DSC_FAIL(err, DSC_ERR_INPUT, "dsc.lora.target_modules", "%d names; expected at most %d",
                        options->target_count, DSC_LORA_TARGETS_MAX);
    if (options->adapter == NULL)
        return take_options(out, options, err);
    out->target_count = 0;
    DSC_TRY(read_config(out, alloc, options->adapter, err));
    return dsc_weights_open_file(&out->weights, alloc, options->adapter, WEIGHTS_FILE, err);
}

void dsc_lora_config_close(dsc_lora_config *config)
{
    dsc_weights_close(&config->weights);
}

/* ---- writing ---- */

static int64_t put_quoted(char *out, int64_t capacity, const char *text)
{
    return text == NULL ? snprintf(out, (size_t)capacity, "null")
                        : (int64_t)dsc_json_quote(out, (size_t)capacity, text);
}

/* ,"KEY": {"NAME": VALUE, ...}; nothing without patterns. */
static int64_t put_patterns(char *out, int64_t capacity, const char *key, const dsc_lora_pattern *patterns,
                            int32_t count)
{
    char number[32];
    int64_t used = count > 0 ? snprintf(out, (size_t)capacity, ",\n  \"%s\": {", key) : 0;
    for (int32_t i = 0; i < count; i++) {
        used += snprintf(out + used, (size_t)(capacity - used), "%s", i > 0 ? ", " : "");
        used += put_quoted(out + used, capacity - used, patterns[i].name);
        used += snprintf(out + used, (size_t)(capacity - used), ": %s",
                         dsc_hf_number_text(patterns[i].value, number, sizeof number));
    }
    return used + (count > 0 ? snprintf(out + used, (size_t)(capacity - used), "}") : 0);
}

/* ,"target_parameters": [...]; nothing without any. */
static int64_t put_parameters(char *out, int64_t capacity, const dsc_lora_config *config, const dsc_lora_text *text)
{
    const int64_t count = config->parameter_count + text->parameter_count;
    int64_t used = count > 0 ? snprintf(out, (size_t)capacity, ",\n  \"target_parameters\": [") : 0;
    for (int64_t i = 0; i < count; i++) {
        const int64_t more = i - config->parameter_count;
        used += snprintf(out + used, (size_t)(capacity - used), "%s", i > 0 ? ", " : "");
        used += put_quoted(out + used, capacity - used, more < 0 ? config->parameters[i] : text->parameters[more]);
    }
    return used + (count > 0 ? snprintf(out + used, (size_t)(capacity - used), "]") : 0);
}

/* null, or the list of names. */
static int64_t put_saved(char *out, int64_t capacity, const dsc_lora_config *config)
{
    int64_t used = snprintf(out, (size_t)capacity, "%s", config->saved_count > 0 ? "[" : "null");
    for (int32_t i = 0; i < config->saved_count; i++) {
        used += snprintf(out + used, (size_t)(capacity - used), "%s", i > 0 ? ", " : "");
        used += put_quoted(out + used, capacity - used, config->saved[i]);
    }
    return used + (config->saved_count > 0 ? snprintf(out + used, (size_t)(capacity - used), "]") : 0);
}

dsc_status dsc_lora_write_config(const dsc_lora_config *config, dsc_alloc *alloc, const dsc_lora_text *text, char **out,
                                 dsc_error *err)
{
    int64_t capacity = 1024 + (text->base != NULL ? 6 * (int64_t)strlen(text->base) : 0), used;
    capacity += (int64_t)strlen(text->experts);
    char alpha[32], dropout[32];
    for (int64_t i = 0; i < text->count; i++)
        capacity += 6 * (int64_t)strlen(text->names[i]) + 8;
    capacity +=
        (config->rank_pattern_count + config->alpha_pattern_count) * (int64_t)(6 * sizeof config->rank_pattern->name);
    capacity += (config->saved_count + config->parameter_count) * (int64_t)(6 * DSC_LORA_NAME_BYTES);
    for (int64_t i = 0; i < text->parameter_count; i++)
        capacity += 6 * (int64_t)strlen(text->parameters[i]) + 8;
    for (int32_t i = 0; i < text->table_count; i++)
        capacity += 6 * (int64_t)strlen(text->tables[i]) + 64;
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, capacity, 1, out, err));
    char *const at = *out;
    used = snprintf(at, (size_t)capacity, "{\n  \"base_model_name_or_path\": ");
    used += put_quoted(at + used, capacity - used, text->base);
    used += snprintf(at + used, (size_t)(capacity - used),
                     ",\n  \"bias\": \"none\",\n  \"fan_in_fan_out\": %s,\n  \"inference_mode\": true,\n"
                     "  \"init_lora_weights\": true,\n  \"lora_alpha\": %s,\n  \"lora_dropout\": %s,\n"
                     "  \"modules_to_save\": ",
                     text->in_out ? "true" : "false", dsc_hf_number_text(config->alpha, alpha, sizeof alpha),
                     config->dropout > 0 && text->parameter_count == 0
                         ? dsc_hf_number_text(config->dropout, dropout, sizeof dropout)
                         : "0.0"); /* PEFT has no dropout beside target_parameters, and exports are for inference */
    used += put_saved(at + used, capacity - used, config);
    used += snprintf(at + used, (size_t)(capacity - used),
                     ",\n  \"peft_type\": \"LORA\",\n  \"r\": %lld,\n  \"target_modules\": [", (long long)config->rank);
    for (int64_t i = 0; i < text->count; i++) {
        used += snprintf(at + used, (size_t)(capacity - used), "%s\n    ", i > 0 ? "," : "");
        used += put_quoted(at + used, capacity - used, text->names[i]);
    }
    used += snprintf(at + used, (size_t)(capacity - used),
                     "\n  ],\n  \"task_type\": %s%s%s,\n"
                     "  \"use_dora\": %s,\n  \"use_rslora\": %s",
                     text->task != NULL ? "\"" : "", text->task != NULL ? text->task : "null",
                     text->task != NULL ? "\"" : "", config->use_dora ? "true" : "false",
                     config->rank_stabilized ? "true" : "false");
    used += put_parameters(at + used, capacity - used, config, text);
    used += put_patterns(at + used, capacity - used, "rank_pattern", config->rank_pattern, config->rank_pattern_count);
    used +=
        put_patterns(at + used, capacity - used, "alpha_pattern", config->alpha_pattern, config->alpha_pattern_count);
    for (int32_t i = 0; i < text->table_count; i++) {
        used += snprintf(at + used, (size_t)(capacity - used), "%s", i == 0 ? ",\n  \"" DSC_LORA_TABLES "\": [" : ", ");
        used += put_quoted(at + used, capacity - used, text->tables[i]);
    }
    used +=
        snprintf(at + used, (size_t)(capacity - used), "%s%s\n}\n", text->table_count > 0 ? "]" : "", text->experts);
    DSC_ASSERT(used < capacity);
    return DSC_OK;
}
