/* label_loss.c - losses of labels against their formulas in double; gradients also against differences of losses.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/checkkern/ck.h"

#include <math.h>

/* The loss of a row whose logit `changed` is `by` larger. */
static double loss_of(const dsc_label_loss_args *a, int64_t row, int64_t changed, double by)
{
    double sum = 0, own = 0;
    const int32_t label = a->kind == DSC_LABELS_CLASS ? ((const int32_t *)a->labels)[row] : -1;
    for (int64_t c = 0; c < a->classes; c++) {
        const double x = ck_start(a->logits, row * a->stride + c) + (c == changed ? by : 0);
        if (a->kind == DSC_LABELS_CLASS) {
            sum += exp(x);
            own = c == label ? x : own;
            continue;
        }
        const double y = (double)((const float *)a->labels)[row * a->classes + c];
        if (a->kind == DSC_LABELS_NUMBERS)
            sum += (x - y) * (x - y) / (double)a->classes;
        else
            sum += -(y * log(1 / (1 + exp(-x))) + (1 - y) * log(1 / (1 + exp(x)))) / (double)a->classes;
    }
    if (a->kind != DSC_LABELS_CLASS)
        return sum;
    const double s = (double)a->smoothing;
    double all = 0;
    for (int64_t c = 0; c < a->classes; c++)
        all += log(sum) - (ck_start(a->logits, row * a->stride + c) + (c == changed ? by : 0));
    if (label >= 0 && a->mixed > 0) {
        const int64_t other = row > 0 ? ((const int32_t *)a->labels)[row - 1] : *a->label_before;
        const double its = ck_start(a->logits, row * a->stride + other) + (other == changed ? by : 0);
        own = (1 - (double)a->mixed) * own + (double)a->mixed * its;
    }
    return label < 0 ? 0 : (1 - s) * (log(sum) - own) + s * all / (double)a->classes;
}

static bool is_wrong(const dsc_label_loss_args *a, int64_t row)
{
    bool wrong = false;
    const int32_t label = a->kind == DSC_LABELS_CLASS ? ((const int32_t *)a->labels)[row] : -1;
    for (int64_t c = 0; c < a->classes; c++) {
        const double x = ck_start(a->logits, row * a->stride + c);
        if (a->kind == DSC_LABELS_CLASS && label >= 0) {
            const double own = ck_start(a->logits, row * a->stride + label);
            wrong = wrong || x > own || (x == own && c < label);
        } else if (a->kind == DSC_LABELS_SET) {
            wrong = wrong || (x > 0) != (((const float *)a->labels)[row * a->classes + c] > 0.5f);
        }
    }
    return wrong;
}

/* Logits before that of the label. */
static void check_place(const dsc_label_loss_args *a, int64_t row)
{
    const int32_t label = ((const int32_t *)a->labels)[row];
    int32_t before = 0;
    for (int64_t c = 0; c < a->classes && label >= 0; c++) {
        const double x = ck_start(a->logits, row * a->stride + c), own = ck_start(a->logits, row * a->stride + label);
        before += x > own || (x == own && c < label);
    }
    if (a->places[row] != before)
        ck_fail("places[%lld] = %d, expected %d", (long long)row, (int)a->places[row], (int)before);
}

static void verify(const void *args)
{
    const dsc_label_loss_args *a = args;
    const double h = 1e-4;
    for (int64_t r = 0; r < a->rows; r++) {
        if (a->places != NULL)
            check_place(a, r);
        const double loss = loss_of(a, r, -1, 0), marked = a->mark_wrong && is_wrong(a, r) ? -loss : loss;
        ck_near(a->losses, r, marked, 1e-6 * (1 + fabs(loss)));
        for (int64_t c = 0; c < a->classes && a->write_gradient; c++) {
            const double slope = (loss_of(a, r, c, h) - loss_of(a, r, c, -h)) / (2 * h), d = slope * (double)a->scale;
            ck_near(a->logits, r * a->stride + c, d,
                    1e-6 * fabs((double)a->scale) + ck_rounding(a->dtype, d) + ck_spacing(DSC_F32, d));
        }
    }
    ck_same_on_cpu(a->losses);
    if (a->write_gradient)
        ck_same_on_cpu(a->logits);
}

static const void *labels_of(int64_t rows, int64_t classes, dsc_label_kind kind, bool mixed)
{
    if (kind == DSC_LABELS_CLASS) {
        int32_t *labels = ck_buf(CK_IN, DSC_I32, rows, "labels");
        ck_int(labels, mixed ? 0 : -1, (int32_t)classes - 1);
        return labels;
    }
    float *labels = ck_buf(CK_IN, DSC_F32, rows * classes, "labels");
    ck_normal(labels, 0, 1);
    for (int64_t i = 0; i < rows * classes && kind == DSC_LABELS_SET; i++)
        labels[i] = labels[i] > 0.3f ? 1 : 0;
    return labels;
}

static void check(int64_t rows, int64_t classes, dsc_label_kind kind, dsc_dtype dtype, bool gradient, float smoothing,
                  float mixed)
{
    static const char *const names[] = { "none", "class", "numbers", "set" };
    if (!ck_case("label_loss %s %s R=%lld N=%lld%s%s%s", names[kind], ck_dtype_text(dtype), (long long)rows,
                 (long long)classes, gradient ? " gradient" : "", smoothing > 0 ? " smoothed" : "",
                 mixed > 0 ? " mixed" : ""))
        return;
    const int64_t stride = dsc_align_up(classes, 64);
    void *logits = ck_buf(gradient ? CK_INOUT : CK_IN, dtype, rows * stride, "logits");
    float *losses = ck_buf(CK_OUT, DSC_F32, rows, "losses");
    ck_normal(logits, 0, 2);
    ck_gaps(logits, rows, classes, stride);
    const void *const labels = labels_of(rows, classes, kind, mixed > 0);
    const dsc_label_loss_args args = { .logits = logits,
                                       .losses = losses,
                                       .labels = labels,
                                       .rows = rows,
                                       .classes = classes,
                                       .stride = stride,
                                       .scale = 0.25f,
                                       .smoothing = smoothing,
                                       .mixed = mixed,
                                       .label_before =
                                           mixed > 0 ? (const int32_t *)labels + dsc_max_i64(rows, 1) - 1 : NULL,
                                       .places = kind == DSC_LABELS_CLASS && (!gradient || smoothing > 0)
                                                     ? ck_buf(CK_OUT, DSC_I32, rows, "places")
                                                     : NULL,
                                       .write_gradient = gradient,
                                       .mark_wrong = !gradient,
                                       .kind = kind,
                                       .dtype = dtype };
    ck_kernel(DSC_KERNEL_LABEL_LOSS, &args, sizeof args, verify);
}

void ck_label_loss(void)
{
    static const int64_t shapes[][2] = { { 1, 1 }, { 7, 2 }, { 33, 3 }, { 5, 70 }, { 0, 2 } };
    for (dsc_dtype dtype = DSC_F32; dtype <= DSC_F16; dtype++)
        for (dsc_label_kind kind = DSC_LABELS_CLASS; kind <= DSC_LABELS_SET; kind++)
            for (size_t s = 0; s < DSC_COUNT(shapes); s++)
                for (int gradient = 0; gradient < 2; gradient++) {
                    check(shapes[s][0], shapes[s][1], kind, dtype, gradient != 0, 0, 0);
                    if (kind != DSC_LABELS_CLASS)
                        continue;
                    check(shapes[s][0], shapes[s][1], kind, dtype, gradient != 0, s % 2 == 0 ? 0.1f : 0.75f, 0);
                    check(shapes[s][0], shapes[s][1], kind, dtype, gradient != 0, s % 2 == 0 ? 0.1f : 0, 0.3f);
                }
}
