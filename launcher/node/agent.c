/* agent.c - dsc-launch --agent: the agent of one host (host_agent.h) in a process of its own, for a launcher elsewhere.
 *
 * The stream is our stdin and stdout, as ssh or the launcher gave them. The launcher quotes our stderr when it reports
 * why this host was lost. SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "launcher/node/host_agent.h"
#include "launcher/plan/exports.h"
#include "launcher/plan/program.h"
#include "launcher/process/job.h"
#include "launcher/process/signals.h"
#include "launcher/protocol/message.h"

#define MS INT64_C(1000000)

typedef struct agent_worker {
    const dsc_job *job;
    dsc_alloc *alloc;
    dsc_signals signals;
    dsc_channel channel;
    dsc_host_agent agent;
    int epoll_fd;
    bool polled;           /* the channel waits to be written */
    bool stream_closed;
    uint64_t sent_bytes, acked_bytes; /* count frames with output */
    char program[4096];
    dsc_rank_end end[DSC_HOST_SLOTS_MAX];
} agent_worker;

/* ---- what the agent sends ---- */

/* A notice says how ranks ended; the state of all their collectives then goes before it. */
static void put_notice(void *user, const dsc_notice *notice)
{
    agent_worker *a = user;
    const bool running = dsc_host_agent_runs(&a->agent) && a->agent.task.world_size > 1;
    const int64_t now_ns = dsc_clock_ns();
    dsc_message_flight flight = { .epoch = a->agent.task_epoch };
    for (int32_t i = 0; running && i < a->agent.task.rank_count; i++) {
        flight.index = i;
        dsc_ranks_flight(&a->agent.ranks, i, now_ns, &flight.view);
        dsc_message_put_flight(&a->channel.queue, &flight);
    }
    dsc_message_put_notice(&a->channel.queue, notice);
}

static void put_problem(void *user, uint32_t epoch, const dsc_error *err)
{
    agent_worker *a = user;
    const dsc_problem problem = { epoch, *err };
    dsc_message_put_problem(&a->channel.queue, &problem);
}

static bool window_is_full(const agent_worker *a) { return a->sent_bytes - a->acked_bytes >= DSC_MESSAGE_WINDOW_BYTES; }

/* After each read, else a thousand streams that have something could go far beyond what the launcher takes. */
static void mind_window(agent_worker *a)
{
    for (int which = 0; which < 2; which++)
        dsc_host_agent_pause(&a->agent, which, window_is_full(a));
}

static void put_output(void *user, int32_t index, int which, const char *text, size_t bytes, int64_t now_ns)
{
    agent_worker *a = user;
    const dsc_message_output output = { a->agent.task_epoch, index, which, text, bytes };
    a->sent_bytes += bytes > 0 ? dsc_message_put_output(&a->channel.queue, &output)
                               : dsc_message_put_output_end(&a->channel.queue, &output);
    mind_window(a);
}

/* ---- starting ---- */

/* Threads and cores by what this host has. */
static dsc_status divide_cores(dsc_host_task *task, dsc_error *err)
{
    dsc_machine machine;
    dsc_machine_read(&machine);
    if (task->bind_cores)
        return dsc_cores_divide(&machine, task->core_list, task->rank_count, &task->cores, &task->thread_count, err);
    task->thread_count = (int32_t)dsc_max_i64(1, machine.core_count / task->rank_count);
    return DSC_OK;
}

static dsc_status prepare(void *user, dsc_host_task *task, char ***env, dsc_error *err)
{
    extern char **environ;
    agent_worker *a = user;
    if (chdir(task->folder) != 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, task->folder, "the folder where dsc-launch was started is needed here too: "
                        "%s; make it, or start in one that all hosts share", strerror(errno));
    DSC_TRY(dsc_program_find(task->argv[0], a->program, sizeof a->program, err));
    task->program = a->program;
    task->launcher_pid = a->job->launcher_pid;
    a->agent.pipes = (dsc_spawn_pipes){ true, true, task->one_stream };
    DSC_TRY(divide_cores(task, err));
    return dsc_environ_with(a->alloc, environ, task->exports, env, err);
}

static void put_report(void *user, int32_t index, const uint8_t *packet, size_t bytes)
{
    agent_worker *a = user;
    const dsc_message_packet report = { a->agent.task_epoch, index, packet, bytes };
    dsc_message_put_packet(&a->channel.queue, DSC_FRAME_REPORT, &report);
}

static const dsc_host_agent_ops agent_ops = {
    .prepare = prepare, .notice = put_notice, .start_failed = put_problem, .output = put_output, .report = put_report
};

/* ---- the launcher ---- */

/* Whatever is wrong with the stream, no further message can be read. */
static void close_stream(agent_worker *a, const char *why)
{
    if (a->stream_closed)
        return;
    a->stream_closed = true;
    if (why != NULL)
        fprintf(stderr, "dsc-launch --agent: %s\n", why);
    dsc_loop_remove(a->epoll_fd, a->channel.in_fd);
    dsc_host_agent_step(&a->agent, (dsc_agent_event){ .kind = DSC_AGENT_CLOSED });
}

static void take_task(agent_worker *a, const dsc_frame *frame)
{
    dsc_host_task task;
    uint32_t epoch = 0;
    dsc_error err = DSC_ERROR_INIT;
    if (dsc_message_get_task(a->alloc, frame, &epoch, &task, &err) != DSC_OK) {
        close_stream(a, err.message);
        return;
    }
    dsc_host_agent_set_task(&a->agent, epoch, &task);
}

static void take_frame(agent_worker *a, const dsc_frame *frame)
{
    dsc_order order;
    dsc_message_packet call;
    uint64_t acked = 0;
    if (frame->kind == DSC_FRAME_TASK)
        take_task(a, frame);
    else if (frame->kind == DSC_FRAME_ORDER && dsc_message_get_order(frame, &order))
        dsc_host_agent_step(&a->agent, (dsc_agent_event){ .kind = DSC_AGENT_ORDER, .order = &order });
    else if (frame->kind == DSC_FRAME_CALL && dsc_message_get_packet(frame, &call) &&
             (size_t)call.index < DSC_COUNT(a->end))
        dsc_host_agent_call(&a->agent, call.epoch, call.index, call.bytes, call.count);
    else if (frame->kind == DSC_FRAME_ACK && dsc_message_get_ack(frame, &acked) && acked <= a->sent_bytes)
        a->acked_bytes = acked;
    else
        close_stream(a, "the launcher sent a message that is not of this protocol");
}

static void read_stream(agent_worker *a)
{
    dsc_frame frame;
    dsc_channel_read(&a->channel);
    while (!a->stream_closed && dsc_channel_next(&a->channel, &frame)) {
        take_frame(a, &frame);
        dsc_host_agent_start(&a->agent);
    }
    if (a->channel.broken)
        close_stream(a, "the launcher sent a message that is not of this protocol");
    else if (a->channel.eof)
        close_stream(a, NULL);
}

static void write_stream(agent_worker *a)
{
    dsc_channel *channel = &a->channel;
    dsc_channel_flush(channel);
    const bool waits = dsc_channel_waits(channel) && !channel->broken;
    if (waits && !a->polled)
        dsc_loop_add(a->epoll_fd, channel->out_fd, (dsc_loop_event){ DSC_LOOP_LINK, 0, 1 }, EPOLLOUT);
    else if (!waits && a->polled)
        dsc_loop_remove(a->epoll_fd, channel->out_fd);
    a->polled = waits;
    if (channel->broken)
        close_stream(a, NULL);
}

/* ---- the loop ---- */

static void on_signal(void *user, int signal_number, int64_t now_ns)
{
    agent_worker *a = user;
    if (signal_number == SIGINT || signal_number == SIGTERM || signal_number == SIGQUIT || signal_number == SIGHUP)
        close_stream(a, "a signal asked it to end");
}

static void on_orphaned(void *user, int64_t now_ns)
{
    close_stream(user, "its guardian was killed or stopped");
}

/* One that is stopped would stay on a host where nobody looks; one that was killed is not our parent any more. */
static void end_guardian(const agent_worker *a)
{
    if (a->signals.orphaned && getppid() == a->job->launcher_pid)
        kill(a->job->launcher_pid, SIGKILL);
}

static void wait_and_read(agent_worker *a)
{
    struct epoll_event events[64];
    int64_t now_ns = dsc_clock_ns();
    const int64_t at_ns = dsc_min_i64(dsc_host_agent_wake_ns(&a->agent), dsc_signals_look(&a->signals, now_ns));
    const int timeout_ms = (int)dsc_min_i64(60000, dsc_max_i64(0, dsc_div_ceil(at_ns - now_ns, MS)));
    const int n = epoll_wait(a->epoll_fd, events, DSC_COUNT(events), timeout_ms);
    now_ns = dsc_clock_ns();
    for (int i = 0; i < n; i++) {
        const dsc_loop_event event = dsc_loop_decode(&events[i]);
        if (event.kind == DSC_LOOP_SIGNAL || event.kind == DSC_LOOP_LIFELINE)
            dsc_signals_on_event(&a->signals, &event, now_ns);
        else if (event.kind == DSC_LOOP_LINK && event.which == 0)
            read_stream(a);
        else if (event.kind != DSC_LOOP_LINK)
            dsc_host_agent_on_event(&a->agent, &event, now_ns);
    }
}

static void run(agent_worker *a)
{
    while (!a->agent.leaves) {
        mind_window(a);
        write_stream(a);
        wait_and_read(a);
        dsc_host_agent_tend(&a->agent);
    }
    dsc_channel_flush(&a->channel); /* what goes, goes */
}

/* ---- opening ---- */

/* SSH_CONNECTION is "client port server port": the addresses by which the two hosts know each other. */
static void read_addresses(dsc_hello *hello)
{
    const char *text = getenv("SSH_CONNECTION");
    char port[16];
    if (text == NULL || sscanf(text, "%63s %15s %63s", hello->coordinator_addr, port, hello->own_addr) != 3)
        hello->coordinator_addr[0] = hello->own_addr[0] = 0;
}

static void say_hello(agent_worker *a)
{
    dsc_hello hello = { .protocol = DSC_MESSAGE_PROTOCOL, .version = DSC_VERSION_TEXT };
    dsc_program_path(hello.path, sizeof hello.path);
    if (gethostname(hello.name, sizeof hello.name - 1) != 0)
        hello.name[0] = 0;
    read_addresses(&hello);
    dsc_message_put(&a->channel.queue, DSC_MESSAGE_MAGIC, DSC_MESSAGE_MAGIC_BYTES);
    dsc_message_put_hello(&a->channel.queue, &hello);
}

/* The stream leaves 0 and 1, so that nothing else is ever read from or written into it. */
static dsc_status open_stream(agent_worker *a, dsc_error *err)
{
    const int in_fd = fcntl(0, F_DUPFD_CLOEXEC, 3), out_fd = fcntl(1, F_DUPFD_CLOEXEC, 3);
    const int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (in_fd < 0 || out_fd < 0 || null_fd < 0 || dup2(null_fd, 0) < 0 || dup2(2, 1) < 0)
        return DSC_FAIL(err, DSC_ERR_IO, "dsc-launch --agent", "cannot start: %s", strerror(errno));
    close(null_fd);
    dsc_channel_open(&a->channel, a->alloc, in_fd, out_fd, DSC_MESSAGE_TASK_MAX);
    if (!dsc_loop_add(a->epoll_fd, in_fd, (dsc_loop_event){ DSC_LOOP_LINK, 0, 0 }, EPOLLIN))
        return DSC_FAIL(err, DSC_ERR_INPUT, "dsc-launch --agent",
                        "is started by dsc-launch itself, with a stream as its stdin");
    return DSC_OK;
}

static dsc_status open_all(agent_worker *a, int lifeline_fd, dsc_error *err)
{
    const dsc_signals_hooks hooks = { on_signal, on_orphaned, a };
    a->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (a->epoll_fd < 0)
        return DSC_FAIL(err, DSC_ERR_IO, "dsc-launch --agent", "cannot start: %s", strerror(errno));
    DSC_TRY(dsc_signals_open(&a->signals, a->job, lifeline_fd, a->epoll_fd, &hooks, err));
    a->agent = (dsc_host_agent){ .alloc = a->alloc,
                                 .ops = &agent_ops,
                                 .user = a,
                                 .epoll_fd = a->epoll_fd,
                                 .end = a->end,
                                 .rank_limit = DSC_COUNT(a->end),
                                 .setup = { .mask = a->job->rank_mask, .has_input = false } };
    dsc_host_agent_open(&a->agent);
    DSC_TRY(open_stream(a, err));
    say_hello(a);
    return DSC_OK;
}

int dsc_agent_work(const dsc_job *job, int lifeline_fd)
{
    dsc_error err = DSC_ERROR_INIT;
    agent_worker *a = NULL;
    dsc_status status = dsc_alloc_zeroed(job->alloc, DSC_TAG_CONTROL, 1, (int64_t)sizeof *a, &a, &err);
    if (status == DSC_OK) {
        *a = (agent_worker){ .job = job,
                             .alloc = job->alloc,
                             .epoll_fd = -1,
                             .signals = { .signal_fd = -1, .lifeline_fd = lifeline_fd },
                             .channel = { .in_fd = -1, .out_fd = -1 } };
        status = open_all(a, lifeline_fd, &err);
    }
    if (status == DSC_OK) {
        run(a);
    } else {
        char text[800];
        fprintf(stderr, "dsc: error: %s\n", dsc_error_format(&err, text, sizeof text));
    }
    if (a != NULL) {
        end_guardian(a);
        dsc_host_agent_close(&a->agent);
        dsc_channel_close(&a->channel);
        dsc_signals_close(&a->signals);
        if (a->epoll_fd >= 0)
            close(a->epoll_fd);
        dsc_alloc_free(job->alloc, a);
    }
    return dsc_status_exit_code(status);
}
