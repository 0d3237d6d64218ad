/* program_reference_moe.c - mixture of experts in double, for program_reference.c. SPDX-License-Identifier: Apache-2.0
 */
#include "tests/support/program_reference_moe.h"

#include <math.h>

/* Scores of all experts of a token. */
static void scores_of(const dsc_moe_rule *rule, const double *x, double *score)
{
    double sum = 0;
    for (int32_t e = 0; e < rule->experts; e++) {
        score[e] = rule->score == DSC_MOE_SOFTMAX ? exp(x[e]) : 1 / (1 + exp(-x[e]));
        sum += score[e];
    }
    for (int32_t e = 0; e < rule->experts && rule->score == DSC_MOE_SOFTMAX; e++)
        score[e] /= sum;
}

/* The derivative of score j by logit e. */
static double score_slope(const dsc_moe_rule *rule, const double *score, int32_t j, int32_t e)
{
    if (rule->score == DSC_MOE_SIGMOID)
        return j == e ? score[e] * (1 - score[e]) : 0;
    return score[j] * ((j == e) - score[e]);
}

/* How many of `count` numbers are larger than the one at `i`, or equal and before it. */
static int32_t rank_of(const double *x, int32_t count, int32_t i)
{
    int32_t rank = 0;
    for (int32_t other = 0; other < count; other++)
        rank += x[other] > x[i] || (x[other] == x[i] && other < i);
    return rank;
}

/* The choice of experts outside of the best groups becomes less than all others. */
static void leave_groups(const dsc_moe_rule *rule, double *choice)
{
    const int32_t each = rule->experts / rule->groups;
    double value[DSC_MOE_GROUPS_MAX];
    for (int32_t g = 0; g < rule->groups; g++) {
        value[g] = 0;
        for (int32_t e = 0; e < each; e++)
            if (rank_of(choice + g * each, each, e) < (rule->group_pairs ? 2 : 1))
                value[g] += choice[g * each + e];
    }
    for (int32_t e = 0; e < rule->experts; e++)
        if (rank_of(value, rule->groups, e / each) >= rule->best_groups)
            choice[e] = -INFINITY;
}

/* The numbers that a token's experts are chosen by. */
static void choice_of(const dsc_op *op, const double *x, const double *score, double *choice)
{
    const bool scores = op->router.bias >= 0 || op->rule.group_pairs;
    for (int32_t e = 0; e < op->rule.experts; e++)
        choice[e] = (scores ? score[e] : x[e]) +
                    (op->router.bias >= 0 ? (double)program_reference_bias(op->router.bias, e) : 0);
    if (op->rule.groups > 1)
        leave_groups(&op->rule, choice);
}

static void router(program_reference *r, const dsc_op *op, bool backward)
{
    const dsc_moe_rule *rule = &op->rule;
    double score[DSC_MOE_EXPERTS_MAX], choice[DSC_MOE_EXPERTS_MAX];
    for (int64_t t = 0; t < program_reference_elements(r, op->in[0]) / rule->experts; t++) {
        const double *x = r->value[op->in[0]] + t * rule->experts;
        double *dx = r->d_value[op->in[0]] + t * rule->experts, *weights = r->value[op->out[0]] + t * rule->top_k;
        const double *d = r->d_value[op->out[0]] + t * rule->top_k;
        double *chosen = r->value[op->out[1]] + t * rule->top_k, sum = 0;
        scores_of(rule, x, score);
        choice_of(op, x, score, choice);
        for (int32_t e = 0; e < rule->experts; e++)
            if (rank_of(choice, rule->experts, e) < rule->top_k)
                chosen[rank_of(choice, rule->experts, e)] = e;
        for (int32_t k = 0; k < rule->top_k; k++)
            sum += score[(int32_t)chosen[k]];
        const double factor = (double)rule->factor, divisor = rule->renormalize ? sum : 1;
        for (int32_t k = 0; k < rule->top_k && !backward; k++)
            weights[k] = score[(int32_t)chosen[k]] / divisor * factor;
        for (int32_t e = 0; e < rule->experts && backward; e++)
            for (int32_t k = 0; k < rule->top_k; k++) {
                const int32_t j = (int32_t)chosen[k];
                double slope = score_slope(rule, score, j, e) / divisor;
                for (int32_t i = 0; i < rule->top_k && rule->renormalize; i++)
                    slope -= score[j] / sum / sum * score_slope(rule, score, (int32_t)chosen[i], e);
                dx[e] += d[k] * slope * factor;
            }
    }
}

static void order(program_reference *r, const dsc_op *op)
{
    const int64_t slots = program_reference_elements(r, op->in[0]);
    const double *chosen = r->value[op->in[0]];
    int64_t row = 0;
    for (int32_t e = 0; e < op->rule.experts; e++) {
        r->value[op->out[2]][e] = (double)row;
        for (int64_t i = 0; i < slots; i++)
            if (chosen[i] == (double)e) {
                r->value[op->out[0]][i] = (double)row;
                r->value[op->out[1]][row++] = (double)i;
            }
    }
    r->value[op->out[2]][op->rule.experts] = (double)row;
}

static void dispatch(program_reference *r, const dsc_op *op, bool backward)
{
    const int64_t columns = r->program->value[op->in[0]].columns;
    const int64_t rows = program_reference_elements(r, op->in[1]);
    const int64_t top_k = rows * columns / program_reference_elements(r, op->in[0]);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t c = 0; c < columns; c++) {
            const int64_t from = (int64_t)r->value[op->in[1]][row] / top_k * columns + c;
            if (backward)
                r->d_value[op->in[0]][from] += r->d_value[op->out[0]][row * columns + c];
            else
                r->value[op->out[0]][row * columns + c] = r->value[op->in[0]][from];
        }
}

static void expert_bias(program_reference *r, const dsc_op *op, bool backward)
{
    const dsc_op_grouped *g = &op->grouped;
    const double *starts = r->value[op->in[1]];
    for (int32_t e = 0; e < g->experts; e++)
        for (int64_t row = (int64_t)starts[e]; row < (int64_t)starts[e + 1]; row++)
            for (int64_t o = 0; o < g->out; o++) {
                if (backward)
                    r->d_param[g->bias][e * g->out + o] += r->d_value[op->out[0]][row * g->out + o];
                else
                    r->value[op->out[0]][row * g->out + o] += r->param[g->bias][e * g->out + o];
            }
}

/* The derivatives of (u + 1) g sigmoid(alpha g), with g and u clamped, by gate and up are exact but at the corners. */
static void pairs(program_reference *r, const dsc_op *op, bool backward)
{
    const double alpha = (double)op->clamp.alpha, limit = (double)op->clamp.limit;
    for (int64_t i = 0; i < program_reference_elements(r, op->out[0]); i++) {
        const double gate = r->value[op->in[0]][2 * i], up = r->value[op->in[0]][2 * i + 1];
        const double g = fmin(gate, limit), u = fmax(fmin(up, limit), -limit), s = 1 / (1 + exp(-alpha * g));
        const double d = r->d_value[op->out[0]][i];
        if (!backward) {
            r->value[op->out[0]][i] = (u + 1) * g * s;
            continue;
        }
        r->d_value[op->in[0]][2 * i] += gate <= limit ? d * (u + 1) * s * (1 + alpha * g * (1 - s)) : 0;
        r->d_value[op->in[0]][2 * i + 1] += fabs(up) <= limit ? d * g * s : 0;
    }
}

/* Element (o, i) of expert e in the parameter. */
static int64_t matrix_at(const dsc_op_grouped *g, int32_t e, int64_t o, int64_t i)
{
    if (g->spread)
        return (g->first + o * g->in + i) * g->experts + e;
    return g->in_out ? (e * g->in + i) * g->out + o : (e * g->out + o) * g->in + i;
}

/* The value that is added to the outputs of a product. */
static void other(program_reference *r, const dsc_op *op, bool backward)
{
    for (int64_t i = 0; op->in[2] != DSC_PROGRAM_NONE && i < program_reference_elements(r, op->out[0]); i++) {
        if (backward)
            r->d_value[op->in[2]][i] += r->d_value[op->out[0]][i];
        else
            r->value[op->out[0]][i] += r->value[op->in[2]][i];
    }
}

static void grouped(program_reference *r, const dsc_op *op, bool backward)
{
    const dsc_op_grouped *g = &op->grouped;
    const double *starts = r->value[op->in[1]], *w = r->param[g->weight];
    for (int32_t e = 0; e < g->experts; e++)
        for (int64_t row = (int64_t)starts[e]; row < (int64_t)starts[e + 1]; row++)
            for (int64_t o = 0; o < g->out; o++)
                for (int64_t i = 0; i < g->in; i++) {
                    const int64_t at = matrix_at(g, e, o, i), x = row * g->in + i, y = row * g->out + o;
                    if (!backward) {
                        r->value[op->out[0]][y] += r->value[op->in[0]][x] * w[at];
                        continue;
                    }
                    r->d_value[op->in[0]][x] += r->d_value[op->out[0]][y] * w[at];
                    r->d_param[g->weight][at] += r->d_value[op->out[0]][y] * r->value[op->in[0]][x];
                }
    other(r, op, backward);
    if (g->bias != DSC_PROGRAM_NONE)
        expert_bias(r, op, backward);
}

static void combine(program_reference *r, const dsc_op *op, bool backward)
{
    const int64_t columns = r->program->value[op->out[0]].columns, top_k = r->program->value[op->in[1]].columns;
    const double *weights = r->value[op->in[1]], *place = r->value[op->in[2]];
    for (int64_t i = 0; i < program_reference_elements(r, op->in[1]); i++)
        for (int64_t c = 0; c < columns; c++) {
            const int64_t y = i / top_k * columns + c, x = (int64_t)place[i] * columns + c;
            if (!backward) {
                r->value[op->out[0]][y] += weights[i] * r->value[op->in[0]][x];
                continue;
            }
            r->d_value[op->in[0]][x] += weights[i] * r->d_value[op->out[0]][y];
            r->d_value[op->in[1]][i] += r->value[op->in[0]][x] * r->d_value[op->out[0]][y];
        }
}

bool program_reference_moe(program_reference *r, const dsc_op *op, bool backward)
{
    switch (op->kind) {
    case DSC_OP_ROUTER:
        router(r, op, backward);
        return true;
    case DSC_OP_ORDER:
        if (!backward)
            order(r, op);
        return true;
    case DSC_OP_DISPATCH:
        dispatch(r, op, backward);
        return true;
    case DSC_OP_GROUPED:
        grouped(r, op, backward);
        return true;
    case DSC_OP_PAIRS:
        pairs(r, op, backward);
        return true;
    case DSC_OP_COMBINE:
        combine(r, op, backward);
        return true;
    default:
        return false;
    }
}
