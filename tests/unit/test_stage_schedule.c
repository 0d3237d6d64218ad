/* test_stage_schedule.c - lists of the stages of a pipeline, run against each other without an engine, and cuts of
 * modules into stages against every other cut. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/stages/schedule.h"

#define STAGES_MAX 6
#define BATCHES_MAX 9
#define OPS_MAX (BATCHES_MAX * 8)

/* One stage as it runs: its next operation, and what it has done to each micro-batch. */
typedef struct runner {
    dsc_stage_op op[OPS_MAX];
    int64_t count, at;
    int64_t forwards, backwards, open_most;
    int64_t outputs, gradients, tied; /* messages that it has sent, in order of micro-batches */
} runner;

/* Whether the messages that an operation waits for have been sent. Sends wait for nobody. */
static bool is_ready(const runner *all, int32_t stages, int32_t s)
{
    const dsc_stage_op *op = &all[s].op[all[s].at];
    switch (op->work) {
    case DSC_STAGE_RECV_INPUT:
        return all[s - 1].outputs > op->micro_batch;
    case DSC_STAGE_RECV_GRADIENT:
        return all[s + 1].gradients > op->micro_batch;
    case DSC_STAGE_RECV_TIED:
        return all[stages - 1].tied > op->micro_batch;
    default:
        return true;
    }
}

static void run_op(runner *r)
{
    const dsc_stage_op *op = &r->op[r->at++];
    switch (op->work) {
    case DSC_STAGE_FORWARD:
        assert_int_equal(op->micro_batch, r->forwards++);
        r->open_most = dsc_max_i64(r->open_most, r->forwards - r->backwards);
        break;
    case DSC_STAGE_BACKWARD: /* in order: gradient parts are added in the order of micro-batches */
        assert_int_equal(op->micro_batch, r->backwards++);
        assert_true(op->micro_batch < r->forwards);
        break;
    case DSC_STAGE_SEND_OUTPUT:
        assert_int_equal(op->micro_batch, r->outputs++);
        assert_true(op->micro_batch < r->forwards);
        break;
    case DSC_STAGE_SEND_TIED:
        assert_int_equal(op->micro_batch, r->tied++);
        assert_true(op->micro_batch < r->forwards);
        break;
    case DSC_STAGE_SEND_GRADIENT:
        assert_int_equal(op->micro_batch, r->gradients++);
        assert_true(op->micro_batch < r->backwards);
        break;
    default:
        break;
    }
}

static void run_shape(const dsc_stage_shape *shape)
{
    static runner all[STAGES_MAX];
    memset(all, 0, sizeof all);
    for (int32_t s = 0; s < shape->stages; s++) {
        dsc_stage_shape own = *shape;
        own.stage = s;
        all[s].count = dsc_stage_list(&own, NULL);
        assert_true(all[s].count <= OPS_MAX);
        assert_int_equal(dsc_stage_list(&own, all[s].op), all[s].count);
    }
    for (bool moved = true; moved;) {
        moved = false;
        for (int32_t s = 0; s < shape->stages; s++)
            if (all[s].at < all[s].count && is_ready(all, shape->stages, s)) {
                run_op(&all[s]);
                moved = true;
            }
    }
    for (int32_t s = 0; s < shape->stages; s++) {
        dsc_stage_shape own = *shape;
        own.stage = s;
        assert_int_equal(all[s].at, all[s].count); /* nobody waits for a message that never comes */
        assert_int_equal(all[s].forwards, shape->micro_batches);
        assert_int_equal(all[s].backwards, shape->micro_batches);
        assert_int_equal(all[s].open_most, dsc_stage_lanes(&own));
    }
}

static void every_list_comes_to_its_end(void **state)
{
    for (int32_t stages = 1; stages <= STAGES_MAX; stages++)
        for (int64_t batches = 1; batches <= BATCHES_MAX; batches++)
            for (int order = DSC_STAGES_1F1B; order <= DSC_STAGES_GPIPE; order++)
                for (int32_t owner = -1; owner < stages - 1; owner++)
                    run_shape(&(dsc_stage_shape) { .stages = stages,
                                                   .micro_batches = batches,
                                                   .order = (dsc_stage_order)order,
                                                   .tied_owner = owner });
}

/* The peak of activations falls from stage to stage: p - r of them, as the schedule is known for. */
static void one_forward_one_backward_keeps_few_micro_batches(void **state)
{
    for (int32_t s = 0; s < 4; s++) {
        const dsc_stage_shape shape = { .stages = 4, .stage = s, .micro_batches = 8, .tied_owner = -1 };
        dsc_stage_shape all = shape;
        all.order = DSC_STAGES_GPIPE;
        assert_int_equal(dsc_stage_lanes(&shape), 4 - s);
        assert_int_equal(dsc_stage_lanes(&all), s < 3 ? 8 : 1);
    }
}

/* ---- cuts ---- */

static double largest(const double *weight, const int32_t *first, int32_t stages)
{
    double most = 0;
    for (int32_t s = 0; s < stages; s++) {
        double sum = 0;
        assert_true(first[s] < first[s + 1]);
        for (int32_t m = first[s]; m < first[s + 1]; m++)
            sum += weight[m];
        most = sum > most ? sum : most;
    }
    return most;
}

/* The best of all cuts of modules [from, end) into stages. */
static double best_cut(const double *weight, int32_t from, int32_t end, int32_t stages)
{
    double best = -1, head = 0;
    if (stages == 1) {
        for (int32_t m = from; m < end; m++)
            head += weight[m];
        return head;
    }
    for (int32_t m = from; m + stages - 1 < end; m++) {
        head += weight[m];
        const double rest = best_cut(weight, m + 1, end, stages - 1), most = head > rest ? head : rest;
        best = best < 0 || most < best ? most : best;
    }
    return best;
}

static void no_cut_is_better(void **state)
{
    uint32_t random = 7;
    for (int i = 0; i < 300; i++) {
        double weight[9];
        int32_t first[10];
        const int32_t modules = 1 + i % 9, stages = 1 + (i / 9) % modules;
        for (int32_t m = 0; m < modules; m++) {
            random = random * 1664525u + 1013904223u;
            weight[m] = random % 5 == 0 ? 0 : (double)(random >> 20);
        }
        dsc_stage_cut(weight, modules, stages, false, first);
        assert_int_equal(first[0], 0);
        assert_int_equal(first[stages], modules);
        assert_true(largest(weight, first, stages) <= best_cut(weight, 0, modules, stages) * (1 + 1e-12));
    }
}

static void uniform_cuts_have_equal_numbers(void **state)
{
    const double weight[7] = { 1, 2, 3, 4, 5, 6, 7 };
    int32_t first[4];
    dsc_stage_cut(weight, 7, 3, true, first); /* seven modules on three stages: 2, 2 and 3 */
    assert_int_equal(first[1], 2);
    assert_int_equal(first[2], 4);
    assert_int_equal(first[3], 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_list_comes_to_its_end),
        cmocka_unit_test(one_forward_one_backward_keeps_few_micro_batches),
        cmocka_unit_test(no_cut_is_better),
        cmocka_unit_test(uniform_cuts_have_equal_numbers),
    };
    return cmocka_run_group_tests_name("stage schedule", tests, NULL, NULL);
}
