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

#define STAGES_MAX 5
#define BATCHES_MAX 8
#define MODULES_MAX 2
#define OPS_MAX (BATCHES_MAX * (2 * MODULES_MAX + 6))
#define TIED_SLOTS 2 /* buffers of tied gradients, one of them on its way */

/* One stage as it runs: its next operation, and the micro-batches that each kind of work has finished, in order. */
typedef struct runner {
    dsc_stage_op op[OPS_MAX];
    int64_t count, at;
    int64_t forwards[MODULES_MAX], backwards[MODULES_MAX];
    int64_t open_most;
    int64_t inputs, gradients, tied; /* received */
    int64_t sent_outputs, sent_gradients, sent_tied;
    int32_t modules, slots;
} runner;

/* The buffers of a gradient and of tied gradients are free: the message before the last one was received. */
static bool has_buffers(const runner *all, const dsc_stage_shape *shape, int32_t s, const dsc_stage_op *op)
{
    const bool ends = s == shape->stages - 1, loss = ends && op->module == all[s].modules - 1;
    const bool writes_tied = loss && shape->tied_owner >= 0 && op->work == DSC_STAGE_FORWARD;
    const bool writes_gradient = s > 0 && op->module == 0 && (op->work == DSC_STAGE_BACKWARD || loss);
    if (writes_tied && all[shape->tied_owner].tied <= op->micro_batch - TIED_SLOTS)
        return false;
    return !writes_gradient || all[s - 1].gradients > op->micro_batch - all[s].slots;
}

/* Whether the messages that an operation waits for have been sent. Sends wait for nobody. */
static bool is_ready(const runner *all, const dsc_stage_shape *shape, int32_t s)
{
    const dsc_stage_op *op = &all[s].op[all[s].at];
    switch (op->work) {
    case DSC_STAGE_RECV_INPUT:
        return all[s - 1].sent_outputs > op->micro_batch;
    case DSC_STAGE_RECV_GRADIENT:
        return all[s + 1].sent_gradients > op->micro_batch;
    case DSC_STAGE_BOUNDARY:
        return s != shape->tied_owner || all[shape->stages - 1].sent_tied > op->micro_batch;
    default:
        return has_buffers(all, shape, s, op);
    }
}

static void run_op(runner *r)
{
    const dsc_stage_op *op = &r->op[r->at++];
    const int64_t k = op->micro_batch;
    switch (op->work) {
    case DSC_STAGE_RECV_INPUT:
        assert_int_equal(k, r->inputs++);
        break;
    case DSC_STAGE_FORWARD:
        assert_int_equal(k, r->forwards[op->module]++);
        assert_true(op->module == 0 || r->forwards[op->module - 1] > k);
        r->open_most = dsc_max_i64(r->open_most, r->forwards[0] - r->backwards[0]);
        break;
    case DSC_STAGE_SEND_OUTPUT:
        assert_int_equal(k, r->sent_outputs++);
        assert_true(r->forwards[r->modules - 1] > k);
        break;
    case DSC_STAGE_SEND_TIED:
        assert_int_equal(k, r->sent_tied++);
        assert_true(r->forwards[r->modules - 1] > k);
        break;
    case DSC_STAGE_BOUNDARY:
        assert_int_equal(k, r->tied++);
        break;
    case DSC_STAGE_RECV_GRADIENT:
        assert_int_equal(k, r->gradients++);
        break;
    case DSC_STAGE_BACKWARD: /* in order: gradient parts are added in the order of micro-batches */
        assert_int_equal(k, r->backwards[op->module]++);
        assert_true(r->forwards[r->modules - 1] > k);
        break;
    case DSC_STAGE_SEND_GRADIENT:
        assert_int_equal(k, r->sent_gradients++);
        break;
    case DSC_STAGE_EVALUATE:
        fail();
    }
}

static void run_shape(const dsc_stage_shape *shape)
{
    static runner all[STAGES_MAX];
    memset(all, 0, sizeof all);
    for (int32_t s = 0; s < shape->stages; s++) {
        dsc_stage_shape own = *shape;
        own.stage = s;
        own.modules = all[s].modules = 1 + (shape->modules + s) % MODULES_MAX;
        all[s].slots = dsc_stage_slots(&own);
        all[s].count = dsc_stage_list(&own, NULL);
        assert_true(all[s].count <= OPS_MAX);
        assert_int_equal(dsc_stage_list(&own, all[s].op), all[s].count);
    }
    for (bool moved = true; moved;) {
        moved = false;
        for (int32_t s = 0; s < shape->stages; s++)
            if (all[s].at < all[s].count && is_ready(all, shape, s)) {
                run_op(&all[s]);
                moved = true;
            }
    }
    for (int32_t s = 0; s < shape->stages; s++) {
        dsc_stage_shape own = *shape;
        own.stage = s;
        assert_int_equal(all[s].at, all[s].count); /* nobody waits for a message that never comes */
        for (int32_t m = 0; m < all[s].modules; m++) {
            const bool loss = s == shape->stages - 1 && m == all[s].modules - 1;
            assert_int_equal(all[s].forwards[m], shape->micro_batches);
            assert_int_equal(all[s].backwards[m], loss ? 0 : shape->micro_batches);
        }
        if (s < shape->stages - 1 || all[s].modules > 1)
            assert_true(all[s].open_most <= dsc_stage_lanes(&own));
    }
}

static void every_list_comes_to_its_end(void **state)
{
    for (int32_t stages = 2; stages <= STAGES_MAX; stages++)
        for (int64_t batches = 1; batches <= BATCHES_MAX; batches++)
            for (int32_t group = 1; group <= batches; group++)
                for (int order = DSC_STAGES_1F1B; order <= DSC_STAGES_GPIPE && batches % group == 0; order++)
                    for (int32_t owner = -1; owner < stages - 1; owner++)
                        for (int32_t modules = 1; modules <= MODULES_MAX; modules++)
                            run_shape(&(dsc_stage_shape) { .stages = stages,
                                                           .modules = modules,
                                                           .micro_batches = batches,
                                                           .group = group,
                                                           .order = (dsc_stage_order)order,
                                                           .tied_owner = owner });
}

/* The peak of activations falls from stage to stage: p - r of them, as the schedule is known for. */
static void one_forward_one_backward_keeps_few_micro_batches(void **state)
{
    for (int32_t s = 0; s < 4; s++) {
        const dsc_stage_shape shape = {
            .stages = 4, .stage = s, .modules = 1, .micro_batches = 8, .group = 1, .tied_owner = -1
        };
        dsc_stage_shape all = shape, pairs = shape;
        all.order = DSC_STAGES_GPIPE;
        pairs.group = 2;
        assert_int_equal(dsc_stage_lanes(&shape), 4 - s);
        assert_int_equal(dsc_stage_lanes(&pairs), 2 * (4 - s));
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
