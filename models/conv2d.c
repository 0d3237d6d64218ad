/* conv2d.c - see conv2d.h. SPDX-License-Identifier: Apache-2.0 */
#include "models/conv2d.h"

#include "kernels/conv2d_products.h"
#include "kernels/device.h"

static bool is_depthwise(const dsc_conv2d_shape *s) { return s->groups > 1 && s->groups == s->in; }

double dsc_conv2d_flops(const dsc_conv2d_shape *s)
{
    return 2.0 * (double)dsc_conv2d_rows(s, DSC_CONV2D_Y) * (double)dsc_conv2d_weights(s);
}

/* ---- scratch ----------------------------------------------------------------------------------------------------- */

/* The weight in another order, or the strips of its gradient. */
static int64_t depthwise_scratch(const dsc_conv2d_shape *s, dsc_conv2d_pass pass, dsc_dtype dtype)
{
    if (pass == DSC_CONV2D_DW)
        return dsc_depthwise_strips(s) * dsc_conv2d_weights(s) * (int64_t)sizeof(float);
    return dsc_conv2d_taps(s) > 1 ? dsc_conv2d_weights(s) * (int64_t)dsc_dtype_bytes(dtype) : 0;
}

int64_t dsc_conv2d_scratch_bytes(const dsc_conv2d_layer *layer, dsc_conv2d_pass pass, bool sums, dsc_dtype dtype,
                                 int64_t chunk_bytes, bool on_gpu)
{
    const dsc_conv2d_shape *s = &layer->shape;
    if (is_depthwise(s))
        return dsc_align_up(depthwise_scratch(s, pass, dtype), 256);
    const int64_t bytes = dsc_conv2d_products_scratch(s, pass, dtype, chunk_bytes);
    if (s->groups > 1 || s->batch < 1 || dtype == DSC_F16)
        return bytes;
    return dsc_max_i64(bytes, on_gpu ? dsc_conv2d_gpu_scratch(s, sums, dtype) : dsc_conv2d_scratch(s, pass, dtype));
}

/* ---- plans ------------------------------------------------------------------------------------------------------- */

/* A device may choose between the pass as a whole and products. */
static dsc_status report_pass(const dsc_linear_planned *gemms, const dsc_conv2d_layer *layer, dsc_conv2d_pass pass,
                              dsc_error *err)
{
    const dsc_conv2d_shape *s = &layer->shape;
    const dsc_plan_sink *sink = gemms->sink;
    const bool on_cpu = sink != NULL && !sink->joins_input_gradients, bias = layer->bias >= 0;
    const dsc_conv2d_args whole = {
        .pass = pass, .add = pass == DSC_CONV2D_Y && bias ? s : NULL, .shape = *s, .dtype = gemms->dtype
    };
    if (is_depthwise(s) || sink == NULL || (on_cpu && s->groups == 1 && gemms->dtype != DSC_F16))
        return DSC_OK;
    if (sink->conv2d != NULL && s->groups == 1)
        DSC_TRY(sink->conv2d(sink->user, &whole, err));
    return sink->gemm != NULL
               ? dsc_conv2d_products_list(s, pass, gemms->dtype, sink->chunk_bytes, bias, sink->gemm, sink->user, err)
               : DSC_OK;
}

dsc_status dsc_conv2d_plan(dsc_linear_planned *gemms, const dsc_conv2d_layer *layer, bool no_dx, dsc_error *err)
{
    const double flops = dsc_conv2d_flops(&layer->shape);
    const bool trained = gemms->module->params[layer->weight].trainable;
    gemms->forward_flops += flops;
    gemms->backward_flops += flops * ((no_dx ? 0 : 1) + (trained ? 1 : 0));
    DSC_TRY(report_pass(gemms, layer, DSC_CONV2D_Y, err));
    if (!no_dx)
        DSC_TRY(report_pass(gemms, layer, DSC_CONV2D_DX, err));
    return trained ? report_pass(gemms, layer, DSC_CONV2D_DW, err) : DSC_OK;
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

static dsc_status launch_on_stream(void *user, dsc_kernel kernel, const void *args, int64_t args_bytes, dsc_error *err)
{
    return dsc_launch(user, kernel, args, args_bytes, err);
}

/* One launch where the device has the convolution as a whole, or products. */
static dsc_status run_pass(const dsc_call *call, const dsc_conv2d_args *args)
{
    const dsc_conv2d_launcher launcher = { launch_on_stream, call->ctx->stream };
    if (dsc_conv2d_is_whole(call->ctx->stream, args))
        return DSC_RUN(call->ctx->stream, CONV2D, args, call->err);
    return dsc_conv2d_products_run(&launcher, args, call->ctx->chunk_bytes, call->err);
}

/* A weight of windows of one pixel is the same in each order. */
static dsc_status depthwise(const dsc_call *call, const dsc_conv2d_layer *layer, bool back, void *out, const void *in,
                            const void *add, void *scratch)
{
    const void *const weight = call->ctx->param[layer->weight];
    const dsc_conv2d_weight_args order = { scratch, weight, DSC_CONV2D_DEPTHWISE, layer->shape, call->ctx->dtype };
    const bool ordered = dsc_conv2d_taps(&layer->shape) == 1;
    const dsc_depthwise_args args = { .out = out,
                                      .in = in,
                                      .weight = ordered ? weight : scratch,
                                      .add = add,
                                      .shape = layer->shape,
                                      .dtype = call->ctx->dtype };
    if (!ordered)
        DSC_TRY(DSC_RUN(call->ctx->stream, CONV2D_WEIGHT, &order, call->err));
    return back ? DSC_RUN(call->ctx->stream, DEPTHWISE_DX, &args, call->err)
                : DSC_RUN(call->ctx->stream, DEPTHWISE_FWD, &args, call->err);
}

dsc_status dsc_conv2d_run(const dsc_call *call, const dsc_conv2d_layer *layer, void *y, const void *x, void *scratch)
{
    const void *bias = layer->bias >= 0 ? call->ctx->param[layer->bias] : NULL;
    const dsc_conv2d_args args = { DSC_CONV2D_Y,    y, x, call->ctx->param[layer->weight], bias, scratch, layer->shape,
                                   call->ctx->dtype };
    return is_depthwise(&layer->shape) ? depthwise(call, layer, false, y, x, bias, scratch) : run_pass(call, &args);
}

dsc_status dsc_conv2d_backward(const dsc_call *call, const dsc_conv2d_layer *layer, void *dx, const void *dy, void *sum,
                               void *scratch)
{
    const dsc_conv2d_args args = { DSC_CONV2D_DX, dx,      dy,           call->ctx->param[layer->weight],
                                   sum,           scratch, layer->shape, call->ctx->dtype };
    return is_depthwise(&layer->shape) ? depthwise(call, layer, true, dx, dy, sum, scratch) : run_pass(call, &args);
}

static dsc_status weight_gradient(const dsc_call *call, const dsc_conv2d_layer *layer, float *d_weight, const void *x,
                                  const void *dy, void *scratch)
{
    const dsc_conv2d_args args = { DSC_CONV2D_DW, d_weight, x, dy, NULL, scratch, layer->shape, call->ctx->dtype };
    const dsc_depthwise_dw_args direct = { d_weight, x, dy, scratch, layer->shape, call->ctx->dtype };
    return is_depthwise(&layer->shape) ? DSC_RUN(call->ctx->stream, DEPTHWISE_DW, &direct, call->err)
                                       : run_pass(call, &args);
}

dsc_status dsc_conv2d_gradients(const dsc_call *call, const dsc_conv2d_layer *layer, const void *x, const void *dy,
                                void *scratch)
{
    float *const d_weight = call->ctx->grad[layer->weight];
    float *const d_bias = layer->bias >= 0 ? call->ctx->grad[layer->bias] : NULL;
    const dsc_colsum_args sum = { .out = d_bias,
                                  .x = dy,
                                  .rows = dsc_conv2d_rows(&layer->shape, DSC_CONV2D_DW),
                                  .cols = layer->shape.out,
                                  .ld = layer->shape.out,
                                  .x_dtype = call->ctx->dtype };
    if (d_bias != NULL)
        DSC_TRY(DSC_RUN(call->ctx->stream, COLSUM, &sum, call->err));
    return d_weight != NULL ? weight_gradient(call, layer, d_weight, x, dy, scratch) : DSC_OK;
}
