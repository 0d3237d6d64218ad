/* vmath.c - every vector function against double: 2 ulp over the whole line of floats (every 511th bit pattern, all
 * exponents, both signs), and the special values. SPDX-License-Identifier: Apache-2.0 */
#include "tests/checkkern/vmath.h"

#include <math.h>
#include <string.h>

enum { BLOCK = 4096 };
static const char *const names[CK_VMATH_COUNT] = { "exp", "sigmoid", "tanh", "gelu", "gelu_slope", "bf16" };

static double expected_of(ck_vmath_fn fn, float x)
{
    const double u2 = 2 * 0.79788456080286536 * ((double)x + 0.044715 * x * x * x);
    const double s = 1 / (1 + exp(-u2));
    const double slope = 2 * 0.79788456080286536 * (1 + 3 * 0.044715 * x * x);
    switch (fn) {
    case CK_EXP: return exp(x);
    case CK_SIGMOID: return 1 / (1 + exp(-(double)x));
    case CK_TANH: return tanh(x);
    case CK_GELU: return x * s;
    case CK_GELU_SLOPE: return s + x * s * (1 / (1 + exp(u2))) * slope;
    default: return dsc_f32_from_bf16(dsc_bf16_from_f32(x));
    }
}

/* A rounding of exp's argument is multiplied by the argument, and the gate's argument has 2 or 3 roundings. gelu'
 * passes through zero near -0.75, so its bound grows with the terms of its sum. 1 / (1 + exp(-x)) is 0 where exp
 * overflows. */
static double allowed(ck_vmath_fn fn, float x, double expected)
{
    const double ulp = ck_spacing(DSC_F32, expected), normal_min = 0x1p-126;
    const double u2 = fmin(fabs(1.6 * x + 0.0714 * x * x * x), 104);
    const double s = 1 / (1 + exp(x < 0 ? u2 : -u2)), terms = s + fabs(expected - s);
    switch (fn) {
    case CK_BF16: return 0;
    case CK_SIGMOID: return 2.5 * ulp + normal_min;
    case CK_GELU: return ulp * (4 + 3 * u2) + 16 * normal_min;
    case CK_GELU_SLOPE: return ck_spacing(DSC_F32, terms) * (6 + 3 * u2) + 2048 * normal_min;
    default: return 2 * ulp;
    }
}

static void check_block(ck_vmath_fn fn, const float *in)
{
    float out[BLOCK];
    if (ck_caps() & DSC_CPU_AVX512)
        ck_vmath_avx512(fn, out, in, BLOCK);
    else
        ck_vmath_avx2(fn, out, in, BLOCK);
    for (int32_t i = 0; i < BLOCK; i++) {
        const double expected = expected_of(fn, in[i]);
        if (isnan(in[i]) ? isnan(out[i]) : (out[i] == expected || isnan(expected) || isinf((float)expected)))
            continue;
        const double off = fabs((double)out[i] - expected);
        if (!(off <= allowed(fn, in[i], expected)))
            ck_fail("%s(%.9g) = %.9g, expected %.9g: %.2f ulp", names[fn], (double)in[i], (double)out[i], expected,
                    off / ck_spacing(DSC_F32, expected));
    }
}

static void sweep(ck_vmath_fn fn)
{
    static const float special[] = { 0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1e-45f, -1e-45f, 3.4e38f, -3.4e38f, 0.55f,
                                     -0.55f, 88.7f, 88.8f, -87.4f, -103.9f, -104.1f };
    float in[BLOCK] = { 0 };
    memcpy(in, special, sizeof special);
    check_block(fn, in);
    uint32_t bits = ck_random() % 511;
    for (bool wrapped = false; !wrapped;) {
        for (int32_t i = 0; i < BLOCK; i++) {
            memcpy(&in[i], &bits, 4);
            wrapped = wrapped || bits + 511 < bits;
            bits += 511;
        }
        check_block(fn, in);
    }
}

void ck_vmath(void)
{
    static const uint32_t sets[] = { DSC_CPU_AVX2, DSC_CPU_AVX2 | DSC_CPU_AVX512 };
    for (size_t s = 0; s < DSC_COUNT(sets); s++)
        for (int32_t fn = 0; fn < CK_VMATH_COUNT; fn++)
            if ((sets[s] & ~dsc_cpu_caps()) == 0 && ck_case("vmath %s %s", names[fn], s == 0 ? "avx2" : "avx512")) {
                ck_variant_set(sets[s]);
                sweep((ck_vmath_fn)fn);
            }
}
