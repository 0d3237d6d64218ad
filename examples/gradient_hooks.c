/* gradient_hooks.c - functions of a program on gradients on their way between ranks. The gradient of each micro-batch
 * is clipped by its own norm before it is sent, as private training does. Noise could be added to the sum.
 *
 *     dsc-launch --num_gpus=2 examples/gradient_hooks TEXT [STEPS]     or alone
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dsc/hooks.h>

#define MOST 0.05 /* norm of a parameter's gradient of a micro-batch */

typedef struct facts {
    long long parts, clipped, sums; /* calls of this rank */
    double squares;                 /* norm of the slices of the step's sums, squared */
} facts;

static double norm_of(const float *values, int64_t count)
{
    double squares = 0;
    for (int64_t i = 0; i < count; i++)
        squares += (double)values[i] * (double)values[i];
    return sqrt(squares);
}

/* The values are those of all parameters of a module; each one is clipped by itself. */
static dsc_status clip_part(void *user, const dsc_gradient_info *info, float *values, int64_t count, dsc_error *err)
{
    facts *seen = user;
    (void)count, (void)err;
    seen->parts++;
    for (int32_t s = 0; s < info->span_count; s++) {
        const dsc_gradient_span *span = &info->spans[s];
        const double norm = norm_of(values + span->first, span->count);
        seen->clipped += norm > MOST;
        for (int64_t i = 0; norm > MOST && i < span->count; i++)
            values[span->first + i] *= (float)(MOST / norm);
    }
    return DSC_OK;
}

static dsc_status measure_sum(void *user, const dsc_gradient_info *info, float *values, int64_t count, dsc_error *err)
{
    facts *seen = user;
    const double norm = norm_of(values, count);
    (void)info, (void)err;
    seen->sums++;
    seen->squares += norm * norm;
    return DSC_OK;
}

static dsc_status train(dsc_engine *engine, int steps, dsc_error *err)
{
    facts seen = { 0 };
    dsc_gradient_hooks hooks = DSC_GRADIENT_HOOKS_INIT;
    hooks.user = &seen;
    hooks.before_send = clip_part;
    hooks.after_reduce = measure_sum;
    DSC_TRY(dsc_engine_set_gradient_hooks(engine, &hooks, err));
    for (int step = 0; step < steps; step++) {
        dsc_step_result result = DSC_STEP_RESULT_INIT;
        seen.squares = 0;
        DSC_TRY(dsc_engine_train_batch(engine, &result, err));
        if (dsc_engine_rank(engine) == 0)
            printf("step %lld  loss %.4f  norm %.4f  of this rank's slices %.4f\n", (long long)result.step, result.loss,
                   result.grad_norm, sqrt(seen.squares));
    }
    if (dsc_engine_rank(engine) == 0)
        printf("%lld parts, %lld gradients clipped, %lld sums\n", seen.parts, seen.clipped, seen.sums);
    return dsc_engine_set_gradient_hooks(engine, NULL, err); /* `seen` ends here */
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: %s TEXT [STEPS]\n", argv[0]);
        return 2;
    }
    char data[4200], text[1024];
    snprintf(data, sizeof data, "[\"%s\"]", argv[1]); /* a plain path; quotes in it would need escapes */
    const dsc_override override = { "dsc.data", data, "TEXT" };
    dsc_engine_options options = DSC_ENGINE_OPTIONS_INIT;
    options.config_text = "{ \"train_batch_size\": 8, \"train_micro_batch_size_per_gpu\": 2,"
                          "  \"optimizer\": { \"type\": \"AdamW\", \"params\": { \"lr\": 0.003 } },"
                          "  \"zero_optimization\": { \"stage\": 2 },"
                          "  \"dsc\": { \"model\": \"gpt2-nano\", \"seq_length\": 32, \"device\": \"cpu\" } }";
    options.overrides = &override;
    options.override_count = 1;
    dsc_engine *engine = NULL;
    dsc_error err = DSC_ERROR_INIT;
    dsc_status status = dsc_engine_open(&engine, &options, &err);
    if (status == DSC_OK)
        status = train(engine, argc > 2 ? atoi(argv[2]) : 10, &err);
    if (status != DSC_OK)
        fprintf(stderr, "%s\n", dsc_error_format(&err, text, sizeof text));
    dsc_engine_close(&engine);
    return dsc_status_exit_code(status);
}
