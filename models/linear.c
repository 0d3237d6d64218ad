/* linear.c - see linear.h. SPDX-License-Identifier: Apache-2.0 */
#include "models/linear.h"

#include "kernels/device.h"

dsc_status dsc_linear_plan(dsc_linear_layer layer, int64_t rows, dsc_dtype dtype, const dsc_plan_sink *sink,
                           double *flops, dsc_error *err)
{
    const dsc_gemm_args passes[3] = { dsc_linear_forward(layer.shape, rows, dtype, layer.forward),
                                      dsc_linear_backward_input(layer.shape, rows, dtype, layer.backward),
                                      dsc_linear_backward_weight(layer.shape, rows, dtype) };
    *flops += 2.0 * (double)rows * (double)layer.shape.in * (double)layer.shape.out;
    for (size_t i = 0; i < DSC_COUNT(passes) && sink != NULL && sink->gemm != NULL; i++)
        DSC_TRY(sink->gemm(sink->user, &passes[i], err));
    return DSC_OK;
}

dsc_status dsc_linear_run(const dsc_call *call, dsc_linear_layer layer, void *y, const void *x, void *aux)
{
    const dsc_module_ctx *ctx = call->ctx;
    dsc_gemm_args args = dsc_linear_forward(layer.shape, call->rows, ctx->dtype, layer.forward);
    DSC_ASSERT(dsc_epilogue_has_bias(layer.forward) == (layer.bias >= 0));
    args.a = x;
    args.b = ctx->param[layer.weight];
    args.bias = layer.bias >= 0 ? ctx->param[layer.bias] : NULL;
    args.aux = aux;
    args.c = y;
    return DSC_RUN(ctx->stream, GEMM, &args, call->err);
}

dsc_status dsc_linear_backward(const dsc_call *call, dsc_linear_layer layer, void *dx, const void *dy, void *aux)
{
    const dsc_module_ctx *ctx = call->ctx;
    dsc_gemm_args args = dsc_linear_backward_input(layer.shape, call->rows, ctx->dtype, layer.backward);
    args.a = dy;
    args.b = ctx->param[layer.weight];
    args.c = dx;
    args.aux = aux;
    return DSC_RUN(ctx->stream, GEMM, &args, call->err);
}

dsc_status dsc_linear_gradients(const dsc_call *call, dsc_linear_layer layer, const void *x, const void *dy)
{
    const dsc_module_ctx *ctx = call->ctx;
    dsc_gemm_args args = dsc_linear_backward_weight(layer.shape, call->rows, ctx->dtype);
    args.a = layer.shape.out_in ? dy : x;
    args.b = layer.shape.out_in ? x : dy;
    args.c = ctx->grad[layer.weight];
    if (args.c != NULL)
        DSC_TRY(DSC_RUN(ctx->stream, GEMM, &args, call->err));
    if (layer.bias < 0 || ctx->grad[layer.bias] == NULL)
        return DSC_OK;
    const dsc_colsum_args sum = { .out = ctx->grad[layer.bias], .x = dy, .rows = call->rows, .cols = layer.shape.out,
                                  .ld = layer.shape.out, .x_dtype = ctx->dtype };
    return DSC_RUN(ctx->stream, COLSUM, &sum, call->err);
}
