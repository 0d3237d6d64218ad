/* worlds.c - see worlds.h. SPDX-License-Identifier: Apache-2.0 */
#include "launcher/coordinator/worlds.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "launcher/coordinator/coordinator.h"

dsc_status dsc_worlds_open(dsc_coordinator_worker *c, dsc_error *err)
{
    const dsc_launcher_options *opt = c->job->opt;
    const int32_t most = opt->most_ranks > 0 ? (int32_t)dsc_min_i64(opt->most_ranks, c->rank_count) : c->rank_count;
    const dsc_membership_limits limits = { .least = opt->least_ranks,
                                           .most = most,
                                           .first = opt->first_ranks > 0 ? (int32_t)dsc_min_i64(opt->first_ranks, most)
                                                                         : most,
                                           .wait_ns = opt->elastic_timeout_s * INT64_C(1000000000),
                                           .replacements = opt->reset_limit };
    if (opt->least_ranks == 0)
        return DSC_OK;
    DSC_TRY(dsc_alloc_zeroed(c->job->alloc, DSC_TAG_CONTROL, c->rank_count, (int64_t)sizeof *c->worlds.slot,
                             &c->worlds.slot, err));
    dsc_coordinator_set_membership(&c->machine, &c->worlds.membership, c->worlds.slot, c->rank_count, &limits);
    return DSC_OK;
}

void dsc_worlds_close(dsc_coordinator_worker *c)
{
    dsc_alloc_free(c->job->alloc, c->worlds.slot);
    c->worlds = (dsc_worlds) { .slot = NULL };
}

int32_t dsc_worlds_rank(const dsc_coordinator_worker *c, int32_t slot)
{
    if (c->machine.membership == NULL)
        return slot;
    return c->worlds.slot[slot].phase == DSC_SLOT_MEMBER ? c->worlds.slot[slot].rank : -1;
}

void dsc_worlds_report(dsc_coordinator_worker *c, int32_t slot, const uint8_t *packet, size_t bytes)
{
    dsc_world_report report;
    if (c->machine.membership != NULL && dsc_world_report_get(packet, bytes, &report))
        dsc_coordinator_worker_step(
            c, (dsc_coordinator_event) { .kind = DSC_COORDINATOR_REPORT, .slot = slot, .report = &report });
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

/* Rank 0's call comes first, and all ranks meet at its host. */
static bool complete(dsc_coordinator_worker *c, int32_t host, dsc_world_call *call)
{
    dsc_error err = DSC_ERROR_INIT;
    if (call->kind != DSC_WORLD_CALL_WORLD)
        return true;
    if (c->worlds.token_generation != call->generation && dsc_job_token_new(c->worlds.token, &err) != DSC_OK)
        return false;
    c->worlds.token_generation = call->generation;
    if (call->rank == 0)
        c->worlds.master_host = host;
    memcpy(call->token, c->worlds.token, sizeof call->token);
    call->master_port = c->job->plan->master_port;
    snprintf(call->master_addr, sizeof call->master_addr, "%s", c->agents->address(c, c->worlds.master_host));
    return true;
}

static void send_call(dsc_coordinator_worker *c, const dsc_membership_action *action)
{
    uint8_t packet[DSC_WORLD_PACKET_MAX];
    dsc_world_call call = action->call;
    const int32_t host = c->worlds.slot[action->slot].host;
    if (!complete(c, host, &call))
        return; /* its rank waits, and the launcher could not have started one either */
    const size_t bytes = dsc_world_call_put(&call, packet);
    c->agents->send_call(c, host, action->slot - (c->remote[host].first_rank - c->remote[0].first_rank), packet, bytes);
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */

/* "killed by SIGKILL" */
static const char *end_text(const dsc_rank_end *end, char out[64])
{
    char name[32];
    if (end->signal != 0)
        snprintf(out, 64, "killed by %s", dsc_signal_name(end->signal, name));
    else if (end->pid == 0)
        snprintf(out, 64, "its host is gone, or cannot start it");
    else
        snprintf(out, 64, "ended with code %d", end->code);
    return out;
}

static void say(dsc_coordinator_worker *c, const dsc_membership_action *a)
{
    char text[64];
    const char *s = a->size == 1 ? "" : "s";
    switch (a->event) {
    case DSC_MEMBERSHIP_STARTED:
        dsc_output_log(c->out, "dsc-launch: slot %d: a process is started", (int)a->slot);
        break;
    case DSC_MEMBERSHIP_LOST: {
        const int32_t rank = c->worlds.slot[a->slot].rank;
        char who[32] = "";
        if (rank >= 0)
            snprintf(who, sizeof who, "rank %d of world %u, ", (int)rank, a->generation);
        dsc_output_log(c->out, "dsc-launch: slot %d is lost: %spid %d, %s", (int)a->slot, who, (int)a->end->pid,
                       end_text(a->end, text));
        break;
    }
    case DSC_MEMBERSHIP_LEFT:
        dsc_output_log(c->out, "dsc-launch: slot %d: its rank has left", (int)a->slot);
        break;
    case DSC_MEMBERSHIP_JOINS:
        dsc_output_log(c->out, "dsc-launch: slot %d: a new rank waits to join", (int)a->slot);
        break;
    case DSC_MEMBERSHIP_FORMED:
        dsc_output_log(c->out, "dsc-launch: world %u: %d rank%s", a->generation, (int)a->size, s);
        break;
    case DSC_MEMBERSHIP_GOES_ON:
        if (a->generation > 1)
            dsc_output_log(c->out, "dsc-launch: world %u: step %lld is done, %.3f s after the world before it ended",
                           a->generation, (long long)a->step, (double)a->since_ns * 1e-9);
        break;
    case DSC_MEMBERSHIP_TOO_FEW:
        dsc_output_log(c->out, "dsc-launch: %d rank%s left, fewer than --min_np %d", (int)a->size,
                       a->size == 1 ? " is" : "s are", (int)c->worlds.membership.limits.least);
        break;
    }
}

void dsc_worlds_on_action(dsc_coordinator_worker *c, const dsc_membership_action *action)
{
    if (action->kind == DSC_MEMBERSHIP_DO_CALL) {
        send_call(c, action);
        return;
    }
    if (action->event == DSC_MEMBERSHIP_FORMED)
        dsc_watch_set_world(&c->watch, action->size);
    if (c->job->opt->log_level >= DSC_LAUNCHER_INFO)
        say(c, action);
}

/* ---- stopped and stuck ranks ------------------------------------------------------------------------------------- */

static void kill_rank(dsc_coordinator_worker *c, int32_t rank)
{
    for (int32_t i = 0; i < c->worlds.membership.count; i++)
        if (c->worlds.slot[i].phase == DSC_SLOT_MEMBER && c->worlds.slot[i].rank == rank)
            dsc_coordinator_worker_step(
                c, (dsc_coordinator_event) { .kind = DSC_COORDINATOR_SIGNAL, .slot = i, .signal = SIGKILL });
}

void dsc_worlds_look(dsc_coordinator_worker *c)
{
    for (int32_t r = 0; c->machine.membership != NULL && r < c->watch.rank_count; r++) {
        if (c->watch.stopped_ns[r] < DSC_WORLDS_STOPPED_NS)
            continue;
        dsc_output_log(c->out, "dsc-launch: rank %d of world %u (pid %d) is stopped: it is killed", (int)r,
                       c->worlds.membership.generation, (int)c->watch.view[r].pid);
        c->watch.stopped_ns[r] = 0;
        kill_rank(c, r);
    }
}

bool dsc_worlds_kill_culprit(dsc_coordinator_worker *c)
{
    const dsc_hang *hang = &c->watch.hang;
    if (c->machine.membership == NULL || hang->kind != DSC_HANG_LATE || hang->culprit < 0)
        return false;
    dsc_output_log(c->out, "dsc-launch: %s; rank %d is killed", c->watch.line[0], (int)hang->culprit);
    kill_rank(c, hang->culprit);
    dsc_watch_forget(&c->watch);
    return true;
}

int dsc_worlds_outcome(dsc_coordinator_worker *c)
{
    const dsc_membership *m = &c->worlds.membership;
    char saved[64] = "nothing is saved";
    if (c->machine.membership == NULL || c->machine.verdict.culprit_known ||
        (!m->last && c->machine.verdict.found_code == 0) || c->watch.line_count > 0)
        return 0;
    if (m->saved)
        snprintf(saved, sizeof saved, "step %lld is saved", (long long)m->step);
    dsc_output_log(c->out, "dsc: error: dsc-launch: %d rank%s left, fewer than --min_np %d, and no other came; %s",
                   (int)m->size, m->size == 1 ? " is" : "s are", (int)m->limits.least, saved);
    return dsc_status_exit_code(DSC_ERR_PEER);
}
