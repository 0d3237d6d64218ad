/* test_exchange.c - exchanges in a step's result: bytes of each kind by the formulas of ZeRO's stages, and
 * the wait for a rank that comes late. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/probe.h"
#include "tests/support/run_expect.h"
#include "tests/support/toy_model.h"

#define STEPS 4
#define LATE_US 50000

typedef struct shape {
    int32_t world, stage, accumulation;
    bool overlap, bf16;
} shape;

typedef struct seen {
    bool late;            /* rank 1 begins each step later */
    int64_t slices, used; /* elements of a rank's trainable slices; the same, once for each module that uses one */
    int64_t planned;      /* bytes that the plan says a rank receives */
    dsc_step_result step[RUN_RANKS_MAX][STEPS];
} seen;

static dsc_status steps(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    seen *out = user;
    const dsc_layout *layout = dsc_probe_layout(engine);
    for (int32_t g = 0; rank == 0 && g < layout->group_count; g++)
        out->slices += layout->group[g].trainable ? layout->group[g].slice : 0;
    for (int32_t u = 0; rank == 0 && u < layout->module_first_use[layout->module_count]; u++)
        out->used += layout->group[layout->use_group[u]].trainable ? layout->group[layout->use_group[u]].slice : 0;
    if (rank == 0)
        out->planned = dsc_probe_plan(engine)->traffic.wire_bytes;
    for (int s = 0; s < STEPS; s++) {
        out->step[rank][s] = (dsc_step_result)DSC_STEP_RESULT_INIT;
        if (out->late && rank == 1)
            usleep(LATE_US);
        DSC_TRY(dsc_engine_train_batch(engine, &out->step[rank][s], err));
    }
    return DSC_OK;
}

static void run_shape(const shape *v, bool late, seen *out)
{
    char config[1024];
    dsc_model *model = toy_model_open(5, 61, 3, true);
    snprintf(config, sizeof config,
             "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": %d,"
             " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01}}, \"bf16\": {\"enabled\": %s},"
             " \"zero_optimization\": {\"stage\": %d, \"overlap_comm\": %s, \"stage3_param_persistence_threshold\": 0},"
             " \"dsc\": {\"threads\": 1}}",
             (int)v->accumulation, v->bf16 ? "true" : "false", (int)v->stage, v->overlap ? "true" : "false");
    *out = (seen) { .late = late };
    const run_options options = { .world = v->world,
                                  .steps = 1,
                                  .model = model,
                                  .config = config,
                                  .data = toy_data(model, 1 << 20),
                                  .fault_rank = -1,
                                  .before = steps,
                                  .user = out };
    run_result result;
    run_well(&options, &result);
    toy_model_close(model);
}

/* A rank receives a slice of as many elements from each of the others, and sends as much. */
static void expect(const shape *v, const dsc_step_result *r, dsc_exchange kind, int64_t elements)
{
    const int64_t bytes = (v->world - 1) * elements * (v->bf16 ? 2 : 4);
    if (r->received_bytes[kind] != bytes)
        print_error("%d ranks, stage %d, %d micro-batches: %lld bytes of kind %d, expected %lld\n", (int)v->world,
                    (int)v->stage, (int)v->accumulation, (long long)r->received_bytes[kind], (int)kind,
                    (long long)bytes);
    assert_int_equal(r->received_bytes[kind], bytes);
    assert_int_equal(r->sent_bytes[kind], bytes);
}

static void expect_step(const shape *v, const dsc_step_result *r, const seen *of)
{
    const int64_t sums = v->accumulation * of->used;
    if (v->stage == 0) { /* whole sums in fp32 come back */
        expect(v, r, DSC_EXCHANGE_GATHER, 0);
        expect(v, r, DSC_EXCHANGE_REDUCE, sums + (v->bf16 ? 2 : 1) * of->slices);
    } else {
        expect(v, r, DSC_EXCHANGE_REDUCE, sums);
    }
    if (v->stage == 1 || v->stage == 2)
        expect(v, r, DSC_EXCHANGE_GATHER, of->slices);
    assert_int_equal(r->received_bytes[DSC_EXCHANGE_GATHER] + r->received_bytes[DSC_EXCHANGE_REDUCE], of->planned);
    assert_int_equal(r->sent_bytes[DSC_EXCHANGE_GATHER], r->received_bytes[DSC_EXCHANGE_GATHER]);
    assert_true(r->received_bytes[DSC_EXCHANGE_OTHER] > 0 && r->received_bytes[DSC_EXCHANGE_OTHER] < 8192);
    assert_true(r->exchange_wait_ns >= 0 && r->exchange_wait_ns <= r->step_ns);
}

static void bytes_are_those_of_the_stage(void **state)
{
    static seen got;
    for (int32_t stage = 0; stage <= 3; stage++)
        for (int more = 0; more < 4; more++) {
            const shape v = { more & 1 ? 3 : 2, stage, more & 2 ? 3 : 1, (more & 1) != 0, (more & 2) != 0 };
            run_shape(&v, false, &got);
            for (int32_t r = 0; r < v.world; r++)
                for (int s = 1; s < STEPS; s++) /* the first one has no update before it */
                    expect_step(&v, &got.step[r][s], &got);
        }
}

/* One rank exchanges nothing. */
static void one_rank_has_none(void **state)
{
    static seen got;
    const shape v = { 1, 2, 1, true, false };
    run_shape(&v, false, &got);
    for (int kind = 0; kind < 3; kind++)
        assert_int_equal(got.step[0][1].sent_bytes[kind] + got.step[0][1].received_bytes[kind], 0);
    assert_int_equal(got.step[0][1].exchange_wait_ns, 0);
}

/* In at least one step: a busy machine may hold the early rank up as well. */
static void a_late_rank_is_waited_for(void **state)
{
    static seen got;
    for (int32_t stage = 0; stage <= 3; stage++) {
        const shape v = { 2, stage, 1, (stage & 1) != 0, false };
        int64_t longest = 0;
        run_shape(&v, true, &got);
        for (int s = 0; s < STEPS; s++)
            longest = dsc_max_i64(longest, got.step[0][s].exchange_wait_ns);
        assert_true(longest > LATE_US * INT64_C(500));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_are_those_of_the_stage),
        cmocka_unit_test(one_rank_has_none),
        cmocka_unit_test(a_late_rank_is_waited_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
