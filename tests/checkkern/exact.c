/* exact.c - the kernels whose bits are a contract. Every variant must equal the reference in every bit (any NaN equals
 * any NaN), and the reference must be what exact.h says within a bound counted from its roundings. u = 2^-24.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/rng.h"
#include "tests/checkkern/ck_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Around the widths of vectors (8, 16, 32, 64), of a chunk (1024) and of a team's block (8192). */
static const int64_t lengths[] = { 0,  1,  7,  8,    9,    15,   16,   17,   31,    32,
                                   33, 63, 65, 1023, 1025, 4095, 8191, 8193, 100003 };
static const double u = 0x1p-24;

static void same_or_nan(const void *buf, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        const double got = ck_get(buf, i), expected = ck_ref(buf, i);
        if (memcmp(&got, &expected, sizeof got) != 0 && !(isnan(got) && isnan(expected)))
            ck_fail("[%lld] = %.9g, the reference has %.9g", (long long)i, got, expected);
    }
}

/* Inf, NaN and the largest numbers among the elements. */
static void wild(const void *buf, int64_t count)
{
    static const double value[] = { (double)INFINITY, -(double)INFINITY, (double)NAN, 3.4028234e38, -3.4028234e38,
                                    1e-45 };
    for (int64_t i = 0; i < count; i++)
        if (ck_random() % 32 == 0)
            ck_set(buf, i, value[ck_random() % DSC_COUNT(value)]);
}

/* ---- CAST ---- */

static double half_value(uint16_t h, dsc_dtype dtype)
{
    return (double)(dtype == DSC_F16 ? dsc_f32_from_f16(h) : dsc_f32_from_bf16(h));
}

/* As nearest_bf16, where neighbours are found by halving: values of the same sign grow with their bits. */
static uint16_t nearest_f16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    const double size = fabs((double)x);
    if (isnan(x))
        return (uint16_t)(sign | 0x7e00 | (bits >> 13 & 0x1ff));
    uint16_t low = 0, high = 0x7c00; /* stands for 2^16 when it comes to what is nearer */
    while (high - low > 1) {
        const uint16_t middle = (uint16_t)((low + high) / 2);
        if (half_value(middle, DSC_F16) <= size)
            low = middle;
        else
            high = middle;
    }
    const double above = high == 0x7c00 ? 65536 : half_value(high, DSC_F16);
    const double up = above - size, down = size - half_value(low, DSC_F16);
    return sign | (up < down || (up == down && (low & 1) != 0) ? high : low);
}

/* Nearest of the two neighbours in double, the even one when both are as near: rounding told in another way. */
static uint16_t nearest_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    const uint16_t low = (uint16_t)(bits >> 16); /* towards zero */
    if (isnan(x))
        return low | 0x40;
    if (isinf(x))
        return low;
    const double below = fabs((double)dsc_f32_from_bf16(low));
    const double above = (low & 0x7fff) == 0x7f7f ? 0x1p128 : fabs((double)dsc_f32_from_bf16((uint16_t)(low + 1)));
    const double up = above - fabs((double)x), down = fabs((double)x) - below;
    return (uint16_t)(up < down || (up == down && (low & 1) != 0) ? low + 1 : low);
}

static uint16_t nearest_half(float x, dsc_dtype dtype) { return dtype == DSC_F16 ? nearest_f16(x) : nearest_bf16(x); }

static void verify_to_half(const void *args)
{
    const dsc_cast_args *a = args;
    for (int64_t i = 0; i < a->count; i++) {
        const uint16_t expected = nearest_half(((const float *)a->from)[i], a->to_dtype);
        if (((const uint16_t *)a->to)[i] != expected)
            ck_fail("[%lld] = %04x from %a, nearest is %04x", (long long)i, ((const uint16_t *)a->to)[i],
                    (double)((const float *)a->from)[i], expected);
    }
}

/* What an fp16 means: sign, mantissa times a power of two. */
static float f16_meaning(uint16_t h)
{
    const int exponent = h >> 10 & 31, mantissa = h & 1023;
    const double size = exponent == 31  ? (mantissa != 0 ? (double)NAN : (double)INFINITY)
                        : exponent == 0 ? ldexp(mantissa, -24)
                                        : ldexp(1024 + mantissa, exponent - 25);
    return (float)(h >> 15 != 0 ? -size : size);
}

static void verify_to_f32(const void *args)
{
    const dsc_cast_args *a = args;
    for (int64_t i = 0; i < a->count; i++) {
        const uint16_t h = ((const uint16_t *)a->from)[i];
        const float meant = f16_meaning(h);
        uint32_t bits, expected = (uint32_t)h << 16;
        memcpy(&bits, (const float *)a->to + i, 4);
        if (a->from_dtype == DSC_F16)
            memcpy(&expected, &meant, 4);
        if (a->from_dtype == DSC_F16 && isnan(meant)) /* quiet, with the sign and the bits that there are */
            expected = (uint32_t)(h & 0x8000) << 16 | 0x7fc00000 | (uint32_t)(h & 0x3ff) << 13;
        if (bits != expected)
            ck_fail("[%lld] = %08x from %04x, expected %08x", (long long)i, bits, h, expected);
    }
}

static void verify_copy(const void *args)
{
    const dsc_cast_args *a = args;
    if (memcmp(a->to, a->from, (size_t)a->count * dsc_dtype_bytes(a->to_dtype)) != 0)
        ck_fail("a copy is not the same bytes");
}

/* Every upper half (sign, exponent, the bf16 mantissa) with the lower halves where rounding changes its mind; fp16's
 * mantissa ends three bits lower, or higher among its denormals. */
static void cast_every_upper_half(dsc_dtype to_dtype)
{
    static const uint32_t lower[] = { 0, 1, 0xfff, 0x1000, 0x1001, 0x2fff, 0x3000, 0x7fff, 0x8000, 0x8001, 0xffff };
    enum { COUNT = 65536 * DSC_COUNT(lower) };
    if (!ck_case("cast every upper half to %s", ck_dtype_text(to_dtype)))
        return;
    uint16_t *to = ck_buf(CK_OUT, to_dtype, COUNT, "to");
    float *from = ck_buf(CK_IN, DSC_F32, COUNT, "from");
    for (uint32_t i = 0; i < COUNT; i++) {
        const uint32_t bits = (i / DSC_COUNT(lower)) << 16 | lower[i % DSC_COUNT(lower)];
        memcpy(from + i, &bits, 4);
    }
    const dsc_cast_args args = { .to = to, .from = from, .to_dtype = to_dtype, .from_dtype = DSC_F32, .count = COUNT };
    ck_kernel(DSC_KERNEL_CAST, &args, sizeof args, verify_to_half);
}

static void check_cast(void)
{
    static const struct { dsc_dtype to, from; const char *name; ck_verify_fn verify; } kind[] = {
        { DSC_BF16, DSC_F32, "f32 to bf16", verify_to_half },
        { DSC_F32, DSC_BF16, "bf16 to f32", verify_to_f32 },
        { DSC_F16, DSC_F32, "f32 to f16", verify_to_half },
        { DSC_F32, DSC_F16, "f16 to f32", verify_to_f32 },
        { DSC_F32, DSC_F32, "f32", verify_copy },
        { DSC_BF16, DSC_BF16, "bf16", verify_copy },
        { DSC_F16, DSC_F16, "f16", verify_copy },
        { DSC_I64, DSC_I64, "i64", verify_copy },
    };
    for (size_t k = 0; k < DSC_COUNT(kind); k++)
        for (size_t l = 0; l < DSC_COUNT(lengths); l++) {
            if (!ck_case("cast %s n=%lld", kind[k].name, (long long)lengths[l]))
                continue;
            void *to = ck_buf(CK_OUT, kind[k].to, lengths[l], "to");
            unsigned char *from = ck_buf(CK_IN, kind[k].from, lengths[l], "from");
            for (int64_t i = 0; i < lengths[l] * (int64_t)dsc_dtype_bytes(kind[k].from); i++)
                from[i] = (unsigned char)ck_random(); /* any bits: NaNs, denormals and all */
            const dsc_cast_args args = { .to = to, .from = from, .to_dtype = kind[k].to, .from_dtype = kind[k].from,
                                         .count = lengths[l] };
            ck_kernel(DSC_KERNEL_CAST, &args, sizeof args, kind[k].verify);
        }
    cast_every_upper_half(DSC_BF16);
    cast_every_upper_half(DSC_F16);
}

/* ---- CAST_STOCHASTIC ---- */

/* Told in another way: up when the random bits reach what is left of a step. Adds to *error what that is off, in steps
 * of bf16. */
static uint16_t by_chance(float x, uint32_t random_bits, double *error)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    const uint32_t part = bits & 0xffff;
    const bool up = part != 0 && random_bits >= 0x10000 - part;
    if (isnan(x) || isinf(x))
        return nearest_bf16(x);
    *error += up - (double)part / 65536;
    return (uint16_t)((bits >> 16) + up);
}

/* The sum of all errors is that of independent numbers of variance at most 1/4, so within 6 of its deviations. */
static void check_mean(double error, int64_t count)
{
    if (fabs(error) > 3 * sqrt((double)count) + 1)
        ck_fail("the mean is off: %g steps over %lld elements", error, (long long)count);
}

/* With the random bits from another function. */
static void verify_stochastic(const void *args)
{
    const dsc_cast_stochastic_args *a = args;
    double error = 0;
    for (int64_t i = 0; i < a->count; i++) {
        const uint64_t n = (uint64_t)(a->first + i);
        const uint32_t random_bits = dsc_rng_u32(a->seed, a->stream, n / 2) >> (n % 2 == 0 ? 0 : 16) & 0xffff;
        const uint16_t expected = by_chance(a->from[i], random_bits, &error);
        if (a->to[i] != expected)
            ck_fail("[%lld] = %04x from %a with %04x, expected %04x", (long long)i, a->to[i], (double)a->from[i],
                    random_bits, expected);
    }
    check_mean(error, a->count);
}

static void check_stochastic_case(int64_t n, int64_t first, uint64_t seed, bool align)
{
    if (!ck_case("cast_stochastic n=%lld first=%lld%s", (long long)n, (long long)first, align ? " aligned" : ""))
        return;
    if (align)
        ck_align();
    uint16_t *to = ck_buf(CK_OUT, DSC_BF16, n, "to");
    float *from = ck_buf(CK_IN, DSC_F32, n, "from");
    ck_normal(from, 0, 1);
    if (n < 100000) {
        ck_edges(from);
        wild(from, n);
        for (int64_t i = 0; i < n; i += 7) /* any bits */
            memcpy(from + i, &(uint32_t){ ck_random() }, 4);
    }
    const dsc_cast_stochastic_args args = { .to = to, .from = from, .count = n, .first = first, .seed = seed,
                                            .stream = seed * 3 + (UINT64_C(7) << 32) };
    ck_kernel(DSC_KERNEL_CAST_STOCHASTIC, &args, sizeof args, verify_stochastic);
}

static void check_stochastic(void)
{
    /* Also where the counter's lower 32 bits overflow inside a vector: position 8 * 2^32. */
    static const int64_t firsts[] = { 0, 3, 8, 1021, (INT64_C(1) << 35) - 200, (INT64_C(1) << 35) - 8197 };
    for (size_t l = 0; l < DSC_COUNT(lengths); l++)
        for (size_t f = 0; f < DSC_COUNT(firsts); f++)
            if ((l + f) % 2 == 0 || lengths[l] == 1023)
                check_stochastic_case(lengths[l], firsts[f], UINT64_C(0x9e3779b97f4a7c15) + f, (l + f) % 3 == 0);
}

/* A cut anywhere gives the same bits: what ranks and stages rest on. */
static void check_stochastic_cut(void)
{
    enum { COUNT = 3000 };
    static float from[COUNT];
    static uint16_t whole[COUNT], parts[COUNT];
    if (ck_set_up.gpu || !ck_case("cast_stochastic in parts"))
        return;
    for (int64_t i = 0; i < COUNT; i++)
        from[i] = (float)(1 + (int)(ck_random() % 1000)) * 0.00137f;
    dsc_cast_stochastic_args args = { .to = whole, .from = from, .count = COUNT, .first = 77, .seed = 5, .stream = 6 };
    ck_run(DSC_KERNEL_CAST_STOCHASTIC, 0, &args, sizeof args);
    for (int64_t at = 0; at < COUNT; at += args.count) {
        const int64_t part = 1 + (int64_t)(ck_random() % 400);
        args.to = parts + at;
        args.from = from + at;
        args.first = 77 + at;
        args.count = part < COUNT - at ? part : COUNT - at;
        ck_run(DSC_KERNEL_CAST_STOCHASTIC, dsc_cpu_caps(), &args, sizeof args);
    }
    if (memcmp(whole, parts, sizeof whole) != 0)
        ck_fail("parts differ from the whole");
}

/* ---- FOLD ---- */

static double leaf_value(const dsc_fold_args *a, int64_t leaf, int64_t i)
{
    const char *from = a->leaf_ptr != NULL ? a->leaf_ptr[leaf] : (const char *)a->leaf + leaf * a->leaf_stride_bytes;
    if (from == (const char *)a->acc) /* in place: what the leaf was */
        return half_value(nearest_half((float)ck_start(a->acc, i), a->wire_dtype), a->wire_dtype);
    if (a->leaf_dtype != DSC_F32) {
        uint16_t h;
        memcpy(&h, from + 2 * i, 2);
        return half_value(h, a->leaf_dtype);
    }
    float x;
    memcpy(&x, from + 4 * i, 4);
    return a->wire_dtype != DSC_F32 ? half_value(nearest_half(x, a->wire_dtype), a->wire_dtype) : (double)x;
}

/* At most leaf_count additions, each off by half a unit of a partial sum, which no sum of absolute values is below. */
static void verify_fold(const void *args)
{
    const dsc_fold_args *a = args;
    same_or_nan(a->acc, a->count);
    for (int64_t i = 0; i < a->count; i++) {
        double sum = a->overwrite ? 0 : ck_start(a->acc, i), size = fabs(sum);
        for (int64_t k = 0; k < a->leaf_count; k++) {
            sum += leaf_value(a, k, i);
            size += fabs(leaf_value(a, k, i));
        }
        if (size < 1e37)
            ck_near(a->acc, i, sum, u * (double)(a->leaf_count - (a->overwrite ? 1 : 0)) * size);
    }
}

static void check_fold_case(int64_t n, dsc_dtype leaf, dsc_dtype wire, int64_t leaves, bool overwrite, bool pointers)
{
    if (!ck_case("fold leaf=%s wire=%s leaves=%lld%s%s n=%lld", ck_dtype_text(leaf),
                 ck_dtype_text(wire), (long long)leaves, overwrite ? " overwrite" : "",
                 pointers ? " pointers" : "", (long long)n))
        return;
    const int64_t stride = n + 5;
    float *acc = ck_buf(overwrite ? CK_OUT : CK_INOUT, DSC_F32, n, "acc");
    char *from = ck_buf(CK_IN, leaf, leaves * stride, "leaves");
    ck_normal(from, 0, 1);
    ck_edges(from);
    wild(from, leaves * stride);
    if (!overwrite)
        ck_normal(acc, 0, 3);
    const int64_t stride_bytes = stride * (int64_t)dsc_dtype_bytes(leaf);
    const void *leaf_ptr[16];
    for (int64_t k = 0; k < leaves; k++)
        leaf_ptr[k] = from + (leaves - 1 - k) * stride_bytes; /* the other way round: order must come from here */
    const dsc_fold_args args = { .acc = acc, .leaf = pointers ? NULL : from, .leaf_ptr = pointers ? leaf_ptr : NULL,
                                 .leaf_stride_bytes = stride_bytes, .leaf_count = leaves, .count = n,
                                 .leaf_dtype = leaf, .wire_dtype = wire, .overwrite = overwrite };
    ck_kernel(DSC_KERNEL_FOLD, &args, sizeof args, verify_fold);
}

static void check_fold(void)
{
    static const struct { dsc_dtype leaf, wire; } kind[] = {
        { DSC_F32, DSC_F32 },  { DSC_F32, DSC_BF16 }, { DSC_BF16, DSC_BF16 },
        { DSC_BF16, DSC_F32 }, { DSC_F32, DSC_F16 },  { DSC_F16, DSC_F16 },
    };
    for (size_t k = 0; k < DSC_COUNT(kind); k++)
        for (size_t l = 0; l < DSC_COUNT(lengths); l++) {
            const bool odd = (k + l) % 2 != 0;
            check_fold_case(lengths[l], kind[k].leaf, kind[k].wire, 1 + (int64_t)(l % 4), odd, l % 3 == 0);
            check_fold_case(lengths[l], kind[k].leaf, kind[k].wire, l % 2 != 0 ? 8 : 1, !odd, l % 5 == 0);
        }
    for (int at = 0; at < 3; at++)
        if (ck_case("fold in place over leaf %d", at)) {
            const int64_t n = 20001;
            float *acc = ck_buf(CK_INOUT, DSC_F32, n, "acc and a leaf");
            const float *other = ck_buf(CK_IN, DSC_F32, n, "leaf"), *last = ck_buf(CK_IN, DSC_F32, n, "last leaf");
            ck_normal(acc, 0, 1);
            ck_normal(other, 0, 1);
            ck_normal(last, 0, 1);
            const void *const leaf_ptr[3] = { at == 0 ? acc : other, at == 1 ? acc : last, at == 2 ? acc : other };
            const dsc_fold_args args = { .acc = acc, .leaf_ptr = leaf_ptr, .leaf_count = 3, .count = n,
                                         .leaf_dtype = DSC_F32, .wire_dtype = DSC_BF16, .overwrite = true };
            ck_kernel(DSC_KERNEL_FOLD, &args, sizeof args, verify_fold);
        }
}

/* ---- ADD ---- */

static void verify_add(const void *args)
{
    const dsc_add_args *a = args;
    same_or_nan(a->to, a->count);
    for (int64_t i = 0; i < a->count; i++) {
        const double x = a->to == a->a ? ck_start(a->a, i) : ck_get(a->a, i);
        const double y = a->to == a->b ? ck_start(a->b, i) : ck_get(a->b, i);
        const float sum = (float)(x + y); /* innocuous double rounding: 53 >= 2 * 24 + 2 */
        if (!isnan(sum))
            ck_near(a->to, i, (double)sum, 0);
    }
}

static void check_add(void)
{
    for (size_t l = 0; l < DSC_COUNT(lengths); l++)
        for (int alias = 0; alias < 3; alias++) {
            if (!ck_case("add n=%lld%s", (long long)lengths[l], alias == 0 ? "" : alias == 1 ? " to=a" : " to=b"))
                continue;
            float *to = ck_buf(alias == 0 ? CK_OUT : CK_INOUT, DSC_F32, lengths[l], "to");
            float *a = alias == 1 ? to : ck_buf(CK_IN, DSC_F32, lengths[l], "a");
            float *b = alias == 2 ? to : ck_buf(CK_IN, DSC_F32, lengths[l], "b");
            ck_normal(a, 0, 1);
            ck_normal(b, 0, 1);
            ck_edges(a);
            ck_edges(b);
            wild(a, lengths[l]);
            wild(b, lengths[l]);
            const dsc_add_args args = { .to = to, .a = a, .b = b, .count = lengths[l] };
            ck_kernel(DSC_KERNEL_ADD, &args, sizeof args, verify_add);
        }
}

/* ---- SUMSQ ---- */

/* Squares of floats are exact in double and at most 64 + 4 additions meet in a chunk, each within 2^-53 of sums of
 * non-negative numbers; adding the chunks is exact until the one rounding at the end. */
static void verify_sumsq(const void *args)
{
    const dsc_sumsq_args *a = args;
    ck_same(a->sum);
    int64_t wild_chunks = 0;
    long double sum = 0;
    for (int64_t c = 0; c < a->count; c += DSC_SUMSQ_CHUNK) {
        long double chunk = 0;
        for (int64_t i = c; i < a->count && i < c + DSC_SUMSQ_CHUNK; i++)
            chunk += (long double)a->x[i] * a->x[i];
        if (isfinite((double)chunk))
            sum += chunk;
        else
            wild_chunks++;
    }
    if (a->sum->nonfinite_count != wild_chunks + 1)
        ck_fail("%lld chunks counted as not finite, expected %lld", (long long)a->sum->nonfinite_count - 1,
                (long long)wild_chunks);
    dsc_fixed_sum finite = *a->sum;
    finite.nonfinite_count = 0;
    const double got = dsc_fixed_sum_value(&finite) - 2.5; /* what was there before the run */
    if (!(fabs((double)(got - sum)) <= 70 * 0x1p-53 * ((double)sum + 2.5)))
        ck_fail("sum %.17g, expected %.17g", got, (double)sum);
}

static void check_sumsq(void)
{
    static const int64_t more[] = { 1024, 2048, 4096, 5000, 8192, 65536 + 1024 };
    for (size_t l = 0; l < DSC_COUNT(lengths) + DSC_COUNT(more); l++)
        for (int is_wild = 0; is_wild < 2; is_wild++) {
            const int64_t n = l < DSC_COUNT(lengths) ? lengths[l] : more[l - DSC_COUNT(lengths)];
            if (!ck_case("sumsq n=%lld%s", (long long)n, is_wild ? " wild" : ""))
                continue;
            float *x = ck_buf(CK_IN, DSC_F32, n, "x");
            dsc_fixed_sum *sum = ck_buf(CK_INOUT, DSC_U8, sizeof *sum, "sum");
            memset(sum, 0, sizeof *sum);
            dsc_fixed_sum_add(sum, 2.5); /* not cleared by the kernel */
            sum->nonfinite_count = 1;
            ck_normal(x, 0, 1);
            if (is_wild) {
                ck_edges(x);
                for (int64_t i = 0; i < n; i++)
                    if (ck_random() % 4096 == 0)
                        x[i] = ck_random() % 2 == 0 ? (float)NAN : -INFINITY;
            }
            const dsc_sumsq_args args = { .x = x, .count = n, .sum = sum };
            ck_kernel(DSC_KERNEL_SUMSQ, &args, sizeof args, verify_sumsq);
        }
}

/* ---- ADAMW ---- */

/* The step in double, with the bound of every fp32 rounding of the recipe carried along. */
static void near_one(const dsc_adamw_args *a, int64_t i)
{
    const dsc_adamw_scalars *s = &a->scalars;
    const double p0 = ck_start(a->master, i), m0 = ck_start(a->moment1, i), v0 = ck_start(a->moment2, i);
    const double scaled = ck_get(a->grad, i) * (double)s->grad_scale;
    const double g = scaled + (double)s->l2 * p0;
    const double g_off = u * (fabs(scaled) + (s->l2 != 0 ? fabs(g) : 0)) + 0x1p-149;
    const double m = m0 + (double)s->one_minus_beta1 * (g - m0);
    const double m_off = (double)s->one_minus_beta1 * (g_off + u * fabs(g - m0)) + u * fabs(m) + 0x1p-149;
    const double v = (double)s->one_minus_beta2 * g * g + (double)s->beta2 * v0;
    const double v_off = (double)s->one_minus_beta2 * (2 * fabs(g) * g_off + u * g * g) + 2 * u * v + 0x1p-147;
    const double root = sqrt(v), d = root * (double)s->inv_sqrt_bias2 + (double)s->eps;
    /* Where v is denormal its square root is off by more than its own relative error: bounded by sqrt(v_off). */
    const double root_off = (v > 4 * v_off ? v_off / root : sqrt(v_off)) + u * root;
    const double d_off = root_off * (double)s->inv_sqrt_bias2 + u * d;
    const double q_off = (m_off + fabs(m / d) * d_off) / (d - d_off) + u * fabs(m / d);
    const double p = p0 * (double)s->decay - (double)s->step_size * (m / d);
    const double p_off = u * (fabs(p0 * (double)s->decay) + fabs(p)) + (double)s->step_size * q_off + 0x1p-148;
    const double slack = 1 + 1e-5; /* second-order terms */
    ck_near(a->moment1, i, m, slack * m_off);
    ck_near(a->moment2, i, v, slack * v_off);
    if (d > 2 * d_off)
        ck_near(a->master, i, p, slack * p_off);
}

static void verify_adamw_bits(const void *args)
{
    const dsc_adamw_args *a = args;
    same_or_nan(a->master, a->count);
    same_or_nan(a->moment1, a->count);
    same_or_nan(a->moment2, a->count);
    for (int64_t i = 0; a->param_half != NULL && i < a->count; i++) {
        const float p = a->master[i];
        const uint16_t got = a->param_half[i], nearest = nearest_half(p, a->half_dtype);
        if (got != nearest && !(isnan(p) && isnan(half_value(got, a->half_dtype))))
            ck_fail("param_half[%lld] = %04x, nearest to %a is %04x", (long long)i, got, (double)p, nearest);
    }
}

static void verify_adamw(const void *args)
{
    const dsc_adamw_args *a = args;
    verify_adamw_bits(args);
    for (int64_t i = 0; i < a->count; i++)
        near_one(a, i);
}

/* Moments in bf16 against two things already checked: the step with the same moments in fp32, whose results are then
 * rounded as by_chance says. */
static void verify_adamw_rounded(const void *args)
{
    const dsc_adamw_args *a = args;
    const size_t bytes = (size_t)a->count * 4 + 4;
    float *p = malloc(bytes), *m = malloc(bytes), *v = malloc(bytes);
    double error[2] = { 0, 0 };
    dsc_adamw_args whole = *a;
    DSC_ASSERT(p != NULL && m != NULL && v != NULL);
    for (int64_t i = 0; i < a->count; i++) {
        p[i] = (float)ck_start(a->master, i);
        m[i] = (float)ck_start(a->moment1, i);
        v[i] = (float)ck_start(a->moment2, i);
    }
    whole.master = p;
    whole.moment1 = m;
    whole.moment2 = v;
    whole.param_half = NULL;
    whole.moment_dtype = DSC_F32;
    ck_run(DSC_KERNEL_ADAMW, 0, &whole, sizeof whole);
    for (int64_t i = 0; i < a->count; i++) {
        const uint32_t word = dsc_rng_u32(a->seed, a->stream, (uint64_t)(a->first + i));
        const uint16_t kept[2] = { by_chance(m[i], word & 0xffff, &error[0]), by_chance(v[i], word >> 16, &error[1]) };
        const uint16_t got[2] = { ((uint16_t *)a->moment1)[i], ((uint16_t *)a->moment2)[i] };
        const float exact[2] = { m[i], v[i] };
        for (int k = 0; k < 2; k++)
            if (got[k] != kept[k] && !isnan(exact[k]))
                ck_fail("moment%d[%lld] = %04x from %a with %08x, expected %04x", k + 1, (long long)i, got[k],
                        (double)exact[k], word, kept[k]);
        if (memcmp(&a->master[i], &p[i], 4) != 0 && !isnan(p[i]))
            ck_fail("master[%lld] = %a, with moments in fp32 %a", (long long)i, (double)a->master[i], (double)p[i]);
    }
    check_mean(error[0], a->count);
    check_mean(error[1], a->count);
    verify_adamw_bits(args);
    free(p);
    free(m);
    free(v);
}

static dsc_adamw_scalars scalars_of(int step, float lr, float l2, float weight_decay)
{
    const double beta1 = 0.9, beta2 = 0.95;
    return (dsc_adamw_scalars) {
        .grad_scale = 0.37f, .beta1 = (float)beta1, .beta2 = (float)beta2, .one_minus_beta1 = (float)(1 - beta1),
        .one_minus_beta2 = (float)(1 - beta2), .decay = (float)(1 - (double)lr * (double)weight_decay), .l2 = l2,
        .step_size = (float)((double)lr / (1 - pow(beta1, step))),
        .inv_sqrt_bias2 = (float)(1 / sqrt(1 - pow(beta2, step))), .eps = 1e-8f,
    };
}

/* copy: F32 for none. */
static void check_adamw_case(int64_t n, dsc_dtype copy, float l2, int step, bool is_wild, int64_t rounded)
{
    const bool rounds = rounded >= 0; /* the position of element 0 */
    const dsc_dtype moment_dtype = rounds ? DSC_BF16 : DSC_F32;
    char position[40] = "";
    if (rounds)
        snprintf(position, sizeof position, " bf16 moments at %lld", (long long)rounded);
    if (!ck_case("adamw n=%lld step=%d %s copy%s%s%s", (long long)n, step, ck_dtype_text(copy), l2 != 0 ? " l2" : "",
                 is_wild ? " wild" : "", position))
        return;
    float *p = ck_buf(CK_INOUT, DSC_F32, n, "master"), *g = ck_buf(CK_IN, DSC_F32, n, "grad");
    void *m = ck_buf(CK_INOUT, moment_dtype, n, "moment1"), *v = ck_buf(CK_INOUT, moment_dtype, n, "moment2");
    uint16_t *h = copy != DSC_F32 ? ck_buf(CK_OUT, copy, n, "param_half") : NULL;
    ck_normal(p, 0, 0.5);
    ck_normal(g, 0, 0.1);
    ck_normal(m, 0, 0.1);
    ck_uniform(v, 0, step == 1 ? 0 : 0.02);
    if (is_wild) {
        ck_edges(p), ck_edges(g), ck_edges(m), ck_edges(v);
        wild(p, n), wild(g, n), wild(m, n), wild(v, n);
    }
    const dsc_adamw_args args = { .master = p, .moment1 = m, .moment2 = v, .grad = g, .param_half = h, .count = n,
                                  .half_dtype = copy, .moment_dtype = moment_dtype,
                                  .seed = UINT64_C(0x9e3779b97f4a7c15),
                                  .stream = dsc_rng_stream(DSC_RNG_TEST, (uint32_t)step), .first = rounds ? rounded : 0,
                                  .scalars = scalars_of(step, 0.01f, l2, l2 == 0 ? 0.1f : 0) };
    ck_kernel(DSC_KERNEL_ADAMW, &args, sizeof args,
              rounds ? verify_adamw_rounded : is_wild ? verify_adamw_bits : verify_adamw);
}

static void check_adamw(void)
{
    /* Also where the counter's lower 32 bits overflow inside a vector: position 4 * 2^32. */
    static const int64_t firsts[] = { 0, 4, 3, 1021, (INT64_C(1) << 34) - 100, (INT64_C(1) << 34) - 4098 };
    for (size_t l = 0; l < DSC_COUNT(lengths); l++) {
        const dsc_dtype half = l % 2 == 0 ? DSC_F16 : DSC_BF16, other = l % 2 == 0 ? DSC_BF16 : DSC_F16;
        check_adamw_case(lengths[l], DSC_BF16, 0, 1, false, -1);
        check_adamw_case(lengths[l], DSC_F32, 0, 7, false, -1);
        check_adamw_case(lengths[l], DSC_F16, 0, 4, false, -1);
        check_adamw_case(lengths[l], l % 2 == 0 ? DSC_BF16 : DSC_F32, 0.05f, 3, false, -1);
        check_adamw_case(lengths[l], half, l % 2 == 0 ? 0.05f : 0, 2, true, -1);
        check_adamw_case(lengths[l], other, l % 3 == 0 ? 0.05f : 0, 5, false, firsts[l % DSC_COUNT(firsts)]);
        check_adamw_case(lengths[l], DSC_F32, l % 2 == 0 ? 0.05f : 0, 1, true, firsts[(l + 3) % DSC_COUNT(firsts)]);
    }
    for (int64_t more = 0; more < 4; more++) { /* large enough to be written around the caches; some misaligned */
        const int64_t n = (1 << 20) + 17 * more, first = more % 2 == 0 ? 1024 : 1023;
        check_adamw_case(n, more < 3 ? DSC_BF16 : DSC_F16, more % 2 == 0 ? 0 : 0.05f, (int)more + 2, more == 3, -1);
        if (more < 2)
            check_adamw_case(n, DSC_F16, more % 2 == 0 ? 0 : 0.05f, (int)more + 2, false, first);
    }
}

/* ---- benches: arrays that no cache holds, bytes as the contract moves them ---- */

static float *bench_floats(ck_role role, int64_t n, const char *name)
{
    float *x = ck_buf(role, DSC_F32, n, name);
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)(1 + i % 1000) * 1e-4f;
    return x;
}

static void bench(void)
{
    const int64_t n = ck_bench_size(1 << 24, 1 << 26);
    if (ck_case("bench cast f32 to bf16")) {
        const dsc_cast_args args = { .to = ck_buf(CK_OUT, DSC_BF16, n, "to"), .from = bench_floats(CK_IN, n, "from"),
                                     .to_dtype = DSC_BF16, .from_dtype = DSC_F32, .count = n };
        ck_bench(DSC_KERNEL_CAST, &args, sizeof args, n * 6, 0, false);
    }
    if (ck_case("bench cast_stochastic")) {
        const dsc_cast_stochastic_args args = { .to = ck_buf(CK_OUT, DSC_BF16, n, "to"),
                                                .from = bench_floats(CK_IN, n, "from"), .count = n, .seed = 1 };
        ck_bench(DSC_KERNEL_CAST_STOCHASTIC, &args, sizeof args, n * 6, 0, false);
    }
    if (ck_case("bench fold 4 bf16 leaves")) {
        void *leaf = ck_buf(CK_IN, DSC_BF16, 4 * n, "leaves");
        memset(leaf, 0, (size_t)(8 * n));
        const dsc_fold_args args = { .acc = bench_floats(CK_INOUT, n, "acc"), .leaf = leaf, .leaf_stride_bytes = 2 * n,
                                     .leaf_count = 4, .count = n, .leaf_dtype = DSC_BF16, .wire_dtype = DSC_BF16 };
        ck_bench(DSC_KERNEL_FOLD, &args, sizeof args, n * 16, 0, false);
    }
    if (ck_case("bench add")) {
        float *to = bench_floats(CK_INOUT, n, "to");
        const dsc_add_args args = { .to = to, .a = to, .b = bench_floats(CK_IN, n, "b"), .count = n };
        ck_bench(DSC_KERNEL_ADD, &args, sizeof args, n * 12, 0, false);
    }
    if (ck_case("bench sumsq")) {
        dsc_fixed_sum *sum = ck_buf(CK_INOUT, DSC_U8, sizeof *sum, "sum");
        memset(sum, 0, sizeof *sum);
        const dsc_sumsq_args args = { .x = bench_floats(CK_IN, n, "x"), .count = n, .sum = sum };
        ck_bench(DSC_KERNEL_SUMSQ, &args, sizeof args, n * 4, 0, false);
    }
    for (int copy = 0; copy < 2; copy++)
        if (ck_case("bench adamw%s", copy ? " bf16 copy" : "")) {
            const dsc_adamw_args args = {
                .master = bench_floats(CK_INOUT, n, "master"), .moment1 = bench_floats(CK_INOUT, n, "moment1"),
                .moment2 = bench_floats(CK_INOUT, n, "moment2"), .grad = bench_floats(CK_IN, n, "grad"),
                .param_half = copy ? ck_buf(CK_OUT, DSC_BF16, n, "param_half") : NULL, .count = n,
                .half_dtype = DSC_BF16,
                .scalars = scalars_of(5, 1e-4f, 0, 0.1f),
            };
            ck_bench(DSC_KERNEL_ADAMW, &args, sizeof args, n * (copy ? 30 : 28), 0, false);
        }
    if (ck_case("bench adamw bf16 copy bf16 moments")) {
        void *m = ck_buf(CK_INOUT, DSC_BF16, n, "moment1"), *v = ck_buf(CK_INOUT, DSC_BF16, n, "moment2");
        memset(m, 0, (size_t)n * 2);
        memset(v, 0, (size_t)n * 2);
        const dsc_adamw_args args = { .master = bench_floats(CK_INOUT, n, "master"), .moment1 = m, .moment2 = v,
                                      .grad = bench_floats(CK_IN, n, "grad"),
                                      .param_half = ck_buf(CK_OUT, DSC_BF16, n, "param_half"), .count = n,
                                      .half_dtype = DSC_BF16, .moment_dtype = DSC_BF16,
                                      .scalars = scalars_of(5, 1e-4f, 0, 0.1f) };
        ck_bench(DSC_KERNEL_ADAMW, &args, sizeof args, n * 22, 0, false);
    }
}

void ck_exact(void)
{
    check_cast();
    check_stochastic();
    check_stochastic_cut();
    check_fold();
    check_add();
    check_sumsq();
    check_adamw();
    if (ck_benching())
        bench();
}
