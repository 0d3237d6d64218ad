/* linear_parts.c - products of several layers that read one input, whose outputs are columns side by side.
 *
 * Weights [out,in] that follow each other in memory are one matrix of all their rows. Those of one flat group do so
 * where their sizes are multiples of its alignment. Elsewhere each has products of its own, on columns of y: the same
 * bits, since either way an element is one sum over the same inputs. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/device.h"
#include "models/linear.h"

#define GROUP_ALIGN 256 /* elements: the largest alignment of a tensor in its flat group */

static dsc_linear_layer whole_of(dsc_linear_layer layer)
{
    layer.part_count = 0;
    return layer;
}

/* Layer number i, and the first of its columns. */
static dsc_linear_layer part_of(dsc_linear_layer layer, int32_t i, int64_t *column)
{
    dsc_linear_layer part = whole_of(layer);
    *column = 0;
    for (int32_t j = 0; j < i; j++)
        *column += layer.part[j];
    part.shape.out = layer.part[i];
    part.weight += i;
    part.stride = layer.shape.out;
    if (i > 0)
        part.backward = DSC_EPILOGUE_ADD; /* to the sum of those before */
    return part;
}

static bool sizes_leave_no_gap(const dsc_linear_layer *layer)
{
    bool none = true;
    for (int32_t i = 0; i < layer->part_count; i++)
        none &= layer->part[i] * layer->shape.in % GROUP_ALIGN == 0;
    return none;
}

bool dsc_linear_parts_lie_together(const dsc_module *module, dsc_linear_layer layer)
{
    bool together = sizes_leave_no_gap(&layer);
    for (int32_t i = 1; i < layer.part_count; i++)
        together &= module->params[layer.weight + i].trainable == module->params[layer.weight].trainable;
    return together;
}

/* The same of the tensors themselves, of elements of `bytes`. */
static bool lie_together(const void *const *tensors, const dsc_linear_layer *layer, size_t bytes)
{
    bool together = sizes_leave_no_gap(layer) && tensors[layer->weight] != NULL;
    for (int32_t i = 1; i < layer->part_count && together; i++) {
        const char *const before = tensors[layer->weight + i - 1];
        const int64_t size = layer->part[i - 1] * layer->shape.in * (int64_t)bytes;
        together = tensors[layer->weight + i] == before + size;
    }
    return together;
}

static bool weights_lie_together(const dsc_call *call, const dsc_linear_layer *layer)
{
    return lie_together(call->ctx->param, layer, dsc_dtype_bytes(call->ctx->dtype));
}

static bool is_fp8(const dsc_call *call, dsc_linear_layer layer)
{
    return call->ctx->fp8 != NULL && dsc_linear_fits_fp8(layer, call->rows) && weights_lie_together(call, &layer);
}

/* ---- the plan ---- */

static dsc_status report(const dsc_linear_planned *gemms, const dsc_gemm_args *shape, dsc_error *err)
{
    if (gemms->sink == NULL || gemms->sink->gemm == NULL)
        return DSC_OK;
    return gemms->sink->gemm(gemms->sink->user, shape, err);
}

/* One product for y and one for the gradients, and for dx one or one of each layer. */
static dsc_status plan_together(dsc_linear_planned *gemms, dsc_linear_layer layer, dsc_error *err)
{
    const double flops = 2.0 * (double)gemms->rows * (double)layer.shape.in * (double)layer.shape.out;
    const bool trained = gemms->module->params[layer.weight].trainable;
    const dsc_gemm_args forward = dsc_linear_forward(layer.shape, gemms->rows, gemms->dtype, layer.forward);
    const dsc_gemm_args gradient = dsc_linear_backward_weight(layer.shape, gemms->rows, gemms->dtype);
    gemms->forward_flops += flops;
    gemms->backward_flops += flops * (trained ? 2 : 1);
    DSC_TRY(report(gemms, &forward, err));
    const bool joins = gemms->sink != NULL && gemms->sink->joins_input_gradients;
    for (int32_t i = 0; i < (joins ? 1 : layer.part_count); i++) {
        int64_t column;
        const dsc_linear_layer part = joins ? whole_of(layer) : part_of(layer, i, &column);
        dsc_gemm_args back = dsc_linear_backward_input(part.shape, gemms->rows, gemms->dtype, part.backward);
        back.lda = layer.shape.out;
        DSC_TRY(report(gemms, &back, err));
    }
    return trained ? report(gemms, &gradient, err) : DSC_OK;
}

dsc_status dsc_linear_parts_plan(dsc_linear_planned *gemms, dsc_linear_layer layer, dsc_error *err)
{
    const bool together = dsc_linear_parts_lie_together(gemms->module, layer);
    DSC_ASSERT(layer.bias < 0 && layer.shape.out_in);
    if (together && gemms->sink != NULL && gemms->sink->fp8 != NULL && dsc_linear_fits_fp8(layer, gemms->rows))
        return dsc_linear_fp8_plan(gemms, whole_of(layer), err);
    if (together)
        return plan_together(gemms, layer, err);
    for (int32_t i = 0; i < layer.part_count; i++) {
        int64_t column;
        DSC_TRY(dsc_linear_plain_plan(gemms, part_of(layer, i, &column), err));
    }
    return DSC_OK;
}

/* ---- a call ---- */

static char *at(const dsc_call *call, const void *x, int64_t column)
{
    return (char *)(uintptr_t)x + column * (int64_t)dsc_dtype_bytes(call->ctx->dtype);
}

dsc_status dsc_linear_parts_run(const dsc_call *call, dsc_linear_layer layer, void *y, const void *x)
{
    if (is_fp8(call, layer))
        return dsc_linear_fp8_run(call, whole_of(layer), y, x, NULL);
    if (weights_lie_together(call, &layer))
        return dsc_linear_plain_run(call, whole_of(layer), y, x, NULL);
    for (int32_t i = 0; i < layer.part_count; i++) {
        int64_t column;
        const dsc_linear_layer part = part_of(layer, i, &column);
        DSC_TRY(dsc_linear_plain_run(call, part, at(call, y, column), x, NULL));
    }
    return DSC_OK;
}

dsc_status dsc_linear_parts_backward(const dsc_call *call, dsc_linear_layer layer, void *dx, const void *dy, void *aux)
{
    if (is_fp8(call, layer))
        return dsc_linear_fp8_backward(call, whole_of(layer), dx, dy, aux);
    if (call->ctx->joins_input_gradients && weights_lie_together(call, &layer))
        return dsc_linear_plain_backward(call, whole_of(layer), dx, dy, aux);
    for (int32_t i = 0; i < layer.part_count; i++) {
        int64_t column;
        const dsc_linear_layer part = part_of(layer, i, &column);
        DSC_TRY(dsc_linear_plain_backward(call, part, dx, at(call, dy, column), i == 0 ? aux : dx));
    }
    return DSC_OK;
}

dsc_status dsc_linear_parts_gradients(const dsc_call *call, dsc_linear_layer layer, const void *x, const void *dy)
{
    const bool together = lie_together((const void *const *)call->ctx->grad, &layer, sizeof(float));
    if (together && is_fp8(call, layer))
        return dsc_linear_fp8_gradient(call, whole_of(layer), x, dy);
    if (together)
        return dsc_linear_plain_gradient(call, whole_of(layer), x, dy);
    for (int32_t i = 0; i < layer.part_count; i++) {
        int64_t column;
        const dsc_linear_layer part = part_of(layer, i, &column);
        DSC_TRY(dsc_linear_plain_gradient(call, part, x, at(call, dy, column)));
    }
    return DSC_OK;
}
