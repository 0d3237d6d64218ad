/* backward.c - generates the backward list: reverse mode over the fused forward list.
 *
 * A gradient is a value like any other, and that of a value that is read more than once is a sum. The rules of kinds
 * (rules.c) emit the ops; where a rule's op cannot add, an ADD follows. A product that adds a residual goes as early
 * as its gradient is known, because afterwards the gradient of the stream can be overwritten.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "models/program/internal.h"

dsc_op *dsc_tape_emit(dsc_tape *t, dsc_op_kind kind, const dsc_op *of)
{
    const dsc_op from = *of;
    dsc_op *op = dsc_program_add_op(t->program, kind, from.name);
    t->full |= op == NULL;
    if (op == NULL)
        return &t->spare;
    const dsc_op empty = *op;
    *op = from;
    op->kind = kind;
    op->unless_kept = false;
    memcpy(op->in, empty.in, sizeof op->in);
    memcpy(op->out, empty.out, sizeof op->out);
    dsc_list_add(&t->program->list[DSC_PASS_BACKWARD], dsc_op_number(t->program, op));
    return op;
}

int16_t dsc_tape_emit_value(dsc_tape *t, dsc_op *op, int output, int16_t of)
{
    const dsc_value *like = &t->program->value[of];
    const int16_t value = t->full ? DSC_PROGRAM_NONE : dsc_program_add_value(t->program, like->name, like);
    t->full |= value == DSC_PROGRAM_NONE;
    if (!t->full)
        dsc_program_set_out(t->program, op, output, value);
    return value;
}

void dsc_tape_add(dsc_tape *t, const dsc_op *of, int16_t value, int16_t gradient)
{
    int16_t *sum = &t->gradient[value];
    if (*sum != DSC_PROGRAM_NONE) {
        dsc_op *add = dsc_tape_emit(t, DSC_OP_ADD, of);
        add->in[0] = *sum, add->in[1] = gradient;
        gradient = dsc_tape_emit_value(t, add, 0, value);
    }
    *sum = gradient;
}

/* ---- order ------------------------------------------------------------------------------------------------------- */

/* Whether the gradient of a value is complete. */
static bool is_complete(const dsc_tape *t, int16_t value)
{
    const dsc_op_list *list = &t->program->list[DSC_PASS_FORWARD];
    bool complete = value == DSC_PROGRAM_NONE || t->gradient[value] != DSC_PROGRAM_NONE;
    for (int16_t i = 0; i < list->count; i++)
        complete &= t->done[list->op[i]] || !dsc_op_reads(&t->program->op[list->op[i]], value);
    return complete;
}

/* Position in forward of the op whose turn it is, NONE: all are done. */
static int16_t next_of(const dsc_tape *t)
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

static dsc_status run_tape(dsc_tape *t, dsc_error *err)
{
    dsc_program *program = t->program;
    for (int16_t at = next_of(t); at != DSC_PROGRAM_NONE && !t->full; at = next_of(t)) {
        const int16_t number = program->list[DSC_PASS_FORWARD].op[at];
        dsc_op *op = &program->op[number];
        const dsc_op_info *info = &dsc_op_infos[op->kind];
        DSC_ASSERT(info->rule != NULL || info->gradients == 0);
        t->done[number] = true;
        if (info->rule != NULL)
            DSC_TRY(info->rule(t, op, err));
    }
    return DSC_OK;
}

/* The gradient that a value which leaves the module gets from outside. NONE: nothing leaves so, or the program is full.
 */
static int16_t begin_gradient(dsc_tape *t, const char *name, int16_t value)
{
    if (value == DSC_PROGRAM_NONE)
        return DSC_PROGRAM_NONE;
    t->gradient[value] = dsc_program_add_value(t->program, name, &t->program->value[value]);
    t->full |= t->gradient[value] == DSC_PROGRAM_NONE;
    return t->gradient[value];
}

/* The carried value's gradient leaves as a copy: that of the stream is another value's too. */
static void copy_carried(dsc_tape *t)
{
    dsc_program *program = t->program;
    const dsc_op of = { .kind = DSC_OP_COPY, .name = "d_carried" };
    const int16_t gradient = t->gradient[program->carried];
    if (gradient == DSC_PROGRAM_NONE)
        return;
    dsc_op *op = dsc_tape_emit(t, DSC_OP_COPY, &of);
    op->in[0] = gradient;
    program->d_carried = dsc_tape_emit_value(t, op, 0, program->carried);
}

/* Gradients of which ranks have parts, once all are made. */
static void sum_gradients(dsc_tape *t)
{
    static const dsc_op of = { .name = "exchange_dw" };
    for (int32_t i = 0; i < t->program->param_count && t->program->ranks.count > 1; i++)
        if (t->program->param[i].summed)
            dsc_tape_emit(t, DSC_OP_EXCHANGE_DW, &of)->summed = i;
}

dsc_status dsc_program_differentiate(dsc_program *program, dsc_error *err)
{
    dsc_tape t = { .program = program };
    for (int16_t i = 0; i < DSC_PROGRAM_VALUES; i++)
        t.gradient[i] = DSC_PROGRAM_NONE;
    for (int16_t i = 0; i < DSC_PROGRAM_OPS; i++)
        t.weight_later[i] = DSC_PROGRAM_NONE;
    program->d_output = begin_gradient(&t, "d_out", program->output);
    program->d_carried_out = begin_gradient(&t, "d_carried", program->carried_out);
    if (!t.full)
        DSC_TRY(run_tape(&t, err));
    if (!t.full && program->carried != DSC_PROGRAM_NONE)
        copy_carried(&t);
    if (!t.full)
        sum_gradients(&t);
    if (t.full)
        return DSC_FAIL(err, DSC_ERR_INPUT, "",
                        "a program of %d ops has more than %d ops or %d values with its "
                        "backward; split the module",
                        (int)program->forward_count, DSC_PROGRAM_OPS, DSC_PROGRAM_VALUES);
    if (program->input == DSC_PROGRAM_NONE)
        return DSC_OK;
    program->d_input = t.gradient[program->input];
    if (program->d_input == DSC_PROGRAM_NONE || (program->carried != DSC_PROGRAM_NONE && program->d_carried < 0))
        return DSC_FAIL(err, DSC_ERR_INPUT, "", "the output of a program of %d ops does not depend on its input",
                        (int)program->forward_count);
    return DSC_OK;
}
