/* nonfinite.c - finds the parameter whose gradient is not finite. The search runs only after a norm that is not finite,
 * so its time does not matter.
 * SPDX-License-Identifier: Apache-2.0 */
#include "zero/core/internal.h"
#include "zero/core/tile.h"
#include "zero/offload/grad_tiles.h"
#include "zero/offload/speculative_update.h"
#include "zero/zero.h"

static dsc_status is_finite(dsc_zero *zero, int32_t g, const float *x, int64_t count, bool *finite, dsc_error *err)
{
    dsc_fixed_sum *on_device = zero->buf.sum.ptr, *mine = &((dsc_fixed_sum *)zero->buf.sums.ptr)[zero->o.rank];
    DSC_ASSERT(count > 0);
    DSC_ASSERT((zero->o.rank + 1) * (int64_t)sizeof *mine <= zero->buf.sums.bytes);
    const dsc_sumsq_args args = {
        .x = x, .count = count, .sum = on_device, .round_dtype = dsc_zero_sum_rounding(zero, g)
    };
    DSC_TRY(dsc_fill_zero(zero->stream.reduce, on_device, (int64_t)sizeof *on_device, err));
    DSC_TRY(DSC_RUN(zero->stream.reduce, SUMSQ, &args, err));
    DSC_TRY(dsc_copy(zero->stream.reduce, mine, on_device, (int64_t)sizeof *mine, err));
    DSC_TRY(dsc_stream_sync(zero->stream.reduce, err));
    *finite = mine->nonfinite_count == 0;
    return DSC_OK;
}

/* sums: of elements [first, first + count) of the group. */
static dsc_status find_in(dsc_zero *zero, int32_t g, const float *sums, int64_t first, int64_t count, int32_t *tensor,
                          dsc_error *err)
{
    const dsc_layout *layout = zero->o.layout;
    const dsc_layout_group *group = &layout->group[g];
    DSC_ASSERT(first >= 0);
    DSC_ASSERT(first + count <= group->padded);
    for (int32_t t = group->first_tensor; t < group->first_tensor + group->tensor_count && *tensor < 0; t++) {
        int64_t in_tensor;
        bool finite = true;
        const int64_t length = dsc_layout_span(&layout->tensor[t], first, count, &in_tensor);
        if (length > 0)
            DSC_TRY(is_finite(zero, g, sums + (layout->tensor[t].offset + in_tensor - first), length, &finite, err));
        if (!finite)
            *tensor = t;
    }
    return DSC_OK;
}

/* Sums in files or in host memory are acquired tile by tile, as for a reduction. */
static dsc_status find_offloaded(dsc_zero *zero, int32_t g, int32_t *tensor, dsc_error *err)
{
    const int64_t slice = zero->o.layout->group[g].slice;
    dsc_sum sum;
    DSC_ASSERT(zero->group[g].grad == NULL);
    for (int64_t first = 0; first < slice; first += sum.count) {
        const dsc_sum_cursor cursor = { .part = -1, .first = first };
        DSC_TRY(dsc_grad_tiles_acquire(zero, g, &cursor, false, &sum, err));
        DSC_ASSERT(sum.count > 0);
        DSC_ASSERT(first + sum.count <= slice);
        DSC_TRY(find_in(zero, g, sum.acc, slice * zero->o.rank + first, sum.count, tensor, err));
        DSC_TRY(dsc_grad_tiles_write_back(zero, &sum, false, err));
    }
    return dsc_grad_tiles_drain(zero, err);
}

/* Sums that the speculative update got before the step was skipped. */
static dsc_status find_delivered(dsc_zero *zero, int32_t g, int32_t *tensor, dsc_error *err)
{
    const int64_t slice = zero->o.layout->group[g].slice;
    const float *x;
    DSC_ASSERT(zero->group[g].speculative->sum_delivered);
    for (int64_t first = 0, count; first < slice; first += count) {
        DSC_TRY(dsc_speculative_update_view(zero, g, first, &count, &x, err));
        DSC_ASSERT(count > 0);
        DSC_ASSERT(first + count <= slice);
        DSC_TRY(find_in(zero, g, x, slice * zero->o.rank + first, count, tensor, err));
    }
    return DSC_OK;
}

static dsc_status find_kept(dsc_zero *zero, int32_t g, int32_t *tensor, dsc_error *err)
{
    const int64_t slice = zero->o.layout->group[g].slice;
    if (!zero->o.layout->group[g].trainable || zero->group[g].speculative->sum_delivered)
        return DSC_OK;
    if (zero->group[g].sums.last != NULL)
        return find_in(zero, g, zero->group[g].sums.last, slice * zero->o.rank, slice, tensor, err);
    if (zero->group[g].grad == NULL)
        return find_offloaded(zero, g, tensor, err);
    int64_t first, count;
    const float *sums = dsc_zero_known_sums(zero, g, &first, &count);
    return find_in(zero, g, sums, first, count, tensor, err);
}

dsc_status dsc_zero_find_nonfinite(dsc_zero *zero, int32_t *tensor, int32_t *rank, dsc_error *err)
{
    const dsc_layout *layout = zero->o.layout;
    int32_t *all = zero->buf.sums.ptr, mine = -1;
    int32_t end = layout->group_count;
    /* Delivered sums first: the tiles of other sums use the same buffers. */
    for (int32_t g = 0; g < layout->group_count && mine < 0; g++)
        if (zero->group[g].speculative->sum_delivered) {
            DSC_TRY(find_delivered(zero, g, &mine, err));
            end = mine >= 0 ? g : end;
        }
    for (int32_t g = 0, found = -1; g < end && found < 0; g++) {
        DSC_TRY(find_kept(zero, g, &found, err));
        mine = found >= 0 ? found : mine;
    }
    DSC_ASSERT(mine < layout->tensor_count);
    DSC_TRY(dsc_comm_all_gather(zero->o.host_comm, DSC_CHANNEL_CONTROL, all, &mine, (int64_t)sizeof mine, DSC_U8, NULL,
                                err));
    *tensor = *rank = -1;
    for (int32_t r = 0; r < zero->world_size; r++)
        if (all[r] >= 0 && (*tensor < 0 || all[r] < *tensor)) {
            *tensor = all[r];
            *rank = r;
        }
    return DSC_OK;
}
