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

#define MS INT64_C(1000000)

static const int64_t leave_ns = 3000 * MS;

static void step(dsc_coordinator_worker *c, dsc_coordinator_event event)
{
    event.now_ns = dsc_clock_ns();
    dsc_coordinator_step(&c->machine, &event);
}

/* ---- actions of the state machine ---- */

static void send_task(dsc_coordinator_worker *c, int32_t index)
{
    const dsc_job *job = c->loop.job;
    char devices[DSC_DEVICES_BYTES];
    dsc_host_task task;
    dsc_host_task_of_plan(job->plan, index, devices, &task);
    task.master_addr = c->master_addr;
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
        c->loop.end[action->end->rank] = *action->end;
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
    dsc_link_close(&remote->link);
    if (dsc_link_open(&remote->link, c->loop.job->alloc, c->loop.job->opt, index, remote->name, remote->is_local,
                      c->link_env, c->loop.epoll_fd, &remote->failure) == DSC_OK)
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
        dsc_ssh_diagnose(c->loop.job->opt, remote->name, code, remote->link.said, &remote->failure);
        remote->has_failure = true;
    }
    dsc_link_close(&remote->link);
}

/* Rendezvous address: the user's, else the address by which ssh reached the first host. When the first host is this
 * one: the address of this host on the route to another host. */
static void choose_master(dsc_coordinator_worker *c)
{
    const char *addr = c->loop.job->plan->master_addr;
    if (c->loop.job->opt->master_addr == NULL && !c->remote[0].is_local && c->remote[0].hello.own_addr[0] != 0)
        addr = c->remote[0].hello.own_addr;
    for (int32_t i = 1; i < c->host_count && c->loop.job->opt->master_addr == NULL && c->remote[0].is_local; i++)
        if (!c->remote[i].is_local && c->remote[i].hello.coordinator_addr[0] != 0) {
            addr = c->remote[i].hello.coordinator_addr;
            break;
        }
    if (c->loop.job->opt->master_addr == NULL && c->host_count == 1 && c->remote[0].is_local)
        addr = "127.0.0.1";
    snprintf(c->master_addr, sizeof c->master_addr, "%s", addr);
}

static void start_run(dsc_coordinator_worker *c)
{
    dsc_error err = DSC_ERROR_INIT;
    c->ready = false;
    dsc_job_loop_begin_run(&c->loop);
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

/* ---- messages of agents ---- */

/* The agent does not fit, or breaks the protocol. */
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
    DSC_FAIL(&remote->failure, DSC_ERR_PEER, where, "its agent sent a message that is not of this protocol");
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
    dsc_flight_view *view = dsc_watch_view(&c->loop.watch, c->remote[index].first_rank + flight.index);
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

/* Output waits in `pending` while a sink is full; later messages in the stream are handled meanwhile. */
static bool take_output(dsc_coordinator_worker *c, dsc_link *link, const dsc_frame *frame, bool may_keep)
{
    dsc_message_output output;
    const bool ends = frame->kind == DSC_FRAME_OUTPUT_END;
    if (ends ? !dsc_message_get_output_end(frame, &output) : !dsc_message_get_output(frame, &output))
        return false;
    if (output.index >= c->host[link->host].rank_count || output.bytes > DSC_OUTPUT_READ_BYTES)
        return false;
    const int32_t rank = c->remote[link->host].first_rank + output.index;
    const int which = output.which < dsc_output_sink_count(c->loop.out) ? output.which : 0;
    if (may_keep && (link->pending_at < link->pending.count || dsc_output_full(c->loop.out, which))) {
        const size_t begun = dsc_message_begin(&link->pending, (dsc_frame_kind)frame->kind);
        dsc_message_put(&link->pending, frame->bytes, frame->count);
        dsc_message_end(&link->pending, begun);
        return !link->pending.failed && link->pending.count - link->pending_at <= 4 * DSC_MESSAGE_WINDOW_BYTES;
    }
    link->taken_bytes += dsc_frame_bytes(frame);
    if (output.epoch != c->machine.epoch)
        return true; /* output of a run that is over */
    if (ends)
        dsc_output_end(c->loop.out, rank, which, dsc_clock_ns());
    else
        dsc_output_feed(c->loop.out, rank, which, output.text, output.bytes, dsc_clock_ns());
    return true;
}

static void take_pending(dsc_coordinator_worker *c, dsc_link *link)
{
    while (link->pending_at < link->pending.count && !dsc_output_full(c->loop.out, 0) &&
           !dsc_output_full(c->loop.out, 1)) {
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
        dsc_ssh_diagnose(c->loop.job->opt, remote->name, remote->link.code, remote->link.said, &remote->failure);
        remote->has_failure = true;
        remote->drop_wanted = true;
        remote->lost_code = remote->link.code;
        step(c, (dsc_coordinator_event){ .kind = DSC_COORDINATOR_CLOSED, .host = index });
    }
    take_pending(c, &remote->link);
    settle(c);
}

/* ---- signals ---- */

static bool end_by_user(void *user, int signal_number, int64_t now_ns)
{
    dsc_coordinator_worker *c = user;
    const bool running = c->machine.phase == DSC_COORDINATOR_RUNS;
    const bool begins = running && c->machine.verdict.phase == DSC_VERDICT_RUN;
    c->loop.abandon_output = c->loop.abandon_output || !running;
    step(c, (dsc_coordinator_event){ .kind = DSC_COORDINATOR_USER, .signal = signal_number });
    return begins;
}

static void pass_signal(void *user, int signal_number)
{
    step(user, (dsc_coordinator_event){ .kind = DSC_COORDINATOR_PASS, .signal = signal_number });
}

static void give_up(void *user)
{
    step(user, (dsc_coordinator_event){ .kind = DSC_COORDINATOR_GIVE_UP, .signal = SIGKILL });
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
        step(c, (dsc_coordinator_event){ .kind = DSC_COORDINATOR_STOP_READING, .which = which });
}

static void on_event(void *user, const dsc_loop_event *event, int64_t now_ns)
{
    dsc_coordinator_worker *c = user;
    if (event->kind == DSC_LOOP_LINK && event->number < c->host_count)
        dsc_link_on_event(&c->remote[event->number].link, event->which);
}

/* Agents send their views with each notice. The state of a host that is silent is known only as it was: the host sends
 * again, or is lost. */
static bool update_views(void *user, int64_t now_ns)
{
    const dsc_coordinator_worker *c = user;
    return c->machine.phase == DSC_COORDINATOR_RUNS &&
           now_ns - dsc_coordinator_last_received_ns(&c->machine, now_ns) <= DSC_CONTROL_BEAT_NS * 3 / 2;
}

static void found(void *user, int code)
{
    step(user, (dsc_coordinator_event){ .kind = DSC_COORDINATOR_FOUND, .code = code });
}

static void reap(dsc_coordinator_worker *c)
{
    int status = 0;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;)
        for (int32_t i = 0; i < c->host_count; i++)
            if (c->remote[i].link.pid == pid)
                dsc_link_reaped(&c->remote[i].link, status);
}

static void poll_once(void *user, int64_t at_ns)
{
    dsc_coordinator_worker *c = user;
    const int64_t now_ns = dsc_clock_ns();
    at_ns = dsc_min_i64(at_ns, dsc_coordinator_wake_ns(&c->machine, now_ns));
    at_ns = dsc_min_i64(at_ns, dsc_signals_look(&c->loop.signals, now_ns));
    at_ns = dsc_min_i64(at_ns, dsc_output_release(c->loop.out, now_ns));
    settle(c);
    dsc_job_loop_tend_output(&c->loop);
    for (int32_t i = 0; i < c->host_count; i++)
        dsc_link_flush(&c->remote[i].link);
    dsc_job_loop_wait(&c->loop, at_ns);
    reap(c);
    for (int32_t i = 0; i < c->host_count; i++)
        tend_link(c, i);
    dsc_job_loop_look_for_hangs(&c->loop, dsc_clock_ns());
    step(c, (dsc_coordinator_event){ .kind = DSC_COORDINATOR_TICK });
    settle(c);
}

static bool waits_for_output(const dsc_coordinator_worker *c)
{
    bool waits = dsc_output_queued(c->loop.out) > 0;
    for (int32_t i = 0; i < c->host_count; i++)
        waits = waits || c->remote[i].link.pending_at < c->remote[i].link.pending.count ||
                (c->host[i].phase == DSC_HOST_HERE && c->host[i].gone && !c->host[i].drained);
    return waits && dsc_job_loop_waits(&c->loop);
}

/* ---- the job ---- */

static void run(void *user)
{
    dsc_coordinator_worker *c = user;
    c->over = false;
    step(c, (dsc_coordinator_event){ .kind = DSC_COORDINATOR_CONNECT });
    while (!c->over)
        poll_once(c, INT64_MAX);
    while (waits_for_output(c))
        poll_once(c, INT64_MAX);
}

static int64_t may_start_ns(const void *user)
{
    const dsc_coordinator_worker *c = user;
    return dsc_coordinator_may_connect_ns(&c->machine);
}

/* Dismisses the agents, and waits for the processes that carried their streams. */
static void leave(void *user)
{
    dsc_coordinator_worker *c = user;
    const int64_t until_ns = dsc_clock_ns() + leave_ns;
    step(c, (dsc_coordinator_event){ .kind = DSC_COORDINATOR_QUIT });
    while (!c->left)
        poll_once(c, INT64_MAX);
    for (int32_t i = 0; i < c->host_count; i++)
        dsc_link_close(&c->remote[i].link);
    /* An agent of this host that lost its guardian became our child. */
    while (waitpid(-1, NULL, WNOHANG) >= 0 && dsc_clock_ns() < until_ns)
        dsc_clock_sleep_ns(5 * MS);
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
                                      .stop_reading = stop_reading,
                                      .update_views = update_views,
                                      .found = found };

static dsc_status open_hosts(dsc_coordinator_worker *c, dsc_error *err)
{
    extern char **environ;
    const dsc_job *job = c->loop.job;
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
    DSC_TRY(dsc_exports_open(job->alloc, job->opt, true, &c->loop.exports, err));
    DSC_TRY(dsc_environ_without(job->alloc, environ, c->loop.exports.entry, &c->link_env, err));
    return any_remote ? dsc_ssh_check(err) : DSC_OK;
}

static dsc_status open_all(dsc_coordinator_worker *c, dsc_error *err)
{
    const dsc_job *job = c->loop.job;
    const int32_t world_size = job->plan->world_size;
    const dsc_output_options output = { .rank_count = world_size,
                                        .plan = job->plan,
                                        .raw = world_size == 1 && job->opt->rank_log_dir == NULL,
                                        .only_rank0 = job->opt->rank_log_dir != NULL,
                                        .log_dir = job->opt->rank_log_dir };
    DSC_TRY(dsc_alloc_zeroed(job->alloc, DSC_TAG_CONTROL, c->host_count, (int64_t)sizeof *c->host, &c->host, err));
    DSC_TRY(dsc_alloc_zeroed(job->alloc, DSC_TAG_CONTROL, c->host_count, (int64_t)sizeof *c->remote, &c->remote, err));
    DSC_TRY(open_hosts(c, err));
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
    c->host_count = (int32_t)job->plan->pool.count;
    const int code = open_all(c, &err) == DSC_OK ? dsc_job_loop_run(&c->loop) : dsc_job_print_error(&err);
    for (int32_t i = 0; c->remote != NULL && i < c->host_count; i++)
        dsc_link_close(&c->remote[i].link);
    dsc_job_loop_close(&c->loop);
    dsc_alloc_free(job->alloc, c->link_env);
    dsc_alloc_free(job->alloc, c->host);
    dsc_alloc_free(job->alloc, c->remote);
    dsc_alloc_free(job->alloc, c);
    return code;
}
