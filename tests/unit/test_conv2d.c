/* test_conv2d.c - convolutions of pictures: products of several chunks against sums in double, equal bits for any
 * number of threads, FLOPs and products of a plan, and refusals. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "base/base.h"
#include "base/rng.h"
#include "kernels/device.h"
#include "kernels/scalar.h"
#include "models/program.h"

/* Of more than one chunk of windows: 4 MiB. */
static const dsc_conv2d_shape shapes[] = {
    { 2, 61, 64, 24, 8, 1, { 3, 3 }, { 1, 1 }, { 1, 1 }, { 1, 1 } },
    { 3, 33, 31, 12, 20, 2, { 3, 3 }, { 2, 2 }, { 1, 1 }, { 1, 1 } },
    { 2, 20, 23, 16, 8, 1, { 3, 3 }, { 1, 1 }, { 2, 2 }, { 2, 2 } },
    { 2, 41, 40, 3, 16, 1, { 7, 7 }, { 2, 2 }, { 3, 3 }, { 1, 1 } },
    { 2, 14, 15, 24, 16, 1, { 1, 1 }, { 2, 2 }, { 0, 0 }, { 1, 1 } },
    { 2, 14, 15, 24, 16, 4, { 1, 1 }, { 1, 1 }, { 0, 0 }, { 1, 1 } },
    { 2, 19, 17, 40, 40, 40, { 3, 3 }, { 2, 2 }, { 1, 1 }, { 1, 1 } },
};

/* Operands of the three passes. */
typedef struct operands {
    const dsc_conv2d_shape *s;
    dsc_dtype dtype;
    int64_t x_count, y_count, w_count;
    void *x, *y, *w, *bias, *dx, *dy, *sum;
    float *dw, *db;
} operands;

static void *take(int64_t count, dsc_dtype dtype)
{
    void *at = aligned_alloc(256, (size_t)dsc_align_up(count * (int64_t)dsc_dtype_bytes(dtype) + 1, 256));
    assert_non_null(at);
    memset(at, 0xff, (size_t)(count * (int64_t)dsc_dtype_bytes(dtype)));
    return at;
}

static void *draw(int64_t count, dsc_dtype dtype, uint32_t stream)
{
    void *at = take(count, dtype);
    for (int64_t i = 0; i < count; i++)
        dsc_put(at, i, dtype,
                (float)(dsc_rng_u32(1, dsc_rng_stream(DSC_RNG_TEST, stream), (uint64_t)i) % 2001) / 1024 - 1);
    return at;
}

static operands open_operands(const dsc_conv2d_shape *s, dsc_dtype dtype)
{
    operands o = { .s = s, .dtype = dtype };
    o.x_count = s->batch * s->height * s->width * s->in;
    o.y_count = s->batch * dsc_conv2d_out(s, 0) * dsc_conv2d_out(s, 1) * s->out;
    o.w_count = dsc_conv2d_weights(s);
    o.x = draw(o.x_count, dtype, 1), o.w = draw(o.w_count, dtype, 2), o.bias = draw(s->out, dtype, 3);
    o.dy = draw(o.y_count, dtype, 4), o.sum = draw(o.x_count, dtype, 5);
    o.y = take(o.y_count, dtype), o.dx = take(o.x_count, dtype);
    o.dw = take(o.w_count, DSC_F32), o.db = take(s->out, DSC_F32);
    return o;
}

static void close_operands(operands *o)
{
    void *all[] = { o->x, o->y, o->w, o->bias, o->dx, o->dy, o->sum, o->dw, o->db };
    for (size_t i = 0; i < DSC_COUNT(all); i++)
        free(all[i]);
}

/* Forward and backward; dx is added to `sum`. Each pass has the scratch that a CPU's plan gives it. */
static void run(operands *o, int32_t threads, int64_t chunk_bytes)
{
    dsc_error err = DSC_ERROR_INIT;
    dsc_alloc *alloc = NULL;
    dsc_device *device = NULL;
    dsc_stream *stream = NULL;
    assert_int_equal(dsc_alloc_open(&alloc, &err), DSC_OK);
    const dsc_device_options options = { .alloc = alloc, .threads = threads, .caps = 0xffffffffu };
    assert_int_equal(dsc_device_open(&dsc_device_cpu, &device, &options, &err), DSC_OK);
    assert_int_equal(dsc_stream_open(device, DSC_STREAM_COMPUTE, "compute", &stream, &err), DSC_OK);
    const void *const params[] = { o->w, o->bias };
    float *const grads[] = { o->dw, o->db };
    dsc_module_ctx ctx = {
        .stream = stream, .dtype = o->dtype, .param = params, .grad = grads, .chunk_bytes = chunk_bytes
    };
    const dsc_call call = { .ctx = &ctx, .err = &err };
    const dsc_conv2d_layer layer = { *o->s, 0, 1 };
    for (int pass = 0; pass < 3; pass++) {
        const int64_t bytes =
            dsc_conv2d_scratch_bytes(&layer, (dsc_conv2d_pass)pass, true, o->dtype, chunk_bytes, false);
        char *scratch = take(bytes + 256, DSC_U8);
        memset(scratch + bytes, 0xA5, 256);
        const dsc_status status = pass == DSC_CONV2D_Y ? dsc_conv2d_run(&call, &layer, o->y, o->x, scratch)
                                  : pass == DSC_CONV2D_DX
                                      ? dsc_conv2d_backward(&call, &layer, o->dx, o->dy, o->sum, scratch)
                                      : dsc_conv2d_gradients(&call, &layer, o->x, o->dy, scratch);
        if (status != DSC_OK)
            fail_msg("%s", err.message);
        assert_int_equal(dsc_stream_sync(stream, &err), DSC_OK);
        for (int i = 0; i < 256; i++)
            assert_int_equal((unsigned char)scratch[bytes + i], 0xA5);
        free(scratch);
    }
    dsc_stream_close(&stream);
    dsc_device_close(&device);
    dsc_alloc_close(&alloc);
}

/* The same in double, by adding each product where it belongs. */
static void reference(const operands *o, double *y, double *dx, double *dw, double *db)
{
    const dsc_conv2d_shape *s = o->s;
    const int64_t in = s->in / s->groups, out = s->out / s->groups, taps = dsc_conv2d_taps(s);
    const int64_t across = dsc_conv2d_out(s, 1), down = dsc_conv2d_out(s, 0);
    for (int64_t i = 0; i < o->x_count; i++)
        dx[i] = (double)dsc_get(o->sum, i, o->dtype);
    for (int64_t n = 0; n < o->y_count; n++) {
        const int64_t f = n % s->out, row = n / s->out, b = row / (down * across);
        const double d = (double)dsc_get(o->dy, n, o->dtype);
        y[n] = (double)dsc_get(o->bias, f, o->dtype);
        db[f] += d;
        for (int64_t k = 0; k < taps; k++) {
            const int64_t h = row / across % down * s->stride[0] - s->padding[0] + k / s->kernel[1] * s->dilation[0];
            const int64_t v = row % across * s->stride[1] - s->padding[1] + k % s->kernel[1] * s->dilation[1];
            for (int64_t c = 0; c < in && h >= 0 && h < s->height && v >= 0 && v < s->width; c++) {
                const int64_t at = ((b * s->height + h) * s->width + v) * s->in + f / out * in + c;
                const int64_t w = (f * in + c) * taps + k;
                y[n] += (double)dsc_get(o->x, at, o->dtype) * (double)dsc_get(o->w, w, o->dtype);
                dx[at] += d * (double)dsc_get(o->w, w, o->dtype);
                dw[w] += d * (double)dsc_get(o->x, at, o->dtype);
            }
        }
    }
}

/* In units of the tensor's root mean square. */
static void expect_near(const void *got, const double *expected, int64_t count, dsc_dtype dtype, dsc_dtype of,
                        const char *what)
{
    double squares = 0, most = 0;
    for (int64_t i = 0; i < count; i++)
        squares += expected[i] * expected[i];
    for (int64_t i = 0; i < count; i++) {
        const double error = fabs((double)dsc_get(got, i, dtype) - expected[i]);
        most = error <= most ? most : error;
    }
    const double bound = (dtype == DSC_F32 ? 2e-5 : of == DSC_F16 ? 2e-3 : 2e-2) * sqrt(squares / (double)count);
    if (!(most < bound))
        fail_msg("%s of %s: off by %g, bound %g", what,
                 of == DSC_F32    ? "f32"
                 : of == DSC_BF16 ? "bf16"
                                  : "f16",
                 most, bound);
}

static void chunks_agree_with_sums_in_double(void **state)
{
    (void)state;
    for (dsc_dtype dtype = DSC_F32; dtype <= DSC_F16; dtype++)
        for (size_t i = 0; i < DSC_COUNT(shapes); i++) {
            operands o = open_operands(&shapes[i], dtype);
            double *y = calloc((size_t)o.y_count, sizeof *y), *dx = calloc((size_t)o.x_count, sizeof *dx);
            double *dw = calloc((size_t)o.w_count, sizeof *dw), *db = calloc((size_t)shapes[i].out, sizeof *db);
            assert_true(y != NULL && dx != NULL && dw != NULL && db != NULL);
            run(&o, 2, 0);
            reference(&o, y, dx, dw, db);
            expect_near(o.y, y, o.y_count, dtype, dtype, "y");
            expect_near(o.dx, dx, o.x_count, dtype, dtype, "dx");
            expect_near(o.dw, dw, o.w_count, DSC_F32, dtype, "dw");
            expect_near(o.db, db, shapes[i].out, DSC_F32, dtype, "db");
            free(y), free(dx), free(dw), free(db);
            close_operands(&o);
        }
}

static void threads_do_not_change_a_bit(void **state)
{
    (void)state;
    static const int32_t threads[] = { 2, 4 };
    for (dsc_dtype dtype = DSC_F32; dtype <= DSC_BF16; dtype++)
        for (size_t i = 0; i < DSC_COUNT(shapes); i++) {
            operands one = open_operands(&shapes[i], dtype);
            run(&one, 1, 0);
            for (size_t t = 0; t < DSC_COUNT(threads); t++) {
                operands o = open_operands(&shapes[i], dtype);
                const size_t each = dsc_dtype_bytes(dtype);
                run(&o, threads[t], 0);
                assert_memory_equal(o.y, one.y, (size_t)o.y_count * each);
                assert_memory_equal(o.dx, one.dx, (size_t)o.x_count * each);
                assert_memory_equal(o.dw, one.dw, (size_t)o.w_count * 4);
                assert_memory_equal(o.db, one.db, (size_t)shapes[i].out * 4);
                close_operands(&o);
            }
            close_operands(&one);
        }
}

/* "dsc.head_chunk_bytes" may be given for a CPU, which has most passes as a whole all the same. */
static void given_chunks_do_not_shorten_the_scratch(void **state)
{
    (void)state;
    static const dsc_conv2d_shape large = { 1, 32, 32, 64, 64, 1, { 3, 3 }, { 1, 1 }, { 1, 1 }, { 1, 1 } };
    for (dsc_dtype dtype = DSC_F32; dtype <= DSC_BF16; dtype++) {
        operands o = open_operands(&large, dtype), given = open_operands(&large, dtype);
        const size_t each = dsc_dtype_bytes(dtype);
        run(&o, 8, 0);
        run(&given, 8, INT64_C(64) << 20);
        assert_memory_equal(o.y, given.y, (size_t)o.y_count * each);
        assert_memory_equal(o.dx, given.dx, (size_t)o.x_count * each);
        assert_memory_equal(o.dw, given.dw, (size_t)o.w_count * 4);
        close_operands(&o);
        close_operands(&given);
    }
}

/* ---- plans and refusals ------------------------------------------------------------------------------------------ */

static dsc_program program;

static const dsc_program_conv2d_args usual = { .name = "conv", .out = 8, .kernel = { 3, 3 }, .padding = { 1, 1 } };

static dsc_status count_products(void *user, const dsc_gemm_args *shape, dsc_error *err)
{
    (void)shape, (void)err;
    ++*(int *)user;
    return DSC_OK;
}

static void a_plan_has_flops_and_products(void **state)
{
    (void)state;
    const dsc_program_options options = { 0 };
    const dsc_param_spec params[] = { { .name = "p", .trainable = true }, { .name = "q", .trainable = true } };
    const dsc_module module = { .params = params, .param_count = 2 };
    dsc_program_conv2d_args args = usual;
    int products = 0;
    /* A GPU: a CPU convolves in one launch. */
    const dsc_plan_sink sink = { .gemm = count_products, .user = &products, .joins_input_gradients = true };
    dsc_module_plan plan;
    args.stride[0] = args.stride[1] = 2, args.bias = true;
    dsc_program_begin_picture(&program, 10, 12, 6);
    const int16_t y = dsc_program_conv2d(&program, program.input, &args);
    assert_int_equal(program.value[y].height, 5);
    assert_int_equal(program.value[y].width, 6);
    dsc_program_end(&program, dsc_program_activation(&program, y, DSC_RELU));
    assert_int_equal(program.value[program.output].height, 5);
    assert_int_equal(dsc_program_compile(&program, &options, NULL), DSC_OK);
    assert_int_equal(dsc_program_plan(&program, &module, NULL, 3, DSC_F32, &sink, &plan, NULL), DSC_OK);
    assert_int_equal(plan.out_elements, 3 * 30 * 8);
    assert_true(plan.forward_flops == 2.0 * 3 * 30 * 8 * 9 * 6);
    assert_true(plan.backward_flops == 2 * plan.forward_flops);
    assert_int_equal(products, 4); /* y, dx without and with a sum, dw */
    const double flops = plan.forward_flops;
    char text[20000];
    (void)dsc_program_show(&program, 3, DSC_F32, text, sizeof text);
    assert_non_null(strstr(text, "conv2d         in.0 -> conv.1 of 3 x 3 stride 2 x 2  0.07776 MFLOP"));
    assert_non_null(strstr(text, "conv2d_dw"));
    dsc_program_begin_pictures(&program, 4, 10, 12, 6);
    dsc_program_end(&program, dsc_program_conv2d(&program, program.input, &args));
    assert_int_equal(dsc_program_compile(&program, &options, NULL), DSC_OK);
    assert_int_equal(dsc_program_plan(&program, &module, NULL, 3, DSC_F32, NULL, &plan, NULL), DSC_OK);
    assert_true(plan.forward_flops == 4 * flops);
    assert_true(plan.backward_flops == 2 * plan.forward_flops);
}

static void one_pixel_is_a_linear_layer(void **state)
{
    (void)state;
    const dsc_program_conv2d_args args = { .name = "conv", .out = 8, .kernel = { 1, 1 } };
    dsc_program_begin_picture(&program, 4, 3, 6);
    const int16_t y = dsc_program_conv2d(&program, program.input, &args);
    assert_int_equal(program.op[program.value[y].maker].kind, DSC_OP_LINEAR);
    assert_int_equal(program.param[0].dim_count, 4);
    assert_int_equal(program.value[y].height, 4);
    assert_int_equal(program.value[y].width, 3);
}

static void refuse(const dsc_program_conv2d_args *args, const char *words)
{
    dsc_program_begin_picture(&program, 4, 3, 6);
    assert_int_equal(dsc_program_conv2d(&program, program.input, args), DSC_PROGRAM_NONE);
    if (strstr(program.err.message, words) == NULL)
        fail_msg("\"%s\" is not in \"%s\"", words, program.err.message);
}

static void refusals_name_op_and_shapes(void **state)
{
    (void)state;
    dsc_program_conv2d_args args = usual;
    args.groups = 4;
    refuse(&args, "op \"conv\" (conv2d): 4 groups do not divide the 6 columns of \"in\" and its own 8");
    args = usual, args.kernel[1] = 6;
    refuse(&args, "its window of 3 by 6, 1 by 1 pixels apart, does not fit into pictures of 4 by 3");
    args = usual, args.stride[0] = -1;
    refuse(&args, "op \"conv\" (conv2d): kernel 3, stride -1, padding 1, dilation 1; expected 1 to 4096");
    args = usual, args.kernel[0] = INT64_MAX;
    refuse(&args, "op \"conv\" (conv2d): kernel 9223372036854775807");
    args = usual, args.out = 0;
    refuse(&args, "op \"conv\" (conv2d): 0 columns");
    dsc_program_begin(&program, 12, 6, DSC_PROGRAM_NONE);
    assert_int_equal(dsc_program_conv2d(&program, program.input, &usual), DSC_PROGRAM_NONE);
    assert_non_null(strstr(program.err.message, "its input \"in\" [12,6] is not a picture"));
    dsc_program_begin_picture(&program, 4, 3, 6);
    const int16_t some = dsc_program_pick(&program, program.input, 0, 12, false);
    assert_int_equal(dsc_program_conv2d(&program, some, &usual), DSC_PROGRAM_NONE);
    assert_non_null(strstr(program.err.message, "is not a picture"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_agree_with_sums_in_double), cmocka_unit_test(threads_do_not_change_a_bit),
        cmocka_unit_test(a_plan_has_flops_and_products),    cmocka_unit_test(one_pixel_is_a_linear_layer),
        cmocka_unit_test(refusals_name_op_and_shapes),      cmocka_unit_test(given_chunks_do_not_shorten_the_scratch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
