/* param_fetch.c - offloaded parameters to the windows of gathers.
 * SPDX-License-Identifier: Apache-2.0 */
#include "zero/core/internal.h"
#include "zero/offload/param_fetch.h"
#include "zero/offload/param_prefetch.h"
#include "zero/offload/placement.h"
#include "zero/offload/state_store.h"

bool dsc_param_fetch_request(dsc_zero *zero, int32_t g, char *to)
{
    DSC_ASSERT(dsc_zero_param_is_away(zero, g));
    DSC_ASSERT(to != NULL); /* NULL: no request */
    char *nobody = NULL;
    return atomic_compare_exchange_strong(&zero->group[g].gather.window_slice, &nobody, to);
}

typedef struct fetch_call {
    dsc_zero *zero;
    int32_t group;
    bool requested;
    char *to;
} fetch_call;

static dsc_status fetch_now(void *args, dsc_error *err)
{
    const fetch_call *call = args;
    dsc_zero *zero = call->zero;
    const dsc_group_state *state = &zero->group[call->group];
    const int64_t slice = dsc_stored_slice(zero, call->group, DSC_PLANE_PARAM);
    const int64_t elements = call->requested ? state->gather.copied_from : slice;
    int64_t taken;
    DSC_ASSERT(elements <= slice);
    /* All of it went to another window. The rest is in its file as soon as the group is updated. */
    if (!call->requested && state->gather.copied_from == 0 && zero->store->written != NULL)
        DSC_TRY(dsc_event_sync(zero->store->written, err));
    DSC_TRY(dsc_param_prefetch_consume(zero, call->group, elements, call->to, &taken, err));
    DSC_ASSERT(taken >= 0);
    DSC_ASSERT(taken <= elements);
    if (taken == elements)
        return DSC_OK;
    const int64_t before = taken * zero->param_bytes_each;
    dsc_swap_read(zero->store->fetch, call->to + before,
                  dsc_align_up(elements * zero->param_bytes_each - before, DSC_AIO_ALIGN),
                  state->tiers.at[DSC_PLANE_PARAM] + before);
    return dsc_swap_wait(zero->store->fetch, err);
}

typedef struct tile_call {
    dsc_tile_buffers *buffers;
    int32_t slot;
    dsc_piece piece, ahead;
} tile_call;

static dsc_status fetch_tile_now(void *args, dsc_error *err)
{
    const tile_call *call = args;
    DSC_ASSERT(call->piece.bytes > 0);
    bool started;
    DSC_TRY(dsc_tile_buffers_start(call->buffers, call->slot, call->piece, true, err));
    if (call->ahead.bytes > 0)
        DSC_TRY(dsc_tile_buffers_prefetch(call->buffers, call->ahead, true, &started, err));
    return dsc_tile_buffers_acquire(call->buffers, call->slot, err);
}

dsc_status dsc_param_fetch(dsc_zero *zero, int32_t g, char *to, bool requested, dsc_error *err)
{
    const int64_t tile = zero->store->tile_elements, each = zero->param_bytes_each;
    const int64_t slice = dsc_stored_slice(zero, g, DSC_PLANE_PARAM);
    dsc_tile_buffers *buffers = &zero->store->buffers[DSC_PLANE_PARAM];
    DSC_ASSERT(dsc_zero_param_is_away(zero, g));
    if (!dsc_in_swap(zero, g, DSC_PLANE_PARAM))
        return dsc_copy(zero->stream.fetch, to, zero->group[g].param, slice * each, err);
    if (zero->store->fetch != NULL) {
        const fetch_call call = { zero, g, requested, to };
        dsc_tile_buffers_end_views(buffers);
        DSC_TRY(dsc_host_call(zero->stream.fetch, fetch_now, &call, (int64_t)sizeof call, err));
        return dsc_event_record(zero->store->io.arrival[DSC_IO_PARAM], zero->stream.fetch, err);
    }
    DSC_ASSERT(buffers->swap != NULL);
    for (int64_t first = 0; first < slice; first += tile) {
        const tile_call call = { .buffers = buffers,
                                 .slot = dsc_tile_buffers_next(buffers),
                                 .piece = dsc_state_store_tile_piece(zero, g, DSC_PLANE_PARAM, first),
                                 .ahead = dsc_state_store_tile_piece(zero, g, DSC_PLANE_PARAM, first + tile) };
        DSC_TRY(dsc_host_call(zero->stream.fetch, fetch_tile_now, &call, (int64_t)sizeof call, err));
        DSC_TRY(dsc_copy(zero->stream.fetch, to + first * each, buffers->slot[call.slot].buf, call.piece.bytes, err));
    }
    return DSC_OK;
}
