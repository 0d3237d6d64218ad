/* lora.c - see lora.h. The scale is applied between the two products, where there is least to multiply.
 * SPDX-License-Identifier: Apache-2.0 */
#include "models/lora_pair.h"

#include "base/rng.h"
#include "kernels/device.h"

dsc_lora_pair dsc_lora_pair_of(const dsc_lora *lora, dsc_linear_layer layer)
{
    const int32_t first = lora->first[layer.weight];
    const int64_t rank = lora->ranks[layer.weight];
    const bool apart = lora->dropout > 0 && !lora->magnitudes;
    return (dsc_lora_pair) {
        .a = { .shape = { layer.shape.in, rank, true },
               .weight = first,
               .bias = -1,
               .forward = DSC_EPILOGUE_NONE,
               .backward = apart ? DSC_EPILOGUE_NONE : DSC_EPILOGUE_ADD },
        .b = { .shape = { rank, layer.shape.out, true },
               .weight = first + 1,
               .bias = -1,
               .forward = DSC_EPILOGUE_ADD,
               .backward = DSC_EPILOGUE_NONE,
               .f32_out = layer.f32_out },
        .scale = lora->scales[layer.weight],
        .layer = (uint32_t)(lora->first_param + layer.weight),
        .dropout = lora->dropout,
    };
}

static dsc_status scale(const dsc_call *call, const dsc_lora_pair *pair)
{
    const dsc_scale_args args = {
        .x = call->lora_work, .count = call->rows * pair->a.shape.out, .factor = pair->scale, .dtype = call->ctx->dtype
    };
    return args.factor == 1 ? DSC_OK : DSC_RUN(call->ctx->stream, SCALE, &args, call->err);
}

static void *wide_work(const dsc_call *call)
{
    DSC_ASSERT(call->lora->dropout > 0);
    return (char *)call->lora_work + dsc_lora_layout_of(call->lora, call->rows, call->ctx->dtype).wide;
}

dsc_status dsc_lora_drop(const dsc_call *call, const dsc_lora_pair *pair, void *out, const void *x, bool add)
{
    const dsc_module_ctx *ctx = call->ctx;
    const int64_t columns = pair->a.shape.in, sample_rows = call->rows / ctx->batch;
    DSC_ASSERT(columns <= call->lora->widest);
    const dsc_dropout_args args = {
        .out = out,
        .x = x,
        .count = call->rows * columns,
        .seed = ctx->rng_seed,
        .stream = dsc_rng_stream(DSC_RNG_DROPOUT, pair->layer),
        .first = ctx->rng_sample * (uint64_t)(sample_rows * columns),
        .threshold = ctx->training ? (uint32_t)(pair->dropout * 0x1p32) : 0,
        .factor = ctx->training ? (float)(1 / (1 - pair->dropout)) : 1,
        .add = add,
        .dtype = ctx->dtype,
    };
    return DSC_RUN(ctx->stream, DROPOUT, &args, call->err);
}

dsc_status dsc_lora_input(const dsc_call *call, const dsc_lora_pair *pair, const void *x, const void **out)
{
    *out = x;
    if (!(pair->dropout > 0) || !call->ctx->training)
        return DSC_OK;
    *out = wide_work(call);
    return dsc_lora_drop(call, pair, wide_work(call), x, false);
}

dsc_status dsc_lora_down(const dsc_call *call, const dsc_lora_pair *pair, const void *x)
{
    DSC_TRY(dsc_linear_plain_run(call, pair->a, call->lora_work, x, NULL));
    return scale(call, pair);
}

dsc_status dsc_lora_up_backward(const dsc_call *call, const dsc_lora_pair *pair, const void *dy)
{
    DSC_TRY(dsc_linear_plain_backward(call, pair->b, call->lora_work, dy, NULL));
    return scale(call, pair);
}

dsc_status dsc_lora_plan(dsc_linear_planned *gemms, dsc_linear_layer layer, dsc_error *err)
{
    const dsc_lora_pair pair = dsc_lora_pair_of(gemms->lora, layer);
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
    const dsc_lora_pair pair = dsc_lora_pair_of(call->lora, layer);
    const void *input;
    DSC_TRY(dsc_lora_input(call, &pair, x, &input));
    DSC_TRY(dsc_lora_down(call, &pair, input));
    return dsc_linear_plain_run(call, pair.b, y, call->lora_work, y);
}

dsc_status dsc_lora_backward(const dsc_call *call, dsc_linear_layer layer, void *dx, const void *dy)
{
    const dsc_lora_pair pair = dsc_lora_pair_of(call->lora, layer);
    DSC_TRY(dsc_lora_up_backward(call, &pair, dy));
    if (!(pair.dropout > 0))
        return dsc_linear_plain_backward(call, pair.a, dx, call->lora_work, dx);
    DSC_TRY(dsc_linear_plain_backward(call, pair.a, wide_work(call), call->lora_work, NULL));
    return dsc_lora_drop(call, &pair, dx, wide_work(call), true);
}

dsc_status dsc_lora_gradients(const dsc_call *call, dsc_linear_layer layer, const void *x, const void *dy)
{
    const dsc_lora_pair pair = dsc_lora_pair_of(call->lora, layer);
    const void *input;
    DSC_TRY(dsc_lora_input(call, &pair, x, &input));
    if (call->ctx->grad[pair.b.weight] != NULL) {
        DSC_TRY(dsc_lora_down(call, &pair, input));
        DSC_TRY(dsc_linear_plain_gradient(call, pair.b, call->lora_work, dy));
    }
    if (call->ctx->grad[pair.a.weight] == NULL)
        return DSC_OK;
    DSC_TRY(dsc_lora_up_backward(call, &pair, dy));
    return dsc_linear_plain_gradient(call, pair.a, input, call->lora_work);
}
