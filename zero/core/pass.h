/* pass.h - the ops table of an optimizer pass: work on whole tensors that an optimizer update needs beside its tiles.
 *
 * An element-wise recipe needs no pass. LAMB, Adafactor, Muon and the 1-bit optimizers need numbers of whole tensors,
 * whose elements lie in the slices of several ranks. Each file of zero/optimizer/ exports one const table. zero/zero.c
 * lists the tables in the order in which they run, and keeps the needed ones in zero->optimizer. No other file names a
 * pass.
 *
 * An update calls, in this order: before_update of every pass, walk of every pass, and for each round before_round of
 * every pass and then the tiles of the round. Only before_update may edit the terms; they are const afterwards. A
 * member that a pass does not need is NULL. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ZERO_CORE_PASS_H
#define DSC_ZERO_CORE_PASS_H

#include "zero/core/options.h"

#define DSC_ZERO_PASSES_MAX 8

/* Scalars that are equal for all elements of an update. */
typedef struct dsc_update_terms {
    dsc_update_scalars scalars[DSC_UPDATE_CLASSES_MAX];
    uint64_t stream; /* of random numbers */
} dsc_update_terms;

/* Groups [first, end) whose tiles are updated together. */
typedef struct dsc_round {
    int32_t first, end;
    int64_t chunk; /* elements that a rank sends to another rank, at most */
} dsc_round;

struct dsc_tile;

typedef struct dsc_zero_pass_ops {
    const char *name;
    uint32_t needs;     /* recipe needs (kernels/update.h) that tensor_step, set_args and direction serve; 0: none */
    bool matrices_only; /* its walk or its rounds read tiles of matrices only */
    bool replaces_sums; /* its wire bytes are sent instead of sums of gradients (dsc_zero_traffic.signs_bytes) */

    bool (*is_needed)(const dsc_zero *zero);
    /* Adds the lists of the pass to zero->needs. Groups are placed. */
    dsc_status (*plan)(dsc_zero *zero, dsc_error *err);
    /* States of all groups have their addresses. */
    dsc_status (*open)(dsc_zero *zero, dsc_error *err);
    void (*close)(dsc_zero *zero);               /* also after a plan or an open that failed */
    int64_t (*wire_bytes)(const dsc_zero *zero); /* that this rank receives in an update */

    /* Before the first micro-step towards update `update`, counted from 1. */
    void (*begin)(dsc_zero *zero, int64_t update);
    /* Collective, before the norm: sums that ranks have kept become those of all ranks. */
    dsc_status (*share_sums)(dsc_zero *zero, dsc_error *err);
    /* Collective. All sums are complete. `complete`: the pass has made the whole update itself. */
    dsc_status (*before_update)(dsc_zero *zero, dsc_update_terms *terms, bool *complete, dsc_error *err);
    /* Collective. Reads all tiles of its groups and writes none of them; the tiles come again afterwards. */
    dsc_status (*walk)(dsc_zero *zero, const dsc_update_terms *terms, dsc_error *err);
    /* Rounds cut an update into ranges of groups; at most one pass of a run has them. */
    int32_t (*round_count)(const dsc_zero *zero);
    dsc_round (*round)(const dsc_zero *zero, int32_t index);
    /* Collective. Weights, states and sums stay. */
    dsc_status (*before_round)(dsc_zero *zero, const dsc_update_terms *terms, int32_t index, dsc_error *err);

    /* Edits the scalars of one tensor. */
    void (*tensor_step)(const dsc_zero *zero, int32_t tensor, dsc_update_scalars *scalars);
    /* Adds to the arguments of elements of `tensor` from `first` of the tile's group on. */
    void (*set_args)(const dsc_zero *zero, const struct dsc_tile *tile, int64_t first, int32_t tensor,
                     dsc_update_args *args);
    /* The direction of each element of the tile, in memory of the processor that updates the tile. */
    dsc_status (*direction)(dsc_zero *zero, const struct dsc_tile *tile, const float **along, dsc_error *err);

    /* Behind the update of a tile, on its stream. */
    dsc_status (*after_tile)(dsc_zero *zero, const struct dsc_tile *tile, dsc_error *err);

    /* Forgets what is left of earlier exchanges: the states were replaced. */
    dsc_status (*forget)(dsc_zero *zero, dsc_error *err);
    /* Sets numbers that all ranks hold alike to 0. */
    void (*forget_shared)(dsc_zero *zero);
} dsc_zero_pass_ops;

#endif
