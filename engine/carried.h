/* carried.h - states of ranks in host memory, which outlast an engine: what a rank takes from one world to the next.
 *
 * A state copy has the slices of one rank after one step, and what every rank has of that step. Its slices lie in the
 * order of the layout's groups, each group with all its planes. A layout of any world has the same elements at the same
 * places of a group, apart from padding. So a rank of another world takes the ranges that overlap its own slices
 * (reform.c), as the loader of checkpoints does. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_CARRIED_H
#define DSC_ENGINE_CARRIED_H

#include <dsc/dsc.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "engine/data/skips.h"
#include "engine/schedule/loss_scale.h"
#include "engine/schedule/spike_watch.h"
#include "zero/zero.h"

#define DSC_STATE_COPIES_MAX 8 /* copies of one link */
#define DSC_CARRIED_LINKS_MAX 4

/* Owner, time and kind of a state copy. Ranks exchange it as bytes. */
typedef struct dsc_state_header {
    int64_t bytes; /* bytes of the copy; 0: there is none */
    int64_t step, update_count, skipped_in_row;
    int32_t rank, world_size; /* whose slices */
    dsc_loss_scaler loss_scaler;
    double lr_override;
    dsc_skips skips;
    dsc_spike_watch spikes;
    bool averages;        /* moving averages have values */
    dsc_hash128 identity; /* hash of the model's tensors and the planes of their states */
} dsc_state_header;

typedef struct dsc_state_copy {
    dsc_state_header header;
    char *data; /* [header.bytes]: slices, then what every rank has */
} dsc_state_copy;

struct dsc_carried {
    dsc_alloc *alloc;
    char *gemm_plans; /* algorithms of matrix products that the run uses; NULL: its device has none */
    dsc_state_copy copy[DSC_STATE_COPIES_MAX];
    dsc_carried *next; /* copies of an earlier time, which may be needed still; at most DSC_CARRIED_LINKS_MAX in all */
};
/* Copy `index` of all links, below DSC_CARRIED_LINKS_MAX * DSC_STATE_COPIES_MAX; NULL: there is none. */
const dsc_state_copy *dsc_carried_copy(const dsc_carried *carried, int32_t index);
bool dsc_carried_is_empty(const dsc_carried *carried); /* also NULL */
/* Adds the links of `earlier`, which may be NULL. Those above the limit, the oldest, are closed. */
void dsc_carried_add(dsc_carried *carried, dsc_carried *earlier);

/* A plane of a group in a state copy. */
typedef struct dsc_state_part {
    int32_t group;
    dsc_plane plane;            /* plane of a view, or of what is_absmax or is_average says */
    bool is_average, is_absmax; /* absmax of the blocks of moment `plane` */
    int64_t elements, slice;    /* elements that are moved; those of a rank's slice */
    int64_t unit, unit_bytes;   /* so many elements are stored in so many bytes */
    int64_t at;                 /* offset in the copy */
} dsc_state_part;
/* Part `index` of the copies of a world's ranks; false: there are no more. */
bool dsc_state_part_get(const dsc_engine *engine, int32_t world_size, int32_t index, dsc_state_part *out);
/* Elements of a part's slice from `first` on, in memory of the device or the host; as dsc_zero_view. */
dsc_status dsc_state_part_view(const dsc_engine *engine, const dsc_state_part *part, int64_t first, int64_t *count,
                               bool write, void **ptr, dsc_error *err);
/* Bytes of the slices of a rank of that world, of the values that all ranks have alike, and of both. Known as soon as
 * the layout is. */
int64_t dsc_state_slice_bytes(const dsc_engine *engine, int32_t world_size);
int64_t dsc_state_shared_bytes(const dsc_engine *engine);
int64_t dsc_state_copy_bytes(const dsc_engine *engine, int32_t world_size);
/* Values that all ranks have alike, to or from memory: factors, buffers, the checkpoint that the run continues. */
void dsc_state_get_shared(dsc_engine *engine, char *out);
void dsc_state_set_shared(dsc_engine *engine, const char *from);
/* This rank's, of its states now. */
void dsc_state_header_fill(dsc_engine *engine, dsc_state_header *out);
/* The states of this rank now, between steps, into copy->data of the bytes above. */
dsc_status dsc_state_copy_fill(dsc_engine *engine, dsc_state_copy *copy, dsc_error *err);
/* To another rank of the engine's world, and from one into copy->data of the bytes above. */
dsc_status dsc_state_copy_send(const dsc_engine *engine, const dsc_state_copy *copy, int32_t to, dsc_error *err);
dsc_status dsc_state_copy_receive(const dsc_engine *engine, dsc_state_copy *copy, int32_t from, dsc_error *err);
/* Features whose states are not carried: refused by name. */
dsc_status dsc_engine_check_carried(const dsc_engine *engine, dsc_error *err);

/* No copies at first; memory for copy `index`. */
dsc_status dsc_carried_open(const dsc_engine *engine, dsc_carried **out, dsc_error *err);
dsc_status dsc_carried_open_copy(dsc_carried *carried, int index, int64_t bytes, dsc_error *err);

/* reform.c: the states of a new engine from the copies that its ranks carry; `carried` NULL: this rank has none.
 * Collective. */
dsc_status dsc_engine_load_carried(dsc_engine *engine, const dsc_carried *carried, dsc_error *err);

#endif
