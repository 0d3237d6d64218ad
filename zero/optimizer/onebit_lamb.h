/* onebit_lamb.h - the trust ratios of 1-bit LAMB, which go on with a frozen variance.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ZERO_OPTIMIZER_ONEBIT_LAMB_H
#define DSC_ZERO_OPTIMIZER_ONEBIT_LAMB_H

#include "zero/core/pass.h"

typedef struct dsc_onebit_lamb {
    dsc_buf state_buf;              /* [tensor_count][DSC_TENSOR_STATES] */
    dsc_buf device_most, host_most; /* [tensor_count] bits of floats: the largest ratios of this update */
} dsc_onebit_lamb;

bool dsc_onebit_lamb_are_used(const dsc_zero *zero);
/* The coefficients of this update are frozen. */
bool dsc_onebit_lamb_are_frozen(const dsc_zero *zero);
/* DSC_TENSOR_STATES numbers of a tensor. */
float *dsc_onebit_lamb_tensor_state(const dsc_zero *zero, int32_t tensor);
/* Both give the factor of a tensor's rate, once an update. While coefficients are not frozen the factor is `trust`, and
 * its moving average is updated. */
double dsc_onebit_lamb_average(const dsc_zero *zero, int32_t tensor, double trust);
/* Frozen: the average times the factor of this update. `bare_share` is the share of a direction's norm that is left
 * without weight decay. */
double dsc_onebit_lamb_frozen_ratio(const dsc_zero *zero, int32_t tensor, double bare_share);

extern const dsc_zero_pass_ops dsc_onebit_lamb_pass;

#endif
