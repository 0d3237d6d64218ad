/* spike_watch.h - whether a step's loss or gradient norm is far above those of the steps before.
 *
 * A pure state machine: every rank keeps one and feeds it the same numbers, which have equal bits on all ranks. Mean
 * and variance are those of exponential weights (West 1979, Finch 2009), of a plain mean in the first `window` steps.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_SCHEDULE_SPIKE_WATCH_H
#define DSC_ENGINE_SCHEDULE_SPIKE_WATCH_H

#include "engine/config/config.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dsc_spike_mean {
    double mean, variance;
    int64_t count; /* numbers seen, at most the window */
} dsc_spike_mean;

typedef struct dsc_spike_watch {
    dsc_spike_mean loss, norm;
} dsc_spike_watch;

typedef struct dsc_spike {
    bool of_norm;        /* else of the loss */
    double value, mean;  /* the number, and the mean of the steps before */
    double z;            /* distance in standard deviations */
} dsc_spike;

/* True: a number is above its ratio to the mean and above the z-score, after a whole window; *out <- the first one. */
DSC_MUST_USE bool dsc_spike_seen(const dsc_spikes_section *config, const dsc_spike_watch *watch, double loss,
                                 double norm, dsc_spike *out);
/* Adds a step's numbers, which are finite. */
void dsc_spike_note(const dsc_spikes_section *config, double loss, double norm, dsc_spike_watch *watch);

#ifdef __cplusplus
}
#endif
#endif
