/* stream.c - agents in processes of their own, reached over streams: an ssh to each host, or the agent itself when the
 * host is this one. SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "launcher/coordinator/coordinator.h"
#include "launcher/coordinator/ssh.h"

#define MS INT64_C(1000000)

static const int64_t leave_ns = 3000 * MS;

/* ---- opening and closing ---- */

static dsc_status open_streams(dsc_coordinator_worker *c, dsc_error *err)
{
    extern char **environ;
    bool any_remote = false;
    for (int32_t i = 0; i < c->host_count; i++)
        any_remote = any_remote || !c->remote[i].is_local;
    if (getcwd(c->folder, sizeof c->folder) == NULL)
        return DSC_FAIL(err, DSC_ERR_INPUT, "dsc-launch", "the current folder is gone or its path too long: %s",
                        strerror(errno));
    DSC_TRY(dsc_environ_without(c->job->alloc, environ, c->exports.entry, &c->link_env, err));
    return any_remote ? dsc_ssh_check(err) : DSC_OK;
}

static dsc_status connect_stream(dsc_coordinator_worker *c, int32_t index, dsc_error *err)
{
    dsc_remote *remote = &c->remote[index];
    dsc_link_close(&remote->link);
    return dsc_link_open(&remote->link, c->job->alloc, c->job->opt, index, remote->name, remote->is_local,
                         c->link_env, c->epoll_fd, err);
}

static void drop_stream(dsc_coordinator_worker *c, int32_t index)
{
    dsc_remote *remote = &c->remote[index];
    if (!remote->has_failure) { /* it was silent, or the others' failure ended the wait for it */
        const int code = dsc_link_is_over(&remote->link) ? remote->link.code : -1;
        dsc_ssh_diagnose(c->job->opt, remote->name, code, remote->link.said, &remote->failure);
        remote->has_failure = true;
    }
    dsc_link_close(&remote->link);
}

/* Waits for the processes that carried the streams. */
static void close_streams(dsc_coordinator_worker *c)
{
    const int64_t until_ns = dsc_clock_ns() + leave_ns;
    for (int32_t i = 0; c->remote != NULL && i < c->host_count; i++)
        dsc_link_close(&c->remote[i].link);
    /* An agent of this host that lost its guardian became our child. */
    while (waitpid(-1, NULL, WNOHANG) >= 0 && dsc_clock_ns() < until_ns)
        dsc_clock_sleep_ns(5 * MS);
    dsc_alloc_free(c->job->alloc, c->link_env);
    c->link_env = NULL;
}

/* ---- messages to agents ---- */

/* Rendezvous address: the user's, else the address by which ssh reached the first host. When the first host is this
 * one: the address of this host on the route to another host. */
static const char *master_addr(const dsc_coordinator_worker *c)
{
    const char *addr = c->job->plan->master_addr;
    if (c->job->opt->master_addr == NULL && !c->remote[0].is_local && c->remote[0].hello.own_addr[0] != 0)
        addr = c->remote[0].hello.own_addr;
    for (int32_t i = 1; i < c->host_count && c->job->opt->master_addr == NULL && c->remote[0].is_local; i++)
        if (!c->remote[i].is_local && c->remote[i].hello.coordinator_addr[0] != 0) {
            addr = c->remote[i].hello.coordinator_addr;
            break;
        }
    return addr;
}

static void send_task(dsc_coordinator_worker *c, int32_t index, dsc_host_task *task)
{
    task->master_addr = master_addr(c);
    dsc_message_put_task(&c->remote[index].link.channel.queue, c->machine.epoch, task);
}

static void send_order(dsc_coordinator_worker *c, int32_t index, const dsc_order *order)
{
    dsc_message_put_order(&c->remote[index].link.channel.queue, order);
}

static void flush(dsc_coordinator_worker *c)
{
    for (int32_t i = 0; i < c->host_count; i++)
        dsc_link_flush(&c->remote[i].link);
}

static void send_call(dsc_coordinator_worker *c, int32_t index, int32_t rank, const uint8_t *packet, size_t bytes)
{
    const dsc_message_packet call = { c->machine.epoch, rank, packet, bytes };
    dsc_message_put_packet(&c->remote[index].link.channel.queue, DSC_FRAME_CALL, &call);
}

/* As if ssh had died. */
static void cut(dsc_coordinator_worker *c, int32_t index)
{
    if (c->remote[index].link.pid > 0)
        kill(c->remote[index].link.pid, SIGKILL);
}

/* As in master_addr, for any host that rank 0 of a world is on. */
static const char *address(const dsc_coordinator_worker *c, int32_t index)
{
    if (index == 0)
        return master_addr(c);
    if (c->remote[index].is_local)
        return c->job->plan->master_addr;
    return c->remote[index].hello.own_addr[0] != 0 ? c->remote[index].hello.own_addr : c->remote[index].name;
}

/* ---- messages of agents ---- */

/* The agent does not fit, or breaks the protocol. */
static void refuse(dsc_coordinator_worker *c, int32_t index)
{
    c->remote[index].has_failure = true;
    c->remote[index].drop_wanted = true;
    const bool waited = c->host[index].phase == DSC_HOST_WAITED;
    dsc_coordinator_worker_step(c, (dsc_coordinator_event){ .kind = waited ? DSC_COORDINATOR_REFUSED
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
        dsc_coordinator_worker_step(c, (dsc_coordinator_event){ .kind = DSC_COORDINATOR_HELLO, .host = index });
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
        dsc_coordinator_worker_step(c, (dsc_coordinator_event){ .kind = DSC_COORDINATOR_NOTICE, .host = index,
                                                                .notice = &notice });
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
    dsc_flight_view *view = dsc_watch_view(&c->watch, dsc_worlds_rank(c, c->remote[index].first_rank + flight.index));
    if (flight.epoch == c->machine.epoch && view != NULL)
        *view = flight.view;
}

static void take_report(dsc_coordinator_worker *c, int32_t index, const dsc_frame *frame)
{
    dsc_message_packet report;
    if (!dsc_message_get_packet(frame, &report) || report.index >= c->host[index].rank_count) {
        refuse_stream(c, index);
        return;
    }
    if (report.epoch == c->machine.epoch)
        dsc_worlds_report(c, c->remote[index].first_rank + report.index, report.bytes, report.count);
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
    const int which = output.which < dsc_output_sink_count(c->out) ? output.which : 0;
    if (may_keep && (link->pending_at < link->pending.count || dsc_output_full(c->out, which))) {
        const size_t begun = dsc_message_begin(&link->pending, (dsc_frame_kind)frame->kind);
        dsc_message_put(&link->pending, frame->bytes, frame->count);
        dsc_message_end(&link->pending, begun);
        return !link->pending.failed && link->pending.count - link->pending_at <= 4 * DSC_MESSAGE_WINDOW_BYTES;
    }
    link->taken_bytes += dsc_frame_bytes(frame);
    if (output.epoch != c->machine.epoch)
        return true; /* output of a run that is over */
    if (ends)
        dsc_output_end(c->out, rank, which, dsc_clock_ns());
    else
        dsc_output_feed(c->out, rank, which, output.text, output.bytes, dsc_clock_ns());
    return true;
}

static void take_pending(dsc_coordinator_worker *c, dsc_link *link)
{
    while (link->pending_at < link->pending.count && !dsc_output_full(c->out, 0) &&
           !dsc_output_full(c->out, 1)) {
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
    else if (frame->kind == DSC_FRAME_REPORT)
        take_report(c, index, frame);
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
        dsc_coordinator_worker_step(c, (dsc_coordinator_event){ .kind = DSC_COORDINATOR_CLOSED, .host = index });
    }
    take_pending(c, &remote->link);
    dsc_coordinator_settle(c);
}

/* ---- the loop ---- */

static void on_event(dsc_coordinator_worker *c, const dsc_loop_event *event, int64_t now_ns)
{
    if (event->kind == DSC_LOOP_LINK && event->number < c->host_count)
        dsc_link_on_event(&c->remote[event->number].link, event->which);
}

static void tend(dsc_coordinator_worker *c)
{
    int status = 0;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;)
        for (int32_t i = 0; i < c->host_count; i++)
            if (c->remote[i].link.pid == pid)
                dsc_link_reaped(&c->remote[i].link, status);
    for (int32_t i = 0; i < c->host_count; i++)
        tend_link(c, i);
}

static int64_t wake_ns(dsc_coordinator_worker *c) { return INT64_MAX; }

/* Agents send their views with each notice. The state of a host that is silent is known only as it was: the host sends
 * again, or is lost. */
static bool update_views(dsc_coordinator_worker *c, int64_t now_ns)
{
    return c->machine.phase == DSC_COORDINATOR_RUNS &&
           now_ns - dsc_coordinator_last_received_ns(&c->machine, now_ns) <= DSC_CONTROL_BEAT_NS * 3 / 2;
}

static bool has_output(const dsc_coordinator_worker *c)
{
    for (int32_t i = 0; i < c->host_count; i++)
        if (c->remote[i].link.pending_at < c->remote[i].link.pending.count)
            return true;
    return false;
}

const dsc_agents_ops dsc_stream_agents = { .open = open_streams,
                                           .connect = connect_stream,
                                           .drop = drop_stream,
                                           .send_task = send_task,
                                           .send_order = send_order,
                                           .send_call = send_call,
                                           .cut = cut,
                                           .address = address,
                                           .flush = flush,
                                           .wake_ns = wake_ns,
                                           .event = on_event,
                                           .tend = tend,
                                           .update_views = update_views,
                                           .has_output = has_output,
                                           .close = close_streams };
