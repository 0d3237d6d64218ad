/* test_comm_net.c - meeting over a network: who may join, what strangers can do, which addresses are refused.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <pthread.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/transports/mesh.h"
#include "tests/support/ranks.h"

#define SECOND INT64_C(1000000000)
#define LOOPBACK 127, 0, 0, 1

/* ---- strangers --------------------------------------------------------------------------------------------------- */

typedef struct knock {
    uint16_t port;
    atomic_bool stop;
    atomic_int count;
    const uint8_t *known; /* bytes of a captured connection; NULL: none */
    size_t known_bytes;
} knock;

static int dial(uint16_t port)
{
    const struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(port), .sin_addr = { htonl(0x7f000001) } };
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)&to, sizeof to) == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

/* Garbage, half of a head, a huge length, what was overheard with a wrong end, silence; some hang up, some stay. */
static void *knock_main(void *arg)
{
    enum { HELD = 200 };
    knock *k = arg;
    int held[HELD];
    uint8_t bytes[512];
    for (int i = 0; i < HELD; i++)
        held[i] = -1;
    for (unsigned i = 0; !atomic_load(&k->stop); i++) {
        const int fd = dial(k->port);
        if (fd < 0) {
            dsc_clock_sleep_ns(1000000);
            continue;
        }
        atomic_fetch_add(&k->count, 1);
        dsc_clock_sleep_ns(200000); /* else the kernel's queue is full, and it drops what ranks send for seconds */
        for (size_t j = 0; j < sizeof bytes; j++)
            bytes[j] = (uint8_t)(i * 31 + j * 17);
        size_t count = (const size_t[]){ sizeof bytes, 6, 8, 0, 1 }[i % 5];
        if (i % 5 == 2)
            memcpy(bytes, "DSCF\xff\xff\xff\xff", 8);
        if (k->known != NULL && i % 2 == 0) {
            memcpy(bytes, k->known, k->known_bytes);
            count = k->known_bytes + 32;
        }
        (void)!send(fd, bytes, count, MSG_NOSIGNAL);
        if (held[i % HELD] >= 0)
            close(held[i % HELD]);
        held[i % HELD] = fd;
        if (i % 3 == 0) {
            close(fd);
            held[i % HELD] = -1;
        }
    }
    for (int i = 0; i < HELD; i++)
        if (held[i] >= 0)
            close(held[i]);
    return NULL;
}

static int ring_body(dsc_comm *comm, void *user)
{
    float x = (float)dsc_comm_rank(comm);
    RANKS_TRY(dsc_comm_all_reduce(comm, 0, &x, 1, DSC_F32, NULL, err));
    RANKS_CHECK(x == 3.0f);
    return 0;
}

/* The gate of rank 0, from before it opens until after: rounds until a thousand have knocked. */
static void test_strangers_at_the_gate(void **state)
{
    knock k = { .port = 0, .known = NULL };
    int rounds = 0;
    pthread_t threads[2];
    const ranks_run run = { .kind = RANKS_TCP, .size = 3, .body = ring_body };
    for (; rounds < 5 || (rounds < 100 && atomic_load(&k.count) < 1000); rounds++) {
        ranks_run one = run;
        atomic_store(&k.stop, false);
        k.port = (uint16_t)(one.port = ranks_choose_port());
        for (int i = 0; i < 2; i++)
            assert_int_equal(pthread_create(&threads[i], NULL, knock_main, &k), 0);
        const int failed = ranks_go(&one);
        atomic_store(&k.stop, true);
        for (int i = 0; i < 2; i++)
            pthread_join(threads[i], NULL);
        assert_int_equal(failed, 0);
    }
    print_message("# %d strangers in %d rounds\n", atomic_load(&k.count), rounds);
    assert_true(atomic_load(&k.count) >= 1000);
}

/* ---- the mesh ---------------------------------------------------------------------------------------------------- */

enum { RANKS = 3, MESH_CONNECTIONS = 3 };
typedef struct member {
    dsc_mesh_spec spec;
    int fd[MESH_CONNECTIONS * RANKS];
    dsc_mesh_peer peer[RANKS];
    dsc_status status;
    dsc_error err;
} member;

static bool never(void *user) { return false; }

static void *member_main(void *arg)
{
    member *m = arg;
    m->err = (dsc_error)DSC_ERROR_INIT;
    m->status = dsc_mesh_open(&m->spec, m->fd, m->peer, &m->err);
    return NULL;
}

typedef struct party {
    dsc_alloc *alloc;
    dsc_net_address address[RANKS];
    int listener[RANKS];
    member member[RANKS];
} party;

static void party_open(party *p, int64_t timeout_ns)
{
    memset(p, 0, sizeof *p);
    assert_int_equal(dsc_alloc_open(&p->alloc, NULL), DSC_OK);
    for (int32_t r = 0; r < RANKS; r++) {
        const dsc_net_address any = { .ip = { LOOPBACK }, .family = 4 };
        p->listener[r] = dsc_net_listen(&any, &p->address[r]);
        assert_true(p->listener[r] >= 0);
        p->member[r].spec = (dsc_mesh_spec) { .alloc = p->alloc,
                                              .rank = r,
                                              .size = RANKS,
                                              .connection_count = MESH_CONNECTIONS,
                                              .epoch = 77,
                                              .key = "the key of this job, of 32 byte",
                                              .address = p->address,
                                              .listener = p->listener[r],
                                              .timeout_ns = timeout_ns,
                                              .lost = never };
    }
}

static void party_go(party *p)
{
    pthread_t threads[RANKS];
    for (int32_t r = 0; r < RANKS; r++)
        assert_int_equal(pthread_create(&threads[r], NULL, member_main, &p->member[r]), 0);
    for (int32_t r = 0; r < RANKS; r++)
        pthread_join(threads[r], NULL);
}

static void party_close(party *p)
{
    for (int32_t r = 0; r < RANKS; r++) {
        close(p->listener[r]);
        for (int i = 0; i < MESH_CONNECTIONS * RANKS; i++)
            if (p->member[r].status == DSC_OK && p->member[r].fd[i] >= 0)
                close(p->member[r].fd[i]);
    }
    dsc_alloc_close(&p->alloc);
}

/* Every connection is the one it says it is. */
static void check_party(const party *p)
{
    for (int32_t a = 0; a < RANKS; a++)
        assert_int_equal(p->member[a].status, DSC_OK);
    for (int32_t a = 0; a < RANKS; a++)
        for (int32_t b = 0; b < RANKS; b++)
            for (int32_t lane = 0; lane < MESH_CONNECTIONS; lane++) {
                const uint8_t said = (uint8_t)(a * 100 + b * 10 + lane);
                uint8_t received = 0;
                if (a == b)
                    continue;
                assert_int_equal(p->member[a].peer[b].pid, getpid());
                assert_int_equal(send(p->member[a].fd[lane * RANKS + b], &said, 1, 0), 1);
                for (int i = 0; i < 1000 && recv(p->member[b].fd[lane * RANKS + a], &received, 1, 0) != 1; i++)
                    dsc_clock_sleep_ns(1000000);
                assert_int_equal(received, said);
            }
}

static void test_mesh_with_strangers(void **state)
{
    /* The first bytes of rank 1 to rank 0, as far as they are constant. */
    static uint8_t overheard[112] = { 'D', 'S', 'C', 'M', 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 77 };
    for (int round = 0; round < 5; round++) {
        party p;
        knock k[RANKS];
        pthread_t threads[RANKS];
        party_open(&p, 20 * SECOND);
        for (int32_t r = 0; r < RANKS; r++) {
            k[r] = (knock){ .port = p.address[r].port, .known = overheard, .known_bytes = sizeof overheard };
            assert_int_equal(pthread_create(&threads[r], NULL, knock_main, &k[r]), 0);
        }
        party_go(&p);
        for (int32_t r = 0; r < RANKS; r++) {
            atomic_store(&k[r].stop, true);
            pthread_join(threads[r], NULL);
        }
        check_party(&p);
        party_close(&p);
    }
}

/* Rank 2 knows another token, or is of another epoch: nobody takes it for rank 2. */
static void test_mesh_refuses(void **state)
{
    for (int what = 0; what < 2; what++) {
        party p;
        party_open(&p, SECOND / 2);
        if (what == 0)
            p.member[2].spec.key[0] ^= 1;
        else
            p.member[2].spec.epoch++;
        party_go(&p);
        assert_int_equal(p.member[2].status, what == 0 ? DSC_ERR_COMM : DSC_ERR_STUCK);
        assert_non_null(strstr(p.member[2].err.message, what == 0 ? "token" : "rank 0, 1 of 3"));
        for (int32_t r = 0; r < 2; r++) {
            assert_int_equal(p.member[r].status, DSC_ERR_STUCK);
            assert_non_null(strstr(p.member[r].err.message, "with rank 2 of 3"));
        }
        party_close(&p);
    }
}

/* ---- the rendezvous ---------------------------------------------------------------------------------------------- */

typedef struct guest {
    int32_t rank;
    int32_t port;
    const char *token, *host;
    dsc_status status;
    dsc_error err;
} guest;

static void *guest_main(void *arg)
{
    guest *g = arg;
    dsc_alloc *alloc = NULL;
    dsc_comm *comm = NULL;
    dsc_comm_options options;
    const ranks_run run = { .kind = RANKS_TCP, .size = 2 };
    g->err = (dsc_error)DSC_ERROR_INIT;
    if (dsc_alloc_open(&alloc, NULL) != DSC_OK)
        abort();
    ranks_options(&run, g->rank, alloc, NULL, g->token, &options);
    options.rank_info.master_port = g->port;
    snprintf(options.rank_info.master_addr, sizeof options.rank_info.master_addr, "%s", g->host);
    options.open_timeout_ns = SECOND;
    g->status = dsc_comm_open(&options, &comm, &g->err);
    dsc_comm_close(&comm);
    dsc_alloc_close(&alloc);
    return NULL;
}

static void meet(guest *g, const char *host, const char *token0, const char *token1)
{
    pthread_t threads[2];
    const int32_t port = ranks_choose_port();
    for (int32_t r = 0; r < 2; r++) {
        g[r] = (guest){ .rank = r, .port = port, .token = r == 0 ? token0 : token1, .host = host };
        assert_int_equal(pthread_create(&threads[r], NULL, guest_main, &g[r]), 0);
    }
    for (int32_t r = 0; r < 2; r++)
        pthread_join(threads[r], NULL);
}

static void test_wrong_token(void **state)
{
    guest g[2];
    meet(g, "127.0.0.1", "this job", "another job");
    assert_int_equal(g[1].status, DSC_ERR_COMM);
    assert_non_null(strstr(g[1].err.message, "job token"));
    assert_int_equal(g[0].status, DSC_ERR_STUCK);
    assert_non_null(strstr(g[0].err.message, "rank 1 of 2"));
}

static void test_no_token(void **state)
{
    guest g[2];
    meet(g, "127.0.0.1", "", "");
    for (int r = 0; r < 2; r++) {
        assert_int_equal(g[r].status, DSC_ERR_INPUT);
        assert_string_equal(g[r].err.where, "DSC_JOB_TOKEN");
    }
}

static void test_addresses(void **state)
{
    static const struct { const char *host; int32_t rank; const char *word; } bad[] = {
        { "0.0.0.0", 0, "everybody" }, { "0.0.0.0", 1, "everybody" }, { "::", 0, "everybody" },
        { "255.255.255.255", 0, "everybody" }, { "192.0.2.1", 0, "not an address of this host" },
        { "224.0.0.1", 0, "everybody" }, { "::ffff:0.0.0.0", 0, "everybody" },
    };
    for (size_t i = 0; i < DSC_COUNT(bad); i++) {
        guest g = { .rank = bad[i].rank, .port = ranks_choose_port(), .token = "token", .host = bad[i].host };
        guest_main(&g);
        if (g.status != DSC_ERR_INPUT || strstr(g.err.message, bad[i].word) == NULL)
            fail_msg("%s, rank %d: status %d: %s", bad[i].host, bad[i].rank, (int)g.status, g.err.message);
    }
}

static void test_port_taken(void **state)
{
    const dsc_net_address any = { .ip = { LOOPBACK }, .family = 4 };
    dsc_net_address bound;
    const int holder = dsc_net_listen(&any, &bound);
    assert_true(holder >= 0);
    guest g = { .rank = 0, .port = bound.port, .token = "token", .host = "127.0.0.1" };
    guest_main(&g);
    assert_int_equal(g.status, DSC_ERR_COMM);
    assert_non_null(strstr(g.err.message, "taken"));
    close(holder);
}

static void test_ipv6_and_names(void **state)
{
    guest g[2];
    const dsc_net_address six = { .ip = { [15] = 1 }, .family = 6 };
    dsc_net_address bound;
    meet(g, "localhost", "token", "token");
    assert_int_equal(g[0].status, DSC_OK);
    assert_int_equal(g[1].status, DSC_OK);
    const int fd = dsc_net_listen(&six, &bound);
    if (fd < 0)
        return; /* no IPv6 here */
    close(fd);
    meet(g, "::1", "token", "token");
    assert_int_equal(g[0].status, DSC_OK);
    assert_int_equal(g[1].status, DSC_OK);
}

/* While the ranks work, none of their ports listens. */
static int quiet_body(dsc_comm *comm, void *user)
{
    RANKS_TRY(dsc_comm_barrier(comm, 0, NULL, err));
    for (int fd = 0; fd < 256; fd++) {
        int listens = 0;
        socklen_t bytes = sizeof listens;
        RANKS_CHECK(getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) != 0 || listens == 0);
    }
    RANKS_TRY(dsc_comm_barrier(comm, 0, NULL, err));
    return 0;
}

static void test_nothing_listens(void **state)
{
    const ranks_run run = { .kind = RANKS_TCP, .size = 3, .body = quiet_body };
    assert_int_equal(ranks_go(&run), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_strangers_at_the_gate),
        cmocka_unit_test(test_mesh_with_strangers),
        cmocka_unit_test(test_mesh_refuses),
        cmocka_unit_test(test_wrong_token),
        cmocka_unit_test(test_no_token),
        cmocka_unit_test(test_addresses),
        cmocka_unit_test(test_port_taken),
        cmocka_unit_test(test_ipv6_and_names),
        cmocka_unit_test(test_nothing_listens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
