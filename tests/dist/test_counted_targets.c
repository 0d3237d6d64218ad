/* test_counted_targets.c - masked targets: loss and gradient are divided by the counted targets of the whole step.
 *
 * Targets are masked by the number of their sample, so ranks and micro-batches have unequal counts, and some have none.
 * Runs have equal bits at every stage, placement and way of giving micro-batches. Masked samples and tokens change
 * nothing beside a run without them. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/ckpt_world.h"
#include "tests/support/probe.h"
#include "tests/support/run_expect.h"
#include "tests/support/tiny_gpt.h"

enum { VOCAB = 53, SEQUENCE = 24, MICRO_BATCH = 2, STEPS = 3 };

typedef enum mask_kind { MASK_NONE, MASK_SOME, MASK_SECOND_STEP, MASK_ALL } mask_kind;

typedef struct masked_data {
    const dsc_model *model;
    mask_kind kind;
    int32_t value;        /* number that stands for a masked target */
    int64_t step_samples; /* of a step */
    bool repeats;         /* each step has the first one's samples */
} masked_data;

static dsc_model *model;
static char *dir;

/* ---- data ---- */

static uint64_t mix(uint64_t x)
{
    x = (x + 1) * UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 29)) * UINT64_C(0xbf58476d1ce4e5b9);
    return x ^ (x >> 32);
}

/* Samples have between none and all of their targets counted. */
static bool is_masked(const masked_data *d, int64_t sample, int64_t t)
{
    switch (d->kind) {
    case MASK_NONE:
        return false;
    case MASK_SOME:
        return sample / MICRO_BATCH % 3 == 0 || (int64_t)(mix((uint64_t)(sample * 64 + t)) % 8) < sample % 7;
    case MASK_SECOND_STEP:
        return sample / d->step_samples == 1;
    default:
        return true;
    }
}

static int64_t sample_number(const masked_data *d, int64_t sample)
{
    return d->repeats ? sample % d->step_samples : sample;
}

/* Targets of a masked language model, which predicts a few tokens. */
static void fill_predicted(const masked_data *d, int64_t first_sample, int64_t count, void *const *data)
{
    const int64_t each = d->model->losses_per_sample;
    for (int64_t i = 0; i < count * each; i++) {
        const int64_t sample = first_sample + i / each, k = i % each;
        ((int32_t *)data[1])[i] = is_masked(d, sample, k) ? d->value : (int32_t)((sample + k) % 7);
        ((int32_t *)data[2])[i] = (int32_t)k;
    }
}

static dsc_status fill(void *user, int64_t first_sample, int64_t count, void *const *data, dsc_error *err)
{
    const masked_data *d = user;
    for (int64_t i = 0; i < count * SEQUENCE; i++) {
        const int64_t sample = sample_number(d, first_sample + i / SEQUENCE), t = i % SEQUENCE;
        ((int32_t *)data[0])[i] = (int32_t)(mix((uint64_t)(sample * 1000 + t)) % VOCAB);
        if (d->model->losses_per_sample == SEQUENCE)
            ((int32_t *)data[1])[i] = is_masked(d, sample, t) ? d->value : (int32_t)((sample + t) % 7);
    }
    if (d->model->losses_per_sample < SEQUENCE)
        fill_predicted(d, first_sample, count, data);
    return DSC_OK;
}

static int64_t counted_of_step(const masked_data *d, int64_t step)
{
    int64_t counted = 0;
    for (int64_t i = 0; i < d->step_samples * SEQUENCE; i++)
        counted += !is_masked(d, sample_number(d, step * d->step_samples + i / SEQUENCE), i % SEQUENCE);
    return counted;
}

/* ---- runs ---- */

typedef struct variant {
    int32_t world, accumulation, stage;
    const char *precision, *zero, *own; /* members of the config; the last two begin with a comma, or are NULL */
    mask_kind kind;
    int32_t value;
    double clipping;
    int64_t steps;
    bool repeats;
    const dsc_model *other; /* NULL: model */
    int64_t parts;          /* micro-batches of a step, with even quotas; 0: accumulation of each rank */
} variant;

#define FP32 "\"bf16\": {\"enabled\": false}"
#define BF16 "\"bf16\": {\"enabled\": true}"
#define FP16 "\"fp16\": {\"enabled\": true, \"initial_scale_power\": 8}"
static const char *const precisions[] = { FP32, BF16, FP16 };

static void run_with(const variant *v, masked_data *data, const run_options *base, run_result *out)
{
    char config[2048];
    const int64_t parts = v->parts > 0 ? v->parts : (int64_t)v->world * v->accumulation;
    *data = (masked_data) { v->other != NULL ? v->other : model, v->kind, v->value != 0 ? v->value : -1,
                            parts * MICRO_BATCH, v->repeats };
    snprintf(config, sizeof config,
             "{\"train_micro_batch_size_per_gpu\": %d, \"train_batch_size\": %d, %s,"
             " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.003, \"weight_decay\": 0.1}},"
             " \"gradient_clipping\": %g, \"zero_optimization\": {\"stage\": %d%s}, \"dsc\": {\"threads\": 1%s%s}}",
             MICRO_BATCH, (int)(parts * MICRO_BATCH), v->precision, v->clipping, (int)v->stage,
             v->zero != NULL ? v->zero : "", v->parts > 0 ? ", \"quota\": \"even\"" : "", v->own != NULL ? v->own : "");
    run_options options = base != NULL ? *base : (run_options) { 0 };
    options.world = v->world;
    options.steps = v->steps != 0 ? v->steps : STEPS;
    options.model = data->model;
    options.config = config;
    options.data = (dsc_data_source) { fill, data, 1 << 20 };
    options.fault_rank = -1;
    run_world(&options, out);
}

static void expect_ok(const run_result *out)
{
    if (out->status != DSC_OK)
        print_error("%s: %s\n", out->error.where, out->error.message);
    assert_int_equal(out->status, DSC_OK);
}

static void run(const variant *v, run_result *out)
{
    masked_data data;
    run_with(v, &data, NULL, out);
    expect_ok(out);
}

/* ---- equal bits ---- */

static void stages_agree_with(variant v)
{
    run_result first, other;
    v.stage = 0;
    run(&v, &first);
    for (v.stage = 1; v.stage <= 3; v.stage++) {
        v.zero = v.stage == 2 ? NULL : ", \"overlap_comm\": true";
        v.own = v.stage == 3 ? ", \"recompute\": \"full\"" : v.stage == 2 ? ", \"recompute\": \"selective\"" : NULL;
        v.value = v.stage == 1 ? -100 : -1;
        run(&v, &other);
        run_expect_same(&first, &other);
    }
}

static void stages_have_equal_bits(void **state)
{
    (void)state;
    for (size_t p = 0; p < DSC_COUNT(precisions); p++)
        for (int32_t world = 1; world <= 4; world *= 2)
            for (int32_t accumulation = 1; accumulation <= 4; accumulation += 3)
                stages_agree_with((variant) { .world = world,
                                              .accumulation = accumulation,
                                              .precision = precisions[p],
                                              .kind = MASK_SOME,
                                              .clipping = 0.5 });
}

/* The head of a masked language model reads the same targets. */
static void masked_language_models_have_equal_bits_too(void **state)
{
    dsc_model *bert = tiny_model_open("{\"model_type\": \"bert\", \"vocab_size\": 53, \"hidden_size\": 64,"
                                      " \"num_hidden_layers\": 2, \"num_attention_heads\": 4,"
                                      " \"intermediate_size\": 88, \"max_position_embeddings\": 24,"
                                      " \"hidden_dropout_prob\": 0}",
                                      NULL);
    run_result some, none;
    variant v = { .world = 2, .accumulation = 2, .precision = BF16, .kind = MASK_SOME, .other = bert };
    (void)state;
    stages_agree_with(v);
    run(&v, &some);
    v.kind = MASK_NONE;
    run(&v, &none);
    assert_true(some.loss[0] != none.loss[0]);
    assert_true(fabs(some.loss[0] - log(VOCAB)) < 0.5); /* fresh weights know nothing */
    assert_true(fabs(none.loss[0] - log(VOCAB)) < 0.5);
    dsc_model_close(&bert);
}

static void world_sizes_have_equal_bits(void **state)
{
    (void)state;
    for (size_t p = 0; p < DSC_COUNT(precisions); p++) {
        run_result first, other;
        variant v = { .world = 1,
                      .accumulation = 4,
                      .precision = precisions[p],
                      .kind = MASK_SOME,
                      .clipping = 0.5,
                      .own = ", \"reproducible\": \"world_size\"" };
        run(&v, &first);
        for (v.world = 2; v.world <= 4; v.world *= 2) {
            v.accumulation = 4 / v.world;
            v.stage = v.world - 1;
            run(&v, &other);
            run_expect_same(&first, &other);
        }
    }
}

/* Five micro-batches over 2, 3 and 4 ranks. */
static void unequal_quotas_have_equal_bits(void **state)
{
    run_result first, other;
    variant v = { .world = 1,
                  .parts = 5,
                  .precision = BF16,
                  .kind = MASK_SOME,
                  .clipping = 0.5,
                  .own = ", \"reproducible\": \"world_size\"" };
    (void)state;
    run(&v, &first);
    for (v.world = 2; v.world <= 4; v.world++) {
        v.stage = v.world - 1;
        run(&v, &other);
        run_expect_same(&first, &other);
    }
}

static dsc_status count_kept(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    dsc_zero_speculative_stats stats;
    dsc_zero_speculative_stats_get(dsc_probe_zero(engine), &stats);
    if (rank == 0)
        *(int64_t *)user = stats.kept;
    return DSC_OK;
}

/* A speculative update begins before the step's sums are complete; without clipping its sums are kept nowhere else. */
static void speculative_updates_know_the_count(void **state)
{
    char files[768];
    run_result first, other;
    masked_data data;
    (void)state;
    variant v = { .world = 2, .accumulation = 2, .stage = 3, .precision = BF16, .kind = MASK_SOME };
    run(&v, &first);
    snprintf(files, sizeof files,
             ", \"sub_group_size\": 2048, \"stage3_param_persistence_threshold\": 0,"
             " \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\", \"buffer_count\": 4},"
             " \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}",
             dir, dir);
    v.zero = files;
    run(&v, &other);
    run_expect_same(&first, &other);
    v.own = ", \"early_update\": true, \"gradients_in_memory\": 0";
    int64_t kept = 0;
    run_with(&v, &data, &(run_options) { .after = count_kept, .user = &kept }, &other);
    expect_ok(&other);
    run_expect_same(&first, &other);
    assert_true(kept > 0);
}

static void grouped_micro_batches_have_equal_bits(void **state)
{
    run_result first, other;
    (void)state;
    variant v = { .world = 2, .accumulation = 4, .stage = 2, .precision = BF16, .kind = MASK_SOME };
    run(&v, &first);
    v.own = ", \"micro_batches_together\": 2";
    run(&v, &other);
    run_expect_same(&first, &other);
}

/* ---- batches of the host program ---- */

typedef struct by_hand {
    masked_data *data;
    int32_t accumulation;
    int64_t empty; /* micro-batches of rank 0 without a counted target */
} by_hand;

static dsc_status give_step(dsc_engine *engine, int32_t rank, int64_t step, by_hand *h, dsc_error *err)
{
    int32_t tokens[MICRO_BATCH * SEQUENCE], targets[MICRO_BATCH * SEQUENCE];
    void *const room[2] = { tokens, targets };
    for (int64_t m = 0; m < h->accumulation; m++) {
        const int64_t first = step * h->data->step_samples + (m * dsc_engine_size(engine) + rank) * MICRO_BATCH;
        double loss = 0;
        DSC_TRY(fill(h->data, first, MICRO_BATCH, room, err));
        DSC_TRY(dsc_engine_forward(engine, (const void *const *)room, &loss, err));
        int64_t counted = 0;
        for (int64_t i = 0; i < MICRO_BATCH * SEQUENCE; i++)
            counted += targets[i] >= 0;
        DSC_ASSERT(counted > 0 ? loss > 1 && loss < 10 : isnan(loss)); /* a mean: log(53) at first */
        if (rank == 0) /* ranks are threads */
            h->empty += counted == 0;
        DSC_TRY(dsc_engine_backward(engine, err));
        dsc_step_result result = DSC_STEP_RESULT_INIT;
        DSC_TRY(dsc_engine_step(engine, &result, err));
        if (result.step > 0)
            DSC_ASSERT(result.counted_tokens == counted_of_step(h->data, step));
    }
    return DSC_OK;
}

static dsc_status give_first_step(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    return give_step(engine, rank, 0, user, err);
}

static void given_batches_have_the_bits_of_a_data_source(void **state)
{
    (void)state;
    for (size_t p = 0; p < DSC_COUNT(precisions); p++)
        for (int32_t world = 1; world <= 2; world++) {
            run_result all, rest;
            masked_data data;
            variant v = { .world = world,
                          .accumulation = 4,
                          .stage = 2,
                          .precision = precisions[p],
                          .kind = MASK_SOME,
                          .value = -100,
                          .repeats = true };
            run(&v, &all);
            by_hand h = { &data, v.accumulation, 0 };
            v.steps = STEPS - 1;
            run_with(&v, &data, &(run_options) { .before = give_first_step, .user = &h }, &rest);
            expect_ok(&rest);
            assert_string_equal(all.hash, rest.hash);
            assert_memory_equal(all.loss + 1, rest.loss, (STEPS - 1) * sizeof(double));
            assert_true(world == 2 || h.empty > 0);
        }
}

/* ---- the values ---- */

/* Samples 0, 2, 4, ... with the first half of their targets, as SHORT alone has them. */
enum { SHORT = SEQUENCE / 2 };

static dsc_status fill_halves(void *user, int64_t first_sample, int64_t count, void *const *data, dsc_error *err)
{
    const bool whole = ((const dsc_model *)user)->seq_length == SHORT;
    const int64_t length = whole ? SHORT : SEQUENCE;
    for (int64_t i = 0; i < count * length; i++) {
        const int64_t sample = whole ? 2 * (first_sample + i / length) : first_sample + i / length, t = i % length;
        ((int32_t *)data[0])[i] = (int32_t)(mix((uint64_t)(sample * 1000 + t)) % VOCAB);
        ((int32_t *)data[1])[i] = sample % 2 != 0 || t >= SHORT ? -1 : (int32_t)((sample + t) % 7);
    }
    return DSC_OK;
}

static void run_halves(const dsc_model *of, int32_t world, int32_t accumulation, const char *precision, run_result *out)
{
    char config[1024];
    snprintf(config, sizeof config,
             "{\"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": %d, %s,"
             " \"optimizer\": {\"type\": \"SGD\", \"params\": {\"lr\": 0.1}}, \"dsc\": {\"threads\": 1}}",
             (int)accumulation, precision);
    run_model(of, (dsc_data_source) { fill_halves, (void *)(uintptr_t)of, 1 << 20 }, world, config,
              &(run_options) { .steps = STEPS }, out);
    expect_ok(out);
}

/* Later tokens do not change a causal model's earlier losses. A micro-batch of masked targets adds nothing, also where
 * all of a rank's are such. In 16 bits, products of other shapes and another scale of the parts round differently. */
static void masked_samples_and_tokens_are_as_if_absent(void **state)
{
    dsc_model *half = tiny_gpt_open(&(tiny_gpt) { VOCAB, SHORT, 4, 2 });
    static const struct {
        int32_t world, accumulation;
    } runs[] = { { 1, 4 }, { 2, 2 }, { 4, 1 } };
    (void)state;
    for (size_t p = 0; p < DSC_COUNT(precisions); p++) {
        const double unit = p == 0 ? 16 * 0x1p-24 : p == 1 ? 0x1p-8 : 0x1p-10;
        run_result reference;
        run_halves(half, 1, 2, precisions[p], &reference);
        for (size_t i = 0; i < DSC_COUNT(runs); i++) {
            run_result masked;
            run_halves(model, runs[i].world, runs[i].accumulation, precisions[p], &masked);
            for (int s = 0; s < STEPS; s++) {
                assert_true(fabs(masked.loss[s] - reference.loss[s]) < 8 * unit);
                assert_true(fabs(masked.norm[s] / reference.norm[s] - 1) < 8 * unit);
            }
        }
    }
    dsc_model_close(&half);
}

/* ---- steps without a counted target ---- */

typedef struct watched {
    masked_data *data;
    int64_t skipped[STEPS], counted[STEPS];
    double scale[STEPS], loss[STEPS];
    char text[512];
} watched;

static dsc_status watch_steps(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    watched *w = user;
    for (int64_t s = 0; s < STEPS; s++) {
        dsc_step_result result = DSC_STEP_RESULT_INIT;
        DSC_TRY(dsc_engine_train_batch(engine, &result, err));
        DSC_ASSERT(result.counted_tokens == counted_of_step(w->data, s));
        DSC_ASSERT(result.skipped == (result.counted_tokens == 0)); /* on every rank */
        if (rank != 0)
            continue;
        w->skipped[s] = result.skipped;
        w->counted[s] = result.counted_tokens;
        w->scale[s] = result.loss_scale;
        w->loss[s] = result.loss;
    }
    return DSC_OK;
}

static void keep_warning(void *user, dsc_log_level level, const char *text)
{
    watched *w = user;
    if (level == DSC_LOG_WARNING && strstr(text, "is skipped") != NULL)
        snprintf(w->text, sizeof w->text, "%s", text);
}

/* Its weights, moments and schedule are those of a run without that step. */
static void a_step_without_counted_targets_is_skipped(void **state)
{
    (void)state;
    for (size_t p = 0; p < DSC_COUNT(precisions); p++)
        for (int32_t world = 1; world <= 2; world++) {
            masked_data data;
            run_result one, two;
            watched w = { .data = &data };
            variant v = { .world = world,
                          .accumulation = 2,
                          .stage = world,
                          .precision = precisions[p],
                          .kind = MASK_SECOND_STEP,
                          .steps = 1 };
            run(&v, &one);
            v.steps = 2;
            run(&v, &two);
            assert_string_equal(one.hash, two.hash);
            assert_true(isnan(two.loss[1]) && two.norm[1] == 0);
            run_with(&v, &data, &(run_options) { .before = watch_steps, .user = &w, .log = { keep_warning, &w } },
                     &two);
            expect_ok(&two);
            assert_true(w.skipped[0] == 0 && w.skipped[1] == 1 && w.skipped[2] == 0);
            assert_true(w.counted[0] == data.step_samples * SEQUENCE && w.counted[1] == 0);
            assert_true(w.scale[2] == w.scale[0]);
            assert_true(isfinite(w.loss[2]));
            assert_non_null(strstr(w.text, "step 2 is skipped: none of its"));
        }
}

static void endless_steps_without_counted_targets_end_the_run(void **state)
{
    masked_data data;
    run_result out;
    (void)state;
    run_with(&(variant) { .world = 2,
                          .accumulation = 1,
                          .precision = BF16,
                          .kind = MASK_ALL,
                          .steps = 5,
                          .own = ", \"skip_limit\": 3" },
             &data, NULL, &out);
    assert_int_equal(out.status, DSC_ERR_NUMERIC);
    assert_string_equal(out.error.where, "dsc.skip_limit");
    assert_non_null(strstr(out.error.message, "none of its 96 targets is counted"));
}

static void other_negative_targets_are_refused(void **state)
{
    masked_data data;
    run_result out;
    (void)state;
    run_with(&(variant) { .world = 1, .accumulation = 1, .precision = FP32, .kind = MASK_SOME, .value = -2 }, &data,
             NULL, &out);
    assert_int_equal(out.status, DSC_ERR_INPUT);
    assert_string_equal(out.error.where, "targets");
    assert_non_null(strstr(out.error.message, "a masked target is -1 or -100"));
}

/* ---- evaluation ---- */

typedef struct evaluation {
    masked_data data;
    double loss;
} evaluation;

static dsc_status evaluate(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    evaluation *e = user;
    const dsc_data_source source = { fill, &e->data, 8 * MICRO_BATCH };
    double loss = 0;
    DSC_TRY(dsc_engine_evaluate(engine, &source, 0, &loss, err));
    if (rank == 0)
        e->loss = loss;
    return DSC_OK;
}

static double evaluate_on(int32_t world, mask_kind kind, run_result *out)
{
    masked_data data;
    evaluation e = { .data = { model, kind, -1, 1, false } };
    run_with(&(variant) { .world = world, .accumulation = 1, .precision = FP32, .kind = MASK_NONE, .steps = 1 }, &data,
             &(run_options) { .before = evaluate, .user = &e }, out);
    return e.loss;
}

/* Means of micro-batches would be other numbers: their counts are unequal. */
static void an_evaluation_is_over_its_counted_targets(void **state)
{
    run_result out;
    (void)state;
    const double one = evaluate_on(1, MASK_SOME, &out), all = evaluate_on(1, MASK_NONE, &out);
    expect_ok(&out);
    assert_true(isfinite(one) && one != all);
    for (int32_t world = 2; world <= 4; world *= 2) {
        assert_true(evaluate_on(world, MASK_SOME, &out) == one);
        expect_ok(&out);
    }
    evaluate_on(2, MASK_ALL, &out);
    assert_int_equal(out.status, DSC_ERR_INPUT);
    assert_non_null(strstr(out.error.message, "none of 384 targets is counted"));
}

static int setup(void **state)
{
    (void)state;
    model = tiny_gpt_open(&(tiny_gpt) { VOCAB, SEQUENCE, 4, 2 });
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
        cmocka_unit_test(masked_language_models_have_equal_bits_too),
        cmocka_unit_test(world_sizes_have_equal_bits),
        cmocka_unit_test(unequal_quotas_have_equal_bits),
        cmocka_unit_test(speculative_updates_know_the_count),
        cmocka_unit_test(grouped_micro_batches_have_equal_bits),
        cmocka_unit_test(given_batches_have_the_bits_of_a_data_source),
        cmocka_unit_test(masked_samples_and_tokens_are_as_if_absent),
        cmocka_unit_test(a_step_without_counted_targets_is_skipped),
        cmocka_unit_test(endless_steps_without_counted_targets_end_the_run),
        cmocka_unit_test(other_negative_targets_are_refused),
        cmocka_unit_test(an_evaluation_is_over_its_counted_targets),
    };
    return cmocka_run_group_tests_name("counted targets", tests, setup, teardown);
}
