/* lm_buffers.c - values of a model's buffers, such as running statistics, in a folder.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "models/lm_parts.h"

/* A number of steps is an int64 without dimensions. */
static dsc_status check_steps(const dsc_weight *weight, dsc_error *err)
{
    const dsc_tensor_desc *desc = &weight->entry->desc;
    if (desc->dtype == DSC_I64 && weight->entry->count == 1 && desc->dim_count <= 1)
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_INPUT, dsc_safetensors_path(weight->file),
                    "tensor \"%.200s\" must be one number of I64, and is %lld in %s", weight->name,
                    (long long)weight->entry->count, weight->entry->dtype_text);
}

/* Files of old versions of PyTorch count no steps. */
dsc_status dsc_lm_match_buffers(const dsc_weights *weights, const dsc_lm_params *params, bool *used, dsc_error *err)
{
    for (int64_t i = 0; i < params->buffer_count; i++) {
        const dsc_buffer_spec *spec = &params->buffers[i];
        const dsc_weight **source = &params->buffer_sources[i];
        DSC_TRY(dsc_lm_find_tensor(weights, params->family, spec->name, source, err));
        if (*source == NULL && spec->kind == DSC_BUFFER_STEPS)
            continue;
        if (*source == NULL)
            return dsc_lm_refuse_missing(weights, params, spec->name, err);
        used[*source - dsc_weights_at(weights, 0)] = true;
        if (spec->kind == DSC_BUFFER_STEPS)
            DSC_TRY(check_steps(*source, err));
        else
            DSC_TRY(dsc_lm_check_tensor(*source, spec->row ? 1 : 0, spec->count, err));
    }
    return DSC_OK;
}

dsc_status dsc_lm_load_buffer(const dsc_model *model, int32_t module, int32_t buffer, void *out, bool *found,
                              dsc_error *err)
{
    const dsc_lm *lm = model->self;
    const dsc_buffer_spec *spec = &lm->modules[module].buffers[buffer];
    const dsc_weight *source = lm->buffer_sources != NULL ? lm->buffer_sources[spec - lm->buffers] : NULL;
    *found = source != NULL;
    if (!*found)
        return DSC_OK;
    if (spec->kind == DSC_BUFFER_AVERAGE)
        return dsc_weight_read_f32(source, 0, spec->count, out, err);
    int64_t steps = 0;
    DSC_TRY(dsc_safetensors_read_bytes(source->file, source->entry, 0, (int64_t)sizeof steps, (uint8_t *)&steps, err));
    if (steps < 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, dsc_safetensors_path(source->file),
                        "tensor \"%.200s\" is %lld; expected 0 or more steps", source->name, (long long)steps);
    memcpy(out, &steps, sizeof steps);
    return DSC_OK;
}
