/* job.h - one start of PROGRAM on this host, as the guardian hands it to the supervisor.
 *
 * Three kinds of processes, and how each sees the others die:
 *
 *   guardian    what the user started: passes signals on and waits. Holds the write end of the lifeline.
 *   supervisor  its only child, in a session of its own: starts the ranks, merges their output, ends them. The end of
 *               the lifeline is the guardian's death, also by SIGKILL. It is a subreaper: whatever a rank leaves
 *               behind becomes its child, so "no children" means that nothing of the job runs.
 *   rank        each in a session of its own, killed by the kernel (PDEATHSIG) when the supervisor dies; what the rank
 *               had started then falls to the guardian, a subreaper too.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_LAUNCHER_JOB_H
#define DSC_LAUNCHER_JOB_H

#include <signal.h>
#include <sys/types.h>

#include "launcher/options.h"
#include "launcher/resources.h"

/* Everything is borrowed for the life of the process. */
typedef struct dsc_job {
    dsc_alloc *alloc;
    const dsc_launcher_plan *plan;
    const dsc_launcher_options *opt;
    const char *program; /* path of the file to execute */
    char *title;         /* the process's own argv[0].. memory, to be seen under another name; title_bytes 0: none */
    size_t title_bytes;
    pid_t launcher_pid;  /* of the guardian; set by dsc_guardian_run */
    bool hup_ignored;    /* started under nohup; set by dsc_guardian_run */
    bool background;     /* stdin is a terminal that belongs to other jobs now; set by dsc_guardian_run */
    sigset_t rank_mask;  /* the signal mask that the user's shell gave us; set by dsc_guardian_run */
} dsc_job;

/* Starts the supervisor, passes signals to it until it ends, and returns the exit code of the job. Prints errors. */
int dsc_guardian_run(dsc_job *job);

/* The supervisor itself: returns the exit code of the job when nothing of it runs any more. */
int dsc_supervise(const dsc_job *job, int lifeline_fd);

/* Sends a signal to every child of this process, and to those only: a child that is not reaped keeps its number. */
void dsc_children_signal(int signal_number);

/* "SIGKILL", or "signal 64". */
const char *dsc_signal_name(int signal_number, char out[32]);

#endif
