/* test_buffers.c - buffers of modules have the values that one loop over all micro-batches folds, bit by bit.
 *
 * Varied are the number of ranks, stage, placement, recomputation and grouping. Only the first forward gives
 * statistics. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "tests/support/ckpt_world.h"
#include "tests/support/probe.h"
#include "tests/support/run_expect.h"
#include "tests/support/toy_buffers.h"

#define STEPS 3
#define FLOATS (2 * (64 + 128) + 64) /* statistics, each padded to 64 elements */
#define VALUES (FLOATS + 2 * 64)     /* those, and two frozen ones */
#define MODULES 3                    /* with buffers */

static dsc_model *model;

static int open_model(void **state)
{
    model = toy_buffers_open();
    return 0;
}

static int close_model(void **state)
{
    toy_buffers_close();
    return 0;
}

typedef struct variant {
    int32_t world, stage;
    const char *own, *zero, *precision; /* members; the first two begin with a comma; NULL: none */
} variant;

static void config_of(const variant *v, char config[2048])
{
    snprintf(config, 2048,
             "{\"train_batch_size\": %d, \"train_micro_batch_size_per_gpu\": %d, %s,"
             " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.003}},"
             " \"zero_optimization\": {\"stage\": %d%s}, \"dsc\": {\"threads\": 1, \"device\": \"cpu\","
             " \"reproducible\": \"world_size\"%s}}",
             TOY_BUFFERS_BATCH, TOY_BUFFERS_MICRO,
             v->precision != NULL ? v->precision : "\"bf16\": {\"enabled\": true}", (int)v->stage,
             v->zero != NULL ? v->zero : "", v->own != NULL ? v->own : "");
}

/* A run to its end, whose buffers are as expected on every rank. */
static void run_as(variant v, const run_options *more, run_result *out)
{
    int64_t steps = STEPS;
    char config[2048];
    run_options options = more != NULL ? *more : (run_options) { .after = toy_buffers_expect, .user = &steps };
    config_of(&v, config);
    options.steps = STEPS;
    run_model(model, toy_buffers_data(), v.world, config, &options, out);
    if (out->status != DSC_OK)
        fail_msg("%d ranks, %s: %s: %s", (int)v.world, config, out->error.where, out->error.message);
}

/* One statistic for each micro-batch and module. Bits of weights and losses are equal everywhere too. */
static void expect_run(variant v, const run_result *first)
{
    run_result other;
    (void)toy_buffers_statistics();
    run_as(v, NULL, &other);
    assert_int_equal(toy_buffers_statistics(), MODULES * STEPS * TOY_BUFFERS_BATCH / TOY_BUFFERS_MICRO);
    run_expect_same(first, &other);
    assert_int_equal(other.alloc_calls_after_first, other.alloc_calls_at_end);
    assert_true(other.tracked_peak <= other.planned);
}

static void values_are_folded_in_the_order_of_micro_batches(void **state)
{
    static const char *const recompute[] = { "none", "full" };
    run_result first;
    char own[128];
    run_as((variant) { .world = 1 }, NULL, &first);
    for (int32_t world = 1; world <= 4; world *= 2)
        for (int32_t stage = 0; stage <= 3; stage++) {
            const int group = stage % 2 == 0 ? 1 : 2;
            snprintf(own, sizeof own, ", \"recompute\": \"%s\", \"micro_batches_together\": %d",
                     recompute[(world + stage) % 2], group);
            expect_run((variant) { .world = world,
                                   .stage = stage,
                                   .own = own,
                                   .zero = stage == 2   ? ", \"offload_optimizer\": {\"device\": \"cpu\"}"
                                           : stage == 3 ? ", \"overlap_comm\": true"
                                                        : NULL },
                       &first);
        }
}

/* Every rank has the values of all stages. */
static void stages_fold_their_own(void **state)
{
    static const int32_t pipeline[] = { 2, 4, 2 }, world[] = { 2, 4, 4 };
    run_result first;
    char own[128];
    run_as((variant) { .world = 1 }, NULL, &first);
    for (size_t g = 0; g < DSC_COUNT(pipeline); g++)
        for (int32_t stage = 0; stage <= 3; stage++) {
            snprintf(own, sizeof own,
                     ", \"recompute\": \"%s\", \"micro_batches_together\": %d, \"grid\": {\"pipeline\": %d}",
                     stage % 2 == 0 ? "none" : "full", 1 + stage / 2, (int)pipeline[g]);
            expect_run((variant) { .world = world[g], .stage = stage, .own = own }, &first);
        }
}

/* ---- what else runs a forward ---- */

static dsc_status evaluate(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    const dsc_data_source data = toy_buffers_data();
    int64_t steps = STEPS;
    float mean[TOY_BUFFERS_FEATURES];
    double loss;
    const int64_t before = toy_buffers_statistics();
    (void)before;
    (void)user;
    DSC_TRY(dsc_engine_evaluate(engine, &data, 2, &loss, err));
    CW_CHECK(toy_buffers_statistics() == 0);
    toy_buffers_expected("block.0.mean", STEPS, mean);
    CW_CHECK(toy_buffers_seen() == mean[0]);
    return toy_buffers_expect(engine, rank, &steps, err);
}

static void evaluation_reads_values_and_folds_nothing(void **state)
{
    run_result out;
    run_as((variant) { .world = 1, .stage = 1 }, &(run_options) { .after = evaluate }, &out);
}

/* torchvision's fine-tuning: weights are frozen, and model.train() folds all the same. */
static void frozen_parameters_change_nothing(void **state)
{
    run_result out;
    int64_t steps = STEPS;
    run_as((variant) { .world = 2, .stage = 2, .own = ", \"freeze\": [\"block.*\"]" },
           &(run_options) { .after = toy_buffers_expect, .user = &steps }, &out);
}

static dsc_status expect_kept(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    static const char *const names[] = { "block.0.mean", "block.1.wide", "block.1.steps", "loss.mean" };
    double wanted[TOY_BUFFERS_WIDE], there[TOY_BUFFERS_WIDE];
    (void)rank;
    (void)user;
    for (size_t i = 0; i < DSC_COUNT(names); i++) {
        const int64_t bytes = toy_buffers_expected(names[i], names[i][0] == 'l' ? STEPS : 0, wanted);
        DSC_TRY(dsc_probe_buffer(engine, names[i], there, err));
        if (memcmp(wanted, there, (size_t)bytes) != 0)
            return DSC_FAIL(err, DSC_ERR_INTERNAL, names[i], "is not what is expected");
    }
    return DSC_OK;
}

/* dsc.freeze_batch_norm: the buffers of modules whose parameters are all frozen keep their first values. */
static void buffers_of_frozen_norms_stay(void **state)
{
    run_result first, other;
    const run_options options = { .after = expect_kept };
    const char *own = ", \"freeze\": [\"block.*\"], \"freeze_batch_norm\": true";
    run_as((variant) { .world = 1, .own = own }, &options, &first);
    run_as((variant) { .world = 2, .stage = 3, .own = own }, &options, &other);
    run_expect_same(&first, &other);
}

static void frozen_norms_need_frozen_parameters(void **state)
{
    char config[2048];
    run_result out;
    const run_options options = { .steps = 1 };
    config_of(&(variant) { .world = 1, .own = ", \"freeze_batch_norm\": true" }, config);
    run_model(model, toy_buffers_data(), 1, config, &options, &out);
    assert_int_equal(out.status, DSC_ERR_CONFIG);
    assert_string_equal(out.error.where, "dsc.freeze_batch_norm");
    assert_non_null(strstr(out.error.message, "no batch norm"));
}

static void skipped_steps_are_folded(void **state)
{
    run_result out;
    int64_t steps = STEPS;
    for (int32_t world = 1; world <= 2; world++) {
        run_as(
            (variant) { .world = world,
                        .stage = 1,
                        .precision = "\"fp16\": {\"enabled\": true, \"initial_scale_power\": 30, \"hysteresis\": 1}" },
            &(run_options) { .after = toy_buffers_expect, .user = &steps }, &out);
        assert_false(out.norm[0] < 1e300); /* it was skipped */
    }
}

/* ---- values that are not finite ---- */

static int warnings;

static void count_warning(void *user, dsc_log_level level, const char *text)
{
    if (level == DSC_LOG_WARNING && strstr(text, "is not finite after step") != NULL) {
        assert_non_null(strstr(text, "buffer block.0.wide is not finite after step 2"));
        warnings++;
    }
}

static dsc_status expect_nan(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    float wide[TOY_BUFFERS_WIDE], wanted[TOY_BUFFERS_WIDE];
    DSC_TRY(dsc_probe_buffer(engine, "block.0.wide", wide, err));
    toy_buffers_expected("block.0.wide", STEPS, wanted);
    CW_CHECK(memcmp(wide, wanted, (TOY_BUFFERS_WIDE - 1) * sizeof *wide) == 0);
    CW_CHECK(wide[TOY_BUFFERS_WIDE - 1] != wide[TOY_BUFFERS_WIDE - 1]);
    return DSC_OK;
}

static void a_value_that_is_not_finite_stays_and_is_named_once(void **state)
{
    run_result out;
    warnings = 0;
    toy_buffers_spoil(TOY_BUFFERS_BATCH + 6);
    run_as((variant) { .world = 2, .stage = 1 }, &(run_options) { .after = expect_nan, .log = { count_warning, NULL } },
           &out);
    toy_buffers_spoil(-1);
    assert_int_equal(warnings, 1);
}

/* ---- plan and exchange ---- */

static dsc_status expect_plan(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    const int64_t ranks = dsc_engine_size(engine), steps = TOY_BUFFERS_BATCH / TOY_BUFFERS_MICRO / ranks;
    const int64_t bytes = VALUES * 4 + FLOATS * 4 + steps * FLOATS * 4 + ranks * steps * FLOATS * 4 + 9 * 8;
    int64_t found = 0;
    for (int32_t i = 0; i < dsc_engine_plan_row_count(engine); i++) {
        dsc_plan_row row;
        DSC_TRY(dsc_engine_plan_row(engine, i, &row, err));
        if (strcmp(row.tag, "buffers") != 0)
            continue;
        found += row.planned_bytes;
        CW_CHECK(row.planned_bytes == row.peak_bytes && row.peak_bytes == row.current_bytes);
    }
    CW_CHECK(found == bytes || found == dsc_align_up(bytes, 64)); /* an array may be counted in whole lines */
    return DSC_OK;
}

static void the_plan_is_exact(void **state)
{
    run_result out;
    for (int32_t world = 1; world <= 4; world *= 2)
        run_as((variant) { .world = world, .stage = world - 1 }, &(run_options) { .after = expect_plan }, &out);
}

static dsc_status received(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    dsc_step_result result = DSC_STEP_RESULT_INIT;
    DSC_TRY(dsc_engine_train_batch(engine, &result, err));
    if (rank == 0)
        *(int64_t *)user = result.received_bytes[DSC_EXCHANGE_OTHER];
    return DSC_OK;
}

static void the_exchange_is_counted(void **state)
{
    run_result out;
    int64_t with = 0, without = 0;
    dsc_module frozen[4];
    dsc_model plain = *model;
    dsc_model *const whole = model;
    run_as((variant) { .world = 2, .stage = 1 }, &(run_options) { .after = received, .user = &with }, &out);
    memcpy(frozen, model->modules, sizeof frozen);
    for (size_t m = 0; m < DSC_COUNT(frozen); m++)
        frozen[m].buffer_count = 0;
    plain.modules = frozen;
    model = &plain;
    run_as((variant) { .world = 2, .stage = 1 }, &(run_options) { .after = received, .user = &without }, &out);
    model = whole;
    assert_int_equal(with - without, 4 * FLOATS * 4); /* the other rank's four micro-steps */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_folded_in_the_order_of_micro_batches),
        cmocka_unit_test(stages_fold_their_own),
        cmocka_unit_test(evaluation_reads_values_and_folds_nothing),
        cmocka_unit_test(frozen_parameters_change_nothing),
        cmocka_unit_test(buffers_of_frozen_norms_stay),
        cmocka_unit_test(frozen_norms_need_frozen_parameters),
        cmocka_unit_test(skipped_steps_are_folded),
        cmocka_unit_test(a_value_that_is_not_finite_stays_and_is_named_once),
        cmocka_unit_test(the_plan_is_exact),
        cmocka_unit_test(the_exchange_is_counted),
    };
    return cmocka_run_group_tests_name("buffers", tests, open_model, close_model);
}
