/* update_tiles.c - tiles of an update, one after another: later tiles are read ahead, earlier tiles are written.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "zero/core/internal.h"
#include "zero/core/tile.h"
#include "zero/core/tile_update.h"
#include "zero/offload/speculative_memory.h"
#include "zero/offload/grad_staging.h"
#include "zero/offload/host_update.h"
#include "zero/offload/param_prefetch.h"
#include "zero/offload/placement.h"
#include "zero/offload/speculative_update.h"
#include "zero/offload/state_store.h"
#include "zero/offload/update_tiles.h"

/* The update reads or writes the plane in a file. */
static bool updated_from_swap(const dsc_zero *zero, int32_t g, dsc_plane plane)
{
    const dsc_group_state *state = &zero->group[g];
    DSC_ASSERT(plane >= 0 && plane < DSC_PLANE_COUNT);
    return dsc_in_swap(zero, g, plane) &&
           !(plane == DSC_PLANE_GRAD && (state->sums.last != NULL || state->speculative->sum_delivered));
}

static bool passes_in_tiles(const dsc_zero *zero, int32_t g)
{
    return dsc_any_in_swap(zero, g) || dsc_host_update_updates(zero, g);
}

bool dsc_update_tiles_yields_to_compute(const dsc_zero *zero, int32_t g)
{
    DSC_ASSERT(g >= 0 && g < zero->o.layout->group_count);
    if (zero->store->host.runs_behind)
        return !dsc_host_update_updates(zero, g);
    return dsc_state_store_updates_behind(zero) && !dsc_any_in_swap(zero, g) &&
           dsc_recipes[zero->o.recipe].needs == DSC_NEEDS_NOTHING;
}

/* Until the norm is known these groups are in the order like all others. A speculative update ends at the first group
 * whose sum is not published, and does not continue after it. */
static bool is_passed_over(const dsc_zero *zero, int32_t g)
{
    return (zero->store->exchanged || zero->store->host.runs_behind) && dsc_update_tiles_yields_to_compute(zero, g);
}

/* The tile at the cursor, which moves to the next tile; false: there is none. */
static bool step_cursor(const dsc_zero *zero, dsc_state_store_cursor *cursor, dsc_tile *tile)
{
    const dsc_layout *layout = zero->o.layout;
    DSC_ASSERT(cursor->index >= 0 && cursor->end <= layout->group_count);
    DSC_ASSERT(cursor->done >= 0);
    for (; cursor->index < cursor->end; cursor->index++, cursor->done = 0) {
        const int32_t g = zero->store->order[cursor->index];
        if (layout->group[g].trainable && cursor->done < zero->group[g].local_count &&
            (!cursor->matrices || layout->group[g].matrices) && !is_passed_over(zero, g))
            break;
    }
    if (cursor->index == cursor->end)
        return false;
    const int32_t g = zero->store->order[cursor->index];
    const dsc_group_state *state = &zero->group[g];
    const int64_t left = state->local_count - cursor->done;
    *tile = (dsc_tile) { .group = g,
                         .first = state->local_first + cursor->done,
                         .count = passes_in_tiles(zero, g) ? dsc_min_i64(left, zero->store->tile_elements) : left,
                         .stream = zero->store->update_compute };
    DSC_ASSERT(tile->count > 0);
    cursor->done += tile->count;
    DSC_ASSERT(cursor->done <= state->local_count);
    tile->last_of_group = cursor->done == state->local_count;
    return true;
}

/* The slot in which the reductions have delivered a tile of sums to the update. */
static int32_t delivered_slot(const dsc_zero *zero, int32_t g, int64_t at)
{
    const int64_t tile = at / zero->store->tile_elements;
    DSC_ASSERT(at >= 0 && at < zero->group[g].local_count);
    DSC_ASSERT(zero->store->buffers[DSC_PLANE_GRAD].slot_count > 0);
    return (int32_t)((zero->group[g].speculative->first_delivered_slot + tile) %
                     zero->store->buffers[DSC_PLANE_GRAD].slot_count);
}

float *dsc_update_tiles_direct_sum(const dsc_zero *zero, int32_t g, int64_t at)
{
    DSC_ASSERT(at % zero->store->tile_elements == 0); /* a tile begins at the start of its slot */
    return zero->store->buffers[DSC_PLANE_GRAD].slot[delivered_slot(zero, g, at)].buf;
}

/* The address of an element's plane in memory; `at` counts from the first element that this rank updates. */
static void *in_memory(const dsc_zero *zero, int32_t g, dsc_plane plane, int64_t at)
{
    const dsc_group_state *state = &zero->group[g];
    DSC_ASSERT(at >= 0 && at < state->local_count);
    switch (plane) {
    case DSC_PLANE_PARAM:
        return state->param + ((state->param_whole ? state->local_first : 0) + at) * zero->param_bytes_each;
    case DSC_PLANE_MASTER: return state->master + at;
    case DSC_PLANE_MOMENT1: case DSC_PLANE_MOMENT2: case DSC_PLANE_MOMENT3:
        return state->moment[plane - DSC_PLANE_MOMENT1] + at * dsc_plane_bytes_each(zero, plane);
    case DSC_PLANE_GRAD:
        if (state->sums.last != NULL)
            return state->sums.last + at;
        if (state->speculative->sum_delivered)
            return dsc_update_tiles_direct_sum(zero, g, at);
        return state->grad != NULL ? (void *)(state->grad + at)
                                   : state->staging->sums + at * dsc_plane_bytes_each(zero, plane);
    case DSC_PLANE_COUNT: break;
    }
    DSC_ASSERT(false);
    return NULL;
}

static bool is_moment(dsc_plane plane) { return plane >= DSC_PLANE_MOMENT1 && plane <= DSC_PLANE_MOMENT3; }

/* A plane of a file, unless it passes through the slots of the host update. */
static bool passes_tile_buffers(const dsc_zero *zero, int32_t g, dsc_plane plane)
{
    return updated_from_swap(zero, g, plane) && !dsc_host_update_brings(zero, g, plane);
}

/* Position in the file of a tile's plane: the data that the update reads, or its result. */
static dsc_piece tile_of_plane(const dsc_zero *zero, const dsc_tile *tile, dsc_plane plane, bool is_result)
{
    const dsc_group_state *state = &zero->group[tile->group];
    const int64_t each = dsc_plane_bytes_each(zero, plane);
    const int64_t at = is_result == zero->store->exchanged ? state->tiers.at[plane] : state->tiers.next_at[plane];
    DSC_ASSERT(at >= 0);
    DSC_ASSERT(tile->count > 0 && tile->first + tile->count <= state->local_first + state->local_count);
    return (dsc_piece) { at + (tile->first - state->local_first) * each, tile->count * each };
}

/* The memory of a tile's plane. If it passes through tile buffers, the transfer has begun. */
static dsc_status start_plane(dsc_zero *zero, dsc_tile *tile, dsc_plane plane, void **ptr, dsc_error *err)
{
    const int64_t at = tile->first - zero->group[tile->group].local_first;
    *ptr = NULL;
    DSC_ASSERT(tile->count > 0);
    if (plane == DSC_PLANE_MASTER && zero->o.compute_dtype == DSC_F32)
        return DSC_OK; /* the parameters are */
    if (is_moment(plane) && (int)plane - DSC_PLANE_MOMENT1 >= dsc_moment_count(zero, tile->group))
        return DSC_OK;
    if (dsc_host_update_brings(zero, tile->group, plane)) {
        const dsc_host_slot *slot = &zero->store->host.slot[tile->host_slot];
        *ptr = plane == DSC_PLANE_GRAD ? slot->grad : slot->param;
        return DSC_OK;
    }
    if (!updated_from_swap(zero, tile->group, plane)) {
        *ptr = in_memory(zero, tile->group, plane, at);
        return DSC_OK;
    }
    dsc_tile_buffers *buffers = dsc_state_store_tile_buffers(zero, plane);
    DSC_ASSERT(tile->count <= zero->store->tile_elements); /* of a slot */
    tile->slot[plane] = dsc_tile_buffers_next(buffers);
    *ptr = buffers->slot[tile->slot[plane]].buf;
    return dsc_tile_buffers_start(buffers, tile->slot[plane], tile_of_plane(zero, tile, plane, false),
                                  dsc_state_store_is_read(zero, plane), err);
}

/* The tile after those that the tile buffers of a plane hold or read ahead. A search runs with every block that moves,
 * so it passes over groups instead of tiles. */
static bool tile_ahead(const dsc_zero *zero, dsc_plane plane, int32_t ahead, dsc_tile *tile)
{
    dsc_state_store_cursor cursor = zero->store->cursor;
    DSC_ASSERT(ahead >= 0);
    while (step_cursor(zero, &cursor, tile)) {
        if (!passes_tile_buffers(zero, tile->group, plane))
            cursor = (dsc_state_store_cursor) { cursor.index + 1, cursor.end, cursor.matrices, 0 };
        else if (ahead-- == 0)
            return true;
    }
    return false;
}

/* A speculative update runs while the reductions still add to other sums. */
static bool sum_is_ready(const dsc_zero *zero, const dsc_tile *tile)
{
    const dsc_group_state *state = &zero->group[tile->group];
    DSC_ASSERT(tile->first >= state->local_first);
    return zero->store->exchanged ||
           atomic_load(&state->speculative->ready_elements) >= tile->first - state->local_first + tile->count;
}

/* One more tile of each plane that has a free slot. Planes alternate, because the update needs all planes of a tile. */
static dsc_status read_ahead(dsc_zero *zero, bool with_sums, bool wait, bool *any, dsc_error *err)
{
    *any = false;
    for (int p = 0; p < DSC_PLANE_COUNT; p++) {
        dsc_tile_buffers *buffers = dsc_state_store_tile_buffers(zero, (dsc_plane)p);
        dsc_tile tile;
        bool started;
        if (buffers->swap == NULL || !dsc_state_store_is_read(zero, (dsc_plane)p) ||
            (p == DSC_PLANE_GRAD && !with_sums) || !tile_ahead(zero, (dsc_plane)p, buffers->ahead, &tile) ||
            (p == DSC_PLANE_GRAD && !sum_is_ready(zero, &tile)))
            continue;
        DSC_TRY(dsc_tile_buffers_prefetch(buffers, tile_of_plane(zero, &tile, (dsc_plane)p, false),
                                          wait && buffers->ahead == 0, &started, err));
        *any = *any || started;
    }
    return DSC_OK;
}

/* At least the next one. */
static dsc_status read_all_ahead(dsc_zero *zero, dsc_error *err)
{
    bool any;
    do
        DSC_TRY(read_ahead(zero, true, true, &any, err));
    while (any);
    return DSC_OK;
}

/* All of the plane is checked before the first part of the tile. */
static bool is_checked_whole(const dsc_zero *zero, const dsc_tile *tile, dsc_plane plane)
{
    DSC_ASSERT(!tile->by_part || dsc_any_in_swap(zero, tile->group));
    return !tile->by_part || (plane == DSC_PLANE_GRAD && zero->o.sum_dtype != DSC_F32);
}

static dsc_status acquire_planes(dsc_zero *zero, const dsc_tile *tile, dsc_error *err)
{
    for (int p = 0; p < DSC_PLANE_COUNT; p++) {
        dsc_tile_buffers *buffers = dsc_state_store_tile_buffers(zero, (dsc_plane)p);
        if (!passes_tile_buffers(zero, tile->group, (dsc_plane)p))
            continue;
        DSC_ASSERT(buffers->swap != NULL);
        DSC_TRY(is_checked_whole(zero, tile, (dsc_plane)p) ? dsc_tile_buffers_acquire(buffers, tile->slot[p], err)
                                                           : dsc_tile_buffers_arrive(buffers, tile->slot[p], err));
    }
    return DSC_OK;
}

/* The update reads sums in fp32. */
static dsc_status widen_sums(dsc_zero *zero, const dsc_tile *tile, void **sums, dsc_error *err)
{
    if (zero->o.sum_dtype == DSC_F32 || !dsc_grad_staging_is_offloaded(zero, tile->group) ||
        dsc_update_reads_bf16_sums(zero))
        return DSC_OK;
    const dsc_cast_args cast = { .to = zero->store->sum_buf.ptr, .from = *sums, .to_dtype = DSC_F32,
                                 .from_dtype = zero->o.sum_dtype, .count = tile->count };
    DSC_ASSERT(tile->count * 4 <= zero->store->sum_buf.bytes);
    DSC_ASSERT(*sums != NULL);
    *sums = zero->store->sum_buf.ptr;
    return DSC_RUN(tile->stream, CAST, &cast, err);
}

dsc_status dsc_update_tiles_seek(dsc_zero *zero, int32_t first, int32_t end, bool matrices, dsc_error *err)
{
    DSC_ASSERT(first >= 0 && first <= end);
    DSC_ASSERT(end <= zero->o.layout->group_count);
    zero->store->cursor = (dsc_state_store_cursor) { first, end, matrices, 0 };
    return dsc_host_update_begin(zero, err);
}

/* Prefetched tiles, if any, are the first tiles of this range, and end with it. */
static void begin_tiles(dsc_zero *zero)
{
    DSC_ASSERT(zero->first_round.end <= zero->o.layout->group_count);
    zero->store->cursor = (dsc_state_store_cursor) { 0, zero->first_round.end, zero->first_round_matrices_only, 0 };
    for (int32_t g = 0; g < zero->o.layout->group_count; g++)
        zero->store->order[g] = g;
    zero->store->updated_count = 0;
    zero->store->exchanged = false;
}

/* From now on states are where the update puts them. */
static void exchange_places(dsc_zero *zero)
{
    DSC_ASSERT(!zero->store->exchanged); /* S3: once for each update */
    for (int32_t g = 0; g < zero->o.layout->group_count; g++)
        for (int p = 0; p < DSC_PLANE_COUNT; p++) {
            dsc_group_state *state = &zero->group[g];
            const int64_t from = state->tiers.at[p];
            state->tiers.at[p] = state->tiers.next_at[p];
            state->tiers.next_at[p] = from;
        }
    zero->store->exchanged = true;
}

void dsc_update_tiles_list_first(dsc_zero *zero, const int32_t *order, int32_t count)
{
    const int32_t groups = zero->o.layout->group_count;
    DSC_ASSERT(count >= 0 && count <= groups);
    begin_tiles(zero);
    memcpy(zero->store->order, order, (size_t)count * sizeof *order);
    for (int32_t i = 0; i < count; i++)
        zero->group[order[i]].speculative->is_listed = true;
    for (int32_t g = 0, at = count; g < groups; g++) {
        if (!zero->group[g].speculative->is_listed)
            zero->store->order[at++] = g;
        zero->group[g].speculative->is_listed = false;
    }
}

void dsc_update_tiles_begin_speculative(dsc_zero *zero, const int32_t *order, int32_t count)
{
    dsc_update_tiles_list_first(zero, order, count);
    DSC_ASSERT(!zero->store->exchanged); /* the results go to the second position */
    zero->store->cursor = (dsc_state_store_cursor) { .end = zero->o.layout->group_count };
}

void dsc_update_tiles_select(dsc_zero *zero, int32_t index)
{
    DSC_ASSERT(index >= 0 && index < zero->o.layout->group_count);
    zero->store->cursor = (dsc_state_store_cursor) { .index = index, .end = index + 1 };
}

bool dsc_update_tiles_has_next(const dsc_zero *zero)
{
    dsc_state_store_cursor cursor = zero->store->cursor;
    dsc_tile tile;
    return step_cursor(zero, &cursor, &tile) && sum_is_ready(zero, &tile);
}

/* Whole ones, at the order's start. */
int32_t dsc_update_tiles_updated_groups(const dsc_zero *zero)
{
    const dsc_state_store_cursor *at = &zero->store->cursor;
    DSC_ASSERT(at->index <= at->end);
    const bool whole = at->index < at->end && at->done == zero->group[zero->store->order[at->index]].local_count;
    return at->index + whole;
}

bool dsc_update_tiles_is_updated(const dsc_zero *zero, int32_t g, int64_t first)
{
    const dsc_state_store_cursor *at = &zero->store->cursor;
    DSC_ASSERT(first >= 0 && first < zero->group[g].local_count);
    for (int32_t i = 0; i < at->index; i++)
        if (zero->store->order[i] == g)
            return true;
    return at->index < at->end && zero->store->order[at->index] == g && first < at->done;
}

dsc_status dsc_update_tiles_begin(dsc_zero *zero, dsc_error *err)
{
    dsc_io_scheduler_demand(&zero->store->io, DSC_IO_STATE);
    if (zero->stream.update != NULL)
        DSC_TRY(dsc_stream_sync(zero->stream.update, err));
    DSC_TRY(dsc_host_update_begin(zero, err));
    if (zero->speculative->kept)
        zero->store->updated_count = dsc_update_tiles_updated_groups(zero);
    else
        begin_tiles(zero);
    if (zero->early->kept) {
        dsc_update_tiles_list_first(zero, zero->early->group, zero->early->count);
        zero->store->updated_count = zero->store->cursor.index = zero->early->count;
    }
    if (!dsc_state_store_is_used(zero))
        return DSC_OK;
    DSC_TRY(dsc_stream_sync(zero->stream.fetch, err));
    for (int32_t g = 0; g < zero->o.layout->group_count; g++) {
        atomic_store(&zero->group[g].gather.window_slice, NULL);
        zero->group[g].gather.copied_from = dsc_stored_slice(zero, g, DSC_PLANE_PARAM);
    }
    DSC_TRY(dsc_stream_sync(zero->stream.out, err));
    exchange_places(zero);
    return DSC_OK;
}

/* The results of an early update go to the other place of the states. */
static void point_to_other(const dsc_zero *zero, dsc_tile *tile)
{
    const dsc_group_state *state = &zero->group[tile->group];
    const int64_t at = tile->first - state->local_first;
    DSC_ASSERT(dsc_moment_count(zero, tile->group) <= DSC_UPDATE_STATES_U8);
    DSC_ASSERT(at >= 0 && at + tile->count <= state->local_count);
    tile->master_from = tile->master;
    tile->master = state->early->master + at;
    for (int32_t k = 0; k < dsc_moment_count(zero, tile->group); k++) {
        tile->moment_from[k] = tile->moment[k];
        tile->moment[k] = state->early->moment[k] + at * dsc_plane_bytes_each(zero, DSC_PLANE_MOMENT1);
    }
}

static void point_tile(const dsc_zero *zero, void *const ptr[DSC_PLANE_COUNT], dsc_tile *tile)
{
    DSC_ASSERT(tile->count > 0);
    DSC_ASSERT(zero->o.compute_dtype != DSC_F32 || ptr[DSC_PLANE_PARAM] != NULL);
    tile->param = ptr[DSC_PLANE_PARAM];
    tile->master = zero->o.compute_dtype == DSC_F32 ? tile->param : ptr[DSC_PLANE_MASTER];
    for (int32_t k = 0; k < DSC_UPDATE_STATES_MAX; k++)
        tile->moment[k] = ptr[DSC_PLANE_MOMENT1 + k];
    const bool in_bf16 = dsc_update_reads_bf16_sums(zero) && dsc_grad_staging_is_offloaded(zero, tile->group);
    tile->grad = in_bf16 ? NULL : ptr[DSC_PLANE_GRAD];
    tile->grad_bf16 = in_bf16 ? ptr[DSC_PLANE_GRAD] : NULL;
    if (zero->group[tile->group].early->writes_other)
        point_to_other(zero, tile);
}

static dsc_status next_tile(dsc_zero *zero, bool by_part, dsc_tile *tile, dsc_error *err)
{
    dsc_tile following = { 0 };
    void *ptr[DSC_PLANE_COUNT];
    const bool any = step_cursor(zero, &zero->store->cursor, tile);
    DSC_ASSERT(any);
    DSC_ASSERT(zero->group[tile->group].local_count > 0);
    tile->by_part = by_part && dsc_any_in_swap(zero, tile->group);
    dsc_state_store_cursor peek = zero->store->cursor;
    (void)step_cursor(zero, &peek, &following);
    if (dsc_host_update_updates(zero, tile->group)) {
        DSC_TRY(dsc_host_update_acquire(zero, tile, &following, &tile->host_slot, err));
        tile->stream = zero->store->host.compute;
    }
    for (int p = 0; p < DSC_PLANE_COUNT; p++)
        DSC_TRY(start_plane(zero, tile, (dsc_plane)p, &ptr[p], err));
    DSC_TRY(read_all_ahead(zero, err));
    DSC_TRY(acquire_planes(zero, tile, err));
    DSC_TRY(widen_sums(zero, tile, &ptr[DSC_PLANE_GRAD], err));
    point_tile(zero, ptr, tile);
    return DSC_OK;
}

dsc_status dsc_update_tiles_for_compute(dsc_zero *zero, int32_t g, dsc_tile *tile, dsc_error *err)
{
    const dsc_group_state *state = &zero->group[g];
    void *ptr[DSC_PLANE_COUNT];
    DSC_ASSERT(dsc_update_tiles_yields_to_compute(zero, g));
    *tile = (dsc_tile) { .group = g,
                         .first = state->local_first,
                         .count = state->local_count,
                         .stream = zero->o.compute,
                         .last_of_group = true };
    for (int p = 0; p < DSC_PLANE_COUNT; p++)
        DSC_TRY(start_plane(zero, tile, (dsc_plane)p, &ptr[p], err));
    point_tile(zero, ptr, tile);
    return DSC_OK;
}

dsc_status dsc_update_tiles_next(dsc_zero *zero, dsc_tile *tile, dsc_error *err)
{
    return next_tile(zero, false, tile, err);
}

/* The part that begins `at` elements behind the tile's start. The part is valid until seal_part. */
static dsc_status next_part(dsc_zero *zero, const dsc_tile *tile, int64_t at, dsc_tile *part, dsc_error *err)
{
    *part = *tile;
    DSC_ASSERT(at >= 0 && at < tile->count);
    if (!tile->by_part)
        return DSC_OK;
    DSC_ASSERT(at % zero->store->part_elements == 0); /* whole blocks are checked */
    part->first += at;
    part->count = dsc_min_i64(zero->store->part_elements, tile->count - at);
    part->master += at;
    if (tile->grad_bf16 != NULL)
        part->grad_bf16 += at;
    else
        part->grad += at;
    if (tile->param != NULL)
        part->param = (char *)tile->param + at * zero->param_bytes_each;
    for (int32_t k = 0; k < DSC_UPDATE_STATES_MAX; k++)
        if (tile->moment[k] != NULL)
            part->moment[k] += at * dsc_plane_bytes_each(zero, DSC_PLANE_MOMENT1);
    for (int p = 0; p < DSC_PLANE_COUNT; p++) {
        const int64_t each = dsc_plane_bytes_each(zero, (dsc_plane)p);
        if (passes_tile_buffers(zero, tile->group, (dsc_plane)p) && dsc_state_store_is_read(zero, (dsc_plane)p) &&
            !is_checked_whole(zero, tile, (dsc_plane)p))
            DSC_TRY(dsc_tile_buffers_check(dsc_state_store_tile_buffers(zero, (dsc_plane)p), tile->slot[p], at * each,
                                           part->count * each, err));
    }
    return DSC_OK;
}

/* A request that arrives while a tile is updated still gets the tile. */
static dsc_status copy_to_window(dsc_zero *zero, const dsc_tile *tile, dsc_error *err)
{
    dsc_group_state *state = &zero->group[tile->group];
    char *to = atomic_load(&state->gather.window_slice);
    const int64_t at = tile->first - state->local_first, each = zero->param_bytes_each;
    DSC_ASSERT(at >= 0);
    if (to == NULL)
        return DSC_OK;
    DSC_ASSERT(tile->param != NULL);
    state->gather.copied_from = dsc_min_i64(state->gather.copied_from, at);
    return dsc_copy(tile->stream, to + at * each, tile->param, tile->count * each, err);
}

static const dsc_plane written[] = { DSC_PLANE_PARAM, DSC_PLANE_MASTER, DSC_PLANE_MOMENT1, DSC_PLANE_MOMENT2,
                                     DSC_PLANE_MOMENT3 };

static dsc_status seal_part(dsc_zero *zero, const dsc_tile *tile, const dsc_tile *part, dsc_error *err)
{
    DSC_ASSERT(part->first >= tile->first);
    DSC_ASSERT(part->first + part->count <= tile->first + tile->count);
    if (!tile->by_part)
        return DSC_OK;
    DSC_TRY(dsc_stream_sync(tile->stream, err));
    for (size_t i = 0; i < DSC_COUNT(written); i++) {
        const int64_t each = dsc_plane_bytes_each(zero, written[i]);
        if (dsc_in_swap(zero, tile->group, written[i]))
            DSC_TRY(dsc_tile_buffers_seal(dsc_state_store_tile_buffers(zero, written[i]), tile->slot[written[i]],
                                          tile_of_plane(zero, tile, written[i], true),
                                          (part->first - tile->first) * each, part->count * each, err));
    }
    return DSC_OK;
}

static dsc_status write_plane(dsc_zero *zero, const dsc_tile *tile, dsc_plane plane, dsc_error *err)
{
    dsc_tile_buffers *buffers = dsc_state_store_tile_buffers(zero, plane);
    const dsc_piece piece = tile_of_plane(zero, tile, plane, true);
    DSC_ASSERT(buffers->swap != NULL);
    DSC_ASSERT(piece.bytes > 0);
    return tile->by_part ? dsc_tile_buffers_write_sealed(buffers, tile->slot[plane], piece, err)
                         : dsc_tile_buffers_write_back(buffers, tile->slot[plane], piece, err);
}

static dsc_status end_tile(dsc_zero *zero, const dsc_tile *tile, dsc_error *err)
{
    DSC_ASSERT(tile->count > 0);
    if (dsc_host_update_updates(zero, tile->group))
        DSC_TRY(dsc_host_update_release(zero, tile, err));
    if (!dsc_any_in_swap(zero, tile->group))
        return DSC_OK;
    DSC_ASSERT(tile->first + tile->count <=
               zero->group[tile->group].local_first + zero->group[tile->group].local_count);
    if (zero->store->exchanged)
        DSC_TRY(copy_to_window(zero, tile, err));
    DSC_TRY(dsc_stream_sync(tile->stream, err));
    if (zero->group[tile->group].speculative->sum_delivered)
        dsc_tile_buffers_return(&zero->store->buffers[DSC_PLANE_GRAD],
                                delivered_slot(zero, tile->group, tile->first - zero->group[tile->group].local_first));
    for (size_t i = 0; i < DSC_COUNT(written); i++)
        if (dsc_in_swap(zero, tile->group, written[i]))
            DSC_TRY(write_plane(zero, tile, written[i], err));
    /* Tiles that were updated before the request are read from the file. */
    const bool from_file =
        zero->store->exchanged && tile->last_of_group && zero->group[tile->group].gather.copied_from > 0;
    return from_file ? dsc_tile_buffers_drain(&zero->store->update_params, err) : DSC_OK;
}

dsc_status dsc_update_tiles_update_next(dsc_zero *zero, const dsc_update_terms *terms, dsc_tile *tile, dsc_error *err)
{
    dsc_tile part;
    DSC_TRY(next_tile(zero, true, tile, err));
    for (int64_t at = 0; at < tile->count; at += part.count) {
        DSC_TRY(next_part(zero, tile, at, &part, err));
        DSC_ASSERT(part.count > 0);
        DSC_ASSERT(at + part.count <= tile->count);
        DSC_TRY(dsc_update_tile(zero, terms, &part, err));
        DSC_TRY(seal_part(zero, tile, &part, err));
    }
    return end_tile(zero, tile, err);
}

dsc_status dsc_update_tiles_updated(dsc_zero *zero, dsc_error *err)
{
    return dsc_tile_buffers_drain(&zero->store->update_params, err);
}

static dsc_status write_params_now(void *args, dsc_error *err)
{
    dsc_zero *const *zero = args;
    return dsc_update_tiles_updated(*zero, err);
}

dsc_status dsc_update_tiles_end(dsc_zero *zero, dsc_error *err)
{
    if (zero->store->update_params.swap == NULL)
        return DSC_OK;
    DSC_ASSERT(zero->store->written != NULL);
    DSC_ASSERT(zero->store->exchanged); /* S3: everybody reads these positions */
    if (zero->stream.update == NULL)
        return write_params_now(&zero, err);
    DSC_TRY(dsc_host_call(zero->stream.update, write_params_now, &zero, (int64_t)sizeof zero, err));
    return dsc_event_record(zero->store->written, zero->stream.update, err);
}

dsc_status dsc_update_tiles_left(dsc_zero *zero, const dsc_tile *tile, dsc_error *err)
{
    DSC_ASSERT(tile->stream != NULL);
    return passes_in_tiles(zero, tile->group) ? dsc_stream_sync(tile->stream, err) : DSC_OK;
}

dsc_status dsc_update_tiles_drain(dsc_zero *zero, dsc_error *err)
{
    for (int p = 0; p < DSC_PLANE_COUNT; p++)
        DSC_TRY(dsc_tile_buffers_drain(&zero->store->buffers[p], err));
    return dsc_tile_buffers_discard(&zero->store->prefetched, err);
}

typedef struct background_call {
    dsc_zero *zero;
    long long ticket;
    bool ahead;
} background_call;

static dsc_status states_are_idle(dsc_zero *zero, bool *rest, dsc_error *err)
{
    *rest = true;
    for (int p = 0; p < DSC_PLANE_COUNT; p++) {
        bool rests = true;
        if (p != DSC_PLANE_GRAD && dsc_state_store_tile_buffers(zero, (dsc_plane)p)->swap != NULL)
            DSC_TRY(dsc_tile_buffers_is_idle(dsc_state_store_tile_buffers(zero, (dsc_plane)p), &rests, err));
        *rest = *rest && rests;
    }
    return DSC_OK;
}

dsc_status dsc_update_tiles_continue(dsc_zero *zero, bool ahead, bool with_sums, bool *rest, dsc_error *err)
{
    for (bool any = ahead; any;)
        DSC_TRY(read_ahead(zero, with_sums, false, &any, err));
    return states_are_idle(zero, rest, err);
}

/* The first tiles of the next update are read, and the tiles of the last one are written. */
static dsc_status background_round(const void *args, bool yields, dsc_io_round *result, dsc_error *err)
{
    const background_call *call = args;
    bool idle = false;
    DSC_ASSERT(!call->zero->store->exchanged);
    DSC_TRY(dsc_update_tiles_continue(call->zero, call->ahead, false, &idle, err));
    *result = idle ? DSC_IO_IDLE : DSC_IO_PENDING;
    return DSC_OK;
}

static const dsc_io_work_ops background_ops = { .io_class = DSC_IO_STATE,
                                                .pause_ns = DSC_IO_PAUSE_NS,
                                                .round = background_round };

static dsc_status background_now(void *args, dsc_error *err)
{
    const background_call *call = args;
    begin_tiles(call->zero);
    return dsc_io_scheduler_run(&call->zero->store->io, &background_ops, call->ticket, call, err);
}

dsc_status dsc_update_tiles_end_lending(dsc_zero *zero, dsc_error *err)
{
    DSC_TRY(dsc_param_prefetch_end(zero, err));
    for (int p = 0; p < DSC_PLANE_COUNT; p++) /* the update is over: its thread looks at no views */
        dsc_tile_buffers_end_views(dsc_state_store_tile_buffers(zero, (dsc_plane)p));
    return DSC_OK;
}

dsc_status dsc_update_tiles_wait(dsc_zero *zero, bool ahead, dsc_error *err)
{
    const background_call call = { .zero = zero,
                                   .ticket = dsc_io_scheduler_ticket(&zero->store->io, DSC_IO_STATE),
                                   .ahead = ahead };
    if (zero->stream.update == NULL || zero->store->io.engine[DSC_IO_STATE] == NULL)
        return DSC_OK;
    if (ahead)
        DSC_TRY(dsc_update_tiles_end_lending(zero, err));
    return dsc_host_call(zero->stream.update, background_now, &call, (int64_t)sizeof call, err);
}
