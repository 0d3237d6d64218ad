/* linear.c - see linear.h. SPDX-License-Identifier: Apache-2.0 */
#include "models/linear.h"

#include "kernels/device.h"
#include "models/lora.h"

static bool has_adapter(const dsc_lora *lora, dsc_linear_layer layer)
{
    return lora != NULL && dsc_lora_has(lora, layer.weight);
}

dsc_status dsc_linear_plan(dsc_linear_planned *gemms, dsc_linear_layer layer, dsc_error *err)
{
    const dsc_gemm_args passes[3] = { dsc_linear_forward(layer.shape, gemms->rows, gemms->dtype, layer.forward),
                                      dsc_linear_backward_input(layer.shape, gemms->rows, gemms->dtype, layer.backward),
                                      dsc_linear_backward_weight(layer.shape, gemms->rows, gemms->dtype) };
    const double flops = 2.0 * (double)gemms->rows * (double)layer.shape.in * (double)layer.shape.out;
    const size_t count = gemms->module->params[layer.weight].trainable ? 3 : 2;
    gemms->forward_flops += flops;
    gemms->backward_flops += flops * (double)(count - 1);
    for (size_t i = 0; i < count && gemms->sink != NULL && gemms->sink->gemm != NULL; i++)
        DSC_TRY(gemms->sink->gemm(gemms->sink->user, &passes[i], err));
    return has_adapter(gemms->lora, layer) ? dsc_lora_plan(gemms, layer, err) : DSC_OK;
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
    DSC_TRY(DSC_RUN(ctx->stream, GEMM, &args, call->err));
    if (!has_adapter(call->lora, layer))
        return DSC_OK;
    DSC_ASSERT(layer.forward != DSC_EPILOGUE_BIAS_GELU);
    return dsc_lora_run(call, layer, y, x);
}

dsc_status dsc_linear_backward(const dsc_call *call, dsc_linear_layer layer, void *dx, const void *dy, void *aux)
{
    const dsc_module_ctx *ctx = call->ctx;
    dsc_gemm_args args = dsc_linear_backward_input(layer.shape, call->rows, ctx->dtype, layer.backward);
    args.a = dy;
    args.b = ctx->param[layer.weight];
    args.c = dx;
    args.aux = aux;
    DSC_TRY(DSC_RUN(ctx->stream, GEMM, &args, call->err));
    if (!has_adapter(call->lora, layer))
        return DSC_OK;
    DSC_ASSERT(layer.backward != DSC_EPILOGUE_DGELU);
    return dsc_lora_backward(call, layer, dx, dy);
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
    if (has_adapter(call->lora, layer))
        DSC_TRY(dsc_lora_gradients(call, layer, x, dy));
    if (layer.bias < 0 || ctx->grad[layer.bias] == NULL)
        return DSC_OK;
    const dsc_colsum_args sum = { .out = ctx->grad[layer.bias], .x = dy, .rows = call->rows, .cols = layer.shape.out,
                                  .ld = layer.shape.out, .x_dtype = ctx->dtype };
    return DSC_RUN(ctx->stream, COLSUM, &sum, call->err);
}
