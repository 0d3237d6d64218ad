/* test_fp16.c - fp16 training: equal bits at every stage and placement, and factors of sent values. All ranks skip the
 * same overflows, the checkpoint holds the scale, and gradients that are never finite end the run.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/ckpt_world.h"
#include "tests/support/probe.h"
#include "tests/support/run_world.h"
#include "tests/support/toy_model.h"

static dsc_model *model;
static char *dir;

static int setup(void **state)
{
    (void)state;
    model = toy_model_open(5, 37, 3, true);
    dir = cw_tmp_open();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    toy_model_close(model);
    cw_tmp_close(dir);
    return 0;
}

typedef struct variant {
    int32_t world, stage;
    const char *precision; /* the section's member of the config */
    const char *zero, *own; /* further members, each preceded by a comma */
} variant;

#define ADAMW                                                                                        \
    "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01, \"weight_decay\": 0.1}},"               \
    " \"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_type\": \"linear\","                     \
    " \"warmup_max_lr\": 0.01, \"warmup_num_steps\": 50}}, \"gradient_clipping\": 0.5"
#define SGD(lr) "\"optimizer\": {\"type\": \"SGD\", \"params\": {\"lr\": " lr "}}"

static void run_with(const variant *v, const char *optimizer, int64_t steps, const run_options *base, run_result *out)
{
    char config[2048];
    snprintf(config, sizeof config,
             "{\"train_micro_batch_size_per_gpu\": 3, \"gradient_accumulation_steps\": 2, %s, %s,"
             " \"zero_optimization\": {\"stage\": %d%s}, \"dsc\": {\"threads\": 1%s}}",
             v->precision, optimizer, (int)v->stage, v->zero != NULL ? v->zero : "", v->own != NULL ? v->own : "");
    run_options options = base != NULL ? *base : (run_options){ 0 };
    options.world = v->world;
    options.steps = steps;
    options.model = model;
    options.config = config;
    options.fault_rank = -1;
    if (options.data.fill == NULL)
        options.data = toy_data(model, 1 << 20);
    run_world(&options, out);
}

static void run(const variant *v, int64_t steps, const run_options *base, run_result *out)
{
    run_with(v, ADAMW, steps, base, out);
}

static void expect_ok(const run_result *r)
{
    if (r->status != DSC_OK)
        print_error("%s: %s\n", r->error.where, r->error.message);
    assert_int_equal(r->status, DSC_OK);
}

static void expect_same(const run_result *a, const run_result *b)
{
    assert_memory_equal(a->loss, b->loss, (size_t)a->steps * sizeof(double));
    assert_memory_equal(a->norm, b->norm, (size_t)a->steps * sizeof(double));
    assert_string_equal(a->hash, b->hash);
}

/* In files, too. */
static void stages_and_places_agree(void **state)
{
    char nvme[512];
    (void)state;
    snprintf(nvme, sizeof nvme, ", \"sub_group_size\": 2048, \"offload_optimizer\": {\"device\": \"nvme\","
             " \"nvme_path\": \"%s\"}", dir);
    for (int32_t world = 1; world <= 3; world++) {
        const char *const fp16 = "\"fp16\": {\"enabled\": true, \"initial_scale_power\": 10}";
        run_result first, other;
        run(&(variant){ world, 0, fp16, NULL, NULL }, 20, NULL, &first);
        expect_ok(&first);
        assert_true(first.loss[19] < first.loss[0]);
        for (int32_t stage = 1; stage <= 3; stage++) {
            run(&(variant){ world, stage, fp16, stage == 2 ? nvme : ", \"overlap_comm\": true",
                            stage == 3 ? ", \"recompute\": \"full\"" : NULL }, 20, NULL, &other);
            expect_ok(&other);
            expect_same(&first, &other);
        }
    }
}

/* A power of two as scale changes no bit as long as nothing leaves fp16's range: leaves in fp32 never do. */
static void the_scale_cancels(void **state)
{
    run_result one, other;
    (void)state;
    run(&(variant){ 2, 1, "\"fp16\": {\"enabled\": true, \"loss_scale\": 64}, \"communication_data_type\": \"fp32\"",
                    NULL, NULL }, 4, NULL, &one);
    run(&(variant){ 2, 2, "\"fp16\": {\"enabled\": true, \"loss_scale\": 128}, \"communication_data_type\": \"fp32\"",
                    NULL, NULL }, 4, NULL, &other);
    expect_ok(&one);
    expect_ok(&other);
    for (int s = 0; s < 4; s++) {
        assert_true(fabs(one.loss[s] - other.loss[s]) < 1e-3 * fabs(one.loss[s]));
        assert_true(fabs(one.norm[s] - other.norm[s]) < 1e-3 * one.norm[s]);
    }
}

/* ---- what leaves are multiplied by before they are sent ---- */

#define BF16 "\"bf16\": {\"enabled\": true}"

static void expect_near(const run_result *a, const run_result *b, double within)
{
    for (int64_t s = 0; s < a->steps; s++) {
        assert_true(fabs(a->loss[s] - b->loss[s]) < within * fabs(a->loss[s]));
        assert_true(fabs(a->norm[s] - b->norm[s]) < 10 * within * a->norm[s]);
    }
}

/* By a power of two: no bit changes. By another number only what is rounded on the wire, alike at every stage. */
static void leaves_are_divided_before_and_after(void **state)
{
    run_result plain[4], other, third;
    (void)state;
    for (int32_t world = 2; world <= 3; world++) {
        run(&(variant){ world, 1, BF16, NULL, NULL }, 6, NULL, &plain[world]);
        expect_ok(&plain[world]);
    }
    run(&(variant){ 2, 2, BF16 ", \"gradient_predivide_factor\": 0.125", NULL, NULL }, 6, NULL, &other);
    expect_same(&plain[2], &other);
    run(&(variant){ 2, 3, BF16 ", \"prescale_gradients\": true", NULL, NULL }, 6, NULL, &other);
    expect_same(&plain[2], &other);
    run(&(variant){ 3, 0, BF16 ", \"gradient_predivide_factor\": 3", NULL, NULL }, 6, NULL, &third);
    expect_ok(&third);
    assert_string_not_equal(third.hash, plain[3].hash);
    expect_near(&third, &plain[3], 1e-3);
    for (int32_t stage = 1; stage <= 3; stage++) {
        run(&(variant){ 3, stage, BF16 ", \"prescale_gradients\": true",
                        stage == 3 ? ", \"overlap_comm\": true" : NULL, NULL }, 6, NULL, &other);
        expect_ok(&other);
        expect_same(&third, &other);
    }
}

/* Over 2 ranks twice the mean: SGD at half the rate takes the same steps, bit for bit. */
static void the_sum_is_so_many_means(void **state)
{
    run_result mean, sum;
    (void)state;
    run_with(&(variant){ 2, 1, BF16, NULL, NULL }, SGD("0.5"), 6, NULL, &mean);
    for (int32_t stage = 0; stage <= 2; stage++) {
        run_with(&(variant){ 2, stage, BF16 ", \"gradient_allreduce_op\": \"sum\"", NULL, NULL }, SGD("0.25"), 6, NULL,
                 &sum);
        expect_ok(&sum);
        assert_memory_equal(sum.loss, mean.loss, 6 * sizeof(double));
        assert_string_equal(sum.hash, mean.hash);
        for (int s = 0; s < 6; s++)
            assert_true(sum.norm[s] == 2 * mean.norm[s]);
    }
}

/* fp16 on the wire ends at 65504 and at 2^-24: what a factor moves out of that is lost. */
static void the_wire_has_its_range(void **state)
{
    run_result one, other;
    (void)state;
    run(&(variant){ 2, 1, BF16 ", \"communication_data_type\": \"fp16\"", NULL, NULL }, 3, NULL, &one);
    expect_ok(&one);
    run(&(variant){ 2, 2, BF16 ", \"communication_data_type\": \"fp16\", \"gradient_predivide_factor\": 16", NULL,
                    NULL }, 3, NULL, &other);
    expect_ok(&other);
    expect_near(&one, &other, 1e-3);
    run(&(variant){ 2, 1, BF16 ", \"communication_data_type\": \"fp16\", \"gradient_predivide_factor\": 1e9", NULL,
                    NULL }, 3, NULL, &other);
    expect_ok(&other);
    assert_true(other.norm[0] == 0);
    run(&(variant){ 2, 1, BF16 ", \"communication_data_type\": \"fp16\", \"gradient_predivide_factor\": 1e-9", NULL,
                    NULL }, 3, NULL, &other);
    expect_ok(&other);
    assert_false(isfinite(other.norm[0]));
    run(&(variant){ 2, 1, BF16 ", \"fp32_allreduce\": true, \"gradient_predivide_factor\": 1e-9", NULL, NULL }, 3, NULL,
        &other);
    expect_ok(&other);
    expect_near(&one, &other, 1e-3);
}

/* ---- overflows ---- */

typedef struct seen {
    dsc_loss_scaler scaler;
    int64_t update_count;
    double lr;
} seen;

static dsc_status look(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    seen *s = &((seen *)user)[rank];
    (void)err;
    *s = (seen){ dsc_probe_loss_scaler(engine), dsc_probe_update_count(engine), dsc_engine_lr(engine) };
    return DSC_OK;
}

static void overflows_are_skipped_by_all(void **state)
{
    static const char fp16[] = "\"fp16\": {\"enabled\": true, \"initial_scale_power\": 22, \"hysteresis\": 2,"
                               " \"loss_scale_window\": 3}";
    (void)state;
    for (int32_t stage = 0; stage <= 3; stage++) {
        seen ranks[RUN_RANKS_MAX] = { 0 };
        run_result result;
        run(&(variant){ 3, stage, fp16, NULL, NULL }, 40, &(run_options){ .after = look, .user = ranks }, &result);
        expect_ok(&result);
        /* The rules themselves are test_loss_scale.c's. */
        dsc_config config = { .precision = DSC_PRECISION_FP16,
                              .fp16 = { 0, 1, 22, 3, 2, false } };
        dsc_loss_scaler expected;
        int64_t updates = 0;
        dsc_loss_scaler_start(&config, &expected);
        for (int s = 0; s < 40; s++) {
            updates += isfinite(result.norm[s]) ? 1 : 0;
            assert_true(isfinite(result.loss[s]));
            assert_true(dsc_loss_scaler_next(&config, !isfinite(result.norm[s]), &expected));
        }
        assert_true(updates > 5 && updates < 36 && !isfinite(result.norm[0]));
        for (int r = 0; r < 3; r++) {
            assert_true(ranks[r].scaler.scale == expected.scale);
            assert_int_equal(ranks[r].scaler.overflow_step, expected.overflow_step);
            assert_int_equal(ranks[r].scaler.overflows_left, expected.overflows_left);
            assert_int_equal(ranks[r].update_count, updates);
            assert_true(fabs(ranks[r].lr - 0.01 * (double)(updates - 1) / 50) < 1e-12);
        }
    }
}

/* ---- checkpoints ---- */

static dsc_status save(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    (void)rank;
    return dsc_engine_save(engine, user, err);
}

static dsc_status load(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    (void)rank;
    return dsc_engine_load(engine, user, err);
}

static void the_scale_is_in_the_checkpoint(void **state)
{
    static const char fp16[] = "\"fp16\": {\"enabled\": true, \"initial_scale_power\": 20, \"hysteresis\": 3,"
                               " \"loss_scale_window\": 2}";
    run_result whole, first, second;
    char *path = cw_path(dir, "run");
    (void)state;
    run(&(variant){ 2, 2, fp16, NULL, NULL }, 24, NULL, &whole);
    run(&(variant){ 2, 1, fp16, NULL, NULL }, 11, &(run_options){ .after = save, .user = path }, &first);
    run(&(variant){ 2, 3, fp16, NULL, NULL }, 13, &(run_options){ .before = load, .user = path }, &second);
    expect_ok(&whole);
    expect_ok(&first);
    expect_ok(&second);
    assert_memory_equal(first.norm, whole.norm, 11 * sizeof(double));
    assert_memory_equal(second.norm, whole.norm + 11, 13 * sizeof(double));
    assert_string_equal(second.hash, whole.hash);
}

/* ---- never finite ---- */

static dsc_status poison(const dsc_data_source *toy, int64_t first, int64_t count, int64_t last_of, int64_t every,
                         void *const *batch, dsc_error *err)
{
    DSC_TRY(toy->fill(toy->user, first, count, batch, err));
    for (int64_t i = 0; i < count; i++)
        if ((first + i) % every >= every - last_of)
            ((float *)batch[0])[i * 5] = NAN;
    return DSC_OK;
}

/* Rank 1 has the second of the two micro-batches of 3 in every 6. */
static dsc_status poisoned(void *user, int64_t first, int64_t count, void *const *batch, dsc_error *err)
{
    return poison(user, first, count, 3, 6, batch, err);
}

/* In the last micro-step alone. */
static dsc_status poisoned_late(void *user, int64_t first, int64_t count, void *const *batch, dsc_error *err)
{
    return poison(user, first, count, 3, 12, batch, err);
}

static void the_tensor_of_a_nonfinite_gradient_is_named(void **state)
{
    static const char *const precisions[] = { "\"bf16\": {\"enabled\": true}", "\"bf16\": {\"enabled\": false}",
                                              "\"fp16\": {\"enabled\": true}" };
    dsc_data_source toy = toy_data(model, 1 << 20);
    char nvme[512];
    (void)state;
    snprintf(nvme, sizeof nvme, ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}", dir);
    for (int32_t stage = 0; stage <= 3; stage++) {
        run_result result;
        const run_options base = { .data = { .user = &toy, .fill = poisoned, .sample_count = toy.sample_count } };
        run(&(variant){ 2, stage, precisions[stage % 3], stage > 1 ? nvme : NULL, ", \"skip_limit\": 3" }, 5, &base,
            &result);
        assert_int_equal(result.status, DSC_ERR_NUMERIC);
        assert_string_equal(result.error.where, "dsc.skip_limit");
        const char *const words[] = { "3 steps in a row were skipped, the last at step 3: the gradient of ",
                                      model->modules[0].params[0].name, "has Inf or NaN",
                                      "the loss of rank 1 in micro-step 1 is not finite either" };
        for (size_t i = 0; i < DSC_COUNT(words); i++)
            if (strstr(result.error.message, words[i]) == NULL)
                fail_msg("stage %d: no \"%s\" in: %s", (int)stage, words[i], result.error.message);
        for (int r = 0; r < 2; r++)
            assert_int_equal(result.ranks[r].status, DSC_ERR_NUMERIC);
    }
}

/* The first module that is trained is the last one of a backward pass: what makes its sum NaN is in no file. */
static void a_sum_that_is_in_no_file_is_named(void **state)
{
    dsc_data_source toy = toy_data(model, 1 << 20);
    char nvme[512];
    run_result result;
    (void)state;
    snprintf(nvme, sizeof nvme, ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}", dir);
    const run_options base = { .data = { .user = &toy, .fill = poisoned_late, .sample_count = toy.sample_count } };
    run(&(variant){ 2, 3, "\"bf16\": {\"enabled\": true}", nvme,
                    ", \"skip_limit\": 1, \"freeze\": [\"input.weight\"]" }, 2, &base, &result);
    assert_int_equal(result.status, DSC_ERR_NUMERIC);
    if (strstr(result.error.message, model->modules[1].params[0].name) == NULL)
        fail_msg("%s", result.error.message);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_and_places_agree),
        cmocka_unit_test(the_scale_cancels),
        cmocka_unit_test(leaves_are_divided_before_and_after),
        cmocka_unit_test(the_wire_has_its_range),
        cmocka_unit_test(the_sum_is_so_many_means),
        cmocka_unit_test(overflows_are_skipped_by_all),
        cmocka_unit_test(the_scale_is_in_the_checkpoint),
        cmocka_unit_test(the_tensor_of_a_nonfinite_gradient_is_named),
        cmocka_unit_test(a_sum_that_is_in_no_file_is_named),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
