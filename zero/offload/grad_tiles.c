/* grad_tiles.c - offloaded sums in memory, a tile at a time, while the reductions add gradient parts.
 * SPDX-License-Identifier: Apache-2.0 */
#include "zero/core/internal.h"
#include "zero/core/tile.h"
#include "zero/offload/borrowed_memory.h"
#include "zero/offload/grad_staging.h"
#include "zero/offload/grad_tiles.h"
#include "zero/offload/placement.h"
#include "zero/offload/speculative_update.h"
#include "zero/offload/state_store.h"

/* Whether a tile of the run passes through the tile buffers. */
static bool passes_tile_buffers(const dsc_zero *zero, const dsc_grad_part *first, int64_t pass)
{
    const dsc_grad_part *last = dsc_grad_part_last_of_run(zero, first);
    DSC_ASSERT(pass >= 0 && pass < zero->pass_count);
    DSC_ASSERT(last->group == first->group);
    return dsc_in_swap(zero, first->group, DSC_PLANE_GRAD) &&
           (dsc_grad_part_reads_sum(first, pass) || dsc_grad_part_writes_sum(zero, last, pass) ||
            !(first->sum_is_staged || last->sum_stays_staged));
}

/* Moves the cursor to the next tile of a sum in a file; false: there is none, or it is not read first. */
static bool next_sum(const dsc_zero *zero, dsc_sum_cursor *cursor)
{
    DSC_ASSERT(cursor->part >= 0 && cursor->part < zero->parts.count);
    DSC_ASSERT(zero->store->tile_elements > 0); /* otherwise the position does not advance */
    cursor->first += zero->store->tile_elements;
    while (cursor->first >= zero->o.layout->group[zero->parts.part[cursor->part].group].slice ||
           !passes_tile_buffers(zero, &zero->parts.part[cursor->part], cursor->pass)) {
        cursor->first = 0;
        cursor->part =
            (int32_t)(dsc_grad_part_last_of_run(zero, &zero->parts.part[cursor->part]) + 1 - zero->parts.part);
        if (cursor->part == zero->parts.count) {
            cursor->part = 0;
            cursor->pass++;
        }
        if (cursor->pass >= zero->pass_count)
            return false;
    }
    return dsc_grad_part_reads_sum(&zero->parts.part[cursor->part], cursor->pass);
}

static dsc_status read_sums_ahead(dsc_zero *zero, dsc_sum_cursor cursor, bool wait, dsc_error *err)
{
    dsc_tile_buffers *buffers = &zero->store->buffers[DSC_PLANE_GRAD];
    bool started = cursor.part >= 0;
    DSC_ASSERT(buffers->swap != NULL);
    DSC_ASSERT(cursor.part < zero->parts.count);
    for (int32_t i = 0; i < buffers->ahead && started; i++)
        started = next_sum(zero, &cursor);
    while (started && next_sum(zero, &cursor))
        DSC_TRY(dsc_tile_buffers_prefetch(
            buffers,
            dsc_state_store_tile_piece(zero, zero->parts.part[cursor.part].group, DSC_PLANE_GRAD, cursor.first),
            wait && buffers->ahead == 0, &started, err));
    return DSC_OK;
}

typedef struct sum_call {
    dsc_zero *zero;
    dsc_tile_buffers *buffers;
    int32_t slot;
    bool read;
    dsc_piece piece;
    dsc_sum_cursor cursor;
    long long ticket;
    int32_t group;
    int64_t count;
} sum_call;

static dsc_status write_back_now(void *args, dsc_error *err)
{
    const sum_call *call = args;
    DSC_ASSERT(call->piece.bytes > 0);
    return dsc_tile_buffers_write_back(call->buffers, call->slot, call->piece, err);
}

/* The update gets the sum in the buffer of the reductions. */
static dsc_status deliver_now(void *args, dsc_error *err)
{
    const sum_call *call = args;
    DSC_ASSERT(call->count > 0);
    DSC_ASSERT(call->buffers == &call->zero->store->buffers[DSC_PLANE_GRAD]); /* the update looks for the slot there */
    dsc_tile_buffers_lend(call->buffers, call->slot);
    dsc_speculative_update_deliver(call->zero, call->group, call->cursor.first, call->count, call->slot);
    return DSC_OK;
}

static dsc_status drain_now(void *args, dsc_error *err)
{
    const sum_call *call = args;
    if (call->buffers->swap != NULL)
        DSC_TRY(dsc_tile_buffers_drain(call->buffers, err));
    dsc_speculative_update_mark_published(call->zero);
    return DSC_OK;
}

static bool is_returned(const void *args)
{
    const sum_call *call = args;
    DSC_ASSERT(call->slot >= 0);
    return !dsc_tile_buffers_is_lent(call->buffers, call->slot) || dsc_event_passed(call->zero->speculative->ended);
}

/* An update that has ended before its step returns no more buffers: the update has failed, and so has the step. */
static const dsc_io_work_ops await_return_ops = {
    .io_class = DSC_IO_GRAD, .pause_ns = DSC_IO_SHORT_PAUSE_NS, .ignores_demands = true, .is_over = is_returned
};

static dsc_status acquire_sum_now(void *args, dsc_error *err)
{
    const sum_call *call = args;
    dsc_io_scheduler *io = &call->zero->store->io;
    DSC_ASSERT(call->piece.bytes > 0);
    DSC_TRY(dsc_io_scheduler_run(io, &await_return_ops, 0, call, err));
    dsc_tile_buffers_return(call->buffers, call->slot);
    DSC_TRY(dsc_tile_buffers_start(call->buffers, call->slot, call->piece, call->read, err));
    DSC_TRY(read_sums_ahead(call->zero, call->cursor, true, err));
    dsc_speculative_update_publish(call->zero);
    dsc_io_scheduler_set_waiting(io, DSC_IO_GRAD, true);
    const dsc_status status = dsc_tile_buffers_acquire(call->buffers, call->slot, err);
    dsc_io_scheduler_set_waiting(io, DSC_IO_GRAD, false);
    return status;
}

/* Sums of the following gradient parts are read ahead, and finished sums are written, until the next part. */
static dsc_status background_round(const void *args, bool yields, dsc_io_round *result, dsc_error *err)
{
    const sum_call *call = args;
    dsc_zero *zero = call->zero;
    bool idle = false;
    DSC_ASSERT(call->cursor.part >= 0);
    if (!yields)
        DSC_TRY(read_sums_ahead(zero, call->cursor, false, err));
    DSC_TRY(dsc_tile_buffers_is_idle(&zero->store->buffers[DSC_PLANE_GRAD], &idle, err));
    dsc_speculative_update_publish(zero);
    *result = idle && !yields ? DSC_IO_IDLE : DSC_IO_PENDING;
    return DSC_OK;
}

static const dsc_io_work_ops background_ops = { .io_class = DSC_IO_GRAD,
                                                .pause_ns = DSC_IO_PAUSE_NS,
                                                .round = background_round };

static dsc_status background_now(void *args, dsc_error *err)
{
    const sum_call *call = args;
    dsc_zero *zero = call->zero;
    DSC_ASSERT(call->cursor.part >= 0 && call->cursor.part < zero->parts.count);
    dsc_speculative_update_count_grad_part(zero, dsc_grad_part_last_of_run(zero, &zero->parts.part[call->cursor.part]),
                                           call->cursor.pass);
    return dsc_io_scheduler_run(&zero->store->io, &background_ops, call->ticket, call, err);
}

static dsc_status count_now(void *args, dsc_error *err)
{
    const sum_call *call = args;
    DSC_ASSERT(call->cursor.part >= 0 && call->cursor.part < call->zero->parts.count);
    dsc_speculative_update_count_grad_part(
        call->zero, dsc_grad_part_last_of_run(call->zero, &call->zero->parts.part[call->cursor.part]),
        call->cursor.pass);
    dsc_speculative_update_publish(call->zero);
    return DSC_OK;
}

dsc_status dsc_grad_tiles_keep(dsc_zero *zero, const dsc_sum_cursor *cursor, dsc_error *err)
{
    const sum_call call = { .zero = zero, .cursor = *cursor };
    DSC_ASSERT(cursor->part >= 0);
    DSC_ASSERT(cursor->pass >= 0 && cursor->pass < zero->pass_count);
    return dsc_host_call(zero->stream.out, count_now, &call, (int64_t)sizeof call, err);
}

dsc_status dsc_grad_tiles_wait(dsc_zero *zero, const dsc_sum_cursor *cursor, dsc_error *err)
{
    const sum_call call = { .zero = zero,
                            .ticket = dsc_io_scheduler_ticket(&zero->store->io, DSC_IO_GRAD),
                            .cursor = *cursor };
    DSC_ASSERT(cursor->pass >= 0 && cursor->pass < zero->pass_count);
    if (zero->store->buffers[DSC_PLANE_GRAD].swap == NULL)
        return DSC_OK;
    return dsc_host_call(zero->stream.out, background_now, &call, (int64_t)sizeof call, err);
}

static bool memory_is_returned(const void *args)
{
    const sum_call *call = args;
    DSC_ASSERT(call->zero->speculative->ended != NULL); /* only its tiles borrow memory */
    return dsc_borrowed_memory_is_returned(call->zero, call->group) || dsc_event_passed(call->zero->speculative->ended);
}

/* The update may wait for sums that this thread writes. */
static dsc_status write_behind_round(const void *args, bool yields, dsc_io_round *result, dsc_error *err)
{
    const sum_call *call = args;
    bool idle;
    DSC_ASSERT(call->group >= 0 && call->group < call->zero->o.layout->group_count);
    DSC_TRY(dsc_tile_buffers_is_idle(&call->zero->store->buffers[DSC_PLANE_GRAD], &idle, err));
    dsc_speculative_update_publish(call->zero);
    *result = DSC_IO_PENDING;
    return DSC_OK;
}

static const dsc_io_work_ops await_memory_ops = { .io_class = DSC_IO_GRAD,
                                                  .pause_ns = DSC_IO_SHORT_PAUSE_NS,
                                                  .ignores_demands = true,
                                                  .round = write_behind_round,
                                                  .is_over = memory_is_returned };

static dsc_status await_memory(void *args, dsc_error *err)
{
    const sum_call *call = args;
    return dsc_io_scheduler_run(&call->zero->store->io, &await_memory_ops, 0, call, err);
}

static dsc_status sum_from_file(dsc_zero *zero, const dsc_sum_cursor *cursor, bool overwrite, dsc_sum *sum,
                                dsc_error *err)
{
    dsc_tile_buffers *buffers = &zero->store->buffers[DSC_PLANE_GRAD];
    const sum_call call = { .buffers = buffers,
                            .slot = dsc_tile_buffers_next(buffers),
                            .read = !overwrite,
                            .piece = dsc_state_store_tile_piece(zero, sum->group, DSC_PLANE_GRAD, sum->first),
                            .zero = zero,
                            .cursor = *cursor };
    DSC_ASSERT(sum->count > 0);
    DSC_ASSERT(call.piece.bytes == sum->count * dsc_plane_bytes_each(zero, DSC_PLANE_GRAD));
    sum->slot = call.slot;
    sum->kept = buffers->slot[call.slot].buf;
    dsc_io_scheduler_demand(&zero->store->io, DSC_IO_GRAD);
    return dsc_host_call(zero->stream.out, acquire_sum_now, &call, (int64_t)sizeof call, err);
}

dsc_status dsc_grad_tiles_acquire(dsc_zero *zero, int32_t g, const dsc_sum_cursor *cursor, bool overwrite, dsc_sum *sum,
                                  dsc_error *err)
{
    const dsc_layout_group *group = &zero->o.layout->group[g];
    const dsc_group_state *state = &zero->group[g];
    const int64_t first = cursor->first;
    DSC_ASSERT(first >= 0 && first < group->slice);
    *sum = (dsc_sum){ .group = g, .first = first, .count = group->slice - first };
    if (state->grad != NULL) {
        const sum_call call = { .zero = zero, .group = g };
        sum->acc = state->grad + (group->slice * zero->o.rank - state->local_first + first);
        return state->speculative->borrowed_range >= 0
                   ? dsc_host_call(zero->stream.out, await_memory, &call, (int64_t)sizeof call, err)
                   : DSC_OK;
    }
    DSC_ASSERT(first % zero->store->tile_elements == 0); /* a tile of the file */
    sum->count = dsc_min_i64(zero->store->tile_elements, sum->count);
    if (dsc_in_swap(zero, g, DSC_PLANE_GRAD))
        DSC_TRY(sum_from_file(zero, cursor, overwrite, sum, err));
    else
        sum->kept = state->staging->sums + first * dsc_plane_bytes_each(zero, DSC_PLANE_GRAD);
    sum->acc = sum->kept;
    return dsc_grad_staging_passes(zero, g) ? dsc_grad_staging_acquire(zero, sum, overwrite, err) : DSC_OK;
}

dsc_status dsc_grad_tiles_write_back(dsc_zero *zero, const dsc_sum *sum, bool complete, dsc_error *err)
{
    const bool delivered = complete && zero->group[sum->group].speculative->sum_delivered;
    DSC_ASSERT(sum->count > 0);
    DSC_ASSERT(sum->first + sum->count <= zero->o.layout->group[sum->group].slice);
    if (zero->group[sum->group].grad != NULL)
        return DSC_OK;
    if (dsc_grad_staging_passes(zero, sum->group))
        DSC_TRY(dsc_grad_staging_write_back(zero, sum, complete, err));
    if (!dsc_in_swap(zero, sum->group, DSC_PLANE_GRAD))
        return DSC_OK;
    const sum_call call = { .buffers = &zero->store->buffers[DSC_PLANE_GRAD],
                            .slot = sum->slot,
                            .piece = dsc_state_store_piece(zero, sum->group, DSC_PLANE_GRAD, sum->first, sum->count),
                            .zero = zero,
                            .cursor = { .first = sum->first },
                            .group = sum->group,
                            .count = sum->count };
    return dsc_host_call(zero->stream.out, delivered ? deliver_now : write_back_now, &call, (int64_t)sizeof call, err);
}

dsc_status dsc_grad_tiles_release(dsc_zero *zero, const dsc_sum *sum, dsc_error *err)
{
    DSC_ASSERT(sum->count > 0);
    return dsc_grad_staging_passes(zero, sum->group) ? dsc_grad_staging_release(zero, sum, err) : DSC_OK;
}

dsc_status dsc_grad_tiles_drain(dsc_zero *zero, dsc_error *err)
{
    const sum_call call = { .zero = zero, .buffers = &zero->store->buffers[DSC_PLANE_GRAD] };
    if (call.buffers->swap == NULL && !dsc_speculative_update_is_used(zero))
        return DSC_OK;
    dsc_io_scheduler_demand(&zero->store->io, DSC_IO_GRAD);
    return dsc_host_call(zero->stream.out, drain_now, &call, (int64_t)sizeof call, err);
}
