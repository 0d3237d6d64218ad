/* test_sub_communicators.c - groups of ranks: rows and columns of a grid beside each other, groups of groups, ranks
 * left out, on every transport of a host.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/support/ranks.h"

#define COUNT 1000

typedef struct job {
    ranks_kind kind;
    char token[64];
    dsc_local_world *world;
} job;

/* Options of a group before it exists: the rank's options of the whole job. */
static void options_of(const job *j, dsc_comm *comm, dsc_alloc *alloc, dsc_comm_options *out)
{
    const ranks_run run = { .kind = j->kind, .size = dsc_comm_size(comm) };
    ranks_options(&run, dsc_comm_rank(comm), alloc, j->world, j->token, out);
    out->transport = "auto";
    out->rank_info.local_world = j->world;
}

/* ranks[size]: who of the whole job is in the group, in its order. */
static int works(dsc_comm *comm, const int32_t *ranks, int32_t size, int32_t mine)
{
    float own[COUNT], sum[COUNT];
    int32_t got[16] = { 0 };
    RANKS_CHECK(dsc_comm_size(comm) == size);
    RANKS_CHECK(ranks[dsc_comm_rank(comm)] == mine);
    RANKS_TRY(dsc_comm_all_gather(comm, 0, got, &mine, sizeof mine, DSC_U8, NULL, err));
    for (int32_t r = 0; r < size; r++)
        RANKS_CHECK(got[r] == ranks[r]);
    for (int i = 0; i < COUNT; i++) {
        own[i] = (float)mine * 0.37f + (float)i * 1e-3f;
        sum[i] = (float)ranks[0] * 0.37f + (float)i * 1e-3f;
        for (int32_t r = 1; r < size; r++)
            sum[i] = sum[i] + ((float)ranks[r] * 0.37f + (float)i * 1e-3f);
    }
    RANKS_TRY(dsc_comm_all_reduce(comm, 0, own, COUNT, DSC_F32, NULL, err));
    RANKS_CHECK(memcmp(own, sum, sizeof sum) == 0);
    RANKS_TRY(dsc_comm_barrier(comm, 0, NULL, err));
    return 0;
}

/* A grid of columns of `size` / 2 ranks: rank r is in row r / columns and in column r % columns. Both at once. */
static int grid_body(dsc_comm *comm, void *user)
{
    const job *j = user;
    const int32_t rank = dsc_comm_rank(comm), size = dsc_comm_size(comm), columns = size / 2;
    dsc_alloc *alloc = NULL;
    dsc_comm *row = NULL, *column = NULL;
    dsc_comm_options options;
    int32_t in_row[16], in_column[2];
    RANKS_TRY(dsc_alloc_open(&alloc, err));
    for (int32_t c = 0; c < columns; c++)
        in_row[c] = rank / columns * columns + columns - 1 - c; /* keys turn the order round */
    for (int32_t r = 0; r < 2; r++)
        in_column[r] = r * columns + rank % columns;
    options_of(j, comm, alloc, &options);
    RANKS_TRY(dsc_comm_split(comm, rank / columns, -rank, &options, &row, err));
    RANKS_CHECK(options.rank_info.size == columns);
    RANKS_CHECK((options.rank_info.local_size == columns) == (options.rank_info.node_count == 1));
    options_of(j, comm, alloc, &options);
    RANKS_TRY(dsc_comm_split(comm, rank % columns, 0, &options, &column, err));
    for (int i = 0; i < 3; i++) {
        RANKS_CHECK(works(row, in_row, columns, rank) == 0);
        RANKS_CHECK(works(column, in_column, 2, rank) == 0);
        RANKS_TRY(dsc_comm_barrier(comm, 0, NULL, err));
    }
    dsc_comm_close(&row);
    dsc_comm_close(&column);
    dsc_alloc_close(&alloc);
    return 0;
}

/* The first ranks are left out; the others are split again, each half into one rank and the rest. */
static int nested_body(dsc_comm *comm, void *user)
{
    const job *j = user;
    const int32_t rank = dsc_comm_rank(comm), size = dsc_comm_size(comm);
    dsc_alloc *alloc = NULL;
    dsc_comm *part = NULL, *inner = NULL, *again = NULL;
    dsc_comm_options options;
    int32_t ranks[16];
    RANKS_TRY(dsc_alloc_open(&alloc, err));
    options_of(j, comm, alloc, &options);
    RANKS_TRY(dsc_comm_split(comm, rank < 2 ? -1 : rank % 2, 0, &options, &part, err));
    RANKS_CHECK((part == NULL) == (rank < 2));
    if (part != NULL) {
        const int32_t parts = dsc_comm_size(part), mine = dsc_comm_rank(part);
        for (int32_t r = 0; r < parts; r++)
            ranks[r] = 2 + rank % 2 + 2 * r;
        RANKS_CHECK(works(part, ranks, parts, rank) == 0);
        RANKS_TRY(dsc_comm_split(part, mine == 0 ? 0 : 1, 0, &options, &inner, err));
        RANKS_CHECK(works(inner, mine == 0 ? ranks : ranks + 1, mine == 0 ? 1 : parts - 1, rank) == 0);
    }
    for (int32_t r = 0; r < size; r++)
        ranks[r] = r;
    options_of(j, comm, alloc, &options);
    RANKS_TRY(dsc_comm_split(comm, 0, 0, &options, &again, err)); /* everybody */
    RANKS_CHECK(works(again, ranks, size, rank) == 0);
    dsc_comm_close(&again);
    dsc_comm_close(&inner);
    dsc_comm_close(&part);
    dsc_alloc_close(&alloc);
    return 0;
}

/* The end of one group does not affect the other. */
static int failing_body(dsc_comm *comm, void *user)
{
    const job *j = user;
    const int32_t rank = dsc_comm_rank(comm), half = dsc_comm_size(comm) / 2;
    dsc_alloc *alloc = NULL;
    dsc_comm *part = NULL;
    dsc_comm_options options;
    int32_t ranks[16];
    RANKS_TRY(dsc_alloc_open(&alloc, err));
    options_of(j, comm, alloc, &options);
    RANKS_TRY(dsc_comm_split(comm, rank / half, 0, &options, &part, err));
    for (int32_t r = 0; r < half; r++)
        ranks[r] = rank / half * half + r;
    if (rank == 0) {
        dsc_comm_abort(part, "the disk is full");
    } else if (rank < half) {
        dsc_error err = DSC_ERROR_INIT;
        dsc_status status = DSC_OK;
        while (status == DSC_OK)
            status = dsc_comm_barrier(part, 0, NULL, &err);
        RANKS_CHECK(status == DSC_ERR_PEER);
        RANKS_CHECK(strstr(err.message, "the disk is full") != NULL);
    } else {
        RANKS_CHECK(works(part, ranks, half, rank) == 0);
    }
    RANKS_TRY(dsc_comm_barrier(comm, 0, NULL, err));
    dsc_comm_close(&part);
    dsc_alloc_close(&alloc);
    return 0;
}

/* Without a network a group over two hosts is refused on all ranks alike, and the communicator lives on. */
static int hosts_body(dsc_comm *comm, void *user)
{
    const job *j = user;
    const int32_t rank = dsc_comm_rank(comm);
    dsc_alloc *alloc = NULL;
    dsc_comm *part = NULL;
    dsc_comm_options options;
    dsc_error why = DSC_ERROR_INIT;
    RANKS_TRY(dsc_alloc_open(&alloc, err));
    options_of(j, comm, alloc, &options);
    options.rank_info.node = rank == 0 ? 0 : 1;
    RANKS_CHECK(dsc_comm_split(comm, 0, 0, &options, &part, &why) == DSC_ERR_UNSUPPORTED);
    RANKS_CHECK(part == NULL && strstr(why.message, "2 hosts") != NULL);
    RANKS_TRY(dsc_comm_barrier(comm, 0, NULL, err));
    dsc_alloc_close(&alloc);
    return 0;
}

static void run_on(ranks_kind kind, int32_t size, ranks_body body)
{
    job j = { .kind = kind };
    ranks_token(j.token, sizeof j.token);
    if (kind == RANKS_LOCAL)
        assert_int_equal(dsc_local_world_open(size, &j.world, NULL), DSC_OK); /* only says: threads */
    const ranks_run run = { .kind = kind, .size = size, .body = body, .user = &j };
    const int failed = ranks_go(&run);
    dsc_local_world_close(&j.world);
    if (failed != 0)
        fail_msg("%s, %d ranks", ranks_kind_text(kind), (int)size);
}

static void run_everywhere(ranks_body body)
{
    run_on(RANKS_LOCAL, 4, body);
    run_on(RANKS_LOCAL, 8, body);
    run_on(RANKS_SHM_THREADS, 6, body);
    run_on(RANKS_SHM_PROCESSES, 8, body);
    run_on(RANKS_HIER, 6, body); /* hosts of two ranks: rows within and over hosts, columns over them */
    run_on(RANKS_HIER, 8, body);
    run_on(RANKS_HIER_THREADS, 6, body);
}

static void rows_and_columns(void **state) { run_everywhere(grid_body); }
static void groups_of_groups(void **state) { run_everywhere(nested_body); }
static void one_group_fails(void **state) { run_everywhere(failing_body); }
static void groups_over_hosts(void **state) { run_on(RANKS_LOCAL, 3, hosts_body); }

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_and_columns),
        cmocka_unit_test(groups_of_groups),
        cmocka_unit_test(one_group_fails),
        cmocka_unit_test(groups_over_hosts),
    };
    return cmocka_run_group_tests_name("sub-communicators", tests, NULL, NULL);
}
