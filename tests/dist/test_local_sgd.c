/* test_local_sgd.c - groups of ranks that update alone and exchange weights: local SGD inside of a training run.
 * tests/cli/test_local_sgd.sh compares its losses with PyTorch's. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "tests/support/probe.h"
#include "tests/support/run_expect.h"
#include "tests/support/toy_run.h"

enum { STEPS = 6 };

/* The first weights of every rank's slice of a block, at the end. */
typedef struct ends {
    float weight[RUN_RANKS_MAX];
} ends;

static dsc_status look(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    ends *out = user;
    dsc_zero *zero = dsc_probe_zero(engine);
    int64_t count = 1;
    void *ptr;
    DSC_TRY(dsc_probe_settle(engine, err));
    DSC_TRY(dsc_zero_view(zero, 1, DSC_PLANE_MASTER, 0, &count, false, &ptr, err));
    memcpy(&out->weight[rank], ptr, sizeof out->weight[rank]);
    return DSC_OK;
}

static void run(int32_t world, int32_t group, const char *optimizer, const char *more, const char *own, ends *seen,
                run_result *out)
{
    char config[1024];
    snprintf(
        config, sizeof config,
        "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 2, \"optimizer\": {\"type\": \"%s\","
        " \"params\": {\"lr\": 0.01}}, \"zero_optimization\": {\"stage\": 3, \"mics_shard_size\": %d}%s,"
        " \"dsc\": {\"threads\": 1%s}}",
        optimizer, (int)group, more, own);
    const run_options options = { .steps = STEPS, .after = look, .user = seen, .fault_rank = -1, .take_states = true };
    toy_run(world, config, &options, out);
    if (out->status != DSC_OK)
        print_error("%s: %s\n", out->error.where, out->error.message);
    assert_int_equal(out->status, DSC_OK);
}

/* With plain SGD, the mean of one step's weights is the step along the mean gradient, but for roundings. */
static void test_exchanges_of_each_update_are_a_synchronous_run(void **state)
{
    for (int32_t group = 1; group <= 2; group++) {
        run_result local, synchronous;
        ends of_local, of_synchronous;
        run(4, group, "SGD", "",
            ", \"local_sgd\": {\"inner_steps\": 1, \"outer_lr\": 1, \"outer_momentum\": 0, \"nesterov\": false}",
            &of_local, &local);
        run(4, group, "SGD", "", "", &of_synchronous, &synchronous);
        assert_int_equal(local.state_count, synchronous.state_count);
        for (int64_t i = 0; i < local.state_count; i++)
            assert_true(fabs((double)local.state[i] - (double)synchronous.state[i]) < 1e-6);
        free(local.state);
        free(synchronous.state);
    }
}

/* After an outer step every group has the same weights; between two of them each has its own. */
static void test_groups_agree_after_an_exchange(void **state)
{
    static const char *const precisions[] = { "", ", \"bf16\": {\"enabled\": true}" };
    for (size_t p = 0; p < DSC_COUNT(precisions); p++)
        for (int every = 2; every <= 4; every++) {
            char own[128];
            run_result r;
            ends seen;
            snprintf(own, sizeof own, ", \"local_sgd\": {\"inner_steps\": %d}", every);
            run(4, 2, "AdamW", precisions[p], own, &seen, &r);
            for (int32_t rank = 0; rank < 2; rank++) {
                const bool same = seen.weight[rank] == seen.weight[rank + 2];
                assert_true(same == (STEPS % every == 0));
            }
            assert_true(r.tracked_peak <= r.planned + r.planned / 100);
            assert_true(r.tracked_peak >= r.planned - r.planned / 100 - 16384);
            assert_int_equal(r.alloc_calls_after_first, r.alloc_calls_at_end);
            free(r.state);
        }
}

/* The gradients of the first step overflow, so the states are those of the beginning. */
static void test_saves_after_a_skipped_step(void **state)
{
    char dir[] = "/tmp/dsc-local-sgd-XXXXXX", command[64];
    const run_options options = { .steps = 1, .after = run_save, .user = dir, .fault_rank = -1 };
    run_result r;
    assert_non_null(mkdtemp(dir));
    toy_run(4, "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 2,"
               " \"fp16\": {\"enabled\": true, \"initial_scale_power\": 40}, \"optimizer\": {\"type\": \"AdamW\"},"
               " \"zero_optimization\": {\"stage\": 3, \"mics_shard_size\": 2},"
               " \"dsc\": {\"threads\": 1, \"local_sgd\": {\"inner_steps\": 3}}}",
            &options, &r);
    if (r.status != DSC_OK)
        fail_msg("%s: %s", r.error.where, r.error.message);
    snprintf(command, sizeof command, "rm -r %s", dir);
    assert_int_equal(system(command), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exchanges_of_each_update_are_a_synchronous_run),
        cmocka_unit_test(test_groups_agree_after_an_exchange),
        cmocka_unit_test(test_saves_after_a_skipped_step),
    };
    return cmocka_run_group_tests(tests, toy_run_open, toy_run_close);
}
