/* test_fp8.c - training with dsc.fp8 on simulated GPUs: near the CPU's run, and the same bits at every stage. The place
 * of the cast weights and graphs change no bit either. A GPU without fp8 is refused by name.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "tests/sim/cusim.h"
#include "tests/support/tiny_gpt.h"
#include "tests/support/tiny_models.h"
#include "tests/support/tiny_run.h"

#define FP8 ", \"fp8\": {\"enabled\": true"

static dsc_model *model_of(int which)
{
    static const tiny_gpt gpt = { 64, 16, 4, 2 };
    return which == 0 ? tiny_gpt_open(&gpt)
                      : tiny_model_open(tiny_models[which == 1 ? 0 : 9].config, tiny_models[which == 1 ? 0 : 9].lora);
}

static void run_on(const char *device, const dsc_model *model, int32_t stage, const char *own, run_result *out)
{
    const dsc_recompute again = (dsc_recompute)stage;
    tiny_run(model, &(tiny_variant) { device, run_most_ranks(2), stage, 2, true, stage > 1, again, own },
             &(run_options) { 0 }, out);
}

/* The bound of tests/dist/test_fp8.c: a rounding in bf16 may change one in fp8. */
static void near_the_cpu_and_the_same_at_every_stage(void **state)
{
    static const char *const own[] = { FP8 "}", FP8 ", \"weights\": \"each_use\"}",
                                       FP8 ", \"inputs\": \"kept\"}, \"cuda_graphs\": true",
                                       FP8 ", \"weights\": \"kept\"}" };
    for (int i = 0; i < 3; i++) {
        dsc_model *model = model_of(i);
        const double tokens = 2.0 * run_most_ranks(2) * TINY_MICRO_BATCH * (double)model->losses_per_sample;
        run_result cpu, gpu, other;
        run_on("cpu", model, 0, own[0], &cpu);
        run_on("cuda", model, 0, own[0], &gpu);
        for (int64_t s = 0; s < cpu.steps; s++)
            assert_true(fabs(cpu.loss[s] - gpu.loss[s]) < sqrt(2 * 21) * 0x1p-4 / sqrt(tokens));
        for (int32_t stage = 0; stage <= 3; stage++) {
            run_on("cuda", model, stage, own[(stage + 1 + i) % 4], &other);
            run_expect_same(&gpu, &other);
        }
        dsc_model_close(&model);
    }
}

/* The simulated library has no bias beside blocks, so that epilogues run apart. */
static void scales_of_blocks_are_near_the_cpu(void **state)
{
    static const char *const own = FP8 ", \"scaling\": \"block\"}";
    dsc_model *model = model_of(0);
    const double tokens = 2.0 * run_most_ranks(2) * TINY_MICRO_BATCH * (double)model->losses_per_sample;
    run_result cpu, gpu, other;
    run_on("cpu", model, 0, own, &cpu);
    run_on("cuda", model, 0, own, &gpu);
    for (int64_t s = 0; s < cpu.steps; s++)
        assert_true(fabs(cpu.loss[s] - gpu.loss[s]) < sqrt(2 * 21) * 0x1p-4 / sqrt(tokens));
    run_on("cuda", model, 3, own, &other);
    run_expect_same(&gpu, &other);
    dsc_model_close(&model);
}

static void refuse_on(int32_t arch, const char *fp8, const char *expected)
{
    dsc_model *model = model_of(0);
    char config[512];
    run_result r;
    snprintf(config, sizeof config,
             "{\"train_batch_size\": 2, \"bf16\": {\"enabled\": true},"
             " \"dsc\": {\"device\": \"cuda\", \"fp8\": {\"enabled\": true%s}}}",
             fp8);
    cusim_set_arch(0, arch);
    run_world(&(run_options) { .world = 1,
                               .steps = 1,
                               .model = model,
                               .data = tiny_gpt_data(model, 64),
                               .fault_rank = -1,
                               .config = config },
              &r);
    assert_int_equal(r.status, DSC_ERR_UNSUPPORTED);
    assert_non_null(strstr(r.error.message, expected));
    cusim_set_arch(0, 90);
    dsc_model_close(&model);
}

static void other_gpus_are_refused(void **state)
{
    if (!cusim_present())
        skip();
    refuse_on(86, "", "(sm_86) has no products in fp8; they need sm_89 or newer");
    refuse_on(89, ", \"scaling\": \"block\"", "(sm_89) has no products in fp8 with scales of blocks; they need sm_90");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(near_the_cpu_and_the_same_at_every_stage),
        cmocka_unit_test(scales_of_blocks_are_near_the_cpu),
        cmocka_unit_test(other_gpus_are_refused),
    };
    return cmocka_run_group_tests_name("fp8 on simulated GPUs", tests, NULL, NULL);
}
