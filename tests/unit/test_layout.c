/* test_layout.c - places of tensors in flat groups, of which some are laid late.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "zero/core/layout.h"

static dsc_param_spec spec_of(const char *name, int64_t rows, int64_t cols, bool late, bool trainable)
{
    return (dsc_param_spec) { .name = name,
                              .dim_count = cols > 0 ? 2 : 1,
                              .dim = { rows, cols },
                              .trainable = trainable,
                              .laid_late = late,
                              .shared_module = -1,
                              .shared_param = -1 };
}

static void late_tensors_lie_behind_the_others(void **state)
{
    (void)state;
    const dsc_param_spec params[] = {
        spec_of("q.weight", 64, 32, false, true),      spec_of("q.bias", 64, 0, true, true),
        spec_of("k.weight", 32, 32, false, true),      spec_of("k.bias", 32, 0, true, true),
        spec_of("norm", 32, 0, false, true),           spec_of("frozen.bias", 32, 0, true, false),
        spec_of("frozen.weight", 32, 32, false, false)
    };
    /* Indices of params in the order of memory, by groups, and where each begins. */
    static const int32_t order[] = { 0, 2, 4, 1, 3, 6, 5 };
    static const int64_t offsets[] = { 0, 2048, 3072, 3200, 3328, 0, 1024 };
    static const int64_t drawn[] = { 0, 2176, 3328, 2048, 3200, 128, 0 }; /* the places without `laid_late` */
    dsc_module module = { .params = params, .param_count = 7 };
    dsc_model model = { .modules = &module, .module_count = 1 };
    dsc_alloc *alloc = NULL;
    dsc_layout layout;
    dsc_error err = DSC_ERROR_INIT;
    assert_int_equal(dsc_alloc_open(&alloc, &err), DSC_OK);
    assert_int_equal(
        dsc_layout_open(alloc, &model,
                        &(dsc_layout_rules) { .recipe = DSC_RECIPE_ADAMW, .moment_dtype = DSC_F32, .world_size = 2 },
                        &layout, &err),
        DSC_OK);
    assert_int_equal(layout.tensor_count, 7);
    assert_int_equal(layout.group_count, 2);
    for (int i = 0; i < 7; i++) {
        const dsc_layout_tensor *tensor = &layout.tensor[i];
        assert_string_equal(tensor->spec->name, params[order[i]].name);
        assert_int_equal(tensor->param, order[i]);
        assert_int_equal(tensor->offset, offsets[i]);
        assert_int_equal(tensor->drawn, drawn[i]);
        assert_int_equal(layout.param[order[i]].tensor, i);
        assert_int_equal(tensor->number, order[i]); /* as if none was laid late */
    }
    dsc_layout_close(&layout);
    dsc_alloc_close(&alloc);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(late_tensors_lie_behind_the_others) };
    return cmocka_run_group_tests_name("layout", tests, NULL, NULL);
}
