/* compile.c - the steps of the compiler, and what must be true of a program. SPDX-License-Identifier: Apache-2.0 */
#include "models/program/internal.h"

/* Every value that an op makes first is read, or is the output. */
static dsc_status check_used(const dsc_program *program, dsc_error *err)
{
    for (int16_t i = 0; i < program->op_count; i++) {
        int16_t reader;
        const dsc_op *op = &program->op[i];
        const bool table = dsc_op_infos[op->kind].is_table;
        const bool leaves = op->out[0] == program->output || op->out[0] == program->carried_out;
        if (table || leaves || dsc_program_readers(program, op->out[0], &reader) > 0)
            continue;
        return DSC_FAIL(err, DSC_ERR_INPUT, "", "op \"%.60s\" (%s): nothing reads its output, op %d of %d", op->name,
                        dsc_op_infos[op->kind].name, (int)i, (int)program->op_count);
    }
    return DSC_OK;
}

static dsc_status check(const dsc_program *program, dsc_error *err)
{
    if (program->status != DSC_OK) {
        if (err != NULL)
            *err = program->err;
        return program->status;
    }
    if (program->output == DSC_PROGRAM_NONE || program->op_count == 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, "", "a program without an output: end it with the value of its last op");
    return check_used(program, err);
}

/* The output becomes a copy of the value: the engine does not give a module's output to its backward. */
static void copy_output(dsc_program *program)
{
    const int16_t value = program->output;
    dsc_op *op = dsc_program_add_op(program, DSC_OP_COPY, "out");
    DSC_ASSERT(op != NULL); /* forward has fewer ops than the array */
    op->in[0] = value;
    program->output = dsc_program_add_value(program, "out", &program->value[value]);
    DSC_ASSERT(program->output != DSC_PROGRAM_NONE);
    dsc_program_set_out(program, op, 0, program->output);
    dsc_list_add(&program->list[DSC_PASS_FORWARD], dsc_op_number(program, op));
    program->forward_count = program->op_count;
}

/* Or the output is the memory of another value. */
static bool backward_reads_output(const dsc_program *program)
{
    const int16_t maker = program->value[program->output].maker;
    bool reads = maker == DSC_PROGRAM_NONE || program->op[maker].kind == DSC_OP_SLICE;
    const dsc_op_list *list = &program->list[DSC_PASS_BACKWARD];
    for (int16_t i = 0; i < list->count; i++)
        reads |= dsc_op_reads(&program->op[list->op[i]], program->output);
    return reads;
}

/* Takes back what differentiate added. */
static void drop_backward(dsc_program *program, int16_t values)
{
    program->op_count = program->forward_count;
    program->value_count = values;
    program->list[DSC_PASS_BACKWARD].count = 0;
}

dsc_status dsc_program_compile(dsc_program *program, const dsc_program_options *options, dsc_error *err)
{
    dsc_op_list *forward = &program->list[DSC_PASS_FORWARD];
    for (int16_t i = 0; i < program->op_count; i++)
        dsc_list_add(forward, i);
    program->forward_count = program->op_count;
    program->cache_tokens = options->cache_tokens;
    DSC_TRY(check(program, err));
    if (!options->no_fusion)
        dsc_program_fuse(program, options->lora);
    const int16_t values = program->value_count;
    DSC_TRY(dsc_program_differentiate(program, err));
    if (backward_reads_output(program)) {
        drop_backward(program, values);
        copy_output(program);
        DSC_TRY(dsc_program_differentiate(program, err));
    }
    dsc_program_choose_stores(program);
    DSC_TRY(dsc_program_share_forward(program, err));
    dsc_program_make_again(program);
    dsc_program_list_rebuild(program);
    return dsc_program_share_backward(program, err);
}
