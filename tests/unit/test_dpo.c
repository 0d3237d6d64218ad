/* test_dpo.c - losses and gradients of preference pairs against PyTorch's in double.
 *
 * They agree on every level of the instruction set, and with logits in chunks.
 * The golden files come from tests/golden/make_dpo.py. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "kernels/preference.h"
#include "tests/support/lmrun.h"

enum { BATCH = 4, TOKENS = 9, ITEMS = BATCH * TOKENS };

typedef struct dpo_case {
    const char *name;
    dsc_preference preference;
} dpo_case;

static const dpo_case cases[] = { { "dpo_llama", { 0.1, 0 } }, { "dpo_llama_smooth", { 0.7, 0.2 } } };

static dsc_status open_with(dsc_preference preference, bool documents, dsc_model **out, dsc_error *err)
{
    dsc_model_options options = DSC_MODEL_OPTIONS_INIT;
    options.seq_length = TOKENS;
    options.preference = preference;
    options.documents = documents;
    return dsc_model_open(out, "tests/golden/llama_tiny.json", &options, err);
}

static dsc_model *open_model(dsc_preference preference)
{
    dsc_model *model = NULL;
    dsc_error err = DSC_ERROR_INIT;
    if (open_with(preference, false, &model, &err) != DSC_OK)
        fail_msg("%s", err.message);
    return model;
}

/* A run with the generator's weights, tokens, masked targets and reference. */
static modelrun *open_run(const dsc_model *model, const dsc_safetensors *golden, const modelrun_options *options,
                          double reference[BATCH])
{
    int32_t tokens[ITEMS], targets[ITEMS];
    float counted[ITEMS], single[BATCH];
    modelrun *run = lmrun_open(model, options);
    assert_int_equal(lmrun_read_golden(golden, "counted", "", counted, ITEMS), ITEMS);
    assert_int_equal(lmrun_read_golden(golden, "reference", "", single, BATCH), BATCH);
    for (int i = 0; i < BATCH; i++)
        reference[i] = (double)single[i];
    for (int i = 0; i < ITEMS; i++) {
        tokens[i] = (int32_t)(lmrun_mixed(lmrun_fnv("tokens"), (uint64_t)i) % (uint32_t)model->vocab_size);
        targets[i] = (int32_t)(lmrun_mixed(lmrun_fnv("tokens"), (uint64_t)(ITEMS + i)) % (uint32_t)model->vocab_size);
        targets[i] = counted[i] > 0 ? targets[i] : -1;
    }
    modelrun_set_tokens(run, tokens, targets);
    modelrun_set_reference(run, reference);
    return run;
}

/* The mean loss of the pairs, of the items' losses. */
static double pair_loss(const modelrun *run, const dsc_preference *p, const double *reference)
{
    double sum = 0;
    for (int i = 0; i < BATCH; i += 2) {
        const float *losses = modelrun_losses(run) + i * TOKENS;
        const double chosen = -dsc_preference_sum(losses, TOKENS) - reference[i];
        const double rejected = -dsc_preference_sum(losses + TOKENS, TOKENS) - reference[i + 1];
        sum += dsc_preference_loss(p->beta, p->smoothing, chosen - rejected);
    }
    return sum / (BATCH / 2);
}

/* The largest error of an element, in units of the root mean square of all gradients. */
static double gradient_error(const modelrun *run, const dsc_model *model, const dsc_safetensors *golden)
{
    static float want[8192];
    double worst = 0, squares = 0, elements = 0;
    for (int32_t m = 0; m < model->module_count; m++)
        for (int32_t p = 0; p < model->modules[m].param_count; p++) {
            const dsc_param_spec *spec = &model->modules[m].params[p];
            static double grad[8192];
            if (spec->shared_module >= 0)
                continue;
            const int64_t count = lmrun_read_golden(golden, "grad.", spec->name, want, 8192);
            assert_int_equal(count, modelrun_elements(spec));
            lmrun_whole_grad(run, model, m, p, grad);
            for (int64_t i = 0; i < count; i++) {
                assert_false(isnan(grad[i]));
                worst = fmax(worst, fabs(grad[i] - (double)want[i]));
                squares += (double)want[i] * (double)want[i];
            }
            elements += (double)count;
        }
    assert_true(squares > 0);
    return worst / sqrt(squares / elements);
}

static void agrees(const dpo_case *c, const modelrun_options *options, double loss_most, double grad_most)
{
    dsc_alloc *alloc = NULL;
    double reference[BATCH];
    float loss = 0;
    assert_int_equal(dsc_alloc_open(&alloc, NULL), DSC_OK);
    dsc_safetensors *golden = lmrun_open_golden(alloc, c->name);
    dsc_model *model = open_model(c->preference);
    modelrun *run = open_run(model, golden, options, reference);
    modelrun_step(run);
    lmrun_read_golden(golden, "loss", "", &loss, 1);
    const double off = fabs(pair_loss(run, &c->preference, reference) / (double)loss - 1);
    const double grad = gradient_error(run, model, golden);
    printf("# %-16s %s caps %x chunks of %lld bytes: loss off by %.1e, gradients by %.1e rms\n", c->name,
           options->dtype == DSC_F32 ? "fp32" : "bf16", options->caps & dsc_cpu_caps(), (long long)options->chunk_bytes,
           off, grad);
    assert_true(off <= loss_most);
    assert_true(grad <= grad_most);
    modelrun_close(run);
    dsc_model_close(&model);
    dsc_safetensors_close(&golden);
    dsc_alloc_close(&alloc);
}

static void agrees_with_pytorch(void **state)
{
    (void)state;
    for (size_t i = 0; i < DSC_COUNT(cases); i++)
        for (uint32_t caps = 0;; caps = 2 * caps + 1) {
            modelrun_options options = lmrun_plain;
            options.batch = BATCH;
            options.caps = caps;
            agrees(&cases[i], &options, 1e-5, 1e-5);
            options.dtype = DSC_BF16;
            agrees(&cases[i], &options, 0.01, 0.12);
            if (caps >= dsc_cpu_caps())
                break;
        }
}

static void chunks_of_logits_keep_the_result(void **state)
{
    (void)state;
    modelrun_options options = lmrun_plain;
    double reference[64] = { 0 };
    dsc_model *model = open_model(cases[1].preference);
    modelrun *runs[2];
    options.batch = 64; /* 576 rows: 9 chunks */
    for (int i = 0; i < 2; i++) {
        options.chunk_bytes = i == 0 ? 0 : 64;
        runs[i] = lmrun_open(model, &options);
        for (int s = 0; s < 64; s++)
            reference[s] = -28 + s % 5;
        modelrun_set_reference(runs[i], reference);
        modelrun_step(runs[i]);
    }
    assert_memory_equal(modelrun_losses(runs[0]), modelrun_losses(runs[1]), 64 * TOKENS * sizeof(float));
    assert_true(modelrun_planned(runs[1])->count > modelrun_planned(runs[0])->count);
    for (int32_t p = 0; p < model->modules[1].param_count; p++) { /* a block sees the rows' gradients alone */
        const int64_t bytes = modelrun_elements(&model->modules[1].params[p]) * 4;
        assert_memory_equal(modelrun_grad(runs[0], 1, p), modelrun_grad(runs[1], 1, p), (size_t)bytes);
    }
    for (int i = 0; i < 2; i++)
        modelrun_close(runs[i]);
    dsc_model_close(&model);
}

static void expect_refused(dsc_preference preference, bool documents, const char *text)
{
    dsc_model *model = NULL;
    dsc_error err = DSC_ERROR_INIT;
    assert_true(open_with(preference, documents, &model, &err) != DSC_OK);
    if (strstr(err.message, text) == NULL)
        fail_msg("%s", err.message);
}

static void refuses_what_no_preference_is(void **state)
{
    (void)state;
    expect_refused((dsc_preference) { -0.1, 0 }, false, "expected a beta above 0");
    expect_refused((dsc_preference) { (double)NAN, 0 }, false, "expected a beta above 0");
    expect_refused((dsc_preference) { 0.1, 0.5 }, false, "smoothing from 0 to less than 0.5");
    expect_refused((dsc_preference) { 0.1, 0 }, true, "leave out dsc.document_end");
}

static void refuses_half_a_pair(void **state)
{
    (void)state;
    dsc_error err = DSC_ERROR_INIT;
    dsc_module_plan plan;
    dsc_model *model = open_model(cases[0].preference);
    const dsc_module *head = &model->modules[model->module_count - 1];
    assert_int_equal(head->plan(head, 4, DSC_F32, NULL, &plan, &err), DSC_OK);
    assert_int_equal(head->plan(head, 3, DSC_F32, NULL, &plan, &err), DSC_ERR_CONFIG);
    assert_non_null(strstr(err.message, "a pair is two of them"));
    dsc_model_close(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_pytorch),
        cmocka_unit_test(chunks_of_logits_keep_the_result),
        cmocka_unit_test(refuses_what_no_preference_is),
        cmocka_unit_test(refuses_half_a_pair),
    };
    return cmocka_run_group_tests_name("dpo", tests, NULL, NULL);
}
