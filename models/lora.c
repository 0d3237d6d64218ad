/* lora.c - see lora.h. The scale is applied between the two products, where there is least to multiply.
 * SPDX-License-Identifier: Apache-2.0 */
#include "models/lora.h"

#include "kernels/device.h"

/* The adapter's two layers: x to [R,r], and from there to what the layer has written. */
typedef struct lora_pair {
    dsc_linear_layer a, b;
    float scale;
} lora_pair;

static lora_pair pair_of(const dsc_lora *lora, dsc_linear_layer layer)
{
    const int32_t first = lora->first[layer.weight];
    const int64_t rank = lora->ranks[layer.weight];
    return (lora_pair) {
        .a = { .shape = { layer.shape.in, rank, true },
               .weight = first,
               .bias = -1,
               .forward = DSC_EPILOGUE_NONE,
               .backward = DSC_EPILOGUE_ADD },
        .b = { .shape = { rank, layer.shape.out, true },
               .weight = first + 1,
               .bias = -1,
               .forward = DSC_EPILOGUE_ADD,
               .backward = DSC_EPILOGUE_NONE },
        .scale = lora->scales[layer.weight],
    };
}

static dsc_status scale(const dsc_call *call, const lora_pair *pair)
{
    const dsc_scale_args args = {
        .x = call->lora_work, .count = call->rows * pair->a.shape.out, .factor = pair->scale, .dtype = call->ctx->dtype
    };
    return args.factor == 1 ? DSC_OK : DSC_RUN(call->ctx->stream, SCALE, &args, call->err);
}

/* lora_work = s x A^T */
static dsc_status down(const dsc_call *call, const lora_pair *pair, const void *x)
{
    DSC_TRY(dsc_linear_plain_run(call, pair->a, call->lora_work, x, NULL));
    return scale(call, pair);
}

/* lora_work = s dy B */
static dsc_status up_backward(const dsc_call *call, const lora_pair *pair, const void *dy)
{
    DSC_TRY(dsc_linear_plain_backward(call, pair->b, call->lora_work, dy, NULL));
    return scale(call, pair);
}

dsc_status dsc_lora_plan(dsc_linear_planned *gemms, dsc_linear_layer layer, dsc_error *err)
{
    const lora_pair pair = pair_of(gemms->lora, layer);
    DSC_TRY(dsc_linear_plain_plan(gemms, pair.a, err));
    DSC_TRY(dsc_linear_plain_plan(gemms, pair.b, err));
    /* the gradients' own way down, and back up */
    const double each = 2.0 * (double)gemms->rows * (double)pair.a.shape.out;
    if (gemms->module->params[pair.b.weight].trainable)
        gemms->backward_flops += each * (double)layer.shape.in;
    if (gemms->module->params[pair.a.weight].trainable)
        gemms->backward_flops += each * (double)layer.shape.out;
    return DSC_OK;
}

dsc_status dsc_lora_run(const dsc_call *call, dsc_linear_layer layer, void *y, const void *x)
{
    const lora_pair pair = pair_of(call->lora, layer);
    DSC_TRY(down(call, &pair, x));
    return dsc_linear_plain_run(call, pair.b, y, call->lora_work, y);
}

dsc_status dsc_lora_backward(const dsc_call *call, dsc_linear_layer layer, void *dx, const void *dy)
{
    const lora_pair pair = pair_of(call->lora, layer);
    DSC_TRY(up_backward(call, &pair, dy));
    return dsc_linear_plain_backward(call, pair.a, dx, call->lora_work, dx);
}

dsc_status dsc_lora_gradients(const dsc_call *call, dsc_linear_layer layer, const void *x, const void *dy)
{
    const lora_pair pair = pair_of(call->lora, layer);
    if (call->ctx->grad[pair.b.weight] != NULL) {
        DSC_TRY(down(call, &pair, x));
        DSC_TRY(dsc_linear_plain_gradient(call, pair.b, call->lora_work, dy));
    }
    if (call->ctx->grad[pair.a.weight] == NULL)
        return DSC_OK;
    DSC_TRY(up_backward(call, &pair, dy));
    return dsc_linear_plain_gradient(call, pair.a, x, call->lora_work);
}
