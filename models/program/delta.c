/* delta.c - the builder's part for linear attention: shape rules of its ops. SPDX-License-Identifier: Apache-2.0 */
#include "models/program/internal.h"

#include "kernels/conv.h"
#include "kernels/delta.h"

static bool are_values(dsc_program *program, dsc_op_kind kind, const int16_t *values, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        (void)dsc_program_is_value(program, kind, NULL, values[i]);
    return program->status == DSC_OK;
}

static bool is_param(const dsc_program *program, int32_t param, int32_t dims, int64_t first, int64_t last)
{
    if (param < 0 || param >= program->param_count)
        return false;
    const dsc_program_param *of = &program->param[param];
    return of->dim_count == dims && of->dim[0] == first && of->dim[dims - 1] == last;
}

int16_t dsc_program_pack(dsc_program *program, int16_t x)
{
    dsc_op *op = are_values(program, DSC_OP_PACK, &x, 1) ? dsc_program_add_forward(program, DSC_OP_PACK, NULL) : NULL;
    if (op == NULL)
        return DSC_PROGRAM_NONE;
    op->in[0] = x;
    return dsc_program_add_output(program, op, 0, op->name, program->value[x]);
}

/* Each row is a token of a sample. */
static void check_tokens(dsc_program *program, dsc_op_kind kind, const int16_t *x, int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        const dsc_value *of = &program->value[x[i]];
        if (of->rows != program->tokens || !of->per_sample)
            REFUSE(program, "op \"%s\": its input \"%.60s\" has %lld rows; expected %lld, one for each token",
                   dsc_op_infos[kind].name, of->name, (long long)of->rows, (long long)program->tokens);
    }
}

int16_t dsc_program_conv(dsc_program *program, const int16_t *x, int32_t count, const dsc_op_conv *args)
{
    DSC_ASSERT(count >= 1);
    DSC_ASSERT(count <= 3);
    if (!are_values(program, DSC_OP_CONV, x, count))
        return DSC_PROGRAM_NONE;
    dsc_op *op = dsc_program_add_forward(program, DSC_OP_CONV, NULL);
    if (op == NULL)
        return DSC_PROGRAM_NONE;
    dsc_value shape = program->value[x[0]];
    shape.columns = 0;
    check_tokens(program, DSC_OP_CONV, x, count);
    for (int32_t i = 0; i < count; i++) {
        op->in[i] = x[i];
        shape.columns += program->value[x[i]].columns;
    }
    if (args->width < 1 || args->width > DSC_CONV_WIDTH_MAX)
        REFUSE(program, "op \"conv\": a width of %d tokens; expected 1 to %d", (int)args->width, DSC_CONV_WIDTH_MAX);
    if (!is_param(program, args->weight, 3, shape.columns, args->width))
        REFUSE(program, "op \"conv\": its weight is parameter %d; expected a declared one [%lld,1,%d]",
               (int)args->weight, (long long)shape.columns, (int)args->width);
    op->conv.width = args->width, op->conv.weight = args->weight;
    return dsc_program_add_output(program, op, 0, op->name, shape);
}

/* Sizes of the operands, which are values of the program. */
static void check_delta(dsc_program *program, int16_t qkv, const int16_t *gates, const dsc_op_delta *of)
{
    const dsc_value *x = &program->value[qkv];
    if (of->key_heads < 1 || of->value_heads < 1 || of->value_heads % of->key_heads != 0)
        REFUSE(program, "op \"delta\": %lld heads of values are not a multiple of %lld heads of keys",
               (long long)of->value_heads, (long long)of->key_heads);
    else if (of->key_size < 1 || of->key_size > DSC_DELTA_SIZE_MAX || of->value_size < 1 ||
             of->value_size > DSC_DELTA_SIZE_MAX)
        REFUSE(program, "op \"delta\": heads of %lld and %lld elements; expected 1 to %d", (long long)of->key_size,
               (long long)of->value_size, DSC_DELTA_SIZE_MAX);
    else if (x->columns != 2 * of->key_heads * of->key_size + of->value_heads * of->value_size)
        REFUSE(program,
               "op \"delta\": its input \"%.60s\" has %lld columns; expected two times %lld heads of %lld elements and "
               "%lld heads of %lld",
               x->name, (long long)x->columns, (long long)of->key_heads, (long long)of->key_size,
               (long long)of->value_heads, (long long)of->value_size);
    for (int i = 0; i < 2; i++)
        if (program->value[gates[i]].columns != of->value_heads)
            REFUSE(program, "op \"delta\": its input \"%.60s\" has %lld columns; expected %lld, one for each head",
                   program->value[gates[i]].name, (long long)program->value[gates[i]].columns,
                   (long long)of->value_heads);
    if (!is_param(program, of->a_log, 1, of->value_heads, of->value_heads) ||
        !is_param(program, of->dt_bias, 1, of->value_heads, of->value_heads) || of->a_log == of->dt_bias)
        REFUSE(program, "op \"delta\": parameters %d and %d; expected two declared ones of %lld elements",
               (int)of->a_log, (int)of->dt_bias, (long long)of->value_heads);
}

int16_t dsc_program_delta(dsc_program *program, int16_t qkv, int16_t b, int16_t a, const dsc_op_delta *args)
{
    const int16_t in[3] = { qkv, b, a };
    if (!are_values(program, DSC_OP_DELTA, in, 3))
        return DSC_PROGRAM_NONE;
    dsc_op *op = dsc_program_add_forward(program, DSC_OP_DELTA, NULL);
    if (op == NULL)
        return DSC_PROGRAM_NONE;
    check_tokens(program, DSC_OP_DELTA, in, 3);
    check_delta(program, qkv, in + 1, args);
    if (program->status != DSC_OK)
        return DSC_PROGRAM_NONE;
    op->in[0] = qkv, op->in[1] = b, op->in[2] = a;
    op->delta = *args;
    dsc_value shape = program->value[qkv];
    shape.columns = args->value_heads * args->value_size;
    const int16_t y = dsc_program_add_output(program, op, 0, op->name, shape);
    const dsc_value states = { .rows = dsc_delta_chunks(program->tokens) * args->value_heads * args->key_size,
                               .columns = args->value_size,
                               .per_sample = true,
                               .f32 = true };
    (void)dsc_program_add_output(program, op, 1, op->name, states);
    return y;
}
