/* coordinator.c - see coordinator.h: the loop of a job, its output, signals and clock.
 * SPDX-License-Identifier: Apache-2.0 */
#include "launcher/coordinator/coordinator.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "launcher/coordinator/report.h"
#include "launcher/coordinator/restart.h"

#define MS INT64_C(1000000)

/* ---- signals ---- */

/* The user asks for the end. A run's ranks are signalled; else nobody waits for output or a restart any more. */
static void end_by_user(dsc_coordinator_worker *c, int signal_number)
{
    char name[32];
    const dsc_verdict *v = &c->machine.verdict;
    const int32_t waiting = v->alive_count;
    const bool running = c->machine.phase == DSC_COORDINATOR_RUNS;
    const bool begins = running && v->phase == DSC_VERDICT_RUN;
    c->abandon_output = c->abandon_output || !running;
    dsc_coordinator_worker_step(c, (dsc_coordinator_event){ .kind = DSC_COORDINATOR_USER, .signal = signal_number });
    if (begins && c->job->opt->log_level >= DSC_LAUNCHER_INFO)
        dsc_output_log(c->out, "dsc-launch: %s: waiting up to %d s for %d rank%s to end",
                       dsc_signal_name(signal_number, name), c->job->opt->grace_s, waiting, waiting == 1 ? "" : "s");
}

static void pass_signal(dsc_coordinator_worker *c, int signal_number)
{
    dsc_coordinator_worker_step(c, (dsc_coordinator_event){ .kind = DSC_COORDINATOR_PASS, .signal = signal_number });
}

static void on_signal(void *user, int signal_number, int64_t now_ns)
{
    dsc_coordinator_worker *c = user;
    switch (signal_number) {
    case SIGINT: case SIGTERM: case SIGQUIT: case SIGHUP: end_by_user(c, signal_number); break;
    case SIGTSTP: case SIGCONT: /* an orphaned process group ignores SIGTSTP */
        c->watch.paused = signal_number == SIGTSTP;
        pass_signal(c, c->watch.paused ? SIGSTOP : SIGCONT);
        break;
    case SIGUSR1: case SIGUSR2: pass_signal(c, signal_number); break;
    default: break;
    }
}

static void on_orphaned(void *user, int64_t now_ns)
{
    dsc_coordinator_worker_step(user, (dsc_coordinator_event){ .kind = DSC_COORDINATOR_GIVE_UP, .signal = SIGKILL });
}

/* ---- the loop ---- */

static void wait_for_events(dsc_coordinator_worker *c, int64_t at_ns)
{
    struct epoll_event events[64];
    int64_t now_ns = dsc_clock_ns();
    int timeout_ms = -1;
    if (at_ns != INT64_MAX)
        timeout_ms = (int)dsc_min_i64(60000, dsc_max_i64(0, dsc_div_ceil(at_ns - now_ns, MS)));
    const int n = epoll_wait(c->epoll_fd, events, DSC_COUNT(events), timeout_ms);
    now_ns = dsc_clock_ns();
    for (int i = 0; i < n; i++) {
        const dsc_loop_event event = dsc_loop_decode(&events[i]);
        if (event.kind == DSC_LOOP_SIGNAL || event.kind == DSC_LOOP_LIFELINE)
            dsc_signals_on_event(&c->signals, &event, now_ns);
        else if (event.kind == DSC_LOOP_SCRIPT)
            dsc_discovery_on_event(c);
        else if (event.kind != DSC_LOOP_SINK) /* a sink that can be written: tend_output writes it */
            c->agents->event(c, &event, now_ns);
    }
}

/* A sink that is full stops the reading for it. When the reader of our stdout is gone the ranks get SIGPIPE, as they
 * would without a launcher. */
static void tend_output(dsc_coordinator_worker *c)
{
    dsc_output_flush(c->out, c->epoll_fd);
    for (int which = 0; which < dsc_output_sink_count(c->out); which++) {
        const dsc_sink *sink = dsc_output_sink(c->out, which);
        if (c->agents->pause != NULL)
            c->agents->pause(c, which, dsc_output_full(c->out, which));
        if (sink->broken && sink->reason == EPIPE && c->job->opt->rank_log_dir == NULL &&
            !c->machine.reader_gone[which])
            dsc_coordinator_worker_step(c, (dsc_coordinator_event){ .kind = DSC_COORDINATOR_STOP_READING,
                                                                    .which = which });
    }
}

static void look_for_hangs(dsc_coordinator_worker *c, int64_t now_ns)
{
    if (now_ns < c->look_at_ns || c->machine.verdict.phase != DSC_VERDICT_RUN || !c->agents->update_views(c, now_ns))
        return;
    c->look_at_ns = c->watch.rank_count > 0 ? now_ns + DSC_WATCH_BEAT_NS : INT64_MAX;
    const int code = dsc_watch_look(&c->watch, c->job->plan, now_ns);
    dsc_worlds_look(c);
    if (code != 0 && !dsc_worlds_kill_culprit(c))
        dsc_coordinator_worker_step(c, (dsc_coordinator_event){ .kind = DSC_COORDINATOR_FOUND, .code = code });
}

/* Handles events until one came, at most until `at_ns`. */
static void poll_once(dsc_coordinator_worker *c, int64_t at_ns)
{
    dsc_coordinator_settle(c);
    tend_output(c);
    c->agents->flush(c);
    const int64_t now_ns = dsc_clock_ns();
    at_ns = dsc_min_i64(at_ns, dsc_coordinator_wake_ns(&c->machine, now_ns));
    at_ns = dsc_min_i64(at_ns, c->agents->wake_ns(c));
    at_ns = dsc_min_i64(at_ns, dsc_min_i64(dsc_chaos_wake_ns(c), dsc_discovery_wake_ns(c)));
    at_ns = dsc_min_i64(at_ns, dsc_signals_look(&c->signals, now_ns));
    if (c->machine.phase == DSC_COORDINATOR_RUNS)
        at_ns = dsc_min_i64(at_ns, dsc_output_release(c->out, now_ns));
    wait_for_events(c, at_ns);
    c->agents->tend(c);
    look_for_hangs(c, dsc_clock_ns());
    dsc_chaos_act(c, dsc_clock_ns());
    dsc_discovery_tend(c, dsc_clock_ns());
    dsc_coordinator_worker_step(c, (dsc_coordinator_event){ .kind = DSC_COORDINATOR_TICK });
    dsc_coordinator_settle(c);
}

static bool waits_for_output(const dsc_coordinator_worker *c)
{
    bool waits = dsc_output_queued(c->out) > 0 || c->agents->has_output(c);
    for (int32_t i = 0; i < c->host_count; i++)
        waits = waits || (c->host[i].phase == DSC_HOST_HERE && c->host[i].gone && !c->host[i].drained);
    return waits && dsc_coordinator_waits(c);
}

/* ---- the job ---- */

/* One run of the ranks, from their start until nothing of the run is left and its output is read. */
static void run(dsc_coordinator_worker *c)
{
    c->over = false;
    dsc_coordinator_worker_step(c, (dsc_coordinator_event){ .kind = DSC_COORDINATOR_CONNECT });
    while (!c->over)
        poll_once(c, INT64_MAX);
    c->early_signal = c->machine.user_signal;
    while (waits_for_output(c))
        poll_once(c, INT64_MAX);
}

/* Between two runs. False: the user interrupted the wait, or the guardian's end did. */
static bool back_off(dsc_coordinator_worker *c)
{
    const int64_t now_ns = dsc_clock_ns();
    const int64_t until_ns = dsc_max_i64(now_ns + dsc_restart_wait_ns(c->restart_count),
                                         dsc_coordinator_may_connect_ns(&c->machine));
    dsc_output_log(c->out, "dsc-launch: restart %d of %d in %lld s", c->restart_count + 1,
                   c->job->opt->restart_limit, (long long)dsc_div_ceil(until_ns - now_ns, 1000 * MS));
    while (dsc_clock_ns() < until_ns && dsc_coordinator_waits(c))
        poll_once(c, until_ns);
    return dsc_coordinator_waits(c);
}

/* Dismisses the agents. */
static void leave(dsc_coordinator_worker *c)
{
    dsc_coordinator_worker_step(c, (dsc_coordinator_event){ .kind = DSC_COORDINATOR_QUIT });
    while (!c->left)
        poll_once(c, INT64_MAX);
}

/* A new token for each run, unless the user gave one. */
static dsc_status make_token(dsc_coordinator_worker *c, dsc_error *err)
{
    return c->token_given ? DSC_OK : dsc_job_token_new(c->job_token, err);
}

/* For the run that follows. False, with the reason printed: no rank may start without a token. */
static bool renew_token(dsc_coordinator_worker *c, int *code)
{
    char text[800];
    dsc_error err = DSC_ERROR_INIT;
    if (make_token(c, &err) == DSC_OK)
        return true;
    dsc_output_log(c->out, "dsc: error: %s", dsc_error_format(&err, text, sizeof text));
    *code = dsc_status_exit_code(err.status);
    return false;
}

/* All runs of the job; returns its exit code. */
static int run_job(dsc_coordinator_worker *c)
{
    for (;;) {
        run(c);
        const bool again = dsc_coordinator_may_restart(c);
        int code = dsc_coordinator_finish(c, !again);
        if (again && back_off(c) && renew_token(c, &code)) {
            dsc_output_forget(c->out);
            c->restart_count++;
            continue;
        }
        if (again && c->machine.user_signal != 0)
            code = 128 + c->machine.user_signal;
        dsc_report_lost_output(c->out);
        leave(c);
        tend_output(c);
        for (; dsc_output_queued(c->out) > 0 && dsc_coordinator_waits(c); tend_output(c))
            poll_once(c, INT64_MAX);
        return code;
    }
}

/* ---- opening and closing ---- */

static int print_error(const dsc_error *err)
{
    char text[800];
    fprintf(stderr, "dsc: error: %s\n", dsc_error_format(err, text, sizeof text));
    return dsc_status_exit_code(err->status);
}

static dsc_status list_hosts(dsc_coordinator_worker *c, dsc_error *err)
{
    const dsc_job *job = c->job;
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
    const dsc_job *job = c->job;
    const dsc_signals_hooks hooks = { on_signal, on_orphaned, c };
    DSC_TRY(list_hosts(c, err));
    const dsc_remote *last = &c->remote[c->host_count - 1];
    const int32_t first_rank = c->remote[0].first_rank;
    c->rank_count = last->first_rank + c->host[c->host_count - 1].rank_count - first_rank;
    const dsc_output_options output = { .rank_count = c->rank_count,
                                        .first_rank = first_rank,
                                        .plan = c->agents->direct ? NULL : job->plan,
                                        .raw = c->rank_count == 1 && job->opt->rank_log_dir == NULL,
                                        .only_rank0 = job->opt->rank_log_dir != NULL,
                                        .log_dir = job->opt->rank_log_dir };
    DSC_TRY(dsc_exports_open(job->alloc, job->opt, !c->agents->direct, &c->exports, err));
    if (c->agents->direct && job->plan->pool.count > 1) { /* --no_ssh: other launchers start the other hosts */
        c->token_given = true;
        DSC_TRY(dsc_job_token_given(c->job_token, err));
    }
    DSC_TRY(make_token(c, err));
    DSC_TRY(c->agents->open(c, err));
    DSC_TRY(dsc_output_open(job->alloc, &output, &c->out, err));
    c->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (c->epoll_fd < 0)
        return DSC_FAIL(err, DSC_ERR_IO, "dsc-launch", "cannot start: %s", strerror(errno));
    DSC_TRY(dsc_signals_open(&c->signals, job, c->signals.lifeline_fd, c->epoll_fd, &hooks, err));
    DSC_TRY(dsc_watch_open(&c->watch, job->alloc, job->plan->world_size, job->opt->stuck_s, err));
    DSC_TRY(dsc_alloc_zeroed(job->alloc, DSC_TAG_CONTROL, c->rank_count, (int64_t)sizeof *c->end, &c->end, err));
    dsc_coordinator_init(&c->machine, c->host, c->host_count, job->opt->grace_s * 1000 * MS, dsc_coordinator_on_action,
                         c);
    DSC_TRY(dsc_worlds_open(c, err));
    return dsc_discovery_open(c, err);
}

int dsc_coordinator_work(const dsc_job *job, int lifeline_fd)
{
    dsc_error err = DSC_ERROR_INIT;
    dsc_coordinator_worker *c = NULL;
    if (dsc_alloc_zeroed(job->alloc, DSC_TAG_CONTROL, 1, (int64_t)sizeof *c, &c, &err) != DSC_OK)
        return print_error(&err);
    c->job = job;
    c->epoll_fd = -1;
    c->signals.signal_fd = -1;
    c->signals.lifeline_fd = lifeline_fd;
    c->agents = dsc_job_is_local(job->plan, job->opt) ? &dsc_local_agent : &dsc_stream_agents;
    c->host_count = c->agents->direct ? 1 : (int32_t)job->plan->pool.count;
    c->first_host = c->agents->direct ? job->plan->here : 0;
    const int code = open_all(c, &err) == DSC_OK ? run_job(c) : print_error(&err);
    c->agents->close(c);
    dsc_output_close(&c->out);
    dsc_exports_close(&c->exports);
    dsc_signals_close(&c->signals);
    if (c->epoll_fd >= 0)
        close(c->epoll_fd);
    dsc_watch_close(&c->watch);
    dsc_discovery_close(c);
    dsc_worlds_close(c);
    dsc_alloc_free(job->alloc, c->end);
    dsc_alloc_free(job->alloc, c->host);
    dsc_alloc_free(job->alloc, c->remote);
    dsc_alloc_free(job->alloc, c);
    return code;
}
