/* link.c - see link.h. SPDX-License-Identifier: Apache-2.0 */
#include "launcher/coordinator/link.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher/coordinator/ssh.h"
#include "launcher/process/loop.h"

#define PIPE_READS 128 /* of 1 KiB: twice what a pipe holds */

/* fd[0] is read, fd[1] written; -1: not open. */
typedef struct link_pipes {
    int in[2], out[2], err[2];
} link_pipes;

static void close_all(link_pipes *p)
{
    const int all[] = { p->in[0], p->in[1], p->out[0], p->out[1], p->err[0], p->err[1] };
    for (size_t i = 0; i < DSC_COUNT(all); i++)
        if (all[i] >= 0)
            close(all[i]);
}

static _Noreturn void run_child(const link_pipes *p, const char *file, char *const *argv, char *const *env,
                                pid_t parent)
{
    sigset_t none;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(137);
    if (dup2(p->in[0], 0) < 0 || dup2(p->out[1], 1) < 0 || dup2(p->err[1], 2) < 0)
        _exit(1);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    execvpe(file, argv, env);
    static const char failed[] = "cannot be executed\n";
    (void)!write(2, failed, sizeof failed - 1);
    _exit(errno == ENOENT ? 127 : 126);
}

static dsc_status start_process(dsc_link *link, link_pipes *p, const char *file, char *const *argv, char *const *env,
                                dsc_error *err)
{
    const pid_t parent = getpid();
    if (pipe2(p->in, O_CLOEXEC) != 0 || pipe2(p->out, O_CLOEXEC) != 0 || pipe2(p->err, O_CLOEXEC) != 0 ||
        (link->pid = fork()) < 0) {
        link->pid = 0;
        return DSC_FAIL(err, DSC_ERR_IO, "dsc-launch", "cannot start %s: %s", argv[0], strerror(errno));
    }
    if (link->pid == 0)
        run_child(p, file, argv, env, parent);
    return DSC_OK;
}

dsc_status dsc_link_open(dsc_link *link, dsc_alloc *alloc, const dsc_launcher_options *opt, int32_t host,
                         const char *name, bool is_local, char *const *env, int epoll_fd, dsc_error *err)
{
    link_pipes p = { { -1, -1 }, { -1, -1 }, { -1, -1 } };
    char self[] = "dsc-launch", flag[] = "--agent", line[4100];
    char *local_argv[] = { self, flag, NULL };
    char **ssh_argv = NULL;
    *link = (dsc_link){ .host = host, .epoll_fd = epoll_fd, .is_local = is_local, .err_fd = -1,
                        .channel = { .in_fd = -1, .out_fd = -1 }, .pending = { .alloc = alloc } };
    if (!is_local)
        DSC_TRY(dsc_ssh_command(alloc, opt, name, &ssh_argv, err));
    const dsc_status status = start_process(link, &p, is_local ? "/proc/self/exe" : "ssh",
                                            is_local ? local_argv : ssh_argv, env, err);
    dsc_alloc_free(alloc, ssh_argv);
    if (status != DSC_OK) {
        close_all(&p);
        return status;
    }
    dsc_channel_open(&link->channel, alloc, p.out[0], p.in[1], DSC_MESSAGE_REPORT_MAX);
    link->err_fd = p.err[0];
    fcntl(link->err_fd, F_SETFL, O_NONBLOCK);
    p.out[0] = p.in[1] = p.err[0] = -1;
    close_all(&p);
    dsc_loop_add(epoll_fd, link->channel.in_fd, (dsc_loop_event){ DSC_LOOP_LINK, host, 0 }, EPOLLIN);
    dsc_loop_add(epoll_fd, link->err_fd, (dsc_loop_event){ DSC_LOOP_LINK, host, 2 }, EPOLLIN);
    if (!is_local) {
        dsc_ssh_first_line(line, sizeof line);
        dsc_message_put(&link->channel.queue, line, strlen(line));
    }
    return DSC_OK;
}

void dsc_link_close(dsc_link *link)
{
    if (link->channel.alloc == NULL)
        return;
    if (link->pid > 0) {
        kill(link->pid, SIGKILL);
        waitpid(link->pid, NULL, 0);
    }
    if (link->err_fd >= 0)
        close(link->err_fd);
    dsc_message_out_close(&link->pending);
    dsc_channel_close(&link->channel); /* and with the descriptors their events */
    *link = (dsc_link){ .host = link->host, .err_fd = -1, .channel = { .in_fd = -1, .out_fd = -1, .eof = true } };
}

/* Keeps the end of what the process says. True: there was something, and there may be more. */
static bool read_said(dsc_link *link)
{
    char text[1024];
    const ssize_t n = read(link->err_fd, text, sizeof text);
    if (n < 0 && errno == EINTR)
        return true;
    if (n <= 0) {
        if (n == 0 || errno != EAGAIN) {
            close(link->err_fd);
            link->err_fd = -1;
        }
        return false;
    }
    const size_t room = sizeof link->said - 1;
    const size_t drop = link->said_bytes + (size_t)n > room ? link->said_bytes + (size_t)n - room : 0;
    memmove(link->said, link->said + drop, link->said_bytes - drop);
    link->said_bytes -= drop;
    memcpy(link->said + link->said_bytes, text, (size_t)n);
    link->said_bytes += (size_t)n;
    for (size_t i = 0; i <= link->said_bytes; i++)
        if (i == link->said_bytes || link->said[i] == 0)
            link->said[i] = i == link->said_bytes ? 0 : '?';
    return true;
}

static void read_stream(dsc_link *link)
{
    dsc_channel_read(&link->channel);
    if (link->channel.eof || link->channel.broken)
        dsc_loop_remove(link->epoll_fd, link->channel.in_fd);
}

void dsc_link_on_event(dsc_link *link, int which)
{
    if (link->channel.alloc == NULL)
        return;
    if (which == 0)
        read_stream(link);
    else if (which == 2 && link->err_fd >= 0)
        (void)read_said(link);
}

void dsc_link_flush(dsc_link *link)
{
    dsc_channel *channel = &link->channel;
    if (channel->alloc == NULL)
        return;
    dsc_channel_flush(channel);
    const bool waits = dsc_channel_waits(channel) && !channel->broken;
    if (waits && !link->polled)
        dsc_loop_add(link->epoll_fd, channel->out_fd, (dsc_loop_event){ DSC_LOOP_LINK, link->host, 1 }, EPOLLOUT);
    else if (!waits && link->polled)
        dsc_loop_remove(link->epoll_fd, channel->out_fd);
    link->polled = waits;
}

bool dsc_link_next(dsc_link *link, dsc_frame *frame)
{
    if (link->channel.alloc == NULL)
        return false;
    link->greeted = link->greeted || dsc_channel_find_magic(&link->channel);
    return link->greeted && dsc_channel_next(&link->channel, frame);
}

void dsc_link_reaped(dsc_link *link, int status)
{
    link->pid = 0;
    link->code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    for (size_t before = SIZE_MAX; !link->channel.eof && !link->channel.broken && before != link->channel.filled;) {
        before = link->channel.filled;
        dsc_channel_read(&link->channel);
    }
    /* All that a pipe holds, and no more: a child that it left there may talk without end. */
    bool more = link->err_fd >= 0;
    for (int i = 0; i < PIPE_READS && more; i++)
        more = read_said(link) && link->err_fd >= 0;
}

bool dsc_link_is_over(const dsc_link *link) { return link->channel.alloc != NULL && link->pid == 0; }
