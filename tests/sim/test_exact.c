/* test_exact.c - whole training runs whose every operation is exact: GPUs give the CPU's bits.
 *
 * The model is made of CAST, ADD, ORDERED_REDUCE and copies only, so activations, losses and gradients are the same
 * numbers on any device. The rest is the engine's: casts of parameters and parts, ordered reductions, sums of squares,
 * the clip coefficient, the optimizer, gathers. Losses, norms, masters and moments after several steps must agree
 * bit by bit, at every stage, on 8 GPUs in any order of their work. On real GPUs (tests/gpu/real.c)
 * DSC_TEST_RANKS_MAX sets the number of ranks. SPDX-License-Identifier: Apache-2.0 */
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
#include "tests/support/probe.h"
#include "tests/support/run_expect.h"

#define STEPS 4
#define WIDTH 5005 /* no multiple of a vector, a chunk or a slice */
#define ROWS 65    /* rows of a weight as a matrix, which matter to Muon only */
#define SMALL 37   /* elements of the parameters without decay */
#define MODULES 4
#define SAMPLES 2 /* of a micro-batch */

/* ---- the model: module m adds its weight to what comes in; gradients are exact functions of what is at hand ---- */

typedef enum vectors { VECTOR_A, VECTOR_B, VECTOR_COUNT } vectors; /* fp32 vectors in the scratch */

static float *vector(dsc_module_ctx *ctx, vectors which)
{
    return (float *)((char *)ctx->scratch + which * dsc_align_up(WIDTH * 4, 256));
}

static dsc_status cast(dsc_module_ctx *ctx, void *to, dsc_dtype to_dtype, const void *from, dsc_dtype from_dtype,
                       int64_t count, dsc_error *err)
{
    const dsc_cast_args args = {
        .to = to, .from = from, .to_dtype = to_dtype, .from_dtype = from_dtype, .count = count
    };
    return DSC_RUN((dsc_stream *)ctx->stream, CAST, &args, err);
}

static dsc_status add(dsc_module_ctx *ctx, float *to, const float *a, const float *b, int64_t count, dsc_error *err)
{
    const dsc_add_args args = { .to = to, .a = a, .b = b, .count = count };
    return DSC_RUN((dsc_stream *)ctx->stream, ADD, &args, err);
}

/* to <- the sum of the micro-batch's samples */
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

/* A <- in + weight, and + the small parameter at its start */
static dsc_status value(dsc_module_ctx *ctx, dsc_error *err)
{
    float *a = vector(ctx, VECTOR_A), *b = vector(ctx, VECTOR_B);
    if (ctx->in != NULL)
        DSC_TRY(cast(ctx, a, DSC_F32, ctx->in, ctx->dtype, WIDTH, err));
    else
        DSC_TRY(sum_samples(ctx, a, err));
    DSC_TRY(cast(ctx, b, DSC_F32, ctx->param[0], ctx->dtype, WIDTH, err));
    DSC_TRY(add(ctx, a, a, b, WIDTH, err));
    DSC_TRY(cast(ctx, b, DSC_F32, ctx->param[1], ctx->dtype, SMALL, err));
    return add(ctx, a, a, b, SMALL, err);
}

static dsc_status plan(const dsc_module *m, int64_t batch, dsc_dtype dtype, const dsc_plan_sink *sink,
                       dsc_module_plan *out, dsc_error *err)
{
    const int64_t scratch = VECTOR_COUNT * dsc_align_up(WIDTH * 4, 256);
    *out = (dsc_module_plan){ .out_elements = (m->flags & DSC_MODULE_LOSS) != 0 ? 0 : WIDTH,
                              .forward_scratch_bytes = scratch, .backward_scratch_bytes = scratch,
                              .forward_flops = 1, .backward_flops = 1 };
    return DSC_OK;
}

static dsc_status forward(const dsc_module *m, dsc_module_ctx *ctx, dsc_error *err)
{
    DSC_TRY(value(ctx, err));
    return cast(ctx, ctx->out, ctx->dtype, vector(ctx, VECTOR_A), DSC_F32, WIDTH, err);
}

/* The weight's gradient differs from module to module and has bits that bf16 has not. */
static dsc_status backward(const dsc_module *m, dsc_module_ctx *ctx, dsc_error *err)
{
    float *a = vector(ctx, VECTOR_A);
    DSC_TRY(cast(ctx, a, DSC_F32, ctx->d_out, ctx->dtype, WIDTH, err));
    DSC_TRY(sum_samples(ctx, ctx->grad[0], err));
    DSC_TRY(add(ctx, ctx->grad[0], ctx->grad[0], a, WIDTH, err));
    DSC_TRY(cast(ctx, ctx->grad[1], DSC_F32, a, DSC_F32, SMALL, err));
    return ctx->d_in == NULL ? DSC_OK : cast(ctx, ctx->d_in, ctx->dtype, ctx->grad[0], DSC_F32, WIDTH, err);
}

/* Also uses the first module's weight: a tied parameter. The "losses" are numbers of the sum. */
static dsc_status loss_forward(const dsc_module *m, dsc_module_ctx *ctx, dsc_error *err)
{
    float *a = vector(ctx, VECTOR_A), *b = vector(ctx, VECTOR_B);
    DSC_TRY(value(ctx, err));
    DSC_TRY(cast(ctx, b, DSC_F32, ctx->param[2], ctx->dtype, WIDTH, err));
    DSC_TRY(add(ctx, b, a, b, WIDTH, err));
    DSC_TRY(cast(ctx, ctx->losses, DSC_F32, b, DSC_F32, SAMPLES, err));
    if (!ctx->save)
        return DSC_OK;
    DSC_TRY(cast(ctx, ctx->grad[0], DSC_F32, b, DSC_F32, WIDTH, err));
    DSC_TRY(cast(ctx, ctx->grad[1], DSC_F32, b, DSC_F32, SMALL, err));
    DSC_TRY(cast(ctx, ctx->grad[2], DSC_F32, a, DSC_F32, WIDTH, err));
    return cast(ctx, ctx->d_in, ctx->dtype, b, DSC_F32, WIDTH, err);
}

static const dsc_batch_spec batch_spec = { .name = "x", .dtype = DSC_F32, .dim_count = 1, .dim = { WIDTH } };

#define WEIGHT(text) \
    { .name = text, .dim_count = 2, .dim = { ROWS, WIDTH / ROWS }, .init = DSC_INIT_NORMAL, .init_std = 0.5f, \
      .trainable = true, .decay = true, .shared_module = -1, .shared_param = -1 }
#define BIAS(text) \
    { .name = text, .dim_count = 1, .dim = { SMALL }, .init = DSC_INIT_NORMAL, .init_std = 0.5f, .trainable = true, \
      .shared_module = -1, .shared_param = -1 }
static const dsc_param_spec specs[MODULES][3] = {
    { WEIGHT("0.weight"), BIAS("0.bias") },
    { WEIGHT("1.weight"), BIAS("1.bias") },
    { WEIGHT("2.weight"), BIAS("2.bias") },
    { WEIGHT("3.weight"),
      BIAS("3.bias"),
      { .name = "0.weight", .dim_count = 2, .dim = { ROWS, WIDTH / ROWS }, .init = DSC_INIT_NORMAL, .init_std = 0.5f,
        .trainable = true, .decay = true, .shared_module = 0, .shared_param = 0 } },
};

#define MODULE(index, text) \
    { .struct_bytes = sizeof(dsc_module), .name = text, .param_count = 2, .params = specs[index], .plan = plan, \
      .forward = forward, .backward = backward }
static const dsc_module modules[MODULES] = {
    MODULE(0, "0"), MODULE(1, "1"), MODULE(2, "2"),
    { .struct_bytes = sizeof(dsc_module), .flags = DSC_MODULE_LOSS, .name = "3", .param_count = 3,
      .params = specs[3], .plan = plan, .forward = loss_forward },
};
static const dsc_model model = { .struct_bytes = sizeof(dsc_model), .name = "exact", .module_count = MODULES,
                                 .modules = modules, .batch_count = 1, .batch = &batch_spec,
                                 .losses_per_sample = 1, .hidden_size = WIDTH };

static dsc_status fill(void *user, int64_t first_sample, int64_t count, void *const *data, dsc_error *err)
{
    for (int64_t i = 0; i < count * WIDTH; i++) {
        uint64_t x = ((uint64_t)(first_sample * WIDTH + i) + 1) * 0x9e3779b97f4a7c15u;
        x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9u;
        ((float *)data[0])[i] = (float)(int64_t)(x >> 40) / 8388608.0f - 1.0f;
    }
    return DSC_OK;
}

/* ---- runs ---- */

typedef struct variant {
    const char *device;
    int32_t world, stage;
    bool bf16, overlap;
    const char *own, *zero; /* further members of "dsc" and of zero_optimization, each preceded by a comma */
    const char *optimizer;
    dsc_status (*after)(dsc_engine *engine, int32_t rank, void *user, dsc_error *err); /* the last step; or NULL */
} variant;

#define ADAMW "{\"type\": \"AdamW\", \"params\": {\"lr\": 0.01, \"weight_decay\": 0.1}}"

static void run(const variant *v, run_result *out)
{
    char config[1024];
    snprintf(config, sizeof config,
             "{\"train_micro_batch_size_per_gpu\": %d, \"gradient_accumulation_steps\": 3, \"gradient_clipping\": 0.5,"
             " \"optimizer\": %s,"
             " \"bf16\": {\"enabled\": %s}, \"zero_optimization\": {\"stage\": %d, \"overlap_comm\": %s,"
             " \"reduce_bucket_size\": 3000%s},"
             " \"dsc\": {\"threads\": 1, \"device\": \"%s\", \"comm_timeout_s\": 60%s}}",
             SAMPLES, v->optimizer, v->bf16 ? "true" : "false", (int)v->stage, v->overlap ? "true" : "false", v->zero,
             v->device, v->own);
    run_well(&(run_options){ .world = v->world, .steps = STEPS, .model = &model, .config = config,
                             .data = { fill, NULL, 1 << 20 }, .after = v->after, .fault_rank = -1 }, out);
}

/* Clipping is at work, and steps change something. */
static void expect_sense(const run_result *r)
{
    for (int s = 0; s < STEPS; s++)
        assert_true(r->norm[s] > 0.5);
    assert_true(r->loss[0] != r->loss[STEPS - 1]);
}

enum { EVERY_STAGE = 15 }; /* a bit for each of the stages 0 to 3 */

static void compare_with(const char *optimizer, int32_t world, bool bf16, const char *own, int stages)
{
    run_result cpu, gpu;
    run(&(variant){ "cpu", world, 1, bf16, false, own, "", optimizer, NULL }, &cpu);
    expect_sense(&cpu);
    for (int32_t stage = 0; stage <= 3; stage++) {
        if ((stages >> stage & 1) == 0)
            continue;
        cusim_set_schedule((uint64_t)(world * 4 + stage), stage == 1   ? CUSIM_COMM_FIRST
                                                          : stage == 2 ? CUSIM_COMPUTE_FIRST
                                                                       : CUSIM_RANDOM);
        run(&(variant){ "cuda", world, stage, bf16, stage != 0, own, "", optimizer, NULL }, &gpu);
        run_expect_same(&cpu, &gpu);
    }
}

static void compare(int32_t world, bool bf16, const char *own) { compare_with(ADAMW, world, bf16, own, EVERY_STAGE); }

static void one_gpu(void **state)
{
    compare(1, false, "");
    compare(1, true, "");
}

static void three_gpus(void **state)
{
    if (run_most_ranks(8) < 3)
        skip();
    compare(3, false, "");
    compare(3, true, "");
    compare(3, true, ", \"moments\": \"bf16\"");
}

static void eight_gpus(void **state)
{
    if (run_most_ranks(8) < 8)
        skip();
    compare(8, false, "");
    compare(8, true, "");
}

/* Leaves in a counter: the same bits for any number of ranks that divides the batch, on GPUs and CPUs alike. */
static void any_number_of_gpus(void **state)
{
    const char *own = ", \"reproducible\": \"world_size\"";
    if (run_most_ranks(8) < 4)
        skip();
    compare(4, true, own);
}

/* Optimizers of whole tensors have steps of their own at each stage. Of the others, which update elements alone, and of
 * one rank, which has no slices, the stages take turns by day. */
static void other_optimizers(void **state)
{
    const bool night = getenv("DSC_TEST_NIGHT") != NULL;
    static const char *const optimizers[] = {
        "{\"type\": \"SGD\", \"params\": {\"lr\": 0.05, \"weight_decay\": 0.1}}",
        "{\"type\": \"SGD\", \"params\": {\"lr\": 0.05, \"momentum\": 0.9, \"nesterov\": true, \"weight_decay\": 0.1}}",
        "{\"type\": \"Adagrad\", \"params\": {\"lr\": 0.02, \"weight_decay\": 0.01}}",
        "{\"type\": \"Lion\", \"params\": {\"lr\": 0.003, \"weight_decay\": 0.1}}",
        "{\"type\": \"RMSprop\", \"params\": {\"lr\": 0.003, \"momentum\": 0.9, \"weight_decay\": 0.01}}",
        "{\"type\": \"RMSprop\", \"params\": {\"lr\": 0.003, \"momentum\": 0.9, \"centered\": true}}",
        /* of whole tensors */
        "{\"type\": \"LARS\", \"params\": {\"lr\": 5, \"weight_decay\": 0.1}}",
        "{\"type\": \"Lamb\", \"params\": {\"lr\": 0.01, \"weight_decay\": 0.1}}",
        "{\"type\": \"Muon\", \"params\": {\"lr\": 0.01, \"weight_decay\": 0.1, \"ns_steps\": 2}}",
        "{\"type\": \"Adafactor\", \"params\": {\"lr\": 0.02, \"weight_decay\": 0.1}}",
        "{\"type\": \"Adafactor\", \"params\": {\"lr\": 0.02, \"beta1\": 0.9, \"relative_step\": false}}",
    };
    const size_t of_elements = 6;
    for (size_t o = 0; o < DSC_COUNT(optimizers); o++) {
        const int32_t world = run_most_ranks(8) < 3 ? 1 : 3;
        compare_with(optimizers[o], 1, false, "", night ? EVERY_STAGE : 1 << o % 4);
        compare_with(optimizers[o], world, true, o % 2 == 0 ? "" : ", \"moments\": \"bf16\"",
                     night || o >= of_elements ? EVERY_STAGE : 1 << (o + 1) % 4 | 1 << (o + 3) % 4);
    }
}

/* The first part of a save. */
static dsc_status settle_signs(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    DSC_TRY(dsc_probe_settle(engine, err));
    return dsc_zero_settle_signs(dsc_probe_zero(engine), 0.9, err);
}

/* Signs, sums and compression errors of 1-bit Adam, 0/1 Adam and 1-bit LAMB on a GPU equal the CPU's. Local steps and
 * tensors' factors are equal too. */
static void signs_on_the_wire(void **state)
{
    static const char *const optimizers[] = {
        "{\"type\": \"OneBitAdam\", \"params\": {\"lr\": 0.01, \"betas\": [0.9, 0.9], \"weight_decay\": 0.1,"
        " \"freeze_step\": 2}}",
        "{\"type\": \"ZeroOneAdam\", \"params\": {\"lr\": 0.01, \"betas\": [0.9, 0.9], \"weight_decay\": 0.1,"
        " \"var_freeze_step\": 2, \"var_update_scaler\": 1, \"local_step_scaler\": 1}}",
        "{\"type\": \"OneBitLamb\", \"params\": {\"lr\": 0.01, \"betas\": [0.9, 0.9], \"weight_decay\": 0.1,"
        " \"freeze_step\": 2}}",
    };
    static const int32_t worlds[] = { 1, 3, 8 };
    run_result cpu, gpu;
    const size_t kinds = DSC_COUNT(optimizers);
    for (size_t k = 0; k < kinds * DSC_COUNT(worlds) && worlds[k / kinds] <= run_most_ranks(8); k++) {
        const size_t w = k / kinds;
        variant v = { "cpu", worlds[w], 0, (w + k) % 2 == 0, false, "", "", optimizers[k % kinds], settle_signs };
        run(&v, &cpu);
        expect_sense(&cpu);
        v.device = "cuda";
        v.overlap = true;
        cusim_set_schedule((uint64_t)w, CUSIM_RANDOM);
        run(&v, &gpu);
        run_expect_same(&cpu, &gpu);
    }
}

/* ZeRO++'s weights and gradients: what is packed on a GPU is what a CPU packs. A group is several chunks. */
static void packed_on_the_wire(void **state)
{
    run_result cpu, gpu;
    variant v = { "cpu", 3, 3, true, false, "",
                  ", \"zero_quantized_weights\": true, \"zero_quantized_gradients\": true"
                  ", \"allgather_bucket_size\": 3000", ADAMW, NULL };
    if (run_most_ranks(8) < 3)
        skip();
    for (int bf16 = 0; bf16 < 2; bf16++) {
        v.bf16 = bf16 != 0;
        v.device = "cpu";
        v.overlap = false;
        run(&v, &cpu);
        v.device = "cuda";
        v.overlap = true;
        cusim_set_schedule((uint64_t)bf16, CUSIM_RANDOM);
        run(&v, &gpu);
        run_expect_same(&cpu, &gpu);
    }
}

/* Two communicators on one stream, and parts that are kept while windows come and go. */
static void kept_among_neighbours(void **state)
{
    run_result cpu, gpu;
    variant v = { "cpu", 4, 3, true, false, "", "", ADAMW, NULL };
    if (run_most_ranks(8) < 4)
        skip();
    run(&v, &cpu);
    v.device = "cuda";
    for (int overlap = 0; overlap < 2; overlap++) {
        v.overlap = overlap != 0;
        v.zero = overlap == 0 ? ", \"zero_hpz_partition_size\": 2"
                              : ", \"zero_hpz_partition_size\": 2, \"offload_param\": {\"device\": \"cpu\"}";
        cusim_set_schedule((uint64_t)overlap, CUSIM_RANDOM);
        run(&v, &gpu);
        run_expect_same(&cpu, &gpu);
    }
}

/* Groups of two with a copy of the states each, whose sums cross groups on a third communicator. */
static void copies_of_the_states(void **state)
{
    run_result cpu, gpu;
    variant v = { "cpu", 4, 3, true, false, "", ", \"mics_shard_size\": 2", ADAMW, NULL };
    if (run_most_ranks(8) < 4)
        skip();
    run(&v, &cpu);
    v.device = "cuda";
    for (int way = 0; way < 3; way++) {
        v.overlap = way != 0;
        v.zero = way < 2 ? ", \"mics_shard_size\": 2"
                         : ", \"mics_shard_size\": 2, \"offload_optimizer\": {\"device\": \"cpu\"},"
                           " \"offload_param\": {\"device\": \"cpu\"}";
        cusim_set_schedule((uint64_t)way, CUSIM_RANDOM);
        run(&v, &gpu);
        run_expect_same(&cpu, &gpu);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_gpu),
        cmocka_unit_test(three_gpus),
        cmocka_unit_test(eight_gpus),
        cmocka_unit_test(any_number_of_gpus),
        cmocka_unit_test(packed_on_the_wire),
        cmocka_unit_test(kept_among_neighbours),
        cmocka_unit_test(copies_of_the_states),
        cmocka_unit_test(other_optimizers),
        cmocka_unit_test(signs_on_the_wire),
    };
    return cmocka_run_group_tests_name("exact training on simulated GPUs", tests, NULL, NULL);
}
