/* store.c - the place where backward finds forward's values: kept, rebuilt, or made again.
 *
 * A cheap op (a norm, an activation) is made again from values that are there anyway; "recompute": "kept" keeps its
 * output instead. Outputs of products and attentions are saved. Products that only an activation reads are the widest
 * values and one product away from a saved one: they are the ones that "selective" rebuilds. A value is saved itself
 * where making it again would keep another value alive that nothing else needs.
 * SPDX-License-Identifier: Apache-2.0 */
#include "models/program/internal.h"

static bool makes(const dsc_op *op, int16_t value)
{
    bool makes = false;
    for (int i = 0; i < DSC_OP_OUTPUTS; i++)
        makes |= op->out[i] == value;
    return makes && value != DSC_PROGRAM_NONE;
}

/* The op that makes a value again. An activation that is a product's epilogue stands by itself here, and so do a norm
 * and the sum that it adds. */
static int16_t again_op(const dsc_program *program, int16_t value)
{
    const int16_t maker = program->value[value].maker;
    const bool norm = maker != DSC_PROGRAM_NONE && program->op[maker].kind == DSC_OP_NORM;
    for (int16_t i = 0; i < program->forward_count; i++)
        if (i != maker && (norm || program->op[i].kind == DSC_OP_ACTIVATION) && makes(&program->op[i], value))
            return i;
    return maker;
}

static bool is_read(const dsc_program *program, dsc_pass pass, int16_t value)
{
    const dsc_op_list *list = &program->list[pass];
    bool read = false;
    for (int16_t i = 0; i < list->count; i++)
        read |= dsc_op_reads(&program->op[list->op[i]], value);
    return read;
}

static bool is_cheap(const dsc_program *program, int16_t value)
{
    const int16_t op = again_op(program, value);
    return op != DSC_PROGRAM_NONE && dsc_op_infos[program->op[op].kind].cheap;
}

static bool inputs_are_there(const dsc_op *op, const bool *there)
{
    bool are = true;
    for (int i = 0; i < DSC_OP_INPUTS; i++)
        are &= op->in[i] == DSC_PROGRAM_NONE || there[op->in[i]];
    return are;
}

/* For each value of forward whether backward has it, or can make it from what it has. An input has a lower number than
 * what is made of it, but for a product that others have become slices of. */
static void find_there(const dsc_program *program, bool *there)
{
    for (int16_t i = 0; i < program->value_count; i++)
        there[i] = program->value[i].store == DSC_STORE_INPUT || is_read(program, DSC_PASS_BACKWARD, i);
    for (bool changed = true; changed;) {
        changed = false;
        for (int16_t i = 0; i < program->value_count; i++) {
            if (there[i] || !is_cheap(program, i) || !inputs_are_there(&program->op[again_op(program, i)], there))
                continue;
            there[i] = changed = true;
        }
    }
}

/* Whether only activations read the value, or slices that only activations read. */
static bool is_for_activations(const dsc_program *program, int16_t value)
{
    const dsc_op_list *list = &program->list[DSC_PASS_FORWARD];
    bool only = true, any = false;
    for (int16_t i = 0; i < list->count; i++) {
        const dsc_op *op = &program->op[list->op[i]];
        if (!dsc_op_reads(op, value))
            continue;
        any = true;
        only &=
            dsc_op_infos[op->kind].activates || (op->kind == DSC_OP_SLICE && is_for_activations(program, op->out[0]));
    }
    return any && only;
}

static dsc_store store_of(const dsc_program *program, int16_t value, const bool *there)
{
    const dsc_op *maker = &program->op[program->value[value].maker];
    if (dsc_op_infos[maker->kind].is_table)
        return DSC_STORE_AGAIN;
    if (is_cheap(program, value) && inputs_are_there(&program->op[again_op(program, value)], there))
        return DSC_STORE_REPEATED;
    bool before_activation = maker->out[1] == value || is_for_activations(program, value);
    while (maker->kind == DSC_OP_SLICE && program->value[maker->in[0]].maker != DSC_PROGRAM_NONE) {
        before_activation &= is_for_activations(program, maker->in[0]);
        maker = &program->op[program->value[maker->in[0]].maker];
    }
    const bool plain = maker->kind == DSC_OP_LINEAR && maker->in[1] == DSC_PROGRAM_NONE;
    const bool grouped = maker->kind == DSC_OP_GROUPED && there[maker->in[1]];
    if ((plain || grouped) && before_activation && there[maker->in[0]])
        return DSC_STORE_REBUILT;
    return DSC_STORE_SAVED;
}

void dsc_program_choose_stores(dsc_program *program)
{
    bool there[DSC_PROGRAM_VALUES];
    find_there(program, there);
    for (int16_t i = 0; i < program->value_count; i++) {
        const int16_t maker = program->value[i].maker;
        if (maker != DSC_PROGRAM_NONE && maker < program->forward_count && is_read(program, DSC_PASS_BACKWARD, i))
            program->value[i].store = store_of(program, i, there);
    }
}

static bool is_stored(dsc_store store)
{
    return store == DSC_STORE_INPUT || store == DSC_STORE_SAVED || store == DSC_STORE_REBUILT;
}

/* The op that does it: a norm of a sum that is not stored makes both in one pass. */
static int16_t remake_op(const dsc_program *program, int16_t value)
{
    const int16_t maker = program->value[value].maker;
    const dsc_op *op = &program->op[maker];
    const bool sums = op->kind == DSC_OP_NORM && op->in[1] != DSC_PROGRAM_NONE;
    return sums && !is_stored(program->value[op->out[2]].store) ? maker : again_op(program, value);
}

/* ---- backward's list with what it makes again -------------------------------------------------------------------- */

typedef struct maker_state {
    dsc_program *program;
    dsc_op_list list;
    bool made[DSC_PROGRAM_VALUES];
} maker_state;

/* Before an op that reads it, which with `unless_kept` runs only where nothing is kept. */
static void make(maker_state *s, int16_t value, bool unless_kept)
{
    dsc_program *program = s->program;
    const dsc_value *of = &program->value[value];
    if (of->maker == DSC_PROGRAM_NONE || of->maker >= program->forward_count || is_stored(of->store) || s->made[value])
        return;
    const dsc_op *source = &program->op[remake_op(program, value)];
    const bool skipped = of->store == DSC_STORE_REPEATED || (of->store == DSC_STORE_SCRATCH && unless_kept);
    for (int i = 0; i < DSC_OP_INPUTS; i++)
        if (source->in[i] != DSC_PROGRAM_NONE)
            make(s, source->in[i], skipped);
    dsc_op *op = dsc_program_add_op(program, source->kind, source->name);
    DSC_ASSERT(op != NULL);
    *op = *source;
    op->unless_kept = skipped;
    for (int i = 0; i < DSC_OP_OUTPUTS; i++)
        if (op->out[i] != DSC_PROGRAM_NONE)
            s->made[op->out[i]] = true;
    dsc_list_add(&s->list, dsc_op_number(program, op));
}

void dsc_program_make_again(dsc_program *program)
{
    const dsc_op_list before = program->list[DSC_PASS_BACKWARD];
    maker_state s = { .program = program };
    for (int16_t i = 0; i < before.count; i++) {
        dsc_op *op = &program->op[before.op[i]];
        /* A gated activation is not made again where it is saved. */
        if (op->kind == DSC_OP_GATED_BWD && op->out[2] != DSC_PROGRAM_NONE &&
            program->value[op->out[2]].store != DSC_STORE_REPEATED)
            op->out[2] = DSC_PROGRAM_NONE;
        for (int j = 0; j < DSC_OP_INPUTS; j++)
            if (op->in[j] != DSC_PROGRAM_NONE)
                make(&s, op->in[j], false);
        if (op->kind == DSC_OP_GATED_BWD && op->out[2] != DSC_PROGRAM_NONE)
            s.made[op->out[2]] = true;
        dsc_list_add(&s.list, before.op[i]);
    }
    program->list[DSC_PASS_BACKWARD] = s.list;
}

/* ---- rebuild's list ---------------------------------------------------------------------------------------------- */

static void want(const dsc_program *program, int16_t value, bool *wanted)
{
    const dsc_value *of = &program->value[value];
    if (of->maker == DSC_PROGRAM_NONE || of->store == DSC_STORE_INPUT || of->store == DSC_STORE_SAVED)
        return;
    /* A product makes both its activation and what that reads. */
    const bool norm = program->op[of->maker].kind == DSC_OP_NORM;
    const int16_t number = norm ? remake_op(program, value) : of->maker;
    if (wanted[number])
        return;
    wanted[number] = true;
    for (int i = 0; i < DSC_OP_INPUTS; i++)
        if (program->op[number].in[i] != DSC_PROGRAM_NONE)
            want(program, program->op[number].in[i], wanted);
}

void dsc_program_list_rebuild(dsc_program *program)
{
    bool wanted[DSC_PROGRAM_OPS] = { false };
    const dsc_op_list *forward = &program->list[DSC_PASS_FORWARD];
    for (int16_t i = 0; i < program->value_count; i++)
        if (program->value[i].store == DSC_STORE_REBUILT)
            want(program, i, wanted);
    /* Where an op was fused with others, those of them that are wanted. */
    for (int16_t i = 0; i < forward->count; i++)
        for (int16_t j = 0; j < program->forward_count; j++)
            if (wanted[j] && program->value[program->op[j].out[0]].maker == forward->op[i])
                dsc_list_add(&program->list[DSC_PASS_REBUILD], j);
}
