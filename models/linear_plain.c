/* linear_plain.c - the products of a linear layer's own weight. SPDX-License-Identifier: Apache-2.0 */
#include "models/linear.h"

#include "kernels/device.h"

static int64_t stride_of(const dsc_linear_layer *layer) { return layer->stride > 0 ? layer->stride : layer->shape.out; }

static dsc_gemm_args forward_of(const dsc_linear_layer *layer, int64_t rows, dsc_dtype dtype)
{
    dsc_gemm_args args = dsc_linear_forward(layer->shape, rows, dtype, layer->forward);
    args.ldc = stride_of(layer);
    args.activation = layer->activation;
    args.c_dtype = layer->f32_out ? DSC_F32 : dtype;
    return args;
}

static dsc_gemm_args backward_of(const dsc_linear_layer *layer, int64_t rows, dsc_dtype dtype)
{
    dsc_gemm_args args = dsc_linear_backward_input(layer->shape, rows, dtype, layer->backward);
    args.lda = stride_of(layer);
    args.activation = layer->slope;
    return args;
}

/* The product of both gradients: the sums of dy's rows are the bias's. */
static dsc_gemm_args gradient_of(const dsc_linear_layer *layer, int64_t rows, dsc_dtype dtype, bool has_bias)
{
    dsc_gemm_args args = dsc_linear_backward_weight(layer->shape, rows, dtype);
    *(layer->shape.out_in ? &args.lda : &args.ldb) = stride_of(layer); /* of dy */
    if (has_bias)
        args.sums_of = layer->shape.out_in ? DSC_GEMM_SUMS_OF_A : DSC_GEMM_SUMS_OF_B;
    return args;
}

dsc_status dsc_linear_report(dsc_linear_planned *gemms, dsc_linear_layer layer, const dsc_gemm_args passes[3],
                             dsc_error *err)
{
    const double flops = 2.0 * (double)gemms->rows * (double)layer.shape.in * (double)layer.shape.out;
    const size_t count = gemms->module->params[layer.weight].trainable ? 3 : 2;
    gemms->forward_flops += flops;
    gemms->backward_flops += flops * (double)(count - 1 - layer.no_dx);
    for (size_t i = 0; i < count && gemms->sink != NULL && gemms->sink->gemm != NULL; i++)
        if (i != 1 || !layer.no_dx)
            DSC_TRY(gemms->sink->gemm(gemms->sink->user, &passes[i], err));
    return DSC_OK;
}

dsc_status dsc_linear_plain_plan(dsc_linear_planned *gemms, dsc_linear_layer layer, dsc_error *err)
{
    const bool has_bias = layer.bias >= 0 && gemms->module->params[layer.bias].trainable;
    const dsc_gemm_args passes[3] = { forward_of(&layer, gemms->rows, gemms->dtype),
                                      backward_of(&layer, gemms->rows, gemms->dtype),
                                      gradient_of(&layer, gemms->rows, gemms->dtype, has_bias) };
    return dsc_linear_report(gemms, layer, passes, err);
}

dsc_status dsc_linear_plain_run(const dsc_call *call, dsc_linear_layer layer, void *y, const void *x, void *aux)
{
    const dsc_module_ctx *ctx = call->ctx;
    dsc_gemm_args args = forward_of(&layer, call->rows, ctx->dtype);
    DSC_ASSERT(!dsc_epilogue_has_bias(layer.forward) || layer.bias >= 0);
    args.a = x;
    args.b = ctx->param[layer.weight];
    args.bias =
        dsc_epilogue_has_bias(layer.forward) ? ctx->param[layer.bias] : NULL; /* else another rank's sum has it */
    args.aux = aux;
    args.c = y;
    return DSC_RUN(ctx->stream, GEMM, &args, call->err);
}

dsc_status dsc_linear_plain_backward(const dsc_call *call, dsc_linear_layer layer, void *dx, const void *dy, void *aux)
{
    const dsc_module_ctx *ctx = call->ctx;
    dsc_gemm_args args = backward_of(&layer, call->rows, ctx->dtype);
    args.a = dy;
    args.b = ctx->param[layer.weight];
    args.c = dx;
    args.aux = aux;
    return DSC_RUN(ctx->stream, GEMM, &args, call->err);
}

dsc_status dsc_linear_plain_gradient(const dsc_call *call, dsc_linear_layer layer, const void *x, const void *dy)
{
    const dsc_module_ctx *ctx = call->ctx;
    const bool has_bias = layer.bias >= 0 && ctx->grad[layer.bias] != NULL;
    dsc_gemm_args args = gradient_of(&layer, call->rows, ctx->dtype, has_bias);
    args.sums = has_bias ? ctx->grad[layer.bias] : NULL;
    args.a = layer.shape.out_in ? dy : x;
    args.b = layer.shape.out_in ? x : dy;
    args.c = ctx->grad[layer.weight];
    return args.c != NULL ? DSC_RUN(ctx->stream, GEMM, &args, call->err) : DSC_OK;
}

dsc_status dsc_linear_bias_gradient(const dsc_call *call, dsc_linear_layer layer, const void *dy)
{
    const dsc_module_ctx *ctx = call->ctx;
    if (layer.bias < 0 || ctx->grad[layer.bias] == NULL || ctx->grad[layer.weight] != NULL)
        return DSC_OK;
    const dsc_colsum_args sum = { .out = ctx->grad[layer.bias],
                                  .x = dy,
                                  .rows = call->rows,
                                  .cols = layer.shape.out,
                                  .ld = stride_of(&layer),
                                  .x_dtype = ctx->dtype };
    return DSC_RUN(ctx->stream, COLSUM, &sum, call->err);
}
