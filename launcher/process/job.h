/* job.h - one start of PROGRAM, as the guardian hands it to the process that does the work.
 *
 * Three kinds of processes on a host, and how each sees the others die:
 *
 *   guardian    what the user (or sshd) started: passes signals on and waits. Holds one end of the lifeline.
 *   worker      its only child, in a session of its own: the coordinator of a job, or the agent on one of several
 *               hosts. The coordinator of a one-host job has the agent within its own process, and is shown as the
 *               supervisor. A worker starts processes and ends them. The end of the lifeline is the guardian's death,
 *               also by SIGKILL. It is a subreaper: whatever a rank leaves behind becomes its child, so "no children"
 *               means that nothing of the job runs.
 *   rank        each in a session of its own, killed by the kernel (PDEATHSIG) when the worker dies; what the rank had
 *               started then falls to the guardian, a subreaper too.
 *
 * A stopped process (SIGSTOP) counts as dead after two seconds: the guardian kills a stopped worker, and the worker of
 * a stopped guardian ends the job.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_LAUNCHER_PROCESS_JOB_H
#define DSC_LAUNCHER_PROCESS_JOB_H

#include <signal.h>
#include <sys/types.h>

#include "launcher/plan/options.h"
#include "launcher/plan/resources.h"

typedef struct dsc_job dsc_job;

/* Everything is borrowed for the life of the process. */
struct dsc_job {
    dsc_alloc *alloc;
    const dsc_launcher_plan *plan;   /* NULL in an agent */
    const dsc_launcher_options *opt;
    const char *program; /* path of the file to execute; "" where agents have to find it */
    char *title;         /* the process's own argv[0].. memory, to be seen under another name; title_bytes 0: none */
    size_t title_bytes;
    const char *worker_name; /* for example "dsc-supervisor" */
    /* The worker: returns the exit code when nothing of the job runs any more. */
    int (*work)(const dsc_job *job, int lifeline_fd);
    pid_t launcher_pid;  /* the guardian's; set by dsc_guardian_run */
    bool hup_ignored;    /* started under nohup; set by dsc_guardian_run */
    bool background;     /* stdin is a terminal that belongs to other jobs now; set by dsc_guardian_run */
    sigset_t rank_mask;  /* the signal mask that the user's shell gave us; set by dsc_guardian_run */
};

/* All ranks are on this host, and the coordinator starts them itself. */
static inline bool dsc_job_is_local(const dsc_launcher_plan *plan, const dsc_launcher_options *opt)
{
    return plan->local && !opt->force_multi;
}

/* Starts the worker, passes signals to it until it ends, and returns the exit code of the job. Prints errors. */
int dsc_guardian_run(dsc_job *job);

/* Sends a signal to every child of this process, and to those only: a child that is not reaped keeps its number. */
void dsc_children_signal(int signal_number);
/* True when the process is stopped by a signal (not by a debugger). */
bool dsc_process_is_stopped(pid_t pid);

/* "SIGKILL", or "signal 64". */
const char *dsc_signal_name(int signal_number, char out[32]);

#endif
