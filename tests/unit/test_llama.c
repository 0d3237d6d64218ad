/* test_llama.c - losses and gradients of Llama, Mistral, Qwen2 and Qwen3 against PyTorch's in double, and against
 * themselves.
 *
 * The golden files and configs come from tests/golden/make_llama.py. tests/support/lmrun.h is what every family is held
 * against. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "models/llama.h"
#include "tests/support/lmrun.h"

/* As make_llama.py; attention: H * D. */
static const struct golden_case {
    const char *name;
    int64_t batch, sequence, layers, attention;
    bool whole;
} cases[] = {
    { "llama_tiny", 3, 7, 1, 12, true },      { "llama_llama3", 2, 40, 2, 60, false },
    { "llama_biased", 3, 33, 2, 60, false },  { "llama_yarn", 2, 70, 1, 56, false },
    { "llama_mistral", 2, 40, 2, 64, false }, { "llama_qwen2", 2, 33, 2, 60, false },
    { "llama_qwen3", 2, 33, 2, 108, false },
};

static dsc_model *open_case(const struct golden_case *c, int64_t vocab_multiple)
{
    char path[128];
    dsc_model *model = NULL;
    dsc_error err = DSC_ERROR_INIT;
    dsc_model_options options = DSC_MODEL_OPTIONS_INIT;
    options.seq_length = c->sequence;
    options.vocab_multiple = vocab_multiple;
    snprintf(path, sizeof path, "tests/golden/%s.json", c->name);
    if (dsc_model_open(&model, path, &options, &err) != DSC_OK)
        fail_msg("%s: %s", path, err.message);
    assert_int_equal(dsc_model_check(model, &err), DSC_OK);
    return model;
}

static void agrees_with_pytorch(void **state)
{
    for (uint32_t caps = 0; caps <= dsc_cpu_caps(); caps = 2 * caps + 1) /* every level of the instruction set */
        for (size_t i = 0; i < DSC_COUNT(cases); i++) {
            dsc_model *model = open_case(&cases[i], 1);
            modelrun_options options = lmrun_plain;
            options.caps = caps;
            options.batch = cases[i].batch;
            lmrun_against_golden(cases[i].name, model, &options, cases[i].whole, (lmrun_bounds){ 1e-6, 1e-5 });
            /* 8 bits of mantissa: half a percent a rounding, some ten of them in a row. */
            options.dtype = DSC_BF16;
            lmrun_against_golden(cases[i].name, model, &options, cases[i].whole, (lmrun_bounds){ 3e-3, 0.12 });
            dsc_model_close(&model);
        }
}

static void keeps_its_bits(void **state)
{
    static const int with[] = { 1, 2, 6 }; /* grouped heads, every bias, norms of heads */
    for (size_t i = 0; i < DSC_COUNT(with); i++) {
        dsc_model *model = open_case(&cases[with[i]], 1);
        lmrun_keeps_its_bits(model, DSC_F32);
        lmrun_keeps_its_bits(model, DSC_BF16);
        dsc_model_close(&model);
    }
}

static void runs_as_planned(void **state)
{
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        const double tokens = (double)cases[i].sequence;
        dsc_model *model = open_case(&cases[i], 1);
        lmrun_runs_as_planned(model,
                              (double)cases[i].layers * 2 * tokens * (tokens + 1) * (double)cases[i].attention);
        dsc_model_close(&model);
    }
}

static void gradient_is_the_slope(void **state)
{
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        dsc_model *model = open_case(&cases[i], 64); /* with padding */
        lmrun_gradient_is_the_slope(model);
        dsc_model_close(&model);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_pytorch),
        cmocka_unit_test(keeps_its_bits),
        cmocka_unit_test(runs_as_planned),
        cmocka_unit_test(gradient_is_the_slope),
    };
    return cmocka_run_group_tests_name("llama", tests, NULL, NULL);
}
