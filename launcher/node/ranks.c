/* ranks.c - see ranks.h. SPDX-License-Identifier: Apache-2.0 */
#include "launcher/node/ranks.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "launcher/output/output.h"
#include "launcher/process/job.h"

dsc_status dsc_ranks_open(dsc_ranks *ranks, dsc_alloc *alloc, dsc_host_task *task, int epoll_fd,
                          const dsc_ranks_hooks *hooks, dsc_error *err)
{
    *ranks = (dsc_ranks) { .alloc = alloc,
                           .task = task,
                           .hooks = *hooks,
                           .epoll_fd = epoll_fd,
                           .exec_fd = -1,
                           .exec_write_fd = -1,
                           .flight = { .fd = -1 } };
    DSC_TRY(dsc_flight_log_open(&ranks->flight, task->rank_count, err));
    task->flight = &ranks->flight;
    return dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, task->rank_count, (int64_t)sizeof *ranks->rank, &ranks->rank, err);
}

static void close_world(dsc_ranks *ranks, int32_t index)
{
    if (ranks->rank[index].world_fd >= 0)
        close(ranks->rank[index].world_fd);
    ranks->rank[index].world_fd = -1;
}

static void close_exec_writer(dsc_ranks *ranks)
{
    if (ranks->exec_write_fd >= 0)
        close(ranks->exec_write_fd);
    ranks->exec_write_fd = -1;
}

void dsc_ranks_close(dsc_ranks *ranks)
{
    for (int32_t i = 0; i < ranks->count; i++)
        for (int which = 0; which < 2; which++)
            if (ranks->rank[i].out_fd[which] >= 0)
                close(ranks->rank[i].out_fd[which]);
    for (int32_t i = 0; i < ranks->count; i++)
        close_world(ranks, i);
    close_exec_writer(ranks);
    if (ranks->exec_fd >= 0)
        close(ranks->exec_fd);
    if (ranks->alloc != NULL) {
        dsc_flight_log_close(&ranks->flight);
        dsc_alloc_free(ranks->alloc, ranks->rank);
    }
    *ranks = (dsc_ranks) { .exec_fd = -1, .exec_write_fd = -1, .flight = { .fd = -1 } };
}

static bool watch_stream(dsc_ranks *ranks, int32_t index, int which)
{
    return dsc_loop_add(ranks->epoll_fd, ranks->rank[index].out_fd[which],
                        (dsc_loop_event){ DSC_LOOP_RANK, index, which }, EPOLLIN);
}

static void signal_rank(const dsc_rank_process *rank, int signal_number)
{
    if (rank->ended)
        return;
    /* Between fork and setsid there is no such group yet. */
    if (kill(-rank->pid, signal_number) != 0)
        kill(rank->pid, signal_number);
    if (signal_number != SIGSTOP && signal_number != SIGCONT)
        kill(-rank->pid, SIGCONT);
}

static dsc_status open_exec_pipe(dsc_ranks *ranks, dsc_error *err)
{
    int exec_pipe[2];
    if (pipe2(exec_pipe, O_CLOEXEC | O_NONBLOCK) != 0)
        return DSC_FAIL(err, DSC_ERR_IO, "dsc-launch", "cannot start: %s", strerror(errno));
    ranks->exec_fd = exec_pipe[0];
    ranks->exec_write_fd = exec_pipe[1];
    dsc_loop_add(ranks->epoll_fd, ranks->exec_fd, (dsc_loop_event){ DSC_LOOP_EXEC, 0, 0 }, EPOLLIN);
    return DSC_OK;
}

static dsc_status start_rank(dsc_ranks *ranks, int32_t index, const dsc_spawn_setup *setup, dsc_spawn_pipes pipes,
                             dsc_error *err)
{
    dsc_rank_process *rank = &ranks->rank[index];
    const dsc_status status =
        dsc_spawn(ranks->alloc, ranks->task, index, setup, pipes, ranks->exec_write_fd, rank, err);
    rank->ended = status != DSC_OK;
    DSC_TRY(status);
    ranks->alive_count++;
    ranks->no_children = false;
    bool watched = rank->world_fd < 0 || dsc_loop_add(ranks->epoll_fd, rank->world_fd,
                                                      (dsc_loop_event) { DSC_LOOP_WORLD, index, 0 }, EPOLLIN);
    for (int which = 0; which < 2; which++)
        if (rank->out_fd[which] >= 0) {
            ranks->stream_count++;
            watched = watched && (ranks->paused[which] || watch_stream(ranks, index, which));
        }
    if (watched)
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_IO, "dsc-launch", "cannot watch rank %d: %s", ranks->task->first_rank + index,
                    strerror(errno));
}

/* Ranks that leave and join are started one by one. */
dsc_status dsc_ranks_start(dsc_ranks *ranks, const dsc_spawn_setup *setup, const dsc_spawn_pipes *pipes, dsc_error *err)
{
    DSC_TRY(open_exec_pipe(ranks, err));
    dsc_status status = DSC_OK;
    for (int32_t i = 0; i < ranks->task->rank_count && status == DSC_OK; i++) {
        ranks->rank[i] = (dsc_rank_process) { .out_fd = { -1, -1 }, .world_fd = -1, .ended = true };
        ranks->count++;
        if (ranks->task->least_ranks == 0)
            status = start_rank(ranks, i, setup, pipes[i], err);
    }
    if (ranks->task->least_ranks == 0)
        close_exec_writer(ranks);
    return status;
}

static void end_stream(dsc_ranks *ranks, int32_t index, int which, int64_t now_ns)
{
    close(ranks->rank[index].out_fd[which]);
    ranks->rank[index].out_fd[which] = -1;
    ranks->stream_count--;
    ranks->hooks.output_end(ranks->hooks.user, index, which, now_ns);
}

bool dsc_ranks_start_one(dsc_ranks *ranks, int32_t index, const dsc_spawn_setup *setup, dsc_spawn_pipes pipes)
{
    dsc_error err = DSC_ERROR_INIT;
    DSC_ASSERT(index < ranks->count && ranks->rank[index].ended);
    for (int which = 0; which < 2; which++) /* a leftover of the process before may hold it still */
        if (ranks->rank[index].out_fd[which] >= 0)
            end_stream(ranks, index, which, dsc_clock_ns());
    if (start_rank(ranks, index, setup, pipes, &err) == DSC_OK)
        return true;
    if (!ranks->rank[index].ended)
        signal_rank(&ranks->rank[index], SIGKILL); /* its end will be seen */
    return !ranks->rank[index].ended;
}

/* ---- signals ---- */

void dsc_ranks_signal(dsc_ranks *ranks, int signal_number)
{
    if (signal_number == SIGCONT && ranks->stopped)
        ranks->since_ns = dsc_clock_ns();
    if (signal_number == SIGSTOP || signal_number == SIGCONT)
        ranks->stopped = signal_number == SIGSTOP;
    for (int32_t i = 0; i < ranks->count; i++)
        signal_rank(&ranks->rank[i], signal_number);
}

void dsc_ranks_signal_one(dsc_ranks *ranks, int32_t index, int signal_number)
{
    signal_rank(&ranks->rank[index], signal_number);
}

void dsc_ranks_kill(dsc_ranks *ranks)
{
    ranks->killing = true;
    dsc_ranks_signal(ranks, SIGKILL);
    dsc_children_signal(SIGKILL); /* whatever left its group */
}

static void read_exec_failures(dsc_ranks *ranks)
{
    dsc_exec_failure failure;
    ssize_t n = -1;
    while (ranks->exec_fd >= 0 && (n = read(ranks->exec_fd, &failure, sizeof failure)) == (ssize_t)sizeof failure)
        ranks->rank[failure.index].exec_errno = failure.errno_value;
    if (n == 0) { /* every rank runs its program now */
        close(ranks->exec_fd);
        ranks->exec_fd = -1;
    }
}

/* ---- worlds ---- */

static void read_reports(dsc_ranks *ranks, int32_t index)
{
    uint8_t packet[DSC_WORLD_PACKET_MAX];
    const int fd = ranks->rank[index].world_fd;
    for (ssize_t n; fd >= 0 && (n = recv(fd, packet, sizeof packet, MSG_DONTWAIT | MSG_TRUNC)) != 0;) {
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return;
        if (n < 0)
            break;
        if (n <= (ssize_t)sizeof packet)
            ranks->hooks.report(ranks->hooks.user, index, packet, (size_t)n);
    }
    close_world(ranks, index); /* the rank has closed its end */
}

void dsc_ranks_call(dsc_ranks *ranks, int32_t index, const uint8_t *packet, size_t bytes)
{
    if (index < ranks->count && ranks->rank[index].world_fd >= 0)
        (void)!send(ranks->rank[index].world_fd, packet, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* ---- ends ---- */

static int32_t find_rank(const dsc_ranks *ranks, pid_t pid)
{
    for (int32_t i = 0; i < ranks->count; i++)
        if (ranks->rank[i].pid == pid && !ranks->rank[i].ended)
            return i;
    return -1;
}

/* The rank is still a zombie, so that its group can be signalled. */
static void note_end(dsc_ranks *ranks, int32_t index, const siginfo_t *info, int64_t now_ns)
{
    dsc_rank_process *rank = &ranks->rank[index];
    const bool exited = info->si_code == CLD_EXITED;
    read_exec_failures(ranks); /* it wrote before it ended */
    const dsc_rank_end end = { .rank = ranks->task->first_rank + index,
                               .pid = (int32_t)rank->pid,
                               .code = exited ? info->si_status : 128 + info->si_status,
                               .signal = exited ? 0 : info->si_status,
                               .exec_errno = rank->exec_errno };
    read_reports(ranks, index); /* as it did then */
    close_world(ranks, index);
    signal_rank(rank, ranks->killing ? SIGKILL : SIGTERM); /* its leftovers */
    rank->ended = true;
    ranks->alive_count--;
    ranks->hooks.ended(ranks->hooks.user, index, &end, now_ns);
}

void dsc_ranks_reap(dsc_ranks *ranks, int64_t now_ns)
{
    for (;;) {
        siginfo_t info;
        info.si_pid = 0;
        if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0) {
            ranks->no_children = errno == ECHILD;
            return;
        }
        if (info.si_pid == 0)
            return;
        const int32_t index = find_rank(ranks, info.si_pid);
        if (index >= 0)
            note_end(ranks, index, &info, now_ns);
        waitpid(info.si_pid, NULL, 0);
    }
}

/* ---- output ---- */

/* One read. */
static void read_stream(dsc_ranks *ranks, int32_t index, int which, int64_t now_ns)
{
    char text[DSC_OUTPUT_READ_BYTES];
    const int fd = ranks->rank[index].out_fd[which];
    if (fd < 0)
        return;
    if (ranks->reader_gone[which]) {
        end_stream(ranks, index, which, now_ns);
        return;
    }
    const ssize_t n = read(fd, text, sizeof text);
    if (n > 0)
        ranks->hooks.output(ranks->hooks.user, index, which, text, (size_t)n, now_ns);
    else if (n == 0 || (errno != EAGAIN && errno != EINTR) || (errno == EAGAIN && ranks->no_children))
        end_stream(ranks, index, which, now_ns);
}

void dsc_ranks_on_event(dsc_ranks *ranks, const dsc_loop_event *event, int64_t now_ns)
{
    if (event->kind == DSC_LOOP_EXEC)
        read_exec_failures(ranks);
    else if (event->kind == DSC_LOOP_WORLD)
        read_reports(ranks, event->number);
    else if (event->kind == DSC_LOOP_RANK && !ranks->paused[event->which])
        read_stream(ranks, event->number, event->which, now_ns);
}

void dsc_ranks_drain(dsc_ranks *ranks, int64_t now_ns)
{
    for (int32_t i = 0; i < ranks->count; i++)
        for (int which = 0; which < 2; which++)
            if (!ranks->paused[which])
                read_stream(ranks, i, which, now_ns);
}

void dsc_ranks_pause(dsc_ranks *ranks, int which, bool paused)
{
    for (int32_t i = 0; i < ranks->count && paused != ranks->paused[which]; i++) {
        const int fd = ranks->rank[i].out_fd[which];
        if (fd >= 0 && paused)
            dsc_loop_remove(ranks->epoll_fd, fd); /* not "no events": a hang-up would come in still */
        else if (fd >= 0)
            (void)watch_stream(ranks, i, which);
    }
    ranks->paused[which] = paused;
}

void dsc_ranks_flight(const dsc_ranks *ranks, int32_t index, int64_t now_ns, dsc_flight_view *out)
{
    dsc_flight_log_read(&ranks->flight, index, ranks->since_ns, now_ns, out);
}

void dsc_ranks_stop_reading(dsc_ranks *ranks, int which) { ranks->reader_gone[which] = true; }
