/* blocks.c - see blocks.h. SPDX-License-Identifier: Apache-2.0 */
#include "models/blocks.h"

#include <stdio.h>

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

/* A layer whose outputs ranks share out, of which this rank has `out`. */
static int16_t linear(const dsc_block *block, int16_t x, const char *name, int64_t out, const dsc_param_part *share,
                      bool bias)
{
    dsc_program_linear_args args = linear_args(block, name, columns_of(block, x), out, bias);
    args.share = *share;
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
static int16_t sibling(const dsc_block *block, int16_t x, const char *name, int64_t out, const dsc_param_part *share,
                       bool bias)
{
    dsc_program_linear_args args = linear_args(block, name, columns_of(block, x), out, bias);
    args.late_bias = bias;
    args.share = *share;
    return dsc_program_linear(block->program, x, &args);
}

/* ---- ranks that compute a block together ------------------------------------------------------------------------- */

/* Ranks share out the heads of an attention and the inner columns of an MLP. A part's first products have a rank's
 * columns, and its last one adds over the columns of all ranks (docs/parallel.md). */
#define SIZES_SHOWN 8

static int32_t ranks_of(const dsc_block *block)
{
    return block->program->ranks.count > 1 ? block->program->ranks.count : 1;
}

/* This rank's part of `length` inputs or outputs. `copies` neighbours have the same one. */
static dsc_param_part share_of(const dsc_block *block, int64_t length, int32_t copies)
{
    const dsc_program_ranks ranks = block->program->ranks;
    if (ranks.count <= 1)
        return (dsc_param_part) { 0 };
    return (dsc_param_part) { .count = ranks.count / copies,
                              .index = ranks.own / copies,
                              .run_count = 1,
                              .run = { length },
                              .spare = ranks.own % copies != 0 };
}

/* Whether `ranks` can have as many heads each. Those of keys and values may be fewer than the ranks, where their
 * products are apart. */
static bool fits_heads(const dsc_block_attention *part, int64_t ranks)
{
    const int64_t keys = part->op.kv_heads;
    const bool copied = part->kind == DSC_QKV_APART && ranks % keys == 0;
    return part->op.heads % ranks == 0 && (keys % ranks == 0 || copied);
}

static void heads_that_fit(const dsc_block_attention *part, char *out, size_t bytes)
{
    size_t used = 0;
    int count = 0;
    for (int64_t n = 1; n <= part->op.heads && count < SIZES_SHOWN; n++)
        if (fits_heads(part, n))
            used += (size_t)snprintf(out + used, bytes - used, "%s%lld", count++ > 0 ? ", " : "", (long long)n);
    DSC_ASSERT(used < bytes);
}

static void check_heads(const dsc_block *block, const dsc_block_attention *part)
{
    dsc_program *program = block->program;
    const int32_t ranks = ranks_of(block);
    const char *what = part->norm_whole     ? "norms over all heads of a token"
                       : part->op.has_sinks ? "attention sinks"
                       : part->op.alibi > 0 ? "slopes of heads (ALiBi)"
                                            : NULL;
    char sizes[SIZES_SHOWN * 24];
    if (ranks == 1 || program->status != DSC_OK)
        return;
    if (what != NULL) {
        program->status = DSC_FAIL(&program->err, DSC_ERR_UNSUPPORTED, "dsc.grid.tensor",
                                   "%d tensor ranks do not work with %s in this version; use one", (int)ranks, what);
    } else if (!fits_heads(part, ranks)) {
        heads_that_fit(part, sizes, sizeof sizes);
        program->status = DSC_FAIL(&program->err, DSC_ERR_CONFIG, "dsc.grid.tensor",
                                   "%d tensor ranks cannot share out %lld heads with %lld of keys and values; sizes "
                                   "that work: %s",
                                   (int)ranks, (long long)part->op.heads, (long long)part->op.kv_heads, sizes);
    }
}

static void check_inner(const dsc_block *block, int64_t inner)
{
    dsc_program *program = block->program;
    if (program->status == DSC_OK && inner % ranks_of(block) != 0)
        program->status = DSC_FAIL(&program->err, DSC_ERR_CONFIG, "dsc.grid.tensor",
                                   "%d tensor ranks do not divide the %lld inner columns of an MLP; use a divisor of "
                                   "that number",
                                   (int)ranks_of(block), (long long)inner);
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

static bool declare_norm(const dsc_block *block, const char *name, int64_t channels, int64_t groups, bool summed,
                         dsc_op_norm *out)
{
    *out = norm_of(block, groups);
    out->summed = summed;
    if (name == NULL)
        return false;
    dsc_program_declare_norm(block->program, name, channels, out);
    return true;
}

dsc_step dsc_block_begin(const dsc_block *block, int16_t x, const dsc_step_norms *norms)
{
    const int64_t channels = columns_of(block, x);
    dsc_step step = { .x = x, .in = x, .scale = DSC_PROGRAM_NONE };
    dsc_op_norm before;
    const bool has_before = declare_norm(block, norms->before, channels, 1, false, &before);
    step.has_behind = declare_norm(block, norms->behind, channels, 1, false, &step.behind);
    step.has_sum = declare_norm(block, norms->sum, channels, 1, false, &step.sum);
    if (norms->scale != NULL)
        step.scale = dsc_block_vector(block, norms->scale, channels, DSC_INIT_ONES);
    if (has_before)
        step.in = dsc_program_norm_of(block->program, x, &before);
    return step;
}

int16_t dsc_block_end(const dsc_block *block, const dsc_step *step, int16_t part, int16_t onto)
{
    dsc_program *program = block->program;
    if (step->has_behind)
        part = dsc_program_norm_of(program, part, &step->behind);
    if (step->scale != DSC_PROGRAM_NONE)
        part = dsc_program_scale_columns(program, part, step->scale);
    if (block->residual != 0 && block->residual != 1)
        part = dsc_program_scale(program, part, block->residual);
    const int16_t sum = dsc_program_add(program, part, onto);
    return step->has_sum ? dsc_program_norm_of(program, sum, &step->sum) : sum;
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

/* An attention as this rank computes it. */
typedef struct own_attention {
    dsc_block_attention part; /* with the rank's heads */
    int64_t heads, kv_heads;  /* of all ranks */
    int32_t copies;           /* ranks that have the same heads of keys and values; 0: each has its own */
} own_attention;

static own_attention own_of(const dsc_block *block, const dsc_block_attention *part)
{
    const int32_t ranks = ranks_of(block);
    own_attention own = { .part = *part, .heads = part->op.heads, .kv_heads = part->op.kv_heads };
    check_heads(block, part);
    if (ranks == 1 || block->program->status != DSC_OK)
        return own;
    own.part.op.heads = own.heads / ranks;
    own.part.op.kv_heads = dsc_max_i64(1, own.kv_heads / ranks);
    own.copies = own.kv_heads < ranks ? ranks / (int32_t)own.kv_heads : 0;
    return own;
}

/* q and its gate, of one product. */
static int16_t make_gated_q(const dsc_block *block, int16_t x, const own_attention *own, int16_t *gate)
{
    const dsc_block_attention *part = &own->part;
    const int64_t size = part->op.head_size, heads = part->op.heads;
    const dsc_param_part share = share_of(block, 2 * own->heads * size, 1);
    const int16_t both = linear(block, x, part->qkv[0], 2 * heads * size, &share, part->qkv_bias);
    *gate =
        dsc_program_pack(block->program, dsc_program_slice_heads(block->program, both, size, heads, size, 2 * size));
    return dsc_program_pack(block->program, dsc_program_slice_heads(block->program, both, 0, heads, size, 2 * size));
}

/* q, k and v by three products. A key or value that several ranks have gets the gradients of them all. */
static void make_apart(const dsc_block *block, int16_t x, const own_attention *own, int16_t *qkv, int16_t *gate)
{
    const dsc_block_attention *part = &own->part;
    const int64_t size = part->op.head_size;
    const dsc_param_part q = share_of(block, own->heads * size, 1);
    const dsc_param_part kv = share_of(block, own->kv_heads * size, own->copies > 0 ? own->copies : 1);
    qkv[0] = part->gated ? make_gated_q(block, x, own, gate)
                         : sibling(block, x, part->qkv[0], part->op.heads * size, &q, part->qkv_bias);
    for (int i = 1; i < 3; i++)
        qkv[i] = sibling(block, x, part->qkv[i], part->op.kv_heads * size, &kv, part->qkv_bias);
    for (int i = 1; i < 3 && own->copies > 0; i++)
        qkv[i] = dsc_program_exchange_share(block->program, qkv[i], own->copies);
}

/* q, k and v of x: three products, or slices of one. */
static void make_qkv(const dsc_block *block, int16_t x, const own_attention *own, int16_t *qkv, int16_t *gate)
{
    const dsc_block_attention *part = &own->part;
    const int64_t size = part->op.head_size, heads = part->op.heads, keys = part->op.kv_heads;
    const int64_t width[3] = { heads * size, keys * size, keys * size };
    if (part->kind == DSC_QKV_APART) {
        make_apart(block, x, own, qkv, gate);
        return;
    }
    dsc_param_part share = share_of(block, (own->heads + 2 * own->kv_heads) * size, 1);
    if (part->kind == DSC_QKV_PARTS && share.count > 0) {
        share.run_count = 3;
        share.run[0] = own->heads * size, share.run[1] = share.run[2] = own->kv_heads * size;
    }
    int16_t all = linear(block, x, part->qkv[0], width[0] + width[1] + width[2], &share, part->qkv_bias);
    if (part->kind == DSC_QKV_GROUPS)
        all = dsc_program_regroup(block->program, all, keys, heads / keys, size);
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

int16_t dsc_block_attend(const dsc_block *block, int16_t x, const dsc_block_attention *whole)
{
    dsc_program *program = block->program;
    const own_attention own = own_of(block, whole);
    const dsc_block_attention *part = &own.part;
    const int64_t size = part->op.head_size, heads[2] = { part->op.heads, part->op.kv_heads };
    const char *const names[2] = { part->q_norm, part->k_norm };
    dsc_program_linear_args out = out_args(block, part->out, heads[0] * size, columns_of(block, x), part->out_bias);
    turn t[2] = { { .part = part }, { .part = part } };
    int16_t qkv[3], gate = DSC_PROGRAM_NONE;
    out.share = share_of(block, own.heads * size, 1);
    x = dsc_program_exchange_share(program, x, 0);
    make_qkv(block, x, &own, qkv, &gate);
    const int32_t layer = dsc_program_declare_linear(program, &out);
    for (int i = 0; i < 2; i++) /* one weight for the heads of all ranks */
        t[i].has_norm = declare_norm(block, names[i], part->norm_whole ? heads[i] * size : size,
                                     part->norm_whole ? 1 : heads[i], ranks_of(block) > 1, &t[i].norm);
    if (part->rope.rope != NULL)
        t[0].tables = t[1].tables = dsc_program_rope_tables(program, part->rope.rope);
    for (int i = 0; i < 2; i++)
        qkv[i] = turn_heads(block, qkv[i], &t[i], heads[i]);
    int16_t y = dsc_program_attention(program, qkv[0], qkv[1], qkv[2], &part->op);
    if (part->gated)
        y = dsc_program_gated(program, gate, y, DSC_SIGMOID);
    return dsc_program_exchange_sum(program, dsc_program_linear_of(program, y, layer));
}

/* ---- MLP --------------------------------------------------------------------------------------------------------- */

static int16_t gated(const dsc_block *block, int16_t x, const dsc_block_mlp *part)
{
    dsc_program *program = block->program;
    const int64_t inner = part->inner / ranks_of(block);
    dsc_param_part share = share_of(block, part->inner, 1);
    if (!part->gate_in_up) {
        const int16_t gate = sibling(block, x, part->gate, inner, &share, part->up_bias);
        const int16_t up = sibling(block, x, part->up, inner, &share, part->up_bias);
        return dsc_program_gated(program, gate, up, part->activation);
    }
    dsc_program_linear_args args = linear_args(block, part->up, columns_of(block, x), 2 * inner, part->up_bias);
    if (share.count > 0)
        share.run[share.run_count++] = part->inner;
    args.share = share;
    args.no_adapter = part->no_up_adapter;
    const int16_t both = dsc_program_linear(program, x, &args);
    const int16_t gate = dsc_program_slice(program, both, 0, inner);
    return dsc_program_gated(program, gate, dsc_program_slice(program, both, inner, inner), part->activation);
}

static int16_t activated(const dsc_block *block, int16_t x, const dsc_block_mlp *part)
{
    const double s = part->activation_scale;
    const dsc_param_part share = share_of(block, part->inner, 1);
    int16_t up = linear(block, x, part->up, part->inner / ranks_of(block), &share, part->up_bias);
    up = s > 0 ? dsc_program_scale(block->program, up, s) : up;
    up = dsc_program_activation(block->program, up, part->activation);
    return s > 0 ? dsc_program_scale(block->program, up, 1 / s) : up;
}

int16_t dsc_block_feed(const dsc_block *block, int16_t x, const dsc_block_mlp *part)
{
    check_inner(block, part->inner);
    dsc_program_linear_args down =
        out_args(block, part->down, part->inner / ranks_of(block), columns_of(block, x), part->down_bias);
    down.share = share_of(block, part->inner, 1);
    x = dsc_program_exchange_share(block->program, x, 0);
    const int16_t act = part->gate != NULL || part->gate_in_up ? gated(block, x, part) : activated(block, x, part);
    return dsc_program_exchange_sum(block->program, dsc_program_linear(block->program, act, &down));
}
