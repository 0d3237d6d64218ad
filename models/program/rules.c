/* rules.c - backward rules of kinds of ops: what the gradient of an output says about those of the inputs.
 *
 * Products and norms add in their epilogues: the sum so far is an input, the next sum the output. Products that read
 * one value stand together: first the gradients of all weights, then the value's, in the order of forward.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "models/program/ops.h"

/* ---- by the table ------------------------------------------------------------------------------------------------ */

/* The op of `gradient_kind`, without its values' way into the sums; `made` is one for each input with a gradient. */
static dsc_op *emit_one(dsc_tape *t, const dsc_op *forward, int16_t *made)
{
    const dsc_op_info *info = &dsc_op_infos[forward->kind];
    dsc_op *op = dsc_tape_emit(t, info->gradient_kind, forward);
    int in = 0, out = 0;
    op->in[in++] = t->gradient[forward->out[0]];
    for (int i = 0; i < DSC_OP_OUTPUTS; i++)
        if ((info->reads_out & DSC_BIT(i)) != 0)
            op->in[in++] = forward->out[i];
    for (int i = 0; i < DSC_OP_INPUTS; i++)
        if ((info->reads_in & DSC_BIT(i)) != 0)
            op->in[in++] = forward->in[i];
    for (int i = 0; i < DSC_OP_INPUTS; i++) {
        if ((info->gradients & DSC_BIT(i)) == 0)
            continue;
        made[i] = dsc_tape_emit_value(t, op, out, forward->in[i]);
        out++;
    }
    return op;
}

static void add_made(dsc_tape *t, const dsc_op *forward, const int16_t *made)
{
    for (int i = 0; i < DSC_OP_INPUTS && !t->full; i++)
        if ((dsc_op_infos[forward->kind].gradients & DSC_BIT(i)) != 0)
            dsc_tape_add(t, forward, forward->in[i], made[i]);
}

dsc_status dsc_rule_one_op(dsc_tape *t, dsc_op *op, dsc_error *err)
{
    int16_t made[DSC_OP_INPUTS];
    (void)emit_one(t, op, made);
    add_made(t, op, made);
    return DSC_OK;
}

dsc_status dsc_rule_pass(dsc_tape *t, dsc_op *op, dsc_error *err)
{
    const int16_t gradient = t->gradient[op->out[0]];
    for (int i = 0; i < DSC_OP_INPUTS; i++)
        if ((dsc_op_infos[op->kind].gradients & DSC_BIT(i)) != 0)
            dsc_tape_add(t, op, op->in[i], gradient);
    return DSC_OK;
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

static void weight_backward(dsc_tape *t, const dsc_op *product, int16_t gradient)
{
    dsc_op *op = dsc_tape_emit(t, DSC_OP_LINEAR_DW, product);
    op->in[0] = product->in[0], op->in[1] = gradient;
}

/* The gradient of what a product gave before its activation, or of its output. */
static int16_t gradient_of_product(const dsc_tape *t, const dsc_op *product)
{
    return t->gradient[product->out[1] != DSC_PROGRAM_NONE ? product->out[1] : product->out[0]];
}

static void input_backward(dsc_tape *t, dsc_op *product, int16_t gradient)
{
    dsc_program *program = t->program;
    const int16_t x = product->in[0];
    const bool slopes = dsc_epilogue_slopes(product->linear.backward);
    /* Through the activation that x was made with, to the value before it. */
    const int16_t to = slopes ? program->op[program->value[x].maker].out[1] : x;
    if (!slopes)
        product->linear.backward = t->gradient[to] != DSC_PROGRAM_NONE ? DSC_EPILOGUE_ADD : DSC_EPILOGUE_NONE;
    dsc_op *op = dsc_tape_emit(t, DSC_OP_LINEAR_DX, product);
    op->in[0] = gradient, op->in[1] = t->gradient[to], op->in[2] = slopes ? to : DSC_PROGRAM_NONE;
    t->gradient[to] = dsc_tape_emit_value(t, op, 0, to);
}

/* Whether the backward of what made x makes x again at no cost of its own, and nothing else reads x. */
static bool is_made_again(const dsc_tape *t, int16_t x)
{
    int16_t reader;
    const int16_t maker = t->program->value[x].maker;
    return maker != DSC_PROGRAM_NONE && t->program->op[maker].kind == DSC_OP_GATED &&
           dsc_program_readers(t->program, x, &reader) == 1;
}

/* Products number first .. first + count - 1 of the list, which read one value. */
static void products_backward(dsc_tape *t, int16_t first, int16_t count)
{
    dsc_program *program = t->program;
    const int16_t *ops = &program->list[DSC_PASS_FORWARD].op[first];
    const int16_t x = program->op[ops[0]].in[0];
    const bool later = is_made_again(t, x);
    int16_t gradient[DSC_PROGRAM_FORWARD_OPS + 1];
    for (int16_t i = 0; i < count; i++) {
        dsc_op *product = &program->op[ops[i]];
        gradient[i] = gradient_of_product(t, product);
        if (product->in[1] != DSC_PROGRAM_NONE)
            dsc_tape_add(t, product, product->in[1], gradient[i]);
        t->done[ops[i]] = true;
    }
    for (int16_t i = 0; i < count && !later; i++)
        weight_backward(t, &program->op[ops[i]], gradient[i]);
    for (int16_t i = 0; i < count; i++)
        if (!program->op[ops[i]].linear.no_dx)
            input_backward(t, &program->op[ops[i]], gradient[i]);
    if (later)
        t->weight_later[program->value[x].maker] = ops[0];
}

/* The number of products without a residual that stand before `at`, which is one, and read the same value. */
static int16_t siblings_before(const dsc_tape *t, int16_t at)
{
    const dsc_op_list *list = &t->program->list[DSC_PASS_FORWARD];
    const dsc_op *product = &t->program->op[list->op[at]];
    int16_t count = 0;
    while (at - count > 0 && product->in[1] == DSC_PROGRAM_NONE) {
        const int16_t before = list->op[at - count - 1];
        const dsc_op *op = &t->program->op[before];
        if (op->kind != DSC_OP_LINEAR || op->in[0] != product->in[0] || op->in[1] != DSC_PROGRAM_NONE ||
            t->done[before])
            break;
        count++;
    }
    return count;
}

dsc_status dsc_rule_linear(dsc_tape *t, dsc_op *op, dsc_error *err)
{
    const dsc_op_list *list = &t->program->list[DSC_PASS_FORWARD];
    const int16_t number = dsc_op_number(t->program, op);
    int16_t at = 0;
    while (list->op[at] != number)
        at++;
    const int16_t before = siblings_before(t, at);
    products_backward(t, (int16_t)(at - before), (int16_t)(before + 1));
    return DSC_OK;
}

/* ---- others ------------------------------------------------------------------------------------------------------ */

/* Logits in fp32 have a gradient in the compute dtype, which products read. */
dsc_status dsc_rule_router(dsc_tape *t, dsc_op *router, dsc_error *err)
{
    int16_t made[DSC_OP_INPUTS];
    (void)emit_one(t, router, made);
    if (!t->full)
        t->program->value[made[0]].f32 = false;
    add_made(t, router, made);
    return DSC_OK;
}

dsc_status dsc_rule_dispatch(dsc_tape *t, dsc_op *dispatch, dsc_error *err)
{
    const int16_t x = dispatch->in[0];
    dsc_op *op = dsc_tape_emit(t, DSC_OP_DISPATCH_BWD, dispatch);
    op->in[0] = t->gradient[dispatch->out[0]], op->in[1] = t->gradient[x], op->in[2] = dispatch->in[2];
    t->gradient[x] = dsc_tape_emit_value(t, op, 0, x);
    return DSC_OK;
}

dsc_status dsc_rule_grouped(dsc_tape *t, dsc_op *grouped, dsc_error *err)
{
    const int16_t x = grouped->in[0], starts = grouped->in[1], gradient = t->gradient[grouped->out[0]];
    dsc_op *weight = dsc_tape_emit(t, DSC_OP_GROUPED_DW, grouped);
    weight->in[0] = x, weight->in[1] = gradient, weight->in[2] = starts;
    dsc_op *op = dsc_tape_emit(t, DSC_OP_GROUPED_DX, grouped);
    op->in[0] = gradient, op->in[1] = t->gradient[x], op->in[2] = starts;
    t->gradient[x] = dsc_tape_emit_value(t, op, 0, x);
    if (grouped->in[2] != DSC_PROGRAM_NONE && !t->full)
        dsc_tape_add(t, grouped, grouped->in[2], gradient);
    return DSC_OK;
}

/* The shared columns may be absent. */
dsc_status dsc_rule_heads(dsc_tape *t, dsc_op *heads, dsc_error *err)
{
    int16_t made[2] = { DSC_PROGRAM_NONE, DSC_PROGRAM_NONE };
    dsc_op *op = dsc_tape_emit(t, DSC_OP_HEADS_BWD, heads);
    op->in[0] = t->gradient[heads->out[0]];
    for (int i = 0; i < 2; i++)
        if (heads->in[i] != DSC_PROGRAM_NONE)
            made[i] = dsc_tape_emit_value(t, op, i, heads->in[i]);
    for (int i = 0; i < 2 && !t->full; i++)
        if (heads->in[i] != DSC_PROGRAM_NONE)
            dsc_tape_add(t, heads, heads->in[i], made[i]);
    return DSC_OK;
}

dsc_status dsc_rule_norm(dsc_tape *t, dsc_op *norm, dsc_error *err)
{
    const bool sums = norm->in[1] != DSC_PROGRAM_NONE;
    const int16_t x = sums ? norm->out[2] : norm->in[0];
    dsc_op *op = dsc_tape_emit(t, DSC_OP_NORM_BWD, norm);
    op->in[0] = t->gradient[norm->out[0]], op->in[1] = t->gradient[x], op->in[2] = x, op->in[3] = norm->out[1];
    t->gradient[x] = dsc_tape_emit_value(t, op, 0, x);
    for (int i = 0; i < 2 && sums && !t->full; i++) /* the gradient of a sum is that of its terms */
        dsc_tape_add(t, norm, norm->in[i], t->gradient[x]);
    return DSC_OK;
}

dsc_status dsc_rule_way_back(dsc_tape *t, dsc_op *op, dsc_error *err)
{
    int16_t made[DSC_OP_INPUTS];
    emit_one(t, op, made)->inverse = !op->inverse;
    add_made(t, op, made);
    return DSC_OK;
}

dsc_status dsc_rule_gated(dsc_tape *t, dsc_op *gated, dsc_error *err)
{
    const int16_t later = t->weight_later[dsc_op_number(t->program, gated)];
    int16_t made[DSC_OP_INPUTS];
    dsc_op *op = emit_one(t, gated, made);
    if (later != DSC_PROGRAM_NONE) {
        op->out[2] = gated->out[0];
        weight_backward(t, &t->program->op[later], gradient_of_product(t, &t->program->op[later]));
    }
    add_made(t, gated, made);
    return DSC_OK;
}

/* The part of the first rows of each sample. */
static void table_backward(dsc_tape *t, const dsc_op *of)
{
    dsc_op *op = dsc_tape_emit(t, DSC_OP_TABLE_DW, of);
    op->in[0] = t->gradient[of->out[0]];
}

dsc_status dsc_rule_prepend(dsc_tape *t, dsc_op *prepend, dsc_error *err)
{
    table_backward(t, prepend);
    return t->program->value[prepend->in[0]].is_data ? DSC_OK : dsc_rule_one_op(t, prepend, err);
}

dsc_status dsc_rule_table(dsc_tape *t, dsc_op *table, dsc_error *err)
{
    table_backward(t, table);
    return dsc_rule_pass(t, table, err);
}

dsc_status dsc_rule_columns(dsc_tape *t, dsc_op *columns, dsc_error *err)
{
    dsc_op *op = dsc_tape_emit(t, DSC_OP_COLUMNS_DW, columns);
    op->in[0] = t->gradient[columns->out[0]], op->in[1] = columns->in[0];
    return dsc_rule_one_op(t, columns, err);
}

/* After the last slice of a value its gradient is whole: the slices lie in it. */
dsc_status dsc_rule_slice(dsc_tape *t, dsc_op *slice, dsc_error *err)
{
    const dsc_program *program = t->program;
    const dsc_op_list *list = &program->list[DSC_PASS_FORWARD];
    const int16_t x = slice->in[0];
    const int64_t columns = slice->slice.apart > 0 ? slice->slice.apart : program->value[x].columns;
    int16_t parts[DSC_OP_INPUTS], count = 0;
    int64_t column = 0;
    for (bool found = true; found;) {
        found = false;
        for (int16_t i = 0; i < list->count && !found; i++) {
            const dsc_op *other = &program->op[list->op[i]];
            if (other->kind != DSC_OP_SLICE || other->in[0] != x || other->slice.column != column ||
                other->slice.apart != slice->slice.apart || count == DSC_OP_INPUTS)
                continue;
            if (!t->done[list->op[i]])
                return DSC_OK; /* not the last one */
            parts[count++] = t->gradient[other->out[0]];
            column += other->slice.width;
            found = true;
        }
    }
    if (column != columns)
        return DSC_FAIL(err, DSC_ERR_INPUT, "",
                        "op \"slice\": the slices of \"%.60s\" cover %lld of %lld columns; "
                        "slices that are used must cover each column once, in at most %d parts",
                        program->value[x].name, (long long)column, (long long)columns, DSC_OP_INPUTS);
    dsc_op *op = dsc_tape_emit(t, DSC_OP_JOIN, slice);
    memcpy(op->in, parts, (size_t)count * sizeof *parts);
    const int16_t d = dsc_tape_emit_value(t, op, 0, x);
    if (!t->full)
        dsc_tape_add(t, slice, x, d);
    return DSC_OK;
}
