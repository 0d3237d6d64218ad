/* state_store.h - where the states of a rank live between uses: in memory, or in swap space with rings of buffers
 * before it.
 *
 * A plane of a group is in memory (dsc_group_state points at it) or in swap (swap_at[plane] >= 0); who works on it asks
 * here and is given memory either way. Of a device that is not host_visible, memory may also be the host's: sums then
 * pass through slots of the device's (grad_staging.h), parameters go to windows, and the host updates what is the
 * optimizer's (host_update.h). Three users of files, one thread each: the gathers read parameters on the fetch stream,
 * the reductions read and write sums on the out stream, and the update takes its tiles, of a host_visible device on the
 * update stream, while the next passes begin. So each has an engine for its files of its own, and parameters have two
 * rings of buffers; only sums pass from one to the other. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ZERO_OFFLOAD_STATE_STORE_H
#define DSC_ZERO_OFFLOAD_STATE_STORE_H

#include <stdatomic.h>

#include "offload/tile_buffers.h"
#include "zero/offload/grad_staging.h"
#include "zero/offload/host_update.h"
#include "zero/offload/placement.h"
#include "zero/zero.h"

/* Kinds of state in files of their own, as the plan's table has them. */
typedef enum dsc_space {
    DSC_SPACE_PARAM, DSC_SPACE_GRAD, DSC_SPACE_MASTER, DSC_SPACE_MOMENT, DSC_SPACE_COUNT
} dsc_space;
enum { DSC_STATE_STORE_AIO_PARAM, DSC_STATE_STORE_AIO_GRAD, DSC_STATE_STORE_AIO_STATES, DSC_STATE_STORE_AIO_COUNT };

/* How long a thread with nothing else to do waits for files before it looks whether it has. */
#define DSC_REST_NS INT64_C(1000000)

typedef struct dsc_state_store_cursor {
    int32_t index, end; /* of the update's order of groups */
    bool matrices; /* only groups of these */
    int64_t done; /* elements of what this rank updates of the group */
} dsc_state_store_cursor;

/* Where reading ahead for gathers has come to (param_prefetch.c). */
typedef struct dsc_param_prefetch_cursor {
    int32_t step, gather;
    int64_t first; /* element of a rank's slice */
} dsc_param_prefetch_cursor;

/* Of the sums that a pass writes first, second, ...: behind the last further slot of each plane's ring there. */
typedef struct dsc_borrowed_range {
    int32_t end[DSC_PLANE_COUNT];
} dsc_borrowed_range;

/* Sums' memory that is lent to tiles which are read ahead (borrowed_memory.c). */
typedef struct dsc_borrowed_memory {
    dsc_borrowed_range *room; /* [count] */
    int32_t count;
    int32_t told;      /* the update thread's own */
    atomic_int vacant; /* so many of the first may be written */
    atomic_llong lent; /* slots of all steps so far */
} dsc_borrowed_memory;

typedef struct dsc_state_store {
    int64_t tile_elements;                    /* a multiple of 2048: whole blocks in bf16 */
    int64_t part_elements;                    /* of a tile, likewise: what the caches hold from check to check */
    int32_t slot_count;                       /* buffers for each kind of state */
    int64_t space_bytes[DSC_SPACE_COUNT];     /* 0: nothing of the kind is in swap */
    dsc_aio *aio[DSC_STATE_STORE_AIO_COUNT];
    dsc_swap *swap[DSC_SPACE_COUNT];
    dsc_buf buf[DSC_PLANE_COUNT];
    dsc_tile_buffers ring[DSC_PLANE_COUNT];
    dsc_swap_op *fetch; /* parameters of one slice, to its window without a buffer between */
    dsc_buf back_buf; /* before the parameters that the update reads (fp32) and writes */
    dsc_tile_buffers back;
    dsc_device *update_device; /* the host's cpu device with one thread; NULL: the update runs where its caller does */
    dsc_stream *update_compute;
    dsc_tile_buffers
        sums_in; /* the update's own before sums, where it may begin while the reductions go on; swap NULL: theirs */
    dsc_buf sums_in_buf;
    int32_t *order; /* [group_count] in which the update takes its groups */
    int32_t made;   /* so many of the first are */
    bool exchanged; /* the update's place for what it makes is everybody's already (other_at) */
    dsc_state_store_cursor cursor;
    /* What a thread that has files and nothing else to do goes on by, until it is asked for something again. */
    atomic_llong updates_asked, sums_asked, fetches_asked;
    atomic_bool sums_waited_for; /* by the reductions */
    dsc_borrowed_memory rooms;
    dsc_tile_buffers ahead; /* of parameters, in the buffers of masters and moments; swap NULL: not used */
    dsc_param_prefetch_cursor ahead_at;
    bool lends;
    dsc_event *fetched; /* what a pass has asked for is in its windows */
    dsc_event *written; /* the last update's parameters are in their files */
    dsc_event *lent, *given_back; /* nothing of the update's is in them; nothing of the gathers' is */
    dsc_buf param_buf; /* parameters in host memory */
    dsc_grad_staging sums;
    dsc_buf sum_buf; /* a tile of sums in fp32 for the update, where they lie in bf16 */
    dsc_host_update host;
} dsc_state_store;

/* Elements [first, first + count) of a group, all of their states in memory until dsc_state_store_done. */
typedef struct dsc_tile {
    int32_t group;
    int64_t first, count;
    bool last_of_group;
    float *master;
    char *moment[DSC_UPDATE_STATES_MAX]; /* moment_dtype; NULL: the recipe has none such */
    const float *grad;
    void *param; /* compute dtype; the master of an fp32 run */
    dsc_stream *stream; /* where the update runs */
    int32_t slot[DSC_PLANE_COUNT], host_slot;
    bool by_part;
} dsc_tile;

/* Before the gathers are planned: which groups' states and parameters go to swap. */
void dsc_state_store_choose(dsc_zero *zero);
/* After that: places, tiles and what all of it takes. */
void dsc_state_store_plan(dsc_zero *zero);
DSC_MUST_USE dsc_status dsc_state_store_open(dsc_zero *zero, dsc_error *err);
void dsc_state_store_close(dsc_zero *zero); /* the streams are closed */

/* Every tile that this rank updates, in order; next is asked for no more than there are, and each is passed by done or
 * left before begin or seek is called again. After the last one of a group its parameters are where the first gather of
 * them finds them, and after dsc_state_store_end where all do. Masters and moments may still be on their way to files:
 * the next update, or dsc_state_store_drain, waits for them. */
DSC_MUST_USE dsc_status dsc_state_store_begin(dsc_zero *zero, dsc_error *err);
/* Instead of its tiles, of one of the first `made` groups: they are made. */
DSC_MUST_USE dsc_status dsc_state_store_updated(dsc_zero *zero, dsc_error *err);
/* Those of groups [first, end) come next, or of those among them that are matrices. */
DSC_MUST_USE dsc_status dsc_state_store_seek(dsc_zero *zero, int32_t first, int32_t end, bool matrices, dsc_error *err);
DSC_MUST_USE dsc_status dsc_state_store_next(dsc_zero *zero, dsc_tile *tile, dsc_error *err);
/* The same for who then makes it part by part: a part is good between the two below, with `part` as a tile. */
DSC_MUST_USE dsc_status dsc_state_store_next_by_part(dsc_zero *zero, dsc_tile *tile, dsc_error *err);
/* The part that begins `at` elements behind the tile's start. */
DSC_MUST_USE dsc_status dsc_state_store_part(dsc_zero *zero, const dsc_tile *tile, int64_t at, dsc_tile *part,
                                             dsc_error *err);
DSC_MUST_USE dsc_status dsc_state_store_part_updated(dsc_zero *zero, const dsc_tile *tile, const dsc_tile *part,
                                                     dsc_error *err);
DSC_MUST_USE dsc_status dsc_state_store_done(dsc_zero *zero, const dsc_tile *tile, dsc_error *err);
/* Instead of it: the tile was only read. */
DSC_MUST_USE dsc_status dsc_state_store_left(dsc_zero *zero, const dsc_tile *tile, dsc_error *err);
/* A group with nothing in files, where updates go on behind: none of the tiles above is of it. Compute waits for such
 * an update sooner or later, so its whole team makes it, beside what files keep the update's thread busy with. */
bool dsc_state_store_yields_to_compute(const dsc_zero *zero, int32_t group);
DSC_MUST_USE dsc_status dsc_state_store_for_compute(dsc_zero *zero, int32_t group, dsc_tile *tile, dsc_error *err);
/* Behind the last tile. */
DSC_MUST_USE dsc_status dsc_state_store_end(dsc_zero *zero, dsc_error *err);
/* Behind an update: on the update's thread its files are written while that has nothing else to do. With `ahead` what
 * the next update begins with is read, too, as much as there are buffers for: states, which stay what they are until
 * then. */
DSC_MUST_USE dsc_status dsc_state_store_wait(dsc_zero *zero, bool ahead, dsc_error *err);
/* On the update's thread: tiles of the first `count` groups of this order will be made, for a second place. */
void dsc_state_store_begin_speculative(dsc_zero *zero, const int32_t *order, int32_t count);
/* As much is read and written as can be without waiting. */
DSC_MUST_USE dsc_status dsc_state_store_continue(dsc_zero *zero, bool ahead, bool with_sums, bool *rest,
                                                 dsc_error *err);
/* Before anything is read ahead for the update: its buffers are its own again. */
DSC_MUST_USE dsc_status dsc_state_store_end_lending(dsc_zero *zero, dsc_error *err);
/* There is a next tile, and its sum. */
bool dsc_state_store_has_next(const dsc_zero *zero);
int32_t dsc_state_store_updated_groups(const dsc_zero *zero);
/* Of this order: the tile at `first` of this rank's slice is; where its sum is that was handed to the update. */
bool dsc_state_store_is_updated(const dsc_zero *zero, int32_t group, int64_t first);
float *dsc_grad_tiles_is_direct(const dsc_zero *zero, int32_t group, int64_t first);
/* Nothing is written any more. The streams are idle. */
DSC_MUST_USE dsc_status dsc_state_store_drain(dsc_zero *zero, dsc_error *err);

/* What an update that is under way has not made of a group's parameters yet shall come to `to`, which is free, as it is
 * made; the first who asks after an update began is told so. On the thread of the compute stream. */
bool dsc_state_store_request(dsc_zero *zero, int32_t group, char *to);
/* On the fetch stream: this rank's parameters of a group, which are away, to their place in a window; where it has
 * asked for them, after the update, what did not come from there. */
DSC_MUST_USE dsc_status dsc_param_fetch(dsc_zero *zero, int32_t group, char *to, bool asked, dsc_error *err);

/* On the reduce stream: where the sum of elements [first, first + count) of this rank's slice lies. Sums that are not
 * on the device come at most a tile at a time, and are not read with `overwrite`. `leaf` (-1: none) of a pass:
 * what is added, behind which the reductions' order is known, and sums are read ahead. */
typedef struct dsc_sum {
    int32_t group, slot, stage;
    int64_t first, count;
    void *kept; /* in host memory, of sum_dtype, where it is not on the device */
    float *acc;
} dsc_sum;
typedef struct dsc_sum_cursor {
    int32_t leaf;
    int64_t pass, first;
} dsc_sum_cursor;
DSC_MUST_USE dsc_status dsc_grad_tiles_acquire(dsc_zero *zero, int32_t group, const dsc_sum_cursor *place,
                                               bool overwrite, dsc_sum *sum, dsc_error *err);
/* `complete`: no leaf of this step is added to it any more. */
DSC_MUST_USE dsc_status dsc_grad_tiles_write_back(dsc_zero *zero, const dsc_sum *sum, bool complete, dsc_error *err);
/* Instead of it: it was only read. */
DSC_MUST_USE dsc_status dsc_grad_tiles_release(dsc_zero *zero, const dsc_sum *sum, dsc_error *err);
/* Behind the last tile of a leaf: as dsc_state_store_wait, of sums. */
DSC_MUST_USE dsc_status dsc_grad_tiles_wait(dsc_zero *zero, const dsc_sum_cursor *place, dsc_error *err);
/* Instead of it: the sum is in memory, and complete. */
DSC_MUST_USE dsc_status dsc_grad_tiles_keep(dsc_zero *zero, const dsc_sum_cursor *place, dsc_error *err);
DSC_MUST_USE dsc_status dsc_grad_tiles_drain(dsc_zero *zero, dsc_error *err);

/* dsc_zero_view of a plane that is in swap; settle before anything else is done. */
DSC_MUST_USE dsc_status dsc_state_store_view(dsc_zero *zero, int32_t group, dsc_plane plane, int64_t first,
                                             int64_t *count, bool write, void **ptr, dsc_error *err);
DSC_MUST_USE dsc_status dsc_state_store_settle(dsc_zero *zero, dsc_error *err);

#endif
