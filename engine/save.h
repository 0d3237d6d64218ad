/* save.h - saves: the state of a run, and the work of a step for a save in the background.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_SAVE_H
#define DSC_ENGINE_SAVE_H

#include "engine/internal.h"

/* info.c */
void dsc_engine_run_state(const dsc_engine *engine, dsc_run_state *out);

/* snapshot.c */
bool dsc_engine_saving(const dsc_engine *engine);    /* this rank has work left for the save */
void dsc_engine_snapshot_wait(dsc_engine *engine);   /* precedes every change of states */
void dsc_engine_save_advance(dsc_engine *engine);    /* the next phase, when no rank has work left; collective */

#endif
