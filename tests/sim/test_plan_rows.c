/* test_plan_rows.c - bytes that `dsc plan` counts for absent GPUs equal the bytes that an engine takes: every row of
 * the table, stage, world size and way to train. Left out are small structures, counted as they are opened, and the
 * host memory between ranks, because a plan is for processes and these ranks are threads.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "kernels/device.h"
#include "tests/sim/cusim.h"
#include "tests/support/run_expect.h"
#include "tests/support/tiny_gpt.h"
#include "tests/support/tiny_models.h"

#define ROWS_MAX 64

typedef struct rows {
    dsc_plan_row row[ROWS_MAX];
    int32_t count;
} rows;

static dsc_model *model;

static void read_rows(dsc_engine *engine, rows *out)
{
    out->count = dsc_engine_plan_row_count(engine);
    DSC_ASSERT(out->count <= ROWS_MAX);
    for (int32_t i = 0; i < out->count; i++)
        DSC_ASSERT(dsc_engine_plan_row(engine, i, &out->row[i], NULL) == DSC_OK);
}

static dsc_status look(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    if (rank == 0)
        read_rows(engine, user);
    return DSC_OK;
}

static void plan_for_gpus(const char *config, int32_t world, rows *out)
{
    dsc_engine *engine = NULL;
    dsc_error err = DSC_ERROR_INIT;
    dsc_engine_options options = DSC_ENGINE_OPTIONS_INIT;
    options.config_text = config;
    options.model = model;
    options.flags = DSC_ENGINE_PLAN_ONLY;
    options.plan_world_size = world;
    options.plan_gpu_bytes = INT64_C(1) << 30;
    const dsc_status status = dsc_engine_open(&engine, &options, &err);
    if (status != DSC_OK)
        print_error("%s: %s\n", err.where, err.message);
    assert_int_equal(status, DSC_OK);
    read_rows(engine, out);
    dsc_engine_close(&engine);
}

static void expect_same(const char *config, int32_t world)
{
    rows planned = { .count = 0 }, taken = { .count = 0 };
    run_result result;
    const run_options options = { .world = world, .steps = 1, .model = model, .config = config,
                                  .data = tiny_gpt_data(model, 1 << 20), .after = look, .user = &taken,
                                  .fault_rank = -1 };
    int64_t on_device = 0;
    plan_for_gpus(config, world, &planned);
    run_well(&options, &result);
    assert_int_equal(planned.count, taken.count);
    for (int32_t i = 0; i < planned.count; i++) {
        const dsc_plan_row *p = &planned.row[i], *t = &taken.row[i];
        assert_string_equal(p->tag, t->tag);
        assert_string_equal(p->tier, t->tier);
        on_device += strcmp(p->tier, "device") == 0 ? p->planned_bytes : 0;
        if (strcmp(p->tag, "control") == 0 || (strcmp(p->tag, "comm") == 0 && strcmp(p->tier, "host") == 0))
            continue;
        if (p->planned_bytes != t->planned_bytes)
            print_error("%d ranks, %s: %s in %s: %lld planned, %lld in a run\n", (int)world, config, p->tag, p->tier,
                        (long long)p->planned_bytes, (long long)t->planned_bytes);
        assert_int_equal(p->planned_bytes, t->planned_bytes);
    }
    assert_true(on_device > 1 << 20);
}

static void rows_are_a_runs(void **state)
{
    static const char *const ways[] = {
        "", "\"gradient_accumulation_steps\": 3,", "\"bf16\": {\"enabled\": true},",
        "\"bf16\": {\"enabled\": true}, \"gradient_clipping\": 1.0, \"gradient_accumulation_steps\": 2,",
    };
    static const char *const owns[] = { "", ", \"recompute\": \"full\"", ", \"reproducible\": \"world_size\"",
                                        ", \"recompute\": \"selective\"", ", \"recompute\": \"none\"" };
    char config[512];
    const int32_t most = run_most_ranks(3);
    int number = 0;
    for (int32_t world = 1; world <= most; world++)
        for (int stage = 0; stage <= 3; stage++, number++) {
            const char *way = ways[number % (int)DSC_COUNT(ways)], *own = owns[number % (int)DSC_COUNT(owns)];
            snprintf(config, sizeof config,
                     "{%s \"train_micro_batch_size_per_gpu\": 2, \"zero_optimization\": {\"stage\": %d,"
                     " \"reduce_bucket_size\": 20000}, \"optimizer\": {\"type\": \"AdamW\"},"
                     " \"dsc\": {\"device\": \"cuda\", \"threads\": 1, \"comm_timeout_s\": 60%s}}", way, stage, own);
            expect_same(config, world);
        }
}

static void rows_of_what_is_in_host_memory_too(void **state)
{
    static const char config[] =
        "{\"train_micro_batch_size_per_gpu\": 2, \"bf16\": {\"enabled\": true}, \"optimizer\": {\"type\": \"AdamW\"},"
        " \"zero_optimization\": {\"stage\": 3, \"reduce_bucket_size\": 20000, \"sub_group_size\": 9000,"
        " \"stage3_param_persistence_threshold\": 0, \"offload_optimizer\": {\"device\": \"cpu\", \"ratio\": 0.5},"
        " \"offload_param\": {\"device\": \"cpu\"}},"
        " \"dsc\": {\"device\": \"cuda\", \"threads\": 1, \"comm_timeout_s\": 60}}";
    expect_same(config, run_most_ranks(2));
}

/* Frozen weights in 4 bits, which windows have at every stage. */
static void rows_of_packed_weights(void **state)
{
    static const char *const zeros[] = {
        "\"stage\": 0", "\"stage\": 2", "\"stage\": 3",
        "\"stage\": 3, \"stage3_param_persistence_threshold\": 0, \"offload_param\": {\"device\": \"cpu\"}"
    };
    dsc_model *const whole = model;
    char config[512];
    model = tiny_model_open(tiny_models[0].config, &tiny_lora);
    for (int32_t world = 1; world <= run_most_ranks(3); world++)
        for (size_t i = 0; i < DSC_COUNT(zeros); i++) {
            snprintf(config, sizeof config,
                     "{\"train_micro_batch_size_per_gpu\": 4, \"zero_optimization\": {%s,"
                     " \"reduce_bucket_size\": 20000}, \"optimizer\": {\"type\": \"AdamW\"},"
                     " \"bf16\": {\"enabled\": true}, \"dsc\": {\"device\": \"cuda\", \"threads\": 1,"
                     " \"comm_timeout_s\": 60, \"quantize_base\": {\"double_quant\": %s}}}",
                     zeros[i], i % 2 == 0 ? "true" : "false");
            expect_same(config, world);
        }
    dsc_model_close(&model);
    model = whole;
}

static void rows_of_a_copy_of_the_states(void **state)
{
    static const char config[] =
        "{\"train_micro_batch_size_per_gpu\": 2, \"bf16\": {\"enabled\": true}, \"optimizer\": {\"type\": \"AdamW\"},"
        " \"zero_optimization\": {\"stage\": 3, \"reduce_bucket_size\": 20000, \"mics_shard_size\": 2},"
        " \"dsc\": {\"device\": \"cuda\", \"threads\": 1, \"comm_timeout_s\": 60}}";
    if (run_most_ranks(4) < 4)
        skip();
    expect_same(config, 4);
}

/* ---- kept activations ---- */

static const char kept_config[] = "{\"train_micro_batch_size_per_gpu\": 64, \"optimizer\": {\"type\": \"AdamW\"},"
                                  " \"zero_optimization\": {\"stage\": 1, \"reduce_bucket_size\": 20000},"
                                  " \"dsc\": {\"device\": \"cuda\", \"threads\": 1, \"comm_timeout_s\": 60%s}}";

/* Counts lines about the choice, and copies the last one. */
typedef struct choice_lines {
    int count;
    char last[128];
} choice_lines;

static void look_for_choice(void *user, dsc_log_level level, const char *text)
{
    choice_lines *lines = user;
    if (strstr(text, "dsc.recompute") == NULL)
        return;
    lines->count++;
    snprintf(lines->last, sizeof lines->last, "%s", text);
}

static choice_lines said; /* by the last run */

/* Runs on two GPUs with `own` in "dsc". Returns the first GPU's planned bytes; -1: the plan does not fit. */
static int64_t planned_on_two(const char *own)
{
    char config[512];
    run_result result;
    said = (choice_lines) { 0 };
    snprintf(config, sizeof config, kept_config, own);
    run_world(&(run_options) { .world = 2,
                               .steps = 1,
                               .model = model,
                               .config = config,
                               .data = tiny_gpt_data(model, 1 << 20),
                               .log = { look_for_choice, &said },
                               .fault_rank = -1 },
              &result);
    assert_true(result.status == DSC_OK || result.status == DSC_ERR_NOFIT);
    return result.status == DSC_OK ? result.device_planned : -1;
}

/* The second GPU has a little more free memory than a run at "none" needs: the first one has room for "kept", and both
 * take "none". */
static void ranks_take_the_same_level(void **state)
{
    const dsc_device_ops *ops = NULL;
    dsc_alloc *alloc = NULL;
    dsc_device *device = NULL;
    dsc_device_props props;
    dsc_buf beside = { 0 };
    dsc_error err = DSC_ERROR_INIT;
    int32_t count = 0;
    assert_int_equal(dsc_device_find("cuda", &ops, &count, &err), DSC_OK);
    if (run_most_ranks(2) < 2 || count < 2)
        skip();
    const int64_t none = planned_on_two(", \"recompute\": \"none\""), kept = planned_on_two("");
    int64_t taken = -1;
    assert_int_equal(kept, planned_on_two(", \"recompute\": \"kept\""));
    assert_int_equal(said.count, 0); /* the user named it */
    assert_true(kept > none);
    assert_int_equal(dsc_alloc_open(&alloc, &err), DSC_OK);
    const dsc_device_options options = { .alloc = alloc, .threads = 1, .index = 1 };
    assert_int_equal(dsc_device_open(ops, &device, &options, &err), DSC_OK);
    for (int64_t left = none; taken < 0 && left < 3 * none; left += none / 50) {
        dsc_device_props_get(device, &props);
        assert_true(props.free_bytes > left);
        assert_int_equal(dsc_mem_open(device, DSC_TAG_SCRATCH, DSC_TIER_DEVICE, props.free_bytes - left, &beside, &err),
                         DSC_OK);
        taken = planned_on_two("");
        dsc_mem_close(device, &beside);
    }
    assert_int_equal(taken, none);
    assert_int_equal(said.count, 1);
    assert_string_equal(said.last, "dsc.recompute is not given: taking none");
    dsc_device_close(&device);
    dsc_alloc_close(&alloc);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_a_runs),           cmocka_unit_test(rows_of_what_is_in_host_memory_too),
        cmocka_unit_test(rows_of_packed_weights),    cmocka_unit_test(rows_of_a_copy_of_the_states),
        cmocka_unit_test(ranks_take_the_same_level),
    };
    model = tiny_gpt_open(&(tiny_gpt){ .vocab = 61, .sequence = 16, .heads = 2, .layers = 2 });
    const int failed = cmocka_run_group_tests_name("plans for GPUs that are not here", tests, NULL, NULL);
    dsc_model_close(&model);
    return failed;
}
