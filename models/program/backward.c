/* backward.c - generates the backward list: reverse mode over the fused forward list.
 *
 * A gradient is a value like any other, and that of a value that is read more than once is a sum. Products and norms
 * add in their epilogues, with the sum so far as an input and the next sum as output. After other ops an ADD
 * follows. An addition needs no launch, since its inputs have the gradient of its output.
 * Products that read one value stand together: first the gradients of all weights, then the value's, in the order of
 * forward. A product that adds a residual goes as early as its gradient is known, because afterwards the gradient of
 * the stream can be overwritten. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "models/program/internal.h"

typedef struct tape {
    dsc_program *program;
    int16_t gradient[DSC_PROGRAM_VALUES]; /* the sum so far for a forward value, NONE: nothing */
    bool done[DSC_PROGRAM_OPS];
    int16_t weight_later[DSC_PROGRAM_OPS]; /* gated activation: the product whose weight's gradient reads what its
                                            * backward makes again */
    bool full;
    dsc_op spare; /* written where the program is full */
} tape;

/* An op at the end of backward. */
static dsc_op *emit(tape *t, dsc_op_kind kind, const dsc_op *of)
{
    dsc_op *op = dsc_program_add_op(t->program, kind, of->name);
    t->full |= op == NULL;
    if (op == NULL)
        return &t->spare;
    dsc_list_add(&t->program->list[DSC_PASS_BACKWARD], dsc_op_number(t->program, op));
    return op;
}

/* Output `output` of the op becomes a new value, of the shape of forward's `of`. */
static int16_t emit_value(tape *t, dsc_op *op, int output, int16_t of)
{
    const dsc_value *like = &t->program->value[of];
    const int16_t value = t->full ? DSC_PROGRAM_NONE : dsc_program_add_value(t->program, like->name, like);
    t->full |= value == DSC_PROGRAM_NONE;
    if (!t->full)
        dsc_program_set_out(t->program, op, output, value);
    return value;
}

static void add_gradient(tape *t, const dsc_op *of, int16_t value, int16_t gradient)
{
    int16_t *sum = &t->gradient[value];
    if (*sum != DSC_PROGRAM_NONE) {
        dsc_op *add = emit(t, DSC_OP_ADD, of);
        add->in[0] = *sum, add->in[1] = gradient;
        gradient = emit_value(t, add, 0, value);
    }
    *sum = gradient;
}

/* ---- rules by kind ----------------------------------------------------------------------------------------------- */

static void weight_backward(tape *t, const dsc_op *product, int16_t gradient)
{
    dsc_op *op = emit(t, DSC_OP_LINEAR_DW, product);
    op->linear = product->linear;
    op->in[0] = product->in[0], op->in[1] = gradient;
}

/* The gradient of what a product gave before its activation, or of its output. */
static int16_t gradient_of_product(const tape *t, const dsc_op *product)
{
    return t->gradient[product->out[1] != DSC_PROGRAM_NONE ? product->out[1] : product->out[0]];
}

static void input_backward(tape *t, dsc_op *product, int16_t gradient)
{
    dsc_program *program = t->program;
    const int16_t x = product->in[0];
    const bool gelu = product->linear.backward == DSC_EPILOGUE_DGELU;
    /* Through the activation that x was made with, to the value before it. */
    const int16_t to = gelu ? program->op[program->value[x].maker].out[1] : x;
    if (!gelu)
        product->linear.backward = t->gradient[to] != DSC_PROGRAM_NONE ? DSC_EPILOGUE_ADD : DSC_EPILOGUE_NONE;
    dsc_op *op = emit(t, DSC_OP_LINEAR_DX, product);
    op->linear = product->linear;
    op->in[0] = gradient, op->in[1] = t->gradient[to], op->in[2] = gelu ? to : DSC_PROGRAM_NONE;
    t->gradient[to] = emit_value(t, op, 0, to);
}

/* Whether the backward of what made x makes x again at no cost of its own, and nothing else reads x. */
static bool is_made_again(const tape *t, int16_t x)
{
    int16_t reader;
    const int16_t maker = t->program->value[x].maker;
    return maker != DSC_PROGRAM_NONE && t->program->op[maker].kind == DSC_OP_GATED &&
           dsc_program_readers(t->program, x, &reader) == 1;
}

/* Products number first .. first + count - 1 of the list, which read one value. */
static void products_backward(tape *t, int16_t first, int16_t count)
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
            add_gradient(t, product, product->in[1], gradient[i]);
        t->done[ops[i]] = true;
    }
    for (int16_t i = 0; i < count && !later; i++)
        weight_backward(t, &program->op[ops[i]], gradient[i]);
    for (int16_t i = 0; i < count; i++)
        input_backward(t, &program->op[ops[i]], gradient[i]);
    if (later)
        t->weight_later[program->value[x].maker] = ops[0];
}

static void norm_backward(tape *t, const dsc_op *norm)
{
    const int16_t x = norm->in[0];
    dsc_op *op = emit(t, DSC_OP_NORM_BWD, norm);
    op->norm = norm->norm;
    op->in[0] = t->gradient[norm->out[0]], op->in[1] = t->gradient[x], op->in[2] = x, op->in[3] = norm->out[1];
    t->gradient[x] = emit_value(t, op, 0, x);
}

static void attention_backward(tape *t, const dsc_op *attention)
{
    dsc_op *op = emit(t, DSC_OP_ATTENTION_BWD, attention);
    op->attention = attention->attention;
    op->in[0] = t->gradient[attention->out[0]], op->in[1] = attention->out[0], op->in[2] = attention->out[1];
    int16_t d[3];
    for (int i = 0; i < 3; i++) {
        op->in[3 + i] = attention->in[i];
        d[i] = emit_value(t, op, i, attention->in[i]);
    }
    for (int i = 0; i < 3 && !t->full; i++)
        add_gradient(t, attention, attention->in[i], d[i]);
}

static void gated_backward(tape *t, const dsc_op *gated)
{
    const int16_t later = t->weight_later[dsc_op_number(t->program, gated)];
    dsc_op *op = emit(t, DSC_OP_GATED_BWD, gated);
    op->in[0] = t->gradient[gated->out[0]], op->in[1] = gated->in[0], op->in[2] = gated->in[1];
    const int16_t d_gate = emit_value(t, op, 0, gated->in[0]), d_up = emit_value(t, op, 1, gated->in[1]);
    if (later != DSC_PROGRAM_NONE) {
        op->out[2] = gated->out[0];
        weight_backward(t, &t->program->op[later], gradient_of_product(t, &t->program->op[later]));
    }
    if (t->full)
        return;
    add_gradient(t, gated, gated->in[0], d_gate);
    add_gradient(t, gated, gated->in[1], d_up);
}

/* An op of one input whose backward is an op of the gradient, and of the input where it reads that. */
static void unary_backward(tape *t, dsc_op_kind kind, const dsc_op *forward)
{
    dsc_op *op = emit(t, kind, forward);
    const dsc_op shape = *op;
    *op = *forward; /* with what the kind needs */
    op->kind = kind;
    memcpy(op->in, shape.in, sizeof op->in);
    memcpy(op->out, shape.out, sizeof op->out);
    op->in[0] = t->gradient[forward->out[0]];
    if (kind == DSC_OP_ACTIVATION_BWD)
        op->in[1] = forward->in[0];
    if (kind == DSC_OP_ROPE) {
        op->in[1] = forward->in[1], op->in[2] = forward->in[2];
        op->rope.inverse = !forward->rope.inverse;
    }
    const int16_t d = emit_value(t, op, 0, forward->in[0]);
    if (!t->full)
        add_gradient(t, forward, forward->in[0], d);
}

/* After the last slice of a value its gradient is whole: the slices lie in it. */
static dsc_status slice_backward(tape *t, const dsc_op *slice, dsc_error *err)
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
    dsc_op *op = emit(t, DSC_OP_JOIN, slice);
    memcpy(op->in, parts, (size_t)count * sizeof *parts);
    op->slice.apart = slice->slice.apart;
    const int16_t d = emit_value(t, op, 0, x);
    if (!t->full)
        add_gradient(t, slice, x, d);
    return DSC_OK;
}

static dsc_status op_backward(tape *t, dsc_op *op, dsc_error *err)
{
    const int16_t gradient = t->gradient[op->out[0]];
    switch (op->kind) {
    case DSC_OP_NORM:
        norm_backward(t, op);
        break;
    case DSC_OP_ATTENTION:
        attention_backward(t, op);
        break;
    case DSC_OP_GATED:
        gated_backward(t, op);
        break;
    case DSC_OP_ACTIVATION:
        unary_backward(t, DSC_OP_ACTIVATION_BWD, op);
        break;
    case DSC_OP_ROPE:
    case DSC_OP_SCALE:
    case DSC_OP_DROPOUT:
        unary_backward(t, op->kind, op);
        break;
    case DSC_OP_SLICE:
        return slice_backward(t, op, err);
    case DSC_OP_ADD:
        add_gradient(t, op, op->in[0], gradient);
        add_gradient(t, op, op->in[1], gradient);
        break;
    case DSC_OP_COPY:
        add_gradient(t, op, op->in[0], gradient);
        break;
    default:
        DSC_ASSERT(op->kind == DSC_OP_ROPE_TABLE); /* of no input */
    }
    return DSC_OK;
}

/* ---- order ------------------------------------------------------------------------------------------------------- */

/* Whether the gradient of a value is complete. */
static bool is_complete(const tape *t, int16_t value)
{
    const dsc_op_list *list = &t->program->list[DSC_PASS_FORWARD];
    bool complete = value == DSC_PROGRAM_NONE || t->gradient[value] != DSC_PROGRAM_NONE;
    for (int16_t i = 0; i < list->count; i++)
        complete &= t->done[list->op[i]] || !dsc_op_reads(&t->program->op[list->op[i]], value);
    return complete;
}

/* Position in forward of the op whose turn it is, NONE: all are done. */
static int16_t next_of(const tape *t)
{
    const dsc_op_list *list = &t->program->list[DSC_PASS_FORWARD];
    int16_t last = DSC_PROGRAM_NONE;
    for (int16_t i = (int16_t)(list->count - 1); i >= 0; i--) {
        const dsc_op *op = &t->program->op[list->op[i]];
        if (t->done[list->op[i]])
            continue;
        if (last == DSC_PROGRAM_NONE)
            last = i;
        if (op->kind == DSC_OP_LINEAR && op->in[1] != DSC_PROGRAM_NONE && op->out[1] == DSC_PROGRAM_NONE &&
            is_complete(t, op->out[0]))
            return i;
    }
    return last;
}

/* The number of products without a residual that stand before `at`, which is one, and read the same value. */
static int16_t siblings_before(const tape *t, int16_t at)
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

static dsc_status run_tape(tape *t, dsc_error *err)
{
    dsc_program *program = t->program;
    for (int16_t at = next_of(t); at != DSC_PROGRAM_NONE && !t->full; at = next_of(t)) {
        const int16_t number = program->list[DSC_PASS_FORWARD].op[at];
        if (program->op[number].kind == DSC_OP_LINEAR) {
            const int16_t before = siblings_before(t, at);
            products_backward(t, (int16_t)(at - before), (int16_t)(before + 1));
            continue;
        }
        t->done[number] = true;
        DSC_TRY(op_backward(t, &program->op[number], err));
    }
    return DSC_OK;
}

dsc_status dsc_program_differentiate(dsc_program *program, dsc_error *err)
{
    tape t = { .program = program };
    for (int16_t i = 0; i < DSC_PROGRAM_VALUES; i++)
        t.gradient[i] = DSC_PROGRAM_NONE;
    for (int16_t i = 0; i < DSC_PROGRAM_OPS; i++)
        t.weight_later[i] = DSC_PROGRAM_NONE;
    program->d_output = dsc_program_add_value(program, "d_out", &program->value[program->output]);
    t.full = program->d_output == DSC_PROGRAM_NONE;
    if (!t.full) {
        t.gradient[program->output] = program->d_output;
        DSC_TRY(run_tape(&t, err));
    }
    if (t.full)
        return DSC_FAIL(err, DSC_ERR_INPUT, "",
                        "a program of %d ops has more than %d ops or %d values with its "
                        "backward; split the module",
                        (int)program->forward_count, DSC_PROGRAM_OPS, DSC_PROGRAM_VALUES);
    program->d_input = t.gradient[program->input];
    if (program->d_input == DSC_PROGRAM_NONE)
        return DSC_FAIL(err, DSC_ERR_INPUT, "", "the output of a program of %d ops does not depend on its input",
                        (int)program->forward_count);
    return DSC_OK;
}
