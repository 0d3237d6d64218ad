/* lm_weights.c - finds a language model's parameters among a folder's tensors.
 *
 * Files of the base model have no "transformer." (the family's `base`) in front of their names: both are read.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "models/lm_parts.h"
#include "models/wrapper.h"

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

dsc_status dsc_lm_check_dtype(const dsc_weight *weight, dsc_error *err)
{
    const dsc_dtype dtype = weight->entry->desc.dtype;
    if (dtype != DSC_F32 && dtype != DSC_BF16 && dtype != DSC_F16 && weight->scales == NULL)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, dsc_safetensors_path(weight->file),
                        "tensor \"%.200s\" is in %s; weights are read from F32, BF16 or F16", weight->name,
                        weight->entry->dtype_text);
    return DSC_OK;
}

static dsc_status check_dims(const dsc_weight *weight, const int64_t *dim, int32_t dim_count, dsc_error *err)
{
    const dsc_tensor_desc *desc = &weight->entry->desc;
    char is[160], needs[160];
    const bool same = desc->dim_count == dim_count && memcmp(desc->dim, dim, (size_t)dim_count * sizeof *dim) == 0;
    if (!same)
        return DSC_FAIL(err, DSC_ERR_INPUT, dsc_safetensors_path(weight->file),
                        "tensor \"%.200s\" is %s, config.json needs %s", weight->name,
                        shape_text(desc->dim, desc->dim_count, is, sizeof is),
                        shape_text(dim, dim_count, needs, sizeof needs));
    return dsc_lm_check_dtype(weight, err);
}

dsc_status dsc_lm_check_tensor(const dsc_weight *weight, int64_t rows, int64_t cols, dsc_error *err)
{
    const int64_t dim[2] = { rows == 0 ? cols : rows, cols };
    return check_dims(weight, dim, rows == 0 ? 1 : 2, err);
}

bool dsc_lm_is_adapter(const dsc_lm_params *params, int64_t i)
{
    return params->adapted && dsc_lora_is_adapter(params->spec[i].name);
}

const char *dsc_lm_without_base(const dsc_lm_family *family, const char *name)
{
    const size_t bytes = strlen(family->base);
    return strncmp(name, family->base, bytes) == 0 ? name + bytes : name;
}

static dsc_status find_name(const dsc_weights *weights, const dsc_lm_family *family, const char *name,
                            const dsc_weight **out, dsc_error *err)
{
    const char *shorter = dsc_lm_without_base(family, name);
    const dsc_weight *whole = dsc_weights_find(weights, name);
    const dsc_weight *base = shorter != name ? dsc_weights_find(weights, shorter) : NULL;
    if (whole != NULL && base != NULL)
        return DSC_FAIL(err, DSC_ERR_INPUT, dsc_weights_dir(weights), "both \"%s\" and \"%s\" exist", name, shorter);
    *out = whole != NULL ? whole : base;
    return DSC_OK;
}

/* By its name or, where that is in no file, another that ends otherwise. */
dsc_status dsc_lm_find_tensor(const dsc_weights *weights, const dsc_lm_family *family, const char *name,
                              const dsc_weight **out, dsc_error *err)
{
    const size_t bytes = strlen(name);
    DSC_TRY(find_name(weights, family, name, out, err));
    const char *const(*alias)[2] = family->aliases;
    for (; alias != NULL && (*alias)[0] != NULL && *out == NULL; alias++) {
        const size_t end = strlen((*alias)[0]);
        char other[256];
        if (bytes < end || strcmp(name + bytes - end, (*alias)[0]) != 0)
            continue;
        snprintf(other, sizeof other, "%.*s%s", (int)(bytes - end), name, (*alias)[1]);
        DSC_TRY(find_name(weights, family, other, out, err));
    }
    return DSC_OK;
}

/* Description of a tensor that a file may hold in addition to the model; NULL: not allowed. "": nothing is lost
 * without it. */
static const char *beside_of(const dsc_lm_family *family, const char *name)
{
    const char *shorter = dsc_lm_without_base(family, name);
    for (const char *const(*each)[2] = family->beside; each != NULL && (*each)[0] != NULL; each++)
        if (strncmp(shorter, (*each)[0], strlen((*each)[0])) == 0)
            return (*each)[1] != NULL ? (*each)[1] : "";
    return NULL;
}

void dsc_lm_warn_beside(const dsc_weights *weights, const dsc_lm_family *family, char *warnings, size_t bytes)
{
    const char *last = "";
    for (int64_t i = 0; i < dsc_weights_count(weights); i++) {
        const char *what = beside_of(family, dsc_weights_at(weights, i)->name);
        if (what == NULL || strcmp(what, last) == 0 || what[0] == 0 ||
            dsc_wrapper_carries(family, dsc_weights_at(weights, i)->name))
            continue;
        last = what;
        dsc_hf_warn(warnings, bytes,
                    "the folder's %s (\"%.100s\") is neither trained nor saved: what is trained is the %s", what,
                    dsc_weights_at(weights, i)->name,
                    family->classifies && family->head_table[0] == 0  ? "base model"
                    : family->classifies || family->emit_last != NULL ? "classifier"
                    : family->transform != NULL                       ? "masked language model"
                                                                      : "language model");
    }
}

/* "h.11.attn.bias" is "attn.bias" of layer 11; NULL for a name of no layer from `first` to `end` - 1. */
static const char *part_of_layers(const dsc_lm_family *family, const char *shorter, int64_t first, int64_t end)
{
    const size_t bytes = strlen(family->layer);
    int64_t layer = 0;
    if (strncmp(shorter, family->layer, bytes) != 0)
        return NULL;
    const char *at = shorter + bytes;
    for (; *at >= '0' && *at <= '9' && layer < end; at++)
        layer = layer * 10 + (*at - '0');
    return at > shorter + bytes && *at == '.' && layer >= first && layer < end ? at + 1 : NULL;
}

static bool is_later(const dsc_lm_family *family, const dsc_lm_config *config, const char *name)
{
    const int64_t layers = config->layers;
    if (config->later_layers > 0 && strncmp(dsc_lm_without_base(family, name), "mtp_", 4) == 0) /* in ERNIE's files */
        return true;
    return part_of_layers(family, dsc_lm_without_base(family, name), layers, layers + config->later_layers) != NULL;
}

void dsc_lm_warn_later(const dsc_weights *weights, const dsc_lm_family *family, const dsc_lm_config *config,
                       char *warnings, size_t bytes)
{
    for (int64_t i = 0; i < dsc_weights_count(weights) && config->later_layers > 0; i++) {
        const char *name = dsc_weights_at(weights, i)->name;
        if (!is_later(family, config, name))
            continue;
        dsc_hf_warn(warnings, bytes,
                    "the folder's layers that predict further tokens (\"%.100s\") are neither trained "
                    "nor saved",
                    name);
        return;
    }
}

static const char *layer_part(const dsc_lm_params *params, const char *shorter)
{
    return part_of_layers(params->family, shorter, 0, params->config->layers);
}

static bool is_ignored(const dsc_lm_family *family, const char *part)
{
    for (int32_t i = 0; family->may_ignore != NULL && family->may_ignore[i] != NULL; i++)
        if (strcmp(family->may_ignore[i], part) == 0)
            return true;
    return false;
}

/* Beside its parameters a file may hold what the family knows to be constant, and the head of a tied model. */
static bool may_ignore(const dsc_lm_params *params, const char *name)
{
    const char *shorter = dsc_lm_without_base(params->family, name), *part = layer_part(params, shorter);
    if (part != NULL)
        return is_ignored(params->family, part);
    return beside_of(params->family, name) != NULL || is_later(params->family, params->config, name) ||
           (params->config->tied && strcmp(shorter, params->family->head_table) == 0);
}

/* ---- the head ---- */

/* Parameters that only the task needs, which a folder of the base model alone leaves out. */
static bool is_of_head(const dsc_lm_family *family, const dsc_lm_config *config, const char *name)
{
    const char *const own[] = { family->transform, config->masked && !config->embeds ? family->final_norm : NULL };
    if (family->emit_last != NULL) /* the task's layers are outside of the base model, where that has a name */
        return family->base[0] != 0 && dsc_lm_without_base(family, name) == name;
    if (strcmp(name, family->head_table) == 0 || (family->head_bias != NULL && strcmp(name, family->head_bias) == 0))
        return true;
    for (size_t i = 0; i < DSC_COUNT(own); i++)
        if (own[i] != NULL && strncmp(name, own[i], strlen(own[i])) == 0)
            return true;
    return false;
}

/* The last layer of a model that classifies pictures, a weight and a bias, which has other classes than the folder's.
 */
static bool is_new_classifier(const dsc_lm_params *params, int64_t i)
{
    return params->config->file_classes > 0 && i >= params->count - 2;
}

void dsc_lm_warn_fresh(const dsc_lm_params *params, const dsc_weight *const *sources, char *warnings, size_t bytes)
{
    if (params->config->file_classes > 0)
        dsc_hf_warn(warnings, bytes,
                    "\"%.100s\" and its bias are a new classifier of %lld classes with fresh values, as the run asks "
                    "for; the folder's has %lld classes and is left out",
                    params->spec[params->count - 2].name, (long long)params->config->vocab,
                    (long long)params->config->file_classes);
    for (int64_t i = 0; i < params->count; i++)
        if (sources[i] == NULL && !dsc_lm_is_adapter(params, i) && !is_new_classifier(params, i))
            dsc_hf_warn(warnings, bytes, "\"%.100s\" is in no file and begins with fresh values%s",
                        params->spec[i].name,
                        strcmp(params->spec[i].name, params->family->head_table) == 0 && params->config->classes == 0 &&
                                params->family->emit_last == NULL
                            ? " (if the head is the table of tokens, set \"tie_word_embeddings\": true in config.json)"
                            : "");
}

/* used[i]: tensor i of the folder is a parameter. */
static dsc_status refuse_unknown(const dsc_weights *weights, const dsc_lm_params *params, const bool *used,
                                 dsc_error *err)
{
    for (int64_t i = 0; i < dsc_weights_count(weights); i++) {
        const dsc_weight *weight = dsc_weights_at(weights, i);
        if (!used[i] && strstr(weight->name, ".lora_A.") != NULL)
            return DSC_FAIL(err, DSC_ERR_INPUT, dsc_safetensors_path(weight->file),
                            "tensor \"%.200s\" is an adapter's, beside the weights it was trained on; `dsc ckpt export "
                            "--merge` makes one model of both", weight->name);
        if (weight->is_scales)
            continue; /* its matrix is one of the others */
        const char *wrapper = NULL;
        char plain[512];
        dsc_lm_without_wrappers(weight->name, plain, sizeof plain, &wrapper);
        if (!used[i] && wrapper != NULL)
            return dsc_lm_refuse_wrapped(weight, wrapper, err);
        if (!used[i] && !may_ignore(params, weight->name) && !dsc_wrapper_carries(params->family, weight->name))
            return DSC_FAIL(err, DSC_ERR_INPUT, dsc_safetensors_path(weight->file),
                            "tensor \"%.200s\" is not one of a %s with %s %lld", weight->name,
                            params->family->model_type, params->family->layers_key, (long long)params->config->layers);
    }
    return DSC_OK;
}

/* Tensors of one shape. */
static dsc_status compare_values(dsc_alloc *alloc, const dsc_weight *table, const dsc_weight *head, bool *out,
                                 dsc_error *err)
{
    const int64_t count = table->entry->count, most = dsc_min_i64(count, 1 << 16);
    float *x = NULL;
    bool same = true;
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, 2 * most, sizeof *x, &x, err));
    dsc_status status = DSC_OK;
    for (int64_t first = 0; first < count && same && status == DSC_OK; first += most) {
        const int64_t part = dsc_min_i64(most, count - first);
        status = dsc_weight_read_f32(table, first, part, x, err);
        if (status == DSC_OK)
            status = dsc_weight_read_f32(head, first, part, x + most, err);
        for (int64_t i = 0; i < part && same && status == DSC_OK; i++)
            same = x[i] == x[most + i];
    }
    dsc_alloc_free(alloc, x);
    *out = same;
    return status;
}

/* A file of a tied model may hold the head in addition to the table. A head that differs means that the model is not
 * tied. */
static dsc_status check_same(dsc_alloc *alloc, const dsc_weight *table, const dsc_weight *head, dsc_error *err)
{
    bool same = false;
    DSC_TRY(compare_values(alloc, table, head, &same, err));
    if (same)
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_INPUT, dsc_safetensors_path(head->file),
                    "tensor \"%.100s\" is not \"%.100s\", but config.json's \"tie_word_embeddings\", which is true, "
                    "says that they are one; false makes a head of its own of it", head->name, table->name);
}

static bool is_table(const dsc_lm_params *params, int64_t i)
{
    return (i == DSC_LM_TOKEN_TABLE && params->family->emit_first == NULL) ||
           (i == params->count - 1 && params->family->emit_last == NULL);
}

/* A parameter that is neither a vector nor a matrix, nor can have more rows than its file. */
static bool is_array(const dsc_lm_params *params, int64_t i)
{
    return params->spec[i].dim_count > 2 && !is_table(params, i);
}

/* Shape of parameter i in a file that has `vocab` rows of tokens. A vector has 0 rows. */
static void shape_in_file(const dsc_lm_params *params, int64_t i, int64_t vocab, int64_t *rows, int64_t *cols)
{
    const dsc_param_spec *spec = &params->spec[i];
    const bool bias = params->family->head_bias != NULL && i == params->count - 2;
    const bool own = params->config->classes > 0 || params->family->emit_last != NULL;
    const bool labels = own && i > DSC_LM_TOKEN_TABLE; /* the head's rows are as they are */
    *rows = is_table(params, i) && !labels ? vocab : spec->dim_count == 1 ? 0 : dsc_param_whole_dim(spec, 0);
    *cols = bias && !labels ? vocab : dsc_param_whole_dim(spec, spec->dim_count - 1);
}

static dsc_status check_param(const dsc_lm_params *params, int64_t i, int64_t vocab, const dsc_weight *weight,
                              dsc_error *err)
{
    int64_t rows, cols;
    if (is_array(params, i))
        return check_dims(weight, params->spec[i].dim, params->spec[i].dim_count, err);
    shape_in_file(params, i, vocab, &rows, &cols);
    return dsc_lm_check_tensor(weight, rows, cols, err);
}

/* Whether parameter i is a block's matrix that files have as [in,out], unless they have it in 4 bits. */
static bool is_in_out(const dsc_lm_params *params, int64_t i)
{
    const dsc_lm_family *family = params->family;
    const char *name = params->spec[i].name;
    const size_t base = strlen(family->base);
    return family->in_out && params->spec[i].dim_count == 2 && !dsc_lm_is_adapter(params, i) &&
           strncmp(name, family->base, base) == 0 && strncmp(name + base, family->layer, strlen(family->layer)) == 0;
}

/* A model whose matrices are turned has all of them in 4 bits, and trains none whole: files keep the others [in,out].
 */
static dsc_status check_turned(const dsc_weights *weights, const dsc_lm_params *params, int64_t i, bool packed,
                               dsc_error *err)
{
    const dsc_param_spec *spec = &params->spec[i];
    if (!params->config->turned || !is_in_out(params, i) || (packed && !spec->trainable))
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, dsc_weights_dir(weights),
                    packed
                        ? "weight \"%.150s\" is in 4 bits and would be trained whole, beside adapters; expected other "
                          "layers in \"modules_to_save\""
                        : "weight \"%.150s\" is not in 4 bits as others of the model are, beside adapters; expected "
                          "all matrices of blocks in 4 bits, or none",
                    spec->name);
}

/* A tensor of the folder that is parameter i: its shape, or all tensors of a matrix in 4 bits. */
static dsc_status check_source(const dsc_weights *weights, dsc_alloc *alloc, const dsc_lm_params *params, int64_t i,
                               const dsc_weight *weight, bool *used, dsc_error *err)
{
    int64_t rows, cols;
    shape_in_file(params, i, params->config->file_vocab, &rows, &cols);
    used[weight - dsc_weights_at(weights, 0)] = true;
    const bool packed = rows != 0 && !is_array(params, i) && dsc_packed_weight_is(weights, weight);
    DSC_TRY(check_turned(weights, params, i, packed, err));
    if (!packed)
        return check_param(params, i, params->config->file_vocab, weight, err);
    const bool turned = is_in_out(params, i) && !params->config->turned;
    DSC_TRY(dsc_packed_weight_open(weights, alloc, weight, turned ? cols : rows, turned ? rows : cols,
                                   &params->packed[i], used, err));
    params->packed[i].turned = turned ? cols : 0;
    return DSC_OK;
}

static dsc_status match(const dsc_weights *weights, dsc_alloc *alloc, const dsc_lm_params *params,
                        const dsc_weight **sources, bool *used, dsc_error *err)
{
    const dsc_lm_config *config = params->config;
    const dsc_weight *tied_head = NULL;
    if (config->tied || params->untied) {
        tied_head = dsc_weights_find(weights, params->family->head_table);
        if (tied_head != NULL)
            DSC_TRY(dsc_lm_check_tensor(tied_head, config->file_vocab, config->embed_channels, err));
    }
    for (int64_t i = 0; i < params->count; i++) {
        const dsc_param_spec *spec = &params->spec[i];
        if (dsc_lm_is_adapter(params, i))
            continue;
        if (spec->parted) {
            DSC_TRY(dsc_lm_match_parts(weights, alloc, params, i, used, err));
            sources[i] = params->parts[i][0].of;
            continue;
        }
        if (spec->dim_count == 3 && params->family->has_mxfp4) {
            DSC_TRY(dsc_lm_match_experts(weights, params, i, &sources[i], used, err));
            continue;
        }
        DSC_TRY(dsc_lm_find_tensor(weights, params->family, spec->name, &sources[i], err));
        if (params->untied && i == params->count - 1)
            sources[i] = sources[DSC_LM_TOKEN_TABLE];
        if (sources[i] == NULL && is_table(params, i))
            sources[i] = tied_head; /* some programs keep that one name of the two */
        if (is_new_classifier(params, i)) {
            if (sources[i] != NULL)
                used[sources[i] - dsc_weights_at(weights, 0)] = true;
            sources[i] = NULL;
            continue;
        }
        const bool may_be_fresh = !params->complete && (!params->adapted || spec->trainable) &&
                                  is_of_head(params->family, config, spec->name);
        if (sources[i] == NULL && may_be_fresh)
            continue;
        if (sources[i] == NULL)
            return dsc_lm_refuse_missing(weights, params, spec->name, err);
        DSC_TRY(check_source(weights, alloc, params, i, sources[i], used, err));
    }
    if (tied_head != NULL && sources[DSC_LM_TOKEN_TABLE] != tied_head)
        DSC_TRY(check_same(alloc, sources[DSC_LM_TOKEN_TABLE], tied_head, err));
    if (params->untied && tied_head != NULL)
        used[tied_head - dsc_weights_at(weights, 0)] = true;
    DSC_TRY(dsc_lm_match_buffers(weights, params, used, err));
    return refuse_unknown(weights, params, used, err);
}

dsc_status dsc_lm_match_weights(const dsc_weights *weights, dsc_alloc *alloc, const dsc_lm_params *params,
                                const dsc_weight **sources, dsc_error *err)
{
    bool *used = NULL;
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, dsc_weights_count(weights), sizeof *used, &used, err));
    const dsc_status status = match(weights, alloc, params, sources, used, err);
    dsc_alloc_free(alloc, used);
    return status;
}

/* ---- adapters ---- */

/* A tensor of the file that no layer takes: its partner is missing, its name has a wrapper, or the model has no such
 * layer. */
static dsc_status refuse_adapter_tensor(const dsc_weights *weights, const dsc_lm_params *params,
                                        const dsc_weight *weight, dsc_error *err)
{
    char partner[512], plain[512];
    const char *wrapper = NULL;
    const char *const b = strstr(weight->name, ".lora_B.");
    if (b != NULL) {
        snprintf(partner, sizeof partner, "%.*s.lora_A.%s", (int)(b - weight->name), weight->name,
                 b + strlen(".lora_B."));
        if (dsc_weights_find(weights, partner) == NULL)
            return DSC_FAIL(
                err, DSC_ERR_INPUT, dsc_safetensors_path(weight->file),
                "tensor \"%.150s\" is missing, and its partner lora_B is there; the file is not whole: save "
                "the adapter again",
                partner);
    }
    dsc_lm_without_wrappers(weight->name, plain, sizeof plain, &wrapper);
    if (wrapper != NULL)
        return dsc_lm_refuse_wrapped(weight, wrapper, err);
    return DSC_FAIL(err, DSC_ERR_INPUT, dsc_safetensors_path(weight->file),
                    "tensor \"%.200s\" is not an adapter of a linear layer, or of modules_to_save, in this %s with %s "
                    "%lld",
                    weight->name, params->family->model_type, params->family->layers_key,
                    (long long)params->config->layers);
}

/* PEFT's save_embedding_layers gives both names of a table that head and embedding have in common. */
static dsc_status match_tied_head(const dsc_weights *weights, dsc_alloc *alloc, const dsc_lm_params *params,
                                  const dsc_weight *table, bool *used, dsc_error *err)
{
    char name[512];
    snprintf(name, sizeof name, DSC_LORA_PREFIX "%s", params->family->head_table);
    const dsc_weight *head = params->config->tied && table != NULL ? dsc_weights_find(weights, name) : NULL;
    if (head == NULL)
        return DSC_OK;
    DSC_TRY(dsc_lm_check_tensor(head, params->config->adapter_vocab, params->config->embed_channels, err));
    used[head - dsc_weights_at(weights, 0)] = true;
    return check_same(alloc, table, head, err);
}

/* Beside a table of modules_to_save PEFT's save_embedding_layers gives it again under its wrapper's name, and the
 * base's values, which the table replaces. */
static dsc_status match_wrapped(const dsc_weights *weights, dsc_alloc *alloc, const dsc_weight *table, bool *used,
                                dsc_error *err)
{
    static const char *const parts[] = { ".original_module.weight", ".modules_to_save.weight" };
    const int bytes = (int)(strlen(table->name) - strlen(".weight"));
    char name[512];
    for (size_t i = 0; i < DSC_COUNT(parts); i++) {
        snprintf(name, sizeof name, "%.*s%s", bytes, table->name, parts[i]);
        const dsc_weight *copy = dsc_weights_find(weights, name);
        bool same = true;
        if (copy == NULL)
            continue;
        if (i == 1 && copy->entry->count == table->entry->count)
            DSC_TRY(compare_values(alloc, table, copy, &same, err));
        if (!same || copy->entry->count != table->entry->count)
            return DSC_FAIL(err, DSC_ERR_INPUT, dsc_safetensors_path(copy->file),
                            "tensor \"%.150s\" is not \"%.150s\", of which it is a copy; save the adapter again", name,
                            table->name);
        used[copy - dsc_weights_at(weights, 0)] = true;
    }
    return DSC_OK;
}

static dsc_status match_adapter(const dsc_weights *weights, dsc_alloc *alloc, const dsc_lm_params *params,
                                const dsc_weight **sources, bool *used, dsc_error *err)
{
    const dsc_weight *table = NULL;
    char name[512];
    for (int64_t i = 0; i < params->count; i++) {
        const dsc_param_spec *spec = &params->spec[i];
        if (!spec->trainable && !is_table(params, i))
            continue;
        snprintf(name, sizeof name, DSC_LORA_PREFIX "%s", spec->name);
        const dsc_weight *found = dsc_lora_find(weights, spec->name);
        if (found == NULL && params->config->embeds) /* PEFT has adapted the base model itself */
            found = dsc_lora_find(weights, dsc_lm_without_base(params->family, spec->name));
        if (found == NULL && !spec->trainable)
            continue; /* a table that the adapter does not bring */
        if (found == NULL)
            return DSC_FAIL(err, DSC_ERR_INPUT, dsc_weights_dir(weights), "tensor \"%s\" is missing from the adapter%s",
                            name, dsc_lm_is_adapter(params, i) ? "" : ", whose modules_to_save has its module");
        DSC_TRY(check_param(params, i, is_table(params, i) ? params->config->adapter_vocab : params->config->vocab,
                            found, err));
        used[found - dsc_weights_at(weights, 0)] = true;
        sources[i] = found;
        if (is_table(params, i))
            DSC_TRY(match_wrapped(weights, alloc, found, used, err));
        table = i == DSC_LM_TOKEN_TABLE ? found : table;
    }
    DSC_TRY(match_tied_head(weights, alloc, params, table, used, err));
    for (int64_t i = 0; i < dsc_weights_count(weights); i++)
        if (!used[i])
            return refuse_adapter_tensor(weights, params, dsc_weights_at(weights, i), err);
    return DSC_OK;
}

dsc_status dsc_lm_match_adapter(const dsc_weights *weights, dsc_alloc *alloc, const dsc_lm_params *params,
                                const dsc_weight **sources, dsc_error *err)
{
    bool *used = NULL;
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, dsc_weights_count(weights), sizeof *used, &used, err));
    const dsc_status status = match_adapter(weights, alloc, params, sources, used, err);
    dsc_alloc_free(alloc, used);
    return status;
}
