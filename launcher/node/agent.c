/* agent.c - dsc-launch --agent: the worker that starts and ends the ranks of one host for a launcher elsewhere. The
 * decisions are control_agent.c's; here are the processes, the stream and the clock.
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
#include "launcher/coordinator/exports.h"
#include "launcher/job.h"
#include "launcher/program.h"
#include "launcher/node/ranks.h"
#include "launcher/node/signals.h"
#include "launcher/coordinator/message.h"

#define MS INT64_C(1000000)

typedef struct agent_worker {
    const dsc_job *job;
    dsc_alloc *alloc;
    dsc_signals signals;
    dsc_channel channel;
    dsc_agent machine;
    dsc_rank_end end[DSC_HOST_SLOTS_MAX];
    int epoll_fd;
    bool polled;           /* the channel waits to be written */
    bool leaves;           /* the machine is done */
    bool stream_closed;
    bool start_wanted;
    uint64_t sent_bytes, acked_bytes; /* count frames with output */

    dsc_host_task task;    /* newest; the ranks' own once they started */
    uint32_t task_epoch;
    char program[4096];
    char **env;            /* for this epoch; owned */
    dsc_ranks ranks;
    bool ranks_open;
} agent_worker;

static void step(agent_worker *a, dsc_agent_event event)
{
    event.now_ns = dsc_clock_ns();
    dsc_agent_step(&a->machine, &event);
}

/* ---- actions of the state machine ---- */

/* A notice says how ranks ended; what they all were doing then goes before it. */
static void put_notice(agent_worker *a, const dsc_notice *notice)
{
    const bool running = a->ranks_open && a->machine.phase == DSC_AGENT_RUNS && a->task.world_size > 1;
    const int64_t now_ns = dsc_clock_ns();
    dsc_message_flight flight = { .epoch = a->task_epoch };
    for (int32_t i = 0; running && i < a->task.rank_count; i++) {
        flight.index = i;
        dsc_ranks_flight(&a->ranks, i, now_ns, &flight.view);
        dsc_message_put_flight(&a->channel.queue, &flight);
    }
    dsc_message_put_notice(&a->channel.queue, notice);
}

static void on_action(void *user, const dsc_agent_action *action)
{
    agent_worker *a = user;
    switch (action->kind) {
    case DSC_AGENT_DO_START: a->start_wanted = true; break;
    case DSC_AGENT_DO_SIGNAL: dsc_ranks_signal(&a->ranks, action->signal); break;
    case DSC_AGENT_DO_KILL: dsc_ranks_kill(&a->ranks); break;
    case DSC_AGENT_DO_NOTICE: put_notice(a, &action->notice); break;
    case DSC_AGENT_DO_STOP_READING: dsc_ranks_stop_reading(&a->ranks, action->which); break;
    case DSC_AGENT_DO_EXIT: a->leaves = true; break;
    }
}

/* ---- ranks ---- */

static bool window_is_full(const agent_worker *a) { return a->sent_bytes - a->acked_bytes >= DSC_MESSAGE_WINDOW_BYTES; }

/* After each read, else a thousand streams that have something could go far beyond what the launcher takes. */
static void mind_window(agent_worker *a)
{
    for (int which = 0; which < 2; which++)
        dsc_ranks_pause(&a->ranks, which, window_is_full(a));
}

static void on_output(void *user, int32_t index, int which, const char *text, size_t bytes, int64_t now_ns)
{
    agent_worker *a = user;
    const dsc_message_output output = { a->task_epoch, index, which, text, bytes };
    a->sent_bytes += dsc_message_put_output(&a->channel.queue, &output);
    mind_window(a);
}

static void on_output_end(void *user, int32_t index, int which, int64_t now_ns)
{
    agent_worker *a = user;
    const dsc_message_output output = { a->task_epoch, index, which, NULL, 0 };
    a->sent_bytes += dsc_message_put_output_end(&a->channel.queue, &output);
}

static void on_ended(void *user, int32_t index, const dsc_rank_end *end, int64_t now_ns)
{
    step(user, (dsc_agent_event){ .kind = DSC_AGENT_ENDED, .end = end });
}

static void close_ranks(agent_worker *a)
{
    if (a->ranks_open)
        dsc_ranks_close(&a->ranks);
    a->ranks_open = false;
    dsc_alloc_free(a->alloc, a->env);
    a->env = NULL;
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

static dsc_status prepare(agent_worker *a, dsc_error *err)
{
    extern char **environ;
    dsc_host_task *task = &a->task;
    const dsc_ranks_hooks hooks = { on_output, on_output_end, on_ended, a };
    if (chdir(task->folder) != 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, task->folder, "the folder where dsc-launch was started is needed here too: "
                        "%s; make it, or start in one that all hosts share", strerror(errno));
    DSC_TRY(dsc_program_find(task->argv[0], a->program, sizeof a->program, err));
    task->program = a->program;
    task->launcher_pid = a->job->launcher_pid;
    DSC_TRY(divide_cores(task, err));
    DSC_TRY(dsc_environ_with(a->alloc, environ, task->exports, &a->env, err));
    task->env = a->env;
    DSC_TRY(dsc_ranks_open(&a->ranks, a->alloc, task, a->epoll_fd, &hooks, err));
    a->ranks_open = true;
    return DSC_OK;
}

static dsc_status start_ranks(agent_worker *a, dsc_error *err)
{
    const dsc_spawn_setup setup = { .mask = a->job->rank_mask, .has_input = false };
    dsc_spawn_pipes *pipes = NULL;
    close_ranks(a);
    DSC_TRY(prepare(a, err));
    DSC_TRY(dsc_alloc_zeroed(a->alloc, DSC_TAG_CONTROL, a->task.rank_count, (int64_t)sizeof *pipes, &pipes, err));
    for (int32_t i = 0; i < a->task.rank_count; i++) {
        const bool log_only = a->task.rank0_only && a->task.first_rank + i > 0;
        pipes[i] = (dsc_spawn_pipes){ true, true, a->task.one_stream || log_only };
    }
    const dsc_status status = dsc_ranks_start(&a->ranks, &setup, pipes, err);
    dsc_alloc_free(a->alloc, pipes);
    return status;
}

static void start(agent_worker *a)
{
    dsc_problem problem = { a->task_epoch, DSC_ERROR_INIT };
    a->start_wanted = false;
    const bool ok = start_ranks(a, &problem.error) == DSC_OK;
    if (!ok)
        dsc_message_put_problem(&a->channel.queue, &problem);
    step(a, (dsc_agent_event){ .kind = DSC_AGENT_STARTED, .ok = ok });
}

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
    step(a, (dsc_agent_event){ .kind = DSC_AGENT_CLOSED });
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
    if (a->machine.phase == DSC_AGENT_RUNS || epoch <= a->task_epoch) { /* it was sent again */
        dsc_host_task_close(a->alloc, &task);
        return;
    }
    close_ranks(a); /* they use the old one */
    dsc_host_task_close(a->alloc, &a->task);
    a->task = task;
    a->task_epoch = epoch;
    step(a, (dsc_agent_event){ .kind = DSC_AGENT_TASK, .epoch = epoch, .rank_count = task.rank_count });
}

static void take_frame(agent_worker *a, const dsc_frame *frame)
{
    dsc_order order;
    uint64_t acked = 0;
    if (frame->kind == DSC_FRAME_TASK)
        take_task(a, frame);
    else if (frame->kind == DSC_FRAME_ORDER && dsc_message_get_order(frame, &order))
        step(a, (dsc_agent_event){ .kind = DSC_AGENT_ORDER, .order = &order });
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
        if (a->start_wanted)
            start(a);
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

/* No process is left, so the pipes hold what they will ever hold. */
static void drain(agent_worker *a)
{
    if (a->machine.phase != DSC_AGENT_GONE || a->machine.drained)
        return;
    while (a->ranks_open && a->ranks.stream_count > 0 && !a->ranks.paused[0] && !a->stream_closed) {
        dsc_ranks_drain(&a->ranks, dsc_clock_ns());
        if (window_is_full(a))
            return;
    }
    if (!a->ranks_open || a->ranks.stream_count == 0)
        step(a, (dsc_agent_event){ .kind = DSC_AGENT_DRAINED });
}

static void wait_and_read(agent_worker *a)
{
    struct epoll_event events[64];
    int64_t now_ns = dsc_clock_ns();
    const int64_t at_ns = dsc_min_i64(dsc_agent_wake_ns(&a->machine), dsc_signals_look(&a->signals, now_ns));
    const int timeout_ms = (int)dsc_min_i64(60000, dsc_max_i64(0, dsc_div_ceil(at_ns - now_ns, MS)));
    const int n = epoll_wait(a->epoll_fd, events, DSC_COUNT(events), timeout_ms);
    now_ns = dsc_clock_ns();
    for (int i = 0; i < n; i++) {
        const dsc_loop_event event = dsc_loop_decode(&events[i]);
        if (event.kind == DSC_LOOP_SIGNAL || event.kind == DSC_LOOP_LIFELINE)
            dsc_signals_on_event(&a->signals, &event, now_ns);
        else if (event.kind == DSC_LOOP_LINK && event.which == 0)
            read_stream(a);
        else if (event.kind != DSC_LOOP_LINK && a->ranks_open)
            dsc_ranks_on_event(&a->ranks, &event, now_ns);
    }
}

static void run(agent_worker *a)
{
    while (!a->leaves) {
        if (a->ranks_open)
            mind_window(a);
        write_stream(a);
        wait_and_read(a);
        if (a->ranks_open)
            dsc_ranks_reap(&a->ranks, dsc_clock_ns());
        if (a->machine.phase == DSC_AGENT_RUNS && (!a->ranks_open || a->ranks.no_children))
            step(a, (dsc_agent_event){ .kind = DSC_AGENT_NO_CHILDREN });
        step(a, (dsc_agent_event){ .kind = DSC_AGENT_TICK });
        if (a->start_wanted)
            start(a);
        drain(a);
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
    dsc_agent_init(&a->machine, a->end, DSC_COUNT(a->end), dsc_clock_ns(), on_action, a);
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
        close_ranks(a);
        dsc_host_task_close(a->alloc, &a->task);
        dsc_channel_close(&a->channel);
        dsc_signals_close(&a->signals);
        if (a->epoll_fd >= 0)
            close(a->epoll_fd);
        dsc_alloc_free(job->alloc, a);
    }
    return dsc_status_exit_code(status);
}
