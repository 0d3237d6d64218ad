/* onebit.h - the state of the optimizers whose ranks exchange signs (onebit.c).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ZERO_OPTIMIZER_ONEBIT_H
#define DSC_ZERO_OPTIMIZER_ONEBIT_H

#include "zero/core/pass.h"

/* The part of a group's state. */
typedef struct dsc_group_onebit {
    float *local_update, *shared; /* values of the whole group, in the buffers below */
} dsc_group_onebit;

typedef struct dsc_onebit {
    dsc_onebit_phase error_phase; /* phase that the errors are left over from; SUMS: there are none */
    dsc_buf local_update_buf; /* the sum of a rank's local steps, trainable groups */
    dsc_buf shared_buf;       /* and the weights at which the local steps began */
    bool has_local_steps;     /* this rank has taken local steps that are not synchronized */
    int64_t steps;            /* their number */
    double decays[DSC_UPDATE_CLASSES_MAX], rates[DSC_UPDATE_CLASSES_MAX]; /* product of decays; sum of rates */
    float eps[DSC_UPDATE_CLASSES_MAX]; /* eps of the last local step; a save may synchronize after it */
} dsc_onebit;

/* Collective; the streams are idle. Adds the errors and the local steps of all ranks to the moments or the weights. */
dsc_status dsc_onebit_settle(dsc_zero *zero, double beta1, dsc_error *err);

extern const dsc_zero_pass_ops dsc_onebit_pass;

#endif
