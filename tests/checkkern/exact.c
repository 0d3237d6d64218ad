/* exact.c - the kernels whose bits are a contract. Every variant must equal the reference in every bit (any NaN equals
 * any NaN), and the reference must be what exact.h says within a bound counted from its roundings. u = 2^-24.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/rng.h"
#include "kernels/scalar.h"
#include "tests/checkkern/ck_exact.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double u = 0x1p-24;

/* ---- CAST ---- */

static void verify_to_half(const void *args)
{
    const dsc_cast_args *a = args;
    for (int64_t i = 0; i < a->count; i++) {
        const uint16_t expected = ck_nearest_half(((const float *)a->from)[i], a->to_dtype);
        if (((const uint16_t *)a->to)[i] != expected)
            ck_fail("[%lld] = %04x from %a, nearest is %04x", (long long)i, ((const uint16_t *)a->to)[i],
                    (double)((const float *)a->from)[i], expected);
    }
}

/* Value of an fp16: sign, mantissa times a power of two. */
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

/* Each run is what a cast of that run alone gives. */
static void verify_rows(const void *args)
{
    const dsc_cast_args *a = args;
    for (int64_t row = 0; row < a->rows; row++) {
        dsc_cast_args one = *a;
        one.to = (char *)a->to + row * a->count * (int64_t)dsc_dtype_bytes(a->to_dtype);
        one.from = (const char *)a->from + row * a->from_stride * (int64_t)dsc_dtype_bytes(a->from_dtype);
        (a->to_dtype == a->from_dtype ? verify_copy : verify_to_half)(&one);
    }
}

/* Lengths and strides that are multiples of a vector, and others. */
static void check_cast_rows(void)
{
    static const struct {
        int64_t rows, count, stride;
    } shape[] = {
        { 1, 40, 40 }, { 2, 64, 64 }, { 3, 64, 128 }, { 5, 13, 17 }, { 4, 16, 21 }, { 7, 8, 4096 }, { 33, 1000, 1024 },
    };
    static const dsc_dtype to_dtype[] = { DSC_BF16, DSC_F16, DSC_F32 };
    for (size_t k = 0; k < DSC_COUNT(to_dtype); k++)
        for (size_t i = 0; i < DSC_COUNT(shape); i++) {
            const int64_t all = (shape[i].rows - 1) * shape[i].stride + shape[i].count;
            if (!ck_case("cast to %s %lld rows of %lld at %lld", ck_dtype_text(to_dtype[k]), (long long)shape[i].rows,
                         (long long)shape[i].count, (long long)shape[i].stride))
                continue;
            void *to = ck_buf(CK_OUT, to_dtype[k], shape[i].rows * shape[i].count, "to");
            uint32_t *from = ck_buf(CK_IN, DSC_F32, all, "from");
            for (int64_t n = 0; n < all; n++)
                from[n] = (uint32_t)ck_random();
            const dsc_cast_args args = { .to = to,
                                         .from = from,
                                         .to_dtype = to_dtype[k],
                                         .from_dtype = DSC_F32,
                                         .count = shape[i].count,
                                         .rows = shape[i].rows,
                                         .from_stride = shape[i].stride };
            ck_kernel(DSC_KERNEL_CAST, &args, sizeof args, verify_rows);
        }
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
        for (size_t l = 0; l < CK_LENGTHS; l++) {
            if (!ck_case("cast %s n=%lld", kind[k].name, (long long)ck_lengths[l]))
                continue;
            void *to = ck_buf(CK_OUT, kind[k].to, ck_lengths[l], "to");
            unsigned char *from = ck_buf(CK_IN, kind[k].from, ck_lengths[l], "from");
            for (int64_t i = 0; i < ck_lengths[l] * (int64_t)dsc_dtype_bytes(kind[k].from); i++)
                from[i] = (unsigned char)ck_random(); /* any bits: NaNs, denormals and all */
            const dsc_cast_args args = { .to = to, .from = from, .to_dtype = kind[k].to, .from_dtype = kind[k].from,
                                         .count = ck_lengths[l] };
            ck_kernel(DSC_KERNEL_CAST, &args, sizeof args, kind[k].verify);
        }
    cast_every_upper_half(DSC_BF16);
    cast_every_upper_half(DSC_F16);
    check_cast_rows();
}

/* ---- CAST_STOCHASTIC ---- */

/* With the random bits from another function. */
static void verify_stochastic(const void *args)
{
    const dsc_cast_stochastic_args *a = args;
    double error = 0;
    for (int64_t i = 0; i < a->count; i++) {
        const uint64_t n = (uint64_t)(a->first + i);
        const uint32_t random_bits = dsc_rng_u32(a->seed, a->stream, n / 2) >> (n % 2 == 0 ? 0 : 16) & 0xffff;
        const uint16_t expected = ck_round_stochastic(a->from[i], random_bits, &error);
        if (a->to[i] != expected)
            ck_fail("[%lld] = %04x from %a with %04x, expected %04x", (long long)i, a->to[i], (double)a->from[i],
                    random_bits, expected);
    }
    ck_check_mean(error, a->count);
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
        ck_wild(from, n);
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
    for (size_t l = 0; l < CK_LENGTHS; l++)
        for (size_t f = 0; f < DSC_COUNT(firsts); f++)
            if ((l + f) % 2 == 0 || ck_lengths[l] == 1023)
                check_stochastic_case(ck_lengths[l], firsts[f], UINT64_C(0x9e3779b97f4a7c15) + f, (l + f) % 3 == 0);
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

/* ---- ORDERED_REDUCE ---- */

static double leaf_value(const dsc_ordered_reduce_args *a, int64_t leaf, int64_t i)
{
    const char *from = a->leaf_ptr != NULL ? a->leaf_ptr[leaf] : (const char *)a->leaf + leaf * a->leaf_stride_bytes;
    if (from == (const char *)a->acc) /* in place: what the leaf was */
        return ck_half_value(ck_nearest_half((float)ck_start(a->acc, i), a->wire_dtype), a->wire_dtype);
    if (a->leaf_dtype != DSC_F32) {
        uint16_t h;
        memcpy(&h, from + 2 * i, 2);
        return ck_half_value(h, a->leaf_dtype);
    }
    float x;
    memcpy(&x, from + 4 * i, 4);
    return a->wire_dtype != DSC_F32 ? ck_half_value(ck_nearest_half(x, a->wire_dtype), a->wire_dtype) : (double)x;
}

/* At most grad_part_count additions, each off by half a unit of a partial sum, which no sum of absolute values is
 * below. */
static void verify_reduce(const void *args)
{
    const dsc_ordered_reduce_args *a = args;
    ck_same_or_nan(a->acc, a->count);
    for (int64_t i = 0; i < a->count; i++) {
        double sum = a->overwrite ? 0 : ck_start(a->acc, i), size = fabs(sum);
        for (int64_t k = 0; k < a->grad_part_count; k++) {
            sum += leaf_value(a, k, i);
            size += fabs(leaf_value(a, k, i));
        }
        if (size < 1e37)
            ck_near(a->acc, i, sum, u * (double)(a->grad_part_count - (a->overwrite ? 1 : 0)) * size);
    }
}

static void check_reduce_case(int64_t n, dsc_dtype leaf, dsc_dtype wire, int64_t leaves, bool overwrite, bool pointers)
{
    if (!ck_case("ordered_reduce leaf=%s wire=%s leaves=%lld%s%s n=%lld", ck_dtype_text(leaf), ck_dtype_text(wire),
                 (long long)leaves, overwrite ? " overwrite" : "", pointers ? " pointers" : "", (long long)n))
        return;
    const int64_t stride = n + 5;
    float *acc = ck_buf(overwrite ? CK_OUT : CK_INOUT, DSC_F32, n, "acc");
    char *from = ck_buf(CK_IN, leaf, leaves * stride, "leaves");
    ck_normal(from, 0, 1);
    ck_edges(from);
    ck_wild(from, leaves * stride);
    if (!overwrite)
        ck_normal(acc, 0, 3);
    const int64_t stride_bytes = stride * (int64_t)dsc_dtype_bytes(leaf);
    const void *leaf_ptr[16];
    for (int64_t k = 0; k < leaves; k++)
        leaf_ptr[k] = from + (leaves - 1 - k) * stride_bytes; /* the other way round: order must come from here */
    const dsc_ordered_reduce_args args = { .acc = acc,
                                           .leaf = pointers ? NULL : from,
                                           .leaf_ptr = pointers ? leaf_ptr : NULL,
                                           .leaf_stride_bytes = stride_bytes,
                                           .grad_part_count = leaves,
                                           .count = n,
                                           .leaf_dtype = leaf,
                                           .wire_dtype = wire,
                                           .overwrite = overwrite };
    ck_kernel(DSC_KERNEL_ORDERED_REDUCE, &args, sizeof args, verify_reduce);
}

static void check_reduce(void)
{
    static const struct { dsc_dtype leaf, wire; } kind[] = {
        { DSC_F32, DSC_F32 },  { DSC_F32, DSC_BF16 }, { DSC_BF16, DSC_BF16 },
        { DSC_BF16, DSC_F32 }, { DSC_F32, DSC_F16 },  { DSC_F16, DSC_F16 },
    };
    for (size_t k = 0; k < DSC_COUNT(kind); k++)
        for (size_t l = 0; l < CK_LENGTHS; l++) {
            const bool odd = (k + l) % 2 != 0;
            check_reduce_case(ck_lengths[l], kind[k].leaf, kind[k].wire, 1 + (int64_t)(l % 4), odd, l % 3 == 0);
            check_reduce_case(ck_lengths[l], kind[k].leaf, kind[k].wire, l % 2 != 0 ? 8 : 1, !odd, l % 5 == 0);
        }
    for (int at = 0; at < 3; at++)
        if (ck_case("ordered_reduce in place over leaf %d", at)) {
            const int64_t n = 20001;
            float *acc = ck_buf(CK_INOUT, DSC_F32, n, "acc and a leaf");
            const float *other = ck_buf(CK_IN, DSC_F32, n, "leaf"), *last = ck_buf(CK_IN, DSC_F32, n, "last leaf");
            ck_normal(acc, 0, 1);
            ck_normal(other, 0, 1);
            ck_normal(last, 0, 1);
            const void *const leaf_ptr[3] = { at == 0 ? acc : other, at == 1 ? acc : last, at == 2 ? acc : other };
            const dsc_ordered_reduce_args args = { .acc = acc,
                                                   .leaf_ptr = leaf_ptr,
                                                   .grad_part_count = 3,
                                                   .count = n,
                                                   .leaf_dtype = DSC_F32,
                                                   .wire_dtype = DSC_BF16,
                                                   .overwrite = true };
            ck_kernel(DSC_KERNEL_ORDERED_REDUCE, &args, sizeof args, verify_reduce);
        }
}

/* ---- ADD ---- */

static void verify_add(const void *args)
{
    const dsc_add_args *a = args;
    ck_same_or_nan(a->to, a->count);
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
    for (size_t l = 0; l < CK_LENGTHS; l++)
        for (int alias = 0; alias < 3; alias++) {
            if (!ck_case("add n=%lld%s", (long long)ck_lengths[l], alias == 0 ? "" : alias == 1 ? " to=a" : " to=b"))
                continue;
            float *to = ck_buf(alias == 0 ? CK_OUT : CK_INOUT, DSC_F32, ck_lengths[l], "to");
            float *a = alias == 1 ? to : ck_buf(CK_IN, DSC_F32, ck_lengths[l], "a");
            float *b = alias == 2 ? to : ck_buf(CK_IN, DSC_F32, ck_lengths[l], "b");
            ck_normal(a, 0, 1);
            ck_normal(b, 0, 1);
            ck_edges(a);
            ck_edges(b);
            ck_wild(a, ck_lengths[l]);
            ck_wild(b, ck_lengths[l]);
            const dsc_add_args args = { .to = to, .a = a, .b = b, .count = ck_lengths[l] };
            ck_kernel(DSC_KERNEL_ADD, &args, sizeof args, verify_add);
        }
}

/* ---- SUMSQ ---- */

/* Squares of floats are exact in double. At most 64 + 4 additions meet in a chunk, each within 2^-53 of sums of
 * non-negative numbers. Adding the chunks is exact until the one rounding at the end. */
static void verify_sumsq(const void *args)
{
    const dsc_sumsq_args *a = args;
    ck_same(a->sum);
    int64_t wild_chunks = 0;
    long double sum = 0;
    for (int64_t c = 0; c < a->count; c += DSC_SUMSQ_CHUNK) {
        long double chunk = 0;
        for (int64_t i = c; i < a->count && i < c + DSC_SUMSQ_CHUNK; i++) {
            const long double x = dsc_rounded(a->x[i], a->round_dtype);
            chunk += x * x;
        }
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
    const double got = dsc_fixed_sum_value(&finite) - 2.5; /* the value before the run */
    if (!(fabs((double)(got - sum)) <= 70 * 0x1p-53 * ((double)sum + 2.5)))
        ck_fail("sum %.17g, expected %.17g", got, (double)sum);
}

static void check_sumsq(void)
{
    static const int64_t more[] = { 1024, 2048, 4096, 5000, 8192, 65536 + 1024 };
    for (size_t l = 0; l < CK_LENGTHS + DSC_COUNT(more); l++)
        for (int kind = 0; kind < 6; kind++) {
            static const dsc_dtype roundings[] = { DSC_F32, DSC_BF16, DSC_F16 };
            const bool is_wild = kind % 2 == 1;
            const dsc_dtype rounding = roundings[kind / 2];
            const int64_t n = l < CK_LENGTHS ? ck_lengths[l] : more[l - CK_LENGTHS];
            if (!ck_case("sumsq n=%lld%s%s%s", (long long)n, is_wild ? " wild" : "",
                         rounding == DSC_F32 ? "" : " rounded to ", rounding == DSC_F32 ? "" : ck_dtype_text(rounding)))
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
            const dsc_sumsq_args args = { .x = x, .count = n, .sum = sum, .round_dtype = rounding };
            ck_kernel(DSC_KERNEL_SUMSQ, &args, sizeof args, verify_sumsq);
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
    if (ck_case("bench ordered_reduce 4 bf16 leaves")) {
        void *leaf = ck_buf(CK_IN, DSC_BF16, 4 * n, "leaves");
        memset(leaf, 0, (size_t)(8 * n));
        const dsc_ordered_reduce_args args = { .acc = bench_floats(CK_INOUT, n, "acc"),
                                               .leaf = leaf,
                                               .leaf_stride_bytes = 2 * n,
                                               .grad_part_count = 4,
                                               .count = n,
                                               .leaf_dtype = DSC_BF16,
                                               .wire_dtype = DSC_BF16 };
        ck_bench(DSC_KERNEL_ORDERED_REDUCE, &args, sizeof args, n * 16, 0, false);
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
}

void ck_exact(void)
{
    check_cast();
    check_stochastic();
    check_stochastic_cut();
    check_reduce();
    check_add();
    check_sumsq();
    if (ck_benching())
        bench();
}
