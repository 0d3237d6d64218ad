/* dora.c - DoRA's kernels. The norm of w + s B A against double, within the roundings of its elements; the other two
 * against an operation a line; every variant as the reference. u = 2^-24. SPDX-License-Identifier: Apache-2.0 */
#include "tests/checkkern/ck.h"

#include <math.h>

static const double u = 0x1p-24;

/* ---- the factors ---- */

/* An element has a rounding for each of the rank's terms and one more; the norm has two, and that of the dtype. */
static void near_output(const dsc_dora_factors_args *a, int64_t o)
{
    double squares = 0, off = 0;
    for (int64_t i = 0; i < a->in; i++) {
        const double w = ck_get(a->weight, a->in_out ? i * a->out + o : o * a->in + i);
        double d = 0, size = fabs(w);
        for (int64_t k = 0; k < a->rank; k++) {
            const double term = ck_get(a->b, o * a->rank + k) * ck_get(a->a, k * a->in + i);
            d += term;
            size += fabs((double)a->scale * term);
        }
        const double v = w + (double)a->scale * d, v_off = (double)(a->rank + 1) * u * size;
        squares += v * v;
        off += v_off * v_off;
    }
    const double norm = sqrt(squares), norm_off = sqrt(off) + 2 * u * norm + ck_rounding(a->dtype, norm);
    ck_near(a->norms, o, norm, norm_off);
    const double got = ck_get(a->norms, o), magnitude = ck_get(a->magnitude, o);
    ck_near(a->factors, o, got > 0 ? (double)((float)magnitude / (float)got) : 0, 0);
}

static void verify_factors(const void *args)
{
    const dsc_dora_factors_args *a = args;
    ck_same(a->norms);
    ck_same(a->factors);
    for (int64_t o = 0; o < a->out; o++)
        near_output(a, o);
}

static dsc_dora_factors_args factors_case(int64_t out, int64_t in, int64_t rank, bool in_out, dsc_dtype dtype)
{
    dsc_dora_factors_args a = { .in = in, .out = out, .rank = rank, .scale = 1.7f, .in_out = in_out, .dtype = dtype };
    a.factors = ck_buf(CK_OUT, DSC_F32, out, "factors");
    a.norms = ck_buf(CK_OUT, DSC_F32, out, "norms");
    a.weight = ck_buf(CK_IN, dtype, out * in, "weight");
    a.a = ck_buf(CK_IN, dtype, rank * in, "A");
    a.b = ck_buf(CK_IN, dtype, out * rank, "B");
    a.magnitude = ck_buf(CK_IN, dtype, out, "magnitude");
    ck_normal(a.weight, 0, 0.5);
    ck_normal(a.a, 0, 0.5);
    ck_normal(a.b, 0, 0.5);
    ck_normal(a.magnitude, 1, 0.5);
    for (int64_t i = 0; i < in; i++) /* an output whose weights are all 0 */
        ck_set(a.weight, in_out ? i * out : i, 0);
    for (int64_t k = 0; k < rank; k++)
        ck_set(a.b, k, 0);
    return a;
}

static void check_factors(bool aligned)
{
    static const int64_t shapes[][3] = { { 1, 1, 1 },   { 3, 5, 2 },    { 8, 16, 3 },    { 9, 63, 4 },  { 17, 64, 5 },
                                         { 5, 65, 1 },  { 16, 127, 8 }, { 24, 128, 16 }, { 7, 129, 2 }, { 33, 192, 3 },
                                         { 4, 256, 7 }, { 2, 260, 33 }, { 40, 516, 8 } };
    for (size_t s = 0; s < DSC_COUNT(shapes); s++)
        for (dsc_dtype dtype = DSC_F32; dtype <= DSC_F16; dtype++)
            for (int in_out = 0; in_out < 2; in_out++) {
                if (!ck_case("dora_factors %s %lldx%lld rank %lld%s%s", ck_dtype_text(dtype), (long long)shapes[s][0],
                             (long long)shapes[s][1], (long long)shapes[s][2], in_out ? " in_out" : "",
                             aligned ? " aligned" : ""))
                    continue;
                if (aligned)
                    ck_align();
                const dsc_dora_factors_args a =
                    factors_case(shapes[s][0], shapes[s][1], shapes[s][2], in_out != 0, dtype);
                ck_kernel(DSC_KERNEL_DORA_FACTORS, &a, sizeof a, verify_factors);
            }
}

/* ---- rows times factors ---- */

static void verify_scale(const void *args)
{
    const dsc_dora_scale_args *a = args;
    ck_same(a->out);
    for (int64_t r = 0; r < a->rows; r++)
        for (int64_t c = 0; c < a->cols; c++) {
            const int64_t at = r * a->cols + c;
            float x = (float)ck_start(a->x, at) * (a->factors[c] + a->offset);
            if (a->bias != NULL)
                x = x + (float)ck_start(a->bias, c);
            if (a->add != NULL)
                x = x + (float)ck_start(a->add, at);
            ck_near(a->out, at, (double)x, ck_rounding(a->dtype, (double)x));
        }
}

/* out: 0 apart, 1 over x, 2 over what is added. */
static void check_scale(int64_t rows, int64_t cols, dsc_dtype dtype, int over, bool aligned)
{
    static const char *const text[] = { "", " over x", " over add" };
    if (!ck_case("dora_scale %s %lldx%lld%s%s", ck_dtype_text(dtype), (long long)rows, (long long)cols, text[over],
                 aligned ? " aligned" : ""))
        return;
    if (aligned)
        ck_align();
    void *x = ck_buf(over == 1 ? CK_INOUT : CK_IN, dtype, rows * cols, "x");
    void *add = over == 1 ? NULL : ck_buf(over == 2 ? CK_INOUT : CK_IN, dtype, rows * cols, "add");
    void *bias = over == 2 ? NULL : ck_buf(CK_IN, dtype, cols, "bias");
    float *factors = ck_buf(CK_IN, DSC_F32, cols, "factors");
    ck_normal(x, 0, 1);
    ck_normal(factors, 1, 0.3);
    if (add != NULL)
        ck_normal(add, 0, 1);
    if (bias != NULL)
        ck_normal(bias, 0, 1);
    const dsc_dora_scale_args a = { .out = over == 1   ? x
                                           : over == 2 ? add
                                                       : ck_buf(CK_OUT, dtype, rows * cols, "out"),
                                    .x = x,
                                    .bias = bias,
                                    .add = add,
                                    .factors = factors,
                                    .rows = rows,
                                    .cols = cols,
                                    .offset = over == 2 ? -1.0f : 0,
                                    .dtype = dtype };
    ck_kernel(DSC_KERNEL_DORA_SCALE, &a, sizeof a, verify_scale);
}

/* ---- the gradient ---- */

/* A product and a division round once each; chains of 64 rows, then one of blocks. */
static void verify_gradient(const void *args)
{
    const dsc_dora_gradient_args *a = args;
    const double chain = fmin((double)a->rows, 64) + (double)a->rows / 64 + 3;
    ck_same_on_cpu(a->out);
    for (int64_t c = 0; c < a->cols; c++) {
        double sum = 0, size = 0;
        const double norm = ck_get(a->norms, c);
        for (int64_t r = 0; r < a->rows; r++) {
            const double term = ck_get(a->d, r * a->cols + c) * ck_get(a->z, r * a->cols + c);
            sum += term;
            size += fabs(term);
        }
        ck_near(a->out, c, norm > 0 ? sum / norm : 0, norm > 0 ? 1.01 * chain * u * size / norm : 0);
    }
}

static void check_gradient(int64_t rows, int64_t cols, dsc_dtype dtype, bool aligned)
{
    if (!ck_case("dora_gradient %s %lldx%lld%s", ck_dtype_text(dtype), (long long)rows, (long long)cols,
                 aligned ? " aligned" : ""))
        return;
    if (aligned)
        ck_align();
    const dsc_dora_gradient_args a = { .out = ck_buf(CK_OUT, DSC_F32, cols, "out"),
                                       .d = ck_buf(CK_IN, dtype, rows * cols, "d"),
                                       .z = ck_buf(CK_IN, dtype, rows * cols, "z"),
                                       .norms = ck_buf(CK_IN, DSC_F32, cols, "norms"),
                                       .rows = rows,
                                       .cols = cols,
                                       .dtype = dtype };
    ck_normal(a.d, 0, 1);
    ck_normal(a.z, 0, 1);
    ck_uniform(a.norms, 0.5, 2);
    ck_set(a.norms, 0, 0);
    ck_kernel(DSC_KERNEL_DORA_GRADIENT, &a, sizeof a, verify_gradient);
}

/* A layer of a 7B model, rank 16: the factors read the weight once, the rows are of 8192 tokens on a GPU. */
static void bench(dsc_dtype dtype)
{
    const int64_t size = ck_bench_size(2048, 4096), rows = ck_bench_size(512, 8192), rank = 16;
    const int64_t each = (int64_t)dsc_dtype_bytes(dtype), bytes = rows * size * each;
    if (ck_case("bench dora_factors %s %lldx%lld rank 16", ck_dtype_text(dtype), (long long)size, (long long)size)) {
        const dsc_dora_factors_args a = factors_case(size, size, rank, false, dtype);
        ck_bench(DSC_KERNEL_DORA_FACTORS, &a, sizeof a, size * size * each, 2 * (rank + 2) * size * size,
                 CK_NO_REF | CK_F32_PEAK);
    }
    if (ck_case("bench dora_scale %s %lldx%lld", ck_dtype_text(dtype), (long long)rows, (long long)size)) {
        void *x = ck_buf(CK_INOUT, dtype, rows * size, "x");
        const float *factors = ck_buf(CK_IN, DSC_F32, size, "factors");
        ck_uniform(x, -1, 1);
        ck_uniform(factors, 0.99, 1.01);
        const dsc_dora_scale_args a = {
            .out = x, .x = x, .factors = factors, .rows = rows, .cols = size, .dtype = dtype
        };
        ck_bench(DSC_KERNEL_DORA_SCALE, &a, sizeof a, 2 * bytes, 0, 0);
    }
    if (ck_case("bench dora_gradient %s %lldx%lld", ck_dtype_text(dtype), (long long)rows, (long long)size)) {
        const dsc_dora_gradient_args a = { .out = ck_buf(CK_OUT, DSC_F32, size, "out"),
                                           .d = ck_buf(CK_IN, dtype, rows * size, "d"),
                                           .z = ck_buf(CK_IN, dtype, rows * size, "z"),
                                           .norms = ck_buf(CK_IN, DSC_F32, size, "norms"),
                                           .rows = rows,
                                           .cols = size,
                                           .dtype = dtype };
        ck_uniform(a.d, -1, 1);
        ck_uniform(a.z, -1, 1);
        ck_uniform(a.norms, 1, 2);
        ck_bench(DSC_KERNEL_DORA_GRADIENT, &a, sizeof a, 2 * bytes, 0, 0);
    }
}

void ck_dora(void)
{
    static const int64_t cols[] = { 1, 7, 15, 16, 17, 63, 64, 65, 96, 130, 1032 }, rows[] = { 0, 1, 3, 64, 65, 131 };
    check_factors(false);
    check_factors(true);
    for (size_t c = 0; c < DSC_COUNT(cols); c++)
        for (dsc_dtype dtype = DSC_F32; dtype <= DSC_F16; dtype++) {
            const size_t n = c + (size_t)dtype;
            check_scale(rows[n % 4], cols[c], dtype, (int)(n % 3), false);
            check_scale(rows[(n + 1) % 4], cols[c], dtype, (int)((n + 1) % 3), true);
            check_gradient(rows[n % DSC_COUNT(rows)], cols[c], dtype, false);
            check_gradient(rows[(n + 1) % DSC_COUNT(rows)], cols[c], dtype, true);
        }
    if (ck_benching()) {
        bench(DSC_F32);
        bench(DSC_BF16);
    }
}
