/* test_llama.c - losses and gradients of Llama, Mistral, Qwen2 and Qwen3 against PyTorch's in double, and against
 * themselves.
 *
 * The golden files and configs come from tests/golden/make_llama.py. tests/support/lmrun.h is what every family is held
 * against. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "base/base.h"
#include "models/decoder.h"
#include "tests/support/lmrun.h"

/* As make_llama.py; attention: H * D. */
static const lmrun_case cases[] = {
    { "llama_tiny", 3, 7, 1, 12, true, 0, NULL },      { "llama_llama3", 2, 40, 2, 60, false, 0, NULL },
    { "llama_biased", 3, 33, 2, 60, false, 0, NULL },  { "llama_yarn", 2, 70, 1, 56, false, 0, NULL },
    { "llama_mistral", 2, 40, 2, 64, false, 0, NULL }, { "llama_qwen2", 2, 33, 2, 60, false, 0, NULL },
    { "llama_qwen3", 2, 33, 2, 108, false, 0, NULL }, { "hf_yarn", 2, 40, 1, 32, false, 0, NULL }, /* by make_hf.py */
    { "hf_longrope", 2, 33, 1, 32, false, 0, NULL },  { "hf_longrope_short", 2, 24, 1, 32, false, 0, NULL },
    { "hf_proportional", 2, 24, 1, 32, false, 0, NULL }, { "hf_windows", 2, 24, 3, 24, false, 0, NULL },
    { "hf_windows_last", 2, 17, 2, 16, false, 0, NULL },
};

static void agrees_with_pytorch(void **state) { lmrun_cases_agree(cases, DSC_COUNT(cases)); }

static void keeps_its_bits(void **state)
{
    static const int with[] = { 1, 2, 6 }; /* grouped heads, every bias, norms of heads */
    for (size_t i = 0; i < DSC_COUNT(with); i++)
        lmrun_cases_keep_their_bits(&cases[with[i]], 1);
}

static void runs_as_planned(void **state) { lmrun_cases_run_as_planned(cases, DSC_COUNT(cases)); }

static void a_frozen_layer_leaves_the_others_their_bits(void **state) { lmrun_cases_freeze_a_layer(&cases[1], 1); }

static void gradient_is_the_slope(void **state) { lmrun_cases_have_slopes(cases, DSC_COUNT(cases)); }

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_pytorch),   cmocka_unit_test(keeps_its_bits),
        cmocka_unit_test(runs_as_planned),       cmocka_unit_test(a_frozen_layer_leaves_the_others_their_bits),
        cmocka_unit_test(gradient_is_the_slope),
    };
    return cmocka_run_group_tests_name("llama", tests, NULL, NULL);
}
