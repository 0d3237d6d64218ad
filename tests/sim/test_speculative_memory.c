/* test_speculative_memory.c - settings of GPUs whose optimizer is in host memory: updates of the last modules begin
 * under the backward pass (dsc.early_update), and sums stay on the GPU between micro-batches (dsc.gradients_on_gpu).
 * Losses, norms and states are those of a run without them, also when a step is skipped.
 * SPDX-License-Identifier: Apache-2.0 */
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
#include "tests/sim/cusim.h"
#include "tests/support/probe.h"
#include "tests/support/run_expect.h"
#include "zero/zero.h"

#define SEQUENCE 16
#define VOCAB 61
#define MORE_STEPS 3 /* after the first one */

#define BF16 "\"bf16\": {\"enabled\": true}"
/* The first scale makes gradients infinite; a skipped step halves it. */
#define FP16 "\"fp16\": {\"enabled\": true, \"initial_scale_power\": %d, \"hysteresis\": 1, \"loss_scale_window\": 100}"

typedef struct variant {
    int32_t world, stage, accumulation;
    const char *precision;
    double clipping;
    const char *zero, *own; /* members, each preceded by a comma */
    bool by_hand;           /* forward, backward, another rate, step */
} variant;

/* Deeds of a run on the way. */
typedef struct deeds {
    const variant *v;
    int64_t kept, skipped, elements; /* of the steps after the first one; of all steps for `kept` */
    double first_norm;
    double loss[MORE_STEPS], norm[MORE_STEPS];
} deeds;

static dsc_model *model;

static dsc_status fill(void *user, int64_t first_sample, int64_t count, void *const *data, dsc_error *err)
{
    for (int64_t i = 0; i < count * SEQUENCE; i++) {
        uint64_t x = ((uint64_t)(first_sample * SEQUENCE + i) + 1) * 0x9e3779b97f4a7c15u;
        x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9u;
        ((int32_t *)data[0])[i] = (int32_t)((x >> 20) % VOCAB);
        ((int32_t *)data[1])[i] = (int32_t)((x >> 40) % 7);
    }
    return DSC_OK;
}

static dsc_status one_step(dsc_engine *engine, const variant *v, dsc_step_result *result, dsc_error *err)
{
    if (!v->by_hand)
        return dsc_engine_train_batch(engine, result, err);
    for (int32_t m = 0; m < v->accumulation; m++) {
        DSC_TRY(dsc_engine_forward(engine, NULL, NULL, err));
        DSC_TRY(dsc_engine_backward(engine, err));
        DSC_TRY(dsc_engine_set_lr(engine, 0.005, err));
        DSC_TRY(dsc_engine_step(engine, result, err));
    }
    return DSC_OK;
}

static dsc_status more_steps(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    deeds *d = user;
    for (int i = 0; i < MORE_STEPS; i++) {
        dsc_step_result result = DSC_STEP_RESULT_INIT;
        DSC_TRY(one_step(engine, d->v, &result, err));
        if (rank != 0)
            continue;
        d->skipped += result.skipped;
        d->loss[i] = result.loss;
        d->norm[i] = result.skipped ? 0 : result.grad_norm;
    }
    if (rank == 0) {
        dsc_zero_speculative_stats stats;
        dsc_zero_speculative_stats_get(dsc_probe_zero(engine), &stats);
        d->kept = stats.kept;
        const dsc_layout *layout = dsc_probe_layout(engine);
        for (int32_t g = 0; g < layout->group_count; g++)
            d->elements += layout->group[g].slice;
    }
    return DSC_OK;
}

static void run(const variant *v, deeds *d, run_result *out)
{
    static uint64_t seed;
    char config[2048];
    *d = (deeds) { .v = v };
    snprintf(config, sizeof config,
             "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": %d, \"gradient_clipping\": %g,"
             " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01, \"weight_decay\": 0.1}}, %s,"
             " \"zero_optimization\": {\"stage\": %d, \"sub_group_size\": 9000, \"reduce_bucket_size\": 20000,"
             " \"offload_optimizer\": {\"device\": \"cpu\", \"pin_memory\": true}%s},"
             " \"dsc\": {\"threads\": 1, \"device\": \"cuda\", \"comm_timeout_s\": 60%s}}",
             (int)v->accumulation, v->clipping, v->precision, (int)v->stage, v->zero, v->own);
    const run_options options = { .world = run_most_ranks(v->world),
                                  .steps = 1,
                                  .config = config,
                                  .model = model,
                                  .data = { fill, NULL, 1 << 20 },
                                  .after = more_steps,
                                  .user = d,
                                  .fault_rank = -1 };
    if (cusim_present())
        cusim_set_schedule(seed, (cusim_policy)(seed % (CUSIM_COMPUTE_FIRST + 1)));
    seed++;
    run_well(&options, out);
}

/* With `own` in addition the bits are the same; `early` is what that run did. */
static void expect_same_bits(const variant *v, const char *own, deeds *early)
{
    char both[256];
    run_result plain_result, result;
    deeds plain;
    variant with = *v;
    run(v, &plain, &plain_result);
    snprintf(both, sizeof both, "%s%s", v->own, own);
    with.own = both;
    run(&with, early, &result);
    assert_string_equal(plain_result.hash, result.hash);
    assert_memory_equal(plain_result.loss, result.loss, sizeof(double));
    assert_memory_equal(plain.loss, early->loss, sizeof plain.loss);
    assert_memory_equal(plain.norm, early->norm, sizeof plain.norm);
    assert_int_equal(plain.skipped, early->skipped);
    assert_int_equal(plain.kept, 0);
    early->first_norm = result.norm[0];
    assert_true(result.tracked_peak <= result.planned + result.planned / 100);
    assert_true(result.device_peak <= result.device_planned);
}

static void updates_under_the_backward_pass_give_the_same_bits(void **state)
{
    static const struct { variant v; const char *own;
    } runs[] = {
        { { 1, 1, 1, BF16, 0, "", "", false }, ", \"early_update\": true, \"early_update_share\": 0.6" },
        { { 1, 2, 2, BF16, 0, "", ", \"gradients\": \"bf16\"", false },
          ", \"early_update\": true, \"early_update_share\": 1" },
        { { 2, 2, 1, BF16, 0, "", ", \"moments\": \"bf16\"", false },
          ", \"early_update\": true, \"early_update_share\": 0.7" },
        { { 2, 3, 2, BF16, 0,
            ", \"stage3_param_persistence_threshold\": 1000, \"offload_param\": {\"device\": \"cpu\"}", "", false },
          ", \"early_update\": true, \"early_update_share\": 1" },
    };
    for (size_t i = 0; i < DSC_COUNT(runs); i++) {
        deeds d;
        expect_same_bits(&runs[i].v, runs[i].own, &d);
        assert_true(d.kept > 0);
        if (strstr(runs[i].own, "share\": 1") != NULL) /* in every step */
            assert_int_equal(d.kept, (1 + MORE_STEPS) * d.elements);
    }
}

static void sums_that_stay_on_the_gpu_between_micro_batches_give_the_same_bits(void **state)
{
    static const struct {
        variant v;
        const char *own;
    } runs[] = {
        { { 1, 1, 2, BF16, 0.5, "", "", false }, ", \"gradients_on_gpu\": 1" },
        { { 2, 2, 2, BF16, 0, "", ", \"gradients\": \"bf16\"", false },
          ", \"gradients_on_gpu\": 0.6, \"early_update\": true, \"early_update_share\": 1" },
        { { 1, 3, 4, BF16, 0, "", "", false }, ", \"gradients_on_gpu\": 1, \"micro_batches_together\": 2" },
        { { 1, 2, 2, "\"fp16\": {\"enabled\": true, \"initial_scale_power\": 18, \"hysteresis\": 1}", 0, "",
            ", \"gradients\": \"bf16\"", false },
          ", \"gradients_on_gpu\": 1" },
    };
    for (size_t i = 0; i < DSC_COUNT(runs); i++) {
        deeds d;
        expect_same_bits(&runs[i].v, runs[i].own, &d);
    }
}

static void a_skipped_step_leaves_states_and_parameters_as_they_were(void **state)
{
    for (int32_t world = 1; world <= 2; world++) {
        char precision[160];
        deeds d;
        snprintf(precision, sizeof precision, FP16, 17);
        const variant v = { world, 1 + world, 1, precision, 0, "", "", false };
        expect_same_bits(&v, ", \"early_update\": true, \"early_update_share\": 1", &d);
        assert_false(isfinite(d.first_norm));
        assert_int_equal(d.skipped, 0); /* later; the step after a skipped one begins no update before its norm */
        assert_int_equal(d.kept, (MORE_STEPS - 1) * d.elements);
    }
}

static void a_rate_that_is_set_before_the_step_counts(void **state)
{
    deeds d;
    const variant v = { .world = 1, .stage = 1, .accumulation = 1, .precision = BF16, .zero = "", .own = "",
                        .by_hand = true };
    expect_same_bits(&v, ", \"early_update\": true, \"early_update_share\": 1", &d);
}

static void clipping_turns_it_off(void **state)
{
    deeds d;
    const variant v = { .world = 1, .stage = 1, .accumulation = 1, .precision = BF16, .clipping = 0.5, .zero = "",
                        .own = "" };
    expect_same_bits(&v, ", \"early_update\": true", &d);
    assert_int_equal(d.kept, 0);
}

static int open_model(void **state)
{
    char path[] = "/tmp/dsc-gpt-XXXXXX.json";
    const int fd = mkstemps(path, 5);
    dsc_model_options options = DSC_MODEL_OPTIONS_INIT;
    if (fd < 0 ||
        dprintf(fd,
                "{\"model_type\": \"gpt2\", \"vocab_size\": %d, \"n_embd\": 64, \"n_head\": 1, \"n_layer\": 2,"
                " \"n_positions\": %d, \"layer_norm_epsilon\": 1e-5}",
                VOCAB, SEQUENCE) < 1)
        return -1;
    close(fd);
    const dsc_status status = dsc_model_open(&model, path, &options, NULL);
    unlink(path);
    return status == DSC_OK ? 0 : -1;
}

static int close_model(void **state)
{
    dsc_model_close(&model);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(updates_under_the_backward_pass_give_the_same_bits),
        cmocka_unit_test(sums_that_stay_on_the_gpu_between_micro_batches_give_the_same_bits),
        cmocka_unit_test(a_skipped_step_leaves_states_and_parameters_as_they_were),
        cmocka_unit_test(a_rate_that_is_set_before_the_step_counts),
        cmocka_unit_test(clipping_turns_it_off),
    };
    return cmocka_run_group_tests_name("updates in host memory that begin under the backward pass", tests, open_model,
                                       close_model);
}
