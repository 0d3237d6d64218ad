/* onebit_policy.c - the phase of an update of the optimizers that exchange signs, from the update's number alone.
 * SPDX-License-Identifier: Apache-2.0 */
#include "zero/core/onebit_policy.h"

#include "base/base.h"

/* The variance moves in some of the first `freeze` updates: after each `scaler` of them they are twice as far
 * apart. */
static bool variance_moves(int64_t scaler, int64_t update)
{
    DSC_ASSERT(scaler >= 1);
    int64_t begin = 0, interval = 1;
    for (; update > begin + scaler * interval; interval *= 2)
        begin += scaler * interval;
    DSC_ASSERT(update > begin);
    return (update - begin) % interval == 0;
}

/* Updates with a frozen variance, from 1: after each `scaler` of them ranks synchronize half as often. */
static bool synchronizes(int64_t scaler, int64_t clipper, int64_t update)
{
    DSC_ASSERT(scaler >= 1);
    DSC_ASSERT(clipper >= 1);
    int64_t interval = 1;
    for (; interval < clipper && update > scaler; update -= scaler)
        interval = dsc_min_i64(clipper, 2 * interval);
    DSC_ASSERT(interval <= clipper);
    return update % interval == 0 || (interval < clipper && update == scaler);
}

dsc_onebit_phase dsc_onebit_phase_of(const dsc_onebit_policy *policy, int64_t update)
{
    DSC_ASSERT(update >= 1);
    if (policy->kind == DSC_ONEBIT_NEVER)
        return DSC_PHASE_SUMS;
    if (policy->kind == DSC_ONEBIT_ADAM)
        return update <= policy->freeze ? DSC_PHASE_SUMS : DSC_PHASE_MOMENTUM;
    if (update <= policy->freeze)
        return variance_moves(policy->variance_scaler, update) ? DSC_PHASE_SUMS : DSC_PHASE_GRADIENTS;
    const bool synchronize = synchronizes(policy->local_scaler, policy->local_most, update - policy->freeze);
    return synchronize ? DSC_PHASE_SYNCHRONIZE : DSC_PHASE_LOCAL;
}
