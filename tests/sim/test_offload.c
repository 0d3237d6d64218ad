/* test_offload.c - optimizer states away from simulated GPUs, in host memory and in files: the host updates them, and
 * the bits are those of the GPUs' own update. SPDX-License-Identifier: Apache-2.0 */
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
#include "tests/support/run_world.h"

#define STEPS 3
#define SEQUENCE 16
#define VOCAB 61

static dsc_model *model;
static char folder[64] = "/tmp/dsc-sim-offload-XXXXXX";

typedef struct variant {
    int32_t world, stage, accumulation;
    bool bf16;
    const char *zero; /* members of zero_optimization, each preceded by a comma; %s is a folder */
    const char *own;  /* of "dsc" */
} variant;

static dsc_status fill(void *user, int64_t first_sample, int64_t count, void *const *data, dsc_error *err)
{
    for (int64_t i = 0; i < count * SEQUENCE; i++) {
        uint64_t x = ((uint64_t)(first_sample * SEQUENCE + i) + 1) * 0x9e3779b97f4a7c15u;
        x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9u;
        ((int32_t *)data[0])[i] = (int32_t)((x >> 20) % VOCAB);
        ((int32_t *)data[1])[i] = (int32_t)((x >> 40) % 7);
    }
    return DSC_OK;
}

static void run(const variant *v, run_result *out)
{
    char config[2048], zero[1024];
    snprintf(zero, sizeof zero, v->zero, folder);
    snprintf(config, sizeof config,
             "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": %d, \"gradient_clipping\": 0.5,"
             " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01, \"weight_decay\": 0.1}},"
             " \"bf16\": {\"enabled\": %s}, \"zero_optimization\": {\"stage\": %d, \"sub_group_size\": 9000,"
             " \"reduce_bucket_size\": 20000%s},"
             " \"dsc\": {\"threads\": 1, \"device\": \"cuda\", \"comm_timeout_s\": 60%s}}",
             (int)v->accumulation, v->bf16 ? "true" : "false", (int)v->stage, zero, v->own);
    const run_options options = { .world = v->world, .steps = STEPS, .model = model, .config = config,
                                  .data = { fill, NULL, 1 << 20 }, .fault_rank = -1 };
    run_world(&options, out);
    if (out->status != DSC_OK)
        print_error("%d ranks, stage %d%s: %s: %s\n", (int)v->world, (int)v->stage, zero, out->error.where,
                    out->error.message);
    assert_int_equal(out->status, DSC_OK);
}

static void expect_same(const run_result *a, const run_result *b)
{
    assert_memory_equal(a->loss, b->loss, STEPS * sizeof(double));
    assert_memory_equal(a->norm, b->norm, STEPS * sizeof(double));
    assert_string_equal(a->hash, b->hash);
}

static void every_placement_gives_the_same_bits(void **state)
{
    static const char *const zeros[] = {
        ", \"offload_optimizer\": {\"device\": \"cpu\", \"pin_memory\": true}",
        ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}",
        ", \"offload_optimizer\": {\"device\": \"cpu\", \"ratio\": 0.5}",
    };
    for (int bf16 = 0; bf16 < 2; bf16++)
        for (int32_t world = 1; world <= 4; world += 3) {
            run_result on_gpus, away;
            if (world == 1 && bf16 == 0) /* simulated seconds are long ones */
                continue;
            variant v = { world, 1, 1 + world / 4, bf16 != 0, "", "" };
            run(&v, &on_gpus);
            for (size_t z = 0; z < DSC_COUNT(zeros); z++)
                for (v.stage = z == 2 ? 3 : 1; v.stage <= 3; v.stage += 2) {
                    v.zero = zeros[z];
                    run(&v, &away);
                    expect_same(&on_gpus, &away);
                    assert_true(away.device_planned < on_gpus.device_planned);
                    assert_true(away.tracked_peak <= away.planned + away.planned / 100);
                }
        }
}

/* Moments in bf16 are rounded alike by GPUs and by the host. */
static void moments_in_bf16(void **state)
{
    run_result on_gpus, away;
    variant v = { 2, 2, 1, true, "", ", \"moments\": \"bf16\"" };
    run(&v, &on_gpus);
    v.zero = ", \"offload_optimizer\": {\"device\": \"cpu\"}";
    run(&v, &away);
    expect_same(&on_gpus, &away);
    assert_true(away.tracked_peak <= away.planned + away.planned / 100);
    v.zero = ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}";
    v.stage = 3;
    run(&v, &away);
    expect_same(&on_gpus, &away);
}

static int open_model(void **state)
{
    char path[] = "/tmp/dsc-gpt-XXXXXX.json";
    const int fd = mkstemps(path, 5);
    dsc_model_options options = DSC_MODEL_OPTIONS_INIT;
    if (fd < 0 || mkdtemp(folder) == NULL ||
        dprintf(fd, "{\"model_type\": \"gpt2\", \"vocab_size\": %d, \"n_embd\": 64, \"n_head\": 1, \"n_layer\": 2,"
                    " \"n_positions\": %d, \"layer_norm_epsilon\": 1e-5}", VOCAB, SEQUENCE) < 1)
        return -1;
    close(fd);
    const dsc_status status = dsc_model_open(&model, path, &options, NULL);
    unlink(path);
    return status == DSC_OK ? 0 : -1;
}

static int close_model(void **state)
{
    dsc_model_close(&model);
    return rmdir(folder); /* and nothing is left in it */
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(every_placement_gives_the_same_bits),
                                        cmocka_unit_test(moments_in_bf16) };
    return cmocka_run_group_tests_name("optimizer states away from simulated GPUs", tests, open_model, close_model);
}
