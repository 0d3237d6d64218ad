/* internal.c - small functions that all other files of zero/ share; they call no other file of zero/.
 * SPDX-License-Identifier: Apache-2.0 */
#include "zero/core/internal.h"

dsc_quant dsc_pack_of_params(const dsc_zero *zero, int32_t group)
{
    DSC_ASSERT(group >= 0 && group < zero->o.layout->group_count);
    if (zero->o.stage != 3 || dsc_is_packed(zero, group))
        return DSC_QUANT_NONE;
    return zero->o.layout->group[group].trainable ? zero->o.quant_params : zero->o.quant_frozen;
}

dsc_status dsc_zero_after_compute(dsc_zero *zero, dsc_stream *stream, dsc_error *err)
{
    return dsc_stream_order(zero->event.compute_mark, zero->o.compute, stream, err);
}

dsc_status dsc_zero_after_exchange(dsc_zero *zero, const dsc_stream *by, dsc_event *event, dsc_error *err)
{
    const bool exchanges = zero->world_size > 1 || zero->o.replica_count > 1;
    DSC_ASSERT(by == zero->stream.gather || by == zero->stream.reduce);
    if (by == zero->o.compute || !exchanges) /* its exchanges were waits already (comm/calls.c) */
        return dsc_stream_wait(zero->o.compute, event, err);
    dsc_wait_begin(zero->o.compute);
    const dsc_status status = dsc_stream_wait(zero->o.compute, event, err);
    dsc_wait_end(zero->o.compute);
    return status;
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
    DSC_ASSERT(g >= 0 && g < zero->o.layout->group_count);
    const dsc_layout_group *group = &zero->o.layout->group[g];
    *out = (dsc_zero_slice) { .first = group->slice * zero->o.rank,
                              .count = group->slice,
                              .trainable = group->trainable,
                              .packed = group->packed };
}

int64_t dsc_absmax_bytes(const dsc_zero *zero, int32_t group, int64_t elements)
{
    if (zero->o.moment_dtype != DSC_U8)
        return 0;
    DSC_ASSERT(elements % DSC_Q8_BLOCK == 0);
    DSC_ASSERT(dsc_moment_count(zero, group) <= DSC_UPDATE_STATES_U8);
    return dsc_moment_count(zero, group) * (elements / DSC_Q8_BLOCK) * (int64_t)sizeof(float);
}

int64_t dsc_moments_bytes(const dsc_zero *zero, int32_t group, int64_t elements)
{
    DSC_ASSERT(elements >= 0);
    return elements * dsc_moment_count(zero, group) * dsc_plane_bytes_each(zero, DSC_PLANE_MOMENT1) +
           dsc_absmax_bytes(zero, group, elements);
}

char *dsc_zero_place_absmax(const dsc_zero *zero, int32_t group, char *from)
{
    dsc_group_state *state = &zero->group[group];
    const int64_t bytes = dsc_absmax_bytes(zero, group, state->local_count);
    for (int32_t k = 0; k < dsc_moment_count(zero, group) && bytes > 0; k++)
        state->absmax[k] = (float *)(void *)from + k * (state->local_count / DSC_Q8_BLOCK);
    DSC_ASSERT(bytes == 0 || (intptr_t)from % (intptr_t)sizeof(float) == 0);
    return from + bytes;
}

char *dsc_zero_place_moments(const dsc_zero *zero, int32_t group, char *from)
{
    dsc_group_state *state = &zero->group[group];
    DSC_ASSERT(dsc_moment_count(zero, group) <= DSC_UPDATE_STATES_MAX);
    for (int32_t k = 0; k < dsc_moment_count(zero, group); k++) {
        state->moment[k] = from;
        from += state->local_count * dsc_plane_bytes_each(zero, DSC_PLANE_MOMENT1);
    }
    return dsc_zero_place_absmax(zero, group, from);
}

static dsc_status comm_memory_open(dsc_comm *comm, const dsc_need *need, dsc_error *err)
{
    dsc_buf *buf = need->out;
    DSC_ASSERT(comm != NULL && need->tier == DSC_TIER_DEVICE);
    DSC_TRY(dsc_comm_mem_open(comm, need->tag, need->bytes, buf, err));
    DSC_ASSERT(buf->bytes == need->bytes);
    return DSC_OK;
}

static dsc_status peers_open(const dsc_needs *needs, const dsc_need *need, dsc_error *err)
{
    const dsc_zero *zero = needs->owner;
    DSC_ASSERT(zero != NULL);
    return comm_memory_open(zero->o.comm, need, err);
}

static void peers_close(const dsc_needs *needs, const dsc_need *need)
{
    const dsc_zero *zero = needs->owner;
    if (zero->o.comm != NULL)
        dsc_comm_mem_close(zero->o.comm, need->out);
}

const dsc_need_kind dsc_zero_need_comm = { dsc_buf_counted, peers_open, peers_close };

static dsc_status neighbours_open(const dsc_needs *needs, const dsc_need *need, dsc_error *err)
{
    const dsc_zero *zero = needs->owner;
    DSC_ASSERT(zero->o.neighbour_count > 1 || need->bytes == 0);
    return comm_memory_open(zero->o.neighbours, need, err);
}

static void neighbours_close(const dsc_needs *needs, const dsc_need *need)
{
    const dsc_zero *zero = needs->owner;
    if (zero->o.neighbours != NULL)
        dsc_comm_mem_close(zero->o.neighbours, need->out);
}

const dsc_need_kind dsc_zero_need_neighbours = { dsc_buf_counted, neighbours_open, neighbours_close };

bool dsc_gather_is_windowed(const dsc_zero *zero, int32_t group)
{
    DSC_ASSERT(zero->group != NULL && group >= 0 && group < zero->o.layout->group_count);
    if (dsc_is_packed(zero, group))
        return true;
    return zero->o.stage == 3 && !zero->group[group].gather.resident &&
           (zero->world_size > 1 || zero->group[group].tiers.swap_param ||
            dsc_pack_of_params(zero, group) != DSC_QUANT_NONE);
}

void dsc_zero_plan_needs(dsc_zero *zero, const dsc_need *list, int count)
{
    DSC_ASSERT(count > 0);
    dsc_needs_plan(&zero->needs, list, count);
    for (int i = 0; i < count; i++)
        if (list[i].kind == DSC_NEED_COMM || list[i].kind == DSC_NEED_NEIGHBOURS)
            zero->lent_bytes += dsc_need_planned_bytes(&list[i]);
}
