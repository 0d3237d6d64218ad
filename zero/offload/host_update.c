/* host_update.c - see host_update.h. SPDX-License-Identifier: Apache-2.0 */
#include "zero/core/internal.h"
#include "zero/core/tile.h"
#include "zero/offload/speculative_memory.h"
#include "zero/offload/grad_staging.h"
#include "zero/offload/host_update.h"
#include "zero/offload/placement.h"
#include "zero/offload/state_store.h"

static bool in_pinned_memory(const dsc_zero *zero, int32_t g)
{
    return dsc_host_update_updates(zero, g) && zero->o.swap.state_folder_count == 0;
}

/* Bytes of a slot that a kind of state passes through; 0: none does. */
static int64_t part_bytes(const dsc_zero *zero, dsc_plane plane)
{
    for (int32_t g = 0; g < zero->o.layout->group_count; g++)
        if (dsc_host_update_brings(zero, g, plane))
            return zero->store->tile_elements * (plane == DSC_PLANE_PARAM ? zero->param_bytes_each : 4);
    return 0;
}

static int64_t slot_bytes(const dsc_zero *zero)
{
    return part_bytes(zero, DSC_PLANE_GRAD) + part_bytes(zero, DSC_PLANE_PARAM);
}

/* ---- planning and opening ---- */

enum { NEEDS = 3 };
static void list_needs(dsc_zero *zero, dsc_need out[NEEDS])
{
    dsc_host_update *host = &zero->store->host;
    int64_t masters = 0, moments = 0;
    for (int32_t g = 0; g < zero->o.layout->group_count; g++) {
        const int64_t elements = in_pinned_memory(zero, g) ? zero->o.layout->group[g].slice : 0;
        DSC_ASSERT(elements >= 0);
        moments += dsc_moments_bytes(zero, g, elements);
        masters += zero->o.compute_dtype == DSC_F32 ? 0 : elements * 4;
    }
    const int64_t slots = DSC_HOST_SLOTS * slot_bytes(zero);
    out[0] = (dsc_need) { &host->master_buf, DSC_TAG_MASTER, DSC_TIER_PINNED, masters, DSC_NEED_DEVICE };
    out[1] = (dsc_need) { &host->moment_buf, DSC_TAG_MOMENT, DSC_TIER_PINNED, moments, DSC_NEED_DEVICE };
    out[2] = (dsc_need) { &host->slot_buf, DSC_TAG_IO, DSC_TIER_PINNED, slots, DSC_NEED_DEVICE };
}

void dsc_host_update_plan(dsc_zero *zero)
{
    dsc_need needs[NEEDS];
    if (!dsc_host_update_is_used(zero))
        return;
    list_needs(zero, needs);
    dsc_needs_plan(&zero->needs, needs, NEEDS);
}

static void place_states(dsc_zero *zero)
{
    float *master = zero->store->host.master_buf.ptr;
    char *moment = zero->store->host.moment_buf.ptr;
    for (int32_t g = 0; g < zero->o.layout->group_count; g++) {
        dsc_group_state *state = &zero->group[g];
        if (!in_pinned_memory(zero, g))
            continue;
        DSC_ASSERT(state->local_count == zero->o.layout->group[g].slice); /* as the plan counts */
        moment = dsc_zero_place_moments(zero, g, moment);
        if (zero->o.compute_dtype == DSC_F32)
            continue;
        state->master = master;
        master += state->local_count;
    }
    DSC_ASSERT((intptr_t)master - (intptr_t)zero->store->host.master_buf.ptr == zero->store->host.master_buf.bytes);
    DSC_ASSERT((intptr_t)moment - (intptr_t)zero->store->host.moment_buf.ptr == zero->store->host.moment_buf.bytes);
}

static dsc_status wait_uploaded(void *user, int32_t slot, dsc_stream *by, dsc_error *err)
{
    const dsc_host_update *host = user;
    DSC_ASSERT(by == NULL);
    return dsc_event_sync(host->slot[slot].uploaded, err);
}

dsc_status dsc_host_update_open_device(dsc_zero *zero, dsc_error *err)
{
    dsc_host_update *host = &zero->store->host;
    DSC_ASSERT(host->device == NULL); /* opened once */
    host->runs_behind = dsc_host_update_runs_behind(zero);
    if (!dsc_host_update_is_used(zero))
        return DSC_OK;
    const dsc_device_options options = { .alloc = zero->o.alloc, .threads = zero->o.swap.host_threads,
                                         .caps = zero->o.swap.host_caps };
    return dsc_device_open_host(zero->o.device, &options, &host->device, err);
}

void dsc_host_update_close_device(dsc_zero *zero) { dsc_device_close(&zero->store->host.device); }

dsc_device *dsc_host_update_stream_device(const dsc_zero *zero)
{
    DSC_ASSERT(!zero->store->host.runs_behind || zero->store->host.device != NULL);
    return zero->store->host.runs_behind ? zero->store->host.device : zero->o.device;
}

dsc_status dsc_host_update_open(dsc_zero *zero, dsc_error *err)
{
    dsc_host_update *host = &zero->store->host;
    dsc_device *device = zero->o.device;
    if (host->device == NULL)
        return DSC_OK;
    DSC_TRY(dsc_stream_open(host->device, DSC_STREAM_COMPUTE, "host update", &host->compute, err));
    dsc_need needs[NEEDS];
    list_needs(zero, needs);
    DSC_TRY(dsc_needs_open(&zero->needs, needs, NEEDS, err));
    dsc_staging_open(&host->slots, DSC_HOST_SLOTS, wait_uploaded, host);
    host->next_slot = -1;
    for (int32_t i = 0; i < DSC_HOST_SLOTS; i++) {
        dsc_host_slot *slot = &host->slot[i];
        slot->grad = (char *)host->slot_buf.ptr + i * slot_bytes(zero);
        slot->param = (char *)slot->grad + part_bytes(zero, DSC_PLANE_GRAD);
        DSC_ASSERT((i + 1) * slot_bytes(zero) <= host->slot_buf.bytes);
        DSC_TRY(dsc_event_open(device, &slot->loaded, err));
        DSC_TRY(dsc_event_open(device, &slot->uploaded, err));
    }
    place_states(zero);
    return DSC_OK;
}

void dsc_host_update_close(dsc_zero *zero)
{
    dsc_host_update *host = &zero->store->host;
    if (host->device == NULL)
        return;
    for (int32_t i = 0; i < DSC_HOST_SLOTS; i++) {
        dsc_event_close(&host->slot[i].uploaded);
        dsc_event_close(&host->slot[i].loaded);
    }
    dsc_need needs[NEEDS];
    list_needs(zero, needs);
    dsc_needs_close(&zero->needs, needs, NEEDS);
    dsc_stream_close(&host->compute);
}

/* ---- tiles ---- */

/* The tile's parameters on the device. */
static char *param_of(const dsc_zero *zero, const dsc_tile *tile)
{
    const dsc_group_state *state = &zero->group[tile->group];
    DSC_ASSERT(state->param != NULL);
    DSC_ASSERT(tile->first >= state->local_first);
    return state->param + (tile->first - (state->param_whole ? 0 : state->local_first)) * zero->param_bytes_each;
}

/* In fp32 the parameters are the masters, so they come out too. */
static bool anything_comes(const dsc_zero *zero, int32_t g)
{
    return dsc_host_update_brings(zero, g, DSC_PLANE_GRAD) ||
           (zero->o.compute_dtype == DSC_F32 && dsc_host_update_brings(zero, g, DSC_PLANE_PARAM));
}

static dsc_status start(dsc_zero *zero, const dsc_tile *tile, int32_t *index, dsc_error *err)
{
    dsc_host_update *host = &zero->store->host;
    const dsc_group_state *state = &zero->group[tile->group];
    DSC_ASSERT(tile->count > 0 && tile->count <= zero->store->tile_elements); /* of a slot */
    DSC_ASSERT(tile->first + tile->count <= state->local_first + state->local_count);
    DSC_TRY(dsc_staging_acquire(&host->slots, NULL, index, err));
    const dsc_host_slot *slot = &host->slot[*index];
    if (!anything_comes(zero, tile->group))
        return DSC_OK;
    if (dsc_host_update_brings(zero, tile->group, DSC_PLANE_GRAD))
        DSC_TRY(dsc_copy(zero->stream.out, slot->grad, state->grad + (tile->first - state->local_first),
                         tile->count * 4, err));
    if (zero->o.compute_dtype == DSC_F32 && dsc_host_update_brings(zero, tile->group, DSC_PLANE_PARAM))
        DSC_TRY(dsc_copy(zero->stream.out, slot->param, param_of(zero, tile), tile->count * 4, err));
    return dsc_event_record(slot->loaded, zero->stream.out, err);
}

/* Sums are complete, and nobody reads the old parameters any more, when the compute stream is here. */
dsc_status dsc_host_update_begin(dsc_zero *zero, dsc_error *err)
{
    zero->store->host.next_slot = -1;
    if (!dsc_host_update_is_used(zero))
        return DSC_OK;
    DSC_TRY(dsc_zero_after_compute(zero, zero->stream.in, err));
    return dsc_zero_after_compute(zero, zero->stream.out, err);
}

dsc_status dsc_host_update_acquire(dsc_zero *zero, const dsc_tile *tile, const dsc_tile *following, int32_t *slot,
                                   dsc_error *err)
{
    dsc_host_update *host = &zero->store->host;
    DSC_ASSERT(dsc_host_update_updates(zero, tile->group));
    DSC_ASSERT(host->next_slot < DSC_HOST_SLOTS);
    *slot = host->next_slot;
    host->next_slot = -1;
    if (*slot < 0)
        DSC_TRY(start(zero, tile, slot, err));
    if (following->count > 0 && dsc_host_update_updates(zero, following->group))
        DSC_TRY(start(zero, following, &host->next_slot, err));
    if (anything_comes(zero, tile->group))
        DSC_TRY(dsc_event_sync(host->slot[*slot].loaded, err));
    const dsc_group_state *state = &zero->group[tile->group];
    return state->staging->sums != NULL ? dsc_event_sync(state->staging->stored, err) : DSC_OK;
}

dsc_status dsc_host_update_release(dsc_zero *zero, const dsc_tile *tile, dsc_error *err)
{
    dsc_host_slot *slot = &zero->store->host.slot[tile->host_slot];
    dsc_group_state *state = &zero->group[tile->group];
    DSC_ASSERT(tile->host_slot >= 0 && tile->host_slot < DSC_HOST_SLOTS);
    DSC_ASSERT(tile->count > 0 && tile->count <= zero->store->tile_elements);
    DSC_TRY(dsc_stream_sync(zero->store->host.compute, err));
    if (!dsc_host_update_brings(zero, tile->group, DSC_PLANE_PARAM))
        return DSC_OK;
    dsc_stream *in = state->early->writes_other ? zero->early->in : zero->stream.in;
    DSC_TRY(dsc_copy(in, param_of(zero, tile), slot->param, tile->count * zero->param_bytes_each, err));
    DSC_TRY(dsc_event_record(slot->uploaded, in, err));
    return tile->last_of_group ? dsc_event_record(state->gather.uploaded, in, err) : DSC_OK;
}

dsc_status dsc_host_update_round_params(dsc_zero *zero, int32_t g, dsc_error *err)
{
    const dsc_group_state *state = &zero->group[g];
    const bool brings = dsc_host_update_brings(zero, g, DSC_PLANE_PARAM);
    dsc_stream *compute = zero->store->host.compute;
    DSC_ASSERT(in_pinned_memory(zero, g) && zero->o.compute_dtype != DSC_F32);
    DSC_TRY(dsc_stream_sync(zero->stream.in, err)); /* the slot may still be copied */
    for (int64_t at = 0, count; at < state->local_count; at += count) {
        count = dsc_min_i64(state->local_count - at, zero->store->tile_elements);
        const dsc_tile tile = { .group = g, .first = state->local_first + at, .count = count };
        const dsc_cast_args cast = { .to = brings ? (char *)zero->store->host.slot[0].param : param_of(zero, &tile),
                                     .from = state->master + at,
                                     .to_dtype = zero->o.compute_dtype,
                                     .from_dtype = DSC_F32,
                                     .count = count };
        DSC_TRY(DSC_RUN(compute, CAST, &cast, err));
        DSC_TRY(dsc_stream_sync(compute, err));
        if (!brings)
            continue;
        DSC_TRY(dsc_copy(zero->stream.in, param_of(zero, &tile), cast.to, count * zero->param_bytes_each, err));
        DSC_TRY(dsc_stream_sync(zero->stream.in, err));
    }
    return DSC_OK;
}

/* The update's thread only records the event: the gather stream and `pending` belong to the thread of the passes. */
dsc_status dsc_host_update_publish(dsc_zero *zero, int32_t g, dsc_error *err)
{
    dsc_group_state *state = &zero->group[g];
    DSC_ASSERT(g >= 0 && g < zero->o.layout->group_count);
    if (!state->gather.uploading)
        return DSC_OK;
    state->gather.uploading = false;
    if (!dsc_host_update_brings(zero, g, DSC_PLANE_PARAM))
        return DSC_OK;
    DSC_TRY(dsc_stream_wait(zero->stream.gather, state->gather.uploaded, err)); /* windows are filled behind it */
    if (!state->param_whole)
        return DSC_OK;
    DSC_TRY(dsc_event_record(state->gather.gathered, zero->stream.gather, err));
    state->gather.pending = true;
    return DSC_OK;
}

dsc_status dsc_zero_after_update(dsc_zero *zero, int32_t g, dsc_stream *stream, dsc_error *err)
{
    DSC_ASSERT(g < zero->o.layout->group_count);
    if (zero->stream.update == NULL)
        return DSC_OK;
    dsc_event *updated = g < 0 ? zero->event.updated : zero->group[g].gather.updated;
    if (!zero->store->host.runs_behind)
        return dsc_stream_wait(stream, updated, err);
    if (g >= 0 && !dsc_host_update_updates(zero, g))
        return DSC_OK; /* its update is on the compute stream, before every use */
    DSC_TRY(dsc_event_sync(updated, err));
    return g < 0 ? DSC_OK : dsc_host_update_publish(zero, g, err);
}
