/* lmrun.c - see lmrun.h. SPDX-License-Identifier: Apache-2.0 */
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
#include "tests/support/lmrun.h"

const modelrun_options lmrun_plain = {
    .batch = 2, .dtype = DSC_F32, .threads = 2, .caps = 0xffffffffu, .in_place = true, .loss_scale = 1
};

dsc_model *lmrun_open_model(const dsc_lm_family *family, const dsc_lm_config *config)
{
    dsc_alloc *alloc = NULL;
    dsc_model *model = NULL;
    dsc_error err = DSC_ERROR_INIT;
    const dsc_lm_open_args args = { .family = family, .name = "test", .config = config };
    assert_int_equal(dsc_alloc_open(&alloc, &err), DSC_OK);
    if (dsc_lm_open(&model, alloc, &args, &err) != DSC_OK)
        fail_msg("%s", err.message);
    assert_int_equal(dsc_model_check(model, &err), DSC_OK);
    return model;
}

/* ---- The generator's integers ------------------------------------------------------------------------------------ */

uint32_t lmrun_fnv(const char *text)
{
    uint32_t h = 0x811C9DC5u;
    for (; *text != 0; text++)
        h = (h ^ (unsigned char)*text) * 0x01000193u;
    return h;
}

uint32_t lmrun_mixed(uint32_t seed, uint64_t index)
{
    uint32_t h = (uint32_t)(index * UINT64_C(2654435769) + seed);
    h = (h ^ (h >> 16)) * 0x85EBCA6Bu;
    h = (h ^ (h >> 13)) * 0xC2B2AE35u;
    return h ^ (h >> 16);
}

float *lmrun_values(const dsc_param_spec *spec)
{
    const int64_t count = modelrun_elements(spec);
    const size_t bytes = strlen(spec->name);
    const bool one = (strstr(spec->name, ".ln_") != NULL || strstr(spec->name, "norm.") != NULL ||
                      strstr(spec->name, "Norm.") != NULL) &&
                     strcmp(spec->name + bytes - 6, "weight") == 0;
    float *x = malloc((size_t)count * sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < count; i++) {
        const float u = (float)(lmrun_mixed(lmrun_fnv(spec->name), (uint64_t)i) >> 8) * 0x1p-24f - 0.5f;
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
            float *x = lmrun_values(&model->modules[m].params[p]);
            modelrun_set_param(run, m, p, x);
            free(x);
        }
        for (int32_t b = 0; b < model->modules[m].buffer_count; b++) { /* by the rule of a parameter of its name */
            const dsc_buffer_spec *of = &model->modules[m].buffers[b];
            const dsc_param_spec like = { .name = of->name, .dim_count = 1, .dim = { of->count } };
            float *x = lmrun_values(&like);
            modelrun_set_buffer(run, m, b, x);
            free(x);
        }
    }
}

void lmrun_set_tokens(modelrun *run, const dsc_model *model, int64_t items)
{
    int32_t *stream = malloc((size_t)items * 2 * sizeof *stream);
    assert_non_null(stream);
    for (int64_t i = 0; i < 2 * items; i++)
        stream[i] = (int32_t)(lmrun_mixed(lmrun_fnv("tokens"), (uint64_t)i) % (uint32_t)model->vocab_size);
    modelrun_set_tokens(run, stream, stream + items);
    free(stream);
}

/* The last one of each T / K tokens; in every other sample the one before it. */
static void set_predicted(modelrun *run, const dsc_model *model, int64_t batch)
{
    const int64_t count = model->losses_per_sample, apart = model->seq_length / count;
    int32_t *places = malloc((size_t)(batch * count) * sizeof *places);
    assert_non_null(places);
    for (int64_t i = 0; i < batch * count; i++)
        places[i] = (int32_t)((i % count + 1) * model->seq_length / count - 1 - (apart > 1 ? i / count % 2 : 0));
    modelrun_set_predicted(run, places);
    free(places);
}

/* ---- Runs -------------------------------------------------------------------------------------------------------- */

modelrun *lmrun_open(const dsc_model *model, const modelrun_options *options)
{
    modelrun *run = modelrun_open(model, options);
    set_params(run, model);
    lmrun_set_tokens(run, model, options->batch * model->seq_length);
    if (model->losses_per_sample < model->seq_length)
        set_predicted(run, model, options->batch);
    return run;
}

/* The gradient of a parameter: the sum over its uses. */
void lmrun_whole_grad(const modelrun *run, const dsc_model *model, int32_t module, int32_t param, double *out)
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

dsc_safetensors *lmrun_open_golden(dsc_alloc *alloc, const char *name)
{
    char path[128];
    dsc_safetensors *golden = NULL;
    dsc_error err = DSC_ERROR_INIT;
    snprintf(path, sizeof path, "tests/golden/%s.safetensors", name);
    if (dsc_safetensors_open(&golden, NULL, alloc, path, &err) != DSC_OK)
        fail_msg("%s: %s", path, err.message);
    return golden;
}

int64_t lmrun_read_golden(const dsc_safetensors *golden, const char *prefix, const char *name, float *out,
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

/* The root mean square of all gradients. */
static double whole_rms(const dsc_model *model, const dsc_safetensors *golden)
{
    double sum = 0, elements = 0;
    for (int32_t m = 0; m < model->module_count; m++)
        for (int32_t p = 0; p < model->modules[m].param_count; p++) {
            const dsc_param_spec *spec = &model->modules[m].params[p];
            float norm = 0;
            if (spec->shared_module >= 0 || !spec->trainable)
                continue;
            lmrun_read_golden(golden, "norm.", spec->name, &norm, 1);
            sum += (double)norm * (double)norm;
            elements += (double)modelrun_elements(spec);
        }
    return sqrt(sum / elements);
}

/* Errors are measured in units of the tensor's root mean square: single elements may cancel to nothing. Whole tensors
 * may too (a bias of keys without rotary positions shifts all scores of a query alike): those, below 1e-6 of it, are
 * held to that of all gradients. */
static double worst_grad_error(const modelrun *run, const dsc_model *model, const dsc_safetensors *golden, bool whole)
{
    static float sample[8192];
    const double all = whole_rms(model, golden);
    double worst = 0;
    for (int32_t m = 0; m < model->module_count; m++) {
        for (int32_t p = 0; p < model->modules[m].param_count; p++) {
            const dsc_param_spec *spec = &model->modules[m].params[p];
            if (spec->shared_module >= 0 || !spec->trainable)
                continue;
            const int64_t count = modelrun_elements(spec);
            double *grad = malloc((size_t)count * sizeof *grad), sum = 0, error = 0;
            char seed[128];
            float norm = 0;
            assert_non_null(grad);
            lmrun_whole_grad(run, model, m, p, grad);
            lmrun_read_golden(golden, "norm.", spec->name, &norm, 1);
            const int64_t samples = lmrun_read_golden(golden, "grad.", spec->name, sample, 8192);
            const double own = (double)norm / sqrt((double)count), rms = own < 1e-6 * all ? all : own;
            snprintf(seed, sizeof seed, "%s?", spec->name);
            for (int64_t i = 0; i < samples; i++) {
                const int64_t at = whole ? i : (int64_t)(lmrun_mixed(lmrun_fnv(seed), (uint64_t)i) % (uint64_t)count);
                error = fmax(error, fabs(grad[at] - (double)sample[i]) / rms);
                assert_false(isnan(grad[at]));
            }
            for (int64_t i = 0; i < count; i++)
                sum += grad[i] * grad[i];
            error = fmax(error, fabs(sqrt(sum) - (double)norm) / (rms * sqrt((double)count)));
            if (getenv("DSC_TEST_VERBOSE") != NULL)
                printf("# %-40s %.2e\n", spec->name, error);
            worst = fmax(worst, error);
            free(grad);
        }
    }
    return worst;
}

/* Some rows of logits, evenly among all; fp32 only. */
static double worst_logit_error(modelrun *run, const dsc_model *model, const dsc_safetensors *golden, int64_t items)
{
    dsc_error err = DSC_ERROR_INIT;
    const dsc_safetensors_entry *entry = dsc_safetensors_find(golden, "logits");
    double worst = 0;
    if (entry == NULL)
        return 0;
    const int64_t step = dsc_max_i64(1, items / 8), vocab = model->vocab_size;
    float *want = malloc((size_t)(2 * vocab) * sizeof *want), *got = want + vocab;
    assert_non_null(want);
    assert_int_equal(entry->count, dsc_div_ceil(items, step) * vocab);
    for (int64_t row = 0; row < items; row += step) {
        assert_int_equal(dsc_safetensors_read_f32(golden, entry, row / step * vocab, vocab, want, &err), DSC_OK);
        modelrun_logits(run, row, got);
        for (int64_t v = 0; v < vocab; v++)
            worst = fmax(worst, fabs((double)want[v] - (double)got[v]));
    }
    free(want);
    return worst;
}

void lmrun_against_golden(const char *name, const dsc_model *model, const modelrun_options *options, bool whole,
                          lmrun_bounds most)
{
    float losses[256];
    dsc_alloc *alloc = NULL;
    assert_int_equal(dsc_alloc_open(&alloc, NULL), DSC_OK);
    dsc_safetensors *golden = lmrun_open_golden(alloc, name);
    modelrun *run = lmrun_open(model, options);
    const double loss = modelrun_step(run);
    const int64_t items = lmrun_read_golden(golden, "losses", "", losses, 256);
    assert_int_equal(items, options->batch * model->losses_per_sample);
    double worst = 0, mean = 0;
    for (int64_t i = 0; i < items; i++) {
        worst = fmax(worst, fabs((double)modelrun_losses(run)[i] - (double)losses[i]));
        mean += (double)losses[i] / (double)items;
    }
    const double grad = worst_grad_error(run, model, golden, whole);
    printf("# %-12s %s caps %x: loss %.6f, worst loss error %.1e, worst gradient error %.1e rms\n", name,
           options->dtype == DSC_F32 ? "fp32" : "bf16", options->caps & dsc_cpu_caps(), loss, worst, grad);
    assert_true(fabs(loss - mean) <= most.loss);
    assert_true(worst <= 10 * most.loss);
    assert_true(grad <= most.grad);
    if (options->dtype == DSC_F32 && (options->caps & dsc_cpu_caps()) == dsc_cpu_caps())
        assert_true(worst_logit_error(run, model, golden, items) <= 1e-5);
    modelrun_close(run);
    dsc_safetensors_close(&golden);
    dsc_alloc_close(&alloc);
}

/* ---- Against itself ---------------------------------------------------------------------------------------------- */

/* Runs that must have the same bits. */
static const struct {
    int32_t threads;
    bool recompute, rebuild, keep, in_place, together;
} ways[] = {
    { 1, false, false, false, true, false }, { 2, false, false, false, false, true },
    { 3, false, false, false, true, true },  { 2, true, false, false, true, false },
    { 3, true, false, false, false, true },  { 1, false, true, false, true, true },
    { 2, false, true, false, false, false }, { 1, false, false, true, true, false },
    { 2, false, false, true, false, true },
};

/* Kept values are those that backward would compute again, at every level of the instruction set. */
static void expect_kept_bits(const dsc_model *model, dsc_dtype dtype, uint32_t caps)
{
    modelrun *runs[2];
    for (size_t i = 0; i < DSC_COUNT(runs); i++) {
        modelrun_options options = lmrun_plain;
        options.dtype = dtype;
        options.caps = caps;
        options.keep = options.together = i == 1;
        runs[i] = lmrun_open(model, &options);
        modelrun_step(runs[i]);
    }
    if (!same_bits(runs[0], runs[1], model, lmrun_plain.batch * model->losses_per_sample))
        fail_msg("kept values change the bits, caps %x", (unsigned)caps);
    assert_true(modelrun_launched_flops(runs[0]) == modelrun_launched_flops(runs[1]));
    for (size_t i = 0; i < DSC_COUNT(runs); i++)
        modelrun_close(runs[i]);
}

void lmrun_keeps_its_bits(const dsc_model *model, dsc_dtype dtype)
{
    const int64_t items = lmrun_plain.batch * model->losses_per_sample;
    modelrun *runs[DSC_COUNT(ways)];
    for (size_t i = 0; i < DSC_COUNT(ways); i++) {
        modelrun_options options = lmrun_plain;
        options.dtype = dtype;
        options.threads = ways[i].threads;
        options.recompute = ways[i].recompute;
        options.rebuild = ways[i].rebuild;
        options.keep = ways[i].keep;
        options.in_place = ways[i].in_place;
        options.together = ways[i].together;
        runs[i] = lmrun_open(model, &options);
        const double loss = modelrun_step(runs[i]);
        if (!same_bits(runs[i], runs[0], model, items))
            fail_msg("way %zu has other bits than way 0", i);
        assert_true(modelrun_evaluate(runs[i]) == loss);
        assert_memory_equal(modelrun_losses(runs[i]), modelrun_losses(runs[0]), (size_t)items * 4);
    }
    for (size_t i = 0; i < DSC_COUNT(ways); i++)
        modelrun_close(runs[i]);
    for (uint32_t caps = 0; caps < dsc_cpu_caps(); caps = 2 * caps + 1)
        expect_kept_bits(model, dtype, caps);
}

static void expect_rebuild_flops(const dsc_model *model, double planned)
{
    modelrun_options options = lmrun_plain;
    options.batch = 3;
    options.rebuild = true;
    options.together = true;
    for (int32_t m = 0; m < model->module_count; m++) {
        dsc_module_plan plan;
        assert_int_equal(model->modules[m].plan(&model->modules[m], 3, DSC_F32, NULL, &plan, NULL), DSC_OK);
        assert_true((plan.rebuilt_bytes > 0) == (model->modules[m].rebuild != NULL));
        planned += plan.rebuild_flops;
    }
    modelrun *run = lmrun_open(model, &options);
    modelrun_step(run);
    assert_true(fabs(modelrun_launched_flops(run) / planned - 1) < 1e-12);
    modelrun_close(run);
}

/* After a step and logits, the products are those that the plan reported. */
static void expect_planned_launches(modelrun *run, const dsc_model *model)
{
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
}

/* Largest difference between the gradients of two runs, in units of the tensors' root mean square. */
static double gradient_difference(const modelrun *a, const modelrun *b, const dsc_model *model)
{
    double worst = 0;
    for (int32_t m = 0; m < model->module_count; m++)
        for (int32_t p = 0; p < model->modules[m].param_count; p++) {
            const float *x = modelrun_grad(a, m, p), *y = modelrun_grad(b, m, p);
            const int64_t count = modelrun_elements(&model->modules[m].params[p]);
            double squares = 0, most = 0;
            for (int64_t i = 0; i < count && model->modules[m].params[p].trainable; i++) {
                squares += (double)x[i] * (double)x[i];
                most = fmax(most, fabs((double)x[i] - (double)y[i]));
            }
            worst = fmax(worst, most / (sqrt(squares / (double)count) + 1e-9));
        }
    return worst;
}

/* As on a GPU: one product for the gradient of an input of several layers. */
static void expect_joined_input_gradients(const dsc_model *model, const modelrun *apart)
{
    modelrun_options options = lmrun_plain;
    options.batch = 3;
    options.together = options.joins_input_gradients = true;
    modelrun *run = lmrun_open(model, &options);
    modelrun_step(run);
    assert_true(modelrun_launched_flops(run) == modelrun_launched_flops(apart));
    assert_true(gradient_difference(apart, run, model) < 1e-4);
    expect_planned_launches(run, model);
    modelrun_close(run);
}

void lmrun_runs_as_planned(const dsc_model *model, double attention_flops)
{
    modelrun_options options = lmrun_plain;
    options.batch = 3;
    options.together = true;
    modelrun *run = lmrun_open(model, &options);
    double planned = 0;
    for (int32_t m = 0; m < model->module_count; m++) {
        dsc_module_plan plan;
        assert_int_equal(model->modules[m].plan(&model->modules[m], 3, DSC_F32, NULL, &plan, NULL), DSC_OK);
        planned += plan.forward_flops + plan.backward_flops;
    }
    planned -= 3 * 3 * attention_flops;
    modelrun_step(run);
    assert_true(fabs(modelrun_launched_flops(run) / planned - 1) < 1e-12);
    expect_joined_input_gradients(model, run);
    expect_rebuild_flops(model, planned);
    expect_planned_launches(run, model);
    modelrun_close(run);
}

void lmrun_gradient_is_the_slope(const dsc_model *model)
{
    modelrun *run = lmrun_open(model, &lmrun_plain);
    double slope = 0, loss[2];
    const double step = 5e-4;
    modelrun_step(run);
    for (int side = 0; side < 2; side++) {
        for (int32_t m = 0; m < model->module_count; m++) {
            for (int32_t p = 0; p < model->modules[m].param_count; p++) {
                const dsc_param_spec *spec = &model->modules[m].params[p];
                const int64_t count = modelrun_elements(spec);
                if (spec->shared_module >= 0 || !spec->trainable)
                    continue;
                float *x = lmrun_values(spec);
                double *grad = malloc((size_t)count * sizeof *grad);
                assert_non_null(grad);
                lmrun_whole_grad(run, model, m, p, grad);
                for (int64_t i = 0; i < count; i++) {
                    const double way = (double)(lmrun_mixed(lmrun_fnv(spec->name) + 7, (uint64_t)i) >> 8) * 0x1p-23 - 1;
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
}

/* ---- a family's cases -------------------------------------------------------------------------------------------- */

static dsc_model *open_case(const lmrun_case *c, int64_t vocab_multiple)
{
    char path[128];
    dsc_model *model = NULL;
    dsc_error err = DSC_ERROR_INIT;
    dsc_model_options options = DSC_MODEL_OPTIONS_INIT;
    options.seq_length = c->sequence;
    options.vocab_multiple = vocab_multiple;
    options.lora = c->lora;
    snprintf(path, sizeof path, "tests/golden/%s.json", c->name);
    if (dsc_model_open(&model, path, &options, &err) != DSC_OK)
        fail_msg("%s: %s", path, err.message);
    assert_int_equal(dsc_model_check(model, &err), DSC_OK);
    return model;
}

void lmrun_cases_agree(const lmrun_case *cases, size_t count)
{
    for (uint32_t caps = 0; caps <= dsc_cpu_caps(); caps = 2 * caps + 1) /* every level of the instruction set */
        for (size_t i = 0; i < count; i++) {
            dsc_model *model = open_case(&cases[i], 1);
            modelrun_options options = lmrun_plain;
            options.caps = caps;
            options.batch = cases[i].batch;
            lmrun_against_golden(cases[i].name, model, &options, cases[i].whole, (lmrun_bounds){ 1e-6, 1e-5 });
            /* 8 bits of mantissa: half a percent a rounding, some ten of them in a row. */
            options.dtype = DSC_BF16;
            const double grad = cases[i].bf16_grad > 0 ? cases[i].bf16_grad : 0.12;
            lmrun_against_golden(cases[i].name, model, &options, cases[i].whole, (lmrun_bounds){ 3e-3, grad });
            dsc_model_close(&model);
        }
}

void lmrun_cases_keep_their_bits(const lmrun_case *cases, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        dsc_model *model = open_case(&cases[i], 1);
        lmrun_keeps_its_bits(model, DSC_F32);
        lmrun_keeps_its_bits(model, DSC_BF16);
        dsc_model_close(&model);
    }
}

void lmrun_cases_run_as_planned(const lmrun_case *cases, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const double tokens = (double)cases[i].sequence;
        dsc_model *model = open_case(&cases[i], 1);
        const double keys = model->losses_per_sample < model->seq_length ? 2 * tokens : tokens + 1; /* both sides */
        lmrun_runs_as_planned(model, (double)cases[i].layers * 2 * tokens * keys * (double)cases[i].attention);
        dsc_model_close(&model);
    }
}

static bool ends_with(const char *text, const char *end)
{
    const size_t length = strlen(text), size = strlen(end);
    return length >= size && strcmp(text + length - size, end) == 0;
}

static int set_trainable(const dsc_model *model, const char *end, bool trainable)
{
    int count = 0;
    for (int32_t m = 0; m < model->module_count; m++)
        for (int32_t p = 0; p < model->modules[m].param_count; p++)
            if (ends_with(model->modules[m].params[p].name, end)) {
                ((dsc_param_spec *)(uintptr_t)model->modules[m].params)[p].trainable = trainable; /* the model's own */
                count++;
            }
    return count;
}

static void expect_others_keep_their_bits(const dsc_model *model, const char *end, dsc_dtype dtype, bool joins)
{
    modelrun_options options = lmrun_plain;
    options.dtype = dtype;
    options.together = true;
    options.joins_input_gradients = joins;
    modelrun *all = lmrun_open(model, &options);
    const double loss = modelrun_step(all);
    assert_true(set_trainable(model, end, false) > 0);
    modelrun *others = lmrun_open(model, &options);
    assert_true(modelrun_step(others) == loss);
    expect_planned_launches(others, model);
    for (int32_t m = 0; m < model->module_count && !joins; m++)
        for (int32_t p = 0; p < model->modules[m].param_count; p++) {
            const dsc_param_spec *spec = &model->modules[m].params[p];
            if (spec->trainable)
                assert_memory_equal(modelrun_grad(others, m, p), modelrun_grad(all, m, p),
                                    (size_t)modelrun_elements(spec) * 4);
        }
    assert_true(!joins || gradient_difference(all, others, model) < (dtype == DSC_F32 ? 1e-4 : 0.1));
    (void)set_trainable(model, end, true);
    modelrun_close(all);
    modelrun_close(others);
}

void lmrun_cases_freeze_a_layer(const lmrun_case *cases, size_t count)
{
    static const char *const frozen[] = { "k_proj.weight", "up_proj.weight", "v_proj.weight", "k_proj.bias" };
    for (size_t i = 0; i < count; i++)
        for (size_t f = 0; f < DSC_COUNT(frozen); f++)
            for (int way = 0; way < 4; way++) {
                dsc_model *model = open_case(&cases[i], 1);
                if (set_trainable(model, frozen[f], true) > 0) /* not every model has biases */
                    expect_others_keep_their_bits(model, frozen[f], way % 2 == 0 ? DSC_F32 : DSC_BF16, way >= 2);
                dsc_model_close(&model);
            }
}

void lmrun_cases_have_slopes(const lmrun_case *cases, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        dsc_model *model = open_case(&cases[i], 64); /* with padding */
        lmrun_gradient_is_the_slope(model);
        dsc_model_close(&model);
    }
}
