/* signals.h - effects of signals on a run: SIGUSR1 saves after the step; SIGTERM, Ctrl-C and a closed terminal save and
 * end it. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TOOLS_TRAIN_SIGNALS_H
#define DSC_TOOLS_TRAIN_SIGNALS_H

#include <dsc/dsc.h>

enum { TRAIN_REQUEST_SAVE = 1, TRAIN_REQUEST_WORLD = 16 };

typedef enum train_signals_effect {
    TRAIN_SIGNALS_END,  /* SIGTERM and the like end the run at once, as every program */
    TRAIN_SIGNALS_SAVE, /* they save and end it */
    TRAIN_SIGNALS_LEAVE /* as SAVE, but SIGTERM asks this rank to leave its world: TRAIN_REQUEST_WORLD */
} train_signals_effect;

/* Signals become requests of the engine. An ignored signal stays ignored: nohup and shells that start jobs in the
 * background ask for that. */
void train_signals_watch(dsc_engine *engine, train_signals_effect effect);
/* Signals are remembered until an engine is watched again. */
void train_signals_pause(void);
void train_signals_unwatch(void);
/* This rank was asked to leave. */
bool train_signals_leaves(void);
/* The request that a stop signal makes. */
uint32_t train_signals_request(int number);
/* The first stop signal that any rank has received; 0: none. */
int train_signals_stop(uint32_t requests);
const char *train_signals_name(int number);

#endif
