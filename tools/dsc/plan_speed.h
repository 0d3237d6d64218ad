/* plan_speed.h - how long a planned step takes on this machine: a few speeds, measured in about a second.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TOOLS_PLAN_SPEED_H
#define DSC_TOOLS_PLAN_SPEED_H

#include "engine/planned.h"

/* Speeds of the whole host, for any number of ranks on it. */
typedef struct plan_speed {
    double flops_per_s;                             /* of matrix products */
    double updates_per_s;                           /* elements of the optimizer, in memory */
    double copied_per_s;                            /* bytes from one place in memory to another */
    double file_read_per_s, file_written_per_s;     /* bytes, checked as swap is; 0: no files are planned */
} plan_speed;

typedef struct plan_time {
    double compute_s, wire_s, update_s; /* times of one step, by the speed of memory and cores */
    double pass_files_s, update_files_s; /* and by what files do at the same time */
    double step_s;
} plan_time;

DSC_MUST_USE dsc_status plan_speed_measure(const dsc_engine_planned *planned, plan_speed *out, dsc_error *err);
void plan_speed_predict(const dsc_engine_planned *planned, const plan_speed *speed, plan_time *out);

#endif
