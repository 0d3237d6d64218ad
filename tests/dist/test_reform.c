/* test_reform.c - a run that continues with another number of ranks, without a checkpoint. Losses and states have the
 * bits of a run of one rank that nobody disturbs: 4 to 3 to 4 to 6 ranks, whichever rank leaves or is lost.
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
#include "engine/carried.h"
#include "tests/support/ckpt_world.h"
#include "tests/support/probe.h"
#include "tests/support/run_expect.h"
#include "tests/support/toy_run.h"

#define RANKS_MAX 6
#define PHASES_MAX 6

/* So many steps of a world, after which the ranks of `leaving` (bits) leave and the next phase begins. Ranks of `lost`
 * fail in the collective with the number fail_at, which ends the phase earlier. */
typedef struct phase {
    int32_t world;
    int64_t steps;
    uint32_t leaving, lost;
    int64_t fail_at;
} phase;

typedef struct elastic_run {
    const char *config;
    const dsc_model *model;
    char *dir; /* folder of the save at the end */
    bool saves; /* also after each step */
    phase phase[PHASES_MAX];
    int phases;
    dsc_carried *carried[RANKS_MAX]; /* states that the ranks of the phase carry */
    dsc_carried *left[RANKS_MAX];
    double loss[RUN_STEPS_MAX];
    int64_t steps, repeated; /* done so far; steps that were made again after a loss */
    int losses;
    int carried_none; /* ranks to which the engine gave no copy as states, after a loss */
    dsc_status status;
    dsc_error error;
    pthread_mutex_t mutex;
} elastic_run;

typedef struct elastic_rank {
    elastic_run *run;
    dsc_world *world;
    int at;
    int32_t rank;
    int64_t until; /* the step at which the phase ends */
} elastic_rank;

static dsc_status train(elastic_rank *r, dsc_engine *engine, dsc_error *err)
{
    elastic_run *run = r->run;
    DSC_TRY(dsc_engine_barrier(engine, err));
    while (dsc_probe_step(engine) < r->until) {
        dsc_step_result result = DSC_STEP_RESULT_INIT;
        DSC_TRY(dsc_engine_train_batch(engine, &result, err));
        if (r->rank == 0) {
            run->repeated += result.step <= run->steps;
            run->steps = result.step;
            run->loss[result.step - 1] = result.loss;
        }
        if (run->saves)
            DSC_TRY(dsc_engine_save(engine, run->dir, err));
    }
    return DSC_OK;
}

static dsc_status open_rank(elastic_rank *r, dsc_engine **engine, dsc_error *err)
{
    const phase *now = &r->run->phase[r->at];
    dsc_engine_options options = DSC_ENGINE_OPTIONS_INIT;
    options.config_text = r->run->config;
    options.model = r->run->model;
    options.data = toy_data(r->run->model, 1 << 20);
    options.world = r->world;
    options.rank = r->rank;
    options.flags = r->at > 0 ? DSC_ENGINE_CARRIED : 0;
    options.carried = &r->run->carried[r->rank];
    options.fail_comm_at = (now->lost >> r->rank & 1u) != 0 ? now->fail_at : 0;
    return dsc_engine_open(engine, &options, err);
}

/* A rank that is lost takes nothing along. The others keep what they carry, or have their copies, and go on. */
static dsc_status live(elastic_rank *r, dsc_engine **engine, dsc_error *err)
{
    elastic_run *run = r->run;
    const phase *now = &run->phase[r->at];
    const bool lost = (now->lost >> r->rank & 1u) != 0;
    const bool joins = r->at > 0 && run->carried[r->rank] == NULL;
    bool stays[RANKS_MAX];
    dsc_status status = open_rank(r, engine, err);
    const bool opened = status == DSC_OK;
    if (opened)
        status = train(r, *engine, err);
    if (status == DSC_OK && r->at + 1 == run->phases)
        status = dsc_engine_save(*engine, run->dir, err);
    for (int32_t i = 0; i < now->world; i++)
        stays[i] = (now->leaving >> i & 1u) == 0;
    if (now->lost != 0 && status != DSC_OK && (lost || status == DSC_ERR_PEER)) {
        if (!opened && !lost) {
            run->left[r->rank] = run->carried[r->rank];
            run->carried[r->rank] = NULL;
        }
        status = opened && !lost ? dsc_engine_carry(engine, NULL, &run->left[r->rank], err) : DSC_OK;
        pthread_mutex_lock(&run->mutex);
        run->losses += lost;
        run->carried_none += opened && !lost && status == DSC_OK && dsc_carried_is_empty(run->left[r->rank]);
        status = joins && status == DSC_ERR_STATE ? DSC_OK : status; /* it had no mirror yet */
        pthread_mutex_unlock(&run->mutex);
    } else if (status == DSC_OK && r->at + 1 < run->phases) {
        status = dsc_engine_carry(engine, stays, &run->left[r->rank], err);
    }
    dsc_carried_close(&run->carried[r->rank]);
    return status;
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
    int64_t until = 0;
    for (int at = 0; at < run->phases && run->status == DSC_OK; at++) {
        until = (run->phase[at].lost != 0 ? run->steps : until) + run->phase[at].steps;
        const int32_t world = run->phase[at].world;
        pthread_t thread[RANKS_MAX];
        elastic_rank rank[RANKS_MAX];
        dsc_world *threads = NULL;
        assert_int_equal(dsc_world_open(world, &threads, NULL), DSC_OK);
        for (int32_t r = 0; r < world; r++) {
            rank[r] = (elastic_rank) { run, threads, at, r, until };
            assert_int_equal(pthread_create(&thread[r], NULL, run_rank, &rank[r]), 0);
        }
        for (int32_t r = 0; r < world; r++)
            pthread_join(thread[r], NULL);
        dsc_world_close(&threads);
        if (run->phase[at].lost != 0)
            until = run->steps;
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
    run_phases(run);
    alone.phase[0] = (phase) { .world = 1, .steps = run->steps };
    run_phases(&alone);
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
                           .phase = { { .world = 4, .steps = 2, .leaving = 1u << victim },
                                      { .world = 3, .steps = 2 },
                                      { .world = 4, .steps = 1 },
                                      { .world = 6, .steps = 2 } },
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

/* ---- ranks that are lost ---- */

static const char *mirrored(int stage, const char *more, const char *zero, int every)
{
    static char text[2048];
    const char *config = config_of(stage, more, "AdamW", zero);
    snprintf(text, sizeof text, "%.*s, \"elastic\": {\"mirror_every\": %d}}}", (int)strlen(config) - 2, config, every);
    return text;
}

/* Four ranks of which one or two are lost in a collective, then the others, then four again. */
static elastic_run run_with_loss(const char *config, uint32_t lost, int64_t fail_at)
{
    const int32_t left = 4 - __builtin_popcount(lost);
    return (elastic_run) { .config = config,
                           .model = toy_run_model,
                           .phase = { { 4, 20, 0, lost, fail_at }, { left, 2, 0, 0, 0 }, { 4, 2, 0, 0, 0 } },
                           .phases = 3 };
}

/* Wherever it happens in a step, at most one step is made again. */
static void a_lost_rank_loses_no_state(void **state)
{
    (void)state;
    int64_t repeated = 0;
    for (int32_t victim = 0; victim < 4; victim++)
        for (int64_t fail_at = 60; fail_at < 150; fail_at += 13) {
            const int stage = (int)(fail_at % 4);
            elastic_run run = run_with_loss(mirrored(stage, victim % 2 == 0 ? "" : BF16, "", 1), 1u << victim, fail_at);
            expect_undisturbed(&run);
            assert_true(run.losses > 0);
            assert_in_range(run.repeated, 0, 1);
            repeated += run.repeated;
        }
    assert_true(repeated > 0);
}

/* A failed save leaves an engine usable, unless a rank is lost in it. */
static void a_rank_is_lost_in_a_save(void **state)
{
    (void)state;
    for (int64_t fail_at = 60; fail_at < 130; fail_at += 5) {
        elastic_run run = run_with_loss(mirrored(2, "", "", 1), 1u << 1, fail_at);
        run.saves = true;
        expect_undisturbed(&run);
        assert_true(run.losses > 0);
        assert_in_range(run.repeated, 0, 1);
    }
}

/* Mirrors are older than the last save, above all than the first one. The step is saved there again. */
static void a_rank_is_lost_after_the_first_save(void **state)
{
    (void)state;
    for (int64_t fail_at = 41; fail_at < 61; fail_at++) {
        elastic_run run = run_with_loss(mirrored(2, "", "", 1), 1u << 1, fail_at);
        run.saves = true;
        expect_undisturbed(&run);
    }
}

/* Rank 1 has the copies of rank 0, and rank 3 those of rank 2. */
static void two_lost_ranks_that_are_no_neighbours(void **state)
{
    (void)state;
    for (int64_t fail_at = 60; fail_at < 130; fail_at += 17) {
        elastic_run run = run_with_loss(mirrored(2, "", "", 1), 1u << 0 | 1u << 2, fail_at);
        expect_undisturbed(&run);
        assert_in_range(run.repeated, 0, 1);
    }
}

static void copies_of_offloaded_states_and_seldom_ones(void **state)
{
    (void)state;
    elastic_run run = run_with_loss(
        mirrored(3, BF16,
                 ", \"sub_group_size\": 2048, \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}", 1),
        1u << 2, 100);
    expect_undisturbed(&run);
    assert_in_range(run.repeated, 0, 1);
    run = run_with_loss(mirrored(1, "", "", 3), 1u << 3, 140);
    expect_undisturbed(&run);
    assert_in_range(run.repeated, 0, 3);
}

/* The rank of the next world is lost before the states have moved. Those that are left still carry them. */
static void a_rank_is_lost_during_the_reform(void **state)
{
    (void)state;
    for (int64_t fail_at = 3; fail_at < 40; fail_at += 5) {
        elastic_run run = { .config = mirrored(2, "", "", 1),
                            .model = toy_run_model,
                            .phase = { { 4, 2, 1u << 3, 0, 0 }, { 4, 20, 0, 1u << 3, fail_at }, { 3, 2, 0, 0, 0 } },
                            .phases = 3 }; /* rank 3 joins, and is lost */
        expect_undisturbed(&run);
    }
}

/* A rank that stays is lost before the states have moved. The mirrors of the world before have its slices. */
static void a_rank_that_stays_is_lost_during_the_reform(void **state)
{
    (void)state;
    for (int64_t fail_at = 3; fail_at < 40; fail_at += 5) {
        elastic_run run = { .config = mirrored(2, "", "", 1),
                            .model = toy_run_model,
                            .phase = { { 4, 2, 1u << 3, 0, 0 }, { 4, 20, 0, 1u << 1, fail_at }, { 3, 2, 0, 0, 0 } },
                            .phases = 3 };
        expect_undisturbed(&run);
        assert_in_range(run.repeated, 0, 1);
    }
}

/* With a rank and the neighbour that has its copies no step is whole. */
static void two_lost_neighbours_need_a_checkpoint(void **state)
{
    (void)state;
    elastic_run run = run_with_loss(mirrored(1, "", "", 1), 1u << 1 | 1u << 2, 100);
    run.dir = toy_run_folder;
    run_phases(&run);
    assert_int_equal(run.status, DSC_ERR_PEER);
    assert_non_null(strstr(run.error.message, "the slices of rank 1 after step "));
    assert_non_null(strstr(run.error.message, "load the last checkpoint"));
}

/* Before the first mirror there is nothing to carry, and the engine says so. */
static void a_rank_is_lost_before_the_first_mirror(void **state)
{
    int refused = 0;
    (void)state;
    for (int64_t fail_at = 1; fail_at < 40; fail_at++) {
        elastic_run run = run_with_loss(mirrored(1, "", "", 1), 1u << 1, fail_at);
        run.phases = 1;
        run.dir = toy_run_folder;
        run_phases(&run);
        assert_int_equal(run.carried_none, 0);
        refused += run.status == DSC_ERR_STATE && strstr(run.error.message, "no copies of its states") != NULL;
    }
    assert_true(refused > 0);
}

static dsc_status see_mirrors(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    for (int32_t i = 0; rank == 0 && i < dsc_engine_plan_row_count(engine); i++) {
        dsc_plan_row row;
        DSC_TRY(dsc_engine_plan_row(engine, i, &row, err));
        if (strcmp(row.tag, "mirrors") == 0 && strcmp(row.tier, "host") == 0)
            *(dsc_plan_row *)user = row;
    }
    return DSC_OK;
}

static void copies_are_planned_exactly(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++) {
        run_result result;
        dsc_plan_row row = { .planned_bytes = 0 };
        const run_options options = { .steps = 4, .after = see_mirrors, .user = &row };
        toy_run(3, mirrored(stage, BF16, "", 1), &options, &result);
        assert_int_equal(result.status, DSC_OK);
        assert_true(row.planned_bytes > 0);
        assert_int_equal(row.planned_bytes, row.peak_bytes);
        assert_in_range(result.tracked_peak, result.planned - result.planned / 100 - 16384,
                        result.planned + result.planned / 100);
        assert_int_equal(result.alloc_calls_at_end, result.alloc_calls_after_first);
    }
}

/* ---- what is refused ---- */

/* Fewer ranks of a host that fits four, and then of a host that is too small for them. */
static void a_smallest_world_that_does_not_fit(void **state)
{
    char config[2048];
    const char *whole = config_of(3, "", "AdamW", "");
    (void)state;
    for (int ranks = 1; ranks <= 2; ranks++) {
        dsc_engine *engine = NULL;
        dsc_engine_options options = DSC_ENGINE_OPTIONS_INIT;
        dsc_error err = DSC_ERROR_INIT;
        snprintf(config, sizeof config, "%.*s, \"elastic\": {\"min_ranks\": %d}}}", (int)strlen(whole) - 2, whole,
                 ranks);
        options.config_text = config;
        options.model = toy_run_model;
        options.flags = DSC_ENGINE_PLAN_ONLY;
        options.plan_world_size = 4;
        assert_int_equal(dsc_engine_open(&engine, &options, &err), DSC_OK);
        const int64_t four = dsc_probe_plan(engine)->total_bytes;
        dsc_probe_set_host_free_bytes(engine, 4 * four + four / 100);
        assert_int_equal(dsc_probe_check_fit(engine, &err), DSC_OK);
        assert_int_equal(dsc_probe_check_world(engine, ranks, &err), DSC_OK); /* fewer ranks of one host */
        dsc_probe_set_host_free_bytes(engine, four / 16);
        assert_int_equal(dsc_probe_check_world(engine, ranks, &err), DSC_ERR_NOFIT);
        assert_non_null(strstr(err.message, ranks == 1 ? "shrinking to 1 rank: 1 rank on this host needs "
                                                       : "shrinking to 2 ranks: 2 ranks on this host need "));
        dsc_engine_close(&engine);
    }
}

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
    options.carried = &carried;
    options.config_text = config_of(2, "", "Lion", "");
    assert_int_equal(dsc_engine_open(&engine, &options, &err), DSC_ERR_INPUT);
    assert_non_null(strstr(err.message, "states of another model, optimizer"));
    options.config_text = config_of(3, "", "AdamW", ""); /* at another stage */
    assert_int_equal(dsc_engine_open(&engine, &options, &err), DSC_OK);
    assert_null(carried);
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
        cmocka_unit_test(a_lost_rank_loses_no_state),
        cmocka_unit_test(a_rank_is_lost_in_a_save),
        cmocka_unit_test(a_rank_is_lost_after_the_first_save),
        cmocka_unit_test(two_lost_ranks_that_are_no_neighbours),
        cmocka_unit_test(copies_of_offloaded_states_and_seldom_ones),
        cmocka_unit_test(a_rank_is_lost_during_the_reform),
        cmocka_unit_test(a_rank_that_stays_is_lost_during_the_reform),
        cmocka_unit_test(two_lost_neighbours_need_a_checkpoint),
        cmocka_unit_test(a_rank_is_lost_before_the_first_mirror),
        cmocka_unit_test(copies_are_planned_exactly),
        cmocka_unit_test(a_smallest_world_that_does_not_fit),
        cmocka_unit_test(nobody_stays),
        cmocka_unit_test(another_config_is_refused),
    };
    return cmocka_run_group_tests(tests, toy_run_open, toy_run_close);
}
