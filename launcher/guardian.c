/* guardian.c - the process that the user started. It does so little that nothing can go wrong in it, and its death is
 * noticed by the supervisor (job.h). SPDX-License-Identifier: Apache-2.0 */
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
#include "launcher/job.h"

/* SIGKILLed processes are gone in milliseconds; one in an uninterruptible wait may take longer, but not for ever. */
static const int64_t kill_wait_ns = 5000000000;

const char *dsc_signal_name(int signal_number, char out[32])
{
    const char *name = sigabbrev_np(signal_number);
    if (name != NULL)
        snprintf(out, 32, "SIG%s", name);
    else
        snprintf(out, 32, "signal %d", signal_number);
    return out;
}

/* Parent of a process by /proc/PID/stat, whose second field is a name in parentheses with any bytes. */
static pid_t parent_of(const char *pid_text)
{
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%.20s/stat", pid_text);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    const ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = 0;
    const char *end = strrchr(text, ')');
    int parent = -1;
    if (end == NULL || sscanf(end + 1, " %*c %d", &parent) != 1)
        return -1;
    return parent;
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
    prctl(PR_SET_NAME, "dsc-supervisor");
    if (job->title_bytes == 0)
        return;
    memset(job->title, 0, job->title_bytes);
    snprintf(job->title, job->title_bytes, "dsc-supervisor of %d", (int)job->launcher_pid);
}

static int run_supervisor(dsc_job *job, int lifeline_fd)
{
    setsid(); /* the terminal's Ctrl-C reaches the guardian only, which passes it on once */
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    set_title(job);
    return dsc_supervise(job, lifeline_fd);
}

/* The supervisor died without ending the job: everything it had started is ours now. */
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

/* True when the supervisor has ended. */
static bool reap(pid_t supervisor, int *status)
{
    int other = 0;
    for (pid_t pid; (pid = waitpid(-1, &other, WNOHANG)) > 0;)
        if (pid == supervisor) {
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

static int watch(pid_t supervisor, int lifeline_fd, const sigset_t *set)
{
    int status = 0;
    while (!reap(supervisor, &status)) {
        const int got = sigwaitinfo(set, NULL);
        if (got <= 0 || got == SIGCHLD)
            continue;
        pass_on(lifeline_fd, got);
        if (got == SIGTSTP) { /* Ctrl-Z: the ranks are stopped by the supervisor, then the shell gets its prompt */
            kill(getpid(), SIGSTOP);
            pass_on(lifeline_fd, SIGCONT);
        }
    }
    if (WIFEXITED(status))
        return WEXITSTATUS(status);
    end_orphans();
    char name[32];
    fprintf(stderr, "dsc: error: dsc-launch: its supervisor (pid %d) was killed by %s; all ranks were ended\n",
            (int)supervisor, dsc_signal_name(WTERMSIG(status), name));
    return dsc_status_exit_code(DSC_ERR_PEER);
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
    int lifeline[2];
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
    pid_t supervisor = -1;
    if (pipe2(lifeline, O_CLOEXEC) == 0) {
        supervisor = fork();
        if (supervisor == 0) {
            close(lifeline[1]);
            code = run_supervisor(job, lifeline[0]);
            if (pid_path[0] != 0) /* here too: the guardian may be dead */
                unlink(pid_path);
            _exit(code);
        }
        close(lifeline[0]);
    }
    if (supervisor > 0)
        code = watch(supervisor, lifeline[1], &set);
    else
        fprintf(stderr, "dsc: error: dsc-launch: cannot start: %s\n", strerror(errno));
    if (pid_path[0] != 0)
        unlink(pid_path);
    return code;
}
