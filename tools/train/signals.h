/* signals.h - what signals ask of a run: SIGUSR1 a save after the step; SIGTERM, Ctrl-C and a closed terminal a save and
 * the end. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TOOLS_TRAIN_SIGNALS_H
#define DSC_TOOLS_TRAIN_SIGNALS_H

#include <dsc/dsc.h>

enum { TRAIN_REQUEST_SAVE = 1 };

/* Signals become requests of the engine. A run that cannot save ends at once on a stop signal, as every program. An
 * ignored signal stays ignored: nohup and shells that start jobs in the background ask for that. */
void train_signals_watch(dsc_engine *engine, bool can_save);
void train_signals_unwatch(void);
/* The first stop signal that any rank has received; 0: none. */
int train_signals_stop(uint32_t requests);
const char *train_signals_name(int number);

#endif
