/* chaos.h - the faults of --chaos (plan/chaos.h) at their times. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_LAUNCHER_COORDINATOR_CHAOS_H
#define DSC_LAUNCHER_COORDINATOR_CHAOS_H

#include "launcher/plan/chaos.h"

struct dsc_coordinator_worker;

typedef struct dsc_chaos {
    uint64_t random;
    int64_t at_ns[DSC_CHAOS_KINDS]; /* next one of each kind; 0: not begun */
} dsc_chaos;

/* Time of the next fault; INT64_MAX: none follows. */
int64_t dsc_chaos_wake_ns(const struct dsc_coordinator_worker *c);
/* Makes the faults that are due while the job runs. */
void dsc_chaos_act(struct dsc_coordinator_worker *c, int64_t now_ns);

#endif
