/* norm.c - see norm.h. SPDX-License-Identifier: Apache-2.0 */
#include "models/norm.h"

#include "kernels/device.h"

/* The statistics: 1 / deviation of each row, and behind them a layer norm's means. */
static float *rstd_of(const dsc_norm *norm)
{
    return norm->stats;
}

static float *mean_of(const dsc_norm *norm)
{
    return rstd_of(norm) + norm->rows;
}

/* A norm without a weight or bias has a NULL pointer for it. */
static const void *param_of(const dsc_call *call, int32_t param)
{
    return param != DSC_NORM_NONE ? call->ctx->param[param] : NULL;
}

static float *grad_of(const dsc_call *call, int32_t param)
{
    return param != DSC_NORM_NONE ? call->ctx->grad[param] : NULL;
}

dsc_status dsc_norm_forward(const dsc_call *call, dsc_norm norm, void *out, const void *in)
{
    const dsc_module_ctx *ctx = call->ctx;
    const void *weight = param_of(call, norm.weight);
    if (norm.kind == DSC_NORM_RMS) {
        const dsc_rmsnorm_fwd_args args = { .out = out,
                                            .sum = norm.sum,
                                            .add = norm.add,
                                            .rstd = rstd_of(&norm),
                                            .in = in,
                                            .weight = weight,
                                            .rows = norm.rows,
                                            .channels = norm.channels,
                                            .eps = (float)norm.eps,
                                            .dtype = ctx->dtype,
                                            .plus_one = norm.plus_one,
                                            .wide = norm.wide };
        return DSC_RUN(ctx->stream, RMSNORM_FWD, &args, call->err);
    }
    const dsc_layernorm_fwd_args args = { .out = out,
                                          .sum = norm.sum,
                                          .add = norm.add,
                                          .mean = mean_of(&norm),
                                          .rstd = rstd_of(&norm),
                                          .in = in,
                                          .weight = weight,
                                          .bias = param_of(call, norm.bias),
                                          .rows = norm.rows,
                                          .channels = norm.channels,
                                          .eps = (float)norm.eps,
                                          .dtype = ctx->dtype,
                                          .plus_one = norm.plus_one,
                                          .wide = norm.wide };
    return DSC_RUN(ctx->stream, LAYERNORM_FWD, &args, call->err);
}

dsc_status dsc_norm_backward(const dsc_call *call, dsc_norm norm, const dsc_norm_gradient *buffers)
{
    const dsc_module_ctx *ctx = call->ctx;
    const void *weight = param_of(call, norm.weight);
    float *const d_weight = grad_of(call, norm.weight);
    if (norm.kind == DSC_NORM_RMS) {
        const dsc_rmsnorm_bwd_args args = { .d_in = buffers->d_in,
                                            .d_weight = d_weight,
                                            .d_out = buffers->d_out,
                                            .d_residual = buffers->d_residual,
                                            .in = buffers->in,
                                            .weight = weight,
                                            .rstd = rstd_of(&norm),
                                            .scratch = buffers->scratch,
                                            .rows = norm.rows,
                                            .channels = norm.channels,
                                            .dtype = ctx->dtype,
                                            .plus_one = norm.plus_one,
                                            .wide = norm.wide };
        return DSC_RUN(ctx->stream, RMSNORM_BWD, &args, call->err);
    }
    const dsc_layernorm_bwd_args args = { .d_in = buffers->d_in,
                                          .d_weight = d_weight,
                                          .d_bias = grad_of(call, norm.bias),
                                          .d_out = buffers->d_out,
                                          .d_residual = buffers->d_residual,
                                          .in = buffers->in,
                                          .weight = weight,
                                          .mean = mean_of(&norm),
                                          .rstd = rstd_of(&norm),
                                          .scratch = buffers->scratch,
                                          .rows = norm.rows,
                                          .channels = norm.channels,
                                          .dtype = ctx->dtype,
                                          .plus_one = norm.plus_one,
                                          .wide = norm.wide };
    return DSC_RUN(ctx->stream, LAYERNORM_BWD, &args, call->err);
}
