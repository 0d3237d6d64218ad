/* test_dense.c - logits, losses and gradients of GPT-NeoX, OPT and BERT against transformers' in double, and against
 * themselves.
 *
 * The golden files and configs come from tests/golden/make_hf.py. GPT-2, of the same block, is in test_gpt2.c.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "base/base.h"
#include "tests/support/lmrun.h"

/* As make_hf.py; attention: C. */
static const lmrun_case cases[] = {
    { "hf_neox", 2, 33, 2, 48, false, 0, NULL },
    { "hf_neox_serial", 3, 7, 1, 24, true, 0, NULL },
    { "hf_opt_post", 3, 7, 2, 24, false, 0.2, NULL }, /* two more norms in the way of a query's bias */
    { "hf_opt_gelu", 3, 7, 1, 16, true, 0, NULL },
    { "hf_bert_new", 3, 9, 1, 24, true, 0, NULL },
    /* No slopes of the last ones. Here the token of padding is an input, whose row gets less than its slope. */
    { "hf_bert", 2, 33, 2, 48, false, 0, NULL },
    /* ReLU: finite differences are invalid at its corners. In bf16 some numbers near a corner fall on the other side,
     * and each changes a sum by one token's share. */
    { "hf_opt", 2, 33, 2, 60, false, 0.5, NULL },
};

static void agrees_with_transformers(void **state) { lmrun_cases_agree(cases, DSC_COUNT(cases)); }
/* Both orders of attention and MLP, norms of the sums; and masked. */
static void keeps_its_bits(void **state)
{
    lmrun_cases_keep_their_bits(cases, 3);
    lmrun_cases_keep_their_bits(&cases[4], 1);
}
static void runs_as_planned(void **state) { lmrun_cases_run_as_planned(cases, DSC_COUNT(cases)); }
static void gradient_is_the_slope(void **state) { lmrun_cases_have_slopes(cases, DSC_COUNT(cases) - 2); }

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_transformers),
        cmocka_unit_test(keeps_its_bits),
        cmocka_unit_test(runs_as_planned),
        cmocka_unit_test(gradient_is_the_slope),
    };
    return cmocka_run_group_tests_name("dense", tests, NULL, NULL);
}
