/* test_family_ranks.c - models of every family but GPT-2, trained by ranks as threads. The bits are equal at every
 * stage and world size, with overlap and recomputation, and the memory is the planned one.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/base.h"
#include "tests/support/tiny_gpt.h"
#include "tests/support/tiny_models.h"
#include "tests/support/tiny_run.h"

static void stages_give_the_same_bits(void **state)
{
    for (size_t i = 0; i < DSC_COUNT(tiny_models); i++) {
        dsc_model *model = tiny_model_open(tiny_models[i].config, tiny_models[i].lora);
        for (int32_t world = 1; world <= 4; world++)
            tiny_stages_agree(model, "cpu", world, (world + (int32_t)i) % 2 == 0);
        dsc_model_close(&model);
    }
}

static void world_sizes_agree_when_asked(void **state)
{
    static const char any_world[] = ", \"reproducible\": \"world_size\"";
    for (size_t i = 0; i < DSC_COUNT(tiny_models); i++) {
        dsc_model *model = tiny_model_open(tiny_models[i].config, tiny_models[i].lora);
        run_result first, other;
        tiny_run(model, &(tiny_variant){ "cpu", 1, 0, 4, i % 2 == 0, false, DSC_RECOMPUTE_NONE, any_world },
                 &(run_options){ 0 }, &first);
        for (int32_t world = 2; world <= 4; world += 2) {
            const dsc_recompute again = world == 2 ? DSC_RECOMPUTE_SELECTIVE : DSC_RECOMPUTE_FULL;
            tiny_run(model, &(tiny_variant){ "cpu", world, world - 1, 4 / world, i % 2 == 0, true, again, any_world },
                     &(run_options){ 0 }, &other);
            run_expect_same(&first, &other);
        }
        dsc_model_close(&model);
    }
}

static void memory_is_the_plans(void **state)
{
    for (size_t i = 0; i < DSC_COUNT(tiny_models); i++) {
        dsc_model *model = tiny_model_open(tiny_models[i].config, tiny_models[i].lora);
        for (int32_t stage = 0; stage <= 3; stage++) {
            run_result r;
            const dsc_recompute again = (dsc_recompute)stage; /* each level once */
            tiny_run(model, &(tiny_variant){ "cpu", 2, stage, 2, stage % 2 == 0, stage > 1, again, NULL },
                     &(run_options){ 0 }, &r);
            if (r.tracked_peak > r.planned || r.tracked_peak * 100 < r.planned * 99)
                print_error("%s, stage %d: tracked %lld of %lld planned\n", tiny_models[i].name, (int)stage,
                            (long long)r.tracked_peak, (long long)r.planned);
            assert_true(r.tracked_peak <= r.planned);
            assert_true(r.tracked_peak * 100 >= r.planned * 99);
            assert_int_equal(r.alloc_calls_after_first, r.alloc_calls_at_end);
        }
        dsc_model_close(&model);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_give_the_same_bits),
        cmocka_unit_test(world_sizes_agree_when_asked),
        cmocka_unit_test(memory_is_the_plans),
    };
    return cmocka_run_group_tests_name("family ranks", tests, NULL, NULL);
}
