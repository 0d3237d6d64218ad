/* test_quota.c - micro-batches of a step over its ranks: their numbers, and the best quotas for measured speeds beside
 * all possible ones. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/quota.h"
#include "base/rng.h"

#define RANKS_MAX 4

static int64_t draw(int64_t below)
{
    static uint64_t drawn;
    return dsc_rng_u32(3, dsc_rng_stream(DSC_RNG_TEST, 0), drawn++) % below;
}

/* Micro-step by micro-step, and by rank inside one: each number once, in order. */
static void expect_numbers(const dsc_quota *quota)
{
    int64_t next = 0;
    for (int64_t m = 0; m < dsc_quota_micro_steps(quota); m++) {
        bool full = true;
        assert_int_equal(dsc_quota_first(quota, m), next);
        for (int32_t r = 0; r < quota->ranks; r++) {
            full = full && dsc_quota_has(quota, r, m);
            if (dsc_quota_has(quota, r, m))
                assert_int_equal(dsc_quota_number(quota, r, m), next++);
        }
        assert_int_equal(dsc_quota_is_full(quota, m), full);
    }
    assert_int_equal(next, quota->total);
}

static void numbers_follow_each_other(void **state)
{
    static const int64_t lists[][RANKS_MAX] = { { 3, 3, 2, 2 }, { 1, 5, 1, 3 }, { 7, 1, 1, 1 }, { 2, 2, 2, 4 } };
    (void)state;
    for (int32_t ranks = 1; ranks <= RANKS_MAX; ranks++)
        for (int64_t total = ranks; total <= 13; total++) {
            const dsc_quota even = dsc_quota_even(total, ranks);
            expect_numbers(&even);
        }
    for (size_t i = 0; i < DSC_COUNT(lists); i++) {
        const dsc_quota quota = { 10, RANKS_MAX, lists[i] };
        expect_numbers(&quota);
    }
    const dsc_quota even = dsc_quota_even(10, RANKS_MAX);
    for (int32_t r = 0; r < RANKS_MAX; r++)
        assert_int_equal(dsc_quota_of(&even, r), lists[0][r]);
}

static double longest(const double *seconds, const int64_t *of_rank, int32_t ranks)
{
    double most = 0;
    for (int32_t r = 0; r < ranks; r++)
        if ((double)of_rank[r] * seconds[r] > most)
            most = (double)of_rank[r] * seconds[r];
    return most;
}

/* Over all quotas: the shortest time of the slowest rank. */
static double best_of_all(const double *seconds, int32_t ranks, int64_t total, int64_t most)
{
    double best = 1e30;
    int64_t q[RANKS_MAX] = { 1, 1, 1, 1 };
    for (;;) {
        int64_t sum = 0;
        int32_t r = 0;
        for (int32_t i = 0; i < ranks; i++)
            sum += q[i];
        if (sum == total && longest(seconds, q, ranks) < best)
            best = longest(seconds, q, ranks);
        for (; r < ranks && q[r] == most; r++)
            q[r] = 1;
        if (r == ranks)
            return best;
        q[r]++;
    }
}

static void measured_quotas_are_the_best(void **state)
{
    (void)state;
    for (int round = 0; round < 200; round++) {
        const int32_t ranks = (int32_t)draw(RANKS_MAX) + 1;
        const int64_t most = 3 + draw(6), total = ranks + draw(ranks * (most - 1) + 1);
        double seconds[RANKS_MAX];
        int64_t q[RANKS_MAX], sum = 0;
        for (int32_t r = 0; r < ranks; r++)
            seconds[r] = 0.001 * (double)(1 + draw(40));
        dsc_quota_balance(seconds, ranks, total, most, q);
        for (int32_t r = 0; r < ranks; r++) {
            assert_in_range(q[r], 1, most);
            sum += q[r];
        }
        assert_int_equal(sum, total);
        assert_true(longest(seconds, q, ranks) <= best_of_all(seconds, ranks, total, most));
    }
    const double halves[] = { 0.01, 0.02 };
    int64_t q[2];
    dsc_quota_balance(halves, 2, 12, 12, q);
    assert_int_equal(q[0], 8);
    assert_int_equal(q[1], 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_follow_each_other),
        cmocka_unit_test(measured_quotas_are_the_best),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
