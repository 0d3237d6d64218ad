/* test_groups.c - groups of simulated GPUs: rows and columns of a grid with communicators of their own, on streams of
 * their own, beside that of all. SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "comm/comm.h"
#include "tests/sim/cusim.h"
#include "tests/support/run_expect.h"

#define RANKS 8
#define COLUMNS 4
#define COUNT 6000
#define ROUNDS 3

typedef struct world {
    dsc_local_world *threads;
    bool loses_one; /* rank 5 gives its row up and leaves */
    dsc_status status[RANKS];
    dsc_error error[RANKS];
    float sums[RANKS][COUNT]; /* by rows, then by columns */
    float all[RANKS][COUNT];  /* over the communicator of all */
} world;

typedef struct member {
    world *w;
    int32_t rank;
    dsc_alloc *alloc;
    dsc_device *device;
    dsc_stream *row_stream, *column_stream;
    dsc_comm *host, *row_host, *column_host;
    dsc_comm *all, *row, *column;
    dsc_buf values, others, pinned;
} member;

static float value(int32_t rank, int64_t i) { return (float)(rank + 1) * 0.37f + (float)(i % 977) * 1e-3f; }

static void options_of(const member *m, dsc_comm_options *out)
{
    *out = (dsc_comm_options) { .alloc = m->alloc,
                                .rank_info = { .rank = m->rank,
                                               .size = RANKS,
                                               .local_rank = m->rank,
                                               .local_size = RANKS,
                                               .node_count = 1,
                                               .master_addr = "",
                                               .job_token = "",
                                               .local_world = m->w->threads },
                                .transport = "auto",
                                .channel_count = 1,
                                .staging_bytes = 65536,
                                .timeout_ns = INT64_C(20000000000) };
}

/* The group over the memory of GPUs, from the options that its host communicator left. */
static dsc_status open_on_device(const member *m, dsc_comm_options *options, dsc_comm *host, int32_t color,
                                 dsc_comm **out, dsc_error *err)
{
    options->device = m->device;
    options->host = host;
    options->parent = m->all; /* NULL for the communicator of all itself */
    options->parent_color = color;
    return dsc_comm_open(options, out, err);
}

static dsc_status open_all(member *m, dsc_error *err)
{
    const dsc_device_ops *ops = NULL;
    int32_t count = 0;
    dsc_comm_options options;
    DSC_TRY(dsc_alloc_open(&m->alloc, err));
    DSC_TRY(dsc_device_find("cuda", &ops, &count, err));
    DSC_TRY(dsc_device_open(ops, &m->device,
                            &(dsc_device_options){ .alloc = m->alloc, .threads = 1, .index = m->rank }, err));
    DSC_TRY(dsc_stream_open(m->device, DSC_STREAM_ASYNC, "rows", &m->row_stream, err));
    DSC_TRY(dsc_stream_open(m->device, DSC_STREAM_ASYNC, "columns", &m->column_stream, err));
    options_of(m, &options);
    DSC_TRY(dsc_comm_open(&options, &m->host, err));
    DSC_TRY(open_on_device(m, &options, m->host, 0, &m->all, err));
    options_of(m, &options);
    DSC_TRY(dsc_comm_split(m->host, m->rank / COLUMNS, 0, &options, &m->row_host, err));
    DSC_TRY(open_on_device(m, &options, m->row_host, m->rank / COLUMNS, &m->row, err));
    options_of(m, &options);
    DSC_TRY(dsc_comm_split(m->host, m->rank % COLUMNS, 0, &options, &m->column_host, err));
    DSC_TRY(open_on_device(m, &options, m->column_host, m->rank % COLUMNS, &m->column, err));
    DSC_TRY(dsc_mem_open(m->device, DSC_TAG_LEAF, DSC_TIER_DEVICE, COUNT * 4, &m->values, err));
    DSC_TRY(dsc_mem_open(m->device, DSC_TAG_LEAF, DSC_TIER_DEVICE, COUNT * 4, &m->others, err));
    return dsc_mem_open(m->device, DSC_TAG_LEAF, DSC_TIER_PINNED, COUNT * 4, &m->pinned, err);
}

/* A sum over rows goes on to columns while the sum of all is on the other stream. */
static dsc_status sum_both(member *m, dsc_error *err)
{
    float *pinned = m->pinned.ptr;
    dsc_event *ready = NULL;
    DSC_TRY(dsc_event_open(m->device, &ready, err));
    for (int64_t i = 0; i < COUNT; i++)
        pinned[i] = value(m->rank, i);
    dsc_status status = dsc_copy(m->column_stream, m->values.ptr, pinned, COUNT * 4, err);
    if (status == DSC_OK)
        status = dsc_copy(m->column_stream, m->others.ptr, pinned, COUNT * 4, err);
    if (status == DSC_OK)
        status = dsc_event_record(ready, m->column_stream, err);
    if (status == DSC_OK)
        status = dsc_comm_all_reduce(m->all, 0, m->others.ptr, COUNT, DSC_F32, m->column_stream, err);
    if (status == DSC_OK)
        status = dsc_stream_wait(m->row_stream, ready, err);
    if (status == DSC_OK)
        status = dsc_comm_all_reduce(m->row, 0, m->values.ptr, COUNT, DSC_F32, m->row_stream, err);
    if (status == DSC_OK)
        status = dsc_event_record(ready, m->row_stream, err);
    if (status == DSC_OK)
        status = dsc_stream_wait(m->column_stream, ready, err);
    if (status == DSC_OK)
        status = dsc_comm_all_reduce(m->column, 0, m->values.ptr, COUNT, DSC_F32, m->column_stream, err);
    if (status == DSC_OK)
        status = dsc_stream_sync(m->column_stream, err);
    dsc_event_close(&ready);
    return status;
}

static dsc_status fetch(member *m, float *to, const dsc_buf *from, dsc_error *err)
{
    DSC_TRY(dsc_copy(m->column_stream, m->pinned.ptr, from->ptr, COUNT * 4, err));
    DSC_TRY(dsc_stream_sync(m->column_stream, err));
    memcpy(to, m->pinned.ptr, COUNT * 4);
    return DSC_OK;
}

static dsc_status work(member *m, dsc_error *err)
{
    for (int i = 0; i < ROUNDS; i++)
        DSC_TRY(sum_both(m, err));
    DSC_TRY(dsc_comm_barrier(m->host, 0, NULL, err));
    if (m->w->loses_one && m->rank == 5) {
        dsc_comm_abort(m->row, "the disk is full");
        return DSC_OK;
    }
    if (m->w->loses_one && m->rank / COLUMNS == 1) { /* its row never comes to an end; columns stand beside it */
        dsc_error why = DSC_ERROR_INIT;
        dsc_status status = dsc_comm_all_reduce(m->row, 0, m->values.ptr, COUNT, DSC_F32, m->row_stream, &why);
        if (status == DSC_OK)
            status = dsc_stream_sync(m->row_stream, &why);
        dsc_comm_abort(m->row, why.message);
        if (status != DSC_ERR_PEER || strstr(why.message, "the disk is full") == NULL)
            return DSC_FAIL(err, DSC_ERR_INTERNAL, "row", "%d, %s", (int)status, why.message);
        return DSC_OK;
    }
    DSC_TRY(fetch(m, m->w->sums[m->rank], &m->values, err));
    return fetch(m, m->w->all[m->rank], &m->others, err);
}

static void close_all(member *m)
{
    dsc_stream_close(&m->row_stream);
    dsc_stream_close(&m->column_stream);
    dsc_comm_close(&m->column);
    dsc_comm_close(&m->row);
    dsc_comm_close(&m->all);
    dsc_comm_close(&m->column_host);
    dsc_comm_close(&m->row_host);
    dsc_comm_close(&m->host);
    if (m->device != NULL) {
        dsc_mem_close(m->device, &m->values);
        dsc_mem_close(m->device, &m->others);
        dsc_mem_close(m->device, &m->pinned);
    }
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
        status = work(m, err);
    m->w->status[m->rank] = status;
    close_all(m);
    return NULL;
}

static void run(world *w)
{
    pthread_t thread[RANKS];
    static member m[RANKS];
    memset(m, 0, sizeof m);
    assert_int_equal(dsc_local_world_open(RANKS, &w->threads, NULL), DSC_OK);
    for (int32_t r = 0; r < RANKS; r++) {
        m[r] = (member){ .w = w, .rank = r };
        assert_int_equal(pthread_create(&thread[r], NULL, member_main, &m[r]), 0);
    }
    for (int32_t r = 0; r < RANKS; r++)
        pthread_join(thread[r], NULL);
    dsc_local_world_close(&w->threads);
    for (int32_t r = 0; r < RANKS; r++) {
        if (w->status[r] != DSC_OK)
            print_error("rank %d: %s: %s\n", (int)r, w->error[r].where, w->error[r].message);
        assert_int_equal(w->status[r], DSC_OK);
    }
}

/* Sums in rank order: of a row, of the rows' sums, of all. */
static void rows_then_columns(void **state)
{
    static world w;
    if (run_most_ranks(RANKS) < RANKS)
        skip();
    for (uint64_t seed = 1; seed <= 4; seed++) {
        cusim_set_schedule(seed, seed == 1 ? CUSIM_COMM_FIRST : CUSIM_RANDOM);
        const uint64_t splits = cusim_nccl_splits();
        run(&w);
        assert_true(!cusim_present() || cusim_nccl_splits() - splits == 2 * RANKS); /* no rendezvous of a group's own */
        for (int64_t i = 0; i < COUNT; i++) {
            float row[2], all = value(0, i);
            for (int k = 0; k < 2; k++) {
                row[k] = value(k * COLUMNS, i);
                for (int32_t c = 1; c < COLUMNS; c++)
                    row[k] = row[k] + value(k * COLUMNS + c, i);
            }
            for (int32_t r = 1; r < RANKS; r++)
                all = all + value(r, i);
            const float both = row[0] + row[1];
            for (int32_t r = 0; r < RANKS; r++) {
                assert_memory_equal(&w.sums[r][i], &both, sizeof both);
                assert_memory_equal(&w.all[r][i], &all, sizeof all);
            }
        }
    }
}

static void a_row_that_loses_a_rank(void **state)
{
    static world w;
    if (run_most_ranks(RANKS) < RANKS)
        skip();
    w.loses_one = true;
    run(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_then_columns),
        cmocka_unit_test(a_row_that_loses_a_rank),
    };
    return cmocka_run_group_tests_name("groups of simulated GPUs", tests, NULL, NULL);
}
