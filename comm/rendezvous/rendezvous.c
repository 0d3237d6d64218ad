/* rendezvous.c - the two state machines and the form of their messages. See rendezvous.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include "comm/rendezvous/rendezvous.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "comm/rendezvous/hmac.h"

/* ---- messages ---------------------------------------------------------------------------------------------------- */

/* Both ends are on one host, so structs travel as they are; no padding (asserted), every length checked. */
#define MAGIC UINT32_C(0x52435344) /* "DSCR" */
#define PROTOCOL 1u
enum { HELLO = 1, CHALLENGE, PROOF, WELCOME, READY, GO, REFUSE };

typedef struct head { uint32_t magic; uint16_t protocol, type; } head;
typedef struct hello {
    head head;
    int32_t rank, size, pid, reserved;
    int64_t agree[DSC_RDV_AGREE_MAX];
    char build[32];
    uint8_t nonce[DSC_RDV_NONCE];
} hello;
typedef struct challenge { head head; uint8_t nonce[DSC_RDV_NONCE]; uint8_t proof[32]; } challenge;
typedef struct proof { head head; uint8_t proof[32]; } proof;
typedef struct welcome { head head; uint64_t epoch; } welcome; /* GO as well */
typedef struct verdict { head head; int32_t status, reserved; char text[DSC_RDV_TEXT]; } verdict; /* READY and REFUSE */
_Static_assert(sizeof(head) == 8, "no padding");
_Static_assert(sizeof(hello) == 8 + 16 + 32 + 32 + 16, "no padding");
_Static_assert(sizeof(challenge) == 8 + 16 + 32 && sizeof(proof) == 8 + 32, "no padding");
_Static_assert(sizeof(welcome) == 16 && sizeof(verdict) == 16 + DSC_RDV_TEXT, "no padding");
_Static_assert(sizeof(verdict) <= DSC_RDV_MESSAGE_MAX, "fits");

static head head_of(uint16_t type) { return (head){ MAGIC, PROTOCOL, type }; }

/* Copies a message of exactly this type and size; false for anything else. */
static bool take(const dsc_rdv_event *event, uint16_t type, void *out, size_t bytes)
{
    if (event->count != (int64_t)bytes)
        return false;
    memcpy(out, event->bytes, bytes);
    const head want = head_of(type);
    return memcmp(out, &want, sizeof want) == 0;
}

/* `who` keeps one side's proof from being the other's. */
static void prove(const uint8_t key[32], const char *who, const void *hello_bytes, int32_t hello_count,
                  const uint8_t nonce[DSC_RDV_NONCE], uint8_t out[32])
{
    dsc_hmac hmac;
    dsc_hmac_init(&hmac, key, 32);
    dsc_hmac_update(&hmac, who, strlen(who));
    dsc_hmac_update(&hmac, hello_bytes, (size_t)hello_count);
    dsc_hmac_update(&hmac, nonce, DSC_RDV_NONCE);
    dsc_hmac_final(&hmac, out);
}
#define SERVER_PROVES "dsc rendezvous server"
#define CLIENT_PROVES "dsc rendezvous client"

/* ---- actions ----------------------------------------------------------------------------------------------------- */

static dsc_rdv_action *add(dsc_rdv_actions *out, dsc_rdv_action_kind kind, int32_t conn)
{
    DSC_ASSERT(out->count < DSC_RDV_ACTIONS_MAX);
    dsc_rdv_action *action = &out->item[out->count++];
    action->kind = kind;
    action->conn = conn;
    action->rank = -1;
    action->with_file = action->to_strangers = false;
    action->count = 0;
    action->status = DSC_OK;
    action->text[0] = 0;
    return action;
}

static dsc_rdv_action *add_send(dsc_rdv_actions *out, dsc_rdv_action_kind kind, int32_t conn, const void *bytes,
                                size_t count)
{
    DSC_ASSERT(count <= DSC_RDV_MESSAGE_MAX);
    dsc_rdv_action *action = add(out, kind, conn);
    memcpy(action->bytes, bytes, count);
    action->count = (int32_t)count;
    return action;
}

static dsc_rdv_action *add_verdict(dsc_rdv_actions *out, dsc_rdv_action_kind kind, int32_t conn, uint16_t type,
                                   dsc_status status, const char *text)
{
    verdict v = { .head = head_of(type), .status = (int32_t)status };
    snprintf(v.text, sizeof v.text, "%s", text);
    return add_send(out, kind, conn, &v, sizeof v);
}

static void add_fail(dsc_rdv_actions *out, dsc_status status, const char *text)
{
    dsc_rdv_action *action = add(out, DSC_RDV_FAIL, -1);
    action->status = status;
    snprintf(action->text, sizeof action->text, "%s", text);
}

static int64_t notice_ns(const dsc_rdv_self *self, int64_t now_ns)
{
    return now_ns + dsc_min_i64(DSC_RDV_NOTICE_NS, self->timeout_ns / 2);
}

/* A peer's status number, which may be anything. */
static dsc_status known_status(int32_t status)
{
    return status > DSC_OK && status <= DSC_ERR_INTERNAL ? (dsc_status)status : DSC_ERR_PEER;
}

/* ---- server ------------------------------------------------------------------------------------------------------ */

enum { SERVER_GATHERS, SERVER_CONFIRMS, SERVER_OVER };
enum { CONN_FREE, CONN_NEW, CONN_CHALLENGED, CONN_JOINED, CONN_READY };

void dsc_rdv_server_init(dsc_rdv_server *server, const dsc_rdv_self *self, uint64_t epoch, int64_t now_ns)
{
    DSC_ASSERT(self->rank == 0);
    DSC_ASSERT(self->size >= 2 && self->size <= DSC_RDV_RANKS_MAX);
    DSC_ASSERT(self->timeout_ns > 0);
    memset(server, 0, sizeof *server);
    server->self = *self;
    server->epoch = epoch;
    server->phase = SERVER_GATHERS;
    server->deadline_ns = now_ns + self->timeout_ns;
    server->notice_ns = notice_ns(self, now_ns);
    for (int32_t r = 0; r < DSC_RDV_RANKS_MAX; r++)
        server->conn_of[r] = -1;
}

bool dsc_rdv_server_listens(const dsc_rdv_server *server) { return server->phase == SERVER_GATHERS; }

bool dsc_rdv_server_joined(const dsc_rdv_server *server, int32_t conn)
{
    DSC_ASSERT(conn >= 0 && conn < DSC_RDV_CONNS_MAX);
    return server->conn[conn].state == CONN_JOINED || server->conn[conn].state == CONN_READY;
}

static void server_fail(dsc_rdv_server *server, dsc_rdv_actions *out, dsc_status status, const char *fmt, ...)
    DSC_PRINTF(4, 5);
static void server_fail(dsc_rdv_server *server, dsc_rdv_actions *out, dsc_status status, const char *fmt, ...)
{
    char text[DSC_RDV_TEXT];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    add_verdict(out, DSC_RDV_SEND_ALL, -1, REFUSE, status, text)->to_strangers = true; /* also who is about to join */
    add_fail(out, status, text);
    server->phase = SERVER_OVER;
}

static void server_drop(dsc_rdv_server *server, dsc_rdv_actions *out, int32_t conn, dsc_status status, const char *text)
{
    DSC_ASSERT(!dsc_rdv_server_joined(server, conn));
    if (text != NULL)
        add_verdict(out, DSC_RDV_SEND, conn, REFUSE, status, text);
    add(out, DSC_RDV_DROP, conn);
    server->conn[conn].state = CONN_FREE;
}

static void server_hello(dsc_rdv_server *server, int32_t index, const dsc_rdv_event *event, dsc_rdv_actions *out)
{
    dsc_rdv_conn *conn = &server->conn[index];
    hello h;
    if (!take(event, HELLO, &h, sizeof h)) {
        head first = { 0, 0, 0 };
        if (event->count >= (int64_t)sizeof first)
            memcpy(&first, event->bytes, sizeof first);
        server_drop(server, out, index, DSC_ERR_COMM,
                    first.magic == MAGIC && first.protocol != PROTOCOL
                        ? "rank 0 speaks another version of the rendezvous: all ranks must run the same build"
                        : NULL);
        return;
    }
    memcpy(conn->hello, &h, sizeof h);
    conn->hello_bytes = (int32_t)sizeof h;
    conn->rank = h.rank;
    if (conn->pid == 0) /* only a local socket says whose it is; for messages alone */
        conn->pid = h.pid;
    conn->state = CONN_CHALLENGED;
    challenge c = { .head = head_of(CHALLENGE) };
    memcpy(c.nonce, conn->nonce, sizeof c.nonce);
    prove(server->self.key, SERVER_PROVES, conn->hello, conn->hello_bytes, conn->nonce, c.proof);
    add_send(out, DSC_RDV_SEND, index, &c, sizeof c);
}

/* A rank that knows the key but does not fit ends the job's start for everybody, with both sides named. */
static bool server_refuses(dsc_rdv_server *server, dsc_rdv_actions *out, const dsc_rdv_conn *conn)
{
    const dsc_rdv_self *self = &server->self;
    hello h;
    memcpy(&h, conn->hello, sizeof h);
    char build[sizeof h.build + 1] = { 0 };
    memcpy(build, h.build, sizeof h.build);
    if (memcmp(h.build, self->build, sizeof h.build) != 0) {
        server_fail(server, out, DSC_ERR_COMM, "rank %d (pid %d) runs build \"%.32s\", rank 0 (pid %d) \"%.32s\"",
                    h.rank, conn->pid, build, self->pid, self->build);
        return true;
    }
    if (h.size != self->size) {
        server_fail(server, out, DSC_ERR_COMM, "rank %d (pid %d) was started for %d ranks, rank 0 (pid %d) for %d",
                    h.rank, conn->pid, h.size, self->pid, self->size);
        return true;
    }
    for (int i = 0; i < DSC_RDV_AGREE_MAX; i++)
        if (self->agree_name[i] != NULL && h.agree[i] != self->agree[i]) {
            server_fail(server, out, DSC_ERR_COMM, "%s: %lld on rank %d (pid %d), %lld on rank 0 (pid %d)",
                        self->agree_name[i], (long long)h.agree[i], h.rank, conn->pid, (long long)self->agree[i],
                        self->pid);
            return true;
        }
    if (h.rank < 0 || h.rank >= self->size) {
        server_fail(server, out, DSC_ERR_COMM, "pid %d says it is rank %d of %d", conn->pid, h.rank, self->size);
        return true;
    }
    int32_t holder_pid = h.rank == 0 ? self->pid : -1;
    if (server->conn_of[h.rank] >= 0)
        holder_pid = server->conn[server->conn_of[h.rank]].pid;
    if (holder_pid >= 0) {
        server_fail(server, out, DSC_ERR_COMM, "two processes say that they are rank %d: pid %d and pid %d", h.rank,
                    holder_pid, conn->pid);
        return true;
    }
    return false;
}

static void server_proof(dsc_rdv_server *server, int32_t index, const dsc_rdv_event *event, dsc_rdv_actions *out)
{
    dsc_rdv_conn *conn = &server->conn[index];
    proof p;
    uint8_t expected[32];
    prove(server->self.key, CLIENT_PROVES, conn->hello, conn->hello_bytes, conn->nonce, expected);
    if (!take(event, PROOF, &p, sizeof p) || event->file_count != 1 || !dsc_digest_equal(p.proof, expected)) {
        server->refused_count++;
        server_drop(server, out, index, DSC_ERR_COMM, "the job token of this rank is not that of rank 0");
        return;
    }
    if (server_refuses(server, out, conn))
        return;
    add(out, DSC_RDV_KEEP_FILE, index)->rank = conn->rank;
    conn->state = CONN_JOINED;
    server->conn_of[conn->rank] = index;
    if (++server->joined_count < server->self.size - 1)
        return;
    server->phase = SERVER_CONFIRMS;
    const welcome w = { head_of(WELCOME), server->epoch };
    add_send(out, DSC_RDV_SEND_ALL, -1, &w, sizeof w)->with_file = true;
    add(out, DSC_RDV_MAP, -1);
}

static void server_done_if_ready(dsc_rdv_server *server, dsc_rdv_actions *out)
{
    if (!server->self_ready || server->ready_count < server->self.size - 1)
        return;
    const welcome go = { head_of(GO), server->epoch };
    add_send(out, DSC_RDV_SEND_ALL, -1, &go, sizeof go);
    add(out, DSC_RDV_DONE, -1);
    server->phase = SERVER_OVER;
}

static void server_ready(dsc_rdv_server *server, int32_t index, const dsc_rdv_event *event, dsc_rdv_actions *out)
{
    dsc_rdv_conn *conn = &server->conn[index];
    verdict v;
    if (conn->state != CONN_JOINED || server->phase != SERVER_CONFIRMS || !take(event, READY, &v, sizeof v)) {
        server_fail(server, out, DSC_ERR_COMM, "rank %d (pid %d) sent a message out of turn", conn->rank, conn->pid);
        return;
    }
    v.text[sizeof v.text - 1] = 0;
    if (v.status != DSC_OK) {
        server_fail(server, out, DSC_ERR_PEER, "rank %d (pid %d) could not open: %.160s", conn->rank, conn->pid,
                    v.text);
        return;
    }
    conn->state = CONN_READY;
    server->ready_count++;
    server_done_if_ready(server, out);
}

static void server_closed(dsc_rdv_server *server, int32_t index, dsc_rdv_actions *out)
{
    const dsc_rdv_conn conn = server->conn[index];
    server->conn[index].state = CONN_FREE;
    add(out, DSC_RDV_DROP, index);
    if (conn.state == CONN_JOINED || conn.state == CONN_READY)
        server_fail(server, out, DSC_ERR_PEER, "rank %d (pid %d) went away while the ranks were meeting", conn.rank,
                    conn.pid);
}

enum { MISSING_BYTES = 128, MISSING_LISTED = 100 };

/* "1", "1, 2, 5" or "1, 2, 5 and 60 more": the ranks that have not come, or have not mapped the memory. */
static void list_missing(const dsc_rdv_server *server, char text[MISSING_BYTES])
{
    size_t used = 0;
    int32_t more = 0;
    text[0] = 0;
    for (int32_t r = 1; r < server->self.size; r++) {
        const int32_t conn = server->conn_of[r];
        if (conn >= 0 && (server->phase != SERVER_CONFIRMS || server->conn[conn].state != CONN_JOINED))
            continue;
        if (used >= MISSING_LISTED)
            more++;
        else
            used += (size_t)snprintf(text + used, MISSING_BYTES - used, "%s%d", used == 0 ? "" : ", ", r);
    }
    if (more > 0)
        snprintf(text + used, MISSING_BYTES - used, " and %d more", more);
}

static void server_missing(dsc_rdv_server *server, dsc_rdv_actions *out)
{
    char missing[MISSING_BYTES], strangers[80] = "";
    list_missing(server, missing);
    if (server->refused_count > 0)
        snprintf(strangers, sizeof strangers, "; %d connections had another job token", server->refused_count);
    server_fail(server, out, DSC_ERR_STUCK, "waited %.1f s for rank %s of %d to %s%s",
                (double)server->self.timeout_ns * 1e-9, missing, server->self.size,
                server->phase == SERVER_CONFIRMS ? "map its memory" : "come", strangers);
}

static void server_waits(dsc_rdv_server *server, dsc_rdv_actions *out)
{
    char missing[MISSING_BYTES];
    dsc_rdv_action *action = add(out, DSC_RDV_WAITS, -1);
    list_missing(server, missing);
    snprintf(action->text, sizeof action->text, "rank 0 waits for rank %s of %d to come", missing, server->self.size);
    server->notice_ns = INT64_MAX;
}

static void server_tick(dsc_rdv_server *server, int64_t now_ns, dsc_rdv_actions *out)
{
    if (now_ns >= server->deadline_ns) {
        server_missing(server, out);
        return;
    }
    if (server->phase == SERVER_GATHERS && now_ns >= server->notice_ns)
        server_waits(server, out);
    for (int32_t c = 0; c < DSC_RDV_CONNS_MAX && out->count < DSC_RDV_ACTIONS_MAX; c++) {
        const int32_t state = server->conn[c].state;
        if ((state == CONN_NEW || state == CONN_CHALLENGED) && now_ns - server->conn[c].since_ns >= DSC_RDV_STRANGER_NS)
            server_drop(server, out, c, DSC_OK, NULL);
    }
}

static void server_message(dsc_rdv_server *server, const dsc_rdv_event *event, dsc_rdv_actions *out)
{
    switch (server->conn[event->conn].state) {
    case CONN_NEW: server_hello(server, event->conn, event, out); break;
    case CONN_CHALLENGED: server_proof(server, event->conn, event, out); break;
    case CONN_JOINED: case CONN_READY: server_ready(server, event->conn, event, out); break;
    default: break; /* dropped before its last message was read */
    }
}

void dsc_rdv_server_step(dsc_rdv_server *server, const dsc_rdv_event *event, dsc_rdv_actions *out)
{
    out->count = 0;
    if (server->phase == SERVER_OVER)
        return;
    DSC_ASSERT(event->conn >= 0 && event->conn < DSC_RDV_CONNS_MAX);
    switch (event->kind) {
    case DSC_RDV_OPENED: {
        dsc_rdv_conn *conn = &server->conn[event->conn];
        DSC_ASSERT(conn->state == CONN_FREE);
        *conn = (dsc_rdv_conn){ .state = CONN_NEW, .rank = -1, .pid = event->pid, .since_ns = event->now_ns };
        memcpy(conn->nonce, event->random, sizeof conn->nonce);
        if (server->phase != SERVER_GATHERS)
            server_drop(server, out, event->conn, DSC_OK, NULL); /* came too late for this epoch */
        break;
    }
    case DSC_RDV_MESSAGE: server_message(server, event, out); break;
    case DSC_RDV_CLOSED: server_closed(server, event->conn, out); break;
    case DSC_RDV_TICK: server_tick(server, event->now_ns, out); break;
    case DSC_RDV_MAPPED:
        DSC_ASSERT(server->phase == SERVER_CONFIRMS);
        server->self_ready = event->text == NULL;
        if (event->text != NULL)
            server_fail(server, out, DSC_ERR_PEER, "rank 0 (pid %d) could not open: %.160s", server->self.pid,
                        event->text);
        else
            server_done_if_ready(server, out);
        break;
    case DSC_RDV_NO_CONNECT: break;
    }
}

/* ---- client ------------------------------------------------------------------------------------------------------ */

enum { CLIENT_CONNECTS, CLIENT_GREETED, CLIENT_PROVED, CLIENT_MAPS, CLIENT_READY, CLIENT_OVER };
#define RETRY_FIRST_NS INT64_C(1000000)
#define RETRY_MOST_NS INT64_C(50000000)
/* After the server's own deadline, which names the ranks that are missing. */
#define GRACE_NS INT64_C(3000000000)

void dsc_rdv_client_init(dsc_rdv_client *client, const dsc_rdv_self *self, int64_t now_ns)
{
    DSC_ASSERT(self->timeout_ns > 0);
    memset(client, 0, sizeof *client);
    client->self = *self;
    client->phase = CLIENT_CONNECTS;
    client->deadline_ns = now_ns + self->timeout_ns;
    client->notice_ns = notice_ns(self, now_ns);
    client->retry_ns = now_ns;
    client->retry_wait_ns = RETRY_FIRST_NS;
}

static void client_fail(dsc_rdv_client *client, dsc_rdv_actions *out, dsc_status status, const char *text)
{
    if (client->phase != CLIENT_CONNECTS)
        add(out, DSC_RDV_DROP, 0);
    add_fail(out, status, text);
    client->phase = CLIENT_OVER;
}

static void client_again(dsc_rdv_client *client, int64_t now_ns)
{
    client->phase = CLIENT_CONNECTS;
    client->retry_ns = now_ns + client->retry_wait_ns;
    client->retry_wait_ns = dsc_min_i64(client->retry_wait_ns * 2, RETRY_MOST_NS);
}

static void client_greet(dsc_rdv_client *client, const dsc_rdv_event *event, dsc_rdv_actions *out)
{
    const dsc_rdv_self *self = &client->self;
    hello h = { .head = head_of(HELLO), .rank = self->rank, .size = self->size, .pid = self->pid };
    memcpy(h.agree, self->agree, sizeof h.agree);
    memcpy(h.build, self->build, sizeof h.build);
    memcpy(h.nonce, event->random, sizeof h.nonce);
    memcpy(client->hello, &h, sizeof h);
    client->hello_bytes = (int32_t)sizeof h;
    client->phase = CLIENT_GREETED;
    add_send(out, DSC_RDV_SEND, 0, &h, sizeof h);
}

static void client_prove(dsc_rdv_client *client, const challenge *c, dsc_rdv_actions *out)
{
    uint8_t expected[32];
    prove(client->self.key, SERVER_PROVES, client->hello, client->hello_bytes, c->nonce, expected);
    if (!dsc_digest_equal(c->proof, expected)) {
        client_fail(client, out, DSC_ERR_COMM,
                    "the job token of rank 0 is not that of this rank: is another job using the same name?");
        return;
    }
    proof p = { .head = head_of(PROOF) };
    prove(client->self.key, CLIENT_PROVES, client->hello, client->hello_bytes, c->nonce, p.proof);
    client->phase = CLIENT_PROVED;
    add_send(out, DSC_RDV_SEND, 0, &p, sizeof p)->with_file = true;
}

static void client_message(dsc_rdv_client *client, const dsc_rdv_event *event, dsc_rdv_actions *out)
{
    verdict v;
    challenge c;
    welcome w;
    if (client->phase != CLIENT_CONNECTS && take(event, REFUSE, &v, sizeof v)) {
        v.text[sizeof v.text - 1] = 0;
        client_fail(client, out, known_status(v.status), v.text);
    } else if (client->phase == CLIENT_GREETED && take(event, CHALLENGE, &c, sizeof c)) {
        client_prove(client, &c, out);
    } else if (client->phase == CLIENT_PROVED && take(event, WELCOME, &w, sizeof w) &&
               event->file_count == client->self.size + 1) {
        client->epoch = w.epoch;
        client->phase = CLIENT_MAPS;
        add(out, DSC_RDV_KEEP_FILES, 0);
        add(out, DSC_RDV_MAP, 0);
    } else if (client->phase == CLIENT_READY && take(event, GO, &w, sizeof w) && w.epoch == client->epoch) {
        client->phase = CLIENT_OVER;
        add(out, DSC_RDV_DONE, 0);
    } else {
        client_fail(client, out, DSC_ERR_COMM, "rank 0 sent a message out of turn: do all ranks run the same build?");
    }
}

static void client_closed(dsc_rdv_client *client, int64_t now_ns, dsc_rdv_actions *out)
{
    if (client->phase == CLIENT_GREETED) {
        add(out, DSC_RDV_DROP, 0);
        client_again(client, now_ns); /* the last epoch's listener, on its way out */
    } else if (client->phase != CLIENT_CONNECTS) {
        client_fail(client, out, DSC_ERR_PEER, "rank 0 went away while the ranks were meeting");
    }
}

static void client_connects(dsc_rdv_client *client, int64_t now_ns, dsc_rdv_actions *out)
{
    if (now_ns >= client->notice_ns) {
        dsc_rdv_action *action = add(out, DSC_RDV_WAITS, -1);
        snprintf(action->text, sizeof action->text, "rank %d waits for rank 0 of %d to come", client->self.rank,
                 client->self.size);
        client->notice_ns = INT64_MAX;
    }
    if (now_ns >= client->retry_ns) {
        client->retry_ns = INT64_MAX; /* until the driver says how it went */
        add(out, DSC_RDV_CONNECT, 0);
    }
}

static void client_tick(dsc_rdv_client *client, int64_t now_ns, dsc_rdv_actions *out)
{
    char text[DSC_RDV_TEXT];
    if (client->phase == CLIENT_CONNECTS && now_ns >= client->deadline_ns) {
        snprintf(text, sizeof text,
                 "rank %d waited %.1f s for rank 0, which never opened; all ranks need the same DSC_JOB_TOKEN, "
                 "MASTER_ADDR and MASTER_PORT",
                 client->self.rank, (double)client->self.timeout_ns * 1e-9);
        client_fail(client, out, DSC_ERR_STUCK, text);
    } else if (now_ns >= client->deadline_ns + GRACE_NS) {
        snprintf(text, sizeof text, "rank %d waited %.1f s for rank 0, which does not answer", client->self.rank,
                 (double)(client->self.timeout_ns + GRACE_NS) * 1e-9);
        client_fail(client, out, DSC_ERR_STUCK, text);
    } else if (client->phase == CLIENT_CONNECTS) {
        client_connects(client, now_ns, out);
    }
}

static void client_mapped(dsc_rdv_client *client, const char *text, dsc_rdv_actions *out)
{
    DSC_ASSERT(client->phase == CLIENT_MAPS);
    add_verdict(out, DSC_RDV_SEND, 0, READY, text == NULL ? DSC_OK : DSC_ERR_PEER, text == NULL ? "" : text);
    client->phase = CLIENT_READY;
    if (text != NULL)
        client_fail(client, out, DSC_ERR_PEER, text);
}

void dsc_rdv_client_step(dsc_rdv_client *client, const dsc_rdv_event *event, dsc_rdv_actions *out)
{
    out->count = 0;
    if (client->phase == CLIENT_OVER)
        return;
    switch (event->kind) {
    case DSC_RDV_TICK: client_tick(client, event->now_ns, out); break;
    case DSC_RDV_OPENED:
        DSC_ASSERT(client->phase == CLIENT_CONNECTS);
        client_greet(client, event, out);
        break;
    case DSC_RDV_NO_CONNECT: client_again(client, event->now_ns); break;
    case DSC_RDV_MESSAGE: client_message(client, event, out); break;
    case DSC_RDV_CLOSED: client_closed(client, event->now_ns, out); break;
    case DSC_RDV_MAPPED: client_mapped(client, event->text, out); break;
    }
}
