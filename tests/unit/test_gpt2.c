/* test_gpt2.c - GPT-2's losses and gradients against PyTorch's in double, and against themselves.
 *
 * The golden files and their weights come from tests/golden/make_gpt2.py. tests/support/lmrun.h is what every
 * family is held against. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/dense.h"
#include "tests/support/lmrun.h"

static const dsc_dense_config tiny = { .lm.layers = 1, .heads = 2, .lm.channels = 12, .inner = 48, .lm.positions = 9,
                                      .lm.sequence = 7, .lm.vocab = 23, .lm.vocab_rows = 23, .lm.norm_eps = 1e-5,
                                      .lm.init_std = 0.02, .traits = &dsc_gpt2_traits, .attention_bias = true,
                                      .scale_attention = true, .lm.tied = true };
static const dsc_dense_config tied = { .lm.layers = 2, .heads = 3, .lm.channels = 60, .inner = 240, .lm.positions = 40,
                                      .lm.sequence = 40, .lm.vocab = 311, .lm.vocab_rows = 311, .lm.norm_eps = 1e-5,
                                      .lm.init_std = 0.02, .traits = &dsc_gpt2_traits, .attention_bias = true,
                                      .scale_attention = true, .lm.tied = true };
static const dsc_dense_config untied = { .lm.layers = 3, .heads = 4, .lm.channels = 60, .inner = 100,
                                        .lm.positions = 48,
                                        .lm.sequence = 33, .lm.vocab = 311, .lm.vocab_rows = 311, .lm.norm_eps = 1e-3,
                                        .lm.init_std = 0.02, .traits = &dsc_gpt2_traits, .attention_bias = true,
                                      .scale_attention = true,
                                        .scale_attention_by_layer = true };

static dsc_model *open_model(const dsc_dense_config *config)
{
    return lmrun_open_model(&dsc_gpt2_family, &config->lm);
}

/* ---- Against PyTorch --------------------------------------------------------------------------------------------- */

static void golden(const char *name, const modelrun_options *options, bool whole, lmrun_bounds most)
{
    static const struct { const char *name; const dsc_dense_config *config; } all[] = { { "gpt2_tiny", &tiny },
                                                                                       { "gpt2_tied", &tied },
                                                                                       { "gpt2_untied", &untied } };
    for (size_t i = 0; i < DSC_COUNT(all); i++) {
        if (strcmp(all[i].name, name) != 0)
            continue;
        dsc_model *model = open_model(all[i].config);
        lmrun_against_golden(name, model, options, whole, most);
        dsc_model_close(&model);
    }
}

static void agrees_with_pytorch(void **state)
{
    for (uint32_t caps = 0; caps <= dsc_cpu_caps(); caps = 2 * caps + 1) { /* every level of the instruction set */
        modelrun_options options = lmrun_plain;
        options.caps = caps;
        options.batch = 3;
        golden("gpt2_tiny", &options, true, (lmrun_bounds){ 1e-6, 1e-5 });
        options.batch = 2;
        golden("gpt2_tied", &options, false, (lmrun_bounds){ 1e-6, 1e-5 });
        options.batch = 3;
        golden("gpt2_untied", &options, false, (lmrun_bounds){ 1e-6, 1e-5 });
        /* 8 bits of mantissa: half a percent a rounding, some ten of them in a row. */
        options.dtype = DSC_BF16;
        golden("gpt2_untied", &options, false, (lmrun_bounds){ 2e-3, 0.12 });
        options.batch = 2;
        golden("gpt2_tied", &options, false, (lmrun_bounds){ 2e-3, 0.12 });
    }
}

static void trains_a_folder(void **state)
{
    float losses[32];
    dsc_alloc *alloc = NULL;
    dsc_model *model = NULL;
    dsc_error err = DSC_ERROR_INIT;
    assert_int_equal(dsc_alloc_open(&alloc, NULL), DSC_OK);
    dsc_safetensors *golden = lmrun_open_golden(alloc, "gpt2_folder_loss");
    const int64_t items = lmrun_read_golden(golden, "losses", "", losses, 32);
    if (dsc_model_open(&model, "tests/golden/gpt2_folder", NULL, &err) != DSC_OK)
        fail_msg("%s", err.message);
    modelrun *run = modelrun_open(model, &lmrun_plain);
    for (int32_t m = 0; m < model->module_count; m++) {
        for (int32_t p = 0; p < model->modules[m].param_count; p++) {
            const int64_t count = modelrun_elements(&model->modules[m].params[p]);
            float *x = malloc((size_t)count * sizeof *x);
            bool found = false;
            assert_non_null(x);
            assert_int_equal(model->load_param(model, m, p, 0, count, x, &found, &err), DSC_OK);
            assert_true(found);
            if (model->modules[m].params[p].shared_module < 0)
                modelrun_set_param(run, m, p, x);
            free(x);
        }
    }
    lmrun_set_tokens(run, model, items);
    modelrun_evaluate(run);
    for (int64_t i = 0; i < items; i++)
        assert_true(fabsf(modelrun_losses(run)[i] - losses[i]) < 1e-5f);
    modelrun_close(run);
    dsc_model_close(&model);
    dsc_safetensors_close(&golden);
    dsc_alloc_close(&alloc);
}

/* ---- Against itself ---------------------------------------------------------------------------------------------- */

static void keeps_its_bits(void **state)
{
    const dsc_dense_config *configs[] = { &tied, &untied };
    for (size_t c = 0; c < 2; c++) {
        dsc_model *model = open_model(configs[c]);
        lmrun_keeps_its_bits(model, DSC_F32);
        lmrun_keeps_its_bits(model, DSC_BF16);
        dsc_model_close(&model);
    }
}

static void runs_as_planned(void **state)
{
    dsc_dense_config large = tiny;
    large.lm.vocab = 50001, large.lm.vocab_rows = 50048, large.lm.sequence = 170, large.lm.positions = 170;
    const dsc_dense_config *configs[] = { &tied, &untied, &large };
    for (size_t c = 0; c < DSC_COUNT(configs); c++) {
        const dsc_lm_config *lm = &configs[c]->lm;
        dsc_model *model = open_model(configs[c]);
        lmrun_runs_as_planned(model, (double)lm->layers * 2 * (double)lm->sequence * (double)(lm->sequence + 1) *
                                         (double)lm->channels);
        dsc_model_close(&model);
    }
}

static void gradient_is_the_slope(void **state)
{
    dsc_dense_config config = tied;
    config.lm.vocab_rows = 320;
    dsc_model *model = open_model(&config);
    lmrun_gradient_is_the_slope(model);
    dsc_model_close(&model);
}

/* Padding columns are outside the softmax: same losses, same gradients, and exactly none for the padding. */
static void padding_changes_nothing(void **state)
{
    dsc_dense_config padded = untied;
    padded.lm.vocab_rows = 384;
    dsc_model *models[2] = { open_model(&untied), open_model(&padded) };
    modelrun *runs[2];
    double loss[2];
    for (int i = 0; i < 2; i++) {
        runs[i] = lmrun_open(models[i], &lmrun_plain);
        loss[i] = modelrun_step(runs[i]);
    }
    assert_true(fabs(loss[0] - loss[1]) < 1e-6);
    for (int32_t m = 0; m < models[0]->module_count; m++) {
        for (int32_t p = 0; p < models[0]->modules[m].param_count; p++) {
            const int64_t count = modelrun_elements(&models[0]->modules[m].params[p]);
            const int64_t padded_count = modelrun_elements(&models[1]->modules[m].params[p]);
            const float *a = modelrun_grad(runs[0], m, p), *b = modelrun_grad(runs[1], m, p);
            double error = 0, norm = 0;
            for (int64_t i = 0; i < count; i++) {
                error += (double)(a[i] - b[i]) * (double)(a[i] - b[i]);
                norm += (double)a[i] * (double)a[i];
            }
            assert_true(sqrt(error) <= 1e-5 * sqrt(norm));
            for (int64_t i = count; i < padded_count; i++)
                assert_true(b[i] == 0);
        }
    }
    for (int i = 0; i < 2; i++) {
        modelrun_close(runs[i]);
        dsc_model_close(&models[i]);
    }
}

/* A vocabulary that needs chunks: the gradient is the mean of single samples' gradients, which need none. */
static void chunks_change_nothing(void **state)
{
    dsc_dense_config config = tiny;
    config.lm.vocab = 40009, config.lm.vocab_rows = 40009, config.lm.sequence = 200, config.lm.positions = 200;
    config.lm.tied = false;
    dsc_model *model = open_model(&config);
    modelrun_options options = lmrun_plain;
    options.batch = 3; /* 600 rows of 160 KB: 320 and 280 */
    options.loss_scale = 4;
    modelrun *whole = lmrun_open(model, &options);
    modelrun_step(whole);
    const int32_t last = model->module_count - 1;
    const int64_t count = config.lm.vocab * config.lm.channels;
    double *sum = calloc((size_t)count, sizeof *sum);
    int32_t *tokens = malloc(1200 * sizeof *tokens);
    assert_non_null(sum);
    assert_non_null(tokens);
    for (int64_t i = 0; i < 1200; i++)
        tokens[i] = (int32_t)(lmrun_mixed(lmrun_fnv("tokens"), (uint64_t)i) % 40009u);
    options.batch = 1;
    modelrun *one = lmrun_open(model, &options);
    const int32_t table = model->modules[last].param_count - 1;
    for (int64_t s = 0; s < 3; s++) {
        modelrun_set_tokens(one, tokens + 200 * s, tokens + 600 + 200 * s);
        modelrun_step(one);
        for (int64_t i = 0; i < 200; i++)
            assert_true(fabsf(modelrun_losses(one)[i] - modelrun_losses(whole)[200 * s + i]) < 1e-5f);
        for (int64_t i = 0; i < count; i++)
            sum[i] += (double)modelrun_grad(one, last, table)[i] / 3;
    }
    double error = 0, norm = 0;
    for (int64_t i = 0; i < count; i++) {
        const double x = (double)modelrun_grad(whole, last, table)[i];
        error += (x - sum[i]) * (x - sum[i]);
        norm += x * x;
    }
    assert_true(norm > 0);
    assert_true(sqrt(error / norm) < 1e-5);
    free(sum);
    free(tokens);
    modelrun_close(one);
    modelrun_close(whole);
    dsc_model_close(&model);
}

/* Chunks of 64 rows where the limit is lower than the micro-batch's logits. They take the planned memory, and differ
 * from one chunk in the roundings of the table's gradient only. */
static void a_given_limit_makes_chunks(void **state)
{
    static const int64_t limits[] = { 0, 90 * 320 * 4, 1 };
    dsc_model *model = open_model(&untied);
    modelrun_options options = lmrun_plain;
    options.batch = 5; /* 165 rows: 64, 64 and 37 */
    modelrun *runs[DSC_COUNT(limits)];
    double loss[DSC_COUNT(limits)];
    for (size_t i = 0; i < DSC_COUNT(limits); i++) {
        options.chunk_bytes = limits[i];
        runs[i] = lmrun_open(model, &options);
        loss[i] = modelrun_step(runs[i]);
        assert_true(loss[i] == loss[0]);
        assert_true(modelrun_evaluate(runs[i]) == loss[0]);
        assert_int_equal(modelrun_launched(runs[i])->count, modelrun_planned(runs[i])->count - 1); /* but one row's */
    }
    assert_int_equal(modelrun_planned(runs[1])->count, modelrun_planned(runs[0])->count + 4); /* shapes of the rest */
    const int32_t last = model->module_count - 1, table = model->modules[last].param_count - 1;
    const float *whole = modelrun_grad(runs[0], last, table), *parts = modelrun_grad(runs[1], last, table);
    double error = 0, norm = 0;
    for (int64_t i = 0; i < 311 * 60; i++) {
        error += (double)(whole[i] - parts[i]) * (double)(whole[i] - parts[i]);
        norm += (double)whole[i] * (double)whole[i];
        assert_true(parts[i] == modelrun_grad(runs[2], last, table)[i]);
    }
    assert_true(norm > 0);
    assert_true(sqrt(error / norm) < 1e-6);
    assert_true(error > 0);
    for (size_t i = 0; i < DSC_COUNT(limits); i++)
        modelrun_close(runs[i]);
    dsc_model_close(&model);
}

/* The logits for generation are those that the losses were made of. */
static void logits_give_the_losses(void **state)
{
    const dsc_dense_config *configs[] = { &tied, &untied };
    for (size_t c = 0; c < 2; c++) {
        dsc_model *model = open_model(configs[c]);
        modelrun *run = lmrun_open(model, &lmrun_plain);
        const int64_t items = lmrun_plain.batch * model->losses_per_sample;
        float logits[311];
        modelrun_evaluate(run);
        for (int64_t row = 0; row < items; row += 13) {
            const int32_t target = (int32_t)(lmrun_mixed(lmrun_fnv("tokens"), (uint64_t)(items + row)) % 311u);
            double sum = 0;
            modelrun_logits(run, row, logits);
            for (int v = 0; v < 311; v++)
                sum += exp((double)logits[v]);
            assert_true(fabs(log(sum) - (double)logits[target] - (double)modelrun_losses(run)[row]) < 1e-5);
        }
        modelrun_close(run);
        dsc_model_close(&model);
    }
}

static void loss_scale_scales_gradients(void **state)
{
    dsc_model *model = open_model(&tied);
    modelrun_options options = lmrun_plain;
    modelrun *one = lmrun_open(model, &options);
    options.loss_scale = 1024; /* a power of two: exact */
    modelrun *scaled = lmrun_open(model, &options);
    assert_true(modelrun_step(one) == modelrun_step(scaled));
    for (int32_t m = 0; m < model->module_count; m++)
        for (int32_t p = 0; p < model->modules[m].param_count; p++)
            for (int64_t i = 0; i < modelrun_elements(&model->modules[m].params[p]); i++)
                assert_true(modelrun_grad(scaled, m, p)[i] == 1024 * modelrun_grad(one, m, p)[i]);
    modelrun_close(one);
    modelrun_close(scaled);
    dsc_model_close(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_pytorch),
        cmocka_unit_test(trains_a_folder),
        cmocka_unit_test(keeps_its_bits),
        cmocka_unit_test(runs_as_planned),
        cmocka_unit_test(padding_changes_nothing),
        cmocka_unit_test(chunks_change_nothing),
        cmocka_unit_test(a_given_limit_makes_chunks),
        cmocka_unit_test(gradient_is_the_slope),
        cmocka_unit_test(logits_give_the_losses),
        cmocka_unit_test(loss_scale_scales_gradients),
    };
    return cmocka_run_group_tests_name("gpt2", tests, NULL, NULL);
}
