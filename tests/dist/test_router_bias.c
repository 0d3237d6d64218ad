/* test_router_bias.c - biases of routers move by the loads of a whole step over all ranks (dsc.moe.bias_update_speed).
 *
 * The model is the toy's, whose blocks have a buffer of a router's bias. A block writes loads that follow from its
 * samples and the bias, which is known after any number of steps. Runs have equal bits at every stage and placement, on
 * any number of ranks and after a resume. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/moe_balance.h"
#include "tests/support/ckpt_world.h"
#include "tests/support/probe.h"
#include "tests/support/run_expect.h"
#include "tests/support/toy_model.h"

enum { FEATURES = 5, EXPERTS = 6, BLOCKS = 2, STEPS = 4, BATCH = 8 };
#define SPEED 0.25f /* sums of it are exact */
#define FIRST 1.0f  /* value of a bias */

static dsc_model *toy, model;
static dsc_module modules[BLOCKS + 2];
static dsc_buffer_spec specs[BLOCKS];
static dsc_status (*toy_forward)(const dsc_module *module, dsc_module_ctx *ctx, dsc_error *err);
static char *dir;

/* ---- the model ---- */

/* Slots that a sample gives an expert: 0 to 4, more of the first experts and of those with a bias above the first. */
static int32_t load_of(const float *features, int32_t router, int32_t expert, float bias)
{
    const float x = features[(router + expert) % FEATURES];
    return (x > -0.2f) + (x > 0.2f) + (expert < 2) + (bias > FIRST);
}

static int32_t router_of(const dsc_module *module) { return atoi(module->name + strlen("block.")); }

static dsc_status forward(const dsc_module *module, dsc_module_ctx *ctx, dsc_error *err)
{
    const float *features = ctx->batch_data[0];
    CW_CHECK(ctx->buffer != NULL && (ctx->statistic == NULL || ctx->statistic[0] == NULL));
    if (ctx->records != NULL && ctx->training) {
        const dsc_moe_record record = dsc_moe_record_at(ctx->records, router_of(module), EXPERTS, ctx->batch);
        memset(record.load, 0, EXPERTS * sizeof *record.load);
        for (int64_t b = 0; b < ctx->batch; b++)
            for (int32_t e = 0; e < EXPERTS; e++)
                record.load[e] += load_of(features + b * FEATURES, router_of(module), e, ctx->buffer[0][e]);
        *record.tokens = *record.counted = (int32_t)ctx->batch;
    }
    return toy_forward(module, ctx, err);
}

static int open_model(void **state)
{
    static char names[BLOCKS][48];
    (void)state;
    dir = cw_tmp_open();
    toy = toy_model_open(FEATURES, EXPERTS, BLOCKS, true);
    model = *toy;
    memcpy(modules, toy->modules, sizeof modules);
    toy_forward = modules[1].forward;
    for (int32_t r = 0; r < BLOCKS; r++) {
        snprintf(names[r], sizeof names[r], "block.%d.gate.e_score_correction_bias", (int)r);
        specs[r] = (dsc_buffer_spec) {
            .name = names[r], .kind = DSC_BUFFER_AVERAGE, .count = EXPERTS, .init = (double)FIRST, .row = r == 1
        };
        modules[1 + r].buffers = &specs[r];
        modules[1 + r].buffer_count = 1;
        modules[1 + r].forward = forward;
    }
    model.modules = modules;
    model.experts = (dsc_model_experts) { .routers = BLOCKS, .experts = EXPERTS, .top_k = 1, .targets = -1 };
    return 0;
}

static int close_model(void **state)
{
    (void)state;
    toy_model_close(toy);
    cw_tmp_close(dir);
    return 0;
}

/* ---- runs ---- */

typedef struct variant {
    int32_t world, stage;
    const char *precision, *zero, *own; /* members; the last two begin with a comma, or are NULL */
    const char *speed;                  /* NULL: SPEED's */
} variant;

#define FP32 "\"bf16\": {\"enabled\": false}"
#define BF16 "\"bf16\": {\"enabled\": true}"

static void run_with(const variant *v, const run_options *base, run_result *out)
{
    char config[2048];
    run_options options = base != NULL ? *base : (run_options) { .steps = STEPS };
    snprintf(config, sizeof config,
             "{\"train_batch_size\": %d, \"train_micro_batch_size_per_gpu\": 2, %s, \"gradient_clipping\": 1.0,"
             " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.003, \"weight_decay\": 0.1}},"
             " \"zero_optimization\": {\"stage\": %d%s},"
             " \"dsc\": {\"threads\": 1, \"device\": \"cpu\", \"reproducible\": \"world_size\","
             " \"moe\": {\"bias_update_speed\": %s}%s}}",
             BATCH, v->precision, (int)v->stage, v->zero != NULL ? v->zero : "", v->speed != NULL ? v->speed : "0.25",
             v->own != NULL ? v->own : "");
    run_model(&model, toy_data(toy, 1 << 20), v->world, config, &options, out);
    if (out->status != DSC_OK)
        print_error("# %s: %s\n", out->error.where, out->error.message);
}

/* The biases of a router after `steps` steps. */
static void biases_after(int64_t steps, int32_t router, float *bias)
{
    float x[BATCH * FEATURES], y[BATCH * FEATURES];
    void *const data[2] = { x, y };
    const dsc_data_source source = toy_data(toy, 1 << 20);
    for (int32_t e = 0; e < EXPERTS; e++)
        bias[e] = FIRST;
    for (int64_t s = 0; s < steps; s++) {
        int64_t sum = 0, load[EXPERTS] = { 0 };
        assert_int_equal(source.fill(source.user, s * BATCH, BATCH, data, NULL), DSC_OK);
        for (int32_t i = 0; i < BATCH * EXPERTS; i++) {
            const int32_t e = i % EXPERTS, slots = load_of(x + i / EXPERTS * FEATURES, router, e, bias[e]);
            sum += slots, load[e] += slots;
        }
        for (int32_t e = 0; e < EXPERTS; e++)
            bias[e] += load[e] * EXPERTS > sum ? -SPEED : load[e] * EXPERTS < sum ? SPEED : 0;
    }
}

/* Every rank has the biases after STEPS steps, which not all are the first ones. */
static dsc_status expect_biases(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    int32_t moved = 0;
    (void)rank;
    (void)user;
    for (int32_t r = 0; r < BLOCKS; r++) {
        float found[EXPERTS], expected[EXPERTS];
        biases_after(STEPS, r, expected);
        DSC_TRY(dsc_probe_buffer(engine, specs[r].name, found, err));
        CW_CHECK(memcmp(found, expected, sizeof found) == 0);
        for (int32_t e = 0; e < EXPERTS; e++)
            moved += found[e] != FIRST;
    }
    CW_CHECK(moved >= BLOCKS * 2);
    return DSC_OK;
}

/* ---- tests ---- */

static void run(variant v, run_result *out)
{
    const run_options options = { .steps = STEPS, .after = v.speed == NULL ? expect_biases : NULL, .fault_rank = -1 };
    run_with(&v, &options, out);
    assert_int_equal(out->status, DSC_OK);
}

static void biases_follow_the_loads_with_equal_bits(void **state)
{
    static const char *const precisions[] = { FP32, BF16 };
    char files[600], both[1200];
    (void)state;
    snprintf(files, sizeof files, ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}", dir);
    snprintf(both, sizeof both, "%s, \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}", files, dir);
    for (size_t p = 0; p < DSC_COUNT(precisions); p++) {
        run_result first, other;
        run((variant) { .world = 1, .stage = 0, .precision = precisions[p] }, &first);
        for (int32_t world = 1; world <= 4; world *= 2)
            for (int32_t stage = 0; stage <= 3; stage++) {
                run((variant) { .world = world, .stage = stage, .precision = precisions[p] }, &other);
                run_expect_same(&first, &other);
            }
        for (int32_t world = 1; world <= 2; world++) {
            run((variant) { .world = world, .stage = 1, .precision = precisions[p], .zero = files }, &other);
            run_expect_same(&first, &other);
            run((variant) { .world = world, .stage = 3, .precision = precisions[p], .zero = both }, &other);
            run_expect_same(&first, &other);
            run((variant) { .world = world,
                            .stage = 2,
                            .precision = precisions[p],
                            .zero = ", \"offload_optimizer\": {\"device\": \"cpu\"}",
                            .own = ", \"recompute\": \"full\"" },
                &other);
            run_expect_same(&first, &other);
        }
        for (int32_t stage = 0; stage <= 3;
             stage++) { /* a stage of a pipeline has the routers' biases of its modules */
            run((variant) { .world = 2 + stage % 2 * 2,
                            .stage = stage,
                            .precision = precisions[p],
                            .own = stage < 3 ? ", \"grid\": {\"pipeline\": 2}" : ", \"grid\": {\"pipeline\": 4}" },
                &other);
            run_expect_same(&first, &other);
        }
    }
}

static void a_resume_goes_on_with_them(void **state)
{
    const cw_options options = {
        .world = 2, .stage = 2, .bf16 = true, .model = &model, .own = ", \"moe\": {\"bias_update_speed\": 0.001}"
    };
    cw_options other = options;
    cw_trip whole = { .save = cw_path(dir, "saved"), .save_step = 2, .end_step = STEPS };
    (void)state;
    cw_run_well(&options, cw_make_trip, &whole);
    cw_trip rest = { .load = whole.save, .end_step = STEPS };
    other.world = 4;
    other.stage = 3;
    cw_run_well(&other, cw_make_trip, &rest);
    assert_string_equal(whole.end_hash, rest.end_hash);
    cw_remove(whole.save);
}

static void expect_refusal(variant v, const char *why)
{
    run_result out;
    run_with(&v, NULL, &out);
    assert_int_equal(out.status, DSC_ERR_CONFIG);
    if (strstr(out.error.message, why) == NULL)
        fail_msg("%s", out.error.message);
}

static void models_without_biases_are_refused(void **state)
{
    const dsc_model_experts experts = model.experts;
    (void)state;
    specs[1].momentum = 0.5;
    expect_refusal((variant) { .world = 1, .precision = FP32 }, "with statistics");
    specs[1].momentum = 0;
    model.experts.routers = 1;
    expect_refusal((variant) { .world = 1, .precision = FP32 }, "one for each router");
    model.experts = (dsc_model_experts) { .targets = -1 };
    expect_refusal((variant) { .world = 1, .precision = FP32 }, "experts: 0;");
    model.experts = experts;
}

static dsc_status expect_first_biases(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    float found[EXPERTS];
    (void)rank;
    (void)user;
    DSC_TRY(dsc_probe_buffer(engine, specs[0].name, found, err));
    for (int32_t e = 0; e < EXPERTS; e++)
        CW_CHECK(found[e] == FIRST);
    return DSC_OK;
}

static void they_stay_without_a_speed(void **state)
{
    const run_options options = { .steps = STEPS, .after = expect_first_biases, .fault_rank = -1 };
    const variant v = { .world = 2, .stage = 3, .precision = FP32, .speed = "0" };
    run_result out;
    (void)state;
    run_with(&v, &options, &out);
    assert_int_equal(out.status, DSC_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(biases_follow_the_loads_with_equal_bits),
        cmocka_unit_test(a_resume_goes_on_with_them),
        cmocka_unit_test(models_without_biases_are_refused),
        cmocka_unit_test(they_stay_without_a_speed),
    };
    return cmocka_run_group_tests_name("router_bias", tests, open_model, close_model);
}
