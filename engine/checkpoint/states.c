/* states.c - places of this rank's slices that are read and written: in zero, or in memory of whole tensors.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/checkpoint/internal.h"

void dsc_ckpt_slice_get(const dsc_ckpt_ctx *c, int32_t group, dsc_zero_slice *out)
{
    if (c->memory == NULL) {
        dsc_zero_slice_get(c->zero, group, out);
        return;
    }
    DSC_ASSERT(group < c->layout->group_count);
    const dsc_layout_group *of = &c->layout->group[group];
    *out = (dsc_zero_slice) { .first = c->memory->slice * of->slice, .count = of->slice, .trainable = of->trainable };
}

dsc_dtype dsc_ckpt_states_dtype(const dsc_ckpt_ctx *c, dsc_plane plane)
{
    if (c->memory == NULL)
        return dsc_zero_dtype(c->zero, plane);
    DSC_ASSERT(plane < DSC_PLANE_GRAD);
    return plane == DSC_PLANE_PARAM    ? c->memory->param_dtype
           : plane == DSC_PLANE_MASTER ? DSC_F32
                                       : c->memory->moment_dtype;
}

bool dsc_ckpt_states_stay(const dsc_ckpt_ctx *c, int32_t group, dsc_plane plane)
{
    DSC_ASSERT(group >= 0);
    return c->memory != NULL || dsc_zero_stays(c->zero, group, plane);
}

dsc_status dsc_ckpt_states_view(const dsc_ckpt_ctx *c, int32_t group, dsc_plane plane, int64_t first, int64_t *count,
                                bool write, void **ptr, dsc_error *err)
{
    if (c->memory == NULL)
        return dsc_zero_view(c->zero, group, plane, first, count, write, ptr, err);
    char *const slice = c->memory->plane[group * DSC_PLANE_COUNT + plane];
    DSC_ASSERT(slice != NULL);
    DSC_ASSERT(first >= 0 && first + *count <= c->layout->group[group].slice);
    *ptr = slice + first * (int64_t)dsc_dtype_bytes(dsc_ckpt_states_dtype(c, plane));
    return DSC_OK;
}
