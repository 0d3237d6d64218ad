/* wrapper.c - see wrapper.h. The names of tensors are those of the transformers package, in its files of before and
 * after 4.52. SPDX-License-Identifier: Apache-2.0 */
#include "models/wrapper.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- config.json ---- */

/* Text models with positions in three directions (M-RoPE) are here too: for text the three positions of a token are
 * equal, which makes the rotation the plain one. `inner`: the keys may be in the root, as older files have them. */
static const struct { const char *model_type, *inner; } wrappers[] = {
    { "llava", NULL },    { "llava_next", NULL }, { "llava_onevision", NULL }, { "mistral3", NULL },
    { "internvl", NULL }, { "idefics3", NULL },   { "smolvlm", NULL },         { "qwen2_vl", "qwen2_vl_text" },
    { "qwen2_5_vl", "qwen2_5_vl_text" },          { "qwen3_vl", NULL },       { "gemma3", NULL },
    { "qwen3_5", NULL },  { "qwen3_5_moe", NULL },
};

/* Types of text_config and their families. */
static const char *const text_types[][2] = {
    { "llama", "llama" }, { "mistral", "mistral" },        { "qwen2", "qwen2" },
    { "qwen3", "qwen3" }, { "qwen2_vl_text", "qwen2" },    { "qwen2_5_vl_text", "qwen2" },
    { "qwen3_vl_text", "qwen3" }, { "gemma3_text", "gemma3_text" },
    { "qwen3_5_text", "qwen3_5_text" }, { "qwen3_5_moe_text", "qwen3_5_moe_text" },
};

/* Classes of their own have other defaults than the family, so their sizes must be there. */
static dsc_status need_sizes(dsc_hf_config *reader, const char *type)
{
    static const char *const keys[] = { "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                                        "num_attention_heads", "num_key_value_heads", "max_position_embeddings",
                                        "rms_norm_eps" };
    for (size_t i = 0; i < DSC_COUNT(keys); i++)
        if (dsc_hf_field(reader, keys[i]) == NULL)
            return DSC_HF_REFUSE(reader, DSC_ERR_INPUT, "\"%s\" is missing; a %s needs it", keys[i], type);
    return DSC_OK;
}

/* The parts of M-RoPE are those of a half head; else transformers' rotation is not the plain one for text either. */
static dsc_status check_sections(dsc_hf_config *reader)
{
    static const char *const objects[] = { "rope_scaling", "rope_parameters" };
    const cJSON *const text = reader->object;
    int64_t heads = 1, channels = 1, size = 0;
    DSC_TRY(dsc_hf_int(reader, "num_attention_heads", DSC_LM_CHANNELS_MAX, 32, &heads));
    DSC_TRY(dsc_hf_int(reader, "hidden_size", DSC_LM_CHANNELS_MAX, 4096, &channels));
    DSC_TRY(dsc_hf_int_or_null(reader, "head_dim", DSC_LM_CHANNELS_MAX, channels / heads, &size));
    for (size_t i = 0; i < DSC_COUNT(objects); i++) {
        double sum = 0;
        const cJSON *item = NULL;
        reader->object = text;
        const cJSON *object = dsc_hf_field(reader, objects[i]);
        reader->object = cJSON_IsObject(object) ? object : text;
        const cJSON *sections = cJSON_IsObject(object) ? dsc_hf_field(reader, "mrope_section") : NULL;
        reader->object = text;
        if (sections == NULL)
            continue;
        cJSON_ArrayForEach(item, sections)
            sum += cJSON_IsNumber(item) ? item->valuedouble : -1e9;
        if (sum != (double)(size / 2))
            return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED, "\"mrope_section\" must be sizes whose sum is %lld, half "
                                 "a head", (long long)(size / 2));
    }
    return DSC_OK;
}

static dsc_status read_text(dsc_hf_config *reader, const char *type, dsc_wrapper *out)
{
    const cJSON *const root = reader->object;
    for (size_t i = 0; i < DSC_COUNT(text_types); i++)
        if (strcmp(type, text_types[i][0]) == 0)
            out->text_type = text_types[i][1];
    if (out->text_type == NULL)
        return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED,
                             "a text model of type \"%.60s\" is not built; what exists in other models: llama, "
                             "mistral, qwen2, qwen3, gemma3_text, qwen3_5_text, qwen3_5_moe_text, and those of "
                             "qwen2_vl, qwen2_5_vl, qwen3_vl",
                             type);
    reader->object = out->object;
    dsc_status status = DSC_OK;
    if (strstr(type, "_vl_text") != NULL) {
        status = need_sizes(reader, type);
        if (status == DSC_OK)
            status = check_sections(reader);
    }
    reader->object = root;
    return status;
}

dsc_status dsc_wrapper_find(dsc_hf_config *reader, const char *model_type, dsc_wrapper *out)
{
    const cJSON *const root = reader->object;
    *out = (dsc_wrapper){ NULL, NULL };
    for (size_t i = 0; i < DSC_COUNT(wrappers); i++) {
        if (strcmp(model_type, wrappers[i].model_type) != 0)
            continue;
        const cJSON *text = dsc_hf_field(reader, "text_config");
        if (text == NULL && wrappers[i].inner != NULL) {
            out->object = root;
            return read_text(reader, wrappers[i].inner, out);
        }
        if (!cJSON_IsObject(text))
            return DSC_HF_REFUSE(reader, DSC_ERR_INPUT, "\"text_config\" must be an object, the config of the text "
                                 "model in a %s", model_type);
        reader->object = out->object = text;
        const cJSON *type = dsc_hf_field(reader, "model_type");
        reader->object = root;
        if (!cJSON_IsString(type))
            return DSC_HF_REFUSE(reader, DSC_ERR_INPUT, "\"model_type\" is missing in \"text_config\"");
        return read_text(reader, type->valuestring, out);
    }
    return DSC_OK;
}

/* ---- names ---- */

#define NEW_PREFIX "model.language_model."
#define SMOL_PREFIX "model.text_model."

void dsc_wrapper_set_names(dsc_lm_family *family, const dsc_weights *weights)
{
    static const struct { const char *base, *head; } names[] = {
        { NEW_PREFIX, "lm_head.weight" },
        { "language_model.model.", "language_model.lm_head.weight" },
        { SMOL_PREFIX, "lm_head.weight" },
        { "model.", "lm_head.weight" },
    };
    size_t found = 0;
    char table[128];
    for (size_t i = DSC_COUNT(names); weights != NULL && i-- > 0;) {
        snprintf(table, sizeof table, "%s%s", names[i].base, family->token_table);
        if (dsc_weights_find(weights, table) != NULL)
            found = i;
    }
    family->base = names[found].base;
    family->head_table = names[found].head;
    family->wrapped = true;
}

bool dsc_wrapper_names_are_peft(const dsc_lm_family *family)
{
    return strcmp(family->base, NEW_PREFIX) == 0 || strcmp(family->base, SMOL_PREFIX) == 0;
}

bool dsc_wrapper_carries(const dsc_lm_family *family, const char *name)
{
    return family->wrapped && strncmp(name, family->base, strlen(family->base)) != 0 &&
           strcmp(name, family->head_table) != 0;
}

dsc_status dsc_wrapper_read_tied(dsc_hf_config *reader, const dsc_lm_family *family, const dsc_weights *weights,
                                 bool *tied)
{
    const cJSON *const text = reader->object, *const root = dsc_json_root(reader->json);
    const cJSON *const places[] = { root, text };
    for (size_t i = 0; i < DSC_COUNT(places); i++) {
        reader->object = places[i];
        const bool named = dsc_hf_field(reader, "tie_word_embeddings") != NULL;
        const dsc_status status = named ? dsc_hf_bool(reader, "tie_word_embeddings", false, tied) : DSC_OK;
        reader->object = text;
        if (named)
            return status;
    }
    *tied = weights != NULL && dsc_weights_find(weights, family->head_table) == NULL;
    return DSC_OK;
}

/* ---- carried tensors ---- */

void dsc_wrapper_carried_close(dsc_wrapper_carried **carried)
{
    dsc_wrapper_carried *c = *carried;
    if (c == NULL)
        return;
    for (int64_t i = 0; i < c->path_count; i++)
        dsc_alloc_free(c->alloc, c->path[i]);
    dsc_safetensors_plan_close(&c->plan);
    dsc_alloc_free(c->alloc, (void *)c->path);
    dsc_alloc_free(c->alloc, c->piece);
    dsc_alloc_free(c->alloc, c);
    *carried = NULL;
}

/* The copy of the path of a tensor's file: tensors of one file share it. */
static dsc_status add_path(dsc_wrapper_carried *c, const char *path, const char **out, dsc_error *err)
{
    for (int64_t i = c->path_count - 1; i >= 0; i--)
        if (strcmp(c->path[i], path) == 0) {
            *out = c->path[i];
            return DSC_OK;
        }
    DSC_TRY(dsc_alloc_strdup(c->alloc, DSC_TAG_CONTROL, path, &c->path[c->path_count], err));
    *out = c->path[c->path_count++];
    return DSC_OK;
}

static dsc_status add_tensor(dsc_wrapper_carried *c, dsc_safetensors_spec *specs, int64_t at, const dsc_weight *weight,
                             dsc_error *err)
{
    const dsc_safetensors_entry *entry = weight->entry;
    const bool kept = entry->desc.dtype == DSC_F32 || entry->desc.dtype == DSC_BF16 || entry->desc.dtype == DSC_F16 ||
                      entry->desc.dtype == DSC_F64 || entry->desc.dtype == DSC_I32 || entry->desc.dtype == DSC_I64 ||
                      entry->desc.dtype == DSC_U8;
    if (!kept)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, dsc_safetensors_path(weight->file),
                        "tensor \"%.200s\" of another part than the text model is in %s, which is not written; what "
                        "exists: F32, BF16, F16, F64, I32, I64, U8", weight->name, entry->dtype_text);
    specs[at] = (dsc_safetensors_spec){ weight->name, entry->desc };
    c->piece[at].from = entry->offset;
    c->piece[at].bytes = entry->bytes;
    return add_path(c, dsc_safetensors_path(weight->file), &c->piece[at].path, err);
}

static int64_t count_carried(const dsc_lm_family *family, const dsc_weights *weights)
{
    int64_t count = 0;
    for (int64_t i = 0; weights != NULL && i < dsc_weights_count(weights); i++)
        count += dsc_wrapper_carries(family, dsc_weights_at(weights, i)->name);
    return count;
}

/* An empty tensor comes before the one that begins where it does. */
static int by_place(const void *a, const void *b)
{
    const dsc_model_piece *x = a, *y = b;
    const int order = (x->to > y->to) - (x->to < y->to);
    return order != 0 ? order : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static dsc_status fill(dsc_wrapper_carried *c, dsc_safetensors_spec *specs, const dsc_lm_family *family,
                       const dsc_weights *const weights[2], dsc_error *err)
{
    const dsc_safetensors_pair metadata = { "format", "pt" };
    int64_t at = 0;
    for (int32_t s = 0; s < 2; s++)
        for (int64_t i = 0; weights[s] != NULL && i < dsc_weights_count(weights[s]); i++)
            if (dsc_wrapper_carries(family, dsc_weights_at(weights[s], i)->name))
                DSC_TRY(add_tensor(c, specs, at++, dsc_weights_at(weights[s], i), err));
    dsc_error twice = DSC_ERROR_INIT;
    if (dsc_safetensors_plan_open(&c->plan, c->alloc, specs, at, &metadata, 1, &twice) != DSC_OK)
        return DSC_FAIL(err, DSC_ERR_INPUT, c->path[0], "its tensors beside the text model: %s", twice.message);
    for (int64_t i = 0; i < at; i++)
        c->piece[i].to = c->plan.offset[i];
    qsort(c->piece, (size_t)at, sizeof *c->piece, by_place);
    c->model = (dsc_model_carried){ c->plan.header, c->plan.header_bytes, c->piece, at, c->plan.file_bytes };
    return DSC_OK;
}

static dsc_status collect(dsc_wrapper_carried **out, dsc_alloc *alloc, const dsc_lm_family *family,
                          const dsc_weights *const weights[2], dsc_error *err)
{
    dsc_wrapper_carried *c = NULL;
    dsc_safetensors_spec *specs = NULL;
    int64_t count = 0;
    for (int32_t s = 0; s < 2; s++)
        count += count_carried(family, weights[s]);
    if (count == 0)
        return DSC_OK;
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, 1, sizeof *c, &c, err));
    c->alloc = alloc;
    dsc_status status = dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, count, sizeof *c->piece, &c->piece, err);
    if (status == DSC_OK)
        status = dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, count, sizeof *c->path, &c->path, err);
    if (status == DSC_OK)
        status = dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, count, sizeof *specs, &specs, err);
    if (status == DSC_OK)
        status = fill(c, specs, family, weights, err);
    dsc_alloc_free(alloc, specs);
    if (status == DSC_OK)
        *out = c;
    else
        dsc_wrapper_carried_close(&c);
    return status;
}

dsc_status dsc_wrapper_collect(dsc_wrapper_carried **out, dsc_alloc *alloc, const dsc_lm_family *family,
                               const dsc_weights *weights, const char *dir, dsc_error *err)
{
    char path[4096];
    dsc_weights *saved = NULL;
    *out = NULL;
    DSC_TRY(dsc_path_join(path, sizeof path, dir, DSC_MODEL_CARRIED_FILE, err));
    if (dsc_io_kind(path) == DSC_PATH_FILE)
        DSC_TRY(dsc_weights_open_file(&saved, alloc, dir, DSC_MODEL_CARRIED_FILE, err));
    const dsc_weights *const sets[2] = { weights, saved };
    const dsc_status status = collect(out, alloc, family, sets, err);
    dsc_weights_close(&saved);
    return status;
}
