/* adapter_experts.c - which weights of a checkpoint are matrices of experts with an adapter, by what adapter.json says.
 *
 * The model lists the tensors that PEFT adapts, with the weights that they consist of (models/lm_expert_adapters.c).
 * PEFT wraps a module once for each of its tensors, so that the last wrapper has the module's own name.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "engine/checkpoint/adapter.h"

bool dsc_ckpt_adapter_names(const char *name, const char *end)
{
    const size_t bytes = strlen(name), tail = strlen(end);
    DSC_ASSERT(tail > 0);
    if (bytes < tail || strcmp(name + bytes - tail, end) != 0)
        return false;
    return bytes == tail || name[bytes - tail - 1] == '.';
}

static bool copy_text(const cJSON *item, char *out, size_t bytes)
{
    if (!cJSON_IsString(item) || item->valuestring[0] == 0 || strlen(item->valuestring) >= bytes)
        return false;
    snprintf(out, bytes, "%s", item->valuestring);
    return true;
}

static bool read_parameters(const cJSON *root, dsc_ckpt_adapter *out)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(root, "target_parameters");
    DSC_ASSERT(out->parameter_count == 0);
    for (const cJSON *each = list != NULL ? list->child : NULL; each != NULL; each = each->next)
        if (out->parameter_count == DSC_CKPT_PATTERNS_MAX ||
            !copy_text(each, out->parameter[out->parameter_count++], sizeof out->parameter[0]))
            return false;
    return true;
}

static bool read_tensor(const cJSON *object, struct dsc_ckpt_experts *out)
{
    const cJSON *weights = cJSON_GetObjectItemCaseSensitive(object, "weights");
    const bool named =
        copy_text(cJSON_GetObjectItemCaseSensitive(object, "parameter"), out->parameter, sizeof out->parameter);
    DSC_ASSERT(out->weight_count == 0);
    out->in_out = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(object, "in_out"));
    if (!named || !cJSON_IsArray(weights) || strrchr(out->parameter, '.') == NULL)
        return false;
    for (const cJSON *each = weights->child; each != NULL; each = each->next)
        if (out->weight_count == (int32_t)DSC_COUNT(out->weight) ||
            !copy_text(each, out->weight[out->weight_count++], sizeof out->weight[0]))
            return false;
    return out->weight_count > 0;
}

bool dsc_ckpt_adapter_read_experts(const cJSON *root, dsc_ckpt_adapter *out)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(root, DSC_CKPT_EXPERTS_KEY);
    DSC_ASSERT(out->expert_count == 0);
    if (!read_parameters(root, out))
        return false;
    for (const cJSON *each = list != NULL ? list->child : NULL; each != NULL; each = each->next)
        if (out->expert_count == DSC_CKPT_EXPERTS_MAX || !read_tensor(each, &out->experts[out->expert_count++]))
            return false;
    return true;
}

static bool is_target(const dsc_ckpt_adapter *adapter, const char *parameter)
{
    bool is = false;
    for (int32_t i = 0; i < adapter->parameter_count; i++)
        is |= dsc_ckpt_adapter_names(parameter, adapter->parameter[i]);
    return is;
}

/* Wrappers around that of tensor `own` in a block: those of later tensors of its module. */
static int32_t wrappers_around(const dsc_ckpt_adapter *adapter, int32_t own, int block_bytes, const char *block)
{
    const char *module = adapter->experts[own].parameter;
    const size_t bytes = (size_t)(strrchr(module, '.') - module) + 1;
    int32_t count = 0;
    DSC_ASSERT(own < adapter->expert_count);
    for (int32_t i = own + 1; i < adapter->expert_count; i++) {
        char name[DSC_SAFETENSORS_NAME_BYTES_MAX + 1];
        snprintf(name, sizeof name, "%.*s%s", block_bytes, block, adapter->experts[i].parameter);
        count += strncmp(adapter->experts[i].parameter, module, bytes) == 0 && is_target(adapter, name);
    }
    return count;
}

static bool place_in(const dsc_ckpt_adapter *adapter, int32_t own, int block_bytes, const char *block,
                     dsc_ckpt_expert_place *out)
{
    const struct dsc_ckpt_experts *tensor = &adapter->experts[own];
    const int module_bytes = (int)(strrchr(tensor->parameter, '.') - tensor->parameter);
    snprintf(out->parameter, sizeof out->parameter, "%.*s%s", block_bytes, block, tensor->parameter);
    if (!is_target(adapter, out->parameter))
        return false;
    int used =
        snprintf(out->module, sizeof out->module, "%.*s%.*s", block_bytes, block, module_bytes, tensor->parameter);
    for (int32_t i = wrappers_around(adapter, own, block_bytes, block); i > 0 && used < (int)sizeof out->module; i--)
        used += snprintf(out->module + used, sizeof out->module - (size_t)used, ".base_layer");
    out->count = tensor->weight_count;
    out->in_out = tensor->in_out;
    DSC_ASSERT(out->count >= 1);
    return true;
}

bool dsc_ckpt_adapter_find_experts(const dsc_ckpt_adapter *adapter, const char *weight, dsc_ckpt_expert_place *out)
{
    for (int32_t i = 0; i < adapter->expert_count; i++)
        for (int32_t k = 0; k < adapter->experts[i].weight_count; k++) {
            if (!dsc_ckpt_adapter_names(weight, adapter->experts[i].weight[k]))
                continue;
            out->index = k;
            return place_in(adapter, i, (int)(strlen(weight) - strlen(adapter->experts[i].weight[k])), weight, out);
        }
    return false;
}

/* "model.layers.0.mlp.experts" of its tensors' inner wrappers too. */
static size_t bytes_without_wrappers(const char *module)
{
    static const char wrapper[] = ".base_layer";
    const size_t end = sizeof wrapper - 1;
    size_t bytes = strlen(module);
    DSC_ASSERT(bytes > 0);
    while (bytes > end && strncmp(module + bytes - end, wrapper, end) == 0)
        bytes -= end;
    return bytes;
}

bool dsc_ckpt_adapter_has_base(const dsc_ckpt_adapter *adapter, const dsc_safetensors *model, const char *module)
{
    char name[DSC_SAFETENSORS_NAME_BYTES_MAX + 16], own[DSC_SAFETENSORS_NAME_BYTES_MAX + 1];
    const size_t bytes = bytes_without_wrappers(module);
    snprintf(name, sizeof name, "%s.weight", module);
    snprintf(own, sizeof own, "%.*s", (int)bytes, module);
    bool has = dsc_safetensors_find(model, name) != NULL;
    for (int32_t i = 0; i < adapter->expert_count && !has; i++) {
        char of_experts[sizeof adapter->experts[i].parameter];
        const char *const parameter = adapter->experts[i].parameter;
        snprintf(of_experts, sizeof of_experts, "%.*s", (int)(strrchr(parameter, '.') - parameter), parameter);
        if (of_experts[0] == 0 || !dsc_ckpt_adapter_names(own, of_experts))
            continue;
        snprintf(name, sizeof name, "%.*s%s", (int)(bytes - strlen(of_experts)), own, adapter->experts[i].weight[0]);
        has = dsc_safetensors_find(model, name) != NULL;
    }
    DSC_ASSERT(bytes <= strlen(module));
    return has;
}
