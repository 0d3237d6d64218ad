/* test_engine.c - the same bits at every stage, world size, overlap, recomputation; memory by the formulas; faults.
 *
 * A hand-written model (tests/support/toy_model.c) with a tied parameter, a frozen group and odd sizes runs with its
 * ranks as threads. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "kernels/kernels.h"
#include "tests/support/run_world.h"
#include "tests/support/toy_model.h"

#define STEPS 4

typedef struct variant {
    int32_t world, stage, micro, accumulation;
    bool bf16, overlap, recompute, any_world;
    const char *extra; /* further members of the config, each followed by a comma */
    const char *own;   /* further members of "dsc", each preceded by a comma */
} variant;

static void run_variant(const variant *v, const dsc_model *model, const run_options *base, run_result *out)
{
    char config[1024];
    snprintf(config, sizeof config,
             "{%s\"train_micro_batch_size_per_gpu\": %d, \"gradient_accumulation_steps\": %d,"
             " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01, \"weight_decay\": 0.1}},"
             " \"gradient_clipping\": 0.5, \"bf16\": {\"enabled\": %s},"
             " \"zero_optimization\": {\"stage\": %d, \"overlap_comm\": %s},"
             " \"dsc\": {\"threads\": 1, \"recompute\": \"%s\"%s%s}}",
             v->extra != NULL ? v->extra : "", (int)v->micro, (int)v->accumulation, v->bf16 ? "true" : "false",
             (int)v->stage, v->overlap ? "true" : "false", v->recompute ? "full" : "none",
             v->any_world ? ", \"reproducible\": \"world_size\"" : "", v->own != NULL ? v->own : "");
    run_options options = base != NULL ? *base : (run_options){ .fault_rank = -1 };
    options.world = v->world;
    options.steps = STEPS;
    options.model = model;
    options.config = config;
    options.data = toy_data((dsc_model *)(uintptr_t)model, 1 << 20);
    run_world(&options, out);
}

static void expect_ok(const run_result *r)
{
    if (r->status != DSC_OK)
        print_error("%s: %s\n", r->error.where, r->error.message);
    assert_int_equal(r->status, DSC_OK);
}

static void expect_same(const run_result *a, const run_result *b)
{
    for (int s = 0; s < STEPS; s++) {
        assert_memory_equal(&a->loss[s], &b->loss[s], sizeof(double));
        assert_memory_equal(&a->norm[s], &b->norm[s], sizeof(double));
    }
    assert_string_equal(a->hash, b->hash);
}

static void every_stage_gives_the_same_bits(void **state)
{
    dsc_model *model = toy_model_open(5, 37, 3, true);
    for (int bf16 = 0; bf16 < 2; bf16++)
        for (int32_t world = 1; world <= 4; world++)
            for (int32_t accumulation = 1; accumulation <= 4; accumulation += 3) {
                run_result first;
                run_variant(&(variant) { world, 0, 3, accumulation, bf16 != 0, false, false, false, NULL, NULL }, model,
                            NULL, &first);
                expect_ok(&first);
                assert_true(first.loss[STEPS - 1] < first.loss[0]);
                for (int32_t stage = 1; stage <= 3; stage++)
                    for (int overlap = 0; overlap < 2; overlap++) {
                        run_result other;
                        run_variant(&(variant) { world, stage, 3, accumulation, bf16 != 0, overlap != 0,
                                                 (stage + overlap) % 2 != 0, false, NULL, NULL },
                                    model, NULL, &other);
                        expect_ok(&other);
                        expect_same(&first, &other);
                    }
            }
    toy_model_close(model);
}

static void world_sizes_agree_when_asked(void **state)
{
    dsc_model *model = toy_model_open(7, 61, 2, false);
    for (int bf16 = 0; bf16 < 2; bf16++) {
        run_result first;
        run_variant(&(variant){ 1, 1, 2, 24, bf16 != 0, false, false, true, NULL, NULL }, model, NULL, &first);
        expect_ok(&first);
        for (int32_t world = 2; world <= 8; world = world == 2 ? 3 : world == 3 ? 4 : 8) {
            run_result other;
            run_variant(&(variant) { world, world % 4, 2, 24 / world, bf16 != 0, true, false, true, NULL, NULL }, model,
                        NULL, &other);
            expect_ok(&other);
            expect_same(&first, &other);
            if (world == 8)
                break;
        }
    }
    toy_model_close(model);
}

/* The toy's own mathematics is plain C, so all that instruction sets can change is optimizers, casts and folds. */
static void instruction_sets_agree(void **state)
{
    static const uint32_t masks[] = { DSC_CPU_AVX2, DSC_CPU_AVX2 | DSC_CPU_AVX512, 0xffffffffu };
    dsc_model *model = toy_model_open(5, 37, 3, true);
    const variant v = { 2, 2, 3, 2, true, true, false, false, NULL, NULL };
    run_result first;
    run_options base = { .fault_rank = -1, .caps_mask = 1u << 31 }; /* none: the portable reference */
    run_variant(&v, model, &base, &first);
    expect_ok(&first);
    for (size_t i = 0; i < DSC_COUNT(masks); i++) {
        run_result other;
        base.caps_mask = masks[i];
        run_variant(&v, model, &base, &other);
        expect_ok(&other);
        expect_same(&first, &other);
    }
    toy_model_close(model);
}

/* DESIGN P2: g = 4; fp32 runs have no separate master. Padding is at most W * 1024 elements a group plus the gaps that
 * align tensors inside it. */
static void states_follow_the_formulas(void **state)
{
    dsc_model *model = toy_model_open(64, 256, 4, false);
    int64_t params = 64 * 256 + 4 * (256 * 256 + 2 * 256) + 64;
    const int64_t groups = 6;
    for (int bf16 = 0; bf16 < 2; bf16++)
        for (int32_t world = 1; world <= 4; world++) {
            int64_t before = INT64_MAX;
            for (int32_t stage = 0; stage <= 3; stage++) {
                run_result r;
                run_variant(&(variant) { world, stage, 2, 1, bf16 != 0, false, false, false, NULL, NULL }, model, NULL,
                            &r);
                expect_ok(&r);
                const int64_t each = bf16 ? 2 : 4, shard = params / world;
                const int64_t slack = groups * (world * 1024 + 3 * 128) * 4;
                const int64_t expected[4] = { each * (stage == 3 ? shard : params), 4 * (stage == 0 ? params : shard),
                                              bf16 ? 4 * (stage == 0 ? params : shard) : 0,
                                              8 * (stage == 0 ? params : shard) };
                int64_t total = 0;
                for (int i = 0; i < 4; i++) {
                    assert_true(r.state_bytes[i] >= expected[i] - 64);
                    assert_true(r.state_bytes[i] <= expected[i] + 2 * slack);
                    total += r.state_bytes[i];
                }
                assert_true(total <= before);
                before = total;
                assert_int_equal(r.alloc_calls_after_first, r.alloc_calls_at_end);
            }
        }
    toy_model_close(model);
}

/* Every allocation and every collective may fail once, on any rank: an error, nothing leaked (close asserts), no hang.
 */
static void faults_end_in_errors(void **state)
{
    dsc_model *model = toy_model_open(5, 20, 2, true);
    const variant v = { 2, 3, 1, 2, true, true, false, false, NULL, ", \"comm_timeout_s\": 20" };
    for (int kind = 0; kind < 2; kind++) {
        int64_t n = 1;
        for (;; n++) {
            run_result r;
            run_options base = { .fault_rank = (int32_t)(n % 2) };
            if (kind == 0)
                base.fail_alloc_at = n;
            else
                base.fail_comm_at = n;
            run_variant(&v, model, &base, &r);
            if (r.status == DSC_OK)
                break; /* the n-th call did not happen: all have failed once */
            assert_int_equal(r.status, kind == 0 ? DSC_ERR_NOMEM : DSC_ERR_COMM);
            assert_true(r.error.message[0] != 0);
            assert_true(n < 2000);
        }
        assert_true(n > 20);
    }
    toy_model_close(model);
}

/* ---- evaluation ---- */

typedef struct evaluation {
    dsc_data_source data; /* the toy's; of which the evaluation has `samples` */
    int64_t samples, max_batches;
    double loss[RUN_RANKS_MAX];
} evaluation;

/* A source with an end refuses what lies behind it. */
static dsc_status fill_with_end(void *user, int64_t first, int64_t count, void *const *data, dsc_error *err)
{
    const evaluation *e = user;
    if (e->samples > 0 && (first < 0 || count < 1 || first + count > e->samples))
        return DSC_FAIL(err, DSC_ERR_INPUT, "eval data", "samples %lld to %lld of %lld", (long long)first,
                        (long long)(first + count), (long long)e->samples);
    return e->data.fill(e->data.user, first, count, data, err);
}

static dsc_status evaluate_it(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    evaluation *e = user;
    const dsc_data_source source = { fill_with_end, e, e->samples };
    return dsc_engine_evaluate(engine, &source, e->max_batches, &e->loss[rank], err);
}

/* `batch`: the config's members that say it. */
static double evaluate_on(int32_t world, int32_t stage, const dsc_model *model, const char *batch, int64_t samples,
                          int64_t max_batches)
{
    char config[512];
    evaluation e = { .data = toy_data(model, 1 << 20), .samples = samples, .max_batches = max_batches };
    run_result r;
    snprintf(config, sizeof config,
             "{%s, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01}},"
             " \"zero_optimization\": {\"stage\": %d}, \"dsc\": {\"threads\": 1}}",
             batch, (int)stage);
    const run_options options = { .world = world,
                                  .steps = -1,
                                  .model = model,
                                  .config = config,
                                  .data = e.data,
                                  .fault_rank = -1,
                                  .before = evaluate_it,
                                  .user = &e };
    run_world(&options, &r);
    expect_ok(&r);
    for (int32_t rank = 1; rank < world; rank++)
        assert_memory_equal(&e.loss[0], &e.loss[rank], sizeof(double));
    return e.loss[0];
}

static double evaluate_micro(int32_t world, const dsc_model *model, int32_t micro, int64_t samples, int64_t batches)
{
    char batch[80];
    snprintf(batch, sizeof batch, "\"train_micro_batch_size_per_gpu\": %d", (int)micro);
    return evaluate_on(world, world % 4, model, batch, samples, batches);
}

/* Sample counts below a micro-batch, with ranks that have no sample, and with incomplete micro-batches. */
static void an_evaluation_counts_every_sample_once(void **state)
{
    static const int32_t micros[] = { 1, 2, 3, 8 };
    dsc_model *model = toy_model_open(5, 37, 2, true);
    for (int64_t samples = 1; samples <= 13; samples += 4) {
        const double all = evaluate_micro(1, model, 1, samples, 0);
        for (size_t i = 0; i < DSC_COUNT(micros); i++)
            for (int32_t world = 1; world <= 4; world++) {
                const double loss = evaluate_micro(world, model, micros[i], samples, 0);
                assert_memory_equal(&all, &loss, sizeof(double));
            }
    }
    toy_model_close(model);
}

/* Batches of the micro-batch that the config gives, else of its train_batch_size, of sources with and without end. */
static void a_number_of_batches_means_the_same_samples_on_every_world(void **state)
{
    dsc_model *model = toy_model_open(5, 37, 2, true);
    const double nine = evaluate_micro(1, model, 1, 9, 0), twelve = evaluate_micro(1, model, 1, 12, 0);
    const double seven = evaluate_micro(1, model, 1, 7, 0);
    for (int32_t world = 1; world <= 4; world++) {
        const double of_micro = evaluate_micro(world, model, 3, 100, 3),
                     endless = evaluate_micro(world, model, 3, 0, 3);
        const double of_batch = evaluate_on(world, 1, model, "\"train_batch_size\": 12", 100, 1);
        const double fewer = evaluate_micro(world, model, 3, 7, 3);
        assert_memory_equal(&nine, &of_micro, sizeof(double));
        assert_memory_equal(&nine, &endless, sizeof(double));
        assert_memory_equal(&twelve, &of_batch, sizeof(double));
        assert_memory_equal(&seven, &fewer, sizeof(double));
    }
    toy_model_close(model);
}

/* A source that takes SLOW_NS for a micro-batch of a step that takes much less. */
#define SLOW_NS INT64_C(30000000)

typedef struct slow_source {
    dsc_data_source fast;
    int64_t waited[2][STEPS], step[2][STEPS]; /* by rank */
} slow_source;

static dsc_status fill_slowly(void *user, int64_t first_sample, int64_t count, void *const *batch_data, dsc_error *err)
{
    const slow_source *slow = user;
    nanosleep(&(struct timespec) { .tv_nsec = SLOW_NS }, NULL);
    return slow->fast.fill(slow->fast.user, first_sample, count, batch_data, err);
}

static dsc_status train_slowly(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    slow_source *slow = user;
    for (int s = 0; s < STEPS; s++) {
        dsc_step_result result = DSC_STEP_RESULT_INIT;
        DSC_TRY(dsc_engine_train_batch(engine, &result, err));
        slow->waited[rank][s] = result.data_wait_ns;
        slow->step[rank][s] = result.step_ns;
    }
    return DSC_OK;
}

/* In `steps` steps a reader makes as many micro-batches less those that the reader holds, and each takes its time. */
static void a_step_says_how_long_its_data_took(void **state)
{
    dsc_model *model = toy_model_open(5, 37, 3, true);
    slow_source slow = { .fast = toy_data(model, 1 << 20) };
    run_result r;
    run_world(&(run_options) { .world = 2,
                               .steps = 1,
                               .model = model,
                               .data = { .fill = fill_slowly, .user = &slow, .sample_count = 1 << 20 },
                               .config =
                                   "{\"train_micro_batch_size_per_gpu\": 2, \"optimizer\": {\"type\": \"AdamW\"}, "
                                   "\"dsc\": {\"threads\": 1}}",
                               .before = train_slowly,
                               .user = &slow,
                               .fault_rank = -1 },
              &r);
    expect_ok(&r);
    int64_t waited = 0, all = 0;
    for (int s = 0; s < STEPS; s++) {
        assert_int_equal(slow.waited[0][s], slow.waited[1][s]); /* of the rank that waited longest */
        waited += slow.waited[0][s];
        all += slow.step[0][s] + slow.step[1][s];
    }
    assert_true(waited > SLOW_NS / 10);
    assert_true(waited <= all);
    toy_model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_stage_gives_the_same_bits),
        cmocka_unit_test(world_sizes_agree_when_asked),
        cmocka_unit_test(instruction_sets_agree),
        cmocka_unit_test(states_follow_the_formulas),
        cmocka_unit_test(an_evaluation_counts_every_sample_once),
        cmocka_unit_test(a_number_of_batches_means_the_same_samples_on_every_world),
        cmocka_unit_test(faults_end_in_errors),
        cmocka_unit_test(a_step_says_how_long_its_data_took),
    };
    return cmocka_run_group_tests_name("engine", tests, NULL, NULL);
}
