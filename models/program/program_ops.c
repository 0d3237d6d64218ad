/* program_ops.c - the builder: ops beside products and norms. SPDX-License-Identifier: Apache-2.0 */
#include "models/program/internal.h"

dsc_program_tables dsc_program_rope_tables(dsc_program *program, const dsc_rope *rope)
{
    dsc_op *op = dsc_program_add_forward(program, DSC_OP_ROPE_TABLE, "positions");
    if (op == NULL)
        return (dsc_program_tables) { DSC_PROGRAM_NONE, DSC_PROGRAM_NONE };
    const dsc_value table = { .rows = program->tokens, .columns = rope->pairs, .f32 = true };
    op->rope.rope = rope;
    const int16_t cos = dsc_program_add_output(program, op, 0, op->name, table);
    return (dsc_program_tables) { cos, dsc_program_add_output(program, op, 1, op->name, table) };
}

int16_t dsc_program_rope(dsc_program *program, int16_t x, dsc_program_tables tables, const dsc_op_rope *args)
{
    dsc_op *op;
    if (!dsc_program_is_value(program, DSC_OP_ROPE, "rope", tables.cos) ||
        !dsc_program_is_value(program, DSC_OP_ROPE, "rope", tables.sin))
        return DSC_PROGRAM_NONE;
    const int16_t y = dsc_program_add_unary(program, DSC_OP_ROPE, "rope", x, &op);
    if (y == DSC_PROGRAM_NONE)
        return y;
    const dsc_value *in = &program->value[x];
    if (in->columns != args->heads * args->head_size || args->first < 0 ||
        args->head_size - args->first < 2 * args->rope->pairs)
        REFUSE(program, "op \"rope\": its input \"%.60s\" is [%lld,%lld], expected %lld heads of %lld elements",
               in->name, (long long)in->rows, (long long)in->columns, (long long)args->heads,
               (long long)args->head_size);
    if (in->rows != program->tokens)
        REFUSE(program,
               "op \"rope\": its input \"%.60s\" has %lld rows of a sample; expected %lld, those of the module",
               in->name, (long long)in->rows, (long long)program->tokens);
    op->rope = *args;
    op->in[1] = tables.cos, op->in[2] = tables.sin;
    return y;
}

int16_t dsc_program_attention(dsc_program *program, int16_t q, int16_t k, int16_t v, const dsc_op_attention *args)
{
    dsc_op *op;
    if (!dsc_program_is_value(program, DSC_OP_ATTENTION, "attention", k) ||
        !dsc_program_is_value(program, DSC_OP_ATTENTION, "attention", v))
        return DSC_PROGRAM_NONE;
    const int16_t y = dsc_program_add_unary(program, DSC_OP_ATTENTION, "attention", q, &op);
    if (y == DSC_PROGRAM_NONE)
        return y;
    const dsc_value *of[3] = { &program->value[q], &program->value[k], &program->value[v] };
    for (int i = 0; i < 3; i++) {
        const int64_t heads = i == 0 ? args->heads : args->kv_heads;
        if (heads < 1 || of[i]->columns != heads * args->head_size || of[i]->rows != program->tokens)
            REFUSE(program,
                   "op \"attention\": its input \"%.60s\" is [%lld,%lld]; expected %lld rows of %lld heads of "
                   "%lld elements",
                   of[i]->name, (long long)of[i]->rows, (long long)of[i]->columns, (long long)program->tokens,
                   (long long)heads, (long long)args->head_size);
    }
    if (args->kv_heads < 1 || args->heads % args->kv_heads != 0)
        REFUSE(program, "op \"attention\": %lld heads of queries cannot be shared out among %lld heads of keys",
               (long long)args->heads, (long long)args->kv_heads);
    if (!(args->softcap >= 0 && args->softcap < 1e6) || !(args->alibi >= 0 && args->alibi < 1e6) ||
        !(args->alibi_of_key >= 0 && args->alibi_of_key < 1e6))
        REFUSE(program,
               "op \"attention\": the cap of its logits is %g and the exponent of its slopes %g; expected "
               "numbers from 0 to below 1000000, 0 for none",
               args->softcap, args->alibi);
    const bool declared = args->sinks >= 0 && args->sinks < program->param_count;
    if (args->has_sinks && (!declared || program->param[args->sinks].dim_count != 1 ||
                            program->param[args->sinks].dim[0] != args->heads))
        REFUSE(program, "op \"attention\": its sinks are parameter %d; expected a declared one of %lld elements",
               (int)args->sinks, (long long)args->heads);
    op->attention = *args;
    op->in[1] = k, op->in[2] = v;
    program->value[y].columns = args->heads * args->head_size;
    const dsc_value lse = { .rows = args->heads * program->tokens, .columns = 1, .per_sample = true, .f32 = true };
    (void)dsc_program_add_output(program, op, 1, op->name, lse);
    return y;
}

/* After a failure there is no op that could take the kind. */
static void set_activation(dsc_program *program, int16_t y, dsc_activation kind)
{
    if (y == DSC_PROGRAM_NONE)
        return;
    dsc_op *op = &program->op[program->value[y].maker];
    if ((uint32_t)kind >= DSC_ACTIVATIONS)
        REFUSE(program, "op \"%s\": activation %d is not one of the %d kinds", dsc_op_infos[op->kind].name, (int)kind,
               DSC_ACTIVATIONS);
    op->activation = kind;
}

int16_t dsc_program_activation(dsc_program *program, int16_t x, dsc_activation kind)
{
    dsc_op *op;
    const int16_t y = dsc_program_add_unary(program, DSC_OP_ACTIVATION, "activation", x, &op);
    set_activation(program, y, kind);
    return y;
}

/* Two inputs of one shape. */
static int16_t add_binary(dsc_program *program, dsc_op_kind kind, int16_t a, int16_t b)
{
    dsc_op *op;
    const char *name = dsc_op_infos[kind].name;
    if (!dsc_program_is_value(program, kind, name, b))
        return DSC_PROGRAM_NONE;
    const int16_t y = dsc_program_add_unary(program, kind, name, a, &op);
    if (y == DSC_PROGRAM_NONE)
        return y;
    const dsc_value *x = &program->value[a], *z = &program->value[b];
    if (x->rows != z->rows || x->columns != z->columns)
        REFUSE(program, "op \"%s\": its inputs \"%.60s\" [%lld,%lld] and \"%.60s\" [%lld,%lld] differ in shape", name,
               x->name, (long long)x->rows, (long long)x->columns, z->name, (long long)z->rows, (long long)z->columns);
    op->in[1] = b;
    return y;
}

int16_t dsc_program_gated(dsc_program *program, int16_t gate, int16_t up, dsc_activation kind)
{
    const int16_t y = add_binary(program, DSC_OP_GATED, gate, up);
    set_activation(program, y, kind);
    return y;
}

int16_t dsc_program_add(dsc_program *program, int16_t a, int16_t b) { return add_binary(program, DSC_OP_ADD, a, b); }

int16_t dsc_program_scale(dsc_program *program, int16_t x, double factor)
{
    dsc_op *op;
    const int16_t y = dsc_program_add_unary(program, DSC_OP_SCALE, "scale", x, &op);
    if (y != DSC_PROGRAM_NONE)
        op->factor = factor;
    return y;
}

int16_t dsc_program_tanh(dsc_program *program, int16_t x)
{
    dsc_op *op;
    return dsc_program_add_unary(program, DSC_OP_TANH, "tanh", x, &op);
}

int16_t dsc_program_dropout(dsc_program *program, int16_t x, double probability, uint32_t stream)
{
    dsc_op *op;
    const int16_t y = dsc_program_add_unary(program, DSC_OP_DROPOUT, "dropout", x, &op);
    if (y == DSC_PROGRAM_NONE)
        return y;
    if (!(probability >= 0 && probability < 1))
        REFUSE(program, "op \"dropout\": the probability %g is not in [0, 1)", probability);
    op->dropout.probability = probability;
    op->dropout.stream = stream;
    return y;
}

int16_t dsc_program_regroup(dsc_program *program, int16_t x, int64_t groups, int64_t queries, int64_t head_size)
{
    dsc_op *op;
    const int16_t y = dsc_program_add_unary(program, DSC_OP_REGROUP, "regroup", x, &op);
    if (y == DSC_PROGRAM_NONE)
        return y;
    const dsc_value *in = &program->value[x];
    if (groups < 1 || queries < 1 || head_size < 1 || in->columns / groups != (queries + 2) * head_size ||
        in->columns % groups != 0)
        REFUSE(program,
               "op \"regroup\": %lld groups of %lld query heads, a key and a value of %lld columns are not the %lld "
               "columns of \"%.60s\"",
               (long long)groups, (long long)queries, (long long)head_size, (long long)in->columns, in->name);
    op->regroup.groups = groups, op->regroup.queries = queries, op->regroup.head_size = head_size;
    return y;
}

int16_t dsc_program_slice_heads(dsc_program *program, int16_t x, int64_t first, int64_t heads, int64_t width,
                                int64_t apart)
{
    dsc_op *op;
    const int16_t y = dsc_program_add_unary(program, DSC_OP_SLICE, "slice", x, &op);
    if (y == DSC_PROGRAM_NONE)
        return y;
    const dsc_value *in = &program->value[x];
    const int64_t columns = heads > 1 ? apart * heads : first + width;
    if (first < 0 || width < 1 || heads < 1 || (heads > 1 && first > apart - width) || columns > in->columns ||
        (heads > 1 && columns != in->columns))
        REFUSE(program,
               "op \"slice\": %lld times %lld columns from %lld on, %lld apart, are not all in its input "
               "\"%.60s\" [%lld,%lld]",
               (long long)heads, (long long)width, (long long)first, (long long)apart, in->name, (long long)in->rows,
               (long long)in->columns);
    op->slice.column = first, op->slice.width = width, op->slice.apart = heads > 1 ? apart : 0;
    program->value[y].columns = heads * width;
    return y;
}

int16_t dsc_program_slice(dsc_program *program, int16_t x, int64_t first, int64_t count)
{
    return dsc_program_slice_heads(program, x, first, 1, count, 0);
}

int16_t dsc_program_heads(dsc_program *program, int16_t own, int16_t shared, const dsc_op_heads *args)
{
    dsc_op *op;
    const bool has_shared = shared != DSC_PROGRAM_NONE;
    if (has_shared && !dsc_program_is_value(program, DSC_OP_HEADS, "heads", shared))
        return DSC_PROGRAM_NONE;
    const int16_t y = dsc_program_add_unary(program, DSC_OP_HEADS, "heads", own, &op);
    if (y == DSC_PROGRAM_NONE)
        return y;
    const dsc_value *a = &program->value[own], *b = has_shared ? &program->value[shared] : a;
    const int64_t each = args->heads >= 1 ? a->columns / args->heads : 0, all = each + (has_shared ? b->columns : 0);
    if (args->heads < 1 || args->width < 1 || a->columns % args->heads != 0 || b->rows != a->rows ||
        (has_shared && all > args->width))
        REFUSE(program,
               "op \"heads\": its inputs \"%.60s\" [%lld,%lld] and \"%.60s\" [%lld,%lld] do not make %lld heads of "
               "%lld columns",
               a->name, (long long)a->rows, (long long)a->columns, b->name, (long long)b->rows, (long long)b->columns,
               (long long)args->heads, (long long)args->width);
    op->heads.heads = args->heads, op->heads.width = args->width;
    op->in[1] = shared;
    program->value[y].columns = args->heads * args->width;
    return y;
}

static void declare_custom(dsc_program *program, const dsc_custom_param *param)
{
    const bool vector = param->rows == 0;
    const dsc_program_param own = { .name = param->name,
                                    .part = "",
                                    .dim_count = vector ? 1 : 2,
                                    .dim = { vector ? param->columns : param->rows, vector ? 0 : param->columns },
                                    .init = param->ones           ? DSC_INIT_ONES
                                            : param->init_std > 0 ? DSC_INIT_NORMAL
                                                                  : DSC_INIT_ZEROS,
                                    .std = param->init_std };
    (void)dsc_program_declare(program, &own);
}

int16_t dsc_program_custom(dsc_program *program, const int16_t *in, const dsc_custom_op *custom)
{
    dsc_op *op;
    for (int32_t i = 1; i < custom->input_count; i++)
        if (!dsc_program_is_value(program, DSC_OP_CUSTOM, custom->name, in[i]))
            return DSC_PROGRAM_NONE;
    const int16_t y = dsc_program_add_unary(program, DSC_OP_CUSTOM, custom->name, in[0], &op);
    if (y == DSC_PROGRAM_NONE)
        return y;
    op->custom.op = custom;
    op->custom.param = program->param_count;
    for (int32_t i = 0; i < custom->input_count; i++) {
        const dsc_value *a = &program->value[in[0]], *b = &program->value[in[i]];
        op->in[i] = in[i];
        if (a->rows != b->rows)
            REFUSE(program,
                   "op \"%.60s\" (custom): its inputs \"%.60s\" [%lld,%lld] and \"%.60s\" [%lld,%lld] differ in rows",
                   custom->name, a->name, (long long)a->rows, (long long)a->columns, b->name, (long long)b->rows,
                   (long long)b->columns);
    }
    for (int32_t i = 0; i < custom->param_count; i++)
        declare_custom(program, &custom->param[i]);
    program->value[y].columns = custom->out_columns;
    return program->status == DSC_OK ? y : DSC_PROGRAM_NONE;
}
