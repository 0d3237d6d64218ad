/* job_loop.c - see job_loop.h. SPDX-License-Identifier: Apache-2.0 */
#include "launcher/job_loop.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "launcher/node/restart.h"

#define MS INT64_C(1000000)

/* ---- signals ---- */

static void end_by_user(dsc_job_loop *loop, int signal_number, int64_t now_ns)
{
    char name[32];
    const int32_t waiting = loop->verdict->alive_count;
    if (loop->ops->end_by_user(loop->user, signal_number, now_ns) && loop->job->opt->log_level >= DSC_LAUNCHER_INFO)
        dsc_output_log(loop->out, "dsc-launch: %s: waiting up to %d s for %d rank%s to end",
                       dsc_signal_name(signal_number, name), loop->job->opt->grace_s, waiting, waiting == 1 ? "" : "s");
}

static void on_signal(void *user, int signal_number, int64_t now_ns)
{
    dsc_job_loop *loop = user;
    switch (signal_number) {
    case SIGINT: case SIGTERM: case SIGQUIT: case SIGHUP: end_by_user(loop, signal_number, now_ns); break;
    case SIGTSTP: case SIGCONT: /* an orphaned process group ignores SIGTSTP */
        loop->watch.paused = signal_number == SIGTSTP;
        loop->ops->pass_signal(loop->user, loop->watch.paused ? SIGSTOP : SIGCONT);
        break;
    case SIGUSR1: case SIGUSR2: loop->ops->pass_signal(loop->user, signal_number); break;
    default: break;
    }
}

static void on_orphaned(void *user, int64_t now_ns)
{
    dsc_job_loop *loop = user;
    loop->ops->give_up(loop->user);
}

/* ---- opening and closing ---- */

dsc_status dsc_job_loop_open(dsc_job_loop *loop, const dsc_output_options *output, dsc_error *err)
{
    const dsc_job *job = loop->job;
    const dsc_signals_hooks hooks = { on_signal, on_orphaned, loop };
    loop->rank_count = output->rank_count;
    DSC_TRY(dsc_output_open(job->alloc, output, &loop->out, err));
    loop->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (loop->epoll_fd < 0)
        return DSC_FAIL(err, DSC_ERR_IO, "dsc-launch", "cannot start: %s", strerror(errno));
    DSC_TRY(dsc_signals_open(&loop->signals, job, loop->signals.lifeline_fd, loop->epoll_fd, &hooks, err));
    DSC_TRY(dsc_watch_open(&loop->watch, job->alloc, job->plan->world_size, job->opt->stuck_s, err));
    return dsc_alloc_zeroed(job->alloc, DSC_TAG_CONTROL, loop->rank_count, (int64_t)sizeof *loop->end, &loop->end, err);
}

void dsc_job_loop_close(dsc_job_loop *loop)
{
    dsc_output_close(&loop->out);
    dsc_exports_close(&loop->exports);
    dsc_signals_close(&loop->signals);
    if (loop->epoll_fd >= 0)
        close(loop->epoll_fd);
    loop->epoll_fd = -1;
    dsc_watch_close(&loop->watch);
    dsc_alloc_free(loop->job->alloc, loop->end);
    loop->end = NULL;
}

/* ---- events ---- */

void dsc_job_loop_begin_run(dsc_job_loop *loop)
{
    memset(loop->end, 0, sizeof *loop->end * (size_t)loop->rank_count);
    dsc_watch_forget(&loop->watch);
    loop->look_at_ns = 0;
}

void dsc_job_loop_wait(dsc_job_loop *loop, int64_t at_ns)
{
    struct epoll_event events[64];
    int64_t now_ns = dsc_clock_ns();
    int timeout_ms = -1;
    if (at_ns != INT64_MAX)
        timeout_ms = (int)dsc_min_i64(60000, dsc_max_i64(0, dsc_div_ceil(at_ns - now_ns, MS)));
    const int n = epoll_wait(loop->epoll_fd, events, DSC_COUNT(events), timeout_ms);
    now_ns = dsc_clock_ns();
    for (int i = 0; i < n; i++) {
        const dsc_loop_event event = dsc_loop_decode(&events[i]);
        if (event.kind == DSC_LOOP_SIGNAL || event.kind == DSC_LOOP_LIFELINE)
            dsc_signals_on_event(&loop->signals, &event, now_ns);
        else if (event.kind != DSC_LOOP_SINK) /* a sink that can be written: tend_output writes it */
            loop->ops->event(loop->user, &event, now_ns);
    }
}

/* A sink that is full stops the reading for it. When the reader of our stdout is gone the ranks get SIGPIPE, as they
 * would without a launcher. */
void dsc_job_loop_tend_output(dsc_job_loop *loop)
{
    dsc_output_flush(loop->out, loop->epoll_fd);
    for (int which = 0; which < dsc_output_sink_count(loop->out); which++) {
        const dsc_sink *sink = dsc_output_sink(loop->out, which);
        loop->ops->pause(loop->user, which, dsc_output_full(loop->out, which));
        if (sink->broken && sink->reason == EPIPE && loop->job->opt->rank_log_dir == NULL)
            loop->ops->stop_reading(loop->user, which);
    }
}

void dsc_job_loop_look_for_hangs(dsc_job_loop *loop, int64_t now_ns)
{
    if (now_ns < loop->look_at_ns || loop->verdict->phase != DSC_VERDICT_RUN ||
        !loop->ops->update_views(loop->user, now_ns))
        return;
    loop->look_at_ns = loop->watch.rank_count > 0 ? now_ns + DSC_WATCH_BEAT_NS : INT64_MAX;
    const int code = dsc_watch_look(&loop->watch, loop->job->plan, now_ns);
    if (code != 0)
        loop->ops->found(loop->user, code);
}

/* ---- outcome ---- */

bool dsc_job_loop_verdict_restarts(const dsc_job_loop *loop)
{
    const dsc_verdict *v = loop->verdict;
    const int32_t limit = loop->job->opt->restart_limit;
    if (v->culprit_known)
        return dsc_restart_allowed(&v->culprit, loop->restart_count, limit);
    return (v->found_code != 0 || v->lost_host >= 0) && loop->restart_count < limit;
}

int dsc_job_loop_report(const dsc_job_loop *loop, const dsc_report *report)
{
    const dsc_verdict *v = loop->verdict;
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

/* Seen by the user only when the launcher was stopped and goes on. */
int dsc_job_loop_report_orphaned(const dsc_job_loop *loop)
{
    dsc_output_log(loop->out,
                   "dsc: error: dsc-launch: the launcher (pid %d) was stopped or killed; all ranks were "
                   "ended",
                   (int)loop->job->launcher_pid);
    return dsc_status_exit_code(DSC_ERR_PEER);
}

int dsc_job_print_error(const dsc_error *err)
{
    char text[800];
    fprintf(stderr, "dsc: error: %s\n", dsc_error_format(err, text, sizeof text));
    return dsc_status_exit_code(err->status);
}

/* ---- runs ---- */

/* Between two runs. False: the user interrupted the wait, or the guardian's end did. */
static bool back_off(dsc_job_loop *loop)
{
    const int64_t now_ns = dsc_clock_ns();
    const int64_t until_ns = dsc_max_i64(now_ns + dsc_restart_wait_ns(loop->restart_count),
                                         loop->ops->may_start_ns(loop->user));
    dsc_output_log(loop->out, "dsc-launch: restart %d of %d in %lld s", loop->restart_count + 1,
                   loop->job->opt->restart_limit, (long long)dsc_div_ceil(until_ns - now_ns, 1000 * MS));
    while (dsc_clock_ns() < until_ns && dsc_job_loop_waits(loop))
        loop->ops->poll_once(loop->user, until_ns);
    return dsc_job_loop_waits(loop);
}

int dsc_job_loop_run(dsc_job_loop *loop)
{
    const dsc_job_loop_ops *ops = loop->ops;
    for (;;) {
        ops->run(loop->user);
        const bool again = ops->may_restart(loop->user);
        int code = ops->finish(loop->user, !again);
        if (again && back_off(loop)) {
            dsc_output_forget(loop->out);
            loop->restart_count++;
            continue;
        }
        if (again && ops->late_signal(loop->user) != 0)
            code = 128 + ops->late_signal(loop->user);
        dsc_report_lost_output(loop->out);
        ops->leave(loop->user);
        dsc_job_loop_tend_output(loop);
        for (; dsc_output_queued(loop->out) > 0 && dsc_job_loop_waits(loop); dsc_job_loop_tend_output(loop))
            ops->poll_once(loop->user, INT64_MAX);
        return code;
    }
}
