/* test_prefetch_ahead.c - stage 3: a module of more than the prefetch bucket is gathered one step before its use, where
 * its window has room. The bits are those of a run without prefetch.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/probe.h"
#include "tests/support/run_expect.h"
#include "tests/support/toy_model.h"

enum { BLOCKS = 10, STEPS = 3, LEADS = 4 };

typedef struct schedule {
    int32_t gathers[LEADS]; /* by the steps between issue and use */
    bool exceeds, held;
    int64_t window_bytes;
    char note[256]; /* what the log says of it */
} schedule;

static void keep_note(void *user, dsc_log_level level, const char *text)
{
    schedule *out = user;
    if (strstr(text, "stage3_prefetch_bucket_size: taking") != NULL)
        snprintf(out->note, sizeof out->note, "%s", text);
}

static dsc_status look(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    const dsc_zero *zero = dsc_probe_zero(engine);
    const dsc_plan *plan = dsc_probe_plan(engine);
    schedule *out = user;
    if (rank != 0)
        return DSC_OK;
    out->exceeds = plan->prefetch_exceeds;
    out->held = plan->prefetch_held;
    out->window_bytes = plan->bytes[DSC_TAG_GATHER][DSC_TIER_HOST];
    for (int32_t i = 0; i < dsc_probe_gather_count(zero); i++) {
        const int32_t lead = dsc_probe_gather_lead(zero, i);
        assert_in_range(lead, 0, LEADS - 1);
        out->gathers[lead]++;
    }
    return DSC_OK;
}

/* `zero`: members of "zero_optimization", each preceded by a comma. */
static void run(int32_t blocks, int32_t accumulation, const char *zero, schedule *plan, run_result *out)
{
    char config[768];
    *plan = (schedule){ 0 };
    dsc_model *model = toy_model_open(5, 61, blocks, false);
    snprintf(config, sizeof config,
             "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": %d,"
             " \"bf16\": {\"enabled\": true},"
             " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01}},"
             " \"zero_optimization\": {\"stage\": 3, \"stage3_param_persistence_threshold\": 0%s},"
             " \"dsc\": {\"threads\": 1}}",
             (int)accumulation, zero);
    const run_options options = { .world = 2, .steps = STEPS, .model = model, .config = config,
                                  .data = toy_data(model, 1 << 20), .after = look, .user = plan, .fault_rank = -1,
                                  .log = { keep_note, plan } };
    run_well(&options, out);
    run_expect_planned(out);
    toy_model_close(model);
}

#define OVERLAP ", \"overlap_comm\": true"
#define BUCKET(n) ", \"stage3_prefetch_bucket_size\": " n

static void larger_modules_are_gathered_one_step_ahead(void **state)
{
    schedule none, small, large;
    run_result first, second, third;
    for (int32_t accumulation = 1; accumulation <= 2; accumulation++) {
        run(BLOCKS, accumulation, OVERLAP BUCKET("0"), &none, &first);
        run(BLOCKS, accumulation, OVERLAP BUCKET("1000"), &small, &second);
        run(BLOCKS, accumulation, OVERLAP BUCKET("50000000"), &large, &third);
        assert_int_equal(none.gathers[1] + none.gathers[2] + none.gathers[3], 0);
        assert_true(small.exceeds && !small.held);
        assert_string_equal(small.note, "");
        assert_int_equal(small.gathers[2] + small.gathers[3], 0);
        assert_true(small.gathers[1] >= 2 * BLOCKS - 4); /* all but those that stay from forward to backward */
        assert_true(small.gathers[0] <= 2);              /* nothing precedes the first step of a step's first pass */
        assert_false(large.exceeds);
        assert_true(none.window_bytes <= small.window_bytes && small.window_bytes <= large.window_bytes);
        run_expect_same(&first, &second);
        run_expect_same(&first, &third);
    }
}

static void zero_and_no_overlap_turn_prefetch_off(void **state)
{
    schedule plan;
    run_result result;
    static const char *const off[] = { OVERLAP BUCKET("0"), ", \"overlap_comm\": false" BUCKET("1000") };
    for (size_t i = 0; i < DSC_COUNT(off); i++) {
        run(BLOCKS, 2, off[i], &plan, &result);
        assert_false(plan.exceeds || plan.held);
        assert_int_equal(plan.gathers[1] + plan.gathers[2] + plan.gathers[3], 0);
    }
}

/* A block has 61 * 61 + 2 * 61 elements. */
static void limits_of_windows_hold_it_back(void **state)
{
    schedule plan, none;
    run_result first, second;
    run(BLOCKS, 1, OVERLAP BUCKET("0"), &none, &first);
    run(BLOCKS, 1, OVERLAP BUCKET("1000") ", \"stage3_max_live_parameters\": 5000", &plan, &second);
    assert_true(plan.held && !plan.exceeds);
    assert_non_null(strstr(plan.note, "windows would exceed stage3_max_live_parameters"));
    assert_int_equal(plan.gathers[1] + plan.gathers[2] + plan.gathers[3], 0);
    assert_int_equal(plan.window_bytes, none.window_bytes);
    run_expect_same(&first, &second);
    run(1, 1, OVERLAP BUCKET("300"), &plan, &second); /* windows of two modules would take more than all parameters */
    assert_true(plan.held && !plan.exceeds);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(larger_modules_are_gathered_one_step_ahead),
        cmocka_unit_test(zero_and_no_overlap_turn_prefetch_off),
        cmocka_unit_test(limits_of_windows_hold_it_back),
    };
    return cmocka_run_group_tests_name("prefetch ahead", tests, NULL, NULL);
}
