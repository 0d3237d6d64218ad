/* steps.c - steps of a job's state machine, and what they ask for.
 *
 * A step of the machine may want things that lead to further steps; those are noted, and done when it has returned
 * (settle). The agents of local.c and stream.c step the machine too, so the steps are below them and coordinator.c.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/clock.h"
#include "launcher/coordinator/coordinator.h"

void dsc_coordinator_worker_step(dsc_coordinator_worker *c, dsc_coordinator_event event)
{
    event.now_ns = dsc_clock_ns();
    dsc_coordinator_step(&c->machine, &event);
}

/* ---- actions of the state machine ---- */

static void send_task(dsc_coordinator_worker *c, int32_t index)
{
    const dsc_job *job = c->job;
    dsc_host_task task;
    dsc_host_task_of_plan(job->plan, c->first_host + index, c->devices, &task);
    memcpy(task.job_token, c->job_token, sizeof task.job_token);
    task.core_list = job->opt->core_list != NULL ? job->opt->core_list : "";
    task.bind_cores = job->opt->bind_cores;
    task.folder = c->folder;
    task.argv = job->opt->program.argv;
    task.exports = c->exports.entry;
    task.tty_columns = job->opt->rank_log_dir == NULL ? dsc_output_columns(c->out) : 0;
    task.restart_count = c->restart_count;
    task.restart_limit = job->opt->restart_limit;
    task.one_stream = dsc_output_sink_count(c->out) == 1;
    task.late_ms = (int32_t)job->opt->chaos.late_ms;
    task.disk_ms = (int32_t)job->opt->chaos.disk_ms;
    task.least_ranks = job->opt->least_ranks;
    if (task.least_ranks > 0)
        task.most_ranks = job->opt->most_ranks > 0 ? job->opt->most_ranks : job->plan->world_size;
    task.rank0_only = job->opt->rank_log_dir != NULL;
    c->agents->send_task(c, index, &task);
}

void dsc_coordinator_on_action(void *user, const dsc_coordinator_action *action)
{
    dsc_coordinator_worker *c = user;
    dsc_remote *remote = action->host >= 0 ? &c->remote[action->host] : NULL;
    switch (action->kind) {
    case DSC_COORDINATOR_DO_CONNECT: remote->connect_wanted = true; break;
    case DSC_COORDINATOR_DO_READY: c->ready = true; break;
    case DSC_COORDINATOR_DO_TASK: send_task(c, action->host); break;
    case DSC_COORDINATOR_DO_ORDER:
        if (!remote->drop_wanted)
            c->agents->send_order(c, action->host, &action->order);
        break;
    case DSC_COORDINATOR_DO_ENDED:
        c->end[action->end->rank - c->remote[0].first_rank] = *action->end;
        if (c->machine.verdict.phase == DSC_VERDICT_RUN) /* no rank was signalled to end yet */
            dsc_watch_ended(&c->watch, c->job->plan, action->end->code);
        break;
    case DSC_COORDINATOR_DO_MEMBERSHIP:
        dsc_worlds_on_action(c, action->membership);
        break;
    case DSC_COORDINATOR_DO_DROP: remote->drop_wanted = true; break;
    case DSC_COORDINATOR_DO_LOST:
        remote->lost = true;
        remote->silent = action->silent;
        break;
    case DSC_COORDINATOR_DO_OVER: c->over = true; break;
    case DSC_COORDINATOR_DO_LEFT: c->left = true; break;
    }
}

static void connect_host(dsc_coordinator_worker *c, int32_t index)
{
    dsc_remote *remote = &c->remote[index];
    remote->connect_wanted = false;
    remote->has_failure = remote->has_problem = remote->lost = false;
    if (c->agents->connect(c, index, &remote->failure) == DSC_OK)
        return;
    remote->has_failure = true;
    dsc_coordinator_worker_step(c, (dsc_coordinator_event){ .kind = DSC_COORDINATOR_REFUSED, .host = index });
}

static void start_run(dsc_coordinator_worker *c)
{
    c->ready = false;
    memset(c->end, 0, sizeof *c->end * (size_t)c->rank_count);
    dsc_watch_forget(&c->watch);
    c->look_at_ns = 0;
    dsc_coordinator_worker_step(c, (dsc_coordinator_event) { .kind = DSC_COORDINATOR_START });
}

void dsc_coordinator_settle(dsc_coordinator_worker *c)
{
    for (bool again = true; again;) {
        again = false;
        for (int32_t i = 0; i < c->host_count; i++) {
            again = again || c->remote[i].connect_wanted;
            if (c->remote[i].drop_wanted) {
                c->remote[i].drop_wanted = false;
                c->agents->drop(c, i);
            }
            if (c->remote[i].connect_wanted)
                connect_host(c, i);
        }
        if (c->ready) {
            again = true;
            start_run(c);
        }
    }
}
