/* borrowed_memory.c - the memory of sums between the update that has read them and the backward pass that fills it
 * again.
 *
 * Under the head's products and the last block's backward pass no sum is complete. A speculative update
 * (speculative_update.c) can then only prefetch until its buffers are full, and the files would be idle. But the sums
 * in memory are used up by then, and are filled again one after the other, those of the first modules last. So the tile
 * buffers of the update's states get further slots there, for one long round each step. A tile lies in a sum that is
 * written only after the tile's own sum. A tile is updated when its sum is complete, so no tile waits for a sum that
 * waits for it. The reductions wait for tiles that have not left yet. Steps of several passes have no such time,
 * because each pass adds to their sums.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "zero/core/internal.h"
#include "zero/offload/borrowed_memory.h"
#include "zero/offload/placement.h"
#include "zero/offload/speculative_update.h"
#include "zero/offload/state_store.h"

static bool is_used(const dsc_zero *zero) { return dsc_speculative_update_is_used(zero) && zero->pass_count == 1; }

/* In the buffer of sums, as states are placed (zero.c). */
static bool sum_is_on_device(const dsc_zero *zero, int32_t g)
{
    return zero->o.layout->group[g].trainable && !dsc_grad_staging_is_offloaded(zero, g);
}

static dsc_piece bytes_of_sum(const dsc_zero *zero, int32_t g)
{
    int64_t before = 0;
    DSC_ASSERT(sum_is_on_device(zero, g));
    for (int32_t i = 0; i < g; i++)
        before += sum_is_on_device(zero, i) ? zero->group[i].local_count : 0;
    const int64_t first = dsc_align_up(before * 4, DSC_AIO_ALIGN);
    const int64_t end = (before + zero->group[g].local_count) * 4 / DSC_AIO_ALIGN * DSC_AIO_ALIGN;
    DSC_ASSERT((before + zero->group[g].local_count) * 4 <= zero->state_bytes[DSC_TAG_GRAD]);
    return (dsc_piece) { first, dsc_max_i64(0, end - first) };
}

static bool passes(const dsc_zero *zero, int32_t g, dsc_plane plane)
{
    return plane != DSC_PLANE_GRAD && dsc_state_store_is_read(zero, plane) && dsc_in_swap(zero, g, plane);
}

/* Position in the list of gradient parts: tiles in the order of a speculative update, and the ranges that they borrow.
 */
typedef struct borrow_cursor {
    dsc_zero *zero;
    bool opened;    /* false: ranges are only counted */
    int32_t part;   /* the first part of the group whose sum has the range */
    dsc_piece left; /* bytes of the range that are left */
    int32_t slots[DSC_PLANE_COUNT];
} borrow_cursor;

/* The next range after that of the cursor; false: there is none. */
static bool next_range(borrow_cursor *cursor)
{
    dsc_zero *zero = cursor->zero;
    dsc_borrowed_memory *borrowed = &zero->store->borrowed;
    while (++cursor->part < zero->parts.count) {
        const dsc_grad_part *part = &zero->parts.part[cursor->part];
        if (!dsc_grad_part_is_first(part) || !sum_is_on_device(zero, part->group))
            continue;
        cursor->left = bytes_of_sum(zero, part->group);
        if (cursor->opened) {
            DSC_ASSERT(borrowed->range != NULL);
            DSC_ASSERT(zero->group[part->group].speculative->borrowed_range < 0); /* one first part in a pass */
            zero->group[part->group].speculative->borrowed_range = borrowed->count;
            memcpy(borrowed->range[borrowed->count].end, cursor->slots, sizeof cursor->slots);
        }
        borrowed->count++;
        return true;
    }
    return false;
}

/* For a tile's plane whose sum is complete with part `last`. */
static bool borrow_range(borrow_cursor *cursor, int32_t last, dsc_plane plane, int64_t bytes)
{
    dsc_zero *zero = cursor->zero;
    dsc_borrowed_memory *borrowed = &zero->store->borrowed;
    DSC_ASSERT(bytes % DSC_AIO_ALIGN == 0);
    DSC_ASSERT(last < zero->parts.count);
    while (cursor->part <= last || cursor->left.bytes < bytes)
        if (!next_range(cursor))
            return false;
    DSC_ASSERT(cursor->part > last); /* a tile never waits for a sum that waits for the tile */
    if (cursor->opened) {
        dsc_tile_buffers_assign(dsc_state_store_tile_buffers(zero, plane), cursor->slots[plane], 1,
                                (char *)zero->buf.grad.ptr + cursor->left.at, 0);
        borrowed->range[borrowed->count - 1].end[plane] = cursor->slots[plane] + 1;
    }
    cursor->left.at += bytes;
    cursor->left.bytes -= bytes;
    DSC_ASSERT(cursor->left.bytes >= 0);
    return true;
}

static bool place_tile(borrow_cursor *cursor, const dsc_grad_part *part, int64_t count)
{
    const dsc_zero *zero = cursor->zero;
    const int32_t last = (int32_t)(part - zero->parts.part);
    DSC_ASSERT(count > 0);
    DSC_ASSERT(dsc_grad_part_is_last(zero, part));
    for (int p = 0; p < DSC_PLANE_COUNT; p++) {
        const int64_t bytes = dsc_align_up(count * dsc_plane_bytes_each(zero, (dsc_plane)p), DSC_AIO_ALIGN);
        if (!passes(zero, part->group, (dsc_plane)p))
            continue;
        if (cursor->slots[p] >= DSC_TILE_BUFFERS_MAX ||
            (cursor->slots[p] >= zero->store->slot_count && !borrow_range(cursor, last, (dsc_plane)p, bytes)))
            return false;
        cursor->slots[p]++;
    }
    return true;
}

/* As many tiles as the memory holds, from the first tile of the update on. */
static void place_tiles(borrow_cursor *cursor)
{
    const dsc_zero *zero = cursor->zero;
    for (int32_t i = 0; i < zero->parts.count; i++) {
        const dsc_grad_part *part = &zero->parts.part[i];
        if (!dsc_grad_part_is_last(zero, part) || !dsc_speculative_update_covers(zero, part->group))
            continue;
        const int64_t own = zero->group[part->group].local_count, tile = zero->store->tile_elements;
        for (int64_t first = 0; first < own; first += tile)
            if (!place_tile(cursor, part, dsc_min_i64(tile, own - first)))
                return;
    }
}

enum { NEEDS = DSC_PLANE_COUNT + 1 };
/* The ranges, and slots of tile buffers, which are opened with the rings. */
static void list_needs(dsc_zero *zero, dsc_need out[NEEDS])
{
    dsc_borrowed_memory *borrowed = &zero->store->borrowed;
    for (int p = 0; p < DSC_PLANE_COUNT; p++) {
        const int32_t slots = dsc_state_store_tile_buffers(zero, (dsc_plane)p)->further_count;
        const int64_t tile_bytes = zero->store->tile_elements * dsc_plane_bytes_each(zero, (dsc_plane)p);
        DSC_ASSERT(slots >= 0);
        out[p] = (dsc_need) { NULL, DSC_TAG_IO, DSC_TIER_HOST,
                              slots > 0 ? dsc_tile_buffers_plan_bytes(slots, tile_bytes) : 0, DSC_NEED_INSIDE };
    }
    out[DSC_PLANE_COUNT] = (dsc_need) { &borrowed->range, DSC_TAG_CONTROL, DSC_TIER_HOST,
                                        borrowed->count * (int64_t)sizeof *borrowed->range, DSC_NEED_SMALL };
}

void dsc_borrowed_memory_plan(dsc_zero *zero)
{
    borrow_cursor cursor = { .zero = zero, .part = -1 };
    if (!is_used(zero))
        return;
    place_tiles(&cursor);
    for (int p = 0; p < DSC_PLANE_COUNT; p++) {
        dsc_tile_buffers *buffers = dsc_state_store_tile_buffers(zero, (dsc_plane)p);
        DSC_ASSERT(cursor.slots[p] <= DSC_TILE_BUFFERS_MAX && buffers->slot == NULL); /* not open */
        if (cursor.slots[p] > zero->store->slot_count)
            buffers->further_count = cursor.slots[p] - zero->store->slot_count;
    }
    dsc_need needs[NEEDS];
    list_needs(zero, needs);
    dsc_needs_plan(&zero->needs, needs, NEEDS);
}

dsc_status dsc_borrowed_memory_open(dsc_zero *zero, dsc_error *err)
{
    dsc_borrowed_memory *borrowed = &zero->store->borrowed;
    borrow_cursor cursor = { .zero = zero, .opened = true, .part = -1 };
    for (int32_t g = 0; g < zero->o.layout->group_count; g++)
        zero->group[g].speculative->borrowed_range = -1;
    if (borrowed->count == 0)
        return DSC_OK;
    const int32_t planned = borrowed->count;
    dsc_need needs[NEEDS];
    list_needs(zero, needs);
    DSC_TRY(dsc_needs_open(&zero->needs, needs, NEEDS, err));
    borrowed->count = 0;
    place_tiles(&cursor);
    DSC_ASSERT(borrowed->count == planned);
    atomic_store(&borrowed->returned, borrowed->count);
    return dsc_aio_register(zero->store->io.engine[DSC_IO_STATE], zero->buf.grad.ptr, zero->buf.grad.bytes, err);
}

void dsc_borrowed_memory_close(dsc_zero *zero)
{
    dsc_need needs[NEEDS];
    list_needs(zero, needs);
    dsc_needs_close(&zero->needs, needs, NEEDS);
}

/* ---- a step ---- */

void dsc_borrowed_memory_lend(dsc_zero *zero)
{
    DSC_ASSERT(dsc_speculative_update_is_used(zero));
    atomic_store(&zero->store->borrowed.returned, 0);
}

bool dsc_borrowed_memory_is_returned(const dsc_zero *zero, int32_t g)
{
    DSC_ASSERT(g < zero->o.layout->group_count);
    DSC_ASSERT(zero->group[g].speculative->borrowed_range < zero->store->borrowed.count);
    return zero->group[g].speculative->borrowed_range < atomic_load(&zero->store->borrowed.returned);
}

static int64_t tiles_of(const dsc_zero *zero, dsc_plane plane, const int32_t *group, int32_t count)
{
    int64_t tiles = 0;
    for (int32_t i = 0; i < count; i++)
        if (passes(zero, group[i], plane))
            tiles += (zero->group[group[i]].local_count + zero->store->tile_elements - 1) / zero->store->tile_elements;
    DSC_ASSERT(count <= zero->o.layout->group_count);
    return tiles;
}

dsc_status dsc_borrowed_memory_begin(dsc_zero *zero, const int32_t *group, int32_t count, dsc_error *err)
{
    zero->store->borrowed.left = 0;
    for (int p = 0; p < DSC_PLANE_COUNT; p++) {
        dsc_tile_buffers *buffers = dsc_state_store_tile_buffers(zero, (dsc_plane)p);
        const int64_t most = buffers->slot_count + buffers->further_count;
        const int32_t end = (int32_t)dsc_min_i64(tiles_of(zero, (dsc_plane)p, group, count), most);
        DSC_ASSERT(buffers->slot_count + buffers->further_count <= DSC_TILE_BUFFERS_MAX);
        if (end <= buffers->slot_count)
            continue;
        DSC_TRY(dsc_tile_buffers_begin_round(buffers, end, err));
        atomic_fetch_add(&zero->store->borrowed.lent_slots, end - buffers->slot_count);
    }
    return DSC_OK;
}

static bool is_left(dsc_zero *zero, int32_t r)
{
    const dsc_borrowed_range *range = zero->store->borrowed.range;
    DSC_ASSERT(r >= 0);
    DSC_ASSERT(r < zero->store->borrowed.count);
    for (int p = 0; p < DSC_PLANE_COUNT; p++) {
        const dsc_tile_buffers *buffers = dsc_state_store_tile_buffers(zero, (dsc_plane)p);
        for (int32_t slot = r > 0 ? range[r - 1].end[p] : 0; slot < range[r].end[p]; slot++)
            if (slot >= buffers->slot_count && !dsc_tile_buffers_has_passed(buffers, slot))
                return false;
    }
    return true;
}

void dsc_borrowed_memory_publish(dsc_zero *zero)
{
    dsc_borrowed_memory *borrowed = &zero->store->borrowed;
    while (borrowed->left < borrowed->count && is_left(zero, borrowed->left))
        atomic_store(&borrowed->returned, ++borrowed->left);
    DSC_ASSERT(borrowed->left <= borrowed->count);
}

dsc_status dsc_borrowed_memory_end(dsc_zero *zero, dsc_error *err)
{
    for (int p = 0; p < DSC_PLANE_COUNT; p++)
        DSC_TRY(dsc_tile_buffers_end_round(dsc_state_store_tile_buffers(zero, (dsc_plane)p), err));
    atomic_store(&zero->store->borrowed.returned, zero->store->borrowed.count);
    return DSC_OK;
}
