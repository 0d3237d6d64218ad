/* discovery.c - see discovery.h. The agents of coordinator.h reap the script with their other children, so its exit
 * code comes from a shell, after the output and a byte 0. SPDX-License-Identifier: Apache-2.0 */
#include "launcher/coordinator/discovery.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/clock.h"
#include "launcher/coordinator/coordinator.h"

#define SECOND INT64_C(1000000000)
#define LIMIT_NS (30 * SECOND) /* a script that takes longer is killed */

/* The script is $0; without a folder it is in the working folder, not in PATH. */
static const char shell_line[] = "case $0 in */*) \"$0\";; *) \"./$0\";; esac; printf '\\000%d' $?";

static dsc_status start_script(dsc_coordinator_worker *c, dsc_error *err)
{
    const char *script = c->job->opt->discovery_script;
    int fd[2];
    if (pipe2(fd, O_CLOEXEC) != 0)
        return DSC_FAIL(err, DSC_ERR_IO, script, "cannot be started: %s", strerror(errno));
    const pid_t pid = fork();
    if (pid == 0) {
        const int null_fd = open("/dev/null", O_RDONLY);
        setpgid(0, 0);
        sigprocmask(SIG_SETMASK, &c->job->rank_mask, NULL);
        if (null_fd >= 0 && dup2(null_fd, 0) >= 0 && dup2(fd[1], 1) >= 0)
            execl("/bin/sh", script, "-c", shell_line, script, (char *)NULL);
        _exit(127);
    }
    close(fd[1]);
    if (pid < 0) {
        close(fd[0]);
        return DSC_FAIL(err, DSC_ERR_IO, script, "cannot be started: %s", strerror(errno));
    }
    fcntl(fd[0], F_SETFL, O_NONBLOCK);
    setpgid(pid, pid); /* whoever comes first */
    c->discovery.fd = fd[0];
    c->discovery.pid = pid;
    c->discovery.kill_ns = dsc_clock_ns() + LIMIT_NS;
    c->discovery.bytes = 0;
    return DSC_OK;
}

/* True at the end of the output, also when it is too long. */
static bool read_output(dsc_discovery *d)
{
    while (d->bytes < sizeof d->text - 1) {
        const ssize_t n = read(d->fd, d->text + d->bytes, sizeof d->text - 1 - d->bytes);
        if (n > 0)
            d->bytes += (size_t)n;
        else if (n < 0 && errno == EAGAIN)
            return false;
        else if (n == 0 || errno != EINTR)
            break;
    }
    d->text[d->bytes] = 0;
    return true;
}

/* Leftovers of the script end with it. */
static void end_script(dsc_discovery *d)
{
    close(d->fd); /* which takes it out of epoll */
    d->fd = -1;
    kill(-d->pid, SIGKILL);
}

static dsc_status check_end(const dsc_discovery *d, const char *script, dsc_error *err)
{
    const size_t length = strlen(d->text); /* up to the byte 0 */
    const char *code = d->text + length + 1;
    if (d->bytes == sizeof d->text - 1)
        return DSC_FAIL(err, DSC_ERR_INPUT, script, "it printed more than %d KiB", DSC_DISCOVERY_TEXT_MAX / 1024);
    if (length >= d->bytes || *code == 0 || strspn(code, "0123456789") != d->bytes - length - 1)
        return DSC_FAIL(err, DSC_ERR_INPUT, script, "it was killed, or printed a byte 0");
    if (strcmp(code, "0") != 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, script, "it ended with code %.3s", code);
    return DSC_OK;
}

static dsc_status fail_late(const char *script, dsc_error *err)
{
    return DSC_FAIL(err, DSC_ERR_INPUT, script, "it has not ended after %d s", (int)(LIMIT_NS / SECOND));
}

/* ---- the result -------------------------------------------------------------------------------------------------- */

static int32_t find_host(const dsc_coordinator_worker *c, const char *name, size_t bytes)
{
    for (int32_t i = 0; i < c->host_count; i++)
        if (strlen(c->remote[i].name) == bytes && strncasecmp(c->remote[i].name, name, bytes) == 0)
            return i;
    return -1;
}

/* Fills slots[host_count]. Returns the first line that does not name a host of the job, or NULL. */
static const char *parse(const dsc_coordinator_worker *c, char *text, int32_t *slots)
{
    char *rest = text;
    memset(slots, 0, sizeof *slots * (size_t)c->host_count);
    for (char *line; (line = strsep(&rest, "\n")) != NULL;) {
        line[strcspn(line, "\r")] = 0;
        const char *colon = strrchr(line, ':');
        const size_t bytes = colon != NULL ? (size_t)(colon - line) : strlen(line);
        const int32_t host = find_host(c, line, bytes);
        if (line[0] == 0)
            continue;
        if (host < 0 || (colon != NULL && (colon[1] == 0 || strlen(colon + 1) > 4 ||
                                           strspn(colon + 1, "0123456789") != strlen(colon + 1))))
            return line;
        const int32_t most = c->host[host].rank_count;
        slots[host] = colon != NULL ? (int32_t)dsc_min_i64(atoi(colon + 1), most) : most;
    }
    return NULL;
}

static int32_t count_slots(const dsc_coordinator_worker *c, const int32_t *slots)
{
    int32_t count = 0;
    for (int32_t i = 0; i < c->host_count; i++)
        count += slots[i];
    return count;
}

/* Only changes matter: a rank that left its slot by itself stays away. */
static void change_slots(dsc_coordinator_worker *c, const int32_t *slots, int64_t now_ns)
{
    dsc_membership *m = &c->worlds.membership;
    for (int32_t h = 0; h < c->host_count; h++) {
        const int32_t first = c->remote[h].first_rank - c->remote[0].first_rank, before = c->discovery.slots[h];
        for (int32_t i = 0; i < c->host[h].rank_count; i++) {
            if ((i < slots[h]) == (i < before))
                continue;
            dsc_membership_allow(m, first + i, i < slots[h], now_ns);
            if (i >= slots[h])
                dsc_coordinator_worker_step(
                    c,
                    (dsc_coordinator_event) { .kind = DSC_COORDINATOR_SIGNAL, .slot = first + i, .signal = SIGTERM });
        }
        if (slots[h] != before && c->machine.phase == DSC_COORDINATOR_RUNS)
            dsc_output_log(c->out, "dsc-launch: host %s has %d slot%s now", c->remote[h].name, (int)slots[h],
                           slots[h] == 1 ? "" : "s");
        c->discovery.slots[h] = slots[h];
    }
}

static dsc_status take_result(dsc_coordinator_worker *c, int64_t now_ns, dsc_error *err)
{
    int32_t *slots = NULL;
    DSC_TRY(check_end(&c->discovery, c->job->opt->discovery_script, err));
    DSC_TRY(dsc_alloc_zeroed(c->job->alloc, DSC_TAG_CONTROL, c->host_count, (int64_t)sizeof *slots, &slots, err));
    dsc_status status = DSC_OK;
    const char *wrong = parse(c, c->discovery.text, slots);
    if (wrong != NULL)
        status = DSC_FAIL(err, DSC_ERR_INPUT, c->job->opt->discovery_script,
                          "\"%.60s\" is not name or name:slots with a host of the job", wrong);
    else if (count_slots(c, slots) == 0)
        status = DSC_FAIL(err, DSC_ERR_INPUT, c->job->opt->discovery_script, "it printed no host");
    else
        change_slots(c, slots, now_ns);
    dsc_alloc_free(c->job->alloc, slots);
    return status;
}

/* ---- the job ----------------------------------------------------------------------------------------------------- */

dsc_status dsc_discovery_open(dsc_coordinator_worker *c, dsc_error *err)
{
    dsc_discovery *d = &c->discovery;
    d->fd = -1;
    if (c->job->opt->discovery_script == NULL)
        return DSC_OK;
    DSC_TRY(dsc_alloc_zeroed(c->job->alloc, DSC_TAG_CONTROL, c->host_count, (int64_t)sizeof *d->slots, &d->slots, err));
    for (int32_t i = 0; i < c->host_count; i++)
        d->slots[i] = c->host[i].rank_count;
    DSC_TRY(start_script(c, err));
    while (!read_output(d)) {
        struct pollfd ready = { .fd = d->fd, .events = POLLIN };
        if (dsc_clock_ns() > d->kill_ns)
            return fail_late(c->job->opt->discovery_script, err);
        (void)poll(&ready, 1, 100);
    }
    end_script(d);
    d->start_ns = dsc_clock_ns() + SECOND;
    return take_result(c, dsc_clock_ns(), err);
}

void dsc_discovery_close(dsc_coordinator_worker *c)
{
    if (c->discovery.slots == NULL)
        return;
    if (c->discovery.fd >= 0)
        end_script(&c->discovery);
    dsc_alloc_free(c->job->alloc, c->discovery.slots);
    c->discovery.slots = NULL;
}

static bool is_wanted(const dsc_coordinator_worker *c)
{
    return c->discovery.slots != NULL && c->machine.phase == DSC_COORDINATOR_RUNS &&
           c->machine.verdict.phase == DSC_VERDICT_RUN;
}

int64_t dsc_discovery_wake_ns(const dsc_coordinator_worker *c)
{
    const int64_t at_ns = c->discovery.fd < 0 ? c->discovery.start_ns : c->discovery.kill_ns;
    return is_wanted(c) ? at_ns : INT64_MAX;
}

/* The first result that cannot be used is reported, and the first one after a good result. */
static void finish(dsc_coordinator_worker *c, dsc_status status, const dsc_error *err, int64_t now_ns)
{
    char text[800];
    c->discovery.start_ns = now_ns + SECOND;
    if (status != DSC_OK && !c->discovery.reported)
        dsc_output_log(c->out, "dsc-launch: %s; the hosts stay as they are", dsc_error_format(err, text, sizeof text));
    c->discovery.reported = status != DSC_OK;
}

void dsc_discovery_on_event(dsc_coordinator_worker *c)
{
    dsc_error err = DSC_ERROR_INIT;
    const int64_t now_ns = dsc_clock_ns();
    if (c->discovery.fd < 0 || !read_output(&c->discovery))
        return;
    end_script(&c->discovery);
    finish(c, is_wanted(c) ? take_result(c, now_ns, &err) : DSC_OK, &err, now_ns);
}

void dsc_discovery_tend(dsc_coordinator_worker *c, int64_t now_ns)
{
    dsc_error err = DSC_ERROR_INIT;
    if (is_wanted(c) && c->discovery.fd >= 0 && now_ns >= c->discovery.kill_ns) {
        end_script(&c->discovery);
        finish(c, fail_late(c->job->opt->discovery_script, &err), &err, now_ns);
    }
    if (!is_wanted(c) || c->discovery.fd >= 0 || now_ns < c->discovery.start_ns)
        return;
    const dsc_status status = start_script(c, &err);
    if (status != DSC_OK)
        finish(c, status, &err, now_ns);
    else
        dsc_loop_add(c->epoll_fd, c->discovery.fd, (dsc_loop_event) { DSC_LOOP_SCRIPT, 0, 0 }, EPOLLIN);
}
