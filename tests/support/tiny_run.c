/* tiny_run.c - see tiny_run.h. SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/tiny_run.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/tiny_gpt.h"

/* Measuring products would take most of these short runs, so only those of few ranks do. */
static void write_config(const tiny_variant *v, char *config, size_t config_bytes)
{
    snprintf(config, config_bytes,
             "{\"train_micro_batch_size_per_gpu\": %d, \"gradient_accumulation_steps\": %d,"
             " \"gradient_clipping\": %g,"
             " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": %g, \"weight_decay\": 0.1}},"
             " \"bf16\": {\"enabled\": %s}, \"zero_optimization\": {\"stage\": %d, \"overlap_comm\": %s,"
             " \"reduce_bucket_size\": 20000},"
             " \"dsc\": {\"threads\": 1, \"device\": \"%s\", \"comm_timeout_s\": 60, \"recompute\": \"%s\","
             " \"gemm_plans\": \"%s\"%s}}",
             TINY_MICRO_BATCH, (int)v->accumulation, TINY_CLIP, TINY_RATE, v->bf16 ? "true" : "false", (int)v->stage,
             v->overlap ? "true" : "false", v->device, dsc_recompute_text(v->recompute),
             v->world > 2 ? "first" : "same_bits", v->own != NULL ? v->own : "");
}

void tiny_run(const dsc_model *model, const tiny_variant *v, const run_options *base, run_result *out)
{
    char config[1024];
    run_options options = *base;
    write_config(v, config, sizeof config);
    options.world = v->world;
    options.steps = options.steps != 0 ? options.steps : TINY_STEPS;
    options.model = model;
    options.config = config;
    if (options.data.fill == NULL)
        options.data = tiny_gpt_data(model, 1 << 20);
    options.fault_rank = -1;
    run_well(&options, out);
}

/* How far two correct devices may be apart.
 *
 * A GPT's loss depends on a chain of 21 results: the embedding, 9 results in each of 2 layers, the last norm and the
 * logits. A layer has the norm, the projection to q, k and v, the attention's weights, its output and the output's
 * projection. Then come the norm, the two products around GELU, and GELU itself. Each result is rounded on both
 * devices, in bf16 to 2^-9 of itself. In fp32 the sum of up to K = 256 terms counts more: sqrt(K) * 2^-24 for roundings
 * of both signs. Such errors add as squares, so logits of the order of 1 differ by e = sqrt(2 * 21) of that unit.
 * A gradient also passes the way back: sqrt(2) e. The mean over the n tokens with a loss, and the norm relative to
 * itself, differ by a sqrt(n)-th.
 *
 * AdamW's first steps have the size of the rate for any gradient. An element whose gradient is smaller than its error
 * may move the other way: a share of sqrt(2) e of the masters, by twice the rate. (Moments, another two thirds of the
 * states, are smaller by far.) Such gradients are nearly 0, so losses hardly change. Measured over 4 steps and 1 to
 * 8 ranks: a fifth of these bounds or less. Models with a few more results a block have the same bounds.
 *
 * ReLU has a step in its slope. Inputs of the order of 1 with such an error lie on different sides of 0 in a share of
 * e / pi, or 2 e / pi of those above 0. Their part of a gradient is present or absent as a whole, so the root of that
 * share comes on top. In fp32 the share is 0. */
typedef struct bounds { double loss, norm, state; } bounds;

static bool has_relu(const dsc_model *model)
{
    return model->config_json != NULL && strstr(model->config_json, "\"relu\"") != NULL;
}

static bounds explained(const dsc_model *model, const tiny_variant *v)
{
    const double unit = v->bf16 ? 0x1p-9 : 16 * 0x1p-24, e = sqrt(2 * 21) * unit;
    const double tokens = (double)v->world * v->accumulation * TINY_MICRO_BATCH * (double)model->losses_per_sample;
    /* Gradients of adapters are products with a factor that begins at 0, so that their errors weigh more. */
    const double results = model->adapter_json != NULL ? 2 * sqrt(2) : sqrt(2);
    const double gradient = results * e + (v->bf16 && has_relu(model) ? sqrt(2 * e / 3.1416) : 0);
    return (bounds){ e / sqrt(tokens), gradient / sqrt(tokens), 2 * TINY_RATE * gradient / 3 };
}

void tiny_expect_near(const dsc_model *model, const tiny_variant *v, const run_result *a, const run_result *b)
{
    const bounds most = explained(model, v);
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

void tiny_free_states(run_result *r)
{
    free(r->state);
    r->state = NULL;
}

void tiny_run_beside_the_cpu(const dsc_model *model, const tiny_variant *v, int64_t steps, run_result *gpu)
{
    run_result cpu;
    tiny_variant on_cpu = *v;
    on_cpu.device = "cpu";
    tiny_run(model, &on_cpu, &(run_options){ .steps = steps, .take_states = true }, &cpu);
    tiny_run(model, v, &(run_options){ .steps = steps, .take_states = true }, gpu);
    tiny_expect_near(model, v, &cpu, gpu);
    tiny_free_states(&cpu);
}

void tiny_run_near_the_cpu(const dsc_model *model, const tiny_variant *v, int64_t steps, run_result *gpu)
{
    tiny_run_beside_the_cpu(model, v, steps, gpu);
    for (int64_t s = 0; s < gpu->steps; s++)
        assert_true(gpu->norm[s] > TINY_CLIP); /* clipping is at work */
    assert_true(gpu->loss[gpu->steps - 1] < gpu->loss[0]);
}

void tiny_stages_agree(const dsc_model *model, const char *device, int32_t world, bool bf16)
{
    run_result first, other;
    tiny_run(model, &(tiny_variant){ device, world, 0, 2, bf16, false, DSC_RECOMPUTE_NONE, NULL },
             &(run_options){ 0 }, &first);
    for (int32_t stage = 1; stage <= 3; stage++) {
        const dsc_recompute recompute = stage == 1   ? DSC_RECOMPUTE_KEPT
                                        : stage == 2 ? DSC_RECOMPUTE_FULL
                                                     : DSC_RECOMPUTE_SELECTIVE;
        tiny_run(model, &(tiny_variant){ device, world, stage, 2, bf16, stage != 2, recompute, NULL },
                 &(run_options){ 0 }, &other);
        run_expect_same(&first, &other);
    }
}
