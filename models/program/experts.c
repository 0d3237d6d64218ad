/* experts.c - the builder of mixture of experts: one function for the ops between a token and its experts' sum.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "models/lora.h"
#include "models/program/internal.h"

/* Field by field: equal programs are equal bytes. */
static void set_rule(dsc_op *op, const dsc_moe_rule *rule)
{
    op->rule.experts = rule->experts, op->rule.top_k = rule->top_k;
    op->rule.score = rule->score, op->rule.renormalize = rule->renormalize, op->rule.factor = rule->factor;
    op->rule.groups = rule->groups, op->rule.best_groups = rule->best_groups;
    op->rule.group_pairs = rule->group_pairs;
}

/* ---- routing ----------------------------------------------------------------------------------------------------- */

/* A router's weights by token and slot, and the order of rows. */
typedef struct routed {
    int16_t weights, place, source, starts;
} routed;

static routed route(dsc_program *program, int16_t logits, const dsc_moe_rule *rule, int32_t bias)
{
    const routed none = { DSC_PROGRAM_NONE, DSC_PROGRAM_NONE, DSC_PROGRAM_NONE, DSC_PROGRAM_NONE };
    dsc_op *router = dsc_program_add_forward(program, DSC_OP_ROUTER, "router");
    if (router == NULL)
        return none;
    dsc_value shape = program->value[logits];
    set_rule(router, rule);
    router->router.bias = bias;
    router->in[0] = logits;
    shape.columns = rule->top_k, shape.f32 = true;
    const int16_t weights = dsc_program_add_output(program, router, 0, "weights", shape);
    const int16_t chosen = dsc_program_add_output(program, router, 1, "chosen", shape);
    dsc_op *order = dsc_program_add_forward(program, DSC_OP_ORDER, "order");
    if (order == NULL)
        return none;
    set_rule(order, rule);
    order->in[0] = chosen;
    shape.rows *= rule->top_k, shape.columns = 1;
    const int16_t place = dsc_program_add_output(program, order, 0, "place", shape);
    const int16_t source = dsc_program_add_output(program, order, 1, "source", shape);
    shape.rows = rule->experts + 1, shape.per_sample = false;
    return (routed) { weights, place, source, dsc_program_add_output(program, order, 2, "starts", shape) };
}

static int16_t combine(dsc_program *program, int16_t rows, const routed *by, int16_t like)
{
    dsc_op *op = dsc_program_add_forward(program, DSC_OP_COMBINE, "combine");
    if (op == NULL)
        return DSC_PROGRAM_NONE;
    op->in[0] = rows, op->in[1] = by->weights, op->in[2] = by->place;
    return dsc_program_add_output(program, op, 0, "combine", program->value[like]);
}

/* ---- experts ----------------------------------------------------------------------------------------------------- */

static int16_t dispatch(dsc_program *program, int16_t x, const routed *by, int32_t top_k)
{
    dsc_op *op = dsc_program_add_forward(program, DSC_OP_DISPATCH, "dispatch");
    if (op == NULL)
        return DSC_PROGRAM_NONE;
    dsc_value shape = program->value[x];
    program->op[program->value[by->weights].maker].record = ++program->record_count; /* of a router of experts alone */
    op->in[0] = x, op->in[1] = by->source, op->in[2] = by->place;
    shape.rows *= top_k;
    return dsc_program_add_output(program, op, 0, "dispatch", shape);
}

/* A value that products of one input share: s x A^T of the adapter whose A has this number. */
typedef struct narrow {
    int32_t a;
    int16_t value;
    int64_t outputs; /* rows of B that products before have taken */
} narrow;

/* Field by field: equal programs are equal bytes. `other`: added to the output, NONE: nothing. */
static int16_t add_product(dsc_program *program, int16_t rows, int16_t starts, int16_t other, const char *name,
                           const dsc_op_grouped *of)
{
    dsc_op *op = program->status == DSC_OK ? dsc_program_add_forward(program, DSC_OP_GROUPED, name) : NULL;
    if (op == NULL)
        return DSC_PROGRAM_NONE;
    op->in[0] = rows, op->in[1] = starts, op->in[2] = other;
    op->grouped.in = program->value[rows].columns, op->grouped.out = of->out;
    op->grouped.experts = of->experts, op->grouped.weight = of->weight;
    op->grouped.bias = of->bias, op->grouped.in_out = of->in_out;
    op->grouped.spread = of->spread, op->grouped.first = of->first;
    dsc_value shape = program->value[rows];
    shape.columns = of->out;
    return dsc_program_add_output(program, op, 0, name, shape);
}

/* y + s (x A^T) B^T with the low-rank pair of each row's expert. */
static int16_t adapt(dsc_program *program, int16_t rows, int16_t starts, int16_t y, const dsc_op_grouped *of,
                     narrow *shared)
{
    const dsc_lora *lora = program->adapters;
    if (program->status != DSC_OK || lora == NULL || !dsc_lora_has(lora, of->weight))
        return y;
    const int32_t a = lora->first[of->weight];
    const int64_t rank = lora->ranks[of->weight];
    if (shared->a != a) {
        const dsc_op_grouped down = { .out = rank, .experts = of->experts, .weight = a, .bias = DSC_PROGRAM_NONE };
        const double scale = (double)lora->scales[of->weight];
        const int16_t made = add_product(program, rows, starts, DSC_PROGRAM_NONE, "lora_A", &down);
        *shared = (narrow) { .a = a, .value = scale == 1 ? made : dsc_program_scale(program, made, scale) };
    }
    const dsc_op_grouped up = { .out = of->out,
                                .experts = of->experts,
                                .weight = a + 1,
                                .bias = DSC_PROGRAM_NONE,
                                .spread = true,
                                .first = shared->outputs * rank };
    shared->outputs += of->out;
    return add_product(program, shared->value, starts, y, "lora_B", &up);
}

/* The ops, whose parameters are declared: op->grouped but for `in`, which is what the rows have. */
static int16_t product(dsc_program *program, int16_t rows, int16_t starts, const char *name, const dsc_op_grouped *of,
                       narrow *shared)
{
    const int16_t y = add_product(program, rows, starts, DSC_PROGRAM_NONE, name, of);
    return adapt(program, rows, starts, y, of, shared);
}

static int16_t grouped(dsc_program *program, int16_t rows, int16_t starts, const char *name, int64_t out,
                       const dsc_program_experts_args *args, narrow *shared)
{
    if (program->status != DSC_OK)
        return DSC_PROGRAM_NONE;
    const int64_t in = program->value[rows].columns;
    const dsc_program_param weight = { .name = name,
                                       .part = "weight",
                                       .dim_count = 3,
                                       .dim = { args->rule.experts, out, in },
                                       .init = args->std > 0 ? DSC_INIT_NORMAL : DSC_INIT_ZEROS,
                                       .std = args->std,
                                       .split = DSC_SPLIT_NONE,
                                       .parted = true,
                                       .experts = true };
    const dsc_op_grouped of = { .out = out,
                                .experts = args->rule.experts,
                                .weight = dsc_program_declare(program, &weight),
                                .bias = DSC_PROGRAM_NONE };
    return product(program, rows, starts, name, &of, shared);
}

/* A pattern has one '*', which stands for the expert's number in files. */
static bool is_pattern(const char *name)
{
    const char *star = strchr(name, '*');
    return star != NULL && strchr(star + 1, '*') == NULL;
}

/* A declared buffer of a number for each expert. */
static bool is_bias(const dsc_program *program, int32_t number, int32_t experts)
{
    return number >= 0 && number < program->module_buffer_count &&
           program->module_buffer[number].kind == DSC_BUFFER_AVERAGE && program->module_buffer[number].count == experts;
}

static bool check(dsc_program *program, int16_t x, int16_t logits, const dsc_moe_rule *rule, const int32_t *bias,
                  int64_t inner)
{
    const int32_t experts = rule->experts, top_k = rule->top_k;
    if (program->status != DSC_OK)
        return false;
    if (x < 0 || x >= program->value_count || logits < 0 || logits >= program->value_count) {
        REFUSE(program, "op \"experts\": values %d and %d are not both of the program's %d", (int)x, (int)logits,
               (int)program->value_count);
        return false;
    }
    const dsc_value *of_x = &program->value[x], *of_logits = &program->value[logits];
    if (experts < 1 || experts > DSC_MOE_EXPERTS_MAX || top_k < 1 || top_k > DSC_MOE_TOP_K_MAX || top_k > experts)
        REFUSE(program, "op \"experts\": %d of %d experts for each token; expected 1 to %d of at most %d", (int)top_k,
               (int)experts, DSC_MOE_TOP_K_MAX, DSC_MOE_EXPERTS_MAX);
    else if (of_logits->columns != experts || of_logits->rows != of_x->rows)
        REFUSE(program, "op \"experts\": the logits \"%.60s\" are [%lld,%lld]; expected [%lld,%d]", of_logits->name,
               (long long)of_logits->rows, (long long)of_logits->columns, (long long)of_x->rows, (int)experts);
    else if (!dsc_moe_rule_is_valid(rule))
        REFUSE(
            program,
            "op \"experts\": %d of %d groups of %d experts for %d slots; expected equal groups of 2 or more, at most "
            "%d, the best of which have an expert for each slot",
            (int)rule->best_groups, (int)rule->groups, (int)experts, (int)top_k, DSC_MOE_GROUPS_MAX);
    else if (bias != NULL && !is_bias(program, *bias, experts))
        REFUSE(program, "op \"experts\": its bias is buffer %d; expected a declared one of %d elements", (int)*bias,
               (int)experts);
    else if (inner < 1)
        REFUSE(program, "op \"experts\": an inner width of %lld; expected 1 or more", (long long)inner);
    return program->status == DSC_OK;
}

int16_t dsc_program_experts(dsc_program *program, int16_t x, int16_t logits, const dsc_program_experts_args *args)
{
    DSC_ASSERT(is_pattern(args->gate));
    DSC_ASSERT(is_pattern(args->up));
    DSC_ASSERT(is_pattern(args->down));
    if (!check(program, x, logits, &args->rule, args->has_bias ? &args->bias : NULL, args->inner))
        return DSC_PROGRAM_NONE;
    const int64_t channels = program->value[x].columns;
    const routed by = route(program, logits, &args->rule, args->has_bias ? args->bias : DSC_PROGRAM_NONE);
    const int16_t rows = dispatch(program, x, &by, args->rule.top_k);
    narrow of_rows = { 0 }, of_middle = { 0 };
    const int16_t gate = grouped(program, rows, by.starts, args->gate, args->inner, args, &of_rows);
    const int16_t up = grouped(program, rows, by.starts, args->up, args->inner, args, &of_rows);
    const int16_t middle = dsc_program_gated(program, gate, up, args->activation);
    const int16_t out = grouped(program, middle, by.starts, args->down, channels, args, &of_middle);
    return combine(program, out, &by, x);
}

/* ---- pairs ------------------------------------------------------------------------------------------------------- */

int16_t dsc_program_pairs(dsc_program *program, int16_t x, const dsc_swiglu_clamp *clamp)
{
    if (program->status != DSC_OK)
        return DSC_PROGRAM_NONE;
    if (x < 0 || x >= program->value_count || program->value[x].columns % 2 != 0) {
        REFUSE(program, "op \"pairs\": value %d is not rows of an even number of columns", (int)x);
        return DSC_PROGRAM_NONE;
    }
    if (!(clamp->limit > 0 && clamp->limit < 1e30f) || !(clamp->alpha > 0 && clamp->alpha < 1e30f)) {
        REFUSE(program, "op \"pairs\": a limit of %g and a factor of %g; expected numbers above 0",
               (double)clamp->limit, (double)clamp->alpha);
        return DSC_PROGRAM_NONE;
    }
    dsc_op *op = dsc_program_add_forward(program, DSC_OP_PAIRS, "pairs");
    if (op == NULL)
        return DSC_PROGRAM_NONE;
    dsc_value shape = program->value[x];
    op->in[0] = x;
    op->clamp.alpha = clamp->alpha, op->clamp.limit = clamp->limit;
    shape.columns /= 2;
    return dsc_program_add_output(program, op, 0, "pairs", shape);
}

/* A product with a bias, of tensors that have all experts. */
static int16_t biased(dsc_program *program, int16_t rows, int16_t starts, const char *const names[2], int64_t out,
                      const dsc_program_pair_experts_args *args)
{
    if (program->status != DSC_OK)
        return DSC_PROGRAM_NONE;
    const dsc_program_param weight = { .name = names[0],
                                       .part = "",
                                       .dim_count = 3,
                                       .dim = { args->rule.experts, program->value[rows].columns, out },
                                       .init = args->std > 0 ? DSC_INIT_NORMAL : DSC_INIT_ZEROS,
                                       .std = args->std,
                                       .split = DSC_SPLIT_NONE,
                                       .experts = true };
    const dsc_program_param bias = { .name = names[1],
                                     .part = "",
                                     .dim_count = 2,
                                     .dim = { args->rule.experts, out },
                                     .init = DSC_INIT_ZEROS,
                                     .split = DSC_SPLIT_NONE,
                                     .as_stored = true };
    const int32_t number = dsc_program_declare(program, &weight);
    const dsc_op_grouped of = { .out = out,
                                .experts = args->rule.experts,
                                .weight = number,
                                .bias = dsc_program_declare(program, &bias),
                                .in_out = true };
    narrow shared = { 0 };
    return product(program, rows, starts, names[0], &of, &shared);
}

int16_t dsc_program_pair_experts(dsc_program *program, int16_t x, int16_t logits,
                                 const dsc_program_pair_experts_args *args)
{
    const char *const gate_up[2] = { args->gate_up, args->gate_up_bias }, *const down[2] = { args->down,
                                                                                             args->down_bias };
    if (!check(program, x, logits, &args->rule, NULL, args->inner))
        return DSC_PROGRAM_NONE;
    const int64_t channels = program->value[x].columns;
    const routed by = route(program, logits, &args->rule, DSC_PROGRAM_NONE);
    const int16_t rows = dispatch(program, x, &by, args->rule.top_k);
    const int16_t both = biased(program, rows, by.starts, gate_up, 2 * args->inner, args);
    const int16_t middle = dsc_program_pairs(program, both, &args->clamp);
    return combine(program, biased(program, middle, by.starts, down, channels, args), &by, x);
}

/* One expert that every token goes to, by the sigmoid of its logit. */
int16_t dsc_program_gate_rows(dsc_program *program, int16_t x, int16_t gate)
{
    const dsc_moe_rule rule = { .experts = 1, .top_k = 1, .score = DSC_MOE_SIGMOID, .factor = 1 };
    if (program->status != DSC_OK)
        return DSC_PROGRAM_NONE;
    if (x < 0 || x >= program->value_count || gate < 0 || gate >= program->value_count ||
        program->value[gate].columns != 1 || program->value[gate].rows != program->value[x].rows) {
        REFUSE(program, "op \"gate_rows\": values %d and %d are not rows and one number for each of them", (int)x,
               (int)gate);
        return DSC_PROGRAM_NONE;
    }
    const routed by = route(program, gate, &rule, DSC_PROGRAM_NONE);
    return combine(program, x, &by, x);
}
