/* test_flight.c - flight records of collectives on simulated GPUs, and the rank that the launcher's hang finder names
 * by them, during a hang and after it.
 *
 * Rank 1 of three leaves calls out where a scene says so; the main thread plays the launcher, which reads the records.
 * SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/flight_log.h"
#include "comm/comm.h"
#include "launcher/coordinator/hang.h"
#include "tests/sim/cusim.h"
#include "tests/support/run_expect.h"

#define SECOND INT64_C(1000000000)
enum { RANKS = 3, GATHER = 0, REDUCE = 1, COUNT = 512, MANY = 700, WORD = 256 };

typedef struct world world;
typedef struct member {
    world *w;
    int32_t rank;
    dsc_alloc *alloc;
    dsc_device *device;
    dsc_stream *stream[2]; /* of the channels */
    dsc_event *reduced;
    dsc_comm *host, *comm;
    dsc_buf values;
} member;

struct world {
    dsc_status (*scene)(member *m, dsc_error *err);
    int64_t timeout_ns;
    dsc_local_world *threads;
    dsc_flight_log board;
    atomic_bool seen; /* the launcher has looked: go on */
    dsc_status status[RANKS];
    dsc_error error[RANKS];
};

static dsc_status open_all(member *m, dsc_error *err)
{
    const dsc_device_ops *ops = NULL;
    int32_t count = 0;
    char text[DSC_FLIGHT_TEXT_BYTES];
    DSC_TRY(dsc_alloc_open(&m->alloc, err));
    DSC_TRY(dsc_device_find("cuda", &ops, &count, err));
    DSC_TRY(dsc_device_open(ops, &m->device,
                            &(dsc_device_options){ .alloc = m->alloc, .threads = 1, .index = m->rank }, err));
    DSC_TRY(dsc_stream_open(m->device, DSC_STREAM_ASYNC, "gather", &m->stream[GATHER], err));
    DSC_TRY(dsc_stream_open(m->device, DSC_STREAM_ASYNC, "reduce", &m->stream[REDUCE], err));
    DSC_TRY(dsc_event_open(m->device, &m->reduced, err));
    dsc_comm_options options = { .alloc = m->alloc,
                                 .rank_info = { .rank = m->rank,
                                                .size = RANKS,
                                                .local_rank = m->rank,
                                                .local_size = RANKS,
                                                .node_count = 1,
                                                .master_addr = "",
                                                .job_token = "",
                                                .local_world = m->w->threads },
                                 .transport = "auto",
                                 .channel_count = 2,
                                 .staging_bytes = 65536,
                                 .timeout_ns = m->w->timeout_ns };
    DSC_TRY(dsc_comm_open(&options, &m->host, err));
    options.rank_info.flight = dsc_flight_log_text(&m->w->board, m->rank, text);
    options.device = m->device;
    options.host = m->host;
    DSC_TRY(dsc_comm_open(&options, &m->comm, err));
    dsc_comm_name_module(m->comm, 3, "h.2");
    dsc_comm_label_step(m->comm, 5);
    dsc_comm_label_module(m->comm, GATHER, 3);
    return dsc_mem_open(m->device, DSC_TAG_LEAF, DSC_TIER_DEVICE, RANKS * COUNT * 4 + WORD, &m->values, err);
}

static void close_all(member *m)
{
    dsc_event_close(&m->reduced);
    for (int c = 0; c < 2; c++)
        dsc_stream_close(&m->stream[c]);
    dsc_comm_close(&m->comm);
    dsc_comm_close(&m->host);
    if (m->device != NULL)
        dsc_mem_close(m->device, &m->values);
    dsc_device_close(&m->device);
    dsc_alloc_close(&m->alloc);
}

static void *member_main(void *argument)
{
    member *m = argument;
    dsc_error *err = &m->w->error[m->rank];
    dsc_status status = open_all(m, err);
    if (status == DSC_OK)
        status = m->w->scene(m, err);
    m->w->status[m->rank] = status;
    if (status != DSC_OK && m->comm != NULL)
        dsc_comm_abort(m->comm, err->message);
    close_all(m);
    return NULL;
}

/* ---- what ranks do ---- */

static dsc_status gather(member *m, dsc_error *err)
{
    float *all = m->values.ptr;
    return dsc_comm_all_gather(m->comm, GATHER, all, all + m->rank * COUNT, COUNT, DSC_F32, m->stream[GATHER], err);
}

static void wait_until_seen(const member *m)
{
    while (!atomic_load(&m->w->seen))
        dsc_clock_sleep_ns(1000000);
}

/* Rank 1 does not come to the second gather; the others have given their GPUs a third one, too. */
static dsc_status late(member *m, dsc_error *err)
{
    DSC_TRY(gather(m, err));
    DSC_TRY(dsc_stream_sync(m->stream[GATHER], err));
    if (m->rank == 1)
        wait_until_seen(m);
    DSC_TRY(gather(m, err));
    DSC_TRY(gather(m, err));
    return dsc_stream_sync(m->stream[GATHER], err);
}

/* Rank 2's gather comes after a broadcast on the other stream, to which rank 1 does not come. */
static dsc_status in_a_chain(member *m, dsc_error *err)
{
    if (m->rank == 1) {
        DSC_TRY(gather(m, err));
        wait_until_seen(m);
    }
    void *word = (char *)m->values.ptr + RANKS * COUNT * 4;
    DSC_TRY(dsc_comm_broadcast(m->comm, REDUCE, word, WORD, 0, m->stream[REDUCE], err));
    DSC_TRY(dsc_event_record(m->reduced, m->stream[REDUCE], err));
    if (m->rank == 2)
        DSC_TRY(dsc_stream_wait(m->stream[GATHER], m->reduced, err));
    if (m->rank != 1)
        DSC_TRY(gather(m, err));
    DSC_TRY(dsc_stream_sync(m->stream[GATHER], err));
    return dsc_stream_sync(m->stream[REDUCE], err);
}

/* More on their way than are told apart. */
static dsc_status late_after_many(member *m, dsc_error *err)
{
    for (int i = 0; i < MANY; i++) {
        if (i == MANY - 100 && m->rank == 1)
            wait_until_seen(m);
        DSC_TRY(gather(m, err));
    }
    return dsc_stream_sync(m->stream[GATHER], err);
}

/* ---- what the launcher sees ---- */

static char line[DSC_HANG_LINE_BYTES];

static void read_all(const world *w, dsc_flight_view view[RANKS])
{
    for (int32_t r = 0; r < RANKS; r++)
        dsc_flight_log_read(&w->board, r, 0, dsc_clock_ns(), &view[r]);
}

static dsc_hang find(const world *w, bool ended)
{
    static dsc_flight_view view[RANKS];
    static dsc_place place[RANKS];
    static dsc_host host[1];
    const dsc_launcher_plan plan = { .pool = { .host = host, .count = 1 }, .place = place, .world_size = RANKS };
    dsc_hang hang;
    snprintf(host[0].name, sizeof host[0].name, "here");
    read_all(w, view);
    dsc_hang_find(view, RANKS, SECOND / 4, ended, &hang);
    line[0] = 0;
    if (hang.kind != DSC_HANG_NONE)
        dsc_hang_describe(&hang, view, &plan, line);
    return hang;
}

static void begin(world *w, member members[RANKS], pthread_t thread[RANKS])
{
    dsc_error err = DSC_ERROR_INIT;
    assert_int_equal(dsc_flight_log_open(&w->board, RANKS, &err), DSC_OK);
    assert_int_equal(dsc_local_world_open(RANKS, &w->threads, &err), DSC_OK);
    for (int32_t r = 0; r < RANKS; r++) {
        members[r] = (member){ .w = w, .rank = r };
        assert_int_equal(pthread_create(&thread[r], NULL, member_main, &members[r]), 0);
    }
}

static void end(world *w, pthread_t thread[RANKS])
{
    atomic_store(&w->seen, true);
    for (int32_t r = 0; r < RANKS; r++)
        pthread_join(thread[r], NULL);
    dsc_local_world_close(&w->threads);
}

/* Plays a scene; `parts` are said of it while it hangs, and then it goes on to its end. */
static void hangs(world *w, const char *const *parts)
{
    static member members[RANKS];
    pthread_t thread[RANKS];
    w->timeout_ns = 30 * SECOND;
    begin(w, members, thread);
    const int64_t until_ns = dsc_clock_ns() + 10 * SECOND;
    dsc_hang hang = find(w, false);
    while (hang.kind == DSC_HANG_NONE && dsc_clock_ns() < until_ns) {
        dsc_clock_sleep_ns(5000000);
        hang = find(w, false);
    }
    end(w, thread);
    for (; *parts != NULL; parts++)
        if (strstr(line, *parts) == NULL)
            fail_msg("\"%s\" is not in: %s", *parts, line);
    for (int32_t r = 0; r < RANKS; r++)
        if (w->status[r] != DSC_OK)
            fail_msg("rank %d: %s", (int)r, w->error[r].message);
    dsc_flight_log_close(&w->board);
}

static void the_rank_missing_from_a_gpu_collective_is_named(void **state)
{
    static world w = { .scene = late };
    if (run_most_ranks(RANKS) < RANKS)
        skip();
    hangs(&w, (const char *const[]){ "stuck: rank ", " has waited 0.", " s for rank 1 (host here, pid ",
                                     "in all_gather of 2048 bytes (step 5, module h.2, channel 0, collective 2); "
                                     "rank 1 is busy with something else", NULL });
}

static void waits_of_gpus_are_followed(void **state)
{
    static world w = { .scene = in_a_chain };
    if (run_most_ranks(RANKS) < RANKS)
        skip();
    hangs(&w, (const char *const[]){ " s for rank 1 (host here, pid ", "in broadcast of 256 bytes (step 5, channel 1, "
                                     "collective 1)", NULL });
}

static void many_on_their_way(void **state)
{
    static world w = { .scene = late_after_many };
    if (run_most_ranks(RANKS) < RANKS)
        skip();
    hangs(&w, (const char *const[]){ " s for rank 1 (host here, pid ", "in all_gather of 2048 bytes", NULL });
}

/* The same after the ranks have given up by themselves. */
static void a_record_outlives_its_rank(void **state)
{
    static world w = { .scene = late, .timeout_ns = SECOND };
    static member members[RANKS];
    pthread_t thread[RANKS];
    if (run_most_ranks(RANKS) < RANKS)
        skip();
    begin(&w, members, thread);
    dsc_clock_sleep_ns(2 * SECOND);
    end(&w, thread);
    assert_true(w.status[0] == DSC_ERR_STUCK || w.status[2] == DSC_ERR_STUCK);
    const dsc_hang hang = find(&w, true);
    if (hang.kind != DSC_HANG_LATE || hang.culprit != 1 || strstr(line, "in all_gather of 2048 bytes") == NULL)
        fail_msg("%s", line);
    dsc_flight_log_close(&w.board);
}

/* A GPU that was not looked at for long is not late. */
static void finished_gpu_collectives_are_not_late(void **state)
{
    static world w = { .scene = late };
    static member members[RANKS];
    static dsc_flight_view view[RANKS];
    pthread_t thread[RANKS];
    if (run_most_ranks(RANKS) < RANKS)
        skip();
    w.timeout_ns = 30 * SECOND;
    atomic_store(&w.seen, true);
    begin(&w, members, thread);
    for (int32_t r = 0; r < RANKS; r++)
        pthread_join(thread[r], NULL);
    read_all(&w, view);
    for (int32_t r = 0; r < RANKS; r++) {
        assert_int_equal(w.status[r], DSC_OK);
        assert_int_equal(view[r].channel_count, 0); /* closed in order */
    }
    dsc_local_world_close(&w.threads);
    dsc_flight_log_close(&w.board);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_rank_missing_from_a_gpu_collective_is_named),
        cmocka_unit_test(waits_of_gpus_are_followed),
        cmocka_unit_test(many_on_their_way),
        cmocka_unit_test(a_record_outlives_its_rank),
        cmocka_unit_test(finished_gpu_collectives_are_not_late),
    };
    return cmocka_run_group_tests_name("flight records of simulated GPUs", tests, NULL, NULL);
}
