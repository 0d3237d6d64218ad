/* test_speculative_update.c - updates in files that begin before their norm is known. The bits are those of a run whose
 * updates wait. The speculative part is all of an update or a part of it; it is kept, or dropped because a step is
 * clipped or skipped. Steps are made by hand, and the step's end waits until the wanted part is made. Whole steps pass
 * their sums to the update: groups then have more tiles than buffers, so the update must have begun.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/clock.h"
#include "tests/support/probe.h"
#include "tests/support/run_expect.h"
#include "tests/support/toy_model.h"

enum { STEPS = 2, TILE = 2048, WORLDS = 3 };
#define PATIENCE_NS INT64_C(60000000000)
#define BF16 "\"bf16\": {\"enabled\": true}"
#define FP32 "\"bf16\": {\"enabled\": false}"
#define FP16 "\"fp16\": {\"enabled\": true, \"initial_scale_power\": 32, \"hysteresis\": 1}" /* skips the first ones   \
                                                                                              */

static char folder[512];
static dsc_model *model, *wide;

/* How much is made early in each step by hand. */
typedef enum extent { NOTHING, A_TILE, ALL } extent;

typedef struct variant {
    int32_t world, accumulation, together, buffers;
    const char *precision, *engine;
    double clipping, stay, kept_states; /* gradients_in_memory, and what `ratio` leaves */
    extent extent;
    int64_t steps; /* by hand, or: */
    bool whole;    /* steps of the wide model, which pass their sums on */
    bool aims;     /* at all groups that it may take, from the first step on */
    int64_t skip_limit;
    bool reload;   /* and before the last of them all is saved and loaded again */
    int64_t skipped;
    int64_t most, made[WORLDS], kept[WORLDS]; /* a rank's elements in all those steps: most, made, kept */
    int64_t lent[WORLDS];                     /* buffers in the memory of sums */
    run_result result;
} variant;

/* This rank's part of what is trained. */
static int64_t elements(const dsc_engine *engine)
{
    const dsc_layout *layout = dsc_probe_layout(engine);
    int64_t sum = 0;
    for (int32_t g = 0; g < layout->group_count; g++)
        sum += layout->group[g].slice;
    return sum;
}

static int64_t made_by(const dsc_engine *engine)
{
    dsc_zero_speculative_stats early;
    dsc_zero_speculative_stats_get(dsc_probe_zero(engine), &early);
    return early.updated;
}

static dsc_status step(dsc_engine *engine, int32_t rank, variant *v, dsc_error *err)
{
    const int64_t wanted = v->extent == ALL ? elements(engine) : v->extent == A_TILE ? 1 : 0;
    const int64_t begun = dsc_clock_ns();
    for (int32_t m = 0; m < v->accumulation; m++) {
        DSC_TRY(dsc_engine_forward(engine, NULL, NULL, err));
        DSC_TRY(dsc_engine_backward(engine, err));
        if (m + 1 < v->accumulation)
            DSC_TRY(dsc_engine_step(engine, NULL, err));
    }
    while (made_by(engine) < wanted && dsc_clock_ns() - begun < PATIENCE_NS)
        dsc_clock_sleep_ns(1000000);
    v->made[rank] += made_by(engine);
    dsc_step_result result = DSC_STEP_RESULT_INIT;
    DSC_TRY(dsc_engine_step(engine, &result, err));
    if (rank == 0)
        v->skipped += result.skipped;
    return DSC_OK;
}

static dsc_status reload(dsc_engine *engine, int32_t rank, dsc_error *err)
{
    char dir[600];
    snprintf(dir, sizeof dir, "%s/save", folder);
    DSC_TRY(run_save(engine, rank, dir, err));
    return run_load(engine, rank, dir, err);
}

static dsc_status whole_step(dsc_engine *engine, int32_t rank, variant *v, dsc_error *err)
{
    dsc_step_result result = DSC_STEP_RESULT_INIT;
    const dsc_status status = dsc_engine_train_batch(engine, &result, err);
    v->made[rank] += made_by(engine);
    if (rank == 0)
        v->skipped += result.skipped;
    return status;
}

static dsc_status by_hand(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    variant *v = user;
    dsc_zero_speculative_stats early;
    if (v->aims)
        dsc_probe_set_speculative_target_to_all(dsc_probe_zero(engine));
    for (int64_t i = 0; i < v->steps; i++) {
        if (v->reload && i + 1 == v->steps)
            DSC_TRY(reload(engine, rank, err));
        DSC_TRY(v->whole ? whole_step(engine, rank, v, err) : step(engine, rank, v, err));
    }
    dsc_zero_speculative_stats_get(dsc_probe_zero(engine), &early);
    v->kept[rank] = early.kept;
    v->lent[rank] = dsc_probe_lent_slots(dsc_probe_zero(engine));
    if (rank == 0)
        v->most = v->steps * elements(engine);
    return DSC_OK;
}

static void run(variant *v)
{
    char config[2048];
    snprintf(config, sizeof config,
             "{\"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": %d, %s,"
             " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01}}, \"gradient_clipping\": %g,"
             " \"zero_optimization\": {\"stage\": 3, \"sub_group_size\": %d,"
             " \"stage3_param_persistence_threshold\": 0,"
             " \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\", \"buffer_count\": %d,"
             " \"ratio\": %g},"
             " \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}},"
             " \"dsc\": {\"threads\": 1, \"aio\": \"%s\", \"skip_limit\": %d, \"micro_batches_together\": %d,"
             " \"early_update\": %s, \"gradients_in_memory\": %g}}",
             (int)v->accumulation, v->precision, v->clipping, TILE, folder, (int)v->buffers, 1 - v->kept_states, folder,
             v->engine != NULL ? v->engine : "auto", (int)v->skip_limit, v->together > 0 ? (int)v->together : 1,
             v->extent != NOTHING ? "true" : "false", v->stay);
    const run_options options = { .world = v->world,
                                  .steps = STEPS,
                                  .model = v->whole ? wide : model,
                                  .config = config,
                                  .data = toy_data(v->whole ? wide : model, 1 << 20),
                                  .before = by_hand,
                                  .user = v,
                                  .fault_rank = -1 };
    if (v->steps == 0)
        v->steps = 3;
    if (v->skip_limit > 0) /* ends in an error */
        run_world(&options, &v->result);
    else
        run_well(&options, &v->result);
}

static void remove_save(void)
{
    char command[700];
    snprintf(command, sizeof command, "rm -rf %s/save", folder);
    assert_int_equal(system(command), 0);
}

static variant with(variant v, extent how)
{
    v.extent = how;
    return v;
}

static void all_or_a_part_is_kept(void **state)
{
    static const variant cases[] = {
        { .world = 1, .accumulation = 1, .buffers = 4, .precision = BF16 },
        { .world = 1, .accumulation = 4, .buffers = 48, .precision = BF16 },
        { .world = 1, .accumulation = 2, .buffers = 4, .precision = FP32 },
        { .world = 2, .accumulation = 2, .buffers = 48, .precision = FP32 },
        { .world = 2, .accumulation = 1, .buffers = 20, .precision = BF16, .engine = "threads" },
        { .world = 3, .accumulation = 4, .buffers = 4, .precision = BF16 },
    };
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        variant none = with(cases[i], NOTHING);
        run(&none);
        assert_int_equal(none.made[0], 0);
        for (extent e = A_TILE; e <= ALL; e++) {
            variant v = with(cases[i], e);
            run(&v);
            for (int32_t r = 0; r < v.world; r++) {
                assert_true(e == ALL ? v.kept[r] == v.most : v.kept[r] >= v.steps);
                assert_true(v.kept[r] >= v.made[r]);
            }
            run_expect_same(&none.result, &v.result);
        }
    }
}

/* The first step finds out. */
static void a_clipped_step_repeats_its_speculative_update(void **state)
{
    for (int32_t world = 1; world <= WORLDS; world++) {
        const variant v = {
            .world = world, .accumulation = 2, .buffers = 4, .precision = BF16, .clipping = 0.001, .steps = 1
        };
        variant none = with(v, NOTHING), all = with(v, ALL);
        run(&none);
        run(&all);
        for (int32_t r = 0; r < world; r++) {
            assert_int_equal(all.made[r], all.most);
            assert_int_equal(all.kept[r], 0);
        }
        run_expect_same(&none.result, &all.result);
    }
}

/* Overflows are made into states that nobody sees. */
static void a_skipped_step_drops_its_speculative_update(void **state)
{
    for (int32_t world = 1; world <= 2; world++) {
        const variant v = { .world = world, .accumulation = 2, .buffers = 20, .precision = FP16, .steps = 32 };
        variant none = with(v, NOTHING), all = with(v, ALL);
        run(&none);
        run(&all);
        assert_true(none.skipped > 0 && none.skipped < none.steps);
        assert_int_equal(all.skipped, none.skipped);
        assert_true(all.kept[0] > 0 && all.kept[0] < all.most);
        run_expect_same(&none.result, &all.result);
    }
}

static void speculative_updates_are_saved_and_loaded(void **state)
{
    const variant v = { .world = 2, .accumulation = 1, .buffers = 4, .precision = BF16, .reload = true };
    variant none = with(v, NOTHING), all = with(v, ALL);
    run(&none);
    remove_save();
    run(&all);
    remove_save();
    assert_int_equal(all.kept[0], all.most);
    run_expect_same(&none.result, &all.result);
}

static void sums_are_handed_over(void **state)
{
    static const variant cases[] = {
        { .world = 1, .accumulation = 1, .buffers = 4, .precision = BF16 },
        { .world = 1, .accumulation = 3, .buffers = 20, .precision = BF16 },
        { .world = 1, .accumulation = 1, .buffers = 4, .precision = FP32, .reload = true },
        { .world = 2, .accumulation = 1, .buffers = 4, .precision = BF16, .engine = "threads" },
        { .world = 3, .accumulation = 2, .buffers = 4, .precision = FP32 },
        { .world = 2, .accumulation = 4, .together = 4, .buffers = 4, .precision = BF16 },
        { .world = 1, .accumulation = 4, .together = 2, .buffers = 20, .precision = BF16 },
    };
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        variant none = cases[i];
        none.whole = true;
        none.steps = 6;
        variant all = with(none, ALL);
        run(&none);
        remove_save();
        run(&all);
        remove_save();
        for (int32_t r = 0; r < all.world; r++)
            assert_true(all.kept[r] >= all.steps && all.kept[r] <= all.most);
        run_expect_same(&none.result, &all.result);
    }
}

/* In a step of one pass nothing is made early of groups whose sums stay in memory; in one of several those are made as
 * others are. */
static void gradients_that_stay_wait(void **state)
{
    static const variant cases[] = {
        { .world = 1, .accumulation = 1, .buffers = 4, .precision = BF16, .stay = 0.5 },
        { .world = 2, .accumulation = 1, .buffers = 4, .precision = FP32, .stay = 0.3, .clipping = 0.001, .steps = 1 },
        { .world = 3, .accumulation = 1, .buffers = 20, .precision = BF16, .stay = 0.7, .reload = true },
        { .world = 1, .accumulation = 1, .buffers = 4, .precision = BF16, .stay = 0.5, .whole = true, .steps = 6 },
        { .world = 2, .accumulation = 4, .together = 4, .buffers = 4, .precision = FP32, .stay = 0.6, .whole = true },
    };
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        variant none = with(cases[i], NOTHING), late = none, some = with(cases[i], A_TILE);
        none.stay = 0;
        run(&none);
        remove_save();
        run(&late);
        remove_save();
        run(&some);
        remove_save();
        const int64_t stay = (int64_t)(some.stay * (double)some.most),
                      one_group = some.steps * (some.whole ? 20480 : 4096);
        for (int32_t r = 0; r < some.world; r++) {
            assert_in_range(some.made[r], some.steps, some.most - stay + one_group);
            assert_true(some.clipping > 0 ? some.kept[r] == 0 : some.kept[r] >= some.made[r]);
            assert_true(some.kept[r] <= some.most - stay + one_group);
        }
        run_expect_same(&none.result, &late.result);
        run_expect_same(&none.result, &some.result);
        if (!some.reload) /* a load has a plan of its own */
            run_expect_planned(&some.result);
    }
}

static void gradients_that_stay_through_passes(void **state)
{
    static const variant cases[] = {
        { .world = 1, .accumulation = 2, .buffers = 4, .precision = BF16, .stay = 1 },
        { .world = 2, .accumulation = 4, .buffers = 20, .precision = FP32, .stay = 0.5 },
        { .world = 2, .accumulation = 4, .together = 2, .buffers = 4, .precision = BF16, .stay = 1, .whole = true },
        { .world = 1, .accumulation = 3, .buffers = 4, .precision = BF16, .stay = 0.5, .kept_states = 0.3 },
        { .world = 3, .accumulation = 2, .buffers = 4, .precision = BF16, .stay = 1, .whole = true, .steps = 6 },
        { .world = 1, .accumulation = 2, .buffers = 4, .precision = FP32, .stay = 0.5, .whole = true, .reload = true },
        { .world = 2, .accumulation = 2, .buffers = 4, .precision = BF16, .stay = 1, .clipping = 0.001, .steps = 1 },
        { .world = 1, .accumulation = 2, .buffers = 4, .precision = FP16, .stay = 1, .steps = 32 },
    };
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        const bool every_tile = !cases[i].whole && cases[i].kept_states == 0;
        variant none = with(cases[i], NOTHING), all = with(cases[i], every_tile ? ALL : A_TILE);
        none.stay = 0;
        run(&none);
        remove_save();
        run(&all);
        remove_save();
        for (int32_t r = 0; r < all.world; r++) {
            assert_true(!every_tile || all.made[r] == all.most);
            /* Without waits and without sums passed on, the speculative part may be empty. */
            if (!cases[i].whole || cases[i].stay < 1)
                assert_true(all.clipping > 0 ? all.kept[r] == 0 : all.kept[r] >= all.steps - all.skipped);
            assert_true(!every_tile || all.clipping > 0 || all.skipped > 0 || all.kept[r] == all.most);
        }
        assert_int_equal(all.skipped, none.skipped);
        run_expect_same(&none.result, &all.result);
        if (!all.reload)
            run_expect_planned(&all.result);
    }
}

/* The memory of later sums holds tiles meanwhile, and the bits are equal. The update is sure of its terms and makes all
 * of them, or is cancelled in the middle. */
static void sums_lend_their_memory(void **state)
{
    static const variant cases[] = {
        { .world = 1, .accumulation = 1, .buffers = 4, .precision = BF16, .stay = 0.5, .whole = true, .steps = 6 },
        { .world = 2, .accumulation = 1, .buffers = 4, .precision = FP32, .stay = 0.5, .whole = true, .reload = true },
        { .world = 1, .accumulation = 4, .together = 4, .buffers = 4, .precision = BF16, .stay = 0.4, .whole = true },
        { .world = 3, .accumulation = 1, .buffers = 4, .precision = BF16, .kept_states = 0.6, .whole = true },
        { .world = 1, .accumulation = 1, .buffers = 4, .precision = BF16, .stay = 0.5, .clipping = 0.001, .steps = 6 },
        { .world = 1, .accumulation = 1, .buffers = 4, .precision = BF16, .stay = 0.6, .steps = 6 },
        { .world = 2, .accumulation = 1, .buffers = 4, .precision = FP32, .kept_states = 0.5, .steps = 6 },
        { .world = 1, .accumulation = 1, .buffers = 4, .precision = FP16, .stay = 0.5, .whole = true, .steps = 32 },
    };
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        variant none = with(cases[i], NOTHING), some = with(cases[i], A_TILE);
        run(&none);
        remove_save();
        some.aims = true;
        run(&some);
        remove_save();
        for (int32_t r = 0; r < some.world; r++)
            assert_true(some.lent[r] > 0);
        assert_int_equal(some.skipped, none.skipped);
        run_expect_same(&none.result, &some.result);
    }
}

/* All of them, of one pass: nothing is early, and no ring waits for any. */
static void all_gradients_may_stay(void **state)
{
    for (int32_t world = 1; world <= 2; world++) {
        const variant v = { .world = world, .accumulation = 1, .buffers = 4, .precision = BF16, .whole = true };
        variant none = with(v, NOTHING), all = with(v, ALL);
        all.stay = 1;
        run(&none);
        run(&all);
        assert_int_equal(all.kept[0], 0);
        run_expect_same(&none.result, &all.result);
        run_expect_planned(&all.result);
    }
}

/* The parameter that was not finite is named also after its sum was overwritten. */
static void a_skipped_step_needs_no_sums(void **state)
{
    for (int32_t world = 1; world <= 2; world++)
        for (int64_t limit = 0; limit <= 1; limit++) {
            const variant v = { .world = world,
                                .accumulation = 1,
                                .buffers = 4,
                                .precision = FP16,
                                .whole = true,
                                .skip_limit = limit,
                                .steps = 40 };
            variant none = with(v, NOTHING), all = with(v, ALL);
            run(&none);
            run(&all);
            if (limit > 0) {
                assert_int_equal(none.result.status, DSC_ERR_NUMERIC);
                assert_non_null(strstr(none.result.error.message, "the gradient of"));
                assert_string_equal(all.result.error.message, none.result.error.message);
                assert_true(all.made[0] > 0);
                continue;
            }
            assert_true(none.skipped > 0 && none.skipped < none.steps);
            assert_int_equal(all.skipped, none.skipped);
            assert_true(all.kept[0] > 0 && all.kept[0] < all.most);
            run_expect_same(&none.result, &all.result);
        }
}

/* A plan that does not fit names the states in memory that could be offloaded. */
static void a_plan_that_does_not_fit_names_states_to_offload(void **state)
{
    static const struct {
        double ratio, gradients;
    } cases[] = { { 1, 0 }, { 1, 0.5 }, { 0.5, 0 }, { 0.5, 0.5 } };
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        dsc_engine *engine = NULL;
        dsc_engine_options options = DSC_ENGINE_OPTIONS_INIT;
        dsc_error err = DSC_ERROR_INIT;
        char config[2048];
        snprintf(
            config, sizeof config,
            "{\"train_micro_batch_size_per_gpu\": 1, \"optimizer\": {\"type\": \"AdamW\"}, \"zero_optimization\": {"
            "\"stage\": 3, \"stage3_param_persistence_threshold\": 0,"
            " \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\", \"ratio\": %g},"
            " \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}},"
            " \"dsc\": {\"early_update\": true, \"gradients_in_memory\": %g}}",
            folder, cases[i].ratio, folder, cases[i].gradients);
        options.config_text = config;
        options.model = model;
        options.flags = DSC_ENGINE_PLAN_ONLY;
        assert_int_equal(dsc_engine_open(&engine, &options, &err), DSC_OK);
        dsc_probe_set_host_free_bytes(engine, 1);
        assert_int_equal(dsc_probe_check_fit(engine, &err), DSC_ERR_NOFIT);
        const bool gradients = strstr(err.message, "a smaller dsc.gradients_in_memory, ") != NULL;
        const bool ratio = strstr(err.message, "a larger zero_optimization.offload_optimizer.ratio, ") != NULL;
        assert_int_equal(gradients, cases[i].gradients > 0);
        assert_int_equal(ratio, cases[i].ratio < 1);
        dsc_engine_close(&engine);
    }
}

static int make_folder(void **state)
{
    const char *base = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%.400s/dsc-early-XXXXXX", base != NULL ? base : "/tmp");
    model = toy_model_open(20, 61, 8, false); /* 8 groups of 4096, and 2048 at both ends */
    wide = toy_model_open(20, 139, 4, false); /* 4 groups of 10 tiles: at most 3 ranks hand over more than 3 of each */
    return mkdtemp(folder) != NULL ? 0 : -1;
}

static int remove_folder(void **state)
{
    toy_model_close(model);
    toy_model_close(wide);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_or_a_part_is_kept),      cmocka_unit_test(a_clipped_step_repeats_its_speculative_update),
        cmocka_unit_test(a_skipped_step_drops_its_speculative_update),
        cmocka_unit_test(speculative_updates_are_saved_and_loaded),
        cmocka_unit_test(sums_are_handed_over),       cmocka_unit_test(a_skipped_step_needs_no_sums),
        cmocka_unit_test(gradients_that_stay_wait),   cmocka_unit_test(all_gradients_may_stay),
        cmocka_unit_test(sums_lend_their_memory),
        cmocka_unit_test(a_plan_that_does_not_fit_names_states_to_offload),
        cmocka_unit_test(gradients_that_stay_through_passes),
    };
    return cmocka_run_group_tests_name("speculative update", tests, make_folder, remove_folder);
}
