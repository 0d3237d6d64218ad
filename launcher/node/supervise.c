/* supervise.c - the event loop of a job whose ranks are all on this host: their ends and output, signals, the
 * guardian's death, and the clock. Who is to blame, and when the ranks are told and killed, is verdict.c's business.
 *
 * A run ends when nothing of the job runs any more and all output is written. Then the ranks start again, when they
 * failed and the user allowed it. SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "launcher/coordinator/exports.h"
#include "launcher/job.h"
#include "launcher/node/ranks.h"
#include "launcher/node/restart.h"
#include "launcher/node/signals.h"
#include "launcher/node/watch.h"
#include "launcher/report.h"

#define MS INT64_C(1000000)

static const int64_t kill_again_ns = 20 * MS;
static const int64_t give_up_ns = 5000 * MS;

typedef struct supervisor {
    const dsc_job *job;
    dsc_output *out;
    dsc_exports exports;
    char **env;
    dsc_signals signals;
    int epoll_fd;
    int32_t restart_count;
    bool abandon_output; /* the user does not wait for a reader that does not read, or for a restart */
    int late_signal;     /* that said so */

    /* Of one run. */
    char devices[DSC_DEVICES_BYTES];
    dsc_host_task task;
    dsc_ranks ranks;
    dsc_verdict verdict;
    dsc_watch watch;
    int64_t look_at_ns;     /* at the ranks' collectives */
    dsc_verdict_phase told; /* what the ranks know */
    dsc_rank_end *end;      /* [rank_count] */
    bool raw;               /* one rank, whose bytes pass as they are */
    dsc_spawn_pipes pipes;
    dsc_status start_status;
    dsc_error start_error;
    int64_t kill_again_at_ns, give_up_at_ns; /* in KILL */
} supervisor;

/* ---- telling the ranks ---- */

static void say_not_in_time(const supervisor *s)
{
    for (int32_t i = 0; i < s->ranks.count && s->verdict.user_signal != 0 && !s->signals.orphaned; i++)
        if (!s->ranks.rank[i].ended)
            dsc_output_log(s->out, "dsc-launch: rank %d (pid %d) did not end in time: killed", s->task.first_rank + i,
                           (int)s->ranks.rank[i].pid);
}

static void kill_everything(supervisor *s, int64_t now_ns)
{
    if (s->told != DSC_VERDICT_KILL) {
        s->give_up_at_ns = now_ns + give_up_ns;
        say_not_in_time(s);
    }
    dsc_ranks_kill(&s->ranks);
    s->kill_again_at_ns = now_ns + kill_again_ns;
}

static void carry_out(supervisor *s, int64_t now_ns)
{
    const dsc_verdict *v = &s->verdict;
    if (v->phase == DSC_VERDICT_END && s->told == DSC_VERDICT_RUN && v->term_signal != 0)
        dsc_ranks_signal(&s->ranks, v->term_signal);
    if (v->phase == DSC_VERDICT_KILL && !s->ranks.no_children &&
        (s->told != DSC_VERDICT_KILL || now_ns >= s->kill_again_at_ns))
        kill_everything(s, now_ns);
    s->told = v->phase;
}

/* ---- what happens ---- */

/* What all ranks are doing; those of other launchers (--no_ssh) stay unknown. */
static void view_ranks(supervisor *s, int64_t now_ns)
{
    for (int32_t i = 0; i < s->task.rank_count; i++)
        if (dsc_watch_view(&s->watch, s->task.first_rank + i) != NULL)
            dsc_ranks_flight(&s->ranks, i, now_ns, dsc_watch_view(&s->watch, s->task.first_rank + i));
}

static void look_for_hangs(supervisor *s, int64_t now_ns)
{
    if (now_ns < s->look_at_ns || s->verdict.phase != DSC_VERDICT_RUN)
        return;
    s->look_at_ns = s->watch.rank_count > 0 ? now_ns + DSC_WATCH_BEAT_NS : INT64_MAX;
    view_ranks(s, now_ns);
    const int code = dsc_watch_look(&s->watch, s->job->plan, now_ns);
    if (code != 0)
        dsc_verdict_found(&s->verdict, code);
}

static void on_ended(void *user, int32_t index, const dsc_rank_end *end, int64_t now_ns)
{
    supervisor *s = user;
    if (s->verdict.phase == DSC_VERDICT_RUN && end->code == dsc_status_exit_code(DSC_ERR_STUCK)) {
        view_ranks(s, now_ns); /* before anybody is told to end */
        dsc_watch_ended(&s->watch, s->job->plan, end->code);
    }
    s->end[index] = *end;
    dsc_verdict_rank_ended(&s->verdict, end);
}

static void on_output(void *user, int32_t index, int which, const char *text, size_t bytes, int64_t now_ns)
{
    supervisor *s = user;
    dsc_output_feed(s->out, index, which, text, bytes, now_ns);
}

static void on_output_end(void *user, int32_t index, int which, int64_t now_ns)
{
    supervisor *s = user;
    dsc_output_end(s->out, index, which, now_ns);
}

static void end_by_user(supervisor *s, int signal_number, int64_t now_ns)
{
    char name[32];
    const int32_t waiting = s->verdict.alive_count;
    if (s->ranks.no_children) {
        s->abandon_output = true;
        s->late_signal = signal_number;
    }
    if (!dsc_verdict_user_signal(&s->verdict, signal_number, now_ns) || s->ranks.no_children)
        return;
    if (s->job->opt->log_level >= DSC_LAUNCHER_INFO)
        dsc_output_log(s->out, "dsc-launch: %s: waiting up to %d s for %d rank%s to end",
                       dsc_signal_name(signal_number, name), s->job->opt->grace_s, waiting, waiting == 1 ? "" : "s");
}

static void on_signal(void *user, int signal_number, int64_t now_ns)
{
    supervisor *s = user;
    switch (signal_number) {
    case SIGINT: case SIGTERM: case SIGQUIT: case SIGHUP: end_by_user(s, signal_number, now_ns); break;
    case SIGTSTP: case SIGCONT: /* an orphaned group ignores SIGTSTP */
        s->watch.paused = signal_number == SIGTSTP;
        dsc_ranks_signal(&s->ranks, s->watch.paused ? SIGSTOP : SIGCONT);
        break;
    case SIGUSR1: case SIGUSR2: dsc_ranks_signal(&s->ranks, signal_number); break;
    default: break;
    }
}

static void on_orphaned(void *user, int64_t now_ns)
{
    supervisor *s = user;
    dsc_verdict_give_up(&s->verdict);
}

/* ---- output ---- */

/* A sink that is full stops the reading for it. When the reader of our stdout is gone the ranks learn it as they would
 * have without us: by SIGPIPE. */
static void tend_output(supervisor *s)
{
    dsc_output_flush(s->out, s->epoll_fd);
    for (int which = 0; which < dsc_output_sink_count(s->out); which++) {
        const dsc_sink *sink = dsc_output_sink(s->out, which);
        dsc_ranks_pause(&s->ranks, which, dsc_output_full(s->out, which));
        if (sink->broken && sink->reason == EPIPE && s->job->opt->rank_log_dir == NULL)
            dsc_ranks_deafen(&s->ranks, which);
    }
}

/* With one rank as little as possible stands between it and the user: its stdout is ours, and its stderr too when that
 * is a terminal. A file or a pipe at stderr is written through us, to know whether the rank said why it failed. */
static dsc_spawn_pipes choose_pipes(const supervisor *s)
{
    const bool same = dsc_output_sink_count(s->out) == 1;
    if (!s->raw)
        return (dsc_spawn_pipes){ true, true, same };
    if (isatty(2) == 1)
        return (dsc_spawn_pipes){ false, false, false };
    return (dsc_spawn_pipes){ same, true, same };
}

/* ---- the loop ---- */

/* Waits for the next event, at most until `at_ns`, and handles what came. */
static void wait_and_read(supervisor *s, int64_t at_ns)
{
    struct epoll_event events[64];
    int64_t now_ns = dsc_clock_ns();
    int timeout_ms = -1;
    if (at_ns != INT64_MAX)
        timeout_ms = (int)dsc_min_i64(60000, dsc_max_i64(0, dsc_div_ceil(at_ns - now_ns, MS)));
    const int n = epoll_wait(s->epoll_fd, events, DSC_COUNT(events), timeout_ms);
    now_ns = dsc_clock_ns();
    for (int i = 0; i < n; i++) {
        const dsc_loop_event event = dsc_loop_decode(&events[i]);
        if (event.kind == DSC_LOOP_SIGNAL || event.kind == DSC_LOOP_LIFELINE)
            dsc_signals_on_event(&s->signals, &event, now_ns);
        else
            dsc_ranks_on_event(&s->ranks, &event, now_ns); /* a sink can be written: tend_output does it */
    }
}

/* No process is left, so the pipes hold what they will ever hold. */
static void drain(supervisor *s)
{
    while (s->ranks.stream_count > 0 && !s->signals.orphaned && !s->abandon_output) {
        dsc_ranks_drain(&s->ranks, dsc_clock_ns());
        tend_output(s);
        if (s->ranks.paused[0] || s->ranks.paused[1])
            wait_and_read(s, INT64_MAX);
    }
}

/* Until the next thing that time decides. */
static int64_t wake_ns(supervisor *s, int64_t now_ns)
{
    int64_t at_ns = dsc_min_i64(dsc_output_release(s->out, now_ns), dsc_signals_look(&s->signals, now_ns));
    at_ns = dsc_min_i64(at_ns, dsc_verdict_wake_ns(&s->verdict, now_ns));
    if (s->verdict.phase == DSC_VERDICT_RUN)
        at_ns = dsc_min_i64(at_ns, s->look_at_ns);
    if (s->told == DSC_VERDICT_KILL)
        at_ns = dsc_min_i64(at_ns, s->kill_again_at_ns);
    return at_ns;
}

static void run_ranks(supervisor *s)
{
    while (!s->ranks.no_children) {
        tend_output(s);
        wait_and_read(s, wake_ns(s, dsc_clock_ns()));
        const int64_t now_ns = dsc_clock_ns();
        dsc_ranks_reap(&s->ranks, now_ns);
        look_for_hangs(s, now_ns);
        dsc_verdict_tick(&s->verdict, now_ns, now_ns);
        if (s->told == DSC_VERDICT_KILL && now_ns >= s->give_up_at_ns)
            break; /* a process that cannot be killed sleeps in the kernel; its pipes are left */
        carry_out(s, now_ns);
    }
    if (s->ranks.no_children)
        drain(s);
}

/* ---- one run ---- */

static dsc_status prepare(supervisor *s, dsc_error *err)
{
    const dsc_job *job = s->job;
    const dsc_ranks_hooks hooks = { on_output, on_output_end, on_ended, s };
    dsc_host_task_of_plan(job->plan, job->plan->here, s->devices, &s->task);
    s->task.tty_columns = s->pipes.out && job->opt->rank_log_dir == NULL ? dsc_output_columns(s->out) : 0;
    s->task.restart_count = s->restart_count;
    s->task.restart_limit = job->opt->restart_limit;
    s->task.launcher_pid = job->launcher_pid;
    s->task.program = job->program;
    s->task.argv = job->opt->program_argv;
    s->task.env = s->env;
    dsc_verdict_init(&s->verdict, s->task.rank_count, job->opt->grace_s * 1000 * MS);
    dsc_watch_forget(&s->watch);
    s->look_at_ns = 0;
    s->told = DSC_VERDICT_RUN;
    s->give_up_at_ns = s->kill_again_at_ns = INT64_MAX;
    memset(s->end, 0, sizeof *s->end * (size_t)s->task.rank_count);
    if (job->plan->pool.count == 1)
        DSC_TRY(dsc_job_token_new(s->task.job_token, err));
    else
        DSC_TRY(dsc_job_token_given(s->task.job_token, err));
    return dsc_ranks_open(&s->ranks, job->alloc, &s->task, s->epoll_fd, &hooks, err);
}

static dsc_status start_ranks(supervisor *s, dsc_error *err)
{
    dsc_spawn_pipes *pipes = NULL;
    const dsc_spawn_setup setup = { .mask = s->job->rank_mask, .has_input = !s->job->background };
    DSC_TRY(prepare(s, err));
    DSC_TRY(dsc_alloc_zeroed(s->job->alloc, DSC_TAG_CONTROL, s->task.rank_count, (int64_t)sizeof *pipes, &pipes, err));
    for (int32_t i = 0; i < s->task.rank_count; i++) {
        /* What goes to a log only is one stream: both ends are the same file. */
        const bool log_only = s->job->opt->rank_log_dir != NULL && s->task.first_rank + i > 0;
        pipes[i] = log_only ? (dsc_spawn_pipes){ true, true, true } : s->pipes;
    }
    const dsc_status status = dsc_ranks_start(&s->ranks, &setup, pipes, err);
    dsc_alloc_free(s->job->alloc, pipes);
    return status;
}

/* What the run ended with; says why. */
static int finish(supervisor *s, bool last)
{
    const dsc_report report = { .out = s->out,
                                .plan = s->job->plan,
                                .first_rank = s->task.first_rank,
                                .rank_count = s->task.rank_count,
                                .program = s->job->program,
                                .watch = &s->watch,
                                .end = s->end,
                                .stderr_unseen = !s->pipes.err,
                                .last = last };
    char text[800];
    if (s->start_status != DSC_OK) {
        dsc_output_log(s->out, "dsc: error: %s", dsc_error_format(&s->start_error, text, sizeof text));
        return dsc_status_exit_code(s->start_status);
    }
    if (s->signals.orphaned) { /* seen by somebody only when it was stopped and goes on */
        dsc_output_log(s->out,
                       "dsc: error: dsc-launch: the launcher (pid %d) was stopped or killed; all ranks were "
                       "ended",
                       (int)s->job->launcher_pid);
        return dsc_status_exit_code(DSC_ERR_PEER);
    }
    if (s->verdict.culprit_known) {
        dsc_report_rank(&report, &s->verdict.culprit);
        return s->verdict.culprit.code;
    }
    if (s->verdict.found_code != 0) {
        dsc_report_found(&report);
        return s->verdict.found_code;
    }
    dsc_report_others(&report);
    return s->verdict.user_signal != 0 ? 128 + s->verdict.user_signal : 0;
}

/* True when the ranks may be started again after the run that just ended. */
static bool may_restart(const supervisor *s)
{
    return s->start_status == DSC_OK && s->ranks.no_children && !s->signals.orphaned && !s->abandon_output &&
           ((s->verdict.culprit_known && dsc_restart_allowed(&s->verdict.culprit, s->restart_count,
                                                             s->job->opt->restart_limit)) ||
            dsc_restart_found(&s->verdict, s->restart_count, s->job->opt->restart_limit));
}

/* Between two runs. False: the user has had enough. */
static bool back_off(supervisor *s)
{
    const int64_t wait_ns = dsc_restart_wait_ns(s->restart_count), until_ns = dsc_clock_ns() + wait_ns;
    dsc_output_log(s->out, "dsc-launch: restart %d of %d in %lld s", s->restart_count + 1, s->job->opt->restart_limit,
                   (long long)(wait_ns / (1000 * MS)));
    while (dsc_clock_ns() < until_ns && !s->signals.orphaned && !s->abandon_output) {
        tend_output(s);
        wait_and_read(s, dsc_min_i64(until_ns, dsc_signals_look(&s->signals, dsc_clock_ns())));
    }
    return !s->signals.orphaned && !s->abandon_output;
}

static int run_job(supervisor *s)
{
    for (;;) {
        s->start_error = (dsc_error)DSC_ERROR_INIT;
        s->start_status = start_ranks(s, &s->start_error);
        if (s->start_status != DSC_OK || s->signals.orphaned) /* some ranks may run already */
            dsc_verdict_give_up(&s->verdict);
        run_ranks(s);
        const bool again = may_restart(s);
        int code = finish(s, !again);
        if (again && !back_off(s))
            code = s->late_signal != 0 ? 128 + s->late_signal : code;
        else if (again) {
            dsc_ranks_close(&s->ranks);
            dsc_output_forget(s->out);
            s->restart_count++;
            continue;
        }
        dsc_report_lost_output(s->out);
        tend_output(s);
        for (; dsc_output_queued(s->out) > 0 && !s->signals.orphaned && !s->abandon_output; tend_output(s))
            wait_and_read(s, dsc_signals_look(&s->signals, dsc_clock_ns()));
        dsc_ranks_close(&s->ranks);
        return code;
    }
}

static dsc_status open_all(supervisor *s, int lifeline_fd, dsc_error *err)
{
    extern char **environ;
    const dsc_job *job = s->job;
    const dsc_signals_hooks hooks = { on_signal, on_orphaned, s };
    const int32_t rank_count = job->plan->pool.host[job->plan->here].slot_count;
    const dsc_output_options output = { .rank_count = rank_count,
                                        .first_rank = dsc_plan_first_rank(job->plan, job->plan->here),
                                        .raw = s->raw,
                                        .only_rank0 = job->opt->rank_log_dir != NULL,
                                        .log_dir = job->opt->rank_log_dir };
    DSC_TRY(dsc_exports_open(job->alloc, job->opt, false, &s->exports, err));
    DSC_TRY(dsc_environ_with(job->alloc, environ, s->exports.entry, &s->env, err));
    DSC_TRY(dsc_output_open(job->alloc, &output, &s->out, err));
    s->pipes = choose_pipes(s);
    s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (s->epoll_fd < 0)
        return DSC_FAIL(err, DSC_ERR_IO, "dsc-launch", "cannot start: %s", strerror(errno));
    DSC_TRY(dsc_signals_open(&s->signals, job, lifeline_fd, s->epoll_fd, &hooks, err));
    DSC_TRY(dsc_watch_open(&s->watch, job->alloc, job->plan->world_size, job->opt->stuck_s, err));
    return dsc_alloc_zeroed(job->alloc, DSC_TAG_CONTROL, rank_count, (int64_t)sizeof *s->end, &s->end, err);
}

int dsc_supervise(const dsc_job *job, int lifeline_fd)
{
    dsc_error err = DSC_ERROR_INIT;
    supervisor *s = NULL;
    dsc_status status = dsc_alloc_zeroed(job->alloc, DSC_TAG_CONTROL, 1, (int64_t)sizeof *s, &s, &err);
    int code = 0;
    if (status == DSC_OK) {
        s->job = job;
        s->epoll_fd = -1;
        s->raw = job->plan->pool.host[job->plan->here].slot_count == 1 && job->opt->rank_log_dir == NULL;
        status = open_all(s, lifeline_fd, &err);
    }
    if (status == DSC_OK) {
        code = run_job(s);
    } else {
        char text[800];
        fprintf(stderr, "dsc: error: %s\n", dsc_error_format(&err, text, sizeof text));
        code = dsc_status_exit_code(status);
    }
    if (s != NULL) {
        dsc_output_close(&s->out);
        dsc_exports_close(&s->exports);
        dsc_alloc_free(job->alloc, s->env);
        dsc_signals_close(&s->signals);
        if (s->epoll_fd >= 0)
            close(s->epoll_fd);
        dsc_watch_close(&s->watch);
        dsc_alloc_free(job->alloc, s->end);
        dsc_alloc_free(job->alloc, s);
    }
    return code;
}
