/* test_buffers.c - the fold of a buffer, the sizes of a model's buffers, and tables of them that are refused.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "engine/buffers.h"
#include "tests/support/toy_buffers.h"

/* The product of this momentum and difference lies between two fp32 numbers, and a fused product is another sum. */
static void a_fold_has_three_roundings(void **state)
{
    const float momentum = 0.1f, statistics[] = { 3.3333333f, -7.1f, 1e-9f, 16777217.0f, 0.1f };
    float value[5] = { 0.7f, 1e7f, 1.0000001f, -3.0f, 0.1f };
    int differs = 0;
    (void)state;
    for (int round = 0; round < 50; round++) {
        float wanted[5];
        for (int i = 0; i < 5; i++) {
            volatile float difference = statistics[i] - value[i];
            volatile float change = momentum * difference;
            wanted[i] = value[i] + change;
            differs += wanted[i] != fmaf(momentum, difference, value[i]);
        }
        dsc_buffer_fold(value, statistics, 5, momentum);
        assert_memory_equal(value, wanted, sizeof value);
    }
    assert_true(differs > 0);
}

/* Folding a, then b is another number than b, then a: the order is part of the contract. */
static void the_order_matters(void **state)
{
    const float a = 1.7f, b = -0.3f;
    float first = 1, second = 1;
    (void)state;
    dsc_buffer_fold(&first, &a, 1, 0.1f);
    dsc_buffer_fold(&first, &b, 1, 0.1f);
    dsc_buffer_fold(&second, &b, 1, 0.1f);
    dsc_buffer_fold(&second, &a, 1, 0.1f);
    assert_true(first != second);
}

static void the_ends_of_momentum_are_exact(void **state)
{
    float kept = 0.3f, taken = 1;
    const float statistic = 2.5f;
    (void)state;
    dsc_buffer_fold(&kept, &statistic, 1, 0);
    dsc_buffer_fold(&taken, &statistic, 1, 1);
    assert_true(kept == 0.3f);
    assert_true(taken == 2.5f);
}

static void sizes_are_those_of_padded_averages(void **state)
{
    const dsc_buffer_sizes sizes = dsc_buffer_sizes_of(toy_buffers_open());
    (void)state;
    assert_int_equal(sizes.count, 9);
    assert_int_equal(sizes.most, 4);
    assert_int_equal(sizes.statistics, 2 * (64 + 128) + 64);
    assert_int_equal(sizes.values, sizes.statistics + 2 * 64);
    toy_buffers_close();
}

static void expect_refusal(dsc_buffer_spec spec, const char *words)
{
    dsc_model *whole = toy_buffers_open(), model = *whole;
    dsc_module modules[4];
    dsc_buffer_spec specs[2] = { spec, { .name = "other", .count = 1, .momentum = 0.5 } };
    dsc_error err = DSC_ERROR_INIT;
    memcpy(modules, whole->modules, sizeof modules);
    modules[1].buffers = specs;
    modules[1].buffer_count = 2;
    model.modules = modules;
    const dsc_status status = dsc_model_check(&model, &err);
    if (words == NULL)
        assert_int_equal(status, DSC_OK);
    else if (status != DSC_ERR_STATE || strstr(err.message, words) == NULL)
        fail_msg("expected \"%s\": %s", words, err.message);
    toy_buffers_close();
}

static void wrong_tables_are_refused(void **state)
{
    const dsc_buffer_spec good = { .name = "x.mean", .count = 3, .init = 1, .momentum = 0.1 };
    dsc_buffer_spec bad;
    (void)state;
#define REFUSED(member, value, words) (bad = good, bad.member = (value), expect_refusal(bad, words))
    expect_refusal(good, NULL);
    REFUSED(name, NULL, "a name of 1 to");
    REFUSED(name, "", "a name of 1 to");
    REFUSED(name, "a\nb", "a name of 1 to");
    REFUSED(name, "block.0.weight", "two parameters or buffers have this name");
    REFUSED(name, "block.1.mean", "two parameters or buffers have this name");
    REFUSED(kind, (dsc_buffer_kind)7, "no such kind of buffer");
    REFUSED(count, 0, "a buffer of 0 elements");
    REFUSED(count, -1, "a buffer of -1 elements");
    REFUSED(count, DSC_BUFFERS_ELEMENTS_MAX, "at most 3145728 in all buffers together"); /* one beside it */
    REFUSED(count, INT64_MAX, "at most 3145728 in all buffers together");
    REFUSED(init, (double)NAN, "its first value is");
    REFUSED(init, 1e39, "its first value is");
    REFUSED(momentum, -0.1, "its momentum is");
    REFUSED(momentum, 1.5, "its momentum is");
    REFUSED(momentum, (double)NAN, "its momentum is");
    bad = (dsc_buffer_spec) { .name = "x.steps", .kind = DSC_BUFFER_STEPS, .count = 1 };
    expect_refusal(bad, NULL);
    bad.count = 2;
    expect_refusal(bad, "expected 1 of a count of steps");
    bad.count = 1;
    bad.init = 0.5;
    expect_refusal(bad, "expected a whole number");
    bad.init = -1;
    expect_refusal(bad, "expected a whole number");
}

static void wrong_counts_are_refused(void **state)
{
    static const int32_t counts[] = { -1, DSC_MODULE_BUFFERS_MAX + 1 };
    dsc_model *whole = toy_buffers_open(), model = *whole;
    dsc_module modules[4];
    dsc_error err = DSC_ERROR_INIT;
    (void)state;
    memcpy(modules, whole->modules, sizeof modules);
    model.modules = modules;
    for (size_t i = 0; i < DSC_COUNT(counts); i++) {
        modules[1].buffer_count = counts[i];
        assert_int_equal(dsc_model_check(&model, &err), DSC_ERR_STATE);
        assert_non_null(strstr(err.message, "expected 0 to 192"));
    }
    modules[1].buffer_count = 1;
    modules[1].buffers = NULL;
    assert_int_equal(dsc_model_check(&model, &err), DSC_ERR_STATE);
    toy_buffers_close();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_fold_has_three_roundings),     cmocka_unit_test(the_order_matters),
        cmocka_unit_test(the_ends_of_momentum_are_exact), cmocka_unit_test(sizes_are_those_of_padded_averages),
        cmocka_unit_test(wrong_tables_are_refused),       cmocka_unit_test(wrong_counts_are_refused),
    };
    return cmocka_run_group_tests_name("buffers", tests, NULL, NULL);
}
