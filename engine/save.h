/* save.h - saves: the state of a run, and the work of a step for a save in the background.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_SAVE_H
#define DSC_ENGINE_SAVE_H

#include <dsc/dsc.h>

#include "engine/checkpoint/checkpoint.h"

/* The part of struct dsc_engine: the save in the background, and the checkpoint that the run continues. */
typedef struct dsc_engine_saves {
    dsc_ckpt_async *running; /* NULL: none was started, or it was waited for */
    bool begun, ended;       /* on all ranks alike; `running` is NULL on those that write nothing */
    dsc_status status;
    dsc_error error;
    int64_t step;
    int64_t resumed_step;   /* -1: none */
    char resumed_dir[4096]; /* as given to load */
    int64_t saved_step;     /* newest save of this engine, done or begun */
    char saved_dir[4096];   /* "": none */
    char best_dir[4096];    /* in which this run has named a best checkpoint; "": none yet */
} dsc_engine_saves;

/* info.c */
void dsc_engine_run_state(const dsc_engine *engine, dsc_run_state *out);

/* snapshot.c */
bool dsc_engine_saving(const dsc_engine *engine);    /* this rank has work left for the save */
void dsc_engine_snapshot_wait(dsc_engine *engine);   /* precedes every change of states */
void dsc_engine_save_advance(dsc_engine *engine);    /* the next phase, when no rank has work left; collective */

#endif
