/* dora.c - adapters with a magnitude for each output (lora.h). The factors follow from weights alone, so that each pass
 * makes them again. So does backward with z = x w + s (x A^T) B^T, which the magnitudes' gradient needs.
 *
 * With dropout the layer's own product is of x, and the change (f - 1) x w + f s (x A^T) B^T of the dropped x, as in
 * PEFT. Where f is 1 and B is 0, the layer then gives exactly what it gave without the adapter.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/device.h"
#include "models/lora_pair.h"

/* Context of all steps of a pass. */
typedef struct dora_pass {
    const dsc_call *call;
    dsc_lora_pair pair;
    dsc_linear_layer layer, plain; /* plain: x w alone */
    dsc_linear_layer apart;        /* B's product, to memory of its own */
    char *outputs;                 /* [R,out] */
    float *factors, *norms;        /* [out] */
    bool drops;
} dora_pass;

static dsc_linear_layer plain_of(dsc_linear_layer layer)
{
    layer.bias = -1;
    layer.forward = DSC_EPILOGUE_NONE;
    return layer;
}

static dora_pass pass_of(const dsc_call *call, dsc_linear_layer layer)
{
    const dsc_lora_layout at = dsc_lora_layout_of(call->lora, call->rows, call->ctx->dtype);
    char *const work = call->lora_work;
    DSC_ASSERT(call->lora->magnitudes);
    DSC_ASSERT(layer.shape.out <= call->lora->widest_out);
    dora_pass pass = { .call = call,
                       .pair = dsc_lora_pair_of(call->lora, layer),
                       .layer = layer,
                       .plain = plain_of(layer),
                       .outputs = work + at.outputs,
                       .factors = (float *)(void *)(work + at.factors),
                       .norms = (float *)(void *)(work + at.norms),
                       .drops = call->lora->dropout > 0 && call->ctx->training };
    pass.apart = pass.pair.b;
    pass.apart.forward = DSC_EPILOGUE_NONE;
    return pass;
}

static int32_t magnitude_of(const dsc_lora_pair *pair) { return pair->b.weight + 1; }

static dsc_status find_factors(const dora_pass *pass)
{
    const dsc_module_ctx *ctx = pass->call->ctx;
    const dsc_dora_factors_args args = { .factors = pass->factors,
                                         .norms = pass->norms,
                                         .weight = ctx->param[pass->layer.weight],
                                         .a = ctx->param[pass->pair.a.weight],
                                         .b = ctx->param[pass->pair.b.weight],
                                         .magnitude = ctx->param[magnitude_of(&pass->pair)],
                                         .in = pass->layer.shape.in,
                                         .out = pass->layer.shape.out,
                                         .rank = pass->pair.a.shape.out,
                                         .scale = pass->pair.scale,
                                         .in_out = !pass->layer.shape.out_in,
                                         .dtype = ctx->dtype };
    return DSC_RUN(ctx->stream, DORA_FACTORS, &args, pass->call->err);
}

/* out = x (f + offset) + bias + add; the latter two may be NULL. */
static dsc_status scale(const dora_pass *pass, void *out, const void *x, float offset, const void *bias,
                        const void *add)
{
    const dsc_module_ctx *ctx = pass->call->ctx;
    const dsc_dora_scale_args args = { .out = out,
                                       .x = x,
                                       .bias = bias,
                                       .add = add,
                                       .factors = pass->factors,
                                       .rows = pass->call->rows,
                                       .cols = pass->layer.shape.out,
                                       .offset = offset,
                                       .dtype = ctx->dtype };
    return DSC_RUN(ctx->stream, DORA_SCALE, &args, pass->call->err);
}

/* z = x w + s (x A^T) B^T; s x A^T stays in lora_work. */
static dsc_status make_sum(const dora_pass *pass, void *z, const void *x)
{
    DSC_TRY(dsc_linear_plain_run(pass->call, pass->plain, z, x, NULL));
    DSC_TRY(dsc_lora_down(pass->call, &pass->pair, x));
    return dsc_linear_plain_run(pass->call, pass->pair.b, z, pass->call->lora_work, z);
}

/* ---- the plan ---- */

/* Of the layer's own weight: a product forward and one backward, and with dropout another one of each. */
static dsc_status plan_own(dsc_linear_planned *gemms, dsc_linear_layer layer, dsc_error *err)
{
    dsc_linear_layer plain = plain_of(layer);
    DSC_ASSERT(!gemms->module->params[layer.weight].trainable);
    if (!(gemms->lora->dropout > 0))
        return dsc_linear_plain_plan(gemms, plain, err);
    plain.backward = DSC_EPILOGUE_NONE;
    DSC_TRY(dsc_linear_plain_plan(gemms, plain, err));
    return dsc_linear_plain_plan(gemms, layer, err);
}

dsc_status dsc_dora_plan(dsc_linear_planned *gemms, dsc_linear_layer layer, dsc_error *err)
{
    const dsc_lora_pair pair = dsc_lora_pair_of(gemms->lora, layer);
    const dsc_param_spec *params = gemms->module->params;
    const double of_rank = 2.0 * (double)gemms->rows * (double)pair.a.shape.out;
    const double down = of_rank * (double)layer.shape.in, up = of_rank * (double)layer.shape.out;
    DSC_TRY(plan_own(gemms, layer, err));
    DSC_TRY(dsc_linear_plain_plan(gemms, pair.a, err));
    DSC_TRY(dsc_linear_plain_plan(gemms, pair.b, err));
    if (gemms->lora->dropout > 0) {
        const dsc_linear_layer apart = { .shape = pair.b.shape,
                                         .weight = pair.b.weight,
                                         .bias = -1,
                                         .forward = DSC_EPILOGUE_NONE,
                                         .backward = DSC_EPILOGUE_NONE };
        dsc_linear_planned shapes = *gemms; /* forward's B has a shape of its own, and no more work */
        DSC_TRY(dsc_linear_plain_plan(&shapes, apart, err));
    }
    if (params[magnitude_of(&pair)].trainable)
        gemms->backward_flops += 2.0 * (double)gemms->rows * (double)layer.shape.in * (double)layer.shape.out + up;
    if (params[magnitude_of(&pair)].trainable || params[pair.b.weight].trainable)
        gemms->backward_flops += down;
    if (params[pair.a.weight].trainable)
        gemms->backward_flops += up;
    return DSC_OK;
}

/* ---- the passes ---- */

dsc_status dsc_dora_run(const dsc_call *call, dsc_linear_layer layer, void *y, const void *x, void *aux)
{
    const dora_pass pass = pass_of(call, layer);
    const bool adds = layer.forward == DSC_EPILOGUE_ADD || layer.forward == DSC_EPILOGUE_BIAS_ADD;
    const void *dropped;
    DSC_ASSERT(!dsc_epilogue_activates(layer.forward));
    DSC_TRY(find_factors(&pass));
    if (!pass.drops) {
        void *const sum = adds && aux == y ? pass.outputs : y; /* what is added may lie where the outputs go */
        DSC_TRY(make_sum(&pass, sum, x));
        return scale(&pass, y, sum, 0, layer.bias >= 0 ? call->ctx->param[layer.bias] : NULL, adds ? aux : NULL);
    }
    DSC_TRY(dsc_linear_plain_run(call, layer, y, x, aux));
    DSC_TRY(dsc_lora_input(call, &pass.pair, x, &dropped));
    DSC_TRY(dsc_linear_plain_run(call, pass.plain, pass.outputs, dropped, NULL));
    DSC_TRY(scale(&pass, y, pass.outputs, -1, NULL, y));
    DSC_TRY(dsc_lora_down(call, &pass.pair, dropped));
    DSC_TRY(dsc_linear_plain_run(call, pass.apart, pass.outputs, call->lora_work, NULL));
    return scale(&pass, y, pass.outputs, 0, NULL, y);
}

/* The gradient of the dropped x, in the work. */
static dsc_status backward_dropped(const dora_pass *pass, const void *dy, void **d_dropped)
{
    const dsc_call *call = pass->call;
    *d_dropped = (char *)call->lora_work + dsc_lora_layout_of(call->lora, call->rows, call->ctx->dtype).wide;
    dsc_linear_layer first = pass->plain;
    first.backward = DSC_EPILOGUE_NONE;
    DSC_TRY(scale(pass, pass->outputs, dy, -1, NULL, NULL));
    DSC_TRY(dsc_linear_plain_backward(call, first, *d_dropped, pass->outputs, NULL));
    DSC_TRY(scale(pass, pass->outputs, dy, 0, NULL, NULL));
    DSC_TRY(dsc_lora_up_backward(call, &pass->pair, pass->outputs));
    return dsc_linear_plain_backward(call, pass->pair.a, *d_dropped, call->lora_work, *d_dropped);
}

dsc_status dsc_dora_backward(const dsc_call *call, dsc_linear_layer layer, void *dx, const void *dy, void *aux)
{
    const dora_pass pass = pass_of(call, layer);
    DSC_ASSERT(!dsc_epilogue_slopes(layer.backward));
    DSC_TRY(find_factors(&pass));
    if (pass.drops) {
        void *d_dropped;
        DSC_TRY(dsc_linear_plain_backward(call, layer, dx, dy, aux));
        DSC_TRY(backward_dropped(&pass, dy, &d_dropped));
        return dsc_lora_drop(call, &pass.pair, dx, d_dropped, true);
    }
    DSC_TRY(scale(&pass, pass.outputs, dy, 0, NULL, NULL));
    DSC_TRY(dsc_linear_plain_backward(call, layer, dx, pass.outputs, aux));
    DSC_TRY(dsc_lora_up_backward(call, &pass.pair, pass.outputs));
    return dsc_linear_plain_backward(call, pass.pair.a, dx, call->lora_work, dx);
}

/* The sum over rows of dy z / norm. */
static dsc_status magnitude_gradient(const dora_pass *pass, const void *input, const void *dy, float *out)
{
    const dsc_module_ctx *ctx = pass->call->ctx;
    const dsc_dora_gradient_args args = { .out = out,
                                          .d = dy,
                                          .z = pass->outputs,
                                          .norms = pass->norms,
                                          .rows = pass->call->rows,
                                          .cols = pass->layer.shape.out,
                                          .dtype = ctx->dtype };
    DSC_TRY(make_sum(pass, pass->outputs, input));
    return DSC_RUN(ctx->stream, DORA_GRADIENT, &args, pass->call->err);
}

dsc_status dsc_dora_gradients(const dsc_call *call, dsc_linear_layer layer, const void *x, const void *dy)
{
    const dora_pass pass = pass_of(call, layer);
    float *const *grad = call->ctx->grad, *const of_magnitude = grad[magnitude_of(&pass.pair)];
    const bool of_a = grad[pass.pair.a.weight] != NULL, of_b = grad[pass.pair.b.weight] != NULL;
    const void *input;
    DSC_ASSERT(grad[layer.weight] == NULL); /* frozen: the norm would have a gradient */
    DSC_TRY(find_factors(&pass));
    DSC_TRY(dsc_lora_input(call, &pass.pair, x, &input));
    if (of_magnitude != NULL)
        DSC_TRY(magnitude_gradient(&pass, input, dy, of_magnitude));
    else if (of_b)
        DSC_TRY(dsc_lora_down(call, &pass.pair, input));
    if (of_a || of_b)
        DSC_TRY(scale(&pass, pass.outputs, dy, 0, NULL, NULL));
    if (of_b)
        DSC_TRY(dsc_linear_plain_gradient(call, pass.pair.b, call->lora_work, pass.outputs));
    if (!of_a)
        return DSC_OK;
    DSC_TRY(dsc_lora_up_backward(call, &pass.pair, pass.outputs));
    return dsc_linear_plain_gradient(call, pass.pair.a, input, call->lora_work);
}
