/* report.h - the final report of a job: the culprit, the culprit's last output, and the job's one error line.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_LAUNCHER_COORDINATOR_REPORT_H
#define DSC_LAUNCHER_COORDINATOR_REPORT_H

#include "launcher/coordinator/watch.h"
#include "launcher/output/output.h"
#include "launcher/plan/resources.h"
#include "launcher/protocol/verdict.h"

/* Borrowed for the call. */
typedef struct dsc_report {
    dsc_output *out;
    const dsc_launcher_plan *plan;
    const char *program;
    int32_t first_rank, rank_count; /* that this launcher started, and `out` knows */
    const dsc_watch *watch;
    const dsc_rank_end *end; /* [rank_count]; pid 0: never started, or its end is unknown */
    bool stderr_unseen;      /* the ranks' stderr does not pass through us */
    bool last;               /* no restart follows: the job's one "dsc: error:" line is due */
} dsc_report;

/* The rank that the job ends for: its last lines, how it ended, and its own error line or ours. */
void dsc_report_rank(const dsc_report *report, const dsc_rank_end *culprit);
/* The finding of the hang finder. */
void dsc_report_found(const dsc_report *report);
/* Errors that were held back although no rank is to blame: of a rank that did not end because of another. */
void dsc_report_others(const dsc_report *report);
/* Whether our own output was lost. */
void dsc_report_lost_output(dsc_output *out);

#endif
