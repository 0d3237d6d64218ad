/* test_gpt.c - a small GPT trained on simulated GPUs, ranks as threads of this process.
 *
 * Runs on GPUs are bit-equal among each other: stages, overlap, recomputation, schedules, a resumed run. They differ
 * from the CPU's by roundings, within the bounds of tests/support/tiny_run.c. Exact operations, equal to the CPU's bit
 * by bit, are in test_exact.c. On real GPUs (tests/gpu/real.c) DSC_TEST_RANKS_MAX sets the number of ranks.
 * SPDX-License-Identifier: Apache-2.0 */
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
#include "tests/support/tiny_gpt.h"
#include "tests/support/tiny_run.h"

#define SEQUENCE 16
#define VOCAB 61

static dsc_model *model;

static void run_with(const tiny_variant *v, const run_options *base, run_result *out)
{
    tiny_run(model, v, base, out);
}

static void run(const tiny_variant *v, run_result *out) { run_with(v, &(run_options){ .take_states = true }, out); }

static void near_the_cpu(void **state)
{
    for (int bf16 = 0; bf16 < 2; bf16++)
        for (int32_t world = 1; world <= run_most_ranks(2); world++) {
            run_result gpu;
            const tiny_variant v = { "cuda", world, 1, world, bf16 != 0, false, DSC_RECOMPUTE_NONE, NULL };
            tiny_run_near_the_cpu(model, &v, TINY_STEPS, &gpu);
            tiny_free_states(&gpu);
        }
}

/* Three ranks: slices that end in padding. */
static void stages_give_the_same_bits(void **state)
{
    for (int bf16 = 0; bf16 < 2; bf16++)
        tiny_stages_agree(model, "cuda", run_most_ranks(3), bf16 != 0);
}

/* One of the runs that must not differ from `first`. */
static void run_same(const tiny_variant *v, uint64_t seed, cusim_policy policy, int64_t steps, const run_result *first)
{
    run_result other;
    cusim_set_schedule(seed, policy);
    run_with(v, &(run_options){ .steps = steps }, &other);
    run_expect_same(first, &other);
}

/* Stage 0 without overlap is near the CPU; every stage with overlap then has its bits, under the two extreme schedules
 * and under 8 seeds. By day the stages below 3 take turns with the extremes, and there are 4 seeds. */
static void eight_gpus_in_any_order(void **state)
{
    static const cusim_policy extremes[2] = { CUSIM_COMM_FIRST, CUSIM_COMPUTE_FIRST };
    const int64_t steps = 2;
    run_result first;
    const bool night = getenv("DSC_TEST_NIGHT") != NULL;
    if (!cusim_present())
        skip();
    tiny_run_near_the_cpu(model, &(tiny_variant){ "cuda", 8, 0, 2, true, false, DSC_RECOMPUTE_NONE, NULL }, steps,
                          &first);
    for (int32_t stage = 0; stage <= 3; stage++)
        for (size_t i = 0; i < DSC_COUNT(extremes); i++)
            if (night || stage == 3 || i == (size_t)stage % 2)
                run_same(&(tiny_variant) { "cuda", 8, stage, 2, true, true, DSC_RECOMPUTE_NONE, NULL }, 1, extremes[i],
                         steps, &first);
    for (int seed = 1; seed <= (night ? 8 : 4); seed++)
        run_same(&(tiny_variant) { "cuda", 8, seed % 4, 2, true, true, (dsc_recompute)(seed % 4), NULL },
                 (uint64_t)seed, CUSIM_RANDOM, steps, &first);
    tiny_free_states(&first);
}

static void eight_gpus_in_fp32(void **state)
{
    run_result first;
    if (run_most_ranks(8) < 8)
        skip();
    tiny_run_near_the_cpu(model, &(tiny_variant){ "cuda", 8, 3, 2, false, true, DSC_RECOMPUTE_NONE, NULL }, 2, &first);
    run_same(&(tiny_variant){ "cuda", 8, 0, 2, false, false, DSC_RECOMPUTE_NONE, NULL }, 2, CUSIM_RANDOM, 2, &first);
    tiny_free_states(&first);
}

/* ---- everything else that touches device memory ---- */

typedef struct uses {
    const char *load, *save; /* NULL: none */
    bool beside; /* the save is of what was loaded, and written while the run trains on */
    double eval[8];
    int32_t text[8][6];
} uses;

static dsc_status load_first(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    const uses *u = user;
    if (u->load != NULL)
        DSC_TRY(dsc_engine_load(engine, u->load, err));
    return u->beside ? dsc_engine_save_start(engine, u->save, err) : DSC_OK;
}

static dsc_status evaluate_and_save(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    uses *u = user;
    static const int32_t prompt[3] = { 5, 1, 60 };
    const dsc_data_source source = tiny_gpt_data(model, 64);
    DSC_TRY(dsc_engine_evaluate(engine, &source, 4, &u->eval[rank], err));
    DSC_TRY(dsc_engine_generate(engine, prompt, 3, 6, 0, 1, u->text[rank], err));
    if (u->beside)
        return dsc_engine_save_wait(engine, NULL, err);
    return u->save != NULL ? dsc_engine_save(engine, u->save, err) : DSC_OK;
}

static void use(const tiny_variant *v, int64_t steps, uses *u, run_result *out)
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
    use(&(tiny_variant){ "cuda", world, 1, 2, true, false, DSC_RECOMPUTE_NONE, NULL }, 4, &none, &whole);
    use(&(tiny_variant){ "cuda", world, 3, 2, true, true, DSC_RECOMPUTE_NONE, NULL }, 2, &save, &part);
    use(&(tiny_variant){ "cuda", world, 2, 2, true, false, DSC_RECOMPUTE_NONE, NULL }, 2, &load, &rest);
    assert_string_equal(whole.hash, rest.hash);
    for (int s = 0; s < 2; s++) {
        assert_memory_equal(&whole.loss[s], &part.loss[s], sizeof(double));
        assert_memory_equal(&whole.loss[2 + s], &rest.loss[s], sizeof(double));
    }
    for (int32_t r = 0; r < world; r++) {
        assert_memory_equal(&none.eval[r], &load.eval[r], sizeof(double));
        assert_memory_equal(none.text[r], load.text[0], sizeof none.text[r]);
    }
    use(&(tiny_variant){ "cpu", world, 1, 2, true, false, DSC_RECOMPUTE_NONE, NULL }, -1, &over, &cpu); /* no step */
    assert_string_equal(part.hash, cpu.hash);
    assert_true(fabs(over.eval[0] - save.eval[0]) < 3e-3);
    tiny_free_states(&whole);
    tiny_free_states(&part);
    tiny_free_states(&rest);
    tiny_free_states(&cpu);
    cw_tmp_close(dir);
    cw_tmp_close(other);
}

/* A loaded state is saved again while training continues from it. */
static void a_save_beside_training(void **state)
{
    const int32_t world = run_most_ranks(2);
    const char *const own = ", \"save_async\": true";
    for (int32_t stage = 1; stage <= 3; stage += 2) {
        char *dir = cw_tmp_open(), *other = cw_tmp_open();
        run_result part, calm, rest;
        char hex[65];
        uses save = { .save = dir }, load = { .load = dir }, beside = { .load = dir, .save = other, .beside = true };
        use(&(tiny_variant){ "cuda", world, stage, 2, true, true, DSC_RECOMPUTE_NONE, NULL }, 2, &save, &part);
        use(&(tiny_variant){ "cuda", world, stage, 2, true, true, DSC_RECOMPUTE_NONE, NULL }, 2, &load, &calm);
        use(&(tiny_variant){ "cuda", world, stage, 2, true, true, DSC_RECOMPUTE_SELECTIVE, own }, 2, &beside, &rest);
        assert_string_equal(calm.hash, rest.hash);
        cw_hash_of(cw_path(dir, "step-2"), hex);
        cw_expect_checkpoint(cw_path(other, "step-2"), hex);
        tiny_free_states(&part);
        tiny_free_states(&calm);
        tiny_free_states(&rest);
        cw_tmp_close(dir);
        cw_tmp_close(other);
    }
}

/* The update of a step goes on under what comes next: a forward pass, an evaluation, a save. One rank has no slices: by
 * day it tries the two stages whose parameters differ in place. */
static void late_updates_give_the_same_bits(void **state)
{
    const cusim_policy policies[3] = { CUSIM_COMM_FIRST, CUSIM_COMPUTE_FIRST, CUSIM_RANDOM };
    const bool night = getenv("DSC_TEST_NIGHT") != NULL;
    for (int32_t world = 1; world <= run_most_ranks(2); world++)
        for (int32_t stage = 0; stage <= 3; stage++) {
            if (!night && world == 1 && stage % 3 != 0)
                continue;
            char *dir = cw_tmp_open(), *other = cw_tmp_open(), hex[65];
            uses plain = { .save = dir }, late = { .save = other };
            run_result at_once, later;
            const int32_t accumulation = 1 + stage % 2;
            tiny_variant v = { "cuda", world, stage, accumulation, true, true, DSC_RECOMPUTE_NONE, NULL };
            use(&v, 3, &plain, &at_once);
            v.own = ", \"late_update\": true";
            cusim_set_schedule((uint64_t)stage + 1, policies[(stage + world) % 3]);
            use(&v, 3, &late, &later);
            run_expect_same(&at_once, &later);
            assert_memory_equal(plain.eval, late.eval, (size_t)world * sizeof plain.eval[0]);
            assert_memory_equal(plain.text[0], late.text[0], sizeof plain.text[0]);
            cw_hash_of(cw_path(dir, "step-3"), hex);
            cw_expect_checkpoint(cw_path(other, "step-3"), hex);
            tiny_free_states(&at_once);
            tiny_free_states(&later);
            cw_tmp_close(dir);
            cw_tmp_close(other);
        }
}

/* Rank 0's device memory: what was planned, no more, and the states by ZeRO's formulas. */
static void memory_is_the_plans(void **state)
{
    const int32_t world = run_most_ranks(4);
    run_result stage[4];
    for (int32_t s = 0; s < 4; s++) {
        cusim_reset_peak(0);
        run(&(tiny_variant){ "cuda", world, s, 2, true, s == 3, DSC_RECOMPUTE_NONE, NULL }, &stage[s]);
        tiny_free_states(&stage[s]);
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

/* Samples of 96 rows: a low limit makes the head's logits in chunks of 64 and 32 rows, in less memory. The first loss
 * is that of one chunk; later ones differ by roundings of the table's gradient, on the CPU too. */
static void chunks_of_the_head(void **state)
{
    dsc_model *long_model = tiny_gpt_open(&(tiny_gpt) { .vocab = VOCAB, .sequence = 48, .heads = 1, .layers = 2 });
    for (int bf16 = 0; bf16 < 2; bf16++) {
        run_result whole, parts, sharded;
        tiny_variant v = { "cuda", run_most_ranks(2), 1, 2, bf16 != 0, false, DSC_RECOMPUTE_NONE, NULL };
        tiny_run(long_model, &v, &(run_options) { .take_states = true }, &whole);
        v.own = ", \"head_chunk_bytes\": 4096";
        tiny_run_near_the_cpu(long_model, &v, TINY_STEPS, &parts);
        assert_true(parts.loss[0] == whole.loss[0]);
        tiny_expect_near(long_model, &v, &whole, &parts);
        assert_true(parts.device_planned <= whole.device_planned);
        assert_true(parts.device_peak <= parts.device_planned);
        v.stage = 3;
        tiny_run(long_model, &v, &(run_options) { 0 }, &sharded);
        run_expect_same(&parts, &sharded);
        tiny_free_states(&whole);
        tiny_free_states(&parts);
    }
    dsc_model_close(&long_model);
}

/* NCCL's own sum: its order is its own, so only near. */
static void native_sums_are_near(void **state)
{
    run_result exact, native;
    if (run_most_ranks(8) < 3)
        skip();
    for (int bf16 = 0; bf16 < 2; bf16++) {
        tiny_variant v = { "cuda", 3, 2, 2, bf16 != 0, true, DSC_RECOMPUTE_NONE, NULL };
        run(&v, &exact);
        v.own = ", \"reduce\": \"native\"";
        run(&v, &native);
        tiny_expect_near(model, &v, &exact, &native);
        tiny_free_states(&exact);
        tiny_free_states(&native);
    }
}

/* Each rank's parameters, with each channel's communicator; taken back before it closes, or the simulator ends us. */
static void registered_memory_gives_the_same_bits(void **state)
{
    const int32_t world = run_most_ranks(2);
    run_result plain, registered;
    tiny_variant v = { "cuda", world, 2, 2, true, true, DSC_RECOMPUTE_NONE, NULL };
    if (world < 2)
        skip();
    run(&v, &plain);
    const uint64_t before = cusim_nccl_registrations();
    v.own = ", \"nccl_register\": true";
    run(&v, &registered);
    const uint64_t made = cusim_nccl_registrations() - before, channels = 3;
    assert_true(!cusim_present() || made > 0);
    assert_true(made % (channels * (uint64_t)world) == 0);
    assert_string_equal(plain.hash, registered.hash);
    tiny_free_states(&plain);
    tiny_free_states(&registered);
}

/* Sums and gathers of stage 3 by copy engines. */
static void windows_give_the_same_bits(void **state)
{
    const int32_t world = run_most_ranks(2);
    run_result plain, windows;
    tiny_variant v = { "cuda", world, 3, 2, true, true, DSC_RECOMPUTE_NONE, NULL };
    if (world < 2 || !cusim_present())
        skip();
    run(&v, &plain);
    const uint64_t opened = cusim_nccl_windows(), copied = cusim_nccl_copied();
    v.own = ", \"nccl\": {\"cta_policy\": \"zero\"}";
    run(&v, &windows);
    assert_true(cusim_nccl_windows() > opened);
    assert_true(cusim_nccl_copied() > copied);
    assert_string_equal(plain.hash, windows.hash);
    tiny_free_states(&plain);
    tiny_free_states(&windows);
}

/* Counts of a step are unequal on its ranks. A graph holds the arguments of kernels, and no count is among these. */
static void masked_targets_are_those_of_the_cpu(void **state)
{
    const int32_t world = run_most_ranks(2);
    for (int bf16 = 0; bf16 < 2; bf16++) {
        run_result cpu, gpu, other;
        tiny_variant v = { "cpu", world, 0, 2, bf16 != 0, false, DSC_RECOMPUTE_NONE, NULL };
        run_options options = { .data = tiny_gpt_masked_data(model, 1 << 20), .take_states = true };
        run_with(&v, &options, &cpu);
        v.device = "cuda";
        run_with(&v, &options, &gpu);
        tiny_expect_near(model, &v, &cpu, &gpu);
        options.take_states = false;
        v.own = ", \"cuda_graphs\": true";
        for (v.stage = 1; v.stage <= 3; v.stage += 2) {
            run_with(&v, &options, &other);
            run_expect_same(&gpu, &other);
        }
        tiny_free_states(&cpu);
        tiny_free_states(&gpu);
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
        cmocka_unit_test(a_save_beside_training),
        cmocka_unit_test(late_updates_give_the_same_bits),
        cmocka_unit_test(memory_is_the_plans),
        cmocka_unit_test(chunks_of_the_head),
        cmocka_unit_test(native_sums_are_near),
        cmocka_unit_test(registered_memory_gives_the_same_bits),
        cmocka_unit_test(windows_give_the_same_bits),
        cmocka_unit_test(masked_targets_are_those_of_the_cpu),
    };
    model = tiny_gpt_open(&(tiny_gpt){ .vocab = VOCAB, .sequence = SEQUENCE, .heads = 1, .layers = 2 });
    const int failed = cmocka_run_group_tests_name("a GPT on simulated GPUs", tests, NULL, NULL);
    dsc_model_close(&model);
    return failed;
}
