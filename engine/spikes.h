/* spikes.h - steps whose loss or gradient norm is far above those before, and what is done about them.
 *
 * Loss and norm of a step have equal bits on all ranks, and are known before its update. So all ranks decide alike, and
 * a spike never reaches the weights: the step is computed again (repeat.h), and then the policy of dsc.spikes applies.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_SPIKES_H
#define DSC_ENGINE_SPIKES_H

#include <dsc/dsc.h>

#include "engine/schedule/spike_watch.h"

struct dsc_update;

/* The part of struct dsc_engine. */
typedef struct dsc_engine_spikes {
    dsc_spike_watch watch;
    bool skips; /* the policy leaves out the update of the step that ends */
    bool seen;  /* the step that ended was a spike */
    bool rewind_due;
} dsc_engine_spikes;

/* Before a step: what it takes fingerprints of. */
dsc_status dsc_spikes_begin_step(dsc_engine *engine, dsc_error *err);
/* With the loss and the norm of a step, before its update: repeats it, compares a repetition, and decides. *again: the
 * step begins again; else update->skip may be set. *requests gain those of the first pass. Collective. */
dsc_status dsc_spikes_judge(dsc_engine *engine, double loss, struct dsc_update *update, uint64_t *requests, bool *again,
                            dsc_error *err);
#endif
