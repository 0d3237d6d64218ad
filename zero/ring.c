/* ring.c - see ring.h. SPDX-License-Identifier: Apache-2.0 */
#include "zero/ring.h"

static int64_t whole_blocks(int64_t bytes) { return dsc_align_up(bytes, DSC_AIO_ALIGN); }

dsc_status dsc_ring_open(dsc_ring *ring, dsc_swap *swap, dsc_aio *aio, void *buf, int64_t piece_bytes,
                         int32_t slot_count, dsc_error *err)
{
    DSC_ASSERT(slot_count >= 1 && slot_count <= DSC_RING_SLOTS_MAX);
    DSC_ASSERT(piece_bytes % DSC_AIO_ALIGN == 0);
    ring->swap = swap;
    ring->slot_count = slot_count;
    ring->view_at = -1;
    for (int32_t i = 0; i < slot_count; i++) {
        ring->slot[i].buf = (char *)buf + i * piece_bytes;
        DSC_TRY(dsc_swap_op_open(swap, aio, piece_bytes, &ring->slot[i].op, err));
    }
    return DSC_OK;
}

static dsc_status settle_slot(dsc_ring_slot *slot, dsc_error *err)
{
    if (slot->state == DSC_SLOT_IDLE)
        return DSC_OK;
    slot->state = DSC_SLOT_IDLE;
    return dsc_swap_wait(slot->op, err);
}

void dsc_ring_stop(dsc_ring *ring)
{
    for (int32_t i = 0; i < ring->slot_count; i++)
        (void)!settle_slot(&ring->slot[i], NULL);
}

void dsc_ring_close(dsc_ring *ring)
{
    for (int32_t i = 0; i < ring->slot_count; i++)
        dsc_swap_op_close(&ring->slot[i].op);
    *ring = (dsc_ring){ 0 };
}

void dsc_ring_end_views(dsc_ring *ring)
{
    DSC_ASSERT(!ring->view_dirty);
    ring->view_at = -1;
}

int32_t dsc_ring_next(dsc_ring *ring)
{
    dsc_ring_end_views(ring);
    const int32_t slot = ring->turn;
    ring->turn = (slot + 1) % ring->slot_count;
    return slot;
}

static dsc_status start_read(dsc_ring *ring, dsc_ring_slot *slot, dsc_piece piece, dsc_error *err)
{
    for (int32_t i = 0; i < ring->slot_count; i++) {
        dsc_ring_slot *other = &ring->slot[i];
        const bool meets = piece.at < other->piece.at + other->piece.bytes && other->piece.at < piece.at + piece.bytes;
        if (other->state == DSC_SLOT_WRITING && meets)
            DSC_TRY(settle_slot(other, err));
    }
    slot->piece = piece;
    slot->state = DSC_SLOT_READING;
    dsc_swap_read(slot->op, slot->buf, whole_blocks(piece.bytes), piece.at);
    return DSC_OK;
}

dsc_status dsc_ring_take(dsc_ring *ring, int32_t slot_index, dsc_piece piece, bool read, dsc_piece ahead,
                         dsc_error *err)
{
    dsc_ring_slot *slot = &ring->slot[slot_index];
    const bool coming = slot->state == DSC_SLOT_READING && slot->piece.at == piece.at;
    if (!coming) {
        DSC_TRY(settle_slot(slot, err));
        if (read)
            DSC_TRY(start_read(ring, slot, piece, err));
    }
    if (ahead.bytes > 0 && ring->read_ahead && ring->slot_count > 1) {
        dsc_ring_slot *next = &ring->slot[(slot_index + 1) % ring->slot_count];
        DSC_TRY(settle_slot(next, err));
        DSC_TRY(start_read(ring, next, ahead, err));
    }
    return settle_slot(slot, err);
}

dsc_status dsc_ring_give(dsc_ring *ring, int32_t slot_index, dsc_piece piece, dsc_error *err)
{
    dsc_ring_slot *slot = &ring->slot[slot_index];
    DSC_ASSERT(slot->state == DSC_SLOT_IDLE);
    slot->piece = piece;
    slot->state = DSC_SLOT_WRITING;
    dsc_swap_write(slot->op, slot->buf, whole_blocks(piece.bytes), piece.at);
    return ring->write_behind ? DSC_OK : settle_slot(slot, err);
}

dsc_status dsc_ring_drain(dsc_ring *ring, dsc_error *err)
{
    dsc_status status = DSC_OK;
    for (int32_t i = 0; i < ring->slot_count; i++) {
        const dsc_status one = settle_slot(&ring->slot[i], status == DSC_OK ? err : NULL);
        status = status == DSC_OK ? one : status;
    }
    return status;
}

dsc_status dsc_ring_settle(dsc_ring *ring, dsc_error *err)
{
    dsc_ring_slot *slot = &ring->slot[0];
    if (!ring->view_dirty)
        return DSC_OK;
    ring->view_dirty = false;
    dsc_swap_write(slot->op, slot->buf, whole_blocks(ring->view_bytes), ring->view_at);
    return dsc_swap_wait(slot->op, err);
}

dsc_status dsc_ring_view(dsc_ring *ring, dsc_piece piece, bool write, void **buf, dsc_error *err)
{
    dsc_ring_slot *slot = &ring->slot[0];
    if (ring->view_at != piece.at) {
        DSC_TRY(dsc_ring_settle(ring, err));
        DSC_ASSERT(slot->state == DSC_SLOT_IDLE);
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
