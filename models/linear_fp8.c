/* linear_fp8.c - the products of a linear layer in fp8 (kernels/fp8.h), for layers whose sizes such products have.
 *
 * Both operands of such a product are stored along the sum. So y reads x and the weight as [out,in]. dx reads dy and
 * the weight as [in,out]. The weight's gradient reads x and dy, both transposed. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/fp8_cache.h"
#include "models/linear.h"

bool dsc_linear_fits_fp8(dsc_linear_layer layer, int64_t rows)
{
    return !layer.f32_out && (rows | layer.shape.in | layer.shape.out) % DSC_FP8_UNIT == 0;
}

/* Blocks of an activation or a gradient, or of a weight. */
static dsc_fp8_blocks blocks_of(const dsc_fp8_options *o, bool weight)
{
    return !o->blocks ? DSC_FP8_BLOCKS_NONE : weight ? DSC_FP8_BLOCKS_SQUARE : DSC_FP8_BLOCKS_ROW;
}

static dsc_gemm_args in_fp8(const dsc_fp8_options *o, dsc_gemm_args args, dsc_fp8 a, dsc_fp8 b, bool of_weight,
                            bool fast)
{
    args.lda = args.ldb = args.k;
    args.a_transposed = false;
    args.b_transposed = true;
    args.a_fp8 = a;
    args.b_fp8 = b;
    args.a_blocks = blocks_of(o, false);
    args.b_blocks = blocks_of(o, of_weight);
    args.fast_sums = fast && !o->blocks; /* each block's sum is added to one in fp32 */
    return args;
}

static dsc_gemm_args forward_of(const dsc_fp8_options *o, dsc_linear_layer layer, int64_t rows, dsc_dtype dtype)
{
    dsc_gemm_args args = dsc_linear_forward(layer.shape, rows, dtype, layer.forward);
    args.activation = layer.activation;
    return in_fp8(o, args, DSC_FP8_E4M3, DSC_FP8_E4M3, true, o->fast != DSC_FP8_FAST_NEVER);
}

static dsc_gemm_args backward_of(const dsc_fp8_options *o, dsc_linear_layer layer, int64_t rows, dsc_dtype dtype)
{
    dsc_gemm_args args = dsc_linear_backward_input(layer.shape, rows, dtype, layer.backward);
    args.activation = layer.slope;
    return in_fp8(o, args, o->gradients, DSC_FP8_E4M3, true, o->fast == DSC_FP8_FAST_ALWAYS);
}

static dsc_gemm_args gradient_of(const dsc_fp8_options *o, dsc_linear_layer layer, int64_t rows, dsc_dtype dtype)
{
    const bool dy_first = layer.shape.out_in;
    return in_fp8(o, dsc_linear_backward_weight(layer.shape, rows, dtype), dy_first ? o->gradients : DSC_FP8_E4M3,
                  dy_first ? DSC_FP8_E4M3 : o->gradients, false, o->fast == DSC_FP8_FAST_ALWAYS);
}

dsc_status dsc_linear_fp8_plan(dsc_linear_planned *gemms, dsc_linear_layer layer, dsc_error *err)
{
    dsc_fp8_plan *plan = gemms->sink->fp8;
    const dsc_fp8_options *o = &plan->options;
    const dsc_gemm_args passes[3] = { forward_of(o, layer, gemms->rows, gemms->dtype),
                                      backward_of(o, layer, gemms->rows, gemms->dtype),
                                      gradient_of(o, layer, gemms->rows, gemms->dtype) };
    DSC_ASSERT(gemms->dtype == DSC_BF16);
    /* Layers that share an input add their gradients of it, all but the first. */
    const bool shares = dsc_epilogue_adds(layer.backward), trained = gemms->module->params[layer.weight].trainable;
    dsc_fp8_plan_layer(plan, &(dsc_fp8_layer) { .weight = layer.weight,
                                                .rows = gemms->rows,
                                                .in = layer.shape.in,
                                                .out = layer.shape.out,
                                                .keeps_input = trained && !shares });
    return dsc_linear_report(gemms, layer, passes, err);
}

/* ---- operands ---- */

static dsc_status weight_of(const dsc_call *call, dsc_linear_layer layer, bool along_in, dsc_fp8_matrix *out)
{
    const bool out_in = layer.shape.out_in;
    const dsc_cast_fp8_args what = { .from = call->ctx->param[layer.weight],
                                     .row_count = out_in ? layer.shape.out : layer.shape.in,
                                     .col_count = out_in ? layer.shape.in : layer.shape.out,
                                     .format = DSC_FP8_E4M3,
                                     .blocks = blocks_of(&call->ctx->fp8->options, true) };
    return dsc_fp8_weight(call->ctx->fp8, call->ctx->stream, layer.weight, &what,
                          along_in == out_in ? DSC_FP8_ROWS : DSC_FP8_COLUMNS, out, call->err);
}

static dsc_status operand_of(const dsc_call *call, const void *x, int64_t cols, dsc_fp8 format, dsc_fp8_side side,
                             dsc_fp8_matrix *out)
{
    const dsc_cast_fp8_args what = { .from = x,
                                     .row_count = call->rows,
                                     .col_count = cols,
                                     .format = format,
                                     .blocks = blocks_of(&call->ctx->fp8->options, false) };
    return dsc_fp8_operand(call->ctx->fp8, call->ctx->stream, &what, side, out, call->err);
}

/* dy is read twice where the weight is trained. */
static dsc_status gradient_operand(const dsc_call *call, dsc_linear_layer layer, const void *dy, dsc_fp8_side side,
                                   dsc_fp8_matrix *out)
{
    const bool trained = call->ctx->grad[layer.weight] != NULL;
    return operand_of(call, dy, layer.shape.out, call->ctx->fp8->options.gradients, trained ? DSC_FP8_BOTH : side, out);
}

static dsc_status run(const dsc_call *call, const dsc_gemm_args *args)
{
    const int64_t bytes = args->m * args->ldc * (int64_t)dsc_dtype_bytes(args->c_dtype);
    DSC_TRY(DSC_RUN(call->ctx->stream, GEMM, args, call->err));
    dsc_fp8_wrote(call->ctx->fp8, call->ctx->stream, args->c, bytes);
    if (dsc_epilogue_activates(args->epilogue) && args->aux != NULL)
        dsc_fp8_wrote(call->ctx->fp8, call->ctx->stream, args->aux, bytes);
    return DSC_OK;
}

/* An operand of a product, as it is or transposed. */
static void give_a(dsc_gemm_args *args, const dsc_fp8_matrix *m, bool turned)
{
    args->a = turned ? m->columns : m->rows;
    args->a_scale = m->scale;
    args->a_steps = turned ? m->column_steps : m->row_steps;
}

static void give_b(dsc_gemm_args *args, const dsc_fp8_matrix *m, bool turned)
{
    args->b = turned ? m->columns : m->rows;
    args->b_scale = m->scale;
    args->b_steps = turned ? m->column_steps : m->row_steps;
}

/* ---- products ---- */

dsc_status dsc_linear_fp8_run(const dsc_call *call, dsc_linear_layer layer, void *y, const void *x, void *aux)
{
    const dsc_module_ctx *ctx = call->ctx;
    const dsc_cast_fp8_args what = {
        .from = x,
        .row_count = call->rows,
        .col_count = layer.shape.in,
        .format = DSC_FP8_E4M3,
        .blocks = blocks_of(&ctx->fp8->options, false),
    };
    dsc_gemm_args args = forward_of(&ctx->fp8->options, layer, call->rows, ctx->dtype);
    dsc_fp8_matrix a, b;
    DSC_ASSERT(dsc_epilogue_has_bias(layer.forward) == (layer.bias >= 0));
    DSC_TRY(dsc_fp8_input(ctx->fp8, ctx->stream, layer.weight, &what, &a, call->err));
    DSC_TRY(weight_of(call, layer, true, &b));
    give_a(&args, &a, false);
    give_b(&args, &b, !layer.shape.out_in);
    args.bias = layer.bias >= 0 ? ctx->param[layer.bias] : NULL;
    args.aux = aux;
    args.c = y;
    return run(call, &args);
}

dsc_status dsc_linear_fp8_backward(const dsc_call *call, dsc_linear_layer layer, void *dx, const void *dy, void *aux)
{
    const dsc_module_ctx *ctx = call->ctx;
    dsc_gemm_args args = backward_of(&ctx->fp8->options, layer, call->rows, ctx->dtype);
    dsc_fp8_matrix a, b;
    DSC_TRY(gradient_operand(call, layer, dy, DSC_FP8_ROWS, &a));
    DSC_TRY(weight_of(call, layer, false, &b));
    give_a(&args, &a, false);
    give_b(&args, &b, layer.shape.out_in);
    args.c = dx;
    args.aux = aux;
    return run(call, &args);
}

/* The bias's gradient is the sum of dy itself. */
static dsc_status bias_gradient(const dsc_call *call, dsc_linear_layer layer, const void *dy)
{
    const dsc_module_ctx *ctx = call->ctx;
    if (layer.bias < 0 || ctx->grad[layer.bias] == NULL)
        return DSC_OK;
    const dsc_colsum_args sum = { .out = ctx->grad[layer.bias],
                                  .x = dy,
                                  .rows = call->rows,
                                  .cols = layer.shape.out,
                                  .ld = layer.shape.out,
                                  .x_dtype = ctx->dtype };
    DSC_TRY(DSC_RUN(ctx->stream, COLSUM, &sum, call->err));
    dsc_fp8_wrote(ctx->fp8, ctx->stream, sum.out, sum.cols * (int64_t)sizeof *sum.out);
    return DSC_OK;
}

dsc_status dsc_linear_fp8_gradient(const dsc_call *call, dsc_linear_layer layer, const void *x, const void *dy)
{
    const dsc_module_ctx *ctx = call->ctx;
    dsc_gemm_args args = gradient_of(&ctx->fp8->options, layer, call->rows, ctx->dtype);
    dsc_fp8_matrix of_x, of_dy;
    if (ctx->grad[layer.weight] == NULL)
        return DSC_OK;
    if (!dsc_fp8_kept_input(ctx->fp8, layer.weight, &of_x))
        DSC_TRY(operand_of(call, x, layer.shape.in, DSC_FP8_E4M3, DSC_FP8_COLUMNS, &of_x));
    DSC_TRY(gradient_operand(call, layer, dy, DSC_FP8_COLUMNS, &of_dy));
    const dsc_fp8_matrix *a = layer.shape.out_in ? &of_dy : &of_x, *b = layer.shape.out_in ? &of_x : &of_dy;
    give_a(&args, a, true);
    give_b(&args, b, true);
    args.c = ctx->grad[layer.weight];
    DSC_TRY(run(call, &args));
    return bias_gradient(call, layer, dy);
}
