/* moe_balance.c - loads of experts against their definition, and the gradient of the losses that keep the loads even
 * against differences of these losses in double. SPDX-License-Identifier: Apache-2.0 */
#include "tests/checkkern/ck.h"

#include <math.h>

enum { EXPERTS_MOST = 200 };

typedef struct shape {
    int64_t samples, length;
    int32_t experts, top_k;
} shape;

/* Tokens of a sample up to the one that its last counted target names. */
static int32_t real_of(const int32_t *targets, int64_t sample, int64_t length)
{
    if (targets == NULL)
        return (int32_t)length;
    for (int64_t i = length; i > 0; i--)
        if (targets[sample * length + i - 1] >= 0)
            return (int32_t)(i < length ? i + 1 : length);
    return 0;
}

/* Probabilities of a token with logit `moved` moved; its log-sum-exp. */
static double softmax_of(const void *logits, int64_t token, int32_t experts, int32_t moved, double by, double *p)
{
    double sum = 0;
    for (int32_t e = 0; e < experts; e++) {
        p[e] = exp(ck_get(logits, token * experts + e) + (e == moved ? by : 0));
        sum += p[e];
    }
    for (int32_t e = 0; e < experts; e++)
        p[e] /= sum;
    return log(sum);
}

static void verify_tally(const void *args)
{
    const dsc_moe_tally_args *a = args;
    double p[EXPERTS_MOST], sum[EXPERTS_MOST] = { 0 }, z = 0;
    int32_t load[EXPERTS_MOST] = { 0 }, tokens = 0, counted = 0;
    for (int64_t t = 0; t < a->samples * a->length; t++) {
        const int32_t real = real_of(a->targets, t / a->length, a->length);
        counted += a->targets == NULL || a->targets[t] >= 0;
        if (a->out.real[t / a->length] != real)
            ck_fail("sample %lld has %d tokens, expected %d", (long long)(t / a->length),
                    (int)a->out.real[t / a->length], (int)real);
        if (t % a->length >= real)
            continue;
        tokens++;
        for (int32_t slot = 0; slot < a->top_k; slot++)
            load[a->chosen[t * a->top_k + slot]]++;
        const double lse = a->logits == NULL ? 0 : softmax_of(a->logits, t, a->experts, -1, 0, p);
        for (int32_t e = 0; e < a->experts; e++)
            sum[e] += a->logits == NULL ? 0 : p[e];
        z += lse * lse;
    }
    for (int32_t e = 0; e < a->experts; e++) {
        ck_near(a->out.load, e, load[e], 0);
        ck_near(a->out.probability, e, sum[e], 1e-5 * sum[e]);
    }
    ck_near(a->out.z, 0, z, 1e-5 * z);
    ck_near(a->out.tokens, 0, tokens, 0);
    ck_near(a->out.counted, 0, counted, 0);
}

/* Samples that end early, one without a counted target, and one with all of them. */
static void set_targets(int32_t *targets, int64_t samples, int64_t length)
{
    for (int64_t s = 0; s < samples; s++)
        for (int64_t i = 0; i < length; i++) {
            const int64_t end = s == 0 ? length : s == 1 ? 0 : ck_random() % (uint32_t)(length + 1);
            targets[s * length + i] = i < end && i % 3 != 1 ? 5 : i % 2 == 0 ? -100 : -1;
        }
}

static void set_chosen(int32_t *chosen, const shape *s)
{
    for (int64_t t = 0; t < s->samples * s->length; t++) {
        const int32_t first = t % 5 == 0 ? 0 : (int32_t)(ck_random() % (uint32_t)s->experts);
        for (int32_t slot = 0; slot < s->top_k; slot++)
            chosen[t * s->top_k + slot] = (first + slot) % s->experts;
    }
}

static void check_tally(const shape *s, dsc_dtype dtype, bool masked, bool with_logits)
{
    const int64_t tokens = s->samples * s->length;
    if (!ck_case("moe_tally %s samples=%lld T=%lld experts=%d top_k=%d%s%s", ck_dtype_text(dtype),
                 (long long)s->samples, (long long)s->length, (int)s->experts, (int)s->top_k, masked ? " masked" : "",
                 with_logits ? "" : " loads only"))
        return;
    int32_t *chosen = ck_buf(CK_IN, DSC_I32, tokens * s->top_k, "chosen");
    int32_t *targets = masked ? ck_buf(CK_IN, DSC_I32, tokens, "targets") : NULL;
    const dsc_moe_tally_args args = {
        .out = { ck_buf(CK_OUT, DSC_I32, s->experts, "load"), ck_buf(CK_OUT, DSC_F32, s->experts, "probability"),
                 ck_buf(CK_OUT, DSC_F32, 1, "z"), ck_buf(CK_OUT, DSC_I32, 1, "tokens"),
                 ck_buf(CK_OUT, DSC_I32, 1, "counted"), ck_buf(CK_OUT, DSC_I32, s->samples, "real") },
        .work = ck_buf(CK_SCRATCH, DSC_F32, dsc_moe_tally_words(s->experts), "work"),
        .logits = with_logits ? ck_buf(CK_IN, dtype, tokens * s->experts, "logits") : NULL,
        .chosen = chosen,
        .targets = targets,
        .samples = s->samples,
        .length = s->length,
        .experts = s->experts,
        .top_k = s->top_k,
        .dtype = dtype
    };
    if (with_logits)
        ck_normal(args.logits, 0, 2);
    if (masked)
        set_targets(targets, s->samples, s->length);
    set_chosen(chosen, s);
    ck_kernel(DSC_KERNEL_MOE_TALLY, &args, sizeof args, verify_tally);
}

/* ---- gradients ---- */

enum { LAYERS = 3, OWN = 1 };

/* The part of the losses that this token's logits change, where slots are constants: sums over experts of the slots of
 * all layers times its probability, and the squared log-sum-exp. */
static double loss_of(const dsc_moe_balance_bwd_args *a, const double *load, int64_t token, int32_t moved, double by)
{
    double p[EXPERTS_MOST], balance = 0;
    const double n = (double)LAYERS * *a->own.tokens;
    const double lse = softmax_of(a->logits, token, a->experts, moved, by, p);
    for (int32_t e = 0; e < a->experts; e++)
        balance += a->experts * (load[e] / n) * (p[e] / n);
    return (double)a->balance * balance + (double)a->z * lse * lse / n;
}

static void verify_balance(const void *args)
{
    const dsc_moe_balance_bwd_args *a = args;
    double load[EXPERTS_MOST] = { 0 };
    const double h = 1e-4, share = (double)*a->own.counted / (double)(a->samples * a->length);
    for (int32_t l = 0; l < LAYERS; l++)
        for (int32_t e = 0; e < a->experts; e++)
            load[e] += ck_get(a->records, l * dsc_moe_record_words(a->experts, a->samples) + e);
    for (int64_t t = 0; t < a->samples * a->length; t++)
        for (int32_t e = 0; e < a->experts; e++) {
            const int64_t at = t * a->experts + e;
            const bool real = t % a->length < a->own.real[t / a->length];
            const double slope = !real ? 0 : (loss_of(a, load, t, e, h) - loss_of(a, load, t, e, -h)) / (2 * h);
            const double d = slope * (a->by_counted ? share : 1), expected = ck_start(a->d_logits, at) + d;
            ck_near(a->d_logits, at, expected,
                    1e-4 * fabs(d) + 1e-6 + ck_spacing(DSC_F32, expected) + ck_rounding(a->d_dtype, expected));
        }
}

/* Records of three layers, the second of which is this one's; `empty`: all tokens are padding. */
static void set_records(int32_t *records, const shape *s, bool empty)
{
    for (int64_t l = 0; l < LAYERS; l++) {
        const dsc_moe_record record = dsc_moe_record_at(records, l, s->experts, s->samples);
        *record.tokens = *record.counted = 0;
        for (int64_t i = 0; i < s->samples; i++) {
            record.real[i] = empty ? 0 : (int32_t)(s->length - i % s->length);
            *record.tokens += record.real[i];
            *record.counted += record.real[i] / 2;
        }
        for (int32_t e = 0; e < s->experts; e++)
            record.load[e] = empty ? 0 : (int32_t)(ck_random() % (uint32_t)(*record.tokens + 1));
    }
}

static void check_balance(const shape *s, dsc_dtype dtype, dsc_dtype d_dtype, bool by_counted, bool empty)
{
    const int64_t tokens = s->samples * s->length;
    if (!ck_case("moe_balance_bwd %s of %s samples=%lld T=%lld experts=%d%s%s", ck_dtype_text(d_dtype),
                 ck_dtype_text(dtype), (long long)s->samples, (long long)s->length, (int)s->experts,
                 by_counted ? " by counted" : "", empty ? " empty" : ""))
        return;
    int32_t *records = ck_buf(CK_IN, DSC_I32, LAYERS * dsc_moe_record_words(s->experts, s->samples), "records");
    const dsc_moe_balance_bwd_args args = { .d_logits = ck_buf(CK_INOUT, d_dtype, tokens * s->experts, "d_logits"),
                                            .logits = ck_buf(CK_IN, dtype, tokens * s->experts, "logits"),
                                            .records = records,
                                            .own = dsc_moe_record_at(records, OWN, s->experts, s->samples),
                                            .work = ck_buf(CK_SCRATCH, DSC_F32, s->experts + 1, "work"),
                                            .samples = s->samples,
                                            .length = s->length,
                                            .layers = LAYERS,
                                            .experts = s->experts,
                                            .balance = 30,
                                            .z = 2,
                                            .by_counted = by_counted,
                                            .dtype = dtype,
                                            .d_dtype = d_dtype };
    ck_normal(args.d_logits, 0, 1);
    ck_normal(args.logits, 0, 2);
    set_records(records, s, empty);
    ck_kernel(DSC_KERNEL_MOE_BALANCE_BWD, &args, sizeof args, verify_balance);
}

void ck_moe_balance(void)
{
    static const shape shapes[] = { { 1, 1, 1, 1 }, { 3, 7, 5, 2 }, { 4, 40, 64, 8 }, { 2, 130, 199, 6 } };
    static const dsc_dtype dtypes[] = { DSC_F32, DSC_BF16, DSC_F16 };
    for (size_t i = 0; i < DSC_COUNT(shapes); i++)
        for (size_t d = 0; d < DSC_COUNT(dtypes); d++) {
            check_tally(&shapes[i], dtypes[d], false, true);
            check_tally(&shapes[i], dtypes[d], true, true);
            check_tally(&shapes[i], dtypes[d], true, false);
            check_balance(&shapes[i], dtypes[d], dtypes[d], d == 1, false);
            check_balance(&shapes[i], DSC_F32, dtypes[d], true, d == 1);
        }
}
