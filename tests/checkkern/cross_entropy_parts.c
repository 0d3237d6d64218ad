/* cross_entropy_parts.c - parts of softmax and loss on ranks that share out the vocabulary, against double.
 *
 * A rank has columns [first, first + vocab) of a longer row. Numbers of the other ranks are made in double here. GPUs
 * have exponents to the base 2. Bounds are those of cross_entropy.c; the parts' own roundings to fp32 add a few u.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/checkkern/ck.h"

#include <math.h>

enum { RANKS = 3, OWN = 1 };

static const double u = 0x1p-24;

static double base_log(void) { return ck_on_gpu() ? log(2) : 1; }

/* The logit that the softmax sees, and its slope. */
static double z_of(const dsc_cross_entropy_args *a, double x, double *slope)
{
    const double scale = a->logit_scale > 0 ? (double)a->logit_scale : 1, cap = (double)a->softcap;
    const double t = cap > 0 ? tanh(scale * x / cap) : 0;
    *slope = cap > 0 ? scale * (1 - t * t) : scale;
    return cap > 0 ? cap * t : scale * x;
}

typedef struct row_part {
    double max, sum, at_target; /* exponents to the base e */
} row_part;

/* `get`: ck_start in a check, and ck_get before the run. */
static row_part part_of(const dsc_cross_entropy_parts_args *a, int64_t r, double (*get)(const void *buf, int64_t i))
{
    const int64_t at = r * a->of.stride, column = a->of.targets[r] - a->first;
    row_part out = { -(double)INFINITY, 0, -(double)INFINITY };
    double slope;
    for (int64_t v = 0; v < a->of.vocab; v++)
        out.max = fmax(out.max, z_of(&a->of, get(a->of.logits, at + v), &slope));
    for (int64_t v = 0; v < a->of.vocab; v++)
        out.sum += exp(z_of(&a->of, get(a->of.logits, at + v), &slope) - out.max);
    if (column >= 0 && column < a->of.vocab)
        out.at_target = z_of(&a->of, get(a->of.logits, at + column), &slope);
    return out;
}

/* Relative error of a sum of exponentials below `depth`. */
static double sum_off(const dsc_cross_entropy_args *a)
{
    const double cap = (double)a->softcap, z_off = u * (cap > 0 ? 22 * cap : 40);
    return u * (8 + 4 * sqrt((double)a->vocab / 16 + 16)) + 2 * z_off + 60 * u;
}

static void verify_part(const void *args)
{
    const dsc_cross_entropy_parts_args *a = args;
    for (int64_t r = 0; r < a->of.rows; r++) {
        const row_part truth = part_of(a, r, ck_start);
        const int64_t at = r * DSC_CROSS_ENTROPY_PART;
        const double got = ck_get(a->parts, at) * base_log() + log(ck_get(a->parts, at + 1));
        const double expected = truth.max + log(truth.sum), off = sum_off(&a->of) + 2 * u * fabs(truth.max);
        if (truth.sum > 0 && !(fabs(got - expected) <= off))
            ck_fail("row %lld: log of the sum is %.9g, not %.9g", (long long)r, got, expected);
        if (truth.sum == 0)
            ck_near(a->parts, at + 1, 0, 0);
        if (isfinite(truth.at_target))
            ck_near(a->parts, at + 2, truth.at_target, sum_off(&a->of));
        else if (ck_get(a->parts, at + 2) != -(double)INFINITY)
            ck_fail("row %lld has the logit of a target that is elsewhere", (long long)r);
    }
}

/* Row r of all ranks, from their parts. */
static row_part whole_of(const dsc_cross_entropy_parts_args *a, int64_t r)
{
    row_part out = { -(double)INFINITY, 0, -(double)INFINITY };
    for (int32_t k = 0; k < a->ranks; k++) {
        const int64_t at = (k * a->of.rows + r) * DSC_CROSS_ENTROPY_PART;
        out.max = fmax(out.max, ck_get(a->parts, at) * base_log());
        out.at_target = fmax(out.at_target, ck_get(a->parts, at + 2));
    }
    for (int32_t k = 0; k < a->ranks; k++) {
        const int64_t at = (k * a->of.rows + r) * DSC_CROSS_ENTROPY_PART;
        out.sum += ck_get(a->parts, at + 1) * exp(ck_get(a->parts, at) * base_log() - out.max);
    }
    return out;
}

static void verify_join_row(const dsc_cross_entropy_parts_args *a, int64_t r)
{
    const row_part whole = whole_of(a, r);
    const bool skipped = a->of.targets[r] < 0;
    const double scale = (double)(a->of.weights != NULL ? a->of.scale * a->of.weights[r] : a->of.scale);
    const double loss = log(whole.sum) - (whole.at_target - whole.max);
    ck_near(a->of.losses, r, skipped ? 0 : loss, skipped ? 0 : sum_off(&a->of) + 4 * u * fabs(loss));
    for (int64_t v = 0; v < a->of.stride; v++) {
        const int64_t i = r * a->of.stride + v;
        const bool changes = a->of.write_gradient && v < a->of.vocab && !skipped;
        double slope;
        if (!changes) {
            ck_near(a->of.logits, i, a->of.write_gradient ? 0 : ck_start(a->of.logits, i), 0);
            continue;
        }
        const double z = z_of(&a->of, ck_start(a->of.logits, i), &slope);
        const double p = exp(z - whole.max) / whole.sum, target = v == a->of.targets[r] - a->first ? 1 : 0;
        const double expected = (p - target) * scale * slope;
        const double off = fabs(scale) * (slope + u) * (p * sum_off(&a->of) + 8 * u * (target + p) + 0x1p-120) +
                           fabs(scale) * 64 * u * fabs(p - target);
        ck_near(a->of.logits, i, expected, off + ck_rounding(a->of.dtype, expected));
    }
}

static void verify_join(const void *args)
{
    const dsc_cross_entropy_parts_args *a = args;
    for (int64_t r = 0; r < a->of.rows; r++)
        verify_join_row(a, r);
}

/* A rank's part, of which the last one has the target where this rank does not. */
static void fill_parts(const dsc_cross_entropy_parts_args *a)
{
    for (int64_t r = 0; r < a->of.rows; r++)
        for (int32_t k = 0; k < a->ranks; k++) {
            const row_part own = part_of(a, r, ck_get);
            const int64_t at = (k * a->of.rows + r) * DSC_CROSS_ENTROPY_PART;
            const bool other = k == RANKS - 1 && !isfinite(own.at_target);
            ck_set(a->parts, at, (k == OWN ? own.max : (double)(r % 5 - 2) + k) / base_log());
            ck_set(a->parts, at + 1, k == OWN ? own.sum : 1 + 0.5 * (double)(r % 7));
            ck_set(a->parts, at + 2, k == OWN ? own.at_target : other ? 0.25 * (double)r - 1 : -(double)INFINITY);
        }
}

typedef struct shape {
    int64_t rows, first, vocab, stride, whole; /* `whole`: columns of all ranks */
    bool gradient, weighted;
    float scale, cap;
} shape;

static void check(const shape *s, dsc_dtype dtype, bool join)
{
    if (!ck_case("cross_entropy_%s %s rows=%lld V=%lld from %lld of %lld stride=%lld scale=%g cap=%g%s%s",
                 join ? "join" : "part", ck_dtype_text(dtype), (long long)s->rows, (long long)s->vocab,
                 (long long)s->first, (long long)s->whole, (long long)s->stride, (double)s->scale, (double)s->cap,
                 s->weighted ? " weights" : "", s->gradient ? "" : " loss only"))
        return;
    if (s->stride % 8 == 0)
        ck_align();
    void *logits = ck_buf(join ? CK_INOUT : CK_IN, dtype, s->rows * s->stride, "logits");
    int32_t *targets = ck_buf(CK_IN, DSC_I32, s->rows, "targets");
    const int64_t numbers = (join ? RANKS : 1) * s->rows * DSC_CROSS_ENTROPY_PART;
    float *const weights = s->weighted ? ck_buf(CK_IN, DSC_F32, s->rows, "weights") : NULL;
    ck_normal(logits, 0, 3);
    ck_int(targets, 0, (int32_t)s->whole - 1);
    for (int64_t r = 0; r < s->rows; r++) {
        if (r % 3 == 1 && s->vocab > 0) /* on this rank */
            targets[r] = (int32_t)(s->first + r % s->vocab);
        if (r % 4 == 3)
            targets[r] = -100;
        if (weights != NULL)
            weights[r] = 0.37f * (float)(r % 5 - 2);
    }
    const dsc_cross_entropy_parts_args args = { .of = { .logits = logits,
                                                        .losses =
                                                            join ? ck_buf(CK_OUT, DSC_F32, s->rows, "losses") : NULL,
                                                        .targets = targets,
                                                        .rows = s->rows,
                                                        .vocab = s->vocab,
                                                        .stride = s->stride,
                                                        .scale = 0.0078125f * 1.5f,
                                                        .write_gradient = s->gradient,
                                                        .dtype = dtype,
                                                        .weights = weights,
                                                        .logit_scale = s->scale,
                                                        .softcap = s->cap },
                                                .first = s->first,
                                                .parts = ck_buf(join ? CK_IN : CK_OUT, DSC_F32, numbers, "parts"),
                                                .ranks = join ? RANKS : 0 };
    if (join)
        fill_parts(&args);
    ck_kernel(join ? DSC_KERNEL_CROSS_ENTROPY_JOIN : DSC_KERNEL_CROSS_ENTROPY_PART, &args, sizeof args,
              join ? verify_join : verify_part);
}

void ck_cross_entropy_parts(void)
{
    static const shape shapes[] = {
        { 9, 0, 21, 64, 61, true, false, 0, 0 },
        { 9, 21, 20, 64, 61, true, true, 0, 0 },
        { 7, 41, 20, 21, 61, false, false, 0, 0 },
        { 5, 64, 0, 64, 61, true, false, 0, 0 }, /* all padding */
        { 5, 16752, 2049, 2051, 50257, true, false, 0, 0 },
        { 4, 2050, 2100, 2112, 4100, true, false, 0.25f, 15 },
        { 4, 3, 16, 24, 100, true, true, 1.5f, 0 },
        { 0, 3, 16, 24, 100, true, false, 0, 0 },
    };
    for (dsc_dtype dtype = DSC_F32; dtype <= DSC_F16; dtype++)
        for (size_t s = 0; s < DSC_COUNT(shapes); s++) {
            check(&shapes[s], dtype, false);
            check(&shapes[s], dtype, true);
        }
}
