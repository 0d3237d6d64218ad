/* loss_scale.h - the scale of fp16 losses, step by step as DeepSpeed's DynamicLossScaler decides it.
 *
 * A pure state machine: every rank keeps one and feeds it the same verdicts. Golden sequences:
 * tests/golden/make_loss_scale.py. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_SCHEDULE_LOSS_SCALE_H
#define DSC_ENGINE_SCHEDULE_LOSS_SCALE_H

#include "engine/config/config.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dsc_loss_scaler {
    double scale;           /* scale of the next step; 1 unless fp16 */
    int64_t step;           /* steps that it has seen */
    int64_t overflow_step;  /* the last of them that overflowed, counted from 0; -1: none */
    int64_t overflows_left; /* until the scale halves; see fp16.hysteresis */
} dsc_loss_scaler;

void dsc_loss_scaler_start(const dsc_config *config, dsc_loss_scaler *out);
/* After each step. False: gradients overflow and the scale is at its minimum; nothing changes then. */
DSC_MUST_USE bool dsc_loss_scaler_next(const dsc_config *config, bool overflow, dsc_loss_scaler *scaler);

#ifdef __cplusplus
}
#endif
#endif
