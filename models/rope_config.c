/* rope_config.c - rotary positions in config.json. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "models/lm.h"
#include "models/rope.h"

static const char *const rope_names[] = { [DSC_ROPE_DEFAULT] = "default", [DSC_ROPE_LINEAR] = "linear",
                                          [DSC_ROPE_DYNAMIC] = "dynamic", [DSC_ROPE_LLAMA3] = "llama3",
                                          [DSC_ROPE_YARN] = "yarn", [DSC_ROPE_LONG] = "longrope",
                                          [DSC_ROPE_PROPORTIONAL] = "proportional" };
static const dsc_hf_range thetas = { 2, 1e30 };
static const char *const long_keys[2] = { "short_factor", "long_factor" };

static dsc_status need(dsc_hf_config *reader, const char *key, dsc_rope_kind kind)
{
    if (dsc_hf_field(reader, key) != NULL)
        return DSC_OK;
    return DSC_HF_REFUSE(reader, DSC_ERR_INPUT, "rotary positions of type \"%s\" need \"%s\"", rope_names[kind], key);
}

static dsc_status read_llama3(dsc_hf_config *reader, dsc_rope *out)
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

static dsc_status read_yarn(dsc_hf_config *reader, dsc_rope *out)
{
    static const dsc_hf_range turns = { 1e-3, 1e6 }, scales = { 0, 1e6 };
    DSC_TRY(dsc_hf_number_or_null(reader, "beta_fast", turns, 32, &out->beta_fast));
    DSC_TRY(dsc_hf_number_or_null(reader, "beta_slow", turns, 1, &out->beta_slow));
    DSC_TRY(dsc_hf_number_or_null(reader, "attention_factor", turns, 0, &out->attention_factor));
    DSC_TRY(dsc_hf_bool(reader, "truncate", true, &out->truncate));
    DSC_TRY(dsc_hf_number_or_null(reader, "mscale", scales, 0, &out->mscale));
    return dsc_hf_number_or_null(reader, "mscale_all_dim", scales, 0, &out->mscale_all_dim);
}

static dsc_status read_longrope(dsc_hf_config *reader, int64_t pairs, dsc_rope *out)
{
    DSC_TRY(dsc_hf_number_or_null(reader, "attention_factor", (dsc_hf_range){ 1e-3, 1e6 }, 0, &out->attention_factor));
    for (int which = 0; which < 2; which++) {
        DSC_TRY(need(reader, long_keys[which], out->kind));
        const cJSON *list = dsc_hf_field(reader, long_keys[which]), *item = NULL;
        int64_t count = 0;
        if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) != pairs)
            return DSC_HF_REFUSE(reader, DSC_ERR_INPUT, "\"%s\" must be a list of %lld numbers, one for each pair of a "
                                 "head's elements", long_keys[which], (long long)pairs);
        cJSON_ArrayForEach(item, list) {
            if (!cJSON_IsNumber(item) || !(item->valuedouble >= 1e-6 && item->valuedouble <= 1e6))
                return DSC_HF_REFUSE(reader, DSC_ERR_INPUT, "\"%s\" must be numbers from 1e-06 to 1e+06",
                                     long_keys[which]);
            out->divisor[which][count++] = (float)item->valuedouble;
        }
    }
    return DSC_OK;
}

/* Positions before a scaling; the root's own word goes before the object's. */
static dsc_status read_original(dsc_hf_config *reader, const cJSON *root, const dsc_rope_keys *keys, dsc_rope *out)
{
    static const char key[] = "original_max_position_embeddings";
    const cJSON *const object = reader->object;
    const bool scaled = out->kind == DSC_ROPE_LLAMA3 || out->kind == DSC_ROPE_YARN || out->kind == DSC_ROPE_LONG;
    int64_t original = 0;
    const cJSON *above = cJSON_GetObjectItemCaseSensitive(root, key);
    if (scaled && above != NULL && !cJSON_IsNull(above))
        reader->object = root;
    const dsc_status status = dsc_hf_int(reader, key, DSC_LM_POSITIONS_MAX, keys->positions, &original);
    reader->object = object;
    out->original_positions = (double)original;
    return status;
}

/* One object for all layers, not one for each kind of them. */
static dsc_status refuse_nested(dsc_hf_config *reader)
{
    for (const cJSON *item = reader->object->child; item != NULL; item = item->next)
        if (cJSON_IsObject(item)) {
            (void)dsc_hf_field(reader, item->string);
            return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED, "rotary positions of their own for the layers \"%.60s\" "
                                 "are not built; what exists: the same for all", item->string);
        }
    return DSC_OK;
}

/* Positions in three directions, which are equal for text: plain ones (wrapper.c). */
static bool is_plain_mrope(dsc_hf_config *reader, const char *key)
{
    const cJSON *item = dsc_hf_field(reader, key);
    return reader->text_part && cJSON_IsString(item) && strcmp(item->valuestring, "mrope") == 0;
}

/* The reader stands on the object that names the type. */
static dsc_status read_object(dsc_hf_config *reader, const cJSON *root, const dsc_rope_keys *keys, dsc_rope *out,
                              double *partial)
{
    static const dsc_hf_range shares = { 0, 1 };
    const cJSON *const object = reader->object;
    const bool named = cJSON_GetObjectItemCaseSensitive(reader->object, "rope_type") != NULL;
    const char *key = named ? "rope_type" : "type"; /* the older name */
    int32_t kind = 0;
    DSC_TRY(refuse_nested(reader));
    if (!is_plain_mrope(reader, key))
        DSC_TRY(dsc_hf_choice(reader, key, rope_names, DSC_COUNT(rope_names), &kind));
    out->kind = (dsc_rope_kind)kind;
    DSC_TRY(dsc_hf_number(reader, "rope_theta", thetas, out->theta, &out->theta));
    if (keys->partial == NULL && out->kind != DSC_ROPE_DEFAULT) { /* the root's, which plain positions do not ask for */
        reader->object = root;
        DSC_TRY(dsc_hf_number_or_null(reader, "partial_rotary_factor", shares, *partial, partial));
        reader->object = object;
    }
    DSC_TRY(dsc_hf_number(reader, "partial_rotary_factor", shares, *partial, partial));
    if (out->kind == DSC_ROPE_PROPORTIONAL) {
        out->proportion = *partial;
        *partial = 1;
        return dsc_hf_number(reader, "factor", (dsc_hf_range){ 1e-3, 1e6 }, 1, &out->factor);
    }
    if (keys->partial == NULL && *partial != 1)
        return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED, "\"partial_rotary_factor\" %g is not built; what exists: 1",
                             *partial);
    if (out->kind == DSC_ROPE_DEFAULT)
        return DSC_OK;
    DSC_TRY(read_original(reader, root, keys, out));
    if (out->kind != DSC_ROPE_LONG)
        DSC_TRY(need(reader, "factor", out->kind));
    DSC_TRY(dsc_hf_number_or_null(reader, "factor", (dsc_hf_range){ 1e-3, 1e6 },
                                  (double)keys->positions / out->original_positions, &out->factor));
    if (out->kind == DSC_ROPE_LLAMA3)
        return read_llama3(reader, out);
    if (out->kind == DSC_ROPE_LONG)
        return read_longrope(reader, (int64_t)((double)keys->head_size * *partial) / 2, out);
    return out->kind == DSC_ROPE_YARN ? read_yarn(reader, out) : DSC_OK;
}

/* One description; `object` NULL: plain positions. The reader stands on the root. */
static dsc_status read_one(dsc_hf_config *reader, const cJSON *object, const dsc_rope_keys *keys, double theta,
                           dsc_rope *out)
{
    const cJSON *const root = reader->object;
    double partial = keys->partial_default;
    *out = (dsc_rope) { .kind = DSC_ROPE_DEFAULT, .theta = theta, .truncate = true, .neighbours = keys->neighbours };
    if (keys->partial != NULL)
        DSC_TRY(dsc_hf_number(reader, keys->partial, (dsc_hf_range) { 0, 1 }, partial, &partial));
    if (object != NULL) {
        reader->object = object;
        const dsc_status status = read_object(reader, root, keys, out, &partial);
        reader->object = root;
        DSC_TRY(status);
    }
    const int64_t size = (int64_t)((double)keys->head_size * partial);
    if (size < 2 || size % 2 != 0 || size > 2 * DSC_ROPE_PAIRS_MAX) {
        const char *key = keys->partial != NULL ? keys->partial : "head_dim";
        (void)dsc_hf_field(reader, key);
        return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED,
                             "\"%s\": rotary positions of %lld of a head's %lld elements are not built; what exists: "
                             "even numbers from 2", key, (long long)size, (long long)keys->head_size);
    }
    dsc_rope_set(out, size);
    return DSC_OK;
}

/* An object of the root; NULL if it is absent or empty, which says nothing. */
static dsc_status find_object(dsc_hf_config *reader, const char *key, const cJSON **out)
{
    *out = dsc_hf_field(reader, key);
    if (*out != NULL && !cJSON_IsObject(*out))
        return DSC_HF_REFUSE(reader, DSC_ERR_INPUT, "\"%s\" must be an object", key);
    if (*out != NULL && (*out)->child == NULL)
        *out = NULL;
    return DSC_OK;
}

dsc_status dsc_rope_read(dsc_hf_config *reader, const dsc_rope_keys *keys, dsc_rope *out)
{
    /* As Hugging Face's code chooses when both are there. */
    static const char *const objects[] = { "rope_scaling", "rope_parameters" };
    const cJSON *object = NULL;
    double theta = 0;
    DSC_TRY(dsc_hf_number(reader, keys->theta, thetas, keys->theta_default > 0 ? keys->theta_default : 10000, &theta));
    for (size_t i = 0; i < DSC_COUNT(objects) && object == NULL; i++)
        DSC_TRY(find_object(reader, objects[i], &object));
    return read_one(reader, object, keys, theta, out);
}

/* ---- by kinds of layers ------------------------------------------------------------------------------------------ */

/* Every entry is the object, or null, of one of the kinds. */
static dsc_status check_layers(dsc_hf_config *reader, const cJSON *parameters, const dsc_rope_layer *layers,
                               int32_t count)
{
    const cJSON *const root = reader->object, *item = NULL;
    reader->object = parameters;
    cJSON_ArrayForEach(item, parameters)
    {
        bool known = false;
        for (int32_t i = 0; i < count; i++)
            known |= strcmp(item->string, layers[i].name) == 0;
        (void)dsc_hf_field(reader, item->string);
        if (!known || !(cJSON_IsObject(item) || cJSON_IsNull(item)))
            return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED,
                                 "\"rope_parameters\": \"%.60s\" is not the object of a kind of layers; the kinds of "
                                 "this family are \"%s\" and others like it",
                                 item->string, layers[0].name);
    }
    reader->object = root;
    return DSC_OK;
}

/* The older files' object is that of the scaled kinds. */
static const cJSON *object_of(const cJSON *parameters, const cJSON *scaling, const dsc_rope_layer *layer)
{
    if (parameters == NULL)
        return layer->scaled ? scaling : NULL;
    const cJSON *object = cJSON_GetObjectItemCaseSensitive(parameters, layer->name);
    return cJSON_IsObject(object) ? object : NULL;
}

/* Where positions are by kinds of layers, transformers does not read the older name of the type and has plain ones. */
static dsc_status refuse_older_type(dsc_hf_config *reader, const cJSON *scaling)
{
    const cJSON *const root = reader->object;
    reader->object = scaling;
    const bool older = dsc_hf_field(reader, "rope_type") == NULL && dsc_hf_field(reader, "type") != NULL;
    reader->object = root;
    if (!older)
        return DSC_OK;
    return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED,
                         "\"type\" in \"rope_scaling\" is not read where kinds of layers have positions of their own, "
                         "as transformers does not read it; what exists: \"rope_type\"");
}

dsc_status dsc_rope_read_layers(dsc_hf_config *reader, const dsc_rope_keys *keys, const dsc_rope_layer *layers,
                                int32_t count, dsc_rope *out)
{
    const cJSON *parameters = NULL, *scaling = NULL;
    DSC_ASSERT(count >= 1 && count <= DSC_ROPE_LAYERS_MAX);
    DSC_TRY(find_object(reader, "rope_scaling", &scaling));
    DSC_TRY(find_object(reader, "rope_parameters", &parameters));
    if (scaling != NULL)
        DSC_TRY(refuse_older_type(reader, scaling));
    if (parameters != NULL && scaling != NULL)
        return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED,
                             "\"rope_parameters\" beside \"rope_scaling\" is not built; "
                             "what exists: one of the two");
    if (parameters != NULL) {
        DSC_TRY(check_layers(reader, parameters, layers, count));
        if (dsc_hf_field(reader, "original_max_position_embeddings") != NULL) /* which it would be is not defined */
            return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED,
                                 "\"original_max_position_embeddings\" beside rotary "
                                 "positions by layers is not built; what exists: the key in the layers' objects");
    }
    for (int32_t i = 0; i < count; i++) {
        dsc_rope_keys own = *keys;
        double theta = layers[i].theta_default;
        if (layers[i].head_size > 0)
            own.head_size = layers[i].head_size;
        if (layers[i].theta != NULL)
            DSC_TRY(dsc_hf_number(reader, layers[i].theta, thetas, theta, &theta));
        DSC_TRY(read_one(reader, object_of(parameters, scaling, &layers[i]), &own, theta, &out[i]));
        if (out[i].kind == DSC_ROPE_YARN && !out[i].truncate) /* Hugging Face's code does not see the key there */
            return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED,
                                 "\"truncate\" false in the rotary positions of \"%s\" is "
                                 "not built; what exists: true",
                                 layers[i].name);
    }
    return DSC_OK;
}

void dsc_rope_write(const dsc_rope *rope, char *out, size_t bytes)
{
    char factor[32], low[32], high[32], original[32];
    DSC_ASSERT(rope->kind == DSC_ROPE_DEFAULT || rope->kind == DSC_ROPE_LLAMA3);
    if (rope->kind == DSC_ROPE_DEFAULT)
        snprintf(out, bytes, "null");
    else
        snprintf(out, bytes,
                 "{\"rope_type\": \"%s\", \"factor\": %s, \"low_freq_factor\": %s, \"high_freq_factor\": %s, "
                 "\"original_max_position_embeddings\": %s}",
                 rope_names[rope->kind], dsc_hf_number_text(rope->factor, factor, sizeof factor),
                 dsc_hf_number_text(rope->low_freq_factor, low, sizeof low),
                 dsc_hf_number_text(rope->high_freq_factor, high, sizeof high),
                 dsc_hf_number_text(rope->original_positions, original, sizeof original));
}
