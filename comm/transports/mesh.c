/* mesh.c - see mesh.h. SPDX-License-Identifier: Apache-2.0 */
#include "comm/transports/mesh.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/rendezvous/hmac.h"

#define MAGIC UINT32_C(0x4d435344) /* "DSCM" */
#define VERSION 1u
#define NONCE 16
#define STRANGERS 64 /* slots for those who have not proved themselves */
#define STRANGER_NS INT64_C(5000000000)
#define RETRY_NS INT64_C(20000000)
#define TICK_MS 10

/* Hosts of one job have one byte order: their builds are compared at the rendezvous. */
typedef struct greeting {
    uint32_t magic;
    uint16_t version, connection;
    int32_t from, to;
    uint64_t epoch;
    dsc_mesh_peer who;
    uint8_t nonce[NONCE];
    uint8_t reserved[4];
} greeting;
typedef struct answer {
    dsc_mesh_peer who;
    uint8_t nonce[NONCE];
    uint8_t reserved[4];
    uint8_t proof[32];
} answer;
_Static_assert(sizeof(greeting) == 24 + 68 + NONCE + 4 && sizeof(answer) == 68 + NONCE + 4 + 32, "no padding");

typedef enum step {
    FREE,
    CONNECTS,        /* the socket is on its way */
    WAITS_ANSWER,    /* connector: greeted */
    WAITS_WELCOME,   /* connector: proved */
    WAITS_GREETING,  /* acceptor */
    WAITS_PROOF,     /* acceptor: answered */
} step;

/* One connection that is not proved yet. */
typedef struct entry {
    step step;
    int fd;
    int32_t peer, connection; /* known to a connector; an acceptor learns them from the greeting */
    int64_t since_ns;   /* a connector that is FREE connects again from here on */
    greeting hello;
    answer reply;
    int32_t have;
    uint8_t in[sizeof(answer)];
} entry;
_Static_assert(sizeof(greeting) <= sizeof(answer), "the buffer takes either");

typedef struct mesh {
    const dsc_mesh_spec *spec;
    int *fd;
    dsc_mesh_peer *peer;
    dsc_mesh_peer self;
    int32_t out_count, entry_count, missing;
    entry *entry; /* [out_count] connectors, then strangers */
    struct pollfd *poll;
    int32_t *entry_of;
} mesh;

static void prove(const mesh *m, const char *who, const entry *e, uint8_t out[32])
{
    dsc_hmac hmac;
    dsc_hmac_init(&hmac, m->spec->key, sizeof m->spec->key);
    dsc_hmac_update(&hmac, who, strlen(who) + 1);
    dsc_hmac_update(&hmac, &e->hello, sizeof e->hello);
    dsc_hmac_update(&hmac, &e->reply, offsetof(answer, proof));
    dsc_hmac_final(&hmac, out);
}
#define ACCEPTOR "dsc data acceptor"
#define CONNECTOR "dsc data connector"
static const uint8_t WELCOME[1] = { 'W' };

static bool out_of_files(int why) { return why == EMFILE || why == ENFILE; }

static dsc_status too_many_files(const mesh *m, dsc_error *err)
{
    return DSC_FAIL(err, DSC_ERR_COMM, "comm",
                    "%d ranks need %d connections each, and the system allows no more open "
                    "files; raise ulimit -n",
                    m->spec->size, (m->spec->size - 1) * m->spec->connection_count);
}

static bool fresh(uint8_t nonce[NONCE]) { return getrandom(nonce, NONCE, 0) == NONCE; }

static void drop(entry *e, int64_t again_ns)
{
    if (e->fd >= 0)
        close(e->fd);
    e->fd = -1;
    e->step = FREE;
    e->since_ns = again_ns;
}

/* A new socket's queue takes these few bytes at once, or something is wrong with it. */
static bool send_all(entry *e, const void *bytes, size_t count)
{
    return send(e->fd, bytes, count, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)count;
}

/* 1: `want` bytes are there; 0: not yet; -1: closed. */
static int receive(entry *e, size_t want)
{
    while ((size_t)e->have < want) {
        const ssize_t n = recv(e->fd, e->in + e->have, want - (size_t)e->have, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
            return -1;
        if (n < 0)
            return 0;
        e->have += (int32_t)n;
    }
    e->have = 0;
    return 1;
}

/* The connection is proved: it is the connection. */
static void keep(mesh *m, entry *e, const dsc_mesh_peer *who)
{
    int *fd = &m->fd[e->connection * m->spec->size + e->peer];
    DSC_ASSERT(*fd < 0);
    dsc_net_tune(e->fd, e->connection == 0);
    *fd = e->fd;
    m->peer[e->peer] = *who;
    m->peer[e->peer].host[sizeof who->host - 1] = 0;
    dsc_text_printable(m->peer[e->peer].host);
    m->missing--;
    e->fd = -1;
    e->step = FREE;
    e->since_ns = INT64_MAX;
}

/* ---- this end connects ------------------------------------------------------------------------------------------- */

static dsc_status begin(mesh *m, entry *e, int64_t now_ns, dsc_error *err)
{
    e->fd = dsc_net_connect(&m->spec->address[e->peer]);
    e->have = 0;
    if (e->fd >= 0)
        e->step = CONNECTS;
    else if (out_of_files(errno))
        return too_many_files(m, err);
    else
        drop(e, now_ns + RETRY_NS);
    return DSC_OK;
}

static void greet(mesh *m, entry *e, int64_t now_ns)
{
    memset(&e->hello, 0, sizeof e->hello);
    e->hello = (greeting){ .magic = MAGIC,
                            .version = VERSION,
                            .connection = (uint16_t)e->connection,
                            .from = m->spec->rank,
                            .to = e->peer,
                            .epoch = m->spec->epoch,
                            .who = m->self };
    if (dsc_net_connected(e->fd) == 0 && fresh(e->hello.nonce) && send_all(e, &e->hello, sizeof e->hello))
        e->step = WAITS_ANSWER;
    else
        drop(e, now_ns + RETRY_NS);
}

static dsc_status check_answer(mesh *m, entry *e, int64_t now_ns, dsc_error *err)
{
    uint8_t proof[32];
    const int received = receive(e, sizeof e->reply);
    if (received < 0)
        drop(e, now_ns + RETRY_NS);
    if (received <= 0)
        return DSC_OK;
    memcpy(&e->reply, e->in, sizeof e->reply);
    prove(m, ACCEPTOR, e, proof);
    if (!dsc_digest_equal(proof, e->reply.proof)) {
        char text[DSC_NET_TEXT];
        return DSC_FAIL(err, DSC_ERR_COMM, "comm", "at %s, where rank %d should be, answers somebody without the job's "
                        "token", dsc_net_text(&m->spec->address[e->peer], text), e->peer);
    }
    prove(m, CONNECTOR, e, proof);
    if (send_all(e, proof, sizeof proof))
        e->step = WAITS_WELCOME;
    else
        drop(e, now_ns + RETRY_NS);
    return DSC_OK;
}

/* The other end may have given the fd to somebody else before the proof came. */
static void check_welcome(mesh *m, entry *e, int64_t now_ns)
{
    const int received = receive(e, sizeof WELCOME);
    if (received > 0 && e->in[0] == WELCOME[0])
        keep(m, e, &e->reply.who);
    else if (received != 0)
        drop(e, now_ns + RETRY_NS);
}

/* ---- this end accepts -------------------------------------------------------------------------------------------- */

/* A free fd, or that of the stranger who has been here longest. */
static entry *find_slot(mesh *m)
{
    entry *oldest = NULL;
    for (int32_t i = m->out_count; i < m->entry_count; i++) {
        entry *e = &m->entry[i];
        if (e->step == FREE)
            return e;
        if (oldest == NULL || e->since_ns < oldest->since_ns)
            oldest = e;
    }
    drop(oldest, 0);
    return oldest;
}

static bool is_expected(const mesh *m, const greeting *hello)
{
    const dsc_mesh_spec *s = m->spec;
    return hello->magic == MAGIC && hello->version == VERSION && hello->epoch == s->epoch && hello->to == s->rank &&
           hello->from > s->rank && hello->from < s->size && hello->connection < s->connection_count &&
           m->fd[hello->connection * s->size + hello->from] < 0;
}

static void check_greeting(mesh *m, entry *e)
{
    const int received = receive(e, sizeof e->hello);
    if (received == 0)
        return;
    memcpy(&e->hello, e->in, sizeof e->hello);
    memset(&e->reply, 0, sizeof e->reply);
    e->reply.who = m->self;
    if (received < 0 || !is_expected(m, &e->hello) || !fresh(e->reply.nonce)) {
        drop(e, 0);
        return;
    }
    e->peer = e->hello.from;
    e->connection = e->hello.connection;
    prove(m, ACCEPTOR, e, e->reply.proof);
    if (send_all(e, &e->reply, sizeof e->reply))
        e->step = WAITS_PROOF;
    else
        drop(e, 0);
}

static void check_proof(mesh *m, entry *e)
{
    uint8_t proof[32];
    const int received = receive(e, sizeof proof);
    if (received == 0)
        return;
    prove(m, CONNECTOR, e, proof);
    /* The fd may have been taken since the greeting, by the same peer who had to connect again. */
    if (received > 0 && dsc_digest_equal(proof, e->in) && is_expected(m, &e->hello) &&
        send_all(e, WELCOME, sizeof WELCOME))
        keep(m, e, &e->hello.who);
    else
        drop(e, 0);
}

/* As many as there are slots for, so that those who belong here get their turn in between. */
static dsc_status accept_some(mesh *m, int64_t now_ns, dsc_error *err)
{
    for (int i = 0; i < STRANGERS; i++) {
        const int fd = accept4(m->spec->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0)
            return out_of_files(errno) ? too_many_files(m, err) : DSC_OK;
        entry *e = find_slot(m);
        e->fd = fd;
        e->have = 0;
        e->step = WAITS_GREETING;
        e->since_ns = now_ns;
        check_greeting(m, e);
    }
    return DSC_OK;
}

/* ---- the loop ---------------------------------------------------------------------------------------------------- */

static dsc_status advance(mesh *m, entry *e, int64_t now_ns, dsc_error *err)
{
    switch (e->step) {
    case CONNECTS: greet(m, e, now_ns); break;
    case WAITS_ANSWER: return check_answer(m, e, now_ns, err);
    case WAITS_WELCOME: check_welcome(m, e, now_ns); break;
    case WAITS_GREETING: check_greeting(m, e); break;
    case WAITS_PROOF: check_proof(m, e); break;
    case FREE: break;
    }
    return DSC_OK;
}

static dsc_status turn(mesh *m, dsc_error *err)
{
    int32_t n = 0;
    int64_t now_ns = dsc_clock_ns();
    for (int32_t i = 0; i < m->entry_count; i++) {
        entry *e = &m->entry[i];
        if (i < m->out_count && e->step == FREE && e->since_ns <= now_ns)
            DSC_TRY(begin(m, e, now_ns, err));
        if (i >= m->out_count && e->step != FREE && now_ns - e->since_ns > STRANGER_NS)
            drop(e, 0);
        if (e->step == FREE)
            continue;
        m->entry_of[n] = i;
        m->poll[n++] = (struct pollfd){ .fd = e->fd, .events = e->step == CONNECTS ? POLLOUT : POLLIN };
    }
    m->poll[n] = (struct pollfd){ .fd = m->spec->listener, .events = POLLIN };
    if (poll(m->poll, (nfds_t)n + 1, TICK_MS) <= 0)
        return DSC_OK;
    now_ns = dsc_clock_ns();
    for (int32_t i = 0; i < n; i++)
        if (m->poll[i].revents != 0)
            DSC_TRY(advance(m, &m->entry[m->entry_of[i]], now_ns, err));
    return m->poll[n].revents != 0 ? accept_some(m, now_ns, err) : DSC_OK;
}

static dsc_status came_too_late(const mesh *m, dsc_error *err)
{
    char missing[200] = "";
    size_t used = 0;
    const dsc_mesh_spec *s = m->spec;
    for (int32_t r = 0; r < s->size && used < sizeof missing - 1; r++) {
        bool all = true;
        for (int32_t connection = 0; connection < s->connection_count && r != s->rank; connection++)
            all = all && m->fd[connection * s->size + r] >= 0;
        if (!all)
            used += (size_t)snprintf(missing + used, sizeof missing - used, "%s%d", used == 0 ? "" : ", ", r);
    }
    return DSC_FAIL(err, DSC_ERR_STUCK, "comm", "rank %d waited %.0f s for a connection with rank %s of %d; does a "
                    "firewall between the hosts allow them to connect to each other?", s->rank,
                    (double)s->timeout_ns * 1e-9, missing, s->size);
}

static dsc_status run(mesh *m, dsc_error *err)
{
    const int64_t deadline_ns = dsc_clock_ns() + m->spec->timeout_ns;
    while (m->missing > 0) {
        DSC_TRY(turn(m, err));
        if (m->missing > 0 && m->spec->lost(m->spec->lost_user))
            return DSC_FAIL(err, DSC_ERR_PEER, "comm", "a rank went away while the ranks were connecting");
        if (m->missing > 0 && dsc_clock_ns() > deadline_ns)
            return came_too_late(m, err);
    }
    return DSC_OK;
}

static dsc_status mesh_alloc(mesh *m, dsc_error *err)
{
    const dsc_mesh_spec *s = m->spec;
    m->out_count = s->rank * s->connection_count;
    m->entry_count = m->out_count + STRANGERS;
    m->missing = (s->size - 1) * s->connection_count;
    DSC_TRY(dsc_alloc_zeroed(s->alloc, DSC_TAG_CONTROL, m->entry_count, sizeof *m->entry, &m->entry, err));
    for (int32_t i = 0; i < m->entry_count; i++) {
        m->entry[i].fd = -1;
        m->entry[i].peer = i < m->out_count ? i / s->connection_count : -1;
        m->entry[i].connection = i < m->out_count ? i % s->connection_count : -1;
    }
    DSC_TRY(dsc_alloc_zeroed(s->alloc, DSC_TAG_CONTROL, m->entry_count + 1, sizeof *m->poll, &m->poll, err));
    return dsc_alloc_zeroed(s->alloc, DSC_TAG_CONTROL, m->entry_count, sizeof *m->entry_of, &m->entry_of, err);
}

dsc_status dsc_mesh_open(const dsc_mesh_spec *spec, int *fd, dsc_mesh_peer *peer, dsc_error *err)
{
    mesh m = { .spec = spec, .fd = fd, .peer = peer, .self = { .pid = (int32_t)getpid() } };
    DSC_ASSERT(spec->connection_count >= 1 && spec->connection_count <= DSC_MESH_CONNECTIONS_MAX);
    if (gethostname(m.self.host, sizeof m.self.host - 1) != 0)
        snprintf(m.self.host, sizeof m.self.host, "?");
    for (int32_t i = 0; i < spec->connection_count * spec->size; i++)
        fd[i] = -1;
    dsc_status status = mesh_alloc(&m, err);
    if (status == DSC_OK)
        status = run(&m, err);
    for (int32_t i = 0; i < m.entry_count && m.entry != NULL; i++)
        if (m.entry[i].fd >= 0)
            close(m.entry[i].fd);
    for (int32_t i = 0; i < spec->connection_count * spec->size && status != DSC_OK; i++) {
        if (fd[i] >= 0)
            close(fd[i]);
        fd[i] = -1;
    }
    dsc_alloc_free(spec->alloc, m.entry_of);
    dsc_alloc_free(spec->alloc, m.poll);
    dsc_alloc_free(spec->alloc, m.entry);
    return status;
}
