/* test_gpt.c - a small GPT trained on simulated GPUs, ranks as threads of this process.
 *
 * Among themselves the runs on GPUs are bit-equal: stages, overlap, recomputation, schedules, a resumed run. Beside the
 * CPU's they differ by roundings, and by no more than those explain (explained() below). What is exact, and so equal to
 * the CPU's bit by bit, is in test_exact.c. On real GPUs (tests/gpu/real.c) the same tests run with as many ranks as
 * DSC_TEST_RANKS_MAX says. SPDX-License-Identifier: Apache-2.0 */
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
#include "tests/sim/cusim.h"
#include "tests/support/ckpt_world.h"
#include "tests/support/run_expect.h"
#include "tests/support/tiny_gpt.h"

#define STEPS 3
#define RATE 0.001
#define CLIP 0.5
#define MICRO_BATCH 2
#define SEQUENCE 16
#define VOCAB 61

typedef struct variant {
    const char *device;
    int32_t world, stage, accumulation;
    bool bf16, overlap, recompute;
    const char *own; /* further members of "dsc", each preceded by a comma */
} variant;

static dsc_model *model;

/* Measuring products would take most of these short runs, so only those of few ranks do. */
static void write_config(const variant *v, char *config, size_t config_bytes)
{
    snprintf(config, config_bytes,
             "{\"train_micro_batch_size_per_gpu\": %d, \"gradient_accumulation_steps\": %d,"
             " \"gradient_clipping\": %g,"
             " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": %g, \"weight_decay\": 0.1}},"
             " \"bf16\": {\"enabled\": %s}, \"zero_optimization\": {\"stage\": %d, \"overlap_comm\": %s,"
             " \"reduce_bucket_size\": 20000},"
             " \"dsc\": {\"threads\": 1, \"device\": \"%s\", \"comm_timeout_s\": 60, \"recompute\": \"%s\","
             " \"gemm_plans\": \"%s\"%s}}",
             MICRO_BATCH, (int)v->accumulation, CLIP, RATE, v->bf16 ? "true" : "false", (int)v->stage,
             v->overlap ? "true" : "false", v->device, v->recompute ? "full" : "none",
             v->world > 2 ? "first" : "same_bits", v->own != NULL ? v->own : "");
}

static void run_with(const variant *v, const run_options *base, run_result *out)
{
    char config[1024];
    run_options options = *base;
    write_config(v, config, sizeof config);
    options.world = v->world;
    options.steps = options.steps != 0 ? options.steps : STEPS;
    options.model = model;
    options.config = config;
    options.data = tiny_gpt_data(model, 1 << 20);
    options.fault_rank = -1;
    run_well(&options, out);
}

static void run(const variant *v, run_result *out) { run_with(v, &(run_options){ .take_states = true }, out); }

/* How far two correct devices may be apart.
 *
 * A loss hangs on 21 results in a row: the embedding, in each of 2 layers the norm, the projection to q, k and v, the
 * attention's weights, its output, the output's projection, the norm, the two products around GELU and GELU itself,
 * and at the end the norm and the logits. Each is rounded on both devices, in bf16 to 2^-9 of itself; in fp32 the sum
 * of up to K = 256 terms behind it counts more, sqrt(K) * 2^-24 when roundings fall either way. Such errors add as
 * squares, so logits, which are of the order of 1, differ by e = sqrt(2 * 21) of that unit. A gradient has come the way
 * back too: sqrt(2) e. The mean over n tokens, and the norm beside its own size, differ by a sqrt(n)-th.
 *
 * AdamW's first steps are of the size of the rate whatever the gradient's size, so an element whose gradient is smaller
 * than its error may go the other way: a share of sqrt(2) e of the masters, by twice the rate. (Moments, another two
 * thirds of the states, are smaller by far.) Where that happens the gradient is next to nothing, so losses hardly see
 * it. Measured over 4 steps and 1 to 8 ranks: a fifth of these bounds or less. */
typedef struct bounds { double loss, norm, state; } bounds;

static bounds explained(const variant *v)
{
    const double unit = v->bf16 ? 0x1p-9 : 16 * 0x1p-24, e = sqrt(2 * 21) * unit;
    const double tokens = (double)v->world * v->accumulation * MICRO_BATCH * SEQUENCE;
    return (bounds){ e / sqrt(tokens), sqrt(2) * e / sqrt(tokens), 2 * RATE * sqrt(2) * e / 3 };
}

/* Both are runs of `v` but for the device or the transport's sums. */
static void expect_near(const variant *v, const run_result *a, const run_result *b)
{
    const bounds most = explained(v);
    double worst = 0, sum = 0;
    assert_int_equal(a->steps, b->steps);
    for (int64_t s = 0; s < a->steps; s++) {
        const double loss = fabs(a->loss[s] - b->loss[s]), norm = fabs(a->norm[s] / b->norm[s] - 1);
        if (!(loss < most.loss) || !(norm < most.norm))
            print_error("%d ranks, step %d: loss %.9g and %.9g, norm %.9g and %.9g; explained: %.3g, %.3g\n",
                        (int)v->world, (int)s, a->loss[s], b->loss[s], a->norm[s], b->norm[s], most.loss, most.norm);
        assert_true(loss < most.loss);
        assert_true(norm < most.norm);
    }
    assert_int_equal(a->state_count, b->state_count);
    for (int64_t i = 0; i < a->state_count; i++) {
        const double d = fabs((double)a->state[i] - (double)b->state[i]);
        worst = d > worst || isnan(d) ? d : worst;
        sum += d;
    }
    if (!(sum / (double)a->state_count < most.state))
        print_error("states differ by %.3g in the mean, %.3g at most; explained: %.3g\n",
                    sum / (double)a->state_count, worst, most.state);
    assert_true(sum / (double)a->state_count < most.state);
}

static void free_states(run_result *r)
{
    free(r->state);
    r->state = NULL;
}

/* Runs `v`, and the CPU with it; the GPUs' result is for the caller, who frees its states. */
static void run_near_the_cpu(const variant *v, int64_t steps, run_result *gpu)
{
    run_result cpu;
    variant on_cpu = *v;
    on_cpu.device = "cpu";
    run_with(&on_cpu, &(run_options){ .steps = steps, .take_states = true }, &cpu);
    run_with(v, &(run_options){ .steps = steps, .take_states = true }, gpu);
    expect_near(v, &cpu, gpu);
    for (int64_t s = 0; s < gpu->steps; s++)
        assert_true(gpu->norm[s] > CLIP); /* clipping is at work */
    assert_true(gpu->loss[gpu->steps - 1] < gpu->loss[0]);
    free_states(&cpu);
}

static void near_the_cpu(void **state)
{
    for (int bf16 = 0; bf16 < 2; bf16++)
        for (int32_t world = 1; world <= run_most_ranks(2); world++) {
            run_result gpu;
            run_near_the_cpu(&(variant){ "cuda", world, 1, world, bf16 != 0, false, false, NULL }, STEPS, &gpu);
            free_states(&gpu);
        }
}

/* Three ranks: slices that end in padding. */
static void stages_give_the_same_bits(void **state)
{
    const int32_t world = run_most_ranks(3);
    for (int bf16 = 0; bf16 < 2; bf16++) {
        run_result first, other;
        run(&(variant){ "cuda", world, 0, 2, bf16 != 0, false, false, NULL }, &first);
        for (int32_t stage = 1; stage <= 3; stage++) {
            run(&(variant){ "cuda", world, stage, 2, bf16 != 0, stage != 2, stage == 2, NULL }, &other);
            run_expect_same(&first, &other);
            free_states(&other);
        }
        free_states(&first);
    }
}

/* One of the runs that must not differ from `first`. */
static void run_same(const variant *v, uint64_t seed, cusim_policy policy, int64_t steps, const run_result *first)
{
    run_result other;
    cusim_set_schedule(seed, policy);
    run_with(v, &(run_options){ .steps = steps }, &other);
    run_expect_same(first, &other);
}

/* Stage 0 without overlap is near the CPU; every stage with overlap then has its bits, under the two extreme schedules
 * and under 8 seeds. */
static void eight_gpus_in_any_order(void **state)
{
    static const cusim_policy extremes[2] = { CUSIM_COMM_FIRST, CUSIM_COMPUTE_FIRST };
    const int64_t steps = 2;
    run_result first;
    if (!cusim_present())
        skip();
    run_near_the_cpu(&(variant){ "cuda", 8, 0, 2, true, false, false, NULL }, steps, &first);
    for (int32_t stage = 0; stage <= 3; stage++)
        for (size_t i = 0; i < DSC_COUNT(extremes); i++)
            run_same(&(variant){ "cuda", 8, stage, 2, true, true, false, NULL }, 1, extremes[i], steps, &first);
    for (int seed = 1; seed <= 8; seed++)
        run_same(&(variant){ "cuda", 8, seed % 4, 2, true, true, seed > 4, NULL }, (uint64_t)seed, CUSIM_RANDOM, steps,
                 &first);
    free_states(&first);
}

static void eight_gpus_in_fp32(void **state)
{
    run_result first;
    if (run_most_ranks(8) < 8)
        skip();
    run_near_the_cpu(&(variant){ "cuda", 8, 3, 2, false, true, false, NULL }, 2, &first);
    run_same(&(variant){ "cuda", 8, 0, 2, false, false, false, NULL }, 2, CUSIM_RANDOM, 2, &first);
    free_states(&first);
}

/* ---- everything else that touches device memory ---- */

typedef struct uses {
    const char *load, *save; /* NULL: none */
    double eval[8];
    int32_t text[8][6];
} uses;

static dsc_status load_first(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    const uses *u = user;
    return u->load != NULL ? dsc_engine_load(engine, u->load, err) : DSC_OK;
}

static dsc_status evaluate_and_save(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    uses *u = user;
    static const int32_t prompt[3] = { 5, 1, 60 };
    const dsc_data_source source = tiny_gpt_data(model, 64);
    DSC_TRY(dsc_engine_evaluate(engine, &source, 4, &u->eval[rank], err));
    DSC_TRY(dsc_engine_generate(engine, prompt, 3, 6, 0, 1, u->text[rank], err));
    return u->save != NULL ? dsc_engine_save(engine, u->save, err) : DSC_OK;
}

static void use(const variant *v, int64_t steps, uses *u, run_result *out)
{
    run_with(v, &(run_options){ .steps = steps, .take_states = true, .before = load_first, .after = evaluate_and_save,
                                .user = u }, out);
}

/* Saved on GPUs and resumed on GPUs: the bits of a run without the interruption, at another stage too. Resumed on the
 * CPU and back again, the states are those that were saved. */
static void checkpoints_evaluation_generation(void **state)
{
    char *dir = cw_tmp_open(), *other = cw_tmp_open();
    const int32_t world = run_most_ranks(2);
    run_result whole, part, rest, cpu;
    uses none = { .load = NULL }, save = { .save = dir }, load = { .load = dir }, over = { .load = dir, .save = other };
    use(&(variant){ "cuda", world, 1, 2, true, false, false, NULL }, 4, &none, &whole);
    use(&(variant){ "cuda", world, 3, 2, true, true, false, NULL }, 2, &save, &part);
    use(&(variant){ "cuda", world, 2, 2, true, false, false, NULL }, 2, &load, &rest);
    assert_string_equal(whole.hash, rest.hash);
    for (int s = 0; s < 2; s++) {
        assert_memory_equal(&whole.loss[s], &part.loss[s], sizeof(double));
        assert_memory_equal(&whole.loss[2 + s], &rest.loss[s], sizeof(double));
    }
    for (int32_t r = 0; r < world; r++) {
        assert_memory_equal(&none.eval[r], &load.eval[r], sizeof(double));
        assert_memory_equal(none.text[r], load.text[0], sizeof none.text[r]);
    }
    use(&(variant){ "cpu", world, 1, 2, true, false, false, NULL }, -1, &over, &cpu); /* no step */
    assert_string_equal(part.hash, cpu.hash);
    assert_true(fabs(over.eval[0] - save.eval[0]) < 3e-3);
    free_states(&whole);
    free_states(&part);
    free_states(&rest);
    free_states(&cpu);
    cw_tmp_close(dir);
    cw_tmp_close(other);
}

/* Rank 0's device memory: what was planned, no more, and the states by ZeRO's formulas. */
static void memory_is_the_plans(void **state)
{
    const int32_t world = run_most_ranks(4);
    run_result stage[4];
    for (int32_t s = 0; s < 4; s++) {
        cusim_reset_peak(0);
        run(&(variant){ "cuda", world, s, 2, true, s == 3, false, NULL }, &stage[s]);
        free_states(&stage[s]);
        assert_int_equal(stage[s].alloc_calls_after_first, stage[s].alloc_calls_at_end);
        assert_true(stage[s].device_peak <= stage[s].device_planned);
        assert_true(stage[s].device_peak * 100 >= stage[s].device_planned * 99);
        assert_true(stage[s].tracked_peak <= stage[s].planned);
        /* The arena is rounded up, with room for what is too small to plan. NCCL's share is only in the plan. */
        assert_true((int64_t)cusim_bytes_peak(0) <= stage[s].device_planned + (3 << 20));
    }
    for (int i = 0; i < 4; i++) { /* params, grads, master, moments */
        const int64_t whole = stage[0].state_bytes[i], slice = whole / world;
        assert_int_equal(stage[1].state_bytes[i], i == 0 ? whole : slice);
        assert_int_equal(stage[2].state_bytes[i], i == 0 ? whole : slice);
        assert_int_equal(stage[3].state_bytes[i], slice);
    }
}

/* NCCL's own sum: its order is its own, so only near. */
static void native_sums_are_near(void **state)
{
    run_result exact, native;
    if (run_most_ranks(8) < 3)
        skip();
    for (int bf16 = 0; bf16 < 2; bf16++) {
        variant v = { "cuda", 3, 2, 2, bf16 != 0, true, false, NULL };
        run(&v, &exact);
        v.own = ", \"reduce\": \"native\"";
        run(&v, &native);
        expect_near(&v, &exact, &native);
        free_states(&exact);
        free_states(&native);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(near_the_cpu),
        cmocka_unit_test(stages_give_the_same_bits),
        cmocka_unit_test(eight_gpus_in_any_order),
        cmocka_unit_test(eight_gpus_in_fp32),
        cmocka_unit_test(checkpoints_evaluation_generation),
        cmocka_unit_test(memory_is_the_plans),
        cmocka_unit_test(native_sums_are_near),
    };
    model = tiny_gpt_open(&(tiny_gpt){ .vocab = VOCAB, .sequence = SEQUENCE, .heads = 1, .layers = 2 });
    const int failed = cmocka_run_group_tests_name("a GPT on simulated GPUs", tests, NULL, NULL);
    dsc_model_close(&model);
    return failed;
}
