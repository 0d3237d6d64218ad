/* exact_gemm.c - exact products: the reference's bits on every variant, and the reference within the bound of a chain
 * of k roundings of the sum in double. SPDX-License-Identifier: Apache-2.0 */
#include "tests/checkkern/ck_exact.h"

#include <math.h>

static void verify(const void *args)
{
    const dsc_exact_gemm_args *a = args;
    const double u = 0x1p-24;
    ck_same_or_nan(a->c, a->m * a->n);
    for (int64_t i = 0; i < a->m; i++)
        for (int64_t j = 0; j < a->n; j++) {
            double sum = 0, size = 0;
            for (int64_t k = 0; k < a->k; k++) {
                const double one =
                    (double)a->a[i * a->a_row + k * a->a_col] * (double)a->b[k * a->b_row + j * a->b_col];
                sum += one;
                size += fabs(one);
            }
            const double kept = a->d != NULL ? (double)a->beta * (double)a->d[i * a->n + j] : 0;
            const double off = fabs((double)a->alpha) * size * (double)a->k * u + u * fabs(kept);
            const double c = (double)a->alpha * sum + kept;
            ck_near(a->c, i * a->n + j, c, 1.001 * (off + u * fabs(c)) + 0x1p-140);
        }
}

static void verify_bits(const void *args)
{
    const dsc_exact_gemm_args *a = args;
    ck_same_or_nan(a->c, a->m * a->n);
}

/* A or B is stored as it is, or its transpose is; `add` adds A to it, where it has C's shape. */
static void check_case(int64_t m, int64_t n, int64_t k, bool a_transposed, bool b_transposed, bool add, bool wild)
{
    if (!ck_case("exact_gemm %lldx%lldx%lld%s%s%s%s", (long long)m, (long long)n, (long long)k,
                 a_transposed ? " At" : "", b_transposed ? " Bt" : "", add ? " add" : "", wild ? " wild" : ""))
        return;
    float *a = ck_buf(CK_IN, DSC_F32, m * k, "a"), *b = ck_buf(CK_IN, DSC_F32, k * n, "b");
    float *d = add ? ck_buf(CK_IN, DSC_F32, m * n, "d") : NULL;
    ck_normal(a, 0, 1), ck_normal(b, 0, 0.5);
    if (add)
        ck_normal(d, 0, 3);
    if (wild)
        ck_edges(a), ck_edges(b), ck_wild(a, m * k), ck_wild(b, k * n);
    const dsc_exact_gemm_args args = { .c = ck_buf(CK_OUT, DSC_F32, m * n, "c"),
                                       .a = a,
                                       .b = b,
                                       .d = d,
                                       .m = m,
                                       .n = n,
                                       .k = k,
                                       .a_row = a_transposed ? 1 : k,
                                       .a_col = a_transposed ? m : 1,
                                       .b_row = b_transposed ? 1 : n,
                                       .b_col = b_transposed ? k : 1,
                                       .alpha = 2.0315f,
                                       .beta = -4.775f };
    ck_kernel(DSC_KERNEL_EXACT_GEMM, &args, sizeof args, wild ? verify_bits : verify);
}

static void bench(void)
{
    const int64_t n = ck_bench_size(1024, 4096);
    if (!ck_benching() || !ck_case("bench exact_gemm %lld", (long long)n))
        return;
    float *a = ck_buf(CK_IN, DSC_F32, n * n, "a"), *c = ck_buf(CK_OUT, DSC_F32, n * n, "c");
    ck_normal(a, 0, 0.01);
    const dsc_exact_gemm_args args = {
        .c = c, .a = a, .b = a, .m = n, .n = n, .k = n, .a_row = n, .a_col = 1, .b_row = 1, .b_col = n, .alpha = 1
    };
    ck_bench(DSC_KERNEL_EXACT_GEMM, &args, sizeof args, 3 * 4 * n * n, 2 * n * n * n, CK_NO_REF | CK_F32_PEAK);
}

void ck_exact_gemm(void)
{
    static const int64_t shapes[][3] = { { 1, 1, 1 },     { 1, 17, 3 },   { 5, 16, 256 }, { 12, 64, 257 },
                                         { 13, 65, 40 },  { 193, 15, 9 }, { 7, 130, 1 },  { 37, 33, 513 },
                                         { 200, 70, 64 }, { 0, 4, 3 } };
    for (size_t s = 0; s < DSC_COUNT(shapes); s++)
        for (int way = 0; way < 4; way++) {
            const int64_t *shape = shapes[s];
            check_case(shape[0], shape[1], shape[2], way % 2 == 1, way / 2 == 1, ((int)s + way) % 2 == 0, false);
            if (s % 4 == (size_t)way)
                check_case(shape[0], shape[1], shape[2], way % 2 == 1, way / 2 == 1, way % 2 == 0, true);
        }
    bench();
}
