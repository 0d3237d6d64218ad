/* test_hooks.c - functions of a program on gradients before they are sent and after they are summed; PowerSGD in a run,
 * whose numbers tests/cli/test_power_sgd.sh compares with PyTorch's. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <dsc/hooks.h>

#include "base/base.h"
#include "tests/support/ckpt_world.h"
#include "tests/support/run_expect.h"
#include "tests/support/toy_run.h"

enum { RANKS = 4, MICRO_STEPS = 2, STEPS = 3, WIDTH = 61, WATCHED = WIDTH * WIDTH };

/* ---- what hooks of all ranks have seen of "block.1.weight" in the last step ---- */

typedef struct watch {
    int32_t world;
    float part[MICRO_STEPS * RANKS][WATCHED], sum[WATCHED];
    int64_t parts[RANKS], sums[RANKS]; /* calls */
    float factor;                      /* factor of every value before it is sent */
    int32_t failing;                   /* rank whose hook fails; -1: none */
    const char *refused_by;            /* key that set_gradient_hooks names; NULL: it takes them */
} watch;

typedef struct rank_watch {
    watch *all;
    int32_t rank;
} rank_watch;

static watch seen;
static rank_watch of_rank[RANKS];

static const dsc_gradient_span *find(const dsc_gradient_info *info)
{
    for (int32_t s = 0; s < info->span_count; s++)
        if (strcmp(info->spans[s].param->name, "block.1.weight") == 0)
            return &info->spans[s];
    return NULL;
}

static dsc_status before_send(void *user, const dsc_gradient_info *info, float *values, int64_t count, dsc_error *err)
{
    const rank_watch *w = user;
    watch *all = w->all;
    const dsc_gradient_span *span = find(info);
    all->parts[w->rank]++;
    if (all->failing == w->rank && info->step == 2)
        return DSC_FAIL(err, DSC_ERR_NUMERIC, "hook", "this rank's own function says no");
    for (int64_t i = 0; i < count; i++)
        values[i] *= all->factor;
    if (span != NULL)
        memcpy(all->part[info->micro_step * all->world + w->rank], values + span->first,
               (size_t)span->count * sizeof *values);
    return DSC_OK;
}

static dsc_status after_reduce(void *user, const dsc_gradient_info *info, float *values, int64_t count, dsc_error *err)
{
    const rank_watch *w = user;
    const dsc_gradient_span *span = find(info);
    (void)count, (void)err;
    w->all->sums[w->rank]++;
    CW_CHECK(info->micro_step == -1);
    if (span != NULL)
        memcpy(w->all->sum + span->at, values + span->first, (size_t)span->count * sizeof *values);
    return DSC_OK;
}

static dsc_status set_hooks(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    watch *all = user;
    dsc_gradient_hooks hooks = DSC_GRADIENT_HOOKS_INIT;
    of_rank[rank] = (rank_watch) { all, rank };
    hooks.user = &of_rank[rank];
    hooks.before_send = before_send;
    hooks.after_reduce = after_reduce;
    const dsc_status status = dsc_engine_set_gradient_hooks(engine, &hooks, err);
    if (all->refused_by == NULL)
        return status;
    CW_CHECK(status == DSC_ERR_UNSUPPORTED);
    CW_CHECK(strcmp(err->where, all->refused_by) == 0);
    return DSC_OK;
}

static void run(int32_t world, int32_t stage, const char *own, bool hooked, run_result *out)
{
    char config[1024];
    snprintf(config, sizeof config,
             "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": %d,"
             " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01}},"
             " \"zero_optimization\": {\"stage\": %d},"
             " \"dsc\": {\"threads\": 1%s}}",
             MICRO_STEPS, (int)stage, own);
    run_options options = { .steps = STEPS, .before = hooked ? set_hooks : NULL, .user = &seen, .fault_rank = -1 };
    seen.world = world;
    toy_run(world, config, &options, out);
}

static void begin(float factor)
{
    memset(&seen, 0, sizeof seen);
    seen.factor = factor;
    seen.failing = -1;
}

static void expect_ok(const run_result *r)
{
    if (r->status != DSC_OK)
        print_error("%s: %s\n", r->error.where, r->error.message);
    assert_int_equal(r->status, DSC_OK);
}

/* The contract of the default order: micro-steps in order, ranks in order inside one, each sum rounded to fp32. */
static void test_sums_are_those_of_the_parts_in_order(void **state)
{
    for (int32_t world = 1; world <= RANKS; world *= 2)
        for (int32_t stage = 0; stage <= 3; stage++) {
            run_result plain, hooked;
            run(world, stage, "", false, &plain);
            begin(1);
            run(world, stage, "", true, &hooked);
            expect_ok(&hooked);
            assert_string_equal(plain.hash, hooked.hash);
            for (int64_t i = 0; i < WATCHED; i++) {
                float sum = seen.part[0][i];
                for (int32_t k = 1; k < MICRO_STEPS * world; k++)
                    sum += seen.part[k][i];
                assert_memory_equal(&sum, &seen.sum[i], sizeof sum);
            }
            for (int32_t r = 0; r < world; r++) {
                assert_int_equal(seen.parts[r], STEPS * MICRO_STEPS * 6); /* the head uses a table of another module */
                assert_int_equal(seen.sums[r], STEPS * 5);
            }
        }
}

/* Also where the sums of all world sizes are equal, by a counter, and with overlap. */
static void test_changes_before_sending_reach_the_update(void **state)
{
    static const char *const own[] = { "", ", \"reproducible\": \"world_size\"" };
    for (size_t o = 0; o < DSC_COUNT(own); o++) {
        run_result once, twice;
        begin(1);
        run(2, 2, own[o], true, &once);
        begin(2);
        run(2, 2, own[o], true, &twice);
        expect_ok(&once);
        expect_ok(&twice);
        const double doubled = 2 * once.norm[0];
        assert_memory_equal(&doubled, &twice.norm[0], sizeof doubled);
    }
}

static void test_an_error_of_a_hook_ends_the_step(void **state)
{
    run_result r;
    begin(1);
    seen.failing = 1;
    run(2, 3, "", true, &r);
    assert_int_equal(r.ranks[1].status, DSC_ERR_NUMERIC);
    assert_non_null(strstr(r.ranks[1].message, "says no"));
}

static void test_hooks_are_refused_where_no_gradients_travel(void **state)
{
    static const struct {
        const char *own, *by;
    } cases[] = { { ", \"communication_hook\": {\"type\": \"powersgd\"}", "dsc.communication_hook.type" } };
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        run_result r;
        begin(1);
        seen.refused_by = cases[i].by;
        run(2, 0, cases[i].own, true, &r);
        expect_ok(&r);
    }
}

/* ---- PowerSGD ---- */

#define POWER ", \"communication_hook\": {\"type\": \"powersgd\", \"rank\": %d, \"start_step\": %d}"

static void power_config(int rank, int start, char config[1024])
{
    snprintf(config, 1024,
             "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": %d,"
             " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01}}, \"dsc\": {\"threads\": 1" POWER "}}",
             MICRO_STEPS, rank, start);
}

static void test_powersgd_starts_at_its_step(void **state)
{
    char config[1024];
    run_result plain, late, early;
    run(2, 0, "", false, &plain);
    power_config(2, STEPS, config);
    toy_run(2, config, &(run_options) { .steps = STEPS, .fault_rank = -1 }, &late);
    power_config(2, 1, config);
    toy_run(2, config, &(run_options) { .steps = STEPS, .fault_rank = -1 }, &early);
    expect_ok(&late);
    expect_ok(&early);
    assert_string_equal(plain.hash, late.hash);
    assert_string_not_equal(plain.hash, early.hash);
    assert_memory_equal(&plain.norm[0], &early.norm[0], sizeof plain.norm[0]);
}

/* Vectors as short as this model's are gathered whole, which the plan of long ones does not have. */
static void test_powersgd_sends_less_from_planned_memory(void **state)
{
    char config[1024];
    run_result r, plain;
    run(4, 0, "", false, &plain);
    power_config(1, 0, config);
    toy_run(4, config, &(run_options) { .steps = STEPS, .fault_rank = -1 }, &r);
    expect_ok(&r);
    assert_true(r.tracked_peak <= r.planned + r.planned / 100);
    assert_true(r.tracked_peak >= r.planned - r.planned / 100 - 16384);
    assert_true(r.wire_bytes < plain.wire_bytes / 4); /* those are gradients of two micro-steps and their sums */
}

/* A save sets errors and factors back, for the run that goes on too. */
static void test_powersgd_resumes_with_equal_bits(void **state)
{
    char config[1024], saved[600];
    run_result through, resumed;
    run_trip trip = { .steps = 2, .dir = saved };
    snprintf(saved, sizeof saved, "%s/power", toy_run_folder);
    power_config(2, 0, config);
    toy_run(2, config, &(run_options) { .steps = STEPS, .before = run_steps_and_save, .user = &trip, .fault_rank = -1 },
            &through);
    expect_ok(&through);
    toy_run(2, config, &(run_options) { .steps = STEPS, .before = run_load, .user = saved, .fault_rank = -1 },
            &resumed);
    expect_ok(&resumed);
    assert_string_equal(through.hash, resumed.hash);
    cw_remove(saved);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums_are_those_of_the_parts_in_order),
        cmocka_unit_test(test_changes_before_sending_reach_the_update),
        cmocka_unit_test(test_an_error_of_a_hook_ends_the_step),
        cmocka_unit_test(test_hooks_are_refused_where_no_gradients_travel),
        cmocka_unit_test(test_powersgd_starts_at_its_step),
        cmocka_unit_test(test_powersgd_sends_less_from_planned_memory),
        cmocka_unit_test(test_powersgd_resumes_with_equal_bits),
    };
    return cmocka_run_group_tests(tests, toy_run_open, toy_run_close);
}
