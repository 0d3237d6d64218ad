/* worlds.h - driver of a job's membership (protocol/membership.h). It adds tokens to calls, writes lines about ranks
 * that come and go, and kills ranks that are stopped or stuck.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_LAUNCHER_COORDINATOR_WORLDS_H
#define DSC_LAUNCHER_COORDINATOR_WORLDS_H

#include "launcher/coordinator/watch.h"
#include "launcher/protocol/control.h"

struct dsc_coordinator_worker;

/* A rank that is stopped for so long counts as dead, as a launcher's process does (process/job.h). */
#define DSC_WORLDS_STOPPED_NS INT64_C(2000000000)

typedef struct dsc_worlds {
    dsc_membership membership; /* count 0: the ranks are fixed */
    dsc_slot *slot;
    uint32_t token_generation; /* of the token */
    int32_t master_host;       /* of rank 0 of the newest world */
    char token[DSC_WORLD_TOKEN_CHARS + 1];
} dsc_worlds;

/* With --min_np; else nothing. After the machine was initialised. */
DSC_MUST_USE dsc_status dsc_worlds_open(struct dsc_coordinator_worker *c, dsc_error *err);
void dsc_worlds_close(struct dsc_coordinator_worker *c); /* safe on a zeroed one */
/* The number of a slot's rank in the newest world, -1: it is in none; where ranks are fixed, the slot's own. */
int32_t dsc_worlds_rank(const struct dsc_coordinator_worker *c, int32_t slot);
/* A packet came from the rank in a slot. */
void dsc_worlds_report(struct dsc_coordinator_worker *c, int32_t slot, const uint8_t *packet, size_t bytes);
void dsc_worlds_on_action(struct dsc_coordinator_worker *c, const dsc_membership_action *action);
/* A rank of the world that is stopped is killed. */
void dsc_worlds_look(struct dsc_coordinator_worker *c);
/* The hang finder found something: true when its culprit is killed, and the job goes on without it. */
bool dsc_worlds_kill_culprit(struct dsc_coordinator_worker *c);
/* Too few ranks were left, so the job has ended: reports it, and returns the exit code. 0: that is not so. */
int dsc_worlds_outcome(struct dsc_coordinator_worker *c);

#endif
