/* test_comm_fail.c - what the others see when a rank disagrees, dies, leaves, aborts, stalls or is told to fail.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/clock.h"
#include "tests/support/ranks.h"

#define SECOND INT64_C(1000000000)

typedef enum scene {
    SCENE_OTHER_OP,    /* rank 1 calls a broadcast, the others an all_gather */
    SCENE_OTHER_SIZE,  /* rank 1 gathers more bytes */
    SCENE_OTHER_DTYPE, /* rank 1 reduces in bf16 */
    SCENE_MAIL,        /* rank 1 receives from rank 0, which is in a barrier */
    SCENE_BOTH_SEND,   /* ranks 0 and 1 send to each other */
    SCENE_MAIL_SIZE,   /* rank 1 receives fewer bytes than rank 0 sends */
    SCENE_LEAVE,       /* rank 1 closes, the others wait */
    SCENE_ABORT,       /* rank 1 aborts, the others wait */
    SCENE_LATE,        /* rank 1 does not come; timeout 0.3 s */
    SCENE_COUNT
} scene;

typedef struct play {
    scene scene;
    dsc_status status;
    const char *words[3]; /* all in the message of every rank that waited */
    bool one_leaves;      /* rank 1 sees no failure itself */
    int64_t timeout_ns;
} play;

static const play plays[SCENE_COUNT] = {
    { .scene = SCENE_OTHER_OP, .status = DSC_ERR_COMM, .words = { "all_gather", "broadcast", "disagree" } },
    { .scene = SCENE_OTHER_SIZE, .status = DSC_ERR_COMM, .words = { "1000 bytes", "1001 bytes", "rank 1" } },
    { .scene = SCENE_OTHER_DTYPE, .status = DSC_ERR_COMM, .words = { "reduce_scatter", "disagree", "rank 1" } },
    { .scene = SCENE_MAIL, .status = DSC_ERR_COMM, .words = { "barrier", "recv", "disagree" } },
    { .scene = SCENE_BOTH_SEND, .status = DSC_ERR_COMM, .words = { "send", "rank 0", "rank 1" } },
    { .scene = SCENE_MAIL_SIZE, .status = DSC_ERR_COMM, .words = { "100 bytes", "64", "rank 1" } },
    { .scene = SCENE_LEAVE, .status = DSC_ERR_PEER, .words = { "rank 1", "closed", "all_gather" }, .one_leaves = true },
    { .scene = SCENE_ABORT, .status = DSC_ERR_PEER, .words = { "the disk is full", "", "" } },
    { .scene = SCENE_LATE, .status = DSC_ERR_STUCK, .words = { "rank 1", "all_gather", "0.3 s" }, .one_leaves = true,
      .timeout_ns = SECOND * 3 / 10 },
};

static dsc_status act(dsc_comm *comm, scene what, dsc_error *err)
{
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
            return rank == 0 ? dsc_comm_send(comm, 0, send, 100, 1, NULL, err) : dsc_comm_recv(comm, 0, recv, 64, 0, NULL, err);
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
        if (rank == 1) {
            dsc_clock_sleep_ns(SECOND);
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
    const dsc_status status = act(comm, p->scene, &error);
    if (p->one_leaves && dsc_comm_rank(comm) == 1)
        return 0;
    if (status != p->status)
        fprintf(stderr, "# scene %d rank %d: status %d: %s\n", (int)p->scene, dsc_comm_rank(comm), (int)status, error.message);
    RANKS_CHECK(status == p->status);
    RANKS_CHECK(dsc_clock_ns() - start_ns < SECOND);
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
    for (int s = 0; s < SCENE_COUNT; s++)
        for (int32_t size = 2; size <= 3; size++) {
            play p = plays[s];
            const ranks_run run = { .kind = kind, .size = size, .channel_count = 2, .timeout_ns = p.timeout_ns, .body = play_body, .user = &p };
            if (ranks_go(&run) != 0)
                fail_msg("%s, scene %d, %d ranks", ranks_kind_text(kind), s, size);
        }
}

static void test_scenes_local(void **state) { play_all(RANKS_LOCAL); }
static void test_scenes_shm(void **state) { play_all(RANKS_SHM_PROCESSES); }

/* ---- the fault hook ------------------------------------------------------------------------------------------------ */

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
        const ranks_run run = { .kind = kind, .size = size, .channel_count = 2, .fault_at = at, .fault_rank = size - 1, .body = work_body, .user = &must_fail };
        if (ranks_go(&run) != 0)
            fail_msg("%s, %d ranks, fault at %lld", ranks_kind_text(kind), size, (long long)at);
    }
}

static void test_fault_sweep(void **state)
{
    sweep(RANKS_SELF, 1);
    sweep(RANKS_LOCAL, 3);
    sweep(RANKS_SHM_PROCESSES, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scenes_local),
        cmocka_unit_test(test_scenes_shm),
        cmocka_unit_test(test_fault_sweep),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
