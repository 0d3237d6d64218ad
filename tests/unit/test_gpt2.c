/* test_gpt2.c - GPT-2's losses and gradients against PyTorch's in double, and against themselves.
 *
 * The golden files and their weights come from tests/golden/make_gpt2.py. tests/support/modelrun.h runs the modules and
 * watches buffers and launches. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "base/safetensors.h"
#include "models/gpt2.h"
#include "tests/support/modelrun.h"

#define SAMPLES 48 /* as make_gpt2.py */

static const dsc_gpt2_config tiny = { .lm.layers = 1, .heads = 2, .lm.channels = 12, .inner = 48, .lm.positions = 9,
                                      .lm.sequence = 7, .lm.vocab = 23, .lm.vocab_rows = 23, .lm.norm_eps = 1e-5,
                                      .lm.init_std = 0.02, .scale_attention = true, .lm.tied = true };
static const dsc_gpt2_config tied = { .lm.layers = 2, .heads = 3, .lm.channels = 60, .inner = 240, .lm.positions = 40,
                                      .lm.sequence = 40, .lm.vocab = 311, .lm.vocab_rows = 311, .lm.norm_eps = 1e-5,
                                      .lm.init_std = 0.02, .scale_attention = true, .lm.tied = true };
static const dsc_gpt2_config untied = { .lm.layers = 3, .heads = 4, .lm.channels = 60, .inner = 100, .lm.positions = 48,
                                        .lm.sequence = 33, .lm.vocab = 311, .lm.vocab_rows = 311, .lm.norm_eps = 1e-3,
                                        .lm.init_std = 0.02, .scale_attention = true,
                                        .scale_attention_by_layer = true };

static const modelrun_options plain = {
    .batch = 2, .dtype = DSC_F32, .threads = 2, .caps = 0xffffffffu, .in_place = true, .loss_scale = 1
};

/* ---- The generator's integers ------------------------------------------------------------------------------------ */

static uint32_t fnv(const char *text)
{
    uint32_t h = 0x811C9DC5u;
    for (; *text != 0; text++)
        h = (h ^ (unsigned char)*text) * 0x01000193u;
    return h;
}

static uint32_t mixed(uint32_t seed, uint64_t index)
{
    uint32_t h = (uint32_t)(index * UINT64_C(2654435769) + seed);
    h = (h ^ (h >> 16)) * 0x85EBCA6Bu;
    h = (h ^ (h >> 13)) * 0xC2B2AE35u;
    return h ^ (h >> 16);
}

static float *values_of(const dsc_param_spec *spec)
{
    const int64_t count = modelrun_elements(spec);
    const size_t bytes = strlen(spec->name);
    const bool one = strstr(spec->name, ".ln_") != NULL && strcmp(spec->name + bytes - 6, "weight") == 0;
    float *x = malloc((size_t)count * sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < count; i++) {
        const float u = (float)(mixed(fnv(spec->name), (uint64_t)i) >> 8) * 0x1p-24f - 0.5f;
        x[i] = (one ? 1.0f : 0.0f) + u * 0.25f;
    }
    return x;
}

static void set_params(modelrun *run, const dsc_model *model)
{
    for (int32_t m = 0; m < model->module_count; m++) {
        for (int32_t p = 0; p < model->modules[m].param_count; p++) {
            if (model->modules[m].params[p].shared_module >= 0)
                continue;
            float *x = values_of(&model->modules[m].params[p]);
            modelrun_set_param(run, m, p, x);
            free(x);
        }
    }
}

static void set_tokens(modelrun *run, const dsc_model *model, int64_t items)
{
    int32_t *stream = malloc((size_t)items * 2 * sizeof *stream);
    assert_non_null(stream);
    for (int64_t i = 0; i < 2 * items; i++)
        stream[i] = (int32_t)(mixed(fnv("tokens"), (uint64_t)i) % (uint32_t)model->vocab_size);
    modelrun_set_tokens(run, stream, stream + items);
    free(stream);
}

/* ---- Helpers ----------------------------------------------------------------------------------------------------- */

static dsc_model *open_model(const dsc_gpt2_config *config)
{
    dsc_alloc *alloc = NULL;
    dsc_model *model = NULL;
    dsc_error err = DSC_ERROR_INIT;
    const dsc_lm_open_args args = { .family = &dsc_gpt2_family, .name = "test", .config = &config->lm };
    assert_int_equal(dsc_alloc_open(&alloc, &err), DSC_OK);
    if (dsc_lm_open(&model, alloc, &args, &err) != DSC_OK)
        fail_msg("%s", err.message);
    assert_int_equal(dsc_model_check(model, &err), DSC_OK);
    return model;
}

static modelrun *open_run(const dsc_model *model, const modelrun_options *options)
{
    modelrun *run = modelrun_open(model, options);
    set_params(run, model);
    set_tokens(run, model, options->batch * model->losses_per_sample);
    return run;
}

/* The gradient of a parameter: the sum over its uses. */
static void whole_grad(const modelrun *run, const dsc_model *model, int32_t module, int32_t param, double *out)
{
    const int64_t count = modelrun_elements(&model->modules[module].params[param]);
    for (int64_t i = 0; i < count; i++)
        out[i] = (double)modelrun_grad(run, module, param)[i];
    for (int32_t m = 0; m < model->module_count; m++)
        for (int32_t p = 0; p < model->modules[m].param_count; p++)
            if (model->modules[m].params[p].shared_module == module &&
                model->modules[m].params[p].shared_param == param)
                for (int64_t i = 0; i < count; i++)
                    out[i] += (double)modelrun_grad(run, m, p)[i];
}

static bool same_bits(const modelrun *a, const modelrun *b, const dsc_model *model, int64_t items)
{
    bool same = memcmp(modelrun_losses(a), modelrun_losses(b), (size_t)items * 4) == 0;
    for (int32_t m = 0; m < model->module_count; m++)
        for (int32_t p = 0; p < model->modules[m].param_count; p++)
            same = same && memcmp(modelrun_grad(a, m, p), modelrun_grad(b, m, p),
                                  (size_t)modelrun_elements(&model->modules[m].params[p]) * 4) == 0;
    return same;
}

/* ---- Against PyTorch --------------------------------------------------------------------------------------------- */

static dsc_safetensors *open_golden(dsc_alloc *alloc, const char *name)
{
    char path[128];
    dsc_safetensors *golden = NULL;
    dsc_error err = DSC_ERROR_INIT;
    snprintf(path, sizeof path, "tests/golden/gpt2_%s.safetensors", name);
    if (dsc_safetensors_open(&golden, NULL, alloc, path, &err) != DSC_OK)
        fail_msg("%s: %s", path, err.message);
    return golden;
}

static int64_t read_golden(const dsc_safetensors *golden, const char *prefix, const char *name, float *out,
                           int64_t room)
{
    char key[128];
    dsc_error err = DSC_ERROR_INIT;
    snprintf(key, sizeof key, "%s%s", prefix, name);
    const dsc_safetensors_entry *entry = dsc_safetensors_find(golden, key);
    if (entry == NULL)
        fail_msg("%s is not in the golden file", key);
    assert_true(entry->count <= room);
    assert_int_equal(dsc_safetensors_read_f32(golden, entry, 0, entry->count, out, &err), DSC_OK);
    return entry->count;
}

/* Errors are measured in units of the tensor's root mean square: single elements may cancel to nothing. */
static double worst_grad_error(const modelrun *run, const dsc_model *model, const dsc_safetensors *golden, bool whole)
{
    static float sample[8192];
    double worst = 0;
    for (int32_t m = 0; m < model->module_count; m++) {
        for (int32_t p = 0; p < model->modules[m].param_count; p++) {
            const dsc_param_spec *spec = &model->modules[m].params[p];
            if (spec->shared_module >= 0)
                continue;
            const int64_t count = modelrun_elements(spec);
            double *grad = malloc((size_t)count * sizeof *grad), sum = 0, error = 0;
            char seed[128];
            float norm = 0;
            assert_non_null(grad);
            whole_grad(run, model, m, p, grad);
            read_golden(golden, "norm.", spec->name, &norm, 1);
            const int64_t samples = read_golden(golden, "grad.", spec->name, sample, 8192);
            const double rms = (double)norm / sqrt((double)count);
            snprintf(seed, sizeof seed, "%s?", spec->name);
            for (int64_t i = 0; i < samples; i++) {
                const int64_t at = whole ? i : (int64_t)(mixed(fnv(seed), (uint64_t)i) % (uint64_t)count);
                error = fmax(error, fabs(grad[at] - (double)sample[i]) / rms);
                assert_false(isnan(grad[at]));
            }
            for (int64_t i = 0; i < count; i++)
                sum += grad[i] * grad[i];
            error = fmax(error, fabs(sqrt(sum) / (double)norm - 1));
            if (getenv("DSC_TEST_VERBOSE") != NULL)
                printf("# %-40s %.2e\n", spec->name, error);
            worst = fmax(worst, error);
            free(grad);
        }
    }
    return worst;
}

static void against_golden(const char *name, const dsc_gpt2_config *config, const modelrun_options *options, bool whole,
                           double loss_tolerance, double grad_tolerance)
{
    float losses[256];
    dsc_alloc *alloc = NULL;
    assert_int_equal(dsc_alloc_open(&alloc, NULL), DSC_OK);
    dsc_safetensors *golden = open_golden(alloc, name);
    dsc_model *model = open_model(config);
    modelrun *run = open_run(model, options);
    const double loss = modelrun_step(run);
    const int64_t items = read_golden(golden, "losses", "", losses, 256);
    assert_int_equal(items, options->batch * config->lm.sequence);
    double worst = 0, mean = 0;
    for (int64_t i = 0; i < items; i++) {
        worst = fmax(worst, fabs((double)modelrun_losses(run)[i] - (double)losses[i]));
        mean += (double)losses[i] / (double)items;
    }
    const double grad = worst_grad_error(run, model, golden, whole);
    printf("# %-7s %s caps %x: loss %.6f, worst loss error %.1e, worst gradient error %.1e rms\n", name,
           options->dtype == DSC_F32 ? "fp32" : "bf16", options->caps & dsc_cpu_caps(), loss, worst, grad);
    assert_true(fabs(loss - mean) <= loss_tolerance);
    assert_true(worst <= 10 * loss_tolerance);
    assert_true(grad <= grad_tolerance);
    modelrun_close(run);
    dsc_model_close(&model);
    dsc_safetensors_close(&golden);
    dsc_alloc_close(&alloc);
}

static void agrees_with_pytorch(void **state)
{
    for (uint32_t caps = 0; caps <= dsc_cpu_caps(); caps = 2 * caps + 1) { /* every level of the instruction set */
        modelrun_options options = plain;
        options.caps = caps;
        options.batch = 3;
        against_golden("tiny", &tiny, &options, true, 1e-6, 1e-5);
        options.batch = 2;
        against_golden("tied", &tied, &options, false, 1e-6, 1e-5);
        options.batch = 3;
        against_golden("untied", &untied, &options, false, 1e-6, 1e-5);
        /* 8 bits of mantissa: half a percent a rounding, some ten of them in a row. */
        options.dtype = DSC_BF16;
        against_golden("untied", &untied, &options, false, 2e-3, 0.12);
        options.batch = 2;
        against_golden("tied", &tied, &options, false, 2e-3, 0.12);
    }
}

static void trains_a_folder(void **state)
{
    float losses[32];
    dsc_alloc *alloc = NULL;
    dsc_model *model = NULL;
    dsc_error err = DSC_ERROR_INIT;
    assert_int_equal(dsc_alloc_open(&alloc, NULL), DSC_OK);
    dsc_safetensors *golden = open_golden(alloc, "folder_loss");
    const int64_t items = read_golden(golden, "losses", "", losses, 32);
    if (dsc_model_open(&model, "tests/golden/gpt2_folder", NULL, &err) != DSC_OK)
        fail_msg("%s", err.message);
    modelrun *run = modelrun_open(model, &plain);
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
    set_tokens(run, model, items);
    modelrun_evaluate(run);
    for (int64_t i = 0; i < items; i++)
        assert_true(fabsf(modelrun_losses(run)[i] - losses[i]) < 1e-5f);
    modelrun_close(run);
    dsc_model_close(&model);
    dsc_safetensors_close(&golden);
    dsc_alloc_close(&alloc);
}

/* ---- Against itself ---------------------------------------------------------------------------------------------- */

/* Threads, recomputation and where d_in lies must not change a bit; evaluation has the losses of training. */
static void keeps_its_bits(void **state)
{
    static const struct { int32_t threads; bool recompute, in_place; } ways[] = {
        { 1, false, true }, { 2, false, false }, { 3, false, true }, { 2, true, true }, { 3, true, false },
    };
    const dsc_gpt2_config *configs[] = { &tied, &untied };
    for (size_t c = 0; c < 2; c++) {
        for (int dtype = 0; dtype < 2; dtype++) {
            dsc_model *model = open_model(configs[c]);
            const int64_t items = plain.batch * model->losses_per_sample;
            modelrun *runs[DSC_COUNT(ways)];
            for (size_t i = 0; i < DSC_COUNT(ways); i++) {
                modelrun_options options = plain;
                options.dtype = dtype == 0 ? DSC_F32 : DSC_BF16;
                options.threads = ways[i].threads;
                options.recompute = ways[i].recompute;
                options.in_place = ways[i].in_place;
                runs[i] = open_run(model, &options);
                const double loss = modelrun_step(runs[i]);
                if (!same_bits(runs[i], runs[0], model, items))
                    fail_msg("way %zu has other bits than way 0", i);
                assert_true(modelrun_evaluate(runs[i]) == loss);
                assert_memory_equal(modelrun_losses(runs[i]), modelrun_losses(runs[0]), (size_t)items * 4);
            }
            for (size_t i = 0; i < DSC_COUNT(ways); i++)
                modelrun_close(runs[i]);
            dsc_model_close(&model);
        }
    }
}

/* The plan tells every product that runs and no other, and their work is the plan's. */
static void runs_as_planned(void **state)
{
    dsc_gpt2_config large = tiny;
    large.lm.vocab = 50001, large.lm.vocab_rows = 50048, large.lm.sequence = 170, large.lm.positions = 170;
    const dsc_gpt2_config *configs[] = { &tied, &untied, &large };
    for (size_t c = 0; c < DSC_COUNT(configs); c++) {
        modelrun_options options = plain;
        options.batch = 3;
        dsc_model *model = open_model(configs[c]);
        modelrun *run = open_run(model, &options);
        double planned = 0;
        for (int32_t m = 0; m < model->module_count; m++) {
            dsc_module_plan plan;
            assert_int_equal(model->modules[m].plan(&model->modules[m], 3, DSC_F32, NULL, &plan, NULL), DSC_OK);
            planned += plan.forward_flops + plan.backward_flops;
        }
        /* Attention's products are its own kernel's. */
        planned -= 3 * (double)configs[c]->lm.layers * 2 * 2 * 3 * (double)configs[c]->lm.sequence *
                   (double)(configs[c]->lm.sequence + 1) / 2 * (double)configs[c]->lm.channels;
        modelrun_step(run);
        assert_true(fabs(modelrun_launched_flops(run) / planned - 1) < 1e-12);
        float *logits = malloc((size_t)model->vocab_size * sizeof *logits);
        assert_non_null(logits);
        modelrun_logits(run, 0, logits);
        free(logits);
        const modelrun_gemms *told = modelrun_planned(run), *seen = modelrun_launched(run);
        assert_int_equal(seen->count, told->count);
        for (int i = 0; i < seen->count; i++) {
            bool found = false;
            for (int j = 0; j < told->count; j++)
                found = found || memcmp(&seen->shape[i], &told->shape[j], sizeof seen->shape[i]) == 0;
            assert_true(found);
        }
        modelrun_close(run);
        dsc_model_close(&model);
    }
}

/* Padding columns are outside the softmax: same losses, same gradients, and exactly none for the padding. */
static void padding_changes_nothing(void **state)
{
    dsc_gpt2_config padded = untied;
    padded.lm.vocab_rows = 384;
    dsc_model *models[2] = { open_model(&untied), open_model(&padded) };
    modelrun *runs[2];
    double loss[2];
    for (int i = 0; i < 2; i++) {
        runs[i] = open_run(models[i], &plain);
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
    dsc_gpt2_config config = tiny;
    config.lm.vocab = 40009, config.lm.vocab_rows = 40009, config.lm.sequence = 200, config.lm.positions = 200;
    config.lm.tied = false;
    dsc_model *model = open_model(&config);
    modelrun_options options = plain;
    options.batch = 3; /* 600 rows of 160 KB: 320 and 280 */
    options.loss_scale = 4;
    modelrun *whole = open_run(model, &options);
    modelrun_step(whole);
    const int32_t last = model->module_count - 1;
    const int64_t count = config.lm.vocab * config.lm.channels;
    double *sum = calloc((size_t)count, sizeof *sum);
    int32_t *tokens = malloc(1200 * sizeof *tokens);
    assert_non_null(sum);
    assert_non_null(tokens);
    for (int64_t i = 0; i < 1200; i++)
        tokens[i] = (int32_t)(mixed(fnv("tokens"), (uint64_t)i) % 40009u);
    options.batch = 1;
    modelrun *one = open_run(model, &options);
    for (int64_t s = 0; s < 3; s++) {
        modelrun_set_tokens(one, tokens + 200 * s, tokens + 600 + 200 * s);
        modelrun_step(one);
        for (int64_t i = 0; i < 200; i++)
            assert_true(fabsf(modelrun_losses(one)[i] - modelrun_losses(whole)[200 * s + i]) < 1e-5f);
        for (int64_t i = 0; i < count; i++)
            sum[i] += (double)modelrun_grad(one, last, dsc_lm_head_table(&dsc_gpt2_family))[i] / 3;
    }
    double error = 0, norm = 0;
    for (int64_t i = 0; i < count; i++) {
        const double x = (double)modelrun_grad(whole, last, dsc_lm_head_table(&dsc_gpt2_family))[i];
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

/* The loss along a random direction, by central differences in the parameters. */
static void gradient_is_the_slope(void **state)
{
    dsc_gpt2_config config = tied;
    config.lm.vocab_rows = 320;
    dsc_model *model = open_model(&config);
    modelrun *run = open_run(model, &plain);
    double slope = 0, loss[2];
    const double step = 2e-3;
    modelrun_step(run);
    for (int side = 0; side < 2; side++) {
        for (int32_t m = 0; m < model->module_count; m++) {
            for (int32_t p = 0; p < model->modules[m].param_count; p++) {
                const dsc_param_spec *spec = &model->modules[m].params[p];
                const int64_t count = modelrun_elements(spec);
                if (spec->shared_module >= 0)
                    continue;
                float *x = values_of(spec);
                double *grad = malloc((size_t)count * sizeof *grad);
                assert_non_null(grad);
                whole_grad(run, model, m, p, grad);
                for (int64_t i = 0; i < count; i++) {
                    const double way = (double)(mixed(fnv(spec->name) + 7, (uint64_t)i) >> 8) * 0x1p-23 - 1;
                    slope += side == 0 ? grad[i] * way : 0;
                    x[i] += (float)((side == 0 ? -step : step) * way);
                }
                modelrun_set_param(run, m, p, x);
                free(grad);
                free(x);
            }
        }
        loss[side] = modelrun_evaluate(run);
    }
    const double difference = (loss[1] - loss[0]) / (2 * step);
    printf("# slope %.6f, difference %.6f\n", slope, difference);
    assert_true(fabs(difference - slope) < 2e-3 * fabs(slope) + 1e-4);
    modelrun_close(run);
    dsc_model_close(&model);
}

/* The logits for generation are those that the losses were made of. */
static void logits_give_the_losses(void **state)
{
    const dsc_gpt2_config *configs[] = { &tied, &untied };
    for (size_t c = 0; c < 2; c++) {
        dsc_model *model = open_model(configs[c]);
        modelrun *run = open_run(model, &plain);
        const int64_t items = plain.batch * model->losses_per_sample;
        float logits[311];
        modelrun_evaluate(run);
        for (int64_t row = 0; row < items; row += 13) {
            const int32_t target = (int32_t)(mixed(fnv("tokens"), (uint64_t)(items + row)) % 311u);
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
    modelrun_options options = plain;
    modelrun *one = open_run(model, &options);
    options.loss_scale = 1024; /* a power of two: exact */
    modelrun *scaled = open_run(model, &options);
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
        cmocka_unit_test(agrees_with_pytorch),     cmocka_unit_test(trains_a_folder),
        cmocka_unit_test(keeps_its_bits),          cmocka_unit_test(runs_as_planned),
        cmocka_unit_test(padding_changes_nothing), cmocka_unit_test(chunks_change_nothing),
        cmocka_unit_test(gradient_is_the_slope),   cmocka_unit_test(logits_give_the_losses),
        cmocka_unit_test(loss_scale_scales_gradients),
    };
    return cmocka_run_group_tests_name("gpt2", tests, NULL, NULL);
}
