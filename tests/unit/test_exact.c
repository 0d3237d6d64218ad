/* test_exact.c - the fixed-point sum, the exact kernels on every variant and team, and the floating-point mode.
 * The kernels' recipes themselves are checked by tests/checkkern/exact.c. SPDX-License-Identifier: Apache-2.0 */
#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/bf16.h"
#include "base/rng.h"
#include "kernels/kernels.h"

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#define SEED 20240607u

static double unit_random(uint64_t i)
{
    return (double)dsc_rng_u32(SEED, dsc_rng_stream(DSC_RNG_TEST, 1), i) / 4294967296.0;
}

/* Values m * 2^e with e in 0..60 are integers that a 128-bit sum holds exactly: the truth to round once. */
static void fixed_sum_is_the_exact_sum_rounded_once(void **state)
{
    (void)state;
    for (int round = 0; round < 200; round++) {
        dsc_fixed_sum sum = { .nonfinite_count = 0 };
        unsigned __int128 truth = 0;
        for (int i = 0; i < 1 + round; i++) {
            const uint64_t index = (uint64_t)(round * 1000 + i);
            const uint64_t mantissa = (uint64_t)(unit_random(3 * index) * 9007199254740992.0);
            const int exponent = (int)(unit_random(3 * index + 1) * 60);
            truth += (unsigned __int128)mantissa << exponent;
            dsc_fixed_sum_add(&sum, ldexp((double)mantissa, exponent));
        }
        assert_true(dsc_fixed_sum_value(&sum) == (double)truth);
    }
}

static void fixed_sum_rounds_ties_to_even_and_sees_far_bits(void **state)
{
    (void)state;
    static const struct { double a, b, c, expect; } cases[] = {
        { 1.0, 0x1p-53, 0.0, 1.0 },                              /* a tie: to even, down */
        { 1.0 + 0x1p-52, 0x1p-53, 0.0, 1.0 + 0x1p-51 },          /* a tie: to even, up */
        { 1.0, 0x1p-53, 0x1p-1074, 1.0 + 0x1p-52 },              /* the smallest bit there is breaks the tie */
        { 0x1p-1074, 0x1p-1074, 0x1p-1074, 3 * 0x1p-1074 },      /* denormals are exact */
        { DBL_MIN, 0x1p-1074, 0.0, DBL_MIN + 0x1p-1074 },
        { DBL_MAX, 0x1p+969, 0.0, DBL_MAX },                     /* a quarter of its last place */
        { DBL_MAX, DBL_MAX, 0.0, (double)INFINITY },
        { 0.0, -0.0, 0.0, 0.0 },
    };
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        dsc_fixed_sum sum = { .nonfinite_count = 0 };
        dsc_fixed_sum_add(&sum, cases[i].a);
        dsc_fixed_sum_add(&sum, cases[i].b);
        dsc_fixed_sum_add(&sum, cases[i].c);
        assert_int_equal(sum.nonfinite_count, 0);
        assert_true(dsc_fixed_sum_value(&sum) == cases[i].expect);
    }
}

static void fixed_sum_does_not_care_about_order_or_grouping(void **state)
{
    (void)state;
    enum { N = 300, GROUPS = 7 };
    double value[N];
    for (int i = 0; i < N; i++)
        value[i] = ldexp(unit_random((uint64_t)i), (int)(unit_random((uint64_t)(N + i)) * 2000) - 1060);
    dsc_fixed_sum straight = { .nonfinite_count = 0 }, merged = { .nonfinite_count = 0 }, group[GROUPS];
    memset(group, 0, sizeof group);
    for (int i = 0; i < N; i++) {
        dsc_fixed_sum_add(&straight, value[i]);
        const int j = (int)dsc_rng_permute(SEED, dsc_rng_stream(DSC_RNG_TEST, 2), N, (uint64_t)i);
        dsc_fixed_sum_add(&group[j % GROUPS], value[j]);
    }
    for (int g = GROUPS - 1; g >= 0; g--)
        dsc_fixed_sum_merge(&merged, &group[g]);
    assert_memory_equal(&straight, &merged, sizeof merged);
}

static void fixed_sum_counts_what_is_not_finite(void **state)
{
    (void)state;
    dsc_fixed_sum sum = { .nonfinite_count = 0 }, other = { .nonfinite_count = 0 };
    dsc_fixed_sum_add(&sum, 2.0);
    dsc_fixed_sum_add(&other, (double)INFINITY);
    dsc_fixed_sum_add(&other, (double)NAN);
    dsc_fixed_sum_add(&other, -1.0);
    assert_int_equal(other.nonfinite_count, 3);
    dsc_fixed_sum_merge(&sum, &other);
    assert_int_equal(sum.nonfinite_count, 3);
    assert_true(isinf(dsc_fixed_sum_value(&sum)));
}

static dsc_kernel_fn kernel_of(uint32_t caps, dsc_kernel kernel)
{
    static dsc_kernel_table table;
    dsc_exact_init(&table, caps);
    dsc_update_init(&table, caps);
    return table.fn[kernel];
}

/* Every caps mask that this machine can run: 0, 1, 3, ... */
#define FOR_EACH_CAPS(caps) \
    for (uint32_t caps = 0; caps <= dsc_cpu_caps(); caps = caps * 2 + 1)

static void cast_covers_every_half_and_refuses_other_dtypes(void **state)
{
    (void)state;
    enum { N = 65536 };
    uint16_t *half = calloc(N, 2), *back = calloc(N, 2);
    float *full = calloc(N, 4);
    assert_true(half != NULL && back != NULL && full != NULL);
    for (int i = 0; i < N; i++)
        half[i] = (uint16_t)i;
    FOR_EACH_CAPS(caps)
    {
        const dsc_cpu_threads team = { .threads = 2, .caps = caps };
        const dsc_kernel_fn cast = kernel_of(caps, DSC_KERNEL_CAST);
        for (dsc_dtype dtype = DSC_BF16; dtype <= DSC_F16; dtype++) {
            const int infinite = dtype == DSC_BF16 ? 0x7f80 : 0x7c00, quiet = dtype == DSC_BF16 ? 0x40 : 0x200;
            dsc_cast_args up = { .to = full, .from = half, .to_dtype = DSC_F32, .from_dtype = dtype, .count = N };
            dsc_cast_args down = { .to = back, .from = full, .to_dtype = dtype, .from_dtype = DSC_F32, .count = N };
            assert_int_equal(cast(&up, &team, NULL), DSC_OK);
            assert_int_equal(cast(&down, &team, NULL), DSC_OK);
            for (int i = 0; i < N; i++) /* exact both ways; a NaN comes back quiet */
                assert_int_equal(back[i], (i & 0x7fff) > infinite ? i | quiet : i);
        }
        dsc_cast_args bad = { .to = back, .from = full, .to_dtype = DSC_F64, .from_dtype = DSC_F32, .count = 4 };
        dsc_error err = DSC_ERROR_INIT;
        assert_int_equal(cast(&bad, &team, &err), DSC_ERR_UNSUPPORTED);
        assert_non_null(strstr(err.message, "dtype 3"));
    }
    free(half);
    free(back);
    free(full);
}

#define COUNT 50021 /* seven blocks and a tail; prime */

typedef struct adamw_state {
    float p[COUNT], m[COUNT], v[COUNT], g[COUNT];
    uint16_t copy[COUNT];
    dsc_fixed_sum sum;
} adamw_state;

static void steps_run(adamw_state *s, uint32_t caps, int threads)
{
    const uint64_t stream = dsc_rng_stream(DSC_RNG_TEST, 3);
    memset(s, 0, sizeof *s);
    dsc_rng_normal(SEED, stream, 0, COUNT, 0.0f, 0.02f, s->p);
    const dsc_cpu_threads team = { .threads = threads, .caps = caps };
    for (int step = 1; step <= 3; step++) {
        dsc_rng_normal(SEED, stream, COUNT * step, COUNT, 0.0f, 1e-19f, s->g); /* v is denormal: FTZ would show */
        const dsc_sumsq_args norm = { .x = s->p, .count = COUNT, .sum = &s->sum };
        assert_int_equal(kernel_of(caps, DSC_KERNEL_SUMSQ)(&norm, &team, NULL), DSC_OK);
        const dsc_update_args args = {
            .master = s->p, .state = { s->m, s->v }, .grad = s->g, .param_half = s->copy,
            .half_dtype = DSC_BF16, .count = COUNT,
            .scalars = { .grad_scale = 0.25f, .beta1 = 0.9f, .beta2 = 0.999f, .one_minus_beta1 = 0.1f,
                         .one_minus_beta2 = 0.001f, .decay = 0.9999f, .l2 = 0.0f, .step_size = 1e-3f,
                         .inv_sqrt_bias2 = 31.6f, .eps = 1e-8f },
        };
        assert_int_equal(kernel_of(caps, DSC_KERNEL_ADAMW)(&args, &team, NULL), DSC_OK);
    }
}

static void same_bits_on_every_variant_team_and_mode(void **state)
{
    (void)state;
    adamw_state *reference = malloc(sizeof *reference), *s = malloc(sizeof *s);
    assert_true(reference != NULL && s != NULL);
    steps_run(reference, 0, 1);
    int denormals = 0;
    for (int i = 0; i < COUNT; i++)
        denormals += fpclassify(reference->v[i]) == FP_SUBNORMAL;
    assert_true(denormals > COUNT / 2);
    FOR_EACH_CAPS(caps)
    {
        static const int threads[] = { 1, 2, 3, 8 };
        for (size_t t = 0; t < DSC_COUNT(threads); t++) {
            steps_run(s, caps, threads[t]);
            assert_memory_equal(s, reference, sizeof *s);
        }
#if defined(__SSE2__)
        const unsigned mode = _mm_getcsr();
        _mm_setcsr(mode | 0x8040u | 0x6000u); /* FTZ, DAZ and round toward zero, as a host program may have */
        dsc_cpu_threads team = { .threads = 2, .caps = caps };
        float x[2] = { 0x1p-140f, 1.0f }, y[2] = { 0x1p-140f, 0x1.8p-24f };
        const dsc_add_args add = { x, x, y, 2 };
        assert_int_equal(kernel_of(caps, DSC_KERNEL_ADD)(&add, &team, NULL), DSC_OK);
        const unsigned after = _mm_getcsr();
        _mm_setcsr(mode);
        assert_int_equal(after & ~0x3fu, (mode | 0xe040u) & ~0x3fu); /* and has again */
        assert_true(x[0] == 0x1p-139f);
        assert_true(x[1] == 1.0f + 0x1p-23f);
#endif
    }
    free(reference);
    free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fixed_sum_is_the_exact_sum_rounded_once),
        cmocka_unit_test(fixed_sum_rounds_ties_to_even_and_sees_far_bits),
        cmocka_unit_test(fixed_sum_does_not_care_about_order_or_grouping),
        cmocka_unit_test(fixed_sum_counts_what_is_not_finite),
        cmocka_unit_test(cast_covers_every_half_and_refuses_other_dtypes),
        cmocka_unit_test(same_bits_on_every_variant_team_and_mode),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
