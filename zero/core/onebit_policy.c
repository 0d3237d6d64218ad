/* onebit_policy.c - the phase of an update of the optimizers that exchange signs, from the update's number alone.
 * SPDX-License-Identifier: Apache-2.0 */
#include "zero/core/onebit_policy.h"

#include "base/base.h"

/* The variance moves in some of the first `freeze` updates: after each `scaler` of them they are twice as far
 * apart. */
static bool variance_moves(int64_t scaler, int64_t update)
{
    DSC_ASSERT(scaler >= 1);
    int64_t begin = 0, apart = 1;
    for (; update > begin + scaler * apart; apart *= 2)
        begin += scaler * apart;
    DSC_ASSERT(update > begin);
    return (update - begin) % apart == 0;
}

/* Updates with a frozen variance, from 1: after each `scaler` of them ranks synchronize half as often. */
static bool ranks_meet(int64_t scaler, int64_t clipper, int64_t update)
{
    DSC_ASSERT(scaler >= 1);
    DSC_ASSERT(clipper >= 1);
    int64_t apart = 1;
    for (; apart < clipper && update > scaler; update -= scaler)
        apart = dsc_min_i64(clipper, 2 * apart);
    DSC_ASSERT(apart <= clipper);
    return update % apart == 0 || (apart < clipper && update == scaler);
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
    const bool meet = ranks_meet(policy->local_scaler, policy->local_most, update - policy->freeze);
    return meet ? DSC_PHASE_SYNCHRONIZE : DSC_PHASE_LOCAL;
}
