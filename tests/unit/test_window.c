/* test_window.c - places of lifetimes in an arena, beside what is said of them, for random lists.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/rng.h"
#include "base/window.h"

#define COUNT 12
#define STEPS 20

static int64_t draw(int64_t below)
{
    static uint64_t drawn;
    return dsc_rng_u32(3, dsc_rng_stream(DSC_RNG_TEST, 0), drawn++) % below;
}

static bool share_bytes(const dsc_window *a, const dsc_window *b)
{
    return a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes;
}

/* Step by step, over two rounds: what is alive of this one and of the next. */
static bool share_a_step(const dsc_window *a, const dsc_window *b, int32_t steps)
{
    for (int32_t step = -steps; step < 2 * steps; step++)
        for (int32_t round = -steps; round <= steps; round += steps)
            if (step >= a->first && step <= a->last + a->rest && step >= b->first + round &&
                step <= b->last + b->rest + round)
                return true;
    return false;
}

static void expect_all_apart(const dsc_window *w, int count, int32_t steps, int64_t arena_bytes)
{
    for (int i = 0; i < count; i++) {
        assert_true(w[i].offset >= 0 && w[i].offset % 256 == 0 && w[i].offset + w[i].bytes <= arena_bytes);
        for (int j = 0; j < i; j++)
            assert_false(share_bytes(&w[i], &w[j]) && share_a_step(&w[i], &w[j], steps));
    }
}

static void expect_apart(const dsc_window *w, int64_t arena_bytes) { expect_all_apart(w, COUNT, STEPS, arena_bytes); }

/* Those that begin in the round before also meet what lives at its end. */
static void lifetimes_that_meet_lie_apart(void **state)
{
    for (int list = 0; list < 500; list++) {
        dsc_window w[COUNT] = { 0 };
        for (int i = 0; i < COUNT; i++) {
            w[i].first = (int32_t)draw(STEPS) - 3;
            w[i].last = (int32_t)(w[i].first + draw(STEPS - w[i].first));
            w[i].last = w[i].last < 0 ? 0 : w[i].last;
            w[i].bytes = 1 + draw(5000);
        }
        expect_apart(w, dsc_window_assign(w, COUNT, STEPS));
    }
}

/* As a deep model's: each module's once in the forward and once in the backward pass, the table's all the time. */
static void many_lie_apart_and_take_what_lives_at_once(void **state)
{
    enum { MODULES = 150, ROUND = 2 * MODULES - 1 };
    for (int ahead = 0; ahead < 4; ahead++) {
        dsc_window w[2 * MODULES + 1] = { { .first = 0, .last = ROUND - 1, .bytes = 4096 } };
        for (int i = 0; i < MODULES; i++) {
            w[1 + 2 * i] = (dsc_window){ .first = i - ahead, .last = i, .bytes = 1024 };
            const int back = 2 * MODULES - 2 - i;
            w[2 + 2 * i] = (dsc_window){ .first = back - ahead, .last = back, .bytes = 1024 };
        }
        const int64_t bytes = dsc_window_assign(w, 2 * MODULES + 1, ROUND);
        expect_all_apart(w, 2 * MODULES + 1, ROUND, bytes);
        assert_in_range(bytes, 4096 + 1024 * (ahead + 1), 4096 + 1024 * (2 * ahead + 3));
    }
}

/* One large gradient at the begin and one at the end of a backward pass, between them small ones. */
static void small_ones_rest_where_the_large_ones_lay(void **state)
{
    dsc_window w[COUNT] = { 0 }, near[COUNT];
    for (int i = 0; i < COUNT; i++)
        near[i] = w[i] = (dsc_window){ .first = i, .last = i + 1, .bytes = i % (COUNT - 1) == 0 ? 8192 : 1024 };
    const int64_t bytes = dsc_window_assign(near, COUNT, STEPS);
    assert_int_equal(dsc_window_spread(w, COUNT, 8), bytes);
    assert_int_equal(bytes, 8192 + 1024);
    expect_apart(w, bytes);
    for (int i = 1; i < COUNT - 1; i++)
        for (int j = i + 1; j < COUNT - 1 && j <= i + 8; j++)
            assert_false(share_bytes(&w[i], &w[j]));
    /* The places beside each other are used again and again where there is no more room. */
    for (int i = 0; i < COUNT; i++)
        w[i].bytes = 1024;
    assert_int_equal(dsc_window_spread(w, COUNT, 8), 2048);
    expect_apart(w, 2048);
}

static void resting_takes_no_more(void **state)
{
    for (int list = 0; list < 300; list++) {
        dsc_window w[COUNT] = { 0 }, near[COUNT];
        for (int i = 0; i < COUNT; i++)
            near[i] = w[i] = (dsc_window){ .first = i, .last = i + 1, .bytes = 1 + draw(draw(2) == 0 ? 9000 : 700) };
        const int64_t most = dsc_window_assign(near, COUNT, STEPS), bytes = dsc_window_spread(w, COUNT, 6);
        assert_true(bytes <= most);
        for (int i = 0; i < COUNT; i++) {
            assert_in_range(w[i].rest, 0, 6);
            w[i].rest = 0;
        }
        expect_apart(w, bytes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lifetimes_that_meet_lie_apart),
        cmocka_unit_test(many_lie_apart_and_take_what_lives_at_once),
        cmocka_unit_test(small_ones_rest_where_the_large_ones_lay),
        cmocka_unit_test(resting_takes_no_more),
    };
    return cmocka_run_group_tests_name("window", tests, NULL, NULL);
}
