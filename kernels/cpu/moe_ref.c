/* moe_ref.c - mixture of experts in plain C: routing in double, the counting sort, weighted sums in the order of slots.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "kernels/cpu/moe_internal.h"
#include "kernels/scalar.h"

/* ---- routing ---- */

static bool is_before(const float *x, int32_t a, int32_t b)
{
    const bool known = !isnan(x[a]);
    return known && (isnan(x[b]) || x[a] > x[b]);
}

/* The best of experts first .. first + count - 1 that are not taken: a tie is the lower number's, since only a larger
 * one takes the place of the first. -1: all are taken. */
static int32_t best_of(const float *x, int32_t first, int32_t count, const bool *taken)
{
    int32_t best = -1;
    for (int32_t e = first; e < first + count; e++)
        if (!taken[e] && (best < 0 || is_before(x, e, best)))
            best = e;
    return best;
}

/* Takes the experts of all groups but the best. */
static void take_groups(const float *x, const dsc_moe_rule *rule, bool *taken)
{
    const int32_t each = rule->experts / rule->groups;
    float value[DSC_MOE_GROUPS_MAX];
    bool best[DSC_MOE_GROUPS_MAX] = { false };
    for (int32_t g = 0; g < rule->groups; g++) {
        const int32_t first = best_of(x, g * each, each, taken);
        value[g] = x[first];
        taken[first] = true;
        if (rule->group_pairs)
            value[g] += x[best_of(x, g * each, each, taken)];
        taken[first] = false;
    }
    for (int32_t n = 0; n < rule->best_groups; n++)
        best[best_of(value, 0, rule->groups, best)] = true;
    for (int32_t e = 0; e < rule->experts; e++)
        taken[e] = !best[e / each];
}

/* The slots by repeated search. */
static void choose(const float *x, const dsc_moe_rule *rule, int32_t *chosen)
{
    bool taken[DSC_MOE_EXPERTS_MAX] = { false };
    if (rule->groups > 1)
        take_groups(x, rule, taken);
    for (int32_t slot = 0; slot < rule->top_k; slot++) {
        const int32_t best = best_of(x, 0, rule->experts, taken);
        taken[best] = true;
        chosen[slot] = best;
    }
}

static void read_logits(const void *logits, int64_t token, int32_t experts, dsc_dtype dtype, float *x)
{
    for (int32_t e = 0; e < experts; e++)
        x[e] = dsc_get(logits, token * experts + e, dtype);
}

/* Scores of all experts. */
static void scores_of(const float *x, const dsc_moe_rule *rule, double *score)
{
    double largest = (double)x[0], sum = 0;
    for (int32_t e = 0; e < rule->experts; e++)
        largest = fmax(largest, (double)x[e]);
    for (int32_t e = 0; e < rule->experts; e++) {
        const bool all = rule->score == DSC_MOE_SOFTMAX;
        score[e] = all ? exp((double)x[e] - largest) : 1 / (1 + exp(-(double)x[e]));
        sum += score[e];
    }
    for (int32_t e = 0; e < rule->experts && rule->score == DSC_MOE_SOFTMAX; e++)
        score[e] /= sum;
}

/* The sum that the slots' scores are divided by. */
static double divisor_of(const double *score, const int32_t *chosen, const dsc_moe_rule *rule)
{
    double sum = 0;
    for (int32_t slot = 0; slot < rule->top_k; slot++)
        sum += score[chosen[slot]];
    return rule->renormalize ? sum : 1;
}

/* Logits become what the experts are chosen by. */
static void make_choice(const dsc_moe_route_fwd_args *a, const double *score, float *x)
{
    for (int32_t e = 0; e < a->rule.experts && (a->bias != NULL || a->rule.group_pairs); e++)
        x[e] = (float)score[e] + (a->bias != NULL ? a->bias[e] : 0);
}

void dsc_moe_route_fwd_ref(const void *args, int64_t first, int64_t last)
{
    const dsc_moe_route_fwd_args *a = args;
    float x[DSC_MOE_EXPERTS_MAX];
    double score[DSC_MOE_EXPERTS_MAX];
    for (int64_t t = first; t < last; t++) {
        int32_t *chosen = a->chosen + t * a->rule.top_k;
        read_logits(a->logits, t, a->rule.experts, a->dtype, x);
        scores_of(x, &a->rule, score);
        make_choice(a, score, x);
        choose(x, &a->rule, chosen);
        const double divisor = divisor_of(score, chosen, &a->rule);
        for (int32_t slot = 0; slot < a->rule.top_k; slot++)
            a->weights[t * a->rule.top_k + slot] = (float)(score[chosen[slot]] / divisor * (double)a->rule.factor);
    }
}

/* By the scores of the slots, whose weights are w = f p / s: with g = f d_w the gradient of p is (g - sum g p / s) / s.
 * Without renormalization it is g. */
static void score_gradients(const double *score, const int32_t *chosen, const float *d_weights,
                            const dsc_moe_rule *rule, double *d)
{
    const double divisor = divisor_of(score, chosen, rule), factor = (double)rule->factor;
    double mean = 0;
    for (int32_t slot = 0; slot < rule->top_k && rule->renormalize; slot++)
        mean += factor * (double)d_weights[slot] * score[chosen[slot]] / divisor;
    for (int32_t slot = 0; slot < rule->top_k; slot++)
        d[slot] = (factor * (double)d_weights[slot] - mean) / divisor;
}

void dsc_moe_route_bwd_ref(const void *args, int64_t first, int64_t last)
{
    const dsc_moe_route_bwd_args *a = args;
    const dsc_moe_rule *rule = &a->rule;
    float x[DSC_MOE_EXPERTS_MAX];
    double score[DSC_MOE_EXPERTS_MAX], out[DSC_MOE_EXPERTS_MAX], d[DSC_MOE_TOP_K_MAX];
    for (int64_t t = first; t < last; t++) {
        const int32_t *chosen = a->chosen + t * rule->top_k;
        double mean = 0;
        read_logits(a->logits, t, rule->experts, a->dtype, x);
        scores_of(x, rule, score);
        score_gradients(score, chosen, a->d_weights + t * rule->top_k, rule, d);
        for (int32_t slot = 0; slot < rule->top_k && rule->score == DSC_MOE_SOFTMAX; slot++)
            mean += d[slot] * score[chosen[slot]];
        for (int32_t e = 0; e < rule->experts; e++)
            out[e] = -mean * score[e];
        for (int32_t slot = 0; slot < rule->top_k; slot++) {
            const double p = score[chosen[slot]];
            out[chosen[slot]] = rule->score == DSC_MOE_SOFTMAX ? p * (d[slot] - mean) : d[slot] * p * (1 - p);
        }
        for (int32_t e = 0; e < rule->experts; e++)
            dsc_put(a->d_logits, t * rule->experts + e, a->d_dtype, (float)out[e]);
    }
}

/* ---- the order of rows ---- */

void dsc_moe_order_ref(const dsc_moe_order_args *a)
{
    memset(a->starts, 0, (size_t)(a->experts + 1) * sizeof *a->starts);
    for (int64_t i = 0; i < a->slots; i++) {
        DSC_ASSERT(a->chosen[i] >= 0);
        DSC_ASSERT(a->chosen[i] < a->experts);
        a->starts[a->chosen[i] + 1]++;
    }
    for (int32_t e = 0; e < a->experts; e++)
        a->starts[e + 1] += a->starts[e];
    /* Each start moves over its rows to the next one's. */
    for (int64_t i = 0; i < a->slots; i++) {
        const int32_t row = a->starts[a->chosen[i]]++;
        a->place[i] = row;
        a->source[row] = (int32_t)i;
    }
    memmove(a->starts + 1, a->starts, (size_t)a->experts * sizeof *a->starts);
    a->starts[0] = 0;
}

/* ---- rows ---- */

void dsc_moe_dispatch_bwd_ref(const void *args, int64_t first, int64_t last)
{
    const dsc_moe_dispatch_args *a = args;
    for (int64_t t = first; t < last; t++)
        for (int64_t c = 0; c < a->channels; c++) {
            float sum = dsc_get(a->in, a->order[t * a->top_k] * a->channels + c, a->dtype);
            for (int32_t slot = 1; slot < a->top_k; slot++)
                sum += dsc_get(a->in, a->order[t * a->top_k + slot] * a->channels + c, a->dtype);
            if (a->add != NULL)
                sum += dsc_get(a->add, t * a->channels + c, a->dtype);
            dsc_put(a->out, t * a->channels + c, a->dtype, sum);
        }
}

void dsc_moe_combine_fwd_ref(const void *args, int64_t first, int64_t last)
{
    const dsc_moe_combine_fwd_args *a = args;
    for (int64_t t = first; t < last; t++)
        for (int64_t c = 0; c < a->channels; c++) {
            float sum = 0;
            for (int32_t slot = 0; slot < a->top_k; slot++) {
                const int64_t i = t * a->top_k + slot;
                sum = fmaf(a->weights[i], dsc_get(a->rows, a->place[i] * a->channels + c, a->dtype), sum);
            }
            dsc_put(a->out, t * a->channels + c, a->dtype, sum);
        }
}

void dsc_moe_combine_bwd_ref(const void *args, int64_t first, int64_t last)
{
    const dsc_moe_combine_bwd_args *a = args;
    for (int64_t i = first * a->top_k; i < last * a->top_k; i++) {
        const int64_t row = a->place[i] * a->channels, token = i / a->top_k * a->channels;
        float lane[16] = { 0 };
        for (int64_t c = 0; c < a->channels; c++) {
            const float d = dsc_get(a->d_out, token + c, a->dtype);
            lane[c % 16] = fmaf(d, dsc_get(a->rows, row + c, a->dtype), lane[c % 16]);
            dsc_put(a->d_rows, row + c, a->dtype, a->weights[i] * d);
        }
        a->d_weights[i] = dsc_lanes_sum(lane, 16);
    }
}
