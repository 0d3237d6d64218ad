/* conv2d_products.c - see conv2d_products.h. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/conv2d_products.h"

/* Bytes of a chunk of windows at most: what a CPU's caches hold, and what fills a GPU with one product. */
enum { WINDOWS_BYTES = 4 << 20, GPU_WINDOWS_BYTES = 64 << 20 };
enum { ROWS_UNIT = 64 }; /* rows of a chunk are a multiple */

bool dsc_conv2d_gathers(const dsc_conv2d_shape *s)
{
    bool other = dsc_conv2d_taps(s) > 1;
    for (int i = 0; i < 2; i++)
        other = other || s->stride[i] != 1 || s->padding[i] != 0;
    return other;
}

/* A convolution that gathers no windows, or one of each picture, is a linear layer. */
static bool fits_cudnn(const dsc_conv2d_args *a)
{
    const dsc_conv2d_shape *s = &a->shape;
    return s->groups == 1 && s->batch > 0 && (a->dtype == DSC_BF16 || a->dtype == DSC_F32) && dsc_conv2d_gathers(s) &&
           dsc_conv2d_out(s, 0) * dsc_conv2d_out(s, 1) > 1;
}

/* Where the config leaves it open, the choice must follow from card and shape, or from times where these may choose. In
 * fp32 no time of cuDNN is known. */
bool dsc_conv2d_wants_cudnn(const dsc_conv2d_args *a, dsc_cudnn_use use, dsc_gemm_choice choice, int32_t arch)
{
    if (!fits_cudnn(a) || use != DSC_CUDNN_AUTO)
        return fits_cudnn(a) && use == DSC_CUDNN_ALWAYS;
    return choice == DSC_GEMM_FASTEST || (choice == DSC_GEMM_SAME_BITS && arch == 90 && a->dtype == DSC_BF16);
}

int64_t dsc_conv2d_rows(const dsc_conv2d_shape *s, dsc_conv2d_pass pass)
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
    const int64_t rows = dsc_conv2d_rows(s, pass), row = columns_of(s, pass) * (int64_t)dsc_dtype_bytes(dtype);
    const int64_t bytes = chunk_bytes > 0 ? dsc_min_i64(chunk_bytes, GPU_WINDOWS_BYTES) : WINDOWS_BYTES;
    const int64_t most = dsc_max_i64(1, bytes / row / ROWS_UNIT) * ROWS_UNIT;
    if (!dsc_conv2d_gathers(s) || rows <= most)
        return rows;
    return dsc_align_up(dsc_div_ceil(rows, dsc_div_ceil(rows, most)), ROWS_UNIT);
}

/* ---- scratch ----------------------------------------------------------------------------------------------------- */

/* Bytes of the weight in another order, or of a gradient's in fp32; windows lie behind it. */
static int64_t weight_bytes(const dsc_conv2d_shape *s, dsc_conv2d_pass pass, dsc_dtype dtype)
{
    const dsc_dtype type = pass == DSC_CONV2D_DW ? DSC_F32 : dtype;
    const int64_t bytes = dsc_conv2d_weights(s) * (int64_t)dsc_dtype_bytes(type);
    return dsc_conv2d_taps(s) > 1 ? dsc_align_up(bytes, 256) : 0;
}

int64_t dsc_conv2d_products_scratch(const dsc_conv2d_shape *s, dsc_conv2d_pass pass, dsc_dtype dtype,
                                    int64_t chunk_bytes)
{
    const int64_t windows =
        chunk_of(s, pass, dtype, chunk_bytes) * columns_of(s, pass) * (int64_t)dsc_dtype_bytes(dtype);
    return weight_bytes(s, pass, dtype) + (dsc_conv2d_gathers(s) ? dsc_align_up(windows, 256) : 0);
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* The product of `rows` rows of one group. `more`: the bias or the sum is added, or a further chunk of a gradient. */
static dsc_gemm_args product_of(const dsc_conv2d_shape *s, dsc_conv2d_pass pass, int64_t rows, dsc_dtype dtype,
                                bool more)
{
    const int64_t in = s->in / s->groups, out = s->out / s->groups, k = columns_of(s, pass);
    const bool own = dsc_conv2d_gathers(s);
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

/* The shapes of a pass: those of its chunks, and of the last one. */
dsc_status dsc_conv2d_products_list(const dsc_conv2d_shape *s, dsc_conv2d_pass pass, dsc_dtype dtype,
                                    int64_t chunk_bytes, bool adds, dsc_conv2d_product_fn fn, void *user,
                                    dsc_error *err)
{
    const int64_t rows = dsc_conv2d_rows(s, pass), chunk = chunk_of(s, pass, dtype, chunk_bytes);
    if (rows < 1)
        return DSC_OK;
    const int64_t last = rows - (dsc_div_ceil(rows, chunk) - 1) * chunk;
    const bool one_kind = pass == DSC_CONV2D_Y || (pass == DSC_CONV2D_DW && chunk == rows);
    for (int more = 0; more < (one_kind ? 1 : 2); more++) {
        const bool with = one_kind ? pass == DSC_CONV2D_Y && adds : more == 1;
        const dsc_gemm_args whole = product_of(s, pass, chunk, dtype, with),
                            rest = product_of(s, pass, last, dtype, with);
        DSC_TRY(fn(user, &whole, err));
        if (last != chunk && (pass != DSC_CONV2D_DW || with))
            DSC_TRY(fn(user, &rest, err));
    }
    return DSC_OK;
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

static void *at(const void *base, int64_t elements, dsc_dtype dtype)
{
    return base != NULL ? (char *)(uintptr_t)base + elements * (int64_t)dsc_dtype_bytes(dtype) : NULL;
}

/* Rows of windows of one group, or x or dy itself. */
static dsc_status gather(const dsc_conv2d_launcher *to, const dsc_conv2d_args *a, int64_t group, int64_t first,
                         int64_t rows, void *windows, const void **out, dsc_error *err)
{
    const dsc_conv2d_shape *s = &a->shape;
    const bool back = a->pass == DSC_CONV2D_DX;
    const int64_t channels = (back ? s->out : s->in) / s->groups;
    const dsc_windows_args args = { .out = windows,
                                    .in = a->in,
                                    .first = first,
                                    .rows = rows,
                                    .group = group,
                                    .back = back,
                                    .shape = *s,
                                    .dtype = a->dtype };
    *out = at(a->in, first * channels * s->groups + group * channels, a->dtype);
    if (!dsc_conv2d_gathers(s))
        return DSC_OK;
    *out = windows;
    return to->launch(to->user, DSC_KERNEL_WINDOWS, &args, (int64_t)sizeof args, err);
}

/* y or dx: products of chunks of windows with the ordered weight. */
static dsc_status make_pixels(const dsc_conv2d_launcher *to, const dsc_conv2d_args *a, int64_t chunk,
                              const void *weight, void *windows, dsc_error *err)
{
    const dsc_conv2d_shape *s = &a->shape;
    const bool back = a->pass == DSC_CONV2D_DX;
    const int64_t rows = dsc_conv2d_rows(s, a->pass), columns = (back ? s->in : s->out) / s->groups;
    const int64_t weights = dsc_conv2d_weights(s) / s->groups;
    for (int64_t first = 0; first < rows; first += chunk)
        for (int64_t g = 0; g < s->groups; g++) {
            const int64_t place = first * columns * s->groups + g * columns;
            dsc_gemm_args args = product_of(s, a->pass, dsc_min_i64(chunk, rows - first), a->dtype, a->add != NULL);
            DSC_TRY(gather(to, a, g, first, args.m, windows, &args.a, err));
            args.b = at(weight, g * weights, a->dtype);
            args.c = at(a->out, place, a->dtype);
            args.bias = back ? NULL : at(a->add, g * columns, a->dtype);
            args.aux = back ? at(a->add, place, a->dtype) : NULL;
            DSC_TRY(to->launch(to->user, DSC_KERNEL_GEMM, &args, (int64_t)sizeof args, err));
        }
    return DSC_OK;
}

/* The weight's gradient in the order of windows' columns. */
static dsc_status make_gradient(const dsc_conv2d_launcher *to, const dsc_conv2d_args *a, int64_t chunk, float *d_weight,
                                void *windows, dsc_error *err)
{
    const dsc_conv2d_shape *s = &a->shape;
    const int64_t rows = dsc_conv2d_rows(s, DSC_CONV2D_DW), out = s->out / s->groups;
    for (int64_t first = 0; first < rows; first += chunk)
        for (int64_t g = 0; g < s->groups; g++) {
            dsc_gemm_args args = product_of(s, DSC_CONV2D_DW, dsc_min_i64(chunk, rows - first), a->dtype, first > 0);
            DSC_TRY(gather(to, a, g, first, args.k, windows, &args.b, err));
            args.a = at(a->with, first * s->out + g * out, a->dtype);
            args.c = d_weight + g * (dsc_conv2d_weights(s) / s->groups);
            DSC_TRY(to->launch(to->user, DSC_KERNEL_GEMM, &args, (int64_t)sizeof args, err));
        }
    return DSC_OK;
}

/* A weight of windows of one pixel is the same in each order. */
dsc_status dsc_conv2d_products_run(const dsc_conv2d_launcher *to, const dsc_conv2d_args *a, int64_t chunk_bytes,
                                   dsc_error *err)
{
    const dsc_conv2d_shape *s = &a->shape;
    const bool gradient = a->pass == DSC_CONV2D_DW, ordered = dsc_conv2d_taps(s) == 1;
    const dsc_conv2d_weight_args order = { .out = gradient ? a->out : a->scratch,
                                           .in = gradient ? a->scratch : a->with,
                                           .order = gradient                   ? DSC_CONV2D_GRADIENT
                                                    : a->pass == DSC_CONV2D_DX ? DSC_CONV2D_BACK
                                                                               : DSC_CONV2D_FORWARD,
                                           .shape = *s,
                                           .dtype = gradient ? DSC_F32 : a->dtype };
    const int64_t chunk = chunk_of(s, a->pass, a->dtype, chunk_bytes);
    void *const windows = (char *)a->scratch + weight_bytes(s, a->pass, a->dtype);
    if (!ordered && !gradient)
        DSC_TRY(to->launch(to->user, DSC_KERNEL_CONV2D_WEIGHT, &order, (int64_t)sizeof order, err));
    if (!gradient)
        return make_pixels(to, a, chunk, ordered ? a->with : a->scratch, windows, err);
    DSC_TRY(make_gradient(to, a, chunk, ordered ? a->out : a->scratch, windows, err));
    return ordered ? DSC_OK : to->launch(to->user, DSC_KERNEL_CONV2D_WEIGHT, &order, (int64_t)sizeof order, err);
}
