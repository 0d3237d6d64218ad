/* fp8.c - the cast to fp8, of whole matrices, pieces and blocks, and products of it. The cast must equal the reference
 * in every bit, and the reference must be the nearest of a table of all 256 numbers. A product is held to the double
 * sum of the values. On a CPU the tolerance is gemm.c's. On a GPU it is 2^-11 sum|a b|: tensor cores of sm_90 cut each
 * addend to about 14 bits of the largest. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "kernels/fp8.h"
#include "tests/checkkern/ck_internal.h"

static const dsc_fp8 formats[] = { DSC_FP8_E4M3, DSC_FP8_E5M2 };
static const char *text_of(dsc_fp8 format) { return format == DSC_FP8_E4M3 ? "e4m3" : "e5m2"; }

/* By the definition of the formats. */
static double value_of(uint8_t q, dsc_fp8 format)
{
    const int mantissa = format == DSC_FP8_E4M3 ? 3 : 2, bias = format == DSC_FP8_E4M3 ? 7 : 15;
    const int exponent = (q & 127) >> mantissa, part = q & ((1 << mantissa) - 1);
    const double sign = q < 128 ? 1 : -1;
    if (format == DSC_FP8_E4M3 ? (q & 127) == 127 : exponent == 31 && part > 0)
        return (double)NAN;
    if (format == DSC_FP8_E5M2 && exponent == 31)
        return sign * (double)INFINITY;
    return sign * (exponent == 0 ? ldexp(part, 1 - bias - mantissa)
                                 : ldexp((1 << mantissa) + part, exponent - bias - mantissa));
}

/* The nearest number of the table; of two the one whose last bit is 0. */
static uint8_t nearest(double x, dsc_fp8 format)
{
    static double values[3][128]; /* of a format, once it was asked for */
    double *const of_format = values[format];
    uint8_t best = 0;
    double least = (double)INFINITY;
    if (!isfinite(x))
        return 0x7f;
    for (int q = 0; q < 128 && of_format[1] <= 0; q++)
        of_format[127 - q] = value_of((uint8_t)(127 - q), format);
    for (int q = 0; q < 128; q++) {
        const double off = fabs(fabs(x) - of_format[q]);
        if (isfinite(off) && (off < least || (off <= least && q % 2 == 0))) {
            best = (uint8_t)q;
            least = off;
        }
    }
    return (uint8_t)(best | (signbit(x) ? 0x80 : 0));
}

static double largest_of(const dsc_cast_fp8_args *a)
{
    double top = 0;
    for (int64_t i = 0; i < a->row_count * a->col_count; i++) {
        const double x = fabs(ck_get(a->from, i));
        if (!isfinite(x))
            return (double)INFINITY;
        top = fmax(top, x);
    }
    return top;
}

static void verify_step(const dsc_cast_fp8_args *a, double step)
{
    const double top = largest_of(a), most = a->format == DSC_FP8_E4M3 ? 448 : 57344;
    const bool is_limit = step <= 0x1p-60 || step >= 0x1p60;
    if (top <= 0 || isinf(top) ? step < 1 || step > 1 : !is_limit && (top / step > most || 2 * top / step <= most))
        ck_fail("a step of %a where the largest is %a", step, top);
}

static void verify_cast(const void *args)
{
    const dsc_cast_fp8_args *a = args;
    float step;
    memcpy(&step, a->scale, sizeof step);
    verify_step(a, (double)step);
    for (int64_t r = 0; r < a->row_count; r++)
        for (int64_t c = 0; c < a->col_count; c++) {
            const int64_t at = r * a->col_count + c, turned = c * a->row_count + r;
            const double x = ck_get(a->from, at) / (double)step;
            const uint8_t q = nearest(x, a->format);
            if (a->rows != NULL && (uint8_t)ck_get(a->rows, at) != q)
                ck_fail("rows[%lld][%lld]: %a is 0x%02x, expected 0x%02x", (long long)r, (long long)c, x,
                        (unsigned)ck_get(a->rows, at), q);
            if (a->columns != NULL && (uint8_t)ck_get(a->columns, turned) != q)
                ck_fail("columns[%lld][%lld]: %a is 0x%02x, expected 0x%02x", (long long)c, (long long)r, x,
                        (unsigned)ck_get(a->columns, turned), q);
        }
}

typedef enum contents { NORMAL, WIDE, ZEROS, TINY, NOT_FINITE, TIES, CONTENTS } contents;
static const char *const contents_text[] = { "normal", "wide", "zeros", "tiny", "not finite", "ties" };

static void fill(const void *x, int64_t count, contents what)
{
    for (int64_t i = 0; i < count; i++) {
        const double u = (double)(int32_t)ck_random() * 0x1p-31;
        ck_set(x, i,
               what == ZEROS  ? (i % 2 != 0 ? -0.0 : 0)
               : what == TINY ? ldexp(u, -120)
               : what == WIDE ? ldexp(u, (int)(ck_random() % 40) - 30)
               : what == TIES ? ldexp((int)(ck_random() % 65) - 32, (int)(ck_random() % 24) - 20)
                              : 3 * u);
    }
    if (what == NOT_FINITE) {
        ck_set(x, ck_random() % count, -(double)INFINITY);
        ck_set(x, ck_random() % count, (double)NAN);
    }
}

static void one_cast(int64_t rows, int64_t cols, dsc_fp8 format, contents what, bool plain, bool turned)
{
    if (!ck_case("cast_fp8 %s %lldx%lld %s%s%s", text_of(format), (long long)rows, (long long)cols, contents_text[what],
                 plain ? " rows" : "", turned ? " columns" : ""))
        return;
    ck_align();
    dsc_cast_fp8_args a = { .row_count = rows, .col_count = cols, .format = format };
    a.scale = ck_buf(CK_OUT, DSC_U8, sizeof *a.scale, "scale");
    a.from = ck_buf(CK_IN, DSC_BF16, rows * cols, "from");
    a.rows = plain ? ck_buf(CK_OUT, DSC_U8, rows * cols, "rows") : NULL;
    a.columns = turned ? ck_buf(CK_OUT, DSC_U8, rows * cols, "columns") : NULL;
    fill(a.from, rows * cols, what);
    ck_kernel(DSC_KERNEL_CAST_FP8, &a, sizeof a, verify_cast);
}

static void casts(void)
{
    static const int64_t shapes[][2] = { { 16, 16 }, { 48, 160 }, { 144, 272 }, { 272, 16 }, { 16, 528 } };
    for (size_t f = 0; f < DSC_COUNT(formats); f++)
        for (size_t s = 0; s < DSC_COUNT(shapes); s++) {
            for (int what = 0; what < CONTENTS; what++)
                one_cast(shapes[s][0], shapes[s][1], formats[f], (contents)what, true, true);
            one_cast(shapes[s][0], shapes[s][1], formats[f], NORMAL, true, false);
            one_cast(shapes[s][0], shapes[s][1], formats[f], NORMAL, false, true);
        }
}

/* ---- products ---- */

static double operand(const void *x, int64_t at, dsc_fp8 format, const dsc_fp8_scale *scale)
{
    float step;
    memcpy(&step, scale, sizeof step);
    return value_of((uint8_t)ck_get(x, at), format) * (double)step;
}

static double slope_of(double x)
{
    const double u2 = 1.5957691216057308 * (x + 0.044715 * x * x * x), s = 1 / (1 + exp(-u2));
    return s + x * s * (1 / (1 + exp(u2))) * 1.5957691216057308 * (1 + 3 * 0.044715 * x * x);
}

/* Step of number (r, c) of a matrix whose sum is along c, by the layouts of fp8.h. */
static double block_step(const float *steps, dsc_fp8_blocks blocks, int64_t rows, int64_t cols, int64_t r, int64_t c)
{
    const int64_t stride = (dsc_fp8_block_count(cols) + 3) / 4 * 4;
    return ck_get(steps, blocks == DSC_FP8_BLOCKS_ROW ? c / 128 * rows + r : r / 128 * stride + c / 128);
}

static void verify_element(const dsc_gemm_args *a, int64_t i, int64_t j)
{
    const int64_t at = i * a->ldc + j;
    double x = 0, size = 0;
    for (int64_t k = 0; k < a->k; k++) {
        const bool blocks = a->a_blocks != DSC_FP8_BLOCKS_NONE;
        double term =
            operand(a->a, i * a->lda + k, a->a_fp8, a->a_scale) * operand(a->b, j * a->ldb + k, a->b_fp8, a->b_scale);
        if (blocks)
            term *= block_step(a->a_steps, a->a_blocks, a->m, a->k, i, k) *
                    block_step(a->b_steps, a->b_blocks, a->n, a->k, j, k);
        x += term;
        size += fabs(term);
    }
    double tol = (ck_on_gpu() ? 0x1p-11 : 0x1p-21) * size;
    if (a->accumulate)
        x += ck_start(a->c, at);
    if (ck_on_gpu() && a->c_dtype != DSC_F32)
        tol += 0.5 * ck_spacing(a->c_dtype, fabs(x) + tol); /* gemm.h lets a library round before its epilogue */
    if (a->bias != NULL && dsc_epilogue_has_bias(a->epilogue))
        x += ck_get(a->bias, j);
    if (dsc_epilogue_adds(a->epilogue)) {
        tol += ck_on_gpu() ? 0.5 * ck_spacing(a->c_dtype, fabs(x) + tol) : 0;
        x += ck_get(a->aux, at);
    } else if (a->epilogue == DSC_EPILOGUE_DGELU) {
        tol = tol * fabs(slope_of(ck_get(a->aux, at))) + (ck_on_gpu() ? 0x1p-10 : 0x1p-18) * fabs(x);
        x *= slope_of(ck_get(a->aux, at));
    }
    ck_near(a->c, at, x, tol + 0x1p-22 * fabs(x) + 0.5 * ck_spacing(a->c_dtype, fabs(x) + tol));
}

static void verify_product(const void *args)
{
    const dsc_gemm_args *a = args;
    for (int64_t i = 0; i<a->m; i += a->m> 64 ? 5 : 1)
        for (int64_t j = 0; j<a->n; j += a->n> 64 ? 3 : 1)
            verify_element(a, i, j);
}

/* Numbers of like sizes, of either sign. */
static const uint8_t *random_numbers(int64_t count, dsc_fp8 format, const char *name)
{
    uint8_t *q = ck_buf(CK_IN, DSC_U8, count, name);
    const uint32_t first = format == DSC_FP8_E4M3 ? 3u << 3 : 11u << 2, range = format == DSC_FP8_E4M3 ? 5 * 8 : 5 * 4;
    for (int64_t i = 0; i < count; i++)
        q[i] = (uint8_t)(ck_random() % 20 == 0 ? 0 : first + ck_random() % range + (ck_random() % 2 != 0 ? 128 : 0));
    return q;
}

static const dsc_fp8_scale *scale_of(float step, const char *name)
{
    uint8_t *scale = ck_buf(CK_IN, DSC_U8, sizeof(dsc_fp8_scale), name);
    memset(scale, 0, sizeof(dsc_fp8_scale));
    memcpy(scale, &step, sizeof step);
    return (const dsc_fp8_scale *)(const void *)scale;
}

typedef struct product_case {
    int64_t m, n, k;
    dsc_fp8 a, b;
    dsc_dtype c;
    dsc_epilogue epilogue;
    bool accumulate, fast;
    dsc_fp8_blocks a_blocks, b_blocks;
} product_case;

/* Powers of two, near to each other. */
static const float *random_steps(dsc_fp8_blocks blocks, int64_t outer, int64_t inner, const char *name)
{
    const int64_t count = dsc_fp8_step_count(blocks, outer, inner);
    float *const steps = ck_buf(CK_IN, DSC_F32, count, name);
    for (int64_t i = 0; i < count; i++)
        ck_set(steps, i, ldexp(1, (int)(ck_random() % 5) - 2));
    return steps;
}

static void one_product(product_case p)
{
    static const char *const names[] = { "none", "bias", "bias_gelu", "bias_add", "dgelu", "add" };
    if (!ck_case("gemm fp8%s m=%lld n=%lld k=%lld %s*%s->%s %s%s%s",
                 p.b_blocks == DSC_FP8_BLOCKS_ROW      ? " rows*rows"
                 : p.b_blocks == DSC_FP8_BLOCKS_SQUARE ? " rows*squares"
                                                       : "",
                 (long long)p.m, (long long)p.n, (long long)p.k, text_of(p.a), text_of(p.b), ck_dtype_text(p.c),
                 names[p.epilogue], p.accumulate ? " accumulate" : "", p.fast ? " fast" : ""))
        return;
    ck_align();
    dsc_gemm_args a = { .m = p.m,
                        .n = p.n,
                        .k = p.k,
                        .lda = p.k,
                        .ldb = p.k,
                        .ldc = p.n,
                        .b_transposed = true,
                        .accumulate = p.accumulate,
                        .epilogue = p.epilogue,
                        .ab_dtype = DSC_BF16,
                        .c_dtype = p.c,
                        .a_fp8 = p.a,
                        .b_fp8 = p.b,
                        .fast_sums = p.fast };
    a.a = random_numbers(p.m * p.k, p.a, "a");
    a.b = random_numbers(p.n * p.k, p.b, "b");
    a.a_scale = scale_of(p.a_blocks != DSC_FP8_BLOCKS_NONE ? 1 : 0x1p-2f, "a's scale");
    a.b_scale = scale_of(p.a_blocks != DSC_FP8_BLOCKS_NONE ? 1 : 0x1p3f, "b's scale");
    a.a_blocks = p.a_blocks, a.b_blocks = p.b_blocks;
    if (p.a_blocks != DSC_FP8_BLOCKS_NONE) {
        a.a_steps = random_steps(p.a_blocks, p.m, p.k, "steps of a");
        a.b_steps = random_steps(p.b_blocks, p.n, p.k, "steps of b");
    }
    a.c = ck_buf(p.accumulate ? CK_INOUT : CK_OUT, p.c, p.m * p.n, "c");
    if (p.accumulate)
        ck_normal(a.c, 0, 100);
    if (dsc_epilogue_has_bias(p.epilogue))
        ck_normal(a.bias = ck_buf(CK_IN, DSC_BF16, p.n, "bias"), 0, 10);
    if (p.epilogue > DSC_EPILOGUE_BIAS)
        ck_normal(a.aux = ck_buf(CK_IN, p.c, p.m * p.n, "aux"), 0, 2);
    ck_kernel(DSC_KERNEL_GEMM, &a, sizeof a, verify_product);
}

static void products(void)
{
    static const dsc_fp8 pairs[][2] = { { DSC_FP8_E4M3, DSC_FP8_E4M3 },
                                        { DSC_FP8_E5M2, DSC_FP8_E4M3 },
                                        { DSC_FP8_E4M3, DSC_FP8_E5M2 } };
    static const int64_t shapes[][3] = { { 16, 16, 16 }, { 48, 160, 64 }, { 128, 272, 528 } };
    for (size_t s = 0; s < DSC_COUNT(shapes); s++)
        for (size_t f = 0; f < DSC_COUNT(pairs); f++)
            for (int kind = 0; kind < 8; kind++) {
                static const dsc_epilogue epilogues[] = { DSC_EPILOGUE_NONE,  DSC_EPILOGUE_NONE,     DSC_EPILOGUE_NONE,
                                                          DSC_EPILOGUE_BIAS,  DSC_EPILOGUE_BIAS_ADD, DSC_EPILOGUE_ADD,
                                                          DSC_EPILOGUE_DGELU, DSC_EPILOGUE_NONE };
                one_product((product_case) { shapes[s][0], shapes[s][1], shapes[s][2], pairs[f][0], pairs[f][1],
                                             kind == 1 || kind == 2 ? DSC_F32 : DSC_BF16, epilogues[kind], kind == 2,
                                             kind == 7, DSC_FP8_BLOCKS_NONE, DSC_FP8_BLOCKS_NONE });
            }
}

/* ---- blocks ---- */

/* Numbers of one of both ways: rows of x, or with `turned` its columns. */
static void verify_way(const dsc_cast_fp8_args *a, const uint8_t *q, const float *steps, bool turned)
{
    const int64_t rows = turned ? a->col_count : a->row_count, cols = turned ? a->row_count : a->col_count;
    const double most = a->format == DSC_FP8_E4M3 ? 448 : 57344;
    const int64_t high = a->blocks == DSC_FP8_BLOCKS_SQUARE ? 128 : 1;
    for (int64_t r0 = 0; r0 < rows; r0 += high)
        for (int64_t c0 = 0; c0 < cols; c0 += 128) {
            const double step = block_step(steps, a->blocks, rows, cols, r0, c0);
            double top = 0;
            for (int64_t r = r0; r < dsc_min_i64(r0 + high, rows); r++)
                for (int64_t c = c0; c < dsc_min_i64(c0 + 128, cols); c++) {
                    const double x = ck_get(a->from, turned ? c * a->col_count + r : r * a->col_count + c);
                    const uint8_t wanted = nearest(x / step, a->format);
                    top = isfinite(x) ? fmax(top, fabs(x)) : (double)INFINITY;
                    if ((uint8_t)ck_get(q, r * cols + c) != wanted)
                        ck_fail("%s[%lld][%lld]: %a is 0x%02x, expected 0x%02x", turned ? "columns" : "rows",
                                (long long)r, (long long)c, x, (unsigned)ck_get(q, r * cols + c), wanted);
                }
            const bool limit = step <= 0x1p-60 || step >= 0x1p60;
            if (isfinite(top) && !limit && top > 0 && (top / step > most || 2 * top / step <= most))
                ck_fail("a step of %a of a block whose largest is %a", step, top);
        }
}

static void verify_blocks(const void *args)
{
    const dsc_cast_fp8_args *a = args;
    if (a->rows != NULL)
        verify_way(a, a->rows, a->row_steps, false);
    if (a->columns != NULL)
        verify_way(a, a->columns, a->column_steps, true);
}

static float *steps_buf(dsc_fp8_blocks blocks, int64_t outer, int64_t inner, const char *name)
{
    const int64_t count = dsc_fp8_step_count(blocks, outer, inner);
    float *const steps = ck_buf(CK_INOUT, DSC_F32, count, name); /* between rows of squares nothing is written */
    for (int64_t i = 0; i < count; i++)
        ck_set(steps, i, 1);
    return steps;
}

static void one_block_cast(int64_t rows, int64_t cols, dsc_fp8 format, dsc_fp8_blocks blocks, contents what, int ways)
{
    if (!ck_case("cast_fp8 %s %s %lldx%lld %s%s%s", blocks == DSC_FP8_BLOCKS_ROW ? "rows of 128" : "squares",
                 text_of(format), (long long)rows, (long long)cols, contents_text[what], (ways & 1) != 0 ? " rows" : "",
                 (ways & 2) != 0 ? " columns" : ""))
        return;
    ck_align();
    dsc_cast_fp8_args a = { .row_count = rows, .col_count = cols, .format = format, .blocks = blocks };
    a.from = ck_buf(CK_IN, DSC_BF16, rows * cols, "from");
    if ((ways & 1) != 0) {
        a.rows = ck_buf(CK_OUT, DSC_U8, rows * cols, "rows");
        a.row_steps = steps_buf(blocks, rows, cols, "steps of rows");
    }
    if ((ways & 2) != 0) {
        a.columns = ck_buf(CK_OUT, DSC_U8, rows * cols, "columns");
        a.column_steps = steps_buf(blocks, cols, rows, "steps of columns");
    }
    fill(a.from, rows * cols, what);
    ck_kernel(DSC_KERNEL_CAST_FP8, &a, sizeof a, verify_blocks);
}

static void block_casts(void)
{
    static const int64_t shapes[][2] = { { 16, 16 }, { 16, 656 }, { 528, 16 }, { 144, 144 } };
    for (size_t s = 0; s < DSC_COUNT(shapes); s++)
        for (int blocks = DSC_FP8_BLOCKS_ROW; blocks <= DSC_FP8_BLOCKS_SQUARE; blocks++) {
            for (int what = 0; what < CONTENTS; what++)
                one_block_cast(shapes[s][0], shapes[s][1], formats[what % 2], (dsc_fp8_blocks)blocks, (contents)what,
                               3);
            one_block_cast(shapes[s][0], shapes[s][1], DSC_FP8_E4M3, (dsc_fp8_blocks)blocks, WIDE, 1);
            one_block_cast(shapes[s][0], shapes[s][1], DSC_FP8_E5M2, (dsc_fp8_blocks)blocks, WIDE, 2);
        }
}

/* ---- numbers that are cast already; pieces ---- */

static void verify_turn(const void *args)
{
    const dsc_cast_fp8_args *a = args;
    for (int64_t r = 0; r < a->row_count; r++)
        for (int64_t c = 0; c < a->col_count; c++)
            if (ck_get(a->columns, c * a->row_count + r) != ck_get(a->from, r * a->col_count + c))
                ck_fail("columns[%lld][%lld] is another number", (long long)c, (long long)r);
}

static void one_turn(int64_t rows, int64_t cols)
{
    if (!ck_case("cast_fp8 %lldx%lld of numbers in fp8", (long long)rows, (long long)cols))
        return;
    ck_align();
    dsc_cast_fp8_args a = { .row_count = rows, .col_count = cols, .format = DSC_FP8_E4M3, .from_fp8 = true };
    a.from = random_numbers(rows * cols, DSC_FP8_E4M3, "from");
    a.columns = ck_buf(CK_OUT, DSC_U8, rows * cols, "columns");
    ck_kernel(DSC_KERNEL_CAST_FP8, &a, sizeof a, verify_turn);
}

static void verify_top(const void *args)
{
    const dsc_fp8_piece_args *a = args;
    uint32_t top;
    double most = 1; /* what was there */
    float found;
    for (int64_t i = 0; i < a->count; i++)
        most = fmax(most, fabs(ck_get(a->from, i)));
    memcpy(&top, a->top, sizeof top);
    memcpy(&found, &top, sizeof found);
    if (fabs((double)found - most) > 0)
        ck_fail("a largest number of %a, expected %a", (double)found, most);
}

static void verify_scale(const void *args)
{
    const dsc_fp8_piece_args *a = args;
    float step, tops[64];
    double top = 0;
    memcpy(&step, a->scale, sizeof step);
    memcpy(tops, a->tops, sizeof tops);
    for (int64_t i = 0; i < a->top_count; i++)
        top = fmax(top, (double)tops[i * a->top_stride]);
    if (2 * top / (double)step <= 448 || top / (double)step > 448)
        ck_fail("a step of %a where the largest is %a", (double)step, top);
}

static void verify_piece(const void *args)
{
    const dsc_fp8_piece_args *a = args;
    float step;
    memcpy(&step, a->scale, sizeof step);
    for (int64_t i = 0; i < a->count; i++) {
        const uint8_t q = nearest(ck_get(a->from, i) / (double)step, DSC_FP8_E4M3);
        if ((uint8_t)ck_get(a->to, i) != q)
            ck_fail("[%lld] is 0x%02x, expected 0x%02x", (long long)i, (unsigned)ck_get(a->to, i), q);
    }
}

static void one_piece(dsc_fp8_piece_work work, int64_t count, contents what)
{
    static const char *const names[] = { "top", "scale", "cast" };
    static const float before = 1;
    if (!ck_case("fp8_piece %s of %lld %s", names[work], (long long)count, contents_text[what]))
        return;
    ck_align();
    dsc_fp8_piece_args a = { .work = work, .count = count };
    if (work == DSC_FP8_PIECE_SCALE) {
        float *const tops = ck_buf(CK_IN, DSC_F32, 64, "tops");
        for (int64_t i = 0; i < 64; i++)
            ck_set(tops, i, ldexp(1 + (double)(ck_random() % 100) / 128, (int)(ck_random() % 8)));
        a.count = 0;
        a.tops = (const uint32_t *)(const void *)tops;
        a.top_count = 4, a.top_stride = 16;
        a.scale = ck_buf(CK_OUT, DSC_U8, sizeof *a.scale, "scale");
        ck_kernel(DSC_KERNEL_FP8_PIECE, &a, sizeof a, verify_scale);
        return;
    }
    a.from = ck_buf(CK_IN, DSC_BF16, count, "from");
    fill(a.from, count, what);
    if (work == DSC_FP8_PIECE_TOP) {
        float *const top = ck_buf(CK_INOUT, DSC_F32, 1, "top");
        ck_set(top, 0, (double)before);
        a.top = (uint32_t *)(void *)top;
        ck_kernel(DSC_KERNEL_FP8_PIECE, &a, sizeof a, verify_top);
        return;
    }
    a.scale = (dsc_fp8_scale *)(uintptr_t)scale_of(what == TINY ? 0x1p-60f : 0x1p-4f, "scale");
    a.to = ck_buf(CK_OUT, DSC_U8, count, "to");
    ck_kernel(DSC_KERNEL_FP8_PIECE, &a, sizeof a, verify_piece);
}

static void pieces(void)
{
    static const int64_t counts[] = { 16, 128, 16384 + 144, 272 };
    one_turn(16, 16);
    one_turn(144, 272);
    one_turn(272, 48);
    one_piece(DSC_FP8_PIECE_SCALE, 0, NORMAL);
    for (size_t i = 0; i < DSC_COUNT(counts); i++)
        for (int what = 0; what < CONTENTS; what++) {
            one_piece(DSC_FP8_PIECE_CAST, counts[i], (contents)what);
            if (what != NOT_FINITE)
                one_piece(DSC_FP8_PIECE_TOP, counts[i], (contents)what);
        }
}

static void block_products(void)
{
    static const int64_t shapes[][3] = { { 16, 16, 16 }, { 48, 160, 64 }, { 144, 144, 656 } };
    for (size_t i = 0; i < DSC_COUNT(shapes); i++) {
        const int64_t m = shapes[i][0], n = shapes[i][1], k = shapes[i][2];
        const dsc_fp8_blocks row = DSC_FP8_BLOCKS_ROW, square = DSC_FP8_BLOCKS_SQUARE;
        one_product((product_case) { m, n, k, DSC_FP8_E4M3, DSC_FP8_E4M3, DSC_BF16, DSC_EPILOGUE_NONE, false, false,
                                     row, square });
        one_product((product_case) { m, n, k, DSC_FP8_E4M3, DSC_FP8_E4M3, DSC_BF16, DSC_EPILOGUE_BIAS, false, false,
                                     row, square });
        one_product((product_case) { m, n, k, DSC_FP8_E5M2, DSC_FP8_E4M3, DSC_BF16, DSC_EPILOGUE_ADD, false, false, row,
                                     square });
        one_product(
            (product_case) { m, n, k, DSC_FP8_E5M2, DSC_FP8_E4M3, DSC_F32, DSC_EPILOGUE_NONE, true, false, row, row });
    }
}

/* ---- benches: Llama 2 7B, one sample of 4096 tokens ---- */

static void bench_cast(int64_t rows, int64_t cols, dsc_fp8 format, bool plain, bool turned)
{
    const int64_t count = rows * cols;
    if (!ck_case("bench cast_fp8 %s %lldx%lld%s%s", text_of(format), (long long)rows, (long long)cols,
                 plain ? " rows" : "", turned ? " columns" : ""))
        return;
    dsc_cast_fp8_args a = { .row_count = rows, .col_count = cols, .format = format };
    a.scale = ck_buf(CK_OUT, DSC_U8, sizeof *a.scale, "scale");
    a.from = ck_buf(CK_IN, DSC_BF16, count, "from");
    a.rows = plain ? ck_buf(CK_OUT, DSC_U8, count, "rows") : NULL;
    a.columns = turned ? ck_buf(CK_OUT, DSC_U8, count, "columns") : NULL;
    ck_uniform(a.from, -1, 1);
    ck_bench(DSC_KERNEL_CAST_FP8, &a, sizeof a, count * (4 + plain + turned), 0, 0);
}

typedef struct bench_shape {
    const char *name;
    int64_t m, n, k;
    dsc_fp8 a, b;
    dsc_dtype c;
} bench_shape;

static void bench_product(const bench_shape *s, bool fast)
{
    if (!ck_case("bench gemm fp8 llama %s%s", s->name, fast ? " fast" : ""))
        return;
    dsc_gemm_args a = { .m = s->m,
                        .n = s->n,
                        .k = s->k,
                        .lda = s->k,
                        .ldb = s->k,
                        .ldc = s->n,
                        .b_transposed = true,
                        .ab_dtype = DSC_BF16,
                        .c_dtype = s->c,
                        .a_fp8 = s->a,
                        .b_fp8 = s->b,
                        .fast_sums = fast };
    a.a = random_numbers(s->m * s->k, s->a, "a");
    a.b = random_numbers(s->n * s->k, s->b, "b");
    a.a_scale = scale_of(1, "a's scale");
    a.b_scale = scale_of(1, "b's scale");
    a.c = ck_buf(CK_OUT, s->c, s->m * s->n, "c");
    ck_bench(DSC_KERNEL_GEMM, &a, sizeof a, 0, 2 * s->m * s->n * s->k, CK_NO_REF);
}

static void bench_bf16(const bench_shape *s)
{
    const bool gradient = s->c == DSC_F32;
    if (!ck_case("bench gemm bf16 llama %s", s->name))
        return;
    dsc_gemm_args a = { .m = s->m,
                        .n = s->n,
                        .k = s->k,
                        .lda = gradient ? s->m : s->k,
                        .ldc = s->n,
                        .ldb = gradient || s->name[1] == 'x' ? s->n : s->k,
                        .a_transposed = gradient,
                        .b_transposed = !gradient && s->name[1] != 'x',
                        .ab_dtype = DSC_BF16,
                        .c_dtype = s->c };
    a.a = ck_buf(CK_IN, DSC_BF16, s->m * s->k, "a");
    a.b = ck_buf(CK_IN, DSC_BF16, s->n * s->k, "b");
    a.c = ck_buf(CK_OUT, s->c, s->m * s->n, "c");
    ck_uniform(a.a, -1, 1);
    ck_uniform(a.b, -0.1, 0.1);
    ck_bench(DSC_KERNEL_GEMM, &a, sizeof a, 0, 2 * s->m * s->n * s->k, CK_NO_REF);
}

static void benches(void)
{
    const int64_t rows = ck_bench_size(64, 4096), narrow = ck_bench_size(256, 4096), wide = ck_bench_size(688, 11008);
    const dsc_fp8 e4m3 = DSC_FP8_E4M3, e5m2 = DSC_FP8_E5M2;
    const bench_shape shapes[] = {
        { "q", rows, narrow, narrow, e4m3, e4m3, DSC_BF16 },
        { "gate", rows, wide, narrow, e4m3, e4m3, DSC_BF16 },
        { "down", rows, narrow, wide, e4m3, e4m3, DSC_BF16 },
        { "dx_q", rows, narrow, narrow, e5m2, e4m3, DSC_BF16 },
        { "dx_gate", rows, narrow, wide, e5m2, e4m3, DSC_BF16 },
        { "dx_down", rows, wide, narrow, e5m2, e4m3, DSC_BF16 },
        { "dw_q", narrow, narrow, rows, e5m2, e4m3, DSC_F32 },
        { "dw_gate", wide, narrow, rows, e5m2, e4m3, DSC_F32 },
        { "dw_down", narrow, wide, rows, e5m2, e4m3, DSC_F32 },
    };
    bench_cast(rows, narrow, e4m3, true, false);
    bench_cast(rows, narrow, e4m3, false, true);
    bench_cast(rows, narrow, e5m2, true, true);
    bench_cast(rows, wide, e4m3, true, false);
    bench_cast(rows, wide, e5m2, true, true);
    bench_cast(wide, narrow, e4m3, true, true);
    for (size_t i = 0; i < DSC_COUNT(shapes); i++) {
        bench_bf16(&shapes[i]);
        bench_product(&shapes[i], false);
        bench_product(&shapes[i], true);
    }
}

void ck_fp8(void)
{
    casts();
    products();
    pieces();
    block_casts();
    block_products();
    if (ck_benching())
        benches();
}
