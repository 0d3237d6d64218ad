/* tile_buffers.h - round-robin staging buffers in front of one swap space: pieces are read, worked on and written.
 *
 * The caller acquires pieces in an order that it knows. Each piece gets the slot after that of the last piece. While
 * one piece is worked on, later pieces are read into free slots, and earlier pieces are written. Further slots lie in
 * memory that is lent for a while. They belong to a long round, which uses each of them once.
 *
 *   IDLE --prefetch, start--> READING --acquire or arrive--> TAKEN --write_back, write_sealed--> WRITING --> IDLE
 *                                                              +-- release --> IDLE
 *                                                              +-- lend --> LENT --return--> IDLE
 *
 * Invariants:
 *  T1. A piece is not read while an older write of it is under way, or while it is worked on.
 *  T2. The thread that works may be behind the thread that decides the order, by `turn` - `last` slots.
 *  T3. Exactly `ahead` slots after `last` are read or being read.
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
    int64_t at, bytes; /* range of the swap space; `at` is a multiple of DSC_AIO_ALIGN; bytes 0: none */
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
    dsc_piece piece; /* under way or worked on */
    dsc_slot_state state;
    atomic_bool lent; /* to another thread, which clears it */
} dsc_tile_slot;

typedef struct dsc_tile_buffers {
    dsc_swap *swap; /* borrowed until close */
    dsc_alloc *alloc; /* borrowed until close */
    dsc_tile_slot *slot; /* [slot_count + further_count] */
    int32_t slot_count;
    int32_t further_count; /* slots of a long round, behind the first slot_count */
    int32_t round_end;     /* end of the slots of the round that `last` is in */
    int32_t turn;  /* next slot; of the thread that decides the order */
    int32_t last;  /* slot acquired last; of the thread that works; -1: none of a long round yet */
    int32_t ahead; /* slots after `last` that are read ahead; of the thread that works */
    bool read_ahead, write_behind;
    bool only_reads; /* nothing is written, so a piece may be read ahead twice */
    int64_t view_at; /* piece in slot 0 for dsc_tile_buffers_view, -1: none */
    int64_t view_bytes;
    bool view_dirty;
} dsc_tile_buffers;

/* `buf` holds slot_count pieces of piece_bytes, a multiple of DSC_AIO_ALIGN, and outlives the tile buffers; NULL:
 * dsc_tile_buffers_assign sets it. `aio` (NULL: the engine of the swap) moves the pieces. further_count is set before;
 * dsc_tile_buffers_assign sets the addresses of the further slots. */
DSC_MUST_USE dsc_status dsc_tile_buffers_open(dsc_tile_buffers *ring, dsc_alloc *alloc, dsc_swap *swap, dsc_aio *aio,
                                              void *buf, int64_t piece_bytes, int32_t slot_count, dsc_error *err);
/* Memory that tile buffers take beside `buf`. */
int64_t dsc_tile_buffers_plan_bytes(int32_t slot_count, int64_t piece_bytes);
/* Slots [first, first + count) are at `buf` from now on, which outlives the tile buffers. They are empty. */
void dsc_tile_buffers_assign(dsc_tile_buffers *ring, int32_t first, int32_t count, void *buf, int64_t piece_bytes);
/* Its writes are submitted before those of other tile buffers of its dsc_aio. */
void dsc_tile_buffers_write_soon(dsc_tile_buffers *ring);
/* Waits for all transfers, also failed ones. The dsc_aio and then the swap are closed between stop and close. */
void dsc_tile_buffers_stop(dsc_tile_buffers *ring);
void dsc_tile_buffers_close(dsc_tile_buffers *ring);

/* The slot of the next piece. On the thread that decides the order, which may be ahead of the one that works. */
int32_t dsc_tile_buffers_next(dsc_tile_buffers *ring);
/* Waits until the slot is free; with `read`, starts to read the piece unless it was prefetched. */
DSC_MUST_USE dsc_status dsc_tile_buffers_start(dsc_tile_buffers *ring, int32_t slot, dsc_piece piece, bool read,
                                               dsc_error *err);
/* Waits until the piece is in the slot and checked. It is worked on until it is written back or the next one starts. */
DSC_MUST_USE dsc_status dsc_tile_buffers_acquire(dsc_tile_buffers *ring, int32_t slot, dsc_error *err);
/* Instead of acquire and write_back: the piece has arrived, and is checked and sealed part by part (dsc_swap_arrive). A
 * part is [at, at + bytes) of the piece, in whole blocks except for the last one. */
DSC_MUST_USE dsc_status dsc_tile_buffers_arrive(dsc_tile_buffers *ring, int32_t slot, dsc_error *err);
DSC_MUST_USE dsc_status dsc_tile_buffers_check(const dsc_tile_buffers *ring, int32_t slot, int64_t at, int64_t bytes,
                                               dsc_error *err);
DSC_MUST_USE dsc_status dsc_tile_buffers_seal(dsc_tile_buffers *ring, int32_t slot, dsc_piece piece, int64_t at,
                                              int64_t bytes, dsc_error *err);
DSC_MUST_USE dsc_status dsc_tile_buffers_write_sealed(dsc_tile_buffers *ring, int32_t slot, dsc_piece piece,
                                                      dsc_error *err);
/* Instead of write_back: the piece was only read, and is not worked on any more. */
void dsc_tile_buffers_release(dsc_tile_buffers *ring, int32_t slot);
/* The slot's bytes are written to the swap space, after earlier writes of the same range. */
DSC_MUST_USE dsc_status dsc_tile_buffers_write_back(dsc_tile_buffers *ring, int32_t slot, dsc_piece piece,
                                                    dsc_error *err);
/* Instead of write_back: another thread reads the slot, and returns it before the slot is started again. */
void dsc_tile_buffers_lend(dsc_tile_buffers *ring, int32_t slot);
void dsc_tile_buffers_return(dsc_tile_buffers *ring, int32_t slot);
bool dsc_tile_buffers_is_lent(const dsc_tile_buffers *ring, int32_t slot);
/* Starts to read the piece that follows the prefetched ones, if a slot is free. With `wait`, writes from its slot or of
 * its range are waited for. Views were ended. */
DSC_MUST_USE dsc_status dsc_tile_buffers_prefetch(dsc_tile_buffers *ring, dsc_piece piece, bool wait, bool *started,
                                                  dsc_error *err);
/* That piece is the first of the prefetched ones. */
bool dsc_tile_buffers_is_next(const dsc_tile_buffers *ring, dsc_piece piece);
/* Prefetched pieces are dropped, and the next pieces use slots [0, end), which may include further slots. The thread
 * that works decides the order. */
DSC_MUST_USE dsc_status dsc_tile_buffers_begin_round(dsc_tile_buffers *ring, int32_t end, dsc_error *err);
/* The round has passed a further slot and no transfer of it is under way: its memory may be used by its owner. */
bool dsc_tile_buffers_has_passed(const dsc_tile_buffers *ring, int32_t slot);
/* The round has passed all slots; prefetched pieces are dropped if it had not. */
DSC_MUST_USE dsc_status dsc_tile_buffers_end_round(dsc_tile_buffers *ring, dsc_error *err);
/* Prefetched pieces are dropped. */
DSC_MUST_USE dsc_status dsc_tile_buffers_discard(dsc_tile_buffers *ring, dsc_error *err);
/* Waits until no write is under way. */
DSC_MUST_USE dsc_status dsc_tile_buffers_drain(dsc_tile_buffers *ring, dsc_error *err);
/* No write of a part of the piece is under way in these tile buffers. */
bool dsc_tile_buffers_is_written(const dsc_tile_buffers *ring, dsc_piece piece);
/* Without waiting: no read or write is under way. */
DSC_MUST_USE dsc_status dsc_tile_buffers_is_idle(dsc_tile_buffers *ring, bool *rests, dsc_error *err);

/* In any order, while no piece is worked on or written: *buf holds the piece until the next view, acquire or end of
 * views. `write`: the next view of another piece, or dsc_tile_buffers_settle, writes it back. Prefetched pieces are
 * dropped. */
DSC_MUST_USE dsc_status dsc_tile_buffers_view(dsc_tile_buffers *ring, dsc_piece piece, bool write, void **buf,
                                              dsc_error *err);
DSC_MUST_USE dsc_status dsc_tile_buffers_settle(dsc_tile_buffers *ring, dsc_error *err);
/* Other threads may write to the swap space from now on. Views are settled. */
void dsc_tile_buffers_end_views(dsc_tile_buffers *ring);

#ifdef __cplusplus
}
#endif
#endif
