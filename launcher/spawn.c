/* spawn.c - one rank: pipes, session, death signal, cores, environment, exec.
 *
 * Between fork and exec only async-signal-safe calls; every descriptor of ours is close-on-exec.
 * SPDX-License-Identifier: Apache-2.0 */
#include "launcher/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

typedef struct child_plan {
    const dsc_job *job;
    char *const *env;
    pid_t supervisor;
    int32_t rank;
    int in_fd, out_fd, err_fd; /* -1: inherited */
    int exec_fd;
    const cpu_set_t *cores; /* NULL: all */
} child_plan;

static void reset_signals(const dsc_job *job)
{
    /* Not SIGHUP, which nohup ignores for all of us. A background job of a script has SIGINT ignored, but the user who
     * interrupts dsc-launch means the ranks. */
    static const int defaults[] = { SIGINT, SIGQUIT, SIGTERM, SIGPIPE, SIGCHLD, SIGUSR1, SIGUSR2, SIGTSTP };
    for (size_t i = 0; i < DSC_COUNT(defaults); i++)
        signal(defaults[i], SIG_DFL);
    sigprocmask(SIG_SETMASK, &job->rank_mask, NULL);
}

static _Noreturn void run_child(const child_plan *c)
{
    dsc_exec_failure failure = { c->rank, 0 };
    setsid();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != c->supervisor) /* it died before the line above */
        _exit(137);
    const bool ready = (c->in_fd < 0 || dup2(c->in_fd, 0) >= 0) && (c->out_fd < 0 || dup2(c->out_fd, 1) >= 0) &&
                       (c->err_fd < 0 || dup2(c->err_fd, 2) >= 0) &&
                       (c->cores == NULL || sched_setaffinity(0, sizeof *c->cores, c->cores) == 0);
    if (ready) {
        reset_signals(c->job);
        execve(c->job->program, c->job->opt->program_argv, c->env);
    }
    failure.errno_value = errno;
    (void)!write(c->exec_fd, &failure, sizeof failure);
    _exit(dsc_status_exit_code(DSC_ERR_INPUT));
}

static void close_pair(int fd[2])
{
    for (int i = 0; i < 2; i++) {
        if (fd[i] >= 0)
            close(fd[i]);
        fd[i] = -1;
    }
}

/* The read end does not block; the write end, which the rank gets, does. */
static bool make_pipe(int fd[2])
{
    if (pipe2(fd, O_CLOEXEC) != 0) {
        fd[0] = fd[1] = -1;
        return false;
    }
    fcntl(fd[0], F_SETFL, O_NONBLOCK);
    return true;
}

dsc_status dsc_spawn(const dsc_job *job, const dsc_place *place, const dsc_rank_secrets *secrets, dsc_spawn_pipes pipes,
                     int exec_fd, dsc_rank_process *out, dsc_error *err)
{
    extern char **environ;
    dsc_rank_vars vars;
    char **env = NULL;
    cpu_set_t cores;
    int to_out[2] = { -1, -1 }, to_err[2] = { -1, -1 };
    int null_fd = -1;
    *out = (dsc_rank_process){ .out_fd = { -1, -1 } };
    dsc_rank_vars_fill(job->plan, place, secrets, &vars);
    DSC_TRY(dsc_rank_environ(job->alloc, environ, &vars, &env, err));
    if (job->plan->bind)
        dsc_cores_share(&job->plan->bind_cores, place->local_rank, job->plan->world_size, &cores);
    bool ok = (!pipes.out || make_pipe(to_out)) && (!pipes.err || pipes.joined || make_pipe(to_err));
    if (ok && (place->rank > 0 || job->background)) /* one process reads our stdin, the others an end of file */
        ok = (null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;
    if (ok) {
        const child_plan child = { .job = job,
                                   .env = env,
                                   .supervisor = getpid(),
                                   .rank = place->rank,
                                   .in_fd = null_fd,
                                   .out_fd = to_out[1],
                                   .err_fd = pipes.joined ? to_out[1] : to_err[1],
                                   .exec_fd = exec_fd,
                                   .cores = job->plan->bind ? &cores : NULL };
        const pid_t pid = fork();
        if (pid == 0)
            run_child(&child);
        ok = pid > 0;
        out->pid = ok ? pid : 0;
    }
    const int reason = errno;
    dsc_alloc_free(job->alloc, env);
    if (null_fd >= 0)
        close(null_fd);
    if (!ok) {
        close_pair(to_out);
        close_pair(to_err);
        return DSC_FAIL(err, DSC_ERR_IO, "dsc-launch", "cannot start rank %d: %s", place->rank, strerror(reason));
    }
    if (to_out[1] >= 0)
        close(to_out[1]);
    if (to_err[1] >= 0)
        close(to_err[1]);
    out->out_fd[0] = to_out[0];
    out->out_fd[1] = to_err[0];
    return DSC_OK;
}
