/* lm_experts.c - finds and reads experts' matrices. Files have one tensor for each expert, or all experts' in one
 * tensor, which may hold other parameters beside them or be in MXFP4. SPDX-License-Identifier: Apache-2.0 */
#include "models/lm_parts.h"
#include "models/mxfp4.h"

#include <stdio.h>
#include <string.h>

static int64_t part_elements(const dsc_param_spec *spec) { return spec->dim[1] * spec->dim[2]; }

/* The tensor of all experts for a parameter, NULL: there is none. */
static dsc_status find_stacked(const dsc_weights *weights, const dsc_lm_params *params, const dsc_param_spec *spec,
                               const dsc_lm_stacked **kind, const dsc_weight **out, dsc_error *err)
{
    const size_t bytes = strlen(spec->name);
    *out = NULL;
    for (*kind = params->family->stacked; *kind != NULL && (*kind)->part != NULL && *out == NULL;) {
        const size_t end = strlen((*kind)->part);
        char name[256];
        if (bytes > end && strcmp(spec->name + bytes - end, (*kind)->part) == 0) {
            snprintf(name, sizeof name, "%.*s%s", (int)(bytes - end), spec->name, (*kind)->whole);
            DSC_TRY(dsc_lm_find_tensor(weights, params->family, name, out, err));
        }
        *kind += *out == NULL;
    }
    return DSC_OK;
}

static dsc_status check_stacked(const dsc_weight *weight, const dsc_param_spec *spec, int64_t count, dsc_error *err)
{
    const dsc_tensor_desc *desc = &weight->entry->desc;
    if (desc->dim_count != 3 || desc->dim[0] != spec->dim[0] || desc->dim[1] != count * spec->dim[1] ||
        desc->dim[2] != spec->dim[2])
        return DSC_FAIL(err, DSC_ERR_INPUT, dsc_safetensors_path(weight->file),
                        "tensor \"%.200s\" has %d dimensions or other sizes; config.json needs [%lld,%lld,%lld]",
                        weight->name, (int)desc->dim_count, (long long)spec->dim[0], (long long)(count * spec->dim[1]),
                        (long long)spec->dim[2]);
    return dsc_lm_check_dtype(weight, err);
}

/* Expert e's part of a tensor [E, count * rows, cols] is the `index`-th group of rows. */
static dsc_status match_stacked(const dsc_weights *weights, const dsc_lm_params *params, const dsc_param_spec *spec,
                                dsc_weight_part *parts, bool *used, bool *found, dsc_error *err)
{
    const dsc_lm_stacked *kind;
    const dsc_weight *whole;
    DSC_TRY(find_stacked(weights, params, spec, &kind, &whole, err));
    *found = whole != NULL;
    if (!*found)
        return DSC_OK;
    DSC_TRY(check_stacked(whole, spec, kind->count, err));
    used[whole - dsc_weights_at(weights, 0)] = true;
    for (int64_t e = 0; e < spec->dim[0]; e++)
        parts[e] = (dsc_weight_part) { .of = whole, .first = (e * kind->count + kind->index) * part_elements(spec) };
    return DSC_OK;
}

/* transformers before version 5 had a linear layer for each expert's matrix, which bitsandbytes puts in 4 bits. */
static dsc_status check_part(const dsc_weights *weights, dsc_alloc *alloc, const dsc_param_spec *spec,
                             dsc_weight_part *part, bool *used, dsc_error *err)
{
    DSC_ASSERT(spec->dim_count == 3);
    used[part->of - dsc_weights_at(weights, 0)] = true;
    if (dsc_packed_weight_is(weights, part->of))
        return dsc_packed_weight_open(weights, alloc, part->of, spec->dim[1], spec->dim[2], &part->packed, used, err);
    return dsc_lm_check_tensor(part->of, spec->dim[1], spec->dim[2], err);
}

dsc_status dsc_lm_match_parts(const dsc_weights *weights, dsc_alloc *alloc, const dsc_lm_params *params, int64_t i,
                              bool *used, dsc_error *err)
{
    const dsc_param_spec *spec = &params->spec[i];
    char name[DSC_SAFETENSORS_NAME_BYTES_MAX + 1];
    bool found = false;
    DSC_ASSERT(spec->dim_count == 3);
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, spec->dim[0], sizeof **params->parts, &params->parts[i], err));
    dsc_weight_part *parts = params->parts[i];
    for (int64_t e = 0; e < spec->dim[0]; e++) {
        const bool named = dsc_safetensors_part_name(spec->name, e, name);
        DSC_ASSERT(named);
        DSC_TRY(dsc_lm_find_tensor(weights, params->family, name, &parts[e].of, err));
        if (parts[e].of == NULL && e == 0)
            DSC_TRY(match_stacked(weights, params, spec, parts, used, &found, err));
        if (found)
            return DSC_OK;
        if (parts[e].of == NULL)
            return dsc_lm_refuse_missing(weights, params, name, err);
        DSC_TRY(check_part(weights, alloc, spec, &parts[e], used, err));
    }
    return DSC_OK;
}

dsc_status dsc_lm_match_experts(const dsc_weights *weights, const dsc_lm_params *params, int64_t i,
                                const dsc_weight **source, bool *used, dsc_error *err)
{
    const dsc_param_spec *spec = &params->spec[i];
    const dsc_weight *blocks = NULL, *scales = NULL;
    char name[2][DSC_SAFETENSORS_NAME_BYTES_MAX + 16];
    DSC_ASSERT(spec->dim_count == 3);
    DSC_TRY(dsc_lm_find_tensor(weights, params->family, spec->name, source, err));
    snprintf(name[0], sizeof name[0], "%s_blocks", spec->name);
    snprintf(name[1], sizeof name[1], "%s_scales", spec->name);
    if (*source == NULL && params->family->has_mxfp4)
        DSC_TRY(dsc_lm_find_tensor(weights, params->family, name[0], &blocks, err));
    if (blocks != NULL && params->mxfp4 == NULL)
        return DSC_FAIL(err, DSC_ERR_INPUT, dsc_safetensors_path(blocks->file),
                        "tensor \"%.200s\" is in MXFP4, and config.json has no \"quantization_config\" with "
                        "\"quant_method\": \"mxfp4\"",
                        blocks->name);
    if (blocks == NULL && *source == NULL)
        return dsc_lm_refuse_missing(weights, params, params->mxfp4 != NULL ? name[0] : spec->name, err);
    if (blocks == NULL) {
        used[*source - dsc_weights_at(weights, 0)] = true;
        return check_stacked(*source, spec, 1, err);
    }
    DSC_TRY(dsc_lm_find_tensor(weights, params->family, name[1], &scales, err));
    if (scales == NULL)
        return dsc_lm_refuse_missing(weights, params, name[1], err);
    used[blocks - dsc_weights_at(weights, 0)] = used[scales - dsc_weights_at(weights, 0)] = true;
    *source = blocks;
    return dsc_mxfp4_add(params->mxfp4, i, blocks, scales, spec, err);
}

dsc_status dsc_lm_read_parts(const dsc_param_spec *spec, const dsc_weight_part *parts, int64_t first, int64_t count,
                             float *out, dsc_error *err)
{
    const int64_t each = part_elements(spec);
    for (const int64_t end = first + count; first < end;) {
        const int64_t part = first / each, at = first % each, here = dsc_min_i64(each - at, end - first);
        DSC_TRY(parts[part].packed.codes != NULL
                    ? dsc_packed_weight_read_f32(&parts[part].packed, at, here, out, err)
                    : dsc_weight_read_f32(parts[part].of, parts[part].first + at, here, out, err));
        first += here;
        out += here;
    }
    return DSC_OK;
}
