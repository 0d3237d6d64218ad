/* gpt2_weights.c - config.json and tensor names of GPT-2 as Hugging Face writes them.
 *
 * A key that is missing has Hugging Face's default; one that would change the mathematics in a way that is not built is
 * refused by name. Files of the base model have no "transformer." in front of their names: both are read.
 * SPDX-License-Identifier: Apache-2.0 */
#include "models/gpt2_weights.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define PREFIX "transformer."

/* ---- config.json ------------------------------------------------------------------------------------------------- */

typedef struct config_reader {
    const dsc_json *json;
    dsc_error *err;
    char where[256];
} config_reader;

/* NULL for a key that is absent or null. */
static const cJSON *field(config_reader *reader, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(dsc_json_root(reader->json), key);
    dsc_json_where(reader->json, item, reader->where, sizeof reader->where);
    return item == NULL || cJSON_IsNull(item) ? NULL : item;
}

#define REFUSE(reader, status, ...) DSC_FAIL((reader)->err, (status), (reader)->where, __VA_ARGS__)

static dsc_status read_int(config_reader *reader, const char *key, int64_t max, int64_t fallback, int64_t *out)
{
    const cJSON *item = field(reader, key);
    *out = fallback;
    if (item == NULL)
        return DSC_OK;
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 1) || !(item->valuedouble <= (double)max) ||
        (double)(int64_t)item->valuedouble != item->valuedouble)
        return REFUSE(reader, DSC_ERR_INPUT, "\"%s\" must be a whole number from 1 to %lld", key, (long long)max);
    *out = (int64_t)item->valuedouble;
    return DSC_OK;
}

static dsc_status read_number(config_reader *reader, const char *key, double min, double max, double fallback,
                              double *out)
{
    const cJSON *item = field(reader, key);
    *out = fallback;
    if (item == NULL)
        return DSC_OK;
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= min) || !(item->valuedouble <= max))
        return REFUSE(reader, DSC_ERR_INPUT, "\"%s\" must be a number from %g to %g", key, min, max);
    *out = item->valuedouble;
    return DSC_OK;
}

static dsc_status read_bool(config_reader *reader, const char *key, bool fallback, bool *out)
{
    const cJSON *item = field(reader, key);
    *out = fallback;
    if (item == NULL)
        return DSC_OK;
    if (!cJSON_IsBool(item))
        return REFUSE(reader, DSC_ERR_INPUT, "\"%s\" must be true or false", key);
    *out = cJSON_IsTrue(item);
    return DSC_OK;
}

static dsc_status read_sizes(config_reader *reader, dsc_gpt2_config *out)
{
    int64_t context = 0;
    DSC_TRY(read_int(reader, "vocab_size", DSC_GPT2_VOCAB_MAX, 50257, &out->vocab));
    DSC_TRY(read_int(reader, "n_ctx", DSC_GPT2_POSITIONS_MAX, 1024, &context)); /* the older name */
    DSC_TRY(read_int(reader, "n_positions", DSC_GPT2_POSITIONS_MAX, context, &out->positions));
    DSC_TRY(read_int(reader, "n_layer", DSC_GPT2_LAYERS_MAX, 12, &out->layers));
    DSC_TRY(read_int(reader, "n_embd", DSC_GPT2_CHANNELS_MAX, 768, &out->channels));
    DSC_TRY(read_int(reader, "n_inner", DSC_GPT2_INNER_MAX, 4 * out->channels, &out->inner));
    DSC_TRY(read_int(reader, "n_head", DSC_GPT2_CHANNELS_MAX, 12, &out->heads));
    if (out->channels % out->heads != 0)
        return REFUSE(reader, DSC_ERR_INPUT, "\"n_embd\" %lld is not a multiple of \"n_head\" %lld",
                      (long long)out->channels, (long long)out->heads);
    return DSC_OK;
}

static dsc_status read_activation(config_reader *reader)
{
    /* One function under three names: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))). */
    static const char *const names[] = { "gelu_new", "gelu_pytorch_tanh", "gelu_fast" };
    const cJSON *item = field(reader, "activation_function");
    if (item == NULL)
        return DSC_OK;
    if (!cJSON_IsString(item))
        return REFUSE(reader, DSC_ERR_INPUT, "\"activation_function\" must be a string");
    for (size_t i = 0; i < DSC_COUNT(names); i++)
        if (strcmp(item->valuestring, names[i]) == 0)
            return DSC_OK;
    return REFUSE(reader, DSC_ERR_UNSUPPORTED, "activation_function \"%.60s\" is not built; what exists: gelu_new, "
                  "gelu_pytorch_tanh, gelu_fast", item->valuestring);
}

/* Keys whose other values are another model. */
static dsc_status refuse_other_models(config_reader *reader)
{
    static const char *const flags[] = { "add_cross_attention", "is_encoder_decoder" };
    for (size_t i = 0; i < DSC_COUNT(flags); i++) {
        bool on = false;
        DSC_TRY(read_bool(reader, flags[i], false, &on));
        if (on)
            return REFUSE(reader, DSC_ERR_UNSUPPORTED, "\"%s\": true is not built for gpt2; what exists: false",
                          flags[i]);
    }
    if (field(reader, "quantization_config") != NULL)
        return REFUSE(reader, DSC_ERR_UNSUPPORTED, "\"quantization_config\": quantized weights are not read; expected "
                      "F32, BF16 or F16");
    return DSC_OK;
}

static void warn(char *warnings, size_t bytes, const char *fmt, ...) DSC_PRINTF(3, 4);

static void warn(char *warnings, size_t bytes, const char *fmt, ...)
{
    const size_t used = strlen(warnings);
    va_list args;
    va_start(args, fmt);
    if (used + 1 < bytes) {
        if (used > 0)
            snprintf(warnings + used, bytes - used, "; ");
        vsnprintf(warnings + strlen(warnings), bytes - strlen(warnings), fmt, args);
    }
    va_end(args);
}

static dsc_status read_dropout(config_reader *reader, char *warnings, size_t warnings_bytes)
{
    double residual = 0, embedding = 0, attention = 0;
    DSC_TRY(read_number(reader, "resid_pdrop", 0, 1, 0.1, &residual));
    DSC_TRY(read_number(reader, "embd_pdrop", 0, 1, 0.1, &embedding));
    DSC_TRY(read_number(reader, "attn_pdrop", 0, 1, 0.1, &attention));
    if (residual > 0 || embedding > 0 || attention > 0)
        warn(warnings, warnings_bytes,
             "the model's dropout is off (config.json: resid_pdrop %g, embd_pdrop %g, attn_pdrop %g)", residual,
             embedding, attention);
    return DSC_OK;
}

dsc_status dsc_gpt2_read_config(const dsc_json *json, dsc_gpt2_config *out, char *warnings, size_t warnings_bytes,
                                dsc_error *err)
{
    config_reader reader = { json, err, "" };
    *out = (dsc_gpt2_config){ 0 };
    bool upcast = false;
    DSC_TRY(read_sizes(&reader, out));
    DSC_TRY(read_number(&reader, "layer_norm_epsilon", 1e-30, 1, 1e-5, &out->norm_eps));
    DSC_TRY(read_number(&reader, "initializer_range", 0, 1000, 0.02, &out->init_std));
    DSC_TRY(read_bool(&reader, "scale_attn_weights", true, &out->scale_attention));
    DSC_TRY(read_bool(&reader, "scale_attn_by_inverse_layer_idx", false, &out->scale_attention_by_layer));
    DSC_TRY(read_bool(&reader, "reorder_and_upcast_attn", false, &upcast)); /* scores are fp32 here in any case */
    DSC_TRY(read_bool(&reader, "tie_word_embeddings", true, &out->tied));
    DSC_TRY(read_activation(&reader));
    DSC_TRY(refuse_other_models(&reader));
    DSC_TRY(read_dropout(&reader, warnings, warnings_bytes));
    out->sequence = out->positions;
    out->vocab_rows = out->vocab;
    return DSC_OK;
}

/* ---- Tensors ----------------------------------------------------------------------------------------------------- */

/* "[768,2304]" */
static const char *shape_text(const int64_t *dim, int32_t dim_count, char *out, size_t bytes)
{
    size_t used = 0;
    for (int32_t i = 0; i < dim_count && used < bytes; i++)
        used += (size_t)snprintf(out + used, bytes - used, "%s%lld", i == 0 ? "[" : ",", (long long)dim[i]);
    if (used < bytes)
        snprintf(out + used, bytes - used, "%s", dim_count == 0 ? "[]" : "]");
    return out;
}

static dsc_status check_tensor(const dsc_weight *weight, int64_t rows, int64_t cols, dsc_error *err)
{
    const dsc_tensor_desc *desc = &weight->entry->desc;
    const int64_t dim[2] = { rows == 0 ? cols : rows, cols };
    const int32_t dim_count = rows == 0 ? 1 : 2;
    char is[160], needs[64];
    const bool same = desc->dim_count == dim_count && memcmp(desc->dim, dim, (size_t)dim_count * sizeof *dim) == 0;
    if (!same)
        return DSC_FAIL(err, DSC_ERR_INPUT, dsc_safetensors_path(weight->file),
                        "tensor \"%.200s\" is %s, config.json needs %s", weight->name,
                        shape_text(desc->dim, desc->dim_count, is, sizeof is),
                        shape_text(dim, dim_count, needs, sizeof needs));
    if (desc->dtype != DSC_F32 && desc->dtype != DSC_BF16 && desc->dtype != DSC_F16)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, dsc_safetensors_path(weight->file),
                        "tensor \"%.200s\" is in %s; weights are read from F32, BF16 or F16", weight->name,
                        weight->entry->dtype_text);
    return DSC_OK;
}

static const char *without_prefix(const char *name)
{
    const size_t bytes = strlen(PREFIX);
    return strncmp(name, PREFIX, bytes) == 0 ? name + bytes : name;
}

static dsc_status find_tensor(const dsc_weights *weights, const char *name, const dsc_weight **out, dsc_error *err)
{
    const char *shorter = without_prefix(name);
    const dsc_weight *whole = dsc_weights_find(weights, name);
    const dsc_weight *base = shorter != name ? dsc_weights_find(weights, shorter) : NULL;
    if (whole != NULL && base != NULL)
        return DSC_FAIL(err, DSC_ERR_INPUT, dsc_weights_dir(weights), "both \"%s\" and \"%s\" exist", name, shorter);
    *out = whole != NULL ? whole : base;
    return DSC_OK;
}

/* "h.11.attn.bias" is "attn.bias" of layer 11; NULL for a name of no layer that exists. */
static const char *layer_part(const dsc_gpt2_config *config, const char *shorter, int64_t *layer)
{
    if (strncmp(shorter, "h.", 2) != 0)
        return NULL;
    const char *at = shorter + 2;
    for (*layer = 0; *at >= '0' && *at <= '9' && *layer < config->layers; at++)
        *layer = *layer * 10 + (*at - '0');
    return at > shorter + 2 && *at == '.' && *layer < config->layers ? at + 1 : NULL;
}

/* Beside its parameters a file may hold causal masks (of older versions), and the head of a tied model. */
static bool may_be_ignored(const dsc_gpt2_config *config, const char *shorter)
{
    int64_t layer = 0;
    const char *part = layer_part(config, shorter, &layer);
    if (part != NULL)
        return strcmp(part, "attn.bias") == 0 || strcmp(part, "attn.masked_bias") == 0;
    return config->tied && strcmp(shorter, "lm_head.weight") == 0;
}

static bool is_one_of(const dsc_param_spec *params, int64_t first, int64_t end, const char *shorter)
{
    for (int64_t i = first; i < end; i++)
        if (strcmp(without_prefix(params[i].name), shorter) == 0)
            return true;
    return false;
}

/* params are in the order of the enums in gpt2.h, so a layer's are found by its number. */
static bool is_param(const dsc_gpt2_config *config, const dsc_param_spec *params, int64_t param_count,
                     const char *shorter)
{
    int64_t layer = 0;
    if (layer_part(config, shorter, &layer) == NULL)
        return is_one_of(params, 0, DSC_GPT2_EMBED_PARAMS, shorter) ||
               is_one_of(params, param_count - DSC_GPT2_HEAD_PARAMS, param_count, shorter);
    const int64_t first = DSC_GPT2_EMBED_PARAMS + layer * DSC_GPT2_BLOCK_PARAMS;
    return is_one_of(params, first, first + DSC_GPT2_BLOCK_PARAMS, shorter);
}

static dsc_status refuse_unknown(const dsc_weights *weights, const dsc_gpt2_config *config,
                                 const dsc_param_spec *params, int64_t param_count, dsc_error *err)
{
    for (int64_t i = 0; i < dsc_weights_count(weights); i++) {
        const dsc_weight *weight = dsc_weights_at(weights, i);
        const char *shorter = without_prefix(weight->name);
        if (!is_param(config, params, param_count, shorter) && !may_be_ignored(config, shorter))
            return DSC_FAIL(err, DSC_ERR_INPUT, dsc_safetensors_path(weight->file),
                            "tensor \"%.200s\" is not one of a gpt2 with n_layer %lld", weight->name,
                            (long long)config->layers);
    }
    return DSC_OK;
}

dsc_status dsc_gpt2_match_weights(const dsc_weights *weights, const dsc_gpt2_config *config,
                                  const dsc_param_spec *params, int64_t param_count, const dsc_weight **sources,
                                  dsc_error *err)
{
    const dsc_weight *tied_head = NULL;
    if (config->tied) {
        tied_head = dsc_weights_find(weights, "lm_head.weight");
        if (tied_head != NULL)
            DSC_TRY(check_tensor(tied_head, config->vocab, config->channels, err));
    }
    for (int64_t i = 0; i < param_count; i++) {
        const dsc_param_spec *spec = &params[i];
        const bool table = i == DSC_GPT2_WTE || i == param_count - 1;
        DSC_TRY(find_tensor(weights, spec->name, &sources[i], err));
        if (sources[i] == NULL && table)
            sources[i] = tied_head; /* some programs keep that one name of the two */
        if (sources[i] == NULL)
            return DSC_FAIL(err, DSC_ERR_INPUT, dsc_weights_dir(weights), "tensor \"%s\" is missing from its weights",
                            spec->name);
        DSC_TRY(check_tensor(sources[i], table ? config->vocab : spec->dim_count == 1 ? 0 : spec->dim[0],
                             spec->dim[spec->dim_count - 1], err));
    }
    return refuse_unknown(weights, config, params, param_count, err);
}
