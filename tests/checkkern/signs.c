/* signs.c - numbers sent as their signs. Every variant must equal the reference in every bit, and the reference must be
 * what signs.h says. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "kernels/signs.h"
#include "tests/checkkern/ck_internal.h"

static const int64_t lengths[] = { 0, 1, 7, 8, 9, 15, 16, 17, 63, 1000, 8192, 20011 };

static bool negative(const uint8_t *signs, int64_t i) { return (signs[i / 8] / (1 << i % 8)) % 2 == 1; }

/* Numbers of both signs; some 0, some -0, some denormal. A denormal costs some CPUs a hundred cycles: what is timed
 * has none. */
static void fill(const void *buf, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        const uint32_t kind = ck_benching() ? 15 : ck_random() % 16;
        const double x = ldexp((double)(int32_t)ck_random(), kind == 2 ? -175 : -31);
        ck_set(buf, i, kind == 0 ? 0.0 : kind == 1 ? -0.0 : x);
    }
}

static void expect(const void *buf, int64_t i, float expected)
{
    if (ck_get(buf, i) != (double)expected)
        ck_fail("[%lld] = %a, expected %a", (long long)i, ck_get(buf, i), (double)expected);
}

static void verify_add(const void *args)
{
    const dsc_signs_add_args *a = args;
    ck_same(a->error);
    for (int64_t i = 0; i < a->count; i++) {
        const double old = ck_get(a->moment, i), g = ck_get(a->grad, i) * (double)a->grad_scale;
        const double m = old + (double)a->one_minus_beta1 * (g - old);
        const double size = fabs(old) + fabs(g) + fabs(ck_start(a->error, i));
        ck_near(a->error, i, ck_start(a->error, i) + m, 4 * (0x1p-24 * size + 0x1p-150)); /* four roundings */
    }
}

static void verify_pack(const void *args)
{
    const dsc_signs_pack_args *a = args;
    ck_same(a->to);
    for (int64_t i = 0; i < 8 * dsc_signs_bytes(a->count); i++) {
        const float x = i < a->count ? (float)ck_start(a->x, i) : 0;
        const bool expected = signbit(x) != 0;
        if (negative(a->to, i) != expected)
            ck_fail("sign %lld of %lld is wrong", (long long)i, (long long)a->count);
        if (i < a->count)
            expect(a->x, i, expected ? x + a->scale : x - a->scale);
    }
}

static void verify_reduce(const void *args)
{
    const dsc_signs_reduce_args *a = args;
    for (int64_t i = 0; i < a->count; i++) {
        float s = 0;
        for (int64_t k = 0; k < a->piece_count; k++)
            s = negative(a->from + k * a->from_stride, i) ? s - a->scale[k] : s + a->scale[k];
        expect(a->acc, i, (float)ck_start(a->acc, i) + s);
    }
}

static void verify_unpack(const void *args)
{
    const dsc_signs_unpack_args *a = args;
    for (int64_t i = 0; i < a->count; i++)
        expect(a->to, i, ck_get(a->mask, i) == 0 ? 0 : negative(a->from, i) ? -a->scale : a->scale);
}

static void verify_mask(const void *args)
{
    const dsc_signs_mask_args *a = args;
    for (int64_t i = 0; i < a->count; i++)
        expect(a->x, i, ck_get(a->mask, i) == 0 ? 0 : (float)ck_start(a->x, i));
}

/* To a few roundings of what is added up. */
static void expect_weight(const float *to, int64_t i, double decays, double shared, double local_update, double d)
{
    ck_near(to, i, decays * shared + local_update / d,
            6 * 0x1p-24 * (fabs(decays * shared) + fabs(local_update / d)) + 0x1p-149);
}

static void verify_local_step(const void *args)
{
    const dsc_signs_local_step_args *a = args;
    ck_same(a->moment);
    ck_same(a->local_update);
    ck_same(a->to);
    for (int64_t i = 0; i < a->count; i++) {
        const double old = ck_start(a->moment, i), g = ck_get(a->grad, i) * (double)a->grad_scale;
        const double v = ck_get(a->variance, i), kept = (double)a->decay * ck_start(a->local_update, i);
        const double m = v == 0 ? 0 : old + (double)a->one_minus_beta1 * (g - old);
        const double size = fabs(old) + fabs(g), step = (double)a->rate * ck_get(a->moment, i);
        ck_near(a->moment, i, m, 4 * (0x1p-24 * size + 0x1p-150));
        ck_near(a->local_update, i, kept - step, 4 * (0x1p-24 * (fabs(kept) + fabs(step)) + 0x1p-150));
        expect_weight(a->to, i, (double)a->decays, ck_get(a->shared, i), ck_get(a->local_update, i),
                      sqrt(v) + (double)a->eps);
    }
}

static void verify_synchronize(const void *args)
{
    const dsc_signs_synchronize_args *a = args;
    ck_same(a->to);
    for (int64_t i = 0; i < a->count; i++) {
        expect_weight(a->to, i, (double)a->decays, ck_get(a->shared, i), ck_get(a->local_update, i),
                      sqrt(ck_get(a->variance, i)) + (double)a->eps);
        if (a->moment != NULL)
            expect(a->moment, i, (float)ck_get(a->local_update, i) * a->per_rate);
    }
}

/* The largest is of the numbers that were written, and of what was there. */
static void verify_regain(const void *args)
{
    const dsc_signs_regain_args *a = args;
    float most;
    double expected = 1.5;
    ck_same(a->moment);
    ck_same(a->fresh);
    ck_same(a->most);
    for (int64_t i = 0; i < a->count; i++) {
        const double old = ck_start(a->moment, i), s = ck_get(a->x, i) * (double)a->scale, unmix = (double)a->unmix;
        const double g = old + unmix * (s - old), size = unmix * (fabs(s) + fabs(old)) + fabs(old);
        const double was = ck_start(a->fresh, i), part = (double)a->one_minus_beta2;
        ck_near(a->moment, i, old + (double)a->one_minus_beta1 * (g - old), 6 * (0x1p-24 * size + 0x1p-150));
        ck_near(a->fresh, i, (double)a->beta2 * was + part * g * g,
                8 * 0x1p-24 * (part * size * size + was) + 0x1p-149);
        const double d = sqrt(ck_get(a->fresh, i)) + (double)a->eps;
        const double ratio = (sqrt(ck_get(a->variance, i)) + (double)a->eps) / d;
        expected = ratio > expected ? ratio : expected;
    }
    memcpy(&most, a->most, sizeof most);
    if ((double)most != expected && !(fabs((double)most - expected) <= 4 * 0x1p-24 * expected))
        ck_fail("most is %g, expected %g", (double)most, expected);
}

static float *floats(ck_role use, int64_t count, const char *name)
{
    ck_align();
    float *buf = ck_buf(use, DSC_F32, count, name);
    if (use != CK_OUT)
        fill(buf, count);
    return buf;
}

/* Squares; some are 0. */
static float *squares(ck_role use, int64_t count, const char *name)
{
    float *buf = floats(use, count, name);
    for (int64_t i = 0; i < count; i++)
        buf[i] = buf[i] * buf[i];
    return buf;
}

static float *variances(int64_t count) { return squares(CK_IN, count, "variance"); }

/* The bits of 1.5, which short runs do not come to. */
static uint32_t *most_so_far(void)
{
    const float start = 1.5f;
    uint32_t *bits = ck_buf(CK_INOUT, DSC_I32, 1, "most");
    memcpy(bits, &start, sizeof start);
    return bits;
}

static dsc_signs_regain_args regain_args(int64_t n, float unmix, float eps)
{
    return (dsc_signs_regain_args){ .moment = floats(CK_INOUT, n, "moment"), .fresh = squares(CK_INOUT, n, "fresh"),
                                    .x = floats(CK_IN, n, "x"), .variance = variances(n), .most = most_so_far(),
                                    .count = n, .scale = 0.37f, .unmix = unmix, .one_minus_beta1 = 0.1f,
                                    .beta2 = 0.95f, .one_minus_beta2 = 0.05f, .eps = eps };
}

static uint8_t *random_signs(int64_t bytes)
{
    uint8_t *signs = ck_buf(CK_IN, DSC_U8, bytes, "signs");
    for (int64_t i = 0; i < bytes; i++)
        signs[i] = (uint8_t)ck_random();
    return signs;
}

static void check_length(int64_t n)
{
    if (ck_case("signs_add n=%lld", (long long)n)) {
        const dsc_signs_add_args args = { .error = floats(CK_INOUT, n, "error"), .moment = floats(CK_IN, n, "moment"),
                                          .grad = floats(CK_IN, n, "grad"), .count = n, .grad_scale = 0.37f,
                                          .one_minus_beta1 = 0.1f };
        ck_kernel(DSC_KERNEL_SIGNS_ADD, &args, sizeof args, verify_add);
    }
    if (ck_case("signs_pack n=%lld", (long long)n)) {
        float *x = floats(CK_INOUT, n, "x");
        const dsc_signs_pack_args args = { .to = ck_buf(CK_OUT, DSC_U8, dsc_signs_bytes(n), "to"), .x = x, .count = n,
                                           .scale = 0.123f };
        ck_kernel(DSC_KERNEL_SIGNS_PACK, &args, sizeof args, verify_pack);
    }
    for (int64_t pieces = 1; pieces <= 5; pieces += 2)
        if (ck_case("signs_reduce n=%lldx%lld", (long long)pieces, (long long)n)) {
            const int64_t stride = dsc_signs_bytes(n) + 3;
            float *acc = floats(CK_INOUT, n, "acc"), *scale = floats(CK_IN, pieces, "scale");
            const dsc_signs_reduce_args args = { .acc = acc,
                                                 .from = random_signs(pieces * stride),
                                                 .from_stride = stride,
                                                 .scale = scale,
                                                 .piece_count = pieces,
                                                 .count = n };
            ck_kernel(DSC_KERNEL_SIGNS_REDUCE, &args, sizeof args, verify_reduce);
        }
    if (ck_case("signs_unpack n=%lld", (long long)n)) {
        float *to = floats(CK_OUT, n, "to"), *mask = floats(CK_IN, n, "mask");
        const dsc_signs_unpack_args args = { .to = to, .from = random_signs(dsc_signs_bytes(n)), .mask = mask,
                                             .count = n, .scale = 0.25f };
        ck_kernel(DSC_KERNEL_SIGNS_UNPACK, &args, sizeof args, verify_unpack);
    }
    if (ck_case("signs_mask n=%lld", (long long)n)) {
        float *x = floats(CK_INOUT, n, "x"), *mask = floats(CK_IN, n, "mask");
        const dsc_signs_mask_args args = { .x = x, .mask = mask, .count = n };
        ck_kernel(DSC_KERNEL_SIGNS_MASK, &args, sizeof args, verify_mask);
    }
    if (ck_case("signs_local_step n=%lld", (long long)n)) {
        const dsc_signs_local_step_args args = { .local_update = floats(CK_INOUT, n, "local update"),
                                                 .moment = floats(CK_INOUT, n, "moment"),
                                                 .to = floats(CK_OUT, n, "to"),
                                                 .variance = variances(n),
                                                 .grad = floats(CK_IN, n, "grad"),
                                                 .shared = floats(CK_IN, n, "shared"),
                                                 .count = n,
                                                 .grad_scale = 0.37f,
                                                 .one_minus_beta1 = 0.1f,
                                                 .rate = 0.01f,
                                                 .decay = 0.99f,
                                                 .decays = 0.95f,
                                                 .eps = 1e-4f };
        ck_kernel(DSC_KERNEL_SIGNS_LOCAL_STEP, &args, sizeof args, verify_local_step);
    }
    for (int with = 0; with < 2; with++)
        if (ck_case("signs_synchronize%s n=%lld", with != 0 ? "_moment" : "", (long long)n)) {
            const dsc_signs_synchronize_args args = { .to = floats(CK_OUT, n, "to"),
                                                      .moment = with != 0 ? floats(CK_OUT, n, "moment") : NULL,
                                                      .variance = variances(n),
                                                      .local_update = floats(CK_IN, n, "local update"),
                                                      .shared = floats(CK_IN, n, "shared"),
                                                      .count = n,
                                                      .decays = 0.95f,
                                                      .eps = 1e-4f,
                                                      .per_rate = -31.5f };
            ck_kernel(DSC_KERNEL_SIGNS_SYNCHRONIZE, &args, sizeof args, verify_synchronize);
        }
    for (int k = 0; k < 4; k++)
        if (ck_case("signs_regain%s%s n=%lld", k % 2 != 0 ? "_gradient" : "", k >= 2 ? "_no_eps" : "", (long long)n)) {
            /* Without eps some ratios are NaN, some infinite. */
            const dsc_signs_regain_args args = regain_args(n, k % 2 != 0 ? 1.0f : 10.0f, k >= 2 ? 0.0f : 1e-4f);
            ck_kernel(DSC_KERNEL_SIGNS_REGAIN, &args, sizeof args, verify_regain);
        }
}

static void bench(void)
{
    const int64_t n = ck_bench_size(1 << 24, 1 << 26), bytes = dsc_signs_bytes(n);
    if (ck_case("bench signs_add")) {
        const dsc_signs_add_args args = { .error = floats(CK_INOUT, n, "error"), .moment = floats(CK_IN, n, "moment"),
                                          .grad = floats(CK_IN, n, "grad"), .count = n, .grad_scale = 0.37f,
                                          .one_minus_beta1 = 0.1f };
        ck_bench(DSC_KERNEL_SIGNS_ADD, &args, sizeof args, n * 16, 0, 0);
    }
    if (ck_case("bench signs_pack")) {
        float *x = floats(CK_INOUT, n, "x");
        const dsc_signs_pack_args args = { .to = ck_buf(CK_OUT, DSC_U8, bytes, "to"), .x = x, .count = n,
                                           .scale = 0.123f };
        ck_bench(DSC_KERNEL_SIGNS_PACK, &args, sizeof args, n * 8 + bytes, 0, 0);
    }
    if (ck_case("bench signs_regain")) {
        const dsc_signs_regain_args args = regain_args(n, 10.0f, 1e-4f);
        ck_bench(DSC_KERNEL_SIGNS_REGAIN, &args, sizeof args, n * 24, 0, 0);
    }
    if (ck_case("bench signs_reduce 4 pieces")) {
        float *acc = floats(CK_INOUT, n, "acc"), *scale = floats(CK_IN, 4, "scale");
        const dsc_signs_reduce_args args = { .acc = acc,
                                             .from = random_signs(4 * bytes),
                                             .from_stride = bytes,
                                             .scale = scale,
                                             .piece_count = 4,
                                             .count = n };
        ck_bench(DSC_KERNEL_SIGNS_REDUCE, &args, sizeof args, n * 8 + 4 * bytes, 0, 0);
    }
}

void ck_signs(void)
{
    for (size_t i = 0; i < DSC_COUNT(lengths); i++)
        check_length(lengths[i]);
    if (ck_benching())
        bench();
}
