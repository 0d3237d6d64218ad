/* signals.h - external events of a worker: signals, its own or passed on by the guardian, and the guardian's end.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_LAUNCHER_PROCESS_SIGNALS_H
#define DSC_LAUNCHER_PROCESS_SIGNALS_H

#include "launcher/process/job.h"
#include "launcher/process/loop.h"

typedef struct dsc_signals_hooks {
    void (*signal)(void *user, int signal_number, int64_t now_ns);
    void (*orphaned)(void *user, int64_t now_ns); /* once: the guardian is dead, or stopped for two seconds */
    void *user;
} dsc_signals_hooks;

typedef struct dsc_signals {
    dsc_signals_hooks hooks;
    int signal_fd, lifeline_fd; /* -1: at its end */
    pid_t guardian;
    bool orphaned;
    bool asleep;           /* the user stopped the job: a stopped guardian is what he wants */
    int64_t stopped_at_ns; /* the guardian was seen stopped since then; 0: it was not */
    int64_t look_at_ns;
} dsc_signals;

/* Watches SIGCHLD and what the guardian passes on; events are DSC_LOOP_SIGNAL and DSC_LOOP_LIFELINE of epoll_fd. The
 * lifeline is closed with it. */
DSC_MUST_USE dsc_status dsc_signals_open(dsc_signals *signals, const dsc_job *job, int lifeline_fd, int epoll_fd,
                                         const dsc_signals_hooks *hooks, dsc_error *err);
void dsc_signals_close(dsc_signals *signals);

void dsc_signals_on_event(dsc_signals *signals, const dsc_loop_event *event, int64_t now_ns);
/* To be called in every pass of the loop; returns the time of the next call at the latest. */
int64_t dsc_signals_look(dsc_signals *signals, int64_t now_ns);

#endif
