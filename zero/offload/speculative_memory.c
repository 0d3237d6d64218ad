/* speculative_memory.c - see speculative_memory.h. SPDX-License-Identifier: Apache-2.0 */
#include "zero/offload/speculative_memory.h"

#include <string.h>

#include "zero/core/internal.h"
#include "zero/core/tile.h"
#include "zero/offload/host_update.h"
#include "zero/offload/placement.h"
#include "zero/offload/speculative_update.h"
#include "zero/offload/state_store.h"
#include "zero/offload/update_tiles.h"

enum { NEEDS = 2 };
static void list_needs(dsc_zero *zero, dsc_need out[NEEDS])
{
    dsc_speculative_memory *early = zero->early;
    int64_t moments = 0;
    for (int32_t i = 0; i < early->count; i++)
        moments += dsc_moments_bytes(zero, early->group[i], zero->group[early->group[i]].local_count);
    DSC_ASSERT(moments >= 0);
    out[0] = (dsc_need) { &early->master_buf, DSC_TAG_MASTER, DSC_TIER_PINNED, early->elements * 4, DSC_NEED_DEVICE };
    out[1] = (dsc_need) { &early->moment_buf, DSC_TAG_MOMENT, DSC_TIER_PINNED, moments, DSC_NEED_DEVICE };
}

static dsc_need list_need(dsc_zero *zero)
{
    return (dsc_need) { &zero->early->group, DSC_TAG_CONTROL, DSC_TIER_HOST,
                        zero->o.layout->group_count * (int64_t)sizeof *zero->early->group, DSC_NEED_SMALL };
}

/* In the order in which the reductions complete sums. */
static void list_groups(dsc_zero *zero)
{
    dsc_speculative_memory *early = zero->early;
    int64_t covered = 0;
    for (int32_t g = 0; g < zero->o.layout->group_count; g++)
        covered += dsc_speculative_memory_covers(zero, g) ? zero->group[g].local_count : 0;
    const int64_t most = (int64_t)(zero->o.swap.early_share * (double)covered);
    for (int32_t i = 0; i < zero->parts.count; i++) {
        const dsc_grad_part *part = &zero->parts.part[i];
        dsc_group_state *state = &zero->group[part->group];
        if (!dsc_grad_part_is_last(zero, part) || !dsc_speculative_memory_covers(zero, part->group))
            continue;
        if (early->elements + state->local_count > most)
            break; /* a later sum would only hold the update's thread up */
        DSC_ASSERT(!state->early->is_listed);
        state->early->is_listed = true;
        early->group[early->count++] = part->group;
        early->elements += state->local_count;
    }
    DSC_ASSERT(early->elements <= covered);
}

dsc_status dsc_speculative_memory_plan(dsc_zero *zero, dsc_error *err)
{
    const dsc_need list = list_need(zero);
    dsc_need needs[NEEDS];
    if (!dsc_speculative_memory_is_used(zero))
        return DSC_OK;
    DSC_ASSERT(zero->early->count == 0);
    DSC_TRY(dsc_needs_plan_and_open(&zero->needs, &list, 1, err));
    list_groups(zero);
    list_needs(zero, needs);
    dsc_needs_plan(&zero->needs, needs, NEEDS);
    return DSC_OK;
}

dsc_status dsc_speculative_memory_open(dsc_zero *zero, dsc_error *err)
{
    dsc_speculative_memory *early = zero->early;
    dsc_need needs[NEEDS];
    if (early->count == 0)
        return DSC_OK;
    list_needs(zero, needs);
    DSC_TRY(dsc_needs_open(&zero->needs, needs, NEEDS, err));
    zero->speculative->last_terms_matched = true;
    DSC_TRY(dsc_stream_open(zero->o.device, DSC_STREAM_ASYNC, "early in", &early->in, err));
    float *master = early->master_buf.ptr;
    char *moment = early->moment_buf.ptr;
    for (int32_t i = 0; i < early->count; i++) {
        dsc_group_state *state = &zero->group[early->group[i]];
        state->early->master = master;
        master += state->local_count;
        for (int32_t k = 0; k < dsc_moment_count(zero, early->group[i]); k++) {
            state->early->moment[k] = moment;
            moment += state->local_count * dsc_plane_bytes_each(zero, DSC_PLANE_MOMENT1);
        }
    }
    DSC_ASSERT((char *)master == (char *)early->master_buf.ptr + early->master_buf.bytes);
    DSC_ASSERT(moment == (char *)early->moment_buf.ptr + early->moment_buf.bytes);
    return DSC_OK;
}

void dsc_speculative_memory_close(dsc_zero *zero)
{
    const dsc_need list = list_need(zero);
    dsc_need needs[NEEDS];
    if (zero->early->group == NULL)
        return;
    dsc_stream_close(&zero->early->in);
    list_needs(zero, needs);
    dsc_needs_close(&zero->needs, needs, NEEDS);
    dsc_needs_close(&zero->needs, &list, 1);
}

void dsc_speculative_memory_begin(dsc_zero *zero)
{
    dsc_speculative_memory *early = zero->early;
    early->begun = early->count > 0 && zero->speculative->last_terms_matched;
    early->kept = false;
    early->started = 0;
    early->updated_elements = 0;
    DSC_ASSERT(!early->begun || zero->store->host.runs_behind);
    if (early->begun)
        dsc_update_tiles_list_first(zero, early->group, early->count);
}

static void exchange_places(dsc_group_state *state)
{
    float *master = state->master;
    DSC_ASSERT(state->early->is_listed);
    state->master = state->early->master;
    state->early->master = master;
    for (int k = 0; k < DSC_UPDATE_STATES_MAX; k++) {
        char *moment = state->moment[k];
        state->moment[k] = state->early->moment[k];
        state->early->moment[k] = moment;
    }
}

typedef struct early_call {
    dsc_zero *zero;
    int32_t index; /* in the list */
} early_call;

/* On the update's thread. Readers of the group's states wait for that thread. */
static dsc_status update_now(void *args, dsc_error *err)
{
    const early_call *call = args;
    dsc_zero *zero = call->zero;
    dsc_group_state *state = &zero->group[zero->early->group[call->index]];
    dsc_tile tile;
    DSC_ASSERT(state->early->is_listed);
    dsc_update_tiles_select(zero, call->index);
    state->early->writes_other = true;
    do
        DSC_TRY(dsc_update_tiles_update_next(zero, &zero->speculative->expected, &tile, err));
    while (!tile.last_of_group);
    state->early->writes_other = false;
    exchange_places(state);
    return DSC_OK;
}

dsc_status dsc_speculative_memory_start(dsc_zero *zero, int32_t g, dsc_error *err)
{
    dsc_speculative_memory *early = zero->early;
    if (!early->begun || !zero->group[g].early->is_listed)
        return DSC_OK;
    const early_call call = { zero, early->started };
    DSC_ASSERT(early->started < early->count);
    DSC_ASSERT(early->group[early->started] == g); /* sums are complete in the order of the list */
    early->started++;
    early->updated_elements += zero->group[g].local_count;
    return dsc_host_call(zero->stream.update, update_now, &call, (int64_t)sizeof call, err);
}

static dsc_status undo(dsc_zero *zero, dsc_error *err)
{
    DSC_ASSERT(!zero->early->begun && !zero->early->kept);
    if (zero->early->started > 0)
        DSC_TRY(dsc_stream_sync(zero->early->in, err));
    for (int32_t i = 0; i < zero->early->started; i++) {
        exchange_places(&zero->group[zero->early->group[i]]);
        DSC_TRY(dsc_host_update_round_params(zero, zero->early->group[i], err));
    }
    return DSC_OK;
}

dsc_status dsc_speculative_memory_settle(dsc_zero *zero, const dsc_update_terms *terms, dsc_error *err)
{
    dsc_speculative_memory *early = zero->early;
    if (!early->begun)
        return DSC_OK;
    DSC_TRY(dsc_stream_sync(zero->stream.update, err));
    DSC_ASSERT(early->started == early->count); /* the sums of the step are complete */
    early->begun = false;
    early->kept = memcmp(&zero->speculative->expected, terms, sizeof *terms) == 0;
    if (!early->kept)
        return undo(zero, err);
    early->kept_elements += early->updated_elements;
    return DSC_OK;
}

dsc_status dsc_speculative_memory_drop(dsc_zero *zero, dsc_error *err)
{
    if (!zero->early->begun)
        return DSC_OK;
    DSC_TRY(dsc_stream_sync(zero->stream.update, err));
    zero->early->begun = zero->early->kept = false;
    return undo(zero, err);
}
