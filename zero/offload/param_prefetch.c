/* param_prefetch.c - parameters that are read before their windows are free, into idle buffers of the update.
 *
 * Files are idle under the head's products, the longest of a pass, because windows already hold their parameters.
 * Masters and moments of the step before are written by then, and those of the next update are read only in the last
 * pass. So in the earlier passes the fetch stream reads parameters of the backward pass and of the next forward pass
 * into these buffers, in the order of use. Requests are then served from there. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "zero/core/internal.h"
#include "zero/offload/param_prefetch.h"
#include "zero/offload/placement.h"
#include "zero/offload/state_store.h"

static const dsc_plane lenders[] = { DSC_PLANE_MASTER, DSC_PLANE_MOMENT1, DSC_PLANE_MOMENT2,
                                     DSC_PLANE_MOMENT3 };

bool dsc_param_prefetch_is_used(const dsc_zero *zero)
{
    bool params = false;
    DSC_ASSERT(zero->pass_count >= 1);
    for (int32_t g = 0; g < zero->o.layout->group_count; g++)
        params = params || dsc_in_swap(zero, g, DSC_PLANE_PARAM);
    return params && zero->o.swap.read_ahead && zero->o.overlap && dsc_device_host_visible(zero->o.device) &&
           zero->pass_count > 1 && dsc_param_prefetch_slots(zero) > 0;
}

static int64_t piece_bytes(const dsc_zero *zero)
{
    DSC_ASSERT(zero->store->tile_elements > 0);
    return zero->store->tile_elements * zero->param_bytes_each;
}

static bool lends(const dsc_zero *zero, dsc_plane plane)
{
    DSC_ASSERT(plane != DSC_PLANE_PARAM); /* its buffers are used in every pass */
    for (int32_t g = 0; g < zero->o.layout->group_count; g++)
        if (dsc_in_swap(zero, g, plane))
            return true;
    return false;
}

static int32_t slots_of(const dsc_zero *zero, dsc_plane plane)
{
    return lends(zero, plane) ? (int32_t)(dsc_state_store_tile_buffers_bytes(zero, plane) / piece_bytes(zero)) : 0;
}

int32_t dsc_param_prefetch_slots(const dsc_zero *zero)
{
    int32_t count = 0;
    for (size_t i = 0; i < DSC_COUNT(lenders); i++)
        count += slots_of(zero, lenders[i]);
    DSC_ASSERT(count >= 0);
    return count < DSC_TILE_BUFFERS_MAX ? count : DSC_TILE_BUFFERS_MAX;
}

dsc_status dsc_param_prefetch_open(dsc_zero *zero, dsc_error *err)
{
    dsc_state_store *store = zero->store;
    const int32_t count = dsc_param_prefetch_slots(zero);
    if (!dsc_param_prefetch_is_used(zero))
        return DSC_OK;
    DSC_TRY(dsc_event_open(zero->o.device, &store->lent, err));
    DSC_TRY(dsc_event_open(zero->o.device, &store->returned, err));
    store->prefetched.read_ahead = store->prefetched.only_reads = true;
    DSC_TRY(dsc_tile_buffers_open(&store->prefetched, zero->o.alloc, store->swap[DSC_SPACE_PARAM],
                                  store->io.engine[DSC_IO_PARAM], NULL, piece_bytes(zero), count, err));
    int32_t first = 0;
    for (size_t i = 0; i < DSC_COUNT(lenders); i++) {
        const int32_t slots = (int32_t)dsc_min_i64(slots_of(zero, lenders[i]), count - first);
        DSC_ASSERT(slots * piece_bytes(zero) <= store->buf[lenders[i]].bytes);
        if (slots > 0)
            dsc_tile_buffers_assign(&store->prefetched, first, slots, store->buf[lenders[i]].ptr, piece_bytes(zero));
        first += slots;
    }
    DSC_ASSERT(first == count); /* each slot has memory */
    return DSC_OK;
}

void dsc_param_prefetch_close(dsc_zero *zero)
{
    dsc_tile_buffers_close(&zero->store->prefetched);
    dsc_event_close(&zero->store->lent);
    dsc_event_close(&zero->store->returned);
}

/* ---- in the order in which gathers ask ---- */

static bool comes_from_file(const dsc_zero *zero, const dsc_gather *gather)
{
    DSC_ASSERT(gather->group >= 0 && gather->group < zero->o.layout->group_count);
    return dsc_in_swap(zero, gather->group, DSC_PLANE_PARAM) && !zero->group[gather->group].hpz.is_current;
}

/* Step `at->step` counts on from this pass's into the next one's forward steps. */
static bool is_asked_at(const dsc_zero *zero, const dsc_gather *gather, int32_t step)
{
    const int32_t issued = gather->issue_step + (gather->issue_step < 0 ? zero->step_count : 0);
    DSC_ASSERT(issued >= 0 && issued < zero->step_count);
    DSC_ASSERT(step >= 0 && step < 2 * zero->step_count);
    return comes_from_file(zero, gather) &&
           (issued == step || (gather->issue_step >= 0 && issued + zero->step_count == step));
}

/* Behind the next pass's head. */
static int32_t last_step(const dsc_zero *zero) { return zero->step_count + zero->o.model->module_count; }

/* Goes on to the next piece; false: there is none. */
static bool next_piece(const dsc_zero *zero, dsc_param_prefetch_cursor *at, dsc_piece *piece)
{
    DSC_ASSERT(at->step >= 0 && at->gather >= 0);
    DSC_ASSERT(at->first >= 0);
    for (; at->step < last_step(zero); at->step++, at->gather = 0)
        for (; at->gather < zero->gathers.count; at->gather++, at->first = 0) {
            const dsc_gather *gather = &zero->gathers.gather[at->gather];
            if (!is_asked_at(zero, gather, at->step))
                continue;
            *piece = dsc_state_store_tile_piece(zero, gather->group, DSC_PLANE_PARAM, at->first);
            at->first += zero->store->tile_elements;
            if (piece->bytes > 0)
                return true;
        }
    return false;
}

static dsc_status read_on(dsc_zero *zero, dsc_error *err)
{
    dsc_state_store *store = zero->store;
    bool started = true;
    DSC_ASSERT(store->prefetched.swap != NULL);
    while (started) {
        dsc_param_prefetch_cursor next = store->prefetch_at;
        dsc_piece piece;
        if (!next_piece(zero, &next, &piece))
            return DSC_OK;
        DSC_TRY(dsc_tile_buffers_prefetch(&store->prefetched, piece, false, &started, err));
        if (started)
            store->prefetch_at = next;
    }
    return DSC_OK;
}

typedef struct ahead_call {
    dsc_zero *zero;
    long long ticket;
    bool first;
} ahead_call;

static dsc_status background_round(const void *args, bool yields, dsc_io_round *result, dsc_error *err)
{
    const ahead_call *call = args;
    dsc_state_store *store = call->zero->store;
    bool idle = false;
    DSC_ASSERT(store->lent != NULL);
    if (dsc_event_passed(store->lent)) {
        DSC_TRY(read_on(call->zero, err));
        DSC_TRY(dsc_tile_buffers_is_idle(&store->prefetched, &idle, err));
    }
    *result = idle ? DSC_IO_IDLE : DSC_IO_PENDING;
    return DSC_OK;
}

static const dsc_io_work_ops background_ops = { .io_class = DSC_IO_PARAM,
                                                .pause_ns = DSC_IO_PAUSE_NS,
                                                .round = background_round };

static dsc_status background_now(void *args, dsc_error *err)
{
    const ahead_call *call = args;
    DSC_ASSERT(call->first || call->zero->store->prefetch_at.step >= call->zero->o.model->module_count);
    if (call->first)
        call->zero->store->prefetch_at = (dsc_param_prefetch_cursor) { .step = call->zero->o.model->module_count };
    return dsc_io_scheduler_run(&call->zero->store->io, &background_ops, call->ticket, call, err);
}

static dsc_status forget_now(void *args, dsc_error *err)
{
    const ahead_call *call = args;
    return dsc_tile_buffers_discard(&call->zero->store->prefetched, err);
}

/* On the update stream: tiles that were read ahead for an update that did not happen are discarded. */
static dsc_status lend_now(void *args, dsc_error *err)
{
    const ahead_call *call = args;
    for (size_t i = 0; i < DSC_COUNT(lenders); i++)
        DSC_TRY(dsc_tile_buffers_discard(&call->zero->store->buffers[lenders[i]], err));
    return DSC_OK;
}

static dsc_status queue_reads(dsc_zero *zero, bool first, dsc_error *err)
{
    DSC_ASSERT(zero->store->buffers_are_lent); /* S7 */
    const ahead_call call = { zero, dsc_io_scheduler_ticket(&zero->store->io, DSC_IO_PARAM), first };
    return dsc_host_call(zero->stream.fetch, background_now, &call, (int64_t)sizeof call, err);
}

dsc_status dsc_param_prefetch_begin(dsc_zero *zero, dsc_error *err)
{
    dsc_state_store *store = zero->store;
    const ahead_call call = { .zero = zero };
    if (store->prefetched.swap == NULL)
        return DSC_OK;
    DSC_ASSERT(zero->stream.update != NULL && zero->stream.fetch != NULL);
    DSC_ASSERT(zero->stream.update != zero->stream.fetch); /* the reads wait for the other stream's event */
    for (size_t i = 0; i < DSC_COUNT(lenders); i++)
        dsc_tile_buffers_end_views(&store->buffers[lenders[i]]);
    DSC_TRY(dsc_host_call(zero->stream.update, lend_now, &call, (int64_t)sizeof call, err));
    DSC_TRY(dsc_event_record(store->lent, zero->stream.update, err));
    store->buffers_are_lent = true;
    return queue_reads(zero, true, err);
}

dsc_status dsc_param_prefetch_continue(dsc_zero *zero, dsc_error *err)
{
    return zero->store->buffers_are_lent ? queue_reads(zero, false, err) : DSC_OK;
}

dsc_status dsc_param_prefetch_end(dsc_zero *zero, dsc_error *err)
{
    dsc_state_store *store = zero->store;
    const ahead_call call = { .zero = zero };
    if (store->prefetched.swap == NULL)
        return DSC_OK;
    DSC_ASSERT(zero->stream.update != zero->stream.fetch);
    dsc_param_prefetch_request(zero);
    store->buffers_are_lent = false;
    DSC_TRY(dsc_host_call(zero->stream.fetch, forget_now, &call, (int64_t)sizeof call, err));
    DSC_TRY(dsc_event_record(store->returned, zero->stream.fetch, err));
    return dsc_stream_wait(zero->stream.update, store->returned, err);
}

void dsc_param_prefetch_request(dsc_zero *zero) { dsc_io_scheduler_demand(&zero->store->io, DSC_IO_PARAM); }

/* A piece that is requested and was not prefetched is not needed again. */
static void pass_over(dsc_zero *zero, int32_t g, int64_t first, int64_t elements)
{
    DSC_ASSERT(first >= 0 && elements <= dsc_stored_slice(zero, g, DSC_PLANE_PARAM));
    DSC_ASSERT(zero->store->prefetched.ahead == 0); /* otherwise the cursor is behind the prefetched pieces */
    for (; first < elements; first += zero->store->tile_elements) {
        const dsc_piece asked = dsc_state_store_tile_piece(zero, g, DSC_PLANE_PARAM, first);
        dsc_param_prefetch_cursor next = zero->store->prefetch_at;
        dsc_piece piece;
        if (!next_piece(zero, &next, &piece) || piece.at != asked.at)
            return;
        zero->store->prefetch_at = next;
    }
}

/* A caller with another order than the planned one reads from the file. */
static dsc_status stop_prefetch(dsc_zero *zero, dsc_error *err)
{
    zero->store->prefetch_at.step = last_step(zero);
    return dsc_tile_buffers_discard(&zero->store->prefetched, err);
}

dsc_status dsc_param_prefetch_consume(dsc_zero *zero, int32_t g, int64_t elements, char *to, int64_t *taken,
                                      dsc_error *err)
{
    dsc_tile_buffers *buffers = &zero->store->prefetched;
    *taken = 0;
    DSC_ASSERT(g >= 0 && g < zero->o.layout->group_count);
    DSC_ASSERT(elements >= 0 && elements <= dsc_stored_slice(zero, g, DSC_PLANE_PARAM));
    while (*taken < elements && buffers->ahead > 0) {
        const dsc_piece piece = dsc_state_store_tile_piece(zero, g, DSC_PLANE_PARAM, *taken);
        if (!dsc_tile_buffers_is_next(buffers, piece))
            return stop_prefetch(zero, err);
        const int32_t slot = dsc_tile_buffers_next(buffers);
        DSC_ASSERT(piece.bytes > 0 && piece.bytes <= piece_bytes(zero));
        DSC_TRY(dsc_tile_buffers_start(buffers, slot, piece, true, err));
        DSC_TRY(dsc_tile_buffers_acquire(buffers, slot, err));
        memcpy(to + *taken * zero->param_bytes_each, buffers->slot[slot].buf, (size_t)piece.bytes);
        dsc_tile_buffers_release(buffers, slot);
        *taken += zero->store->tile_elements;
    }
    *taken = dsc_min_i64(*taken, elements);
    if (buffers->swap != NULL && buffers->ahead == 0)
        pass_over(zero, g, *taken, elements);
    return DSC_OK;
}
