/* schedule.h - the learning rate and the betas of each optimizer step.
 *
 * A value is a pure function of the config and the step's number, so that a resumed run continues with the same one.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_SCHEDULE_SCHEDULE_H
#define DSC_ENGINE_SCHEDULE_SCHEDULE_H

#include "engine/config/config.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Learning rate (and betas under OneCycle's momentum) of optimizer step `step` (from 1) as DeepSpeed gives it: its
 * scheduler is stepped after the optimizer. Steps that were skipped do not count. Pure; doubles. */
double dsc_schedule_lr(const dsc_config *config, int64_t step);
double dsc_schedule_beta1(const dsc_config *config, int64_t step);
/* OneCycle with cycle_momentum also sets beta2, to 0.99. */
double dsc_schedule_beta2(const dsc_config *config, int64_t step);

#ifdef __cplusplus
}
#endif
#endif
