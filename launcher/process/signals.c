/* signals.c - see signals.h. SPDX-License-Identifier: Apache-2.0 */
#include "launcher/process/signals.h"

#include <errno.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define MS INT64_C(1000000)

static const int64_t look_ns = 500 * MS;
static const int64_t stopped_ns = 2000 * MS;

/* The same signals as the guardian's, in case someone finds this process. */
static int open_signal_fd(const dsc_job *job)
{
    static const int watched[] = { SIGCHLD, SIGINT, SIGTERM, SIGQUIT, SIGHUP, SIGUSR1, SIGUSR2 };
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < DSC_COUNT(watched); i++)
        if (watched[i] != SIGHUP || !job->hup_ignored)
            sigaddset(&set, watched[i]);
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

dsc_status dsc_signals_open(dsc_signals *signals, const dsc_job *job, int lifeline_fd, int epoll_fd,
                            const dsc_signals_hooks *hooks, dsc_error *err)
{
    *signals = (dsc_signals){ .hooks = *hooks,
                              .signal_fd = open_signal_fd(job),
                              .lifeline_fd = lifeline_fd,
                              .guardian = job->launcher_pid };
    if (signals->signal_fd < 0 ||
        !dsc_loop_add(epoll_fd, signals->signal_fd, (dsc_loop_event){ DSC_LOOP_SIGNAL, 0, 0 }, EPOLLIN) ||
        !dsc_loop_add(epoll_fd, lifeline_fd, (dsc_loop_event){ DSC_LOOP_LIFELINE, 0, 0 }, EPOLLIN))
        return DSC_FAIL(err, DSC_ERR_IO, "dsc-launch", "cannot start: %s", strerror(errno));
    return DSC_OK;
}

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

void dsc_signals_close(dsc_signals *signals)
{
    close_fd(&signals->signal_fd);
    close_fd(&signals->lifeline_fd);
}

static void deliver(dsc_signals *signals, int signal_number, int64_t now_ns)
{
    if (signal_number == SIGTSTP || signal_number == SIGCONT) {
        signals->asleep = signal_number == SIGTSTP;
        signals->stopped_at_ns = 0;
    }
    if (signal_number != SIGCHLD)
        signals->hooks.signal(signals->hooks.user, signal_number, now_ns);
}

static void orphan(dsc_signals *signals, int64_t now_ns)
{
    if (signals->orphaned)
        return;
    signals->orphaned = true;
    signals->hooks.orphaned(signals->hooks.user, now_ns);
}

void dsc_signals_on_event(dsc_signals *signals, const dsc_loop_event *event, int64_t now_ns)
{
    struct signalfd_siginfo info;
    unsigned char bytes[64];
    if (event->kind == DSC_LOOP_SIGNAL) {
        while (read(signals->signal_fd, &info, sizeof info) == (ssize_t)sizeof info)
            deliver(signals, (int)info.ssi_signo, now_ns);
        return;
    }
    const ssize_t n = read(signals->lifeline_fd, bytes, sizeof bytes);
    for (ssize_t i = 0; i < n; i++)
        deliver(signals, bytes[i], now_ns);
    if (n == 0) {
        close_fd(&signals->lifeline_fd);
        orphan(signals, now_ns);
    }
}

int64_t dsc_signals_look(dsc_signals *signals, int64_t now_ns)
{
    if (signals->orphaned || signals->asleep)
        return INT64_MAX;
    if (now_ns < signals->look_at_ns)
        return signals->look_at_ns;
    signals->look_at_ns = now_ns + look_ns;
    if (!dsc_process_is_stopped(signals->guardian))
        signals->stopped_at_ns = 0;
    else if (signals->stopped_at_ns == 0)
        signals->stopped_at_ns = now_ns;
    else if (now_ns - signals->stopped_at_ns >= stopped_ns)
        orphan(signals, now_ns);
    return signals->look_at_ns;
}
