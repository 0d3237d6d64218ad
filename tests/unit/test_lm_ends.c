/* test_lm_ends.c - embedding and head of language models beside a small reference in double.
 *
 * The models have no blocks, so the reference is short: rows of the tables, norms, one product, the loss. Its gradients
 * are central differences. Every element of every gradient is compared. SPDX-License-Identifier: Apache-2.0 */
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
#include "kernels/scalar.h"
#include "models/dense.h"
#include "tests/support/lmrun.h"

/* LONG: with so many tokens logits come in two chunks. */
enum { BATCH = 2, TOKENS = 9, LONG = 40, ITEMS_MAX = BATCH * LONG, CHANNELS = 24, VOCAB = 37, PADDING = 1 };

/* Differences of families and configs at both ends. */
typedef struct ends_case {
    const char *name;
    bool positions, rms, tied, bare, embed_norm, bias, rounded, skips, plus_one, no_bias;
    double embed_scale, logit_scale, softcap;
    int64_t family_first, config_first;
    double beta; /* of a preference */
    bool is_long;
} ends_case;

static const ends_case cases[] = {
    { .name = "plain", .positions = true, .tied = true },
    { .name = "rounded scale, soft cap",
      .rms = true,
      .tied = true,
      .rounded = true,
      .embed_scale = 4.898979485566356,
      .softcap = 0.5 },
    { .name = "scales", .rms = true, .tied = true, .embed_scale = 12, .logit_scale = 6 },
    { .name = "scale and soft cap", .tied = true, .logit_scale = 4, .softcap = 3 },
    { .name = "scale beside positions", .positions = true, .embed_scale = 3, .family_first = 2 },
    { .name = "places skip padding", .positions = true, .tied = true, .skips = true, .config_first = PADDING + 1 },
    { .name = "places skip padding, norm",
      .positions = true,
      .embed_norm = true,
      .skips = true,
      .config_first = PADDING + 1 },
    { .name = "norm of rows", .tied = true, .embed_norm = true },
    { .name = "norms with 1 + weight", .rms = true, .tied = true, .embed_norm = true, .plus_one = true },
    { .name = "norms without biases", .embed_norm = true, .bias = true, .no_bias = true },
    { .name = "1 + weight, no bias", .tied = true, .plus_one = true, .no_bias = true },
    { .name = "bias", .bias = true, .softcap = 2 },
    { .name = "bias, no norm", .bare = true, .bias = true, .logit_scale = 0.25 },
    { .name = "pairs", .tied = true, .logit_scale = 4, .softcap = 3, .beta = 0.3 },
};

static int tokens_of(const ends_case *c) { return c->is_long ? LONG : TOKENS; }

static dsc_model *open_model(const ends_case *c)
{
    dsc_lm_family family = dsc_gpt2_family;
    dsc_dense_config dense = { .traits = &dsc_gpt2_traits, .heads = 2, .inner = 32 };
    family.position_table = c->positions ? "wpe.weight" : NULL;
    family.position_first = c->family_first;
    family.embed_norm = c->embed_norm ? "embed_norm" : NULL;
    family.norm = c->rms ? DSC_NORM_RMS : DSC_NORM_LAYER;
    family.final_norm = "final_norm";
    family.head_bias = c->bias ? "lm_head.bias" : NULL;
    dense.lm = (dsc_lm_config) { .channels = CHANNELS,
                                 .embed_channels = CHANNELS,
                                 .positions = tokens_of(c) + 2,
                                 .sequence = tokens_of(c),
                                 .vocab = VOCAB,
                                 .file_vocab = VOCAB,
                                 .vocab_rows = VOCAB + 3,
                                 .norm_eps = 1e-5,
                                 .init_std = 0.02,
                                 .preference = { c->beta, 0 },
                                 .tied = c->tied,
                                 .bare_head = c->bare,
                                 .norm_plus_one = c->plus_one,
                                 .norm_no_bias = c->no_bias,
                                 .has_padding = c->skips,
                                 .padding = PADDING,
                                 .embed_scale = c->embed_scale,
                                 .embed_scale_rounded = c->rounded,
                                 .logit_scale = c->logit_scale,
                                 .logit_softcap = c->softcap,
                                 .position_first = c->config_first,
                                 .places_skip_padding = c->skips };
    return lmrun_open_model(&family, &dense.lm);
}

/* ---- the reference ---- */

/* Values of the parameters by their part, NULL: there is none; and the micro-batch. */
typedef struct reference {
    const ends_case *c;
    double *table, *position, *embed_norm[2], *final_norm[2], *bias, *head;
    double factor;
    int32_t tokens[ITEMS_MAX], targets[ITEMS_MAX];
    int each, items; /* tokens of a sample; of all */
    double pairs[BATCH];
} reference;

static int norm_params(const ends_case *c) { return c->rms || c->no_bias ? 1 : 2; }

static void normed(const ends_case *c, double *x, double *const *norm)
{
    double mean = 0, square = 0;
    for (int i = 0; i < CHANNELS && !c->rms; i++)
        mean += x[i] / CHANNELS;
    for (int i = 0; i < CHANNELS; i++)
        square += (x[i] - mean) * (x[i] - mean) / CHANNELS;
    for (int i = 0; i < CHANNELS; i++)
        x[i] = (x[i] - mean) / sqrt(square + 1e-5) * (norm[0][i] + c->plus_one) +
               (norm_params(c) > 1 ? norm[1][i] : 0);
}

/* The row of token `item` in the table of positions. */
static int64_t place_of(const reference *r, int item)
{
    const int start = item - item % r->each;
    int64_t count = 0;
    if (!r->c->skips)
        return item % r->each + r->c->family_first + r->c->config_first;
    for (int i = start; i <= item; i++)
        count += r->tokens[i] != PADDING;
    return r->tokens[item] == PADDING ? PADDING : PADDING + count;
}

static void logits_of(const reference *r, int item, double *z)
{
    double x[CHANNELS];
    for (int i = 0; i < CHANNELS; i++) {
        x[i] = r->factor * r->table[r->tokens[item] * CHANNELS + i];
        x[i] += r->position != NULL ? r->position[place_of(r, item) * CHANNELS + i] : 0;
    }
    if (r->c->embed_norm)
        normed(r->c, x, r->embed_norm);
    if (!r->c->bare)
        normed(r->c, x, r->final_norm);
    for (int v = 0; v < VOCAB; v++) {
        z[v] = r->bias != NULL ? r->bias[v] : 0;
        for (int i = 0; i < CHANNELS; i++)
            z[v] += x[i] * r->head[v * CHANNELS + i];
        z[v] *= r->c->logit_scale > 0 ? r->c->logit_scale : 1;
        z[v] = r->c->softcap > 0 ? r->c->softcap * tanh(z[v] / r->c->softcap) : z[v];
    }
}

static double item_loss(const reference *r, int item)
{
    double z[VOCAB], sum = 0;
    if (r->targets[item] < 0)
        return 0;
    logits_of(r, item, z);
    for (int v = 0; v < VOCAB; v++)
        sum += exp(z[v]);
    return log(sum) - z[r->targets[item]];
}

/* The loss whose gradients are compared: the mean over items or, with a preference, over pairs. */
static double whole_loss(const reference *r)
{
    double sum[BATCH] = { 0 }, all = 0;
    for (int i = 0; i < r->items; i++)
        sum[i / r->each] += item_loss(r, i);
    if (r->c->beta > 0)
        return dsc_preference_loss(r->c->beta, 0, -sum[0] - r->pairs[0] + sum[1] + r->pairs[1]);
    for (int b = 0; b < BATCH; b++)
        all += sum[b] / r->items;
    return all;
}

/* ---- comparison ---- */

static double *take(const dsc_param_spec *spec, dsc_dtype dtype)
{
    float *x = lmrun_values(spec);
    const int64_t count = modelrun_elements(spec);
    double *out = malloc((size_t)count * sizeof *out);
    assert_non_null(out);
    for (int64_t i = 0; i < count; i++)
        out[i] = (double)dsc_rounded(x[i], dtype);
    free(x);
    return out;
}

/* values[m][p] of all parameters, which the reference's pointers lead to. */
static void open_reference(reference *r, const ends_case *c, const dsc_model *model, dsc_dtype dtype,
                           double *values[2][8])
{
    *r = (reference) {
        .c = c, .factor = c->embed_scale > 0 ? c->embed_scale : 1, .each = tokens_of(c), .items = BATCH * tokens_of(c)
    };
    if (c->rounded)
        r->factor = (double)dsc_rounded((float)r->factor, dtype);
    for (int32_t m = 0; m < 2; m++)
        for (int32_t p = 0; p < model->modules[m].param_count; p++) {
            const dsc_param_spec *spec = &model->modules[m].params[p];
            values[m][p] = spec->shared_module >= 0 ? NULL : take(spec, dtype);
        }
    int32_t at = 0;
    r->table = values[0][at++];
    r->position = c->positions ? values[0][at++] : NULL;
    for (int i = 0; i < (c->embed_norm ? norm_params(c) : 0); i++)
        r->embed_norm[i] = values[0][at++];
    assert_int_equal(at, model->modules[0].param_count);
    at = 0;
    if (!c->bare)
        assert_int_equal(model->modules[1].params[0].init, c->plus_one ? DSC_INIT_ZEROS : DSC_INIT_ONES);
    for (int i = 0; i < (c->bare ? 0 : norm_params(c)); i++)
        r->final_norm[i] = values[1][at++];
    r->bias = c->bias ? values[1][at++] : NULL;
    r->head = c->tied ? r->table : values[1][at];
    assert_int_equal(at + 1, model->modules[1].param_count);
    for (int i = 0; i < r->items; i++) {
        r->tokens[i] = (int32_t)(lmrun_mixed(lmrun_fnv("ends"), (uint64_t)i) % VOCAB);
        r->targets[i] = (int32_t)(lmrun_mixed(lmrun_fnv("ends"), (uint64_t)(ITEMS_MAX + i)) % VOCAB);
    }
    for (int i = 0; i < r->items; i += 5)
        r->targets[i] = -1;
    r->tokens[2] = r->tokens[r->each - 1] = r->tokens[r->each] = PADDING; /* within, at the end, at the beginning */
    r->pairs[0] = -2;
    r->pairs[1] = 1.5;
}

/* The largest error of a gradient's element in units of the root mean square of all. `padded`: the row of padding of
 * the tables of tokens and positions is not trained, whatever its slope. */
static double gradient_error(reference *r, const dsc_model *model, const modelrun *run, double *values[2][8])
{
    const double h = 1e-5;
    double worst = 0, squares = 0, elements = 0;
    for (int32_t m = 0; m < 2; m++)
        for (int32_t p = 0; p < model->modules[m].param_count; p++) {
            const int64_t count = modelrun_elements(&model->modules[m].params[p]);
            double *x = values[m][p], *grad = malloc((size_t)count * sizeof *grad);
            assert_non_null(grad);
            if (x != NULL)
                lmrun_whole_grad(run, model, m, p, grad);
            for (int64_t i = 0; i < count && x != NULL; i++) {
                const double start = x[i];
                const bool rows_of_padding = r->c->skips && m == 0 && p < 2 && i / CHANNELS == PADDING;
                x[i] = start + h;
                const double above = whole_loss(r);
                x[i] = start - h;
                const double slope = (above - whole_loss(r)) / (2 * h);
                x[i] = start;
                assert_false(isnan(grad[i]));
                squares += slope * slope;
                if (rows_of_padding && p == 1)
                    assert_true(grad[i] == 0);
                else if (!rows_of_padding) /* a tied head's part is left in that row */
                    worst = fmax(worst, fabs(grad[i] - slope));
            }
            elements += x != NULL ? (double)count : 0;
            free(grad);
        }
    assert_true(squares > 0);
    return worst / sqrt(squares / elements);
}

static void close_values(double *values[2][8])
{
    for (int m = 0; m < 2; m++)
        for (int p = 0; p < 8; p++)
            free(values[m][p]);
}

static void compare(const ends_case *c, const modelrun_options *options, double loss_most, double grad_most)
{
    dsc_model *model = open_model(c);
    double *values[2][8] = { { NULL } };
    reference r;
    open_reference(&r, c, model, options->dtype, values);
    modelrun *run = lmrun_open(model, options);
    modelrun_set_tokens(run, r.tokens, r.targets);
    if (c->beta > 0)
        modelrun_set_reference(run, r.pairs);
    modelrun_step(run);
    double off = 0;
    for (int i = 0; i < r.items; i++)
        off = fmax(off, fabs((double)modelrun_losses(run)[i] - item_loss(&r, i)));
    const double grad = gradient_error(&r, model, run, values);
    printf("# %-26s %s caps %x chunks %lld: losses off by %.1e, gradients by %.1e rms\n", c->name,
           options->dtype == DSC_F32 ? "fp32" : "bf16", options->caps & dsc_cpu_caps(), (long long)options->chunk_bytes,
           off, grad);
    assert_true(off <= loss_most);
    assert_true(grad <= grad_most);
    for (int item = 0; item < r.items; item += 7) { /* as generation asks for them */
        float got[VOCAB];
        double want[VOCAB];
        modelrun_logits(run, item, got);
        logits_of(&r, item, want);
        for (int v = 0; v < VOCAB; v++)
            assert_true(fabs((double)got[v] - want[v]) <= 10 * loss_most);
    }
    modelrun_close(run);
    dsc_model_close(&model);
    close_values(values);
}

/* ---- tests ---- */

static void agrees_with_the_reference(void **state)
{
    (void)state;
    for (size_t i = 0; i < DSC_COUNT(cases); i++)
        for (uint32_t caps = 0;; caps = 2 * caps + 1) {
            modelrun_options options = lmrun_plain;
            options.caps = caps;
            compare(&cases[i], &options, 3e-6, 3e-5);
            options.dtype = DSC_BF16;
            compare(&cases[i], &options, 0.05, 0.06);
            if (caps >= dsc_cpu_caps())
                break;
        }
}

static void chunks_of_logits_agree_too(void **state)
{
    (void)state;
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        ends_case c = cases[i];
        modelrun_options options = lmrun_plain;
        c.is_long = true;
        options.chunk_bytes = 64 * 64 * 4; /* 64 rows */
        options.recompute = true;
        compare(&c, &options, 3e-6, 3e-5);
    }
}

static void keeps_its_bits(void **state)
{
    (void)state;
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        if (cases[i].beta > 0)
            continue;
        dsc_model *model = open_model(&cases[i]);
        lmrun_keeps_its_bits(model, DSC_F32);
        lmrun_keeps_its_bits(model, DSC_BF16);
        lmrun_runs_as_planned(model, 0);
        dsc_model_close(&model);
    }
}

/* In bf16 the gradient of the table has the factor that is rounded to bf16, as transformers' Gemma has: 4.90625 for
 * sqrt(24). */
static void a_rounded_factor_is_of_the_compute_dtype(void **state)
{
    (void)state;
    ends_case c = { .name = "factor", .bare = true, .embed_scale = 4.898979485566356 };
    double dot[2] = { 0 };
    float *first = NULL;
    for (int rounded = 0; rounded < 2; rounded++) {
        c.rounded = rounded == 1;
        dsc_model *model = open_model(&c);
        modelrun_options options = lmrun_plain;
        options.dtype = DSC_BF16;
        modelrun *run = lmrun_open(model, &options);
        modelrun_step(run);
        const int64_t count = modelrun_elements(&model->modules[0].params[0]);
        const float *grad = modelrun_grad(run, 0, 0);
        if (first == NULL) {
            first = malloc((size_t)count * sizeof *first);
            assert_non_null(first);
            memcpy(first, grad, (size_t)count * sizeof *first);
        }
        for (int64_t i = 0; i < count; i++)
            dot[rounded] += (double)first[i] * (double)grad[i];
        modelrun_close(run);
        dsc_model_close(&model);
    }
    free(first);
    printf("# gradients times %.6f\n", dot[1] / dot[0]);
    assert_true(fabs(dot[1] / dot[0] - 4.90625 / 4.898979485566356) < 5e-4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_the_reference),
        cmocka_unit_test(chunks_of_logits_agree_too),
        cmocka_unit_test(keeps_its_bits),
        cmocka_unit_test(a_rounded_factor_is_of_the_compute_dtype),
    };
    return cmocka_run_group_tests_name("lm_ends", tests, NULL, NULL);
}
