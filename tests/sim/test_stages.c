/* test_stages.c - stages of a pipeline on simulated GPUs: the bits of one GPU, at every stage of ZeRO and in any order
 * of streams. Transfers that do not wait for the work before them, or that go to another rank, are reported.
 * SPDX-License-Identifier: Apache-2.0 */
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

#include "base/base.h"
#include "tests/sim/cusim.h"
#include "tests/support/probe.h"
#include "tests/support/tiny_gpt.h"
#include "tests/support/tiny_models.h"
#include "tests/support/tiny_run.h"

enum { PARTS = 4, PLANTED_PARTS = 3 }; /* micro-batches of a step over all ranks of a stage */

typedef struct grid {
    int32_t pipeline, data;
} grid;

static void run(const dsc_model *model, grid g, int32_t stage, bool overlap, dsc_recompute recompute, const char *more,
                run_result *out)
{
    char own[256];
    snprintf(own, sizeof own, ", \"reproducible\": \"world_size\", \"grid\": {\"pipeline\": %d}%s", (int)g.pipeline,
             more);
    const tiny_variant v = { "cuda", g.pipeline * g.data, stage, PARTS / g.data, true, overlap, recompute, own };
    tiny_run(model, &v, &(run_options) { .after = run_memory_is_planned }, out);
}

typedef struct way {
    int model; /* number in tiny_models: tied, untied, and with experts, whose losses need all stages */
    grid g;
    int32_t stage;
} way;

static void stages_have_the_bits_of_one_gpu(void **state)
{
    static const way ways[] = { { 0, { 2, 1 }, 0 }, { 0, { 2, 1 }, 1 }, { 0, { 2, 1 }, 2 }, { 0, { 2, 2 }, 1 },
                                { 0, { 2, 2 }, 3 }, { 0, { 4, 1 }, 2 }, { 1, { 4, 1 }, 1 }, { 1, { 2, 2 }, 3 },
                                { 9, { 2, 1 }, 0 }, { 9, { 4, 1 }, 3 } };
    run_result first, other;
    for (size_t i = 0; i < DSC_COUNT(ways); i++) {
        const way *w = &ways[i];
        dsc_model *model = tiny_model_open(tiny_models[w->model].config, NULL);
        if (i == 0 || w->model != ways[i - 1].model)
            run(model, (grid) { 1, 1 }, 0, false, DSC_RECOMPUTE_NONE, "", &first);
        if (w->g.pipeline * w->g.data <= run_most_ranks(4)) {
            if (cusim_present())
                cusim_set_schedule(i + 1, (cusim_policy)(i % (CUSIM_COMPUTE_FIRST + 1)));
            run(model, w->g, w->stage, w->stage % 2 == 1, (dsc_recompute)(w->stage % 3),
                w->stage == 3 ? ", \"micro_batches_together\": 2" : "", &other);
            run_expect_same(&first, &other);
        }
        dsc_model_close(&model);
    }
}

/* ---- planted faults ---- */

typedef struct fault {
    cusim_fault kind;
    int device;
    int64_t number; /* from the first step on; -1: none */
    bool stale[2];  /* stage 0 and 1 leave out the new weights of the tied table */
} fault;

typedef struct planted {
    fault of;
    int64_t requests; /* the device's requests in a step */
    dsc_status status;
    char message[2][512];
    double loss[TINY_STEPS];
} planted;

static dsc_status plant(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    const planted *p = user;
    if (rank == p->of.device && p->of.number >= -1)
        (void)cusim_plant(p->of.kind, rank, p->of.number);
    if (p->of.stale[rank])
        *dsc_probe_trains_tied(engine) = false;
    return DSC_OK;
}

static dsc_status count(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    planted *p = user;
    if (rank == p->of.device)
        p->requests = cusim_plant(p->of.kind, rank, -1);
    return DSC_OK;
}

static void run_planted(const dsc_model *model, int64_t steps, planted *p)
{
    char config[512];
    snprintf(config, sizeof config,
             "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": %d,"
             " \"bf16\": {\"enabled\": true}, \"zero_optimization\": {\"stage\": 0, \"overlap_comm\":"
             " false}, \"dsc\": {\"threads\": 1, \"device\": \"cuda\", \"comm_timeout_s\": 3,"
             " \"gemm_plans\": \"first\", \"recompute\": \"none\", \"grid\": {\"pipeline\": 2}}}",
             PLANTED_PARTS);
    run_result out;
    cusim_set_schedule(1, CUSIM_RANDOM);
    run_model(model, tiny_gpt_data(model, 1 << 20), 2, config,
              &(run_options) { .steps = steps, .before = plant, .after = count, .user = p }, &out);
    p->status = out.status;
    for (int r = 0; r < 2; r++)
        snprintf(p->message[r], sizeof p->message[r], "%s", out.ranks[r].message);
    memcpy(p->loss, out.loss, sizeof p->loss);
}

enum { VIOLATION = 98, FAILED = 3 };

/* The exit code of a process with the fault. */
static int in_a_process(const dsc_model *model, planted *shared)
{
    int status = 0;
    fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (shared->of.number >= 0 && freopen("/dev/null", "w", stderr) == NULL)
            _exit(FAILED);
        alarm(100);
        run_planted(model, 1, shared);
        _exit(shared->status == DSC_OK ? 0 : FAILED);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static planted *share(void)
{
    planted *p = mmap(NULL, sizeof *p, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(p != MAP_FAILED);
    return p;
}

/* Each wait between the streams of a rank, one at a time. Those of sends are behind the modules. Others are of memory
 * that no message reads any more, or that was never sent. */
static void waits_that_are_missing_are_reported(void **state)
{
    if (!cusim_present() || !cusim_tracks_kernels())
        skip();
    dsc_model *model = tiny_model_open(tiny_models[0].config, NULL);
    planted *p = share();
    for (int device = 0; device < 2; device++) {
        p->of = (fault) { .kind = CUSIM_DROP_WAIT, .device = device, .number = -1 };
        assert_int_equal(in_a_process(model, p), 0);
        const int64_t waits = p->requests;
        int64_t reported = 0;
        for (int64_t n = 0; n < waits; n++) {
            p->of.number = n;
            reported += in_a_process(model, p) == VIOLATION;
        }
        print_message("# stage %d: %d of %d missing waits are reported\n", device, (int)reported, (int)waits);
        assert_true(reported >= (device == 0 ? 1 : 2) * PLANTED_PARTS); /* outputs; gradients and the tied table's */
    }
    munmap(p, sizeof *p);
    dsc_model_close(&model);
}

/* A message that is not sent, or not received, ends the job with the names of both stages. */
static void messages_that_are_missing_are_reported(void **state)
{
    if (!cusim_present())
        skip();
    dsc_model *model = tiny_model_open(tiny_models[0].config, NULL);
    planted *p = share();
    for (int device = 0; device < 2; device++)
        for (int64_t n = 0; n < 2; n++) {
            p->of = (fault) { .kind = CUSIM_SKIP_COLLECTIVE, .device = device, .number = n };
            const int code = in_a_process(model, p);
            assert_true(code == FAILED || code == VIOLATION);
            assert_true(code == VIOLATION || strstr(p->message[0], "stage 0, data rank 0") != NULL);
        }
    munmap(p, sizeof *p);
    dsc_model_close(&model);
}

/* New weights of a tied table that one stage leaves out are missed by the other one. Where both leave them out, the
 * second step has another loss. */
static void stale_tied_weights_are_seen(void **state)
{
    if (!cusim_present())
        skip();
    dsc_model *model = tiny_model_open(tiny_models[0].config, NULL);
    planted *p = share(), fresh;
    p->of = (fault) { .number = -2 };
    run_planted(model, 2, p);
    assert_int_equal(p->status, DSC_OK);
    fresh = *p;
    p->of.stale[0] = true;
    run_planted(model, 2, p);
    assert_int_not_equal(p->status, DSC_OK);
    p->of.stale[1] = true;
    run_planted(model, 2, p);
    assert_int_equal(p->status, DSC_OK);
    assert_memory_equal(&p->loss[0], &fresh.loss[0], sizeof(double));
    assert_memory_not_equal(&p->loss[1], &fresh.loss[1], sizeof(double));
    munmap(p, sizeof *p);
    dsc_model_close(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(waits_that_are_missing_are_reported), /* first: its children start with no device in use */
        cmocka_unit_test(messages_that_are_missing_are_reported),
        cmocka_unit_test(stale_tied_weights_are_seen),
        cmocka_unit_test(stages_have_the_bits_of_one_gpu),
    };
    if (cusim_present())
        cusim_set_devices(8, (size_t)4 << 30); /* each communicator of NCCL is planned with what it takes */
    return cmocka_run_group_tests_name("stages on simulated GPUs", tests, NULL, NULL);
}
