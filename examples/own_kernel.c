/* own_kernel.c - shards a hand-written model: two dense layers that learn sin(x), with ZeRO stage 3, in plain C.
 *
 * A model is a table of modules; each declares its parameters and writes its forward and backward in loops over the
 * buffers it is given. Sharding, accumulation, clipping, AdamW and checkpoints come from the engine. dsc-launch
 * --num_gpus=2 examples/own_kernel     or alone     SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>

#include <dsc/dsc.h>

enum { WIDTH = 64 };

/* hidden[b, j] = tanh(x[b] w[j] + bias[j]) */
static dsc_status hidden_plan(const dsc_module *m, int64_t batch, dsc_dtype dtype, const dsc_plan_sink *sink,
                              dsc_module_plan *out, dsc_error *err)
{
    (void)m, (void)dtype, (void)sink, (void)err;
    *out = (dsc_module_plan) { .out_elements = batch * WIDTH,
                               .saved_bytes = batch * WIDTH * 4,
                               .forward_flops = 2.0 * (double)batch * WIDTH,
                               .backward_flops = 4.0 * (double)batch * WIDTH };
    return DSC_OK;
}

static dsc_status hidden_forward(const dsc_module *m, dsc_module_ctx *ctx, dsc_error *err)
{
    (void)m, (void)err;
    const float *x = ctx->batch_data[0], *w = ctx->param[0], *bias = ctx->param[1];
    float *out = ctx->out, *saved = ctx->saved;
    for (int64_t i = 0; i < ctx->batch * WIDTH; i++) {
        out[i] = tanhf(x[i / WIDTH] * w[i % WIDTH] + bias[i % WIDTH]);
        if (ctx->save)
            saved[i] = out[i];
    }
    return DSC_OK;
}

static dsc_status hidden_backward(const dsc_module *m, dsc_module_ctx *ctx, dsc_error *err)
{
    (void)m, (void)err;
    const float *x = ctx->batch_data[0], *d_out = ctx->d_out, *h = ctx->saved;
    for (int j = 0; j < WIDTH; j++) {
        float d_w = 0, d_bias = 0;
        for (int64_t b = 0; b < ctx->batch; b++) {
            const float d = d_out[b * WIDTH + j] * (1 - h[b * WIDTH + j] * h[b * WIDTH + j]);
            d_w += d * x[b];
            d_bias += d;
        }
        ctx->grad[0][j] = d_w; /* gradients are overwritten, never added to */
        ctx->grad[1][j] = d_bias;
    }
    return DSC_OK;
}

/* loss[b] = (sum_j hidden[b, j] v[j] - y[b])^2; the last module makes its gradients in forward. */
static dsc_status loss_plan(const dsc_module *m, int64_t batch, dsc_dtype dtype, const dsc_plan_sink *sink,
                            dsc_module_plan *out, dsc_error *err)
{
    (void)m, (void)dtype, (void)sink, (void)err;
    *out = (dsc_module_plan){ .forward_flops = 6.0 * (double)batch * WIDTH };
    return DSC_OK;
}

static dsc_status loss_forward(const dsc_module *m, dsc_module_ctx *ctx, dsc_error *err)
{
    (void)m, (void)err;
    const float *h = ctx->in, *v = ctx->param[0], *y = ctx->batch_data[1];
    float *d_h = ctx->d_in;
    for (int j = 0; ctx->save && j < WIDTH; j++)
        ctx->grad[0][j] = 0;
    for (int64_t b = 0; b < ctx->batch; b++) {
        float sum = 0;
        for (int j = 0; j < WIDTH; j++)
            sum += h[b * WIDTH + j] * v[j];
        ctx->losses[b] = (sum - y[b]) * (sum - y[b]);
        const float d = 2 * (sum - y[b]) / (float)ctx->batch * ctx->loss_scale;
        for (int j = 0; ctx->save && j < WIDTH; j++) {
            ctx->grad[0][j] += d * h[b * WIDTH + j];
            d_h[b * WIDTH + j] = d * v[j];
        }
    }
    return DSC_OK;
}

static const dsc_param_spec hidden_params[] = {
    { .name = "hidden.weight", .dim_count = 1, .dim = { WIDTH }, .init = DSC_INIT_NORMAL, .init_std = 1.0f,
      .trainable = true, .decay = true, .shared_module = -1, .shared_param = -1 },
    { .name = "hidden.bias", .dim_count = 1, .dim = { WIDTH }, .init = DSC_INIT_NORMAL, .init_std = 1.0f,
      .trainable = true, .shared_module = -1, .shared_param = -1 },
};
static const dsc_param_spec loss_params[] = {
    { .name = "out.weight", .dim_count = 1, .dim = { WIDTH }, .init = DSC_INIT_NORMAL, .init_std = 0.1f,
      .trainable = true, .decay = true, .shared_module = -1, .shared_param = -1 },
};
static const dsc_module modules[] = {
    { .struct_bytes = sizeof(dsc_module), .flags = DSC_MODULE_BACKWARD_WITHOUT_PARAMS, .name = "hidden",
      .param_count = 2, .params = hidden_params, .plan = hidden_plan, .forward = hidden_forward,
      .backward = hidden_backward },
    { .struct_bytes = sizeof(dsc_module), .flags = DSC_MODULE_LOSS, .name = "out", .param_count = 1,
      .params = loss_params, .plan = loss_plan, .forward = loss_forward },
};
static const dsc_batch_spec batch[] = { { "x", DSC_F32, 0, { 0 } }, { "y", DSC_F32, 0, { 0 } } };

/* Sample i of the run is a point of its own; any rank can make any sample. */
static dsc_status fill(void *user, int64_t first_sample, int64_t count, void *const *data, dsc_error *err)
{
    (void)user, (void)err;
    for (int64_t k = 0; k < count; k++) {
        const float x = (float)fmod((double)(first_sample + k) * 0.61803398875, 1.0) * 6.0f - 3.0f;
        ((float *)data[0])[k] = x;
        ((float *)data[1])[k] = sinf(x);
    }
    return DSC_OK;
}

static dsc_status run(dsc_engine **engine, dsc_error *err)
{
    static const dsc_model model = { .struct_bytes = sizeof model,
                                     .name = "sine",
                                     .module_count = 2,
                                     .modules = modules,
                                     .batch_count = 2,
                                     .batch = batch,
                                     .losses_per_sample = 1,
                                     .hidden_size = WIDTH };
    dsc_engine_options options = DSC_ENGINE_OPTIONS_INIT;
    options.config_text = "{ \"train_batch_size\": 32, \"zero_optimization\": { \"stage\": 3 },"
                          "  \"optimizer\": { \"type\": \"Adam\", \"params\": { \"lr\": 0.01 } } }";
    options.model = &model;
    options.data = (dsc_data_source){ fill, NULL, 0 };
    DSC_TRY(dsc_engine_open(engine, &options, err));
    dsc_step_result result = DSC_STEP_RESULT_INIT;
    while (result.step < 300) {
        DSC_TRY(dsc_engine_train_batch(*engine, &result, err));
        if (dsc_engine_rank(*engine) == 0 && (result.step == 1 || result.step % 100 == 0))
            printf("step %3lld  squared error %.5f\n", (long long)result.step, result.loss);
    }
    return DSC_OK;
}

int main(void)
{
    dsc_engine *engine = NULL;
    dsc_error err = DSC_ERROR_INIT;
    char text[1024];
    const dsc_status status = run(&engine, &err);
    if (status != DSC_OK)
        fprintf(stderr, "own_kernel: %s\n", dsc_error_format(&err, text, sizeof text));
    dsc_engine_close(&engine);
    return dsc_status_exit_code(status);
}
