/* outcome.c - exit code and error line of a job. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "launcher/coordinator/coordinator.h"
#include "launcher/coordinator/report.h"
#include "launcher/coordinator/restart.h"

static bool verdict_restarts(const dsc_coordinator_worker *c)
{
    const dsc_verdict *v = &c->machine.verdict;
    const int32_t limit = c->job->opt->restart_limit;
    if (v->culprit_known)
        return dsc_restart_allowed(&v->culprit, c->restart_count, limit);
    return (v->found_code != 0 || v->lost_host >= 0) && c->restart_count < limit;
}

bool dsc_coordinator_may_restart(const dsc_coordinator_worker *c)
{
    for (int32_t i = 0; i < c->host_count; i++)
        if (c->host[i].direct && c->host[i].phase == DSC_HOST_LOST) /* a rank here could not be killed */
            return false;
    return dsc_coordinator_waits(c) && c->machine.user_signal == 0 && !c->machine.host_failed &&
           !c->machine.start_failed && c->machine.verdict.user_signal == 0 && verdict_restarts(c);
}

/* "ranks 2 to 5" of a host. */
static const char *ranks_of(const dsc_coordinator_worker *c, int32_t index, char out[64])
{
    const int32_t first = c->remote[index].first_rank, count = c->host[index].rank_count;
    if (count == 1)
        snprintf(out, 64, "rank %d", first);
    else
        snprintf(out, 64, "ranks %d to %d", first, first + count - 1);
    return out;
}

static void say_error(dsc_coordinator_worker *c, const dsc_error *err)
{
    char text[800];
    dsc_output_log(c->out, "dsc: error: %s", dsc_error_format(err, text, sizeof text));
}

/* One error line for the job; other hosts that cannot be had are named before it. */
static int say_failures(dsc_coordinator_worker *c)
{
    int32_t first = -1;
    for (int32_t i = c->host_count - 1; i >= 0; i--)
        if (c->host[i].phase == DSC_HOST_FAILED && c->remote[i].has_failure)
            first = i;
    DSC_ASSERT(first >= 0);
    for (int32_t i = first + 1; i < c->host_count; i++) {
        char text[800];
        if (c->host[i].phase == DSC_HOST_FAILED && c->remote[i].has_failure)
            dsc_output_log(c->out, "dsc-launch: %s", dsc_error_format(&c->remote[i].failure, text, sizeof text));
    }
    say_error(c, &c->remote[first].failure);
    return dsc_status_exit_code(c->remote[first].failure.status);
}

static int say_problem(dsc_coordinator_worker *c)
{
    for (int32_t i = 0; i < c->host_count; i++) {
        const dsc_error *problem = &c->remote[i].problem;
        if (!c->remote[i].has_problem)
            continue;
        if (c->host[i].direct)
            say_error(c, problem);
        else
            dsc_output_log(c->out, "dsc: error: %s: %s (host %s)", problem->where, problem->message,
                           c->remote[i].name);
        return dsc_status_exit_code(problem->status);
    }
    dsc_output_log(c->out, "dsc: error: dsc-launch: the ranks could not be started");
    return dsc_status_exit_code(DSC_ERR_PEER);
}

static int say_lost(dsc_coordinator_worker *c, int32_t index)
{
    const dsc_remote *remote = &c->remote[index];
    char ranks[64];
    if (remote->silent)
        dsc_output_log(c->out,
                       "dsc: error: host %s: nothing was received from it for %d s, or its agent got a signal; "
                       "%s there ended with it; is the host or the link to it down?",
                       remote->name, (int)(DSC_CONTROL_LEASE_NS / INT64_C(1000000000)), ranks_of(c, index, ranks));
    else
        dsc_output_log(c->out,
                       "dsc: error: host %s: the connection to its agent was lost (%s ended with code %d); %s "
                       "there ended with it",
                       remote->name, remote->is_local ? "it" : "ssh", remote->lost_code, ranks_of(c, index, ranks));
    return dsc_status_exit_code(DSC_ERR_PEER);
}

/* Seen by the user only when the launcher was stopped and goes on. */
static int say_orphaned(const dsc_coordinator_worker *c)
{
    dsc_output_log(c->out,
                   "dsc: error: dsc-launch: the launcher (pid %d) was stopped or killed; all ranks were "
                   "ended",
                   (int)c->job->launcher_pid);
    return dsc_status_exit_code(DSC_ERR_PEER);
}

static int say_verdict(const dsc_coordinator_worker *c, const dsc_report *report)
{
    const dsc_verdict *v = &c->machine.verdict;
    if (v->culprit_known) {
        dsc_report_rank(report, &v->culprit);
        return v->culprit.code;
    }
    if (v->found_code != 0) {
        dsc_report_found(report);
        return v->found_code;
    }
    dsc_report_others(report);
    return v->user_signal != 0 ? 128 + v->user_signal : 0;
}

static int decide(dsc_coordinator_worker *c, const dsc_report *report)
{
    const dsc_verdict *v = &c->machine.verdict;
    if (c->signals.orphaned)
        return say_orphaned(c);
    if (c->early_signal != 0)
        return 128 + c->early_signal;
    if (c->machine.host_failed)
        return say_failures(c);
    if (c->machine.start_failed)
        return say_problem(c);
    if (!v->culprit_known && v->lost_host >= 0)
        return say_lost(c, v->lost_host);
    const int shortage = v->user_signal == 0 ? dsc_worlds_outcome(c) : 0;
    return shortage != 0 ? shortage : say_verdict(c, report);
}

int dsc_coordinator_finish(dsc_coordinator_worker *c, bool last)
{
    const dsc_job *job = c->job;
    const char *program = job->program[0] != 0 ? job->program : job->opt->program.argv[0];
    const dsc_report report = { .out = c->out,
                                .plan = job->plan,
                                .first_rank = c->remote[0].first_rank,
                                .rank_count = c->rank_count,
                                .program = program,
                                .stderr_unseen = c->stderr_unseen,
                                .watch = &c->watch,
                                .end = c->end,
                                .last = last };
    for (int32_t rank = 0; rank < c->rank_count; rank++)
        for (int which = 0; which < dsc_output_sink_count(c->out); which++)
            dsc_output_end(c->out, rank, which, 0); /* a host that was lost left unfinished lines */
    return decide(c, &report);
}
