/* rope_config.c - rotary positions in config.json. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "models/lm.h"
#include "models/rope.h"

static const char *const rope_names[] = { [DSC_ROPE_DEFAULT] = "default", [DSC_ROPE_LINEAR] = "linear",
                                          [DSC_ROPE_DYNAMIC] = "dynamic", [DSC_ROPE_LLAMA3] = "llama3",
                                          [DSC_ROPE_YARN] = "yarn", [DSC_ROPE_LONG] = "longrope",
                                          [DSC_ROPE_PROPORTIONAL] = "proportional" };
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
    DSC_TRY(dsc_hf_number(reader, "beta_fast", turns, 32, &out->beta_fast));
    DSC_TRY(dsc_hf_number(reader, "beta_slow", turns, 1, &out->beta_slow));
    DSC_TRY(dsc_hf_number(reader, "attention_factor", turns, 0, &out->attention_factor));
    DSC_TRY(dsc_hf_bool(reader, "truncate", true, &out->truncate));
    DSC_TRY(dsc_hf_number(reader, "mscale", scales, 0, &out->mscale));
    return dsc_hf_number(reader, "mscale_all_dim", scales, 0, &out->mscale_all_dim);
}

static dsc_status read_longrope(dsc_hf_config *reader, int64_t pairs, dsc_rope *out)
{
    DSC_TRY(dsc_hf_number(reader, "attention_factor", (dsc_hf_range){ 1e-3, 1e6 }, 0, &out->attention_factor));
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

static dsc_status read_partial(dsc_hf_config *reader, const cJSON *from, double *partial)
{
    const cJSON *const object = reader->object;
    reader->object = from;
    const dsc_status status = dsc_hf_number(reader, "partial_rotary_factor", (dsc_hf_range){ 0, 1 }, *partial, partial);
    reader->object = object;
    return status;
}

/* The reader stands on the object that names the type. */
static dsc_status read_object(dsc_hf_config *reader, const cJSON *root, const dsc_rope_keys *keys, dsc_rope *out,
                              double *partial)
{
    const char *key = dsc_hf_field(reader, "rope_type") != NULL ? "rope_type" : "type"; /* the older name */
    int32_t kind = 0;
    DSC_TRY(refuse_nested(reader));
    DSC_TRY(dsc_hf_choice(reader, key, rope_names, DSC_COUNT(rope_names), &kind));
    out->kind = (dsc_rope_kind)kind;
    DSC_TRY(dsc_hf_number(reader, "rope_theta", (dsc_hf_range){ 2, 1e30 }, out->theta, &out->theta));
    if (keys->partial == NULL && out->kind != DSC_ROPE_DEFAULT) /* the root's, which plain positions do not ask for */
        DSC_TRY(read_partial(reader, root, partial));
    DSC_TRY(read_partial(reader, reader->object, partial));
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
    DSC_TRY(dsc_hf_number(reader, "factor", (dsc_hf_range){ 1e-3, 1e6 },
                          (double)keys->positions / out->original_positions, &out->factor));
    if (out->kind == DSC_ROPE_LLAMA3)
        return read_llama3(reader, out);
    if (out->kind == DSC_ROPE_LONG)
        return read_longrope(reader, (int64_t)((double)keys->head_size * *partial) / 2, out);
    return out->kind == DSC_ROPE_YARN ? read_yarn(reader, out) : DSC_OK;
}

dsc_status dsc_rope_read(dsc_hf_config *reader, const dsc_rope_keys *keys, dsc_rope *out)
{
    /* As Hugging Face's code chooses when both are there. */
    static const char *const objects[] = { "rope_scaling", "rope_parameters" };
    const cJSON *const root = reader->object, *object = NULL;
    double partial = keys->partial_default;
    *out = (dsc_rope){ .kind = DSC_ROPE_DEFAULT, .truncate = true };
    DSC_TRY(dsc_hf_number(reader, keys->theta, (dsc_hf_range){ 2, 1e30 }, 10000, &out->theta));
    if (keys->partial != NULL)
        DSC_TRY(dsc_hf_number(reader, keys->partial, (dsc_hf_range){ 0, 1 }, partial, &partial));
    for (size_t i = 0; i < DSC_COUNT(objects) && object == NULL; i++) {
        object = dsc_hf_field(reader, objects[i]);
        if (object != NULL && !cJSON_IsObject(object))
            return DSC_HF_REFUSE(reader, DSC_ERR_INPUT, "\"%s\" must be an object", objects[i]);
        if (object != NULL && object->child == NULL) /* an empty one says nothing */
            object = NULL;
    }
    if (object != NULL) {
        reader->object = object;
        const dsc_status status = read_object(reader, root, keys, out, &partial);
        reader->object = root;
        DSC_TRY(status);
    }
    const int64_t size = (int64_t)((double)keys->head_size * partial);
    if (size < 2 || size % 2 != 0) {
        const char *key = keys->partial != NULL ? keys->partial : "head_dim";
        (void)dsc_hf_field(reader, key);
        return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED,
                             "\"%s\": rotary positions of %lld of a head's %lld elements are not built; what exists: "
                             "even numbers from 2", key, (long long)size, (long long)keys->head_size);
    }
    dsc_rope_set(out, size);
    return DSC_OK;
}

/* What a dsc_rope_write has written so far. */
typedef struct rope_text {
    char *out;
    size_t bytes, used;
} rope_text;

static void put(rope_text *text, const char *before, const char *what)
{
    const int length = snprintf(text->out + text->used, text->bytes - text->used, "%s%s", before, what);
    DSC_ASSERT(length >= 0 && (size_t)length < text->bytes - text->used);
    text->used += (size_t)length;
}

static void put_number(rope_text *text, const char *before, double value)
{
    char number[32];
    put(text, before, dsc_hf_number_text(value, number, sizeof number));
}

static void put_yarn(rope_text *text, const dsc_rope *rope)
{
    put_number(text, ", \"beta_fast\": ", rope->beta_fast);
    put_number(text, ", \"beta_slow\": ", rope->beta_slow);
    put(text, ", \"truncate\": ", rope->truncate ? "true" : "false");
    if (rope->attention_factor > 0) {
        put_number(text, ", \"attention_factor\": ", rope->attention_factor);
    } else if (rope->mscale > 0 && rope->mscale_all_dim > 0) {
        put_number(text, ", \"mscale\": ", rope->mscale);
        put_number(text, ", \"mscale_all_dim\": ", rope->mscale_all_dim);
    }
}

static void put_longrope(rope_text *text, const dsc_rope *rope)
{
    if (rope->attention_factor > 0)
        put_number(text, ", \"attention_factor\": ", rope->attention_factor);
    for (int which = 0; which < 2; which++) {
        put(text, ", \"", long_keys[which]);
        for (int32_t i = 0; i < rope->pairs; i++)
            put_number(text, i == 0 ? "\": [" : ", ", (double)rope->divisor[which][i]);
        put(text, "]", "");
    }
}

void dsc_rope_write(const dsc_rope *rope, char *out, size_t bytes)
{
    rope_text text = { out, bytes, 0 };
    if (rope->kind == DSC_ROPE_DEFAULT) {
        put(&text, "null", "");
        return;
    }
    put(&text, "{\"rope_type\": \"", rope_names[rope->kind]);
    put_number(&text, "\", \"factor\": ", rope->factor);
    if (rope->kind == DSC_ROPE_LLAMA3) {
        put_number(&text, ", \"low_freq_factor\": ", rope->low_freq_factor);
        put_number(&text, ", \"high_freq_factor\": ", rope->high_freq_factor);
    }
    if (rope->kind == DSC_ROPE_YARN)
        put_yarn(&text, rope);
    if (rope->kind == DSC_ROPE_LONG)
        put_longrope(&text, rope);
    if (rope->kind == DSC_ROPE_LLAMA3 || rope->kind == DSC_ROPE_YARN || rope->kind == DSC_ROPE_LONG)
        put_number(&text, ", \"original_max_position_embeddings\": ", rope->original_positions);
    if (rope->kind == DSC_ROPE_PROPORTIONAL)
        put_number(&text, ", \"partial_rotary_factor\": ", rope->proportion);
    put(&text, "}", "");
}
