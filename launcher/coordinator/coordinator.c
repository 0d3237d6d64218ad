/* coordinator.c - see coordinator.h: the state machine of a job, its output, signals and clock.
 *
 * A step of the machine may want things that lead to further steps; those are noted, and done when it has returned
 * (settle). SPDX-License-Identifier: Apache-2.0 */
#include "launcher/coordinator/coordinator.h"

#include <string.h>

#include "base/clock.h"

#define MS INT64_C(1000000)

void dsc_coordinator_worker_step(dsc_coordinator_worker *c, dsc_coordinator_event event)
{
    event.now_ns = dsc_clock_ns();
    dsc_coordinator_step(&c->machine, &event);
}

/* ---- actions of the state machine ---- */

static void send_task(dsc_coordinator_worker *c, int32_t index)
{
    const dsc_job *job = c->loop.job;
    dsc_host_task task;
    dsc_host_task_of_plan(job->plan, c->first_host + index, c->devices, &task);
    memcpy(task.job_token, c->job_token, sizeof task.job_token);
    task.core_list = job->opt->core_list != NULL ? job->opt->core_list : "";
    task.bind_cores = job->opt->bind_cores;
    task.folder = c->folder;
    task.argv = job->opt->program.argv;
    task.exports = c->loop.exports.entry;
    task.tty_columns = job->opt->rank_log_dir == NULL ? dsc_output_columns(c->loop.out) : 0;
    task.restart_count = c->loop.restart_count;
    task.restart_limit = job->opt->restart_limit;
    task.one_stream = dsc_output_sink_count(c->loop.out) == 1;
    task.rank0_only = job->opt->rank_log_dir != NULL;
    c->agents->send_task(c, index, &task);
}

static void on_action(void *user, const dsc_coordinator_action *action)
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
        c->loop.end[action->end->rank - c->remote[0].first_rank] = *action->end;
        if (c->machine.verdict.phase == DSC_VERDICT_RUN) /* no rank was signalled to end yet */
            dsc_watch_ended(&c->loop.watch, c->loop.job->plan, action->end->code);
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
    dsc_error err = DSC_ERROR_INIT;
    c->ready = false;
    dsc_job_loop_begin_run(&c->loop);
    if (c->token_given || dsc_job_token_new(c->job_token, &err) == DSC_OK) {
        dsc_coordinator_worker_step(c, (dsc_coordinator_event){ .kind = DSC_COORDINATOR_START });
        return;
    }
    c->remote[0].failure = err;
    c->remote[0].has_failure = true;
    dsc_coordinator_worker_step(c, (dsc_coordinator_event){ .kind = DSC_COORDINATOR_REFUSED, .host = 0 });
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

/* ---- signals ---- */

static bool end_by_user(void *user, int signal_number, int64_t now_ns)
{
    dsc_coordinator_worker *c = user;
    const bool running = c->machine.phase == DSC_COORDINATOR_RUNS;
    const bool begins = running && c->machine.verdict.phase == DSC_VERDICT_RUN;
    c->loop.abandon_output = c->loop.abandon_output || !running;
    dsc_coordinator_worker_step(c, (dsc_coordinator_event){ .kind = DSC_COORDINATOR_USER, .signal = signal_number });
    return begins;
}

static void pass_signal(void *user, int signal_number)
{
    dsc_coordinator_worker_step(user, (dsc_coordinator_event){ .kind = DSC_COORDINATOR_PASS, .signal = signal_number });
}

static void give_up(void *user)
{
    dsc_coordinator_worker_step(user, (dsc_coordinator_event){ .kind = DSC_COORDINATOR_GIVE_UP, .signal = SIGKILL });
}

static int late_signal(const void *user)
{
    const dsc_coordinator_worker *c = user;
    return c->machine.user_signal;
}

/* ---- the loop ---- */

static void stop_reading(void *user, int which)
{
    dsc_coordinator_worker *c = user;
    if (!c->machine.reader_gone[which])
        dsc_coordinator_worker_step(c, (dsc_coordinator_event){ .kind = DSC_COORDINATOR_STOP_READING, .which = which });
}

static void on_event(void *user, const dsc_loop_event *event, int64_t now_ns)
{
    dsc_coordinator_worker *c = user;
    c->agents->event(c, event, now_ns);
}

static void pause_output(void *user, int which, bool paused)
{
    dsc_coordinator_worker *c = user;
    if (c->agents->pause != NULL)
        c->agents->pause(c, which, paused);
}

static bool update_views(void *user, int64_t now_ns)
{
    dsc_coordinator_worker *c = user;
    return c->agents->update_views(c, now_ns);
}

static void found(void *user, int code)
{
    dsc_coordinator_worker_step(user, (dsc_coordinator_event){ .kind = DSC_COORDINATOR_FOUND, .code = code });
}

static void poll_once(void *user, int64_t at_ns)
{
    dsc_coordinator_worker *c = user;
    dsc_coordinator_settle(c);
    dsc_job_loop_tend_output(&c->loop);
    c->agents->flush(c);
    const int64_t now_ns = dsc_clock_ns();
    at_ns = dsc_min_i64(at_ns, dsc_coordinator_wake_ns(&c->machine, now_ns));
    at_ns = dsc_min_i64(at_ns, c->agents->wake_ns(c));
    at_ns = dsc_min_i64(at_ns, dsc_signals_look(&c->loop.signals, now_ns));
    if (c->machine.phase == DSC_COORDINATOR_RUNS)
        at_ns = dsc_min_i64(at_ns, dsc_output_release(c->loop.out, now_ns));
    dsc_job_loop_wait(&c->loop, at_ns);
    c->agents->tend(c);
    dsc_job_loop_look_for_hangs(&c->loop, dsc_clock_ns());
    dsc_coordinator_worker_step(c, (dsc_coordinator_event){ .kind = DSC_COORDINATOR_TICK });
    dsc_coordinator_settle(c);
}

static bool waits_for_output(const dsc_coordinator_worker *c)
{
    bool waits = dsc_output_queued(c->loop.out) > 0 || c->agents->has_output(c);
    for (int32_t i = 0; i < c->host_count; i++)
        waits = waits || (c->host[i].phase == DSC_HOST_HERE && c->host[i].gone && !c->host[i].drained);
    return waits && dsc_job_loop_waits(&c->loop);
}

/* ---- the job ---- */

static void run(void *user)
{
    dsc_coordinator_worker *c = user;
    c->over = false;
    dsc_coordinator_worker_step(c, (dsc_coordinator_event){ .kind = DSC_COORDINATOR_CONNECT });
    while (!c->over)
        poll_once(c, INT64_MAX);
    c->early_signal = c->machine.user_signal;
    while (waits_for_output(c))
        poll_once(c, INT64_MAX);
}

static int64_t may_start_ns(const void *user)
{
    const dsc_coordinator_worker *c = user;
    return dsc_coordinator_may_connect_ns(&c->machine);
}

/* Dismisses the agents. */
static void leave(void *user)
{
    dsc_coordinator_worker *c = user;
    dsc_coordinator_worker_step(c, (dsc_coordinator_event){ .kind = DSC_COORDINATOR_QUIT });
    while (!c->left)
        poll_once(c, INT64_MAX);
}

static const dsc_job_loop_ops ops = { .run = run,
                                      .may_restart = dsc_coordinator_may_restart,
                                      .may_start_ns = may_start_ns,
                                      .finish = dsc_coordinator_finish,
                                      .leave = leave,
                                      .poll_once = poll_once,
                                      .event = on_event,
                                      .end_by_user = end_by_user,
                                      .pass_signal = pass_signal,
                                      .give_up = give_up,
                                      .late_signal = late_signal,
                                      .pause = pause_output,
                                      .stop_reading = stop_reading,
                                      .update_views = update_views,
                                      .found = found };

static dsc_status list_hosts(dsc_coordinator_worker *c, dsc_error *err)
{
    const dsc_job *job = c->loop.job;
    int32_t first_rank = dsc_plan_first_rank(job->plan, c->first_host);
    dsc_machine machine;
    DSC_TRY(dsc_alloc_zeroed(job->alloc, DSC_TAG_CONTROL, c->host_count, (int64_t)sizeof *c->host, &c->host, err));
    DSC_TRY(dsc_alloc_zeroed(job->alloc, DSC_TAG_CONTROL, c->host_count, (int64_t)sizeof *c->remote, &c->remote, err));
    if (!c->agents->direct)
        dsc_machine_read(&machine);
    for (int32_t i = 0; i < c->host_count; i++) {
        const dsc_host *host = &job->plan->pool.host[c->first_host + i];
        c->remote[i] = (dsc_remote){ .name = host->name,
                                     .first_rank = first_rank,
                                     .is_local = c->agents->direct || dsc_machine_is_local(&machine, host->name),
                                     .failure = DSC_ERROR_INIT,
                                     .link = { .err_fd = -1, .channel = { .in_fd = -1, .out_fd = -1 } } };
        c->host[i].rank_count = host->slot_count;
        c->host[i].direct = c->agents->direct;
        first_rank += host->slot_count;
    }
    return DSC_OK;
}

static dsc_status open_all(dsc_coordinator_worker *c, dsc_error *err)
{
    const dsc_job *job = c->loop.job;
    DSC_TRY(list_hosts(c, err));
    const dsc_remote *last = &c->remote[c->host_count - 1];
    const int32_t first_rank = c->remote[0].first_rank;
    const int32_t rank_count = last->first_rank + c->host[c->host_count - 1].rank_count - first_rank;
    const dsc_output_options output = { .rank_count = rank_count,
                                        .first_rank = first_rank,
                                        .plan = c->agents->direct ? NULL : job->plan,
                                        .raw = rank_count == 1 && job->opt->rank_log_dir == NULL,
                                        .only_rank0 = job->opt->rank_log_dir != NULL,
                                        .log_dir = job->opt->rank_log_dir };
    DSC_TRY(dsc_exports_open(job->alloc, job->opt, !c->agents->direct, &c->loop.exports, err));
    if (c->agents->direct && job->plan->pool.count > 1) { /* --no_ssh: other launchers start the other hosts */
        c->token_given = true;
        DSC_TRY(dsc_job_token_given(c->job_token, err));
    }
    DSC_TRY(c->agents->open(c, err));
    DSC_TRY(dsc_job_loop_open(&c->loop, &output, err));
    dsc_coordinator_init(&c->machine, c->host, c->host_count, job->opt->grace_s * 1000 * MS, on_action, c);
    return DSC_OK;
}

int dsc_coordinator_work(const dsc_job *job, int lifeline_fd)
{
    dsc_error err = DSC_ERROR_INIT;
    dsc_coordinator_worker *c = NULL;
    if (dsc_alloc_zeroed(job->alloc, DSC_TAG_CONTROL, 1, (int64_t)sizeof *c, &c, &err) != DSC_OK)
        return dsc_job_print_error(&err);
    c->loop = (dsc_job_loop)DSC_JOB_LOOP_INIT(lifeline_fd);
    c->loop.job = job;
    c->loop.ops = &ops;
    c->loop.user = c;
    c->loop.verdict = &c->machine.verdict;
    c->agents = dsc_job_is_local(job->plan, job->opt) ? &dsc_local_agent : &dsc_stream_agents;
    c->host_count = c->agents->direct ? 1 : (int32_t)job->plan->pool.count;
    c->first_host = c->agents->direct ? job->plan->here : 0;
    const int code = open_all(c, &err) == DSC_OK ? dsc_job_loop_run(&c->loop) : dsc_job_print_error(&err);
    c->agents->close(c);
    dsc_job_loop_close(&c->loop);
    dsc_alloc_free(job->alloc, c->host);
    dsc_alloc_free(job->alloc, c->remote);
    dsc_alloc_free(job->alloc, c);
    return code;
}
