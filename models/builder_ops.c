/* builder_ops.c - the public builder's ops: checks of a user's arguments around program.h's functions.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "models/builder.h"

enum { NODE_VALUES = 2048, NAME_MAX_BYTES = 32, HEAD_MAX = 2 * DSC_ROPE_PAIRS_MAX };

/* ---- nodes and texts --------------------------------------------------------------------------------------------- */

dsc_node dsc_builder_node(dsc_builder *b, int16_t value)
{
    DSC_ASSERT(value < NODE_VALUES);
    if (b->open)
        dsc_builder_keep_failure(b, b->program);
    return b->status == DSC_OK ? (dsc_node)(b->serial * NODE_VALUES + value) : DSC_NODE_NONE;
}

int16_t dsc_builder_value(dsc_builder *b, dsc_node node, const char *op)
{
    if (!b->open)
        BUILDER_REFUSE(b, DSC_ERR_INPUT, "op \"%.60s\" stands outside of a block; call dsc_build_begin first", op);
    else if (node < 0)
        BUILDER_REFUSE(b, DSC_ERR_INPUT, "op \"%.60s\": its input is DSC_NODE_NONE", op);
    else if (node / NODE_VALUES != b->serial || node % NODE_VALUES >= b->program->value_count)
        BUILDER_REFUSE(b, DSC_ERR_INPUT,
                       "op \"%.60s\": node %d is not a value of this block; expected one that an op "
                       "of the block returned, or the block's input",
                       op, (int)node);
    return b->status == DSC_OK ? (int16_t)(node % NODE_VALUES) : DSC_PROGRAM_NONE;
}

/* One copy for equal texts, so that equal blocks have equal pointers. */
static const char *keep_text(dsc_builder *b, const char *text)
{
    for (const builder_kept *at = b->kept[BUILDER_TEXTS]; at != NULL; at = at->next)
        if (strcmp((const char *)at->copy, text) == 0)
            return (const char *)at->copy;
    char *own = dsc_builder_keep(b, BUILDER_TEXTS, strlen(text) + 1);
    return own != NULL ? memcpy(own, text, strlen(text) + 1) : NULL;
}

const char *dsc_builder_name(dsc_builder *b, const char *name)
{
    static const char *const modules[] = {
        [BUILDER_BLOCK] = "", [BUILDER_FIRST] = "embedding.", [BUILDER_LAST] = "head."
    };
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.";
    const size_t bytes = name == NULL ? 0 : strlen(name);
    if (bytes < 1 || bytes > NAME_MAX_BYTES || strspn(name, letters) != bytes)
        BUILDER_REFUSE(b, DSC_ERR_INPUT,
                       "a name of %zu bytes, \"%.60s\"; expected 1 to %d letters, digits, '_' and '.'", bytes,
                       name == NULL ? "" : name, NAME_MAX_BYTES);
    char text[NAME_MAX_BYTES + 12];
    snprintf(text, sizeof text, "%s%s", modules[b->kind], b->status == DSC_OK ? name : "");
    return b->status == DSC_OK ? keep_text(b, text) : NULL;
}

static int64_t columns_of(const dsc_builder *b, int16_t value) { return b->program->value[value].columns; }

/* ---- layers ------------------------------------------------------------------------------------------------------ */

dsc_node dsc_build_linear(dsc_builder *b, dsc_node x, const char *name, int64_t columns, bool bias)
{
    const char *own = dsc_builder_name(b, name);
    const int16_t in = dsc_builder_value(b, x, own != NULL ? own : "linear");
    if (columns < 1 || columns > DSC_LM_INNER_MAX)
        BUILDER_REFUSE(b, DSC_ERR_INPUT, "op \"%.60s\" (linear): %lld columns; expected 1 to %d", name,
                       (long long)columns, DSC_LM_INNER_MAX);
    if (b->status != DSC_OK)
        return DSC_NODE_NONE;
    const dsc_program_linear_args args = { .name = own,
                                           .shape = { columns_of(b, in), columns, true },
                                           .bias = bias,
                                           .whole = true,
                                           .no_adapter = true,
                                           .std = b->options.init_std };
    return dsc_builder_node(b, dsc_program_linear(b->program, in, &args));
}

dsc_node dsc_build_norm(dsc_builder *b, dsc_node x, const char *name, dsc_build_norm_kind kind, int64_t groups,
                        double eps)
{
    const char *own = dsc_builder_name(b, name);
    const int16_t in = dsc_builder_value(b, x, own != NULL ? own : "norm");
    if (kind != DSC_BUILD_LAYER_NORM && kind != DSC_BUILD_RMS_NORM)
        BUILDER_REFUSE(b, DSC_ERR_INPUT,
                       "op \"%.60s\" (norm): kind %d; expected DSC_BUILD_LAYER_NORM or "
                       "DSC_BUILD_RMS_NORM",
                       name, (int)kind);
    if (!(eps > 0 && eps <= 1))
        BUILDER_REFUSE(b, DSC_ERR_INPUT, "op \"%.60s\" (norm): eps %g; expected above 0, at most 1", name, eps);
    if (b->status != DSC_OK)
        return DSC_NODE_NONE;
    const dsc_op_norm args = { .kind = kind == DSC_BUILD_LAYER_NORM ? DSC_NORM_LAYER : DSC_NORM_RMS,
                               .groups = groups,
                               .eps = eps };
    return dsc_builder_node(b, dsc_program_norm(b->program, in, own, &args));
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

static const dsc_rope *keep_rope(dsc_builder *b, int64_t turned, double theta)
{
    for (const builder_kept *at = b->kept[BUILDER_ROPES]; at != NULL; at = at->next) {
        const dsc_rope *rope = (const void *)at->copy;
        if (rope->pairs == turned / 2 && rope->theta == theta)
            return rope;
    }
    dsc_rope *own = dsc_builder_keep(b, BUILDER_ROPES, sizeof *own);
    if (own != NULL) {
        own->theta = theta;
        dsc_rope_set(own, turned);
    }
    return own;
}

/* Cosines and sines, which a block makes once. */
static dsc_program_tables tables_of(dsc_builder *b, const dsc_rope *rope)
{
    for (int32_t i = 0; i < b->table_count; i++)
        if (b->tables[i].rope == rope)
            return b->tables[i].tables;
    const dsc_program_tables tables = dsc_program_rope_tables(b->program, rope);
    if (b->table_count < BUILDER_BLOCK_ROPES) {
        b->tables[b->table_count].rope = rope;
        b->tables[b->table_count++].tables = tables;
    }
    return tables;
}

dsc_node dsc_build_rope(dsc_builder *b, dsc_node x, int64_t heads, int64_t turned, double theta)
{
    const int16_t in = dsc_builder_value(b, x, "rope");
    if (b->status != DSC_OK)
        return DSC_NODE_NONE;
    const int64_t columns = columns_of(b, in);
    if (heads < 1 || columns % heads != 0)
        BUILDER_REFUSE(b, DSC_ERR_INPUT, "op \"rope\": %lld heads do not divide its input, which has %lld columns",
                       (long long)heads, (long long)columns);
    else if (turned < 2 || turned % 2 != 0 || turned > columns / heads || turned > HEAD_MAX)
        BUILDER_REFUSE(b, DSC_ERR_INPUT,
                       "op \"rope\": %lld elements of a head turn; expected an even number from 2 to "
                       "%lld",
                       (long long)turned, (long long)dsc_min_i64(columns / heads, HEAD_MAX));
    else if (!(theta > 0 && theta <= 1e12))
        BUILDER_REFUSE(b, DSC_ERR_INPUT, "op \"rope\": theta %g; expected above 0, at most 1e12", theta);
    const dsc_rope *rope = b->status == DSC_OK ? keep_rope(b, turned, theta) : NULL;
    if (b->status != DSC_OK)
        return DSC_NODE_NONE;
    const dsc_op_rope args = { .rope = rope, .heads = heads, .head_size = columns / heads };
    return dsc_builder_node(b, dsc_program_rope(b->program, in, tables_of(b, rope), &args));
}

static void check_attention(dsc_builder *b, const dsc_build_attention_options *options, int16_t q)
{
    if (options->struct_bytes < sizeof *options)
        BUILDER_REFUSE(b, DSC_ERR_STATE,
                       "dsc_build_attention_options.struct_bytes is %u; use DSC_BUILD_ATTENTION_OPTIONS_INIT",
                       options->struct_bytes);
    if (b->status != DSC_OK)
        return;
    const int64_t columns = columns_of(b, q);
    if (options->heads < 1 || columns % options->heads != 0 || columns / options->heads > HEAD_MAX)
        BUILDER_REFUSE(b, DSC_ERR_INPUT,
                       "op \"attention\": %lld heads of q, which has %lld columns; expected heads "
                       "that divide the columns, of at most %d columns",
                       (long long)options->heads, (long long)columns, HEAD_MAX);
    if (options->kv_heads < 0 || options->window < 0 || options->window > INT32_MAX)
        BUILDER_REFUSE(b, DSC_ERR_INPUT,
                       "op \"attention\": kv_heads %lld, window %lld; expected 0 or more, a window "
                       "of at most %d",
                       (long long)options->kv_heads, (long long)options->window, INT32_MAX);
    if (!(options->scale >= 0 && options->scale <= 1e6))
        BUILDER_REFUSE(b, DSC_ERR_INPUT, "op \"attention\": scale %g; expected 0 to 1e6", options->scale);
}

dsc_node dsc_build_attention(dsc_builder *b, dsc_node q, dsc_node k, dsc_node v,
                             const dsc_build_attention_options *options)
{
    const dsc_node nodes[3] = { q, k, v };
    int16_t in[3];
    for (int i = 0; i < 3; i++)
        in[i] = dsc_builder_value(b, nodes[i], "attention");
    check_attention(b, options, in[0]);
    if (b->status != DSC_OK)
        return DSC_NODE_NONE;
    const int64_t size = columns_of(b, in[0]) / options->heads;
    const dsc_op_attention args = { .heads = options->heads,
                                    .kv_heads = options->kv_heads > 0 ? options->kv_heads : options->heads,
                                    .head_size = size,
                                    .scale = options->scale > 0 ? options->scale : 1 / sqrt((double)size),
                                    .window = options->window,
                                    .all = options->all };
    return dsc_builder_node(b, dsc_program_attention(b->program, in[0], in[1], in[2], &args));
}

/* ---- element by element ------------------------------------------------------------------------------------------ */

dsc_node dsc_build_activation(dsc_builder *b, dsc_node x, dsc_build_activation_kind kind)
{
    static const dsc_activation kinds[] = {
        [DSC_BUILD_GELU_TANH] = DSC_GELU_TANH, [DSC_BUILD_GELU] = DSC_GELU_ERF, [DSC_BUILD_RELU] = DSC_RELU,
        [DSC_BUILD_SILU] = DSC_SILU, [DSC_BUILD_SIGMOID] = DSC_SIGMOID, [DSC_BUILD_RELU6] = DSC_RELU6,
        [DSC_BUILD_HARD_SIGMOID] = DSC_HARD_SIGMOID, [DSC_BUILD_HARD_SWISH] = DSC_HARD_SWISH
    };
    const int16_t in = dsc_builder_value(b, x, "activation");
    if ((uint32_t)kind >= DSC_COUNT(kinds))
        BUILDER_REFUSE(b, DSC_ERR_INPUT, "op \"activation\": kind %d is not one of the %zu", (int)kind,
                       DSC_COUNT(kinds));
    return BUILDER_NODE(b, dsc_program_activation(b->program, in, kinds[kind]));
}

dsc_node dsc_build_gated(dsc_builder *b, dsc_node gate, dsc_node up)
{
    const int16_t in[2] = { dsc_builder_value(b, gate, "gated"), dsc_builder_value(b, up, "gated") };
    return BUILDER_NODE(b, dsc_program_gated(b->program, in[0], in[1], DSC_SILU));
}

dsc_node dsc_build_add(dsc_builder *b, dsc_node x, dsc_node y)
{
    const int16_t in[2] = { dsc_builder_value(b, x, "add"), dsc_builder_value(b, y, "add") };
    return BUILDER_NODE(b, dsc_program_add(b->program, in[0], in[1]));
}

dsc_node dsc_build_scale(dsc_builder *b, dsc_node x, double factor)
{
    const int16_t in = dsc_builder_value(b, x, "scale");
    if (!isfinite(factor))
        BUILDER_REFUSE(b, DSC_ERR_INPUT, "op \"scale\": factor %g; expected a finite number", factor);
    return BUILDER_NODE(b, dsc_program_scale(b->program, in, factor));
}

dsc_node dsc_build_dropout(dsc_builder *b, dsc_node x, double probability)
{
    const int16_t in = dsc_builder_value(b, x, "dropout");
    return BUILDER_NODE(b, dsc_program_dropout(b->program, in, probability, b->dropouts++));
}

dsc_node dsc_build_slice(dsc_builder *b, dsc_node x, int64_t first, int64_t columns)
{
    const int16_t in = dsc_builder_value(b, x, "slice");
    if (first < 0 || columns < 1 || first > INT32_MAX || columns > INT32_MAX)
        BUILDER_REFUSE(b, DSC_ERR_INPUT, "op \"slice\": %lld columns from %lld on; expected 1 or more, from 0 on",
                       (long long)columns, (long long)first);
    return BUILDER_NODE(b, dsc_program_slice(b->program, in, first, columns));
}

/* ---- custom ops -------------------------------------------------------------------------------------------------- */

static void check_custom_param(dsc_builder *b, const dsc_custom_op *op, int32_t i)
{
    const dsc_custom_param *param = &op->param[i];
    int64_t elements;
    if (param->columns < 1 || param->rows < 0 || !dsc_mul_i64(dsc_max_i64(1, param->rows), param->columns, &elements) ||
        elements > INT64_C(1) << 40)
        BUILDER_REFUSE(b, DSC_ERR_INPUT,
                       "op \"%.60s\" (custom): parameter %d is [%lld,%lld]; expected 1 or more "
                       "columns and 0 or more rows, at most 2^40 elements",
                       op->name, (int)i, (long long)param->rows, (long long)param->columns);
    if (!(param->init_std >= 0 && param->init_std <= 1000))
        BUILDER_REFUSE(b, DSC_ERR_INPUT, "op \"%.60s\" (custom): init_std %g of parameter %d; expected 0 to 1000",
                       op->name, param->init_std, (int)i);
}

static void check_custom(dsc_builder *b, const dsc_custom_op *op)
{
    if (op->struct_bytes < sizeof *op)
        BUILDER_REFUSE(b, DSC_ERR_STATE, "dsc_custom_op.struct_bytes is %u; use DSC_CUSTOM_OP_INIT", op->struct_bytes);
    else if (dsc_builder_name(b, op->name) == NULL)
        return;
    else if (op->forward == NULL || op->backward == NULL)
        BUILDER_REFUSE(b, DSC_ERR_INPUT, "op \"%.60s\" (custom): no %s callback", op->name,
                       op->forward == NULL ? "forward" : "backward");
    else if (op->input_count < 1 || op->input_count > DSC_CUSTOM_INPUTS_MAX)
        BUILDER_REFUSE(b, DSC_ERR_INPUT, "op \"%.60s\" (custom): %d inputs; expected 1 to %d", op->name,
                       (int)op->input_count, DSC_CUSTOM_INPUTS_MAX);
    else if (op->param_count < 0 || op->param_count > DSC_CUSTOM_PARAMS_MAX)
        BUILDER_REFUSE(b, DSC_ERR_INPUT, "op \"%.60s\" (custom): %d parameters; expected 0 to %d", op->name,
                       (int)op->param_count, DSC_CUSTOM_PARAMS_MAX);
    else if (op->out_columns < 0 || op->out_columns > DSC_LM_INNER_MAX)
        BUILDER_REFUSE(b, DSC_ERR_INPUT, "op \"%.60s\" (custom): %lld columns; expected 0 to %d", op->name,
                       (long long)op->out_columns, DSC_LM_INNER_MAX);
    else if (op->scratch_bytes < 0 || op->scratch_bytes > INT64_C(1) << 40 || op->scratch_row_bytes < 0 ||
             op->scratch_row_bytes > 1 << 24)
        BUILDER_REFUSE(b, DSC_ERR_INPUT,
                       "op \"%.60s\" (custom): scratch of %lld bytes and %lld for each row; expected "
                       "0 to 2^40 and 0 to 2^24",
                       op->name, (long long)op->scratch_bytes, (long long)op->scratch_row_bytes);
    else if (!(op->flops_per_row >= 0 && op->flops_per_row <= 1e18))
        BUILDER_REFUSE(b, DSC_ERR_INPUT, "op \"%.60s\" (custom): %g FLOPs for each row; expected 0 to 1e18", op->name,
                       op->flops_per_row);
    for (int32_t i = 0; b->status == DSC_OK && i < op->param_count; i++)
        check_custom_param(b, op, i);
}

static bool is_same_custom(const dsc_custom_op *x, const dsc_custom_op *y)
{
    bool same = x->name == y->name && x->input_count == y->input_count && x->out_columns == y->out_columns &&
                x->backward_reads_in == y->backward_reads_in && x->backward_reads_out == y->backward_reads_out &&
                x->scratch_bytes == y->scratch_bytes && x->scratch_row_bytes == y->scratch_row_bytes &&
                x->flops_per_row == y->flops_per_row && x->param_count == y->param_count && x->forward == y->forward &&
                x->backward == y->backward && x->user == y->user;
    for (int32_t i = 0; same && i < x->param_count; i++)
        same = x->param[i].name == y->param[i].name && x->param[i].rows == y->param[i].rows &&
               x->param[i].columns == y->param[i].columns && x->param[i].init_std == y->param[i].init_std &&
               x->param[i].ones == y->param[i].ones;
    return same;
}

/* A copy with texts of its own, one for equal ops. */
static const dsc_custom_op *keep_custom(dsc_builder *b, const dsc_custom_op *op, int64_t columns)
{
    dsc_custom_op own = *op;
    char text[2 * NAME_MAX_BYTES + 14];
    own.name = dsc_builder_name(b, op->name);
    if (own.out_columns == 0)
        own.out_columns = columns;
    for (int32_t i = 0; i < own.param_count; i++) {
        if (dsc_builder_name(b, op->param[i].name) == NULL)
            return NULL;
        snprintf(text, sizeof text, "%s.%s", own.name != NULL ? own.name : "", op->param[i].name);
        own.param[i].name = keep_text(b, text);
    }
    for (const builder_kept *at = b->kept[BUILDER_CUSTOMS]; at != NULL; at = at->next)
        if (is_same_custom((const void *)at->copy, &own))
            return (const void *)at->copy;
    dsc_custom_op *copy = dsc_builder_keep(b, BUILDER_CUSTOMS, sizeof *copy);
    if (copy != NULL)
        *copy = own;
    return copy;
}

dsc_node dsc_build_custom(dsc_builder *b, const dsc_node *in, const dsc_custom_op *op)
{
    int16_t value[DSC_CUSTOM_INPUTS_MAX];
    check_custom(b, op);
    for (int32_t i = 0; b->status == DSC_OK && i < op->input_count; i++)
        value[i] = dsc_builder_value(b, in[i], op->name);
    const dsc_custom_op *own = b->status == DSC_OK ? keep_custom(b, op, columns_of(b, value[0])) : NULL;
    return BUILDER_NODE(b, dsc_program_custom(b->program, value, own));
}
