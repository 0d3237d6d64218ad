/* test_dpo.c - training on preference pairs: equal bits at every stage, placement and number of ranks.
 *
 * Sequences have unequal numbers of counted targets, and all pairs count alike. Rewards are compared as bits too. The
 * model has adapters in one test. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
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
#include "tests/support/ckpt_world.h"
#include "tests/support/run_expect.h"

enum { VOCAB = 53, SEQUENCE = 24, MICRO_BATCH = 4, STEPS = 3 };
static const dsc_preference preference = { 0.5, 0.1 };

static dsc_model *model;
static char *dir;

static dsc_model *open_model(const dsc_lora_options *lora)
{
    static const char config[] = "{\"model_type\": \"gpt2\", \"vocab_size\": 53, \"n_positions\": 24, \"n_embd\": 64,"
                                 " \"n_head\": 4, \"n_layer\": 2, \"layer_norm_epsilon\": 1e-5}";
    char path[] = "/tmp/dsc-test-dpo-XXXXXX.json";
    dsc_model_options options = DSC_MODEL_OPTIONS_INIT;
    dsc_error err = DSC_ERROR_INIT;
    dsc_model *out = NULL;
    const int fd = mkstemps(path, 5);
    assert_true(fd >= 0);
    assert_true(dprintf(fd, "%s", config) > 0);
    close(fd);
    options.preference = preference;
    options.lora = lora;
    const dsc_status status = dsc_model_open(&out, path, &options, &err);
    unlink(path);
    if (status != DSC_OK)
        fail_msg("%s", err.message);
    return out;
}

/* ---- data ---- */

static uint64_t mix(uint64_t x)
{
    x = (x + 1) * UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 29)) * UINT64_C(0xbf58476d1ce4e5b9);
    return x ^ (x >> 32);
}

/* The two of a pair share their first tokens. References are what fresh weights give, more or less. */
static dsc_status fill(void *user, int64_t first_sample, int64_t count, void *const *data, dsc_error *err)
{
    for (int64_t k = 0; k < count; k++) {
        const int64_t sample = first_sample + k, prompt = 2 + (sample / 2) % 5;
        const int64_t end = prompt + 3 + (int64_t)(mix((uint64_t)sample) % 14);
        for (int64_t t = 0; t < SEQUENCE; t++) {
            const int64_t seed = t < prompt ? sample / 2 * 2 : sample;
            const bool counts = t + 1 >= prompt && t + 1 < end;
            ((int32_t *)data[0])[k * SEQUENCE + t] = (int32_t)(mix((uint64_t)(seed * 1000 + t)) % VOCAB);
            ((int32_t *)data[1])[k * SEQUENCE + t] = counts ? (int32_t)((sample + t) % 7) : t % 2 == 0 ? -1 : -100;
        }
        ((double *)data[2])[k] = -log(VOCAB) * (double)(end - prompt) + (double)(sample % 3) - 1;
    }
    return DSC_OK;
}

/* ---- runs ---- */

typedef struct variant {
    int32_t world, accumulation, stage;
    const char *precision, *zero, *own; /* members of the config; the last two begin with a comma, or are NULL */
    double clipping;
    int64_t micro_batch;    /* 0: MICRO_BATCH */
    const dsc_model *other; /* NULL: model */
} variant;

/* Numbers of a run that run_result has not. */
typedef struct rewards {
    double of_step[STEPS][4];
} rewards;

#define FP32 "\"bf16\": {\"enabled\": false}"
#define BF16 "\"bf16\": {\"enabled\": true}"
#define FP16 "\"fp16\": {\"enabled\": true, \"initial_scale_power\": 8}"
static const char *const precisions[] = { FP32, BF16, FP16 };

static dsc_status step_and_keep(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    rewards *all = user;
    for (int64_t s = 0; s < STEPS; s++) {
        dsc_step_result r = DSC_STEP_RESULT_INIT;
        DSC_TRY(dsc_engine_train_batch(engine, &r, err));
        if (rank == 0)
            memcpy(all->of_step[s],
                   (double[]) { r.reward_chosen, r.reward_rejected, r.reward_margin, r.reward_accuracy },
                   sizeof all->of_step[s]);
    }
    return DSC_OK;
}

static void run_with(const variant *v, const run_options *base, run_result *out)
{
    char config[2048];
    snprintf(config, sizeof config,
             "{\"train_micro_batch_size_per_gpu\": %d, \"gradient_accumulation_steps\": %d, %s,"
             " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.003, \"weight_decay\": 0.1}},"
             " \"gradient_clipping\": %g, \"zero_optimization\": {\"stage\": %d%s}, \"dsc\": {\"threads\": 1%s}}",
             (int)(v->micro_batch != 0 ? v->micro_batch : MICRO_BATCH), (int)v->accumulation, v->precision, v->clipping,
             (int)v->stage, v->zero != NULL ? v->zero : "", v->own != NULL ? v->own : "");
    run_options options = *base;
    options.world = v->world;
    options.model = v->other != NULL ? v->other : model;
    options.config = config;
    options.data = (dsc_data_source) { fill, NULL, 1 << 20 };
    options.fault_rank = -1;
    run_world(&options, out);
}

/* The run's steps, then as many whose rewards are kept. */
static void run(const variant *v, run_result *out, rewards *kept)
{
    memset(kept, 0, sizeof *kept);
    run_with(v, &(run_options) { .steps = STEPS, .after = step_and_keep, .user = kept }, out);
    if (out->status != DSC_OK)
        print_error("%s: %s\n", out->error.where, out->error.message);
    assert_int_equal(out->status, DSC_OK);
}

static void expect_same(const variant *v, const run_result *first, const rewards *kept)
{
    run_result other;
    rewards others;
    run(v, &other, &others);
    run_expect_same(first, &other);
    assert_memory_equal(kept, &others, sizeof others);
}

static void stages_agree_with(variant v)
{
    run_result first;
    rewards kept;
    v.stage = 0;
    run(&v, &first, &kept);
    assert_true(kept.of_step[0][3] >= 0 && kept.of_step[0][3] <= 1);
    for (v.stage = 1; v.stage <= 3; v.stage++) {
        v.zero = v.stage == 2 ? NULL : ", \"overlap_comm\": true";
        v.own = v.stage == 3 ? ", \"recompute\": \"full\"" : v.stage == 2 ? ", \"recompute\": \"selective\"" : NULL;
        expect_same(&v, &first, &kept);
    }
}

static void stages_have_equal_bits(void **state)
{
    (void)state;
    for (size_t p = 0; p < DSC_COUNT(precisions); p++)
        for (int32_t world = 1; world <= 4; world *= 2)
            stages_agree_with((variant) { .world = world,
                                          .accumulation = world == 1 ? 4 : 1,
                                          .precision = precisions[p],
                                          .clipping = world == 2 ? 0.5 : 0 });
}

static void stages_have_equal_bits_with_adapters(void **state)
{
    const char *const targets[] = { "all-linear" };
    dsc_lora_options lora = DSC_LORA_OPTIONS_INIT;
    (void)state;
    lora.rank = 4;
    lora.targets = targets;
    lora.target_count = 1;
    dsc_model *adapted = open_model(&lora);
    stages_agree_with((variant) { .world = 2, .accumulation = 2, .precision = BF16, .other = adapted });
    dsc_model_close(&adapted);
}

/* The reference's pass and the rewards too: the last stage has them. */
static void pipelines_have_the_bits_of_one_stage(void **state)
{
    static const char *const own[] = { ", \"grid\": {\"pipeline\": 2}", ", \"grid\": {\"pipeline\": 4}" };
    (void)state;
    for (int32_t data = 1; data <= 2; data++) {
        run_result first;
        rewards kept;
        variant v = { .world = data, .accumulation = 4 / data, .stage = 1, .precision = BF16, .clipping = 0.5 };
        run(&v, &first, &kept);
        for (int32_t pipeline = 2; pipeline * data <= 4; pipeline *= 2) {
            v.world = pipeline * data;
            v.own = own[pipeline / 4];
            v.stage = pipeline - 1;
            expect_same(&v, &first, &kept);
        }
    }
}

static void world_sizes_have_equal_bits(void **state)
{
    (void)state;
    for (size_t p = 0; p < DSC_COUNT(precisions); p++) {
        run_result first;
        rewards kept;
        variant v = { .world = 1,
                      .accumulation = 4,
                      .precision = precisions[p],
                      .clipping = 0.5,
                      .own = ", \"reproducible\": \"world_size\"" };
        run(&v, &first, &kept);
        for (v.world = 2; v.world <= 4; v.world *= 2) {
            v.accumulation = 4 / v.world;
            v.stage = v.world - 1;
            expect_same(&v, &first, &kept);
        }
    }
}

static void placements_have_equal_bits(void **state)
{
    char files[768];
    run_result first;
    rewards kept;
    (void)state;
    variant v = { .world = 2, .accumulation = 2, .stage = 3, .precision = BF16 };
    run(&v, &first, &kept);
    v.zero = ", \"offload_optimizer\": {\"device\": \"cpu\"}, \"offload_param\": {\"device\": \"cpu\"}";
    expect_same(&v, &first, &kept);
    snprintf(files, sizeof files,
             ", \"sub_group_size\": 2048, \"stage3_param_persistence_threshold\": 0,"
             " \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\", \"buffer_count\": 4},"
             " \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}",
             dir, dir);
    v.zero = files;
    expect_same(&v, &first, &kept);
    v.own = ", \"early_update\": true, \"gradients_in_memory\": 0";
    expect_same(&v, &first, &kept);
}

static void grouped_micro_batches_have_equal_bits(void **state)
{
    run_result first;
    rewards kept;
    (void)state;
    variant v = { .world = 2, .accumulation = 4, .stage = 2, .precision = BF16 };
    run(&v, &first, &kept);
    v.own = ", \"micro_batches_together\": 2";
    expect_same(&v, &first, &kept);
}

/* Micro-batches of any size divide the same pairs. A mean over counted targets would depend on them. */
static void pairs_count_alike(void **state)
{
    run_result first, other;
    rewards kept, others;
    (void)state;
    run(&(variant) { .world = 1, .accumulation = 1, .precision = FP32, .micro_batch = 8 }, &first, &kept);
    run(&(variant) { .world = 2, .accumulation = 2, .precision = FP32, .micro_batch = 2 }, &other, &others);
    for (int s = 0; s < STEPS; s++) {
        assert_true(fabs(first.loss[s] / other.loss[s] - 1) < 1e-5);
        assert_true(fabs(first.norm[s] / other.norm[s] - 1) < 1e-5);
        for (int i = 0; i < 4; i++)
            assert_true(fabs(kept.of_step[s][i] - others.of_step[s][i]) < 1e-4);
    }
}

/* ---- batches of the host program ---- */

static dsc_status give_first_step(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    int32_t tokens[MICRO_BATCH * SEQUENCE], targets[MICRO_BATCH * SEQUENCE];
    double reference[MICRO_BATCH], *losses = user;
    void *const room[3] = { tokens, targets, reference };
    for (int64_t m = 0; m < 2; m++) {
        dsc_step_result result = DSC_STEP_RESULT_INIT;
        double loss = 0;
        DSC_TRY(fill(NULL, (m * dsc_engine_size(engine) + rank) * MICRO_BATCH, MICRO_BATCH, room, err));
        DSC_TRY(dsc_engine_forward(engine, (const void *const *)room, &loss, err));
        DSC_TRY(dsc_engine_backward(engine, err));
        DSC_TRY(dsc_engine_step(engine, &result, err));
        losses[m] = rank == 0 ? loss : losses[m];
        losses[2] = rank == 0 && result.step > 0 ? result.loss : losses[2];
    }
    return DSC_OK;
}

static void given_batches_are_pairs_too(void **state)
{
    run_result first, other;
    rewards kept;
    double losses[3] = { 0 };
    (void)state;
    const variant v = { .world = 1, .accumulation = 2, .stage = 2, .precision = FP32 };
    run(&v, &first, &kept);
    run_with(&v, &(run_options) { .steps = 1, .before = give_first_step, .user = losses }, &other);
    assert_int_equal(other.status, DSC_OK);
    assert_true(losses[2] == first.loss[0]);
    assert_true((losses[0] + losses[1]) / 2 == first.loss[0]);
}

/* ---- evaluation ---- */

static dsc_status evaluate(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    const dsc_data_source source = { fill, NULL, 22 };
    double loss = 0;
    DSC_TRY(dsc_engine_evaluate(engine, &source, 0, &loss, err));
    if (rank == 0)
        *(double *)user = loss;
    return DSC_OK;
}

static void an_evaluation_is_the_same_on_every_world(void **state)
{
    double one = 0;
    (void)state;
    for (int32_t world = 1; world <= 4; world *= 2) {
        run_result out;
        double loss = 0;
        const variant v = { .world = world, .accumulation = 1, .precision = FP32 };
        run_with(&v, &(run_options) { .steps = 1, .before = evaluate, .user = &loss }, &out);
        assert_int_equal(out.status, DSC_OK);
        assert_true(loss > 0.3 && loss < 2);
        one = world == 1 ? loss : one;
        assert_true(loss == one);
    }
}

static void half_a_pair_is_refused(void **state)
{
    run_result out;
    (void)state;
    const variant v = { .world = 1, .accumulation = 1, .precision = FP32, .micro_batch = 3 };
    run_with(&v, &(run_options) { .steps = 1 }, &out);
    assert_int_equal(out.status, DSC_ERR_CONFIG);
    assert_string_equal(out.error.where, "train_micro_batch_size_per_gpu");
    assert_non_null(strstr(out.error.message, "a pair is two of them"));
}

static int setup(void **state)
{
    (void)state;
    model = open_model(NULL);
    dir = cw_tmp_open();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    dsc_model_close(&model);
    cw_tmp_close(dir);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_have_equal_bits),
        cmocka_unit_test(stages_have_equal_bits_with_adapters),
        cmocka_unit_test(world_sizes_have_equal_bits),
        cmocka_unit_test(pipelines_have_the_bits_of_one_stage),
        cmocka_unit_test(placements_have_equal_bits),
        cmocka_unit_test(grouped_micro_batches_have_equal_bits),
        cmocka_unit_test(pairs_count_alike),
        cmocka_unit_test(given_batches_are_pairs_too),
        cmocka_unit_test(an_evaluation_is_the_same_on_every_world),
        cmocka_unit_test(half_a_pair_is_refused),
    };
    return cmocka_run_group_tests_name("preference pairs", tests, setup, teardown);
}
