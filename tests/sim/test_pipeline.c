/* test_pipeline.c - sums of two simulated GPUs in chunks: casts and folds run on a second stream beside exchanges.
 *
 * The bits are those of the host's communicator, under every schedule. Each wait between the two streams is left out,
 * and the simulator's tracking must report each one. A call that NCCL refuses in the middle leaves nothing behind.
 * The same sums run by copy engines over symmetric windows, and with versions of NCCL that have neither.
 * SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "comm/comm.h"
#include "tests/sim/cusim.h"
#include "tests/support/run_expect.h"

#define RANKS 2
#define STAGING 32768 /* four slots of 4096 bf16 elements */
#define COUNT 20001   /* of a rank's slice: 10 chunks of 2048 pieces, the last one shorter */
#define STRIDE 20016
#define VIOLATION 98

typedef struct world {
    dsc_local_world *threads;
    dsc_dtype wire;
    bool apart;
    int64_t count, dropped; /* dropped: this wait of GPU 0's streams, counted from the sum on; -1: none */
    dsc_nccl_wishes nccl;
    int warnings;           /* that rank 0 logged */
    char warning[512];      /* the last one */
    const char *refused;    /* function of NCCL that refuses its next call; NULL: none */
    int64_t waits;          /* of GPU 0's streams in the sum */
    dsc_status status[RANKS];
    dsc_error error[RANKS];
    float gpu[RANKS][RANKS * STRIDE], cpu[RANKS][RANKS * STRIDE]; /* by rank; apart: the leaves of all, else the sum */
} world;

typedef struct member {
    world *w;
    int32_t rank;
    dsc_alloc *alloc;
    dsc_device *device;
    dsc_stream *stream;
    dsc_comm *host, *comm;
    dsc_buf leaf, acc, pinned;
} member;

static float value(int32_t rank, int64_t i)
{
    return (float)(rank + 1) * 0.37f + (float)((i * 2654435761u) % 9973u) * 1e-3f;
}

static void on_log(void *user, dsc_log_level level, const char *text)
{
    world *w = user;
    if (level != DSC_LOG_WARNING)
        return;
    w->warnings++;
    snprintf(w->warning, sizeof w->warning, "%s", text);
}

static dsc_status open_all(member *m, dsc_error *err)
{
    const dsc_device_ops *ops = NULL;
    int32_t count = 0;
    dsc_comm_options options = { .rank_info = { .rank = m->rank,
                                                .size = RANKS,
                                                .local_rank = m->rank,
                                                .local_size = RANKS,
                                                .node_count = 1,
                                                .job_token = "",
                                                .local_world = m->w->threads },
                                 .transport = "auto",
                                 .channel_count = 1,
                                 .staging_bytes = STAGING,
                                 .timeout_ns = INT64_C(20000000000) };
    const int64_t bytes = (int64_t)RANKS * STRIDE * 4;
    const dsc_log log = { on_log, m->w };
    DSC_TRY(dsc_alloc_open(&m->alloc, err));
    options.alloc = m->alloc;
    options.nccl = m->w->nccl;
    DSC_TRY(dsc_device_find("cuda", &ops, &count, err));
    DSC_TRY(dsc_device_open(ops, &m->device,
                            &(dsc_device_options){ .alloc = m->alloc, .threads = 1, .index = m->rank }, err));
    DSC_TRY(dsc_stream_open(m->device, DSC_STREAM_ASYNC, "reduce", &m->stream, err));
    DSC_TRY(dsc_comm_open(&options, &m->host, err));
    options.device = m->device;
    options.host = m->host;
    options.log = m->rank == 0 ? &log : NULL;
    DSC_TRY(dsc_comm_open(&options, &m->comm, err));
    DSC_TRY(dsc_comm_mem_open(m->comm, DSC_TAG_LEAF, bytes, &m->leaf, err));
    DSC_TRY(dsc_comm_mem_open(m->comm, DSC_TAG_LEAF, bytes, &m->acc, err));
    return dsc_mem_open(m->device, DSC_TAG_LEAF, DSC_TIER_PINNED, 2 * bytes, &m->pinned, err);
}

static void args_of(const member *m, float *leaf, float *acc, float **apart, dsc_reduce_scatter_args *out)
{
    for (int32_t r = 0; r < RANKS; r++)
        apart[r] = acc + r * STRIDE;
    *out = (dsc_reduce_scatter_args){ .acc = m->w->apart ? NULL : acc,
                                      .leaf = leaf,
                                      .leaf_stride = STRIDE,
                                      .count = m->w->count,
                                      .wire_dtype = m->w->wire,
                                      .overwrite = false,
                                      .apart = m->w->apart ? apart : NULL };
}

/* The same over host memory: what all transports give. */
static dsc_status sum_on_host(member *m, dsc_error *err)
{
    static float leaf[RANKS][RANKS * STRIDE];
    float *apart[RANKS];
    dsc_reduce_scatter_args args;
    for (int64_t i = 0; i < (int64_t)RANKS * STRIDE; i++)
        leaf[m->rank][i] = value(m->rank, i);
    for (int64_t i = 0; i < (int64_t)RANKS * STRIDE; i++)
        m->w->cpu[m->rank][i] = 0.25f;
    args_of(m, leaf[m->rank], m->w->cpu[m->rank], apart, &args);
    return dsc_comm_reduce_scatter(m->host, 0, &args, NULL, err);
}

static dsc_status sum_once(member *m, const dsc_reduce_scatter_args *args, dsc_error *err)
{
    const int64_t bytes = (int64_t)RANKS * STRIDE * 4;
    const char *pinned = m->pinned.ptr;
    DSC_TRY(dsc_copy(m->stream, m->leaf.ptr, pinned, bytes, err));
    DSC_TRY(dsc_copy(m->stream, m->acc.ptr, pinned + bytes, bytes, err));
    return dsc_comm_reduce_scatter(m->comm, 0, args, m->stream, err);
}

/* Twice, so that a second sum reuses the slots of the first. The stream makes the leaves and sums just before. */
static dsc_status sum_on_gpu(member *m, dsc_error *err)
{
    float *apart[RANKS], *pinned = m->pinned.ptr;
    dsc_reduce_scatter_args args;
    for (int64_t i = 0; i < (int64_t)RANKS * STRIDE; i++) {
        pinned[i] = value(m->rank, i);
        pinned[RANKS * STRIDE + i] = 0.25f;
    }
    args_of(m, m->leaf.ptr, m->acc.ptr, apart, &args);
    if (m->rank == 0)
        (void)cusim_plant(CUSIM_DROP_WAIT, 0, m->w->dropped);
    if (m->rank == 1 && m->w->refused != NULL)
        cusim_fail_kernel(1, m->w->refused);
    DSC_TRY(sum_once(m, &args, err));
    DSC_TRY(sum_once(m, &args, err));
    DSC_TRY(dsc_copy(m->stream, pinned, m->acc.ptr, m->acc.bytes, err));
    DSC_TRY(dsc_stream_sync(m->stream, err));
    if (m->rank == 0)
        m->w->waits = cusim_plant(CUSIM_DROP_WAIT, 0, -1);
    memcpy(m->w->gpu[m->rank], pinned, (size_t)m->acc.bytes);
    return DSC_OK;
}

static void close_all(member *m)
{
    dsc_stream_close(&m->stream);
    if (m->device != NULL) {
        if (m->comm != NULL) {
            dsc_comm_mem_close(m->comm, &m->leaf);
            dsc_comm_mem_close(m->comm, &m->acc);
        }
        dsc_mem_close(m->device, &m->pinned);
    }
    dsc_comm_close(&m->comm);
    dsc_comm_close(&m->host);
    dsc_device_close(&m->device);
    dsc_alloc_close(&m->alloc);
}

static void *member_main(void *argument)
{
    member *m = argument;
    dsc_error *err = &m->w->error[m->rank];
    *err = (dsc_error)DSC_ERROR_INIT;
    dsc_status status = open_all(m, err);
    if (status == DSC_OK)
        status = sum_on_host(m, err);
    if (status == DSC_OK)
        status = sum_on_gpu(m, err);
    if (status != DSC_OK && m->comm != NULL)
        dsc_comm_abort(m->comm, err->message);
    m->w->status[m->rank] = status;
    close_all(m);
    return NULL;
}

static void run(world *w)
{
    pthread_t thread[RANKS];
    member m[RANKS];
    memset(m, 0, sizeof m);
    assert_int_equal(dsc_local_world_open(RANKS, &w->threads, NULL), DSC_OK);
    for (int32_t r = 0; r < RANKS; r++) {
        m[r] = (member){ .w = w, .rank = r };
        assert_int_equal(pthread_create(&thread[r], NULL, member_main, &m[r]), 0);
    }
    for (int32_t r = 0; r < RANKS; r++)
        pthread_join(thread[r], NULL);
    dsc_local_world_close(&w->threads);
}

static void expect_host_bits(const world *w)
{
    for (int32_t r = 0; r < RANKS; r++) {
        if (w->status[r] != DSC_OK)
            print_error("rank %d: %s: %s\n", (int)r, w->error[r].where, w->error[r].message);
        assert_int_equal(w->status[r], DSC_OK);
        for (int32_t part = 0; part < (w->apart ? RANKS : 1); part++)
            assert_memory_equal(w->gpu[r] + part * STRIDE, w->cpu[r] + part * STRIDE, (size_t)w->count * 4);
    }
}

static void chunks_give_the_hosts_bits(void **state)
{
    static world w;
    static const int64_t counts[] = { COUNT, 4096, 4097, 1, 0 };
    if (run_most_ranks(RANKS) < RANKS || !cusim_present())
        skip();
    for (int policy = CUSIM_RANDOM; policy <= CUSIM_COMPUTE_FIRST; policy++)
        for (size_t c = 0; c < DSC_COUNT(counts); c++) {
            cusim_set_schedule((uint64_t)policy, (cusim_policy)policy);
            w = (world){ .wire = policy % 2 == 0 ? DSC_BF16 : DSC_F32,
                         .apart = c == 0 && policy > 2,
                         .count = counts[c],
                         .dropped = -1 };
            run(&w);
            expect_host_bits(&w);
        }
}

/* The exit code of a process in which that wait is missing. */
static int without_wait(world *w, int64_t dropped)
{
    int status = 0;
    fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (dropped >= 0 && freopen("/dev/null", "w", stderr) == NULL)
            _exit(3);
        alarm(60);
        cusim_set_schedule(1, CUSIM_RANDOM);
        w->dropped = dropped;
        run(w);
        _exit(w->status[0] == DSC_OK && w->status[1] == DSC_OK ? 0 : 3);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Each sum has one wait at its begin, one for each packed and each exchanged chunk, and one at its end. */
static void every_wait_between_the_streams(void **state)
{
    if (run_most_ranks(RANKS) < RANKS || !cusim_present() || !cusim_tracks_kernels())
        skip();
    world *w = mmap(NULL, sizeof *w, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(w != MAP_FAILED);
    const int64_t chunks = 3;
    *w = (world){ .wire = DSC_BF16, .count = chunks * 2048 };
    assert_int_equal(without_wait(w, -1), 0);
    const int64_t waits = 2 * (2 * chunks + 2);
    assert_int_equal(w->waits, waits);
    for (int64_t n = 0; n < waits; n++) {
        const int code = without_wait(w, n);
        if (code != VIOLATION)
            print_error("wait %d of %d is left out: exit code %d\n", (int)n, (int)waits, code);
        assert_int_equal(code, VIOLATION);
    }
    munmap(w, sizeof *w);
}

static void a_refused_exchange_leaves_nothing(void **state)
{
    static world w;
    if (run_most_ranks(RANKS) < RANKS || !cusim_present())
        skip();
    const int64_t before = cusim_left();
    w = (world){ .wire = DSC_BF16, .count = COUNT, .dropped = -1, .refused = "ncclSend" };
    run(&w);
    assert_int_equal(w.status[1], DSC_ERR_COMM);
    assert_int_equal(w.status[0], DSC_ERR_PEER);
    assert_int_equal(cusim_left(), before);
}

/* ---- settings of NCCL, and its windows ---- */

static const dsc_nccl_wishes by_copies = {
    .min_ctas = 2, .max_ctas = 8, .policy = DSC_NCCL_POLICY_ZERO, .network = "Socket"
};

/* Every NCCL gives the same bits; one without all of it leaves it out with one warning. */
static void settings_by_version(void **state)
{
    static world w;
    static const struct {
        int version, policy;
        bool windows, copies;
        const char *missing;
    } cases[] = {
        { 22809, 2, true, true, NULL },
        { 22703, 0, true, false, "without cta_policy \"zero\" (2.28)" },
        { 22304, 0, false, false, "symmetric_windows (2.27)" },
    };
    if (run_most_ranks(RANKS) < RANKS || !cusim_present())
        skip();
    for (size_t c = 0; c < DSC_COUNT(cases); c++) {
        const uint64_t windows = cusim_nccl_windows(), copies = cusim_nccl_copied();
        const int64_t before = cusim_left();
        cusim_nccl_config config;
        cusim_set_nccl(cases[c].version);
        cusim_set_schedule(c, CUSIM_RANDOM);
        w = (world){ .wire = DSC_BF16, .count = COUNT, .dropped = -1, .nccl = by_copies };
        w.nccl.symmetric = true;
        run(&w);
        expect_host_bits(&w);
        cusim_nccl_last_config(&config);
        assert_int_equal(config.min_ctas, 2);
        assert_int_equal(config.max_ctas, 8);
        assert_int_equal(config.policy, cases[c].policy);
        assert_int_equal(config.blocking, 0);
        assert_string_equal(config.network, "Socket");
        assert_int_equal(cusim_nccl_windows() - windows, cases[c].windows ? 3 * RANKS : 0); /* staging, leaves, sum */
        assert_true((cusim_nccl_copied() > copies) == cases[c].copies);
        assert_int_equal(w.warnings, cases[c].missing != NULL);
        assert_true(cases[c].missing == NULL || strstr(w.warning, cases[c].missing) != NULL);
        assert_int_equal(cusim_left(), before);
    }
    cusim_set_nccl(22809);
}

static void calls_that_block(void **state)
{
    static world w;
    cusim_nccl_config config;
    if (run_most_ranks(RANKS) < RANKS || !cusim_present())
        skip();
    w = (world){ .wire = DSC_F32, .count = COUNT, .dropped = -1, .nccl = { .blocking = true, .symmetric = true } };
    run(&w);
    expect_host_bits(&w);
    cusim_nccl_last_config(&config);
    assert_int_equal(config.blocking, 1);
    assert_int_equal(config.min_ctas, INT32_MIN);
}

/* Memory of a window, or a call by copy engines, that one rank does not get. */
static void refused_windows_leave_nothing(void **state)
{
    static world w;
    if (run_most_ranks(RANKS) < RANKS || !cusim_present())
        skip();
    const int64_t before = cusim_left();
    w = (world){ .wire = DSC_BF16, .count = COUNT, .dropped = -1, .refused = "ncclAlltoAll", .nccl = by_copies };
    run(&w);
    assert_int_equal(w.status[1], DSC_ERR_COMM);
    assert_int_equal(w.status[0], DSC_ERR_PEER);
    assert_int_equal(cusim_left(), before);
    for (int64_t n = 0; n < 12; n++) {
        w = (world){ .wire = DSC_BF16, .count = 0, .dropped = -1, .nccl = by_copies };
        (void)cusim_plant(CUSIM_FAIL_MALLOC, 1, n);
        run(&w);
        const int64_t asked = cusim_plant(CUSIM_FAIL_MALLOC, 1, -1);
        assert_int_equal(w.status[1], asked > n ? DSC_ERR_NOMEM : DSC_OK);
        assert_true(asked > n ? w.status[0] == DSC_ERR_PEER : w.status[0] == DSC_OK);
        assert_int_equal(cusim_left(), before);
        if (asked <= n)
            return;
    }
    fail_msg("more allocations than a communicator and three buffers need");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_wait_between_the_streams), /* first: its children start with no device in use */
        cmocka_unit_test(chunks_give_the_hosts_bits),
        cmocka_unit_test(a_refused_exchange_leaves_nothing),
        cmocka_unit_test(settings_by_version),
        cmocka_unit_test(calls_that_block),
        cmocka_unit_test(refused_windows_leave_nothing),
    };
    return cmocka_run_group_tests_name("sums in chunks on simulated GPUs", tests, NULL, NULL);
}
