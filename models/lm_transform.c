/* lm_transform.c - between the last block and the head of some families: a linear layer, to the width of the token
 * table. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/device.h"
#include "models/lm.h"

static dsc_linear_layer linear_of(const dsc_lm_module *self)
{
    return (dsc_linear_layer){ .shape = { self->config->channels, self->config->embed_channels, true }, .bias = -1 };
}

static dsc_status plan(const dsc_module *module, int64_t batch, dsc_dtype dtype, const dsc_plan_sink *sink,
                       dsc_module_plan *out, dsc_error *err)
{
    const dsc_lm_module *self = module->self;
    dsc_linear_told told = { .module = module, .dtype = dtype, .sink = sink };
    DSC_TRY(dsc_lm_rows(self->config, batch, &told.rows, err));
    DSC_TRY(dsc_linear_plan(&told, linear_of(self), err));
    const int64_t d_in = told.rows * self->config->channels * (int64_t)dsc_dtype_bytes(dtype);
    *out = (dsc_module_plan){ .out_elements = told.rows * self->config->embed_channels,
                              .backward_scratch_bytes = d_in,
                              .forward_flops = told.forward_flops, .backward_flops = told.backward_flops };
    return DSC_OK;
}

static dsc_status begin(const dsc_module *module, dsc_module_ctx *ctx, dsc_call *call, dsc_error *err)
{
    *call = (dsc_call){ .ctx = ctx, .err = err };
    return dsc_lm_rows(((const dsc_lm_module *)module->self)->config, ctx->batch, &call->rows, err);
}

static dsc_status forward(const dsc_module *module, dsc_module_ctx *ctx, dsc_error *err)
{
    dsc_call call;
    DSC_TRY(begin(module, ctx, &call, err));
    return dsc_linear_run(&call, linear_of(module->self), ctx->out, ctx->in, NULL);
}

static dsc_status backward(const dsc_module *module, dsc_module_ctx *ctx, dsc_error *err)
{
    dsc_call call;
    DSC_TRY(begin(module, ctx, &call, err));
    DSC_TRY(dsc_linear_gradients(&call, linear_of(module->self), ctx->in, ctx->d_out));
    /* d_in may be d_out's memory, which the product reads to its end. */
    DSC_TRY(dsc_linear_backward(&call, linear_of(module->self), ctx->scratch, ctx->d_out, NULL));
    const dsc_embedding_fwd_args copy = { .out = ctx->d_in, .table = ctx->scratch, .rows = call.rows,
                                          .channels = linear_of(module->self).shape.in, .dtype = ctx->dtype };
    return DSC_RUN(ctx->stream, EMBEDDING_FWD, &copy, err);
}

void dsc_lm_transform_init(dsc_module *module)
{
    module->plan = plan;
    module->forward = forward;
    module->backward = backward;
}
