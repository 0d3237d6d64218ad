/* test_packed.c - dsc.quantize_base on simulated GPUs: equal bits at every stage and placement, memory as planned, and
 * first losses near those of a CPU. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/base.h"
#include "tests/support/ckpt_world.h"
#include "tests/support/run_expect.h"
#include "tests/support/tiny_gpt.h"
#include "tests/support/tiny_models.h"

static dsc_model *model;
static char *dir;

static void run(const char *device, int32_t world, const char *zero, bool nested, run_result *out)
{
    char config[1600];
    snprintf(config, sizeof config,
             "{\"train_batch_size\": 8, \"train_micro_batch_size_per_gpu\": 2,"
             " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01}}, \"bf16\": {\"enabled\": true},"
             " \"zero_optimization\": {%s}, \"dsc\": {\"threads\": 1, \"device\": \"%s\", \"comm_timeout_s\": 60,"
             " \"reproducible\": \"world_size\", \"quantize_base\": {\"double_quant\": %s}}}",
             zero, device, nested ? "true" : "false");
    run_well(&(run_options) { .world = world,
                              .steps = 3,
                              .model = model,
                              .config = config,
                              .data = tiny_gpt_data(model, 1 << 20),
                              .fault_rank = -1 },
             out);
}

static void same_bits_wherever(void **state)
{
    char files[900];
    snprintf(files, sizeof files,
             "\"stage\": 3, \"stage3_param_persistence_threshold\": 0,"
             " \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"},"
             " \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%s\", \"max_in_cpu\": 0}",
             dir, dir);
    const struct {
        int32_t world;
        const char *zero;
    } ways[] = {
        { 1, "\"stage\": 3" },
        { 2, "\"stage\": 1" },
        { 2, "\"stage\": 3" },
        { 4, "\"stage\": 2" },
        { 4, "\"stage\": 3, \"allgather_bucket_size\": 5000" },
        { 1, "\"stage\": 3, \"stage3_param_persistence_threshold\": 0, \"offload_param\": {\"device\": \"cpu\"}" },
        { 2, "\"stage\": 3, \"stage3_param_persistence_threshold\": 0, \"offload_param\": {\"device\": \"cpu\"},"
             " \"offload_optimizer\": {\"device\": \"cpu\"}" },
        { 2, files },
    };
    for (int nested = 0; nested < 2; nested++) {
        run_result first, other;
        run("cuda", 1, "\"stage\": 0", nested != 0, &first);
        for (size_t i = 0; i < DSC_COUNT(ways); i++) {
            if (ways[i].world > run_most_ranks(4))
                continue;
            printf("# %d ranks, %s\n", (int)ways[i].world, ways[i].zero);
            run("cuda", ways[i].world, ways[i].zero, nested != 0, &other);
            run_expect_same(&first, &other);
            run_expect_planned(&other);
        }
        run("cpu", 1, "\"stage\": 0", nested != 0, &other);
        for (int i = 0; i < 3; i++)
            assert_true(fabs(first.loss[i] - other.loss[i]) < 0.01); /* roundings of bf16 products */
    }
}

static int setup(void **state)
{
    dir = cw_tmp_open();
    model = tiny_model_open(tiny_models[0].config, &tiny_lora);
    return 0;
}

static int teardown(void **state)
{
    dsc_model_close(&model);
    cw_tmp_close(dir);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(same_bits_wherever) };
    return cmocka_run_group_tests_name("packed weights on simulated GPUs", tests, setup, teardown);
}
