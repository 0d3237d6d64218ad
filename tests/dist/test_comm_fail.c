/* test_comm_fail.c - errors of the other ranks when a rank disagrees, dies, leaves, aborts, stalls or has a planted
 * fault. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <pthread.h>

#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/rendezvous/rendezvous.h"
#include "comm/transports/shm_barrier.h"
#include "tests/support/probe.h"
#include "tests/support/ranks.h"
#include "tests/support/sanitizer.h"

#define SECOND INT64_C(1000000000)

static bool in_time(int64_t took_ns, double seconds) { return (double)took_ns < seconds * SECOND * test_patience(); }

typedef enum scene {
    SCENE_OTHER_OP,    /* rank 1 calls a broadcast, the others an all_gather */
    SCENE_OTHER_SIZE,  /* rank 1 gathers more bytes */
    SCENE_OTHER_DTYPE, /* rank 1 reduces in bf16 */
    SCENE_MAIL,        /* rank 1 receives from rank 0, which is in a barrier */
    SCENE_BOTH_SEND,   /* ranks 0 and 1 send to each other */
    SCENE_MAIL_SIZE,   /* rank 1 receives fewer bytes than rank 0 sends */
    SCENE_LEAVE,       /* rank 1 closes, the others wait */
    SCENE_ABORT,       /* rank 1 aborts, the others wait */
    SCENE_LATE,        /* rank 1 does not come before the others have given up */
    SCENE_COUNT
} scene;

typedef struct play {
    scene scene;
    dsc_status status;
    const char *words[3]; /* all in the message of every rank that waited */
    bool one_leaves;      /* rank 1 sees no failure itself */
    int64_t timeout_ns;
    atomic_int *gave_up;  /* ranks whose wait has ended, shared by all; NULL: those of mpirun */
} play;

/* Timeout that ranks on a busy machine keep among themselves. */
static int64_t short_timeout_ns(void) { return getenv("DSC_TEST_STRICT") != NULL ? SECOND * 3 / 10 : SECOND; }

static const char *short_timeout_text(void) { return short_timeout_ns() == SECOND ? "1.0 s" : "0.3 s"; }

static void wait_for_others(const play *p, int32_t others)
{
    const int64_t until_ns = dsc_clock_ns() + (int64_t)(10 * SECOND * test_patience());
    if (p->gave_up == NULL)
        ranks_mpi_wait_done(others);
    while (p->gave_up != NULL && atomic_load(p->gave_up) < others && dsc_clock_ns() < until_ns)
        dsc_clock_sleep_ns(SECOND / 1000);
}

static const play plays[SCENE_COUNT] = {
    { .scene = SCENE_OTHER_OP, .status = DSC_ERR_COMM, .words = { "all_gather", "broadcast", "disagree" } },
    { .scene = SCENE_OTHER_SIZE, .status = DSC_ERR_COMM, .words = { "1000 bytes", "1001 bytes", "rank 1" } },
    { .scene = SCENE_OTHER_DTYPE, .status = DSC_ERR_COMM, .words = { "reduce_scatter", "disagree", "rank 1" } },
    { .scene = SCENE_MAIL, .status = DSC_ERR_COMM, .words = { "barrier", "recv", "disagree" } },
    { .scene = SCENE_BOTH_SEND, .status = DSC_ERR_COMM, .words = { "send", "rank 0", "rank 1" } },
    { .scene = SCENE_MAIL_SIZE, .status = DSC_ERR_COMM, .words = { "100 bytes", "64", "rank 1" } },
    { .scene = SCENE_LEAVE, .status = DSC_ERR_PEER, .words = { "rank 1", "closed", "all_gather" }, .one_leaves = true },
    { .scene = SCENE_ABORT, .status = DSC_ERR_PEER, .words = { "the disk is full", "", "" } },
    { .scene = SCENE_LATE, .status = DSC_ERR_STUCK, .words = { "rank 1", "all_gather", "" }, .one_leaves = true },
};

static dsc_status act(dsc_comm *comm, const play *p, dsc_error *err)
{
    const scene what = p->scene;
    static _Thread_local char recv[8 * 1024], send[1024];
    static _Thread_local float leaf[8], acc[1];
    const int32_t rank = dsc_comm_rank(comm);
    dsc_reduce_scatter_args args = { .acc = acc, .leaf = leaf, .leaf_stride = 1, .count = 1, .wire_dtype = DSC_F32 };
    switch (what) {
    case SCENE_OTHER_OP:
        if (rank == 1)
            return dsc_comm_broadcast(comm, 0, recv, 1000, 0, NULL, err);
        break;
    case SCENE_OTHER_SIZE:
        if (rank == 1)
            return dsc_comm_all_gather(comm, 0, recv, send, 1001, DSC_U8, NULL, err);
        break;
    case SCENE_OTHER_DTYPE:
        if (rank == 1)
            args.wire_dtype = DSC_BF16;
        return dsc_comm_reduce_scatter(comm, 0, &args, NULL, err);
    case SCENE_MAIL:
        return rank == 1 ? dsc_comm_recv(comm, 0, recv, 10, 0, NULL, err) : dsc_comm_barrier(comm, 0, NULL, err);
    case SCENE_BOTH_SEND:
        if (rank < 2)
            return dsc_comm_send(comm, 0, send, 10, 1 - rank, NULL, err);
        break;
    case SCENE_MAIL_SIZE:
        if (rank < 2)
            return rank == 0 ? dsc_comm_send(comm, 0, send, 100, 1, NULL, err)
                             : dsc_comm_recv(comm, 0, recv, 64, 0, NULL, err);
        break;
    case SCENE_LEAVE:
        if (rank == 1)
            return DSC_OK;
        break;
    case SCENE_ABORT:
        if (rank == 1) {
            dsc_clock_sleep_ns(SECOND / 20);
            dsc_comm_abort(comm, "the disk is full");
        }
        break;
    case SCENE_LATE:
        DSC_TRY(dsc_comm_barrier(comm, 0, NULL, err)); /* the timeout begins for all at once */
        if (rank == 1) {
            wait_for_others(p, dsc_comm_size(comm) - 1);
            return DSC_OK;
        }
        break;
    case SCENE_COUNT: break;
    }
    return dsc_comm_all_gather(comm, 0, recv, send, 1000, DSC_U8, NULL, err);
}

static int play_body(dsc_comm *comm, void *user)
{
    const play *p = user;
    dsc_error error = DSC_ERROR_INIT;
    const int64_t start_ns = dsc_clock_ns();
    const dsc_status status = act(comm, p, &error);
    if (p->gave_up != NULL)
        atomic_fetch_add(p->gave_up, 1);
    if (p->one_leaves && dsc_comm_rank(comm) == 1)
        return 0;
    if (status != p->status)
        fprintf(stderr, "# scene %d rank %d: status %d: %s\n", (int)p->scene, dsc_comm_rank(comm), (int)status,
                error.message);
    RANKS_CHECK(status == p->status);
    RANKS_CHECK(in_time(dsc_clock_ns() - start_ns, 1.0)); /* look_around comes every 0.1 s */
    for (int i = 0; i < 3; i++)
        if (strstr(error.message, p->words[i]) == NULL) {
            fprintf(stderr, "# scene %d: no \"%s\" in: %s\n", (int)p->scene, p->words[i], error.message);
            return 1;
        }
    /* Nothing works until it is closed, on any channel. */
    RANKS_CHECK(dsc_comm_barrier(comm, 1, NULL, NULL) == p->status);
    return 0;
}

static void play_all(ranks_kind kind)
{
    atomic_int *gave_up = mmap(NULL, sizeof *gave_up, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(gave_up != MAP_FAILED);
    for (int s = 0; s < SCENE_COUNT; s++)
        for (int32_t size = 2; size <= 3; size++) {
            play p = plays[s];
            if (s == SCENE_LATE)
                p.timeout_ns = short_timeout_ns(), p.words[2] = short_timeout_text();
            p.gave_up = gave_up;
            atomic_store(gave_up, 0);
            const ranks_run run = { .kind = kind,
                                    .size = size,
                                    .channel_count = 2,
                                    .timeout_ns = p.timeout_ns,
                                    .body = play_body,
                                    .user = &p };
            if (ranks_go(&run) != 0)
                fail_msg("%s, scene %d, %d ranks", ranks_kind_text(kind), s, size);
        }
    munmap(gave_up, sizeof *gave_up);
}

static void test_scenes_local(void **state) { play_all(RANKS_LOCAL); }
static void test_scenes_shm(void **state) { play_all(RANKS_SHM_PROCESSES); }
static void test_scenes_tcp(void **state) { play_all(RANKS_TCP); }
static void test_scenes_hier(void **state) { play_all(RANKS_HIER); }

/* ---- the fault hook ---------------------------------------------------------------------------------------------- */

/* A little of everything; the rank that fails aborts, as the engine does. */
static int work_body(dsc_comm *comm, void *user)
{
    const bool must_fail = *(bool *)user;
    float x[40];
    char recv[8 * 16], send[16] = "some bytes here";
    dsc_error error = DSC_ERROR_INIT;
    dsc_status status = DSC_OK;
    for (int i = 0; i < 40; i++)
        x[i] = (float)i;
    if (status == DSC_OK)
        status = dsc_comm_broadcast(comm, 0, x, sizeof x, 0, NULL, &error);
    if (status == DSC_OK)
        status = dsc_comm_all_reduce(comm, 1, x, 40, DSC_BF16, NULL, &error);
    if (status == DSC_OK)
        status = dsc_comm_all_gather(comm, 0, recv, send, 16, DSC_U8, NULL, &error);
    if (status == DSC_OK)
        status = dsc_comm_barrier(comm, 1, NULL, &error);
    if (status != DSC_OK)
        dsc_comm_abort(comm, error.message);
    RANKS_CHECK((status != DSC_OK) == must_fail);
    RANKS_CHECK(!must_fail || strstr(error.message, "injected fault") != NULL);
    return 0;
}

static void sweep(ranks_kind kind, int32_t size)
{
    enum { CALLS = 4 };
    for (int64_t at = 1; at <= CALLS + 1; at++) {
        bool must_fail = at <= CALLS;
        const ranks_run run = { .kind = kind,
                                .size = size,
                                .channel_count = 2,
                                .fault_at = at,
                                .fault_rank = size - 1,
                                .body = work_body,
                                .user = &must_fail };
        if (ranks_go(&run) != 0)
            fail_msg("%s, %d ranks, fault at %lld", ranks_kind_text(kind), size, (long long)at);
    }
}

static void test_fault_sweep(void **state)
{
    sweep(RANKS_SELF, 1);
    sweep(RANKS_LOCAL, 3);
    sweep(RANKS_SHM_PROCESSES, 2);
    sweep(RANKS_TCP, 3);
    sweep(RANKS_HIER, 3);
}

/* ---- open with failing allocations ------------------------------------------------------------------------------- */

typedef struct starving {
    ranks_kind kind;
    int32_t size, rank;
    dsc_local_world *world;
    const char *token;
    int failed;
} starving;

/* The n-th allocation of the last rank fails, n = 1, 2, ...: then nobody opens, each knows why, nothing is left, and
 * the next round is sound. Ends when nothing fails any more. */
static int starve(const starving *s)
{
    const ranks_run run = { .kind = s->kind, .size = s->size };
    for (int64_t n = 1; n < 100; n++) {
        dsc_alloc *alloc = NULL;
        dsc_comm *comm = NULL;
        dsc_comm_options options;
        dsc_error err = DSC_ERROR_INIT;
        if (dsc_alloc_open(&alloc, &err) != DSC_OK)
            return 1;
        const bool starves = s->rank == s->size - 1;
        dsc_alloc_fail_at(alloc, starves ? n : 0, false);
        ranks_options(&run, s->rank, alloc, s->world, s->token, &options);
        const dsc_status status = dsc_comm_open(&options, &comm, &err);
        dsc_alloc_stats stats;
        dsc_alloc_stats_get(alloc, &stats);
        const bool left = status != DSC_OK && (stats.live_count != 0 || stats.tier_current_bytes[DSC_TIER_HOST] != 0);
        const bool right = starves ? status == DSC_ERR_NOMEM
                                   : status == DSC_ERR_PEER && strstr(err.message, "could not open") != NULL;
        dsc_comm_close(&comm);
        dsc_alloc_close(&alloc);
        if (status == DSC_OK)
            return n >= 3 ? 0 : 1; /* there are some allocations to fail */
        if (left || !right) {
            fprintf(stderr, "# %s: allocation %lld, rank %d: status %d: %s\n", ranks_kind_text(s->kind), (long long)n,
                    s->rank, (int)status, err.message);
            return 1;
        }
    }
    return 1;
}

static void *starve_main(void *arg)
{
    starving *s = arg;
    s->failed = starve(s);
    return NULL;
}

static void starve_all(ranks_kind kind, int32_t size)
{
    starving ranks[4];
    pthread_t threads[4];
    char token[64];
    dsc_local_world *world = NULL;
    ranks_token(token, sizeof token);
    assert_int_equal(dsc_local_world_open(size, &world, NULL), DSC_OK);
    for (int32_t r = 0; r < size; r++) {
        ranks[r] = (starving){ .kind = kind, .size = size, .rank = r, .world = world, .token = token };
        assert_int_equal(pthread_create(&threads[r], NULL, starve_main, &ranks[r]), 0);
    }
    for (int32_t r = 0; r < size; r++)
        pthread_join(threads[r], NULL);
    for (int32_t r = 0; r < size; r++)
        assert_int_equal(ranks[r].failed, 0);
    dsc_local_world_close(&world);
}

static void test_starved_open(void **state)
{
    starve_all(RANKS_LOCAL, 3);
    starve_all(RANKS_SHM_THREADS, 3);
    starve_all(RANKS_TCP_THREADS, 3);
    starve_all(RANKS_HIER_THREADS, 3);
    starve_all(RANKS_HIER_THREADS, 4);
}

/* ---- a rank that dies -------------------------------------------------------------------------------------------- */

/* Forks `size` ranks; rank 1 kills itself at the given place, the others must name it. */
typedef struct death {
    int where; /* 0: others wait in a barrier; 1: inside an all_gather; 2: somebody sends to it */
    int32_t size;
    const char *token;
    ranks_kind kind;
    bool no_calls; /* process_vm_readv and pidfd_open are forbidden */
} death;

static dsc_status long_gather(dsc_comm *comm, dsc_error *err)
{
    enum { BYTES = 8 << 20 };
    char *buf = calloc(dsc_comm_size(comm), BYTES);
    dsc_status status = DSC_OK;
    for (int i = 0; status == DSC_OK && i < 10000; i++)
        status = dsc_comm_all_gather(comm, 0, buf, buf + (int64_t)dsc_comm_rank(comm) * BYTES, BYTES, DSC_U8, NULL,
                                     err);
    free(buf);
    return status;
}

/* A timer's signal kills the process wherever the collective is just then. */
static void die_in(int64_t ns)
{
    const struct itimerval timer = { .it_value = { .tv_usec = (suseconds_t)(ns / 1000) } };
    signal(SIGALRM, SIG_DFL);
    setitimer(ITIMER_REAL, &timer, NULL);
}

static dsc_status death_calls(const death *d, dsc_comm *comm, dsc_error *err)
{
    const int32_t rank = dsc_comm_rank(comm);
    char byte = 0;
    if (rank == 1 && d->where == 1)
        die_in(SECOND / 10);
    if (rank == 1 && d->where != 1) {
        dsc_clock_sleep_ns(SECOND / 20);
        raise(SIGKILL);
    }
    if (d->where == 1)
        return long_gather(comm, err);
    if (d->where == 2 && rank == 0)
        return dsc_comm_send(comm, 0, &byte, 1, 1, NULL, err);
    return dsc_comm_barrier(comm, d->where == 2 ? 1 : 0, NULL, err);
}

static int death_rank(const death *d, int32_t rank)
{
    dsc_error err = DSC_ERROR_INIT;
    dsc_alloc *alloc = NULL;
    dsc_comm *comm = NULL;
    dsc_comm_options options;
    const ranks_run run = {
        .kind = d->kind, .size = d->size, .channel_count = 2, .staging_bytes = 1 << 16
    };
    if (d->no_calls && !ranks_forbid_calls())
        return 77;
    if (dsc_alloc_open(&alloc, &err) != DSC_OK)
        return 2;
    ranks_options(&run, rank, alloc, NULL, d->token, &options);
    if (dsc_comm_open(&options, &comm, &err) != DSC_OK)
        return 3;
    const int64_t start_ns = dsc_clock_ns();
    const dsc_status status = death_calls(d, comm, &err);
    const int64_t took_ns = dsc_clock_ns() - start_ns;
    dsc_comm_close(&comm);
    dsc_alloc_close(&alloc);
    if (status == DSC_ERR_PEER && err.rank == 1 && strstr(err.message, "rank 1 (pid ") != NULL && in_time(took_ns, 1.0))
        return 0;
    fprintf(stderr, "# death %d: rank %d: status %d after %.2f s: %s\n", d->where, rank, (int)status,
            (double)took_ns * 1e-9, err.message);
    return 1;
}

static void one_death(ranks_kind kind, int where, int32_t size, bool no_calls)
{
    char token[64];
    pid_t pids[8];
    ranks_token(token, sizeof token);
    const death d = { .kind = kind, .where = where, .size = size, .token = token, .no_calls = no_calls };
    fflush(NULL);
    for (int32_t r = 0; r < size; r++) {
        pids[r] = fork();
        if (pids[r] == 0)
            _exit(death_rank(&d, r));
    }
    for (int32_t r = 0; r < size; r++) {
        /* Rank 1 stays a zombie until the others have ended: nobody may need it reaped to notice. */
        const int32_t which = r == 1 ? size : r;
        int status = 0;
        if (which < size && (waitpid(pids[which], &status, 0) != pids[which] || status != 0))
            fail_msg("death %d of %d ranks: rank %d ended with %#x", where, size, which, (unsigned)status);
    }
    int status = 0;
    waitpid(pids[1], &status, 0);
    assert_true(WIFSIGNALED(status));
}

static void test_death(void **state)
{
    for (int where = 0; where < 3; where++)
        one_death(RANKS_SHM_PROCESSES, where, 3, false);
    one_death(RANKS_SHM_PROCESSES, 1, 2, false);
}

static void test_death_without_pidfd(void **state)
{
    one_death(RANKS_SHM_PROCESSES, 0, 2, true);
    one_death(RANKS_SHM_PROCESSES, 1, 3, true);
}

static void test_death_tcp(void **state)
{
    for (int where = 0; where < 3; where++)
        one_death(RANKS_TCP, where, 3, false);
    one_death(RANKS_TCP, 1, 2, false);
}

static void test_death_hier(void **state)
{
    for (int where = 0; where < 3; where++)
        for (int32_t size = 3; size <= 4; size++)
            one_death(RANKS_HIER, where, size, false);
}

/* ---- a rank that is stopped -------------------------------------------------------------------------------------- */

/* Rank 1 is stopped; everybody else names it, and only it, soon after the timeout. */
static int stopped_rank(const death *d, int32_t rank)
{
    dsc_error err = DSC_ERROR_INIT;
    dsc_alloc *alloc = NULL;
    dsc_comm *comm = NULL;
    dsc_comm_options options;
    const ranks_run run = { .kind = d->kind, .size = d->size, .timeout_ns = short_timeout_ns() };
    if (dsc_alloc_open(&alloc, &err) != DSC_OK)
        return 2;
    ranks_options(&run, rank, alloc, NULL, d->token, &options);
    if (dsc_comm_open(&options, &comm, &err) != DSC_OK)
        return 3;
    if (dsc_comm_barrier(comm, 0, NULL, &err) != DSC_OK) /* the timeout begins for all at once */
        return 4;
    if (rank == 1)
        raise(SIGSTOP);
    const int64_t start_ns = dsc_clock_ns();
    const dsc_status status = d->where == 1 ? long_gather(comm, &err) : dsc_comm_barrier(comm, 0, NULL, &err);
    const int64_t took_ns = dsc_clock_ns() - start_ns;
    dsc_comm_close(&comm);
    dsc_alloc_close(&alloc);
    if (status == DSC_ERR_STUCK && err.rank == 1 && strstr(err.message, "for rank 1") != NULL &&
        strstr(err.message, "1, ") == NULL && strstr(err.message, ", 1") == NULL && in_time(took_ns, 2.5))
        return 0;
    fprintf(stderr, "# stopped: rank %d: status %d, rank %d after %.2f s: %s\n", rank, (int)status, err.rank,
            (double)took_ns * 1e-9, err.message);
    return 1;
}

static void one_stopped(ranks_kind kind, int where, int32_t size)
{
    char token[64];
    pid_t pids[8] = {0};
    ranks_token(token, sizeof token);
    const death d = { .kind = kind, .where = where, .size = size, .token = token };
    fflush(NULL);
    for (int32_t r = 0; r < size; r++) {
        pids[r] = fork();
        if (pids[r] == 0)
            _exit(stopped_rank(&d, r));
    }
    int bad = 0;
    for (int32_t r = 0; r < size; r++) {
        int status = 0;
        if (r != 1)
            bad += waitpid(pids[r], &status, 0) != pids[r] || status != 0;
    }
    kill(pids[1], SIGKILL);
    waitpid(pids[1], NULL, 0);
    if (bad != 0)
        fail_msg("%s, %d ranks, place %d", ranks_kind_text(kind), size, where);
}

static void test_stopped(void **state)
{
    static const ranks_kind kinds[] = { RANKS_SHM_PROCESSES, RANKS_TCP, RANKS_HIER };
    for (size_t k = 0; k < DSC_COUNT(kinds); k++)
        for (int where = 0; where < 2; where++)
            one_stopped(kinds[k], where, 3);
}

/* ---- a rank that waits elsewhere --------------------------------------------------------------------------------- */

static void *elsewhere_main(void *arg)
{
    dsc_shm_barrier *barrier = arg;
    const dsc_shm_barrier_entry entry = { .call.op = DSC_COMM_BARRIER };
    const int64_t until_ns = dsc_clock_ns() + 2 * short_timeout_ns();
    while (dsc_clock_ns() < until_ns) { /* a slow link that gets on */
        dsc_clock_sleep_ns(SECOND / 20);
        dsc_shm_barrier_progressed(barrier, 0);
    }
    return dsc_shm_barrier_wait(barrier, 0, &entry, NULL) == DSC_OK ? NULL : arg;
}

/* It takes twice the timeout; the others know that it gets on. Then it stops getting on. */
static void test_slow_elsewhere(void **state)
{
    static const int32_t called[] = { 4, 7 };
    dsc_shm_barrier barrier[2];
    dsc_error err = DSC_ERROR_INIT;
    const dsc_shm_barrier_entry entry = { .call.op = DSC_COMM_BARRIER };
    pthread_t thread;
    void *failed = NULL, *memory = aligned_alloc(64, (size_t)dsc_align_up(dsc_shm_barrier_bytes(2, 1), 64));
    assert_non_null(memory);
    dsc_shm_barrier_init(memory, 2, 1);
    for (int32_t r = 0; r < 2; r++) {
        dsc_shm_barrier_attach(&barrier[r], memory, r, false, short_timeout_ns());
        barrier[r].called = called;
    }
    assert_int_equal(pthread_create(&thread, NULL, elsewhere_main, &barrier[1]), 0);
    assert_int_equal(dsc_shm_barrier_wait(&barrier[0], 0, &entry, NULL), DSC_OK);
    pthread_join(thread, &failed);
    assert_null(failed);
    assert_int_equal(dsc_shm_barrier_wait(&barrier[0], 0, &entry, &err), DSC_ERR_STUCK);
    char words[100];
    snprintf(words, sizeof words, "rank 4 waited %.1f s in barrier (call 0 on channel 0) for rank 7",
             (double)short_timeout_ns() * 1e-9);
    assert_non_null(strstr(err.message, words));
    assert_int_equal(err.rank, 7);
    free(memory);
}

/* ---- a peer that shows the wrong files --------------------------------------------------------------------------- */

static dsc_status map_nothing(void *user, uint64_t epoch, const int *file, dsc_error *err) { return DSC_OK; }

/* Rank 1 knows the key and the protocol, but its memory file is not sealed: it could shrink under its readers. */
static void *unsealed_main(void *arg)
{
    const dsc_comm_options *options = arg;
    dsc_error err = DSC_ERROR_INIT;
    int file[3];
    const int memory = memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    dsc_rdv_job job = { .self = { .rank = 1,
                                  .size = 2,
                                  .pid = (int32_t)getpid(),
                                  .agree = { options->channel_count, 2 * dsc_probe_shm_plan_bytes(options) },
                                  .agree_name = { "channels", "bytes" },
                                  .timeout_ns = 5 * SECOND },
                        .token = options->rank_info.job_token,
                        .host = options->rank_info.master_addr,
                        .port = options->rank_info.master_port };
    snprintf(job.self.build, sizeof job.self.build, "dsc %s", DSC_VERSION_TEXT);
    const dsc_status status = dsc_rdv_run(&job, -1, memory, map_nothing, NULL, file, &err);
    close(memory);
    return status == DSC_ERR_PEER && strstr(err.message, "sealed") != NULL ? NULL : arg;
}

static void test_unsealed(void **state)
{
    char token[64];
    dsc_alloc *alloc = NULL;
    dsc_comm *comm = NULL;
    dsc_comm_options options;
    dsc_error err = DSC_ERROR_INIT;
    pthread_t thread;
    void *failed = NULL;
    const ranks_run run = { .kind = RANKS_SHM_THREADS, .size = 2 };
    ranks_token(token, sizeof token);
    assert_int_equal(dsc_alloc_open(&alloc, NULL), DSC_OK);
    ranks_options(&run, 0, alloc, NULL, token, &options);
    assert_int_equal(pthread_create(&thread, NULL, unsealed_main, &options), 0);
    assert_int_equal(dsc_comm_open(&options, &comm, &err), DSC_ERR_COMM);
    assert_non_null(strstr(err.message, "sealed"));
    pthread_join(thread, &failed);
    assert_null(failed);
    dsc_alloc_close(&alloc);
}

/* ---- memory of a rank that failed -------------------------------------------------------------------------------- */

/* Threads read each other's buffers in place. A rank whose call failed frees its memory at once, as an engine that
 * closes does; who was reading it must be done by then. */
enum { GONE_BYTES = 24 << 20 };
typedef struct gone {
    bool by_mail; /* else a broadcast; rank 1's bytes either way */
    int64_t delay_ns;
    atomic_bool reader_started;
} gone;

typedef struct aborter {
    dsc_comm *comm;
    gone *gone;
} aborter;

static void *abort_soon(void *arg)
{
    const aborter *a = arg;
    while (!atomic_load(&a->gone->reader_started))
        dsc_clock_sleep_ns(10000);
    dsc_clock_sleep_ns(a->gone->delay_ns);
    dsc_comm_abort(a->comm, "rank 1 ends");
    return NULL;
}

static int gone_body(dsc_comm *comm, void *user)
{
    gone *g = user;
    const int32_t rank = dsc_comm_rank(comm);
    aborter a = { comm, g };
    pthread_t thread;
    void *memory = mmap(NULL, GONE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    RANKS_CHECK(memory != MAP_FAILED);
    if (rank == 1) {
        memset(memory, 1, GONE_BYTES);
        RANKS_CHECK(pthread_create(&thread, NULL, abort_soon, &a) == 0);
    }
    if (rank == 0)
        atomic_store(&g->reader_started, true);
    dsc_status status;
    if (!g->by_mail)
        status = dsc_comm_broadcast(comm, 0, memory, GONE_BYTES, 1, NULL, NULL);
    else if (rank == 1)
        status = dsc_comm_send(comm, 0, memory, GONE_BYTES, 0, NULL, NULL);
    else
        status = dsc_comm_recv(comm, 0, memory, GONE_BYTES, 1, NULL, NULL);
    munmap(memory, GONE_BYTES);
    if (rank == 1)
        pthread_join(thread, NULL);
    RANKS_CHECK(status == DSC_OK || status == DSC_ERR_PEER);
    return 0;
}

static void test_memory_of_a_failed_rank(void **state)
{
    for (int by_mail = 0; by_mail < 2; by_mail++)
        for (int64_t delay_us = 0; delay_us <= 4000; delay_us += 500) {
            gone g = { .by_mail = by_mail != 0, .delay_ns = delay_us * 1000 };
            const ranks_run run = { .kind = RANKS_LOCAL, .size = 2, .body = gone_body, .user = &g };
            assert_int_equal(ranks_go(&run), 0);
        }
}

/* ---- all of it with gloo ----------------------------------------------------------------------------------------- */

static void test_gloo(void **state)
{
    dsc_error why = DSC_ERROR_INIT;
    if (!ranks_have(RANKS_GLOO, &why)) {
        print_message("# %s\n", why.message);
        skip();
    }
    play_all(RANKS_GLOO);
    sweep(RANKS_GLOO, 3);
    starve_all(RANKS_GLOO_THREADS, 3);
    for (int where = 0; where < 3; where++)
        one_death(RANKS_GLOO, where, 3, false);
    one_death(RANKS_GLOO, 1, 2, false);
    for (int where = 0; where < 2; where++)
        one_stopped(RANKS_GLOO, where, 3);
}

/* Under mpirun: this process is one rank of one scene. */
static int mpi_rank(const char *mode)
{
    const int s = atoi(mode);
    play p = plays[s >= 0 && s < SCENE_COUNT ? s : 0];
    if (p.scene == SCENE_LATE)
        p.timeout_ns = short_timeout_ns(), p.words[2] = short_timeout_text();
    const ranks_run run = {
        .kind = RANKS_MPI, .channel_count = 2, .timeout_ns = p.timeout_ns, .body = play_body, .user = &p
    };
    const int failed = ranks_go(&run);
    ranks_mpi_done(failed);
    return failed != 0;
}

static void test_mpi(void **state)
{
    dsc_error why = DSC_ERROR_INIT;
    if (!ranks_have(RANKS_MPI, &why)) {
        print_message("# %s\n", why.message);
        skip();
    }
    for (int s = 0; s < SCENE_COUNT; s++) {
        char mode[12];
        snprintf(mode, sizeof mode, "%d", s);
        const int status = ranks_mpirun(3, mode);
        if (status == 77) {
            print_message("# no mpirun here\n");
            skip();
        }
        if (status != 0)
            fail_msg("mpi, scene %d", s);
    }
}

int main(int argc, char **argv)
{
    if (argc > 2 && strcmp(argv[1], "mpi") == 0)
        return mpi_rank(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scenes_local),
        cmocka_unit_test(test_scenes_shm),
        cmocka_unit_test(test_scenes_tcp),
        cmocka_unit_test(test_scenes_hier),
        cmocka_unit_test(test_fault_sweep),
        cmocka_unit_test(test_memory_of_a_failed_rank),
        cmocka_unit_test(test_starved_open),
        cmocka_unit_test(test_unsealed),
        cmocka_unit_test(test_death),
        cmocka_unit_test(test_death_without_pidfd),
        cmocka_unit_test(test_death_tcp),
        cmocka_unit_test(test_death_hier),
        cmocka_unit_test(test_stopped),
        cmocka_unit_test(test_slow_elsewhere),
        cmocka_unit_test(test_gloo),
        cmocka_unit_test(test_mpi),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
