/* state_store.h - the storage of the states of a rank between uses: memory, or swap files with tile buffers.
 *
 * A plane of a group is in memory (dsc_group_state points at it) or in a swap file (tiers.at[plane] >= 0). A caller
 * that works on a plane asks here and is given memory either way. If the device is not host_visible, memory may also be
 * the memory of the host. Then sums pass through slots of the device (grad_staging.h) and parameters are copied to
 * windows. The host updates the states of the optimizer (host_update.h).
 *
 *   a tile of the update:
 *     [IN FILE] --read ahead--> [ARRIVING] --acquire--> [CHECKED] --update--> [SEALED] --write behind--> [IN FILE]
 *                                                           |
 *                                                           +-- left (a walk that only reads) --> buffer free
 *   a speculative update, of one step:
 *     [OFF] --begin (head of the last pass)--> [RUNNING] --settle, equal terms--> [KEPT]: the update goes on from here
 *                                                  |
 *                                                  +-- settle, other terms; skip --> [OFF]: the second position is free
 *
 * Invariants:
 *  S1. Three users of files have one thread each: the gathers (fetch stream) read parameters, the reductions (out
 *      stream) read and write sums, and the update (update stream of a host_visible device) works on its tiles.
 *  S2. Each user has its own class of the I/O scheduler (offload/io_scheduler.h) with its own file engine. Parameters
 *      have two sets of tile buffers: of gathers and of the update. Only sums pass from one user to another.
 *  S3. at[plane] is the position that everybody reads. The update writes to next_at[plane]. The two are equal
 *      unless a speculative update covers the group; dsc_update_tiles_begin exchanges them.
 *  S4. No file position is read while it is written: a user drains its tile buffers before another user reads it.
 *  S5. Every block that is read is checked before its elements are used.
 *  S6. Tiles come in the order of store.order; each is updated or left before begin or seek is called again.
 *  S7. The tile buffers of masters and moments hold prefetched parameters only between dsc_param_prefetch_begin and
 *      dsc_param_prefetch_end. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ZERO_OFFLOAD_STATE_STORE_H
#define DSC_ZERO_OFFLOAD_STATE_STORE_H

#include <stdatomic.h>

#include "offload/io_scheduler.h"
#include "offload/tile_buffers.h"
#include "zero/offload/grad_staging.h"
#include "zero/offload/host_update.h"
#include "zero/offload/placement.h"
#include "zero/core/planes.h"

/* Kinds of state in files of their own, as the plan's table has them. */
typedef enum dsc_space {
    DSC_SPACE_PARAM, DSC_SPACE_GRAD, DSC_SPACE_MASTER, DSC_SPACE_MOMENT, DSC_SPACE_COUNT
} dsc_space;

typedef struct dsc_state_store_cursor {
    int32_t index, end; /* range of store.order */
    bool matrices; /* only groups of these */
    int64_t done; /* elements of what this rank updates of the group */
} dsc_state_store_cursor;

/* Position of the prefetch of parameters (param_prefetch.c). */
typedef struct dsc_param_prefetch_cursor {
    int32_t step, gather;
    int64_t first; /* element of a rank's slice */
} dsc_param_prefetch_cursor;

/* One range of lent memory, in the order in which a pass writes sums: the end of each plane's further slots there. */
typedef struct dsc_borrowed_range {
    int32_t end[DSC_PLANE_COUNT];
} dsc_borrowed_range;

/* Sums' memory that is lent to tiles which are read ahead (borrowed_memory.c). */
typedef struct dsc_borrowed_memory {
    dsc_borrowed_range *range; /* [count] */
    int32_t count;
    int32_t left;            /* ranges that the update has left; only the update's thread uses the number */
    atomic_int returned;     /* the first ranges, whose sums may be written */
    atomic_llong lent_slots; /* sum over all steps */
} dsc_borrowed_memory;

typedef struct dsc_state_store {
    int64_t tile_elements;                    /* a multiple of 2048: whole blocks in bf16 */
    int64_t part_elements;                    /* part of a tile that the caches hold between two checks */
    int32_t slot_count;                       /* buffers for each kind of state */
    int64_t space_bytes[DSC_SPACE_COUNT];     /* 0: nothing of the kind is in swap */
    dsc_io_scheduler io;
    dsc_swap *swap[DSC_SPACE_COUNT];
    dsc_buf buf[DSC_PLANE_COUNT]; /* memory of the tile buffers of a plane */
    dsc_tile_buffers buffers[DSC_PLANE_COUNT];
    dsc_swap_op *fetch; /* parameters of one slice, to its window without a buffer between */
    /* Parameters that the update writes, and in an fp32 run reads. */
    dsc_tile_buffers update_params;
    dsc_buf update_params_buf;
    dsc_device *update_device; /* the host's cpu device with one thread; NULL: the update runs where its caller does */
    dsc_stream *update_compute;
    /* Sums that the update reads, if it may begin while the reductions go on. swap NULL: the tile buffers of the
     * reductions serve the update too. */
    dsc_tile_buffers update_sums;
    dsc_buf update_sums_buf;
    int32_t *order;        /* [group_count] order of the groups in an update */
    int32_t updated_count; /* the first groups of `order`, which are updated already */
    bool exchanged;        /* at[] of all groups has the positions that this update writes (S3) */
    dsc_state_store_cursor cursor;
    dsc_borrowed_memory borrowed;
    dsc_tile_buffers prefetched; /* parameters in the buffers of masters and moments; swap NULL: not used */
    dsc_param_prefetch_cursor prefetch_at;
    bool buffers_are_lent;      /* to the prefetch (S7) */
    dsc_event *lent, *returned; /* no data of the update is in these buffers; no prefetched data is in them */
    dsc_event *written;         /* the parameters of the last update are in their files */
    dsc_buf param_buf; /* parameters in host memory */
    dsc_buf absmax_buf; /* absmax of moments in U8 whose codes are in files */
    dsc_grad_staging staging;
    dsc_buf sum_buf; /* a tile of sums in fp32 for the update, where they lie in bf16 */
    dsc_host_update host;
} dsc_state_store;

/* Before the gathers are planned: which groups' states and parameters go to swap. */
void dsc_state_store_choose(dsc_zero *zero);
/* After that: places, tiles and what all of it takes. */
void dsc_state_store_plan(dsc_zero *zero);
DSC_MUST_USE dsc_status dsc_state_store_open(dsc_zero *zero, dsc_error *err);
void dsc_state_store_close(dsc_zero *zero); /* the streams are closed */

/* dsc_zero_view of a plane that is in swap; settle before anything else is done. */
DSC_MUST_USE dsc_status dsc_state_store_view(dsc_zero *zero, int32_t group, dsc_plane plane, int64_t first,
                                             int64_t *count, bool write, void **ptr, dsc_error *err);
DSC_MUST_USE dsc_status dsc_state_store_settle(dsc_zero *zero, dsc_error *err);

#endif
