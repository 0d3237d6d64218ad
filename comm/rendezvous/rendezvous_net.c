/* rendezvous_net.c - drives the machines of rendezvous.h over TCP; see rendezvous_net.h.
 *
 * A frame is a head (magic, bytes of the message, addresses that follow), the message, the addresses. A connection is a
 * stranger until the machine has checked its proof. A stranger gets a small fixed buffer for some seconds, and loses it
 * to the next connection when all buffers are in use.
 * SPDX-License-Identifier: Apache-2.0 */
#include "comm/rendezvous/rendezvous_net.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"

#define TICK_MS 10
#define ADDRESSES_MAX 8 /* addresses of one host name */
#define SEND_PATIENCE_NS INT64_C(2000000000)
#define FRAME_MAGIC UINT32_C(0x46435344) /* "DSCF" */

typedef struct frame_head { uint32_t magic; uint16_t bytes, addresses; } frame_head;
#define FRAME_MAX(addresses) \
    ((int64_t)sizeof(frame_head) + DSC_RDV_MESSAGE_MAX + (addresses) * (int64_t)sizeof(dsc_net_address))

/* Result of reading the next frame of a connection. */
typedef struct inbox {
    int64_t have;
    uint8_t bytes[FRAME_MAX(1)];
} inbox;

typedef struct driver {
    const dsc_rdv_net_job *job;
    int32_t size;
    dsc_net_address master[ADDRESSES_MAX];
    int32_t master_count, attempt;
    int gate;                    /* server only: where ranks knock; -1: closed */
    int listener;                /* this rank's, for its peers */
    int conn[DSC_RDV_CONNS_MAX]; /* client: conn[0] */
    bool connecting;             /* client */
    dsc_net_address own;
    dsc_net_address address[1 + DSC_RDV_RANKS_MAX]; /* [0] is not used: on one host it is the segment */
    dsc_net_address came[1 + DSC_RDV_RANKS_MAX];    /* addresses of the current frame */
    int32_t came_count;
    dsc_rdv_net_fn connect;
    void *user;
    dsc_rdv_server *server; /* one of the two */
    dsc_rdv_client *client;
    dsc_error own_error; /* status DSC_OK: `connect` did not fail */
    bool over;
    dsc_status status; /* when over */
    char text[DSC_RDV_TEXT];
    union {
        inbox each[DSC_RDV_CONNS_MAX]; /* server: one address at most */
        struct { int64_t have; uint8_t bytes[FRAME_MAX(1 + DSC_RDV_RANKS_MAX)]; } client;
    } in;
} driver;

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static void job_key(const dsc_rdv_net_job *job, const char *purpose, uint8_t out[32])
{
    dsc_sha256 sha;
    dsc_sha256_init(&sha);
    dsc_sha256_update(&sha, purpose, strlen(purpose) + 1);
    dsc_sha256_update(&sha, job->token, strlen(job->token) + 1);
    dsc_sha256_final(&sha, out);
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

static void feed(driver *d, const dsc_rdv_event *event);

/* ---- frames ------------------------------------------------------------------------------------------------------ */

/* False when the other end is gone, or takes nothing for too long. */
static bool send_frame(int fd, const void *bytes, int32_t count, const dsc_net_address *addresses,
                       int32_t address_count)
{
    uint8_t frame[FRAME_MAX(1 + DSC_RDV_RANKS_MAX)];
    const frame_head head = { FRAME_MAGIC, (uint16_t)count, (uint16_t)address_count };
    const size_t address_bytes = (size_t)address_count * sizeof *addresses;
    memcpy(frame, &head, sizeof head);
    memcpy(frame + sizeof head, bytes, (size_t)count);
    if (address_count > 0)
        memcpy(frame + sizeof head + count, addresses, address_bytes);
    const size_t total = sizeof head + (size_t)count + address_bytes;
    const int64_t until_ns = dsc_clock_ns() + SEND_PATIENCE_NS;
    for (size_t done = 0; done < total;) {
        const ssize_t n = send(fd, frame + done, total - done, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0)
            done += (size_t)n;
        else if ((errno != EAGAIN && errno != EINTR) || dsc_clock_ns() > until_ns)
            return false;
        else
            dsc_clock_sleep_ns(500000);
    }
    return true;
}

/* Reads what is there of one frame. 1: it is whole; 0: not yet; -1: closed, or no frame of ours. */
static int read_frame(int fd, uint8_t *bytes, int64_t *have, int32_t addresses_most)
{
    for (;;) {
        frame_head head = { FRAME_MAGIC, 0, 0 };
        int64_t want = (int64_t)sizeof head;
        if (*have >= want) {
            memcpy(&head, bytes, sizeof head);
            if (head.magic != FRAME_MAGIC || head.bytes > DSC_RDV_MESSAGE_MAX || head.addresses > addresses_most)
                return -1;
            want += head.bytes + (int64_t)head.addresses * (int64_t)sizeof(dsc_net_address);
            if (*have == want)
                return 1;
        }
        const ssize_t n = recv(fd, bytes + *have, (size_t)(want - *have), MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
            return -1;
        if (n < 0)
            return 0;
        *have += n;
    }
}

/* ---- actions ----------------------------------------------------------------------------------------------------- */

static void send_all(driver *d, const dsc_rdv_action *action)
{
    for (int32_t c = 0; c < DSC_RDV_CONNS_MAX; c++)
        if (d->conn[c] >= 0 && (action->to_strangers || dsc_rdv_server_joined(d->server, c)))
            /* A client that cannot take it shows up as closed when it is polled. */
            (void)send_frame(d->conn[c], action->bytes, action->count, d->address,
                             action->with_file ? d->size + 1 : 0);
}

/* Somebody who should be waiting for the end of the meeting hung up, or the server spoke before it. */
static bool is_lost(void *user)
{
    const driver *d = user;
    for (int32_t c = 0; c < DSC_RDV_CONNS_MAX; c++) {
        if (d->conn[c] < 0 || (d->server != NULL && !dsc_rdv_server_joined(d->server, c)))
            continue;
        struct pollfd fd = { .fd = d->conn[c], .events = d->server != NULL ? POLLRDHUP : POLLIN | POLLRDHUP };
        if (poll(&fd, 1, 0) > 0)
            return true;
    }
    return false;
}

static void read_conn(driver *d, int32_t conn);

static void connect_peers(driver *d)
{
    dsc_rdv_net_met met = { .epoch = d->server != NULL ? d->server->epoch : d->client->epoch,
                            .address = d->address + 1,
                            .listener = d->listener,
                            .lost = is_lost,
                            .lost_user = d };
    job_key(d->job, "dsc data key 1", met.key);
    const dsc_status status = d->connect(d->user, &met, &d->own_error);
    close_fd(&d->listener);
    /* Was it somebody else's failure that ended ours? Then his words are here, or come now. */
    for (int32_t c = 0; c < DSC_RDV_CONNS_MAX && status != DSC_OK && is_lost(d) && !d->over; c++)
        if (d->conn[c] >= 0)
            read_conn(d, c);
    if (d->over) {
        d->own_error = (dsc_error)DSC_ERROR_INIT;
        return;
    }
    const dsc_rdv_event event = { .kind = DSC_RDV_MAPPED,
                                  .now_ns = dsc_clock_ns(),
                                  .text = status == DSC_OK ? NULL : d->own_error.message };
    feed(d, &event);
}

static void fail_driver(driver *d, dsc_status status, const char *what, const dsc_net_address *at)
{
    char text[DSC_NET_TEXT];
    const int why = errno;
    d->over = true;
    d->status = status;
    snprintf(d->text, sizeof d->text, "%s %s: %s", what, dsc_net_text(at, text), strerror(why));
}

static void client_connected(driver *d)
{
    dsc_rdv_event event = { .kind = DSC_RDV_NO_CONNECT, .now_ns = dsc_clock_ns() };
    d->connecting = false;
    const int why = d->conn[0] >= 0 ? dsc_net_connected(d->conn[0]) : errno;
    if (why == 0 && dsc_net_local(d->conn[0], &d->own)) {
        /* Peers come to the interface by which this rank reached rank 0. */
        d->own.port = 0;
        close_fd(&d->listener);
        d->listener = dsc_net_listen(&d->own, &d->own);
        if (d->listener < 0) {
            fail_driver(d, DSC_ERR_COMM, "cannot listen on", &d->own);
            return;
        }
        event.kind = DSC_RDV_OPENED;
        dsc_net_tune(d->conn[0], true);
        d->in.client.have = 0;
        fresh(event.random);
    } else {
        close_fd(&d->conn[0]);
    }
    feed(d, &event);
}

static void client_connect(driver *d)
{
    const dsc_net_address *to = &d->master[d->attempt++ % d->master_count];
    d->conn[0] = dsc_net_connect(to);
    d->connecting = d->conn[0] >= 0;
    if (!d->connecting)
        client_connected(d);
}

static void keep_address(driver *d, int32_t rank)
{
    DSC_ASSERT(d->came_count == 1 && rank > 0 && rank < d->size);
    d->address[1 + rank] = d->came[0];
}

static void act(driver *d, const dsc_rdv_action *action)
{
    switch (action->kind) {
    case DSC_RDV_CONNECT: client_connect(d); break;
    case DSC_RDV_SEND:
        if (d->conn[action->conn] >= 0)
            (void)send_frame(d->conn[action->conn], action->bytes, action->count, &d->own, action->with_file ? 1 : 0);
        break;
    case DSC_RDV_SEND_ALL: send_all(d, action); break;
    case DSC_RDV_KEEP_FILE: keep_address(d, action->rank); break;
    case DSC_RDV_KEEP_FILES: memcpy(d->address, d->came, sizeof d->address[0] * (size_t)d->came_count); break;
    case DSC_RDV_DROP: close_fd(&d->conn[action->conn]); break;
    case DSC_RDV_MAP: connect_peers(d); break;
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

static void feed(driver *d, const dsc_rdv_event *event)
{
    dsc_rdv_actions actions;
    if (d->server != NULL)
        dsc_rdv_server_step(d->server, event, &actions);
    else
        dsc_rdv_client_step(d->client, event, &actions);
    for (int32_t i = 0; i < actions.count; i++)
        act(d, &actions.item[i]);
}

/* ---- loops ------------------------------------------------------------------------------------------------------- */

/* A received address is used to connect, never to listen; an invalid one fails there. */
static bool take_addresses(driver *d, const uint8_t *bytes, const frame_head *head)
{
    d->came_count = head->addresses;
    if (head->addresses > 0)
        memcpy(d->came, bytes + sizeof *head + head->bytes, (size_t)head->addresses * sizeof d->came[0]);
    for (int32_t i = d->server != NULL ? 0 : 1; i < d->came_count; i++) {
        if (d->came[i].family != 4 && d->came[i].family != 6)
            return false;
        d->came[i].scope = d->own.scope;
    }
    return true;
}

static void read_conn(driver *d, int32_t conn)
{
    const bool serves = d->server != NULL;
    uint8_t *bytes = serves ? d->in.each[conn].bytes : d->in.client.bytes;
    int64_t *have = serves ? &d->in.each[conn].have : &d->in.client.have;
    while (d->conn[conn] >= 0 && !d->over) {
        frame_head head = { 0, 0, 0 };
        int got = read_frame(d->conn[conn], bytes, have, serves ? 1 : 1 + d->size);
        if (got == 0)
            return;
        if (got > 0)
            memcpy(&head, bytes, sizeof head);
        if (got > 0 && !take_addresses(d, bytes, &head))
            got = -1;
        *have = 0;
        const dsc_rdv_event event = { .kind = got > 0 ? DSC_RDV_MESSAGE : DSC_RDV_CLOSED,
                                      .now_ns = dsc_clock_ns(),
                                      .conn = conn,
                                      .bytes = bytes + sizeof head,
                                      .count = head.bytes,
                                      .file_count = d->came_count };
        feed(d, &event);
        if (got < 0)
            return;
    }
}

/* A free slot, or that of the stranger who has been here longest. -1: all belong to ranks. */
static int32_t find_slot(driver *d)
{
    int32_t oldest = -1;
    for (int32_t c = 0; c < DSC_RDV_CONNS_MAX; c++) {
        if (d->conn[c] < 0)
            return c;
        if (!dsc_rdv_server_joined(d->server, c) &&
            (oldest < 0 || d->server->conn[c].since_ns < d->server->conn[oldest].since_ns))
            oldest = c;
    }
    if (oldest >= 0) {
        const dsc_rdv_event event = { .kind = DSC_RDV_CLOSED, .now_ns = dsc_clock_ns(), .conn = oldest };
        feed(d, &event);
    }
    return oldest;
}

/* A few at a time: who was let in before them can answer before strangers have taken all slots. */
static void accept_some(driver *d)
{
    for (int32_t i = 0; i < DSC_RDV_CONNS_MAX / 16 && !d->over && dsc_rdv_server_listens(d->server); i++) {
        const int fd = accept4(d->gate, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0)
            return;
        const int32_t conn = find_slot(d);
        if (conn < 0 || d->conn[conn] >= 0) {
            close(fd);
            continue;
        }
        dsc_net_tune(fd, true);
        d->conn[conn] = fd;
        d->in.each[conn].have = 0;
        dsc_rdv_event event = { .kind = DSC_RDV_OPENED, .now_ns = dsc_clock_ns(), .conn = conn };
        fresh(event.random);
        feed(d, &event);
        if (d->conn[conn] >= 0)
            read_conn(d, conn);
    }
}

static void poll_once(driver *d)
{
    struct pollfd fds[DSC_RDV_CONNS_MAX + 1];
    int32_t conn_of[DSC_RDV_CONNS_MAX + 1];
    nfds_t n = 0;
    for (int32_t c = 0; c < DSC_RDV_CONNS_MAX; c++)
        if (d->conn[c] >= 0) {
            conn_of[n] = c;
            fds[n++] = (struct pollfd){ .fd = d->conn[c], .events = d->connecting ? POLLOUT : POLLIN };
        }
    const nfds_t conn_count = n;
    if (d->gate >= 0)
        fds[n++] = (struct pollfd){ .fd = d->gate, .events = POLLIN };
    if (poll(fds, n, n == 0 ? 1 : TICK_MS) > 0) {
        for (nfds_t i = 0; i < conn_count && !d->over; i++) {
            if (fds[i].revents == 0 || d->conn[conn_of[i]] != fds[i].fd)
                continue;
            if (d->connecting)
                client_connected(d);
            else
                read_conn(d, conn_of[i]);
        }
        if (n > conn_count && fds[conn_count].revents != 0 && !d->over)
            accept_some(d);
    }
    const dsc_rdv_event tick = { .kind = DSC_RDV_TICK, .now_ns = dsc_clock_ns() };
    if (!d->over)
        feed(d, &tick);
    if (d->server != NULL && !dsc_rdv_server_listens(d->server))
        close_fd(&d->gate);
}

/* Rank 0: the gate at MASTER_ADDR and MASTER_PORT, and on the same interface the listener for its peers. An epoch of
 * this job that is closing may still hold the port. */
static dsc_status listen_beside(driver *d, dsc_error *err)
{
    char text[DSC_NET_TEXT];
    d->own.port = 0;
    d->listener = dsc_net_listen(&d->own, &d->own);
    d->address[1] = d->own;
    if (d->listener >= 0)
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_COMM, "rendezvous", "cannot listen on %s: %s", dsc_net_text(&d->own, text),
                    strerror(errno));
}

static dsc_status take_gate(driver *d, dsc_error *err)
{
    d->gate = fcntl(*d->job->gate, F_DUPFD_CLOEXEC, 0);
    if (d->gate < 0 || !dsc_net_local(d->gate, &d->own))
        return DSC_FAIL(err, DSC_ERR_COMM, "rendezvous", "invalid listener for the rendezvous: %s", strerror(errno));
    return listen_beside(d, err);
}

static dsc_status open_gate(driver *d, int64_t until_ns, dsc_error *err)
{
    char text[DSC_NET_TEXT];
    if (d->job->gate != NULL)
        return take_gate(d, err);
    for (;;) {
        bool taken = false;
        for (int32_t i = 0; i < d->master_count; i++) {
            d->gate = dsc_net_listen(&d->master[i], &d->own);
            if (d->gate >= 0)
                return listen_beside(d, err);
            taken = taken || errno == EADDRINUSE;
            if (errno == EACCES)
                return DSC_FAIL(err, DSC_ERR_INPUT, "MASTER_PORT", "%d: %s; choose one above 1023", d->job->port,
                                strerror(errno));
        }
        if (!taken)
            return DSC_FAIL(err, DSC_ERR_INPUT, "MASTER_ADDR",
                            "\"%.200s\" (%s) is not an address of this host, on which rank 0 runs: %s", d->job->host,
                            dsc_net_text(&d->master[0], text), strerror(errno));
        if (dsc_clock_ns() > until_ns)
            return DSC_FAIL(err, DSC_ERR_COMM, "MASTER_PORT", "%s is taken by another program; choose another port",
                            dsc_net_text(&d->master[0], text));
        dsc_clock_sleep_ns(10000000);
    }
}

static void driver_init(driver *d, const dsc_rdv_net_job *job, dsc_rdv_net_fn connect, void *user)
{
    memset(d, 0, sizeof *d);
    d->job = job;
    d->size = job->self.size;
    d->gate = d->listener = -1;
    d->connect = connect;
    d->user = user;
    d->own_error.rank = -1;
    for (int i = 0; i < DSC_RDV_CONNS_MAX; i++)
        d->conn[i] = -1;
}

static dsc_status finish(driver *d, dsc_error *err)
{
    close_fd(&d->gate);
    close_fd(&d->listener);
    for (int i = 0; i < DSC_RDV_CONNS_MAX; i++)
        close_fd(&d->conn[i]);
    if (d->status == DSC_OK)
        return DSC_OK;
    if (d->own_error.status != DSC_OK) { /* ours is the cause; what came back is its echo */
        if (err != NULL)
            *err = d->own_error;
        return d->own_error.status;
    }
    return DSC_FAIL(err, d->status, "rendezvous", "%s", d->text);
}

dsc_status dsc_rdv_net_run(const dsc_rdv_net_job *job, dsc_rdv_net_fn connect, void *user, dsc_error *err)
{
    driver d;
    dsc_rdv_self self = job->self;
    const int64_t now_ns = dsc_clock_ns();
    DSC_ASSERT(job->token[0] != 0);
    driver_init(&d, job, connect, user);
    job_key(job, "dsc network rendezvous key 1", self.key);
    DSC_TRY(dsc_net_resolve(job->host, job->port, d.master, ADDRESSES_MAX, &d.master_count, err));
    union { dsc_rdv_server server; dsc_rdv_client client; } state;
    if (self.rank == 0) {
        d.status = open_gate(&d, now_ns + dsc_min_i64(self.timeout_ns, INT64_C(2000000000)), err);
        if (d.status != DSC_OK) {
            close_fd(&d.gate);
            return d.status;
        }
        dsc_rdv_server_init(&state.server, &self, (uint64_t)dsc_clock_wall_ns(), now_ns);
        d.server = &state.server;
    } else {
        dsc_rdv_client_init(&state.client, &self, now_ns);
        d.client = &state.client;
    }
    while (!d.over)
        poll_once(&d);
    return finish(&d, err);
}
