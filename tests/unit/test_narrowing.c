/* test_narrowing.c - finite values that a narrower dtype does not hold are found: exactly those that its conversion
 * makes infinite, wherever they are. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/base.h"
#include "kernels/scalar.h"

static void expect_as_converted(float x, dsc_dtype to)
{
    const bool becomes = isfinite(x) && !isfinite(dsc_rounded(x, to));
    assert_int_equal(dsc_first_overflow(&x, DSC_F32, to, 1), becomes ? 0 : -1);
}

static void the_conversion_decides(void **state)
{
    static const float around[] = { 0.0f, 1.0f, 65504.0f, 65519.996f, 65520.0f, 1e5f, 3.38e38f, 3.3895314e38f,
                                    3.3961775e38f, 3.4e38f, INFINITY, NAN };
    for (size_t i = 0; i < DSC_COUNT(around); i++)
        for (int down = -3; down <= 3; down++) {
            float x = around[i];
            for (int n = 0; n < (down < 0 ? -down : down) && isfinite(x); n++)
                x = nextafterf(x, down < 0 ? -INFINITY : INFINITY);
            for (int sign = 0; sign < 2; sign++) {
                expect_as_converted(sign ? -x : x, DSC_F16);
                expect_as_converted(sign ? -x : x, DSC_BF16);
                expect_as_converted(sign ? -x : x, DSC_F32);
            }
        }
}

static void the_first_element_is_named(void **state)
{
    enum { COUNT = 1000 };
    float values[COUNT] = { 0 };
    uint16_t narrow[COUNT];
    for (int at = 0; at < COUNT; at += 37) {
        values[at] = -7e4f;
        values[COUNT - 1] = 1e30f;
        for (int i = 0; i < COUNT; i++)
            narrow[i] = dsc_bf16_from_f32(values[i]);
        assert_int_equal(dsc_first_overflow(values, DSC_F32, DSC_F16, COUNT), at);
        assert_int_equal(dsc_first_overflow(narrow, DSC_BF16, DSC_F16, COUNT), at);
        assert_int_equal(dsc_first_overflow(narrow, DSC_BF16, DSC_F32, COUNT), -1);
        assert_int_equal(dsc_first_overflow(values, DSC_F32, DSC_BF16, COUNT), -1);
        values[at] = 0;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_conversion_decides),
        cmocka_unit_test(the_first_element_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
