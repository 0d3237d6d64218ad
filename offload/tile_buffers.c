/* tile_buffers.c - see tile_buffers.h. SPDX-License-Identifier: Apache-2.0 */
#include "offload/tile_buffers.h"

static int64_t whole_blocks(int64_t bytes) { return dsc_align_up(bytes, DSC_AIO_ALIGN); }

int64_t dsc_tile_buffers_plan_bytes(int32_t slot_count, int64_t piece_bytes)
{
    DSC_ASSERT(piece_bytes % DSC_AIO_ALIGN == 0);
    return slot_count * ((int64_t)sizeof(dsc_tile_slot) + dsc_swap_op_plan_bytes(piece_bytes, 0));
}

/* Also between rounds further slots may be on their way to swap still. */
static int32_t all_slots(const dsc_tile_buffers *ring)
{
    return ring->slot != NULL ? ring->slot_count + ring->further_count : 0;
}

dsc_status dsc_tile_buffers_open(dsc_tile_buffers *ring, dsc_alloc *alloc, dsc_swap *swap, dsc_aio *aio, void *buf,
                                 int64_t piece_bytes, int32_t slot_count, dsc_error *err)
{
    const int32_t all = slot_count + ring->further_count;
    DSC_ASSERT(slot_count >= 1 && all <= DSC_TILE_BUFFERS_MAX);
    DSC_ASSERT(piece_bytes % DSC_AIO_ALIGN == 0);
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_IO, all, sizeof *ring->slot, &ring->slot, err));
    ring->alloc = alloc;
    ring->swap = swap;
    ring->slot_count = ring->round_end = slot_count;
    ring->last = slot_count - 1;
    ring->view_at = -1;
    for (int32_t i = 0; i < all; i++)
        DSC_TRY(dsc_swap_op_open(swap, aio, piece_bytes, &ring->slot[i].op, err));
    if (buf != NULL)
        dsc_tile_buffers_assign(ring, 0, slot_count, buf, piece_bytes);
    return DSC_OK;
}

void dsc_tile_buffers_assign(dsc_tile_buffers *ring, int32_t first, int32_t count, void *buf, int64_t piece_bytes)
{
    DSC_ASSERT(first >= 0);
    DSC_ASSERT(first + count <= all_slots(ring));
    for (int32_t i = 0; i < count; i++)
        ring->slot[first + i].buf = (char *)buf + i * piece_bytes;
}

void dsc_tile_buffers_write_soon(dsc_tile_buffers *ring)
{
    for (int32_t i = 0; i < all_slots(ring); i++)
        dsc_swap_op_soon(ring->slot[i].op);
}

/* So many behind the last one. */
static int32_t slot_behind(const dsc_tile_buffers *ring, int32_t count)
{
    const int32_t slot = ring->last + count;
    DSC_ASSERT(slot < 2 * ring->round_end);
    return slot < ring->round_end ? slot : slot - ring->round_end;
}

static bool is_under_way(const dsc_tile_slot *slot)
{
    return slot->state == DSC_SLOT_READING || slot->state == DSC_SLOT_WRITING;
}

static dsc_status settle_slot(dsc_tile_slot *slot, dsc_error *err)
{
    const bool wait = is_under_way(slot);
    slot->state = DSC_SLOT_IDLE;
    return wait ? dsc_swap_wait(slot->op, err) : DSC_OK;
}

void dsc_tile_buffers_stop(dsc_tile_buffers *ring)
{
    for (int32_t i = 0; i < all_slots(ring); i++)
        (void)!settle_slot(&ring->slot[i], NULL);
}

void dsc_tile_buffers_close(dsc_tile_buffers *ring)
{
    for (int32_t i = 0; i < all_slots(ring); i++)
        dsc_swap_op_close(&ring->slot[i].op);
    dsc_alloc_free(ring->alloc, ring->slot);
    *ring = (dsc_tile_buffers) { 0 };
}

void dsc_tile_buffers_end_views(dsc_tile_buffers *ring)
{
    DSC_ASSERT(!ring->view_dirty);
    ring->view_at = -1;
}

int32_t dsc_tile_buffers_next(dsc_tile_buffers *ring)
{
    dsc_tile_buffers_end_views(ring);
    const int32_t slot = ring->turn;
    DSC_ASSERT(slot < all_slots(ring));
    ring->turn = slot + 1 < ring->round_end ? slot + 1 : 0;
    return slot;
}

static bool meet(dsc_piece a, dsc_piece b) { return a.at < b.at + b.bytes && b.at < a.at + a.bytes; }

static void start_read(dsc_tile_slot *slot, dsc_piece piece)
{
    DSC_ASSERT(!is_under_way(slot)); /* T1 */
    DSC_ASSERT(slot->buf != NULL);
    slot->piece = piece;
    slot->state = DSC_SLOT_READING;
    dsc_swap_read(slot->op, slot->buf, whole_blocks(piece.bytes), piece.at);
}

bool dsc_tile_buffers_is_next(const dsc_tile_buffers *ring, dsc_piece piece)
{
    const dsc_piece *next = &ring->slot[slot_behind(ring, 1)].piece;
    return ring->ahead > 0 && next->at == piece.at && next->bytes == piece.bytes;
}

static dsc_status settle_writes(dsc_tile_buffers *ring, dsc_piece piece, dsc_error *err)
{
    for (int32_t i = 0; i < all_slots(ring); i++)
        if (ring->slot[i].state == DSC_SLOT_WRITING && meet(piece, ring->slot[i].piece))
            DSC_TRY(settle_slot(&ring->slot[i], err));
    return DSC_OK;
}

bool dsc_tile_buffers_is_written(const dsc_tile_buffers *ring, dsc_piece piece)
{
    for (int32_t i = 0; i < all_slots(ring); i++)
        if (ring->slot[i].state == DSC_SLOT_WRITING && meet(piece, ring->slot[i].piece))
            return false;
    return true;
}

static void leave_last(dsc_tile_buffers *ring)
{
    if (ring->last >= 0 && ring->slot[ring->last].state == DSC_SLOT_TAKEN)
        ring->slot[ring->last].state = DSC_SLOT_IDLE;
}

dsc_status dsc_tile_buffers_start(dsc_tile_buffers *ring, int32_t slot_index, dsc_piece piece, bool read,
                                  dsc_error *err)
{
    dsc_tile_slot *slot = &ring->slot[slot_index];
    DSC_ASSERT(slot_index >= 0);
    DSC_ASSERT(slot_index < all_slots(ring));
    const bool coming = read && slot_index == slot_behind(ring, 1) && dsc_tile_buffers_is_next(ring, piece);
    if (!coming)
        DSC_TRY(dsc_tile_buffers_discard(ring, err));
    leave_last(ring);
    if (slot_index == 0 && ring->last >= ring->slot_count) /* prefetched pieces are behind a long round already */
        ring->round_end = ring->slot_count;
    ring->last = slot_index;
    ring->ahead -= coming;
    if (coming)
        return DSC_OK;
    DSC_TRY(settle_slot(slot, err));
    if (read) {
        DSC_TRY(settle_writes(ring, piece, err));
        start_read(slot, piece);
    } else {
        slot->piece = piece;
        slot->state = DSC_SLOT_TAKEN;
    }
    return DSC_OK;
}

static dsc_status take(dsc_tile_buffers *ring, int32_t slot_index, bool checked, dsc_error *err)
{
    dsc_tile_slot *slot = &ring->slot[slot_index];
    DSC_ASSERT(slot_index == ring->last);
    DSC_ASSERT(slot->state != DSC_SLOT_WRITING);
    const bool coming = slot->state == DSC_SLOT_READING;
    slot->state = DSC_SLOT_IDLE;
    if (coming)
        DSC_TRY(checked ? dsc_swap_wait(slot->op, err) : dsc_swap_arrive(slot->op, err));
    slot->state = DSC_SLOT_TAKEN;
    return DSC_OK;
}

dsc_status dsc_tile_buffers_acquire(dsc_tile_buffers *ring, int32_t slot, dsc_error *err)
{
    return take(ring, slot, true, err);
}

dsc_status dsc_tile_buffers_arrive(dsc_tile_buffers *ring, int32_t slot, dsc_error *err)
{
    return take(ring, slot, false, err);
}

dsc_status dsc_tile_buffers_check(const dsc_tile_buffers *ring, int32_t slot, int64_t at, int64_t bytes, dsc_error *err)
{
    return dsc_swap_check(ring->slot[slot].op, at, whole_blocks(bytes), err);
}

dsc_status dsc_tile_buffers_seal(dsc_tile_buffers *ring, int32_t slot, dsc_piece piece, int64_t at, int64_t bytes,
                                 dsc_error *err)
{
    DSC_ASSERT(ring->slot[slot].state == DSC_SLOT_TAKEN);
    DSC_TRY(settle_writes(ring, piece, err));
    dsc_swap_seal(ring->swap, (char *)ring->slot[slot].buf + at, whole_blocks(bytes), piece.at + at);
    return DSC_OK;
}

void dsc_tile_buffers_release(dsc_tile_buffers *ring, int32_t slot_index)
{
    DSC_ASSERT(ring->slot[slot_index].state == DSC_SLOT_TAKEN);
    ring->slot[slot_index].state = DSC_SLOT_IDLE;
}

dsc_status dsc_tile_buffers_write_back(dsc_tile_buffers *ring, int32_t slot_index, dsc_piece piece, dsc_error *err)
{
    dsc_tile_slot *slot = &ring->slot[slot_index];
    DSC_ASSERT(slot->state == DSC_SLOT_TAKEN);
    DSC_ASSERT(piece.bytes > 0);
    DSC_TRY(settle_writes(ring, piece, err));
    slot->piece = piece;
    slot->state = DSC_SLOT_WRITING;
    dsc_swap_write(slot->op, slot->buf, whole_blocks(piece.bytes), piece.at);
    return ring->write_behind ? DSC_OK : settle_slot(slot, err);
}

dsc_status dsc_tile_buffers_write_sealed(dsc_tile_buffers *ring, int32_t slot_index, dsc_piece piece, dsc_error *err)
{
    dsc_tile_slot *slot = &ring->slot[slot_index];
    DSC_ASSERT(slot->state == DSC_SLOT_TAKEN);
    DSC_ASSERT(piece.bytes > 0);
    slot->piece = piece;
    slot->state = DSC_SLOT_WRITING;
    dsc_swap_write_sealed(slot->op, slot->buf, whole_blocks(piece.bytes), piece.at);
    return ring->write_behind ? DSC_OK : settle_slot(slot, err);
}

void dsc_tile_buffers_lend(dsc_tile_buffers *ring, int32_t slot_index)
{
    dsc_tile_slot *slot = &ring->slot[slot_index];
    DSC_ASSERT(slot->state == DSC_SLOT_TAKEN);
    DSC_ASSERT(!atomic_load(&slot->lent));
    slot->state = DSC_SLOT_LENT;
    atomic_store(&slot->lent, true);
}

void dsc_tile_buffers_return(dsc_tile_buffers *ring, int32_t slot_index)
{
    DSC_ASSERT(slot_index < all_slots(ring));
    atomic_store(&ring->slot[slot_index].lent, false);
}

bool dsc_tile_buffers_is_lent(const dsc_tile_buffers *ring, int32_t slot_index)
{
    DSC_ASSERT(slot_index < all_slots(ring));
    return atomic_load(&ring->slot[slot_index].lent);
}

/* It is not written from any more; false: it is, or is in use otherwise. */
static dsc_status free_slot(dsc_tile_slot *slot, bool wait, bool *is_free, dsc_error *err)
{
    const bool written = slot->state == DSC_SLOT_WRITING && (wait || dsc_swap_test(slot->op));
    const bool returned = slot->state == DSC_SLOT_LENT && !atomic_load(&slot->lent);
    *is_free = written || returned || slot->state == DSC_SLOT_IDLE;
    return written ? settle_slot(slot, err) : DSC_OK;
}

/* A slot is free for one more prefetched piece. At most slot_count pieces are read at a time, so that a caller that
 * waits for other files does not wait for more than those. Further slots are used once in a round. */
static bool has_room(const dsc_tile_buffers *ring)
{
    const int32_t slot = slot_behind(ring, ring->ahead + 1);
    const bool wraps = ring->last + ring->ahead + 1 >= ring->round_end;
    if (ring->ahead >= ring->slot_count) {
        const dsc_tile_slot *before = &ring->slot[slot_behind(ring, ring->ahead + 1 - ring->slot_count)];
        if (before->state == DSC_SLOT_READING && !dsc_swap_test(before->op))
            return false;
    }
    return !wraps || slot < (ring->last < ring->slot_count ? ring->last : ring->slot_count);
}

dsc_status dsc_tile_buffers_prefetch(dsc_tile_buffers *ring, dsc_piece piece, bool wait, bool *started, dsc_error *err)
{
    bool is_free = ring->read_ahead && has_room(ring);
    dsc_tile_slot *slot = &ring->slot[slot_behind(ring, ring->ahead + 1)];
    *started = false;
    for (int32_t i = 0; i < all_slots(ring) && is_free && !ring->only_reads; i++)
        if (ring->slot[i].state != DSC_SLOT_IDLE && meet(piece, ring->slot[i].piece))
            DSC_TRY(free_slot(&ring->slot[i], wait, &is_free, err));
    if (is_free)
        DSC_TRY(free_slot(slot, wait, &is_free, err));
    if (!is_free)
        return DSC_OK;
    start_read(slot, piece);
    ring->ahead++;
    DSC_ASSERT(ring->ahead <= all_slots(ring)); /* T3 */
    *started = true;
    return DSC_OK;
}

dsc_status dsc_tile_buffers_discard(dsc_tile_buffers *ring, dsc_error *err)
{
    for (; ring->ahead > 0; ring->ahead--)
        DSC_TRY(settle_slot(&ring->slot[slot_behind(ring, ring->ahead)], err));
    DSC_ASSERT(ring->ahead == 0);
    return DSC_OK;
}

dsc_status dsc_tile_buffers_begin_round(dsc_tile_buffers *ring, int32_t end, dsc_error *err)
{
    DSC_ASSERT(end >= ring->slot_count && end <= all_slots(ring));
    DSC_TRY(dsc_tile_buffers_discard(ring, err));
    leave_last(ring);
    ring->last = -1;
    ring->turn = 0;
    ring->round_end = end;
    return DSC_OK;
}

bool dsc_tile_buffers_has_passed(const dsc_tile_buffers *ring, int32_t slot)
{
    DSC_ASSERT(slot < all_slots(ring));
    return ring->slot[slot].state == DSC_SLOT_IDLE && (slot >= ring->round_end || slot <= ring->last);
}

dsc_status dsc_tile_buffers_end_round(dsc_tile_buffers *ring, dsc_error *err)
{
    if (ring->round_end > ring->slot_count && ring->last < ring->round_end - 1) {
        DSC_TRY(dsc_tile_buffers_discard(ring, err));
        ring->last = ring->slot_count - 1;
        ring->turn = 0;
        ring->round_end = ring->slot_count;
    }
    for (int32_t i = ring->slot_count; i < all_slots(ring); i++)
        DSC_TRY(settle_slot(&ring->slot[i], err));
    return DSC_OK;
}

dsc_status dsc_tile_buffers_drain(dsc_tile_buffers *ring, dsc_error *err)
{
    dsc_status status = DSC_OK;
    for (int32_t i = 0; i < all_slots(ring); i++) {
        if (ring->slot[i].state != DSC_SLOT_WRITING)
            continue;
        const dsc_status one = settle_slot(&ring->slot[i], status == DSC_OK ? err : NULL);
        status = status == DSC_OK ? one : status;
    }
    return status;
}

dsc_status dsc_tile_buffers_is_idle(dsc_tile_buffers *ring, bool *rests, dsc_error *err)
{
    *rests = true;
    for (int32_t i = 0; i < all_slots(ring); i++) {
        dsc_tile_slot *slot = &ring->slot[i];
        const bool done = !is_under_way(slot) || dsc_swap_test(slot->op);
        *rests = *rests && done;
        if (done && slot->state == DSC_SLOT_WRITING)
            DSC_TRY(settle_slot(slot, err));
    }
    return DSC_OK;
}

dsc_status dsc_tile_buffers_settle(dsc_tile_buffers *ring, dsc_error *err)
{
    dsc_tile_slot *slot = &ring->slot[0];
    if (!ring->view_dirty)
        return DSC_OK;
    DSC_ASSERT(ring->view_at >= 0);
    ring->view_dirty = false;
    dsc_swap_write(slot->op, slot->buf, whole_blocks(ring->view_bytes), ring->view_at);
    return dsc_swap_wait(slot->op, err);
}

dsc_status dsc_tile_buffers_view(dsc_tile_buffers *ring, dsc_piece piece, bool write, void **buf, dsc_error *err)
{
    dsc_tile_slot *slot = &ring->slot[0];
    DSC_ASSERT(piece.bytes > 0);
    if (ring->view_at != piece.at) {
        DSC_TRY(dsc_tile_buffers_settle(ring, err));
        DSC_TRY(dsc_tile_buffers_discard(ring, err));
        DSC_ASSERT(slot->state != DSC_SLOT_WRITING);
        ring->view_at = -1;
        dsc_swap_read(slot->op, slot->buf, whole_blocks(piece.bytes), piece.at);
        DSC_TRY(dsc_swap_wait(slot->op, err));
        ring->view_at = piece.at;
        ring->view_bytes = piece.bytes;
    }
    ring->view_dirty = ring->view_dirty || write;
    *buf = slot->buf;
    return DSC_OK;
}
