/* test_gemm.c - matrix products by cuBLASLt on a simulated GPU: which calls it takes, what it gives, and how its
 * failures read. Numbers of every shape and epilogue are checkkern's too; here each is known to be the library's. On a
 * real GPU (tests/gpu/real.c) the numbers are compared. DSC_TEST_NIGHT=1: also a product of more columns than a grid
 * has in its second dimension. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/bf16.h"
#include "kernels/device.h"
#include "tests/sim/cusim.h"

/* Multiples of 8 in every direction, so that alignments are the best. */
enum { M = 24, N = 40, K = 48 };

typedef struct bench {
    dsc_alloc *alloc;
    dsc_device *device;
    dsc_stream *stream;
    dsc_buf a, b, c, bias, aux;
} bench;

static dsc_status device_open(bench *t, dsc_error *err)
{
    const dsc_device_ops *ops;
    int32_t count;
    DSC_TRY(dsc_device_find("cuda", &ops, &count, err));
    const dsc_device_options options = { .alloc = t->alloc, .threads = 1, .caps = 0 };
    return dsc_device_open(ops, &t->device, &options, err);
}

static void bench_open(bench *t, int64_t bytes)
{
    *t = (bench){ 0 };
    assert_int_equal(dsc_alloc_open(&t->alloc, NULL), DSC_OK);
    assert_int_equal(device_open(t, NULL), DSC_OK);
    assert_int_equal(dsc_stream_open(t->device, DSC_STREAM_COMPUTE, "compute", &t->stream, NULL), DSC_OK);
    for (dsc_buf *b = &t->a; b <= &t->aux; b++)
        assert_int_equal(dsc_mem_open(t->device, DSC_TAG_SCRATCH, DSC_TIER_DEVICE, bytes, b, NULL), DSC_OK);
}

static void bench_close(bench *t)
{
    for (dsc_buf *b = &t->a; b <= &t->aux && t->device != NULL; b++)
        dsc_mem_close(t->device, b);
    dsc_stream_close(&t->stream);
    dsc_device_close(&t->device);
    dsc_alloc_close(&t->alloc);
    assert_int_equal(cusim_left(), 0);
}

/* ---- numbers ---- */

static float number(int64_t i, int of)
{
    return (float)((int64_t)((uint64_t)(i + 1) * 2654435761u % 17) - 8) / (float)(8 * of);
}

/* Rounded to the dtype, so that both sides multiply the same. */
static void give(bench *t, dsc_buf *to, int64_t count, dsc_dtype dtype, int of)
{
    static float f32[K * (M + N)];
    static uint16_t bf16[K * (M + N)];
    assert_true(count <= (int64_t)DSC_COUNT(f32));
    for (int64_t i = 0; i < count; i++) {
        f32[i] = number(i, of);
        bf16[i] = dsc_bf16_from_f32(f32[i]);
        assert_true(dsc_f32_from_bf16(bf16[i]) == f32[i]);
    }
    const void *from = dtype == DSC_BF16 ? (const void *)bf16 : f32;
    assert_int_equal(dsc_copy(t->stream, to->ptr, from, count * (int64_t)dsc_dtype_bytes(dtype), NULL), DSC_OK);
    assert_int_equal(dsc_stream_sync(t->stream, NULL), DSC_OK);
}

static void fetch(bench *t, const dsc_buf *from, dsc_dtype dtype, float out[M * N])
{
    static uint16_t bf16[M * N];
    void *to = dtype == DSC_BF16 ? (void *)bf16 : out;
    assert_int_equal(dsc_copy(t->stream, to, from->ptr, M * N * (int64_t)dsc_dtype_bytes(dtype), NULL), DSC_OK);
    assert_int_equal(dsc_stream_sync(t->stream, NULL), DSC_OK);
    for (int i = 0; i < M * N && dtype == DSC_BF16; i++)
        out[i] = dsc_f32_from_bf16(bf16[i]);
}

static double gelu(double x) { return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))); }
static double gelu_slope(double x)
{
    const double h = 1e-5;
    return (gelu(x + h) - gelu(x - h)) / (2 * h);
}

static dsc_gemm_args product(const bench *t, dsc_dtype ab, dsc_dtype c, dsc_epilogue epilogue, bool accumulate)
{
    return (dsc_gemm_args){ .m = M, .n = N, .k = K, .lda = K, .ldb = N, .ldc = N, .a = t->a.ptr, .b = t->b.ptr,
                            .c = t->c.ptr, .bias = dsc_epilogue_has_bias(epilogue) ? t->bias.ptr : NULL,
                            .aux = epilogue > DSC_EPILOGUE_BIAS ? t->aux.ptr : NULL, .epilogue = epilogue,
                            .ab_dtype = ab, .c_dtype = c, .accumulate = accumulate };
}

static double expected(int64_t row, int64_t col, dsc_epilogue e, bool accumulate)
{
    double x = accumulate ? number(row * N + col, 1) : 0;
    for (int64_t k = 0; k < K; k++)
        x += (double)number(row * K + k, 1) * number(k * N + col, 1);
    if (dsc_epilogue_has_bias(e))
        x += number(col, 1);
    const double aux = number(row * N + col, 2);
    return e == DSC_EPILOGUE_BIAS_GELU                            ? gelu(x)
           : e == DSC_EPILOGUE_DGELU                              ? x * gelu_slope(aux)
           : e == DSC_EPILOGUE_BIAS_ADD || e == DSC_EPILOGUE_ADD ? x + aux
                                                                  : x;
}

/* bf16: two roundings of at most 2^-9 each (GELU's input and its output); the slope bends by less than 1.2. fp32: sums
 * of 48 exact terms. */
static void check(bench *t, dsc_dtype ab, dsc_dtype c, dsc_epilogue e, bool accumulate)
{
    static float out[M * N];
    const dsc_gemm_args args = product(t, ab, c, e, accumulate);
    give(t, &t->a, M * K, ab, 1);
    give(t, &t->b, K * N, ab, 1);
    give(t, &t->bias, N, ab, 1);
    give(t, &t->aux, M * N, c, 2);
    give(t, &t->c, M * N, c, 1);
    cusim_products_taken();
    assert_int_equal(DSC_RUN(t->stream, GEMM, &args, NULL), DSC_OK);
    fetch(t, &t->c, c, out);
    if (cusim_present())
        assert_int_equal(cusim_products_taken(), ab == DSC_F32 && c == DSC_BF16 ? 0 : 1);
    for (int64_t i = 0; i < M * N; i++) {
        const double want = expected(i / N, i % N, e, accumulate);
        const double most = (c == DSC_BF16 ? 2.4 * 0x1p-9 : 0x1p-20) * (fabs(want) + 1);
        if (fabs(out[i] - want) > most)
            print_error("epilogue %d, %d to %d%s: [%d] is %g, not %g\n", (int)e, (int)ab, (int)c,
                        accumulate ? " added" : "", (int)i, (double)out[i], want);
        assert_true(fabs(out[i] - want) <= most);
    }
}

static void every_epilogue(void **state)
{
    bench t;
    bench_open(&t, 4 * K * (M + N));
    for (dsc_epilogue e = DSC_EPILOGUE_NONE; e <= DSC_EPILOGUE_ADD; e++) {
        check(&t, DSC_BF16, DSC_BF16, e, false);
        check(&t, DSC_F32, DSC_F32, e, false);
        check(&t, DSC_BF16, DSC_F32, e, false);
        check(&t, DSC_F32, DSC_BF16, e, false); /* our own: the library does not round fp32 to bf16 */
    }
    check(&t, DSC_BF16, DSC_F32, DSC_EPILOGUE_NONE, true);
    check(&t, DSC_F32, DSC_F32, DSC_EPILOGUE_NONE, true);
    bench_close(&t);
}

/* ---- epilogues and sums with the product, or apart ---- */

/* Operations that a product takes on the device. */
static int operations(bench *t, const dsc_gemm_args *args)
{
    assert_int_equal(dsc_stream_sync(t->stream, NULL), DSC_OK);
    const uint64_t before = cusim_operations(0);
    dsc_error err = DSC_ERROR_INIT;
    if (DSC_RUN(t->stream, GEMM, args, &err) != DSC_OK)
        print_error("%s\n", err.message);
    assert_int_equal(dsc_stream_sync(t->stream, NULL), DSC_OK);
    return (int)(cusim_operations(0) - before);
}

/* One operation with the product, two apart; either way the number that gemm.h says (check). */
static void gelu_and_its_gradient_either_way(void **state)
{
    static const dsc_epilogue kinds[] = { DSC_EPILOGUE_BIAS_GELU, DSC_EPILOGUE_DGELU };
    static const uint32_t bits[] = { DSC_GEMM_FUSED_GELU, DSC_GEMM_FUSED_DGELU };
    for (int i = 0; i < 2; i++)
        for (int fused = 0; fused < 2; fused++) {
            bench t;
            bench_open(&t, 4 * K * (M + N));
            dsc_gemm_fuse(t.device, fused ? bits[i] : DSC_GEMM_FUSED_ALL & ~bits[i]);
            check(&t, DSC_BF16, DSC_BF16, kinds[i], false);
            check(&t, DSC_F32, DSC_F32, kinds[i], false);
            const dsc_gemm_args args = product(&t, DSC_BF16, DSC_BF16, kinds[i], false);
            if (cusim_present())
                assert_int_equal(operations(&t, &args), fused ? 1 : 2);
            bench_close(&t);
        }
}

/* GELU's input is the rounded sum, whoever stores it. */
static void gelu_stores_its_input(void **state)
{
    static float aux[2][M * N];
    for (int fused = 0; fused < 2; fused++) {
        bench t;
        bench_open(&t, 4 * K * (M + N));
        dsc_gemm_fuse(t.device, fused ? DSC_GEMM_FUSED_GELU : DSC_GEMM_FUSED_NONE);
        check(&t, DSC_BF16, DSC_BF16, DSC_EPILOGUE_BIAS_GELU, false);
        fetch(&t, &t.aux, DSC_BF16, aux[fused]);
        bench_close(&t);
    }
    if (cusim_present())
        assert_memory_equal(aux[0], aux[1], sizeof aux[0]);
    for (int64_t i = 0; i < M * N; i++)
        assert_true(fabs(aux[1][i] - expected(i / N, i % N, DSC_EPILOGUE_BIAS, false)) <
                    0x1p-8 * (fabs(aux[1][i]) + 1));
}

/* Activations that the library has not with what they are taken of. They are a product of the library's and a kernel,
 * with the bits of two launches. */
static void other_activations_are_two_kernels(void **state)
{
    static const dsc_epilogue kinds[] = { DSC_EPILOGUE_BIAS_ACTIVATION, DSC_EPILOGUE_ACTIVATION, DSC_EPILOGUE_SLOPE };
    static float apart[M * N], fused[M * N];
    if (!cusim_present())
        skip();
    for (int i = 0; i < 3; i++)
        for (int half = 0; half < 2; half++) {
            const dsc_dtype dtype = half != 0 ? DSC_BF16 : DSC_F32;
            const bool slope = kinds[i] == DSC_EPILOGUE_SLOPE;
            bench t;
            bench_open(&t, 4 * K * (M + N));
            give(&t, &t.a, M * K, dtype, 1);
            give(&t, &t.b, K * N, dtype, 1);
            give(&t, &t.bias, N, dtype, 1);
            give(&t, &t.aux, M * N, dtype, 2);
            dsc_gemm_args plain = product(&t, dtype, dtype, i == 0 ? DSC_EPILOGUE_BIAS : DSC_EPILOGUE_NONE, false);
            const dsc_gelu_fwd_args fwd = { t.c.ptr, t.c.ptr, M * N, dtype, DSC_GELU_ERF };
            const dsc_gelu_bwd_args bwd = { t.c.ptr, t.c.ptr, t.aux.ptr, M * N, dtype, DSC_GELU_ERF };
            plain.aux = NULL;
            assert_int_equal(DSC_RUN(t.stream, GEMM, &plain, NULL), DSC_OK);
            if (slope)
                assert_int_equal(DSC_RUN(t.stream, GELU_BWD, &bwd, NULL), DSC_OK);
            else
                assert_int_equal(DSC_RUN(t.stream, GELU_FWD, &fwd, NULL), DSC_OK);
            fetch(&t, &t.c, dtype, apart);
            dsc_gemm_args args = product(&t, dtype, dtype, kinds[i], false);
            args.activation = DSC_GELU_ERF;
            assert_int_equal(dsc_gemm_prepare(t.device, &args, NULL), DSC_OK);
            cusim_products_taken();
            const int launches = operations(&t, &args);
            assert_int_equal(cusim_products_taken(), 1); /* not the plain kernel */
            assert_int_equal(launches, 2);
            fetch(&t, &t.c, dtype, fused);
            assert_memory_equal(apart, fused, sizeof apart);
            bench_close(&t);
        }
}

/* The library's GELU has no form without stored input or bias, nor one for rows that its manual forbids. */
static void gelu_that_the_library_has_not(void **state)
{
    bench t;
    if (!cusim_present())
        skip();
    bench_open(&t, 4 * K * (M + N));
    dsc_gemm_fuse(t.device, DSC_GEMM_FUSED_ALL);
    dsc_gemm_args args = product(&t, DSC_BF16, DSC_BF16, DSC_EPILOGUE_BIAS_GELU, false);
    args.aux = NULL;
    assert_int_equal(operations(&t, &args), 2);
    args.aux = t.aux.ptr;
    args.bias = NULL;
    assert_int_equal(operations(&t, &args), 2);
    args.n = args.ldb = args.ldc = N - 4;
    args.bias = t.bias.ptr;
    assert_int_equal(operations(&t, &args), 2);
    args = product(&t, DSC_BF16, DSC_BF16, DSC_EPILOGUE_DGELU, false);
    args.n = args.ldb = args.ldc = N - 4;
    cusim_products_taken();
    assert_int_equal(operations(&t, &args), 2);
    assert_int_equal(cusim_products_taken(), 1); /* not the plain kernel */
    bench_close(&t);
}

/* A weight's gradient with the bias's beside it: x^T dy, K rows, the sums of dy's rows. dy is B, or A. */
static void check_sums(bench *t, bool of_a, dsc_dtype dtype, int want_operations)
{
    static float sums[M * N];
    dsc_gemm_args args = product(t, dtype, DSC_F32, DSC_EPILOGUE_NONE, false);
    args.lda = M;
    args.a_transposed = true;
    args.sums_of = of_a ? DSC_GEMM_SUMS_OF_A : DSC_GEMM_SUMS_OF_B;
    args.sums = t->aux.ptr;
    give(t, &t->a, K * M, dtype, 1);
    give(t, &t->b, K * N, dtype, 1);
    give(t, &t->aux, M * N, DSC_F32, 1); /* what was there is overwritten */
    const int took = operations(t, &args);
    if (cusim_present())
        assert_int_equal(took, want_operations);
    fetch(t, &t->aux, DSC_F32, sums);
    for (int64_t i = 0; i < (of_a ? M : N); i++) {
        double want = 0;
        for (int64_t k = 0; k < K; k++)
            want += number(k * (of_a ? M : N) + i, 1);
        assert_true(fabs(sums[i] - want) < 0x1p-20 * K);
    }
    for (int64_t i = of_a ? M : N; i < M * N; i++)
        assert_true(sums[i] == number(i, 1));
    fetch(t, &t->c, DSC_F32, sums);
    for (int64_t i = 0; i < M * N; i++) {
        double want = 0;
        for (int64_t k = 0; k < K; k++)
            want += (double)number(k * M + i / N, 1) * number(k * N + i % N, 1);
        assert_true(fabs(sums[i] - want) < 0x1p-19 * K);
    }
}

static void sums_beside_a_product(void **state)
{
    bench t;
    bench_open(&t, 4 * K * (M + N));
    for (int of_a = 0; of_a < 2; of_a++) {
        dsc_gemm_fuse(t.device, DSC_GEMM_FUSED_NONE);
        check_sums(&t, of_a, DSC_BF16, 3);
        check_sums(&t, of_a, DSC_F32, 3);
        dsc_gemm_fuse(t.device, DSC_GEMM_FUSED_SUMS);
        check_sums(&t, of_a, DSC_BF16, 1);
        check_sums(&t, of_a, DSC_F32, 1);
    }
    bench_close(&t);
    cusim_set_quirk(CUSIM_FEW_EPILOGUES);
    bench_open(&t, 4 * K * (M + N));
    dsc_gemm_fuse(t.device, DSC_GEMM_FUSED_ALL);
    check_sums(&t, false, DSC_BF16, 3);
    check(&t, DSC_BF16, DSC_BF16, DSC_EPILOGUE_BIAS_GELU, false);
    bench_close(&t);
    cusim_set_quirk(CUSIM_AS_DOCUMENTED);
}

/* Large products that only the plain kernel computes are named once, with the reason. */
static void names_products_that_are_slow(void **state)
{
    char text[512];
    bench t;
    bench_open(&t, 1024);
    dsc_gemm_args args = { .m = 1024, .n = 1024, .k = 256, .lda = 256, .ldb = 1024, .ldc = 1024, .ab_dtype = DSC_F32,
                           .c_dtype = DSC_BF16 };
    assert_int_equal(dsc_gemm_prepare(t.device, &args, NULL), DSC_OK);
    assert_int_equal(dsc_gemm_prepare(t.device, &args, NULL), DSC_OK);
    args.k = args.lda = 255; /* small enough */
    assert_int_equal(dsc_gemm_prepare(t.device, &args, NULL), DSC_OK);
    args.ab_dtype = DSC_BF16; /* the library's */
    args.k = args.lda = 512;
    assert_int_equal(dsc_gemm_prepare(t.device, &args, NULL), DSC_OK);
    args.epilogue = DSC_EPILOGUE_DGELU;
    args.n = args.ldb = args.ldc = 1020;
    assert_int_equal(dsc_gemm_prepare(t.device, &args, NULL), DSC_OK);
    assert_true(dsc_gemm_slow(t.device, 0, text, sizeof text));
    assert_string_equal(text, "1024x1024x256 ld 256,1024,1024 NN fp32 to bf16 epilogue 0: cuBLASLt does not round a "
                              "product of fp32 to 16 bits");
    assert_false(dsc_gemm_slow(t.device, 1, text, sizeof text));
    args = (dsc_gemm_args){ .n = 1024, .k = 1024, .lda = 1024, .ldb = 1024, .ldc = 1024, .ab_dtype = DSC_F32,
                            .c_dtype = DSC_BF16 };
    for (args.m = 1000; args.m < 1020; args.m++)
        assert_int_equal(dsc_gemm_prepare(t.device, &args, NULL), DSC_OK);
    assert_true(dsc_gemm_slow(t.device, 15, text, sizeof text));
    assert_true(dsc_gemm_slow(t.device, 16, text, sizeof text));
    assert_string_equal(text, "5 more shapes");
    assert_false(dsc_gemm_slow(t.device, 17, text, sizeof text));
    bench_close(&t);
}

/* ---- failures ---- */

/* Each call of the library that can fail, when it is made for a product: the call, the product's shape, the status. */
static void each_call_that_fails(void **state)
{
    static const char *const calls[] = { "cublasLtMatmulDescCreate", "cublasLtMatmulDescSetAttribute",
                                         "cublasLtMatrixLayoutCreate", "cublasLtMatmulPreferenceCreate",
                                         "cublasLtMatmulPreferenceSetAttribute", "cublasLtMatmulAlgoGetHeuristic",
                                         "cublasLtMatmulAlgoConfigGetAttribute", "cublasLtMatmul" };
    if (!cusim_present())
        skip();
    for (size_t i = 0; i < DSC_COUNT(calls); i++) {
        bench t;
        char text[160];
        dsc_error err = DSC_ERROR_INIT;
        bench_open(&t, 4 * K * (M + N));
        const dsc_gemm_args args = product(&t, DSC_BF16, DSC_BF16, DSC_EPILOGUE_BIAS, false);
        cusim_fail_kernel(0, calls[i]);
        assert_int_equal(DSC_RUN(t.stream, GEMM, &args, &err), DSC_ERR_DEVICE);
        snprintf(text, sizeof text, "cuBLASLt: %s for 24x40x48 ld 48,40,40 NN bf16 to bf16 epilogue ", calls[i]);
        if (strstr(err.message, text) == NULL || strstr(err.message, ": status 14, ") == NULL)
            print_error("%s: %s\n", calls[i], err.message);
        assert_non_null(strstr(err.message, text));
        assert_non_null(strstr(err.message, ": status 14, "));
        assert_string_equal(err.where, "GEMM");
        check(&t, DSC_BF16, DSC_BF16, DSC_EPILOGUE_BIAS, false); /* the next call finds nothing half-made */
        bench_close(&t);
    }
}

static void a_handle_that_is_not_given(void **state)
{
    bench t = { 0 };
    dsc_error err = DSC_ERROR_INIT;
    if (!cusim_present())
        skip();
    assert_int_equal(dsc_alloc_open(&t.alloc, NULL), DSC_OK);
    cusim_fail_kernel(0, "cublasLtCreate");
    assert_int_equal(device_open(&t, &err), DSC_ERR_DEVICE);
    assert_non_null(strstr(err.message, "cuBLASLt: cublasLtCreate: status 14, "));
    dsc_alloc_close(&t.alloc);
    assert_int_equal(cusim_left(), 0);
}

/* ---- many columns ---- */

/* k = 1, so element j is a[0] * b[j] + bias[j]. */
static void more_columns_than_a_grid_is_high(void **state)
{
    const char *night = getenv("DSC_TEST_NIGHT");
    const int64_t n = INT64_C(65536) * 256 + 3;
    bench t;
    float got[3];
    if (night == NULL || strcmp(night, "1") != 0)
        skip();
    cusim_check_races(false);
    bench_open(&t, 4 * n);
    const float one = 3, last[3] = { 5, 7, 11 };
    assert_int_equal(dsc_copy(t.stream, t.a.ptr, &one, 4, NULL), DSC_OK);
    assert_int_equal(dsc_copy(t.stream, (float *)t.b.ptr + n - 3, last, sizeof last, NULL), DSC_OK);
    assert_int_equal(dsc_copy(t.stream, (float *)t.aux.ptr + n - 3, last, sizeof last, NULL), DSC_OK);
    const dsc_gemm_args args = { .m = 1, .n = n, .k = 1, .lda = 1, .ldb = n, .ldc = n, .a = t.a.ptr, .b = t.b.ptr,
                                 .c = t.c.ptr, .aux = t.aux.ptr, .epilogue = DSC_EPILOGUE_DGELU, .ab_dtype = DSC_F32,
                                 .c_dtype = DSC_F32 };
    assert_int_equal(DSC_RUN(t.stream, GEMM, &args, NULL), DSC_OK);
    assert_int_equal(dsc_copy(t.stream, got, (float *)t.c.ptr + n - 3, sizeof got, NULL), DSC_OK);
    assert_int_equal(dsc_stream_sync(t.stream, NULL), DSC_OK);
    for (int i = 0; i < 3; i++)
        assert_true(fabs((double)got[i] - 3 * (double)last[i] * gelu_slope(last[i])) < 1e-3);
    bench_close(&t);
    cusim_check_races(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_epilogue),
        cmocka_unit_test(gelu_and_its_gradient_either_way),
        cmocka_unit_test(gelu_stores_its_input),
        cmocka_unit_test(gelu_that_the_library_has_not),
        cmocka_unit_test(other_activations_are_two_kernels),
        cmocka_unit_test(sums_beside_a_product),
        cmocka_unit_test(names_products_that_are_slow),
        cmocka_unit_test(each_call_that_fails),
        cmocka_unit_test(a_handle_that_is_not_given),
        cmocka_unit_test(more_columns_than_a_grid_is_high),
    };
    return cmocka_run_group_tests_name("matrix products on a simulated GPU", tests, NULL, NULL);
}
