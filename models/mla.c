/* mla.c - see mla.h. SPDX-License-Identifier: Apache-2.0 */
#include "models/mla.h"

typedef struct linear_kind {
    int64_t out;
    bool bias, whole, ends; /* whole: on each rank; ends: the product at the end of the part */
} linear_kind;

static int16_t linear(const dsc_block *block, int16_t x, const char *name, linear_kind kind)
{
    const dsc_program_linear_args args = { .name = name,
                                           .shape = { .out = kind.out, .out_in = block->out_in },
                                           .bias = kind.bias,
                                           .out_split = !kind.ends,
                                           .whole = kind.whole,
                                           .std = block->std };
    return dsc_program_linear(block->program, x, &args);
}

static int16_t norm(const dsc_block *block, int16_t x, const char *name, const dsc_mla *part)
{
    dsc_op_norm norm = block->norm;
    norm.groups = 1, norm.eps = part->latent_eps;
    return dsc_program_norm(block->program, x, name, &norm);
}

/* Heads of `width` columns of a value that has heads of `from`. */
static int16_t resize(const dsc_block *block, int16_t x, int64_t heads, int64_t from, int64_t width)
{
    const dsc_op_heads args = { heads, width };
    return from == width ? x : dsc_program_heads(block->program, x, DSC_PROGRAM_NONE, &args);
}

static int16_t make_q(const dsc_block *block, int16_t x, const dsc_mla *part)
{
    const linear_kind latent = { .out = part->q_latent, .bias = part->latent_bias, .whole = true };
    const linear_kind heads = { .out = part->heads * (part->plain + part->turned) };
    if (part->q_latent == 0)
        return linear(block, x, "self_attn.q_proj", heads);
    const int16_t c =
        norm(block, linear(block, x, "self_attn.q_a_proj", latent), "self_attn.q_a_layernorm", part);
    return linear(block, c, "self_attn.q_b_proj", heads);
}

/* The latent of keys and values, by itself, and the turned part of the key. */
static int16_t make_latent(const dsc_block *block, int16_t x, const dsc_mla *part, int16_t *key)
{
    dsc_program *program = block->program;
    const linear_kind kind = { .out = part->kv_latent + part->turned, .bias = part->latent_bias, .whole = true };
    const dsc_op_heads one = { 1, part->kv_latent };
    const int16_t both = linear(block, x, "self_attn.kv_a_proj_with_mqa", kind);
    const int16_t latent = dsc_program_slice(program, both, 0, part->kv_latent);
    *key = dsc_program_slice(program, both, part->kv_latent, part->turned);
    return norm(block, dsc_program_heads(program, latent, DSC_PROGRAM_NONE, &one), "self_attn.kv_a_layernorm", part);
}

int16_t dsc_mla_attend(const dsc_block *block, int16_t x, const dsc_mla *part)
{
    dsc_program *program = block->program;
    const int64_t heads = part->heads, size = part->plain + part->turned, each = part->plain + part->value;
    const int64_t width = size > part->value ? size : part->value;
    const dsc_op_heads whole = { heads, width };
    const dsc_op_rope turn_q = { part->rope, heads, size, part->plain };
    const dsc_op_rope turn_k = { part->rope, 1, part->turned, 0 };
    int16_t key;
    int16_t q = make_q(block, x, part);
    const int16_t latent = make_latent(block, x, part, &key);
    const int16_t kv = linear(block, latent, "self_attn.kv_b_proj", (linear_kind) { .out = heads * each });
    const int16_t own = dsc_program_slice_heads(program, kv, 0, heads, part->plain, each);
    const int16_t value = dsc_program_slice_heads(program, kv, part->plain, heads, part->value, each);
    const dsc_program_tables tables = dsc_program_rope_tables(program, part->rope);
    q = resize(block, dsc_program_rope(program, q, tables, &turn_q), heads, size, width);
    const int16_t k = dsc_program_heads(program, own, dsc_program_rope(program, key, tables, &turn_k), &whole);
    const int16_t v = dsc_program_heads(program, value, DSC_PROGRAM_NONE, &whole);
    const dsc_op_attention op = { .heads = heads, .kv_heads = heads, .head_size = width, .scale = part->scale };
    const int16_t y = resize(block, dsc_program_attention(program, q, k, v, &op), heads, width, part->value);
    const linear_kind out = { .out = program->status == DSC_OK ? program->value[x].columns : 1,
                              .bias = part->out_bias,
                              .ends = true };
    return linear(block, y, "self_attn.o_proj", out);
}
