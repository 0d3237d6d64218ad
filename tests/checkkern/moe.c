/* moe.c - mixture of experts: routing and its gradient against double, order and rows against their definitions,
 * grouped products against double, and all bits of CPU variants against the reference.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/checkkern/ck.h"

#include <math.h>
#include <string.h>

/* ---- routing ---- */

enum { EXPERTS_MOST = 200 };

static void scores_of(const void *logits, int64_t token, const dsc_moe_rule *rule, double *score)
{
    double sum = 0;
    for (int32_t e = 0; e < rule->experts; e++) {
        const double x = ck_get(logits, token * rule->experts + e);
        score[e] = rule->score == DSC_MOE_SOFTMAX ? exp(x) : 1 / (1 + exp(-x));
        sum += score[e];
    }
    for (int32_t e = 0; e < rule->experts && rule->score == DSC_MOE_SOFTMAX; e++)
        score[e] /= sum;
}

/* The numbers that a token's experts are chosen by. */
static void choice_of(const dsc_moe_route_fwd_args *a, int64_t t, const double *score, double *choice)
{
    for (int32_t e = 0; e < a->rule.experts; e++) {
        const bool scores = a->bias != NULL || a->rule.group_pairs;
        choice[e] = scores ? score[e] : ck_get(a->logits, t * a->rule.experts + e);
        choice[e] += a->bias != NULL ? ck_get(a->bias, e) : 0;
    }
}

/* The first of the largest of those that are not taken. */
static int32_t best_of(const double *x, int32_t count, const bool *taken)
{
    int32_t best = -1;
    for (int32_t i = 0; i < count; i++)
        if (!taken[i] && (best < 0 || x[i] > x[best]))
            best = i;
    return best;
}

static void take_groups(const dsc_moe_rule *rule, const double *choice, bool *taken)
{
    const int32_t each = rule->experts / rule->groups;
    double value[DSC_MOE_GROUPS_MAX];
    bool best[DSC_MOE_GROUPS_MAX] = { false };
    for (int32_t g = 0; g < rule->groups; g++) {
        bool used[EXPERTS_MOST] = { false };
        const int32_t first = best_of(choice + g * each, each, used);
        used[first] = true;
        value[g] = choice[g * each + first];
        if (rule->group_pairs)
            value[g] += choice[g * each + best_of(choice + g * each, each, used)];
    }
    for (int32_t n = 0; n < rule->best_groups; n++)
        best[best_of(value, rule->groups, best)] = true;
    for (int32_t e = 0; e < rule->experts; e++)
        taken[e] = !best[e / each];
}

/* Each slot has the expert of the largest choice in the best groups that no earlier slot has; choices of scores are
 * equal to within their rounding. */
static void verify_chosen(const dsc_moe_route_fwd_args *a, int64_t t, const double *score)
{
    const int32_t *chosen = a->chosen + t * a->rule.top_k;
    const double rounding = a->bias != NULL || a->rule.group_pairs ? 1e-6 : 0;
    double choice[EXPERTS_MOST];
    bool taken[EXPERTS_MOST] = { false };
    choice_of(a, t, score, choice);
    if (a->rule.groups > 1)
        take_groups(&a->rule, choice, taken);
    for (int32_t slot = 0; slot < a->rule.top_k; slot++) {
        const int32_t e = chosen[slot], best = best_of(choice, a->rule.experts, taken);
        const bool near = rounding > 0 && fabs(choice[e] - choice[best]) <= rounding;
        if (taken[e] || (e != best && !near))
            ck_fail("token %lld, slot %d: expert %d, expected %d", (long long)t, (int)slot, (int)e, (int)best);
        taken[e] = true;
    }
}

static double chosen_sum(const double *score, const int32_t *chosen, const dsc_moe_rule *rule)
{
    double sum = 0;
    for (int32_t slot = 0; slot < rule->top_k; slot++)
        sum += score[chosen[slot]];
    return rule->renormalize ? sum : 1;
}

static void verify_route_fwd(const void *args)
{
    const dsc_moe_route_fwd_args *a = args;
    double score[EXPERTS_MOST];
    for (int64_t t = 0; t < a->tokens; t++) {
        const int32_t *chosen = a->chosen + t * a->rule.top_k;
        scores_of(a->logits, t, &a->rule, score);
        verify_chosen(a, t, score);
        for (int32_t slot = 0; slot < a->rule.top_k; slot++) {
            const double expected = score[chosen[slot]] / chosen_sum(score, chosen, &a->rule) * (double)a->rule.factor;
            ck_near(a->weights, t * a->rule.top_k + slot, expected, 1e-5 * expected + 1e-30);
        }
    }
}

/* The sum of weights times d_weights with one logit moved; the slots stay as they are. */
static double loss_of(const dsc_moe_route_bwd_args *a, int64_t t, int32_t moved, double by)
{
    double score[EXPERTS_MOST], sum = 0, loss = 0;
    const int32_t *chosen = a->chosen + t * a->rule.top_k;
    for (int32_t e = 0; e < a->rule.experts; e++) {
        const double x = ck_get(a->logits, t * a->rule.experts + e) + (e == moved ? by : 0);
        score[e] = a->rule.score == DSC_MOE_SOFTMAX ? exp(x) : 1 / (1 + exp(-x));
        sum += score[e];
    }
    for (int32_t e = 0; e < a->rule.experts && a->rule.score == DSC_MOE_SOFTMAX; e++)
        score[e] /= sum;
    for (int32_t slot = 0; slot < a->rule.top_k; slot++)
        loss += score[chosen[slot]] / chosen_sum(score, chosen, &a->rule) * (double)a->rule.factor *
                (double)a->d_weights[t * a->rule.top_k + slot];
    return loss;
}

static void verify_route_bwd(const void *args)
{
    const dsc_moe_route_bwd_args *a = args;
    const double h = 1e-5;
    for (int64_t t = 0; t < a->tokens; t++)
        for (int32_t e = 0; e < a->rule.experts; e++) {
            const double expected = (loss_of(a, t, e, h) - loss_of(a, t, e, -h)) / (2 * h);
            ck_near(a->d_logits, t * a->rule.experts + e, expected,
                    1e-5 * fabs(expected) + 1e-6 + ck_rounding(a->d_dtype, expected));
        }
}

/* Few different logits, so that ties happen. */
static void set_logits(const void *logits, int64_t count, bool ties)
{
    ck_normal(logits, 0, 2);
    for (int64_t i = 0; i < count && ties; i++)
        ck_set(logits, i, (double)(ck_random() % 4) - 1);
}

static void check_route(int64_t tokens, const dsc_moe_rule *rule, dsc_dtype dtype, bool ties, bool bias)
{
    const int64_t count = tokens * rule->experts, slots = tokens * rule->top_k;
    if (ck_case("moe_route %s tokens=%lld experts=%d top_k=%d score=%d groups=%d of %d%s%s%s%s", ck_dtype_text(dtype),
                (long long)tokens, (int)rule->experts, (int)rule->top_k, (int)rule->score, (int)rule->best_groups,
                (int)rule->groups, rule->group_pairs ? " by pairs" : "", rule->renormalize ? " renormalized" : "",
                bias ? " bias" : "", ties ? " ties" : "")) {
        const dsc_moe_route_fwd_args args = { .weights = ck_buf(CK_OUT, DSC_F32, slots, "weights"),
                                              .chosen = ck_buf(CK_OUT, DSC_I32, slots, "chosen"),
                                              .logits = ck_buf(CK_IN, dtype, count, "logits"),
                                              .bias = bias ? ck_buf(CK_IN, DSC_F32, rule->experts, "bias") : NULL,
                                              .tokens = tokens,
                                              .rule = *rule,
                                              .dtype = dtype };
        set_logits(args.logits, count, ties);
        if (bias)
            ck_normal(args.bias, 0, 0.3);
        ck_kernel(DSC_KERNEL_MOE_ROUTE_FWD, &args, sizeof args, verify_route_fwd);
    }
}

static void check_route_bwd(int64_t tokens, const dsc_moe_rule *rule, dsc_dtype dtype, dsc_dtype d_dtype)
{
    const int64_t count = tokens * rule->experts, slots = tokens * rule->top_k;
    if (!ck_case("moe_route_bwd %s of %s tokens=%lld experts=%d top_k=%d score=%d%s", ck_dtype_text(d_dtype),
                 ck_dtype_text(dtype), (long long)tokens, (int)rule->experts, (int)rule->top_k, (int)rule->score,
                 rule->renormalize ? " renormalized" : ""))
        return;
    int32_t *chosen = ck_buf(CK_IN, DSC_I32, slots, "chosen");
    const dsc_moe_route_bwd_args args = { .d_logits = ck_buf(CK_OUT, d_dtype, count, "d_logits"),
                                          .d_weights = ck_buf(CK_IN, DSC_F32, slots, "d_weights"),
                                          .logits = ck_buf(CK_IN, dtype, count, "logits"),
                                          .chosen = chosen,
                                          .tokens = tokens,
                                          .rule = *rule,
                                          .dtype = dtype,
                                          .d_dtype = d_dtype };
    set_logits(args.logits, count, false);
    ck_normal(args.d_weights, 0, 1);
    for (int64_t i = 0; i < slots; i++)
        chosen[i] = (int32_t)((i * 3 + i / rule->top_k) % rule->experts);
    ck_kernel(DSC_KERNEL_MOE_ROUTE_BWD, &args, sizeof args, verify_route_bwd);
}

/* ---- order ---- */

static void verify_order(const void *args)
{
    const dsc_moe_order_args *a = args;
    if (a->starts[0] != 0 || a->starts[a->experts] != a->slots)
        ck_fail("rows are %d to %d", (int)a->starts[0], (int)a->starts[a->experts]);
    for (int64_t r = 0; r < a->slots; r++) {
        const int32_t i = a->source[r], expert = a->chosen[i];
        if (a->place[i] != r || r < a->starts[expert] || r >= a->starts[expert + 1])
            ck_fail("row %lld is slot %d of expert %d", (long long)r, (int)i, (int)expert);
        if (r > a->starts[expert] && a->source[r - 1] >= i)
            ck_fail("row %lld: slot %d after slot %d", (long long)r, (int)i, (int)a->source[r - 1]);
    }
    ck_same(a->place);
    ck_same(a->source);
    ck_same(a->starts);
}

/* `lonely`: all go to one expert; some experts have no row anyway. */
static void check_order(int64_t slots, int32_t experts, bool lonely)
{
    if (!ck_case("moe_order slots=%lld experts=%d%s", (long long)slots, (int)experts, lonely ? " one used" : ""))
        return;
    int32_t *chosen = ck_buf(CK_IN, DSC_I32, slots, "chosen");
    const dsc_moe_order_args args = { .place = ck_buf(CK_OUT, DSC_I32, slots, "place"),
                                      .source = ck_buf(CK_OUT, DSC_I32, slots, "source"),
                                      .starts = ck_buf(CK_OUT, DSC_I32, experts + 1, "starts"),
                                      .chosen = chosen,
                                      .slots = slots,
                                      .experts = experts };
    for (int64_t i = 0; i < slots; i++)
        chosen[i] = lonely ? experts - 1 : (int32_t)(ck_random() % (uint32_t)experts);
    ck_kernel(DSC_KERNEL_MOE_ORDER, &args, sizeof args, verify_order);
}

/* ---- rows ---- */

/* A permutation and its inverse. */
static void set_order(int32_t *place, int32_t *source, int64_t slots)
{
    for (int64_t i = 0; i < slots; i++)
        place[i] = (int32_t)i;
    for (int64_t i = slots - 1; i > 0; i--) {
        const int64_t j = ck_random() % (uint32_t)(i + 1);
        const int32_t other = place[i];
        place[i] = place[j];
        place[j] = other;
    }
    for (int64_t i = 0; i < slots && source != NULL; i++)
        source[place[i]] = (int32_t)i;
}

static void verify_dispatch_fwd(const void *args)
{
    const dsc_moe_dispatch_args *a = args;
    for (int64_t r = 0; r < a->tokens * a->top_k; r++)
        for (int64_t c = 0; c < a->channels; c++)
            ck_near(a->out, r * a->channels + c, ck_get(a->in, a->order[r] / a->top_k * a->channels + c), 0);
    ck_same(a->out);
}

static void verify_dispatch_bwd(const void *args)
{
    const dsc_moe_dispatch_args *a = args;
    for (int64_t t = 0; t < a->tokens; t++)
        for (int64_t c = 0; c < a->channels; c++) {
            const int64_t at = t * a->channels + c;
            double sum = a->add == NULL ? 0 : a->add == a->out ? ck_start(a->add, at) : ck_get(a->add, at);
            double most = fabs(sum);
            for (int32_t slot = 0; slot < a->top_k; slot++) {
                const double x = ck_get(a->in, a->order[t * a->top_k + slot] * a->channels + c);
                sum += x;
                most += fabs(x);
            }
            ck_near(a->out, at, sum, ck_rounding(a->dtype, sum) + (a->top_k + 1) * ck_spacing(DSC_F32, most));
        }
    ck_same(a->out);
}

typedef struct rows_shape {
    int64_t tokens, channels;
    int32_t top_k;
} rows_shape;

static void check_dispatch(const rows_shape *s, dsc_dtype dtype, int add)
{
    const int64_t slots = s->tokens * s->top_k, all = slots * s->channels, own = s->tokens * s->channels;
    if (add == 0 && ck_case("moe_dispatch_fwd %s tokens=%lld C=%lld top_k=%d", ck_dtype_text(dtype),
                            (long long)s->tokens, (long long)s->channels, (int)s->top_k)) {
        int32_t *place = ck_buf(CK_IN, DSC_I32, slots, "source");
        const dsc_moe_dispatch_args args = { .out = ck_buf(CK_OUT, dtype, all, "out"),
                                             .in = ck_buf(CK_IN, dtype, own, "in"),
                                             .order = place,
                                             .tokens = s->tokens,
                                             .channels = s->channels,
                                             .top_k = s->top_k,
                                             .dtype = dtype };
        ck_normal(args.in, 0, 1);
        ck_edges(args.in);
        set_order(place, NULL, slots);
        ck_kernel(DSC_KERNEL_MOE_DISPATCH_FWD, &args, sizeof args, verify_dispatch_fwd);
    }
    if (ck_case("moe_dispatch_bwd %s tokens=%lld C=%lld top_k=%d add=%d", ck_dtype_text(dtype), (long long)s->tokens,
                (long long)s->channels, (int)s->top_k, add)) {
        int32_t *place = ck_buf(CK_IN, DSC_I32, slots, "place");
        void *out = ck_buf(add == 2 ? CK_INOUT : CK_OUT, dtype, own, "out");
        const dsc_moe_dispatch_args args = { .out = out,
                                             .in = ck_buf(CK_IN, dtype, all, "in"),
                                             .order = place,
                                             .add = add == 0   ? NULL
                                                    : add == 1 ? ck_buf(CK_IN, dtype, own, "add")
                                                               : out,
                                             .tokens = s->tokens,
                                             .channels = s->channels,
                                             .top_k = s->top_k,
                                             .dtype = dtype };
        ck_normal(args.in, 0, 1);
        if (add > 0)
            ck_normal(args.add, 0, 1);
        set_order(place, NULL, slots);
        ck_kernel(DSC_KERNEL_MOE_DISPATCH_BWD, &args, sizeof args, verify_dispatch_bwd);
    }
}

static void verify_combine_fwd(const void *args)
{
    const dsc_moe_combine_fwd_args *a = args;
    for (int64_t t = 0; t < a->tokens; t++)
        for (int64_t c = 0; c < a->channels; c++) {
            double sum = 0, most = 0;
            for (int64_t i = t * a->top_k; i < (t + 1) * a->top_k; i++) {
                const double x = (double)a->weights[i] * ck_get(a->rows, a->place[i] * a->channels + c);
                sum += x;
                most += fabs(x);
            }
            ck_near(a->out, t * a->channels + c, sum,
                    ck_rounding(a->dtype, sum) + (a->top_k + 1) * ck_spacing(DSC_F32, most));
        }
    ck_same_on_cpu(a->out);
}

static void verify_combine_bwd(const void *args)
{
    const dsc_moe_combine_bwd_args *a = args;
    for (int64_t i = 0; i < a->tokens * a->top_k; i++) {
        double dot = 0, most = 0;
        for (int64_t c = 0; c < a->channels; c++) {
            const int64_t row = a->place[i] * a->channels + c;
            const double d = ck_get(a->d_out, i / a->top_k * a->channels + c), w = (double)a->weights[i];
            const double x = a->d_rows == a->rows ? ck_start(a->rows, row) : ck_get(a->rows, row);
            dot += d * x;
            most += fabs(d * x);
            ck_near(a->d_rows, row, w * d, ck_rounding(a->dtype, w * d) + ck_spacing(DSC_F32, w * d));
        }
        ck_near(a->d_weights, i, dot, (double)(a->channels + 8) * ck_spacing(DSC_F32, most));
    }
    ck_same_on_cpu(a->d_rows);
    ck_same_on_cpu(a->d_weights);
}

static void check_combine(const rows_shape *s, dsc_dtype dtype, bool over)
{
    const int64_t slots = s->tokens * s->top_k, all = slots * s->channels, own = s->tokens * s->channels;
    if (!over && ck_case("moe_combine_fwd %s tokens=%lld C=%lld top_k=%d", ck_dtype_text(dtype), (long long)s->tokens,
                         (long long)s->channels, (int)s->top_k)) {
        int32_t *place = ck_buf(CK_IN, DSC_I32, slots, "place");
        const dsc_moe_combine_fwd_args args = { .out = ck_buf(CK_OUT, dtype, own, "out"),
                                                .rows = ck_buf(CK_IN, dtype, all, "rows"),
                                                .weights = ck_buf(CK_IN, DSC_F32, slots, "weights"),
                                                .place = place,
                                                .tokens = s->tokens,
                                                .channels = s->channels,
                                                .top_k = s->top_k,
                                                .dtype = dtype };
        ck_normal(args.rows, 0, 1);
        ck_uniform(args.weights, 0, 1);
        set_order(place, NULL, slots);
        ck_kernel(DSC_KERNEL_MOE_COMBINE_FWD, &args, sizeof args, verify_combine_fwd);
    }
    if (ck_case("moe_combine_bwd %s tokens=%lld C=%lld top_k=%d%s", ck_dtype_text(dtype), (long long)s->tokens,
                (long long)s->channels, (int)s->top_k, over ? " in place" : "")) {
        int32_t *place = ck_buf(CK_IN, DSC_I32, slots, "place");
        void *rows = ck_buf(over ? CK_INOUT : CK_IN, dtype, all, "rows");
        const dsc_moe_combine_bwd_args args = { .d_rows = over ? rows : ck_buf(CK_OUT, dtype, all, "d_rows"),
                                                .d_weights = ck_buf(CK_OUT, DSC_F32, slots, "d_weights"),
                                                .d_out = ck_buf(CK_IN, dtype, own, "d_out"),
                                                .rows = rows,
                                                .weights = ck_buf(CK_IN, DSC_F32, slots, "weights"),
                                                .place = place,
                                                .tokens = s->tokens,
                                                .channels = s->channels,
                                                .top_k = s->top_k,
                                                .dtype = dtype };
        ck_normal(args.rows, 0, 1);
        ck_normal(args.d_out, 0, 1);
        ck_uniform(args.weights, 0, 1);
        set_order(place, NULL, slots);
        ck_kernel(DSC_KERNEL_MOE_COMBINE_BWD, &args, sizeof args, verify_combine_bwd);
    }
}

/* ---- grouped products ---- */

typedef struct grouped_shape {
    int64_t rows, in, out;
    int32_t experts;
} grouped_shape;

/* Element (i, j) of expert e's product, and the sum of absolute values. */
static double product_of(const dsc_grouped_gemm_args *a, int32_t e, int64_t i, int64_t j, double *most)
{
    const int64_t first = a->starts[e], rows = a->starts[e + 1] - first, matrix = e * a->out * a->in;
    const int64_t k = a->kind == DSC_GROUPED_FORWARD ? a->in : a->kind == DSC_GROUPED_INPUT ? a->out : rows;
    double sum = 0;
    for (int64_t x = 0; x < k; x++) {
        const double one =
            a->kind == DSC_GROUPED_WEIGHT ? ck_get(a->a, (first + x) * a->out + i) : ck_get(a->a, (first + i) * k + x);
        const double other = a->kind == DSC_GROUPED_FORWARD ? ck_get(a->b, matrix + j * a->in + x)
                             : a->kind == DSC_GROUPED_INPUT ? ck_get(a->b, matrix + x * a->in + j)
                                                            : ck_get(a->b, (first + x) * a->in + j);
        sum += one * other;
        *most += fabs(one * other);
    }
    return sum;
}

static void verify_grouped(const void *args)
{
    const dsc_grouped_gemm_args *a = args;
    const bool weight = a->kind == DSC_GROUPED_WEIGHT;
    const int64_t n = a->kind == DSC_GROUPED_FORWARD ? a->out : a->in;
    const int64_t k = a->kind == DSC_GROUPED_FORWARD ? a->in : weight ? a->rows : a->out;
    for (int32_t e = 0; e < a->experts; e++) {
        const int64_t m = weight ? a->out : a->starts[e + 1] - a->starts[e];
        const int64_t first = weight ? e * a->out * a->in : a->starts[e] * n;
        for (int64_t i = 0; i < m * n; i++) {
            double most = 0, sum = product_of(a, e, i / n, i % n, &most);
            const int64_t at = first + i;
            if (a->add != NULL)
                sum += a->add == a->c ? ck_start(a->c, at) : ck_get(a->add, at);
            ck_near(a->c, at, sum,
                    ck_rounding(weight ? DSC_F32 : a->dtype, sum) +
                        (double)(k + 2) * 0.5 * ck_spacing(DSC_F32, most + fabs(sum)));
        }
    }
    ck_same_on_cpu(a->c);
}

/* RANDOM: some experts have no row, and one has most. */
typedef enum grouped_spread { SPREAD_RANDOM, SPREAD_ONE, SPREAD_EVEN } grouped_spread;

static void set_starts(int32_t *starts, const grouped_shape *s, grouped_spread spread)
{
    starts[0] = 0;
    for (int32_t e = 0; e < s->experts; e++) {
        const int64_t left = s->rows - starts[e];
        int64_t share = ck_random() % 3 == 0 ? 0 : ck_random() % (uint32_t)(2 * s->rows / s->experts + 2);
        if (spread == SPREAD_ONE)
            share = e == s->experts / 2 ? left : 0;
        else if (spread == SPREAD_EVEN) /* as a trained router's: nearly equal, and no multiple of a tile */
            share = s->rows * (e + 1) / s->experts + e * 37 % 61 - 30 - starts[e];
        share = e == s->experts - 1 || share > left ? left : share;
        starts[e + 1] = starts[e] + (int32_t)(share > 0 ? share : 0);
    }
}

static const char *const kind_text[] = { "forward", "input", "weight" };

static dsc_grouped_gemm_args grouped_args(const grouped_shape *s, grouped_spread spread, dsc_grouped_kind kind,
                                          dsc_dtype dtype, int add)
{
    const int64_t in = s->rows * s->in, out = s->rows * s->out, matrix = s->experts * s->in * s->out;
    const int64_t result = kind == DSC_GROUPED_FORWARD ? out : kind == DSC_GROUPED_INPUT ? in : matrix;
    int32_t *starts = ck_buf(CK_IN, DSC_I32, s->experts + 1, "starts");
    void *c = ck_buf(add == 2 ? CK_INOUT : CK_OUT, kind == DSC_GROUPED_WEIGHT ? DSC_F32 : dtype, result, "c");
    const dsc_grouped_gemm_args args = { .a = ck_buf(CK_IN, dtype, kind == DSC_GROUPED_FORWARD ? in : out, "a"),
                                         .b = ck_buf(CK_IN, dtype, kind == DSC_GROUPED_WEIGHT ? in : matrix, "b"),
                                         .c = c,
                                         .add = add == 1   ? ck_buf(CK_IN, dtype, result, "add")
                                                : add == 2 ? c
                                                           : NULL,
                                         .starts = starts,
                                         .rows = s->rows,
                                         .in = s->in,
                                         .out = s->out,
                                         .experts = s->experts,
                                         .kind = kind,
                                         .dtype = dtype };
    set_starts(starts, s, spread);
    ck_normal(args.a, 0, 1);
    ck_normal(args.b, 0, 0.1);
    if (add > 0)
        ck_normal(args.add, 0, 1);
    return args;
}

static void check_grouped(const grouped_shape *s, dsc_dtype dtype, int add)
{
    for (int kind = DSC_GROUPED_FORWARD; kind <= DSC_GROUPED_WEIGHT; kind++) {
        if ((kind == DSC_GROUPED_WEIGHT && add > 0) ||
            !ck_case("grouped_gemm %s %s rows=%lld in=%lld out=%lld experts=%d add=%d", kind_text[kind],
                     ck_dtype_text(dtype), (long long)s->rows, (long long)s->in, (long long)s->out, (int)s->experts,
                     add))
            continue;
        const dsc_grouped_gemm_args args = grouped_args(s, SPREAD_RANDOM, (dsc_grouped_kind)kind, dtype, add);
        ck_kernel(DSC_KERNEL_GROUPED_GEMM, &args, sizeof args, verify_grouped);
    }
}

/* Aligned arrays of whole eights of elements: on sm_90 these have the kernels of warpgroups. */
static void check_grouped_wide(void)
{
    static const struct {
        grouped_shape shape;
        grouped_spread spread;
        const char *what;
    } wide[] = {
        { { 300, 72, 264, 5 }, SPREAD_RANDOM, "partial tiles" },
        { { 405, 328, 24, 2 }, SPREAD_EVEN, "more steps than stages" },
        { { 333, 24, 16, 5 }, SPREAD_ONE, "one expert has all rows" },
        { { 391, 16, 520, 13 }, SPREAD_EVEN, "several tiles of a block" },
    };
    for (size_t i = 0; i < DSC_COUNT(wide); i++)
        for (int kind = DSC_GROUPED_FORWARD; kind <= DSC_GROUPED_WEIGHT; kind++) {
            const grouped_shape *s = &wide[i].shape;
            const int add = kind == DSC_GROUPED_WEIGHT ? 0 : (int)(i + 1) % 3;
            if (!ck_case("grouped_gemm wide %s bf16 rows=%lld in=%lld out=%lld experts=%d add=%d: %s", kind_text[kind],
                         (long long)s->rows, (long long)s->in, (long long)s->out, (int)s->experts, add, wide[i].what))
                continue;
            ck_align();
            const dsc_grouped_gemm_args args = grouped_args(s, wide[i].spread, (dsc_grouped_kind)kind, DSC_BF16, add);
            ck_kernel(DSC_KERNEL_GROUPED_GEMM, &args, sizeof args, verify_grouped);
        }
}

static void bench_shape(const grouped_shape *s, grouped_spread spread, dsc_dtype dtype)
{
    for (int kind = DSC_GROUPED_FORWARD; kind <= DSC_GROUPED_WEIGHT; kind++) {
        if (!ck_case("bench grouped_gemm %s %s rows=%lld in=%lld out=%lld experts=%d", kind_text[kind],
                     ck_dtype_text(dtype), (long long)s->rows, (long long)s->in, (long long)s->out, (int)s->experts))
            continue;
        const dsc_grouped_gemm_args args = grouped_args(s, spread, (dsc_grouped_kind)kind, dtype, 0);
        const int64_t elements = s->rows * (s->in + s->out) + s->in * s->out * s->experts;
        ck_bench(DSC_KERNEL_GROUPED_GEMM, &args, sizeof args, elements * (int64_t)dsc_dtype_bytes(dtype),
                 2 * s->rows * s->in * s->out, CK_NO_REF | CK_F32_PEAK);
    }
}

static void bench(dsc_dtype dtype)
{
    static const grouped_shape olmoe[] = { { 65536, 2048, 1024, 64 }, { 65536, 1024, 2048, 64 } };
    const grouped_shape s = { ck_bench_size(1024, 16384), 512, 1024, 8 };
    const bool is_large = ck_bench_size(0, 1) == 1 && !ck_shortened() && dtype == DSC_BF16;
    bench_shape(&s, SPREAD_RANDOM, dtype);
    for (size_t i = 0; i < DSC_COUNT(olmoe) && is_large; i++) /* 8192 tokens of a layer of OLMoE, 8 experts each */
        bench_shape(&olmoe[i], SPREAD_EVEN, dtype);
}

void ck_moe(void)
{
    static const dsc_moe_rule rules[] = {
        { 8, 2, DSC_MOE_SOFTMAX, true, 1, 0, 0, false },   { 128, 8, DSC_MOE_SOFTMAX, true, 1, 0, 0, false },
        { 60, 4, DSC_MOE_SOFTMAX, false, 1, 0, 0, false }, { 5, 5, DSC_MOE_SIGMOID, true, 2.5f, 0, 0, false },
        { 1, 1, DSC_MOE_SOFTMAX, false, 1, 0, 0, false },  { 33, 3, DSC_MOE_SIGMOID, false, 1, 0, 0, false }
    };
    static const dsc_moe_rule grouped_rules[] = { { 160, 6, DSC_MOE_SOFTMAX, false, 16, 8, 3, false },
                                                  { 128, 8, DSC_MOE_SIGMOID, true, 2.5f, 8, 4, true },
                                                  { 64, 6, DSC_MOE_SIGMOID, true, 2.446f, 1, 1, true },
                                                  { 12, 4, DSC_MOE_SIGMOID, false, 1, 6, 2, true } };
    static const rows_shape rows[] = { { 1, 1, 1 }, { 7, 33, 2 }, { 5, 64, 8 }, { 3, 520, 3 }, { 0, 8, 2 } };
    static const grouped_shape grouped[] = { { 1, 1, 1, 1 },     { 0, 8, 8, 2 },     { 37, 16, 32, 4 },
                                             { 150, 33, 70, 3 }, { 260, 64, 40, 1 }, { 40, 300, 65, 9 },
                                             { 64, 65, 300, 16 } };
    for (dsc_dtype dtype = DSC_F32; dtype <= DSC_F16; dtype++) {
        for (size_t i = 0; i < DSC_COUNT(rules); i++) {
            check_route(i == 1 ? 3 : 9, &rules[i], dtype, i % 2 == 0, false);
            check_route_bwd(i == 1 ? 3 : 9, &rules[i], i % 2 == 0 ? dtype : DSC_F32, dtype);
        }
        for (size_t i = 0; i < DSC_COUNT(grouped_rules); i++) {
            check_route(5, &grouped_rules[i], dtype, i == 0, i > 0);
            check_route_bwd(5, &grouped_rules[i], i % 2 == 0 ? DSC_F32 : dtype, dtype);
        }
        for (size_t i = 0; i < DSC_COUNT(rows); i++) {
            for (int add = 0; add < 3; add++)
                check_dispatch(&rows[i], dtype, add);
            check_combine(&rows[i], dtype, false);
            check_combine(&rows[i], dtype, true);
        }
        for (size_t i = 0; i < DSC_COUNT(grouped); i++)
            check_grouped(&grouped[i], dtype, (int)(i % 3));
        if (dtype == DSC_BF16)
            check_grouped_wide();
        if (ck_benching())
            bench(dtype);
    }
    check_order(0, 3, false);
    check_order(1, 1, false);
    check_order(100, 7, false);
    check_order(3000, 128, false);
    check_order(300, 5, true);
}
