/* chaos.h - the faults of --chaos SPEC, for tests of jobs whose ranks leave and join.
 *
 *   SPEC := ITEM[,ITEM...]      ITEM := NAME=NUMBER
 *   seed=N    seed of which rank and when; default: 1
 *   kill=S    about every S seconds a rank is killed (SIGKILL); the time between two is 0.5 S to 1.5 S
 *   stop=S    a rank is stopped (SIGSTOP)
 *   leave=S   a rank is asked to leave (SIGTERM)
 *   cut=S     the connection to the agent of a host is cut; over several hosts only
 *   late=MS   each process waits up to MS milliseconds before it starts
 *   disk=MS   each file operation of a checkpoint waits MS milliseconds
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_LAUNCHER_PLAN_CHAOS_H
#define DSC_LAUNCHER_PLAN_CHAOS_H

#include "base/base.h"

typedef enum dsc_chaos_kind {
    DSC_CHAOS_KILL,
    DSC_CHAOS_STOP,
    DSC_CHAOS_LEAVE,
    DSC_CHAOS_CUT,
    DSC_CHAOS_KINDS
} dsc_chaos_kind;

typedef struct dsc_chaos_spec {
    bool given;
    int64_t seed;
    int64_t every_ms[DSC_CHAOS_KINDS]; /* mean time between two faults; 0: none */
    int64_t late_ms, disk_ms;
} dsc_chaos_spec;

DSC_MUST_USE dsc_status dsc_chaos_parse(const char *text, dsc_chaos_spec *out, dsc_error *err);

#endif
