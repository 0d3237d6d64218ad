/* outer_step.h - copies of the states that make updates of their own and exchange weights every so many updates: local
 * SGD (Stich 2019, arXiv:1805.09767) and DiLoCo (Douillard et al. 2023, arXiv:2311.08105).
 *
 * All copies start from common weights. An outer step takes the mean over the copies of common minus own weights as a
 * gradient, and makes a step of SGD with Nesterov momentum from the common weights. The result is common again. With
 * rate 1 and momentum 0 it is the mean of the copies. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ZERO_OUTER_STEP_H
#define DSC_ZERO_OUTER_STEP_H

#include "zero/zero.h"

/* The part of struct dsc_zero. */
typedef struct dsc_outer_step {
    dsc_buf common, momentum; /* planes of this rank's slices of all trainable groups, fp32 */
    dsc_buf change;           /* plane of the longest slice */
} dsc_outer_step;

/* Collective over all copies, between steps: the moments of all copies become their mean, so that a checkpoint of one
 * copy has those of all. */
dsc_status dsc_outer_step_share_moments(dsc_zero *zero, dsc_error *err);

void dsc_outer_step_plan(dsc_zero *zero);
dsc_status dsc_outer_step_open(dsc_zero *zero, dsc_error *err);
void dsc_outer_step_close(dsc_zero *zero);

#endif
