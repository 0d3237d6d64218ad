/* rendezvous_socket.c - drives the machines of rendezvous.h over an abstract local socket.
 *
 * Job token, user id, MASTER_ADDR and MASTER_PORT together name the socket and make the key, so that two jobs of one
 * host stay apart even with one token. The kernel reports the user of the process at the other end (SO_PEERCRED), and
 * both sides refuse other users. One packet is one message; files travel as SCM_RIGHTS.
 * SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/rendezvous/hmac.h"
#include "comm/rendezvous/rendezvous.h"

#define FILES_MAX (1 + DSC_RDV_RANKS_MAX)
#define TICK_MS 10
#define SEND_PATIENCE_NS INT64_C(2000000000)

typedef struct driver {
    const dsc_rdv_job *job;
    int32_t size;
    int listener;              /* server only, -1: closed */
    int conn[DSC_RDV_CONNS_MAX]; /* client: conn[0] */
    int file[FILES_MAX];
    int incoming[FILES_MAX];   /* files of the message at hand, not yet kept */
    int32_t incoming_count;
    int own_memory;
    dsc_rdv_map_fn map;
    void *user;
    dsc_error map_error;       /* status DSC_OK: mapping did not fail */
    bool over;
    dsc_status status;         /* when over */
    char text[DSC_RDV_TEXT];
} driver;

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static void driver_init(driver *d, const dsc_rdv_job *job, int segment, int memory, dsc_rdv_map_fn map, void *user)
{
    memset(d, 0, sizeof *d);
    d->job = job;
    d->size = job->self.size;
    d->listener = -1;
    d->own_memory = memory;
    d->map = map;
    d->user = user;
    for (int i = 0; i < DSC_RDV_CONNS_MAX; i++)
        d->conn[i] = -1;
    for (int i = 0; i < FILES_MAX; i++)
        d->file[i] = -1;
    if (segment >= 0) {
        d->file[0] = fcntl(segment, F_DUPFD_CLOEXEC, 0);
        d->file[1] = fcntl(memory, F_DUPFD_CLOEXEC, 0);
    }
}

/* Sockets always; the files too unless they go to the caller. */
static void driver_release(driver *d, bool with_files)
{
    close_fd(&d->listener);
    for (int i = 0; i < DSC_RDV_CONNS_MAX; i++)
        close_fd(&d->conn[i]);
    for (int i = 0; i < d->incoming_count; i++)
        close_fd(&d->incoming[i]);
    for (int i = 0; i < FILES_MAX && with_files; i++)
        close_fd(&d->file[i]);
}

static void sha_text(dsc_sha256 *sha, const char *text) { dsc_sha256_update(sha, text, strlen(text) + 1); }

static void job_key(const dsc_rdv_job *job, const char *purpose, uint8_t out[32])
{
    char who[64];
    dsc_sha256 sha;
    snprintf(who, sizeof who, "%u:%d", (unsigned)geteuid(), job->port);
    dsc_sha256_init(&sha);
    sha_text(&sha, purpose);
    sha_text(&sha, job->token);
    sha_text(&sha, job->host != NULL ? job->host : "");
    sha_text(&sha, who);
    dsc_sha256_final(&sha, out);
}

/* Abstract: a leading NUL, no file, gone with the listener. */
static socklen_t job_address(const dsc_rdv_job *job, struct sockaddr_un *address)
{
    uint8_t digest[32];
    char hex[65];
    job_key(job, "dsc socket name 1", digest);
    dsc_hex(hex, digest, 32);
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    const int n = snprintf(address->sun_path + 1, sizeof address->sun_path - 1, "dsc-%.32s", hex);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

static bool peer_of(int fd, struct ucred *cred)
{
    socklen_t bytes = sizeof *cred;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, cred, &bytes) == 0 && bytes == sizeof *cred;
}

/* Zero bytes would still be safe: they only make the nonce known, and both sides bring one. */
static void fresh(uint8_t out[DSC_RDV_NONCE])
{
    memset(out, 0, DSC_RDV_NONCE);
    if (getrandom(out, DSC_RDV_NONCE, 0) != DSC_RDV_NONCE) {
        const int64_t now = dsc_clock_ns();
        memcpy(out, &now, sizeof now);
    }
}

/* ---- packets ----------------------------------------------------------------------------------------------------- */

typedef union control {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(sizeof(int) * FILES_MAX)];
} control;

/* False when the other end is gone. A full queue is waited for, a little: files in flight are limited per user. */
static bool send_packet(int fd, const void *bytes, int32_t count, const int *files, int32_t file_count)
{
    control c;
    memset(&c, 0, sizeof c);
    struct iovec iov = { .iov_len = (size_t)count };
    memcpy(&iov.iov_base, &bytes, sizeof bytes); /* sendmsg reads only, but its struct has no const */
    struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1 };
    if (file_count > 0) {
        message.msg_control = c.bytes;
        message.msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)file_count);
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(sizeof(int) * (size_t)file_count);
        memcpy(CMSG_DATA(head), files, sizeof(int) * (size_t)file_count);
    }
    const int64_t until_ns = dsc_clock_ns() + SEND_PATIENCE_NS;
    for (;;) {
        if (sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == count)
            return true;
        if (errno != EAGAIN && errno != ETOOMANYREFS && errno != EINTR && errno != ENOBUFS)
            return false;
        if (dsc_clock_ns() > until_ns)
            return false;
        dsc_clock_sleep_ns(500000);
    }
}

/* Bytes of the packet, 0: closed, -1: nothing there. Its files are in d->incoming. */
static int64_t receive_packet(driver *d, int fd, uint8_t bytes[DSC_RDV_MESSAGE_MAX])
{
    control c;
    struct iovec iov = { .iov_base = bytes, .iov_len = DSC_RDV_MESSAGE_MAX };
    struct msghdr message = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = c.bytes, .msg_controllen = sizeof c.bytes
    };
    ssize_t count = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    /* The other end left without reading all of ours; its last words may still be queued. */
    if (count < 0 && errno == ECONNRESET)
        count = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (count < 0)
        return errno == EAGAIN || errno == EINTR ? -1 : 0;
    for (struct cmsghdr *h = CMSG_FIRSTHDR(&message); h != NULL; h = CMSG_NXTHDR(&message, h)) {
        if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS)
            continue;
        const size_t n = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n; i++) {
            int file;
            memcpy(&file, CMSG_DATA(h) + i * sizeof file, sizeof file);
            if (d->incoming_count < FILES_MAX)
                d->incoming[d->incoming_count++] = file;
            else
                close(file);
        }
    }
    return count;
}

static void drop_incoming(driver *d)
{
    for (int i = 0; i < d->incoming_count; i++)
        close_fd(&d->incoming[i]);
    d->incoming_count = 0;
}

/* ---- actions ----------------------------------------------------------------------------------------------------- */

/* Moves the files of the message at hand to file[first..]. */
static void keep_files(driver *d, int first)
{
    DSC_ASSERT(first + d->incoming_count <= FILES_MAX);
    for (int i = 0; i < d->incoming_count; i++) {
        close_fd(&d->file[first + i]);
        d->file[first + i] = d->incoming[i];
        d->incoming[i] = -1;
    }
    d->incoming_count = 0;
}

typedef struct machine {
    dsc_rdv_server *server; /* one of the two */
    dsc_rdv_client *client;
} machine;

static void machine_step(const machine *m, const dsc_rdv_event *event, dsc_rdv_actions *out)
{
    if (m->server != NULL)
        dsc_rdv_server_step(m->server, event, out);
    else
        dsc_rdv_client_step(m->client, event, out);
}

static void feed(driver *d, const machine *m, const dsc_rdv_event *event);

static void send_all(driver *d, const machine *m, const dsc_rdv_action *action)
{
    for (int32_t c = 0; c < DSC_RDV_CONNS_MAX; c++)
        if (d->conn[c] >= 0 && (action->to_strangers || dsc_rdv_server_joined(m->server, c)))
            /* A client that cannot take it shows up as closed when it is polled. */
            (void)send_packet(d->conn[c], action->bytes, action->count, d->file, action->with_file ? d->size + 1 : 0);
}

static void map_files(driver *d, const machine *m)
{
    const uint64_t epoch = m->server != NULL ? m->server->epoch : m->client->epoch;
    const dsc_status status = d->map(d->user, epoch, d->file, &d->map_error);
    const dsc_rdv_event event = { .kind = DSC_RDV_MAPPED,
                                  .now_ns = dsc_clock_ns(),
                                  .text = status == DSC_OK ? NULL : d->map_error.message };
    feed(d, m, &event);
}

static void try_connect(driver *d, const machine *m)
{
    struct sockaddr_un address;
    struct ucred cred;
    dsc_rdv_event event = { .kind = DSC_RDV_NO_CONNECT, .now_ns = dsc_clock_ns() };
    const socklen_t bytes = job_address(d->job, &address);
    d->conn[0] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (d->conn[0] >= 0 && connect(d->conn[0], (const struct sockaddr *)&address, bytes) == 0 &&
        peer_of(d->conn[0], &cred)) {
        if (cred.uid == geteuid()) {
            event.kind = DSC_RDV_OPENED;
            event.pid = cred.pid;
            fresh(event.random);
        } else {
            d->over = true;
            d->status = DSC_ERR_COMM;
            snprintf(d->text, sizeof d->text,
                     "the name of this job is held by process %d of user %u; choose another MASTER_PORT", (int)cred.pid,
                     (unsigned)cred.uid);
        }
    }
    if (event.kind == DSC_RDV_NO_CONNECT)
        close_fd(&d->conn[0]);
    feed(d, m, &event);
}

static void act(driver *d, const machine *m, const dsc_rdv_action *action)
{
    switch (action->kind) {
    case DSC_RDV_CONNECT: try_connect(d, m); break;
    case DSC_RDV_SEND:
        if (d->conn[action->conn] >= 0)
            (void)send_packet(d->conn[action->conn], action->bytes, action->count, &d->own_memory,
                              action->with_file ? 1 : 0);
        break;
    case DSC_RDV_SEND_ALL: send_all(d, m, action); break;
    case DSC_RDV_KEEP_FILE: keep_files(d, 1 + action->rank); break;
    case DSC_RDV_KEEP_FILES: keep_files(d, 0); break;
    case DSC_RDV_DROP: close_fd(&d->conn[action->conn]); break;
    case DSC_RDV_MAP: map_files(d, m); break;
    case DSC_RDV_WAITS:
        if (d->job->waits != NULL)
            d->job->waits(d->user, action->text);
        break;
    case DSC_RDV_DONE:
        d->over = true;
        d->status = DSC_OK;
        break;
    case DSC_RDV_FAIL:
        d->over = true;
        d->status = action->status;
        snprintf(d->text, sizeof d->text, "%s", action->text);
        break;
    }
}

static void feed(driver *d, const machine *m, const dsc_rdv_event *event)
{
    dsc_rdv_actions actions;
    machine_step(m, event, &actions);
    for (int32_t i = 0; i < actions.count; i++)
        act(d, m, &actions.item[i]);
}

/* ---- loops ------------------------------------------------------------------------------------------------------- */

static void read_conn(driver *d, const machine *m, int32_t conn)
{
    uint8_t bytes[DSC_RDV_MESSAGE_MAX];
    while (d->conn[conn] >= 0 && !d->over) {
        const int64_t count = receive_packet(d, d->conn[conn], bytes);
        if (count < 0)
            return;
        const dsc_rdv_event event = { .kind = count == 0 ? DSC_RDV_CLOSED : DSC_RDV_MESSAGE,
                                      .now_ns = dsc_clock_ns(),
                                      .conn = conn,
                                      .bytes = bytes,
                                      .count = count,
                                      .file_count = d->incoming_count };
        feed(d, m, &event);
        drop_incoming(d);
        if (count == 0)
            return;
    }
}

static void accept_all(driver *d, const machine *m)
{
    for (;;) {
        int fd = accept4(d->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0)
            return;
        struct ucred cred;
        int32_t conn = 0;
        while (conn < DSC_RDV_CONNS_MAX && d->conn[conn] >= 0)
            conn++;
        if (conn == DSC_RDV_CONNS_MAX || !peer_of(fd, &cred) || cred.uid != geteuid()) {
            close_fd(&fd);
            continue;
        }
        d->conn[conn] = fd;
        dsc_rdv_event event = { .kind = DSC_RDV_OPENED, .now_ns = dsc_clock_ns(), .conn = conn, .pid = cred.pid };
        fresh(event.random);
        feed(d, m, &event);
    }
}

static void poll_once(driver *d, const machine *m)
{
    struct pollfd fds[DSC_RDV_CONNS_MAX + 1];
    int32_t conn_of[DSC_RDV_CONNS_MAX + 1];
    nfds_t n = 0;
    for (int32_t c = 0; c < DSC_RDV_CONNS_MAX; c++)
        if (d->conn[c] >= 0) {
            conn_of[n] = c;
            fds[n++] = (struct pollfd){ .fd = d->conn[c], .events = POLLIN };
        }
    const nfds_t conn_count = n;
    if (d->listener >= 0)
        fds[n++] = (struct pollfd){ .fd = d->listener, .events = POLLIN };
    if (poll(fds, n, m->client != NULL && n == 0 ? 1 : TICK_MS) > 0) {
        for (nfds_t i = 0; i < conn_count && !d->over; i++)
            if (fds[i].revents != 0)
                read_conn(d, m, conn_of[i]);
        if (n > conn_count && fds[conn_count].revents != 0 && !d->over)
            accept_all(d, m);
    }
    const dsc_rdv_event tick = { .kind = DSC_RDV_TICK, .now_ns = dsc_clock_ns() };
    if (!d->over)
        feed(d, m, &tick);
    if (m->server != NULL && !dsc_rdv_server_listens(m->server))
        close_fd(&d->listener);
}

/* The name may still be held by an epoch of this job that is closing. */
static dsc_status listen_on(driver *d, int64_t until_ns, dsc_error *err)
{
    struct sockaddr_un address;
    const socklen_t bytes = job_address(d->job, &address);
    d->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (d->listener < 0)
        return DSC_FAIL(err, DSC_ERR_COMM, "rendezvous", "no socket: %s", strerror(errno));
    while (bind(d->listener, (const struct sockaddr *)&address, bytes) != 0) {
        if (errno != EADDRINUSE || dsc_clock_ns() > until_ns)
            return DSC_FAIL(err, DSC_ERR_COMM, "rendezvous",
                            "the name of this job is taken (%s): another rank 0 waits with the same DSC_JOB_TOKEN, "
                            "MASTER_ADDR and MASTER_PORT %d; choose another MASTER_PORT",
                            strerror(errno), d->job->port);
        dsc_clock_sleep_ns(10000000);
    }
    if (listen(d->listener, DSC_RDV_RANKS_MAX) != 0)
        return DSC_FAIL(err, DSC_ERR_COMM, "rendezvous", "cannot listen: %s", strerror(errno));
    return DSC_OK;
}

static dsc_status finish(driver *d, int *file, dsc_error *err)
{
    driver_release(d, d->status != DSC_OK);
    if (d->status == DSC_OK) {
        memcpy(file, d->file, sizeof(int) * (size_t)(d->size + 1));
        return DSC_OK;
    }
    if (d->map_error.status != DSC_OK) { /* ours is the cause; what came back is its echo */
        if (err != NULL)
            *err = d->map_error;
        return d->map_error.status;
    }
    return DSC_FAIL(err, d->status, "rendezvous", "%s", d->text);
}

dsc_status dsc_rdv_run(const dsc_rdv_job *job, int segment, int memory, dsc_rdv_map_fn map, void *user, int *file,
                       dsc_error *err)
{
    driver d;
    dsc_rdv_self self = job->self;
    const int64_t now_ns = dsc_clock_ns();
    driver_init(&d, job, segment, memory, map, user);
    job_key(job, "dsc rendezvous key 1", self.key);
    union { dsc_rdv_server server; dsc_rdv_client client; } state;
    machine m = { NULL, NULL };
    if (self.rank == 0) {
        const dsc_status status = listen_on(&d, now_ns + dsc_min_i64(self.timeout_ns, INT64_C(2000000000)), err);
        if (status != DSC_OK) {
            driver_release(&d, true);
            return status;
        }
        dsc_rdv_server_init(&state.server, &self, (uint64_t)dsc_clock_wall_ns(), now_ns);
        m.server = &state.server;
    } else {
        dsc_rdv_client_init(&state.client, &self, now_ns);
        m.client = &state.client;
    }
    while (!d.over)
        poll_once(&d, &m);
    return finish(&d, file, err);
}
