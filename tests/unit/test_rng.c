/* test_rng.c - Philox against the published vectors, normals against libm, the permutation exhaustively.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/rng_fill.h"

/* The known answers of Random123 (kat_vectors: philox4x32, 10 rounds). */
static void known_answers(void **state)
{
    (void)state;
    static const struct { uint64_t seed, stream, counter; uint32_t out[4]; } kat[] = {
        { 0, 0, 0, { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 } },
        { UINT64_MAX, UINT64_MAX, UINT64_MAX, { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd } },
        { 0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88,
          { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } },
    };
    for (size_t i = 0; i < DSC_COUNT(kat); i++) {
        uint32_t out[4];
        dsc_rng_block(kat[i].seed, kat[i].stream, kat[i].counter, out);
        assert_memory_equal(out, kat[i].out, sizeof out);
    }
}

static void element_is_a_word_of_its_block(void **state)
{
    (void)state;
    const uint64_t stream = dsc_rng_stream(DSC_RNG_TEST, 9);
    assert_int_equal(stream, (UINT64_C(5) << 32) + 9);
    for (uint64_t index = 0; index < 1000; index++) {
        uint32_t words[4];
        dsc_rng_block(11, stream, index / 4, words);
        assert_int_equal(dsc_rng_u32(11, stream, index), words[index % 4]);
    }
}

/* z from the contract, with libm in long double. */
static long double libm_normal(uint64_t seed, uint64_t stream, uint64_t element)
{
    uint32_t w[4];
    dsc_rng_block(seed, stream, element / 2, w);
    const long double u = 1 - (long double)(((uint64_t)w[1] << 32 | w[0]) >> 12) * 0x1p-52L;
    const long double v = (long double)(((uint64_t)w[3] << 32 | w[2]) >> 12) * 0x1p-52L;
    const long double angle = 6.28318530717958647692528676655900577L * v;
    const long double radius = sqrtl(-2 * logl(u));
    return radius * (element % 2 == 0 ? cosl(angle) : sinl(angle));
}

static void normals_are_box_muller(void **state)
{
    (void)state;
    enum { COUNT = 100000 };
    float *out = malloc(COUNT * sizeof *out);
    assert_non_null(out);
    const uint64_t stream = dsc_rng_stream(DSC_RNG_INIT, 3);
    dsc_rng_normal(42, stream, 0, COUNT, 0.5f, 0.02f, out);
    for (int i = 0; i < COUNT; i++) {
        const double want = 0.5 + (double)0.02f * (double)libm_normal(42, stream, (uint64_t)i);
        /* Both round once to float; a difference of 1e-14 may fall on either side. */
        if (out[i] != (float)want && fabs((double)out[i] - want) > fabs(want) * 0x1.0001p-24)
            fail_msg("element %d: %.9g, expected %.17g", i, (double)out[i], want);
    }
    free(out);
}

/* The pieces of Box-Muller at their ends, in double: the claim of rng_fill.h is 1e-14. */
static void own_logarithm_and_circle(void **state)
{
    (void)state;
    double worst_ln = 0, worst_circle = 0;
    for (uint64_t i = 0; i < 300000; i++) {
        uint64_t bits = (uint64_t)dsc_rng_u32(1, 2, 2 * i) << 20 | dsc_rng_u32(1, 2, 2 * i + 1) >> 12;
        if (i < 53)
            bits = i == 52 ? 0 : UINT64_C(1) << i; /* u next to 1 and all powers of two below */
        else if (i < 106)
            bits = (UINT64_C(1) << 52) - (UINT64_C(1) << (i - 53)); /* u next to 0 */
        bits &= (UINT64_C(1) << 52) - 1;
        const double u = 1.0 - (double)bits * 0x1p-52, v = (double)bits * 0x1p-52;
        const long double ln = logl((long double)u);
        worst_ln = fmax(worst_ln, (double)(fabsl(dsc_rng_ln(u) - ln) / fmaxl(fabsl(ln), 1e-300L)));
        double c, s;
        dsc_rng_cos_sin(v, &c, &s);
        const long double angle = 6.28318530717958647692528676655900577L * v;
        worst_circle = fmax(worst_circle, (double)fabsl(c - cosl(angle)));
        worst_circle = fmax(worst_circle, (double)fabsl(s - sinl(angle)));
    }
    assert_true(dsc_rng_ln(1.0) == 0);
    assert_true(worst_ln < 1e-15); /* relative */
    assert_true(worst_circle < 1e-15);
}

/* Fixed bits: a change of this value changes every initialised model of every user. */
static void bits_do_not_move(void **state)
{
    (void)state;
    float out[1000];
    dsc_rng_normal(1234, dsc_rng_stream(DSC_RNG_INIT, 7), 5, 1000, 0.0f, 1.0f, out);
    uint32_t hash = 0;
    for (int i = 0; i < 1000; i++) {
        uint32_t bits;
        memcpy(&bits, &out[i], 4);
        hash = hash * 31 + bits;
    }
    assert_int_equal(hash, 0x99fe8084);
}

static void slices_have_the_same_bits(void **state)
{
    (void)state;
    enum { COUNT = 1500 };
    float whole[COUNT], slice[COUNT];
    dsc_rng_normal(7, 8, 0, COUNT, 1.0f, 2.0f, whole);
    for (int first = 0; first < COUNT; first += 1 + first / 7) {
        for (int count = 0; first + count <= COUNT; count += 1 + count / 2) {
            slice[count < COUNT ? count : 0] = -77.0f;
            dsc_rng_normal(7, 8, first, count, 1.0f, 2.0f, slice);
            assert_memory_equal(slice, whole + first, (size_t)count * sizeof *slice);
            if (count < COUNT)
                assert_true(slice[count] == -77.0f);
        }
    }
    /* Far out, across the 32-bit border of the counter. */
    const int64_t far = (INT64_C(1) << 33) - 10;
    dsc_rng_normal(7, 8, far, 40, 0.0f, 1.0f, whole);
    for (int i = 0; i < 40; i++) {
        dsc_rng_normal(7, 8, far + i, 1, 0.0f, 1.0f, slice);
        assert_memory_equal(slice, whole + i, sizeof *slice);
    }
}

static void every_instruction_set_gives_the_same_bits(void **state)
{
    (void)state;
    enum { BLOCKS = 5000 };
    float *ref = malloc(2 * BLOCKS * sizeof *ref), *other = malloc(2 * BLOCKS * sizeof *other);
    assert_non_null(ref);
    assert_non_null(other);
    static const int block_counts[] = { 1, 2, 7, 127, 128, 129, BLOCKS };
    for (size_t i = 0; i < DSC_COUNT(block_counts); i++) {
        const int blocks = block_counts[i];
        dsc_rng_fill_ref(3, 4, UINT32_MAX - 60, blocks, -0.25f, 3.0f, ref);
#if defined(__x86_64__)
        if (__builtin_cpu_supports("avx2")) {
            dsc_rng_fill_avx2(3, 4, UINT32_MAX - 60, blocks, -0.25f, 3.0f, other);
            assert_memory_equal(ref, other, 2 * (size_t)blocks * sizeof *ref);
        }
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")) {
            dsc_rng_fill_avx512(3, 4, UINT32_MAX - 60, blocks, -0.25f, 3.0f, other);
            assert_memory_equal(ref, other, 2 * (size_t)blocks * sizeof *ref);
        }
#endif
    }
    free(ref);
    free(other);
}

/* Moments of 400,000 numbers within five standard errors; no value repeats its neighbour. */
static void normals_look_normal(void **state)
{
    (void)state;
    enum { COUNT = 400000 };
    float *z = malloc(COUNT * sizeof *z);
    assert_non_null(z);
    dsc_rng_normal(99, dsc_rng_stream(DSC_RNG_INIT, 0), 0, COUNT, 0.0f, 1.0f, z);
    double m1 = 0, m2 = 0, m3 = 0, m4 = 0, lag1 = 0;
    for (int i = 0; i < COUNT; i++) {
        const double x = (double)z[i];
        m1 += x;
        m2 += x * x;
        m3 += x * x * x;
        m4 += x * x * x * x;
        lag1 += i > 0 ? x * (double)z[i - 1] : 0;
    }
    const double error = 5 / sqrt(COUNT);
    assert_true(fabs(m1 / COUNT) < error);
    assert_true(fabs(m2 / COUNT - 1) < error * sqrt(2));
    assert_true(fabs(m3 / COUNT) < error * sqrt(15));
    assert_true(fabs(m4 / COUNT - 3) < error * sqrt(96));
    assert_true(fabs(lag1 / COUNT) < error);
    free(z);
}

static void permutation_of_every_small_n(void **state)
{
    (void)state;
    enum { N_MAX = 2000 };
    unsigned char seen[N_MAX];
    int64_t fixed_points = 0;
    for (uint64_t n = 1; n <= N_MAX; n++) {
        memset(seen, 0, sizeof seen);
        for (uint64_t i = 0; i < n; i++) {
            const uint64_t to = dsc_rng_permute(5, dsc_rng_stream(DSC_RNG_SHUFFLE, (uint32_t)n), n, i);
            assert_true(to < n);
            assert_int_equal(seen[to], 0);
            seen[to] = 1;
            fixed_points += to == i;
        }
    }
    /* A random permutation has one fixed point on average, with variance one. */
    assert_in_range(fixed_points, N_MAX - 300, N_MAX + 300);
}

static void permutation_of_large_n(void **state)
{
    (void)state;
    static const uint64_t sizes[] = { 1000003, UINT64_C(1) << 31, (UINT64_C(1) << 32) + 1, (UINT64_C(1) << 40) - 87,
                                      UINT64_C(1) << 63, (UINT64_C(1) << 63) + 1, UINT64_MAX };
    for (size_t k = 0; k < DSC_COUNT(sizes); k++) {
        const uint64_t n = sizes[k];
        double sum = 0;
        for (uint64_t i = 0; i < 4000; i++) {
            const uint64_t to = dsc_rng_permute(17, 1, n, n - 1 - i);
            assert_true(to < n);
            sum += (double)to / (double)n;
        }
        /* Neighbours land everywhere: the mean of 4000 uniform numbers is within five standard errors of 1/2. */
        assert_true(fabs(sum / 4000 - 0.5) < 5 * 0.2887 / sqrt(4000));
    }
    /* All of one larger set, whose bits are odd in number. */
    const uint64_t n = 300000;
    unsigned char *seen = calloc(n, 1);
    assert_non_null(seen);
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t to = dsc_rng_permute(18, 2, n, i);
        assert_true(to < n && seen[to] == 0);
        seen[to % n] = 1;
    }
    free(seen);
}

static void seeds_and_streams_differ(void **state)
{
    (void)state;
    int same_seed = 0, same_stream = 0;
    for (uint64_t i = 0; i < 1000; i++) {
        const uint64_t to = dsc_rng_permute(1, 1, 1000, i);
        same_seed += to == dsc_rng_permute(2, 1, 1000, i);
        same_stream += to == dsc_rng_permute(1, 2, 1000, i);
    }
    assert_in_range(same_seed, 0, 10);
    assert_in_range(same_stream, 0, 10);
    float a[8], b[8];
    dsc_rng_normal(1, 1, 0, 8, 0, 1, a);
    dsc_rng_normal(1, 2, 0, 8, 0, 1, b);
    assert_memory_not_equal(a, b, sizeof a);
}

/* DSC_BENCH=1: what each variant costs per number. */
static void bench(void)
{
    enum { COUNT = 1 << 22 };
    float *out = malloc(COUNT * sizeof *out);
    if (out == NULL)
        return;
    for (int round = 0; round < 5; round++) {
        int64_t t0 = dsc_clock_ns();
        dsc_rng_fill_ref(1, 1, 0, COUNT / 2, 0, 1, out);
        const int64_t t1 = dsc_clock_ns();
        dsc_rng_normal(1, 1, 0, COUNT, 0, 1, out);
        const int64_t t2 = dsc_clock_ns();
        printf("# normal: plain C %.2f ns, this CPU's %.2f ns\n", (double)(t1 - t0) / COUNT, (double)(t2 - t1) / COUNT);
    }
    free(out);
}

static void uniforms_are_words(void **state)
{
    enum { COUNT = 40000 };
    const uint64_t stream = dsc_rng_stream(DSC_RNG_TEST, 3);
    static float x[COUNT], part[1000];
    double sum = 0, squares = 0;
    (void)state;
    dsc_rng_uniform(7, stream, 0, COUNT, 0.25f, x);
    for (int64_t i = 0; i < COUNT; i++) {
        const double u = ((double)dsc_rng_u32(7, stream, (uint64_t)i) + 0.5) / 4294967296.0;
        assert_true(x[i] == (float)((2 * u - 1) * 0.25));
        assert_true(x[i] >= -0.25f && x[i] <= 0.25f);
        sum += (double)x[i];
        squares += (double)x[i] * (double)x[i];
    }
    assert_true(fabs(sum / COUNT) < 0.0025); /* over three deviations of the mean */
    assert_true(fabs(squares / COUNT * 3 / 0.0625 - 1) < 0.02);
    for (int64_t first = 0; first < 9; first++) {
        dsc_rng_uniform(7, stream, first, 1000 - first, 0.25f, part);
        assert_memory_equal(part, x + first, (size_t)(1000 - first) * sizeof *x);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_answers),
        cmocka_unit_test(element_is_a_word_of_its_block),
        cmocka_unit_test(normals_are_box_muller),
        cmocka_unit_test(own_logarithm_and_circle),
        cmocka_unit_test(bits_do_not_move),
        cmocka_unit_test(slices_have_the_same_bits),
        cmocka_unit_test(every_instruction_set_gives_the_same_bits),
        cmocka_unit_test(normals_look_normal),
        cmocka_unit_test(uniforms_are_words),
        cmocka_unit_test(permutation_of_every_small_n),
        cmocka_unit_test(permutation_of_large_n),
        cmocka_unit_test(seeds_and_streams_differ),
    };
    if (getenv("DSC_BENCH") != NULL)
        bench();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
