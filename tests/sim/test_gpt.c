/* test_gpt.c - a small GPT trained on simulated GPUs, ranks as threads of this process.
 *
 * Among themselves the runs on GPUs are bit-equal: stages, overlap, recomputation, schedules, a resumed run. Beside the
 * CPU's they differ by roundings: matrix products, attention and norms sum in another order. A loss is a mean of B*T
 * logarithms of softmaxes behind L layers; each layer's sums of K terms in fp32 err by about sqrt(K) * 2^-24 relative,
 * and each bf16 store by 2^-9, which random signs over thousands of activations average out. On real GPUs
 * (tests/gpu/real.c) the same tests run with as many ranks as DSC_TEST_RANKS_MAX says.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "tests/sim/cusim.h"
#include "tests/support/ckpt_world.h"
#include "tests/support/run_world.h"

#define STEPS 3
#define SEQUENCE 16
#define VOCAB 61

typedef struct variant {
    const char *device;
    int32_t world, stage, accumulation;
    bool bf16, overlap, recompute;
    const char *own; /* further members of "dsc", each preceded by a comma */
} variant;

static dsc_model *model;

static dsc_status fill(void *user, int64_t first_sample, int64_t count, void *const *data, dsc_error *err)
{
    for (int64_t i = 0; i < count * SEQUENCE; i++) {
        uint64_t x = ((uint64_t)(first_sample * SEQUENCE + i) + 1) * 0x9e3779b97f4a7c15u;
        x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9u;
        ((int32_t *)data[0])[i] = (int32_t)((x >> 20) % VOCAB);
        ((int32_t *)data[1])[i] = (int32_t)((x >> 40) % 7); /* few targets: there is something to learn */
    }
    return DSC_OK;
}

static int32_t most_ranks(void)
{
    const char *text = getenv("DSC_TEST_RANKS_MAX");
    return text != NULL ? atoi(text) : 8;
}

/* The config's text; `more` are further members, each followed by a comma. */
static void write_config(const variant *v, const char *more, char *config, size_t config_bytes)
{
    snprintf(config, config_bytes,
             "{%s\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": %d,"
             " \"gradient_clipping\": 0.5,"
             " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01, \"weight_decay\": 0.1}},"
             " \"bf16\": {\"enabled\": %s}, \"zero_optimization\": {\"stage\": %d, \"overlap_comm\": %s,"
             " \"reduce_bucket_size\": 20000},"
             " \"dsc\": {\"threads\": 1, \"device\": \"%s\", \"comm_timeout_s\": 60, \"recompute\": \"%s\"%s}}",
             more, (int)v->accumulation, v->bf16 ? "true" : "false", (int)v->stage, v->overlap ? "true" : "false",
             v->device, v->recompute ? "full" : "none", v->own != NULL ? v->own : "");
}

static void run_with(const variant *v, const run_options *base, run_result *out)
{
    char config[1024];
    run_options options = *base;
    write_config(v, "", config, sizeof config);
    options.world = v->world;
    options.steps = options.steps != 0 ? options.steps : STEPS;
    options.model = model;
    options.config = config;
    options.data = (dsc_data_source){ fill, NULL, 1 << 20 };
    options.fault_rank = -1;
    run_world(&options, out);
    if (out->status != DSC_OK)
        print_error("%s, %d ranks, stage %d: %s: %s\n", v->device, (int)v->world, (int)v->stage, out->error.where,
                    out->error.message);
    assert_int_equal(out->status, DSC_OK);
}

static void run(const variant *v, run_result *out) { run_with(v, &(run_options){ .take_states = true }, out); }

static void expect_same(const run_result *a, const run_result *b)
{
    for (int s = 0; s < STEPS; s++) {
        assert_memory_equal(&a->loss[s], &b->loss[s], sizeof(double));
        assert_memory_equal(&a->norm[s], &b->norm[s], sizeof(double));
    }
    assert_string_equal(a->hash, b->hash);
}

static void expect_near(const run_result *cpu, const run_result *gpu, double loss_bound, double norm_bound,
                        double state_bound)
{
    double worst = 0, sum = 0;
    for (int s = 0; s < STEPS; s++) {
        const double loss = fabs(cpu->loss[s] - gpu->loss[s]), norm = fabs(cpu->norm[s] / gpu->norm[s] - 1);
        if (!(loss < loss_bound) || !(norm < norm_bound))
            print_error("step %d: loss %.9g and %.9g, norm %.9g and %.9g\n", s, cpu->loss[s], gpu->loss[s],
                        cpu->norm[s], gpu->norm[s]);
        assert_true(loss < loss_bound);
        assert_true(norm < norm_bound);
    }
    assert_int_equal(cpu->state_count, gpu->state_count);
    for (int64_t i = 0; i < cpu->state_count; i++) {
        const double d = fabs((double)cpu->state[i] - (double)gpu->state[i]);
        worst = d > worst || isnan(d) ? d : worst;
        sum += d;
    }
    if (!(sum / (double)cpu->state_count < state_bound))
        print_error("states differ by %.3g in the mean, %.3g at most\n", sum / (double)cpu->state_count, worst);
    assert_true(sum / (double)cpu->state_count < state_bound);
}

static void free_states(run_result *r)
{
    free(r->state);
    r->state = NULL;
}

static void near_the_cpu(void **state)
{
    for (int bf16 = 0; bf16 < 2; bf16++)
        for (int32_t world = 1; world <= 4 && world <= most_ranks(); world *= 2) {
            run_result cpu, gpu;
            const int32_t accumulation = world == 2 ? 2 : 1;
            run(&(variant){ "cpu", world, 1, accumulation, bf16 != 0, false, false, NULL }, &cpu);
            run(&(variant){ "cuda", world, 1, accumulation, bf16 != 0, false, false, NULL }, &gpu);
            assert_true(gpu.loss[STEPS - 1] < gpu.loss[0]);
            /* Seen: 8e-7, 2e-6, 3e-8 in fp32; 5e-4, 2e-4, 3e-5 in bf16. */
            expect_near(&cpu, &gpu, bf16 ? 3e-3 : 5e-6, bf16 ? 2e-3 : 2e-5, bf16 ? 2e-4 : 3e-7);
            free_states(&cpu);
            free_states(&gpu);
        }
}

static void stages_give_the_same_bits(void **state)
{
    for (int bf16 = 0; bf16 < 2; bf16++)
        for (int32_t world = 2; world <= 3 && world <= most_ranks(); world++) {
            run_result first, other;
            run(&(variant){ "cuda", world, 0, 2, bf16 != 0, false, false, NULL }, &first);
            for (int32_t stage = 1; stage <= 3; stage++) {
                const bool overlap = (stage + world) % 2 == 0;
                run(&(variant){ "cuda", world, stage, 2, bf16 != 0, overlap, stage == 2, NULL }, &other);
                expect_same(&first, &other);
                free_states(&other);
            }
            free_states(&first);
        }
}

static void eight_gpus_in_any_order(void **state)
{
    run_result first, other;
    if (!cusim_present())
        skip();
    run(&(variant){ "cuda", 8, 0, 2, true, false, false, NULL }, &first);
    for (int i = 0; i < 10; i++) {
        cusim_set_schedule((uint64_t)i + 1, i == 0 ? CUSIM_COMM_FIRST : i == 1 ? CUSIM_COMPUTE_FIRST : CUSIM_RANDOM);
        run(&(variant){ "cuda", 8, i % 2 == 0 ? 3 : 1 + i / 2 % 3, 2, true, true, false, NULL }, &other);
        expect_same(&first, &other);
        free_states(&other);
    }
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
    const dsc_data_source source = { fill, NULL, 64 };
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
    const int32_t world = most_ranks() > 1 ? 2 : 1;
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
    const int32_t world = most_ranks() >= 4 ? 4 : most_ranks();
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
    if (most_ranks() < 3)
        skip();
    for (int bf16 = 0; bf16 < 2; bf16++) {
        run(&(variant){ "cuda", 3, 2, 2, bf16 != 0, true, false, NULL }, &exact);
        run(&(variant){ "cuda", 3, 2, 2, bf16 != 0, true, false, ", \"reduce\": \"native\"" }, &native);
        expect_near(&exact, &native, bf16 ? 3e-3 : 5e-6, bf16 ? 5e-3 : 2e-5, bf16 ? 3e-4 : 3e-7);
        free_states(&exact);
        free_states(&native);
    }
}

static int open_model(void **state)
{
    char path[] = "/tmp/dsc-gpt-XXXXXX.json";
    const int fd = mkstemps(path, 5);
    dsc_model_options options = DSC_MODEL_OPTIONS_INIT;
    dsc_error err = DSC_ERROR_INIT;
    assert_true(fd >= 0);
    assert_true(dprintf(fd,
                        "{\"model_type\": \"gpt2\", \"vocab_size\": %d, \"n_embd\": 64, \"n_head\": 1,"
                        " \"n_layer\": 2, \"n_positions\": %d, \"layer_norm_epsilon\": 1e-5}",
                        VOCAB, SEQUENCE) > 0);
    close(fd);
    const dsc_status status = dsc_model_open(&model, path, &options, &err);
    unlink(path);
    if (status != DSC_OK)
        print_error("%s: %s\n", err.where, err.message);
    return status == DSC_OK ? 0 : -1;
}

static int close_model(void **state)
{
    dsc_model_close(&model);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(near_the_cpu),
        cmocka_unit_test(stages_give_the_same_bits),
        cmocka_unit_test(eight_gpus_in_any_order),
        cmocka_unit_test(checkpoints_evaluation_generation),
        cmocka_unit_test(memory_is_the_plans),
        cmocka_unit_test(native_sums_are_near),
    };
    return cmocka_run_group_tests_name("a GPT on simulated GPUs", tests, open_model, close_model);
}
