/* supervise.c - the worker of a job whose ranks are all on this host: it starts, signals and kills the ranks, and reads
 * their output. job_loop.c has the part that all workers share. verdict.c decides which rank is the culprit, and when
 * the ranks are signalled and killed.
 *
 * A run ends when no process of the job is left and all output is written. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "launcher/job_loop.h"
#include "launcher/node/ranks.h"

#define MS INT64_C(1000000)

static const int64_t kill_again_ns = 20 * MS;
static const int64_t give_up_ns = 5000 * MS;

typedef struct supervisor {
    dsc_job_loop loop;
    char **env;
    bool raw;        /* one rank, whose bytes pass as they are */
    dsc_spawn_pipes pipes;
    int late_signal; /* that the user sent when no rank was left */

    /* State of one run. */
    char devices[DSC_DEVICES_BYTES];
    dsc_host_task task;
    dsc_ranks ranks;
    dsc_verdict verdict;
    dsc_verdict_phase applied_phase; /* the phase that the ranks were signalled for */
    dsc_status start_status;
    dsc_error start_error;
    int64_t kill_again_at_ns, give_up_at_ns; /* in KILL */
} supervisor;

/* ---- ending the ranks ---- */

static void log_late_ranks(const supervisor *s)
{
    for (int32_t i = 0; i < s->ranks.count && s->verdict.user_signal != 0 && !s->loop.signals.orphaned; i++)
        if (!s->ranks.rank[i].ended)
            dsc_output_log(s->loop.out, "dsc-launch: rank %d (pid %d) did not end in time: killed",
                           s->task.first_rank + i, (int)s->ranks.rank[i].pid);
}

static void kill_everything(supervisor *s, int64_t now_ns)
{
    if (s->applied_phase != DSC_VERDICT_KILL) {
        s->give_up_at_ns = now_ns + give_up_ns;
        log_late_ranks(s);
    }
    dsc_ranks_kill(&s->ranks);
    s->kill_again_at_ns = now_ns + kill_again_ns;
}

static void carry_out(supervisor *s, int64_t now_ns)
{
    const dsc_verdict *v = &s->verdict;
    if (v->phase == DSC_VERDICT_END && s->applied_phase == DSC_VERDICT_RUN && v->term_signal != 0)
        dsc_ranks_signal(&s->ranks, v->term_signal);
    if (v->phase == DSC_VERDICT_KILL && !s->ranks.no_children &&
        (s->applied_phase != DSC_VERDICT_KILL || now_ns >= s->kill_again_at_ns))
        kill_everything(s, now_ns);
    s->applied_phase = v->phase;
}

/* ---- events of the ranks ---- */

/* Views of the ranks of other launchers (--no_ssh) stay unknown. */
static bool update_views(void *user, int64_t now_ns)
{
    supervisor *s = user;
    for (int32_t i = 0; i < s->task.rank_count; i++) {
        dsc_flight_view *view = dsc_watch_view(&s->loop.watch, s->task.first_rank + i);
        if (view != NULL)
            dsc_ranks_flight(&s->ranks, i, now_ns, view);
    }
    return true;
}

static void found(void *user, int code)
{
    supervisor *s = user;
    dsc_verdict_found(&s->verdict, code);
}

static void on_ended(void *user, int32_t index, const dsc_rank_end *end, int64_t now_ns)
{
    supervisor *s = user;
    if (s->verdict.phase == DSC_VERDICT_RUN && end->code == dsc_status_exit_code(DSC_ERR_STUCK)) {
        update_views(s, now_ns); /* before any rank is signalled to end */
        dsc_watch_ended(&s->loop.watch, s->loop.job->plan, end->code);
    }
    s->loop.end[index] = *end;
    dsc_verdict_rank_ended(&s->verdict, end);
}

static void on_output(void *user, int32_t index, int which, const char *text, size_t bytes, int64_t now_ns)
{
    supervisor *s = user;
    dsc_output_feed(s->loop.out, index, which, text, bytes, now_ns);
}

static void on_output_end(void *user, int32_t index, int which, int64_t now_ns)
{
    supervisor *s = user;
    dsc_output_end(s->loop.out, index, which, now_ns);
}

/* ---- signals ---- */

static bool end_by_user(void *user, int signal_number, int64_t now_ns)
{
    supervisor *s = user;
    if (s->ranks.no_children) {
        s->loop.abandon_output = true;
        s->late_signal = signal_number;
    }
    return dsc_verdict_user_signal(&s->verdict, signal_number, now_ns) && !s->ranks.no_children;
}

static void pass_signal(void *user, int signal_number)
{
    supervisor *s = user;
    dsc_ranks_signal(&s->ranks, signal_number);
}

static void give_up(void *user)
{
    supervisor *s = user;
    dsc_verdict_give_up(&s->verdict);
}

static int late_signal(const void *user)
{
    const supervisor *s = user;
    return s->late_signal;
}

/* ---- output ---- */

static void pause_ranks(void *user, int which, bool paused)
{
    supervisor *s = user;
    dsc_ranks_pause(&s->ranks, which, paused);
}

static void stop_reading(void *user, int which)
{
    supervisor *s = user;
    dsc_ranks_stop_reading(&s->ranks, which);
}

/* With one rank as little as possible stands between it and the user: its stdout is ours, and its stderr too when that
 * is a terminal. A file or a pipe at stderr is written through us, to know whether the rank said why it failed. */
static dsc_spawn_pipes choose_pipes(const supervisor *s)
{
    const bool same = dsc_output_sink_count(s->loop.out) == 1;
    if (!s->raw)
        return (dsc_spawn_pipes){ true, true, same };
    if (isatty(2) == 1)
        return (dsc_spawn_pipes){ false, false, false };
    return (dsc_spawn_pipes){ same, true, same };
}

/* ---- the loop ---- */

static void on_event(void *user, const dsc_loop_event *event, int64_t now_ns)
{
    supervisor *s = user;
    dsc_ranks_on_event(&s->ranks, event, now_ns);
}

static void poll_once(void *user, int64_t at_ns)
{
    supervisor *s = user;
    dsc_job_loop_tend_output(&s->loop);
    dsc_job_loop_wait(&s->loop, dsc_min_i64(at_ns, dsc_signals_look(&s->loop.signals, dsc_clock_ns())));
}

/* No process is left, so the pipes hold what they will ever hold. */
static void drain(supervisor *s)
{
    while (s->ranks.stream_count > 0 && dsc_job_loop_waits(&s->loop)) {
        dsc_ranks_drain(&s->ranks, dsc_clock_ns());
        dsc_job_loop_tend_output(&s->loop);
        if (s->ranks.paused[0] || s->ranks.paused[1])
            dsc_job_loop_wait(&s->loop, INT64_MAX);
    }
}

/* Until the next thing that time decides. */
static int64_t wake_ns(supervisor *s, int64_t now_ns)
{
    int64_t at_ns = dsc_min_i64(dsc_output_release(s->loop.out, now_ns), dsc_signals_look(&s->loop.signals, now_ns));
    at_ns = dsc_min_i64(at_ns, dsc_verdict_wake_ns(&s->verdict, now_ns));
    if (s->verdict.phase == DSC_VERDICT_RUN)
        at_ns = dsc_min_i64(at_ns, s->loop.look_at_ns);
    if (s->applied_phase == DSC_VERDICT_KILL)
        at_ns = dsc_min_i64(at_ns, s->kill_again_at_ns);
    return at_ns;
}

static void run_ranks(supervisor *s)
{
    while (!s->ranks.no_children) {
        dsc_job_loop_tend_output(&s->loop);
        dsc_job_loop_wait(&s->loop, wake_ns(s, dsc_clock_ns()));
        const int64_t now_ns = dsc_clock_ns();
        dsc_ranks_reap(&s->ranks, now_ns);
        dsc_job_loop_look_for_hangs(&s->loop, now_ns);
        dsc_verdict_tick(&s->verdict, now_ns, now_ns);
        if (s->applied_phase == DSC_VERDICT_KILL && now_ns >= s->give_up_at_ns)
            break; /* a process that cannot be killed sleeps in the kernel; its pipes are left */
        carry_out(s, now_ns);
    }
    if (s->ranks.no_children)
        drain(s);
}

/* ---- one run ---- */

static dsc_status prepare(supervisor *s, dsc_error *err)
{
    const dsc_job *job = s->loop.job;
    const dsc_ranks_hooks hooks = { on_output, on_output_end, on_ended, s };
    dsc_host_task_of_plan(job->plan, job->plan->here, s->devices, &s->task);
    s->task.tty_columns = s->pipes.out && job->opt->rank_log_dir == NULL ? dsc_output_columns(s->loop.out) : 0;
    s->task.restart_count = s->loop.restart_count;
    s->task.restart_limit = job->opt->restart_limit;
    s->task.launcher_pid = job->launcher_pid;
    s->task.program = job->program;
    s->task.argv = job->opt->program.argv;
    s->task.env = s->env;
    dsc_verdict_init(&s->verdict, s->task.rank_count, job->opt->grace_s * 1000 * MS);
    dsc_job_loop_begin_run(&s->loop);
    s->applied_phase = DSC_VERDICT_RUN;
    s->give_up_at_ns = s->kill_again_at_ns = INT64_MAX;
    if (job->plan->pool.count == 1)
        DSC_TRY(dsc_job_token_new(s->task.job_token, err));
    else
        DSC_TRY(dsc_job_token_given(s->task.job_token, err));
    return dsc_ranks_open(&s->ranks, job->alloc, &s->task, s->loop.epoll_fd, &hooks, err);
}

static dsc_status start_ranks(supervisor *s, dsc_error *err)
{
    dsc_spawn_pipes *pipes = NULL;
    const dsc_spawn_setup setup = { .mask = s->loop.job->rank_mask, .has_input = !s->loop.job->background };
    DSC_TRY(prepare(s, err));
    DSC_TRY(dsc_alloc_zeroed(s->loop.job->alloc, DSC_TAG_CONTROL, s->task.rank_count, (int64_t)sizeof *pipes, &pipes,
                             err));
    for (int32_t i = 0; i < s->task.rank_count; i++) {
        /* Output that goes to a log only is one stream: both ends are the same file. */
        const bool log_only = s->loop.job->opt->rank_log_dir != NULL && s->task.first_rank + i > 0;
        pipes[i] = log_only ? (dsc_spawn_pipes){ true, true, true } : s->pipes;
    }
    const dsc_status status = dsc_ranks_start(&s->ranks, &setup, pipes, err);
    dsc_alloc_free(s->loop.job->alloc, pipes);
    return status;
}

static void run(void *user)
{
    supervisor *s = user;
    s->start_error = (dsc_error)DSC_ERROR_INIT;
    s->start_status = start_ranks(s, &s->start_error);
    if (s->start_status != DSC_OK || s->loop.signals.orphaned) /* some ranks may run already */
        dsc_verdict_give_up(&s->verdict);
    run_ranks(s);
}

static void close_run(void *user)
{
    supervisor *s = user;
    dsc_ranks_close(&s->ranks);
}

static bool may_restart(const void *user)
{
    const supervisor *s = user;
    return s->start_status == DSC_OK && s->ranks.no_children && dsc_job_loop_waits(&s->loop) &&
           dsc_job_loop_verdict_restarts(&s->loop);
}

static int finish(void *user, bool last)
{
    supervisor *s = user;
    const dsc_report report = { .out = s->loop.out,
                                .plan = s->loop.job->plan,
                                .first_rank = s->task.first_rank,
                                .rank_count = s->task.rank_count,
                                .program = s->loop.job->program,
                                .watch = &s->loop.watch,
                                .end = s->loop.end,
                                .stderr_unseen = !s->pipes.err,
                                .last = last };
    char text[800];
    if (s->start_status != DSC_OK) {
        dsc_output_log(s->loop.out, "dsc: error: %s", dsc_error_format(&s->start_error, text, sizeof text));
        return dsc_status_exit_code(s->start_status);
    }
    if (s->loop.signals.orphaned)
        return dsc_job_loop_report_orphaned(&s->loop);
    return dsc_job_loop_report(&s->loop, &report);
}

/* ---- the worker ---- */

static const dsc_job_loop_ops ops = { .run = run,
                                      .close_run = close_run,
                                      .may_restart = may_restart,
                                      .finish = finish,
                                      .poll_once = poll_once,
                                      .event = on_event,
                                      .end_by_user = end_by_user,
                                      .pass_signal = pass_signal,
                                      .give_up = give_up,
                                      .late_signal = late_signal,
                                      .pause = pause_ranks,
                                      .stop_reading = stop_reading,
                                      .update_views = update_views,
                                      .found = found };

static dsc_status open_all(supervisor *s, dsc_error *err)
{
    extern char **environ;
    const dsc_job *job = s->loop.job;
    const dsc_output_options output = { .rank_count = job->plan->pool.host[job->plan->here].slot_count,
                                        .first_rank = dsc_plan_first_rank(job->plan, job->plan->here),
                                        .raw = s->raw,
                                        .only_rank0 = job->opt->rank_log_dir != NULL,
                                        .log_dir = job->opt->rank_log_dir };
    DSC_TRY(dsc_exports_open(job->alloc, job->opt, false, &s->loop.exports, err));
    DSC_TRY(dsc_environ_with(job->alloc, environ, s->loop.exports.entry, &s->env, err));
    DSC_TRY(dsc_job_loop_open(&s->loop, &output, err));
    s->pipes = choose_pipes(s);
    return DSC_OK;
}

int dsc_supervise(const dsc_job *job, int lifeline_fd)
{
    dsc_error err = DSC_ERROR_INIT;
    supervisor *s = NULL;
    if (dsc_alloc_zeroed(job->alloc, DSC_TAG_CONTROL, 1, (int64_t)sizeof *s, &s, &err) != DSC_OK)
        return dsc_job_print_error(&err);
    s->loop = (dsc_job_loop)DSC_JOB_LOOP_INIT(lifeline_fd);
    s->loop.job = job;
    s->loop.ops = &ops;
    s->loop.user = s;
    s->loop.verdict = &s->verdict;
    s->raw = job->plan->pool.host[job->plan->here].slot_count == 1 && job->opt->rank_log_dir == NULL;
    const int code = open_all(s, &err) == DSC_OK ? dsc_job_loop_run(&s->loop) : dsc_job_print_error(&err);
    dsc_job_loop_close(&s->loop);
    dsc_alloc_free(job->alloc, s->env);
    dsc_alloc_free(job->alloc, s);
    return code;
}
