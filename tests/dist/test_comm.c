/* test_comm.c - every collective of every transport against plain loops, bit for bit. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

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

/* What rank `rank` has at element i of test `which`: signs and exponents that make the order of a sum matter. */
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

/* Buffers from dsc_comm_mem_open when `shared`: peers may then read them in place. */
typedef struct shape { bool shared; } shape;

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

static int reduce_scatter_one(dsc_comm *comm, dsc_alloc *alloc, int64_t count, bool shared, dsc_dtype dtype, bool overwrite)
{
    const int32_t rank = dsc_comm_rank(comm), size = dsc_comm_size(comm);
    const int64_t stride = count + 5; /* pieces need not touch */
    dsc_buf leaf = buffer(comm, shared, alloc, stride * size * 4), acc = buffer(comm, shared, alloc, count * 4);
    float *x = leaf.ptr, *sum = acc.ptr;
    for (int64_t i = 0; i < stride * size; i++)
        x[i] = value(4, rank, i);
    for (int64_t i = 0; i < count; i++)
        sum[i] = overwrite ? 77.0f : value(5, rank, i);
    const dsc_reduce_scatter_args args = { .acc = sum, .leaf = x, .leaf_stride = stride, .count = count, .wire_dtype = dtype, .overwrite = overwrite };
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
    const dsc_reduce_scatter_args args = { .leaf = x, .leaf_stride = count, .count = count, .wire_dtype = dtype, .apart = apart };
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
    const int32_t rank = dsc_comm_rank(comm), size = dsc_comm_size(comm), to = (rank + 1) % size, from = (rank + size - 1) % size;
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
                 all_to_all_one(comm, alloc, n, shared) +
                 broadcast_one(comm, alloc, n, shared, 0) + broadcast_one(comm, alloc, n, shared, dsc_comm_size(comm) - 1) +
                 mail_one(comm, alloc, n, shared);
    for (int d = 0; d < 2 && failed == 0; d++) {
        const dsc_dtype dtype = d == 0 ? DSC_F32 : DSC_BF16;
        failed += reduce_scatter_one(comm, alloc, n, shared, dtype, true) + reduce_scatter_one(comm, alloc, n, shared, dtype, false) +
                  apart_one(comm, alloc, n, shared, dtype) + all_reduce_one(comm, alloc, n, shared, dtype);
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
        failed = every_operation(comm, alloc, lengths[i], s->shared);
        if (failed != 0)
            fprintf(stderr, "# at length %lld\n", (long long)lengths[i]);
    }
    if (failed == 0)
        dsc_alloc_close(&alloc);
    return failed;
}

static void run_operations(ranks_kind kind, int32_t size, bool shared, int64_t staging_bytes)
{
    shape s = { shared };
    const ranks_run run = { .kind = kind, .size = size, .staging_bytes = staging_bytes, .body = operations_body, .user = &s };
    if (ranks_go(&run) != 0)
        fail_msg("%s, %d ranks, %s memory, %lld staging bytes", ranks_kind_text(kind), size, shared ? "shared" : "plain", (long long)staging_bytes);
}

static void test_self(void **state)
{
    run_operations(RANKS_SELF, 1, false, 0);
}

static void test_local(void **state)
{
    static const int32_t sizes[] = { 1, 2, 3, 4, 8 };
    for (size_t i = 0; i < DSC_COUNT(sizes); i++)
        run_operations(RANKS_LOCAL, sizes[i], false, 0);
}

static void shm_matrix(ranks_kind kind)
{
    static const int32_t sizes[] = { 1, 2, 3, 4, 8 };
    for (size_t i = 0; i < DSC_COUNT(sizes); i++) {
        run_operations(kind, sizes[i], false, 0);
        run_operations(kind, sizes[i], true, 0);
        run_operations(kind, sizes[i], false, 8192); /* many chunks */
    }
}

static void test_shm_threads(void **state) { shm_matrix(RANKS_SHM_THREADS); }
static void test_shm_processes(void **state) { shm_matrix(RANKS_SHM_PROCESSES); }

/* A transport without a reduce_scatter: the front builds it from all_to_all, with the same bits. */
static void test_front_reduces(void **state)
{
    static const int32_t sizes[] = { 2, 3 };
    dsc_comm_ops ops = dsc_comm_local;
    ops.reduce_scatter = NULL;
    shape s = { false };
    for (size_t i = 0; i < DSC_COUNT(sizes); i++) {
        const ranks_run run = { .kind = RANKS_LOCAL, .size = sizes[i], .staging_bytes = 5000, .ops = &ops, .body = operations_body, .user = &s };
        assert_int_equal(ranks_go(&run), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_self),
        cmocka_unit_test(test_local),
        cmocka_unit_test(test_shm_threads),
        cmocka_unit_test(test_shm_processes),
        cmocka_unit_test(test_front_reduces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
