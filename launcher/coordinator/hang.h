/* hang.h - the hang finder: from what the ranks' collectives are doing (base/flight_log.h), who waits for whom, and who
 * disagrees with whom. Pure: it looks at no clock and no process.
 *
 * A rank waits for the ranks that have not entered its collective. Those ranks may wait for others in another
 * collective, so the finder follows the waits. It ends at a rank that waits for nobody, at a stopped rank, or in a
 * circle. A rank that is stopped while nobody waits (it is alone, or all ranks are stopped) is late by itself.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_LAUNCHER_COORDINATOR_HANG_H
#define DSC_LAUNCHER_COORDINATOR_HANG_H

#include "base/flight_log.h"
#include "launcher/plan/resources.h"

/* Calls in which ranks are at odds are left to the ranks themselves for so long: most transports say it better. */
#define DSC_HANG_ODDS_NS INT64_C(1500000000)
/* And waits for so long after the ranks' own timeout. */
#define DSC_HANG_SLACK_NS INT64_C(1000000000)

typedef enum dsc_hang_kind {
    DSC_HANG_NONE,
    DSC_HANG_LATE,   /* `waiter` waits for `culprit`, or with all others for nobody (culprit -1) */
    DSC_HANG_CIRCLE, /* `waiter` and `culprit` wait for each other, maybe through others */
    DSC_HANG_ODDS   /* `waiter` and `culprit` are in collectives that are not the same */
} dsc_hang_kind;

typedef struct dsc_hang {
    dsc_hang_kind kind;
    int32_t waiter, culprit;
    dsc_flight_call call;  /* of the waiter */
    dsc_flight_call other; /* LATE: the culprit's last in the same lane, if has_other; ODDS: the one at odds */
    int32_t channel;
    bool has_other;
    bool behind;           /* LATE: the culprit gave the call to its GPU, which was not seen to come to it */
    bool some_unknown;     /* another launcher has started some ranks: they have no view */
} dsc_hang;

/* view[] by rank. limit_ns: longest allowed wait; 0: each rank's own timeout and the slack above. `ended`: some rank
 * gave up, so calls that failed count, and waits of any length. When no wait is seen then (GPUs wait by themselves), a
 * stopped rank is the culprit, and waiter is -1. */
void dsc_hang_find(const dsc_flight_view *view, int32_t count, int64_t limit_ns, bool ended, dsc_hang *out);

/* One line, without a prefix. */
enum { DSC_HANG_LINE_BYTES = 900 };
void dsc_hang_describe(const dsc_hang *hang, const dsc_flight_view *view, const dsc_launcher_plan *plan,
                       char out[DSC_HANG_LINE_BYTES]);
/* "rank 2 waits for rank 1 in ..." of a rank that waits; false: it does not. */
bool dsc_hang_describe_wait(const dsc_flight_view *view, int32_t count, int32_t rank, bool ended,
                            char out[DSC_HANG_LINE_BYTES]);
/* Exit code of a job that ends for the finding. */
int dsc_hang_code(const dsc_hang *hang);

#endif
