/* discovery.c - see discovery.h. The agents of coordinator.h reap the script with their other children.
 * SPDX-License-Identifier: Apache-2.0 */
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
#define FIRST_WAIT_NS (30 * SECOND)

static dsc_status start_script(dsc_coordinator_worker *c, dsc_error *err)
{
    const char *script = c->job->opt->discovery_script;
    int fd[2];
    if (pipe2(fd, O_CLOEXEC) != 0)
        return DSC_FAIL(err, DSC_ERR_IO, script, "cannot be started: %s", strerror(errno));
    const pid_t pid = fork();
    if (pid == 0) {
        const int null_fd = open("/dev/null", O_RDONLY);
        sigprocmask(SIG_SETMASK, &c->job->rank_mask, NULL);
        if (null_fd >= 0 && dup2(null_fd, 0) >= 0 && dup2(fd[1], 1) >= 0)
            execl(script, script, (char *)NULL);
        _exit(127);
    }
    close(fd[1]);
    if (pid < 0) {
        close(fd[0]);
        return DSC_FAIL(err, DSC_ERR_IO, script, "cannot be started: %s", strerror(errno));
    }
    fcntl(fd[0], F_SETFL, O_NONBLOCK);
    c->discovery.fd = fd[0];
    c->discovery.bytes = 0;
    return DSC_OK;
}

/* True at the end of the output. */
static bool read_output(dsc_discovery *d)
{
    for (;;) {
        const size_t room = sizeof d->text - 1 - d->bytes;
        const ssize_t n = read(d->fd, d->text + d->bytes, room);
        if (n > 0)
            d->bytes += (size_t)n;
        else if (n == 0 || (errno != EAGAIN && errno != EINTR) || room == 0)
            break;
        else if (errno == EAGAIN)
            return false;
    }
    close(d->fd);
    d->fd = -1;
    d->text[d->bytes] = 0;
    return true;
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
    const int64_t until_ns = dsc_clock_ns() + FIRST_WAIT_NS;
    d->fd = -1;
    if (c->job->opt->discovery_script == NULL)
        return DSC_OK;
    DSC_TRY(dsc_alloc_zeroed(c->job->alloc, DSC_TAG_CONTROL, c->host_count, (int64_t)sizeof *d->slots, &d->slots, err));
    for (int32_t i = 0; i < c->host_count; i++)
        d->slots[i] = c->host[i].rank_count;
    DSC_TRY(start_script(c, err));
    while (!read_output(d)) {
        struct pollfd ready = { .fd = d->fd, .events = POLLIN };
        if (dsc_clock_ns() > until_ns)
            return DSC_FAIL(err, DSC_ERR_INPUT, c->job->opt->discovery_script, "it has not ended after %d s",
                            (int)(FIRST_WAIT_NS / SECOND));
        (void)poll(&ready, 1, 100);
    }
    d->start_ns = dsc_clock_ns() + SECOND;
    return take_result(c, dsc_clock_ns(), err);
}

void dsc_discovery_close(dsc_coordinator_worker *c)
{
    if (c->discovery.slots == NULL)
        return;
    if (c->discovery.fd >= 0)
        close(c->discovery.fd);
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
    return is_wanted(c) && c->discovery.fd < 0 ? c->discovery.start_ns : INT64_MAX;
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
    if (c->discovery.fd < 0 || !read_output(&c->discovery)) /* closing takes it out of epoll */
        return;
    finish(c, is_wanted(c) ? take_result(c, now_ns, &err) : DSC_OK, &err, now_ns);
}

void dsc_discovery_tend(dsc_coordinator_worker *c, int64_t now_ns)
{
    dsc_error err = DSC_ERROR_INIT;
    if (!is_wanted(c) || c->discovery.fd >= 0 || now_ns < c->discovery.start_ns)
        return;
    const dsc_status status = start_script(c, &err);
    if (status != DSC_OK)
        finish(c, status, &err, now_ns);
    else
        dsc_loop_add(c->epoll_fd, c->discovery.fd, (dsc_loop_event) { DSC_LOOP_SCRIPT, 0, 0 }, EPOLLIN);
}
