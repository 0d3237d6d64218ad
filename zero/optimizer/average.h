/* average.h - moving averages of the weights over updates: an fp32 number for each element of this rank's slices.
 *
 * The first update copies the weights, and each later one moves the average by a share towards them, as
 * torch.optim.swa_utils.AveragedModel does. A step without an update changes nothing. Averages of states that the host
 * updates are in its memory. Averages of states in files stay in memory. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ZERO_OPTIMIZER_AVERAGE_H
#define DSC_ZERO_OPTIMIZER_AVERAGE_H

#include "zero/core/pass.h"

enum { DSC_AVERAGE_EXCHANGE_ELEMENTS = 1 << 18 };

typedef struct dsc_average {
    dsc_buf device_buf, host_buf; /* averages of groups in the memory of the device; of groups with offloaded states */
    dsc_buf exchange_buf;         /* elements between weights and averages, where the host sees neither */
    float **group;                /* [group_count] this rank's slice; NULL: a frozen group */
    float share;                  /* of the update under way */
    bool started;                 /* an update has been averaged */
} dsc_average;

extern const dsc_zero_pass_ops dsc_average_pass;

#endif
