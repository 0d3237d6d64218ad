/* update.h - scalars of an update, or an update that is skipped.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_UPDATE_H
#define DSC_ENGINE_UPDATE_H

#include "engine/internal.h"

/* optimizer.c: rank 0 computes the scalars and broadcasts them. */
typedef struct dsc_update {
    double lr, grad_norm;
    bool skip; /* the norm is not finite, no target is counted, or dsc.spikes leaves the update out */
    int32_t class_count;
    dsc_update_scalars scalars[DSC_UPDATE_CLASSES_MAX]; /* one for each update_class of the layout */
} dsc_update;
/* Collective, after the last of a step's `parts` gradient parts of each use; `update` counts from 1. sum_divisor:
 * dsc_engine_sum_divisor, or 1. */
dsc_status dsc_update_decide(dsc_engine *engine, dsc_zero *zero, int64_t parts, double sum_divisor, int64_t update,
                             dsc_update *out, dsc_error *err);
/* The scalars of the next update if the norm needs no clipping. */
void dsc_update_expect(const dsc_engine *engine, dsc_update *out);

/* step_result.c: a step that acted, to all who read it; `result` may be NULL. */
void dsc_step_result_report(const dsc_engine *engine, const dsc_update *update, double loss, double loss_scale,
                          uint32_t requests, dsc_step_result *result);

/* skipped_step.c: counts a step without update; fails when too many follow each other. Collective. */
dsc_status dsc_engine_skip_step(dsc_engine *engine, dsc_error *err);

#endif
