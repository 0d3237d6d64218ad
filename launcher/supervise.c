/* supervise.c - the event loop: ranks' ends and output, signals, the guardian's death, and the clock.
 *
 * States of a job: running; ending (all ranks were told: a rank failed, the user asked, or all are done); killing
 * (their time is over). It leaves the loop when nothing of the job runs any more and all output is written.
 *
 * Invariants: (1) a process group is signalled only while its rank is not reaped, so its number cannot be another's;
 *             (2) what a reaped rank left behind is our child (subreaper) or a descendant of one: when there is no
 *             child left, nothing of the job runs;
 *             (3) the code of the job is fixed when it begins to end.
 * SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "launcher/job.h"
#include "launcher/output.h"
#include "launcher/spawn.h"

#define MS INT64_C(1000000)

/* A rank that ends with "peer lost" or "stuck" is seldom the cause: another's end is waited for so long. */
static const int64_t suspect_ns = 300 * MS;
/* From SIGTERM to SIGKILL when a rank has failed: with the wait above all is over in less than 2 s. */
static const int64_t failure_grace_ns = 1000 * MS;
static const int64_t kill_again_ns = 20 * MS;
static const int64_t give_up_ns = 5000 * MS;
/* A scheduler signals every process of a job, and the guardian passes its own copy on: within this time it is one. */
static const int64_t same_signal_ns = 300 * MS;

enum { EV_SIGNAL, EV_LIFELINE, EV_EXEC, EV_SINK, EV_RANK };

typedef struct supervisor {
    const dsc_job *job;
    dsc_output *out;
    dsc_spawn_pipes pipes;
    dsc_rank_process *rank;
    int32_t rank_count;  /* started */
    int32_t alive_count;
    int32_t stream_count; /* pipes not yet at their end */
    int epoll_fd, signal_fd, lifeline_fd, exec_fd;
    bool paused[2];      /* nothing is read for this sink */
    bool sink_polled[2];

    bool ending, killing;
    int32_t primary;     /* first rank that failed of itself, or -1 */
    int32_t suspect;     /* first rank that ended with code 4 or 5, or -1 */
    int32_t culprit;     /* the one that the job ends for, or -1 */
    dsc_status start_status;
    int user_signal;
    int64_t user_signal_at_ns;
    int64_t judge_at_ns, kill_at_ns, give_up_at_ns; /* INT64_MAX: not set */
    bool orphaned;       /* the guardian is dead */
    bool no_children;
    bool abandon_output; /* the user does not wait for a reader that does not read */
} supervisor;

/* ---- telling the ranks ---- */

/* Also wakes what is stopped, so that it can act on the signal. */
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

static void signal_all(const supervisor *s, int signal_number)
{
    for (int32_t i = 0; i < s->rank_count; i++)
        signal_rank(&s->rank[i], signal_number);
}

static void kill_everything(supervisor *s, int64_t now_ns)
{
    if (!s->killing) {
        s->killing = true;
        s->give_up_at_ns = now_ns + give_up_ns;
        for (int32_t i = 0; i < s->rank_count && s->user_signal != 0 && !s->orphaned; i++)
            if (!s->rank[i].ended)
                dsc_output_say(s->out, "dsc-launch: rank %d (pid %d) did not end in time: killed", i,
                               (int)s->rank[i].pid);
    }
    signal_all(s, SIGKILL);
    dsc_children_signal(SIGKILL); /* whatever left its group */
    s->kill_at_ns = now_ns + kill_again_ns;
}

static void begin_failure(supervisor *s, int32_t culprit, int64_t now_ns)
{
    s->culprit = culprit;
    s->ending = true;
    s->kill_at_ns = now_ns + failure_grace_ns;
    signal_all(s, SIGTERM);
}

/* ---- ends of ranks ---- */

static bool find_rank(const supervisor *s, pid_t pid, int32_t *number)
{
    for (int32_t i = 0; i < s->rank_count; i++)
        if (s->rank[i].pid == pid && !s->rank[i].ended) {
            *number = i;
            return true;
        }
    return false;
}

/* The rank is a zombie still, so that its group can be told. Ends that are seen at once have no order: one by a signal
 * is then the likelier cause. */
static void note_end(supervisor *s, int32_t number, const siginfo_t *info, int64_t now_ns)
{
    dsc_rank_process *rank = &s->rank[number];
    const bool exited = info->si_code == CLD_EXITED;
    rank->signal = exited ? 0 : info->si_status;
    rank->code = exited ? info->si_status : 128 + info->si_status;
    signal_rank(rank, s->killing ? SIGKILL : SIGTERM); /* its leftovers */
    rank->ended = true;
    s->alive_count--;
    if (s->ending || rank->code == 0)
        return;
    const bool secondary = rank->signal == 0 && (rank->code == dsc_status_exit_code(DSC_ERR_PEER) ||
                                                 rank->code == dsc_status_exit_code(DSC_ERR_STUCK));
    if (secondary && s->suspect < 0) {
        s->suspect = number;
        s->judge_at_ns = now_ns + suspect_ns;
    } else if (!secondary && (s->primary < 0 || (s->rank[s->primary].signal == 0 && rank->signal != 0))) {
        s->primary = number;
    }
}

static void reap(supervisor *s, int64_t now_ns)
{
    for (;;) {
        siginfo_t info;
        int32_t number = -1;
        info.si_pid = 0;
        if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0) {
            s->no_children = errno == ECHILD;
            return;
        }
        if (info.si_pid == 0)
            return;
        if (find_rank(s, info.si_pid, &number))
            note_end(s, number, &info, now_ns);
        waitpid(info.si_pid, NULL, 0);
    }
}

/* Decides whether the job begins to end, and for whom. */
static void judge(supervisor *s, int64_t now_ns)
{
    if (!s->ending && s->primary >= 0)
        begin_failure(s, s->primary, now_ns);
    if (!s->ending && s->suspect >= 0 && (s->alive_count == 0 || now_ns >= s->judge_at_ns))
        begin_failure(s, s->suspect, now_ns);
    if (s->alive_count == 0) { /* leftovers were told when their rank ended */
        s->ending = true;
        s->kill_at_ns = dsc_min_i64(s->kill_at_ns, now_ns + failure_grace_ns);
    }
}

/* ---- signals from the user ---- */

static void end_by_user(supervisor *s, int signal_number, int64_t now_ns)
{
    char name[32];
    if (s->no_children) {
        s->abandon_output = true;
    } else if (s->user_signal != 0) {
        if (now_ns - s->user_signal_at_ns >= same_signal_ns)
            s->kill_at_ns = now_ns; /* asked twice */
    } else if (!s->ending) {
        s->user_signal = signal_number;
        s->user_signal_at_ns = now_ns;
        s->ending = true;
        s->kill_at_ns = now_ns + s->job->opt->grace_s * 1000 * MS;
        if (s->job->opt->log_level >= DSC_LAUNCHER_INFO)
            dsc_output_say(s->out, "dsc-launch: %s: waiting up to %d s for %d rank%s to end",
                           dsc_signal_name(signal_number, name), s->job->opt->grace_s, s->alive_count,
                           s->alive_count == 1 ? "" : "s");
        signal_all(s, signal_number);
    }
}

static void on_signal(supervisor *s, int signal_number, int64_t now_ns)
{
    switch (signal_number) {
    case SIGINT: case SIGTERM: case SIGQUIT: case SIGHUP: end_by_user(s, signal_number, now_ns); break;
    case SIGTSTP: signal_all(s, SIGSTOP); break; /* an orphaned group ignores SIGTSTP */
    case SIGCONT: case SIGUSR1: case SIGUSR2: signal_all(s, signal_number); break;
    default: break;
    }
}

static void read_signals(supervisor *s, int64_t now_ns)
{
    struct signalfd_siginfo info;
    while (read(s->signal_fd, &info, sizeof info) == (ssize_t)sizeof info)
        on_signal(s, (int)info.ssi_signo, now_ns);
}

/* Signals that the guardian got, one byte each; its death is the end of the file. */
static void read_lifeline(supervisor *s, int64_t now_ns)
{
    unsigned char bytes[64];
    const ssize_t n = read(s->lifeline_fd, bytes, sizeof bytes);
    for (ssize_t i = 0; i < n; i++)
        on_signal(s, bytes[i], now_ns);
    if (n == 0) {
        close(s->lifeline_fd);
        s->lifeline_fd = -1;
        s->orphaned = true;
        s->ending = true;
        kill_everything(s, now_ns);
    }
}

static void read_exec_failures(supervisor *s)
{
    dsc_exec_failure failure;
    ssize_t n = -1;
    while (s->exec_fd >= 0 && (n = read(s->exec_fd, &failure, sizeof failure)) == (ssize_t)sizeof failure)
        s->rank[failure.rank].exec_errno = failure.errno_value;
    if (n == 0) { /* every rank runs its program now */
        close(s->exec_fd);
        s->exec_fd = -1;
    }
}

/* ---- output of the ranks ---- */

static void end_stream(supervisor *s, int32_t number, int which, int64_t now_ns)
{
    close(s->rank[number].out_fd[which]);
    s->rank[number].out_fd[which] = -1;
    s->stream_count--;
    dsc_output_end(s->out, number, which, now_ns);
}

/* One read. When the reader of our stdout is gone the rank learns it as it would have without us: by SIGPIPE. */
static void read_rank(supervisor *s, int32_t number, int which, int64_t now_ns)
{
    char text[DSC_OUTPUT_READ_BYTES];
    const int fd = s->rank[number].out_fd[which];
    const dsc_sink *sink = dsc_output_sink(s->out, which);
    if (fd < 0)
        return;
    if (sink->broken && sink->reason == EPIPE && s->job->opt->rank_log_dir == NULL) {
        end_stream(s, number, which, now_ns);
        return;
    }
    const ssize_t n = read(fd, text, sizeof text);
    if (n > 0)
        dsc_output_feed(s->out, number, which, text, (size_t)n, now_ns);
    else if (n == 0 || (errno != EAGAIN && errno != EINTR) || (errno == EAGAIN && s->no_children))
        end_stream(s, number, which, now_ns);
}

static bool poll_fd(const supervisor *s, int fd, int kind, int32_t number, int which, uint32_t events)
{
    struct epoll_event event = { .events = events };
    event.data.u64 = (uint64_t)kind << 40 | (uint64_t)which << 32 | (uint32_t)number;
    return epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

/* A sink that is full stops the reading for it; one that would wait is polled. */
static void tend_sinks(supervisor *s)
{
    for (int which = 0; which < dsc_output_sink_count(s->out); which++) {
        dsc_sink *sink = dsc_output_sink(s->out, which);
        dsc_sink_flush(sink);
        const bool full = dsc_sink_queued(sink) >= DSC_SINK_FULL_BYTES;
        for (int32_t i = 0; i < s->rank_count && full != s->paused[which]; i++) {
            const int fd = s->rank[i].out_fd[which];
            if (fd >= 0 && full)
                epoll_ctl(s->epoll_fd, EPOLL_CTL_DEL, fd, NULL); /* not "no events": a hang-up would come in still */
            else if (fd >= 0)
                poll_fd(s, fd, EV_RANK, i, which, EPOLLIN);
        }
        s->paused[which] = full;
        if (sink->waiting != s->sink_polled[which]) {
            if (sink->waiting)
                poll_fd(s, sink->fd, EV_SINK, 0, which, EPOLLOUT);
            else
                epoll_ctl(s->epoll_fd, EPOLL_CTL_DEL, sink->fd, NULL);
            s->sink_polled[which] = sink->waiting;
        }
    }
}

/* ---- start ---- */

/* With one rank as little as possible stands between it and the user: its stdout is ours, and its stderr too when that
 * is a terminal. A file or a pipe at stderr is written through us, to know whether the rank said why it failed. */
static dsc_spawn_pipes choose_pipes(const supervisor *s, bool raw)
{
    const bool same = dsc_output_sink_count(s->out) == 1;
    if (!raw)
        return (dsc_spawn_pipes){ true, true, same };
    if (isatty(2) == 1)
        return (dsc_spawn_pipes){ false, false, false };
    return (dsc_spawn_pipes){ same, true, same };
}

static dsc_status make_secrets(const supervisor *s, dsc_rank_secrets *secrets, dsc_error *err)
{
    unsigned char random[16];
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        return DSC_FAIL(err, DSC_ERR_IO, "dsc-launch", "no random bytes for the job's token: %s", strerror(errno));
    for (size_t i = 0; i < sizeof random; i++)
        snprintf(secrets->job_token + 2 * i, 3, "%02x", random[i]);
    secrets->launcher_pid = s->job->launcher_pid;
    secrets->tty_columns = s->pipes.out && s->job->opt->rank_log_dir == NULL ? dsc_output_columns(s->out) : 0;
    return DSC_OK;
}

static dsc_status start_ranks(supervisor *s, dsc_error *err)
{
    dsc_rank_secrets secrets;
    int exec_pipe[2];
    dsc_status status = DSC_OK;
    DSC_TRY(make_secrets(s, &secrets, err));
    if (pipe2(exec_pipe, O_CLOEXEC | O_NONBLOCK) != 0)
        return DSC_FAIL(err, DSC_ERR_IO, "dsc-launch", "cannot start: %s", strerror(errno));
    s->exec_fd = exec_pipe[0];
    poll_fd(s, s->exec_fd, EV_EXEC, 0, 0, EPOLLIN);
    for (int32_t i = 0; i < s->job->plan->world_size && status == DSC_OK; i++) {
        /* What goes to a log only is one stream: both ends are the same file. */
        const bool log_only = s->job->opt->rank_log_dir != NULL && i > 0;
        const dsc_spawn_pipes pipes = log_only ? (dsc_spawn_pipes){ true, true, true } : s->pipes;
        status = dsc_spawn(s->job, &s->job->plan->place[i], &secrets, pipes, exec_pipe[1], &s->rank[i], err);
        if (status != DSC_OK)
            break;
        s->rank_count++;
        s->alive_count++;
        for (int which = 0; which < 2; which++)
            if (s->rank[i].out_fd[which] >= 0) {
                s->stream_count++;
                if (!poll_fd(s, s->rank[i].out_fd[which], EV_RANK, i, which, EPOLLIN))
                    status = DSC_FAIL(err, DSC_ERR_IO, "dsc-launch", "cannot watch rank %d: %s", i, strerror(errno));
            }
    }
    close(exec_pipe[1]);
    return status;
}

/* The same signals as the guardian's, in case someone finds this process. */
static dsc_status open_events(supervisor *s, int lifeline_fd, dsc_error *err)
{
    static const int watched[] = { SIGCHLD, SIGINT, SIGTERM, SIGQUIT, SIGHUP, SIGUSR1, SIGUSR2 };
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < DSC_COUNT(watched); i++)
        if (watched[i] != SIGHUP || !s->job->hup_ignored)
            sigaddset(&set, watched[i]);
    s->lifeline_fd = lifeline_fd;
    s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    s->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (s->epoll_fd < 0 || s->signal_fd < 0 || !poll_fd(s, s->signal_fd, EV_SIGNAL, 0, 0, EPOLLIN) ||
        !poll_fd(s, lifeline_fd, EV_LIFELINE, 0, 0, EPOLLIN))
        return DSC_FAIL(err, DSC_ERR_IO, "dsc-launch", "cannot start: %s", strerror(errno));
    return DSC_OK;
}

/* ---- the end ---- */

static void say_exec_failure(supervisor *s, const dsc_rank_process *rank)
{
    const char *hint = rank->exec_errno == ENOEXEC ? " (no program, and a script starts with #!)" : "";
    dsc_output_say(s->out, "dsc: error: %s: cannot be started: %s%s", s->job->program, strerror(rank->exec_errno),
                   hint);
}

/* One "dsc: error:" line a job: the culprit's own, or ours when it said nothing. */
static void report_culprit(supervisor *s)
{
    const dsc_rank_process *rank = &s->rank[s->culprit];
    const dsc_place *place = &s->job->plan->place[s->culprit];
    const char *said = dsc_output_error_of(s->out, s->culprit);
    char who[512], name[32];
    if (rank->exec_errno != 0) {
        say_exec_failure(s, rank);
        return;
    }
    int n = snprintf(who, sizeof who, "rank %d (host %s, pid %d) ", s->culprit,
                     s->job->plan->pool.host[place->host].name, (int)rank->pid);
    if (rank->signal == SIGKILL)
        snprintf(who + n, sizeof who - (size_t)n,
                 "was killed by SIGKILL; if nobody sent it, it was the kernel, out of memory");
    else if (rank->signal != 0)
        snprintf(who + n, sizeof who - (size_t)n, "was killed by %s", dsc_signal_name(rank->signal, name));
    else
        snprintf(who + n, sizeof who - (size_t)n, "ended with code %d", rank->code);
    dsc_output_replay(s->out, s->culprit);
    /* Where we do not see its stderr, a rank that ends with a code of the contract has said why. */
    const bool unseen = !s->pipes.err && rank->signal == 0 && rank->code <= dsc_status_exit_code(DSC_ERR_STUCK);
    const bool quiet = said != NULL || unseen || dsc_output_error_shown(s->out);
    dsc_output_say(s->out, "%s%s", quiet ? "dsc-launch: " : "dsc: error: ", who);
    if (said != NULL && !dsc_output_show_error(s->out, s->culprit))
        dsc_output_say(s->out, "dsc-launch: rank %d said \"%s\"", s->culprit, said + strlen("dsc: error: "));
}

/* Errors that were held back although no rank is to blame: of a rank that is no victim of another's end. */
static void report_others(supervisor *s)
{
    for (int32_t i = 0; i < s->rank_count; i++) {
        const dsc_rank_process *rank = &s->rank[i];
        const bool victim = rank->signal != 0 || rank->code == dsc_status_exit_code(DSC_ERR_PEER) ||
                            rank->code == dsc_status_exit_code(DSC_ERR_STUCK);
        if (!victim && dsc_output_show_error(s->out, i))
            return;
    }
}

static int finish(supervisor *s, const dsc_error *err)
{
    char text[800];
    int code = 0;
    if (s->start_status != DSC_OK) {
        dsc_output_say(s->out, "dsc: error: %s", dsc_error_format(err, text, sizeof text));
        code = dsc_status_exit_code(s->start_status);
    } else if (s->user_signal != 0) {
        report_others(s);
        code = 128 + s->user_signal;
    } else if (s->culprit >= 0) {
        report_culprit(s);
        code = s->rank[s->culprit].code;
    } else {
        report_others(s);
    }
    for (int which = 0; which < dsc_output_sink_count(s->out); which++) {
        const dsc_sink *sink = dsc_output_sink(s->out, which);
        if (sink->broken && sink->reason != EPIPE && sink->reason != EBADF && sink->reason != EIO)
            dsc_output_say(s->out, "dsc-launch: output was lost: %s", strerror(sink->reason));
    }
    return code;
}

static bool output_waits(const supervisor *s)
{
    size_t queued = 0;
    for (int which = 0; which < dsc_output_sink_count(s->out); which++)
        queued += dsc_sink_queued(dsc_output_sink(s->out, which));
    return queued > 0 && !s->orphaned && !s->abandon_output;
}

/* ---- the loop ---- */

/* Until the next thing that time decides; `at_ns` is what the caller knows of. */
static int timeout_ms(const supervisor *s, int64_t at_ns, int64_t now_ns)
{
    if (s->ending && !s->no_children)
        at_ns = dsc_min_i64(at_ns, s->kill_at_ns);
    if (!s->ending && s->suspect >= 0)
        at_ns = dsc_min_i64(at_ns, s->judge_at_ns);
    if (s->killing && !s->no_children)
        at_ns = dsc_min_i64(at_ns, s->give_up_at_ns);
    if (at_ns == INT64_MAX)
        return -1;
    return (int)dsc_min_i64(60000, dsc_max_i64(0, dsc_div_ceil(at_ns - now_ns, MS)));
}

/* Waits for the next event, at most until `at_ns`, and handles what came. */
static void wait_and_read(supervisor *s, int64_t at_ns)
{
    struct epoll_event events[64];
    const int n = epoll_wait(s->epoll_fd, events, DSC_COUNT(events), timeout_ms(s, at_ns, dsc_clock_ns()));
    const int64_t now_ns = dsc_clock_ns();
    for (int i = 0; i < n; i++) {
        const uint64_t data = events[i].data.u64;
        switch (data >> 40) {
        case EV_SIGNAL: read_signals(s, now_ns); break;
        case EV_LIFELINE: read_lifeline(s, now_ns); break;
        case EV_EXEC: read_exec_failures(s); break;
        case EV_RANK: read_rank(s, (int32_t)(uint32_t)data, (int)(data >> 32 & 1), now_ns); break;
        default: break; /* a sink can be written: tend_sinks does it */
        }
    }
}

/* No process is left, so the pipes hold what they will ever hold. */
static void drain(supervisor *s)
{
    while (s->stream_count > 0 && !s->orphaned && !s->abandon_output) {
        for (int32_t i = 0; i < s->rank_count; i++)
            for (int which = 0; which < 2; which++)
                if (!s->paused[which])
                    read_rank(s, i, which, dsc_clock_ns());
        tend_sinks(s);
        if (s->paused[0] || s->paused[1])
            wait_and_read(s, INT64_MAX);
    }
}

static int run(supervisor *s, const dsc_error *err)
{
    while (!s->no_children) {
        const int64_t release_at_ns = dsc_output_release(s->out, dsc_clock_ns());
        tend_sinks(s);
        wait_and_read(s, release_at_ns);
        const int64_t now_ns = dsc_clock_ns();
        reap(s, now_ns);
        judge(s, now_ns);
        if (s->killing && now_ns >= s->give_up_at_ns)
            break; /* a process that cannot be killed sleeps in the kernel; its pipes are left */
        if (s->ending && !s->no_children && now_ns >= s->kill_at_ns)
            kill_everything(s, now_ns);
    }
    read_exec_failures(s);
    if (s->no_children)
        drain(s);
    const int code = finish(s, err);
    for (tend_sinks(s); output_waits(s); tend_sinks(s))
        wait_and_read(s, INT64_MAX);
    return code;
}

int dsc_supervise(const dsc_job *job, int lifeline_fd)
{
    dsc_error err = DSC_ERROR_INIT;
    const bool raw = job->plan->world_size == 1 && job->opt->rank_log_dir == NULL;
    const dsc_output_options output = { .rank_count = job->plan->world_size,
                                        .raw = raw,
                                        .only_rank0 = job->opt->rank_log_dir != NULL,
                                        .log_dir = job->opt->rank_log_dir };
    supervisor s = { .job = job, .primary = -1, .suspect = -1, .culprit = -1, .judge_at_ns = INT64_MAX,
                     .kill_at_ns = INT64_MAX, .give_up_at_ns = INT64_MAX, .exec_fd = -1 };
    dsc_status status = dsc_output_open(job->alloc, &output, &s.out, &err);
    if (status == DSC_OK) {
        s.pipes = choose_pipes(&s, raw);
        status = open_events(&s, lifeline_fd, &err);
    }
    if (status == DSC_OK)
        status = dsc_alloc_zeroed(job->alloc, DSC_TAG_CONTROL, job->plan->world_size, (int64_t)sizeof *s.rank, &s.rank,
                                  &err);
    if (status != DSC_OK) {
        char text[800];
        dsc_output_close(&s.out);
        fprintf(stderr, "dsc: error: %s\n", dsc_error_format(&err, text, sizeof text));
        return dsc_status_exit_code(status);
    }
    s.start_status = start_ranks(&s, &err);
    if (s.start_status != DSC_OK) { /* some ranks may run already */
        s.ending = true;
        s.kill_at_ns = 0;
    }
    const int code = run(&s, &err);
    dsc_output_close(&s.out);
    dsc_alloc_free(job->alloc, s.rank);
    return code;
}
