/* discovery.h - the hosts that --host_discovery_script prints, about once a second: "name:slots" or "name" a line.
 *
 * Hosts and slots are those of the plan. A slot that the script no longer prints is left by its rank, and one that it
 * prints again is filled. A script that fails, prints too much or takes longer than 30 s changes nothing.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_LAUNCHER_COORDINATOR_DISCOVERY_H
#define DSC_LAUNCHER_COORDINATOR_DISCOVERY_H

#include <sys/types.h>

#include "base/base.h"

struct dsc_coordinator_worker;

enum { DSC_DISCOVERY_TEXT_MAX = 64 * 1024 };

typedef struct dsc_discovery {
    int fd;           /* stdout of the script; -1: it does not run */
    pid_t pid;        /* its group */
    int64_t kill_ns;  /* it is killed then */
    int64_t start_ns; /* next start */
    int32_t *slots;   /* [host_count] of the last result */
    size_t bytes;
    char text[DSC_DISCOVERY_TEXT_MAX];
    bool reported; /* a result that is not used */
} dsc_discovery;

/* Runs the script once and waits for its result: the job begins with these slots. */
DSC_MUST_USE dsc_status dsc_discovery_open(struct dsc_coordinator_worker *c, dsc_error *err);
void dsc_discovery_close(struct dsc_coordinator_worker *c); /* safe on a zeroed one */
int64_t dsc_discovery_wake_ns(const struct dsc_coordinator_worker *c);
/* Its output can be read. */
void dsc_discovery_on_event(struct dsc_coordinator_worker *c);
/* In every pass of the loop. */
void dsc_discovery_tend(struct dsc_coordinator_worker *c, int64_t now_ns);

#endif
