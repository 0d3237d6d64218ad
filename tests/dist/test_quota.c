/* test_quota.c - micro-batches of a step that the number of ranks does not divide, and quotas of ranks.
 *
 * A step of ten micro-batches has the bits of one rank at every number of ranks, stage and quota, with sums that do not
 * depend on the number of ranks. Without them, all stages have equal bits. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "tests/support/ckpt_world.h"
#include "tests/support/probe.h"
#include "tests/support/run_expect.h"
#include "tests/support/sanitizer.h"
#include "tests/support/toy_run.h"

#define STEPS 4
#define PARTS 10
#define WORLD_SIZE ", \"reproducible\": \"world_size\""
#define NVME ", \"sub_group_size\": 2048, \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}"

typedef struct variant {
    int32_t world, stage;
    const char *quota;       /* JSON */
    const char *precision;   /* members, each followed by a comma */
    const char *zero, *own;  /* members of a section, each preceded by a comma; %s is a folder */
    const run_options *more; /* may be NULL */
    int64_t steps;           /* 0: STEPS */
} variant;

static void run_variant(const variant *v, run_result *out)
{
    char config[2048], zero[1024];
    snprintf(zero, sizeof zero, v->zero != NULL ? v->zero : "", toy_run_folder);
    snprintf(config, sizeof config,
             "{%s\"train_batch_size\": %d, \"train_micro_batch_size_per_gpu\": 2, \"gradient_clipping\": 0.5,"
             " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01, \"weight_decay\": 0.1}},"
             " \"zero_optimization\": {\"stage\": %d%s}, \"dsc\": {\"threads\": 1, \"quota\": %s%s}}",
             v->precision != NULL ? v->precision : "", 2 * PARTS, (int)v->stage, zero, v->quota,
             v->own != NULL ? v->own : "");
    run_options options = v->more != NULL ? *v->more : (run_options) { 0 };
    options.steps = v->steps != 0 ? v->steps : STEPS;
    toy_run(v->world, config, &options, out);
    if (out->status != DSC_OK)
        print_error("%s\n%s: %s\n", config, out->error.where, out->error.message);
    assert_int_equal(out->status, DSC_OK);
}

static void expect_bits_of(const run_result *first, const variant *v)
{
    run_result other;
    run_variant(v, &other);
    run_expect_same(first, &other);
    run_expect_planned(&other);
}

static const struct {
    int32_t world;
    const char *quota;
} cases[] = {
    { 3, "\"even\"" }, { 4, "\"even\"" },     { 4, "[1, 5, 1, 3]" },
    { 2, "[3, 7]" },   { 4, "[7, 1, 1, 1]" }, { 2, "\"even\"" },
};
static const char *const precisions[] = { "", "\"bf16\": {\"enabled\": true},",
                                          "\"fp16\": {\"enabled\": true, \"initial_scale_power\": 8}," };

static void any_quotas_have_the_bits_of_one_rank(void **state)
{
    (void)state;
    for (size_t p = 0; p < DSC_COUNT(precisions); p++) {
        run_result first;
        variant v = { .world = 1, .quota = "\"even\"", .precision = precisions[p], .own = WORLD_SIZE };
        run_variant(&v, &first);
        assert_true(first.loss[STEPS - 1] != first.loss[0]);
        for (size_t i = 0; i < DSC_COUNT(cases); i++)
            for (v.stage = 0; v.stage <= 3; v.stage++) {
                v.world = cases[i].world;
                v.quota = cases[i].quota;
                v.zero = v.stage % 2 == 1 ? ", \"overlap_comm\": true" : "";
                expect_bits_of(&first, &v);
            }
    }
}

/* Each has sums elsewhere, or something that waits from one micro-step to the next. */
static void wherever_states_and_sums_are(void **state)
{
    static const struct {
        const char *zero, *own;
        int32_t stage;
    } places[] = {
        { "", WORLD_SIZE ", \"micro_batches_together\": 3", 2 },
        { "", WORLD_SIZE ", \"recompute\": \"full\"", 3 },
        { ", \"stage3_param_persistence_threshold\": 0", WORLD_SIZE, 3 },
    };
    run_result first;
    variant v = { .world = 1, .quota = "\"even\"", .precision = precisions[1], .own = WORLD_SIZE };
    (void)state;
    run_variant(&v, &first);
    for (size_t i = 0; i < DSC_COUNT(places); i++) {
        v = (variant) { 4, places[i].stage, "\"even\"", precisions[1], places[i].zero, places[i].own, NULL, 0 };
        expect_bits_of(&first, &v);
    }
}

/* Sums in the order of micro-steps and ranks, which depend on the number of ranks: equal at all stages and places. */
static void stages_agree_without_a_counter(void **state)
{
    static const char *const own[] = { "", ", \"gradients\": \"bf16\"", ", \"gradient_compression\": \"int8\"" };
    (void)state;
    for (size_t i = 0; i < DSC_COUNT(own); i++)
        for (size_t c = 1; c < 3; c++) {
            run_result first;
            variant v = { .world = cases[c].world, .quota = cases[c].quota, .precision = precisions[1], .own = own[i] };
            run_variant(&v, &first);
            for (v.stage = 1; v.stage <= 3; v.stage++) {
                v.zero = v.stage == 2 ? NVME : ", \"overlap_comm\": true";
                expect_bits_of(&first, &v);
            }
        }
}

/* A save of four ranks continues on three, and on one. */
static void a_checkpoint_continues_at_other_quotas(void **state)
{
    char dir[600];
    run_result whole, other;
    variant v = { .world = 1, .quota = "\"even\"", .own = WORLD_SIZE, .steps = 2 * STEPS };
    (void)state;
    snprintf(dir, sizeof dir, "%s/uneven", toy_run_folder);
    run_variant(&v, &whole);
    const run_options save = { .after = run_save, .user = dir }, load = { .before = run_load, .user = dir };
    v = (variant) { .world = 4, .stage = 2, .quota = "[1, 5, 1, 3]", .own = WORLD_SIZE, .more = &save };
    run_variant(&v, &other);
    for (int32_t world = 1; world <= 3; world += 2) {
        v = (variant) { .world = world, .stage = world, .quota = "\"even\"", .own = WORLD_SIZE, .more = &load };
        run_variant(&v, &other);
        assert_memory_equal(other.loss, whole.loss + STEPS, STEPS * sizeof(double));
        assert_string_equal(other.hash, whole.hash);
    }
    cw_remove(dir);
}

/* ---- measured quotas ---- */

/* Sanitized, the rest of the module's work takes longer too. */
#define FAST_NS ((int64_t)(1e6 * SANITIZE_SLOWER))
#define SLOW_NS (4 * FAST_NS)

static _Thread_local int64_t module_ns; /* how long this rank's first module takes */
static dsc_module plain_input;

static dsc_status slow_forward(const dsc_module *m, dsc_module_ctx *ctx, dsc_error *err)
{
    dsc_clock_sleep_ns(module_ns);
    return plain_input.forward(m, ctx, err);
}

static dsc_status slow_down(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    (void)engine, (void)user, (void)err;
    module_ns = rank == 1 ? SLOW_NS : FAST_NS;
    return DSC_OK;
}

static dsc_status see_quotas(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    (void)err;
    const dsc_quota quota = dsc_probe_quota(engine);
    if (rank == 0)
        for (int32_t r = 0; r < quota.ranks; r++)
            ((int64_t *)user)[r] = dsc_quota_of(&quota, r);
    return DSC_OK;
}

static char quota_line[512];
static void keep_line(void *user, dsc_log_level level, const char *text)
{
    (void)user, (void)level;
    if (strncmp(text, "dsc.quota: micro-batches", 24) == 0)
        snprintf(quota_line, sizeof quota_line, "%s", text);
}

static void a_slow_rank_has_fewer_micro_batches(void **state)
{
    run_result first, other;
    int64_t quotas[2] = { 0 };
    dsc_model model = *toy_run_model;
    dsc_module modules[8];
    (void)state;
    assert_in_range(model.module_count, 1, 8);
    memcpy(modules, model.modules, (size_t)model.module_count * sizeof *modules);
    plain_input = modules[0];
    modules[0].forward = slow_forward;
    model.modules = modules;
    dsc_model *const plain = toy_run_model;
    const run_options seen = { .before = slow_down, .after = see_quotas, .user = quotas, .log = { .fn = keep_line } };
    variant v = { .world = 1, .quota = "\"even\"", .own = WORLD_SIZE, .steps = 2 * STEPS };
    run_variant(&v, &first);
    toy_run_model = &model;
    v = (variant) {
        .world = 2, .stage = 3, .quota = "\"measured\"", .own = WORLD_SIZE, .more = &seen, .steps = 2 * STEPS
    };
    run_variant(&v, &other);
    toy_run_model = plain;
    run_expect_same(&first, &other);
    assert_in_range(other.tracked_peak, other.planned - other.planned / 100 - 16384,
                    other.planned + other.planned / 100);
    assert_int_equal(other.alloc_calls_at_end, other.alloc_calls_after_first);
    assert_int_equal(quotas[0] + quotas[1], PARTS);
    assert_in_range(quotas[1], 1, 3); /* 4 times as slow, and the rest of the module's work: 8 and 2 */
    assert_non_null(strstr(quota_line, "the slowest rank computes"));
}

/* ---- what is refused ---- */

static void forward_needs_equal_quotas(void **state)
{
    dsc_engine *engine = NULL;
    dsc_engine_options options = DSC_ENGINE_OPTIONS_INIT;
    dsc_error err = DSC_ERROR_INIT;
    (void)state;
    options.config_text = "{\"train_batch_size\": 4, \"train_micro_batch_size_per_gpu\": 1, \"dsc\": {\"quota\": "
                          "\"measured\"}, \"optimizer\": {\"type\": \"SGD\"}}";
    options.model = toy_run_model;
    options.data = toy_data(toy_run_model, 1 << 20);
    assert_int_equal(dsc_engine_open(&engine, &options, &err), DSC_OK);
    assert_int_equal(dsc_engine_forward(engine, NULL, NULL, &err), DSC_ERR_STATE);
    assert_string_equal(err.where, "dsc.quota");
    assert_int_equal(dsc_engine_train_batch(engine, NULL, &err), DSC_OK);
    dsc_engine_close(&engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_quotas_have_the_bits_of_one_rank),
        cmocka_unit_test(wherever_states_and_sums_are),
        cmocka_unit_test(stages_agree_without_a_counter),
        cmocka_unit_test(a_checkpoint_continues_at_other_quotas),
        cmocka_unit_test(a_slow_rank_has_fewer_micro_batches),
        cmocka_unit_test(forward_needs_equal_quotas),
    };
    return cmocka_run_group_tests(tests, toy_run_open, toy_run_close);
}
