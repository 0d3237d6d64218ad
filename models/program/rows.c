/* rows.c - the builder of ops that read the batch, and of those that change how many rows a sample has.
 * SPDX-License-Identifier: Apache-2.0 */
#include "models/program/internal.h"

/* An op whose output has this shape; x: its input, or NONE. */
static int16_t add(dsc_program *program, dsc_op_kind kind, int16_t x, const dsc_value *shape, dsc_op **out)
{
    *out = dsc_program_add_forward(program, kind, NULL);
    if (*out == NULL)
        return DSC_PROGRAM_NONE;
    const int16_t y = dsc_program_add_output(program, *out, 0, (*out)->name, *shape);
    program->value[y].is_data = x == DSC_PROGRAM_NONE;
    (*out)->in[0] = x;
    return y;
}

/* Whether a value is one of the program's, with rows for each sample. */
static bool has_rows(dsc_program *program, dsc_op_kind kind, int16_t x)
{
    if (program->status == DSC_OK &&
        (x < 0 || x >= program->value_count || !program->value[x].per_sample || program->value[x].f32))
        REFUSE(program, "op \"%s\": value %d has no rows of a sample", dsc_op_infos[kind].name, (int)x);
    return program->status == DSC_OK;
}

/* ---- the batch --------------------------------------------------------------------------------------------------- */

int16_t dsc_program_data(dsc_program *program, int32_t tensor, int64_t rows, int64_t columns)
{
    dsc_op *op;
    const dsc_value shape = { .rows = rows, .columns = columns, .per_sample = true };
    if (tensor < 0 || rows < 1 || columns < 1)
        REFUSE(program, "op \"data\": rows [%lld,%lld] of batch tensor %d; expected sizes of 1 or more",
               (long long)rows, (long long)columns, (int)tensor);
    const int16_t y = add(program, DSC_OP_DATA, DSC_PROGRAM_NONE, &shape, &op);
    if (op != NULL)
        op->data.tensor = tensor, op->data.height = rows, op->data.width = columns;
    return y;
}

int16_t dsc_program_patches(dsc_program *program, const dsc_op_data *args)
{
    dsc_op *op;
    const int64_t p = args->patch, frames = dsc_max_i64(1, args->frames);
    if (args->tensor < 0 || args->planes < 1 || p < 1 || args->height < p || args->width < p)
        REFUSE(program, "op \"patches\": pictures [%lld,%lld,%lld] have no window of %lld by %lld",
               (long long)args->planes, (long long)args->height, (long long)args->width, (long long)p, (long long)p);
    if (args->height % frames != 0)
        REFUSE(program, "op \"patches\": %lld frames do not divide the %lld rows of a picture", (long long)frames,
               (long long)args->height);
    if (program->status != DSC_OK)
        return DSC_PROGRAM_NONE;
    const dsc_value shape = { .rows = (args->height / p) * (args->width / p),
                              .columns = args->planes * p * p,
                              .per_sample = true,
                              .height = p == 1 ? args->height / frames : 0,
                              .width = p == 1 ? args->width : 0 };
    const int16_t y = add(program, DSC_OP_PATCHES, DSC_PROGRAM_NONE, &shape, &op);
    if (op == NULL)
        return y;
    /* Field by field: equal programs are equal bytes. */
    op->data.tensor = args->tensor, op->data.planes = args->planes;
    op->data.height = args->height, op->data.width = args->width, op->data.patch = p;
    return y;
}

/* ---- rows of samples --------------------------------------------------------------------------------------------- */

/* Whether a declared parameter has `rows` rows of x's columns. */
static bool fits(dsc_program *program, dsc_op_kind kind, int16_t x, int32_t param, int64_t rows)
{
    const int64_t columns = program->value[x].columns;
    int64_t elements = 1;
    const bool there = param >= 0 && param < program->param_count && rows >= 1;
    for (int32_t i = 0; there && i < program->param[param].dim_count; i++)
        elements *= program->param[param].dim[i];
    if (!there || elements != rows * columns)
        REFUSE(program,
               "op \"%s\": parameter %d does not have %lld rows of %lld elements, as its input \"%.60s\" needs",
               dsc_op_infos[kind].name, (int)param, (long long)rows, (long long)columns, program->value[x].name);
    return program->status == DSC_OK;
}

static int16_t add_table(dsc_program *program, dsc_op_kind kind, int16_t x, int32_t param, int64_t rows, int64_t more)
{
    dsc_op *op;
    if (!has_rows(program, kind, x) || !fits(program, kind, x, param, rows))
        return DSC_PROGRAM_NONE;
    dsc_value shape = program->value[x];
    shape.rows += more;
    if (more > 0)
        shape.height = shape.width = 0;
    const int16_t y = add(program, kind, x, &shape, &op);
    if (op != NULL)
        op->table.param = param, op->table.rows = rows;
    return y;
}

int16_t dsc_program_prepend(dsc_program *program, int16_t x, int32_t param, int64_t rows)
{
    return add_table(program, DSC_OP_PREPEND, x, param, rows, rows);
}

int16_t dsc_program_table(dsc_program *program, int16_t x, int32_t param)
{
    if (!has_rows(program, DSC_OP_TABLE, x))
        return DSC_PROGRAM_NONE;
    return add_table(program, DSC_OP_TABLE, x, param, program->value[x].rows, 0);
}

int16_t dsc_program_scale_columns(dsc_program *program, int16_t x, int32_t param)
{
    dsc_op *op;
    const int16_t y = dsc_program_add_unary(program, DSC_OP_COLUMNS, "columns", x, &op);
    if (y == DSC_PROGRAM_NONE)
        return y;
    const bool declared = param >= 0 && param < program->param_count;
    if (!declared || program->param[param].dim_count != 1 || program->param[param].dim[0] != program->value[x].columns)
        REFUSE(program, "op \"columns\": its factors are parameter %d; expected a declared one of %lld elements",
               (int)param, (long long)program->value[x].columns);
    op->columns = param;
    return y;
}

int16_t dsc_program_pick(dsc_program *program, int16_t x, int64_t first, int64_t count, bool mean)
{
    dsc_op *op;
    if (!has_rows(program, DSC_OP_PICK, x))
        return DSC_PROGRAM_NONE;
    dsc_value shape = program->value[x];
    if (first < 0 || count < 1 || first > shape.rows - count)
        REFUSE(program, "op \"pick\": rows %lld to %lld are not all in its input \"%.60s\" [%lld,%lld]",
               (long long)first, (long long)(first + count - 1), shape.name, (long long)shape.rows,
               (long long)shape.columns);
    shape.rows = mean ? 1 : count;
    shape.height = shape.width = 0;
    const int16_t y = add(program, DSC_OP_PICK, x, &shape, &op);
    if (op != NULL)
        op->pick.first = first, op->pick.count = count, op->pick.mean = mean;
    return y;
}

int16_t dsc_program_gather(dsc_program *program, int16_t x, const dsc_op_gather *args)
{
    dsc_op *op;
    if (!has_rows(program, DSC_OP_GATHER, x))
        return DSC_PROGRAM_NONE;
    dsc_value shape = program->value[x];
    if (args->places < 0 || args->count < 1 || args->count > shape.rows || (args->mean && args->count != 1))
        REFUSE(program, "op \"gather\": %lld places in batch tensor %d; its input \"%.60s\" has %lld rows of a sample",
               (long long)args->count, (int)args->places, shape.name, (long long)shape.rows);
    shape.rows = args->count;
    shape.height = shape.width = 0;
    const int16_t y = add(program, DSC_OP_GATHER, x, &shape, &op);
    if (op != NULL)
        op->gather.places = args->places, op->gather.count = args->count, op->gather.mean = args->mean;
    return y;
}

/* ---- tables of tokens -------------------------------------------------------------------------------------------- */

static bool is_matrix(const dsc_program *program, int32_t param, int64_t columns)
{
    return param >= 0 && param < program->param_count && program->param[param].dim_count == 2 &&
           program->param[param].dim[1] == columns;
}

/* A parameter that is there is a matrix as wide as the output. */
static void check_tables(dsc_program *program, const dsc_op_embed *args, int64_t columns)
{
    const int32_t params[2] = { args->table, args->position };
    for (int i = 0; i < 2; i++)
        if (params[i] != DSC_PROGRAM_NONE && !is_matrix(program, params[i], columns))
            REFUSE(program, "op \"embed\": parameter %d is not a table with rows of %lld elements", (int)params[i],
                   (long long)columns);
    if (args->table == DSC_PROGRAM_NONE && args->position == DSC_PROGRAM_NONE)
        REFUSE(program, "op \"embed\": it has no table");
    if (args->position != DSC_PROGRAM_NONE && program->status == DSC_OK &&
        (args->first < 0 || args->first >= program->param[args->position].dim[0]))
        REFUSE(program, "op \"embed\": place 0 is row %lld of a table of %lld", (long long)args->first,
               (long long)program->param[args->position].dim[0]);
}

int16_t dsc_program_embed(dsc_program *program, int16_t x, const dsc_op_embed *args)
{
    dsc_op *op;
    dsc_value shape = { .rows = program->tokens, .per_sample = true };
    if (x != DSC_PROGRAM_NONE && !has_rows(program, DSC_OP_EMBED, x))
        return DSC_PROGRAM_NONE;
    if (program->status == DSC_OK && (x == DSC_PROGRAM_NONE) != (args->table != DSC_PROGRAM_NONE))
        REFUSE(program, "op \"embed\": it needs either an input or a table of tokens");
    if (x != DSC_PROGRAM_NONE && program->status == DSC_OK)
        shape.columns = program->value[x].columns;
    else if (args->table >= 0 && args->table < program->param_count)
        shape.columns = program->param[args->table].dim[1];
    check_tables(program, args, shape.columns);
    const int16_t y = program->status == DSC_OK ? add(program, DSC_OP_EMBED, x, &shape, &op) : DSC_PROGRAM_NONE;
    if (y == DSC_PROGRAM_NONE)
        return y;
    program->value[y].is_data = false;
    /* Field by field: equal programs are equal bytes. */
    op->embed.tokens = args->tokens, op->embed.table = args->table, op->embed.factor = args->factor;
    op->embed.rounded = args->rounded, op->embed.has_padding = args->has_padding, op->embed.padding = args->padding;
    op->embed.position = args->position, op->embed.places = args->places, op->embed.first = args->first;
    op->embed.same = args->same, op->embed.counts = args->counts;
    return y;
}
