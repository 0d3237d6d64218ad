/* tile_buffers.h - a few buffers through which pieces of one swap space pass: read, worked on, written.
 *
 * Pieces are taken in an order that the caller knows: each gets the slot after the last one's. While one is worked on,
 * those after it are read, as far as there are slots that are free, and those before it written. A piece is never read
 * while an older write of it is under way, or while it is worked on. A ring may have further slots, in memory that is
 * its own for a while only: they belong to a long round, which comes to each of them once.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_OFFLOAD_TILE_BUFFERS_H
#define DSC_OFFLOAD_TILE_BUFFERS_H

#include <stdatomic.h>

#include "offload/swap.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DSC_TILE_BUFFERS_MAX 2048

typedef struct dsc_piece {
    int64_t at, bytes; /* of the swap space; any bytes, at a multiple of DSC_AIO_ALIGN; bytes 0: none */
} dsc_piece;

typedef enum dsc_slot_state {
    DSC_SLOT_IDLE,
    DSC_SLOT_READING,
    DSC_SLOT_TAKEN,
    DSC_SLOT_WRITING,
    DSC_SLOT_LENT
} dsc_slot_state;

typedef struct dsc_tile_slot {
    void *buf;
    dsc_swap_op *op;
    dsc_piece piece; /* that is under way or worked on */
    dsc_slot_state state;
    atomic_bool lent; /* likewise; another thread says when no more */
} dsc_tile_slot;

typedef struct dsc_tile_buffers {
    dsc_swap *swap; /* borrowed until close */
    dsc_alloc *alloc; /* borrowed until close */
    dsc_tile_slot *slot; /* [slot_count + further_count] */
    int32_t slot_count;
    int32_t further_count; /* of a long round, behind those */
    int32_t round_end;     /* behind the last slot of the round that `last` is in */
    int32_t turn;  /* of whoever decides the order: the slot of the next piece */
    int32_t last;  /* of whoever works: the slot that was taken last; -1: none of a long round yet */
    int32_t ahead; /* likewise: so many slots after it are read to */
    bool read_ahead, write_behind;
    bool only_reads; /* nothing is given, so a piece may be ahead more than once */
    int64_t view_at; /* what lies in slot 0 for dsc_tile_buffers_view, -1: nothing */
    int64_t view_bytes;
    bool view_dirty;
} dsc_tile_buffers;

/* `buf` (NULL: dsc_tile_buffers_assign says where) has room for slot_count pieces of piece_bytes, a multiple of
 * DSC_AIO_ALIGN, and outlives the ring; `aio` (NULL: the swap's own) moves them. Where the further_count slots that
 * were asked for before lie is for dsc_tile_buffers_assign to say. */
DSC_MUST_USE dsc_status dsc_tile_buffers_open(dsc_tile_buffers *ring, dsc_alloc *alloc, dsc_swap *swap, dsc_aio *aio,
                                              void *buf, int64_t piece_bytes, int32_t slot_count, dsc_error *err);
/* What a ring takes beside that memory. */
int64_t dsc_tile_buffers_plan_bytes(int32_t slot_count, int64_t piece_bytes);
/* Slots [first, first + count) lie at `buf` from now on, which outlives the ring too. Nothing is in them. */
void dsc_tile_buffers_assign(dsc_tile_buffers *ring, int32_t first, int32_t count, void *buf, int64_t piece_bytes);
/* What it writes goes before what other rings of its dsc_aio write. */
void dsc_tile_buffers_write_soon(dsc_tile_buffers *ring);
/* Waits for what is under way, whatever becomes of it. The dsc_aio, then swap are closed between the two. */
void dsc_tile_buffers_stop(dsc_tile_buffers *ring);
void dsc_tile_buffers_close(dsc_tile_buffers *ring);

/* The slot of the next piece. On the thread that decides the order, which may be ahead of the one that works. */
int32_t dsc_tile_buffers_next(dsc_tile_buffers *ring);
/* The slot is free, and with `read` the piece is on its way there. */
DSC_MUST_USE dsc_status dsc_tile_buffers_start(dsc_tile_buffers *ring, int32_t slot, dsc_piece piece, bool read,
                                               dsc_error *err);
/* And is there: it is worked on, until it is given or the next one is started. */
DSC_MUST_USE dsc_status dsc_tile_buffers_acquire(dsc_tile_buffers *ring, int32_t slot, dsc_error *err);
/* Instead of taking and giving it: it has come, and is checked and sealed part by part (dsc_swap_arrive). A part is
 * [at, at + bytes) of the piece, and whole blocks but for the last one. */
DSC_MUST_USE dsc_status dsc_tile_buffers_arrive(dsc_tile_buffers *ring, int32_t slot, dsc_error *err);
DSC_MUST_USE dsc_status dsc_tile_buffers_check(const dsc_tile_buffers *ring, int32_t slot, int64_t at, int64_t bytes,
                                               dsc_error *err);
DSC_MUST_USE dsc_status dsc_tile_buffers_seal(dsc_tile_buffers *ring, int32_t slot, dsc_piece piece, int64_t at,
                                              int64_t bytes, dsc_error *err);
DSC_MUST_USE dsc_status dsc_tile_buffers_write_sealed(dsc_tile_buffers *ring, int32_t slot, dsc_piece piece,
                                                      dsc_error *err);
/* Instead of giving it: it was only read, and is not worked on any more. */
void dsc_tile_buffers_release(dsc_tile_buffers *ring, int32_t slot);
/* The slot's bytes go back to swap, behind what is written there already. */
DSC_MUST_USE dsc_status dsc_tile_buffers_write_back(dsc_tile_buffers *ring, int32_t slot, dsc_piece piece,
                                                    dsc_error *err);
/* Instead of giving it: another thread reads what is in it, and returns it before the slot is started again. */
void dsc_tile_buffers_lend(dsc_tile_buffers *ring, int32_t slot);
void dsc_tile_buffers_return(dsc_tile_buffers *ring, int32_t slot);
bool dsc_tile_buffers_is_lent(const dsc_tile_buffers *ring, int32_t slot);
/* The piece that will be taken after those that are ahead already is on its way too, if there is room. With `wait`,
 * what is written from its slot or of it is waited for. Views were ended. */
DSC_MUST_USE dsc_status dsc_tile_buffers_prefetch(dsc_tile_buffers *ring, dsc_piece piece, bool wait, bool *started,
                                                  dsc_error *err);
/* Whether that piece is the first of those that are ahead. */
bool dsc_tile_buffers_is_next(const dsc_tile_buffers *ring, dsc_piece piece);
/* What is ahead is not, and the next pieces go to slots [0, end), which may be further ones. The order is decided by
 * who works. */
DSC_MUST_USE dsc_status dsc_tile_buffers_begin_round(dsc_tile_buffers *ring, int32_t end, dsc_error *err);
/* This round is behind a further slot, and nothing of it is on its way: its memory is not the ring's any more. */
bool dsc_tile_buffers_has_passed(const dsc_tile_buffers *ring, int32_t slot);
/* It is behind all of them, at the price of what is ahead if it was not. */
DSC_MUST_USE dsc_status dsc_tile_buffers_end_round(dsc_tile_buffers *ring, dsc_error *err);
/* What is ahead is not. */
DSC_MUST_USE dsc_status dsc_tile_buffers_discard(dsc_tile_buffers *ring, dsc_error *err);
/* Nothing is written any more. */
DSC_MUST_USE dsc_status dsc_tile_buffers_drain(dsc_tile_buffers *ring, dsc_error *err);
/* No part of the piece is on its way to swap, as far as the ring knows. */
bool dsc_tile_buffers_is_written(const dsc_tile_buffers *ring, dsc_piece piece);
/* Without waiting: whether nothing is read or written any more. */
DSC_MUST_USE dsc_status dsc_tile_buffers_is_idle(dsc_tile_buffers *ring, bool *rests, dsc_error *err);

/* Out of any order, while nothing is worked on or written: the piece in *buf until the next view, take or end of views.
 * `write`: it is written back by the next view of another piece or by dsc_tile_buffers_settle. What is ahead is
 * forgotten. */
DSC_MUST_USE dsc_status dsc_tile_buffers_view(dsc_tile_buffers *ring, dsc_piece piece, bool write, void **buf,
                                              dsc_error *err);
DSC_MUST_USE dsc_status dsc_tile_buffers_settle(dsc_tile_buffers *ring, dsc_error *err);
/* Others may write to the swap space from now on. Views are settled. */
void dsc_tile_buffers_end_views(dsc_tile_buffers *ring);

#ifdef __cplusplus
}
#endif
#endif
