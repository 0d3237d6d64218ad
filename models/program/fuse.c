/* fuse.c - ops that become epilogues of a product, a sum and its norm, and products that become one.
 * SPDX-License-Identifier: Apache-2.0
 *
 * A rule looks at an op and the ops around it, and changes the program where it fits. The ops that are fused away
 * leave forward's list; they stay in the array, where backward may take them to make a value again. */
#include <string.h>

#include "models/lora.h"
#include "models/program/internal.h"

static bool has_adapter(const dsc_lora *lora, const dsc_op *op)
{
    return lora != NULL && dsc_lora_has(lora, op->linear.weight);
}

static void remove_op(dsc_op_list *list, int16_t op)
{
    int16_t count = 0;
    for (int16_t i = 0; i < list->count; i++)
        if (list->op[i] != op)
            list->op[count++] = list->op[i];
    list->count = count;
}

/* Position of an op in forward, NONE: none, as the input's maker. */
static int16_t position_of(const dsc_op_list *list, int16_t op)
{
    for (int16_t i = 0; i < list->count; i++)
        if (list->op[i] == op)
            return i;
    return DSC_PROGRAM_NONE;
}

/* product + other, where only the sum reads the product and `other` is there before it. */
static bool fuse_residual(dsc_program *program, int16_t at, int side)
{
    dsc_op_list *list = &program->list[DSC_PASS_FORWARD];
    dsc_op *add = &program->op[list->op[at]];
    int16_t reader;
    if (add->kind != DSC_OP_ADD || add->in[0] == add->in[1])
        return false;
    const int16_t y = add->in[side], other = add->in[1 - side], maker = program->value[y].maker;
    if (maker == DSC_PROGRAM_NONE || program->op[maker].kind != DSC_OP_LINEAR)
        return false;
    dsc_op *product = &program->op[maker];
    if (product->in[1] != DSC_PROGRAM_NONE || product->out[0] != y || dsc_program_readers(program, y, &reader) != 1 ||
        position_of(list, program->value[other].maker) > position_of(list, maker))
        return false;
    product->in[1] = other;
    product->linear.forward = product->linear.bias >= 0 ? DSC_EPILOGUE_BIAS_ADD : DSC_EPILOGUE_ADD;
    dsc_program_set_out(program, product, 0, add->out[0]);
    remove_op(list, list->op[at]);
    return true;
}

/* Epilogues of an activation and of its slope. The tanh GELU with a bias has two of its own, which a GPU's library has
 * too; the slope there is not rounded before it. */
static void set_activation(dsc_op *product, dsc_op *reader, dsc_activation kind)
{
    const bool bias = product->linear.forward == DSC_EPILOGUE_BIAS, gelu = bias && kind == DSC_GELU_TANH;
    product->linear.forward = gelu   ? DSC_EPILOGUE_BIAS_GELU
                              : bias ? DSC_EPILOGUE_BIAS_ACTIVATION
                                     : DSC_EPILOGUE_ACTIVATION;
    product->linear.activation = kind;
    reader->linear.backward = gelu ? DSC_EPILOGUE_DGELU : DSC_EPILOGUE_SLOPE;
    reader->linear.slope = kind;
}

/* f(x w + b) into the product that makes it, and its slope into the backward of the product that reads it. An adapter
 * adds to a product after its epilogue, so that neither may have one. */
static bool fuse_activation(dsc_program *program, const dsc_lora *lora, int16_t at)
{
    dsc_op_list *list = &program->list[DSC_PASS_FORWARD];
    dsc_op *act = &program->op[list->op[at]];
    int16_t first, second;
    if (act->kind != DSC_OP_ACTIVATION)
        return false;
    const int16_t maker = program->value[act->in[0]].maker;
    if (maker == DSC_PROGRAM_NONE || program->op[maker].kind != DSC_OP_LINEAR ||
        (program->op[maker].linear.forward != DSC_EPILOGUE_BIAS &&
         program->op[maker].linear.forward != DSC_EPILOGUE_NONE) ||
        dsc_program_readers(program, act->in[0], &first) != 1 ||
        dsc_program_readers(program, act->out[0], &second) != 1 || program->op[second].kind != DSC_OP_LINEAR ||
        program->op[second].in[0] != act->out[0] || program->op[second].in[1] == act->out[0])
        return false;
    dsc_op *product = &program->op[maker];
    if (has_adapter(lora, product) || has_adapter(lora, &program->op[second]))
        return false;
    const int16_t before = act->in[0];
    dsc_program_set_out(program, product, 0, act->out[0]);
    dsc_program_set_out(program, product, 1, before);
    set_activation(product, &program->op[second], act->activation);
    remove_op(list, list->op[at]);
    return true;
}

/* a + b and the norm of the sum in one pass, where no product adds. Where the sum is saved, backward makes the norm by
 * itself again, which reads less. */
static bool fuse_norm(dsc_program *program, int16_t at)
{
    dsc_op_list *list = &program->list[DSC_PASS_FORWARD];
    const dsc_op *add = &program->op[list->op[at]];
    const int16_t sum = add->out[0];
    int16_t norm = DSC_PROGRAM_NONE;
    if (add->kind != DSC_OP_ADD || add->in[0] == add->in[1] || sum == program->output ||
        program->op_count == DSC_PROGRAM_OPS)
        return false;
    for (int16_t i = (int16_t)(list->count - 1); i > at; i--)
        if (program->op[list->op[i]].kind == DSC_OP_NORM && program->op[list->op[i]].in[0] == sum)
            norm = list->op[i];
    if (norm == DSC_PROGRAM_NONE)
        return false;
    dsc_op *both = dsc_program_add_op(program, DSC_OP_NORM, program->op[norm].name);
    both->norm = program->op[norm].norm;
    both->in[0] = add->in[0], both->in[1] = add->in[1];
    dsc_program_set_out(program, both, 0, program->op[norm].out[0]);
    dsc_program_set_out(program, both, 1, program->op[norm].out[1]);
    dsc_program_set_out(program, both, 2, sum);
    list->op[at] = dsc_op_number(program, both);
    remove_op(list, norm);
    program->forward_count = program->op_count;
    return true;
}

/* ---- batch norms ------------------------------------------------------------------------------------------------- */

/* The batch norm that makes a value which one op alone reads; NULL: there is none. */
static dsc_op *batch_norm_before(dsc_program *program, int16_t value)
{
    int16_t reader;
    const int16_t maker = value == program->output ? DSC_PROGRAM_NONE : program->value[value].maker;
    if (maker == DSC_PROGRAM_NONE || program->op[maker].kind != DSC_OP_BATCH_NORM ||
        program->op[maker].batch_norm.activates || dsc_program_readers(program, value, &reader) != 1)
        return NULL;
    return &program->op[maker];
}

/* The norm makes what the op at `at` made, which nothing makes again by itself. */
static void take_over(dsc_program *program, dsc_op *norm, int16_t at)
{
    dsc_op_list *list = &program->list[DSC_PASS_FORWARD];
    dsc_op *op = &program->op[list->op[at]];
    dsc_program_set_out(program, norm, 0, op->out[0]);
    op->out[0] = DSC_PROGRAM_NONE;
    remove_op(list, list->op[at]);
}

/* norm + other, where `other` is there before the norm. */
static bool fuse_batch_norm_sum(dsc_program *program, int16_t at, int side)
{
    const dsc_op_list *list = &program->list[DSC_PASS_FORWARD];
    const dsc_op *add = &program->op[list->op[at]];
    if (add->kind != DSC_OP_ADD || add->in[0] == add->in[1])
        return false;
    const int16_t other = add->in[1 - side];
    dsc_op *norm = batch_norm_before(program, add->in[side]);
    if (norm == NULL || norm->in[2] != DSC_PROGRAM_NONE ||
        position_of(list, program->value[other].maker) > position_of(list, dsc_op_number(program, norm)))
        return false;
    norm->in[2] = other;
    take_over(program, norm, at);
    return true;
}

static bool fuse_batch_norm_activation(dsc_program *program, int16_t at)
{
    const dsc_op *activation = &program->op[program->list[DSC_PASS_FORWARD].op[at]];
    if (activation->kind != DSC_OP_ACTIVATION || !dsc_batch_norm_activates(activation->activation))
        return false;
    dsc_op *norm = batch_norm_before(program, activation->in[0]);
    if (norm == NULL)
        return false;
    norm->batch_norm.activates = true, norm->batch_norm.kind = activation->activation;
    take_over(program, norm, at);
    return true;
}

/* ---- products of one input --------------------------------------------------------------------------------------- */

/* Whether an attention may read what the op makes of a value: the norm and the rotary positions of queries and keys. */
static bool is_between(const dsc_op *op, int16_t value)
{
    return op->in[0] == value &&
           (op->kind == DSC_OP_ROPE || (op->kind == DSC_OP_NORM && op->in[1] == DSC_PROGRAM_NONE));
}

/* The attention or gated activation that alone reads a value; an attention may read what other ops make of it. *input:
 * where. Such ops read and write columns of wider values. */
static int16_t end_of(const dsc_program *program, int16_t value, int *input)
{
    int16_t reader;
    if (value == program->output || dsc_program_readers(program, value, &reader) != 1)
        return DSC_PROGRAM_NONE;
    const dsc_op *op = &program->op[reader];
    const bool direct = !is_between(op, value);
    while (is_between(op, value)) {
        value = op->out[0];
        if (value == program->output || dsc_program_readers(program, value, &reader) != 1)
            return DSC_PROGRAM_NONE;
        op = &program->op[reader];
    }
    if (op->kind != DSC_OP_ATTENTION && (op->kind != DSC_OP_GATED || !direct))
        return DSC_PROGRAM_NONE;
    for (int i = 0; i < DSC_OP_INPUTS; i++)
        *input = op->in[i] == value ? i : *input;
    return reader;
}

/* Whether the parameters of layer b follow those of layer a as layer number i after it. A bias stands behind its
 * weight, and memory has it behind all of the layers. */
static bool follows(const dsc_program *program, const dsc_linear_layer *a, const dsc_linear_layer *b, int i)
{
    if (a->bias < 0)
        return b->bias < 0 && b->weight == a->weight + i && b->forward == DSC_EPILOGUE_NONE;
    return a->bias == a->weight + 1 && b->bias == b->weight + 1 && b->weight == a->weight + 2 * i &&
           b->forward == DSC_EPILOGUE_BIAS && program->param[b->bias].laid_late;
}

/* Whether a product can be a part of one that begins with `first`, at its number i. */
static bool is_part(const dsc_program *program, const dsc_lora *lora, const dsc_op *first, const dsc_op *op, int i)
{
    return op->kind == DSC_OP_LINEAR && op->in[0] == first->in[0] && op->in[1] == DSC_PROGRAM_NONE &&
           op->out[1] == DSC_PROGRAM_NONE && op->linear.part_count == 0 && op->linear.shape.out_in &&
           follows(program, &first->linear, &op->linear, i) && !has_adapter(lora, op);
}

/* The number of products from `at` on that make q, k and v of one attention or both inputs of one gated activation. */
static int count_parts(const dsc_program *program, const dsc_lora *lora, int16_t at)
{
    const dsc_op_list *list = &program->list[DSC_PASS_FORWARD];
    const dsc_op *first = &program->op[list->op[at]];
    int16_t end = DSC_PROGRAM_NONE;
    int count = 0;
    for (; count < DSC_LINEAR_PARTS && at + count < list->count; count++) {
        const dsc_op *op = &program->op[list->op[at + count]];
        int input = DSC_PROGRAM_NONE;
        if (!is_part(program, lora, first, op, count))
            break;
        const int16_t its = end_of(program, op->out[0], &input);
        if (its == DSC_PROGRAM_NONE || input != count || (count > 0 && its != end))
            break;
        end = its;
    }
    const int wanted = end == DSC_PROGRAM_NONE ? 0 : program->op[end].kind == DSC_OP_ATTENTION ? 3 : 2;
    return wanted > 0 && count == wanted ? count : 0;
}

/* They become slices of what one product makes. */
static bool join_products(dsc_program *program, const dsc_lora *lora, int16_t at)
{
    dsc_op_list *list = &program->list[DSC_PASS_FORWARD];
    const int count = count_parts(program, lora, at);
    if (count == 0 || program->op_count == DSC_PROGRAM_OPS || program->value_count == DSC_PROGRAM_VALUES)
        return false;
    const dsc_op first = program->op[list->op[at]];
    dsc_op *all = dsc_program_add_op(program, DSC_OP_LINEAR, first.name);
    const int16_t value = dsc_program_add_value(program, first.name, &program->value[first.out[0]]);
    all->in[0] = first.in[0];
    all->linear = first.linear;
    all->linear.shape.out = 0;
    all->linear.part_count = count;
    for (int i = 0; i < count; i++) {
        dsc_op *part = &program->op[list->op[at + i]];
        const int64_t column = all->linear.shape.out, width = part->linear.shape.out;
        all->linear.part[i] = width;
        all->linear.shape.out += width;
        part->kind = DSC_OP_SLICE;
        part->in[0] = value;
        part->slice.column = column, part->slice.width = width, part->slice.apart = 0;
    }
    program->value[value].columns = all->linear.shape.out;
    dsc_program_set_out(program, all, 0, value);
    dsc_list_add(list, DSC_PROGRAM_NONE);
    memmove(&list->op[at + 1], &list->op[at], (size_t)(list->count - 1 - at) * sizeof *list->op);
    list->op[at] = dsc_op_number(program, all);
    program->forward_count = program->op_count;
    return true;
}

void dsc_program_fuse(dsc_program *program, const dsc_lora *lora)
{
    const dsc_op_list *list = &program->list[DSC_PASS_FORWARD];
    for (int16_t at = 0; at < list->count;)
        if (!fuse_residual(program, at, 0) && !fuse_residual(program, at, 1) && !fuse_activation(program, lora, at))
            at++;
    for (int16_t at = 0; at < list->count;)
        if (!fuse_batch_norm_sum(program, at, 0) && !fuse_batch_norm_sum(program, at, 1) &&
            !fuse_batch_norm_activation(program, at))
            at++;
    for (int16_t at = 0; at < list->count; at++)
        (void)fuse_norm(program, at);
    /* With a cache, keys and values lie there, apart from queries. */
    for (int16_t at = 0; at < list->count && program->cache_tokens == 0; at++)
        (void)join_products(program, lora, at);
}
