/* spawn.c - one rank: pipes, session, death signal, cores, environment, exec.
 *
 * Between fork and exec only async-signal-safe calls; every descriptor of ours is close-on-exec.
 * SPDX-License-Identifier: Apache-2.0 */
#include "launcher/node/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "launcher/node/rank_env.h"

typedef struct child_plan {
    const dsc_host_task *task;
    const dsc_spawn_setup *setup;
    char *const *env;
    pid_t parent;
    int32_t index;
    int in_fd, out_fd, err_fd; /* -1: inherited */
    int exec_fd;
    int world_fd;           /* -1: none */
    int64_t late_ns;        /* wait before the program starts */
    const cpu_set_t *cores; /* NULL: all */
    int numa_node;          /* that all the cores lie in, or -1 */
} child_plan;

static void reset_signals(const sigset_t *mask)
{
    /* Not SIGHUP, which nohup ignores for all of us. A background job of a script has SIGINT ignored, but the user who
     * interrupts dsc-launch means the ranks. */
    static const int defaults[] = { SIGINT, SIGQUIT, SIGTERM, SIGPIPE, SIGCHLD, SIGUSR1, SIGUSR2, SIGTSTP };
    for (size_t i = 0; i < DSC_COUNT(defaults); i++)
        signal(defaults[i], SIG_DFL);
    sigprocmask(SIG_SETMASK, mask, NULL);
}

/* Memory beside the cores, as numactl -m. Where the kernel refuses, first touch decides, which is nearly as good. */
static void bind_memory(int numa_node)
{
    enum { BIND = 2 }; /* MPOL_BIND of linux/mempolicy.h */
    unsigned long nodes[16] = { 0 };
    const unsigned bits = 8 * sizeof nodes[0];
    if (numa_node < 0 || (size_t)numa_node >= 8 * sizeof nodes)
        return;
    nodes[(unsigned)numa_node / bits] = 1ul << ((unsigned)numa_node % bits);
    (void)!syscall(SYS_set_mempolicy, BIND, nodes, 8 * sizeof nodes);
}

static _Noreturn void run_child(const child_plan *c)
{
    dsc_exec_failure failure = { c->index, 0 };
    setsid();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != c->parent) /* it died before the line above */
        _exit(137);
    const bool ready = (c->in_fd < 0 || dup2(c->in_fd, 0) >= 0) && (c->out_fd < 0 || dup2(c->out_fd, 1) >= 0) &&
                       (c->err_fd < 0 || dup2(c->err_fd, 2) >= 0) &&
                       (c->world_fd < 0 || fcntl(c->world_fd, F_SETFD, 0) == 0) &&
                       (c->cores == NULL || sched_setaffinity(0, sizeof *c->cores, c->cores) == 0);
    if (ready) {
        if (c->late_ns > 0)
            nanosleep(&(struct timespec) { c->late_ns / 1000000000, c->late_ns % 1000000000 }, NULL);
        bind_memory(c->numa_node);
        reset_signals(&c->setup->mask);
        execve(c->task->program, c->task->argv, c->env);
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

/* The rank's end blocks: a rank waits for its world. */
static bool make_world_channel(int fd[2])
{
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fd) != 0) {
        fd[0] = fd[1] = -1;
        return false;
    }
    fcntl(fd[0], F_SETFL, O_NONBLOCK);
    return true;
}

/* The time of day is enough: which ranks are late depends on the machine anyway. */
static int64_t draw_wait(int32_t late_ms)
{
    return late_ms > 0 ? (int64_t)((uint64_t)dsc_clock_wall_ns() * UINT64_C(0x9e3779b97f4a7c15) >> 33) %
                             ((int64_t)late_ms * 1000000)
                       : 0;
}

dsc_status dsc_spawn(dsc_alloc *alloc, const dsc_host_task *task, int32_t index, const dsc_spawn_setup *setup,
                     dsc_spawn_pipes pipes, int exec_fd, dsc_rank_process *out, dsc_error *err)
{
    dsc_rank_vars vars;
    char **env = NULL;
    cpu_set_t cores;
    int to_out[2] = { -1, -1 }, to_err[2] = { -1, -1 }, world[2] = { -1, -1 };
    int null_fd = -1;
    const int32_t rank = task->first_rank + index;
    *out = (dsc_rank_process) { .out_fd = { -1, -1 }, .world_fd = -1 };
    bool ok = task->least_ranks == 0 || make_world_channel(world);
    dsc_rank_vars_fill(task, index, world[1], &vars);
    dsc_status status = dsc_rank_environ(alloc, task->env, &vars, &env, err);
    if (status != DSC_OK) {
        close_pair(world);
        return status;
    }
    if (task->bind_cores)
        dsc_cores_share(&task->cores, index, task->rank_count, &cores);
    ok = ok && (!pipes.out || make_pipe(to_out)) && (!pipes.err || pipes.joined || make_pipe(to_err));
    if (ok && (rank > 0 || !setup->has_input))
        ok = (null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;
    if (ok) {
        const child_plan child = { .task = task,
                                   .setup = setup,
                                   .env = env,
                                   .parent = getpid(),
                                   .index = index,
                                   .in_fd = null_fd,
                                   .out_fd = to_out[1],
                                   .err_fd = pipes.joined ? to_out[1] : to_err[1],
                                   .exec_fd = exec_fd,
                                   .world_fd = world[1],
                                   .late_ns = draw_wait(task->late_ms),
                                   .cores = task->bind_cores ? &cores : NULL,
                                   .numa_node = task->bind_cores ? dsc_cores_numa_node(&cores) : -1 };
        const pid_t pid = fork();
        if (pid == 0)
            run_child(&child);
        ok = pid > 0;
        out->pid = ok ? pid : 0;
    }
    const int reason = errno;
    dsc_alloc_free(alloc, env);
    if (null_fd >= 0)
        close(null_fd);
    if (!ok) {
        close_pair(to_out);
        close_pair(to_err);
        close_pair(world);
        return DSC_FAIL(err, DSC_ERR_IO, "dsc-launch", "cannot start rank %d: %s", rank, strerror(reason));
    }
    if (to_out[1] >= 0)
        close(to_out[1]);
    if (to_err[1] >= 0)
        close(to_err[1]);
    if (world[1] >= 0)
        close(world[1]);
    out->world_fd = world[0];
    out->out_fd[0] = to_out[0];
    out->out_fd[1] = to_err[0];
    return DSC_OK;
}
