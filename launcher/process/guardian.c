/* guardian.c - the process that the user started. It does so little that nothing can go wrong in it, and its death is
 * noticed by the worker (job.h). SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "launcher/process/job.h"

/* SIGKILLed processes are gone in milliseconds; one in an uninterruptible wait may take longer, but not for ever. */
static const int64_t kill_wait_ns = 5000000000;
static const int64_t stopped_ns = 2000000000;

const char *dsc_signal_name(int signal_number, char out[32])
{
    const char *name = sigabbrev_np(signal_number);
    if (name != NULL)
        snprintf(out, 32, "SIG%s", name);
    else
        snprintf(out, 32, "signal %d", signal_number);
    return out;
}

/* State letter and parent of a process, of /proc/PID/stat, whose second field is a name in parentheses (any bytes). */
static bool read_stat(const char *pid_text, char *state, int *parent)
{
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%.20s/stat", pid_text);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    const ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = 0;
    const char *end = strrchr(text, ')');
    return end != NULL && sscanf(end + 1, " %c %d", state, parent) == 2;
}

static pid_t parent_of(const char *pid_text)
{
    char state;
    int parent;
    return read_stat(pid_text, &state, &parent) ? parent : -1;
}

bool dsc_process_is_stopped(pid_t pid)
{
    char text[24], state;
    int parent;
    snprintf(text, sizeof text, "%d", (int)pid);
    return read_stat(text, &state, &parent) && state == 'T';
}

void dsc_children_signal(int signal_number)
{
    DIR *proc = opendir("/proc");
    const pid_t self = getpid();
    if (proc == NULL)
        return;
    for (const struct dirent *entry; (entry = readdir(proc)) != NULL;)
        if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9' && parent_of(entry->d_name) == self)
            kill((pid_t)atoi(entry->d_name), signal_number);
    closedir(proc);
}

static void set_title(const dsc_job *job)
{
    prctl(PR_SET_NAME, job->worker_name);
    if (job->title_bytes == 0)
        return;
    memset(job->title, 0, job->title_bytes);
    snprintf(job->title, job->title_bytes, "%s of %d", job->worker_name, (int)job->launcher_pid);
}

static int run_worker(dsc_job *job, int lifeline_fd)
{
    setsid(); /* the terminal's Ctrl-C reaches the guardian only, which passes it on once */
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    set_title(job);
    return job->work(job, lifeline_fd);
}

/* The worker died without ending the job: everything it had started is ours now. */
static void end_orphans(void)
{
    const int64_t until_ns = dsc_clock_ns() + kill_wait_ns;
    for (;;) {
        dsc_children_signal(SIGKILL);
        pid_t pid = 0;
        while ((pid = waitpid(-1, NULL, WNOHANG)) > 0)
            ;
        if ((pid < 0 && errno == ECHILD) || dsc_clock_ns() > until_ns)
            return;
        dsc_clock_sleep_ns(5000000);
    }
}

/* True when the worker has ended. */
static bool reap(pid_t worker, int *status)
{
    int other = 0;
    for (pid_t pid; (pid = waitpid(-1, &other, WNOHANG)) > 0;)
        if (pid == worker) {
            *status = other;
            return true;
        }
    return false;
}

static void pass_on(int lifeline_fd, int signal_number)
{
    const unsigned char byte = (unsigned char)signal_number;
    while (write(lifeline_fd, &byte, 1) < 0 && errno == EINTR)
        ;
}

/* A worker that somebody stopped cannot end its ranks; it is killed when it stays so, and then true is returned.
 * *stopped_at_ns is 0 while it runs. */
static bool kill_if_stopped(pid_t worker, int64_t *stopped_at_ns)
{
    if (!dsc_process_is_stopped(worker)) {
        *stopped_at_ns = 0;
        return false;
    }
    if (*stopped_at_ns == 0)
        *stopped_at_ns = dsc_clock_ns();
    if (dsc_clock_ns() - *stopped_at_ns < stopped_ns)
        return false;
    kill(worker, SIGKILL);
    return true;
}

/* A worker that came to its end wrote the job's exit code to `code_fd`. One that left without a code counts as dead. */
static int end_of_worker(const dsc_job *job, pid_t worker, int code_fd, int status, bool was_stopped)
{
    char name[32];
    unsigned char code = 0;
    if (WIFEXITED(status) && read(code_fd, &code, 1) == 1)
        return code;
    end_orphans();
    if (WIFEXITED(status))
        fprintf(stderr, "dsc: error: dsc-launch: its process %d (%s) left with code %d; all ranks were ended\n",
                (int)worker, job->worker_name, WEXITSTATUS(status));
    else if (was_stopped)
        fprintf(stderr, "dsc: error: dsc-launch: its process %d (%s) was stopped for %d s and killed; all ranks were "
                        "ended\n",
                (int)worker, job->worker_name, (int)(stopped_ns / 1000000000));
    else
        fprintf(stderr, "dsc: error: dsc-launch: its process %d (%s) was killed by %s; all ranks were ended\n",
                (int)worker, job->worker_name, dsc_signal_name(WTERMSIG(status), name));
    return dsc_status_exit_code(DSC_ERR_PEER);
}

static int watch(const dsc_job *job, pid_t worker, int lifeline_fd, int code_fd, const sigset_t *set)
{
    static const struct timespec look = { 0, 250000000 };
    int status = 0;
    int64_t stopped_at_ns = 0;
    bool was_stopped = false;
    while (!reap(worker, &status)) {
        /* A stop of the worker comes as SIGCHLD; from then on the clock is looked at. */
        const int got = stopped_at_ns != 0 ? sigtimedwait(set, NULL, &look) : sigwaitinfo(set, NULL);
        if (!was_stopped)
            was_stopped = kill_if_stopped(worker, &stopped_at_ns);
        if (got <= 0 || got == SIGCHLD)
            continue;
        pass_on(lifeline_fd, got);
        if (got == SIGTSTP) { /* Ctrl-Z: the ranks are stopped by the worker, then the shell gets its prompt */
            kill(getpid(), SIGSTOP);
            pass_on(lifeline_fd, SIGCONT);
        }
    }
    return end_of_worker(job, worker, code_fd, status, was_stopped);
}

/* /tmp/PID.deepspeed, as DeepSpeed names it. Never follows or replaces what is there. */
static int write_pid_file(char path[64])
{
    snprintf(path, 64, "/tmp/%d.deepspeed", (int)getpid());
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd < 0 || dprintf(fd, "%d", (int)getpid()) < 0) {
        fprintf(stderr, "dsc: error: --save_pid: cannot write %s: %s\n", path, strerror(errno));
        if (fd >= 0)
            close(fd);
        return dsc_status_exit_code(DSC_ERR_INPUT);
    }
    close(fd);
    return 0;
}

static void block_signals(dsc_job *job, sigset_t *set)
{
    static const int passed[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGCHLD };
    struct sigaction hup;
    sigaction(SIGHUP, NULL, &hup);
    job->hup_ignored = hup.sa_handler == SIG_IGN;
    sigemptyset(set);
    for (size_t i = 0; i < DSC_COUNT(passed); i++)
        if (passed[i] != SIGHUP || !job->hup_ignored)
            sigaddset(set, passed[i]);
    sigprocmask(SIG_BLOCK, set, &job->rank_mask);
    /* A caller that ignores SIGCHLD would take our children's ends away; SIGPIPE must be a return value here. */
    signal(SIGCHLD, SIG_DFL);
    signal(SIGPIPE, SIG_IGN);
}

int dsc_guardian_run(dsc_job *job)
{
    int lifeline[2], code_pipe[2] = { -1, -1 };
    char pid_path[64] = "";
    sigset_t set;
    if (job->opt->save_pid && write_pid_file(pid_path) != 0)
        return dsc_status_exit_code(DSC_ERR_INPUT);
    block_signals(job, &set);
    job->launcher_pid = getpid();
    /* A rank is in a session of its own, so the terminal would not stop it from taking the shell's input. */
    job->background = isatty(0) == 1 && tcgetpgrp(0) != getpgrp();
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    fflush(NULL);
    int code = 1;
    pid_t worker = -1;
    if (pipe2(lifeline, O_CLOEXEC) == 0 && pipe2(code_pipe, O_CLOEXEC | O_NONBLOCK) == 0) {
        worker = fork();
        if (worker == 0) {
            close(lifeline[1]);
            code = run_worker(job, lifeline[0]);
            if (pid_path[0] != 0) /* here too: the guardian may be dead */
                unlink(pid_path);
            pass_on(code_pipe[1], code);
            _exit(code);
        }
        close(lifeline[0]);
    }
    if (worker > 0)
        code = watch(job, worker, lifeline[1], code_pipe[0], &set);
    else
        fprintf(stderr, "dsc: error: dsc-launch: cannot start: %s\n", strerror(errno));
    if (pid_path[0] != 0)
        unlink(pid_path);
    return code;
}
