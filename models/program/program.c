/* program.c - the builder: ops in order, with the shapes of their outputs and errors that name op and shapes.
 * SPDX-License-Identifier: Apache-2.0 */
#include "models/program/internal.h"

#include <stdio.h>

/* ---- parts of a program ------------------------------------------------------------------------------------------ */

int64_t dsc_value_rows(const dsc_value *value, int64_t batch) { return value->rows * (value->per_sample ? batch : 1); }

int64_t dsc_value_bytes(const dsc_value *value, int64_t batch, dsc_dtype dtype)
{
    return dsc_value_rows(value, batch) * value->columns * (int64_t)dsc_dtype_bytes(value->f32 ? DSC_F32 : dtype);
}

int16_t dsc_op_number(const dsc_program *program, const dsc_op *op)
{
    DSC_ASSERT(op >= program->op);
    DSC_ASSERT(op < program->op + program->op_count);
    return (int16_t)(op - program->op);
}

dsc_op *dsc_program_add_op(dsc_program *program, dsc_op_kind kind, const char *name)
{
    if (program->op_count >= DSC_PROGRAM_OPS)
        return NULL;
    dsc_op *op = &program->op[program->op_count++];
    *op = (dsc_op) { .kind = kind, .name = name };
    for (int i = 0; i < DSC_OP_INPUTS; i++)
        op->in[i] = DSC_PROGRAM_NONE;
    for (int i = 0; i < DSC_OP_OUTPUTS; i++)
        op->out[i] = DSC_PROGRAM_NONE;
    return op;
}

int16_t dsc_program_add_value(dsc_program *program, const char *name, const dsc_value *like)
{
    if (program->value_count >= DSC_PROGRAM_VALUES)
        return DSC_PROGRAM_NONE;
    dsc_value *value = &program->value[program->value_count];
    *value = (dsc_value) { .name = name,
                           .rows = like->rows,
                           .columns = like->columns,
                           .per_sample = like->per_sample,
                           .f32 = like->f32,
                           .height = like->height,
                           .width = like->width,
                           .maker = DSC_PROGRAM_NONE };
    return program->value_count++;
}

void dsc_program_set_out(dsc_program *program, dsc_op *op, int output, int16_t value)
{
    op->out[output] = value;
    if (value == DSC_PROGRAM_NONE)
        return;
    program->value[value].maker = dsc_op_number(program, op);
    program->value[value].maker_out = (int16_t)output;
}

void dsc_list_add(dsc_op_list *list, int16_t op)
{
    DSC_ASSERT(list->count < DSC_PROGRAM_OPS);
    list->op[list->count++] = op;
}

bool dsc_op_reads(const dsc_op *op, int16_t value)
{
    bool reads = false;
    for (int i = 0; i < DSC_OP_INPUTS; i++)
        reads |= op->in[i] == value;
    return reads && value != DSC_PROGRAM_NONE;
}

int32_t dsc_program_readers(const dsc_program *program, int16_t value, int16_t *first)
{
    int32_t count = 0;
    *first = DSC_PROGRAM_NONE;
    for (int16_t i = 0; i < program->list[DSC_PASS_FORWARD].count; i++) {
        const int16_t op = program->list[DSC_PASS_FORWARD].op[i];
        if (dsc_op_reads(&program->op[op], value) && count++ == 0)
            *first = op;
    }
    return count;
}

/* ---- the builder ------------------------------------------------------------------------------------------------- */

/* An op in messages: its name, and the kind beside a name of its own. */
static const char *op_text(dsc_op_kind kind, const char *name, char out[100])
{
    const char *kind_name = dsc_op_infos[kind].name;
    const bool own = name != NULL;
    snprintf(out, 100, "op \"%.60s\"%s%.30s%s", own ? name : kind_name, own ? " (" : "", own ? kind_name : "",
             own ? ")" : "");
    return out;
}

bool dsc_program_is_value(dsc_program *program, dsc_op_kind kind, const char *name, int16_t value)
{
    if (program->status == DSC_OK && (value < 0 || value >= program->value_count))
        REFUSE(program, "%s: value %d is not one of the program's %d", op_text(kind, name, (char[100]) { 0 }),
               (int)value, (int)program->value_count);
    return program->status == DSC_OK;
}

dsc_op *dsc_program_add_forward(dsc_program *program, dsc_op_kind kind, const char *name)
{
    dsc_op *op = NULL;
    if (program->status == DSC_OK && program->op_count < DSC_PROGRAM_FORWARD_OPS)
        op = dsc_program_add_op(program, kind, name != NULL ? name : dsc_op_infos[kind].name);
    if (op == NULL)
        REFUSE(program, "%s: a program has at most %d ops; split the module", op_text(kind, name, (char[100]) { 0 }),
               DSC_PROGRAM_FORWARD_OPS);
    return op;
}

int16_t dsc_program_add_output(dsc_program *program, dsc_op *op, int output, const char *name, dsc_value shape)
{
    const int16_t value = dsc_program_add_value(program, name, &shape);
    DSC_ASSERT(value != DSC_PROGRAM_NONE);
    dsc_program_set_out(program, op, output, value);
    return value;
}

static void begin(dsc_program *program, int64_t tokens)
{
    *program = (dsc_program) { .tokens = tokens,
                               .positions = DSC_PROGRAM_NONE,
                               .input = DSC_PROGRAM_NONE,
                               .output = DSC_PROGRAM_NONE,
                               .d_input = DSC_PROGRAM_NONE,
                               .carried = DSC_PROGRAM_NONE,
                               .carried_out = DSC_PROGRAM_NONE,
                               .d_carried_out = DSC_PROGRAM_NONE,
                               .d_carried = DSC_PROGRAM_NONE };
}

void dsc_program_begin(dsc_program *program, int64_t tokens, int64_t columns, int32_t positions)
{
    DSC_ASSERT(tokens > 0);
    DSC_ASSERT(columns > 0);
    begin(program, tokens);
    program->positions = positions;
    const dsc_value shape = { .rows = tokens, .columns = columns, .per_sample = true };
    program->input = dsc_program_add_value(program, "in", &shape);
    program->value[program->input].store = DSC_STORE_INPUT;
}

void dsc_program_begin_first(dsc_program *program, int64_t tokens)
{
    DSC_ASSERT(tokens > 0);
    begin(program, tokens);
}

int16_t dsc_program_add_unary(dsc_program *program, dsc_op_kind kind, const char *name, int16_t x, dsc_op **out)
{
    *out = dsc_program_is_value(program, kind, name, x) ? dsc_program_add_forward(program, kind, name) : NULL;
    if (*out == NULL)
        return DSC_PROGRAM_NONE;
    (*out)->in[0] = x;
    return dsc_program_add_output(program, *out, 0, name, program->value[x]);
}

/* ---- parameters -------------------------------------------------------------------------------------------------- */

int32_t dsc_program_declare(dsc_program *program, const dsc_program_param *param)
{
    if (program->status == DSC_OK && program->param_count >= DSC_PROGRAM_PARAMS)
        REFUSE(program, "parameter \"%.60s\": a program has at most %d parameters; split the module", param->name,
               DSC_PROGRAM_PARAMS);
    if (program->status != DSC_OK)
        return DSC_PROGRAM_NONE;
    /* Field by field: equal programs are equal bytes. */
    dsc_program_param *own = &program->param[program->param_count];
    own->name = param->name, own->part = param->part;
    own->dim_count = param->dim_count;
    for (int32_t i = 0; i < param->dim_count; i++)
        own->dim[i] = param->dim[i];
    own->init = param->init, own->std = param->std, own->split = param->split;
    own->parted = param->parted, own->as_stored = param->as_stored, own->laid_late = param->laid_late;
    own->frozen = param->frozen, own->experts = param->experts;
    own->in_base = param->in_base, own->tied = param->tied;
    own->share.count = param->share.count, own->share.index = param->share.index;
    own->share.axis = param->share.axis, own->share.run_count = param->share.run_count;
    for (int32_t i = 0; i < param->share.run_count; i++)
        own->share.run[i] = param->share.run[i];
    own->share.spare = param->share.count > 0 ? param->share.spare : program->ranks.own > 0;
    own->summed = param->summed;
    return program->param_count++;
}

int32_t dsc_program_declare_buffer(dsc_program *program, const dsc_program_buffer *buffer)
{
    if (program->status == DSC_OK && program->module_buffer_count >= DSC_MODULE_BUFFERS_MAX)
        REFUSE(program, "buffer \"%.60s\": a program has at most %d buffers; split the module", buffer->name,
               DSC_MODULE_BUFFERS_MAX);
    if (program->status != DSC_OK)
        return DSC_PROGRAM_NONE;
    /* Field by field: equal programs are equal bytes. */
    dsc_program_buffer *own = &program->module_buffer[program->module_buffer_count];
    own->name = buffer->name, own->part = buffer->part, own->kind = buffer->kind;
    own->count = buffer->count, own->init = buffer->init, own->momentum = buffer->momentum, own->row = buffer->row;
    return program->module_buffer_count++;
}

/* A vector of `name`, without its share. */
static dsc_program_param vector_of(const char *name, const char *part, int64_t elements, dsc_init_kind init)
{
    return (dsc_program_param) { .name = name, .part = part, .dim_count = 1, .dim = { elements }, .init = init };
}

/* The weight, in the dimensions that files have. */
static int32_t declare_weight(dsc_program *program, const dsc_program_linear_args *args, dsc_program_param weight)
{
    int64_t elements = 1;
    for (int32_t i = 0; args->dims != NULL && i < args->dim_count; i++) {
        weight.dim[i] = args->dims[i];
        elements *= args->dims[i];
    }
    DSC_ASSERT(args->dims == NULL || elements == args->shape.in * args->shape.out);
    weight.dim_count = args->dims != NULL ? args->dim_count : 2;
    return dsc_program_declare(program, &weight);
}

/* A bias follows the outputs; beside split inputs it is whole on every rank. */
static int32_t declare_bias(dsc_program *program, const dsc_program_linear_args *args)
{
    const bool split = args->out_split && !args->whole;
    const char *part = args->bias_part != NULL ? args->bias_part : "bias";
    dsc_program_param bias = vector_of(args->name, part, args->shape.out, DSC_INIT_ZEROS);
    bias.split = split ? DSC_SPLIT_COLUMN : DSC_SPLIT_NONE;
    bias.laid_late = args->late_bias;
    if (split)
        bias.share = args->share;
    return dsc_program_declare(program, &bias);
}

int32_t dsc_program_declare_linear(dsc_program *program, const dsc_program_linear_args *args)
{
    const dsc_linear shape = args->shape;
    if (program->status == DSC_OK && (shape.in < 1 || shape.out < 1))
        REFUSE(program, "op \"%.60s\" (linear): a weight of %lld inputs and %lld outputs; expected 1 or more of each",
               args->name, (long long)shape.in, (long long)shape.out);
    if (program->status == DSC_OK && program->layer_count >= DSC_PROGRAM_LAYERS)
        REFUSE(program, "op \"%.60s\" (linear): a program has at most %d linear layers; split the module", args->name,
               DSC_PROGRAM_LAYERS);
    DSC_ASSERT(args->share.count == 0 || (!args->whole && args->dims == NULL));
    dsc_program_param weight = { .name = args->name,
                                 .part = args->weight_part != NULL ? args->weight_part : "weight",
                                 .dim_count = 2,
                                 .dim = { shape.out_in ? shape.out : shape.in, shape.out_in ? shape.in : shape.out },
                                 .init = args->std > 0 ? DSC_INIT_NORMAL : DSC_INIT_ZEROS,
                                 .std = args->std,
                                 .split = args->whole                       ? DSC_SPLIT_NONE
                                          : args->out_split == shape.out_in ? DSC_SPLIT_ROW
                                                                            : DSC_SPLIT_COLUMN,
                                 .as_stored = args->as_stored,
                                 .share = args->share };
    weight.share.axis = args->out_split == shape.out_in ? 0 : 1;
    const int32_t number = declare_weight(program, args, weight);
    const int32_t bias = args->bias ? declare_bias(program, args) : DSC_PROGRAM_NONE;
    if (program->status != DSC_OK)
        return DSC_PROGRAM_NONE;
    dsc_program_layer *layer = &program->layer[program->layer_count];
    layer->name = args->name;
    layer->shape.in = shape.in, layer->shape.out = shape.out, layer->shape.out_in = shape.out_in;
    layer->weight = number, layer->bias = bias;
    layer->out_split = args->out_split, layer->whole = args->whole, layer->no_adapter = args->no_adapter;
    layer->by_parameter = args->by_parameter, layer->f32_out = args->f32_out;
    layer->bias_elsewhere = args->share.count > 0 && !args->out_split && program->ranks.own > 0;
    return program->layer_count++;
}

void dsc_program_declare_norm(dsc_program *program, const char *name, int64_t channels, dsc_op_norm *norm)
{
    const dsc_init_kind init = norm->plus_one ? DSC_INIT_ZEROS : DSC_INIT_ONES;
    dsc_program_param weight = vector_of(name, "weight", channels, init);
    dsc_program_param bias = vector_of(name, "bias", channels, DSC_INIT_ZEROS);
    weight.summed = bias.summed = norm->summed;
    norm->weight = norm->bias = DSC_PROGRAM_NONE;
    if (!norm->no_weight)
        norm->weight = dsc_program_declare(program, &weight);
    if (norm->kind == DSC_NORM_LAYER && !norm->no_bias)
        norm->bias = dsc_program_declare(program, &bias);
}

/* ---- layers ------------------------------------------------------------------------------------------------------ */

int16_t dsc_program_linear_of(dsc_program *program, int16_t x, int32_t number)
{
    dsc_op *op;
    if (program->status == DSC_OK && (number < 0 || number >= program->layer_count))
        REFUSE(program, "op \"linear\": layer %d is not one of the program's %d", (int)number,
               (int)program->layer_count);
    if (program->status != DSC_OK)
        return DSC_PROGRAM_NONE;
    const dsc_program_layer *layer = &program->layer[number];
    const int16_t y = dsc_program_add_unary(program, DSC_OP_LINEAR, layer->name, x, &op);
    if (y == DSC_PROGRAM_NONE)
        return y;
    const dsc_value *in = &program->value[x];
    if (in->columns != layer->shape.in)
        REFUSE(program, "op \"%.60s\" (linear): its input \"%.60s\" is [%lld,%lld], and its weight takes %lld columns",
               layer->name, in->name, (long long)in->rows, (long long)in->columns, (long long)layer->shape.in);
    /* Ranks with the same weight get the same gradient of its outputs, and one of them takes it to the input. */
    const dsc_param_part *share = &program->param[layer->weight].share;
    const bool d_input_elsewhere = share->count > 0 && share->spare;
    const bool bias = layer->bias != DSC_PROGRAM_NONE, adds = bias && !layer->bias_elsewhere;
    op->linear = (dsc_linear_layer) { .shape = layer->shape,
                                      .weight = layer->weight,
                                      .bias = bias ? layer->bias : -1,
                                      .no_dx = (in->is_data && layer->no_adapter) || d_input_elsewhere,
                                      .f32_out = layer->f32_out,
                                      .forward = adds ? DSC_EPILOGUE_BIAS : DSC_EPILOGUE_NONE,
                                      .backward = DSC_EPILOGUE_NONE };
    program->value[y].columns = layer->shape.out, program->value[y].f32 = layer->f32_out;
    return y;
}

int16_t dsc_program_linear(dsc_program *program, int16_t x, const dsc_program_linear_args *args)
{
    dsc_program_linear_args own = *args;
    if (!dsc_program_is_value(program, DSC_OP_LINEAR, args->name, x))
        return DSC_PROGRAM_NONE;
    if (own.shape.in == 0)
        own.shape.in = program->value[x].columns;
    return dsc_program_linear_of(program, x, dsc_program_declare_linear(program, &own));
}

/* Weight and bias of a norm of `channels` columns, of which it may lack either. */
static void check_norm_parameters(dsc_program *program, const char *name, int64_t channels, const dsc_op_norm *args)
{
    const int32_t numbers[2] = { args->weight, args->kind == DSC_NORM_LAYER ? args->bias : DSC_PROGRAM_NONE };
    for (int i = 0; i < 2 && program->status == DSC_OK; i++)
        if (numbers[i] != DSC_PROGRAM_NONE && program->param[numbers[i]].dim[0] != channels)
            REFUSE(program, "op \"%.60s\" (norm): its input has %lld columns a group, and its %s has %lld elements",
                   name, (long long)channels, i == 0 ? "weight" : "bias", (long long)program->param[numbers[i]].dim[0]);
    if (args->plus_one && args->weight == DSC_PROGRAM_NONE)
        REFUSE(program, "op \"%.60s\" (norm): a norm of 1 + weight needs a weight", name);
    if (numbers[1] != DSC_PROGRAM_NONE && numbers[0] == numbers[1])
        REFUSE(program, "op \"%.60s\" (norm): parameter %d cannot be both its weight and its bias", name,
               (int)numbers[1]);
}

int16_t dsc_program_norm_of(dsc_program *program, int16_t x, const dsc_op_norm *args)
{
    dsc_op *op;
    const int32_t numbers[2] = { args->weight, args->kind == DSC_NORM_LAYER ? args->bias : DSC_PROGRAM_NONE };
    for (int i = 0; i < 2 && program->status == DSC_OK; i++)
        if (numbers[i] < DSC_PROGRAM_NONE || numbers[i] >= program->param_count)
            REFUSE(program, "op \"norm\": parameter %d is not one of the program's %d", (int)numbers[i],
                   (int)program->param_count);
    if (program->status != DSC_OK)
        return DSC_PROGRAM_NONE;
    const char *name = args->weight != DSC_PROGRAM_NONE ? program->param[args->weight].name : "norm";
    const int16_t y = dsc_program_add_unary(program, DSC_OP_NORM, name, x, &op);
    if (y == DSC_PROGRAM_NONE)
        return y;
    const dsc_value in = program->value[x];
    if (args->groups < 1 || in.columns % args->groups != 0)
        REFUSE(program, "op \"%.60s\" (norm): its input \"%.60s\" is [%lld,%lld], which %lld groups do not divide",
               op->name, in.name, (long long)in.rows, (long long)in.columns, (long long)args->groups);
    else
        check_norm_parameters(program, op->name, in.columns / args->groups, args);
    if (program->status != DSC_OK)
        return DSC_PROGRAM_NONE;
    op->norm = *args;
    dsc_value stats = { .rows = in.rows * args->groups,
                        .columns = args->kind == DSC_NORM_LAYER ? 2 : 1,
                        .per_sample = in.per_sample,
                        .f32 = true };
    (void)dsc_program_add_output(program, op, 1, op->name, stats);
    return y;
}

int16_t dsc_program_norm(dsc_program *program, int16_t x, const char *name, const dsc_op_norm *args)
{
    dsc_op_norm own = *args;
    if (!dsc_program_is_value(program, DSC_OP_NORM, name, x))
        return DSC_PROGRAM_NONE;
    dsc_program_declare_norm(program, name, program->value[x].columns / dsc_max_i64(1, args->groups), &own);
    return dsc_program_norm_of(program, x, &own);
}

/* ---- what passes a module, and its end --------------------------------------------------------------------------- */

int16_t dsc_program_carried(dsc_program *program, int64_t rows, int64_t columns)
{
    DSC_ASSERT(rows > 0);
    DSC_ASSERT(columns > 0);
    DSC_ASSERT(program->op_count == 0);
    DSC_ASSERT(program->carried == DSC_PROGRAM_NONE);
    const dsc_value shape = { .rows = rows, .columns = columns, .per_sample = true };
    program->carried = dsc_program_add_value(program, "carried", &shape);
    program->value[program->carried].store = DSC_STORE_INPUT;
    return program->carried;
}

/* A copy, since a module's output is never the memory of its input. */
void dsc_program_carry(dsc_program *program, int16_t value)
{
    dsc_op *op;
    const int16_t y = dsc_program_add_unary(program, DSC_OP_COPY, "carry", value, &op);
    if (y == DSC_PROGRAM_NONE)
        return;
    const dsc_value *of = &program->value[value], *before = of;
    if (program->carried != DSC_PROGRAM_NONE)
        before = &program->value[program->carried];
    if (program->carried_out != DSC_PROGRAM_NONE || of->f32 || !of->per_sample || of->rows != before->rows ||
        of->columns != before->columns)
        REFUSE(program,
               "a module hands on one value of its dtype, with the shape of the one that is carried to it; \"%.60s\" "
               "is [%lld,%lld]",
               of->name, (long long)of->rows, (long long)of->columns);
    program->carried_out = y;
}

int64_t dsc_program_carried_bytes(const dsc_program *program, int16_t value, int64_t batch, dsc_dtype dtype)
{
    return value == DSC_PROGRAM_NONE ? 0 : dsc_align_up(dsc_value_bytes(&program->value[value], batch, dtype), 256);
}

void dsc_program_end(dsc_program *program, int16_t output)
{
    if (dsc_program_is_value(program, DSC_OP_COPY, "end", output))
        program->output = output;
}
