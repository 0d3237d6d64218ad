/* program_random.c - see program_random.h. SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/program_random.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bf16.h"
#include "base/rng.h"
#include "kernels/device.h"
#include "models/lora.h"

/* ---- random programs --------------------------------------------------------------------------------------------- */

enum { HEAD = 4, ROOM = 8, EXPERTS_MAX = 16 };

int64_t program_random_draw(program_random *r, int64_t below)
{
    return (int64_t)(dsc_rng_u32(r->seed, dsc_rng_stream(DSC_RNG_TEST, 40), r->drawn++) % (uint64_t)below);
}

void program_random_take_params(program_random *r)
{
    DSC_ASSERT(r->source.param_count <= PROGRAM_PARAMS_MAX);
    for (; r->param_count < r->source.param_count; r->param_count++) {
        const dsc_program_param *param = &r->source.param[r->param_count];
        int64_t elements = 1;
        for (int32_t i = 0; i < param->dim_count; i++)
            elements *= param->dim[i];
        r->param_elements[r->param_count] = elements;
        r->spec[r->param_count] = (dsc_param_spec) { .name = "p",
                                                     .dim_count = 1,
                                                     .dim = { elements },
                                                     .trainable = program_random_draw(r, 8) > 0 && !param->frozen,
                                                     .shared_module = -1,
                                                     .shared_param = -1 };
    }
}

static int16_t linear(program_random *r, int16_t x, int64_t out)
{
    const dsc_program_linear_args args = { .name = "linear",
                                           .shape = { .out = out, .out_in = program_random_draw(r, 2) == 0 },
                                           .bias = program_random_draw(r, 3) > 0 };
    const int16_t y = dsc_program_linear(&r->source, x, &args);
    program_random_take_params(r);
    return y;
}

/* One of several that the compiler makes one product of. Two of three programs have biases there, without a draw. */
static int16_t plain_linear(program_random *r, int16_t x, int64_t out)
{
    const bool bias = r->seed % 3 > 0;
    const dsc_program_linear_args args = {
        .name = "linear", .shape = { .out = out, .out_in = true }, .bias = bias, .late_bias = bias
    };
    const int16_t y = dsc_program_linear(&r->source, x, &args);
    program_random_take_params(r);
    return y;
}

static int16_t norm(program_random *r, int16_t x)
{
    const int64_t columns = r->source.value[x].columns, groups = program_random_draw(r, 3) == 0 ? columns / HEAD : 1;
    const dsc_op_norm args = { .kind = program_random_draw(r, 2) == 0 ? DSC_NORM_LAYER : DSC_NORM_RMS,
                               .groups = groups,
                               .eps = 1e-2,
                               .no_weight = program_random_draw(r, 4) == 0,
                               .no_bias = program_random_draw(r, 3) == 0,
                               .plus_one = false };
    dsc_op_norm drawn = args;
    drawn.plus_one = !args.no_weight && program_random_draw(r, 3) == 0;
    const int16_t y = dsc_program_norm(&r->source, x, "norm", &drawn);
    program_random_take_params(r);
    return y;
}

/* q, k and v: three products, or slices of one in any of three orders of its columns. */
static void make_qkv(program_random *r, int16_t x, int64_t heads, int64_t kv_heads, int16_t *qkv)
{
    const int64_t width[3] = { heads * HEAD, kv_heads * HEAD, kv_heads * HEAD };
    const int64_t kind = program_random_draw(r, heads == kv_heads ? 3 : 2);
    if (kind == 0) {
        const bool plain = program_random_draw(r, 2) == 0;
        for (int i = 0; i < 3; i++)
            qkv[i] = plain ? plain_linear(r, x, width[i]) : linear(r, x, width[i]);
        return;
    }
    int16_t all = linear(r, x, width[0] + width[1] + width[2]);
    if (kind == 1 && r->seed % 2 == 0) /* no draw of its own, so that other programs stay what they are */
        all = dsc_program_regroup(&r->source, all, kv_heads, heads / kv_heads, HEAD);
    for (int64_t i = 0, at = 0; i < 3; at += width[i++])
        qkv[i] = kind < 2 ? dsc_program_slice(&r->source, all, at, width[i])
                          : dsc_program_slice_heads(&r->source, all, i * HEAD, heads, HEAD, 3 * HEAD);
}

static int32_t vector(program_random *r, int64_t elements)
{
    const dsc_program_param param = { .name = "sinks", .part = "", .dim_count = 1, .dim = { elements } };
    const int32_t number = dsc_program_declare(&r->source, &param);
    program_random_take_params(r);
    return number;
}

static int32_t router_bias(program_random *r, int64_t experts)
{
    const dsc_program_buffer bias = {
        .name = "router", .part = "bias", .kind = DSC_BUFFER_AVERAGE, .count = experts, .row = true
    };
    return dsc_program_declare_buffer(&r->source, &bias);
}

static int16_t attention(program_random *r, int16_t x)
{
    const int64_t kv_heads = 1 + program_random_draw(r, 2), heads = kv_heads * (1 + program_random_draw(r, 2));
    const bool all = program_random_draw(r, 4) == 0, sinks = program_random_draw(r, 4) == 0;
    const dsc_op_attention args = { .heads = heads,
                                    .kv_heads = kv_heads,
                                    .head_size = HEAD,
                                    .scale = 0.5,
                                    .all = all,
                                    .window = program_random_draw(r, 3) == 0 ? 3 : 0,
                                    .softcap = program_random_draw(r, 4) == 0 ? 0.75 : 0,
                                    .alibi = program_random_draw(r, 4) == 0 ? 8 : 0,
                                    .alibi_of_key = r->seed % 2 == 0 ? 0.5 : 0,
                                    .has_sinks = sinks,
                                    .sinks = sinks ? vector(r, heads) : 0 };
    int16_t qkv[3];
    make_qkv(r, x, heads, kv_heads, qkv);
    const bool apart = r->source.op[r->source.op_count - 1].kind == DSC_OP_LINEAR;
    if (apart && program_random_draw(r, 2) == 0)
        for (int i = 0; i < 2; i++)
            qkv[i] = norm(r, qkv[i]);
    if (program_random_draw(r, 2) == 0) {
        const dsc_program_tables tables = dsc_program_rope_tables(&r->source, &r->rope);
        for (int i = 0; i < 2; i++)
            qkv[i] = dsc_program_rope(&r->source, qkv[i], tables,
                                      &(dsc_op_rope) { &r->rope, i == 0 ? heads : kv_heads, HEAD, 0 });
    }
    return dsc_program_attention(&r->source, qkv[0], qkv[1], qkv[2], &args);
}

/* Keys of own columns and one part that all heads share, which turns; values of another width than the keys'. */
static int16_t latent_attention(program_random *r, int16_t x)
{
    const int64_t heads = 1 + program_random_draw(r, 3), turned = HEAD, plain = 1 + program_random_draw(r, 5);
    const int64_t value = 1 + program_random_draw(r, 9), latent = HEAD * (1 + program_random_draw(r, 2));
    const int64_t size = plain + turned, each = plain + value, width = dsc_max_i64(size, value);
    const dsc_op_rope turn_q = { &r->rope, heads, size, plain }, turn_k = { &r->rope, 1, turned, 0 };
    const dsc_op_heads one = { 1, latent }, whole = { heads, width }, narrow = { heads, value };
    const dsc_op_attention args = { .heads = heads, .kv_heads = heads, .head_size = width, .scale = 0.5 };
    dsc_program *program = &r->source;
    const dsc_program_tables tables = dsc_program_rope_tables(program, &r->rope);
    int16_t q = dsc_program_rope(program, linear(r, x, heads * size), tables, &turn_q);
    const int16_t both = linear(r, x, latent + turned), c = dsc_program_slice(program, both, 0, latent);
    const int16_t key = dsc_program_slice(program, both, latent, turned);
    const int16_t kv = linear(r, norm(r, dsc_program_heads(program, c, DSC_PROGRAM_NONE, &one)), heads * each);
    const int16_t own = dsc_program_slice_heads(program, kv, 0, heads, plain, each);
    const int16_t v = dsc_program_slice_heads(program, kv, plain, heads, value, each);
    if (width > size)
        q = dsc_program_heads(program, q, DSC_PROGRAM_NONE, &whole);
    const int16_t k = dsc_program_heads(program, own, dsc_program_rope(program, key, tables, &turn_k), &whole);
    const int16_t y =
        dsc_program_attention(program, q, k, dsc_program_heads(program, v, DSC_PROGRAM_NONE, &whole), &args);
    return linear(r, width > value ? dsc_program_heads(program, y, DSC_PROGRAM_NONE, &narrow) : y, 8);
}

/* Some programs alone have the kinds and ops of convolutional networks, so that others stay what they are. */
static bool has_maps(const program_random *r) { return r->seed % 3 == 1; }

static int64_t activations(const program_random *r) { return has_maps(r) ? DSC_ACTIVATIONS : DSC_RELU6; }

static dsc_activation any_activation(program_random *r)
{
    return (dsc_activation)program_random_draw(r, activations(r));
}

/* Two products, or slices of one; or a value and itself. */
static int16_t gated(program_random *r, int16_t x)
{
    const int64_t width = 4 * (1 + program_random_draw(r, 4)), kind = program_random_draw(r, 4);
    const dsc_activation activation = program_random_draw(r, 2) == 0 ? DSC_SILU : any_activation(r);
    if (kind == 0)
        return dsc_program_gated(&r->source, x, x, activation);
    if (kind == 1) {
        const int16_t both = linear(r, x, 2 * width);
        const int16_t gate = dsc_program_slice(&r->source, both, 0, width);
        return dsc_program_gated(&r->source, gate, dsc_program_slice(&r->source, both, width, width), activation);
    }
    if (kind == 2) {
        const int16_t gate = plain_linear(r, x, width);
        return dsc_program_gated(&r->source, gate, plain_linear(r, x, width), activation);
    }
    const int16_t gate = linear(r, x, width);
    return dsc_program_gated(&r->source, gate, linear(r, x, width), activation);
}

/* Low-rank pairs beside experts' matrices, by the numbers of these. */
typedef struct expert_adapters {
    dsc_lora lora;
    int32_t first[PROGRAM_PARAMS_MAX], ranks[PROGRAM_PARAMS_MAX];
    float scales[PROGRAM_PARAMS_MAX];
} expert_adapters;

/* Declares one for `count` matrices, whose outputs lie one after another in B, from number `weight` on. */
static void add_pair(program_random *r, expert_adapters *out, const dsc_op_grouped *of, int32_t weight, int32_t count)
{
    const int64_t rank = 1 + (int64_t)(r->seed / 3 % 3);
    const dsc_program_param a = { .name = "a", .part = "", .dim_count = 2, .dim = { of->experts * rank, of->in } };
    const dsc_program_param b = { .name = "b",
                                  .part = "",
                                  .dim_count = 2,
                                  .dim = { count * of->out, of->experts * rank } };
    const int32_t number = dsc_program_declare(&r->source, &a);
    dsc_program_declare(&r->source, &b);
    for (int32_t i = weight; i < weight + count; i++)
        out->first[i] = number, out->ranks[i] = (int32_t)rank, out->scales[i] = r->seed % 2 == 0 ? 1 : 0.75f;
    out->lora = (dsc_lora) { .rank = rank, .first = out->first, .ranks = out->ranks, .scales = out->scales };
}

/* Some programs have adapters of experts: no draw of its own, so that the others stay what they are. `biases`: behind
 * each matrix stands its bias. */
static void adapt_experts(program_random *r, expert_adapters *out, int16_t x, int32_t experts, int64_t inner,
                          bool biases)
{
    const int64_t channels = r->source.value[x].columns;
    const int32_t weight = r->source.param_count + (r->seed % 3 == 1 ? 2 : 4), both = biases ? 1 : 2;
    const dsc_op_grouped up = { .in = channels, .out = biases ? 2 * inner : inner, .experts = experts };
    const dsc_op_grouped down = { .in = inner, .out = channels, .experts = experts };
    *out = (expert_adapters) { 0 };
    if (r->seed % 3 == 0)
        return;
    add_pair(r, out, &up, weight, both);
    if (r->seed % 3 == 2)
        add_pair(r, out, &down, weight + 2, 1);
    r->source.adapters = &out->lora;
}

/* In fp32 in every other program, without a draw. */
static int16_t logits_of(program_random *r, int16_t x, int64_t experts)
{
    const dsc_program_linear_args args = { .name = "router",
                                           .shape = { .out = experts, .out_in = program_random_draw(r, 2) == 0 },
                                           .bias = program_random_draw(r, 3) > 0,
                                           .f32_out = r->seed % 2 == 0 };
    const int16_t y = dsc_program_linear(&r->source, x, &args);
    program_random_take_params(r);
    return y;
}

/* Products of biases, and the clamped activation on pairs. */
static int16_t pair_experts(program_random *r, int16_t x, const dsc_moe_rule *rule)
{
    expert_adapters adapters;
    const dsc_program_pair_experts_args args = { .gate_up = "experts.gate_up",
                                                 .gate_up_bias = "experts.gate_up_bias",
                                                 .down = "experts.down",
                                                 .down_bias = "experts.down_bias",
                                                 .rule = *rule,
                                                 .clamp = { 1.702f, 0.125f * (float)(1 + program_random_draw(r, 8)) },
                                                 .inner = 3 + program_random_draw(r, 6) };
    const int16_t logits = logits_of(r, x, rule->experts);
    adapt_experts(r, &adapters, x, rule->experts, args.inner, true);
    return dsc_program_pair_experts(&r->source, x, logits, &args);
}

static int16_t plain_experts(program_random *r, int16_t x, const dsc_program_experts_args *args)
{
    expert_adapters adapters;
    const int16_t logits = logits_of(r, x, args->rule.experts);
    adapt_experts(r, &adapters, x, args->rule.experts, args->inner, false);
    return dsc_program_experts(&r->source, x, logits, args);
}

/* Experts of which some have no row, or a value times one sigmoid for each row. */
static int16_t experts(program_random *r, int16_t x)
{
    if (program_random_draw(r, 4) == 0)
        return dsc_program_gate_rows(&r->source, x, linear(r, x, 1));
    const int32_t groups = (int32_t)(1 + program_random_draw(r, 3)), each = (int32_t)(2 + program_random_draw(r, 2));
    const bool grouped = program_random_draw(r, 3) == 0, bias = program_random_draw(r, 3) == 0;
    const int32_t count = grouped ? groups * each : (int32_t)(1 + program_random_draw(r, 5));
    const dsc_program_experts_args args = {
        .gate = "experts.*.gate",
        .up = "experts.*.up",
        .down = "experts.*.down",
        .rule = { .experts = count,
                  .top_k = (int32_t)(1 + program_random_draw(r, dsc_min_i64(count, 3))),
                  .score = program_random_draw(r, 2) == 0 ? DSC_MOE_SOFTMAX : DSC_MOE_SIGMOID,
                  .renormalize = program_random_draw(r, 2) == 0,
                  .factor = 0.5f * (float)(1 + program_random_draw(r, 4)),
                  .groups = grouped ? groups : 0,
                  .best_groups = grouped ? (int32_t)dsc_min_i64(groups, 2) : 0,
                  .group_pairs = grouped && program_random_draw(r, 2) == 0 },
        .has_bias = bias,
        .bias = bias ? router_bias(r, count) : 0,
        .activation = any_activation(r),
        .inner = 3 + program_random_draw(r, 6)
    };
    const int16_t y = program_random_draw(r, 3) == 0 ? pair_experts(r, x, &args.rule) : plain_experts(r, x, &args);
    r->source.adapters = NULL;
    program_random_take_params(r);
    return y;
}

/* Linear attention: q, k and v of three products, of one, or of one with their heads apart. */
static int16_t delta(program_random *r, int16_t x)
{
    const int64_t heads = 1 + program_random_draw(r, 2), group = 1 + program_random_draw(r, 2);
    const int64_t dk = 2 + program_random_draw(r, 3), dv = 2 + program_random_draw(r, 4),
                  kind = program_random_draw(r, 3);
    const int64_t widths[3] = { dk, dk, group * dv }, apart = 2 * dk + group * dv, columns = heads * apart;
    const int32_t width = (int32_t)(1 + program_random_draw(r, 4));
    int16_t qkv[3] = { DSC_PROGRAM_NONE, DSC_PROGRAM_NONE, DSC_PROGRAM_NONE };
    if (kind != 0)
        qkv[0] = linear(r, x, columns);
    for (int64_t i = 0, at = 0; i < 3 && kind != 1; at += widths[i++])
        qkv[i] = kind == 0
                     ? linear(r, x, heads * widths[i])
                     : dsc_program_slice_heads(&r->source, i == 0 ? qkv[0] : r->source.op[r->source.op_count - 1].in[0],
                                               at, heads, widths[i], apart);
    const int16_t b = linear(r, x, heads * group), a = linear(r, x, heads * group);
    const dsc_program_param weight = { .name = "conv", .part = "", .dim_count = 3, .dim = { columns, 1, width } };
    const dsc_op_conv conv = { width, dsc_program_declare(&r->source, &weight) };
    program_random_take_params(r);
    const dsc_op_delta args = { heads, heads * group, dk, dv, vector(r, heads * group), vector(r, heads * group) };
    const int16_t y = dsc_program_conv(&r->source, qkv, kind == 1 ? 1 : 3, &conv);
    return dsc_program_delta(&r->source, dsc_program_activation(&r->source, y, DSC_SILU), b, a, &args);
}

static int16_t lstm(program_random *r, int16_t x)
{
    const dsc_program_lstm_args args = { .name = "lstm",
                                         .hidden = 2 + program_random_draw(r, 5),
                                         .layers = (int32_t)(1 + program_random_draw(r, 2)),
                                         .bias = program_random_draw(r, 3) > 0 };
    const int16_t y = dsc_program_lstm(&r->source, x, &args);
    program_random_take_params(r);
    return linear(r, y, 8);
}

/* A gate in the columns of another value, which lie apart. */
static int16_t packed(program_random *r, int16_t x)
{
    const int64_t heads = 1 + program_random_draw(r, 3), width = 4;
    const int16_t both = linear(r, x, 2 * heads * width);
    const int16_t first = dsc_program_slice_heads(&r->source, both, 0, heads, width, heads > 1 ? 2 * width : 0);
    const int16_t second = dsc_program_slice_heads(&r->source, both, width, heads, width, heads > 1 ? 2 * width : 0);
    const int16_t gate = dsc_program_pack(&r->source, second);
    return dsc_program_gated(&r->source, gate, norm(r, dsc_program_pack(&r->source, first)), DSC_SIGMOID);
}

/* Places of a batch tensor of their own. */
static int16_t gather(program_random *r, int16_t x, int64_t count, bool mean)
{
    const dsc_op_gather args = { r->gathers, mean ? 1 : count, mean };
    DSC_ASSERT(r->gathers < PROGRAM_GATHERS_MAX);
    r->gathered[r->gathers].count = args.count;
    r->gathered[r->gathers++].rows = r->source.value[x].rows;
    return dsc_program_gather(&r->source, x, &args);
}

/* Rows of a table of positions, which has more than a sample. */
static int16_t embed(program_random *r, int16_t x)
{
    const dsc_program_param table = {
        .name = "positions", .part = "", .dim_count = 2, .dim = { r->source.tokens + 2, r->source.value[x].columns }
    };
    const dsc_op_embed args = { .tokens = DSC_PROGRAM_NONE,
                                .table = DSC_PROGRAM_NONE,
                                .factor = 1,
                                .position = dsc_program_declare(&r->source, &table),
                                .places = DSC_PROGRAM_NONE,
                                .first = 1,
                                .same = r->seed % 8 == 2 };
    program_random_take_params(r);
    return dsc_program_embed(&r->source, x, &args);
}

/* Rows come before those of each sample, or only some of its rows go on; in the end there are as many as before. Seeds
 * choose among ops of one kind, so that other programs stay what they are. */
static int16_t rows(program_random *r, int16_t x)
{
    dsc_program *program = &r->source;
    const int64_t tokens = program->tokens, columns = program->value[x].columns, kind = program_random_draw(r, 3);
    const int64_t count = 1 + program_random_draw(r, tokens), first = program_random_draw(r, tokens - count + 1);
    if (kind == 0 && r->seed % 4 == 2)
        return embed(r, x);
    if (kind == 0)
        return dsc_program_table(program, x, vector(r, tokens * columns));
    if (kind == 1) {
        const int64_t more = 1 + program_random_draw(r, 2);
        const int16_t longer = dsc_program_prepend(program, x, vector(r, more * columns), more);
        return dsc_program_pick(program, linear(r, longer, 8), program_random_draw(r, more + 1), tokens, false);
    }
    const bool mean = program_random_draw(r, 2) == 0;
    const int64_t left = tokens - (mean ? 1 : count);
    const int16_t some =
        r->seed % 2 == 1 ? gather(r, x, count, mean) : dsc_program_pick(program, x, first, count, mean);
    return left > 0 ? dsc_program_prepend(program, some, vector(r, left * columns), left) : some;
}

static void draw_window(program_random *r, const dsc_value *x, dsc_program_conv2d_args *args)
{
    for (int i = 0; i < 2; i++) {
        const int64_t size = i == 0 ? x->height : x->width;
        args->kernel[i] = 1 + program_random_draw(r, 3);
        args->stride[i] = 1 + program_random_draw(r, 2);
        args->dilation[i] = 1 + program_random_draw(r, 2);
        args->padding[i] = program_random_draw(r, 3);
        if (size + 2 * args->padding[i] <= args->dilation[i] * (args->kernel[i] - 1))
            args->padding[i] = args->dilation[i] * args->kernel[i];
    }
}

/* A convolution of a picture, whose rows then become as many as before. */
static int16_t convolution(program_random *r, int16_t x)
{
    dsc_program *program = &r->source;
    const dsc_value of = program->value[x];
    const int64_t kind = program_random_draw(r, 3), groups = kind == 0 ? 1 : kind == 1 ? of.columns : 2;
    if (of.height == 0 || of.columns % groups != 0)
        return linear(r, x, 8);
    dsc_program_conv2d_args args = { .name = "conv2d",
                                     .out = (kind == 1 ? groups : HEAD) * (1 + program_random_draw(r, 2)),
                                     .groups = groups,
                                     .bias = program_random_draw(r, 2) == 0 };
    draw_window(r, &of, &args);
    const int16_t y = dsc_program_conv2d(program, x, &args);
    program_random_take_params(r);
    const int64_t left = program->tokens - program->value[y].rows, columns = args.out;
    if (left < 0)
        return dsc_program_pick(program, y, program_random_draw(r, 1 - left), program->tokens, false);
    return left > 0 ? dsc_program_prepend(program, y, vector(r, left * columns), left) : y;
}

/* A batch norm, alone or with what is fused into it. */
static int16_t batch_norm(program_random *r, int16_t x)
{
    static const dsc_activation kinds[] = { DSC_RELU, DSC_RELU6, DSC_SILU, DSC_HARD_SWISH, DSC_SIGMOID };
    const dsc_program_batch_norm_args args = { .name = "bn", .eps = 0.1, .momentum = 0.1 };
    const int64_t kind = program_random_draw(r, 4);
    int16_t y = dsc_program_batch_norm(&r->source, linear(r, x, 8), &args);
    program_random_take_params(r);
    if (kind >= 2)
        y = dsc_program_add(&r->source, kind == 2 ? y : linear(r, x, 8), kind == 2 ? linear(r, x, 8) : y);
    return kind == 1 || kind == 3
               ? dsc_program_activation(&r->source, y, kinds[program_random_draw(r, (int64_t)DSC_COUNT(kinds))])
               : y;
}

/* Windows of a value, whose rows become one picture or two. In the end there are as many rows as before. */
static int16_t pool(program_random *r, int16_t x)
{
    dsc_program *program = &r->source;
    dsc_value *in = &program->value[x];
    const int64_t rows = in->rows, kind = program_random_draw(r, 4);
    const int64_t pixels = rows % 2 == 0 && r->seed % 2 == 0 ? rows / 2 : rows;
    in->height = pixels % 2 == 0 ? 2 : 1, in->width = pixels / in->height;
    const dsc_op_pool same = { .kernel = 3, .stride = 1, .padding = 1 }, all = { .kernel = 1, .stride = 2 };
    if (kind == 0)
        return dsc_program_max_pool(program, x, &same);
    if (kind == 1)
        return dsc_program_average_pool(program, x, &same);
    const int16_t y = kind == 2 ? dsc_program_max_pool(program, x, &all)
                                : dsc_program_mean_pool(program, x, 1, 1 + program_random_draw(r, rows));
    const int64_t left = rows - program->value[y].rows;
    if (left < 0)
        return dsc_program_pick(program, y, 0, rows, false);
    return left > 0 ? dsc_program_prepend(program, y, vector(r, left * program->value[y].columns), left) : y;
}

/* Ops of convolutional networks beside convolutions. */
static int16_t maps(program_random *r, int16_t x)
{
    dsc_program *program = &r->source;
    const int64_t tokens = program->tokens, kind = program_random_draw(r, 5);
    if (kind <= 1)
        return batch_norm(r, x);
    if (kind == 2)
        return pool(r, x);
    if (kind == 3)
        return dsc_program_drop_path(program, x, 0.5, (uint32_t)r->drawn);
    const int16_t mean = dsc_program_pick(program, x, 0, tokens, true);
    const int16_t gate = dsc_program_activation(program, linear(r, mean, program->value[x].columns),
                                                program_random_draw(r, 2) == 0 ? DSC_SIGMOID : DSC_HARD_SIGMOID);
    return dsc_program_scale_rows(program, x, gate);
}

static int16_t same_shape(program_random *r, const int16_t *values, int count, int16_t x)
{
    for (int tries = 0; tries < 4; tries++) {
        const int16_t y = values[program_random_draw(r, count)];
        if (r->source.value[y].columns == r->source.value[x].columns)
            return y;
    }
    return linear(r, x, r->source.value[x].columns);
}

static int16_t random_op(program_random *r, const int16_t *values, int count)
{
    const int16_t x = values[program_random_draw(r, program_random_draw(r, 2) == 0 ? count : dsc_min_i64(count, 3))];
    if (has_maps(r) && program_random_draw(r, 3) == 0)
        return maps(r, x);
    switch (program_random_draw(r, 20)) {
    case 0:
    case 1:
        return linear(r, x, 4 * (1 + program_random_draw(r, 4)));
    case 2:
        return norm(r, x);
    case 3:
    case 15:
        return attention(r, x);
    case 4:
    case 16:
    case 17:
        return gated(r, x);
    case 5:
        return r->seed % 4 == 1 ? dsc_program_tanh(&r->source, x)
                                : dsc_program_activation(&r->source, x, any_activation(r));
    case 6: {
        const int16_t fc = linear(r, x, 8); /* the ops that are fused most */
        const uint64_t kinds = (uint64_t)activations(r), kind = (r->seed + (uint64_t)r->source.op_count) % (2 * kinds);
        return linear(r, dsc_program_activation(&r->source, fc, kind < kinds ? (dsc_activation)kind : DSC_GELU_TANH),
                      8);
    }
    case 7:
        if (r->seed % 4 == 3)
            return convolution(r, x);
        if (r->seed % 4 == 2)
            return dsc_program_scale_columns(&r->source, x, vector(r, r->source.value[x].columns));
        return dsc_program_scale(&r->source, x, 0.25 * (double)(1 + program_random_draw(r, 8)));
    case 8:
        return dsc_program_dropout(&r->source, x, 0.25, (uint32_t)r->drawn);
    case 9: {
        const int16_t up = same_shape(r, values, count, x);
        return dsc_program_gated(&r->source, x, up, any_activation(r));
    }
    case 10:
        return experts(r, x);
    case 11:
        return r->seed % 4 == 1 ? lstm(r, x) : delta(r, x);
    case 12:
        return r->seed % 2 == 0 ? packed(r, x) : convolution(r, x);
    case 13:
        return latent_attention(r, x);
    case 14:
        return rows(r, x);
    default: {
        const int16_t sum = dsc_program_add(&r->source, x, same_shape(r, values, count, x));
        return program_random_draw(r, 2) == 0 ? norm(r, sum) : sum;
    }
    }
}

static bool is_read(const dsc_program *program, int16_t value)
{
    bool read = false;
    for (int16_t i = 0; i < program->op_count; i++)
        for (int j = 0; j < DSC_OP_INPUTS; j++)
            read |= program->op[i].in[j] == value;
    return read;
}

/* The output is a sum over all values that nothing reads. */
static void end(program_random *r, const int16_t *values, int count, int64_t columns)
{
    int16_t sum = DSC_PROGRAM_NONE;
    for (int i = 0; i < count; i++) {
        if (is_read(&r->source, values[i]))
            continue;
        const int16_t y = r->source.value[values[i]].columns == columns ? values[i] : linear(r, values[i], columns);
        sum = sum == DSC_PROGRAM_NONE ? y : dsc_program_add(&r->source, sum, y);
    }
    dsc_program_end(&r->source, sum);
}

void program_random_make(program_random *r, uint64_t seed)
{
    *r = (program_random) { .seed = seed };
    const int64_t tokens = 1 + program_random_draw(r, 7), columns = 4 * (1 + program_random_draw(r, 3));
    const int64_t most = 3 + program_random_draw(r, 20);
    int16_t values[64];
    int count = 0;
    r->batch = 1 + program_random_draw(r, 3);
    r->rope = (dsc_rope) { .theta = 100, .neighbours = program_random_draw(r, 2) == 0 };
    dsc_rope_set(&r->rope, program_random_draw(r, 2) == 0 ? HEAD : HEAD - 2);
    dsc_program_begin(&r->source, tokens, columns, DSC_PROGRAM_NONE);
    /* The tokens are a picture too, in the tallest grid of at most two rows; or two of one row each. */
    r->source.value[r->source.input].height = tokens % 2 == 0 && seed % 5 != 3 ? 2 : 1;
    r->source.value[r->source.input].width = tokens % 2 == 0 ? tokens / 2 : tokens;
    values[count++] = r->source.input;
    while (r->source.op_count < most) {
        const int16_t value = random_op(r, values, count);
        DSC_ASSERT(value >= 0);
        memmove(values + 1, values, (size_t)count++ * sizeof *values); /* the newest first */
        values[0] = value;
    }
    end(r, values, count, columns);
    DSC_ASSERT(r->source.status == DSC_OK);
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

static double real(program_random *r) { return (double)(program_random_draw(r, 2001) - 1000) / 1024; }

static bool is_norm_weight(const dsc_program *program, int param)
{
    bool is = false;
    for (int16_t i = 0; i < program->op_count; i++)
        is |= (program->op[i].kind == DSC_OP_NORM && program->op[i].norm.weight == param) ||
              (program->op[i].kind == DSC_OP_BATCH_NORM && program->op[i].batch_norm.weight == param);
    return is;
}

void program_random_fill(program_random *r, program_reference *reference)
{
    for (int i = 0; i < r->param_count; i++)
        for (int64_t j = 0; j < r->param_elements[i]; j++)
            reference->param[i][j] = 0.5 * real(r) + (is_norm_weight(&r->source, i) ? 1 : 0);
    for (int64_t i = 0; i < program_reference_elements(reference, r->source.input); i++)
        reference->value[r->source.input][i] = real(r);
    for (int64_t i = 0; i < program_reference_elements(reference, r->source.output); i++)
        reference->d_value[r->source.output][i] = real(r);
    reference->seed = r->seed;
    reference->training = true;
}

/* ---- runs -------------------------------------------------------------------------------------------------------- */

enum { ZONE = 256 };
typedef struct memory {
    char *at;
    int64_t bytes;
} memory;

static memory take(int64_t bytes)
{
    memory m = { aligned_alloc(256, (size_t)dsc_align_up(bytes + 2 * ZONE, 256)), bytes };
    DSC_ASSERT(m.at != NULL);
    memset(m.at, 0xA5, (size_t)dsc_align_up(bytes + 2 * ZONE, 256));
    m.at += ZONE;
    memset(m.at, 0xff, (size_t)bytes); /* NaN */
    return m;
}

static void release(memory *m)
{
    for (int i = 0; i < ZONE; i++) {
        DSC_ASSERT((unsigned char)m->at[-1 - i] == 0xA5);
        DSC_ASSERT((unsigned char)m->at[m->bytes + i] == 0xA5);
    }
    free(m->at - ZONE);
}

static void store(memory *m, const double *from, int64_t count, dsc_dtype dtype)
{
    for (int64_t i = 0; i < count; i++) {
        const uint16_t half = dsc_bf16_from_f32((float)from[i]);
        const float single = (float)from[i];
        if (dtype == DSC_F32)
            memcpy(m->at + 4 * i, &single, 4);
        else
            memcpy(m->at + 2 * i, &half, 2);
    }
}

static float *load(const memory *m, int64_t count, dsc_dtype dtype)
{
    float *out = malloc((size_t)count * sizeof *out);
    DSC_ASSERT(out != NULL);
    for (int64_t i = 0; i < count; i++) {
        uint16_t half;
        if (dtype == DSC_F32)
            memcpy(&out[i], m->at + 4 * i, 4);
        else {
            memcpy(&half, m->at + 2 * i, 2);
            out[i] = dsc_f32_from_bf16(half);
        }
    }
    return out;
}

typedef struct session {
    dsc_alloc *alloc;
    dsc_device *device;
    dsc_stream *stream;
} session;

static void must(dsc_status status, const dsc_error *err)
{
    if (status != DSC_OK)
        fprintf(stderr, "program_random: %s\n", err->message);
    DSC_ASSERT(status == DSC_OK);
}

static session begin_session(void)
{
    session s = { 0 };
    dsc_error err = DSC_ERROR_INIT;
    must(dsc_alloc_open(&s.alloc, &err), &err);
    const dsc_device_options options = { .alloc = s.alloc, .threads = 1, .caps = 0xffffffffu };
    must(dsc_device_open(&dsc_device_cpu, &s.device, &options, &err), &err);
    must(dsc_stream_open(s.device, DSC_STREAM_COMPUTE, "compute", &s.stream, &err), &err);
    return s;
}

typedef struct buffers {
    memory param[PROGRAM_PARAMS_MAX], grad[PROGRAM_PARAMS_MAX];
    const void *params[PROGRAM_PARAMS_MAX];
    float *grads[PROGRAM_PARAMS_MAX];
    memory in, out, d_out, d_in, saved, rebuilt, repeated, forward_scratch, backward_scratch;
} buffers;

enum { PLACES_MAX = 64 };

static void make_places(const program_random *r, int32_t places[PROGRAM_GATHERS_MAX][PLACES_MAX])
{
    for (int32_t i = 0; i < r->gathers; i++) {
        const int64_t count = r->gathered[i].count;
        DSC_ASSERT(r->batch * count <= PLACES_MAX);
        for (int64_t n = 0; n < r->batch * count; n++)
            places[i][n] = (int32_t)program_reference_place(n / count, n % count, count, r->gathered[i].rows);
    }
}

/* Values of routers' buffers; those of others are not read. */
typedef struct router_biases {
    float value[DSC_MODULE_BUFFERS_MAX][EXPERTS_MAX];
    const float *buffer[DSC_MODULE_BUFFERS_MAX];
} router_biases;

static void make_biases(router_biases *out)
{
    for (int32_t b = 0; b < DSC_MODULE_BUFFERS_MAX; b++) {
        for (int32_t e = 0; e < EXPERTS_MAX; e++)
            out->value[b][e] = program_reference_bias(b, e);
        out->buffer[b] = out->value[b];
    }
}

static void call(const program_random *r, const dsc_program *program, dsc_pass pass, buffers *b, program_mode mode,
                 const session *s, bool save)
{
    dsc_error err = DSC_ERROR_INIT;
    const bool backward = pass == DSC_PASS_BACKWARD;
    memory *scratch = backward ? &b->backward_scratch : &b->forward_scratch;
    int32_t places[PROGRAM_GATHERS_MAX][PLACES_MAX];
    const void *batch_data[PROGRAM_GATHERS_MAX];
    router_biases biases;
    make_places(r, places);
    make_biases(&biases);
    for (int i = 0; i < PROGRAM_GATHERS_MAX; i++)
        batch_data[i] = places[i];
    dsc_module_ctx ctx = { .struct_bytes = sizeof ctx,
                           .stream = s->stream,
                           .dtype = mode.dtype,
                           .batch = r->batch,
                           .save = save,
                           .rng_seed = r->seed,
                           .param = b->params,
                           .grad = b->grads,
                           .batch_data = batch_data,
                           .in = b->in.at,
                           .out = backward ? NULL : b->out.at,
                           .d_out = backward ? b->d_out.at : NULL,
                           .d_in = !backward       ? NULL
                                   : mode.in_place ? b->d_out.at
                                                   : b->d_in.at,
                           .saved = b->saved.at,
                           .scratch = scratch->at,
                           .rebuilt = b->rebuilt.at,
                           .repeated = mode.keep && save ? b->repeated.at : NULL,
                           .training = !mode.evaluate,
                           .buffer = mode.buffer != NULL ? mode.buffer : biases.buffer,
                           .statistic = pass == DSC_PASS_FORWARD && mode.recompute && save ? NULL : mode.statistic,
                           .values = mode.values };
    memset(scratch->at, 0xff, (size_t)scratch->bytes);
    must(dsc_program_run(program, pass, NULL, &ctx, &err), &err);
}

static program_result *results(const program_random *r, const buffers *b, program_mode mode, int64_t elements,
                               int64_t in_elements)
{
    program_result *result = calloc(1, sizeof *result);
    DSC_ASSERT(result != NULL);
    result->out_elements = elements;
    result->out = load(&b->out, elements, mode.dtype);
    result->d_in = load(mode.in_place ? &b->d_out : &b->d_in, in_elements, mode.dtype);
    for (int i = 0; i < r->param_count; i++)
        result->d_param[i] = load(&b->grad[i], r->param_elements[i], DSC_F32);
    return result;
}

static void run_passes(const program_random *r, const dsc_program *compiled, buffers *b, program_mode mode,
                       const session *s)
{
    call(r, compiled, DSC_PASS_FORWARD, b, mode, s, !mode.recompute);
    if (mode.recompute)
        call(r, compiled, DSC_PASS_FORWARD, b, mode, s, true);
    memory kept_out = take(b->out.bytes);
    memcpy(kept_out.at, b->out.at, (size_t)b->out.bytes);
    if (mode.rebuild) {
        memset(b->rebuilt.at, 0xff, (size_t)b->rebuilt.bytes);
        call(r, compiled, DSC_PASS_REBUILD, b, mode, s, true);
    }
    memset(b->out.at, 0xff, (size_t)b->out.bytes);
    call(r, compiled, DSC_PASS_BACKWARD, b, mode, s, true);
    memcpy(b->out.at, kept_out.at, (size_t)b->out.bytes);
    release(&kept_out);
}

program_result *program_random_run(const program_random *r, const dsc_program *compiled,
                                   const program_reference *reference, program_mode mode)
{
    const int64_t element = (int64_t)dsc_dtype_bytes(mode.dtype);
    const int64_t in = program_reference_elements(reference, r->source.input);
    const dsc_module module = { .struct_bytes = sizeof module, .params = r->spec, .param_count = r->param_count };
    session s = begin_session();
    static buffers b;
    dsc_error err = DSC_ERROR_INIT;
    dsc_module_plan plan;
    must(dsc_program_plan(compiled, &module, NULL, r->batch, mode.dtype, NULL, &plan, &err), &err);
    b.in = take(in * element), b.out = take(plan.out_elements * element);
    b.d_out = take(dsc_max_i64(in, plan.out_elements) * element), b.d_in = take(in * element);
    b.saved = take(plan.saved_bytes), b.rebuilt = take(plan.rebuilt_bytes), b.repeated = take(plan.repeated_bytes);
    b.forward_scratch = take(plan.forward_scratch_bytes), b.backward_scratch = take(plan.backward_scratch_bytes);
    for (int i = 0; i < r->param_count; i++) {
        b.param[i] = take(r->param_elements[i] * element), b.grad[i] = take(r->param_elements[i] * 4);
        store(&b.param[i], reference->param[i], r->param_elements[i], mode.dtype);
        b.params[i] = b.param[i].at;
        b.grads[i] = r->spec[i].trainable ? (float *)(void *)b.grad[i].at : NULL;
    }
    store(&b.in, reference->value[r->source.input], in, mode.dtype);
    store(&b.d_out, reference->d_value[r->source.output], plan.out_elements, mode.dtype);
    run_passes(r, compiled, &b, mode, &s);
    program_result *result = results(r, &b, mode, plan.out_elements, in);
    memory *all[] = {
        &b.in, &b.out, &b.d_out, &b.d_in, &b.saved, &b.rebuilt, &b.repeated, &b.forward_scratch, &b.backward_scratch
    };
    for (size_t i = 0; i < DSC_COUNT(all); i++)
        release(all[i]);
    for (int i = 0; i < r->param_count; i++) {
        release(&b.param[i]);
        release(&b.grad[i]);
    }
    dsc_stream_close(&s.stream);
    dsc_device_close(&s.device);
    dsc_alloc_close(&s.alloc);
    return result;
}

void program_result_free(program_result *result)
{
    free(result->out);
    free(result->d_in);
    for (int i = 0; i < PROGRAM_PARAMS_MAX; i++)
        free(result->d_param[i]);
    free(result);
}

/* ---- comparison -------------------------------------------------------------------------------------------------- */

static bool equal(const float *a, const float *b, int64_t count)
{
    return memcmp(a, b, (size_t)count * sizeof *a) == 0;
}

bool program_result_equals(const program_random *r, const program_result *a, const program_result *b)
{
    bool same = a->out_elements == b->out_elements && equal(a->out, b->out, a->out_elements) &&
                equal(a->d_in, b->d_in, a->out_elements);
    for (int i = 0; i < r->param_count; i++)
        same &= equal(a->d_param[i], b->d_param[i], r->param_elements[i]);
    return same;
}

static double error_of(const float *got, const double *expected, int64_t count)
{
    double squares = 0, most = 0;
    for (int64_t i = 0; i < count; i++)
        squares += expected[i] * expected[i];
    for (int64_t i = 0; i < count; i++) {
        const double error = fabs((double)got[i] - expected[i]);
        most = error <= most ? most : error; /* NaN too */
    }
    const double unit = sqrt(squares / (double)count) + 1e-3;
    return isnan(most) ? INFINITY : most / unit;
}

double program_result_error(const program_random *r, const program_result *result, const program_reference *reference)
{
    double most = error_of(result->out, reference->value[r->source.output], result->out_elements);
    most = fmax(most, error_of(result->d_in, reference->d_value[r->source.input],
                               program_reference_elements(reference, r->source.input)));
    for (int i = 0; i < r->param_count; i++)
        if (r->spec[i].trainable)
            most = fmax(most, error_of(result->d_param[i], reference->d_param[i], r->param_elements[i]));
    return most;
}
