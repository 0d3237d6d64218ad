/* conv2d.c - see conv2d.h. SPDX-License-Identifier: Apache-2.0 */
#include "models/conv2d.h"

#include "kernels/device.h"

/* Bytes of a chunk of windows at most: what a CPU's caches hold, and what fills a GPU with one product. */
enum { WINDOWS_BYTES = 4 << 20, GPU_WINDOWS_BYTES = 64 << 20 };
enum { ROWS_UNIT = 64 }; /* rows of a chunk are a multiple */

static bool is_depthwise(const dsc_conv2d_shape *s) { return s->groups > 1 && s->groups == s->in; }

/* Whether windows are other rows than those of x. */
static bool gathers(const dsc_conv2d_shape *s)
{
    bool other = dsc_conv2d_taps(s) > 1;
    for (int i = 0; i < 2; i++)
        other = other || s->stride[i] != 1 || s->padding[i] != 0;
    return other;
}

/* A CPU makes a convolution of one group in one launch. */
static bool is_whole(const dsc_call *call, const dsc_conv2d_shape *s)
{
    return s->groups == 1 && call->ctx->dtype != DSC_F16 && call->ctx->stream->ops->host_visible;
}

static int64_t rows_of(const dsc_conv2d_shape *s, dsc_conv2d_pass pass)
{
    return s->batch * (pass == DSC_CONV2D_DX ? s->height * s->width : dsc_conv2d_out(s, 0) * dsc_conv2d_out(s, 1));
}

/* Columns of a row of windows. */
static int64_t columns_of(const dsc_conv2d_shape *s, dsc_conv2d_pass pass)
{
    return dsc_conv2d_taps(s) * ((pass == DSC_CONV2D_DX ? s->out : s->in) / s->groups);
}

/* Rows of all chunks but the last one, which has what is left. */
static int64_t chunk_of(const dsc_conv2d_shape *s, dsc_conv2d_pass pass, dsc_dtype dtype, int64_t chunk_bytes)
{
    const int64_t rows = rows_of(s, pass), row = columns_of(s, pass) * (int64_t)dsc_dtype_bytes(dtype);
    const int64_t bytes = chunk_bytes > 0 ? dsc_min_i64(chunk_bytes, GPU_WINDOWS_BYTES) : WINDOWS_BYTES;
    const int64_t most = dsc_max_i64(1, bytes / row / ROWS_UNIT) * ROWS_UNIT;
    if (!gathers(s) || rows <= most)
        return rows;
    return dsc_align_up(dsc_div_ceil(rows, dsc_div_ceil(rows, most)), ROWS_UNIT);
}

double dsc_conv2d_flops(const dsc_conv2d_shape *s)
{
    return 2.0 * (double)rows_of(s, DSC_CONV2D_Y) * (double)s->out * (double)columns_of(s, DSC_CONV2D_Y);
}

/* ---- scratch ----------------------------------------------------------------------------------------------------- */

/* Byte offsets in a pass's scratch. */
typedef struct layout {
    int64_t weight, windows, bytes;
} layout;

/* Bytes of the weight in another order, of a gradient's in fp32, or of a depthwise one's strips. */
static int64_t weight_bytes(const dsc_conv2d_shape *s, dsc_conv2d_pass pass, dsc_dtype dtype)
{
    const bool gradient = pass == DSC_CONV2D_DW;
    const int64_t bytes = dsc_conv2d_weights(s) * (int64_t)dsc_dtype_bytes(gradient ? DSC_F32 : dtype);
    if (is_depthwise(s) && gradient)
        return dsc_depthwise_strips(s) * bytes;
    return dsc_conv2d_taps(s) > 1 ? bytes : 0;
}

static layout lay(const dsc_conv2d_shape *s, dsc_conv2d_pass pass, dsc_dtype dtype, int64_t chunk_bytes)
{
    layout at = { .windows = dsc_align_up(weight_bytes(s, pass, dtype), 256) };
    at.bytes = at.windows;
    if (!is_depthwise(s) && gathers(s))
        at.bytes += dsc_align_up(
            chunk_of(s, pass, dtype, chunk_bytes) * columns_of(s, pass) * (int64_t)dsc_dtype_bytes(dtype), 256);
    return at;
}

int64_t dsc_conv2d_scratch_bytes(const dsc_conv2d_layer *layer, dsc_conv2d_pass pass, dsc_dtype dtype,
                                 int64_t chunk_bytes)
{
    const int64_t bytes = lay(&layer->shape, pass, dtype, chunk_bytes).bytes;
    if (layer->shape.groups > 1 || layer->shape.batch < 1 || dtype == DSC_F16)
        return bytes;
    return dsc_max_i64(bytes, dsc_conv2d_scratch(&layer->shape, pass, dtype));
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* The product of `rows` rows of one group. `more`: the bias or the sum is added, or a further chunk of a gradient. */
static dsc_gemm_args product_of(const dsc_conv2d_shape *s, dsc_conv2d_pass pass, int64_t rows, dsc_dtype dtype,
                                bool more)
{
    const int64_t in = s->in / s->groups, out = s->out / s->groups, k = columns_of(s, pass);
    const bool own = gathers(s);
    if (pass == DSC_CONV2D_DW)
        return (dsc_gemm_args) { .m = out,
                                 .n = k,
                                 .k = rows,
                                 .lda = s->out,
                                 .ldb = own ? k : s->in,
                                 .ldc = k,
                                 .a_transposed = true,
                                 .accumulate = more,
                                 .ab_dtype = dtype,
                                 .c_dtype = DSC_F32 };
    if (pass == DSC_CONV2D_DX)
        return (dsc_gemm_args) { .m = rows,
                                 .n = in,
                                 .k = k,
                                 .lda = own ? k : s->out,
                                 .ldb = in,
                                 .ldc = s->in,
                                 .epilogue = more ? DSC_EPILOGUE_ADD : DSC_EPILOGUE_NONE,
                                 .ab_dtype = dtype,
                                 .c_dtype = dtype };
    return (dsc_gemm_args) { .m = rows,
                             .n = out,
                             .k = k,
                             .lda = own ? k : s->in,
                             .ldb = k,
                             .ldc = s->out,
                             .b_transposed = true,
                             .epilogue = more ? DSC_EPILOGUE_BIAS : DSC_EPILOGUE_NONE,
                             .ab_dtype = dtype,
                             .c_dtype = dtype };
}

static dsc_status report(const dsc_linear_planned *gemms, const dsc_conv2d_shape *s, dsc_conv2d_pass pass, int64_t rows,
                         bool more, dsc_error *err)
{
    const dsc_gemm_args args = product_of(s, pass, rows, gemms->dtype, more);
    if (gemms->sink == NULL || gemms->sink->gemm == NULL || rows < 1)
        return DSC_OK;
    return gemms->sink->gemm(gemms->sink->user, &args, err);
}

/* The shapes of a pass: those of its chunks, and of the last one. dx with a sum so far and without. */
static dsc_status report_pass(const dsc_linear_planned *gemms, const dsc_conv2d_layer *layer, dsc_conv2d_pass pass,
                              dsc_error *err)
{
    const dsc_conv2d_shape *s = &layer->shape;
    const int64_t chunk_bytes = gemms->sink != NULL ? gemms->sink->chunk_bytes : 0;
    const int64_t rows = rows_of(s, pass), chunk = chunk_of(s, pass, gemms->dtype, chunk_bytes);
    const bool on_cpu = gemms->sink != NULL && !gemms->sink->joins_input_gradients;
    if (is_depthwise(s) || rows < 1 || (on_cpu && s->groups == 1 && gemms->dtype != DSC_F16))
        return DSC_OK;
    const int64_t last = rows - (dsc_div_ceil(rows, chunk) - 1) * chunk;
    const bool bias = pass == DSC_CONV2D_Y && layer->bias >= 0;
    DSC_TRY(report(gemms, s, pass, chunk, bias, err));
    if (last != chunk && pass != DSC_CONV2D_DW)
        DSC_TRY(report(gemms, s, pass, last, bias, err));
    if (pass == DSC_CONV2D_Y || (pass == DSC_CONV2D_DW && chunk == rows))
        return DSC_OK;
    DSC_TRY(report(gemms, s, pass, chunk, true, err));
    return last != chunk ? report(gemms, s, pass, last, true, err) : DSC_OK;
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

static void *at(const void *base, int64_t elements, dsc_dtype dtype)
{
    return base != NULL ? (char *)(uintptr_t)base + elements * (int64_t)dsc_dtype_bytes(dtype) : NULL;
}

/* The weight in another order; of windows of one pixel it is the same. */
static dsc_status order_weight(const dsc_call *call, const dsc_conv2d_layer *layer, dsc_conv2d_order order,
                               void *scratch, const void **out)
{
    const dsc_conv2d_weight_args args = { .out = scratch,
                                          .in = call->ctx->param[layer->weight],
                                          .order = order,
                                          .shape = layer->shape,
                                          .dtype = call->ctx->dtype };
    *out = args.in;
    if (dsc_conv2d_taps(&layer->shape) == 1)
        return DSC_OK;
    *out = scratch;
    return DSC_RUN(call->ctx->stream, CONV2D_WEIGHT, &args, call->err);
}

/* Rows of windows of one group, or x or dy itself. */
static dsc_status gather(const dsc_call *call, const dsc_conv2d_shape *s, dsc_conv2d_pass pass, int64_t group,
                         int64_t first, int64_t rows, const void *in, void *scratch, const void **out)
{
    const int64_t channels = (pass == DSC_CONV2D_DX ? s->out : s->in) / s->groups;
    const dsc_windows_args args = { .out = scratch,
                                    .in = in,
                                    .first = first,
                                    .rows = rows,
                                    .group = group,
                                    .back = pass == DSC_CONV2D_DX,
                                    .shape = *s,
                                    .dtype = call->ctx->dtype };
    *out = at(in, first * channels * s->groups + group * channels, call->ctx->dtype);
    if (!gathers(s))
        return DSC_OK;
    *out = scratch;
    return DSC_RUN(call->ctx->stream, WINDOWS, &args, call->err);
}

static dsc_status depthwise(const dsc_call *call, const dsc_conv2d_layer *layer, bool back, void *out, const void *in,
                            const void *add, void *scratch)
{
    dsc_depthwise_args args = { .out = out, .in = in, .add = add, .shape = layer->shape, .dtype = call->ctx->dtype };
    DSC_TRY(order_weight(call, layer, DSC_CONV2D_DEPTHWISE, scratch, &args.weight));
    return back ? DSC_RUN(call->ctx->stream, DEPTHWISE_DX, &args, call->err)
                : DSC_RUN(call->ctx->stream, DEPTHWISE_FWD, &args, call->err);
}

/* y or dx: products of chunks of windows with the ordered weight. `add`: the bias, or the sum so far. */
static dsc_status products(const dsc_call *call, const dsc_conv2d_shape *s, dsc_conv2d_pass pass, void *out,
                           const void *in, const void *weight, void *add, void *windows)
{
    const dsc_dtype dtype = call->ctx->dtype;
    const bool back = pass == DSC_CONV2D_DX;
    const int64_t rows = rows_of(s, pass), chunk = chunk_of(s, pass, dtype, call->ctx->chunk_bytes);
    const int64_t columns = (back ? s->in : s->out) / s->groups, weights = dsc_conv2d_weights(s) / s->groups;
    for (int64_t first = 0; first < rows; first += chunk)
        for (int64_t g = 0; g < s->groups; g++) {
            const int64_t to = first * columns * s->groups + g * columns;
            dsc_gemm_args args = product_of(s, pass, dsc_min_i64(chunk, rows - first), dtype, add != NULL);
            DSC_TRY(gather(call, s, pass, g, first, args.m, in, windows, &args.a));
            args.b = at(weight, g * weights, dtype);
            args.c = at(out, to, dtype);
            args.bias = back ? NULL : at(add, g * columns, dtype);
            args.aux = back ? at(add, to, dtype) : NULL;
            DSC_TRY(DSC_RUN(call->ctx->stream, GEMM, &args, call->err));
        }
    return DSC_OK;
}

/* One launch for a pass. */
static dsc_status whole(const dsc_call *call, const dsc_conv2d_layer *layer, dsc_conv2d_pass pass, void *out,
                        const void *in, const void *with, const void *add, void *scratch)
{
    const dsc_conv2d_args args = { .pass = pass,
                                   .out = out,
                                   .in = in,
                                   .with = with,
                                   .add = add,
                                   .scratch = scratch,
                                   .shape = layer->shape,
                                   .dtype = call->ctx->dtype };
    return DSC_RUN(call->ctx->stream, CONV2D, &args, call->err);
}

dsc_status dsc_conv2d_run(const dsc_call *call, const dsc_conv2d_layer *layer, void *y, const void *x, void *scratch)
{
    const dsc_conv2d_shape *s = &layer->shape;
    const layout place = lay(s, DSC_CONV2D_Y, call->ctx->dtype, call->ctx->chunk_bytes);
    const void *bias = layer->bias >= 0 ? call->ctx->param[layer->bias] : NULL, *weight;
    if (is_depthwise(s))
        return depthwise(call, layer, false, y, x, bias, scratch);
    if (is_whole(call, s))
        return whole(call, layer, DSC_CONV2D_Y, y, x, call->ctx->param[layer->weight], bias, scratch);
    DSC_TRY(order_weight(call, layer, DSC_CONV2D_FORWARD, scratch, &weight));
    return products(call, s, DSC_CONV2D_Y, y, x, weight, (void *)(uintptr_t)bias, (char *)scratch + place.windows);
}

dsc_status dsc_conv2d_backward(const dsc_call *call, const dsc_conv2d_layer *layer, void *dx, const void *dy, void *sum,
                               void *scratch)
{
    const dsc_conv2d_shape *s = &layer->shape;
    const layout place = lay(s, DSC_CONV2D_DX, call->ctx->dtype, call->ctx->chunk_bytes);
    const void *weight;
    if (is_depthwise(s))
        return depthwise(call, layer, true, dx, dy, sum, scratch);
    if (is_whole(call, s))
        return whole(call, layer, DSC_CONV2D_DX, dx, dy, call->ctx->param[layer->weight], sum, scratch);
    DSC_TRY(order_weight(call, layer, DSC_CONV2D_BACK, scratch, &weight));
    return products(call, s, DSC_CONV2D_DX, dx, dy, weight, sum, (char *)scratch + place.windows);
}

/* The weight's gradient in the order of windows' columns. */
static dsc_status add_chunks(const dsc_call *call, const dsc_conv2d_shape *s, float *d_weight, const void *x,
                             const void *dy, void *windows)
{
    const dsc_dtype dtype = call->ctx->dtype;
    const int64_t rows = rows_of(s, DSC_CONV2D_DW), chunk = chunk_of(s, DSC_CONV2D_DW, dtype, call->ctx->chunk_bytes);
    const int64_t out = s->out / s->groups, weights = dsc_conv2d_weights(s) / s->groups;
    for (int64_t first = 0; first < rows; first += chunk)
        for (int64_t g = 0; g < s->groups; g++) {
            dsc_gemm_args args = product_of(s, DSC_CONV2D_DW, dsc_min_i64(chunk, rows - first), dtype, first > 0);
            DSC_TRY(gather(call, s, DSC_CONV2D_DW, g, first, args.k, x, windows, &args.b));
            args.a = at(dy, first * s->out + g * out, dtype);
            args.c = d_weight + g * weights;
            DSC_TRY(DSC_RUN(call->ctx->stream, GEMM, &args, call->err));
        }
    return DSC_OK;
}

static dsc_status weight_gradient(const dsc_call *call, const dsc_conv2d_layer *layer, float *d_weight, const void *x,
                                  const void *dy, void *scratch)
{
    const dsc_conv2d_shape *s = &layer->shape;
    const layout place = lay(s, DSC_CONV2D_DW, call->ctx->dtype, call->ctx->chunk_bytes);
    const dsc_depthwise_dw_args direct = { d_weight, x, dy, scratch, *s, call->ctx->dtype };
    const dsc_conv2d_weight_args order = { d_weight, scratch, DSC_CONV2D_GRADIENT, *s, DSC_F32 };
    const bool ordered = dsc_conv2d_taps(s) == 1;
    if (is_depthwise(s))
        return DSC_RUN(call->ctx->stream, DEPTHWISE_DW, &direct, call->err);
    if (is_whole(call, s))
        return whole(call, layer, DSC_CONV2D_DW, d_weight, x, dy, NULL, scratch);
    DSC_TRY(add_chunks(call, s, ordered ? d_weight : scratch, x, dy, (char *)scratch + place.windows));
    return ordered ? DSC_OK : DSC_RUN(call->ctx->stream, CONV2D_WEIGHT, &order, call->err);
}

dsc_status dsc_conv2d_gradients(const dsc_call *call, const dsc_conv2d_layer *layer, const void *x, const void *dy,
                                void *scratch)
{
    float *const d_weight = call->ctx->grad[layer->weight];
    float *const d_bias = layer->bias >= 0 ? call->ctx->grad[layer->bias] : NULL;
    const dsc_colsum_args sum = { .out = d_bias,
                                  .x = dy,
                                  .rows = rows_of(&layer->shape, DSC_CONV2D_DW),
                                  .cols = layer->shape.out,
                                  .ld = layer->shape.out,
                                  .x_dtype = call->ctx->dtype };
    if (d_bias != NULL)
        DSC_TRY(DSC_RUN(call->ctx->stream, COLSUM, &sum, call->err));
    return d_weight != NULL ? weight_gradient(call, layer, d_weight, x, dy, scratch) : DSC_OK;
}
