/* rope.c - rotary embeddings: every variant, GPUs included, bitwise as the reference; the reference against double, and
 * against the inverse, which is its transpose. SPDX-License-Identifier: Apache-2.0 */
#include "tests/checkkern/ck.h"

#include <math.h>

/* ---- tables ---- */

/* Llama 3's frequencies and scaling to contexts of 8 times 8192, its frequency-dependent rule written as it is
 * meant: long waves slow down by the factor, short ones stay, and between the two the exponent of the mix is linear. */
static void llama3_frequencies(float *frequency, int32_t pairs, double theta)
{
    const double factor = 8, low = 1, high = 4, context = 8192, pi = 3.14159265358979323846;
    for (int32_t i = 0; i < pairs; i++) {
        const double f = pow(theta, -(double)i / pairs), turns = context * f / (2 * pi);
        const double share = fmin(1, fmax(0, (turns - low) / (high - low)));
        frequency[i] = (float)(f * (share + (1 - share) / factor));
    }
}

/* Cosine and sine of the rounded angle are good to the last place of fp32, whatever the library. */
static void verify_table(const void *args)
{
    const dsc_rope_table_args *a = args;
    for (int64_t p = 0; p < a->positions; p++)
        for (int32_t i = 0; i < a->pairs; i++) {
            const float angle = (float)(a->first + p) * a->frequency[i];
            const double c = (double)a->factor * cos((double)angle), s = (double)a->factor * sin((double)angle);
            ck_near(a->cos, p * a->pairs + i, c, 0.5001 * ck_spacing(DSC_F32, c));
            ck_near(a->sin, p * a->pairs + i, s, 0.5001 * ck_spacing(DSC_F32, s));
        }
}

static void check_table(int64_t first, int64_t positions, int32_t pairs, float factor)
{
    float frequency[DSC_ROPE_PAIRS_MAX];
    if (!ck_case("rope_table positions %lld + %lld, %d pairs", (long long)first, (long long)positions, (int)pairs))
        return;
    llama3_frequencies(frequency, pairs, 500000);
    const dsc_rope_table_args args = { .cos = ck_buf(CK_OUT, DSC_F32, positions * pairs, "cos"),
                                       .sin = ck_buf(CK_OUT, DSC_F32, positions * pairs, "sin"),
                                       .frequency = frequency, .first = first, .positions = positions, .pairs = pairs,
                                       .factor = factor };
    ck_kernel(DSC_KERNEL_ROPE_TABLE, &args, sizeof args, verify_table);
}

/* ---- application ---- */

static double value_before(const dsc_rope_args *a, int64_t i)
{
    return a->in == a->out ? ck_start(a->in, i) : ck_get(a->in, i);
}

/* The pair of element i < 2 * pairs, and how far its other element is. */
static int32_t pair_of(const dsc_rope_args *a, int64_t i) { return (int32_t)(a->neighbours ? i / 2 : i % a->pairs); }

static bool is_second(const dsc_rope_args *a, int64_t i) { return a->neighbours ? i % 2 != 0 : i >= a->pairs; }

static int64_t partner_of(const dsc_rope_args *a, int64_t i)
{
    const int64_t apart = a->neighbours ? 1 : a->pairs;
    return is_second(a, i) ? i - apart : i + apart;
}

/* Two products, the second inside a multiply-add: two roundings, then the one to the dtype. */
static void verify_rope(const void *args)
{
    const dsc_rope_args *a = args;
    ck_same(a->out);
    for (int64_t r = 0; r < a->rows; r++)
        for (int64_t h = 0; h < a->heads; h++)
            for (int32_t i = 0; i < a->head_size; i++) {
                const int64_t at = r * a->stride + h * a->head_size;
                const int64_t place = a->places != NULL ? a->places[r] : r % a->tokens;
                if (i >= 2 * a->pairs) {
                    ck_near(a->out, at + i, value_before(a, at + i), 0);
                    continue;
                }
                const int64_t table = place * a->pairs + pair_of(a, i);
                const bool second = is_second(a, i);
                const int64_t partner = at + partner_of(a, i);
                const double x = value_before(a, at + i), y = value_before(a, partner);
                const double c = ck_get(a->cos, table), s = ck_get(a->sin, table) * (second != a->inverse ? 1 : -1);
                const double expected = x * c + y * s;
                const double tol = 0x1p-24 * (fabs(x * c) + fabs(expected)) + 0x1p-149;
                ck_near(a->out, at + i, expected, 1.01 * tol + ck_rounding(a->dtype, expected));
            }
}

typedef struct shape {
    int64_t rows, tokens;
    int32_t heads, size, pairs;
    bool neighbours;
} shape;

static dsc_rope_args rope_case(const shape *s, dsc_dtype dtype, bool inverse, bool over, int64_t gap)
{
    const int64_t cols = (int64_t)s->heads * s->size, stride = cols + gap, count = s->rows * stride;
    dsc_rope_args args = { .rows = s->rows,
                           .tokens = s->tokens,
                           .stride = stride,
                           .heads = s->heads,
                           .head_size = s->size,
                           .pairs = s->pairs,
                           .inverse = inverse,
                           .neighbours = s->neighbours,
                           .dtype = dtype };
    void *in = ck_buf(over ? CK_INOUT : CK_IN, dtype, count, "in");
    args.in = in;
    args.out = over ? in : ck_buf(CK_OUT, dtype, count, "out");
    ck_gaps(in, s->rows, cols, stride);
    if (!over)
        ck_gaps(args.out, s->rows, cols, stride);
    args.cos = ck_buf(CK_IN, DSC_F32, s->tokens * s->pairs, "cos");
    args.sin = ck_buf(CK_IN, DSC_F32, s->tokens * s->pairs, "sin");
    if (gap > 0) {
        args.places = ck_buf(CK_IN, DSC_I32, s->rows, "places");
        ck_int(args.places, 0, (int32_t)s->tokens - 1);
    }
    ck_normal(in, 0, 2);
    ck_edges(in);
    for (int64_t i = 0; i < s->tokens * s->pairs; i++) {
        const double angle = (double)(i / s->pairs) * pow(10000, -(double)(i % s->pairs) / s->pairs);
        ck_set(args.cos, i, cos(angle));
        ck_set(args.sin, i, sin(angle));
    }
    return args;
}

static void check_rope(const shape *s, dsc_dtype dtype, bool inverse, bool over, int64_t gap)
{
    if (!ck_case("rope %s R=%lld T=%lld H=%d D=%d pairs=%d gap=%lld%s%s%s", ck_dtype_text(dtype), (long long)s->rows,
                 (long long)s->tokens, (int)s->heads, (int)s->size, (int)s->pairs, (long long)gap,
                 s->neighbours ? " neighbours" : "", inverse ? " inverse" : "", over ? " in place" : ""))
        return;
    const dsc_rope_args args = rope_case(s, dtype, inverse, over, gap);
    ck_kernel(DSC_KERNEL_ROPE, &args, sizeof args, verify_rope);
}

/* loss = sum of g * rope(x): its gradient by differences of the forward is the inverse of g. Linear, so that
 * differences of any width are exact but for the forward's roundings. */
static dsc_rope_args forward_args;

static double loss_of(const dsc_rope_args *a, const void *g, int64_t moved)
{
    double loss = 0;
    for (int64_t i = 0; i < a->rows * a->stride; i++) {
        const int64_t d = i % a->head_size, t = i / a->stride % a->tokens * a->pairs + pair_of(a, d);
        const int64_t partner = i - d + partner_of(a, d);
        if (d >= 2 * a->pairs)
            loss += i == moved ? ck_get(g, i) : 0;
        else
            loss += ck_get(g, i) * ((i == moved ? ck_get(a->cos, t) : 0) +
                                    (partner == moved ? (is_second(a, d) ? 1 : -1) * ck_get(a->sin, t) : 0));
    }
    return loss;
}

static void verify_gradient(const void *args)
{
    const dsc_rope_args *a = args;
    for (int64_t i = 0; i < a->rows * a->stride; i++) {
        const double slope = loss_of(&forward_args, a->in, i); /* from 0 to 1 along one element */
        ck_near(a->out, i, slope, 4 * 0x1p-24 * (1 + fabs(slope)) * 4);
    }
}

static void check_gradient(bool neighbours)
{
    const shape s = { 4, 3, 2, 7, 3, neighbours };
    if (!ck_case("rope%s inverse is the gradient", neighbours ? " neighbours" : ""))
        return;
    const dsc_rope_args args = rope_case(&s, DSC_F32, true, false, 0);
    ck_normal(args.in, 0, 1);
    forward_args = args;
    ck_kernel(DSC_KERNEL_ROPE, &args, sizeof args, verify_gradient);
}

static void bench_table(void)
{
    float frequency[64];
    if (!ck_case("bench rope_table 4096x64"))
        return;
    llama3_frequencies(frequency, 64, 500000);
    const dsc_rope_table_args args = { .cos = ck_buf(CK_OUT, DSC_F32, 4096 * 64, "cos"),
                                       .sin = ck_buf(CK_OUT, DSC_F32, 4096 * 64, "sin"), .frequency = frequency,
                                       .positions = 4096, .pairs = 64, .factor = 1 };
    ck_bench(DSC_KERNEL_ROPE_TABLE, &args, sizeof args, 4096 * 64 * 8, 0, false);
}

static void bench(dsc_dtype dtype, bool neighbours)
{
    const shape s = { ck_bench_size(1024, 16384), 2048, 32, 128, 64, neighbours };
    if (!ck_case("bench rope%s %s %lldx32x128 in place", neighbours ? " neighbours" : "", ck_dtype_text(dtype),
                 (long long)s.rows))
        return;
    const dsc_rope_args args = rope_case(&s, dtype, false, true, 0);
    const int64_t bytes = s.rows * s.heads * s.size * (int64_t)dsc_dtype_bytes(dtype);
    ck_bench(DSC_KERNEL_ROPE, &args, sizeof args, 2 * bytes, 0, false);
}

void ck_rope(void)
{
    static const shape shapes[] = {
        { 6, 3, 2, 64, 32, false },  { 7, 7, 3, 128, 64, false }, { 4, 4, 5, 80, 40, false },
        { 5, 5, 2, 30, 15, false },  { 3, 2, 1, 2, 1, false },    { 8, 4, 2, 80, 16, false },
        { 4, 2, 3, 37, 9, false },   { 2, 2, 40, 96, 48, false }, { 0, 4, 2, 64, 32, false },
        { 9, 4, 1, 256, 64, false }, { 5, 5, 3, 34, 0, false },
    };
    for (size_t i = 0; i < 2 * DSC_COUNT(shapes); i++)
        for (dsc_dtype dtype = DSC_F32; dtype <= DSC_F16; dtype++) {
            shape s = shapes[i / 2];
            s.neighbours = i % 2 != 0;
            check_rope(&s, dtype, false, i / 2 % 2 == 0, 0);
            check_rope(&s, dtype, true, i / 2 % 2 != 0, 0);
            if (s.rows > 0)
                check_rope(&s, dtype, i / 2 % 2 == 0, i / 2 % 3 == 0, i / 2 % 2 == 0 ? 64 : 5);
        }
    check_gradient(false);
    check_gradient(true);
    check_table(0, 100, 64, 1);
    check_table(0, 3, 1, 1);
    check_table(100000, 7, 40, 1.25f);
    check_table(3, 0, 40, 1);
    check_table(5, 2, DSC_ROPE_PAIRS_MAX, 1);
    if (ck_benching()) {
        bench_table();
        bench(DSC_F32, false);
        bench(DSC_BF16, false);
        bench(DSC_BF16, true);
    }
}
