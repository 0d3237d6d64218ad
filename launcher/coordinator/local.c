/* local.c - the agent of a one-host job within the coordinator's own process.
 *
 * An order is a step of the agent's machine, and output of the ranks goes to the launcher's own at once. The newest
 * notice waits here, because the coordinator's machine may be in a step. Older notices are not needed: a notice repeats
 * every end that the coordinator has not seen (control.h).
 * SPDX-License-Identifier: Apache-2.0 */
#include <unistd.h>

#include "base/clock.h"
#include "launcher/coordinator/coordinator.h"
#include "launcher/node/host_agent.h"

typedef struct local_agent {
    dsc_host_agent agent;
    bool has_notice;
    dsc_notice notice;
    dsc_rank_end *end; /* [rank_count] */
} local_agent;

/* ---- what the agent says ---- */

static dsc_status prepare(void *user, dsc_host_task *task, char ***env, dsc_error *err)
{
    extern char **environ;
    const dsc_coordinator_worker *c = user;
    task->program = c->job->program;
    task->launcher_pid = c->job->launcher_pid;
    return dsc_environ_with(c->job->alloc, environ, task->exports, env, err);
}

/* Views of the ranks of other launchers (--no_ssh) stay unknown. */
static bool update_views(dsc_coordinator_worker *c, int64_t now_ns)
{
    const dsc_host_agent *agent = &c->local->agent;
    for (int32_t i = 0; dsc_host_agent_runs(agent) && i < agent->task.rank_count; i++) {
        dsc_flight_view *view = dsc_watch_view(&c->watch, dsc_worlds_rank(c, agent->task.first_rank + i));
        if (view != NULL)
            dsc_ranks_flight(&agent->ranks, i, now_ns, view);
    }
    return true;
}

static void keep_notice(void *user, const dsc_notice *notice)
{
    dsc_coordinator_worker *c = user;
    const dsc_rank_end *last = notice->end_count > 0 ? &notice->end[notice->end_count - 1] : NULL;
    c->local->notice = *notice;
    c->local->has_notice = true;
    if (last != NULL && last->code == dsc_status_exit_code(DSC_ERR_STUCK) &&
        c->machine.verdict.phase == DSC_VERDICT_RUN)
        update_views(c, dsc_clock_ns()); /* before any rank is signalled to end */
}

static void keep_problem(void *user, uint32_t epoch, const dsc_error *err)
{
    dsc_coordinator_worker *c = user;
    c->remote[0].problem = *err;
    c->remote[0].has_problem = true;
}

static void log_late_ranks(void *user)
{
    dsc_coordinator_worker *c = user;
    const dsc_ranks *ranks = &c->local->agent.ranks;
    for (int32_t i = 0; i < ranks->count && c->machine.verdict.user_signal != 0 && !c->signals.orphaned; i++)
        if (!ranks->rank[i].ended)
            dsc_output_log(c->out, "dsc-launch: rank %d (pid %d) did not end in time: killed",
                           ranks->task->first_rank + i, (int)ranks->rank[i].pid);
}

static void pause_agent(dsc_coordinator_worker *c, int which, bool paused)
{
    dsc_host_agent_pause(&c->local->agent, which, paused);
}

static void show_output(void *user, int32_t index, int which, const char *text, size_t bytes, int64_t now_ns)
{
    dsc_coordinator_worker *c = user;
    if (bytes == 0)
        dsc_output_end(c->out, index, which, now_ns);
    else
        dsc_output_feed(c->out, index, which, text, bytes, now_ns);
    if (dsc_output_full(c->out, which))
        pause_agent(c, which, true);
}

static void take_report(void *user, int32_t index, const uint8_t *packet, size_t bytes)
{
    dsc_coordinator_worker *c = user;
    dsc_worlds_report(c, c->remote[0].first_rank + index, packet, bytes);
}

static const dsc_host_agent_ops agent_ops = { .prepare = prepare,
                                              .notice = keep_notice,
                                              .start_failed = keep_problem,
                                              .killing = log_late_ranks,
                                              .output = show_output,
                                              .report = take_report };

/* ---- what the coordinator wants ---- */

static dsc_status open_agent(dsc_coordinator_worker *c, dsc_error *err)
{
    dsc_alloc *alloc = c->job->alloc;
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, 1, (int64_t)sizeof *c->local, &c->local, err));
    return dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, c->host[0].rank_count, (int64_t)sizeof *c->local->end,
                            &c->local->end, err);
}

/* With one rank as little as possible stands between it and the user: its stdout is ours, and its stderr too when that
 * is a terminal. A file or a pipe at stderr is written through us, to know whether the rank said why it failed. */
static dsc_spawn_pipes choose_pipes(const dsc_coordinator_worker *c)
{
    const bool same = dsc_output_sink_count(c->out) == 1;
    if (c->rank_count > 1 || c->job->opt->rank_log_dir != NULL)
        return (dsc_spawn_pipes){ true, true, same };
    if (isatty(2) == 1)
        return (dsc_spawn_pipes){ false, false, false };
    return (dsc_spawn_pipes){ same, true, same };
}

static dsc_status connect_agent(dsc_coordinator_worker *c, int32_t index, dsc_error *err)
{
    const dsc_job *job = c->job;
    dsc_host_agent *agent = &c->local->agent;
    *agent = (dsc_host_agent){ .alloc = job->alloc,
                               .ops = &agent_ops,
                               .user = c,
                               .epoll_fd = c->epoll_fd,
                               .setup = { .mask = job->rank_mask, .has_input = !job->background },
                               .pipes = choose_pipes(c),
                               .end = c->local->end,
                               .rank_limit = c->host[index].rank_count };
    dsc_host_agent_open(agent);
    agent->machine.direct = true;
    c->stderr_unseen = !agent->pipes.err;
    dsc_coordinator_worker_step(c, (dsc_coordinator_event){ .kind = DSC_COORDINATOR_HELLO, .host = index });
    return DSC_OK;
}

static void drop_agent(dsc_coordinator_worker *c, int32_t index)
{
    dsc_host_agent_close(&c->local->agent);
    c->local->has_notice = false;
}

static void close_agent(dsc_coordinator_worker *c)
{
    if (c->local == NULL)
        return;
    drop_agent(c, 0);
    dsc_alloc_free(c->job->alloc, c->local->end);
    dsc_alloc_free(c->job->alloc, c->local);
    c->local = NULL;
}

static void send_task(dsc_coordinator_worker *c, int32_t index, dsc_host_task *task)
{
    dsc_host_agent *agent = &c->local->agent;
    if (!agent->pipes.out) /* the rank sees the terminal itself */
        task->tty_columns = 0;
    dsc_host_agent_set_task(agent, c->machine.epoch, task);
}

static void send_order(dsc_coordinator_worker *c, int32_t index, const dsc_order *order)
{
    dsc_host_agent_step(&c->local->agent, (dsc_agent_event){ .kind = DSC_AGENT_ORDER, .order = order });
    dsc_host_agent_start(&c->local->agent);
}

static void send_call(dsc_coordinator_worker *c, int32_t index, int32_t rank, const uint8_t *packet, size_t bytes)
{
    dsc_host_agent_call(&c->local->agent, c->machine.epoch, rank, packet, bytes);
}

static const char *address(const dsc_coordinator_worker *c, int32_t index) { return c->job->plan->master_addr; }

/* ---- the loop ---- */

static void flush(dsc_coordinator_worker *c) {}

static int64_t wake_ns(dsc_coordinator_worker *c)
{
    const local_agent *local = c->local;
    if (local->agent.alloc == NULL)
        return INT64_MAX;
    if (local->has_notice || local->agent.leaves)
        return 0;
    const bool looks = dsc_host_agent_runs(&local->agent) && c->machine.verdict.phase == DSC_VERDICT_RUN;
    return dsc_min_i64(dsc_host_agent_wake_ns(&local->agent), looks ? c->look_at_ns : INT64_MAX);
}

static void on_event(dsc_coordinator_worker *c, const dsc_loop_event *event, int64_t now_ns)
{
    dsc_host_agent_on_event(&c->local->agent, event, now_ns);
}

static void tend(dsc_coordinator_worker *c)
{
    local_agent *local = c->local;
    if (local->agent.alloc == NULL)
        return;
    dsc_host_agent_tend(&local->agent);
    while (local->has_notice) {
        const dsc_notice notice = local->notice;
        local->has_notice = false;
        dsc_coordinator_worker_step(c, (dsc_coordinator_event){ .kind = DSC_COORDINATOR_NOTICE, .notice = &notice });
    }
    if (local->agent.leaves)
        dsc_coordinator_worker_step(c, (dsc_coordinator_event){ .kind = DSC_COORDINATOR_CLOSED });
}

static bool has_output(const dsc_coordinator_worker *c) { return false; }

const dsc_agents_ops dsc_local_agent = { .direct = true,
                                         .open = open_agent,
                                         .connect = connect_agent,
                                         .drop = drop_agent,
                                         .send_task = send_task,
                                         .send_order = send_order,
                                         .send_call = send_call,
                                         .address = address,
                                         .flush = flush,
                                         .wake_ns = wake_ns,
                                         .event = on_event,
                                         .tend = tend,
                                         .update_views = update_views,
                                         .pause = pause_agent,
                                         .has_output = has_output,
                                         .close = close_agent };
