/* cross_entropy.c - softmax, loss and dlogits against double.
 *
 * u = 2^-24. An exponential is off by 2 ulp (4 u) and by the rounding of its argument, u |x - max|. The sum of V
 * positive terms has chains of V / 16 additions whose roundings wander: 4 sqrt(V / 16 + 16) u. GPUs take powers of 2 of
 * x log2(e), whose constant is off by 0.23 u, and powers below 2^-126 are 0 there. A soft cap's tanh is off by 2 ulp of
 * itself, on GPUs and in 16 bits by a few u of 1.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/checkkern/ck.h"

#include <math.h>

static const double u = 0x1p-24;

/* Error of the argument of an exponential `below` the maximum; what is below 104 is 0 in fp32. */
static double argument_off(double below)
{
    return u * fmin(below, 104) * (ck_on_gpu() ? 1.23 : 1);
}

static double power_least(void)
{
    return ck_on_gpu() ? 0x1p-126 : 0;
}

/* The logit that the softmax sees, its slope, and how far those of the kernel may be off. */
typedef struct logit {
    double z, slope, z_off, slope_off;
} logit;

static logit logit_at(const dsc_cross_entropy_args *a, int64_t i)
{
    const double x = ck_start(a->logits, i), scale = a->logit_scale > 0 ? (double)a->logit_scale : 1;
    const double cap = (double)a->softcap, t = cap > 0 ? tanh(scale * x / cap) : 0;
    if (!dsc_logits_bend(a))
        return (logit) { .z = x, .slope = 1 };
    if (cap == 0)
        return (logit) { .z = scale * x, .slope = scale, .z_off = isfinite(x) ? u * fabs(scale * x) : 0 };
    const double z_off = u * (6 * fabs(cap * t) + (ck_on_gpu() ? 16 : 3) * cap);
    return (logit) {
        .z = cap * t, .slope = scale * (1 - t * t), .z_off = z_off, .slope_off = scale * (2 * z_off / cap + 6 * u)
    };
}

typedef struct row_truth {
    double max, sum, loss, sum_off; /* sum_off: relative */
    double max_off, loss_off;
} row_truth;

static row_truth truth_of(const dsc_cross_entropy_args *a, int64_t r)
{
    row_truth t = { .max = -(double)INFINITY };
    for (int64_t v = 0; v < a->vocab; v++) {
        const logit at = logit_at(a, r * a->stride + v);
        t.max = fmax(t.max, at.z);
        t.max_off = fmax(t.max_off, at.z_off);
    }
    double depth = 0;
    for (int64_t v = 0; v < a->vocab; v++) {
        const double x = logit_at(a, r * a->stride + v).z - t.max;
        t.sum += exp(x);
        depth += exp(x) * (argument_off(-x) + 2 * t.max_off);
    }
    t.loss = log(t.sum) - (logit_at(a, r * a->stride + a->targets[r]).z - t.max);
    t.loss_off = 2 * t.max_off;
    t.sum_off = u * (4 + 4 * sqrt((double)a->vocab / 16 + 16)) + depth / t.sum;
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
    const double below = logit_at(a, r * a->stride + a->targets[r]).z - t.max;
    ck_near(a->losses, r, t.loss, t.sum_off + t.loss_off + 2 * u * (fabs(log(t.sum)) + fabs(below) + fabs(t.loss)));
    for (int64_t v = 0; v < a->stride; v++) {
        const int64_t i = r * a->stride + v;
        const double start = ck_start(a->logits, i);
        const double scale = (double)(a->weights != NULL ? a->scale * a->weights[r] : a->scale);
        if (!a->write_gradient || v >= a->vocab) {
            ck_near(a->logits, i, a->write_gradient ? 0 : start, 0);
            continue;
        }
        const logit at = logit_at(a, i);
        const double p = exp(at.z - t.max) / t.sum, is_target = v == a->targets[r] ? 1 : 0;
        const double expected = (p - is_target) * scale * at.slope;
        /* three more roundings: scale / sum, the product, or p / sum, p - 1, times scale */
        const double off = p * (t.sum_off + u * 7 + argument_off(t.max - at.z) + at.z_off + t.max_off) + power_least() +
                           is_target * 2 * u;
        const double slopes =
            at.slope * (off + 2 * u * fabs(p - is_target)) + at.slope_off * (fabs(p - is_target) + off);
        ck_near(a->logits, i, expected,
                fabs(scale) * (dsc_logits_bend(a) ? slopes : off) + 0x1p-148 + ck_rounding(a->dtype, expected));
    }
}

static void verify(const void *args)
{
    const dsc_cross_entropy_args *a = args;
    for (int64_t r = 0; r < a->rows; r++)
        verify_row(a, r);
}

/* Rows of logits between plain ones and the loss. */
typedef struct bend {
    float scale, cap;
} bend;

/* The case that has begun. */
static void run_bent(int64_t rows, int64_t vocab, int64_t stride, dsc_dtype dtype, bool gradient, double spread,
                     bool weighted, bend by)
{
    void *logits = ck_buf(CK_INOUT, dtype, rows * stride, "logits");
    float *losses = ck_buf(CK_OUT, DSC_F32, rows, "losses");
    const int32_t *targets = ck_buf(CK_IN, DSC_I32, rows, "targets");
    ck_normal(logits, 0, spread);
    ck_int(targets, 0, (int32_t)vocab - 1);
    float *const weights = weighted ? ck_buf(CK_IN, DSC_F32, rows, "weights") : NULL;
    for (int64_t r = 0; r < rows && weighted; r++) /* of either sign, and 0 */
        weights[r] = 0.37f * (float)(r % 5 - 2);
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
                                          .dtype = dtype,
                                          .weights = weights,
                                          .logit_scale = by.scale,
                                          .softcap = by.cap };
    ck_kernel(DSC_KERNEL_CROSS_ENTROPY, &args, sizeof args, verify);
}

static void run_weighted(int64_t rows, int64_t vocab, int64_t stride, dsc_dtype dtype, bool gradient, double spread,
                         bool weighted)
{
    run_bent(rows, vocab, stride, dtype, gradient, spread, weighted, (bend) { 0, 0 });
}

static void run(int64_t rows, int64_t vocab, int64_t stride, dsc_dtype dtype, bool gradient, double spread)
{
    run_weighted(rows, vocab, stride, dtype, gradient, spread, false);
}

static void check_weights(int64_t rows, int64_t vocab, int64_t stride, dsc_dtype dtype, bool gradient, bool aligned)
{
    if (!ck_case("cross_entropy weights %s rows=%lld V=%lld stride=%lld%s%s", ck_dtype_text(dtype), (long long)rows,
                 (long long)vocab, (long long)stride, aligned ? " kept" : "", gradient ? "" : " loss only"))
        return;
    if (aligned)
        ck_align();
    run_weighted(rows, vocab, stride, dtype, gradient, 3, true);
}

static void check(int64_t rows, int64_t vocab, int64_t stride, dsc_dtype dtype, bool gradient, double spread)
{
    if (ck_case("cross_entropy %s rows=%lld V=%lld stride=%lld spread=%g%s", ck_dtype_text(dtype), (long long)rows,
                (long long)vocab, (long long)stride, spread, gradient ? "" : " loss only"))
        run(rows, vocab, stride, dtype, gradient, spread);
}

static void check_bent(int64_t rows, int64_t vocab, int64_t stride, dsc_dtype dtype, double spread, bend by)
{
    for (int gradient = 0; gradient < 2; gradient++) {
        if (!ck_case("cross_entropy bent %s rows=%lld V=%lld stride=%lld scale=%g cap=%g%s", ck_dtype_text(dtype),
                     (long long)rows, (long long)vocab, (long long)stride, (double)by.scale, (double)by.cap,
                     gradient ? "" : " loss only"))
            continue;
        if (stride % 8 == 0)
            ck_align();
        run_bent(rows, vocab, stride, dtype, gradient != 0, spread, stride % 16 == 0, by);
    }
}

static void check_all_bent(void)
{
    for (dsc_dtype dtype = DSC_F32; dtype <= DSC_F16; dtype++) {
        check_bent(5, 311, 312, dtype, 8, (bend) { 0, 30 });
        check_bent(4, 4100, 4160, dtype, 3, (bend) { 0.0625f, 0 });
        check_bent(4, 2049, 2051, dtype, 3, (bend) { 0.25f, 15 });
        check_bent(3, 17, 20, dtype, 20, (bend) { 4, 2 }); /* most of them at the cap */
    }
    check_bent(2, 50257, 50304, DSC_BF16, 5, (bend) { 0, 30 });
}

/* Rows of whole 16-byte vectors. GPUs keep them in shared memory: two rows a multiprocessor,
 * one row, or a part of one. */
static void check_kept(int64_t rows, int64_t vocab, int64_t stride, dsc_dtype dtype, bool gradient)
{
    if (!ck_case("cross_entropy kept %s rows=%lld V=%lld stride=%lld%s", ck_dtype_text(dtype), (long long)rows,
                 (long long)vocab, (long long)stride, gradient ? "" : " loss only"))
        return;
    ck_align();
    run(rows, vocab, stride, dtype, gradient, 3);
}

static void check_all_kept(void)
{
    static const int64_t vocabs[] = { 1, 7, 8, 9, 311, 4096, 16391 };
    for (dsc_dtype dtype = DSC_F32; dtype <= DSC_F16; dtype++)
        for (size_t v = 0; v < DSC_COUNT(vocabs); v++)
            check_kept(4, vocabs[v], dsc_align_up(vocabs[v], 8) + (int64_t)(v % 2) * 64, dtype, v % 3 != 2);
    check_kept(3, 50257, 50304, DSC_BF16, true);
    check_kept(3, 50304, 50304, DSC_F16, true);
    check_kept(2, 50257, 50304, DSC_F32, true);
    check_kept(2, 80000, 80000, DSC_BF16, true);   /* one row a multiprocessor */
    check_kept(3, 128256, 128256, DSC_BF16, true); /* more than any GPU keeps: Llama 3's, Qwen's */
    check_kept(2, 151643, 151680, DSC_BF16, true);
    check_kept(2, 128256, 128256, DSC_BF16, false);
    check_kept(2, 64001, 64064, DSC_F32, true);
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

static double bent(const dsc_cross_entropy_args *a, double x)
{
    const double cap = (double)a->softcap, scale = a->logit_scale > 0 ? (double)a->logit_scale : 1;
    return cap > 0 ? cap * tanh(scale * x / cap) : scale * x;
}

static double loss_at(const dsc_cross_entropy_args *a, int64_t r, int64_t at, double by)
{
    double sum = 0;
    for (int64_t v = 0; v < a->vocab; v++)
        sum += exp(bent(a, ck_start(a->logits, r * a->stride + v) + (v == at ? by : 0)));
    return log(sum) - bent(a, ck_start(a->logits, r * a->stride + a->targets[r]) + (a->targets[r] == at ? by : 0));
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

/* -Inf is a probability of 0 wherever it stands; NaN and +Inf must not hide. Columns of padding are 0 also there. */
static void verify_special(const void *args)
{
    const dsc_cross_entropy_args *a = args;
    ck_near(a->losses, 0, log(3), 4 * u * log(3));
    for (int64_t v = 0; v < a->vocab; v++) {
        const double expected = v == a->vocab - 3 ? -2.0 / 3 : v > a->vocab - 3 ? 1.0 / 3 : 0;
        ck_near(a->logits, v, expected, 4 * u + ck_rounding(a->dtype, expected));
    }
    for (int64_t r = 1; r < a->rows; r++)
        if (!isnan(a->losses[r]))
            ck_fail("loss of row %lld is %g, not NaN", (long long)r, (double)a->losses[r]);
    for (int64_t r = 0; r < a->rows; r++)
        for (int64_t v = a->vocab; v < a->stride; v++)
            ck_near(a->logits, r * a->stride + v, 0, 0);
}

static void check_special(dsc_dtype dtype, int64_t stride, bool aligned)
{
    enum { ROWS = 5, VOCAB = 5003 };
    if (!ck_case("cross_entropy Inf and NaN %s stride=%lld%s", ck_dtype_text(dtype), (long long)stride,
                 aligned ? " kept" : ""))
        return;
    if (aligned)
        ck_align();
    void *logits = ck_buf(CK_INOUT, dtype, ROWS * stride, "logits");
    float *losses = ck_buf(CK_OUT, DSC_F32, ROWS, "losses");
    const int32_t *targets = ck_buf(CK_IN, DSC_I32, ROWS, "targets");
    for (int64_t r = 0; r < ROWS; r++) {
        for (int64_t v = 0; v < stride; v++)
            ck_set(logits, r * stride + v, v < VOCAB - 3 || v >= VOCAB ? -(double)INFINITY : 1.5);
        ck_set(targets, r, VOCAB - 3);
    }
    ck_set(logits, 1 * stride + 100, (double)NAN);
    ck_set(logits, 2 * stride + VOCAB - 1, (double)NAN);
    ck_set(logits, 3 * stride + 3000, (double)INFINITY);
    for (int64_t v = 0; v < VOCAB; v++)
        ck_set(logits, 4 * stride + v, -(double)INFINITY); /* no probability at all */
    const dsc_cross_entropy_args args = { .logits = logits,
                                          .losses = losses,
                                          .targets = targets,
                                          .rows = ROWS,
                                          .vocab = VOCAB,
                                          .stride = stride,
                                          .scale = 1,
                                          .write_gradient = true,
                                          .dtype = dtype };
    ck_kernel(DSC_KERNEL_CROSS_ENTROPY, &args, sizeof args, verify_special);
}

static void bench(dsc_dtype dtype, int64_t rows_on_gpu, int64_t vocab, bend by)
{
    const int64_t rows = ck_bench_size(256, rows_on_gpu), bytes = (int64_t)dsc_dtype_bytes(dtype);
    if (!ck_case("bench cross_entropy %s %lldx%lld%s", ck_dtype_text(dtype), (long long)rows, (long long)vocab,
                 by.cap > 0     ? " softcap"
                 : by.scale > 0 ? " scaled"
                                : ""))
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
                                          .dtype = dtype,
                                          .logit_scale = by.scale,
                                          .softcap = by.cap };
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
    check(20, 2048, 2048, DSC_F32, true, 20); /* some are denormal */
    check(0, 311, 320, DSC_BF16, true, 1);
    for (dsc_dtype dtype = DSC_F32; dtype <= DSC_F16; dtype++) {
        check_weights(7, 311, 312, dtype, true, false);
        check_weights(6, 4100, 4160, dtype, true, true);
        check_weights(5, 65, 66, dtype, false, false);
    }
    check_masks();
    check_all_bent();
    check_all_kept();
    check_special(DSC_F32, 5003, false);
    check_special(DSC_BF16, 5008, true);
    check_special(DSC_F16, 5056, true);
    check_special(DSC_F32, 5056, true);
    for (int i = 0; i < 3; i++) {
        static const bend bends[] = { { 0, 0 }, { 0.75f, 0 }, { 1.5f, 2 } };
        if (!ck_case("cross_entropy against differences scale=%g cap=%g", (double)bends[i].scale, (double)bends[i].cap))
            continue;
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
                                              .dtype = DSC_F32,
                                              .logit_scale = bends[i].scale,
                                              .softcap = bends[i].cap };
        ck_kernel(DSC_KERNEL_CROSS_ENTROPY, &args, sizeof args, verify_differences);
    }
    if (ck_benching()) {
        bench(DSC_F32, 4096, 50304, (bend) { 0, 0 });
        bench(DSC_BF16, 4096, 50304, (bend) { 0, 0 });
        bench(DSC_BF16, 576, 50304, (bend) { 0, 0 });
        bench(DSC_BF16, 4096, 128256, (bend) { 0, 0 });
        bench(DSC_BF16, 4096, 50304, (bend) { 0.0625f, 0 });
        bench(DSC_BF16, 4096, 50304, (bend) { 0, 30 });
    }
}
