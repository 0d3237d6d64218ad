/* onebit_policy.h - optimizers whose ranks exchange signs instead of summing gradients: their policy and the phase of
 * each update. The exchanged values are those of zero/optimizer/onebit.c. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ZERO_CORE_ONEBIT_POLICY_H
#define DSC_ZERO_CORE_ONEBIT_POLICY_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* All zero: nobody's. */
typedef enum dsc_onebit_kind { DSC_ONEBIT_NEVER, DSC_ONEBIT_ADAM, DSC_ONEBIT_ZEROONE } dsc_onebit_kind;
typedef struct dsc_onebit_policy {
    dsc_onebit_kind kind;
    int64_t freeze; /* after so many updates, >= 1, the variance never moves again */
    /* 0/1 Adam, >= 1. After the first number of variance updates, the interval of the next ones doubles. After the
     * second number of later updates, ranks synchronize half as often, but at least once in local_most updates. */
    int64_t variance_scaler, local_scaler, local_most;
    /* 1-bit LAMB (onebit_lamb.c): the decay of the average of coefficients, below 1. Then the bounds of the factors of
     * frozen coefficients, 0 < min <= max, and the largest relative change of a factor. */
    double coeff_beta, factor_min, factor_max, factor_threshold;
} dsc_onebit_policy;

/* The use that an update makes of the ranks' gradients. */
typedef enum dsc_onebit_phase {
    DSC_PHASE_SUMS,       /* they are added up, and the variance moves; in all others it stays */
    DSC_PHASE_MOMENTUM,   /* each rank's make a momentum, whose signs are exchanged */
    DSC_PHASE_GRADIENTS,  /* their signs are */
    DSC_PHASE_LOCAL,      /* each rank takes a step of its own along them */
    DSC_PHASE_SYNCHRONIZE /* then all ranks synchronize, by the signs of their local steps */
} dsc_onebit_phase;
dsc_onebit_phase dsc_onebit_phase_of(const dsc_onebit_policy *policy, int64_t update); /* from 1 */

#ifdef __cplusplus
}
#endif
#endif
