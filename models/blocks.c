/* blocks.c - see blocks.h. SPDX-License-Identifier: Apache-2.0 */
#include "models/blocks.h"

/* Columns of a value; after a failure 0. */
static int64_t columns_of(const dsc_block *block, int16_t x)
{
    return block->program->status == DSC_OK ? block->program->value[x].columns : 0;
}

static dsc_program_linear_args linear_args(const dsc_block *block, const char *name, int64_t in, int64_t out, bool bias)
{
    return (dsc_program_linear_args) {
        .name = name, .shape = { in, out, block->out_in }, .bias = bias, .out_split = true, .std = block->std
    };
}

/* The product at the end of a part. */
static dsc_program_linear_args out_args(const dsc_block *block, const char *name, int64_t in, int64_t out, bool bias)
{
    dsc_program_linear_args args = linear_args(block, name, in, out, bias);
    args.out_split = false;
    args.std = block->out_std > 0 ? block->out_std : block->std;
    return args;
}

static int16_t linear(const dsc_block *block, int16_t x, const char *name, int64_t out, bool bias)
{
    const dsc_program_linear_args args = linear_args(block, name, columns_of(block, x), out, bias);
    return dsc_program_linear(block->program, x, &args);
}

int32_t dsc_block_vector(const dsc_block *block, const char *name, int64_t elements, dsc_init_kind init)
{
    const dsc_program_param param = { .name = name,
                                      .part = "",
                                      .dim_count = 1,
                                      .dim = { elements },
                                      .init = init,
                                      .std = init == DSC_INIT_NORMAL ? block->std : 0,
                                      .split = DSC_SPLIT_NONE };
    return dsc_program_declare(block->program, &param);
}

/* One of several layers that read x. */
static int16_t sibling(const dsc_block *block, int16_t x, const char *name, int64_t out, bool bias)
{
    dsc_program_linear_args args = linear_args(block, name, columns_of(block, x), out, bias);
    args.late_bias = bias;
    return dsc_program_linear(block->program, x, &args);
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

static dsc_op_norm norm_of(const dsc_block *block, int64_t groups)
{
    dsc_op_norm norm = block->norm;
    norm.groups = groups;
    return norm;
}

int16_t dsc_block_norm(const dsc_block *block, int16_t x, const char *name)
{
    const dsc_op_norm norm = norm_of(block, 1);
    return dsc_program_norm(block->program, x, name, &norm);
}

static bool declare_norm(const dsc_block *block, const char *name, int64_t channels, int64_t groups, dsc_op_norm *out)
{
    *out = norm_of(block, groups);
    if (name == NULL)
        return false;
    dsc_program_declare_norm(block->program, name, channels, out);
    return true;
}

dsc_step dsc_block_begin(const dsc_block *block, int16_t x, const dsc_step_norms *norms)
{
    const int64_t channels = columns_of(block, x);
    dsc_step step = { .x = x, .in = x };
    dsc_op_norm before;
    const bool has_before = declare_norm(block, norms->before, channels, 1, &before);
    step.has_behind = declare_norm(block, norms->behind, channels, 1, &step.behind);
    step.has_sum = declare_norm(block, norms->sum, channels, 1, &step.sum);
    if (has_before)
        step.in = dsc_program_norm_of(block->program, x, &before);
    return step;
}

int16_t dsc_block_end(const dsc_block *block, const dsc_step *step, int16_t part, int16_t onto)
{
    dsc_program *program = block->program;
    if (step->has_behind)
        part = dsc_program_norm_of(program, part, &step->behind);
    if (block->residual != 0 && block->residual != 1)
        part = dsc_program_scale(program, part, block->residual);
    const int16_t sum = dsc_program_add(program, part, onto);
    return step->has_sum ? dsc_program_norm_of(program, sum, &step->sum) : sum;
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

/* q and its gate, of one product. */
static int16_t make_gated_q(const dsc_block *block, int16_t x, const dsc_block_attention *part, int16_t *gate)
{
    const int64_t size = part->op.head_size, heads = part->op.heads;
    const int16_t both = linear(block, x, part->qkv[0], 2 * heads * size, part->qkv_bias);
    *gate =
        dsc_program_pack(block->program, dsc_program_slice_heads(block->program, both, size, heads, size, 2 * size));
    return dsc_program_pack(block->program, dsc_program_slice_heads(block->program, both, 0, heads, size, 2 * size));
}

/* q, k and v of x: three products, or slices of one. */
static void make_qkv(const dsc_block *block, int16_t x, const dsc_block_attention *part, int16_t *qkv, int16_t *gate)
{
    const int64_t size = part->op.head_size, heads = part->op.heads;
    const int64_t width[3] = { heads * size, part->op.kv_heads * size, part->op.kv_heads * size };
    if (part->kind == DSC_QKV_APART) {
        for (int i = 0; i < 3; i++)
            qkv[i] = part->gated && i == 0 ? make_gated_q(block, x, part, gate)
                                           : sibling(block, x, part->qkv[i], width[i], part->qkv_bias);
        return;
    }
    int16_t all = linear(block, x, part->qkv[0], width[0] + width[1] + width[2], part->qkv_bias);
    if (part->kind == DSC_QKV_GROUPS)
        all = dsc_program_regroup(block->program, all, part->op.kv_heads, heads / part->op.kv_heads, size);
    for (int64_t i = 0, at = 0; i < 3; at += width[i++])
        qkv[i] = part->kind == DSC_QKV_HEADS
                     ? dsc_program_slice_heads(block->program, all, i * size, heads, size, 3 * size)
                     : dsc_program_slice(block->program, all, at, width[i]);
}

typedef struct turn {
    const dsc_block_attention *part;
    dsc_program_tables tables;
    dsc_op_norm norm;
    bool has_norm;
} turn;

/* q or k from what a product gave to what the attention reads. */
static int16_t turn_heads(const dsc_block *block, int16_t x, const turn *t, int64_t heads)
{
    const dsc_block_attention *part = t->part;
    dsc_op_rope rope = part->rope;
    rope.heads = heads, rope.head_size = part->op.head_size;
    if (t->has_norm && !part->norm_turned)
        x = dsc_program_norm_of(block->program, x, &t->norm);
    if (rope.rope != NULL)
        x = dsc_program_rope(block->program, x, t->tables, &rope);
    if (t->has_norm && part->norm_turned)
        x = dsc_program_norm_of(block->program, x, &t->norm);
    return x;
}

int16_t dsc_block_attend(const dsc_block *block, int16_t x, const dsc_block_attention *part)
{
    dsc_program *program = block->program;
    const int64_t size = part->op.head_size, heads[2] = { part->op.heads, part->op.kv_heads };
    const char *const names[2] = { part->q_norm, part->k_norm };
    const dsc_program_linear_args out =
        out_args(block, part->out, heads[0] * size, columns_of(block, x), part->out_bias);
    turn t[2] = { { .part = part }, { .part = part } };
    int16_t qkv[3], gate = DSC_PROGRAM_NONE;
    make_qkv(block, x, part, qkv, &gate);
    const int32_t layer = dsc_program_declare_linear(program, &out);
    for (int i = 0; i < 2; i++)
        t[i].has_norm = declare_norm(block, names[i], part->norm_whole ? heads[i] * size : size,
                                     part->norm_whole ? 1 : heads[i], &t[i].norm);
    if (part->rope.rope != NULL)
        t[0].tables = t[1].tables = dsc_program_rope_tables(program, part->rope.rope);
    for (int i = 0; i < 2; i++)
        qkv[i] = turn_heads(block, qkv[i], &t[i], heads[i]);
    int16_t y = dsc_program_attention(program, qkv[0], qkv[1], qkv[2], &part->op);
    if (part->gated)
        y = dsc_program_gated(program, gate, y, DSC_SIGMOID);
    return dsc_program_linear_of(program, y, layer);
}

/* ---- MLP --------------------------------------------------------------------------------------------------------- */

static int16_t gated(const dsc_block *block, int16_t x, const dsc_block_mlp *part)
{
    dsc_program *program = block->program;
    const int64_t inner = part->inner;
    if (!part->gate_in_up) {
        const int16_t gate = sibling(block, x, part->gate, inner, part->up_bias);
        return dsc_program_gated(program, gate, sibling(block, x, part->up, inner, part->up_bias), part->activation);
    }
    const int16_t both = linear(block, x, part->up, 2 * inner, part->up_bias);
    const int16_t gate = dsc_program_slice(program, both, 0, inner);
    return dsc_program_gated(program, gate, dsc_program_slice(program, both, inner, inner), part->activation);
}

static int16_t activated(const dsc_block *block, int16_t x, const dsc_block_mlp *part)
{
    const double s = part->activation_scale;
    int16_t up = linear(block, x, part->up, part->inner, part->up_bias);
    up = s > 0 ? dsc_program_scale(block->program, up, s) : up;
    up = dsc_program_activation(block->program, up, part->activation);
    return s > 0 ? dsc_program_scale(block->program, up, 1 / s) : up;
}

int16_t dsc_block_feed(const dsc_block *block, int16_t x, const dsc_block_mlp *part)
{
    const dsc_program_linear_args down =
        out_args(block, part->down, part->inner, columns_of(block, x), part->down_bias);
    const int16_t act = part->gate != NULL || part->gate_in_up ? gated(block, x, part) : activated(block, x, part);
    return dsc_program_linear(block->program, act, &down);
}
