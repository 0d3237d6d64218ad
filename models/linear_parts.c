/* linear_parts.c - products of several layers that read one input, whose outputs are columns side by side.
 *
 * Weights [out,in] that follow each other in memory are one matrix of all their rows, and their biases one vector.
 * Those of one flat group do so where their sizes are multiples of its alignment. Elsewhere each has products of its
 * own, on columns of y: the same bits, since either way an element is one sum over the same inputs.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/device.h"
#include "kernels/fp8_cache.h"
#include "models/linear.h"

#define GROUP_ALIGN 256 /* elements: the largest alignment of a tensor in its flat group, where it is not known */

static dsc_linear_layer whole_of(dsc_linear_layer layer)
{
    layer.part_count = 0;
    return layer;
}

/* Parameters of a layer: a bias stands behind its weight. */
static int32_t step_of(const dsc_linear_layer *layer) { return layer->bias >= 0 ? 2 : 1; }

/* Layer number i, and the first of its columns. */
static dsc_linear_layer part_of(dsc_linear_layer layer, int32_t i, int64_t *column)
{
    dsc_linear_layer part = whole_of(layer);
    *column = 0;
    for (int32_t j = 0; j < i; j++)
        *column += layer.part[j];
    part.shape.out = layer.part[i];
    part.weight += i * step_of(&layer);
    part.bias += layer.bias >= 0 ? i * step_of(&layer) : 0;
    part.stride = layer.shape.out;
    if (i > 0)
        part.backward = DSC_EPILOGUE_ADD; /* to the sum of those before */
    return part;
}

/* Whether tensors of one kind, from parameter `first` on, lie side by side: `width` elements for each output. */
static bool plan_lies_together(const dsc_module *module, const dsc_linear_layer *layer, int32_t first, int64_t width,
                               int64_t align)
{
    bool together = true;
    for (int32_t i = 1; i < layer->part_count; i++) {
        const dsc_param_spec *spec = &module->params[first + i * step_of(layer)];
        const dsc_param_spec *other = &module->params[first];
        together &= spec->trainable == other->trainable && spec->as_stored == other->as_stored &&
                    layer->part[i - 1] * width % align == 0;
    }
    return together;
}

bool dsc_linear_parts_lie_together(const dsc_module *module, dsc_linear_layer layer, int64_t align)
{
    const bool biases = layer.bias < 0 || (module->params[layer.bias].laid_late &&
                                           plan_lies_together(module, &layer, layer.bias, 1, align));
    return biases && plan_lies_together(module, &layer, layer.weight, layer.shape.in, align);
}

/* The same of the tensors themselves, of elements of `bytes`. */
static bool tensors_lie_together(const void *const *tensors, const dsc_linear_layer *layer, int32_t first,
                                 int64_t width, size_t bytes)
{
    const int32_t step = step_of(layer);
    bool together = tensors[first] != NULL;
    for (int32_t i = 1; i < layer->part_count && together; i++) {
        const char *const before = tensors[first + (i - 1) * step];
        together = tensors[first + i * step] == before + layer->part[i - 1] * width * (int64_t)bytes;
    }
    return together;
}

static bool lie_together(const void *const *tensors, const dsc_linear_layer *layer, size_t bytes)
{
    return tensors_lie_together(tensors, layer, layer->weight, layer->shape.in, bytes) &&
           (layer->bias < 0 || tensors_lie_together(tensors, layer, layer->bias, 1, bytes));
}

/* Sums of gradients likewise. Those of all biases may be missing. */
static bool gradients_lie_together(const dsc_call *call, const dsc_linear_layer *layer)
{
    const void *const *grad = (const void *const *)call->ctx->grad;
    bool no_biases = true;
    for (int32_t i = 0; i < layer->part_count && layer->bias >= 0; i++)
        no_biases &= grad[layer->bias + i * step_of(layer)] == NULL;
    return no_biases ? tensors_lie_together(grad, layer, layer->weight, layer->shape.in, sizeof(float))
                     : lie_together(grad, layer, sizeof(float));
}

static bool weights_lie_together(const dsc_call *call, const dsc_linear_layer *layer)
{
    const size_t each = dsc_dtype_bytes(call->ctx->dtype);
    const bool in_fp8 = call->ctx->fp8 != NULL && dsc_fp8_is_gathered(call->ctx->fp8, layer->weight);
    return tensors_lie_together(call->ctx->param, layer, layer->weight, layer->shape.in, in_fp8 ? 1 : each) &&
           (layer->bias < 0 || tensors_lie_together(call->ctx->param, layer, layer->bias, 1, each));
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
    dsc_gemm_args gradient = dsc_linear_backward_weight(layer.shape, gemms->rows, gemms->dtype);
    if (layer.bias >= 0 && gemms->module->params[layer.bias].trainable)
        gradient.sums_of = DSC_GEMM_SUMS_OF_A;
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
    const int64_t known = gemms->sink != NULL ? gemms->sink->tensor_align : 0;
    const bool together = dsc_linear_parts_lie_together(gemms->module, layer, known > 0 ? known : GROUP_ALIGN);
    DSC_ASSERT(layer.shape.out_in);
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
    const bool together = gradients_lie_together(call, &layer);
    if (together && is_fp8(call, layer))
        return dsc_linear_fp8_gradient(call, whole_of(layer), x, dy);
    if (together)
        return dsc_linear_plain_gradient(call, whole_of(layer), x, dy);
    for (int32_t i = 0; i < layer.part_count; i++) {
        int64_t column;
        const dsc_linear_layer part = part_of(layer, i, &column);
        DSC_TRY(dsc_linear_plain_gradient(call, part, x, at(call, dy, column)));
        DSC_TRY(dsc_linear_bias_gradient(call, part, at(call, dy, column)));
    }
    return DSC_OK;
}
