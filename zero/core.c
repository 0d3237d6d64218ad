/* core.c - small functions that all other files of zero/ share; they call no other file of zero/.
 * SPDX-License-Identifier: Apache-2.0 */
#include "zero/internal.h"

dsc_quant dsc_pack_of_params(const dsc_zero *zero, int32_t group)
{
    if (zero->o.stage != 3)
        return DSC_QUANT_NONE;
    return zero->o.layout->group[group].trainable ? zero->o.quant_params : zero->o.quant_frozen;
}

dsc_status dsc_zero_order(dsc_event *event, dsc_stream *before, dsc_stream *after, dsc_error *err)
{
    if (after == before)
        return DSC_OK;
    DSC_TRY(dsc_event_record(event, before, err));
    return dsc_stream_wait(after, event, err);
}

dsc_status dsc_zero_after_compute(dsc_zero *zero, dsc_stream *stream, dsc_error *err)
{
    return dsc_zero_order(zero->compute_mark, zero->o.compute, stream, err);
}

dsc_dtype dsc_zero_dtype(const dsc_zero *zero, dsc_plane plane)
{
    switch (plane) {
    case DSC_PLANE_PARAM:
        return zero->o.compute_dtype;
    case DSC_PLANE_MOMENT1:
    case DSC_PLANE_MOMENT2:
    case DSC_PLANE_MOMENT3:
        return zero->o.moment_dtype;
    case DSC_PLANE_GRAD:
        return zero->o.sum_dtype;
    case DSC_PLANE_MASTER:
    case DSC_PLANE_COUNT:
        break;
    }
    return DSC_F32;
}

void dsc_zero_slice_get(const dsc_zero *zero, int32_t g, dsc_zero_slice *out)
{
    const dsc_layout_group *group = &zero->o.layout->group[g];
    *out =
        (dsc_zero_slice) { .first = group->slice * zero->o.rank, .count = group->slice, .trainable = group->trainable };
}

int64_t dsc_moment_bytes_each(const dsc_zero *zero, int32_t group)
{
    return dsc_moment_count(zero, group) * dsc_plane_bytes_each(zero, DSC_PLANE_MOMENT1);
}

char *dsc_zero_place_moments(const dsc_zero *zero, int32_t group, char *from)
{
    dsc_group_state *state = &zero->group[group];
    for (int32_t k = 0; k < dsc_moment_count(zero, group); k++) {
        state->moment[k] = from;
        from += state->local_count * dsc_plane_bytes_each(zero, DSC_PLANE_MOMENT1);
    }
    return from;
}

void dsc_needs_plan(dsc_zero *zero, const dsc_need *needs, int count)
{
    for (int i = 0; i < count; i++) {
        const int64_t counted = dsc_buf_counted(needs[i].bytes);
        DSC_ASSERT(needs[i].bytes >= 0);
        zero->plan.bytes[needs[i].tag][needs[i].tier] += counted;
        zero->needs_planned[needs[i].tag][needs[i].tier] += counted;
    }
}

static dsc_comm *comm_of(const dsc_zero *zero, dsc_need_memory memory)
{
    return memory == DSC_NEED_NEIGHBOURS ? zero->o.neighbours : zero->o.comm;
}

static dsc_status open_need(dsc_zero *zero, const dsc_need *need, dsc_error *err)
{
    if (need->memory == DSC_NEED_DEVICE)
        return dsc_mem_open(zero->o.device, need->tag, need->tier, need->bytes, need->buf, err);
    return dsc_comm_mem_open(comm_of(zero, need->memory), need->tag, need->bytes, need->buf, err);
}

dsc_status dsc_needs_open(dsc_zero *zero, const dsc_need *needs, int count, dsc_error *err)
{
    for (int i = 0; i < count; i++) {
        DSC_TRY(open_need(zero, &needs[i], err));
        zero->needs_taken[needs[i].tag][needs[i].tier] += dsc_buf_counted(needs[i].bytes);
    }
    return DSC_OK;
}

void dsc_needs_close(dsc_zero *zero, const dsc_need *needs, int count)
{
    for (int i = count; i-- > 0;) {
        dsc_comm *comm = comm_of(zero, needs[i].memory);
        if (needs[i].memory == DSC_NEED_DEVICE)
            dsc_mem_close(zero->o.device, needs[i].buf);
        else if (comm != NULL)
            dsc_comm_mem_close(comm, needs[i].buf);
    }
}

void dsc_zero_cancel(dsc_zero *zero) { dsc_io_scheduler_cancel(&zero->store.io); }

bool dsc_zero_sums_are_own(const dsc_zero *zero) { return zero->sums_are_own; }

bool dsc_gather_is_windowed(const dsc_zero *zero, int32_t group)
{
    return zero->o.stage == 3 && !zero->group[group].resident &&
           (zero->world_size > 1 || zero->group[group].swap_param || dsc_pack_of_params(zero, group) != DSC_QUANT_NONE);
}

void dsc_needs_check(const dsc_zero *zero)
{
    for (int tag = 0; tag < DSC_TAG_COUNT; tag++)
        for (int tier = 0; tier < DSC_TIER_COUNT; tier++)
            DSC_ASSERT(zero->needs_taken[tag][tier] == zero->needs_planned[tag][tier]);
}
