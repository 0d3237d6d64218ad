/* toy_model.c - see toy_model.h. Everything is in order and single-threaded; only the bits' stability matters.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/toy_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "kernels/scalar.h"

typedef struct toy {
    dsc_model model;
    int64_t in, width;
    int32_t blocks;
    dsc_module modules[16];
    dsc_param_spec specs[64];
    dsc_batch_spec batch[2];
    char names[64][32];
    char module_names[16][32];
} toy;

static float get(const void *data, dsc_dtype dtype, int64_t i)
{
    return dsc_get(data, i, dtype);
}

static void set(void *data, dsc_dtype dtype, int64_t i, float value)
{
    dsc_put(data, i, dtype, value);
}

static const toy *self(const dsc_module *module) { return module->self; }

/* ---- input projection: out[b, j] = sum_i x[b, i] w[i, j] ---- */

static dsc_status input_plan(const dsc_module *m, int64_t batch, dsc_dtype dtype, const dsc_plan_sink *sink,
                             dsc_module_plan *out, dsc_error *err)
{
    *out = (dsc_module_plan){ .out_elements = batch * self(m)->width, .forward_flops = 1, .backward_flops = 1 };
    return DSC_OK;
}

static dsc_status input_forward(const dsc_module *m, dsc_module_ctx *ctx, dsc_error *err)
{
    const toy *t = self(m);
    const float *x = ctx->batch_data[0];
    for (int64_t b = 0; b < ctx->batch; b++)
        for (int64_t j = 0; j < t->width; j++) {
            float sum = 0;
            for (int64_t i = 0; i < t->in; i++)
                sum += x[b * t->in + i] * get(ctx->param[0], ctx->dtype, i * t->width + j);
            set(ctx->out, ctx->dtype, b * t->width + j, sum);
        }
    return DSC_OK;
}

static dsc_status input_backward(const dsc_module *m, dsc_module_ctx *ctx, dsc_error *err)
{
    const toy *t = self(m);
    const float *x = ctx->batch_data[0];
    if (ctx->param[0] != NULL && (m->flags & DSC_MODULE_BACKWARD_WITHOUT_PARAMS) == 0)
        return DSC_FAIL(err, DSC_ERR_INTERNAL, "", "flag lost");
    for (int64_t i = 0; ctx->grad[0] != NULL && i < t->in; i++)
        for (int64_t j = 0; j < t->width; j++) {
            float sum = 0;
            for (int64_t b = 0; b < ctx->batch; b++)
                sum += x[b * t->in + i] * get(ctx->d_out, ctx->dtype, b * t->width + j);
            ctx->grad[0][i * t->width + j] = sum;
        }
    return DSC_OK;
}

/* ---- block: out = in + scale * tanh(in w + bias); saved: the tanh ---- */

static dsc_status block_plan(const dsc_module *m, int64_t batch, dsc_dtype dtype, const dsc_plan_sink *sink,
                             dsc_module_plan *out, dsc_error *err)
{
    const int64_t n = batch * self(m)->width;
    *out = (dsc_module_plan){ .out_elements = n, .saved_bytes = n * 4, .forward_scratch_bytes = n * 4,
                              .backward_scratch_bytes = n * 4, .forward_flops = 1, .backward_flops = 1 };
    return DSC_OK;
}

static dsc_status block_forward(const dsc_module *m, dsc_module_ctx *ctx, dsc_error *err)
{
    const int64_t width = self(m)->width;
    float *keep = ctx->save ? ctx->saved : ctx->scratch;
    for (int64_t b = 0; b < ctx->batch; b++)
        for (int64_t j = 0; j < width; j++) {
            float sum = get(ctx->param[1], ctx->dtype, j);
            for (int64_t i = 0; i < width; i++)
                sum += get(ctx->in, ctx->dtype, b * width + i) * get(ctx->param[0], ctx->dtype, i * width + j);
            keep[b * width + j] = tanhf(sum);
        }
    for (int64_t n = 0; n < ctx->batch * width; n++)
        set(ctx->out, ctx->dtype, n, get(ctx->in, ctx->dtype, n) + get(ctx->param[2], ctx->dtype, n % width) * keep[n]);
    return DSC_OK;
}

static dsc_status block_backward(const dsc_module *m, dsc_module_ctx *ctx, dsc_error *err)
{
    const int64_t width = self(m)->width;
    const float *kept = ctx->saved;
    float *d_sum = ctx->scratch;
    for (int64_t n = 0; n < ctx->batch * width; n++)
        d_sum[n] = get(ctx->d_out, ctx->dtype, n) * get(ctx->param[2], ctx->dtype, n % width) * (1 - kept[n] * kept[n]);
    for (int64_t i = 0; i < width; i++)
        for (int64_t j = 0; j < width; j++) {
            float sum = 0;
            for (int64_t b = 0; b < ctx->batch; b++)
                sum += get(ctx->in, ctx->dtype, b * width + i) * d_sum[b * width + j];
            ctx->grad[0][i * width + j] = sum;
        }
    for (int64_t j = 0; j < width; j++) {
        float bias = 0, scale = 0;
        for (int64_t b = 0; b < ctx->batch; b++) {
            bias += d_sum[b * width + j];
            scale += get(ctx->d_out, ctx->dtype, b * width + j) * kept[b * width + j];
        }
        ctx->grad[1][j] = bias;
        if (ctx->grad[2] != NULL)
            ctx->grad[2][j] = scale;
    }
    for (int64_t b = 0; b < ctx->batch; b++)
        for (int64_t i = 0; i < width; i++) {
            float sum = get(ctx->d_out, ctx->dtype, b * width + i);
            for (int64_t j = 0; j < width; j++)
                sum += d_sum[b * width + j] * get(ctx->param[0], ctx->dtype, i * width + j);
            set(ctx->d_in, ctx->dtype, b * width + i, sum);
        }
    return DSC_OK;
}

/* ---- loss: y[b, i] = sum_j in[b, j] w[i, j] (tied) + bias[i]; loss = sum_i (y - target)^2 ---- */

static dsc_status loss_plan(const dsc_module *m, int64_t batch, dsc_dtype dtype, const dsc_plan_sink *sink,
                            dsc_module_plan *out, dsc_error *err)
{
    *out = (dsc_module_plan){ .forward_scratch_bytes = batch * self(m)->in * 4, .forward_flops = 1 };
    return DSC_OK;
}

static dsc_status loss_forward(const dsc_module *m, dsc_module_ctx *ctx, dsc_error *err)
{
    const toy *t = self(m);
    const float *target = ctx->batch_data[1];
    float *d_y = ctx->scratch;
    for (int64_t b = 0; b < ctx->batch; b++) {
        float loss = 0;
        for (int64_t i = 0; i < t->in; i++) {
            float y = get(ctx->param[0], ctx->dtype, i);
            for (int64_t j = 0; j < t->width; j++)
                y += get(ctx->in, ctx->dtype, b * t->width + j) * get(ctx->param[1], ctx->dtype, i * t->width + j);
            const float off = y - target[b * t->in + i];
            loss += off * off;
            d_y[b * t->in + i] = 2 * off / (float)ctx->batch * ctx->loss_scale;
        }
        ctx->losses[b] = loss;
    }
    if (!ctx->save)
        return DSC_OK;
    for (int64_t i = 0; i < t->in; i++) {
        float bias = 0;
        for (int64_t b = 0; b < ctx->batch; b++)
            bias += d_y[b * t->in + i];
        ctx->grad[0][i] = bias;
        for (int64_t j = 0; ctx->grad[1] != NULL && j < t->width; j++) {
            float sum = 0;
            for (int64_t b = 0; b < ctx->batch; b++)
                sum += d_y[b * t->in + i] * get(ctx->in, ctx->dtype, b * t->width + j);
            ctx->grad[1][i * t->width + j] = sum;
        }
    }
    for (int64_t b = 0; b < ctx->batch; b++)
        for (int64_t j = 0; j < t->width; j++) {
            float sum = 0;
            for (int64_t i = 0; i < t->in; i++)
                sum += d_y[b * t->in + i] * get(ctx->param[1], ctx->dtype, i * t->width + j);
            set(ctx->d_in, ctx->dtype, b * t->width + j, sum);
        }
    return DSC_OK;
}

/* ---- tables ---- */

static dsc_param_spec *add_param(toy *t, int32_t *count, const char *name, int64_t rows, int64_t columns,
                                 dsc_init_kind init)
{
    dsc_param_spec *spec = &t->specs[*count];
    snprintf(t->names[*count], sizeof t->names[0], "%s", name);
    *spec = (dsc_param_spec){ .name = t->names[*count], .dim_count = rows > 0 ? 2 : 1, .init = init, .init_std = 0.1f,
                              .trainable = true, .decay = rows > 0, .shared_module = -1, .shared_param = -1 };
    spec->dim[0] = rows > 0 ? rows : columns;
    spec->dim[1] = rows > 0 ? columns : 0;
    (*count)++;
    return spec;
}

dsc_model *toy_model_open(int64_t in, int64_t width, int32_t blocks, bool frozen_scale)
{
    toy *t = calloc(1, sizeof *t);
    if (t == NULL || blocks > 14)
        abort();
    t->in = in;
    t->width = width;
    t->blocks = blocks;
    int32_t specs = 0;
    const uint32_t bytes = (uint32_t)sizeof(dsc_module);
    t->modules[0] = (dsc_module){ .struct_bytes = bytes, .flags = DSC_MODULE_BACKWARD_WITHOUT_PARAMS, .name = "input",
                                  .self = t, .param_count = 1, .params = &t->specs[0], .plan = input_plan,
                                  .forward = input_forward, .backward = input_backward };
    add_param(t, &specs, "input.weight", in, width, DSC_INIT_NORMAL);
    for (int32_t b = 0; b < blocks; b++) {
        char name[32];
        snprintf(t->module_names[b], sizeof t->module_names[0], "block.%d", (int)b);
        t->modules[1 + b] = (dsc_module){ .struct_bytes = bytes, .name = t->module_names[b], .self = t,
                                          .param_count = 3, .params = &t->specs[specs], .plan = block_plan,
                                          .forward = block_forward, .backward = block_backward };
        snprintf(name, sizeof name, "block.%d.weight", (int)b);
        add_param(t, &specs, name, width, width, DSC_INIT_NORMAL);
        snprintf(name, sizeof name, "block.%d.bias", (int)b);
        add_param(t, &specs, name, 0, width, DSC_INIT_ZEROS);
        snprintf(name, sizeof name, "block.%d.scale", (int)b);
        add_param(t, &specs, name, 0, width, DSC_INIT_ONES)->trainable = !frozen_scale;
    }
    t->modules[1 + blocks] = (dsc_module){ .struct_bytes = bytes, .flags = DSC_MODULE_LOSS, .name = "loss", .self = t,
                                           .param_count = 2, .params = &t->specs[specs], .plan = loss_plan,
                                           .forward = loss_forward };
    add_param(t, &specs, "loss.bias", 0, in, DSC_INIT_ZEROS);
    dsc_param_spec *tied = add_param(t, &specs, "input.weight", in, width, DSC_INIT_NORMAL);
    tied->shared_module = 0;
    tied->shared_param = 0;
    t->batch[0] = (dsc_batch_spec){ .name = "x", .dtype = DSC_F32, .dim_count = 1, .dim = { in } };
    t->batch[1] = (dsc_batch_spec){ .name = "y", .dtype = DSC_F32, .dim_count = 1, .dim = { in } };
    t->model = (dsc_model){ .struct_bytes = (uint32_t)sizeof t->model, .name = "toy", .module_count = blocks + 2,
                            .modules = t->modules, .batch_count = 2, .batch = t->batch, .losses_per_sample = 1,
                            .hidden_size = width, .self = t };
    return &t->model;
}

void toy_model_close(dsc_model *model) { free(model->self); }

static dsc_status toy_fill(void *user, int64_t first_sample, int64_t count, void *const *batch_data, dsc_error *err)
{
    const toy *t = user;
    for (int64_t k = 0; k < count; k++)
        for (int64_t i = 0; i < t->in; i++) {
            const uint64_t index = (uint64_t)((first_sample + k) * t->in + i);
            const float x =
                (float)((double)dsc_rng_u32(7, dsc_rng_stream(DSC_RNG_TEST, 0), index) / 4294967296.0 - 0.5);
            ((float *)batch_data[0])[k * t->in + i] = x;
            ((float *)batch_data[1])[k * t->in + i] = sinf(3 * x) + (float)i * 0.1f;
        }
    return DSC_OK;
}

dsc_data_source toy_data(const dsc_model *model, int64_t sample_count)
{
    return (dsc_data_source){ .fill = toy_fill, .user = model->self, .sample_count = sample_count };
}
