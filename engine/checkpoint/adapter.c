/* adapter.c - low-rank adapters of a checkpoint: what their file says, and weights with them added.
 *
 * The checkpoint keeps PEFT's adapter_config.json under a name of its own: transformers take a folder with that file
 * for one that holds adapters alone. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/formats/json.h"
#include "base/module_names.h"
#include "base/name_regex.h"
#include "engine/checkpoint/adapter.h"
#include "kernels/scalar.h"

#define WEIGHT_END ".weight"
#define TABLES_KEY "save_embedding_layers"     /* as in models/lora_config.h; no key of PEFT's config */
#define MAGNITUDE_END ".lora_magnitude_vector" /* as in models/lora_config.h */
#define STEPS_MAX 1000000 /* work of the regular expressions for one layer: milliseconds */

static bool get_number(const cJSON *root, const char *key, double most, double *out)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(root, key);
    *out = cJSON_IsNumber(item) ? item->valuedouble : 0;
    return *out > 0 && *out <= most;
}

static bool get_bool(const cJSON *root, const char *key)
{
    return cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(root, key));
}

/* "rank_pattern" or "alpha_pattern", as models/lora_config.c writes it. */
static bool read_patterns(const cJSON *root, const char *key, dsc_ckpt_adapter *out, int kind)
{
    const cJSON *object = cJSON_GetObjectItemCaseSensitive(root, key);
    DSC_ASSERT(kind == 0 || kind == 1);
    for (const cJSON *each = object != NULL ? object->child : NULL; each != NULL; each = each->next) {
        struct dsc_ckpt_pattern *to = &out->pattern[kind][out->pattern_count[kind]];
        if (out->pattern_count[kind] == DSC_CKPT_PATTERNS_MAX || strlen(each->string) >= sizeof to->name ||
            !cJSON_IsNumber(each) || !(each->valuedouble > 0 && each->valuedouble <= 1e9))
            return false;
        snprintf(to->name, sizeof to->name, "%s", each->string);
        to->value = each->valuedouble;
        out->pattern_count[kind]++;
    }
    return true;
}

/* Tables that are saved although they are not trained. */
static bool read_tables(const cJSON *root, dsc_ckpt_adapter *out)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(root, TABLES_KEY);
    DSC_ASSERT(out->table_count == 0);
    for (const cJSON *each = list != NULL ? list->child : NULL; each != NULL; each = each->next) {
        if (out->table_count == (int32_t)DSC_COUNT(out->table) || !cJSON_IsString(each) ||
            strlen(each->valuestring) >= sizeof out->table[0])
            return false;
        snprintf(out->table[out->table_count++], sizeof out->table[0], "%s", each->valuestring);
    }
    return true;
}

/* "modules_to_save": null or a list of names. */
static bool read_saved(const cJSON *root, dsc_ckpt_adapter *out)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(root, "modules_to_save");
    DSC_ASSERT(out->saved_count == 0);
    for (const cJSON *each = list != NULL ? list->child : NULL; each != NULL; each = each->next) {
        if (out->saved_count == DSC_CKPT_PATTERNS_MAX || !cJSON_IsString(each) ||
            strlen(each->valuestring) >= sizeof out->saved[0])
            return false;
        snprintf(out->saved[out->saved_count++], sizeof out->saved[0], "%s", each->valuestring);
    }
    return true;
}

/* *value <- that of the first pattern that fits the layer's name or what follows a point in it, as in PEFT. */
static dsc_status find_pattern(const dsc_ckpt_adapter *adapter, int kind, const char *layer, double *value,
                               dsc_error *err)
{
    char whole[sizeof adapter->pattern[0][0].name + 16];
    int64_t steps = STEPS_MAX;
    DSC_ASSERT(kind == 0 || kind == 1);
    for (int32_t i = 0; i < adapter->pattern_count[kind]; i++) {
        bool fits = false;
        snprintf(whole, sizeof whole, "(.*\\.)?(%s)$", adapter->pattern[kind][i].name);
        DSC_TRY(dsc_name_regex_match(whole, layer, "adapter.json", &steps, &fits, err));
        if (!fits && dsc_module_is_vit(layer)) {
            char live[DSC_SAFETENSORS_NAME_BYTES_MAX + 1];
            dsc_module_vit_in_peft(layer, live, sizeof live);
            DSC_TRY(dsc_name_regex_match(whole, live, "adapter.json", &steps, &fits, err));
        }
        if (fits) {
            *value = adapter->pattern[kind][i].value;
            return DSC_OK;
        }
    }
    return DSC_OK;
}

/* Rank and scale become those of a layer. */
static dsc_status take_layer(dsc_ckpt_adapter *adapter, const char *layer, dsc_error *err)
{
    double rank = (double)adapter->rank, alpha = adapter->alpha;
    DSC_TRY(find_pattern(adapter, 0, layer, &rank, err));
    DSC_TRY(find_pattern(adapter, 1, layer, &alpha, err));
    adapter->rank = dsc_max_i64((int64_t)rank, 1);
    rank = (double)adapter->rank;
    adapter->scale = (float)(alpha / (adapter->rank_stabilized ? sqrt(rank) : rank));
    DSC_ASSERT(adapter->rank >= 1);
    return DSC_OK;
}

dsc_status dsc_ckpt_adapter_parse(dsc_alloc *alloc, const char *path, const char *text, int64_t bytes,
                                  dsc_ckpt_adapter *out, dsc_error *err)
{
    static const dsc_json_limits limits = DSC_JSON_LIMITS_CONFIG;
    dsc_json *json = NULL;
    double alpha = 0;
    int64_t rank = 0;
    DSC_TRY(dsc_json_open(alloc, path, text, bytes, DSC_JSON_STRICT, &limits, &json, err));
    const cJSON *root = dsc_json_root(json);
    const cJSON *r = cJSON_GetObjectItemCaseSensitive(root, "r");
    const cJSON *task = cJSON_GetObjectItemCaseSensitive(root, "task_type");
    bool good =
        cJSON_IsObject(root) && dsc_json_integer(r, 1, 65536, &rank) && get_number(root, "lora_alpha", 1e9, &alpha);
    if (good)
        *out = (dsc_ckpt_adapter) {
            .rank = rank,
            .in_out = get_bool(root, "fan_in_fan_out"),
            .scale = (float)(alpha / (get_bool(root, "use_rslora") ? sqrt((double)rank) : (double)rank)),
            .alpha = alpha,
            .rank_stabilized = get_bool(root, "use_rslora"),
            .use_dora = get_bool(root, "use_dora"),
            .of_base = cJSON_IsString(task) && strcmp(task->valuestring, "FEATURE_EXTRACTION") == 0
        };
    good = good && read_patterns(root, "rank_pattern", out, 0) && read_patterns(root, "alpha_pattern", out, 1) &&
           read_saved(root, out) && read_tables(root, out) && dsc_ckpt_adapter_read_experts(root, out);
    dsc_json_close(&json);
    DSC_ASSERT(!good || out->rank >= 1);
    return good
               ? DSC_OK
               : DSC_FAIL(err, DSC_ERR_INPUT, path,
                          "\"r\", \"lora_alpha\" or a pattern is not a valid number, or \"modules_to_save\", "
                          "\"target_parameters\" or \"" DSC_CKPT_EXPERTS_KEY "\" no list of at most 64 names");
}

dsc_status dsc_ckpt_adapter_read(const dsc_io *io, dsc_alloc *alloc, const char *step_dir, char **text, int64_t *bytes,
                                 dsc_ckpt_adapter *out, dsc_error *err)
{
    char path[DSC_CKPT_PATH_BYTES];
    DSC_ASSERT(*text == NULL);
    DSC_TRY(dsc_ckpt_file_path(path, step_dir, dsc_ckpt_file_name[DSC_CKPT_ADAPTER], err));
    DSC_TRY(dsc_io_read_all(io, alloc, path, DSC_CKPT_SMALL_BYTES_MAX, text, bytes, err));
    return dsc_ckpt_adapter_parse(alloc, path, *text, *bytes, out, err);
}

dsc_status dsc_ckpt_adapter_check(const dsc_io *io, dsc_alloc *alloc, const char *step_dir, const char *of_model,
                                  dsc_error *err)
{
    dsc_ckpt_adapter saved, now;
    char *text = NULL;
    int64_t bytes = 0;
    dsc_status status = dsc_ckpt_adapter_read(io, alloc, step_dir, &text, &bytes, &saved, err);
    dsc_alloc_free(alloc, text);
    DSC_TRY(status);
    DSC_TRY(dsc_ckpt_adapter_parse(alloc, "the model", of_model, (int64_t)strlen(of_model), &now, err));
    if (saved.saved_count != now.saved_count || memcmp(saved.saved, now.saved, sizeof saved.saved) != 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, step_dir,
                        "its modules_to_save, %d names from \"%.60s\" on, are not the run's, %d from \"%.60s\" on: "
                        "dsc.lora.modules_to_save differs",
                        (int)saved.saved_count, saved.saved[0], (int)now.saved_count, now.saved[0]);
    if (saved.scale == now.scale && memcmp(saved.pattern, now.pattern, sizeof saved.pattern) == 0)
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_INPUT, step_dir,
                    "its adapters have the scale %g, the run's have %g: dsc.lora.alpha "
                    "or dsc.lora.use_rslora differs, or a pattern of layers",
                    (double)saved.scale, (double)now.scale);
}

bool dsc_ckpt_adapter_is(const char *name)
{
    return strstr(name, ".lora_A.") != NULL || strstr(name, ".lora_B.") != NULL || strstr(name, MAGNITUDE_END) != NULL;
}

bool dsc_ckpt_adapter_saves(const dsc_ckpt_adapter *adapter, const char *name)
{
    bool saves = false;
    DSC_ASSERT(adapter->saved_count <= DSC_CKPT_PATTERNS_MAX);
    for (int32_t i = 0; i < adapter->saved_count && !dsc_ckpt_adapter_is(name); i++)
        saves |= dsc_module_around(name, adapter->saved[i]) != DSC_MODULE_OTHER;
    for (int32_t i = 0; i < adapter->table_count; i++)
        saves |= strcmp(name, adapter->table[i]) == 0;
    return saves;
}

/* The name of a module, or a pattern of names, in PEFT. */
static void name_in_peft(const dsc_ckpt_peft *peft, const char *name, char *out, size_t bytes)
{
    const size_t base = peft->base != NULL ? strlen(peft->base) : 0;
    DSC_ASSERT(bytes > 0);
    if (peft->vit)
        dsc_module_vit_in_peft(name, out, bytes);
    else
        snprintf(out, bytes, "%s", base > 0 && strncmp(name, peft->base, base) == 0 ? name + base : name);
}

/* A copy of a list of modules' names with those of PEFT; NULL: out of memory. */
static cJSON *names_in_peft(const dsc_ckpt_peft *peft, const cJSON *list)
{
    cJSON *const renamed = cJSON_CreateArray();
    bool good = renamed != NULL;
    DSC_ASSERT(cJSON_IsArray(list));
    for (const cJSON *each = list->child; each != NULL && good; each = each->next) {
        char name[2 * DSC_SAFETENSORS_NAME_BYTES_MAX];
        name_in_peft(peft, cJSON_IsString(each) ? each->valuestring : "", name, sizeof name);
        good = cJSON_AddItemToArray(renamed, cJSON_CreateString(name));
    }
    if (!good)
        cJSON_Delete(renamed);
    return good ? renamed : NULL;
}

/* A copy of an object whose keys are patterns of names; NULL: out of memory. */
static cJSON *patterns_in_peft(const dsc_ckpt_peft *peft, const cJSON *object)
{
    cJSON *const renamed = cJSON_CreateObject();
    bool good = renamed != NULL;
    DSC_ASSERT(cJSON_IsObject(object));
    for (const cJSON *each = object->child; each != NULL && good; each = each->next) {
        char name[2 * DSC_SAFETENSORS_NAME_BYTES_MAX];
        name_in_peft(peft, each->string, name, sizeof name);
        good = cJSON_AddItemToObject(renamed, name, cJSON_Duplicate(each, true));
    }
    if (!good)
        cJSON_Delete(renamed);
    return good ? renamed : NULL;
}

static bool rename_modules(const dsc_ckpt_peft *peft, cJSON *root)
{
    static const char *const keys[] = { "target_modules", "modules_to_save", "rank_pattern", "alpha_pattern" };
    bool good = root != NULL;
    for (size_t i = 0; i < DSC_COUNT(keys) && good; i++) {
        const cJSON *list = cJSON_GetObjectItemCaseSensitive(root, keys[i]);
        cJSON *renamed = cJSON_IsArray(list) ? names_in_peft(peft, list) : NULL;
        if (cJSON_IsObject(list))
            renamed = patterns_in_peft(peft, list);
        if (cJSON_IsArray(list) || cJSON_IsObject(list))
            good = renamed != NULL && cJSON_ReplaceItemInObjectCaseSensitive(root, keys[i], renamed);
    }
    return good;
}

dsc_status dsc_ckpt_adapter_for_peft(dsc_alloc *alloc, const char *path, const char *text, int64_t bytes,
                                     const dsc_ckpt_peft *peft, char **out, dsc_error *err)
{
    const bool renames = peft->vit || peft->base != NULL;
    DSC_ASSERT(*out == NULL);
    cJSON *root = cJSON_ParseWithLength(text, (size_t)bytes);
    cJSON_DeleteItemFromObjectCaseSensitive(root, TABLES_KEY);
    cJSON_DeleteItemFromObjectCaseSensitive(root, DSC_CKPT_EXPERTS_KEY);
    char *printed = root != NULL && (!renames || rename_modules(peft, root)) ? cJSON_Print(root) : NULL;
    const dsc_status status = printed != NULL
                                  ? dsc_alloc_strdup(alloc, DSC_TAG_IO, printed, out, err)
                                  : DSC_FAIL(err, DSC_ERR_NOMEM, path, "out of host memory: no adapter_config.json");
    cJSON_free(printed);
    cJSON_Delete(root);
    return status;
}

/* ---- merging ---- */

/* Whether target_parameters name a weight, so that patterns fit its name and not the layer's. */
static bool is_parameter(const dsc_ckpt_adapter *adapter, const char *weight)
{
    bool is = false;
    DSC_ASSERT(adapter->parameter_count <= DSC_CKPT_PATTERNS_MAX);
    for (int32_t i = 0; i < adapter->parameter_count; i++)
        is |= dsc_ckpt_adapter_names(weight, adapter->parameter[i]);
    return is;
}

/* The master weights, or the weights where these are fp32, of "<layer><end>". */
static const dsc_safetensors_entry *find(const dsc_ckpt_reader *reader, const char *layer, const char *end,
                                         const dsc_ckpt_manifest_tensor **tensor)
{
    char name[DSC_SAFETENSORS_NAME_BYTES_MAX + 32];
    DSC_ASSERT(end[0] == '.');
    snprintf(name, sizeof name, "%s%s", layer, end);
    const dsc_safetensors_entry *entry = dsc_ckpt_reader_find(reader, DSC_CKPT_MASTER, name, tensor);
    return entry != NULL ? entry : dsc_ckpt_reader_find(reader, DSC_CKPT_WEIGHTS, name, tensor);
}

static dsc_status read_values(const dsc_ckpt_reader *reader, const dsc_ckpt_manifest_tensor *tensor, void *buffer,
                              float *out, dsc_error *err)
{
    const dsc_ckpt_block *block = reader->manifest.block + tensor->first_block;
    for (int64_t b = 0; b < tensor->block_count; b++, block++) {
        DSC_ASSERT(block->first + block->count <= tensor->elements);
        DSC_TRY(dsc_ckpt_reader_block(reader, block, buffer, err));
        for (int64_t i = 0; i < block->count; i++)
            out[block->first + i] = dsc_get(buffer, i, tensor->dtype);
    }
    return DSC_OK;
}

/* Shapes as the model has them: A [r,in], B [out,r], and the weight [out,in] or [in,out]. */
static bool shapes_fit(const dsc_ckpt_adapter *adapter, const dsc_tensor_desc *weight, const dsc_tensor_desc *a,
                       const dsc_tensor_desc *b)
{
    DSC_ASSERT(adapter->rank >= 1);
    if (weight->dim_count != 2 || a->dim_count != 2 || b->dim_count != 2)
        return false;
    const int64_t out = weight->dim[adapter->in_out ? 1 : 0], in = weight->dim[adapter->in_out ? 0 : 1];
    return a->dim[0] == adapter->rank && a->dim[1] == in && b->dim[0] == out && b->dim[1] == adapter->rank;
}

static int64_t output_of(const dsc_ckpt_merge_state *merge, int64_t element)
{
    element %= merge->in * merge->out; /* of one expert */
    return merge->adapter.in_out ? element % merge->out : element / merge->in;
}

/* An element of the weight, which is x, with s B A added. */
static double merged(const dsc_ckpt_merge_state *merge, int64_t element, double x)
{
    const int64_t rank = merge->adapter.rank, out = output_of(merge, element), each = merge->in * merge->out;
    const int64_t expert = element / each, within = element % each;
    const int64_t in = merge->adapter.in_out ? within / merge->out : within % merge->in;
    double sum = 0;
    DSC_ASSERT(in < merge->in);
    DSC_ASSERT(expert < merge->experts);
    for (int64_t r = 0; r < rank; r++)
        sum += (double)merge->b[((merge->first + out) * rank + r) * merge->experts + expert] *
               (double)merge->a[(expert * rank + r) * merge->in + in];
    return x + (double)merge->adapter.scale * sum;
}

/* factors <- the sums of squares of each output's weights with the adapter's. */
static dsc_status add_squares(dsc_ckpt_merge_state *merge, const dsc_ckpt_reader *reader,
                              const dsc_ckpt_manifest_tensor *weight, void *buffer, dsc_error *err)
{
    const dsc_ckpt_block *block = reader->manifest.block + weight->first_block;
    DSC_ASSERT(weight->elements == merge->in * merge->out);
    for (int64_t b = 0; b < weight->block_count; b++, block++) {
        DSC_TRY(dsc_ckpt_reader_block(reader, block, buffer, err));
        for (int64_t i = 0; i < block->count; i++) {
            const double x = merged(merge, block->first + i, (double)dsc_get(buffer, i, weight->dtype));
            merge->factors[output_of(merge, block->first + i)] += x * x;
        }
    }
    return DSC_OK;
}

/* DoRA: magnitude / norm of each output; 0 where the norm is 0, as in training. */
static dsc_status find_factors(dsc_ckpt_merge_state *merge, const dsc_ckpt_reader *reader, const char *layer,
                               void *buffer, dsc_error *err)
{
    const dsc_ckpt_manifest_tensor *of_weight = NULL, *of_magnitude = NULL;
    const dsc_safetensors_entry *magnitude = find(reader, layer, MAGNITUDE_END, &of_magnitude);
    DSC_ASSERT(merge->factors == NULL);
    if (find(reader, layer, WEIGHT_END, &of_weight) == NULL || magnitude == NULL || magnitude->count != merge->out)
        return DSC_FAIL(err, DSC_ERR_INPUT, layer,
                        "its adapter has no magnitude for each of the %lld outputs, which "
                        "\"use_dora\" of adapter.json needs",
                        (long long)merge->out);
    float *m = NULL;
    DSC_TRY(dsc_alloc_zeroed(reader->alloc, DSC_TAG_IO, merge->out, sizeof *merge->factors, &merge->factors, err));
    DSC_TRY(add_squares(merge, reader, of_weight, buffer, err));
    DSC_TRY(dsc_alloc_zeroed(reader->alloc, DSC_TAG_IO, merge->out, sizeof *m, &m, err));
    const dsc_status status = read_values(reader, of_magnitude, buffer, m, err);
    for (int64_t o = 0; o < merge->out && status == DSC_OK; o++)
        merge->factors[o] = merge->factors[o] == 0 ? 0 : (double)m[o] / sqrt(merge->factors[o]);
    dsc_alloc_free(reader->alloc, m);
    return status;
}

/* The weight of experts is [experts,out,in] or [experts,in,out], and its outputs are some of B's. */
static bool place_experts(dsc_ckpt_merge_state *merge, const dsc_ckpt_expert_place *place,
                          const dsc_tensor_desc *weight, const dsc_tensor_desc *a, const dsc_tensor_desc *b)
{
    const int64_t rank = merge->adapter.rank;
    DSC_ASSERT(rank >= 1);
    merge->adapter.in_out = place->in_out;
    const int32_t row = weight->dim_count - 2; /* a router is one matrix */
    if (row < 0 || row > 1 || a->dim_count != 2 || b->dim_count != 2)
        return false;
    merge->experts = row == 1 ? weight->dim[0] : 1;
    merge->out = weight->dim[row + place->in_out];
    merge->in = weight->dim[row + !place->in_out];
    merge->first = place->index * merge->out;
    return a->dim[0] == merge->experts * rank && a->dim[1] == merge->in && b->dim[0] == place->count * merge->out &&
           b->dim[1] == merge->experts * rank;
}

static dsc_status refuse_shapes(const dsc_safetensors_entry *weight, dsc_error *err)
{
    return DSC_FAIL(err, DSC_ERR_INPUT, weight->name, "its adapter has not the shapes that adapter.json says");
}

/* A and B of the weight. */
static dsc_status read_pair(dsc_ckpt_merge_state *merge, const dsc_ckpt_reader *reader,
                            const dsc_ckpt_manifest_tensor *of_a, const dsc_ckpt_manifest_tensor *of_b, void *buffer,
                            dsc_error *err)
{
    DSC_ASSERT(merge->a == NULL);
    DSC_TRY(
        dsc_alloc_zeroed(reader->alloc, DSC_TAG_IO, of_a->elements + of_b->elements, sizeof *merge->a, &merge->a, err));
    merge->b = merge->a + of_a->elements;
    DSC_TRY(read_values(reader, of_a, buffer, merge->a, err));
    return read_values(reader, of_b, buffer, merge->b, err);
}

static dsc_status merge_experts(dsc_ckpt_merge_state *merge, const dsc_ckpt_reader *reader,
                                const dsc_ckpt_expert_place *place, const dsc_safetensors_entry *weight, void *buffer,
                                dsc_error *err)
{
    const dsc_ckpt_manifest_tensor *of_a = NULL, *of_b = NULL;
    const dsc_safetensors_entry *a = find(reader, place->module, ".lora_A" WEIGHT_END, &of_a);
    const dsc_safetensors_entry *b = find(reader, place->module, ".lora_B" WEIGHT_END, &of_b);
    DSC_ASSERT(place->index < place->count);
    DSC_TRY(take_layer(&merge->adapter, place->parameter, err));
    if (a == NULL || b == NULL || !place_experts(merge, place, &weight->desc, &a->desc, &b->desc))
        return refuse_shapes(weight, err);
    return read_pair(merge, reader, of_a, of_b, buffer, err);
}

dsc_status dsc_ckpt_merge_open(dsc_ckpt_merge_state *merge, const dsc_ckpt_reader *reader,
                               const dsc_ckpt_adapter *adapter, const dsc_safetensors_entry *weight, void *buffer,
                               dsc_error *err)
{
    char layer[DSC_SAFETENSORS_NAME_BYTES_MAX + 1];
    const size_t end = strlen(WEIGHT_END), bytes = strlen(weight->name);
    const dsc_ckpt_manifest_tensor *of_a = NULL, *of_b = NULL;
    dsc_ckpt_expert_place place;
    *merge = (dsc_ckpt_merge_state) { .adapter = *adapter, .experts = 1 };
    if (dsc_ckpt_adapter_find_experts(adapter, weight->name, &place))
        return merge_experts(merge, reader, &place, weight, buffer, err);
    if (bytes <= end || strcmp(weight->name + bytes - end, WEIGHT_END) != 0)
        return DSC_OK;
    snprintf(layer, sizeof layer, "%.*s", (int)(bytes - end), weight->name);
    adapter = &merge->adapter;
    const dsc_safetensors_entry *a = find(reader, layer, ".lora_A" WEIGHT_END, &of_a);
    const dsc_safetensors_entry *b = find(reader, layer, ".lora_B" WEIGHT_END, &of_b);
    if (a == NULL && b == NULL)
        return DSC_OK;
    DSC_TRY(take_layer(&merge->adapter, is_parameter(adapter, weight->name) ? weight->name : layer, err));
    if (a == NULL || b == NULL || !shapes_fit(adapter, &weight->desc, &a->desc, &b->desc))
        return refuse_shapes(weight, err);
    merge->out = b->desc.dim[0];
    merge->in = a->desc.dim[1];
    DSC_ASSERT(a->count == adapter->rank * merge->in);
    DSC_ASSERT(b->count == adapter->rank * merge->out);
    DSC_TRY(read_pair(merge, reader, of_a, of_b, buffer, err));
    return adapter->use_dora ? find_factors(merge, reader, layer, buffer, err) : DSC_OK;
}

void dsc_ckpt_merge_close(dsc_ckpt_merge_state *merge, dsc_alloc *alloc)
{
    dsc_alloc_free(alloc, merge->factors);
    dsc_alloc_free(alloc, merge->a);
    *merge = (dsc_ckpt_merge_state) { 0 };
}

void dsc_ckpt_merge_add(const dsc_ckpt_merge_state *merge, int64_t first, int64_t count, float *x)
{
    DSC_ASSERT(first >= 0);
    for (int64_t i = 0; i < count && merge->a != NULL; i++) {
        const double factor = merge->factors != NULL ? merge->factors[output_of(merge, first + i)] : 1;
        x[i] = (float)(factor * merged(merge, first + i, (double)x[i]));
    }
}
