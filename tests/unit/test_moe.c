/* test_moe.c - losses and gradients of mixtures of experts against transformers' in double, and against themselves.
 *
 * The golden files and configs come from tests/golden/make_hf.py. tests/support/lmrun.h is what every family is held
 * against. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "base/base.h"
#include "tests/support/lmrun.h"

/* As make_hf.py; attention: H * D. A layer without experts, a gated shared expert, weights of a sum of 1 or less. */
static const lmrun_case cases[] = {
    { "hf_qwen3_moe", 2, 12, 2, 48, false, 0, NULL },
    { "hf_qwen2_moe", 3, 9, 1, 24, true, 0, NULL },
    { "hf_mixtral", 2, 10, 2, 24, false, 0, NULL },
    { "hf_olmoe", 3, 7, 1, 24, false, 0, NULL },
    { "hf_moe_all", 3, 7, 1, 24, false, 0, NULL },
    { "hf_gpt_oss", 2, 10, 2, 24, false, 0, NULL },
    /* Many gates and ups are near the clamp, and one that bf16 rounds over it loses its gradient. */
    { "hf_gpt_oss_clamped", 2, 10, 2, 24, false, 0.6, NULL },
    { "hf_deepseek_v3", 2, 12, 2, 40, false, 0, NULL },
    { "hf_deepseek_v2", 3, 9, 2, 28, false, 0, NULL },
};

static void agrees_with_transformers(void **state) { lmrun_cases_agree(cases, DSC_COUNT(cases)); }

static void keeps_its_bits(void **state) { lmrun_cases_keep_their_bits(cases, DSC_COUNT(cases)); }

static void runs_as_planned(void **state) { lmrun_cases_run_as_planned(cases, DSC_COUNT(cases)); }

/* Every token goes to all experts: with fewer, a step along a direction can change the experts, and the loss jumps. */
static void gradient_is_the_slope(void **state)
{
    static const lmrun_case all = { "hf_moe_all", 3, 7, 1, 24, false, 0, NULL };
    lmrun_cases_have_slopes(&all, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_transformers),
        cmocka_unit_test(keeps_its_bits),
        cmocka_unit_test(runs_as_planned),
        cmocka_unit_test(gradient_is_the_slope),
    };
    return cmocka_run_group_tests_name("moe", tests, NULL, NULL);
}
