/* progress.h - how far a run is: its counters, the phase of a step, and requests of the host program (step.c).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_PROGRESS_H
#define DSC_ENGINE_PROGRESS_H

#include <stdatomic.h>

#include "engine/schedule/loss_scale.h"

typedef enum dsc_phase { DSC_PHASE_IDLE, DSC_PHASE_FORWARD_DONE, DSC_PHASE_BACKWARD_DONE } dsc_phase;

/* The part of struct dsc_engine. */
typedef struct dsc_engine_progress {
    int64_t settled;      /* micro-steps of this step whose loss is in work.step_stats */
    atomic_uint requests; /* since the last step that acted */
    dsc_phase phase;
    bool batch_from_reader;
    int64_t step, update_count, micro_step;
    int64_t skipped_in_row;
    int64_t outer_update; /* the last update before which all copies had the same weights (dsc.local_sgd) */
    dsc_loss_scaler loss_scaler;
    double lr_override;  /* negative: the schedule */
    bool in_train_batch; /* nobody else has a say before the step's update */
} dsc_engine_progress;

#endif
