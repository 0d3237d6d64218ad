/* speculative_update.c - an update in files that begins under the last backward pass, before its norm is known.
 *
 * The result of an update depends on the sum, the states and the update's scalars. The scalars only depend on
 * the norm if something is clipped, or if there is no update at all. So a step may foresee them. Groups whose
 * parameters and states all are in files have two slots there. An update may begin once a group's sum is complete, in
 * its file or in memory. Tiles are then read from the one slot, and the results are written to the other, in the order
 * in which the reductions end. If the update then gets exactly these scalars, it continues from there, and all groups'
 * slots are exchanged when it begins. Otherwise the other slot is free again; no other reader uses it before.
 *
 * Without clipping only a skipped step can bring other scalars, and a skipped step needs no sums. So the sums go to no
 * file: the reductions lend the update their buffers, and wait for a buffer when all of them are lent.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/clock.h"
#include "zero/core/internal.h"
#include "zero/core/tile.h"
#include "zero/core/tile_update.h"
#include "zero/offload/borrowed_memory.h"
#include "zero/offload/placement.h"
#include "zero/offload/speculative_update.h"
#include "zero/offload/state_store.h"
#include "zero/offload/update_tiles.h"

static dsc_need group_need(dsc_zero *zero)
{
    return (dsc_need) { &zero->speculative->group, DSC_TAG_CONTROL, DSC_TIER_HOST,
                        zero->o.layout->group_count * (int64_t)sizeof *zero->speculative->group, DSC_NEED_SMALL };
}

dsc_status dsc_speculative_update_open(dsc_zero *zero, dsc_error *err)
{
    dsc_speculative_update *update = zero->speculative;
    if (!dsc_speculative_update_is_used(zero))
        return DSC_OK;
    update->last_terms_matched = true;
    DSC_TRY(dsc_event_open(zero->o.device, &update->ended, err));
    update->target = 1;
    const dsc_need groups = group_need(zero);
    DSC_TRY(dsc_needs_plan_and_open(&zero->needs, &groups, 1, err));
    for (int32_t i = 0; i < zero->parts.count; i++)
        if (dsc_grad_part_is_last(zero, &zero->parts.part[i]) &&
            dsc_speculative_update_covers(zero, zero->parts.part[i].group))
            update->group[update->count++] = zero->parts.part[i].group;
    DSC_ASSERT(update->count <= zero->o.layout->group_count);
    return DSC_OK;
}

void dsc_speculative_update_close(dsc_zero *zero)
{
    dsc_event_close(&zero->speculative->ended);
    const dsc_need groups = group_need(zero);
    dsc_needs_close(&zero->needs, &groups, 1);
}

void dsc_speculative_update_expect(dsc_zero *zero, const dsc_update_scalars *scalars, int32_t class_count,
                                   int64_t update, bool last_word)
{
    zero->speculative->terms_are_final = last_word && zero->o.swap.unclipped;
    DSC_ASSERT(class_count >= 1);
    DSC_ASSERT(update >= 1);
    memset(&zero->speculative->expected, 0, sizeof zero->speculative->expected);
    dsc_update_terms_fill(scalars, class_count, update, &zero->speculative->expected);
}

/* ---- sums ---- */

void dsc_speculative_update_count_grad_part(dsc_zero *zero, const dsc_grad_part *part, int64_t pass)
{
    dsc_speculative_update *update = zero->speculative;
    DSC_ASSERT(pass >= 0 && pass < zero->pass_count);
    if (pass == zero->pass_count - 1 && update->complete < update->count && dsc_grad_part_is_last(zero, part) &&
        part->group == update->group[update->complete])
        update->complete++;
}

void dsc_speculative_update_publish(dsc_zero *zero)
{
    dsc_speculative_update *update = zero->speculative;
    DSC_ASSERT(update->published <= update->complete && update->complete <= update->count);
    for (; update->published < update->complete; update->published++) {
        const int32_t g = update->group[update->published];
        if (dsc_in_swap(zero, g, DSC_PLANE_GRAD) &&
            !dsc_tile_buffers_is_written(
                &zero->store->buffers[DSC_PLANE_GRAD],
                dsc_state_store_piece(zero, g, DSC_PLANE_GRAD, 0, zero->o.layout->group[g].slice)))
            return;
        atomic_store(&zero->group[g].speculative->ready_elements, zero->o.layout->group[g].slice);
    }
}

void dsc_speculative_update_mark_published(dsc_zero *zero)
{
    dsc_speculative_update_publish(zero);
    DSC_ASSERT(zero->speculative->published == zero->speculative->complete); /* the files are drained */
    zero->speculative->complete = zero->speculative->published = 0;
}

void dsc_speculative_update_deliver(dsc_zero *zero, int32_t g, int64_t first, int64_t count, int32_t slot)
{
    dsc_group_state *state = &zero->group[g];
    DSC_ASSERT(first >= 0 && first + count <= state->local_count);
    DSC_ASSERT(slot >= 0 && slot < zero->store->buffers[DSC_PLANE_GRAD].slot_count);
    if (first == 0)
        state->speculative->first_delivered_slot = slot;
    atomic_store(&state->speculative->ready_elements, first + count);
}

/* Before the reductions of a step's last pass. */
static void choose_sums(dsc_zero *zero)
{
    dsc_speculative_update *update = zero->speculative;
    DSC_ASSERT(update->count == 0 || update->target <= update->count);
    for (int32_t i = 0; i < update->count; i++) {
        dsc_group_state *state = &zero->group[update->group[i]];
        atomic_store(&state->speculative->ready_elements, 0);
        state->speculative->sum_delivered = update->begun && update->terms_are_final && i < update->target &&
                                            state->sums.last == NULL &&
                                            dsc_speculative_update_covers_sum(zero, update->group[i]);
    }
}

/* ---- tiles ---- */

typedef struct speculative_call {
    dsc_zero *zero;
    long long ticket;
} speculative_call;

static dsc_status update_tile(dsc_zero *zero, dsc_error *err)
{
    dsc_tile tile;
    if (zero->speculative->first_ns == 0)
        zero->speculative->first_ns = dsc_clock_ns();
    DSC_TRY(dsc_update_tiles_update_next(zero, &zero->speculative->expected, &tile, err));
    DSC_ASSERT(tile.count > 0);
    atomic_fetch_add(&zero->speculative->updated_elements, tile.count);
    return DSC_OK;
}

/* The reductions may wait for the update's buffers, so an update with firm terms continues under a waiting caller. */
static bool is_stopped(const void *args)
{
    const speculative_call *call = args;
    const dsc_speculative_update *speculative = call->zero->speculative;
    return !speculative->terms_are_final && atomic_load(&speculative->stop_requested);
}

/* No request is in flight, and no sum is complete. */
static void count_pause(const void *args, int64_t ns)
{
    const speculative_call *call = args;
    dsc_speculative_update *speculative = call->zero->speculative;
    DSC_ASSERT(ns >= 0);
    if (speculative->first_ns == 0)
        return;
    speculative->idle_ns += ns;
    speculative->late_idle_ns += dsc_update_tiles_updated_groups(call->zero) >= speculative->target ? ns : 0;
}

/* The norm comes after the parameters of the passes and after all sums, so tiles yield to both. */
static dsc_status tile_round(const void *args, bool yields, dsc_io_round *result, dsc_error *err)
{
    const speculative_call *call = args;
    bool idle;
    DSC_ASSERT(!call->zero->store->exchanged); /* S3: the results go to the second position */
    DSC_TRY(dsc_update_tiles_continue(call->zero, !yields, true, &idle, err));
    dsc_borrowed_memory_publish(call->zero);
    *result = DSC_IO_PENDING;
    if (yields || !dsc_update_tiles_has_next(call->zero))
        return DSC_OK;
    *result = DSC_IO_WORKED;
    return update_tile(call->zero, err);
}

static const dsc_io_work_ops tile_ops = { .io_class = DSC_IO_STATE,
                                          .pause_ns = DSC_IO_PAUSE_NS,
                                          .round = tile_round,
                                          .is_over = is_stopped,
                                          .after_pause = count_pause };

static dsc_status update_now(void *args, dsc_error *err)
{
    const speculative_call *call = args;
    dsc_zero *zero = call->zero;
    DSC_ASSERT(zero->speculative->target >= 1 && zero->speculative->target <= zero->speculative->count);
    dsc_update_tiles_begin_speculative(zero, zero->speculative->group, zero->speculative->target);
    DSC_TRY(dsc_borrowed_memory_begin(zero, zero->speculative->group, zero->speculative->target, err));
    DSC_TRY(dsc_io_scheduler_run(&zero->store->io, &tile_ops, call->ticket, call, err));
    return dsc_borrowed_memory_end(zero, err);
}

/* With valid terms the update aims at all groups. A later sum of a file is not passed on directly, but written and read
 * again; compute, which does not wait for it now, would wait under the next pass. For sums in memory another order
 * would gain nothing. */
static void target_all(dsc_zero *zero)
{
    dsc_speculative_update *update = zero->speculative;
    DSC_ASSERT(!update->begun || update->target <= update->count);
    if (update->begun && update->terms_are_final && zero->o.sum_dtype == DSC_F32)
        update->target = update->count;
}

dsc_status dsc_speculative_update_begin(dsc_zero *zero, dsc_error *err)
{
    dsc_speculative_update *update = zero->speculative;
    const speculative_call call = { zero, dsc_io_scheduler_ticket(&zero->store->io, DSC_IO_STATE) };
    update->begun = update->count > 0 && update->last_terms_matched;
    target_all(zero);
    choose_sums(zero);
    if (!update->begun)
        return dsc_update_tiles_wait(zero, true, err);
    DSC_ASSERT(zero->stream.update != NULL);
    DSC_ASSERT(update->target >= 1 && update->target <= update->count);
    DSC_TRY(dsc_update_tiles_end_lending(zero, err));
    update->first_ns = update->idle_ns = update->late_idle_ns = 0;
    atomic_store(&update->updated_elements, 0);
    atomic_store(&update->stop_requested, false);
    dsc_borrowed_memory_lend(zero);
    DSC_TRY(dsc_host_call(zero->stream.update, update_now, &call, (int64_t)sizeof call, err));
    return dsc_event_record(update->ended, zero->stream.update, err);
}

/* Its thread has nothing to do. */
static dsc_status stop(dsc_zero *zero, dsc_error *err)
{
    dsc_io_scheduler_demand(&zero->store->io, DSC_IO_STATE);
    return zero->stream.update != NULL ? dsc_stream_sync(zero->stream.update, err) : DSC_OK;
}

/* Groups of the target that were not updated come before the groups that the next pass needs first. If all groups of
 * the target were updated long before the norm, there was time for more groups. */
static void adapt_target(dsc_speculative_update *update, int32_t updated)
{
    DSC_ASSERT(updated >= 0);
    DSC_ASSERT(update->idle_ns >= 0 && update->late_idle_ns <= update->idle_ns);
    const int64_t worked_ns = dsc_max_i64(1, dsc_clock_ns() - update->first_ns - update->idle_ns);
    const int64_t more = updated < update->target ? 0 : update->late_idle_ns * updated / worked_ns;
    update->target = (int32_t)dsc_max_i64(1, dsc_min_i64(update->count, updated + more));
}

dsc_status dsc_speculative_update_settle(dsc_zero *zero, const dsc_update_terms *terms, dsc_error *err)
{
    dsc_speculative_update *update = zero->speculative;
    DSC_TRY(stop(zero, err));
    update->last_terms_matched = memcmp(&update->expected, terms, sizeof *terms) == 0;
    update->kept = update->begun && update->last_terms_matched;
    update->begun = false;
    if (!update->kept)
        return DSC_OK;
    DSC_ASSERT(!zero->store->exchanged); /* dsc_update_tiles_begin comes next */
    update->kept_elements += atomic_load(&update->updated_elements);
    adapt_target(update, dsc_update_tiles_updated_groups(zero));
    return DSC_OK;
}

dsc_status dsc_speculative_update_drop(dsc_zero *zero, dsc_error *err)
{
    dsc_speculative_update *update = zero->speculative;
    update->last_terms_matched = update->begun = false;
    DSC_TRY(stop(zero, err));
    for (int32_t i = 0; i < zero->store->buffers[DSC_PLANE_GRAD].slot_count; i++)
        dsc_tile_buffers_return(&zero->store->buffers[DSC_PLANE_GRAD], i);
    return dsc_tile_buffers_discard(&zero->store->update_sums, err);
}

/* Weights that a recipe makes of a sum that is not finite are not finite either, but for Lion's. */
static dsc_status view_updated(dsc_zero *zero, int32_t g, int64_t first, int64_t *count, const float **x,
                               dsc_error *err)
{
    const dsc_plane plane = zero->o.compute_dtype == DSC_F32 ? DSC_PLANE_PARAM : DSC_PLANE_MASTER;
    dsc_group_state *state = &zero->group[g];
    const int64_t at = state->tiers.at[plane];
    DSC_ASSERT(state->tiers.next_at[plane] >= 0);
    void *weights;
    DSC_TRY(dsc_update_tiles_drain(zero, err));
    state->tiers.at[plane] = state->tiers.next_at[plane];
    const dsc_status status = dsc_state_store_view(zero, g, plane, first, count, false, &weights, err);
    state->tiers.at[plane] = at;
    *x = weights;
    return status;
}

dsc_status dsc_speculative_update_view(dsc_zero *zero, int32_t g, int64_t first, int64_t *count, const float **x,
                                       dsc_error *err)
{
    DSC_ASSERT(first >= 0 && first < zero->o.layout->group[g].slice);
    *count = dsc_min_i64(zero->store->tile_elements, zero->o.layout->group[g].slice - first);
    if (dsc_update_tiles_is_updated(zero, g, first))
        return view_updated(zero, g, first, count, x, err);
    *x = dsc_update_tiles_direct_sum(zero, g, first);
    return DSC_OK;
}
