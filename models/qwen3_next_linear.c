/* qwen3_next_linear.c - linear attention of the families of qwen3_next.h. SPDX-License-Identifier: Apache-2.0 */
#include "models/qwen3_next.h"

/* Outputs of a layer's products: parts of q, k and v, the gate z of the output, and b and a of the rule's gates. */
typedef struct projected {
    int16_t qkv[3], z, b, a;
    int32_t count; /* of qkv */
} projected;

static int16_t linear(const dsc_block *block, int16_t x, const char *name, int64_t out)
{
    const dsc_program_linear_args args = {
        .name = name, .shape = { .out = out, .out_in = true }, .whole = true, .std = block->std
    };
    return dsc_program_linear(block->program, x, &args);
}

/* One product for q, k, v and z, and one for b and a: for each head of keys, first its own outputs, then those of its
 * heads of values. */
static projected project_together(const dsc_block *block, const dsc_op_delta *of, int16_t x)
{
    dsc_program *program = block->program;
    const int64_t heads = of->key_heads, group = of->value_heads / heads, dk = of->key_size;
    const int64_t values = group * of->value_size, apart = 2 * dk + 2 * values;
    const int16_t all = linear(block, x, "linear_attn.in_proj_qkvz", heads * apart);
    const int16_t gates = linear(block, x, "linear_attn.in_proj_ba", 2 * of->value_heads);
    projected y = { .count = 3 };
    y.qkv[0] = dsc_program_slice_heads(program, all, 0, heads, dk, apart);
    y.qkv[1] = dsc_program_slice_heads(program, all, dk, heads, dk, apart);
    y.qkv[2] = dsc_program_slice_heads(program, all, 2 * dk, heads, values, apart);
    y.z = dsc_program_pack(program, dsc_program_slice_heads(program, all, 2 * dk + values, heads, values, apart));
    y.b = dsc_program_pack(program, dsc_program_slice_heads(program, gates, 0, heads, group, 2 * group));
    y.a = dsc_program_pack(program, dsc_program_slice_heads(program, gates, group, heads, group, 2 * group));
    return y;
}

static projected project_apart(const dsc_block *block, const dsc_op_delta *of, int16_t x)
{
    const int64_t values = of->value_heads * of->value_size;
    projected y = { .count = 1 };
    y.qkv[0] = linear(block, x, "linear_attn.in_proj_qkv", 2 * of->key_heads * of->key_size + values);
    y.z = linear(block, x, "linear_attn.in_proj_z", values);
    y.b = linear(block, x, "linear_attn.in_proj_b", of->value_heads);
    y.a = linear(block, x, "linear_attn.in_proj_a", of->value_heads);
    return y;
}

static int32_t declare_conv(const dsc_block *block, const dsc_qwen3_next_config *config)
{
    const dsc_op_delta *of = &config->delta;
    const int64_t channels = 2 * of->key_heads * of->key_size + of->value_heads * of->value_size;
    const dsc_program_param param = { .name = "linear_attn.conv1d",
                                      .part = "weight",
                                      .dim_count = 3,
                                      .dim = { channels, 1, config->conv_width },
                                      .init = DSC_INIT_NORMAL,
                                      .std = block->std,
                                      .split = DSC_SPLIT_NONE };
    return dsc_program_declare(block->program, &param);
}

/* The rule's output is normalised head by head, and goes through silu(z). */
int16_t dsc_qwen3_next_linear(const dsc_block *block, const dsc_qwen3_next_config *config, int16_t x)
{
    dsc_program *program = block->program;
    dsc_op_delta delta = config->delta;
    dsc_op_norm norm = { .kind = DSC_NORM_RMS, .eps = block->norm.eps, .groups = delta.value_heads };
    const projected in =
        config->traits->together ? project_together(block, &delta, x) : project_apart(block, &delta, x);
    const dsc_op_conv conv = { config->conv_width, declare_conv(block, config) };
    delta.dt_bias = dsc_block_vector(block, "linear_attn.dt_bias", delta.value_heads, DSC_INIT_ONES);
    delta.a_log = dsc_block_vector(block, "linear_attn.A_log", delta.value_heads, DSC_INIT_ZEROS);
    int16_t y = dsc_program_conv(program, in.qkv, in.count, &conv);
    y = dsc_program_activation(program, y, config->moe.decoder.activation);
    y = dsc_program_delta(program, y, in.b, in.a, &delta);
    y = dsc_program_norm(program, y, "linear_attn.norm", &norm);
    y = dsc_program_gated(program, in.z, y, DSC_SILU);
    return linear(block, y, "linear_attn.out_proj", config->moe.decoder.lm.channels);
}
