/* test_reform.c - a run that continues with another number of ranks, without a checkpoint. Losses and states have the
 * bits of a run of one rank that nobody disturbs: 4 to 3 to 4 to 6 ranks, whichever rank leaves.
 * SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "tests/support/ckpt_world.h"
#include "tests/support/probe.h"
#include "tests/support/run_expect.h"
#include "tests/support/toy_run.h"

#define RANKS_MAX 6
#define PHASES_MAX 6

/* So many steps of a world, after which the ranks of `leaving` (bits) leave and the next phase begins. */
typedef struct phase {
    int32_t world;
    int64_t steps;
    uint32_t leaving;
} phase;

typedef struct elastic_run {
    const char *config;
    const dsc_model *model;
    char *dir; /* folder of the save at the end */
    phase phase[PHASES_MAX];
    int phases;
    dsc_carried *carried[RANKS_MAX]; /* states that the ranks of the phase carry */
    dsc_carried *left[RANKS_MAX];
    double loss[RUN_STEPS_MAX];
    int64_t steps;
    dsc_status status;
    dsc_error error;
    pthread_mutex_t mutex;
} elastic_run;

typedef struct elastic_rank {
    elastic_run *run;
    dsc_world *world;
    int at;
    int32_t rank;
} elastic_rank;

static dsc_status train(elastic_rank *r, dsc_engine *engine, dsc_error *err)
{
    elastic_run *run = r->run;
    const int64_t first = run->steps;
    for (int64_t s = 0; s < run->phase[r->at].steps; s++) {
        dsc_step_result result = DSC_STEP_RESULT_INIT;
        DSC_TRY(dsc_engine_train_batch(engine, &result, err));
        if (r->rank == 0)
            run->loss[first + s] = result.loss;
        if (result.step != first + s + 1)
            return DSC_FAIL(err, DSC_ERR_INTERNAL, "step", "step %lld", (long long)result.step);
    }
    return DSC_OK;
}

static dsc_status live(elastic_rank *r, dsc_engine **engine, dsc_error *err)
{
    elastic_run *run = r->run;
    dsc_engine_options options = DSC_ENGINE_OPTIONS_INIT;
    bool stays[RANKS_MAX];
    options.config_text = run->config;
    options.model = run->model;
    options.data = toy_data(run->model, 1 << 20);
    options.world = r->world;
    options.rank = r->rank;
    options.flags = r->at > 0 ? DSC_ENGINE_CARRIED : 0;
    options.carried = run->carried[r->rank];
    DSC_TRY(dsc_engine_open(engine, &options, err));
    dsc_carried_close(&run->carried[r->rank]);
    DSC_TRY(train(r, *engine, err));
    if (r->at + 1 == run->phases)
        return dsc_engine_save(*engine, run->dir, err);
    for (int32_t i = 0; i < run->phase[r->at].world; i++)
        stays[i] = (run->phase[r->at].leaving >> i & 1u) == 0;
    return dsc_engine_carry(engine, stays, &run->left[r->rank], err);
}

static void *run_rank(void *argument)
{
    elastic_rank *r = argument;
    dsc_engine *engine = NULL;
    dsc_error err = DSC_ERROR_INIT;
    const dsc_status status = live(r, &engine, &err);
    dsc_engine_close(&engine);
    pthread_mutex_lock(&r->run->mutex);
    if (status != DSC_OK && (r->run->status == DSC_OK || r->run->status == DSC_ERR_PEER)) {
        r->run->status = status;
        r->run->error = err;
    }
    pthread_mutex_unlock(&r->run->mutex);
    return NULL;
}

/* The ranks that stay are the first of the next world, in their order. */
static void number_anew(elastic_run *run, int32_t world)
{
    int32_t next = 0;
    for (int32_t r = 0; r < world; r++)
        if (run->left[r] != NULL) {
            run->carried[next++] = run->left[r];
            run->left[r] = NULL;
        }
}

static void run_phases(elastic_run *run)
{
    pthread_mutex_init(&run->mutex, NULL);
    for (int at = 0; at < run->phases && run->status == DSC_OK; at++) {
        const int32_t world = run->phase[at].world;
        pthread_t thread[RANKS_MAX];
        elastic_rank rank[RANKS_MAX];
        dsc_world *threads = NULL;
        assert_int_equal(dsc_world_open(world, &threads, NULL), DSC_OK);
        for (int32_t r = 0; r < world; r++) {
            rank[r] = (elastic_rank) { run, threads, at, r };
            assert_int_equal(pthread_create(&thread[r], NULL, run_rank, &rank[r]), 0);
        }
        for (int32_t r = 0; r < world; r++)
            pthread_join(thread[r], NULL);
        dsc_world_close(&threads);
        run->steps += run->phase[at].steps;
        number_anew(run, world);
    }
    for (int32_t r = 0; r < RANKS_MAX; r++)
        dsc_carried_close(&run->carried[r]);
    pthread_mutex_destroy(&run->mutex);
}

static void hash_of(const char *dir, int64_t step, char hex[65])
{
    char path[700];
    dsc_error err = DSC_ERROR_INIT;
    dsc_alloc *alloc = NULL;
    snprintf(path, sizeof path, "%s/step-%lld", dir, (long long)step);
    assert_int_equal(dsc_alloc_open(&alloc, NULL), DSC_OK);
    const dsc_io io = { 0 };
    assert_int_equal(dsc_ckpt_hash(&io, alloc, path, hex, &err), DSC_OK);
    dsc_alloc_close(&alloc);
}

/* Beside one rank, which makes all steps. */
static void expect_undisturbed(elastic_run *run)
{
    char dirs[2][600], hex[2][65];
    elastic_run alone = { .config = run->config, .model = run->model, .dir = dirs[0], .phases = 1 };
    snprintf(dirs[0], sizeof dirs[0], "%s/alone", toy_run_folder);
    snprintf(dirs[1], sizeof dirs[1], "%s/elastic", toy_run_folder);
    run->dir = dirs[1];
    alone.phase[0].world = 1;
    for (int i = 0; i < run->phases; i++)
        alone.phase[0].steps += run->phase[i].steps;
    run_phases(&alone);
    run_phases(run);
    if (run->status != DSC_OK)
        print_error("%s\n%s: %s\n", run->config, run->error.where, run->error.message);
    assert_int_equal(alone.status, DSC_OK);
    assert_int_equal(run->status, DSC_OK);
    assert_true(run->loss[0] != run->loss[run->steps - 1]);
    assert_memory_equal(run->loss, alone.loss, (size_t)run->steps * sizeof *run->loss);
    hash_of(dirs[0], run->steps, hex[0]);
    hash_of(dirs[1], run->steps, hex[1]);
    assert_string_equal(hex[0], hex[1]);
    cw_remove(dirs[0]);
    cw_remove(dirs[1]);
}

static const char *config_of(int stage, const char *more, const char *optimizer, const char *zero)
{
    static char text[2048];
    char section[1024];
    snprintf(section, sizeof section, zero, toy_run_folder, toy_run_folder);
    snprintf(text, sizeof text,
             "{%s\"train_batch_size\": 20, \"train_micro_batch_size_per_gpu\": 2, \"gradient_clipping\": 0.5,"
             " \"optimizer\": {\"type\": \"%s\", \"params\": {\"lr\": 0.01}},"
             " \"zero_optimization\": {\"stage\": %d%s},"
             " \"dsc\": {\"threads\": 1, \"quota\": \"even\", \"reproducible\": \"world_size\"}}",
             more, optimizer, stage, section);
    return text;
}

#define BF16 "\"bf16\": {\"enabled\": true},"
#define FP16 "\"fp16\": {\"enabled\": true, \"initial_scale_power\": 40, \"loss_scale_window\": 2},"

/* 4 to 3 to 4 to 6 ranks; `victim` leaves first. */
static elastic_run four_three_four_six(const char *config, int32_t victim)
{
    return (elastic_run) { .config = config,
                           .model = toy_run_model,
                           .phase = { { 4, 2, 1u << victim }, { 3, 2, 0 }, { 4, 1, 0 }, { 6, 2, 0 } },
                           .phases = 4 };
}

static void the_bits_are_those_of_one_rank(void **state)
{
    static const char *const precisions[] = { "", BF16, FP16 };
    (void)state;
    for (size_t p = 0; p < DSC_COUNT(precisions); p++)
        for (int stage = 0; stage <= 3; stage++) {
            elastic_run run = four_three_four_six(config_of(stage, precisions[p], "AdamW", ""), stage);
            expect_undisturbed(&run);
        }
}

/* Their states have other forms: factors on every rank, matrices of one owner, no moment at all. */
static void any_optimizer_moves(void **state)
{
    static const char *const optimizers[] = { "SGD", "Lion", "Lamb", "Adafactor", "Muon", "AdamW8bit" };
    (void)state;
    for (size_t i = 0; i < DSC_COUNT(optimizers); i++) {
        elastic_run run = four_three_four_six(config_of(i % 2 == 0 ? 3 : 1, BF16, optimizers[i], ""), 1);
        expect_undisturbed(&run);
    }
}

static void offloaded_states_move(void **state)
{
    (void)state;
    elastic_run run =
        four_three_four_six(config_of(3, BF16, "AdamW",
                                      ", \"sub_group_size\": 2048, \"stage3_param_persistence_threshold\": 0,"
                                      " \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"},"
                                      " \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}"),
                            2);
    expect_undisturbed(&run);
}

/* Random worlds and leaving ranks; by night many. */
static void random_worlds(void **state)
{
    const int rounds = getenv("DSC_TEST_NIGHT") != NULL ? 200 : 6; /* of five reforms */
    uint64_t drawn = 0;
    (void)state;
    for (int round = 0; round < rounds; round++) {
        elastic_run run = { .config = config_of(round % 4, round % 2 == 0 ? "" : BF16, "AdamW", ""),
                            .model = toy_run_model,
                            .phases = PHASES_MAX };
        const uint64_t stream = dsc_rng_stream(DSC_RNG_TEST, (uint32_t)round);
        for (int i = 0; i < PHASES_MAX; i++) {
            run.phase[i].world = 1 + (int32_t)(dsc_rng_u32(7, stream, drawn++) % RANKS_MAX);
            run.phase[i].steps = 1 + dsc_rng_u32(7, stream, drawn++) % 2;
        }
        for (int i = 0; i + 1 < PHASES_MAX; i++) /* as many stay as the next world takes, or fewer */
            for (int32_t left = run.phase[i].world, r = left - 1; r >= 0; r--) {
                const bool must = left > run.phase[i + 1].world;
                if (left > 1 && (must || dsc_rng_u32(7, stream, drawn++) % 3 == 0)) {
                    run.phase[i].leaving |= 1u << r;
                    left--;
                }
            }
        expect_undisturbed(&run);
    }
}

/* ---- what is refused ---- */

static void nobody_stays(void **state)
{
    dsc_engine *engine = NULL;
    dsc_carried *carried = NULL;
    dsc_engine_options options = DSC_ENGINE_OPTIONS_INIT;
    dsc_error err = DSC_ERROR_INIT;
    const bool stays[] = { false };
    (void)state;
    options.config_text = config_of(0, "", "AdamW", "");
    options.model = toy_run_model;
    options.data = toy_data(toy_run_model, 1 << 20);
    assert_int_equal(dsc_engine_open(&engine, &options, &err), DSC_OK);
    assert_int_equal(dsc_engine_carry(&engine, stays, &carried, &err), DSC_ERR_STATE);
    assert_non_null(strstr(err.message, "no rank stays"));
    assert_int_equal(dsc_engine_train_batch(engine, NULL, &err), DSC_OK); /* it goes on */
    dsc_engine_close(&engine);
    options.flags = DSC_ENGINE_CARRIED;
    assert_int_equal(dsc_engine_open(&engine, &options, &err), DSC_ERR_STATE);
    assert_non_null(strstr(err.message, "no rank of this world carries states"));
}

/* Another optimizer than the copies are of; then the right one, with the same copies. */
static void another_config_is_refused(void **state)
{
    dsc_engine *engine = NULL;
    dsc_carried *carried = NULL;
    dsc_engine_options options = DSC_ENGINE_OPTIONS_INIT;
    dsc_error err = DSC_ERROR_INIT;
    (void)state;
    options.config_text = config_of(2, "", "AdamW", "");
    options.model = toy_run_model;
    options.data = toy_data(toy_run_model, 1 << 20);
    assert_int_equal(dsc_engine_open(&engine, &options, &err), DSC_OK);
    assert_int_equal(dsc_engine_train_batch(engine, NULL, &err), DSC_OK);
    assert_int_equal(dsc_engine_carry(&engine, NULL, &carried, &err), DSC_OK);
    assert_null(engine);
    options.flags = DSC_ENGINE_CARRIED;
    options.carried = carried;
    options.config_text = config_of(2, "", "Lion", "");
    assert_int_equal(dsc_engine_open(&engine, &options, &err), DSC_ERR_INPUT);
    assert_non_null(strstr(err.message, "states of another model, optimizer"));
    options.config_text = config_of(3, "", "AdamW", ""); /* at another stage */
    assert_int_equal(dsc_engine_open(&engine, &options, &err), DSC_OK);
    dsc_carried_close(&carried);
    assert_int_equal(dsc_probe_step(engine), 1);
    assert_int_equal(dsc_engine_train_batch(engine, NULL, &err), DSC_OK);
    dsc_engine_close(&engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bits_are_those_of_one_rank),
        cmocka_unit_test(any_optimizer_moves),
        cmocka_unit_test(offloaded_states_move),
        cmocka_unit_test(random_worlds),
        cmocka_unit_test(nobody_stays),
        cmocka_unit_test(another_config_is_refused),
    };
    return cmocka_run_group_tests(tests, toy_run_open, toy_run_close);
}
