/* test_rendezvous.c - the two machines in a simulated network that delays, loses, repeats, reorders and kills; then the
 * real sockets: wrong tokens, two ranks of one number, different sizes, missing ranks.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/rendezvous/hmac.h"
#include "comm/rendezvous/rendezvous.h"
#include "tests/support/sanitizer.h"

#define MS INT64_C(1000000)
#define TIMEOUT_NS (1000 * MS)

/* ---- HMAC -------------------------------------------------------------------------------------------------------- */

static void check_hmac(const void *key, size_t key_bytes, const char *data, const char *expected)
{
    dsc_hmac hmac;
    uint8_t digest[32];
    char hex[65];
    dsc_hmac_init(&hmac, key, key_bytes);
    dsc_hmac_update(&hmac, data, strlen(data));
    dsc_hmac_final(&hmac, digest);
    dsc_hex(hex, digest, 32);
    assert_string_equal(hex, expected);
}

/* RFC 4231, cases 1, 2 and 6. */
static void test_hmac(void **state)
{
    uint8_t key[131];
    memset(key, 0x0b, 20);
    check_hmac(key, 20, "Hi There", "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    check_hmac("Jefe", 4, "what do ya want for nothing?",
               "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    memset(key, 0xaa, sizeof key);
    check_hmac(key, sizeof key, "Test Using Larger Than Block-Size Key - Hash Key First",
               "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

/* ---- the simulator ----------------------------------------------------------------------------------------------- */

typedef struct faults {
    int lose, repeat, reorder, cut, crash; /* percent per packet, per packet, per packet, per packet, per run */
    int delay_ms;
    bool wrong_token, wrong_size, twin;    /* of rank 1 */
} faults;

#define RANKS_MOST 6
#define PACKETS_MOST 4096

typedef struct packet {
    int64_t at_ns;
    int32_t client; /* which client's connection */
    int32_t life;   /* number of that connection: packets of an old one are dropped */
    bool to_server, closed;
    int32_t count, file_count;
    uint8_t bytes[DSC_RDV_MESSAGE_MAX];
} packet;

typedef struct sim_client {
    dsc_rdv_client machine;
    bool alive, over;
    dsc_status status;
    int32_t conn, life;   /* conn -1: not connected */
    int32_t files;        /* kept */
    int64_t last_ns[2];   /* delivery time of the last packet in each direction: order is kept */
    char text[DSC_RDV_TEXT];
} sim_client;

typedef struct sim {
    uint64_t random;
    int64_t now_ns;
    faults faults;
    int32_t size;
    dsc_rdv_server server;
    bool server_over;
    dsc_status server_status;
    char server_text[DSC_RDV_TEXT];
    int32_t kept;             /* files the server has, bit per rank */
    int32_t conn_client[DSC_RDV_CONNS_MAX]; /* -1: free */
    sim_client client[RANKS_MOST];
    packet *packet;
    int32_t packet_count;
    int64_t crash_at_ns;
    int32_t crash_client;
} sim;

static uint32_t draw(sim *s, uint32_t below)
{
    s->random += 0x9e3779b97f4a7c15u;
    uint64_t x = s->random;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((x ^ x >> 31) >> 16) % below;
}

static bool chance(sim *s, int percent) { return (int)draw(s, 100) < percent; }

static void enqueue(sim *s, const packet *p)
{
    if (s->packet_count == PACKETS_MOST)
        fail_msg("the simulated network is full: somebody talks without end");
    s->packet[s->packet_count++] = *p;
}

static void cut(sim *s, int32_t client, bool tell_client, bool tell_server)
{
    sim_client *c = &s->client[client];
    if (c->conn < 0)
        return;
    packet p = { .at_ns = s->now_ns, .client = client, .life = c->life, .closed = true };
    if (tell_client)
        enqueue(s, &p);
    p.to_server = true;
    if (tell_server)
        enqueue(s, &p);
}

static void hang_up(sim *s, int32_t client)
{
    sim_client *c = &s->client[client];
    const packet p = { .at_ns = c->last_ns[0] > s->now_ns ? c->last_ns[0] : s->now_ns,
                       .client = client,
                       .life = c->life,
                       .closed = true };
    enqueue(s, &p);
}

static void transmit(sim *s, int32_t client, bool to_server, const uint8_t *bytes, int32_t count, int32_t file_count)
{
    sim_client *c = &s->client[client];
    packet p = { .client = client, .life = c->life, .to_server = to_server, .count = count, .file_count = file_count };
    memcpy(p.bytes, bytes, (size_t)count);
    int64_t at = s->now_ns + draw(s, (uint32_t)s->faults.delay_ms + 1) * MS;
    if (!chance(s, s->faults.reorder)) /* a socket keeps the order */
        at = at > c->last_ns[to_server] ? at : c->last_ns[to_server];
    c->last_ns[to_server] = at;
    p.at_ns = at;
    if (!chance(s, s->faults.lose))
        enqueue(s, &p);
    if (chance(s, s->faults.repeat))
        enqueue(s, &p);
    if (chance(s, s->faults.cut))
        cut(s, client, true, true);
}

static void server_event(sim *s, dsc_rdv_event *event);
static void client_event(sim *s, int32_t client, dsc_rdv_event *event);

static void fill_random(sim *s, uint8_t out[DSC_RDV_NONCE])
{
    for (int i = 0; i < DSC_RDV_NONCE; i++)
        out[i] = (uint8_t)draw(s, 256);
}

static void server_event(sim *s, dsc_rdv_event *event)
{
    dsc_rdv_actions out;
    event->now_ns = s->now_ns;
    dsc_rdv_server_step(&s->server, event, &out);
    for (int32_t i = 0; i < out.count; i++) {
        const dsc_rdv_action *a = &out.item[i];
        switch (a->kind) {
        case DSC_RDV_SEND:
            if (s->conn_client[a->conn] >= 0)
                transmit(s, s->conn_client[a->conn], false, a->bytes, a->count, 0);
            break;
        case DSC_RDV_SEND_ALL:
            for (int32_t c = 0; c < DSC_RDV_CONNS_MAX; c++)
                if (s->conn_client[c] >= 0 && (a->to_strangers || dsc_rdv_server_joined(&s->server, c)))
                    transmit(s, s->conn_client[c], false, a->bytes, a->count, a->with_file ? s->size + 1 : 0);
            break;
        case DSC_RDV_KEEP_FILE: s->kept |= 1 << a->rank; break;
        case DSC_RDV_DROP:
            if (s->conn_client[a->conn] >= 0)
                cut(s, s->conn_client[a->conn], true, false);
            s->conn_client[a->conn] = -1;
            break;
        case DSC_RDV_MAP: {
            dsc_rdv_event mapped = { .kind = DSC_RDV_MAPPED };
            assert_int_equal(s->kept, (1 << s->size) - 2); /* every other rank's file is here */
            server_event(s, &mapped);
            break;
        }
        case DSC_RDV_DONE: case DSC_RDV_FAIL:
            assert_false(s->server_over);
            s->server_over = true;
            s->server_status = a->kind == DSC_RDV_DONE ? DSC_OK : a->status;
            assert_true(a->kind == DSC_RDV_DONE || (a->status != DSC_OK && a->text[0] != 0));
            snprintf(s->server_text, sizeof s->server_text, "%s", a->text);
            for (int32_t c = 0; c < DSC_RDV_CONNS_MAX;
                 c++) /* the driver closes its sockets: what was sent still arrives */
                if (s->conn_client[c] >= 0)
                    hang_up(s, s->conn_client[c]);
            break;
        case DSC_RDV_WAITS:
            assert_non_null(strstr(a->text, "rank 0 waits for rank "));
            break;
        case DSC_RDV_CONNECT: case DSC_RDV_KEEP_FILES: fail_msg("not an action of a server");
        }
    }
}

static void connect_client(sim *s, int32_t client)
{
    sim_client *c = &s->client[client];
    dsc_rdv_event event = { .kind = DSC_RDV_NO_CONNECT };
    int32_t conn = 0;
    while (conn < DSC_RDV_CONNS_MAX && s->conn_client[conn] >= 0)
        conn++;
    if (!s->server_over && dsc_rdv_server_listens(&s->server) && conn < DSC_RDV_CONNS_MAX) {
        event.kind = DSC_RDV_OPENED;
        fill_random(s, event.random);
        c->conn = conn;
        c->life++;
        c->last_ns[0] = c->last_ns[1] = s->now_ns;
        s->conn_client[conn] = client;
        dsc_rdv_event opened = { .kind = DSC_RDV_OPENED, .conn = conn, .pid = 1000 + client };
        fill_random(s, opened.random);
        server_event(s, &opened);
    }
    client_event(s, client, &event);
}

static void client_event(sim *s, int32_t client, dsc_rdv_event *event)
{
    sim_client *c = &s->client[client];
    dsc_rdv_actions out;
    event->now_ns = s->now_ns;
    dsc_rdv_client_step(&c->machine, event, &out);
    for (int32_t i = 0; i < out.count; i++) {
        const dsc_rdv_action *a = &out.item[i];
        switch (a->kind) {
        case DSC_RDV_CONNECT: connect_client(s, client); break;
        case DSC_RDV_SEND:
            if (c->conn >= 0)
                transmit(s, client, true, a->bytes, a->count, a->with_file ? 1 : 0);
            break;
        case DSC_RDV_KEEP_FILES: c->files = event->file_count; break;
        case DSC_RDV_DROP:
            cut(s, client, false, true);
            c->conn = -1;
            break;
        case DSC_RDV_MAP: {
            dsc_rdv_event mapped = { .kind = DSC_RDV_MAPPED };
            assert_int_equal(c->files, s->size + 1);
            client_event(s, client, &mapped);
            break;
        }
        case DSC_RDV_DONE: case DSC_RDV_FAIL:
            assert_false(c->over);
            c->over = true;
            c->status = a->kind == DSC_RDV_DONE ? DSC_OK : a->status;
            assert_true(a->kind == DSC_RDV_DONE || (a->status != DSC_OK && a->text[0] != 0));
            snprintf(c->text, sizeof c->text, "%s", a->text);
            break;
        case DSC_RDV_WAITS:
            assert_non_null(strstr(a->text, " waits for rank 0 of "));
            break;
        case DSC_RDV_SEND_ALL: case DSC_RDV_KEEP_FILE: fail_msg("not an action of a client");
        }
    }
}

static void deliver(sim *s, const packet *p)
{
    sim_client *c = &s->client[p->client];
    if (p->life != c->life)
        return;
    if (p->to_server) {
        int32_t conn = 0;
        while (conn < DSC_RDV_CONNS_MAX && s->conn_client[conn] != p->client)
            conn++;
        if (conn == DSC_RDV_CONNS_MAX || s->server_over)
            return;
        dsc_rdv_event event = { .kind = p->closed ? DSC_RDV_CLOSED : DSC_RDV_MESSAGE, .conn = conn, .bytes = p->bytes,
                                .count = p->count, .file_count = p->file_count };
        if (p->closed)
            s->conn_client[conn] = -1;
        server_event(s, &event);
        return;
    }
    if (!c->alive || c->over || c->conn < 0)
        return;
    dsc_rdv_event event = { .kind = p->closed ? DSC_RDV_CLOSED : DSC_RDV_MESSAGE, .bytes = p->bytes, .count = p->count,
                            .file_count = p->file_count };
    client_event(s, p->client, &event);
}

/* Everything that is due, earliest first; later ones keep their order of sending. */
static void deliver_due(sim *s)
{
    for (;;) {
        int32_t best = -1;
        for (int32_t i = 0; i < s->packet_count; i++)
            if (s->packet[i].at_ns <= s->now_ns && (best < 0 || s->packet[i].at_ns < s->packet[best].at_ns))
                best = i;
        if (best < 0)
            return;
        const packet p = s->packet[best];
        memmove(&s->packet[best], &s->packet[best + 1], sizeof p * (size_t)(s->packet_count - best - 1));
        s->packet_count--;
        deliver(s, &p);
    }
}

static dsc_rdv_self self_of(int32_t rank, int32_t size, uint8_t key)
{
    dsc_rdv_self self = { .rank = rank, .size = size, .pid = 1000 + rank, .build = "dsc test", .agree = { 3, 4 },
                          .agree_name = { "threes", "fours" }, .timeout_ns = TIMEOUT_NS };
    memset(self.key, key, sizeof self.key);
    return self;
}

static void sim_open(sim *s, uint64_t seed, int32_t size, const faults *f)
{
    packet *packets = s->packet;
    memset(s, 0, sizeof *s);
    s->packet = packets;
    s->random = seed;
    s->size = size;
    s->faults = *f;
    for (int32_t c = 0; c < DSC_RDV_CONNS_MAX; c++)
        s->conn_client[c] = -1;
    const dsc_rdv_self zero = self_of(0, size, 7);
    dsc_rdv_server_init(&s->server, &zero, seed + 1, 0);
    for (int32_t c = 1; c < size; c++) {
        dsc_rdv_self self = self_of(c, size, c == 1 && f->wrong_token ? 8 : 7);
        if (c == 1 && f->wrong_size)
            self.size = size + 1;
        if (c == 1 && f->twin)
            self.rank = size - 1;
        s->client[c] = (sim_client){ .alive = true, .conn = -1 };
        dsc_rdv_client_init(&s->client[c].machine, &self, 0);
    }
    s->crash_at_ns = chance(s, f->crash) ? draw(s, 60) * MS : INT64_MAX;
    s->crash_client = 1 + (int32_t)draw(s, (uint32_t)size - 1);
}

static bool sim_over(const sim *s)
{
    bool over = s->server_over;
    for (int32_t c = 1; c < s->size; c++)
        over = over && (s->client[c].over || !s->client[c].alive);
    return over;
}

static void sim_run(sim *s)
{
    /* The server's deadline, the client's grace of 3 s after it, and one more second. */
    for (; !sim_over(s); s->now_ns += MS) {
        if (s->now_ns > TIMEOUT_NS + 4000 * MS)
            fail_msg("somebody never ended");
        if (s->now_ns >= s->crash_at_ns && s->client[s->crash_client].alive) {
            s->client[s->crash_client].alive = false;
            cut(s, s->crash_client, false, true);
        }
        deliver_due(s);
        dsc_rdv_event tick = { .kind = DSC_RDV_TICK };
        if (!s->server_over)
            server_event(s, &tick);
        for (int32_t c = 1; c < s->size; c++)
            if (s->client[c].alive && !s->client[c].over)
                client_event(s, c, &tick);
    }
}

/* Invariants of every run, for any fault of the network. */
static void check_safety(const sim *s)
{
    for (int32_t c = 1; c < s->size; c++) {
        const sim_client *client = &s->client[c];
        if (!client->over || client->status != DSC_OK)
            continue;
        assert_true(s->server_over && s->server_status == DSC_OK); /* nobody opens unless rank 0 did */
        assert_true(client->machine.epoch == s->server.epoch);
        assert_int_equal(client->files, s->size + 1);
    }
}

static sim *sim_new(void)
{
    sim *s = calloc(1, sizeof *s);
    assert_non_null(s);
    s->packet = calloc(PACKETS_MOST, sizeof *s->packet);
    assert_non_null(s->packet);
    return s;
}

static void sim_free(sim *s)
{
    free(s->packet);
    free(s);
}

/* Steps of an alone machine at `now_ns`; returns the text of its notice, or "". */
static const char *notice_at(dsc_rdv_server *server, dsc_rdv_client *client, int64_t now_ns, dsc_rdv_actions *out)
{
    const dsc_rdv_event tick = { .kind = DSC_RDV_TICK, .now_ns = now_ns };
    if (server != NULL)
        dsc_rdv_server_step(server, &tick, out);
    else
        dsc_rdv_client_step(client, &tick, out);
    for (int32_t i = 0; i < out->count; i++)
        if (out->item[i].kind == DSC_RDV_WAITS)
            return out->item[i].text;
    return "";
}

static void test_a_rank_alone_says_once_whom_it_waits_for(void **state)
{
    static dsc_rdv_server server;
    static dsc_rdv_client client;
    static dsc_rdv_actions out;
    dsc_rdv_self self = self_of(0, 3, 7);
    self.timeout_ns = INT64_C(60000) * MS;
    dsc_rdv_server_init(&server, &self, 1, 0);
    self.rank = 2;
    dsc_rdv_client_init(&client, &self, 0);
    assert_string_equal(notice_at(&server, NULL, 2999 * MS, &out), "");
    assert_string_equal(notice_at(&server, NULL, 3000 * MS, &out), "rank 0 waits for rank 1, 2 of 3 to come");
    assert_string_equal(notice_at(&server, NULL, 30000 * MS, &out), "");
    assert_string_equal(notice_at(NULL, &client, 2999 * MS, &out), "");
    assert_string_equal(notice_at(NULL, &client, 3000 * MS, &out), "rank 2 waits for rank 0 of 3 to come");
    assert_string_equal(notice_at(NULL, &client, 30000 * MS, &out), "");
    self.rank = 0;
    self.timeout_ns = 1000 * MS; /* a short timeout: half of it, so that the line comes before the end */
    dsc_rdv_server_init(&server, &self, 1, 0);
    assert_string_equal(notice_at(&server, NULL, 500 * MS, &out), "rank 0 waits for rank 1, 2 of 3 to come");
}

static void test_many_missing_ranks_are_counted(void **state)
{
    static dsc_rdv_server server;
    static dsc_rdv_actions out;
    const dsc_rdv_self self = self_of(0, DSC_RDV_RANKS_MAX, 7);
    dsc_rdv_server_init(&server, &self, 1, 0);
    const char *text = notice_at(&server, NULL, TIMEOUT_NS / 2, &out);
    int32_t listed = 1, more = 0;
    for (const char *at = text; (at = strstr(at, ", ")) != NULL; at++)
        listed++;
    const char *rest = strstr(text, " and ");
    assert_non_null(rest);
    assert_int_equal(sscanf(rest, " and %d more of 128 to come", &more), 1);
    assert_int_equal(listed + more, DSC_RDV_RANKS_MAX - 1);
}

static void test_delays_only(void **state)
{
    sim *s = sim_new();
    const faults f = { .delay_ms = 20 };
    for (uint64_t seed = 1; seed <= 100; seed++) {
        sim_open(s, seed, 2 + (int32_t)(seed % 5), &f);
        sim_run(s);
        check_safety(s);
        assert_int_equal(s->server_status, DSC_OK);
        for (int32_t c = 1; c < s->size; c++)
            assert_int_equal(s->client[c].status, DSC_OK);
    }
    sim_free(s);
}

static void test_faults(void **state)
{
    sim *s = sim_new();
    int64_t done = 0, failed = 0;
    for (uint64_t seed = 1; seed <= 600; seed++) {
        sim_open(s, seed, 2, &(faults){ 0 });
        const faults f = { .lose = (int)draw(s, 15),
                           .repeat = (int)draw(s, 15),
                           .reorder = (int)draw(s, 15),
                           .cut = (int)draw(s, 6),
                           .crash = (int)draw(s, 50),
                           .delay_ms = (int)draw(s, 30) };
        sim_open(s, seed, 2 + (int32_t)(seed % 5), &f);
        sim_run(s);
        check_safety(s);
        *(s->server_status == DSC_OK ? &done : &failed) += 1;
    }
    sim_free(s);
    assert_true(done > 30 && failed > 30); /* the faults are neither nothing nor everything */
}

/* A crash alone, before the end: everybody else ends soon after, not at the timeout, and nobody opens. */
static void test_crash_is_noticed(void **state)
{
    sim *s = sim_new();
    int seen = 0;
    for (uint64_t seed = 1; seed <= 200; seed++) {
        const faults f = { .crash = 100, .delay_ms = 20 };
        sim_open(s, seed, 3 + (int32_t)(seed % 3), &f);
        sim_run(s);
        check_safety(s);
        if (s->client[s->crash_client].alive || s->server_status == DSC_OK)
            continue; /* it was over before */
        if (s->server_status == DSC_ERR_STUCK)
            continue; /* it crashed before it came */
        seen++;
        char who[16];
        snprintf(who, sizeof who, "rank %d ", s->crash_client);
        assert_int_equal(s->server_status, DSC_ERR_PEER);
        assert_non_null(strstr(s->server_text, who));
        assert_true(s->now_ns < 300 * MS);
        for (int32_t c = 1; c < s->size; c++)
            assert_true(!s->client[c].alive || s->client[c].status == DSC_ERR_PEER);
    }
    sim_free(s);
    assert_true(seen > 20);
}

static void one_misfit(const faults *f, dsc_status server, const char *server_word, const char *client_word)
{
    sim *s = sim_new();
    sim_open(s, 5, 3, f);
    sim_run(s);
    check_safety(s);
    assert_int_equal(s->server_status, server);
    if (strstr(s->server_text, server_word) == NULL || strstr(s->client[1].text, client_word) == NULL)
        fail_msg("server: %s; client: %s", s->server_text, s->client[1].text);
    assert_int_not_equal(s->client[1].status, DSC_OK);
    assert_int_not_equal(s->client[2].status, DSC_OK);
    sim_free(s);
}

static void test_misfits(void **state)
{
    one_misfit(&(faults){ .wrong_token = true }, DSC_ERR_STUCK, "rank 1 of 3", "token");
    one_misfit(&(faults){ .wrong_size = true }, DSC_ERR_COMM, "for 4 ranks, rank 0 (pid 1000) for 3", "for 4 ranks");
    one_misfit(&(faults){ .twin = true }, DSC_ERR_COMM, "two processes say that they are rank 2", "rank 2");
}

/* ---- real sockets ------------------------------------------------------------------------------------------------ */

typedef struct party {
    dsc_rdv_job job;
    dsc_status status;
    dsc_error err;
    int64_t start_delay_ns;
    bool map_fails;
    int64_t took_ns;
} party;

static dsc_status map_files(void *user, uint64_t epoch, const int *file, dsc_error *err)
{
    const party *p = user;
    if (epoch == 0 || file[0] < 0)
        return DSC_FAIL(err, DSC_ERR_INTERNAL, "", "no files");
    if (p->map_fails)
        return DSC_FAIL(err, DSC_ERR_NOMEM, "", "no memory for the test");
    char name[16];
    for (int32_t r = 0; r < p->job.self.size; r++) /* file 1 + r is what rank r brought */
        if (pread(file[1 + r], name, sizeof name, 0) != sizeof name || atoi(name) != r)
            return DSC_FAIL(err, DSC_ERR_INTERNAL, "", "file of rank %d is \"%.15s\"", r, name);
    return DSC_OK;
}

static int named_file(int32_t rank)
{
    char name[16] = { 0 };
    const int fd = memfd_create("test", MFD_CLOEXEC);
    snprintf(name, sizeof name, "%d", rank);
    if (fd < 0 || write(fd, name, sizeof name) != sizeof name)
        abort();
    return fd;
}

static void *party_main(void *arg)
{
    party *p = arg;
    int file[1 + RANKS_MOST];
    dsc_clock_sleep_ns(p->start_delay_ns);
    const int64_t start_ns = dsc_clock_ns();
    const int memory = named_file(p->job.self.rank), segment = p->job.self.rank == 0 ? named_file(99) : -1;
    p->err = (dsc_error)DSC_ERROR_INIT;
    p->status = dsc_rdv_run(&p->job, segment, memory, map_files, p, file, &p->err);
    p->took_ns = dsc_clock_ns() - start_ns;
    for (int i = 0; i <= p->job.self.size && p->status == DSC_OK; i++)
        close(file[i]);
    close(memory);
    if (segment >= 0)
        close(segment);
    return NULL;
}

static void parties_init(party *parties, int32_t count, int32_t size, const char *token)
{
    memset(parties, 0, sizeof *parties * (size_t)count);
    for (int32_t i = 0; i < count; i++)
        parties[i].job = (dsc_rdv_job){ .self = { .rank = i,
                                                  .size = size,
                                                  .pid = (int32_t)getpid(),
                                                  .build = "dsc test",
                                                  .agree = { 11 },
                                                  .agree_name = { "channels" },
                                                  .timeout_ns = 700 * MS },
                                        .token = token,
                                        .port = 29500 };
}

static void parties_run(party *parties, int32_t count)
{
    pthread_t threads[RANKS_MOST];
    for (int32_t i = 0; i < count; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, party_main, &parties[i]), 0);
    for (int32_t i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
}

static int open_files(void)
{
    int n = 0;
    for (int fd = 0; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) != -1 || errno != EBADF;
    return n;
}

static void token_text(char out[64], const char *name)
{
    snprintf(out, 64, "%s-%d-%lld", name, (int)getpid(), (long long)dsc_clock_ns());
}

static void expect(const party *p, dsc_status status, const char *words)
{
    if (p->status != status || (words != NULL && strstr(p->err.message, words) == NULL))
        fail_msg("rank %d: status %d \"%s\", expected %d \"%s\"", p->job.self.rank, (int)p->status, p->err.message,
                 (int)status, words != NULL ? words : "");
}

static void test_sockets_meet(void **state)
{
    party p[5];
    char token[64];
    const int before = open_files();
    for (int round = 0; round < 3; round++) { /* the same name again and again, ranks in any order */
        token_text(token, round == 2 ? "" : "meet");
        parties_init(p, 5, 5, round == 2 ? "" : token);
        for (int i = 0; i < 5; i++) {
            p[i].job.port = 20000 + getpid() % 20000;
            p[i].start_delay_ns = (round == 0 ? i : 5 - i) * 10 * MS;
        }
        parties_run(p, 5);
        for (int i = 0; i < 5; i++)
            expect(&p[i], DSC_OK, NULL);
    }
    assert_int_equal(open_files(), before);
}

/* Two jobs of one user with one token that differ in the port or in the host: no rank joins the other job. Ranks are
 * numbered 0 and 1 in the first job, 2 and 3 in the second. */
static void two_jobs(const int order[4], const char *token, bool ports_differ)
{
    party p[4];
    parties_init(p, 4, 2, token);
    for (int i = 0; i < 4; i++) {
        const int number = order[i], job = number / 2;
        p[number].job.self.rank = number % 2;
        p[number].job.self.agree[0] = job; /* a rank of the other job is refused */
        p[number].job.host = !ports_differ && job == 1 ? "localhost" : "127.0.0.1";
        p[number].job.port = 20000 + getpid() % 20000 + (ports_differ ? job : 0);
        p[number].start_delay_ns = i * 10 * MS;
    }
    parties_run(p, 4);
    for (int i = 0; i < 4; i++)
        expect(&p[i], DSC_OK, NULL);
}

static void test_sockets_two_jobs(void **state)
{
    static const int order[][4] = { { 0, 2, 1, 3 }, { 0, 3, 1, 2 }, { 1, 2, 0, 3 }, { 1, 3, 2, 0 } };
    char token[64];
    const int before = open_files();
    token_text(token, "two");
    for (size_t i = 0; i < DSC_COUNT(order); i++) {
        two_jobs(order[i], token, true);
        two_jobs(order[i], token, false);
        two_jobs(order[i], "", true);
        two_jobs(order[i], "", false);
    }
    assert_int_equal(open_files(), before);
}

static void test_sockets_refuse(void **state)
{
    party p[4];
    char token[64], other[64];
    const int before = open_files();
    token_text(token, "refuse");
    token_text(other, "other");

    parties_init(p, 3, 4, token); /* rank 3 never comes */
    parties_run(p, 3);
    for (int i = 0; i < 3; i++)
        expect(&p[i], DSC_ERR_STUCK, "rank 3 of 4");

    parties_init(p, 3, 3, token); /* another size */
    p[1].job.self.size = 2;
    parties_run(p, 3);
    expect(&p[0], DSC_ERR_COMM, "rank 1");
    expect(&p[1], DSC_ERR_COMM, "for 2 ranks");

    parties_init(p, 3, 3, token); /* the same number twice; the third to come is turned away with the rest */
    p[2].job.self.rank = 1;
    parties_run(p, 3);
    for (int i = 0; i < 3; i++)
        expect(&p[i], DSC_ERR_COMM, "two processes say that they are rank 1");

    parties_init(p, 2, 2, token); /* another build */
    snprintf(p[1].job.self.build, sizeof p[1].job.self.build, "dsc of tomorrow");
    parties_run(p, 2);
    expect(&p[0], DSC_ERR_COMM, "dsc of tomorrow");
    expect(&p[1], DSC_ERR_COMM, "dsc test");

    parties_init(p, 2, 2, token); /* other numbers to agree on */
    p[1].job.self.agree[0] = 12;
    parties_run(p, 2);
    expect(&p[0], DSC_ERR_COMM, "channels: 12 on rank 1");
    expect(&p[1], DSC_ERR_COMM, "11 on rank 0");

    parties_init(p, 2, 2, token); /* another job: never meets */
    p[1].job.token = other;
    parties_run(p, 2);
    expect(&p[0], DSC_ERR_STUCK, "rank 1 of 2");
    expect(&p[1], DSC_ERR_STUCK, "DSC_JOB_TOKEN");

    parties_init(p, 3, 3, token); /* one cannot map: nobody opens, at once */
    p[1].map_fails = true;
    parties_run(p, 3);
    expect(&p[1], DSC_ERR_NOMEM, "no memory for the test");
    expect(&p[0], DSC_ERR_PEER, "no memory for the test");
    expect(&p[2], DSC_ERR_PEER, "no memory for the test");
    assert_true((double)p[0].took_ns < 500 * MS * test_patience());

    parties_init(p, 3, 3, token);
    p[0].map_fails = true;
    parties_run(p, 3);
    expect(&p[0], DSC_ERR_NOMEM, NULL);
    expect(&p[2], DSC_ERR_PEER, "rank 0");
    assert_int_equal(open_files(), before);
}

int main(void)
{
    printf("# seeds 1..600\n");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hmac),
        cmocka_unit_test(test_a_rank_alone_says_once_whom_it_waits_for),
        cmocka_unit_test(test_many_missing_ranks_are_counted),
        cmocka_unit_test(test_delays_only),
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_crash_is_noticed),
        cmocka_unit_test(test_misfits),
        cmocka_unit_test(test_sockets_meet),
        cmocka_unit_test(test_sockets_two_jobs),
        cmocka_unit_test(test_sockets_refuse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
