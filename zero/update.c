/* update.c - the end of an optimizer step: norm, update of this rank's slices, parameters back to their holders.
 *
 * Every stage runs the same kernel over the same elements, so the bits agree. A stage only decides the range and the
 * gathers afterwards. At stage 0 every rank updates everything, after an all-gather of the sums.
 * SPDX-License-Identifier: Apache-2.0 */
#include "zero/core/internal.h"
#include "zero/core/tile.h"
#include "zero/core/tile_update.h"
#include "zero/fp8_gather.h"
#include "zero/gather.h"
#include "zero/hpz.h"
#include "zero/offload/speculative_memory.h"
#include "zero/offload/host_update.h"
#include "zero/offload/placement.h"
#include "zero/offload/speculative_update.h"
#include "zero/offload/state_store.h"
#include "zero/offload/update_tiles.h"
#include "zero/reduce.h"
#include "zero/squares.h"
#include "zero/zero.h"

#include <string.h>

dsc_status dsc_zero_sumsq(dsc_zero *zero, dsc_fixed_sum *sum, dsc_error *err)
{
    const int64_t bytes = (int64_t)sizeof *sum;
    dsc_fixed_sum *on_device = zero->buf.sum.ptr, *all = zero->buf.sums.ptr, *mine = &all[zero->o.rank];
    DSC_ASSERT(zero->state == DSC_ZERO_ACCUMULATING);
    DSC_ASSERT(!zero->more_follow); /* the last pass of the step is reduced */
    zero->state = DSC_ZERO_SUMMED;
    DSC_TRY(dsc_reduce_finish(zero, err));
    DSC_TRY(dsc_stream_sync(zero->stream.reduce, err)); /* a reduction that failed comes out here */
    for (int32_t i = 0; i < zero->optimizer_count; i++)
        if (zero->optimizer[i]->share_sums != NULL)
            DSC_TRY(zero->optimizer[i]->share_sums(zero, err));
    if (!zero->sum_started)
        DSC_TRY(dsc_fill_zero(zero->o.compute, on_device, bytes, err));
    zero->sum_started = false;
    for (int32_t g = 0; g < zero->o.layout->group_count; g++) {
        int64_t first, count;
        if (dsc_sum_is_squared_at_once(zero, g)) /* or frozen */
            continue;
        const float *x = dsc_zero_known_sums(zero, g, &first, &count);
        DSC_TRY(dsc_zero_add_squares(zero, zero->o.compute, g, x, first, count, err));
    }
    DSC_TRY(dsc_copy(zero->o.compute, mine, on_device, bytes, err));
    DSC_TRY(dsc_stream_sync(zero->o.compute, err));
    DSC_TRY(dsc_comm_all_gather(zero->o.host_comm, DSC_CHANNEL_CONTROL, all, mine, bytes, DSC_U8, NULL, err));
    memset(sum, 0, sizeof *sum);
    for (int32_t r = 0; r < zero->world_size; r++)
        dsc_fixed_sum_merge(sum, &all[r]);
    return DSC_OK;
}

/* No gather may still read this rank's parameters when they change. */
static dsc_status after_gathers(dsc_zero *zero, dsc_error *err)
{
    DSC_TRY(dsc_event_record(zero->event.idle, zero->stream.gather, err));
    return dsc_zero_after_exchange(zero, zero->stream.gather, zero->event.idle, err);
}

typedef struct group_call {
    dsc_zero *zero;
    const dsc_update_terms *terms;
    int32_t group;
    bool is_updated; /* by the speculative or the early update already */
} group_call;

static dsc_status update_group(void *args, dsc_error *err)
{
    const group_call *call = args;
    dsc_tile tile;
    DSC_ASSERT(call->group < call->zero->o.layout->group_count);
    if (call->is_updated)
        return dsc_update_tiles_updated(call->zero, err);
    do {
        if (dsc_io_scheduler_is_cancelled(&call->zero->store->io))
            return DSC_FAIL(err, DSC_ERR_CANCELLED, "", "the run has failed");
        DSC_TRY(dsc_update_tiles_update_next(call->zero, call->terms, &tile, err));
        DSC_ASSERT(tile.group == call->group);
    } while (!tile.last_of_group);
    return DSC_OK;
}

static dsc_status start_update(dsc_zero *zero, const dsc_update_terms *terms, int32_t g, bool is_updated,
                               dsc_error *err)
{
    DSC_ASSERT(!is_updated || zero->stream.update != NULL); /* a speculative update runs on that stream */
    DSC_ASSERT(g < zero->o.layout->group_count);
    group_call call = { zero, terms, g, is_updated };
    zero->group[g].gather.uploading = dsc_host_update_updates(zero, g);
    if (zero->stream.update == NULL) {
        DSC_TRY(update_group(&call, err));
        return dsc_host_update_publish(zero, g, err);
    }
    if (dsc_update_runs_late(zero))
        DSC_TRY(update_group(&call, err));
    else
        DSC_TRY(dsc_host_call(zero->stream.update, update_group, &call, (int64_t)sizeof call, err));
    return dsc_event_record(zero->group[g].gather.updated, zero->stream.update, err);
}

static bool has_update(const dsc_zero *zero, int32_t g)
{
    DSC_ASSERT(g < zero->o.layout->group_count);
    return zero->o.layout->group[g].trainable && zero->group[g].local_count > 0;
}

/* Whole parameters, where all ranks keep them. A gather waits for its update on this thread if the host is still at
 * work, so that such a gather is left to the next use. */
static dsc_status share_params(dsc_zero *zero, int32_t g, dsc_error *err)
{
    const bool shared = zero->o.stage > 0 && zero->group[g].param_whole && zero->world_size > 1;
    DSC_ASSERT(!shared || zero->o.layout->group[g].trainable);
    zero->group[g].gather.unshared = shared && zero->store->host.runs_behind && dsc_host_update_updates(zero, g);
    return shared && !zero->group[g].gather.unshared ? dsc_gather_params(zero, g, err) : DSC_OK;
}

/* The sums are complete on the compute stream, and the passes there have read the parameters. */
static dsc_status update_after_compute(dsc_zero *zero, dsc_error *err)
{
    return dsc_update_runs_late(zero) ? dsc_zero_after_compute(zero, zero->stream.update, err) : DSC_OK;
}

/* The reduce stream has passed its own exchanges of the step (dsc_zero_sumsq), so that its channel is free. */
static dsc_status gather_sums(dsc_zero *zero, int32_t g, dsc_error *err)
{
    const dsc_layout_group *group = &zero->o.layout->group[g];
    DSC_ASSERT(zero->o.stage == 0);
    dsc_comm_label_module(zero->o.comm, DSC_CHANNEL_REDUCE, group->module);
    DSC_TRY(dsc_comm_all_gather(zero->o.comm, DSC_CHANNEL_REDUCE, zero->group[g].grad, dsc_zero_own_sum(zero, g),
                                group->slice, DSC_F32, zero->o.compute, err));
    return update_after_compute(zero, err);
}

static dsc_status update_groups(dsc_zero *zero, const dsc_update_terms *terms, dsc_round round, dsc_error *err)
{
    DSC_ASSERT(round.first >= 0);
    DSC_ASSERT(round.end <= zero->o.layout->group_count);
    for (int32_t i = round.first; i < round.end; i++) {
        const int32_t g = zero->store->order[i];
        if (!has_update(zero, g) || dsc_update_tiles_yields_to_compute(zero, g))
            continue;
        if (zero->o.stage == 0 && zero->world_size > 1 && !zero->sums_are_own && !zero->sums_are_shared)
            DSC_TRY(gather_sums(zero, g, err));
        DSC_TRY(start_update(zero, terms, g, i < zero->store->updated_count, err));
        DSC_TRY(share_params(zero, g, err));
    }
    return DSC_OK;
}

/* The update's thread is at work on the others, and on its order of groups. */
static dsc_status update_for_compute(dsc_zero *zero, const dsc_update_terms *terms, dsc_error *err)
{
    for (int32_t g = 0; g < zero->o.layout->group_count; g++) {
        dsc_tile tile;
        if (!has_update(zero, g) || !dsc_update_tiles_yields_to_compute(zero, g))
            continue;
        DSC_TRY(dsc_update_tiles_for_compute(zero, g, &tile, err));
        DSC_ASSERT(tile.group == g);
        DSC_ASSERT(tile.count == zero->group[g].local_count);
        DSC_TRY(dsc_update_tile(zero, terms, &tile, err));
        if (!zero->store->host.runs_behind)
            DSC_TRY(dsc_event_record(zero->group[g].gather.updated, zero->o.compute, err));
        DSC_TRY(share_params(zero, g, err));
    }
    return DSC_OK;
}

/* The passes that read tiles, which then come once more. */
static dsc_status walk_tiles(dsc_zero *zero, const dsc_update_terms *terms, dsc_error *err)
{
    DSC_ASSERT(zero->optimizer_count <= DSC_ZERO_PASSES_MAX);
    DSC_TRY(dsc_update_tiles_begin(zero, err));
    for (int32_t i = 0; i < zero->optimizer_count; i++) {
        if (zero->optimizer[i]->walk == NULL)
            continue;
        DSC_TRY(zero->optimizer[i]->walk(zero, terms, err));
        DSC_TRY(dsc_update_tiles_seek(zero, 0, zero->o.layout->group_count, false, err));
    }
    return DSC_OK;
}

/* `complete`: a pass has made the whole update. */
static dsc_status before_update(dsc_zero *zero, dsc_update_terms *terms, bool *complete, dsc_error *err)
{
    *complete = false;
    for (int32_t i = 0; i < zero->optimizer_count && !*complete; i++)
        if (zero->optimizer[i]->before_update != NULL)
            DSC_TRY(zero->optimizer[i]->before_update(zero, terms, complete, err));
    DSC_ASSERT(!*complete || zero->sums_are_own); /* ranks with a common sum update it together */
    return DSC_OK;
}

/* Round after round of the pass that has rounds; all groups are one round without it. */
static dsc_status update_rounds(dsc_zero *zero, const dsc_update_terms *terms, dsc_error *err)
{
    for (int32_t i = 0; i < zero->optimizer_count; i++) {
        const dsc_zero_pass_ops *pass = zero->optimizer[i];
        if (pass->round_count == NULL)
            continue;
        int32_t next = 0; /* each group is in one round */
        for (int32_t r = 0; r < pass->round_count(zero); r++) {
            const dsc_round round = pass->round(zero, r);
            DSC_ASSERT(round.first == next);
            DSC_ASSERT(round.end > round.first);
            next = round.end;
            DSC_TRY(pass->before_round(zero, terms, r, err));
            DSC_TRY(update_groups(zero, terms, round, err));
        }
        DSC_ASSERT(next == zero->o.layout->group_count);
        return DSC_OK;
    }
    return update_groups(zero, terms, zero->first_round, err);
}

dsc_status dsc_zero_update(dsc_zero *zero, const dsc_update_scalars *scalars, int32_t class_count, int64_t update,
                           dsc_error *err)
{
    dsc_update_terms terms = { 0 };
    bool complete;
    DSC_ASSERT(!zero->gathers.next_pass_prefetched);
    DSC_ASSERT(update >= 1);
    DSC_ASSERT(zero->state == DSC_ZERO_SUMMED);
    DSC_ASSERT(!zero->sum_started); /* dsc_zero_sumsq has read all sums */
    zero->state = DSC_ZERO_IDLE;
    dsc_update_terms_fill(scalars, class_count, update, &terms);
    DSC_TRY(dsc_speculative_update_settle(zero, &terms, err));
    DSC_TRY(dsc_speculative_memory_settle(zero, &terms, err));
    DSC_TRY(after_gathers(zero, err));
    DSC_TRY(before_update(zero, &terms, &complete, err));
    if (complete)
        return DSC_OK;
    zero->update_terms = terms;
    DSC_TRY(walk_tiles(zero, &zero->update_terms, err));
    dsc_hpz_forget(zero, false);
    dsc_fp8_gather_forget(zero, false);
    DSC_TRY(update_after_compute(zero, err));
    DSC_TRY(update_rounds(zero, &zero->update_terms, err));
    if (zero->stream.update != NULL)
        DSC_TRY(dsc_event_record(zero->event.updated, zero->stream.update, err));
    DSC_TRY(dsc_update_tiles_end(zero, err));
    DSC_TRY(dsc_update_tiles_wait(zero, false, err));
    return update_for_compute(zero, &zero->update_terms, err);
}

dsc_status dsc_zero_skip(dsc_zero *zero, dsc_error *err)
{
    zero->state = DSC_ZERO_IDLE;
    DSC_TRY(dsc_speculative_memory_drop(zero, err));
    return dsc_speculative_update_drop(zero, err);
}

void dsc_zero_expect(dsc_zero *zero, const dsc_update_scalars *scalars, int32_t class_count, int64_t update,
                     bool last_word)
{
    DSC_ASSERT(class_count <= DSC_UPDATE_CLASSES_MAX);
    dsc_speculative_update_expect(zero, scalars, class_count, update, last_word);
}

void dsc_zero_speculative_stats_get(const dsc_zero *zero, dsc_zero_speculative_stats *out)
{
    const dsc_speculative_memory *early = zero->early;
    *out = (dsc_zero_speculative_stats) { .updated = atomic_load(&zero->speculative->updated_elements) +
                                                     early->updated_elements,
                                          .kept = zero->speculative->kept_elements + early->kept_elements };
}
