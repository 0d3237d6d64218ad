/* param_part.c - places of a rank's part of a parameter in the whole tensor. SPDX-License-Identifier: Apache-2.0 */
#include <dsc/model.h>

#include "base/base.h"

int64_t dsc_param_whole_dim(const dsc_param_spec *spec, int32_t axis)
{
    int64_t length = 0;
    DSC_ASSERT(axis >= 0 && axis < spec->dim_count);
    if (spec->part.count <= 1 || axis != spec->part.axis)
        return spec->dim[axis];
    for (int32_t i = 0; i < spec->part.run_count; i++)
        length += spec->part.run[i];
    return length;
}

/* Elements of a run that part `index` has. *first <- the first one. */
static int64_t share_of_run(const dsc_param_part *part, int32_t run, int32_t index, int64_t *first)
{
    const int64_t each = part->run[run] / part->count, more = part->run[run] % part->count;
    *first = index * each + dsc_min_i64(index, more);
    return each + (index < more);
}

int64_t dsc_param_part_length(const dsc_param_part *part, int32_t index)
{
    int64_t length = 0, first;
    DSC_ASSERT(part->count >= 1 && index >= 0 && index < part->count);
    for (int32_t i = 0; i < part->run_count; i++)
        length += share_of_run(part, i, index, &first);
    return length;
}

int64_t dsc_param_whole_run(const dsc_param_spec *spec, int64_t first, int64_t count, int64_t *whole)
{
    const dsc_param_part *part = &spec->part;
    int64_t inner = 1, own = 0, before = 0, start;
    int32_t run = 0;
    DSC_ASSERT(first >= 0 && count >= 1);
    *whole = first;
    if (part->count <= 1)
        return count;
    for (int32_t i = part->axis + 1; i < spec->dim_count; i++)
        inner *= spec->dim[i];
    const int64_t outer = first / (spec->dim[part->axis] * inner), along = first / inner % spec->dim[part->axis];
    int64_t length = share_of_run(part, run, part->index, &start);
    while (along >= own + length) {
        own += length;
        before += part->run[run++];
        DSC_ASSERT(run < part->run_count);
        length = share_of_run(part, run, part->index, &start);
    }
    const int64_t at = before + start + (along - own);
    *whole = (outer * dsc_param_whole_dim(spec, part->axis) + at) * inner + first % inner;
    return dsc_min_i64(count, (own + length - along) * inner - first % inner);
}
