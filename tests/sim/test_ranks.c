/* test_ranks.c - ranks as threads on simulated GPUs: what is exact gives the CPU's bits, and what cannot work ends with
 * one error on every rank. On real GPUs (tests/gpu/real.c) the first half runs with as many ranks as DSC_TEST_RANKS_MAX
 * says. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include <dsc/dsc.h>

#include "base/base.h"
#include "base/clock.h"
#include "tests/sim/cusim.h"
#include "tests/support/run_expect.h"

#define RANKS_MAX 8

/* ---- a host program's optimizer: every byte through the device, exact kernels only ---- */

#define TENSORS 3
#define STEPS 3
static const int64_t counts[TENSORS] = { 1000, 1, 5000 };

typedef struct host_run {
    int32_t late_rank;      /* waits until the others have failed before its second step; -1: nobody */
    int32_t lost_rank;      /* returns before its second step; -1: nobody */
    _Atomic int32_t failed; /* ranks whose step has failed */
    dsc_world *world;
    const char *config;
    int32_t size;
    float result[RANKS_MAX][TENSORS][5000];
    double norm[RANKS_MAX][STEPS];
    dsc_status status[RANKS_MAX];
    dsc_error error[RANKS_MAX];
} host_run;

typedef struct host_rank {
    host_run *run;
    int32_t rank;
} host_rank;

static float number(int64_t a, int64_t b, int64_t c)
{
    const uint64_t x = ((uint64_t)a * 0x9e3779b97f4a7c15u + (uint64_t)b * 0xbf58476d1ce4e5b9u + (uint64_t)c + 1) *
                       0x94d049bb133111ebu;
    return (float)(int64_t)(x >> 40) / 16777216.0f - 0.5f;
}

static dsc_status optimize(host_run *run, int32_t rank, dsc_engine *engine, dsc_error *err)
{
    static float grads[RANKS_MAX][TENSORS][5000];
    dsc_host_tensor tensors[TENSORS];
    const float *list[TENSORS];
    dsc_optimizer *optimizer = NULL;
    for (int t = 0; t < TENSORS; t++) {
        static const char *const names[TENSORS] = { "a", "b", "c" };
        for (int64_t i = 0; i < counts[t]; i++)
            run->result[rank][t][i] = number(t, i, rank); /* rank 0's are broadcast */
        tensors[t] = (dsc_host_tensor){ .name = names[t], .data = run->result[rank][t], .count = counts[t] };
        list[t] = grads[rank][t];
    }
    dsc_status status = dsc_optimizer_open(&optimizer, engine, tensors, TENSORS, err);
    for (int s = 0; s < STEPS && status == DSC_OK; s++) {
        dsc_step_result result = DSC_STEP_RESULT_INIT;
        if (s == 1 && rank == run->late_rank)
            for (const int64_t until = dsc_clock_ns() + INT64_C(60000000000);
                 atomic_load(&run->failed) < run->size - 1 && dsc_clock_ns() < until;)
                dsc_clock_sleep_ns(1000000);
        if (s == 1 && rank == run->lost_rank)
            break;
        for (int t = 0; t < TENSORS; t++)
            for (int64_t i = 0; i < counts[t]; i++)
                grads[rank][t][i] = number(100 + s * 10 + t, i, rank);
        status = dsc_optimizer_step(optimizer, list, &result, err);
        run->norm[rank][s] = result.grad_norm;
        if (status != DSC_OK)
            atomic_fetch_add(&run->failed, 1);
    }
    dsc_optimizer_close(&optimizer);
    return status;
}

static void *host_main(void *argument)
{
    host_rank *me = argument;
    host_run *run = me->run;
    dsc_engine *engine = NULL;
    dsc_error *err = &run->error[me->rank];
    dsc_engine_options options = DSC_ENGINE_OPTIONS_INIT;
    options.config_text = run->config;
    options.flags = DSC_ENGINE_NO_MODEL;
    options.world = run->world;
    options.rank = me->rank;
    *err = (dsc_error)DSC_ERROR_INIT;
    run->status[me->rank] = dsc_engine_open(&engine, &options, err);
    if (run->status[me->rank] == DSC_OK)
        run->status[me->rank] = optimize(run, me->rank, engine, err);
    dsc_engine_close(&engine);
    return NULL;
}

static void run_late(host_run *run, int32_t size, const char *device, const char *own)
{
    char config[512];
    pthread_t thread[RANKS_MAX];
    host_rank rank[RANKS_MAX];
    snprintf(config, sizeof config,
             "{\"train_micro_batch_size_per_gpu\": 1, \"gradient_clipping\": 0.7, \"optimizer\": {\"type\": \"AdamW\","
             " \"params\": {\"lr\": 0.01, \"weight_decay\": 0.1}},"
             " \"zero_optimization\": {\"reduce_bucket_size\": 1000},"
             " \"dsc\": {\"threads\": 1, \"comm_timeout_s\": %d, \"device\": \"%s\"%s}}",
             run->late_rank >= 0 || run->lost_rank >= 0 ? 1 : 30, device, own);
    run->config = config;
    run->size = size;
    assert_int_equal(dsc_world_open(size, &run->world, NULL), DSC_OK);
    for (int32_t r = 0; r < size; r++) {
        rank[r] = (host_rank){ run, r };
        assert_int_equal(pthread_create(&thread[r], NULL, host_main, &rank[r]), 0);
    }
    for (int32_t r = 0; r < size; r++)
        pthread_join(thread[r], NULL);
    dsc_world_close(&run->world);
}

static void run_host(host_run *run, int32_t size, const char *device, const char *own)
{
    run->late_rank = run->lost_rank = -1;
    run_late(run, size, device, own);
}

static void expect_ok(const host_run *run)
{
    for (int32_t r = 0; r < run->size; r++) {
        if (run->status[r] != DSC_OK)
            print_error("rank %d: %s: %s\n", (int)r, run->error[r].where, run->error[r].message);
        assert_int_equal(run->status[r], DSC_OK);
    }
}

static void optimizers_give_the_cpus_bits(void **state)
{
    static host_run cpu, gpu;
    static const char *const owns[] = { "", ", \"reproducible\": \"world_size\"" };
    const int32_t most = run_most_ranks(4);
    for (int32_t size = 1; size <= most; size++)
        for (size_t o = 0; o < DSC_COUNT(owns); o++) {
            run_host(&cpu, size, "cpu", owns[o]);
            expect_ok(&cpu);
            run_host(&gpu, size, "cuda", owns[o]);
            expect_ok(&gpu);
            for (int32_t r = 0; r < size; r++) {
                assert_memory_equal(cpu.norm[r], gpu.norm[r], sizeof cpu.norm[r]);
                for (int t = 0; t < TENSORS; t++)
                    assert_memory_equal(cpu.result[r][t], gpu.result[r][t], (size_t)counts[t] * sizeof(float));
            }
        }
}

/* ---- what cannot work ends with one error on every rank, and nothing hangs ---- */

/* In a process of its own, with devices of its own. */
static void in_child(void (*body)(void))
{
    fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        alarm(60);
        body();
        fflush(NULL);
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        print_error("the child ended with %s %d\n", WIFSIGNALED(status) ? "signal" : "exit code",
                    WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void must(bool ok, const char *what, const dsc_error *err)
{
    if (ok)
        return;
    fprintf(stderr, "not so: %s: %d, rank %d: %s: %s\n", what, (int)err->status, (int)err->rank, err->where,
            err->message);
    _exit(1);
}

static void fails_with(const host_run *run, int32_t rank, dsc_status status, const char *text)
{
    must(run->status[rank] == status, dsc_status_text(status), &run->error[rank]);
    must(strstr(run->error[rank].message, text) != NULL, text, &run->error[rank]);
}

static void without_a_gpu(void)
{
    static host_run run;
    cusim_set_devices(0, 64 << 20);
    run_host(&run, 1, "cuda", "");
    fails_with(&run, 0, DSC_ERR_UNSUPPORTED, "no GPU here");
    run_host(&run, 2, "auto", "");
    must(run.status[0] == DSC_OK && run.status[1] == DSC_OK, "auto computes on the CPU", &run.error[0]);
}

static void with_an_old_gpu(void)
{
    static host_run run;
    cusim_set_arch(1, 75);
    run_host(&run, 2, "cuda", "");
    for (int32_t r = 0; r < 2; r++)
        fails_with(&run, r, DSC_ERR_UNSUPPORTED, "2 ranks on this host and 1 GPU;");
    cusim_set_arch(0, 75);
    run_host(&run, 2, "cuda", "");
    for (int32_t r = 0; r < 2; r++)
        fails_with(&run, r, DSC_ERR_UNSUPPORTED, "is sm_75; sm_80 or newer is needed");
    run_host(&run, 2, "auto", "");
    must(run.status[0] == DSC_OK && run.status[1] == DSC_OK, "auto computes on the CPU", &run.error[0]);
}

static void with_fewer_gpus_than_ranks(void)
{
    static host_run run;
    cusim_set_devices(2, 64 << 20);
    run_host(&run, 3, "cuda", "");
    for (int32_t r = 0; r < 3; r++)
        fails_with(&run, r, DSC_ERR_UNSUPPORTED, "3 ranks on this host and 2 GPUs");
}

static void with_a_full_gpu(void)
{
    static host_run run;
    cusim_set_devices(2, 1 << 20);
    run_host(&run, 2, "cuda", "");
    for (int32_t r = 0; r < 2; r++)
        must(dsc_status_exit_code(run.status[r]) == 3, "exit code 3", &run.error[r]);
    must(strstr(run.error[0].message, "out of memory") != NULL, "out of memory", &run.error[0]);
}

static void with_a_failing_kernel(void)
{
    static host_run run;
    cusim_fail_kernel(1, "sumsq");
    run_host(&run, 3, "cuda", "");
    fails_with(&run, 1, DSC_ERR_DEVICE, "SUMSQ");
    must(strstr(run.error[1].message, "GPU 1") != NULL, "names the GPU", &run.error[1]);
    for (int32_t r = 0; r < 3; r += 2)
        must(run.status[r] == DSC_ERR_PEER || run.status[r] == DSC_OK, "peers learn of it", &run.error[r]);
    must(run.status[0] != DSC_OK, "peers learn of it", &run.error[0]);
}

static void fail_in(const char *call, const char *text)
{
    static host_run run;
    cusim_fail_kernel(1, call);
    run_host(&run, 3, "cuda", "");
    fails_with(&run, 1, DSC_ERR_COMM, text);
    must(strstr(run.error[1].message, " bytes): unhandled system error") != NULL, "NCCL's words", &run.error[1]);
    must(run.error[1].rank == 1, "the rank", &run.error[1]);
    for (int32_t r = 0; r < 3; r += 2) {
        must(run.status[r] == DSC_ERR_PEER, "peers learn of it", &run.error[r]);
        must(strstr(run.error[r].message, "NCCL on rank 1") != NULL, "and of what", &run.error[r]);
    }
}

static void with_a_failing_gather(void) { fail_in("ncclAllGather", "NCCL on rank 1, all_gather (channel 1, call "); }
static void with_a_failing_send(void) { fail_in("ncclSend", "NCCL on rank 1, all_to_all (channel 2, call "); }

/* A rank that comes too late: the others are stuck, and say where; it finds its communicator gone. */
static void with_a_late_rank(void)
{
    static host_run run;
    run = (host_run) { .late_rank = 1, .lost_rank = -1 };
    run_late(&run, 3, "cuda", "");
    int stuck = 0;
    for (int32_t r = 0; r < 3; r++) {
        must(run.status[r] != DSC_OK, "every rank ends with an error", &run.error[r]);
        stuck += run.status[r] == DSC_ERR_STUCK;
    }
    must(stuck >= 1, "somebody says that it is stuck", &run.error[0]);
    const int32_t who = run.status[0] == DSC_ERR_STUCK ? 0 : 2;
    const char *how_long = strstr(run.error[who].message, "waited ");
    must(how_long != NULL && atof(how_long + 7) >= 1, "how long", &run.error[who]);
    must(strstr(run.error[who].message, "(channel 2, call ") != NULL, "in which collectives", &run.error[who]);
}

/* A rank that closes its engine in the middle: the others learn of it. */
static void with_a_lost_rank(void)
{
    static host_run run;
    run = (host_run) { .late_rank = -1, .lost_rank = 1 };
    run_late(&run, 3, "cuda", "");
    must(run.status[1] == DSC_OK, "the rank that left has no error", &run.error[1]);
    for (int32_t r = 0; r < 3; r += 2)
        must(run.status[r] == DSC_ERR_PEER || run.status[r] == DSC_ERR_STUCK, "the others do", &run.error[r]);
}

static void dead_ends(void **state)
{
    if (!cusim_present())
        skip();
    in_child(without_a_gpu);
    in_child(with_an_old_gpu);
    in_child(with_fewer_gpus_than_ranks);
    in_child(with_a_full_gpu);
    in_child(with_a_failing_kernel);
    in_child(with_a_failing_gather);
    in_child(with_a_failing_send);
    in_child(with_a_late_rank);
    in_child(with_a_lost_rank);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dead_ends), /* first: their children start with no device in use */
        cmocka_unit_test(optimizers_give_the_cpus_bits),
    };
    return cmocka_run_group_tests_name("ranks on simulated GPUs", tests, NULL, NULL);
}
