/* cross_entropy.c - softmax, loss and dlogits against double.
 *
 * u = 2^-24. An exponential is off by 2 ulp (4 u) and by the rounding of its argument, u |x - max|. The sum of V
 * positive terms has chains of V / 16 additions whose roundings wander: 4 sqrt(V / 16 + 16) u.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/checkkern/ck.h"

#include <math.h>

static const double u = 0x1p-24;

typedef struct row_truth {
    double max, sum, loss, sum_off; /* sum_off: relative */
} row_truth;

static row_truth truth_of(const dsc_cross_entropy_args *a, int64_t r)
{
    row_truth t = { .max = -(double)INFINITY };
    for (int64_t v = 0; v < a->vocab; v++)
        t.max = fmax(t.max, ck_start(a->logits, r * a->stride + v));
    double depth = 0;
    for (int64_t v = 0; v < a->vocab; v++) {
        const double x = ck_start(a->logits, r * a->stride + v) - t.max;
        t.sum += exp(x);
        depth += exp(x) * fmin(-x, 104);
    }
    t.loss = log(t.sum) - (ck_start(a->logits, r * a->stride + a->targets[r]) - t.max);
    t.sum_off = u * (4 + depth / t.sum + 4 * sqrt((double)a->vocab / 16 + 16));
    return t;
}

/* Exactly 0, although the row's logits are NaN. Without a gradient the logits stay. */
static void verify_masked_row(const dsc_cross_entropy_args *a, int64_t r)
{
    ck_near(a->losses, r, 0, 0);
    for (int64_t v = 0; v < a->stride && a->write_gradient; v++)
        ck_near(a->logits, r * a->stride + v, 0, 0);
    for (int64_t v = 0; v < a->vocab && !a->write_gradient; v++)
        if (!isnan(ck_get(a->logits, r * a->stride + v)))
            ck_fail("logit %lld of row %lld, which is not counted, was written", (long long)v, (long long)r);
}

static void verify_row(const dsc_cross_entropy_args *a, int64_t r)
{
    if (a->targets[r] < 0) {
        verify_masked_row(a, r);
        return;
    }
    const row_truth t = truth_of(a, r);
    const double below = ck_start(a->logits, r * a->stride + a->targets[r]) - t.max;
    ck_near(a->losses, r, t.loss, t.sum_off + 2 * u * (fabs(log(t.sum)) + fabs(below) + fabs(t.loss)));
    for (int64_t v = 0; v < a->stride; v++) {
        const int64_t i = r * a->stride + v;
        const double start = ck_start(a->logits, i), scale = (double)a->scale;
        if (!a->write_gradient || v >= a->vocab) {
            ck_near(a->logits, i, a->write_gradient ? 0 : start, 0);
            continue;
        }
        const double p = exp(start - t.max) / t.sum, is_target = v == a->targets[r] ? 1 : 0;
        const double expected = (p - is_target) * scale;
        /* three more roundings: scale / sum, the product, or p / sum, p - 1, times scale */
        const double off = p * (t.sum_off + u * (7 + fmin(t.max - start, 104))) + is_target * 2 * u;
        ck_near(a->logits, i, expected, scale * off + 0x1p-148 + ck_rounding(a->dtype, expected));
    }
}

static void verify(const void *args)
{
    const dsc_cross_entropy_args *a = args;
    for (int64_t r = 0; r < a->rows; r++)
        verify_row(a, r);
}

static void check(int64_t rows, int64_t vocab, int64_t stride, dsc_dtype dtype, bool gradient, double spread)
{
    if (!ck_case("cross_entropy %s rows=%lld V=%lld stride=%lld spread=%g%s", ck_dtype_text(dtype), (long long)rows,
                 (long long)vocab, (long long)stride, spread, gradient ? "" : " loss only"))
        return;
    void *logits = ck_buf(CK_INOUT, dtype, rows * stride, "logits");
    float *losses = ck_buf(CK_OUT, DSC_F32, rows, "losses");
    const int32_t *targets = ck_buf(CK_IN, DSC_I32, rows, "targets");
    ck_normal(logits, 0, spread);
    ck_int(targets, 0, (int32_t)vocab - 1);
    for (int64_t r = 0; r < rows; r++) { /* the maximum early, late, in the target; beyond the vocabulary: no logits */
        const int64_t at = r % 4 == 0 ? 0 : r % 4 == 1 ? vocab - 1 : r % 4 == 2 ? (int64_t)targets[r] : vocab / 2;
        ck_set(logits, r * stride + at, 5 * spread);
        for (int64_t v = vocab; v < stride; v++)
            ck_set(logits, r * stride + v, 1e6);
    }
    const dsc_cross_entropy_args args = { .logits = logits,
                                          .losses = losses,
                                          .targets = targets,
                                          .rows = rows,
                                          .vocab = vocab,
                                          .stride = stride,
                                          .scale = 0.0078125f * 1.5f,
                                          .write_gradient = gradient,
                                          .dtype = dtype };
    ck_kernel(DSC_KERNEL_CROSS_ENTROPY, &args, sizeof args, verify);
}

/* The second half of the rows repeats the first half, and some of its targets are not counted. The counted ones have
 * the same bits in both halves. */
static void verify_masked(const void *args)
{
    const dsc_cross_entropy_args *a = args;
    const int64_t half = a->rows / 2;
    verify(args);
    for (int64_t r = 0; r < half; r++) {
        if (a->targets[half + r] < 0)
            continue;
        bool same = a->losses[r] == a->losses[half + r];
        for (int64_t v = 0; v < a->vocab; v++)
            same = same && ck_get(a->logits, r * a->stride + v) == ck_get(a->logits, (half + r) * a->stride + v);
        if (!same)
            ck_fail("row %lld changes when other rows are not counted", (long long)r);
    }
}

/* share: of the second half's targets that are not counted */
static void check_masked(int64_t half, int64_t vocab, int64_t stride, dsc_dtype dtype, bool gradient, double share)
{
    if (!ck_case("cross_entropy masked %s rows=%lld V=%lld stride=%lld share=%g%s", ck_dtype_text(dtype),
                 (long long)half, (long long)vocab, (long long)stride, share, gradient ? "" : " loss only"))
        return;
    void *logits = ck_buf(CK_INOUT, dtype, 2 * half * stride, "logits");
    float *losses = ck_buf(CK_OUT, DSC_F32, 2 * half, "losses");
    int32_t *targets = ck_buf(CK_IN, DSC_I32, 2 * half, "targets");
    ck_normal(logits, 0, 2);
    ck_int(targets, 0, (int32_t)vocab - 1);
    for (int64_t r = 0; r < half; r++) {
        const bool masked = (double)(ck_random() >> 8) * 0x1p-24 < share;
        targets[half + r] = masked ? r % 2 == 0 ? -1 : -100 : targets[r];
        for (int64_t v = 0; v < stride; v++)
            ck_set(logits, (half + r) * stride + v, masked ? (double)NAN : ck_get(logits, r * stride + v));
    }
    const dsc_cross_entropy_args args = { .logits = logits,
                                          .losses = losses,
                                          .targets = targets,
                                          .rows = 2 * half,
                                          .vocab = vocab,
                                          .stride = stride,
                                          .scale = 0.0078125f * 1.5f,
                                          .write_gradient = gradient,
                                          .dtype = dtype };
    ck_kernel(DSC_KERNEL_CROSS_ENTROPY, &args, sizeof args, verify_masked);
}

static void check_masks(void)
{
    static const int64_t vocabs[] = { 1, 16, 17, 65, 311, 2049 };
    static const double shares[] = { 0, 0.5, 0.9, 1 };
    for (size_t v = 0; v < DSC_COUNT(vocabs); v++)
        for (dsc_dtype dtype = DSC_F32; dtype <= DSC_F16; dtype++)
            for (size_t s = 0; s < DSC_COUNT(shares); s++)
                check_masked(6, vocabs[v], vocabs[v] + (int64_t)(v % 3), dtype, (v + s) % 3 != 0, shares[s]);
}

static double loss_at(const dsc_cross_entropy_args *a, int64_t r, int64_t at, double by)
{
    double sum = 0;
    for (int64_t v = 0; v < a->vocab; v++)
        sum += exp(ck_start(a->logits, r * a->stride + v) + (v == at ? by : 0));
    return log(sum) - (ck_start(a->logits, r * a->stride + a->targets[r]) + (a->targets[r] == at ? by : 0));
}

static void verify_differences(const void *args)
{
    const dsc_cross_entropy_args *a = args;
    const double h = 1e-4;
    for (int64_t r = 0; r < a->rows; r++)
        for (int64_t v = 0; v < a->vocab; v++) {
            const double slope = (loss_at(a, r, v, h) - loss_at(a, r, v, -h)) / (2 * h);
            ck_near(a->logits, r * a->stride + v, slope * (double)a->scale, 1e-6);
        }
}

/* -Inf is a probability of 0 wherever it stands; NaN and +Inf must not hide. */
static void verify_special(const void *args)
{
    const dsc_cross_entropy_args *a = args;
    ck_near(a->losses, 0, log(3), 4 * u * log(3));
    for (int64_t v = 0; v < a->vocab; v++)
        ck_near(a->logits, v, v == a->vocab - 3 ? -2.0 / 3 : v > a->vocab - 3 ? 1.0 / 3 : 0, 4 * u);
    for (int64_t r = 1; r < a->rows; r++)
        if (!isnan(a->losses[r]))
            ck_fail("loss of row %lld is %g, not NaN", (long long)r, (double)a->losses[r]);
}

static void check_special(void)
{
    enum { ROWS = 4, VOCAB = 5003 };
    if (!ck_case("cross_entropy Inf and NaN"))
        return;
    float *logits = ck_buf(CK_INOUT, DSC_F32, ROWS * VOCAB, "logits");
    float *losses = ck_buf(CK_OUT, DSC_F32, ROWS, "losses");
    const int32_t *targets = ck_buf(CK_IN, DSC_I32, ROWS, "targets");
    for (int64_t i = 0; i < ROWS * VOCAB; i++)
        logits[i] = i < VOCAB - 3 ? -INFINITY : 1.5f;
    for (int64_t r = 0; r < ROWS; r++)
        ck_set(targets, r, VOCAB - 3);
    logits[1 * VOCAB + 100] = NAN;
    logits[2 * VOCAB + VOCAB - 1] = NAN;
    logits[3 * VOCAB + 3000] = INFINITY;
    const dsc_cross_entropy_args args = { .logits = logits,
                                          .losses = losses,
                                          .targets = targets,
                                          .rows = ROWS,
                                          .vocab = VOCAB,
                                          .stride = VOCAB,
                                          .scale = 1,
                                          .write_gradient = true,
                                          .dtype = DSC_F32 };
    ck_kernel(DSC_KERNEL_CROSS_ENTROPY, &args, sizeof args, verify_special);
}

static void bench(dsc_dtype dtype)
{
    const int64_t rows = ck_bench_size(256, 4096), vocab = 50304, bytes = (int64_t)dsc_dtype_bytes(dtype);
    if (!ck_case("bench cross_entropy %s %lldx50304", ck_dtype_text(dtype), (long long)rows))
        return;
    void *logits = ck_buf(CK_INOUT, dtype, rows * vocab, "logits");
    const int32_t *targets = ck_buf(CK_IN, DSC_I32, rows, "targets");
    for (int64_t i = 0; i < rows * vocab; i++)
        ck_set(logits, i, (double)(i % 97) * 0.1);
    ck_int(targets, 0, (int32_t)vocab - 1);
    const dsc_cross_entropy_args args = { .logits = logits,
                                          .losses = ck_buf(CK_OUT, DSC_F32, rows, "losses"),
                                          .targets = targets,
                                          .rows = rows,
                                          .vocab = vocab,
                                          .stride = vocab,
                                          .scale = 1.0f / 256,
                                          .write_gradient = true,
                                          .dtype = dtype };
    ck_bench(DSC_KERNEL_CROSS_ENTROPY, &args, sizeof args, 2 * rows * vocab * bytes, 0, false);
}

void ck_cross_entropy(void)
{
    static const int64_t vocabs[] = { 1, 2, 15, 16, 17, 63, 64, 65, 311, 2047, 2048, 2049, 4100, 50257 };
    for (size_t v = 0; v < DSC_COUNT(vocabs); v++)
        for (dsc_dtype dtype = DSC_F32; dtype <= DSC_F16; dtype++) {
            const int64_t padded = vocabs[v] == 50257 ? 50304 : vocabs[v] + (int64_t)(v % 3);
            check(vocabs[v] > 5000 ? 3 : 5, vocabs[v], padded, dtype, true, v % 2 == 0 ? 1 : 8);
            check(3, vocabs[v], padded, dtype, false, 3);
        }
    check(5, 311, 311, DSC_F32, true, 60); /* most probabilities underflow */
    check(0, 311, 320, DSC_BF16, true, 1);
    check_masks();
    check_special();
    if (ck_case("cross_entropy against differences")) {
        float *logits = ck_buf(CK_INOUT, DSC_F32, 3 * 9, "logits"), *losses = ck_buf(CK_OUT, DSC_F32, 3, "losses");
        const int32_t *targets = ck_buf(CK_IN, DSC_I32, 3, "targets");
        ck_normal(logits, 0, 1);
        ck_int(targets, 0, 6);
        const dsc_cross_entropy_args args = { .logits = logits,
                                              .losses = losses,
                                              .targets = targets,
                                              .rows = 3,
                                              .vocab = 7,
                                              .stride = 9,
                                              .scale = 0.5f,
                                              .write_gradient = true,
                                              .dtype = DSC_F32 };
        ck_kernel(DSC_KERNEL_CROSS_ENTROPY, &args, sizeof args, verify_differences);
    }
    if (ck_benching()) {
        bench(DSC_F32);
        bench(DSC_BF16);
    }
}
