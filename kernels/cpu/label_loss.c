/* label_loss.c - plain C for every CPU: a row has few classes. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/range.h"
#include "kernels/label_loss.h"

static double softplus(double x) { return fmax(x, 0) + log1p(exp(-fabs(x))); }
static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

/* A row, and what its loss is. */
typedef struct label_row {
    const dsc_label_loss_args *args;
    int64_t row, at; /* at: of its first logit */
    double loss;
    bool wrong;
} label_row;

static double logit(const label_row *r, int64_t c)
{
    return (double)dsc_get(r->args->logits, r->at + c, r->args->dtype);
}

static void give(const label_row *r, int64_t c, double gradient)
{
    const dsc_label_loss_args *a = r->args;
    if (a->write_gradient)
        dsc_put(a->logits, r->at + c, a->dtype, (float)(gradient * (double)a->scale));
}

/* Logits before the label's. */
static int32_t place_of(const label_row *r, int32_t label)
{
    const double own = logit(r, label);
    int32_t before = 0;
    for (int64_t c = 0; c < r->args->classes; c++)
        before += logit(r, c) > own || (logit(r, c) == own && c < label);
    return before;
}

/* The loss with a share of the mean over all classes. */
static double smoothed(const label_row *r, double loss, double log_sum)
{
    const double smoothing = (double)r->args->smoothing;
    double all = 0;
    for (int64_t c = 0; c < r->args->classes; c++)
        all += log_sum - logit(r, c);
    return (1 - smoothing) * loss + smoothing * (all / (double)r->args->classes);
}

/* The label of the row before. */
static int32_t label_before(const label_row *r)
{
    return r->row > 0 ? ((const int32_t *)r->args->labels)[r->row - 1] : *r->args->label_before;
}

/* A row with two labels, of which neither is masked. */
static void mix(label_row *r, double most, double sum)
{
    const dsc_label_loss_args *a = r->args;
    const int32_t label = ((const int32_t *)a->labels)[r->row], other = label_before(r);
    const double mixed = (double)a->mixed, kept = 1 - (double)a->smoothing;
    const double share = (double)a->smoothing / (double)a->classes;
    const double own = most - logit(r, label), its = most - logit(r, other);
    DSC_ASSERT(other >= 0 && other < a->classes);
    r->loss = log(sum) + ((1 - mixed) * own + mixed * its);
    if (a->smoothing != 0.0f)
        r->loss = smoothed(r, r->loss, log(sum) + most);
    for (int64_t c = 0; c < a->classes; c++) {
        const double target = (c == label ? 1 - mixed : 0) + (c == other ? mixed : 0);
        give(r, c, exp(logit(r, c) - most) / sum - target * kept - share);
    }
}

static void classify(label_row *r)
{
    const dsc_label_loss_args *a = r->args;
    const int32_t label = ((const int32_t *)a->labels)[r->row];
    double sum = 0;
    int64_t best = 0;
    if (a->places != NULL)
        a->places[r->row] = 0;
    if (label < 0) {
        for (int64_t c = 0; c < a->classes; c++)
            give(r, c, 0);
        return;
    }
    DSC_ASSERT(label < a->classes);
    if (a->places != NULL)
        a->places[r->row] = place_of(r, label);
    for (int64_t c = 1; c < a->classes; c++)
        best = logit(r, c) > logit(r, best) ? c : best;
    const double most = logit(r, best), own = logit(r, label);
    for (int64_t c = 0; c < a->classes; c++)
        sum += exp(logit(r, c) - most);
    r->loss = log(sum) + (most - own);
    r->wrong = best != label;
    if (a->mixed > 0) {
        mix(r, most, sum);
        return;
    }
    if (a->smoothing != 0.0f)
        r->loss = smoothed(r, r->loss, log(sum) + most);
    const double share = (double)a->smoothing / (double)a->classes, kept = 1 - (double)a->smoothing;
    for (int64_t c = 0; c < a->classes; c++)
        give(r, c, exp(logit(r, c) - most) / sum - (c == label ? kept : 0) - share);
}

static void compare_numbers(label_row *r)
{
    const dsc_label_loss_args *a = r->args;
    const float *labels = (const float *)a->labels + r->row * a->classes;
    const double share = 1 / (double)a->classes;
    for (int64_t c = 0; c < a->classes; c++) {
        const double off = logit(r, c) - (double)labels[c];
        r->loss += off * off * share;
        give(r, c, 2 * off * share);
    }
}

static void compare_set(label_row *r)
{
    const dsc_label_loss_args *a = r->args;
    const float *labels = (const float *)a->labels + r->row * a->classes;
    const double share = 1 / (double)a->classes;
    for (int64_t c = 0; c < a->classes; c++) {
        const double x = logit(r, c), y = (double)labels[c];
        r->loss += (softplus(x) - x * y) * share;
        r->wrong = r->wrong || (x > 0) != (y > 0.5);
        give(r, c, (sigmoid(x) - y) * share);
    }
}

static void rows(const void *args, int64_t first, int64_t last)
{
    const dsc_label_loss_args *a = args;
    for (int64_t i = first; i < last; i++) {
        label_row r = { .args = a, .row = i, .at = i * a->stride };
        if (a->kind == DSC_LABELS_CLASS)
            classify(&r);
        else if (a->kind == DSC_LABELS_NUMBERS)
            compare_numbers(&r);
        else
            compare_set(&r);
        a->losses[i] = (float)(a->mark_wrong && r.wrong ? -r.loss : r.loss);
    }
}

static dsc_status run(const void *args, const dsc_cpu_threads *pool, dsc_error *err)
{
    const dsc_label_loss_args *a = args;
    DSC_ASSERT(a->kind != DSC_LABELS_NONE);
    DSC_ASSERT(a->classes >= 1);
    DSC_ASSERT(a->stride >= a->classes);
    DSC_ASSERT(a->smoothing >= 0 && a->smoothing <= 1);
    DSC_ASSERT(a->mixed >= 0 && a->mixed <= 1);
    DSC_ASSERT(a->mixed == 0 || a->label_before != NULL);
    DSC_TRY(dsc_range_dtype_check("LABEL_LOSS", a->dtype, err));
    dsc_range_run(pool, a->rows, rows, a);
    return DSC_OK;
}

void dsc_label_loss_init(dsc_kernel_table *table, uint32_t caps)
{
    (void)caps;
    table->fn[DSC_KERNEL_LABEL_LOSS] = run;
}
