/* test_comm.c - every collective of every transport against plain loops, bit for bit.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <pthread.h>
#include <unistd.h>

#include "base/bf16.h"
#include "tests/support/ranks.h"

#define SEED UINT64_C(20240607)

static uint32_t bits_of(uint32_t which, int32_t rank, int64_t i)
{
    uint64_t x = SEED + ((uint64_t)which << 56) + ((uint64_t)rank << 48) + (uint64_t)i * 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)(x >> 32);
}

/* Element i of rank `rank` in test `which`: signs and exponents that make the order of a sum matter. */
static float value(uint32_t which, int32_t rank, int64_t i)
{
    const uint32_t bits = bits_of(which, rank, i);
    const float x = (float)(int32_t)bits * 0x1p-31f;
    return (bits & 7) == 0 ? x * 4096.0f : x;
}

static uint8_t byte_value(uint32_t which, int32_t rank, int64_t i) { return (uint8_t)bits_of(which, rank, i); }

static float wire(float x, dsc_dtype dtype) { return dtype == DSC_BF16 ? dsc_f32_from_bf16(dsc_bf16_from_f32(x)) : x; }

/* The fold as exact.h writes it. */
static float folded(uint32_t which, int32_t size, int64_t i, dsc_dtype dtype, bool overwrite, float acc)
{
    float s = wire(value(which, 0, i), dtype);
    if (!overwrite)
        s = acc + s;
    for (int32_t r = 1; r < size; r++)
        s = s + wire(value(which, r, i), dtype);
    return s;
}

static bool same(float a, float b) { return memcmp(&a, &b, 4) == 0; }

/* Sizes in bytes or elements: nothing, less than a vector, odd, staging borders, several chunks. */
static const int64_t lengths[] = { 0, 1, 3, 17, 1000, 1025, 4099, 100003 };

/* Source of buffers: dsc_comm_mem_open gives memory that peers may read in place; MIXED: on odd ranks only. */
typedef enum memory { PLAIN, SHARED, MIXED } memory;
typedef struct shape { memory memory; } shape;

static dsc_buf buffer(dsc_comm *comm, bool shared, dsc_alloc *alloc, int64_t bytes)
{
    dsc_buf buf = { 0 };
    const dsc_status status = shared ? dsc_comm_mem_open(comm, DSC_TAG_LEAF, bytes + 64, &buf, NULL)
                                     : dsc_buf_open(alloc, DSC_TAG_LEAF, DSC_TIER_HOST, bytes + 64, &buf, NULL);
    if (status != DSC_OK)
        abort();
    memset(buf.ptr, 0x5a, (size_t)bytes + 64);
    return buf;
}

static void release(dsc_comm *comm, bool shared, dsc_buf *buf)
{
    const uint8_t *end = (uint8_t *)buf->ptr + buf->bytes - 64;
    for (int64_t i = 0; i < 64 && buf->bytes >= 64; i++)
        if (end[i] != 0x5a) {
            fprintf(stderr, "# a collective wrote past its buffer\n");
            abort();
        }
    if (shared)
        dsc_comm_mem_close(comm, buf);
    else
        dsc_buf_close(buf);
}

static int all_gather_one(dsc_comm *comm, dsc_alloc *alloc, int64_t bytes, bool shared, bool in_place)
{
    const int32_t rank = dsc_comm_rank(comm), size = dsc_comm_size(comm);
    dsc_buf recv = buffer(comm, shared, alloc, bytes * size), send = buffer(comm, shared, alloc, bytes);
    uint8_t *from = in_place ? (uint8_t *)recv.ptr + rank * bytes : send.ptr;
    for (int64_t i = 0; i < bytes; i++)
        from[i] = byte_value(1, rank, i);
    RANKS_TRY(dsc_comm_all_gather(comm, 0, recv.ptr, from, bytes, DSC_U8, NULL, err));
    memset(send.ptr, 0, (size_t)bytes); /* a peer that still reads would see it */
    const uint8_t *got = recv.ptr;
    for (int32_t r = 0; r < size; r++)
        for (int64_t i = 0; i < bytes; i++)
            RANKS_CHECK(got[r * bytes + i] == byte_value(1, r, i));
    release(comm, shared, &recv);
    release(comm, shared, &send);
    return 0;
}

static int all_to_all_one(dsc_comm *comm, dsc_alloc *alloc, int64_t bytes, bool shared)
{
    const int32_t rank = dsc_comm_rank(comm), size = dsc_comm_size(comm);
    dsc_buf recv = buffer(comm, shared, alloc, bytes * size), send = buffer(comm, shared, alloc, bytes * size);
    for (int64_t i = 0; i < bytes * size; i++)
        ((uint8_t *)send.ptr)[i] = byte_value(2, rank, i);
    RANKS_TRY(dsc_comm_all_to_all(comm, 0, recv.ptr, send.ptr, bytes, NULL, err));
    memset(send.ptr, 0, (size_t)(bytes * size));
    const uint8_t *got = recv.ptr;
    for (int32_t r = 0; r < size; r++)
        for (int64_t i = 0; i < bytes; i++)
            RANKS_CHECK(got[r * bytes + i] == byte_value(2, r, rank * bytes + i));
    release(comm, shared, &recv);
    release(comm, shared, &send);
    return 0;
}

static int broadcast_one(dsc_comm *comm, dsc_alloc *alloc, int64_t bytes, bool shared, int32_t root)
{
    dsc_buf buf = buffer(comm, shared, alloc, bytes);
    uint8_t *p = buf.ptr;
    for (int64_t i = 0; i < bytes && dsc_comm_rank(comm) == root; i++)
        p[i] = byte_value(3, root, i);
    RANKS_TRY(dsc_comm_broadcast(comm, 0, p, bytes, root, NULL, err));
    for (int64_t i = 0; i < bytes; i++)
        RANKS_CHECK(p[i] == byte_value(3, root, i));
    release(comm, shared, &buf);
    return 0;
}

static int reduce_scatter_one(dsc_comm *comm, dsc_alloc *alloc, int64_t count, bool shared, dsc_dtype dtype,
                              bool overwrite)
{
    const int32_t rank = dsc_comm_rank(comm), size = dsc_comm_size(comm);
    const int64_t stride = count + (overwrite ? 5 : 0); /* pieces may touch */
    dsc_buf leaf = buffer(comm, shared, alloc, stride * size * 4), acc = buffer(comm, shared, alloc, count * 4);
    float *x = leaf.ptr, *sum = acc.ptr;
    for (int64_t i = 0; i < stride * size; i++)
        x[i] = value(4, rank, i);
    for (int64_t i = 0; i < count; i++)
        sum[i] = overwrite ? 77.0f : value(5, rank, i);
    const dsc_reduce_scatter_args args = {
        .acc = sum, .leaf = x, .leaf_stride = stride, .count = count, .wire_dtype = dtype, .overwrite = overwrite
    };
    RANKS_TRY(dsc_comm_reduce_scatter(comm, 0, &args, NULL, err));
    memset(x, 0, (size_t)(stride * size * 4));
    for (int64_t i = 0; i < count; i++)
        RANKS_CHECK(same(sum[i], folded(4, size, rank * stride + i, dtype, overwrite, value(5, rank, i))));
    release(comm, shared, &leaf);
    release(comm, shared, &acc);
    return 0;
}

static int apart_one(dsc_comm *comm, dsc_alloc *alloc, int64_t count, bool shared, dsc_dtype dtype)
{
    const int32_t rank = dsc_comm_rank(comm), size = dsc_comm_size(comm);
    dsc_buf leaf = buffer(comm, shared, alloc, count * size * 4), out = buffer(comm, false, alloc, count * size * 4);
    float *x = leaf.ptr, *apart[64];
    for (int64_t i = 0; i < count * size; i++)
        x[i] = value(6, rank, i);
    for (int32_t r = 0; r < size; r++)
        apart[r] = (float *)out.ptr + r * count;
    const dsc_reduce_scatter_args args = {
        .leaf = x, .leaf_stride = count, .count = count, .wire_dtype = dtype, .apart = apart
    };
    RANKS_TRY(dsc_comm_reduce_scatter(comm, 0, &args, NULL, err));
    for (int32_t r = 0; r < size; r++)
        for (int64_t i = 0; i < count; i++)
            RANKS_CHECK(same(apart[r][i], wire(value(6, r, rank * count + i), dtype)));
    release(comm, shared, &leaf);
    release(comm, false, &out);
    return 0;
}

static int all_reduce_one(dsc_comm *comm, dsc_alloc *alloc, int64_t count, bool shared, dsc_dtype dtype)
{
    const int32_t rank = dsc_comm_rank(comm), size = dsc_comm_size(comm);
    dsc_buf buf = buffer(comm, shared, alloc, count * 4);
    float *x = buf.ptr;
    for (int64_t i = 0; i < count; i++)
        x[i] = value(7, rank, i);
    RANKS_TRY(dsc_comm_all_reduce(comm, 0, x, count, dtype, NULL, err));
    for (int64_t i = 0; i < count; i++)
        RANKS_CHECK(same(x[i], folded(7, size, i, dtype, true, 0)));
    release(comm, shared, &buf);
    return 0;
}

/* A ring: odd ranks receive first. */
static int mail_one(dsc_comm *comm, dsc_alloc *alloc, int64_t bytes, bool shared)
{
    const int32_t rank = dsc_comm_rank(comm), size = dsc_comm_size(comm), to = (rank + 1) % size,
                  from = (rank + size - 1) % size;
    if (size == 1)
        return 0;
    dsc_buf out = buffer(comm, shared, alloc, bytes), in = buffer(comm, shared, alloc, bytes);
    for (int64_t i = 0; i < bytes; i++)
        ((uint8_t *)out.ptr)[i] = byte_value(8, rank, i);
    if (rank % 2 == 0) {
        RANKS_TRY(dsc_comm_send(comm, 0, out.ptr, bytes, to, NULL, err));
        RANKS_TRY(dsc_comm_recv(comm, 0, in.ptr, bytes, from, NULL, err));
    } else {
        RANKS_TRY(dsc_comm_recv(comm, 0, in.ptr, bytes, from, NULL, err));
        RANKS_TRY(dsc_comm_send(comm, 0, out.ptr, bytes, to, NULL, err));
    }
    for (int64_t i = 0; i < bytes; i++)
        RANKS_CHECK(((uint8_t *)in.ptr)[i] == byte_value(8, from, i));
    release(comm, shared, &out);
    release(comm, shared, &in);
    return 0;
}

static int every_operation(dsc_comm *comm, dsc_alloc *alloc, int64_t n, bool shared)
{
    int failed = all_gather_one(comm, alloc, n, shared, false) + all_gather_one(comm, alloc, n, shared, true) +
                 all_to_all_one(comm, alloc, n, shared) + broadcast_one(comm, alloc, n, shared, 0) +
                 broadcast_one(comm, alloc, n, shared, dsc_comm_size(comm) - 1) + mail_one(comm, alloc, n, shared);
    for (int d = 0; d < 2 && failed == 0; d++) {
        const dsc_dtype dtype = d == 0 ? DSC_F32 : DSC_BF16;
        failed += reduce_scatter_one(comm, alloc, n, shared, dtype, true) +
                  reduce_scatter_one(comm, alloc, n, shared, dtype, false) + apart_one(comm, alloc, n, shared, dtype) +
                  all_reduce_one(comm, alloc, n, shared, dtype);
    }
    RANKS_TRY(dsc_comm_barrier(comm, 0, NULL, err));
    return failed;
}

static int operations_body(dsc_comm *comm, void *user)
{
    const shape *s = user;
    dsc_alloc *alloc = NULL;
    RANKS_TRY(dsc_alloc_open(&alloc, err));
    int failed = 0;
    for (size_t i = 0; i < DSC_COUNT(lengths) && failed == 0; i++) {
        failed = every_operation(comm, alloc, lengths[i],
                                 s->memory == SHARED || (s->memory == MIXED && dsc_comm_rank(comm) % 2 == 1));
        if (failed != 0)
            fprintf(stderr, "# at length %lld\n", (long long)lengths[i]);
    }
    if (failed == 0)
        dsc_alloc_close(&alloc);
    return failed;
}

static const int32_t in_turn[] = { 0, 1, 0, 1 }; /* not numbered host by host */

static void run_hosts(ranks_kind kind, int32_t size, const int32_t *hosts, memory from, int64_t staging_bytes)
{
    shape s = { from };
    const ranks_run run = { .kind = kind,
                            .size = size,
                            .hosts = hosts,
                            .takes_less = hosts == in_turn,
                            .staging_bytes = staging_bytes,
                            .body = operations_body,
                            .user = &s };
    if (ranks_go(&run) != 0)
        fail_msg("%s, %d ranks, memory %d, %lld staging bytes", ranks_kind_text(kind), size, (int)from,
                 (long long)staging_bytes);
}

static void run_operations(ranks_kind kind, int32_t size, memory from, int64_t staging_bytes)
{
    run_hosts(kind, size, NULL, from, staging_bytes);
}

static void test_self(void **state)
{
    run_operations(RANKS_SELF, 1, PLAIN, 0);
}

static void test_local(void **state)
{
    static const int32_t sizes[] = { 1, 2, 3, 4, 8 };
    for (size_t i = 0; i < DSC_COUNT(sizes); i++)
        run_operations(RANKS_LOCAL, sizes[i], PLAIN, 0);
}

#if defined(__SANITIZE_THREAD__)
#define SHM_SIZES 3 /* slow, and it sees nothing between processes */
#else
#define SHM_SIZES 5
#endif

static void shm_matrix(ranks_kind kind)
{
    static const int32_t sizes[] = { 1, 2, 3, 4, 8 };
    for (size_t i = 0; i < SHM_SIZES; i++) {
        run_operations(kind, sizes[i], PLAIN, 0);
        run_operations(kind, sizes[i], SHARED, 0);
        run_operations(kind, sizes[i], MIXED, 8192); /* many chunks */
    }
}

static void test_shm_threads(void **state) { shm_matrix(RANKS_SHM_THREADS); }
static void test_shm_processes(void **state) { shm_matrix(RANKS_SHM_PROCESSES); }

/* Where peers' memory may not be read, everything goes through the staging. */
static void test_shm_strict(void **state)
{
    run_operations(RANKS_SHM_STRICT, 2, PLAIN, 8192);
    run_operations(RANKS_SHM_STRICT, 3, MIXED, 0);
}

static void test_tcp(void **state)
{
    static const int32_t sizes[] = { 1, 2, 3, 4, 8 };
    for (size_t i = 0; i < SHM_SIZES; i++) {
        run_operations(RANKS_TCP_THREADS, sizes[i], PLAIN, 0);
        run_operations(RANKS_TCP, sizes[i], PLAIN, sizes[i] == 3 ? 0 : 8192); /* one chunk, many chunks */
    }
}

/* cmocka counts it as skipped; the reason stands above it. */
static void need(ranks_kind kind)
{
    dsc_error why = DSC_ERROR_INIT;
    if (!ranks_have(kind, &why)) {
        print_message("# %s\n", why.message);
        skip();
    }
}

static void test_gloo(void **state)
{
    static const int32_t sizes[] = { 1, 2, 3, 4, 8 };
    need(RANKS_GLOO);
    for (size_t i = 0; i < SHM_SIZES; i++) {
        run_operations(RANKS_GLOO_THREADS, sizes[i], PLAIN, 0);
        run_operations(RANKS_GLOO, sizes[i], PLAIN, sizes[i] == 3 ? 0 : 8192);
    }
}

static void channels(ranks_kind kind);
static void test_gloo_channels(void **state)
{
    need(RANKS_GLOO);
    channels(RANKS_GLOO);
}

/* A transport without a reduce_scatter: the front builds it from all_to_all, with the same bits. */
static void test_front_reduces(void **state)
{
    static const int32_t sizes[] = { 2, 3 };
    dsc_comm_ops ops = dsc_comm_local;
    ops.reduce_scatter = NULL;
    shape s = { PLAIN };
    for (size_t i = 0; i < DSC_COUNT(sizes); i++) {
        const ranks_run run = { .kind = RANKS_LOCAL,
                                .size = sizes[i],
                                .staging_bytes = 5000,
                                .ops = &ops,
                                .body = operations_body,
                                .user = &s };
        assert_int_equal(ranks_go(&run), 0);
    }
}

/* ---- streams and channels ---------------------------------------------------------------------------------------- */

typedef struct lane {
    dsc_stream *stream;
    float *sum, *leaf;
    uint8_t *gathered;
} lane;

enum { LANES = 3, LANE_COUNT = 5003, LANE_ROUNDS = 20 };

static dsc_status lane_work(dsc_comm *comm, lane *l, int32_t channel, int round, dsc_error *err)
{
    const int32_t size = dsc_comm_size(comm), rank = dsc_comm_rank(comm);
    const dsc_reduce_scatter_args args = { .acc = l->sum,
                                           .leaf = l->leaf,
                                           .leaf_stride = LANE_COUNT,
                                           .count = LANE_COUNT,
                                           .wire_dtype = DSC_BF16,
                                           .overwrite = round == 0 };
    DSC_TRY(dsc_comm_reduce_scatter(comm, channel, &args, l->stream, err));
    DSC_TRY(dsc_comm_all_gather(comm, channel, l->gathered, l->gathered + rank * 1000, 1000, DSC_U8, l->stream, err));
    if (size > 1 && channel == 2)
        DSC_TRY(rank == 0 ? dsc_comm_send(comm, channel, l->leaf, 64, size - 1, l->stream, err)
                : rank == size - 1
                    ? dsc_comm_recv(comm, channel, l->gathered + rank * 1000 + 100, 64, 0, l->stream, err)
                    : DSC_OK);
    return dsc_comm_barrier(comm, channel, l->stream, err);
}

/* Three streams, each with its channel, run far apart from each other and never wait for one another. */
static int channels_body(dsc_comm *comm, void *user)
{
    const int32_t size = dsc_comm_size(comm), rank = dsc_comm_rank(comm);
    dsc_alloc *alloc = NULL;
    dsc_device *device = NULL;
    dsc_buf buf[LANES] = { { 0 } };
    lane lanes[LANES];
    RANKS_TRY(dsc_alloc_open(&alloc, err));
    const dsc_device_options options = { .alloc = alloc, .threads = 1, .caps = 0 };
    RANKS_TRY(dsc_device_open(&dsc_device_cpu, &device, &options, err));
    dsc_buf nothing;
    RANKS_TRY(dsc_comm_mem_open(comm, DSC_TAG_LEAF, 0, &nothing, err));
    RANKS_CHECK(nothing.ptr == NULL && nothing.bytes == 0);
    for (int32_t c = 0; c < LANES; c++) {
        RANKS_TRY(
            dsc_stream_open(device, c == 0 ? DSC_STREAM_COMPUTE : DSC_STREAM_ASYNC, "lane", &lanes[c].stream, err));
        RANKS_TRY(
            dsc_comm_mem_open(comm, DSC_TAG_LEAF, (int64_t)LANE_COUNT * 4 * (size + 1) + 1000 * size, &buf[c], err));
        lanes[c].leaf = buf[c].ptr;
        lanes[c].sum = lanes[c].leaf + (int64_t)LANE_COUNT * size;
        lanes[c].gathered = (uint8_t *)(lanes[c].sum + LANE_COUNT);
        for (int64_t i = 0; i < (int64_t)LANE_COUNT * size; i++)
            lanes[c].leaf[i] = value((uint32_t)(10 + c), rank, i);
        memset(lanes[c].gathered + rank * 1000, rank + c, 1000);
    }
    for (int round = 0; round < LANE_ROUNDS; round++)
        for (int32_t i = 0; i < LANES; i++) /* not in the same order of channels on all ranks */
            RANKS_TRY(lane_work(comm, &lanes[(i + rank) % LANES], (i + rank) % LANES, round, err));
    for (int32_t c = 0; c < LANES; c++) {
        RANKS_TRY(dsc_stream_sync(lanes[c].stream, err));
        for (int64_t i = 0; i < LANE_COUNT; i += 97) {
            float sum = 0;
            for (int round = 0; round < LANE_ROUNDS; round++)
                sum = folded((uint32_t)(10 + c), size, (int64_t)rank * LANE_COUNT + i, DSC_BF16, round == 0, sum);
            RANKS_CHECK(same(lanes[c].sum[i], sum));
        }
        for (int32_t r = 0; r < size; r++)
            RANKS_CHECK(lanes[c].gathered[r * 1000 + 7] == r + c);
        dsc_comm_mem_close(comm, &buf[c]);
        dsc_stream_close(&lanes[c].stream);
    }
    dsc_comm_stats stats;
    dsc_comm_stats_get(comm, &stats);
    RANKS_CHECK(stats.calls[DSC_COMM_REDUCE_SCATTER] == LANES * LANE_ROUNDS);
    RANKS_CHECK(stats.bytes[DSC_COMM_REDUCE_SCATTER] == (int64_t)LANES * LANE_ROUNDS * LANE_COUNT * 2 * (size - 1));
    RANKS_CHECK(stats.bytes[DSC_COMM_ALL_GATHER] == (int64_t)LANES * LANE_ROUNDS * 1000 * (size - 1));
    RANKS_CHECK(stats.ns[DSC_COMM_BARRIER] > 0);
    dsc_device_close(&device);
    dsc_alloc_close(&alloc);
    return 0;
}

/* Hosts with as many ranks each, with more, fewer and one, and ranks that are not numbered in a row. */
static void test_hier(void **state)
{
    static const int32_t uneven[] = { 0, 1, 1, 1, 2, 2 };
    run_hosts(RANKS_HIER, 6, uneven, MIXED, 0);
    run_hosts(RANKS_HIER, 4, in_turn, PLAIN, 0);
    run_operations(RANKS_HIER, 3, PLAIN, 8192);
    run_operations(RANKS_HIER, 4, SHARED, 0);
    run_operations(RANKS_HIER_THREADS, 4, PLAIN, 8192);
}

static void channels(ranks_kind kind)
{
    for (int32_t size = 2; size <= 3; size++) {
        const ranks_run run = { .kind = kind, .size = size, .channel_count = LANES, .body = channels_body };
        if (ranks_go(&run) != 0)
            fail_msg("%s, %d ranks", ranks_kind_text(kind), size);
    }
}

static void test_channels(void **state)
{
    channels(RANKS_LOCAL);
    channels(RANKS_SHM_PROCESSES);
    channels(RANKS_TCP);
    channels(RANKS_HIER);
}

/* ---- epochs ------------------------------------------------------------------------------------------------------ */

/* Opens again inside the body, while the first communicator lives and after it failed, under the same job token. */
static int reopen_body(dsc_comm *comm, void *user)
{
    const ranks_run *run = user;
    dsc_alloc *alloc = NULL;
    RANKS_TRY(dsc_alloc_open(&alloc, err));
    for (int epoch = 0; epoch < 4; epoch++) {
        dsc_comm *again = NULL;
        dsc_comm_options options;
        ranks_options(run, dsc_comm_rank(comm), alloc, NULL,
                      run->kind == RANKS_TCP || run->kind == RANKS_HIER ? "again" : "", &options);
        options.rank_info.master_port = 11000 + (int32_t)getpgrp() % 20000;
        RANKS_TRY(dsc_comm_open(&options, &again, err));
        float x = (float)dsc_comm_rank(comm);
        RANKS_TRY(dsc_comm_all_reduce(again, 0, &x, 1, DSC_F32, NULL, err));
        RANKS_CHECK(x == (float)(run->size * (run->size - 1) / 2));
        if (epoch == 2) { /* left in ruins */
            dsc_comm_abort(again, "enough");
            RANKS_CHECK(dsc_comm_barrier(again, 0, NULL, NULL) == DSC_ERR_PEER);
        }
        dsc_comm_close(&again);
    }
    dsc_alloc_close(&alloc);
    RANKS_TRY(dsc_comm_barrier(comm, 0, NULL, err));
    return 0;
}

typedef struct rejoin {
    dsc_local_world *world;
    int32_t rank;
    int failed;
} rejoin;

/* Ranks as threads: one world, and each round is an epoch; in one of them rank 1 refuses. */
static void *rejoin_main(void *arg)
{
    rejoin *j = arg;
    dsc_alloc *alloc = NULL;
    const ranks_run run = { .kind = RANKS_LOCAL, .size = 3 };
    j->failed = dsc_alloc_open(&alloc, NULL) != DSC_OK;
    for (int epoch = 0; epoch < 5 && j->failed == 0; epoch++) {
        dsc_comm *comm = NULL;
        dsc_comm_options options;
        dsc_error err = DSC_ERROR_INIT;
        ranks_options(&run, j->rank, alloc, j->world, "", &options);
        if (epoch == 2 && j->rank == 1) {
            dsc_local_world_refuse(j->world, 1, "not today");
            continue;
        }
        const dsc_status status = dsc_comm_open(&options, &comm, &err);
        if (epoch == 2)
            j->failed += status != DSC_ERR_PEER || strstr(err.message, "not today") == NULL;
        else
            j->failed += status != DSC_OK || dsc_comm_barrier(comm, 0, NULL, &err) != DSC_OK;
        if (j->failed != 0)
            fprintf(stderr, "# epoch %d rank %d: %s\n", epoch, j->rank, err.message);
        dsc_comm_close(&comm);
    }
    dsc_alloc_close(&alloc);
    return NULL;
}

static void test_reopen(void **state)
{
    ranks_run run = { .kind = RANKS_SHM_PROCESSES, .size = 3, .body = reopen_body };
    run.user = &run;
    assert_int_equal(ranks_go(&run), 0);
    run.kind = RANKS_TCP;
    assert_int_equal(ranks_go(&run), 0);
    run.kind = RANKS_HIER;
    assert_int_equal(ranks_go(&run), 0);

    pthread_t threads[3];
    rejoin joins[3];
    dsc_local_world *world = NULL;
    assert_int_equal(dsc_local_world_open(3, &world, NULL), DSC_OK);
    for (int32_t r = 0; r < 3; r++) {
        joins[r] = (rejoin){ .world = world, .rank = r };
        assert_int_equal(pthread_create(&threads[r], NULL, rejoin_main, &joins[r]), 0);
    }
    for (int32_t r = 0; r < 3; r++) {
        pthread_join(threads[r], NULL);
        assert_int_equal(joins[r].failed, 0);
    }
    dsc_local_world_close(&world);
}

/* ---- tables ------------------------------------------------------------------------------------------------------ */

static void test_skeleton(void **state)
{
    dsc_alloc *alloc = NULL;
    dsc_transport *t = NULL;
    dsc_error err = DSC_ERROR_INIT;
    char byte = 0;
    assert_int_equal(dsc_alloc_open(&alloc, &err), DSC_OK);
    const dsc_comm_options options = { .alloc = alloc,
                                       .rank_info = { .size = 1, .local_size = 1 },
                                       .channel_count = 1 };
    const dsc_comm_ops *ops = &dsc_comm_skeleton;
    assert_int_equal(ops->version, DSC_COMM_OPS_VERSION);
    assert_int_equal(ops->open(&t, &options, &err), DSC_OK);
    assert_int_equal(ops->all_gather(t, 0, &byte, &byte, 1, NULL, &err), DSC_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "all_gather"));
    assert_int_equal(ops->all_to_all(t, 0, &byte, &byte, 1, NULL, NULL), DSC_ERR_UNSUPPORTED);
    assert_int_equal(ops->broadcast(t, 0, &byte, 1, 0, NULL, NULL), DSC_ERR_UNSUPPORTED);
    assert_int_equal(ops->barrier(t, 0, NULL, NULL), DSC_ERR_UNSUPPORTED);
    assert_int_equal(ops->send(t, 0, &byte, 1, 0, NULL, NULL), DSC_ERR_UNSUPPORTED);
    assert_int_equal(ops->recv(t, 0, &byte, 1, 0, NULL, NULL), DSC_ERR_UNSUPPORTED);
    ops->abort(t, "why not");
    ops->close(t);
    dsc_alloc_close(&alloc);
}

typedef struct seen { int calls; int64_t bytes; dsc_comm_op last; bool in_order; } seen;

static void note_call(void *user, int32_t channel, dsc_comm_op op, int64_t bytes, int64_t start_ns, int64_t end_ns,
                      dsc_status status)
{
    seen *s = user;
    s->calls++;
    s->bytes += bytes;
    s->last = op;
    s->in_order = channel == 0 && start_ns > 0 && start_ns <= end_ns && status == DSC_OK;
}

static void test_trace(void **state)
{
    dsc_alloc *alloc = NULL;
    dsc_comm *comm = NULL;
    dsc_comm_options options;
    float x = 1;
    seen s = { 0 };
    const ranks_run run = { .kind = RANKS_SELF, .size = 1 };
    assert_int_equal(dsc_alloc_open(&alloc, NULL), DSC_OK);
    ranks_options(&run, 0, alloc, NULL, "", &options);
    options.trace = (dsc_comm_trace){ note_call, &s };
    assert_int_equal(dsc_comm_open(&options, &comm, NULL), DSC_OK);
    assert_int_equal(dsc_comm_all_reduce(comm, 0, &x, 1, DSC_F32, NULL, NULL), DSC_OK);
    assert_int_equal(dsc_comm_barrier(comm, 0, NULL, NULL), DSC_OK);
    assert_true(s.calls == 2 && s.last == DSC_COMM_BARRIER && s.in_order && s.bytes == 0);
    dsc_comm_close(&comm);
    dsc_alloc_close(&alloc);
}

static dsc_status choose(const char *name, int32_t size, int32_t local_size, dsc_local_world *world,
                         const char **chosen, dsc_error *err)
{
    const dsc_comm_options options = { .rank_info = { .size = size,
                                                      .local_size = local_size,
                                                      .node_count = size / local_size,
                                                      .hosts_guessed = size == 6,
                                                      .local_world = world },
                                       .transport = name };
    const dsc_comm_ops *ops = NULL;
    const dsc_status status = dsc_comm_choose(&options, &ops, err);
    *chosen = ops != NULL ? ops->name : "";
    return status;
}

static void test_choice(void **state)
{
    const char *name = NULL;
    dsc_error err = DSC_ERROR_INIT;
    dsc_local_world *world = NULL;
    assert_int_equal(dsc_local_world_open(2, &world, NULL), DSC_OK);
    assert_int_equal(choose("auto", 1, 1, NULL, &name, &err), DSC_OK);
    assert_string_equal(name, "self");
    assert_int_equal(choose(NULL, 2, 2, world, &name, &err), DSC_OK);
    assert_string_equal(name, "local");
    assert_int_equal(choose("auto", 4, 4, NULL, &name, &err), DSC_OK);
    assert_string_equal(name, "shm");
    assert_int_equal(choose("auto", 4, 2, NULL, &name, &err), DSC_OK);
    assert_string_equal(name, "hier");
    assert_int_equal(choose("auto", 4, 1, NULL, &name, &err), DSC_OK);
    assert_string_equal(name, "tcp");
    assert_int_equal(choose("auto", 6, 2, NULL, &name, &err), DSC_OK); /* ranks might disagree about it */
    assert_string_equal(name, "tcp");
    assert_int_equal(choose("pigeons", 4, 4, NULL, &name, &err), DSC_ERR_INPUT);
    assert_non_null(strstr(err.message, "\"pigeons\""));
    dsc_local_world_close(&world);
}

/* The message has both numbers and the transport that takes them. */
static void test_shm_ranks(void **state)
{
    dsc_error err = DSC_ERROR_INIT;
    dsc_alloc *alloc = NULL;
    dsc_comm *comm = NULL;
    assert_int_equal(dsc_alloc_open(&alloc, NULL), DSC_OK);
    const dsc_comm_options options = { .alloc = alloc,
                                       .rank_info = { .size = 129, .local_size = 129, .node_count = 1 },
                                       .transport = "shm",
                                       .channel_count = 1 };
    assert_int_equal(dsc_comm_open(&options, &comm, &err), DSC_ERR_UNSUPPORTED);
    assert_string_equal(err.message,
                        "129 ranks of one host; \"shm\" takes at most 128: give \"tcp\", or start fewer ranks");
    dsc_alloc_close(&alloc);
}

/* Under mpirun: this process is one rank. */
static int mpi_rank(void)
{
    int failed = 0;
    for (int64_t staging_bytes = 0; staging_bytes <= 8192; staging_bytes += 8192) {
        shape s = { PLAIN };
        const ranks_run run = {
            .kind = RANKS_MPI, .staging_bytes = staging_bytes, .body = operations_body, .user = &s
        };
        failed += ranks_go(&run);
    }
    const ranks_run lanes = { .kind = RANKS_MPI, .channel_count = LANES, .body = channels_body };
    failed += ranks_go(&lanes);
    ranks_mpi_done(failed);
    return failed != 0;
}

static void test_mpi(void **state)
{
    dsc_error why = DSC_ERROR_INIT;
    for (int32_t size = 1; size <= 4; size++) {
        if (!ranks_have(RANKS_MPI, &why)) {
            print_message("# %s\n", why.message);
            skip();
        }
        const int status = ranks_mpirun(size, "all");
        if (status == 77) {
            print_message("# no mpirun here\n");
            skip();
        }
        assert_int_equal(status, 0);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "mpi") == 0)
        return mpi_rank();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_self),
        cmocka_unit_test(test_local),
        cmocka_unit_test(test_shm_threads),
        cmocka_unit_test(test_shm_processes),
        cmocka_unit_test(test_shm_strict),
        cmocka_unit_test(test_tcp),
        cmocka_unit_test(test_hier),
        cmocka_unit_test(test_gloo),
        cmocka_unit_test(test_gloo_channels),
        cmocka_unit_test(test_mpi),
        cmocka_unit_test(test_front_reduces),
        cmocka_unit_test(test_channels),
        cmocka_unit_test(test_reopen),
        cmocka_unit_test(test_skeleton),
        cmocka_unit_test(test_trace),
        cmocka_unit_test(test_choice),
        cmocka_unit_test(test_shm_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
