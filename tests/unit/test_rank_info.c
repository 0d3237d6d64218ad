/* test_rank_info.c - a rank's identity from the variables of dsc-launch, DeepSpeed, torchrun, Open MPI and Slurm, and
 * the errors for invalid variables. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "comm/comm.h"

/* "NAME=value NAME=value" */
static const char *get(void *user, const char *name)
{
    static char values[64][128]; /* strings must stay, as in a real environment */
    static int next;
    char *value = values[next++ % 64];
    const size_t n = strlen(name);
    for (const char *at = user; at != NULL && *at != 0; at = strchr(at, ' ') != NULL ? strchr(at, ' ') + 1 : NULL)
        if (strncmp(at, name, n) == 0 && at[n] == '=') {
            snprintf(value, sizeof values[0], "%.*s", (int)strcspn(at + n + 1, " "), at + n + 1);
            return value;
        }
    return NULL;
}

typedef struct good {
    const char *env;
    int32_t rank, size, local_rank, local_size, node, node_count;
} good;

static const good goods[] = {
    { "", 0, 1, 0, 1, 0, 1 },
    { "RANK= WORLD_SIZE=", 0, 1, 0, 1, 0, 1 },
    { "RANK=3 WORLD_SIZE=4 LOCAL_RANK=3 LOCAL_SIZE=4 MASTER_ADDR=127.0.0.1", 3, 4, 3, 4, 0, 1 },
    { "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_SIZE=4 MASTER_ADDR=worker-0", 5, 8, 1, 4, 1, 2 },
    { "RANK=2 WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 MASTER_ADDR=worker-0", 2, 4, 0, 2, 1, 2 }, /* torchrun */
    { "RANK=1 WORLD_SIZE=2", 1, 2, 1, 2, 0, 1 },
    { "RANK=1 WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=1234", 1, 2, 1, 2, 0, 1 },
    { "LOCAL_RANK=0", 0, 1, 0, 1, 0, 1 },
    { "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2", 1, 2,
      1, 2, 0, 1 },
    { "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2", 3, 4,
      1, 2, 1, 2 },
    { "PMI_RANK=3 PMI_SIZE=4 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2 MASTER_ADDR=h1", 3, 4, 1, 2, 1, 2 },
    { "PMI_RANK=1 PMI_SIZE=2", 1, 2, 1, 2, 0, 1 },
    { "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=1 SLURM_STEP_NUM_NODES=1 PMI_RANK=1 PMI_SIZE=2", 1, 2, 1, 2,
      0, 1 },
    { "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=1 SLURM_STEP_NUM_NODES=1", 1, 2, 1, 2, 0, 1 },
    { "SLURM_PROCID=2 SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=0 SLURM_STEP_NUM_NODES=2 SLURM_NODEID=1 "
      "SLURM_STEP_TASKS_PER_NODE=2(x2)", 2, 4, 0, 2, 1, 2 },
    /* as srun -N2 -n4 tells the last of three ranks on the first node, and the one on the second */
    { "SLURM_PROCID=2 SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=2 SLURM_STEP_NUM_NODES=2 SLURM_NODEID=0 "
      "SLURM_STEP_TASKS_PER_NODE=3,1", 2, 4, 2, 3, 0, 2 },
    { "SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=0 SLURM_STEP_NUM_NODES=2 SLURM_NODEID=1 "
      "SLURM_STEP_TASKS_PER_NODE=3,1", 3, 4, 0, 1, 1, 2 },
    /* Slurm's PMI says less than Slurm */
    { "PMI_RANK=3 PMI_SIZE=4 SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=0 SLURM_STEP_NUM_NODES=2 "
      "SLURM_NODEID=1 SLURM_STEP_TASKS_PER_NODE=3,1", 3, 4, 0, 1, 1, 2 },
    /* hosts with different numbers of ranks: arithmetic would put both of these on host 0 */
    { "RANK=0 WORLD_SIZE=3 LOCAL_RANK=0 LOCAL_SIZE=1 CROSS_RANK=0 CROSS_SIZE=2 MASTER_ADDR=h1", 0, 3, 0, 1, 0, 2 },
    { "RANK=1 WORLD_SIZE=3 LOCAL_RANK=0 LOCAL_SIZE=2 CROSS_RANK=1 CROSS_SIZE=2 MASTER_ADDR=h1", 1, 3, 0, 2, 1, 2 },
    { "RANK=2 WORLD_SIZE=3 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 GROUP_RANK=1 GROUP_WORLD_SIZE=2 MASTER_ADDR=h1", 2, 3, 1, 2,
      1, 2 }, /* torchrun */
    { "SLURM_PROCID=0 SLURM_NTASKS=4", 0, 1, 0, 1, 0, 1 }, /* a batch script: one process */
    /* the plain ones under an MPI start that says the same, and under one of one process each */
    { "RANK=1 WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2", 1, 2, 1, 2, 0, 1 },
    { "RANK=1 WORLD_SIZE=2 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1", 1, 2, 1, 2, 0, 1 },
};

static void test_good(void **state)
{
    for (size_t i = 0; i < DSC_COUNT(goods); i++) {
        const good *g = &goods[i];
        char env[400];
        dsc_rank_info place;
        dsc_error err = DSC_ERROR_INIT;
        assert_true(strlen(g->env) < sizeof env);
        snprintf(env, sizeof env, "%s", g->env);
        if (dsc_rank_info_from_env(get, env, &place, &err) != DSC_OK)
            fail_msg("%s: %s: %s", g->env, err.where, err.message);
        if (place.rank != g->rank || place.size != g->size || place.local_rank != g->local_rank ||
            place.local_size != g->local_size || place.node != g->node || place.node_count != g->node_count)
            fail_msg("%s: rank %d of %d, local %d of %d, node %d of %d", g->env, place.rank, place.size,
                     place.local_rank, place.local_size, place.node, place.node_count);
        assert_null(place.local_world);
        assert_string_equal(place.job_token, "");
    }
}

static void test_address(void **state)
{
    dsc_rank_info place;
    char none[] = "", some[] = "RANK=0 WORLD_SIZE=2 MASTER_PORT=12345";
    assert_int_equal(dsc_rank_info_from_env(get, none, &place, NULL), DSC_OK);
    assert_string_equal(place.master_addr, "127.0.0.1");
    assert_int_equal(place.master_port, 29500);
    assert_int_equal(dsc_rank_info_from_env(get, some, &place, NULL), DSC_OK);
    assert_int_equal(place.master_port, 12345);
    /* A step on two nodes that nobody but Slurm prepared: rank 0 is on its first node, the port is the job's. */
    char step[] = "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=0 SLURM_STEP_NUM_NODES=2 SLURM_NODEID=1 "
                  "SLURM_STEP_TASKS_PER_NODE=1(x2) SLURM_STEP_NODELIST=gpu[08-09] SLURM_JOB_ID=3012";
    assert_int_equal(dsc_rank_info_from_env(get, step, &place, NULL), DSC_OK);
    assert_string_equal(place.master_addr, "gpu08");
    assert_int_equal(place.master_port, 29512);
    char told[] = "RANK=1 WORLD_SIZE=2 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=0 SLURM_STEP_NUM_NODES=2 "
                  "SLURM_NODEID=1 SLURM_STEP_TASKS_PER_NODE=1(x2) SLURM_STEP_NODELIST=gpu[08-09] MASTER_ADDR=h7";
    assert_int_equal(dsc_rank_info_from_env(get, told, &place, NULL), DSC_OK);
    assert_string_equal(place.master_addr, "h7");
    char token[] = "DSC_JOB_TOKEN=abc";
    assert_int_equal(dsc_rank_info_from_env(get, token, &place, NULL), DSC_OK);
    assert_string_equal(place.job_token, "abc");
}

static void test_the_variables_of_the_world_are_known(void **state)
{
    static const struct {
        const char *env, *rank, *size;
    } cases[] = {
        { "", NULL, NULL },
        { "RANK=0 WORLD_SIZE=2", "RANK", "WORLD_SIZE" },
        { "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE" },
        { "PMI_RANK=0 PMI_SIZE=2", "PMI_RANK", "PMI_SIZE" },
        { "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS" },
        { "RANK=0 WORLD_SIZE=2 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2", "RANK", "WORLD_SIZE" },
        { "RANK=0 WORLD_SIZE=2 DSC_LAUNCHER_PID=77", NULL, NULL }, /* dsc-launch set them and starts all ranks */
    };
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        char env[200];
        dsc_rank_info place;
        snprintf(env, sizeof env, "%s", cases[i].env);
        assert_int_equal(dsc_rank_info_from_env(get, env, &place, NULL), DSC_OK);
        if (cases[i].rank == NULL) {
            assert_null(place.rank_name);
            assert_null(place.size_name);
        } else {
            assert_string_equal(place.rank_name, cases[i].rank);
            assert_string_equal(place.size_name, cases[i].size);
        }
    }
}

typedef struct bad {
    const char *env, *where;
} bad;

static const bad bads[] = {
    { "RANK=1", "WORLD_SIZE" },
    { "WORLD_SIZE=2", "RANK" },
    { "RANK=2 WORLD_SIZE=2", "RANK" },
    { "RANK=-1 WORLD_SIZE=2", "RANK" },
    { "RANK=0 WORLD_SIZE=0", "WORLD_SIZE" },
    { "RANK=0x0 WORLD_SIZE=2", "RANK" },
    { "RANK=99999999999 WORLD_SIZE=2", "RANK" },
    { "RANK=1e0 WORLD_SIZE=2", "RANK" },
    { "RANK=0 WORLD_SIZE=2 LOCAL_RANK=2 LOCAL_SIZE=2", "LOCAL_RANK" },
    { "RANK=0 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_SIZE=2", "LOCAL_RANK" },
    { "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_SIZE=3", "LOCAL_SIZE" },
    { "RANK=0 WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_SIZE=2 LOCAL_WORLD_SIZE=4", "LOCAL_SIZE" },
    { "RANK=0 WORLD_SIZE=2 MASTER_ADDR=worker-0", "LOCAL_RANK" },
    { "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=worker-0", "LOCAL_SIZE" },
    { "MASTER_PORT=70000", "MASTER_PORT" },
    { "MASTER_PORT=http", "MASTER_PORT" },
    { "RANK=0 WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2", "RANK" },
    { "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=0 SLURM_STEP_NUM_NODES=2", "SLURM_STEP_TASKS_PER_NODE" },
    { "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=0 SLURM_STEP_NUM_NODES=2 SLURM_NODEID=2 "
      "SLURM_STEP_TASKS_PER_NODE=2(x2)", "SLURM_STEP_TASKS_PER_NODE" },
    { "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NUM_NODES=2 SLURM_STEP_NODELIST=a[", "SLURM_STEP_NODELIST" },
    { "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_SIZE=1 CROSS_RANK=2 CROSS_SIZE=2 MASTER_ADDR=h1", "CROSS_RANK" },
};

static void test_bad(void **state)
{
    for (size_t i = 0; i < DSC_COUNT(bads); i++) {
        char env[400];
        dsc_rank_info place;
        dsc_error err = DSC_ERROR_INIT;
        snprintf(env, sizeof env, "%s", bads[i].env);
        const dsc_status status = dsc_rank_info_from_env(get, env, &place, &err);
        if (status != DSC_ERR_INPUT || strcmp(err.where, bads[i].where) != 0)
            fail_msg("%s: status %d, %s: %s", bads[i].env, (int)status, err.where, err.message);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_good), cmocka_unit_test(test_address),
                                        cmocka_unit_test(test_bad),
                                        cmocka_unit_test(test_the_variables_of_the_world_are_known) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
