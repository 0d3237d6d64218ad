/* gemm.c - products and column sums.
 *
 * Tolerance: inputs are exact in double, so a product differs from the double sum by the roundings of fp32
 * additions. They are at most 8 eps sum|a b| for sums of 16 or more interleaved partial sums at the K used. Half a
 * spacing of C's dtype and the error of GELU (vmath.c) are added. A dropped or doubled term is 100 times larger.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>

#include "kernels/device.h"
#include "tests/checkkern/activation.h"
#include "tests/checkkern/ck.h"

static const char *const epilogue_text[] = { "none",  "bias", "bias_gelu",       "bias_add",
                                             "dgelu", "add",  "bias_activation", "activation",
                                             "slope" };

/* Error of the slope in a GPU's library. Its tanh t(u(x)) has a relative error of up to 2^-11 (PTX, tanh.approx). The
 * slope is (1 + t + x (1 - t^2) u') / 2. */
static double library_slope_error(double x)
{
    const double a = 0.7978845608028654, t = tanh(a * (x + 0.044715 * x * x * x));
    return 0x1p-11 * fabs(t) * fabs(0.5 - x * t * a * (1 + 3 * 0.044715 * x * x));
}

static double gelu_slope(double x)
{
    const double u2 = 1.5957691216057308 * (x + 0.044715 * x * x * x), s = 1 / (1 + exp(-u2));
    return s + x * s * (1 / (1 + exp(u2))) * 1.5957691216057308 * (1 + 3 * 0.044715 * x * x);
}

/* Whether the GPU's library computes GELU with the product. It takes GELU of the sum before that is rounded, with the
 * tanh of library_slope_error. */
static bool gelu_is_fused;

static double gelu(double x) { return x / (1 + exp(-1.5957691216057308 * (x + 0.044715 * x * x * x))); }

/* A and B as doubles where every element of C is checked; NULL: they are read where they are needed. */
typedef struct operands {
    double *a, *b;
} operands;

static double *doubles_of(const void *buf, int64_t rows, int64_t cols, int64_t ld)
{
    double *all = malloc((size_t)(rows * ld) * sizeof *all);
    DSC_ASSERT(all != NULL);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++)
            all[r * ld + c] = ck_get(buf, r * ld + c);
    return all;
}

/* sum and sum of magnitudes of element (i, j) */
static double product(const dsc_gemm_args *a, const operands *of, int64_t i, int64_t j, double *magnitude)
{
    double sum = 0;
    *magnitude = 0;
    for (int64_t k = 0; k < a->k; k++) {
        const int64_t at_a = a->a_transposed ? k * a->lda + i : i * a->lda + k;
        const int64_t at_b = a->b_transposed ? j * a->ldb + k : k * a->ldb + j;
        const double term = of->a != NULL ? of->a[at_a] * of->b[at_b] : ck_get(a->a, at_a) * ck_get(a->b, at_b);
        sum += term;
        *magnitude += fabs(term);
    }
    return sum;
}

static double aux_before(const dsc_gemm_args *a, int64_t at)
{
    return a->aux == a->c ? ck_start(a->c, at) : ck_get(a->aux, at);
}

static void check_element(const dsc_gemm_args *a, const operands *of, int64_t i, int64_t j)
{
    const int64_t at = i * a->ldc + j;
    double magnitude, x = product(a, of, i, j, &magnitude);
    if (a->accumulate) {
        x += ck_start(a->c, at);
        magnitude += fabs(ck_start(a->c, at));
    }
    double tol = 8 * 0x1p-24 * magnitude;
    const bool halves = a->ab_dtype != DSC_F32 && a->c_dtype != DSC_F32;
    if (ck_on_gpu() && halves && a->epilogue != DSC_EPILOGUE_NONE)
        tol += 0.5 * ck_spacing(a->c_dtype, fabs(x) + tol); /* gemm.h lets its library do so */
    if (a->bias != NULL && dsc_epilogue_has_bias(a->epilogue)) {
        x += ck_get(a->bias, j);
        tol += 0x1p-24 * fabs(x);
        if (ck_on_gpu() && halves && a->epilogue == DSC_EPILOGUE_BIAS_ADD) { /* the sum of the first two too */
            const double other = fabs(x - ck_get(a->bias, j) + aux_before(a, at));
            tol += 0.5 * ck_spacing(a->c_dtype, fmax(fabs(x), other) + tol);
        }
    }
    if (a->epilogue == DSC_EPILOGUE_BIAS_GELU) {
        if (gelu_is_fused && a->aux != NULL) {
            ck_near(a->aux, at, x, tol + 0.5 * ck_spacing(a->c_dtype, fabs(x) + tol));
            /* Products that the library has not, since their rows are odd, take GELU of the rounded sum. */
            tol += 0.5 * ck_spacing(a->c_dtype, fabs(x) + tol) + 0x1p-11 * fabs(x);
        } else if (a->aux != NULL) {
            ck_near(a->aux, at, x, tol + 0.5 * ck_spacing(a->c_dtype, fabs(x) + tol));
            x = ck_get(a->aux, at); /* c comes from the rounded value */
            tol = 0;
        } else {
            tol += 0.5 * ck_spacing(a->c_dtype, fabs(x) + tol);
        }
        tol = 1.2 * tol + 0x1p-18 * fabs(gelu(x)) + 0x1p-26;
        x = gelu(x);
    } else if (dsc_epilogue_activates(a->epilogue)) {
        ck_near(a->aux, at, x, tol + 0.5 * ck_spacing(a->c_dtype, fabs(x) + tol));
        x = ck_get(a->aux, at);
        tol = ck_activation_tolerance(a->activation, x);
        x = ck_activation(a->activation, x);
    } else if (dsc_epilogue_adds(a->epilogue)) {
        x += aux_before(a, at);
        tol += 0x1p-23 * fabs(x);
    } else if (a->epilogue == DSC_EPILOGUE_SLOPE) { /* the product is rounded before it */
        const double before = ck_get(a->aux, at), slope = ck_activation_slope(a->activation, before);
        tol += 0.5 * ck_spacing(a->c_dtype, fabs(x) + tol);
        tol = tol * fabs(slope) + (fabs(x) + tol) * ck_activation_slope_tolerance(a->activation, before);
        tol += ck_spacing(DSC_F32, fabs(x * slope));
        x *= slope;
    } else if (a->epilogue == DSC_EPILOGUE_DGELU) {
        const double slope = gelu_slope(aux_before(a, at));
        tol = tol * fabs(slope) + fabs(x) * 0x1p-18;
        if (ck_on_gpu() && halves && a->aux != a->c)
            tol += fabs(x) * library_slope_error(aux_before(a, at));
        x *= slope;
    }
    ck_near(a->c, at, x, tol + 0.5 * ck_spacing(a->c_dtype, fabs(x) + tol));
}

/* Every element of small products, else a sample with the corners in it. */
static void verify(const void *args)
{
    enum { TERMS = 1500000 };
    const dsc_gemm_args *a = args;
    const bool all = a->m * a->n * a->k <= TERMS;
    const int64_t count = all ? a->m * a->n : TERMS / a->k;
    operands of = { NULL, NULL };
    if (all) {
        of.a = doubles_of(a->a, a->a_transposed ? a->k : a->m, a->a_transposed ? a->m : a->k, a->lda);
        of.b = doubles_of(a->b, a->b_transposed ? a->n : a->k, a->b_transposed ? a->k : a->n, a->ldb);
    }
    for (int64_t s = 0; s < count; s++) {
        const int64_t i = all ? s / a->n : s < 4 ? (s >> 1) * (a->m - 1) : ck_random() % a->m;
        const int64_t j = all ? s % a->n : s < 4 ? (s & 1) * (a->n - 1) : ck_random() % a->n;
        check_element(a, &of, i, j);
    }
    free(of.a);
    free(of.b);
}

typedef struct shape { int64_t m, n, k; } shape;

/* Epilogues that read `aux` find it in C where there is no padding, as sums of several products do. A bias is given
 * to all but NONE, also to those which must not read it. */
static void one_of(shape s, bool ta, bool tb, dsc_dtype ab, dsc_dtype c, dsc_epilogue e, dsc_activation kind,
                   bool accumulate, int64_t pad, const char *way)
{
    const bool activates = e >= DSC_EPILOGUE_BIAS_ACTIVATION;
    if (!ck_case("gemm m=%lld n=%lld k=%lld %s%s %s->%s %s%s%s%s%s%s", (long long)s.m, (long long)s.n, (long long)s.k,
                 ta ? "T" : "N", tb ? "T" : "N", ck_dtype_text(ab), ck_dtype_text(c), epilogue_text[e],
                 activates ? " " : "", activates ? ck_activation_names[kind] : "", accumulate ? " accumulate" : "",
                 pad > 0 ? " padded" : "", way))
        return;
    dsc_gemm_args a = { .m = s.m,
                        .n = s.n,
                        .k = s.k,
                        .a_transposed = ta,
                        .b_transposed = tb,
                        .accumulate = accumulate,
                        .epilogue = e,
                        .ab_dtype = ab,
                        .c_dtype = c,
                        .activation = kind };
    const int64_t a_rows = ta ? s.k : s.m, a_cols = ta ? s.m : s.k, b_rows = tb ? s.n : s.k, b_cols = tb ? s.k : s.n;
    a.lda = a_cols + pad;
    a.ldb = b_cols + 2 * pad;
    a.ldc = activates ? s.n : s.n + 3 * pad;
    a.a = ck_buf(CK_IN, ab, (a_rows - 1) * a.lda + a_cols, "a");
    a.b = ck_buf(CK_IN, ab, (b_rows - 1) * a.ldb + b_cols, "b");
    const bool in_place = (dsc_epilogue_adds(e) || e == DSC_EPILOGUE_DGELU) && pad == 0 && way[0] == 0;
    a.c = ck_buf(accumulate || in_place ? CK_INOUT : CK_OUT, c, (s.m - 1) * a.ldc + s.n, "c");
    ck_normal(a.a, 0, 1);
    ck_normal(a.b, 0, 1 / sqrt((double)s.k));
    if (accumulate || in_place)
        ck_normal(a.c, 0, 1);
    ck_gaps(a.a, a_rows, a_cols, a.lda);
    ck_gaps(a.b, b_rows, b_cols, a.ldb);
    ck_gaps(a.c, s.m, s.n, a.ldc);
    if (e != DSC_EPILOGUE_NONE) {
        a.bias = ck_buf(CK_IN, ab, s.n, "bias");
        ck_normal(a.bias, 0, 1);
    }
    if (in_place) {
        a.aux = a.c;
    } else if (e != DSC_EPILOGUE_NONE && e != DSC_EPILOGUE_BIAS) {
        a.aux = ck_buf(dsc_epilogue_activates(e) ? CK_OUT : CK_IN, c, (s.m - 1) * a.ldc + s.n, "aux");
        if (!dsc_epilogue_activates(e))
            ck_normal(a.aux, 0, 2);
        ck_gaps(a.aux, s.m, s.n, a.ldc);
    }
    ck_kernel(DSC_KERNEL_GEMM, &a, sizeof a, verify);
}

static void one_way(shape s, bool ta, bool tb, dsc_dtype ab, dsc_dtype c, dsc_epilogue e, bool accumulate, int64_t pad,
                    const char *way)
{
    one_of(s, ta, tb, ab, c, e, DSC_GELU_TANH, accumulate, pad, way);
}

static void one(shape s, bool ta, bool tb, dsc_dtype ab, dsc_dtype c, dsc_epilogue e, bool accumulate, int64_t pad)
{
    one_way(s, ta, tb, ab, c, e, accumulate, pad, "");
}

static const shape small[] = { { 1, 1, 1 },     { 1, 311, 60 },  { 60, 1, 40 },
                               { 60, 311, 60 }, { 40, 180, 60 }, { 17, 65, 33 } };

static void combinations(void)
{
    static const struct { dsc_dtype ab, c; } dtypes[] = {
        { DSC_F32, DSC_F32 },   { DSC_BF16, DSC_F32 }, { DSC_BF16, DSC_BF16 }, { DSC_F32, DSC_BF16 },
        { DSC_F16, DSC_F32 }, { DSC_F16, DSC_F16 },  { DSC_F32, DSC_F16 },
    };
    for (size_t i = 0; i < DSC_COUNT(small); i++)
        for (int t = 0; t < 4; t++)
            for (size_t d = 0; d < DSC_COUNT(dtypes); d++)
                one(small[i], t & 1, t & 2, dtypes[d].ab, dtypes[d].c, DSC_EPILOGUE_NONE,
                    dtypes[d].c == DSC_F32 && (i & 1), 5 * (int64_t)(i & 1));
    for (int e = DSC_EPILOGUE_BIAS; e <= DSC_EPILOGUE_ADD; e++)
        for (size_t d = 0; d < DSC_COUNT(dtypes); d++)
            for (int kind = 0; kind < 4; kind++) {
                const shape s = kind / 2 == 0 ? small[3] : (shape){ 60, 320, 64 }; /* and rows that a library likes */
                one(s, false, e == DSC_EPILOGUE_DGELU, dtypes[d].ab, dtypes[d].c, (dsc_epilogue)e, false,
                    kind % 2 * (kind / 2 == 0 ? 3 : 8));
            }
}

/* A size for a simulated GPU still has several tiles and steps, with the same ragged end. */
static int64_t shorter(int64_t size) { return ck_shortened() && size > 1000 ? 640 + size % 64 : size; }

static void one_large(shape s, bool ta, bool tb, dsc_dtype ab, dsc_dtype c, dsc_epilogue e, bool accumulate,
                      int64_t pad)
{
    one((shape) { shorter(s.m), shorter(s.n), shorter(s.k) }, ta, tb, ab, c, e, accumulate, pad);
}

/* Each activation in the epilogues that name one. */
static void activations(void)
{
    static const dsc_dtype dtypes[][2] = {
        { DSC_F32, DSC_F32 }, { DSC_BF16, DSC_BF16 }, { DSC_F16, DSC_F16 }, { DSC_F32, DSC_BF16 }, { DSC_BF16, DSC_F32 }
    };
    for (int kind = 0; kind < DSC_ACTIVATIONS; kind++)
        for (int e = DSC_EPILOGUE_BIAS_ACTIVATION; e <= DSC_EPILOGUE_SLOPE; e++)
            for (size_t d = 0; d < DSC_COUNT(dtypes); d++) {
                const shape s = d % 2 == 0 ? small[3] : (shape) { 60, 320, 64 };
                one_of(s, false, e == DSC_EPILOGUE_SLOPE, dtypes[d][0], dtypes[d][1], (dsc_epilogue)e,
                       (dsc_activation)kind, false, d == 1 ? 8 : 0, "");
            }
    one_of((shape) { 270, 790, 100 }, false, true, DSC_BF16, DSC_BF16, DSC_EPILOGUE_BIAS_ACTIVATION, DSC_GELU_ERF,
           false, 0, "");
    one_of((shape) { 70, 131, 4201 }, false, false, DSC_BF16, DSC_BF16, DSC_EPILOGUE_ACTIVATION, DSC_RELU2, false, 0,
           "");
    one_of((shape) { 1030, 1540, 20 }, false, true, DSC_F32, DSC_F32, DSC_EPILOGUE_SLOPE, DSC_SILU, false, 0, "");
    one_of((shape) { 530, 401, 64 }, false, true, DSC_BF16, DSC_BF16, DSC_EPILOGUE_SLOPE, DSC_GELU_ERF, false, 0, "");
}

/* Several tiles in both directions with ragged ends, K in several steps (above PANEL_K and PACKED_K), and the shape
 * where oneDNN's own threading changes bits with the number of threads. */
static void large(void)
{
    one_large((shape) { 64, 64, 4096 }, true, false, DSC_BF16, DSC_F32, DSC_EPILOGUE_NONE, false, 0);
    one_large((shape) { 64, 64, 4096 }, true, false, DSC_F32, DSC_F32, DSC_EPILOGUE_NONE, true, 0);
    one_large((shape) { 270, 790, 100 }, false, false, DSC_BF16, DSC_BF16, DSC_EPILOGUE_BIAS_GELU, false, 0);
    one_large((shape) { 530, 401, 64 }, false, true, DSC_BF16, DSC_BF16, DSC_EPILOGUE_BIAS_ADD, false, 7);
    one_large((shape) { 1030, 1540, 20 }, false, true, DSC_BF16, DSC_BF16, DSC_EPILOGUE_DGELU, false, 0);
    one_large((shape) { 400, 790, 48 }, true, false, DSC_BF16, DSC_F32, DSC_EPILOGUE_NONE, true, 1);
    one_large((shape) { 257, 385, 1100 }, false, false, DSC_BF16, DSC_BF16, DSC_EPILOGUE_NONE, false, 0);
    one_large((shape) { 70, 131, 4201 }, false, false, DSC_BF16, DSC_BF16, DSC_EPILOGUE_BIAS, false, 3);
    one_large((shape) { 270, 10, 4200 }, false, false, DSC_BF16, DSC_BF16, DSC_EPILOGUE_NONE, false, 0);
    one_large((shape) { 70, 131, 4201 }, false, true, DSC_BF16, DSC_F32, DSC_EPILOGUE_NONE, true, 0);
    one_large((shape) { 10, 131, 4300 }, false, true, DSC_BF16, DSC_F32, DSC_EPILOGUE_BIAS, false, 0);
    one_large((shape) { 9, 16385, 40 }, false, true, DSC_BF16, DSC_BF16, DSC_EPILOGUE_BIAS_ADD, false, 1);
    one_large((shape) { 1, 16400, 4201 }, false, true, DSC_BF16, DSC_BF16, DSC_EPILOGUE_NONE, false, 0);
    one_large((shape) { 530, 401, 64 }, false, false, DSC_BF16, DSC_BF16, DSC_EPILOGUE_ADD, false, 0);
    one_large((shape) { 70, 131, 4201 }, false, false, DSC_BF16, DSC_BF16, DSC_EPILOGUE_ADD, false, 0);
    one_large((shape) { 257, 200, 1100 }, false, true, DSC_F32, DSC_F32, DSC_EPILOGUE_ADD, false, 1);
    one_large((shape) { 270, 790, 100 }, false, false, DSC_F16, DSC_F16, DSC_EPILOGUE_BIAS_GELU, false, 0);
    one_large((shape) { 530, 401, 64 }, false, true, DSC_F16, DSC_F16, DSC_EPILOGUE_BIAS_ADD, false, 7);
    one_large((shape) { 390, 155, 1048 }, true, false, DSC_F16, DSC_F32, DSC_EPILOGUE_NONE, true, 1);
    one_large((shape) { 70, 131, 2201 }, false, false, DSC_F16, DSC_F16, DSC_EPILOGUE_ADD, false, 0);
    one_large((shape) { 7, 16400, 33 }, false, true, DSC_BF16, DSC_F32, DSC_EPILOGUE_NONE, true, 0);
    one_large((shape) { 257, 385, 130 }, true, true, DSC_F32, DSC_F32, DSC_EPILOGUE_BIAS, false, 0);
}

/* A weight's gradient beside the bias's: rows of dy summed, where dy is B ([in,out] weights) or A. */
static void verify_sums(const void *args)
{
    const dsc_gemm_args *a = args;
    const bool of_a = a->sums_of == DSC_GEMM_SUMS_OF_A;
    const void *const dy = of_a ? a->a : a->b;
    const int64_t ld = of_a ? a->lda : a->ldb;
    verify(args);
    ck_same_on_cpu(a->sums);
    for (int64_t c = 0; c < (of_a ? a->m : a->n); c++) {
        double sum = 0, size = 0;
        for (int64_t r = 0; r < a->k; r++) {
            sum += ck_get(dy, r * ld + c);
            size += fabs(ck_get(dy, r * ld + c));
        }
        /* A chain over all rows, the longest that an order of additions can have. */
        ck_near(a->sums, c, sum, 0x1p-24 * (double)(a->k + 1) * size);
    }
}

static void with_sums(shape s, bool of_a, dsc_dtype ab, int64_t pad, const char *way)
{
    if (!ck_case("gemm sums of %s m=%lld n=%lld k=%lld %s%s%s", of_a ? "a" : "b", (long long)s.m, (long long)s.n,
                 (long long)s.k, ck_dtype_text(ab), pad > 0 ? " padded" : "", way))
        return;
    dsc_gemm_args a = { .m = s.m, .n = s.n, .k = s.k, .lda = s.m + pad, .ldb = s.n + pad, .ldc = s.n + 3 * pad,
                        .a_transposed = true, .epilogue = DSC_EPILOGUE_NONE, .ab_dtype = ab, .c_dtype = DSC_F32,
                        .sums_of = of_a ? DSC_GEMM_SUMS_OF_A : DSC_GEMM_SUMS_OF_B };
    a.a = ck_buf(CK_IN, ab, (s.k - 1) * a.lda + s.m, "a");
    a.b = ck_buf(CK_IN, ab, (s.k - 1) * a.ldb + s.n, "b");
    a.c = ck_buf(CK_OUT, DSC_F32, (s.m - 1) * a.ldc + s.n, "c");
    a.sums = ck_buf(CK_OUT, DSC_F32, of_a ? s.m : s.n, "sums");
    ck_normal(a.a, 0, 1);
    ck_normal(a.b, 0, 1 / sqrt((double)s.k));
    ck_gaps(a.a, s.k, s.m, a.lda);
    ck_gaps(a.b, s.k, s.n, a.ldb);
    ck_gaps(a.c, s.m, s.n, a.ldc);
    ck_kernel(DSC_KERNEL_GEMM, &a, sizeof a, verify_sums);
}

static void sums(const char *way)
{
    static const shape shapes[] = { { 1, 1, 1 }, { 60, 311, 70 }, { 128, 320, 64 }, { 64, 96, 1030 } };
    static const dsc_dtype dtypes[] = { DSC_F32, DSC_BF16, DSC_F16 };
    for (size_t i = 0; i < DSC_COUNT(shapes); i++)
        for (size_t d = 0; d < DSC_COUNT(dtypes); d++)
            for (int of_a = 0; of_a < 2; of_a++)
                with_sums(shapes[i], of_a, dtypes[d], i % 2 == 0 ? 8 : 0, way);
}

/* Epilogues with the product that are apart by default on a GPU, and the other way round. */
static void other_ways(void)
{
    static const shape shapes[] = { { 60, 320, 64 }, { 128, 256, 520 }, { 60, 311, 60 } };
    sums("");
    if (!ck_device_fuse(DSC_GEMM_FUSED_GELU | DSC_GEMM_FUSED_SUMS))
        return;
    gelu_is_fused = true;
    sums(" fused");
    for (size_t i = 0; i < DSC_COUNT(shapes); i++)
        for (int way = 0; way < 4; way++) {
            const dsc_dtype dtype = way % 2 == 0 ? DSC_BF16 : DSC_F16;
            one_way(shapes[i], false, false, dtype, dtype, DSC_EPILOGUE_BIAS_GELU, false, way < 2 ? 0 : 8, " fused");
            one_way(shapes[i], false, true, dtype, dtype, DSC_EPILOGUE_DGELU, false, way < 2 ? 0 : 8, " apart");
        }
    gelu_is_fused = false;
    (void)ck_device_fuse(DSC_GEMM_FUSED_DEFAULT);
}

static void no_aux(void)
{
    if (!ck_case("gemm bias_gelu without aux or bias"))
        return;
    dsc_gemm_args a = { .m = 33, .n = 70, .k = 12, .lda = 12, .ldb = 70, .ldc = 70, .epilogue = DSC_EPILOGUE_BIAS_GELU,
                        .ab_dtype = DSC_BF16, .c_dtype = DSC_BF16 };
    a.a = ck_buf(CK_IN, DSC_BF16, 33 * 12, "a");
    a.b = ck_buf(CK_IN, DSC_BF16, 12 * 70, "b");
    a.c = ck_buf(CK_OUT, DSC_BF16, 33 * 70, "c");
    ck_normal(a.a, 0, 1);
    ck_normal(a.b, 0, 0.3);
    ck_kernel(DSC_KERNEL_GEMM, &a, sizeof a, verify);
}

/* A column's additions, in any order of blocks: chains of at most 64 + rows / 64. */
static void verify_colsum(const void *args)
{
    const dsc_colsum_args *a = args;
    ck_same_on_cpu(a->out);
    for (int64_t c = 0; c < a->cols; c++) {
        double sum = a->accumulate ? ck_start(a->out, c) : 0, size = fabs(sum);
        for (int64_t r = 0; r < a->rows; r++) {
            sum += ck_get(a->x, r * a->ld + c);
            size += fabs(ck_get(a->x, r * a->ld + c));
        }
        ck_near(a->out, c, sum, 0x1p-24 * (fmin((double)a->rows, 64) + (double)a->rows / 64 + 1) * size);
    }
}

static void colsums(void)
{
    static const int64_t rows[] = { 0, 1, 63, 64, 65, 200 }, cols[] = { 1, 8, 17, 64, 130, 768 };
    for (size_t r = 0; r < DSC_COUNT(rows); r++)
        for (size_t c = 0; c < DSC_COUNT(cols); c++)
            for (dsc_dtype d = DSC_F32; d <= DSC_F16; d++) {
                if (!ck_case("colsum %lldx%lld %s", (long long)rows[r], (long long)cols[c], ck_dtype_text(d)))
                    continue;
                dsc_colsum_args a = { .rows = rows[r],
                                      .cols = cols[c],
                                      .ld = cols[c] + (d ? 3 : 0),
                                      .x_dtype = d,
                                      .accumulate = (r + c) & 1 };
                a.out = ck_buf(a.accumulate ? CK_INOUT : CK_OUT, DSC_F32, a.cols, "out");
                a.x = ck_buf(CK_IN, a.x_dtype, a.rows * a.ld, "x");
                ck_normal(a.x, 0, 1);
                ck_edges(a.x);
                ck_gaps(a.x, a.rows, a.cols, a.ld);
                if (a.accumulate)
                    ck_normal(a.out, 0, 1);
                ck_kernel(DSC_KERNEL_COLSUM, &a, sizeof a, verify_colsum);
            }
}

static void bench_colsum(void)
{
    const int64_t rows = ck_bench_size(1024, 32768), cols = 3072;
    if (!ck_case("bench colsum bf16 %lldx3072", (long long)rows))
        return;
    dsc_colsum_args a = { .rows = rows, .cols = cols, .ld = cols, .x_dtype = DSC_BF16 };
    a.out = ck_buf(CK_OUT, DSC_F32, cols, "out");
    a.x = ck_buf(CK_IN, DSC_BF16, rows * cols, "x");
    ck_uniform(a.x, -1, 1);
    ck_bench(DSC_KERNEL_COLSUM, &a, sizeof a, rows * cols * 2, 0, false);
}

/* ---- GPT-2 124M ---- */

typedef struct bench_shape {
    const char *name;
    int64_t m, n, k;
    bool ta, tb;
    dsc_dtype c;
    dsc_epilogue e;
    bool accumulate;
} bench_shape;

static void bench_one(const char *batch, int64_t channels, bench_shape s, dsc_dtype ab)
{
    if (!ck_case("bench gemm %s %s C=%lld %s", ab == DSC_BF16 ? "bf16" : "f32", batch, (long long)channels, s.name))
        return;
    const dsc_dtype c = ab == DSC_F32 ? DSC_F32 : s.c;
    dsc_gemm_args a = { .m = s.m,
                        .n = s.n,
                        .k = s.k,
                        .lda = s.ta ? s.m : s.k,
                        .ldb = s.tb ? s.k : s.n,
                        .ldc = s.n,
                        .a_transposed = s.ta,
                        .b_transposed = s.tb,
                        .accumulate = s.accumulate,
                        .epilogue = s.e,
                        .ab_dtype = ab,
                        .c_dtype = c };
    a.a = ck_buf(CK_IN, ab, s.m * s.k, "a");
    a.b = ck_buf(CK_IN, ab, s.k * s.n, "b");
    a.c = ck_buf(CK_INOUT, c, s.m * s.n, "c");
    if (s.e != DSC_EPILOGUE_NONE && s.e != DSC_EPILOGUE_BIAS) {
        a.aux = ck_buf(CK_INOUT, c, s.m * s.n, "aux");
        ck_uniform(a.aux, -1, 1);
    }
    a.bias = ck_buf(CK_IN, ab, s.n, "bias");
    ck_uniform(a.a, -1, 1);
    ck_uniform(a.b, -0.1, 0.1);
    if (s.accumulate)
        ck_uniform(a.c, -1, 1);
    ck_uniform(a.bias, -1, 1);
    ck_bench(DSC_KERNEL_GEMM, &a, sizeof a, 0, 2 * s.m * s.n * s.k, CK_NO_REF | (ab == DSC_F32 ? CK_F32_PEAK : 0));
}

static void bench(int64_t rows, int64_t channels, const char *batch, dsc_dtype ab)
{
    const int64_t head_rows = rows < 4096 ? rows : 4096; /* logits come in chunks */
    const bench_shape shapes[] = {
        { "qkv", rows, 3 * channels, channels, false, false, DSC_BF16, DSC_EPILOGUE_BIAS, false },
        { "proj", rows, channels, channels, false, false, DSC_BF16, DSC_EPILOGUE_BIAS_ADD, false },
        { "fc", rows, 4 * channels, channels, false, false, DSC_BF16, DSC_EPILOGUE_BIAS_GELU, false },
        { "fcproj", rows, channels, 4 * channels, false, false, DSC_BF16, DSC_EPILOGUE_BIAS_ADD, false },
        { "head", head_rows, 50304, channels, false, true, DSC_BF16, DSC_EPILOGUE_NONE, false },
        { "dx_qkv", rows, channels, 3 * channels, false, true, DSC_BF16, DSC_EPILOGUE_NONE, false },
        { "dx_proj", rows, channels, channels, false, true, DSC_BF16, DSC_EPILOGUE_NONE, false },
        { "dx_fc", rows, channels, 4 * channels, false, true, DSC_BF16, DSC_EPILOGUE_NONE, false },
        { "dx_fcproj", rows, 4 * channels, channels, false, true, DSC_BF16, DSC_EPILOGUE_DGELU, false },
        { "dx_head", head_rows, channels, 50304, false, false, DSC_BF16, DSC_EPILOGUE_NONE, false },
        { "dw_qkv", channels, 3 * channels, rows, true, false, DSC_F32, DSC_EPILOGUE_NONE, false },
        { "dw_proj", channels, channels, rows, true, false, DSC_F32, DSC_EPILOGUE_NONE, false },
        { "dw_fc", channels, 4 * channels, rows, true, false, DSC_F32, DSC_EPILOGUE_NONE, false },
        { "dw_fcproj", 4 * channels, channels, rows, true, false, DSC_F32, DSC_EPILOGUE_NONE, false },
        { "dw_head", 50304, channels, head_rows, true, false, DSC_F32, DSC_EPILOGUE_NONE, false },
        { "dw_head+", 50304, channels, head_rows, true, false, DSC_F32, DSC_EPILOGUE_NONE, true },
    };
    for (size_t i = 0; i < DSC_COUNT(shapes); i++)
        bench_one(batch, channels, shapes[i], ab);
}

/* Epilogues and sums with the product, and the same apart. */
static void bench_way(int64_t rows, int64_t channels, bool fused, int which)
{
    static const char *const names[] = { "fc", "dx_fcproj", "dw_qkv sums", "dw_proj sums", "dw_fc sums",
                                         "dw_fcproj sums" };
    const shape shapes[] = { { rows, 4 * channels, channels },     { rows, 4 * channels, channels },
                             { channels, 3 * channels, rows },     { channels, channels, rows },
                             { channels, 4 * channels, rows },     { 4 * channels, channels, rows } };
    const shape s = shapes[which];
    const bool sums = which >= 2, slope = which == 1;
    if (!ck_case("bench gemm bf16 %lld rows C=%lld %s %s", (long long)rows, (long long)channels, names[which],
                 fused ? "fused" : "apart"))
        return;
    dsc_gemm_args a = { .m = s.m, .n = s.n, .k = s.k, .lda = sums ? s.m : s.k, .ldb = slope ? s.k : s.n, .ldc = s.n,
                        .a_transposed = sums, .b_transposed = slope, .ab_dtype = DSC_BF16,
                        .c_dtype = sums ? DSC_F32 : DSC_BF16,
                        .epilogue = sums    ? DSC_EPILOGUE_NONE
                                    : slope ? DSC_EPILOGUE_DGELU
                                            : DSC_EPILOGUE_BIAS_GELU,
                        .sums_of = sums ? DSC_GEMM_SUMS_OF_B : DSC_GEMM_NO_SUMS };
    a.a = ck_buf(CK_IN, DSC_BF16, s.m * s.k, "a");
    a.b = ck_buf(CK_IN, DSC_BF16, s.k * s.n, "b");
    a.c = ck_buf(CK_OUT, a.c_dtype, s.m * s.n, "c");
    ck_uniform(a.a, -1, 1);
    ck_uniform(a.b, -0.1, 0.1);
    if (sums)
        a.sums = ck_buf(CK_OUT, DSC_F32, s.n, "sums");
    if (!sums && !slope)
        ck_uniform(a.bias = ck_buf(CK_IN, DSC_BF16, s.n, "bias"), -1, 1);
    if (!sums)
        ck_uniform(a.aux = ck_buf(CK_INOUT, DSC_BF16, s.m * s.n, "aux"), -1, 1);
    (void)ck_device_fuse(fused ? DSC_GEMM_FUSED_ALL : DSC_GEMM_FUSED_NONE);
    ck_bench(DSC_KERNEL_GEMM, &a, sizeof a, 0, 2 * s.m * s.n * s.k, CK_NO_REF);
    (void)ck_device_fuse(DSC_GEMM_FUSED_DEFAULT);
}

static void bench_ways(int64_t rows, int64_t channels)
{
    for (int which = 0; which < 6; which++)
        for (int fused = 0; fused < 2; fused++)
            bench_way(rows, channels, fused != 0, which);
}

void ck_gemm(void)
{
    combinations();
    activations();
    large();
    other_ways();
    no_aux();
    colsums();
    if (ck_benching())
        bench_colsum();
    if (ck_bench_size(0, ck_benching()) != 0) {
        bench(16384, 768, "16x1024", DSC_BF16);
        bench(8192, 1600, "8x1024", DSC_BF16);
        bench_ways(16384, 768);
        bench_ways(8192, 1600);
    } else if (ck_benching()) {
        bench(256, 768, "4x64", DSC_BF16);
        bench(1024, 768, "16x64", DSC_BF16);
        bench(256, 768, "4x64", DSC_F32);
    }
}
