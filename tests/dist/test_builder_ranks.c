/* test_builder_ranks.c - models of the public builder trained by ranks: the bits of each stage, placement and number of
 * ranks, and those of the built-in model that has the same ops. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/rng.h"
#include "tests/support/built_models.h"
#include "tests/support/run_world.h"

enum { STEPS = 4 };

/* Tokens by the sample's number; targets are the next ones. */
static dsc_status fill(void *user, int64_t first, int64_t count, void *const *data, dsc_error *err)
{
    const dsc_model *model = user;
    const int64_t tokens = model->seq_length;
    (void)err;
    for (int64_t i = 0; i < count; i++)
        for (int64_t t = 0; t <= tokens; t++) {
            const uint32_t drawn = dsc_rng_u32(7, dsc_rng_stream(DSC_RNG_TEST, 3), (uint64_t)((first + i) * 997 + t));
            const int32_t token = (int32_t)(drawn % (uint32_t)(t % 3 == 0 ? 5 : model->vocab_size));
            if (t < tokens)
                ((int32_t *)data[0])[i * tokens + t] = token;
            if (t > 0)
                ((int32_t *)data[1])[i * tokens + t - 1] = token;
        }
    return DSC_OK;
}

static run_result train_with(dsc_model *model, int32_t world, int stage, const char *zero, const char *more,
                             const run_options *options)
{
    static run_result result;
    char config[1000];
    snprintf(config, sizeof config,
             "{\"train_batch_size\": 8, \"train_micro_batch_size_per_gpu\": 2, \"gradient_clipping\": 0.5, \"bf16\": "
             "{\"enabled\": true},"
             " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.003}},"
             " \"zero_optimization\": {\"stage\": %d%s}, \"dsc\": {\"threads\": 1, \"reproducible\": "
             "\"world_size\"%s}}",
             stage, zero, more);
    run_model(model, (dsc_data_source) { fill, model, 1 << 20 }, world, config, options, &result);
    if (result.status != DSC_OK)
        fail_msg("stage %d, %d ranks: %s: %s", stage, (int)world, result.error.where, result.error.message);
    assert_int_equal(result.steps, options->steps);
    return result;
}

static run_result train(dsc_model *model, int32_t world, int stage, const char *zero, const char *more)
{
    const run_options options = { .steps = STEPS, .caps_mask = 0xffffffffu };
    return train_with(model, world, stage, zero, more, &options);
}

static void expect_same(const run_result *a, const run_result *b, const char *what)
{
    for (int i = 0; i < STEPS; i++)
        if (a->loss[i] != b->loss[i] || a->norm[i] != b->norm[i])
            fail_msg("%s: step %d has loss %.17g and %.17g, norm %.17g and %.17g", what, i, a->loss[i], b->loss[i],
                     a->norm[i], b->norm[i]);
    assert_string_equal(a->hash, b->hash);
}

/* Every stage, with 1 and 2 ranks, and with each way of recomputation. */
static void bits_are_equal(dsc_model *model)
{
    static const char *const recompute[] = { ", \"recompute\": \"none\"", ", \"recompute\": \"kept\"",
                                             ", \"recompute\": \"selective\"", ", \"recompute\": \"full\"" };
    const run_result first = train(model, 1, 0, "", "");
    assert_true(first.loss[STEPS - 1] < first.loss[0]);
    for (int32_t world = 1; world <= 2; world++)
        for (int stage = 0; stage <= 3; stage++) {
            char what[64];
            const run_result other = train(model, world, stage, "", recompute[(stage + world) % 4]);
            snprintf(what, sizeof what, "stage %d, %d ranks", stage, (int)world);
            expect_same(&first, &other, what);
        }
    const run_result offloaded = train(
        model, 2, 3, ", \"offload_optimizer\": {\"device\": \"cpu\"}, \"offload_param\": {\"device\": \"cpu\"}", "");
    expect_same(&first, &offloaded, "offload");
}

static void a_built_transformer_has_equal_bits(void **state)
{
    (void)state;
    dsc_model *built = built_llama_nano(24), *known = NULL;
    dsc_model_options options = DSC_MODEL_OPTIONS_INIT;
    bits_are_equal(built);
    options.seq_length = 24;
    assert_int_equal(dsc_model_open(&known, "llama-nano", &options, NULL), DSC_OK);
    const run_result a = train(built, 2, 2, "", ""), b = train(known, 2, 2, "", "");
    expect_same(&a, &b, "the built-in model");
    dsc_model_close(&known);
    dsc_model_close(&built);
}

static void blocks_that_differ_have_equal_bits(void **state)
{
    (void)state;
    dsc_model *model = built_mixed(0.25);
    bits_are_equal(model);
    dsc_model_close(&model);
}

static void checkpoints_go_on_in_another_world(void **state)
{
    (void)state;
    char dir[] = "/tmp/dsc-built-XXXXXX", command[64];
    dsc_model *model = built_mixed(0.25), *again = built_mixed(0.25);
    assert_non_null(mkdtemp(dir));
    const run_result whole = train(model, 2, 3, "", "");
    const run_options first = { .steps = STEPS / 2, .caps_mask = 0xffffffffu, .after = run_save, .user = dir };
    const run_options rest = { .steps = STEPS / 2, .caps_mask = 0xffffffffu, .before = run_load, .user = dir };
    const run_result saved = train_with(model, 2, 3, "", "", &first);
    const run_result loaded = train_with(again, 1, 1, "", "", &rest);
    assert_true(saved.loss[0] == whole.loss[0]);
    assert_true(loaded.loss[STEPS / 2 - 1] == whole.loss[STEPS - 1]);
    assert_string_equal(loaded.hash, whole.hash);
    snprintf(command, sizeof command, "rm -r %s", dir);
    assert_int_equal(system(command), 0);
    dsc_model_close(&again);
    dsc_model_close(&model);
}

static dsc_status generate(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    static const int32_t prompt[3] = { 1, 2, 3 };
    (void)rank;
    return dsc_engine_generate(engine, prompt, 3, 6, 0, 1, user, err);
}

static void a_built_model_continues_a_text(void **state)
{
    (void)state;
    int32_t own[6], known[6];
    dsc_model *built = built_llama_nano(24), *model = NULL;
    dsc_model_options options = DSC_MODEL_OPTIONS_INIT;
    options.seq_length = 24;
    assert_int_equal(dsc_model_open(&model, "llama-nano", &options, NULL), DSC_OK);
    (void)train_with(built, 1, 0, "", "",
                     &(run_options) { .steps = 2, .caps_mask = 0xffffffffu, .after = generate, .user = own });
    (void)train_with(model, 1, 0, "", "",
                     &(run_options) { .steps = 2, .caps_mask = 0xffffffffu, .after = generate, .user = known });
    assert_memory_equal(own, known, sizeof own);
    dsc_model_close(&model);
    dsc_model_close(&built);
}

static dsc_status failing(void *user, const dsc_custom_call *call, dsc_error *err)
{
    (void)user, (void)call, (void)err;
    return DSC_ERR_NUMERIC;
}

static void a_failing_callback_ends_the_step(void **state)
{
    (void)state;
    dsc_build_options options = DSC_BUILD_OPTIONS_INIT;
    dsc_build_head_options head = DSC_BUILD_HEAD_OPTIONS_INIT;
    dsc_custom_op op = DSC_CUSTOM_OP_INIT;
    dsc_builder *b = NULL;
    dsc_model *model = NULL;
    run_result result;
    const run_options run = { .steps = STEPS, .caps_mask = 0xffffffffu };
    options.name = "failing", options.tokens = 6, options.vocabulary = 10, options.channels = 8;
    op.name = "own", op.forward = op.backward = failing;
    assert_int_equal(dsc_build_open(&b, &options, NULL), DSC_OK);
    const dsc_node x = dsc_build_begin(b);
    dsc_build_end(b, dsc_build_custom(b, &x, &op));
    assert_int_equal(dsc_build_finish(&b, &head, &model, NULL), DSC_OK);
    run_model(model, (dsc_data_source) { fill, model, 1 << 20 }, 1, "{\"train_batch_size\": 2}", &run, &result);
    assert_int_equal(result.status, DSC_ERR_NUMERIC);
    assert_non_null(strstr(result.error.message, "op \"own\" (custom): its forward callback failed"));
    dsc_model_close(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_built_transformer_has_equal_bits),
        cmocka_unit_test(blocks_that_differ_have_equal_bits),
        cmocka_unit_test(checkpoints_go_on_in_another_world),
        cmocka_unit_test(a_built_model_continues_a_text),
        cmocka_unit_test(a_failing_callback_ends_the_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
