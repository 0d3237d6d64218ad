/* coordinator.c - see coordinator.h: links, output, signals and the clock of a job over several hosts.
 *
 * A step of the machine may want things that lead to further steps; those are noted, and done when it has returned
 * (settle). SPDX-License-Identifier: Apache-2.0 */
#include "launcher/coordinator/coordinator.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "launcher/coordinator/ssh.h"
#include "launcher/node/restart.h"

#define MS INT64_C(1000000)

static const int64_t leave_ns = 3000 * MS;

static void step(dsc_head_worker *h, dsc_head_event event)
{
    event.now_ns = dsc_clock_ns();
    dsc_head_step(&h->machine, &event);
}

/* ---- what the machine wants ---- */

static void send_task(dsc_head_worker *h, int32_t index)
{
    const dsc_job *job = h->job;
    char devices[DSC_DEVICES_BYTES];
    dsc_host_task task;
    dsc_host_task_of_plan(job->plan, index, devices, &task);
    task.master_addr = h->master_addr;
    memcpy(task.job_token, h->job_token, sizeof task.job_token);
    task.core_list = job->opt->core_list != NULL ? job->opt->core_list : "";
    task.bind_cores = job->opt->bind_cores;
    task.folder = h->folder;
    task.argv = job->opt->program_argv;
    task.exports = h->exports.entry;
    task.tty_columns = job->opt->rank_log_dir == NULL ? dsc_output_columns(h->out) : 0;
    task.restart_count = h->restart_count;
    task.restart_limit = job->opt->restart_limit;
    task.one_stream = dsc_output_sink_count(h->out) == 1;
    task.rank0_only = job->opt->rank_log_dir != NULL;
    dsc_message_put_task(&h->remote[index].link.channel.queue, h->machine.epoch, &task);
}

static void on_action(void *user, const dsc_head_action *action)
{
    dsc_head_worker *h = user;
    dsc_remote *remote = action->host >= 0 ? &h->remote[action->host] : NULL;
    switch (action->kind) {
    case DSC_HEAD_DO_CONNECT: remote->connect_wanted = true; break;
    case DSC_HEAD_DO_READY: h->ready = true; break;
    case DSC_HEAD_DO_TASK: send_task(h, action->host); break;
    case DSC_HEAD_DO_ORDER:
        if (!remote->drop_wanted)
            dsc_message_put_order(&remote->link.channel.queue, &action->order);
        break;
    case DSC_HEAD_DO_ENDED:
        h->end[action->end->rank] = *action->end;
        if (h->machine.verdict.phase == DSC_VERDICT_RUN) /* nobody was told to end yet */
            dsc_watch_ended(&h->watch, h->job->plan, action->end->code);
        break;
    case DSC_HEAD_DO_DROP: remote->drop_wanted = true; break;
    case DSC_HEAD_DO_LOST:
        remote->lost = true;
        remote->silent = action->silent;
        break;
    case DSC_HEAD_DO_OVER: h->over = true; break;
    case DSC_HEAD_DO_LEFT: h->left = true; break;
    }
}

static void connect_host(dsc_head_worker *h, int32_t index)
{
    dsc_remote *remote = &h->remote[index];
    remote->connect_wanted = false;
    remote->has_failure = remote->has_problem = remote->lost = false;
    dsc_link_close(&remote->link);
    if (dsc_link_open(&remote->link, h->job->alloc, h->job->opt, index, remote->name, remote->is_local, h->link_env,
                      h->epoll_fd, &remote->failure) == DSC_OK)
        return;
    remote->has_failure = true;
    step(h, (dsc_head_event){ .kind = DSC_HEAD_REFUSED, .host = index });
}

static void drop_host(dsc_head_worker *h, int32_t index)
{
    dsc_remote *remote = &h->remote[index];
    remote->drop_wanted = false;
    if (!remote->has_failure) { /* it was silent, or the others' failure ended the wait for it */
        const int code = dsc_link_is_over(&remote->link) ? remote->link.code : -1;
        dsc_ssh_diagnose(h->job->opt, remote->name, code, remote->link.said, &remote->failure);
        remote->has_failure = true;
    }
    dsc_link_close(&remote->link);
}

/* Where the ranks meet: what the user says, else the first host's address by which ssh reached it; is it this one, the
 * address by which another host was reached from here. */
static void choose_master(dsc_head_worker *h)
{
    const char *addr = h->job->plan->master_addr;
    if (h->job->opt->master_addr == NULL && !h->remote[0].is_local && h->remote[0].hello.own_addr[0] != 0)
        addr = h->remote[0].hello.own_addr;
    for (int32_t i = 1; i < h->host_count && h->job->opt->master_addr == NULL && h->remote[0].is_local; i++)
        if (!h->remote[i].is_local && h->remote[i].hello.head_addr[0] != 0) {
            addr = h->remote[i].hello.head_addr;
            break;
        }
    if (h->job->opt->master_addr == NULL && h->host_count == 1 && h->remote[0].is_local)
        addr = "127.0.0.1";
    snprintf(h->master_addr, sizeof h->master_addr, "%s", addr);
}

static void start_run(dsc_head_worker *h)
{
    dsc_error err = DSC_ERROR_INIT;
    h->ready = false;
    memset(h->end, 0, sizeof *h->end * (size_t)h->job->plan->world_size);
    dsc_watch_forget(&h->watch);
    choose_master(h);
    if (dsc_job_token_new(h->job_token, &err) == DSC_OK) {
        step(h, (dsc_head_event){ .kind = DSC_HEAD_START });
        return;
    }
    h->remote[0].failure = err;
    h->remote[0].has_failure = true;
    step(h, (dsc_head_event){ .kind = DSC_HEAD_REFUSED, .host = 0 });
}

static void settle(dsc_head_worker *h)
{
    for (bool again = true; again;) {
        again = false;
        for (int32_t i = 0; i < h->host_count; i++) {
            again = again || h->remote[i].connect_wanted;
            if (h->remote[i].drop_wanted)
                drop_host(h, i);
            if (h->remote[i].connect_wanted)
                connect_host(h, i);
        }
        if (h->ready) {
            again = true;
            start_run(h);
        }
    }
}

/* ---- what agents say ---- */

/* The agent is not what it should be. */
static void refuse(dsc_head_worker *h, int32_t index)
{
    h->remote[index].has_failure = true;
    h->remote[index].drop_wanted = true;
    step(h, (dsc_head_event){ .kind = h->host[index].phase == DSC_HOST_WAITED ? DSC_HEAD_REFUSED : DSC_HEAD_CLOSED,
                              .host = index });
}

static void refuse_stream(dsc_head_worker *h, int32_t index)
{
    dsc_remote *remote = &h->remote[index];
    char where[DSC_HOST_NAME_BYTES + 8];
    snprintf(where, sizeof where, "host %s", remote->name);
    DSC_FAIL(&remote->failure, DSC_ERR_PEER, where, "its agent sent what is no message of this protocol");
    refuse(h, index);
}

static void take_hello(dsc_head_worker *h, int32_t index, const dsc_frame *frame)
{
    dsc_remote *remote = &h->remote[index];
    dsc_hello *hello = &remote->hello;
    char where[DSC_HOST_NAME_BYTES + 8];
    if (h->host[index].phase != DSC_HOST_WAITED || !dsc_message_get_hello(frame, hello)) {
        refuse_stream(h, index);
        return;
    }
    dsc_text_printable(hello->version);
    dsc_text_printable(hello->path);
    if (hello->protocol == DSC_MESSAGE_PROTOCOL && strcmp(hello->version, DSC_VERSION_TEXT) == 0) {
        step(h, (dsc_head_event){ .kind = DSC_HEAD_HELLO, .host = index });
        return;
    }
    snprintf(where, sizeof where, "host %s", remote->name);
    DSC_FAIL(&remote->failure, DSC_ERR_PEER, where, "dsc-launch there%s%.200s is version %.60s (protocol %u), here "
             DSC_VERSION_TEXT " (protocol %u); install the same on both", hello->path[0] != 0 ? ", " : "", hello->path,
             hello->version, hello->protocol, DSC_MESSAGE_PROTOCOL);
    refuse(h, index);
}

static void take_notice(dsc_head_worker *h, int32_t index, const dsc_frame *frame)
{
    const int32_t first = h->remote[index].first_rank;
    dsc_notice notice;
    bool sound = dsc_message_get_notice(frame, &notice);
    for (int32_t i = 0; sound && i < notice.end_count; i++)
        sound = notice.end[i].rank >= first && notice.end[i].rank < first + h->host[index].rank_count;
    if (sound)
        step(h, (dsc_head_event){ .kind = DSC_HEAD_NOTICE, .host = index, .notice = &notice });
    else
        refuse_stream(h, index);
}

static void take_flight(dsc_head_worker *h, int32_t index, const dsc_frame *frame)
{
    dsc_message_flight flight;
    if (!dsc_message_get_flight(frame, &flight) || flight.index >= h->host[index].rank_count) {
        refuse_stream(h, index);
        return;
    }
    dsc_flight_view *view = dsc_watch_view(&h->watch, h->remote[index].first_rank + flight.index);
    if (flight.epoch == h->machine.epoch && view != NULL)
        *view = flight.view;
}

static void take_problem(dsc_head_worker *h, int32_t index, const dsc_frame *frame)
{
    dsc_problem problem;
    if (!dsc_message_get_problem(frame, &problem)) {
        refuse_stream(h, index);
    } else if (problem.epoch == h->machine.epoch) {
        h->remote[index].problem = problem.error;
        h->remote[index].has_problem = true;
    }
}

/* Output goes on when there is room for it; what is behind it in the stream does not wait for that. */
static bool take_output(dsc_head_worker *h, dsc_link *link, const dsc_frame *frame, bool may_keep)
{
    dsc_message_output output;
    const bool ends = frame->kind == DSC_FRAME_OUTPUT_END;
    if (ends ? !dsc_message_get_output_end(frame, &output) : !dsc_message_get_output(frame, &output))
        return false;
    if (output.index >= h->host[link->host].rank_count || output.bytes > DSC_OUTPUT_READ_BYTES)
        return false;
    const int32_t rank = h->remote[link->host].first_rank + output.index;
    const int which = output.which < dsc_output_sink_count(h->out) ? output.which : 0;
    if (may_keep && (link->pending_at < link->pending.count || dsc_output_full(h->out, which))) {
        const size_t begun = dsc_message_begin(&link->pending, (dsc_frame_kind)frame->kind);
        dsc_message_put(&link->pending, frame->bytes, frame->count);
        dsc_message_end(&link->pending, begun);
        return !link->pending.failed && link->pending.count - link->pending_at <= 4 * DSC_MESSAGE_WINDOW_BYTES;
    }
    link->taken_bytes += dsc_frame_bytes(frame);
    if (output.epoch != h->machine.epoch)
        return true; /* of a run that is over */
    if (ends)
        dsc_output_end(h->out, rank, which, dsc_clock_ns());
    else
        dsc_output_feed(h->out, rank, which, output.text, output.bytes, dsc_clock_ns());
    return true;
}

static void take_pending(dsc_head_worker *h, dsc_link *link)
{
    while (link->pending_at < link->pending.count && !dsc_output_full(h->out, 0) && !dsc_output_full(h->out, 1)) {
        const uint8_t *at = link->pending.bytes + link->pending_at;
        size_t count = 0;
        for (size_t i = 0; i < 4; i++)
            count |= (size_t)at[i] << 8 * i;
        const dsc_frame frame = { at[4], at + DSC_MESSAGE_HEADER_BYTES, count - 1 };
        DSC_ASSERT(link->pending_at + 4 + count <= link->pending.count);
        (void)take_output(h, link, &frame, false);
        link->pending_at += 4 + count;
    }
    dsc_message_out_drop(&link->pending, &link->pending_at);
    if (link->taken_bytes - link->acked_bytes >= DSC_MESSAGE_WINDOW_BYTES / 4) {
        link->acked_bytes = link->taken_bytes;
        dsc_message_put_ack(&link->channel.queue, link->acked_bytes);
    }
}

static void take_frame(dsc_head_worker *h, int32_t index, const dsc_frame *frame)
{
    dsc_link *link = &h->remote[index].link;
    if (frame->kind == DSC_FRAME_HELLO)
        take_hello(h, index, frame);
    else if (h->host[index].phase != DSC_HOST_HERE)
        refuse_stream(h, index);
    else if (frame->kind == DSC_FRAME_NOTICE)
        take_notice(h, index, frame);
    else if (frame->kind == DSC_FRAME_FLIGHT)
        take_flight(h, index, frame);
    else if (frame->kind == DSC_FRAME_PROBLEM)
        take_problem(h, index, frame);
    else if ((frame->kind != DSC_FRAME_OUTPUT && frame->kind != DSC_FRAME_OUTPUT_END) ||
             !take_output(h, link, frame, true))
        refuse_stream(h, index);
}

static void tend_link(dsc_head_worker *h, int32_t index)
{
    dsc_remote *remote = &h->remote[index];
    dsc_frame frame;
    while (!remote->drop_wanted && dsc_link_next(&remote->link, &frame))
        take_frame(h, index, &frame);
    if (!remote->drop_wanted && remote->link.channel.broken && remote->link.pid > 0)
        refuse_stream(h, index);
    if (!remote->drop_wanted && dsc_link_is_over(&remote->link)) {
        dsc_ssh_diagnose(h->job->opt, remote->name, remote->link.code, remote->link.said, &remote->failure);
        remote->has_failure = true;
        remote->drop_wanted = true;
        remote->lost_code = remote->link.code;
        step(h, (dsc_head_event){ .kind = DSC_HEAD_CLOSED, .host = index });
    }
    take_pending(h, &remote->link);
    settle(h);
}

/* ---- signals ---- */

static void end_by_user(dsc_head_worker *h, int signal_number)
{
    char name[32];
    const dsc_verdict *v = &h->machine.verdict;
    const bool begins = h->machine.phase == DSC_HEAD_RUNS && v->phase == DSC_VERDICT_RUN;
    const int32_t waiting = v->alive_count;
    if (h->machine.phase != DSC_HEAD_RUNS)
        h->abandon_output = true;
    step(h, (dsc_head_event){ .kind = DSC_HEAD_USER, .signal = signal_number });
    if (begins && h->job->opt->log_level >= DSC_LAUNCHER_INFO)
        dsc_output_log(h->out, "dsc-launch: %s: waiting up to %d s for %d rank%s to end",
                       dsc_signal_name(signal_number, name), h->job->opt->grace_s, waiting, waiting == 1 ? "" : "s");
}

static void on_signal(void *user, int signal_number, int64_t now_ns)
{
    dsc_head_worker *h = user;
    switch (signal_number) {
    case SIGINT: case SIGTERM: case SIGQUIT: case SIGHUP: end_by_user(h, signal_number); break;
    case SIGTSTP: case SIGCONT:
        h->watch.paused = signal_number == SIGTSTP;
        step(h, (dsc_head_event){ .kind = DSC_HEAD_PASS, .signal = h->watch.paused ? SIGSTOP : SIGCONT });
        break;
    case SIGUSR1: case SIGUSR2:
        step(h, (dsc_head_event){ .kind = DSC_HEAD_PASS, .signal = signal_number });
        break;
    default: break;
    }
}

static void on_orphaned(void *user, int64_t now_ns)
{
    step(user, (dsc_head_event){ .kind = DSC_HEAD_GIVE_UP, .signal = SIGKILL });
}

/* ---- the loop ---- */

static void tend_output(dsc_head_worker *h)
{
    dsc_output_flush(h->out, h->epoll_fd);
    for (int which = 0; which < dsc_output_sink_count(h->out); which++) {
        const dsc_sink *sink = dsc_output_sink(h->out, which);
        if (sink->broken && sink->reason == EPIPE && h->job->opt->rank_log_dir == NULL && !h->machine.deaf[which])
            step(h, (dsc_head_event){ .kind = DSC_HEAD_DEAF, .which = which });
    }
}

static void reap(dsc_head_worker *h)
{
    int status = 0;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;)
        for (int32_t i = 0; i < h->host_count; i++)
            if (h->remote[i].link.pid == pid)
                dsc_link_reaped(&h->remote[i].link, status);
}

static void on_event(dsc_head_worker *h, const dsc_loop_event *event)
{
    if (event->kind == DSC_LOOP_SIGNAL || event->kind == DSC_LOOP_LIFELINE)
        dsc_signals_on_event(&h->signals, event, dsc_clock_ns());
    else if (event->kind == DSC_LOOP_LINK && event->number < h->host_count)
        dsc_link_on_event(&h->remote[event->number].link, event->which);
}

/* What agents say of collectives comes with their beat; between two there is nothing new. */
static void look_for_hangs(dsc_head_worker *h)
{
    const int64_t now_ns = dsc_clock_ns();
    if (h->machine.phase != DSC_HEAD_RUNS || h->machine.verdict.phase != DSC_VERDICT_RUN || now_ns < h->look_at_ns)
        return;
    /* Of a host that is silent we only know what was: it speaks again, or is lost. */
    if (now_ns - dsc_head_last_received_ns(&h->machine, now_ns) > DSC_CONTROL_BEAT_NS * 3 / 2)
        return;
    h->look_at_ns = now_ns + DSC_WATCH_BEAT_NS;
    const int code = dsc_watch_look(&h->watch, h->job->plan, now_ns);
    if (code != 0)
        step(h, (dsc_head_event){ .kind = DSC_HEAD_FOUND, .code = code });
}

/* One turn: at most until `at_ns`. */
static void turn(dsc_head_worker *h, int64_t at_ns)
{
    struct epoll_event events[64];
    const int64_t now_ns = dsc_clock_ns();
    at_ns = dsc_min_i64(at_ns, dsc_head_wake_ns(&h->machine, now_ns));
    at_ns = dsc_min_i64(at_ns, dsc_signals_look(&h->signals, now_ns));
    at_ns = dsc_min_i64(at_ns, dsc_output_release(h->out, now_ns));
    settle(h);
    tend_output(h);
    for (int32_t i = 0; i < h->host_count; i++)
        dsc_link_flush(&h->remote[i].link);
    const int timeout_ms = (int)dsc_min_i64(60000, dsc_max_i64(0, dsc_div_ceil(at_ns - now_ns, MS)));
    const int n = epoll_wait(h->epoll_fd, events, DSC_COUNT(events), timeout_ms);
    for (int i = 0; i < n; i++) {
        const dsc_loop_event event = dsc_loop_decode(&events[i]);
        on_event(h, &event);
    }
    reap(h);
    for (int32_t i = 0; i < h->host_count; i++)
        tend_link(h, i);
    look_for_hangs(h);
    step(h, (dsc_head_event){ .kind = DSC_HEAD_TICK });
    settle(h);
}

static bool waits_for_output(const dsc_head_worker *h)
{
    bool waits = dsc_output_queued(h->out) > 0;
    for (int32_t i = 0; i < h->host_count; i++)
        waits = waits || h->remote[i].link.pending_at < h->remote[i].link.pending.count ||
                (h->host[i].phase == DSC_HOST_HERE && h->host[i].gone && !h->host[i].drained);
    return waits && !h->signals.orphaned && !h->abandon_output;
}

/* ---- the job ---- */

/* Between two runs. False: the user has had enough. */
static bool back_off(dsc_head_worker *h)
{
    const int64_t now_ns = dsc_clock_ns();
    const int64_t until_ns = dsc_max_i64(now_ns + dsc_restart_wait_ns(h->restart_count),
                                         dsc_head_may_connect_ns(&h->machine));
    dsc_output_log(h->out, "dsc-launch: restart %d of %d in %lld s", h->restart_count + 1, h->job->opt->restart_limit,
                   (long long)dsc_div_ceil(until_ns - now_ns, 1000 * MS));
    while (dsc_clock_ns() < until_ns && !h->signals.orphaned && h->machine.user_signal == 0)
        turn(h, until_ns);
    return !h->signals.orphaned && h->machine.user_signal == 0;
}

/* Dismisses the agents, and waits for what carried them. */
static void leave(dsc_head_worker *h)
{
    const int64_t until_ns = dsc_clock_ns() + leave_ns;
    step(h, (dsc_head_event){ .kind = DSC_HEAD_QUIT });
    while (!h->left)
        turn(h, INT64_MAX);
    for (int32_t i = 0; i < h->host_count; i++)
        dsc_link_close(&h->remote[i].link);
    /* An agent of this host that lost its guardian became our child. */
    while (waitpid(-1, NULL, WNOHANG) >= 0 && dsc_clock_ns() < until_ns)
        dsc_clock_sleep_ns(5 * MS);
}

static int run_job(dsc_head_worker *h)
{
    for (;;) {
        h->over = false;
        step(h, (dsc_head_event){ .kind = DSC_HEAD_CONNECT });
        while (!h->over)
            turn(h, INT64_MAX);
        while (waits_for_output(h))
            turn(h, INT64_MAX);
        const bool again = dsc_head_may_restart(h);
        int code = dsc_head_finish(h, !again);
        if (again && back_off(h)) {
            dsc_output_forget(h->out);
            h->restart_count++;
            continue;
        }
        if (again && h->machine.user_signal != 0)
            code = 128 + h->machine.user_signal;
        leave(h);
        while (dsc_output_queued(h->out) > 0 && !h->signals.orphaned && !h->abandon_output)
            turn(h, INT64_MAX);
        return code;
    }
}

static dsc_status open_hosts(dsc_head_worker *h, dsc_error *err)
{
    extern char **environ;
    const dsc_job *job = h->job;
    dsc_machine machine;
    bool any_remote = false;
    int32_t first_rank = 0;
    dsc_machine_read(&machine);
    for (int32_t i = 0; i < h->host_count; i++) {
        const dsc_host *host = &job->plan->pool.host[i];
        h->remote[i] = (dsc_remote){ .name = host->name,
                                     .first_rank = first_rank,
                                     .is_local = dsc_machine_is_local(&machine, host->name),
                                     .failure = DSC_ERROR_INIT,
                                     .link = { .err_fd = -1, .channel = { .in_fd = -1, .out_fd = -1 } } };
        any_remote = any_remote || !h->remote[i].is_local;
        h->host[i].rank_count = host->slot_count;
        first_rank += host->slot_count;
    }
    if (getcwd(h->folder, sizeof h->folder) == NULL)
        return DSC_FAIL(err, DSC_ERR_INPUT, "dsc-launch", "the current folder is gone or its path too long: %s",
                        strerror(errno));
    DSC_TRY(dsc_exports_open(job->alloc, job->opt, true, &h->exports, err));
    DSC_TRY(dsc_environ_without(job->alloc, environ, h->exports.entry, &h->link_env, err));
    return any_remote ? dsc_ssh_check(err) : DSC_OK;
}

static dsc_status open_all(dsc_head_worker *h, int lifeline_fd, dsc_error *err)
{
    const dsc_job *job = h->job;
    const dsc_signals_hooks hooks = { on_signal, on_orphaned, h };
    const int32_t world_size = job->plan->world_size;
    const dsc_output_options output = { .rank_count = world_size,
                                        .plan = job->plan,
                                        .raw = world_size == 1 && job->opt->rank_log_dir == NULL,
                                        .only_rank0 = job->opt->rank_log_dir != NULL,
                                        .log_dir = job->opt->rank_log_dir };
    DSC_TRY(dsc_alloc_zeroed(job->alloc, DSC_TAG_CONTROL, h->host_count, (int64_t)sizeof *h->host, &h->host, err));
    DSC_TRY(dsc_alloc_zeroed(job->alloc, DSC_TAG_CONTROL, h->host_count, (int64_t)sizeof *h->remote, &h->remote, err));
    DSC_TRY(dsc_alloc_zeroed(job->alloc, DSC_TAG_CONTROL, world_size, (int64_t)sizeof *h->end, &h->end, err));
    DSC_TRY(dsc_watch_open(&h->watch, job->alloc, world_size, job->opt->stuck_s, err));
    DSC_TRY(open_hosts(h, err));
    DSC_TRY(dsc_output_open(job->alloc, &output, &h->out, err));
    h->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (h->epoll_fd < 0)
        return DSC_FAIL(err, DSC_ERR_IO, "dsc-launch", "cannot start: %s", strerror(errno));
    DSC_TRY(dsc_signals_open(&h->signals, job, lifeline_fd, h->epoll_fd, &hooks, err));
    dsc_head_init(&h->machine, h->host, h->host_count, job->opt->grace_s * 1000 * MS, on_action, h);
    return DSC_OK;
}

static void close_all(dsc_head_worker *h)
{
    for (int32_t i = 0; h->remote != NULL && i < h->host_count; i++)
        dsc_link_close(&h->remote[i].link);
    dsc_output_close(&h->out);
    dsc_signals_close(&h->signals);
    dsc_exports_close(&h->exports);
    if (h->epoll_fd >= 0)
        close(h->epoll_fd);
    dsc_alloc_free(h->job->alloc, h->link_env);
    dsc_alloc_free(h->job->alloc, h->host);
    dsc_alloc_free(h->job->alloc, h->remote);
    dsc_alloc_free(h->job->alloc, h->end);
    dsc_watch_close(&h->watch);
}

int dsc_head_work(const dsc_job *job, int lifeline_fd)
{
    dsc_error err = DSC_ERROR_INIT;
    dsc_head_worker *h = NULL;
    dsc_status status = dsc_alloc_zeroed(job->alloc, DSC_TAG_CONTROL, 1, (int64_t)sizeof *h, &h, &err);
    int code = 0;
    if (status == DSC_OK) {
        *h = (dsc_head_worker){ .job = job,
                                .epoll_fd = -1,
                                .host_count = (int32_t)job->plan->pool.count,
                                .signals = { .signal_fd = -1, .lifeline_fd = lifeline_fd } };
        status = open_all(h, lifeline_fd, &err);
    }
    if (status == DSC_OK) {
        code = run_job(h);
    } else {
        char text[800];
        fprintf(stderr, "dsc: error: %s\n", dsc_error_format(&err, text, sizeof text));
        code = dsc_status_exit_code(status);
    }
    if (h != NULL) {
        close_all(h);
        dsc_alloc_free(job->alloc, h);
    }
    return code;
}
