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

static void step(dsc_coordinator_worker *c, dsc_coordinator_event event)
{
    event.now_ns = dsc_clock_ns();
    dsc_coordinator_step(&c->machine, &event);
}

/* ---- what the machine wants ---- */

static void send_task(dsc_coordinator_worker *c, int32_t index)
{
    const dsc_job *job = c->job;
    char devices[DSC_DEVICES_BYTES];
    dsc_host_task task;
    dsc_host_task_of_plan(job->plan, index, devices, &task);
    task.master_addr = c->master_addr;
    memcpy(task.job_token, c->job_token, sizeof task.job_token);
    task.core_list = job->opt->core_list != NULL ? job->opt->core_list : "";
    task.bind_cores = job->opt->bind_cores;
    task.folder = c->folder;
    task.argv = job->opt->program_argv;
    task.exports = c->exports.entry;
    task.tty_columns = job->opt->rank_log_dir == NULL ? dsc_output_columns(c->out) : 0;
    task.restart_count = c->restart_count;
    task.restart_limit = job->opt->restart_limit;
    task.one_stream = dsc_output_sink_count(c->out) == 1;
    task.rank0_only = job->opt->rank_log_dir != NULL;
    dsc_message_put_task(&c->remote[index].link.channel.queue, c->machine.epoch, &task);
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
            dsc_message_put_order(&remote->link.channel.queue, &action->order);
        break;
    case DSC_COORDINATOR_DO_ENDED:
        c->end[action->end->rank] = *action->end;
        if (c->machine.verdict.phase == DSC_VERDICT_RUN) /* nobody was told to end yet */
            dsc_watch_ended(&c->watch, c->job->plan, action->end->code);
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
    dsc_link_close(&remote->link);
    if (dsc_link_open(&remote->link, c->job->alloc, c->job->opt, index, remote->name, remote->is_local, c->link_env,
                      c->epoll_fd, &remote->failure) == DSC_OK)
        return;
    remote->has_failure = true;
    step(c, (dsc_coordinator_event){ .kind = DSC_COORDINATOR_REFUSED, .host = index });
}

static void drop_host(dsc_coordinator_worker *c, int32_t index)
{
    dsc_remote *remote = &c->remote[index];
    remote->drop_wanted = false;
    if (!remote->has_failure) { /* it was silent, or the others' failure ended the wait for it */
        const int code = dsc_link_is_over(&remote->link) ? remote->link.code : -1;
        dsc_ssh_diagnose(c->job->opt, remote->name, code, remote->link.said, &remote->failure);
        remote->has_failure = true;
    }
    dsc_link_close(&remote->link);
}

/* Where the ranks meet: what the user says, else the first host's address by which ssh reached it; is it this one, the
 * address by which another host was reached from here. */
static void choose_master(dsc_coordinator_worker *c)
{
    const char *addr = c->job->plan->master_addr;
    if (c->job->opt->master_addr == NULL && !c->remote[0].is_local && c->remote[0].hello.own_addr[0] != 0)
        addr = c->remote[0].hello.own_addr;
    for (int32_t i = 1; i < c->host_count && c->job->opt->master_addr == NULL && c->remote[0].is_local; i++)
        if (!c->remote[i].is_local && c->remote[i].hello.coordinator_addr[0] != 0) {
            addr = c->remote[i].hello.coordinator_addr;
            break;
        }
    if (c->job->opt->master_addr == NULL && c->host_count == 1 && c->remote[0].is_local)
        addr = "127.0.0.1";
    snprintf(c->master_addr, sizeof c->master_addr, "%s", addr);
}

static void start_run(dsc_coordinator_worker *c)
{
    dsc_error err = DSC_ERROR_INIT;
    c->ready = false;
    memset(c->end, 0, sizeof *c->end * (size_t)c->job->plan->world_size);
    dsc_watch_forget(&c->watch);
    choose_master(c);
    if (dsc_job_token_new(c->job_token, &err) == DSC_OK) {
        step(c, (dsc_coordinator_event){ .kind = DSC_COORDINATOR_START });
        return;
    }
    c->remote[0].failure = err;
    c->remote[0].has_failure = true;
    step(c, (dsc_coordinator_event){ .kind = DSC_COORDINATOR_REFUSED, .host = 0 });
}

static void settle(dsc_coordinator_worker *c)
{
    for (bool again = true; again;) {
        again = false;
        for (int32_t i = 0; i < c->host_count; i++) {
            again = again || c->remote[i].connect_wanted;
            if (c->remote[i].drop_wanted)
                drop_host(c, i);
            if (c->remote[i].connect_wanted)
                connect_host(c, i);
        }
        if (c->ready) {
            again = true;
            start_run(c);
        }
    }
}

/* ---- what agents say ---- */

/* The agent is not what it should be. */
static void refuse(dsc_coordinator_worker *c, int32_t index)
{
    c->remote[index].has_failure = true;
    c->remote[index].drop_wanted = true;
    step(c, (dsc_coordinator_event){ .kind = c->host[index].phase == DSC_HOST_WAITED ? DSC_COORDINATOR_REFUSED
                                                                                     : DSC_COORDINATOR_CLOSED,
                                     .host = index });
}

static void refuse_stream(dsc_coordinator_worker *c, int32_t index)
{
    dsc_remote *remote = &c->remote[index];
    char where[DSC_HOST_NAME_BYTES + 8];
    snprintf(where, sizeof where, "host %s", remote->name);
    DSC_FAIL(&remote->failure, DSC_ERR_PEER, where, "its agent sent what is no message of this protocol");
    refuse(c, index);
}

static void take_hello(dsc_coordinator_worker *c, int32_t index, const dsc_frame *frame)
{
    dsc_remote *remote = &c->remote[index];
    dsc_hello *hello = &remote->hello;
    char where[DSC_HOST_NAME_BYTES + 8];
    if (c->host[index].phase != DSC_HOST_WAITED || !dsc_message_get_hello(frame, hello)) {
        refuse_stream(c, index);
        return;
    }
    dsc_text_printable(hello->version);
    dsc_text_printable(hello->path);
    if (hello->protocol == DSC_MESSAGE_PROTOCOL && strcmp(hello->version, DSC_VERSION_TEXT) == 0) {
        step(c, (dsc_coordinator_event){ .kind = DSC_COORDINATOR_HELLO, .host = index });
        return;
    }
    snprintf(where, sizeof where, "host %s", remote->name);
    DSC_FAIL(&remote->failure, DSC_ERR_PEER, where, "dsc-launch there%s%.200s is version %.60s (protocol %u), here "
             DSC_VERSION_TEXT " (protocol %u); install the same on both", hello->path[0] != 0 ? ", " : "", hello->path,
             hello->version, hello->protocol, DSC_MESSAGE_PROTOCOL);
    refuse(c, index);
}

static void take_notice(dsc_coordinator_worker *c, int32_t index, const dsc_frame *frame)
{
    const int32_t first = c->remote[index].first_rank;
    dsc_notice notice;
    bool sound = dsc_message_get_notice(frame, &notice);
    for (int32_t i = 0; sound && i < notice.end_count; i++)
        sound = notice.end[i].rank >= first && notice.end[i].rank < first + c->host[index].rank_count;
    if (sound)
        step(c, (dsc_coordinator_event){ .kind = DSC_COORDINATOR_NOTICE, .host = index, .notice = &notice });
    else
        refuse_stream(c, index);
}

static void take_flight(dsc_coordinator_worker *c, int32_t index, const dsc_frame *frame)
{
    dsc_message_flight flight;
    if (!dsc_message_get_flight(frame, &flight) || flight.index >= c->host[index].rank_count) {
        refuse_stream(c, index);
        return;
    }
    dsc_flight_view *view = dsc_watch_view(&c->watch, c->remote[index].first_rank + flight.index);
    if (flight.epoch == c->machine.epoch && view != NULL)
        *view = flight.view;
}

static void take_problem(dsc_coordinator_worker *c, int32_t index, const dsc_frame *frame)
{
    dsc_problem problem;
    if (!dsc_message_get_problem(frame, &problem)) {
        refuse_stream(c, index);
    } else if (problem.epoch == c->machine.epoch) {
        c->remote[index].problem = problem.error;
        c->remote[index].has_problem = true;
    }
}

/* Output goes on when there is room for it; what is behind it in the stream does not wait for that. */
static bool take_output(dsc_coordinator_worker *c, dsc_link *link, const dsc_frame *frame, bool may_keep)
{
    dsc_message_output output;
    const bool ends = frame->kind == DSC_FRAME_OUTPUT_END;
    if (ends ? !dsc_message_get_output_end(frame, &output) : !dsc_message_get_output(frame, &output))
        return false;
    if (output.index >= c->host[link->host].rank_count || output.bytes > DSC_OUTPUT_READ_BYTES)
        return false;
    const int32_t rank = c->remote[link->host].first_rank + output.index;
    const int which = output.which < dsc_output_sink_count(c->out) ? output.which : 0;
    if (may_keep && (link->pending_at < link->pending.count || dsc_output_full(c->out, which))) {
        const size_t begun = dsc_message_begin(&link->pending, (dsc_frame_kind)frame->kind);
        dsc_message_put(&link->pending, frame->bytes, frame->count);
        dsc_message_end(&link->pending, begun);
        return !link->pending.failed && link->pending.count - link->pending_at <= 4 * DSC_MESSAGE_WINDOW_BYTES;
    }
    link->taken_bytes += dsc_frame_bytes(frame);
    if (output.epoch != c->machine.epoch)
        return true; /* of a run that is over */
    if (ends)
        dsc_output_end(c->out, rank, which, dsc_clock_ns());
    else
        dsc_output_feed(c->out, rank, which, output.text, output.bytes, dsc_clock_ns());
    return true;
}

static void take_pending(dsc_coordinator_worker *c, dsc_link *link)
{
    while (link->pending_at < link->pending.count && !dsc_output_full(c->out, 0) && !dsc_output_full(c->out, 1)) {
        const uint8_t *at = link->pending.bytes + link->pending_at;
        size_t count = 0;
        for (size_t i = 0; i < 4; i++)
            count |= (size_t)at[i] << 8 * i;
        const dsc_frame frame = { at[4], at + DSC_MESSAGE_HEADER_BYTES, count - 1 };
        DSC_ASSERT(link->pending_at + 4 + count <= link->pending.count);
        (void)take_output(c, link, &frame, false);
        link->pending_at += 4 + count;
    }
    dsc_message_out_drop(&link->pending, &link->pending_at);
    if (link->taken_bytes - link->acked_bytes >= DSC_MESSAGE_WINDOW_BYTES / 4) {
        link->acked_bytes = link->taken_bytes;
        dsc_message_put_ack(&link->channel.queue, link->acked_bytes);
    }
}

static void take_frame(dsc_coordinator_worker *c, int32_t index, const dsc_frame *frame)
{
    dsc_link *link = &c->remote[index].link;
    if (frame->kind == DSC_FRAME_HELLO)
        take_hello(c, index, frame);
    else if (c->host[index].phase != DSC_HOST_HERE)
        refuse_stream(c, index);
    else if (frame->kind == DSC_FRAME_NOTICE)
        take_notice(c, index, frame);
    else if (frame->kind == DSC_FRAME_FLIGHT)
        take_flight(c, index, frame);
    else if (frame->kind == DSC_FRAME_PROBLEM)
        take_problem(c, index, frame);
    else if ((frame->kind != DSC_FRAME_OUTPUT && frame->kind != DSC_FRAME_OUTPUT_END) ||
             !take_output(c, link, frame, true))
        refuse_stream(c, index);
}

static void tend_link(dsc_coordinator_worker *c, int32_t index)
{
    dsc_remote *remote = &c->remote[index];
    dsc_frame frame;
    while (!remote->drop_wanted && dsc_link_next(&remote->link, &frame))
        take_frame(c, index, &frame);
    if (!remote->drop_wanted && remote->link.channel.broken && remote->link.pid > 0)
        refuse_stream(c, index);
    if (!remote->drop_wanted && dsc_link_is_over(&remote->link)) {
        dsc_ssh_diagnose(c->job->opt, remote->name, remote->link.code, remote->link.said, &remote->failure);
        remote->has_failure = true;
        remote->drop_wanted = true;
        remote->lost_code = remote->link.code;
        step(c, (dsc_coordinator_event){ .kind = DSC_COORDINATOR_CLOSED, .host = index });
    }
    take_pending(c, &remote->link);
    settle(c);
}

/* ---- signals ---- */

static void end_by_user(dsc_coordinator_worker *c, int signal_number)
{
    char name[32];
    const dsc_verdict *v = &c->machine.verdict;
    const bool begins = c->machine.phase == DSC_COORDINATOR_RUNS && v->phase == DSC_VERDICT_RUN;
    const int32_t waiting = v->alive_count;
    if (c->machine.phase != DSC_COORDINATOR_RUNS)
        c->abandon_output = true;
    step(c, (dsc_coordinator_event){ .kind = DSC_COORDINATOR_USER, .signal = signal_number });
    if (begins && c->job->opt->log_level >= DSC_LAUNCHER_INFO)
        dsc_output_log(c->out, "dsc-launch: %s: waiting up to %d s for %d rank%s to end",
                       dsc_signal_name(signal_number, name), c->job->opt->grace_s, waiting, waiting == 1 ? "" : "s");
}

static void on_signal(void *user, int signal_number, int64_t now_ns)
{
    dsc_coordinator_worker *c = user;
    switch (signal_number) {
    case SIGINT: case SIGTERM: case SIGQUIT: case SIGHUP: end_by_user(c, signal_number); break;
    case SIGTSTP: case SIGCONT:
        c->watch.paused = signal_number == SIGTSTP;
        step(c, (dsc_coordinator_event){ .kind = DSC_COORDINATOR_PASS, .signal = c->watch.paused ? SIGSTOP : SIGCONT });
        break;
    case SIGUSR1: case SIGUSR2:
        step(c, (dsc_coordinator_event){ .kind = DSC_COORDINATOR_PASS, .signal = signal_number });
        break;
    default: break;
    }
}

static void on_orphaned(void *user, int64_t now_ns)
{
    step(user, (dsc_coordinator_event){ .kind = DSC_COORDINATOR_GIVE_UP, .signal = SIGKILL });
}

/* ---- the loop ---- */

static void tend_output(dsc_coordinator_worker *c)
{
    dsc_output_flush(c->out, c->epoll_fd);
    for (int which = 0; which < dsc_output_sink_count(c->out); which++) {
        const dsc_sink *sink = dsc_output_sink(c->out, which);
        if (sink->broken && sink->reason == EPIPE && c->job->opt->rank_log_dir == NULL && !c->machine.deaf[which])
            step(c, (dsc_coordinator_event){ .kind = DSC_COORDINATOR_DEAF, .which = which });
    }
}

static void reap(dsc_coordinator_worker *c)
{
    int status = 0;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;)
        for (int32_t i = 0; i < c->host_count; i++)
            if (c->remote[i].link.pid == pid)
                dsc_link_reaped(&c->remote[i].link, status);
}

static void on_event(dsc_coordinator_worker *c, const dsc_loop_event *event)
{
    if (event->kind == DSC_LOOP_SIGNAL || event->kind == DSC_LOOP_LIFELINE)
        dsc_signals_on_event(&c->signals, event, dsc_clock_ns());
    else if (event->kind == DSC_LOOP_LINK && event->number < c->host_count)
        dsc_link_on_event(&c->remote[event->number].link, event->which);
}

/* What agents say of collectives comes with their beat; between two there is nothing new. */
static void look_for_hangs(dsc_coordinator_worker *c)
{
    const int64_t now_ns = dsc_clock_ns();
    if (c->machine.phase != DSC_COORDINATOR_RUNS || c->machine.verdict.phase != DSC_VERDICT_RUN ||
        now_ns < c->look_at_ns)
        return;
    /* Of a host that is silent we only know what was: it speaks again, or is lost. */
    if (now_ns - dsc_coordinator_last_received_ns(&c->machine, now_ns) > DSC_CONTROL_BEAT_NS * 3 / 2)
        return;
    c->look_at_ns = now_ns + DSC_WATCH_BEAT_NS;
    const int code = dsc_watch_look(&c->watch, c->job->plan, now_ns);
    if (code != 0)
        step(c, (dsc_coordinator_event){ .kind = DSC_COORDINATOR_FOUND, .code = code });
}

/* One turn: at most until `at_ns`. */
static void turn(dsc_coordinator_worker *c, int64_t at_ns)
{
    struct epoll_event events[64];
    const int64_t now_ns = dsc_clock_ns();
    at_ns = dsc_min_i64(at_ns, dsc_coordinator_wake_ns(&c->machine, now_ns));
    at_ns = dsc_min_i64(at_ns, dsc_signals_look(&c->signals, now_ns));
    at_ns = dsc_min_i64(at_ns, dsc_output_release(c->out, now_ns));
    settle(c);
    tend_output(c);
    for (int32_t i = 0; i < c->host_count; i++)
        dsc_link_flush(&c->remote[i].link);
    const int timeout_ms = (int)dsc_min_i64(60000, dsc_max_i64(0, dsc_div_ceil(at_ns - now_ns, MS)));
    const int n = epoll_wait(c->epoll_fd, events, DSC_COUNT(events), timeout_ms);
    for (int i = 0; i < n; i++) {
        const dsc_loop_event event = dsc_loop_decode(&events[i]);
        on_event(c, &event);
    }
    reap(c);
    for (int32_t i = 0; i < c->host_count; i++)
        tend_link(c, i);
    look_for_hangs(c);
    step(c, (dsc_coordinator_event){ .kind = DSC_COORDINATOR_TICK });
    settle(c);
}

static bool waits_for_output(const dsc_coordinator_worker *c)
{
    bool waits = dsc_output_queued(c->out) > 0;
    for (int32_t i = 0; i < c->host_count; i++)
        waits = waits || c->remote[i].link.pending_at < c->remote[i].link.pending.count ||
                (c->host[i].phase == DSC_HOST_HERE && c->host[i].gone && !c->host[i].drained);
    return waits && !c->signals.orphaned && !c->abandon_output;
}

/* ---- the job ---- */

/* Between two runs. False: the user has had enough. */
static bool back_off(dsc_coordinator_worker *c)
{
    const int64_t now_ns = dsc_clock_ns();
    const int64_t until_ns = dsc_max_i64(now_ns + dsc_restart_wait_ns(c->restart_count),
                                         dsc_coordinator_may_connect_ns(&c->machine));
    dsc_output_log(c->out, "dsc-launch: restart %d of %d in %lld s", c->restart_count + 1, c->job->opt->restart_limit,
                   (long long)dsc_div_ceil(until_ns - now_ns, 1000 * MS));
    while (dsc_clock_ns() < until_ns && !c->signals.orphaned && c->machine.user_signal == 0)
        turn(c, until_ns);
    return !c->signals.orphaned && c->machine.user_signal == 0;
}

/* Dismisses the agents, and waits for what carried them. */
static void leave(dsc_coordinator_worker *c)
{
    const int64_t until_ns = dsc_clock_ns() + leave_ns;
    step(c, (dsc_coordinator_event){ .kind = DSC_COORDINATOR_QUIT });
    while (!c->left)
        turn(c, INT64_MAX);
    for (int32_t i = 0; i < c->host_count; i++)
        dsc_link_close(&c->remote[i].link);
    /* An agent of this host that lost its guardian became our child. */
    while (waitpid(-1, NULL, WNOHANG) >= 0 && dsc_clock_ns() < until_ns)
        dsc_clock_sleep_ns(5 * MS);
}

static int run_job(dsc_coordinator_worker *c)
{
    for (;;) {
        c->over = false;
        step(c, (dsc_coordinator_event){ .kind = DSC_COORDINATOR_CONNECT });
        while (!c->over)
            turn(c, INT64_MAX);
        while (waits_for_output(c))
            turn(c, INT64_MAX);
        const bool again = dsc_coordinator_may_restart(c);
        int code = dsc_coordinator_finish(c, !again);
        if (again && back_off(c)) {
            dsc_output_forget(c->out);
            c->restart_count++;
            continue;
        }
        if (again && c->machine.user_signal != 0)
            code = 128 + c->machine.user_signal;
        leave(c);
        while (dsc_output_queued(c->out) > 0 && !c->signals.orphaned && !c->abandon_output)
            turn(c, INT64_MAX);
        return code;
    }
}

static dsc_status open_hosts(dsc_coordinator_worker *c, dsc_error *err)
{
    extern char **environ;
    const dsc_job *job = c->job;
    dsc_machine machine;
    bool any_remote = false;
    int32_t first_rank = 0;
    dsc_machine_read(&machine);
    for (int32_t i = 0; i < c->host_count; i++) {
        const dsc_host *host = &job->plan->pool.host[i];
        c->remote[i] = (dsc_remote){ .name = host->name,
                                     .first_rank = first_rank,
                                     .is_local = dsc_machine_is_local(&machine, host->name),
                                     .failure = DSC_ERROR_INIT,
                                     .link = { .err_fd = -1, .channel = { .in_fd = -1, .out_fd = -1 } } };
        any_remote = any_remote || !c->remote[i].is_local;
        c->host[i].rank_count = host->slot_count;
        first_rank += host->slot_count;
    }
    if (getcwd(c->folder, sizeof c->folder) == NULL)
        return DSC_FAIL(err, DSC_ERR_INPUT, "dsc-launch", "the current folder is gone or its path too long: %s",
                        strerror(errno));
    DSC_TRY(dsc_exports_open(job->alloc, job->opt, true, &c->exports, err));
    DSC_TRY(dsc_environ_without(job->alloc, environ, c->exports.entry, &c->link_env, err));
    return any_remote ? dsc_ssh_check(err) : DSC_OK;
}

static dsc_status open_all(dsc_coordinator_worker *c, int lifeline_fd, dsc_error *err)
{
    const dsc_job *job = c->job;
    const dsc_signals_hooks hooks = { on_signal, on_orphaned, c };
    const int32_t world_size = job->plan->world_size;
    const dsc_output_options output = { .rank_count = world_size,
                                        .plan = job->plan,
                                        .raw = world_size == 1 && job->opt->rank_log_dir == NULL,
                                        .only_rank0 = job->opt->rank_log_dir != NULL,
                                        .log_dir = job->opt->rank_log_dir };
    DSC_TRY(dsc_alloc_zeroed(job->alloc, DSC_TAG_CONTROL, c->host_count, (int64_t)sizeof *c->host, &c->host, err));
    DSC_TRY(dsc_alloc_zeroed(job->alloc, DSC_TAG_CONTROL, c->host_count, (int64_t)sizeof *c->remote, &c->remote, err));
    DSC_TRY(dsc_alloc_zeroed(job->alloc, DSC_TAG_CONTROL, world_size, (int64_t)sizeof *c->end, &c->end, err));
    DSC_TRY(dsc_watch_open(&c->watch, job->alloc, world_size, job->opt->stuck_s, err));
    DSC_TRY(open_hosts(c, err));
    DSC_TRY(dsc_output_open(job->alloc, &output, &c->out, err));
    c->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (c->epoll_fd < 0)
        return DSC_FAIL(err, DSC_ERR_IO, "dsc-launch", "cannot start: %s", strerror(errno));
    DSC_TRY(dsc_signals_open(&c->signals, job, lifeline_fd, c->epoll_fd, &hooks, err));
    dsc_coordinator_init(&c->machine, c->host, c->host_count, job->opt->grace_s * 1000 * MS, on_action, c);
    return DSC_OK;
}

static void close_all(dsc_coordinator_worker *c)
{
    for (int32_t i = 0; c->remote != NULL && i < c->host_count; i++)
        dsc_link_close(&c->remote[i].link);
    dsc_output_close(&c->out);
    dsc_signals_close(&c->signals);
    dsc_exports_close(&c->exports);
    if (c->epoll_fd >= 0)
        close(c->epoll_fd);
    dsc_alloc_free(c->job->alloc, c->link_env);
    dsc_alloc_free(c->job->alloc, c->host);
    dsc_alloc_free(c->job->alloc, c->remote);
    dsc_alloc_free(c->job->alloc, c->end);
    dsc_watch_close(&c->watch);
}

int dsc_coordinator_work(const dsc_job *job, int lifeline_fd)
{
    dsc_error err = DSC_ERROR_INIT;
    dsc_coordinator_worker *c = NULL;
    dsc_status status = dsc_alloc_zeroed(job->alloc, DSC_TAG_CONTROL, 1, (int64_t)sizeof *c, &c, &err);
    int code = 0;
    if (status == DSC_OK) {
        *c = (dsc_coordinator_worker){ .job = job,
                                       .epoll_fd = -1,
                                       .host_count = (int32_t)job->plan->pool.count,
                                       .signals = { .signal_fd = -1, .lifeline_fd = lifeline_fd } };
        status = open_all(c, lifeline_fd, &err);
    }
    if (status == DSC_OK) {
        code = run_job(c);
    } else {
        char text[800];
        fprintf(stderr, "dsc: error: %s\n", dsc_error_format(&err, text, sizeof text));
        code = dsc_status_exit_code(status);
    }
    if (c != NULL) {
        close_all(c);
        dsc_alloc_free(job->alloc, c);
    }
    return code;
}
