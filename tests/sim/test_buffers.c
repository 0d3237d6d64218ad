/* test_buffers.c - buffers of modules on GPUs: values, losses and states have the CPU's bits at any number of ranks.
 *
 * The model is made of CAST, ADD, ORDERED_REDUCE and copies, which are exact. Modules add a running mean to their
 * output, so a loss shows the values that the steps before it folded. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "kernels/device.h"
#include "tests/sim/cusim.h"
#include "tests/support/ckpt_world.h"
#include "tests/support/probe.h"
#include "tests/support/run_expect.h"

enum { STEPS = 3, WIDTH = 1003, SAMPLES = 2, MODULES = 3, PARTS = 4, KEPT = 37 };

/* ---- the model ---- */

static dsc_status cast(dsc_module_ctx *ctx, void *to, dsc_dtype to_dtype, const void *from, dsc_dtype from_dtype,
                       int64_t count, dsc_error *err)
{
    const dsc_cast_args args = {
        .to = to, .from = from, .to_dtype = to_dtype, .from_dtype = from_dtype, .count = count
    };
    return DSC_RUN((dsc_stream *)ctx->stream, CAST, &args, err);
}

static dsc_status add(dsc_module_ctx *ctx, float *to, const float *a, const float *b, dsc_error *err)
{
    const dsc_add_args args = { .to = to, .a = a, .b = b, .count = WIDTH };
    return DSC_RUN((dsc_stream *)ctx->stream, ADD, &args, err);
}

static dsc_status sum_samples(dsc_module_ctx *ctx, float *to, dsc_error *err)
{
    const dsc_ordered_reduce_args args = { .acc = to,
                                           .leaf = ctx->batch_data[0],
                                           .leaf_stride_bytes = WIDTH * 4,
                                           .grad_part_count = SAMPLES,
                                           .count = WIDTH,
                                           .leaf_dtype = DSC_F32,
                                           .wire_dtype = DSC_F32,
                                           .overwrite = true };
    return DSC_RUN((dsc_stream *)ctx->stream, ORDERED_REDUCE, &args, err);
}

static float *scratch(dsc_module_ctx *ctx, int which)
{
    return (float *)((char *)ctx->scratch + which * dsc_align_up(WIDTH * 4, 256));
}

/* A <- in + weight, which is the statistic too; then + the running mean. */
static dsc_status value(dsc_module_ctx *ctx, dsc_error *err)
{
    float *a = scratch(ctx, 0), *b = scratch(ctx, 1);
    if (ctx->in != NULL)
        DSC_TRY(cast(ctx, a, DSC_F32, ctx->in, ctx->dtype, WIDTH, err));
    else
        DSC_TRY(sum_samples(ctx, a, err));
    DSC_TRY(cast(ctx, b, DSC_F32, ctx->param[0], ctx->dtype, WIDTH, err));
    DSC_TRY(add(ctx, a, a, b, err));
    if (ctx->statistic != NULL)
        DSC_TRY(cast(ctx, ctx->statistic[0], DSC_F32, a, DSC_F32, WIDTH, err));
    CW_CHECK(ctx->statistic == NULL || (ctx->statistic[1] == NULL && ctx->statistic[2] == NULL));
    CW_CHECK(ctx->buffer[1] == NULL && ctx->buffer[2] != NULL);
    return add(ctx, a, a, ctx->buffer[0], err);
}

static dsc_status plan(const dsc_module *m, int64_t batch, dsc_dtype dtype, const dsc_plan_sink *sink,
                       dsc_module_plan *out, dsc_error *err)
{
    const bool last = (m->flags & DSC_MODULE_LOSS) != 0;
    const int64_t bytes = 2 * dsc_align_up(WIDTH * 4, 256);
    *out = (dsc_module_plan) { .out_elements = last ? 0 : WIDTH,
                               .saved_bytes = last ? 0 : 256, /* so that a forward runs again */
                               .forward_scratch_bytes = bytes,
                               .backward_scratch_bytes = bytes,
                               .forward_flops = 1,
                               .backward_flops = 1 };
    return DSC_OK;
}

static dsc_status forward(const dsc_module *m, dsc_module_ctx *ctx, dsc_error *err)
{
    DSC_TRY(value(ctx, err));
    return cast(ctx, ctx->out, ctx->dtype, scratch(ctx, 0), DSC_F32, WIDTH, err);
}

static dsc_status backward(const dsc_module *m, dsc_module_ctx *ctx, dsc_error *err)
{
    float *a = scratch(ctx, 0);
    CW_CHECK(ctx->buffer != NULL && ctx->statistic == NULL);
    DSC_TRY(cast(ctx, a, DSC_F32, ctx->d_out, ctx->dtype, WIDTH, err));
    DSC_TRY(sum_samples(ctx, ctx->grad[0], err));
    DSC_TRY(add(ctx, ctx->grad[0], ctx->grad[0], a, err));
    DSC_TRY(add(ctx, ctx->grad[0], ctx->grad[0], ctx->buffer[0], err));
    return ctx->d_in == NULL ? DSC_OK : cast(ctx, ctx->d_in, ctx->dtype, ctx->grad[0], DSC_F32, WIDTH, err);
}

static dsc_status loss_forward(const dsc_module *m, dsc_module_ctx *ctx, dsc_error *err)
{
    float *a = scratch(ctx, 0);
    DSC_TRY(value(ctx, err));
    DSC_TRY(cast(ctx, ctx->losses, DSC_F32, a, DSC_F32, SAMPLES, err));
    if (!ctx->save)
        return DSC_OK;
    DSC_TRY(cast(ctx, ctx->grad[0], DSC_F32, a, DSC_F32, WIDTH, err));
    return cast(ctx, ctx->d_in, ctx->dtype, a, DSC_F32, WIDTH, err);
}

#define WEIGHT(text)                                                                                                   \
    {                                                                                                                  \
        .name = text, .dim_count = 1, .dim = { WIDTH }, .init = DSC_INIT_NORMAL, .init_std = 0.5f, .trainable = true,  \
        .shared_module = -1, .shared_param = -1                                                                        \
    }
#define BUFFERS(n)                                                                                                     \
    {                                                                                                                  \
        { .name = n ".mean", .count = WIDTH, .init = 0.125, .momentum = 0.1 },                                         \
            { .name = n ".steps", .kind = DSC_BUFFER_STEPS, .count = 1 },                                              \
        {                                                                                                              \
            .name = n ".kept", .count = KEPT, .init = 3, .frozen = true                                                \
        }                                                                                                              \
    }
#define MODULE(index, text, kind, of, back)                                                                            \
    {                                                                                                                  \
        .struct_bytes = sizeof(dsc_module), .flags = kind, .name = text, .param_count = 1, .params = &specs[index],    \
        .plan = plan, .forward = of, .backward = back, .buffer_count = 3, .buffers = buffers[index]                    \
    }
static const dsc_param_spec specs[MODULES] = { WEIGHT("0.weight"), WEIGHT("1.weight"), WEIGHT("2.weight") };
static const dsc_buffer_spec buffers[MODULES][3] = { BUFFERS("0"), BUFFERS("1"), BUFFERS("2") };
static const dsc_module modules[MODULES] = { MODULE(0, "0", 0, forward, backward), MODULE(1, "1", 0, forward, backward),
                                             MODULE(2, "2", DSC_MODULE_LOSS, loss_forward, NULL) };
static const dsc_batch_spec batch_spec = { .name = "x", .dtype = DSC_F32, .dim_count = 1, .dim = { WIDTH } };
static const dsc_model model = { .struct_bytes = sizeof(dsc_model),
                                 .name = "buffers",
                                 .module_count = MODULES,
                                 .modules = modules,
                                 .batch_count = 1,
                                 .batch = &batch_spec,
                                 .losses_per_sample = 1,
                                 .hidden_size = WIDTH };

static dsc_status fill(void *user, int64_t first_sample, int64_t count, void *const *data, dsc_error *err)
{
    for (int64_t i = 0; i < count * WIDTH; i++) {
        const uint64_t x = ((uint64_t)(first_sample * WIDTH + i) + 1) * 0x9e3779b97f4a7c15u;
        ((float *)data[0])[i] = (float)(int64_t)((x ^ (x >> 29)) >> 40 & 0xffffff) / 8388608.0f - 1.0f;
    }
    return DSC_OK;
}

/* ---- runs ---- */

typedef struct variant {
    const char *device;
    int32_t world, stage;
    const char *own, *zero; /* members that begin with a comma, or "" */
    const char *save, *load;
    int64_t steps;
} variant;

static struct {
    float mean[MODULES][WIDTH];
    int64_t steps[MODULES];
} values;          /* of the last run on a CPU */
static bool keeps; /* the run is that one */

static dsc_status expect_values(dsc_engine *engine, int32_t rank, dsc_error *err)
{
    float mean[WIDTH], kept[KEPT];
    int64_t steps;
    for (int32_t m = 0; m < MODULES; m++) {
        DSC_TRY(dsc_probe_buffer(engine, buffers[m][0].name, mean, err));
        DSC_TRY(dsc_probe_buffer(engine, buffers[m][1].name, &steps, err));
        DSC_TRY(dsc_probe_buffer(engine, buffers[m][2].name, kept, err));
        CW_CHECK(kept[0] == 3 && kept[KEPT - 1] == 3);
        CW_CHECK(steps == STEPS * PARTS);
        if (keeps)
            memcpy(values.mean[m], mean, sizeof mean);
        if (memcmp(values.mean[m], mean, sizeof mean) != 0)
            return DSC_FAIL(err, DSC_ERR_INTERNAL, buffers[m][0].name, "is not the CPU's, on rank %d", (int)rank);
    }
    return DSC_OK;
}

static dsc_status before(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    const variant *v = user;
    if (v->load == NULL)
        return DSC_OK;
    DSC_TRY(dsc_engine_load(engine, v->load, err));
    return expect_values(engine, rank, err);
}

static dsc_status after(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    const variant *v = user;
    if (v->load != NULL)
        return DSC_OK;
    DSC_TRY(expect_values(engine, rank, err));
    return v->save != NULL ? dsc_engine_save(engine, v->save, err) : DSC_OK;
}

static void run(const variant *v, run_result *out)
{
    char config[1024];
    snprintf(config, sizeof config,
             "{\"train_batch_size\": %d, \"train_micro_batch_size_per_gpu\": %d, \"bf16\": {\"enabled\": true},"
             " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01}},"
             " \"zero_optimization\": {\"stage\": %d%s}, \"dsc\": {\"threads\": 1, \"device\": \"%s\","
             " \"comm_timeout_s\": 60, \"reproducible\": \"world_size\"%s}}",
             SAMPLES * PARTS, SAMPLES, (int)v->stage, v->zero, v->device, v->own);
    run_well(&(run_options) { .world = v->world,
                              .steps = v->steps,
                              .model = &model,
                              .config = config,
                              .data = { fill, NULL, 1 << 20 },
                              .before = before,
                              .after = after,
                              .user = (void *)(uintptr_t)v,
                              .fault_rank = -1 },
             out);
}

static void run_cpu(run_result *out)
{
    keeps = true;
    run(&(variant) { "cpu", 1, 0, "", "", NULL, NULL, STEPS }, out);
    keeps = false;
    assert_true(out->loss[0] != out->loss[STEPS - 1]);
}

static void gpus_have_the_bits_of_a_cpu(void **state)
{
    static const struct {
        int32_t world, stage;
        const char *own, *zero;
    } all[] = {
        { 1, 0, ", \"recompute\": \"none\"", "" },
        { 1, 1, ", \"recompute\": \"full\", \"cuda_graphs\": true", "" },
        { 2, 1, ", \"micro_batches_together\": 2", ", \"overlap_comm\": true" },
        { 2, 2, ", \"recompute\": \"full\"", ", \"offload_optimizer\": {\"device\": \"cpu\"}" },
        { 2, 3, ", \"quota\": [3, 1], \"cuda_graphs\": true", "" },
        { 3, 2, ", \"quota\": \"even\"", ", \"overlap_comm\": true" },
        { 3, 3, ", \"quota\": [1, 1, 2], \"recompute\": \"full\"", ", \"overlap_comm\": true" },
        { 4, 3, ", \"recompute\": \"full\"", ", \"overlap_comm\": true" },
        { 4, 0, ", \"cuda_graphs\": true", "" },
    };
    run_result cpu, gpu;
    run_cpu(&cpu);
    for (size_t i = 0; i < DSC_COUNT(all) && all[i].world <= run_most_ranks(4); i++) {
        cusim_set_schedule(i, CUSIM_RANDOM);
        (void)cusim_graphs_launched();
        run(&(variant) { "cuda", all[i].world, all[i].stage, all[i].own, all[i].zero, NULL, NULL, STEPS }, &gpu);
        run_expect_same(&cpu, &gpu);
        assert_true(!cusim_present() || (cusim_graphs_launched() > 0) == (strstr(all[i].own, "graphs") != NULL));
        assert_int_equal(gpu.alloc_calls_after_first, gpu.alloc_calls_at_end);
        assert_true(gpu.device_peak <= gpu.device_planned + gpu.device_planned / 100);
    }
}

/* A checkpoint of two GPUs, loaded by one and by a CPU: its values are those that were saved. */
static void checkpoints_go_between_gpus_and_a_cpu(void **state)
{
    run_result out;
    char *const dir = cw_memory_tmp_open();
    const int32_t world = run_most_ranks(2);
    run_cpu(&out);
    run(&(variant) { "cuda", world, 1, "", "", dir, NULL, STEPS }, &out);
    run(&(variant) { "cuda", 1, 0, "", "", NULL, dir, 1 }, &out);
    run(&(variant) { "cpu", 1, 2, "", "", NULL, dir, 1 }, &out);
    cw_tmp_close(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpus_have_the_bits_of_a_cpu),
        cmocka_unit_test(checkpoints_go_between_gpus_and_a_cpu),
    };
    return cmocka_run_group_tests_name("buffers on GPUs", tests, NULL, NULL);
}
