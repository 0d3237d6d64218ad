/* lm_transform.c - the layer between the last block and the head of some families. It is a linear layer to the width of
 * the token table; masked models apply it with an activation to the tokens that they predict.
 *
 * Saved for backward: the activation's input. The rows of the predicted tokens are gathered again.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/device.h"
#include "models/lm.h"

/* Byte offsets in ctx->saved and, of either pass, ctx->scratch. */
typedef struct transform_layout {
    int64_t rows, all_rows;              /* those of the head; R */
    int64_t before, saved_bytes;         /* [rows,E], masked */
    int64_t lora;                        /* [rows,r] */
    int64_t gathered, d_before, back_bytes; /* [rows,C] [rows,E], masked the latter, which forward has not */
} transform_layout;

static dsc_status layout(const dsc_lm_module *self, int64_t batch, dsc_dtype dtype, transform_layout *out,
                         dsc_error *err)
{
    const dsc_lm_config *config = self->config;
    *out = (transform_layout){ 0 };
    DSC_TRY(dsc_lm_rows(config, batch, &out->all_rows, err));
    DSC_TRY(dsc_lm_head_rows(config, batch, &out->rows, err));
    const int64_t element = (int64_t)dsc_dtype_bytes(dtype), narrow = out->rows * config->embed_channels * element;
    out->before = dsc_lm_piece(&out->saved_bytes, config->masked ? narrow : 0);
    out->lora = dsc_lm_piece(&out->back_bytes, dsc_lora_work_bytes(&self->lora, out->rows, dtype));
    out->gathered = dsc_lm_piece(&out->back_bytes, out->rows * config->channels * element);
    out->d_before = dsc_lm_piece(&out->back_bytes, config->masked ? narrow : 0);
    return DSC_OK;
}

static dsc_linear_layer linear_of(const dsc_lm_module *self)
{
    const bool bias = self->config->masked;
    return (dsc_linear_layer){ .shape = { self->config->channels, self->config->embed_channels, true },
                               .bias = bias ? 1 : -1, .forward = bias ? DSC_EPILOGUE_BIAS : DSC_EPILOGUE_NONE };
}

static dsc_status plan(const dsc_module *module, int64_t batch, dsc_dtype dtype, const dsc_plan_sink *sink,
                       dsc_module_plan *out, dsc_error *err)
{
    const dsc_lm_module *self = module->self;
    transform_layout at;
    DSC_TRY(layout(self, batch, dtype, &at, err));
    dsc_linear_planned gemms = { .module = module, .lora = &self->lora, .rows = at.rows, .dtype = dtype, .sink = sink };
    DSC_TRY(dsc_linear_plan(&gemms, linear_of(self), err));
    *out = (dsc_module_plan) { .out_elements = at.rows * self->config->embed_channels,
                               .saved_bytes = at.saved_bytes,
                               .forward_scratch_bytes = self->config->masked ? at.d_before : at.gathered,
                               .backward_scratch_bytes = at.back_bytes,
                               .forward_flops = gemms.forward_flops,
                               .backward_flops = gemms.backward_flops };
    return DSC_OK;
}

/* Context of all steps of a call. */
typedef struct transform_call {
    const dsc_lm_module *self;
    const dsc_lm_config *config;
    dsc_module_ctx *ctx;
    dsc_call launch;
    transform_layout at;
    char *gathered, *before;
    dsc_error *err;
} transform_call;

static dsc_status begin(const dsc_module *module, dsc_module_ctx *ctx, transform_call *call, dsc_error *err)
{
    const dsc_lm_module *self = module->self;
    *call = (transform_call){ .self = self, .config = self->config, .ctx = ctx, .err = err };
    DSC_TRY(layout(self, ctx->batch, ctx->dtype, &call->at, err));
    call->launch = (dsc_call){ .ctx = ctx, .rows = call->at.rows, .err = err, .lora = &self->lora,
                               .lora_work = (char *)ctx->scratch + call->at.lora };
    call->gathered = (char *)ctx->scratch + call->at.gathered;
    call->before = (char *)ctx->saved + call->at.before;
    return DSC_OK;
}

/* `all` has the rows of all tokens, call->gathered those of the predicted ones. */
static dsc_gather_rows_args gather_args(const transform_call *call, const void *all)
{
    return (dsc_gather_rows_args) { .all = (void *)(uintptr_t)all,
                                    .some = call->gathered,
                                    .positions = call->ctx->batch_data[DSC_LM_PREDICTED],
                                    .batch = call->ctx->batch,
                                    .tokens = call->config->sequence,
                                    .gathered = call->config->predictions,
                                    .channels = call->config->channels,
                                    .dtype = call->ctx->dtype };
}

static dsc_status forward(const dsc_module *module, dsc_module_ctx *ctx, dsc_error *err)
{
    transform_call call;
    DSC_TRY(begin(module, ctx, &call, err));
    if (!call.config->masked)
        return dsc_linear_run(&call.launch, linear_of(call.self), ctx->out, ctx->in, NULL);
    const dsc_gather_rows_args gather = gather_args(&call, ctx->in);
    DSC_TRY(DSC_RUN(ctx->stream, GATHER_ROWS_FWD, &gather, err));
    DSC_TRY(dsc_linear_run(&call.launch, linear_of(call.self), call.before, call.gathered, NULL));
    const dsc_gelu_fwd_args act = { .out = ctx->out, .in = call.before, .count = call.at.rows *
                                    call.config->embed_channels, .dtype = ctx->dtype, .kind = call.config->activation };
    return DSC_RUN(ctx->stream, GELU_FWD, &act, err);
}

/* From the gradient of the linear layer's output: its parameters' and, into call->gathered, its input's. */
static dsc_status backward_linear(const transform_call *call, const void *in, const void *d_out)
{
    DSC_TRY(dsc_linear_gradients(&call->launch, linear_of(call->self), in, d_out));
    return dsc_linear_backward(&call->launch, linear_of(call->self), call->gathered, d_out, NULL);
}

/* d_in may be d_out's memory, which the product reads to its end. */
static dsc_status backward_projection(const transform_call *call)
{
    dsc_module_ctx *ctx = call->ctx;
    DSC_TRY(backward_linear(call, ctx->in, ctx->d_out));
    const dsc_embedding_fwd_args copy = { .out = ctx->d_in,
                                          .table = call->gathered,
                                          .rows = call->at.rows,
                                          .channels = call->config->channels,
                                          .dtype = ctx->dtype };
    return DSC_RUN(ctx->stream, EMBEDDING_FWD, &copy, call->err);
}

static dsc_status backward(const dsc_module *module, dsc_module_ctx *ctx, dsc_error *err)
{
    transform_call call;
    DSC_TRY(begin(module, ctx, &call, err));
    if (!call.config->masked)
        return backward_projection(&call);
    char *const d_before = (char *)ctx->scratch + call.at.d_before;
    const dsc_gelu_bwd_args act = { .d_in = d_before, .d_out = ctx->d_out, .in = call.before, .count = call.at.rows *
                                    call.config->embed_channels, .dtype = ctx->dtype, .kind = call.config->activation };
    DSC_TRY(DSC_RUN(ctx->stream, GELU_BWD, &act, err));
    const dsc_gather_rows_args gather = gather_args(&call, ctx->in), scatter = gather_args(&call, ctx->d_in);
    DSC_TRY(DSC_RUN(ctx->stream, GATHER_ROWS_FWD, &gather, err));
    DSC_TRY(backward_linear(&call, call.gathered, d_before));
    return DSC_RUN(ctx->stream, GATHER_ROWS_BWD, &scatter, err);
}

void dsc_lm_transform_init(dsc_module *module)
{
    module->plan = plan;
    module->forward = forward;
    module->backward = backward;
}
