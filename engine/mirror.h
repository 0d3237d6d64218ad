/* mirror.h - copies of a rank's states in the host memory of a neighbour, so that the loss of a rank loses no state.
 *
 * With "dsc.elastic.mirror_every": k, each step after k more steps begins with a mirror: every rank copies its slices
 * to its own host memory and sends the copy to its neighbour. The neighbour is the next rank, or on several hosts the
 * rank with the same place on the next host. A rank keeps the last two copies of itself and of the rank before it. A
 * copy of step N replaces that of the mirror before the last one, and no rank begins with it before all have the last
 * one. So there is always a step of which every rank's states are with two ranks. The copies are in the plan under the
 * tag "mirrors". SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_MIRROR_H
#define DSC_ENGINE_MIRROR_H

#include <dsc/dsc.h>

/* The part of struct dsc_engine. */
typedef struct dsc_engine_mirror {
    dsc_carried *carried; /* copies 0 and 1 of this rank, 2 and 3 of the rank before it; NULL: no mirrors */
    dsc_carried *earlier; /* copies that the engine was opened with, until its first step is done */
    int64_t noted_bytes;  /* bytes of the mirrors, counted as this engine's */
    int64_t next_step;    /* steps done when the next mirror is due */
    int64_t opened_step;  /* steps done at open */
    int32_t newest;       /* 0 or 1 */
} dsc_engine_mirror;

int64_t dsc_engine_mirror_bytes(const dsc_engine *engine); /* all copies, for the plan; 0: there are none */
dsc_status dsc_engine_open_mirror(dsc_engine *engine, dsc_error *err);
void dsc_engine_close_mirror(dsc_engine *engine);
/* Before a step. Collective. */
dsc_status dsc_engine_mirror_step(dsc_engine *engine, dsc_error *err);
/* The states are those of a checkpoint now: copies of other steps do not count, and the next step begins with a
 * mirror. */
void dsc_engine_forget_mirrors(dsc_engine *engine);
/* After the engine has opened: takes over what it was opened with. Until its first step is done there may be ranks
 * without new mirrors. */
void dsc_engine_keep_carried(dsc_engine *engine, dsc_carried **carried);
/* Before the engine closes: the copies that this rank has, which are no longer the engine's. NULL: it has none. */
dsc_carried *dsc_engine_release_mirror(dsc_engine *engine);

#endif
