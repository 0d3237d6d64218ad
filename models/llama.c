/* llama.c - the families of Llama's block: their names, what tells them apart, and a block's parameters.
 * SPDX-License-Identifier: Apache-2.0 */
#include "models/llama.h"

#include <math.h>
#include <string.h>

static const dsc_llama_config *config_of(const dsc_lm_config *base)
{
    return (const dsc_llama_config *)(const void *)base;
}

static bool has_param(const dsc_llama_config *config, int32_t kind)
{
    switch (kind) {
    case DSC_LLAMA_Q_B:
    case DSC_LLAMA_K_B:
    case DSC_LLAMA_V_B: return config->qkv_bias;
    case DSC_LLAMA_O_B: return config->out_bias;
    case DSC_LLAMA_Q_NORM:
    case DSC_LLAMA_K_NORM: return config->traits->head_norm;
    case DSC_LLAMA_GATE_B:
    case DSC_LLAMA_UP_B:
    case DSC_LLAMA_DOWN_B: return config->mlp_bias;
    default: return true;
    }
}

int32_t dsc_llama_param(const dsc_llama_config *config, int32_t kind)
{
    int32_t before = 0;
    for (int32_t i = 0; i < kind; i++)
        before += has_param(config, i);
    return kind == DSC_LLAMA_PARAM_KINDS || has_param(config, kind) ? before : -1;
}

static int32_t block_params(const dsc_lm_config *base)
{
    return dsc_llama_param(config_of(base), DSC_LLAMA_PARAM_KINDS);
}

/* In the order of the enum in llama.h. Every product starts with the same spread, as in Hugging Face's code. */
static void add_block(dsc_lm *lm, const dsc_lm_config *base)
{
    const dsc_llama_config *config = config_of(base);
    const int64_t channels = base->channels, inner = config->inner;
    const int64_t q = config->heads * config->head_size, kv = config->kv_heads * config->head_size;
    const dsc_lm_linear attention[] = {
        { "self_attn.q_proj", { channels, q, true }, config->qkv_bias, true, base->init_std },
        { "self_attn.k_proj", { channels, kv, true }, config->qkv_bias, true, base->init_std },
        { "self_attn.v_proj", { channels, kv, true }, config->qkv_bias, true, base->init_std },
        { "self_attn.o_proj", { q, channels, true }, config->out_bias, false, base->init_std },
    };
    const dsc_lm_linear mlp[] = {
        { "mlp.gate_proj", { channels, inner, true }, config->mlp_bias, true, base->init_std },
        { "mlp.up_proj", { channels, inner, true }, config->mlp_bias, true, base->init_std },
        { "mlp.down_proj", { inner, channels, true }, config->mlp_bias, false, base->init_std },
    };
    dsc_lm_add_norm(lm, "input_layernorm", DSC_NORM_RMS, channels);
    for (size_t i = 0; i < DSC_COUNT(attention); i++)
        dsc_lm_add_linear(lm, &attention[i]);
    if (config->traits->head_norm) {
        dsc_lm_add_norm(lm, "self_attn.q_norm", DSC_NORM_RMS, config->head_size);
        dsc_lm_add_norm(lm, "self_attn.k_norm", DSC_NORM_RMS, config->head_size);
    }
    dsc_lm_add_norm(lm, "post_attention_layernorm", DSC_NORM_RMS, channels);
    for (size_t i = 0; i < DSC_COUNT(mlp); i++)
        dsc_lm_add_linear(lm, &mlp[i]);
}

static int16_t emit_norm(dsc_program *program, const dsc_llama_config *config, int16_t x, const char *name,
                         int32_t kind, int64_t groups)
{
    const dsc_op_norm norm = {
        .kind = DSC_NORM_RMS, .groups = groups, .eps = config->lm.norm_eps, .weight = dsc_llama_param(config, kind)
    };
    return dsc_program_norm(program, x, name, &norm);
}

static int16_t emit_linear(dsc_program *program, const dsc_llama_config *config, int16_t x, const char *name,
                           int32_t kind, int64_t out)
{
    const int64_t in = program->status == DSC_OK ? program->value[x].columns : 0;
    const dsc_program_linear_args linear = { .name = name,
                                             .shape = { in, out, true },
                                             .weight = dsc_llama_param(config, kind),
                                             .bias = dsc_llama_param(config, kind + 1) };
    return dsc_program_linear(program, x, &linear);
}

/* From what a product gave to what the attention reads. */
static int16_t emit_heads(dsc_program *program, const dsc_llama_config *config, int16_t x, int32_t norm, int64_t heads,
                          dsc_program_tables tables)
{
    const dsc_op_rope rope = { .rope = &config->rope, .heads = heads, .head_size = config->head_size };
    if (config->traits->head_norm)
        x = emit_norm(program, config, x, norm == DSC_LLAMA_Q_NORM ? "q_norm" : "k_norm", norm, heads);
    return dsc_program_rope(program, x, tables, &rope);
}

/* x + attention(norm(x)), then x + down(silu(gate(norm(x))) * up(norm(x))). */
static void emit_block(dsc_program *program, const dsc_lm_config *base, int64_t layer)
{
    const dsc_llama_config *config = config_of(base);
    const int64_t q_size = config->heads * config->head_size, kv_size = config->kv_heads * config->head_size;
    const dsc_op_attention attention = { .heads = config->heads,
                                         .kv_heads = config->kv_heads,
                                         .head_size = config->head_size,
                                         .scale = 1 / sqrt((double)config->head_size),
                                         .window = base->full[layer] ? 0 : base->window };
    const int16_t x = program->input, normed = emit_norm(program, config, x, "norm1", DSC_LLAMA_NORM1, 1);
    int16_t q = emit_linear(program, config, normed, "q_proj", DSC_LLAMA_Q_W, q_size);
    int16_t k = emit_linear(program, config, normed, "k_proj", DSC_LLAMA_K_W, kv_size);
    const int16_t v = emit_linear(program, config, normed, "v_proj", DSC_LLAMA_V_W, kv_size);
    const dsc_program_tables tables = dsc_program_rope_tables(program, &config->rope);
    q = emit_heads(program, config, q, DSC_LLAMA_Q_NORM, config->heads, tables);
    k = emit_heads(program, config, k, DSC_LLAMA_K_NORM, config->kv_heads, tables);
    const int16_t heads = dsc_program_attention(program, q, k, v, &attention);
    const int16_t middle =
        dsc_program_add(program, emit_linear(program, config, heads, "o_proj", DSC_LLAMA_O_W, base->channels), x);
    const int16_t normed2 = emit_norm(program, config, middle, "norm2", DSC_LLAMA_NORM2, 1);
    const int16_t gate = emit_linear(program, config, normed2, "gate_proj", DSC_LLAMA_GATE_W, config->inner);
    const int16_t up = emit_linear(program, config, normed2, "up_proj", DSC_LLAMA_UP_W, config->inner);
    const int16_t act = dsc_program_gated(program, gate, up);
    const int16_t down = emit_linear(program, config, act, "down_proj", DSC_LLAMA_DOWN_W, base->channels);
    dsc_program_end(program, dsc_program_add(program, down, middle));
}

static const char *const lora_layers[] = { "q_proj", "v_proj", NULL };

/* Frequencies, which older versions saved. */
static bool may_ignore(const char *part)
{
    return strcmp(part, "self_attn.rotary_emb.inv_freq") == 0;
}

/* Defaults are those of Hugging Face's configuration classes. */
const dsc_llama_traits dsc_llama_traits_of_llama = {
    .architecture = "LlamaForCausalLM", .family = &dsc_llama_family, .vocab = 32000, .inner = 11008, .positions = 2048,
    .has_head_size = true, .attention_bias = true, .mlp_bias = true, .window = DSC_WINDOW_NONE
};
const dsc_llama_traits dsc_llama_traits_of_mistral = {
    .architecture = "MistralForCausalLM", .family = &dsc_mistral_family, .vocab = 32000, .inner = 14336,
    .positions = 131072, .kv_heads = 8, .has_head_size = true, .window = DSC_WINDOW_ALL
};
const dsc_llama_traits dsc_llama_traits_of_qwen2 = {
    .architecture = "Qwen2ForCausalLM", .family = &dsc_qwen2_family, .vocab = 151936, .inner = 22016,
    .positions = 32768, .kv_heads = 32, .qkv_bias = true, .window = DSC_WINDOW_IF_USED
};
const dsc_llama_traits dsc_llama_traits_of_qwen3 = {
    .architecture = "Qwen3ForCausalLM", .family = &dsc_qwen3_family, .vocab = 151936, .inner = 22016,
    .positions = 32768, .kv_heads = 32, .head_size = 128, .has_head_size = true, .attention_bias = true,
    .head_norm = true, .window = DSC_WINDOW_IF_USED
};

#define FAMILY(name)                                                                                                  \
    static dsc_status read_##name(dsc_hf_config *reader, dsc_lm_config *out)                                          \
    {                                                                                                                 \
        return dsc_llama_read_config(reader, out, &dsc_llama_traits_of_##name);                                       \
    }                                                                                                                 \
    static const char *builtin_##name(int32_t index, dsc_lm_config *out)                                              \
    {                                                                                                                 \
        return dsc_llama_builtin(index, out, &dsc_llama_traits_of_##name);                                            \
    }                                                                                                                 \
    const dsc_lm_family dsc_##name##_family = {                                                                       \
        .model_type = #name, .layers_key = "num_hidden_layers", .base = "model.", .layer = "layers.",                 \
        .token_table = "embed_tokens.weight", .head_table = "lm_head.weight", .final_norm = "norm",                   \
        .norm = DSC_NORM_RMS,                                                                                         \
        .config_bytes = sizeof(dsc_llama_config), .read_config = read_##name,                                         \
        .write_config = dsc_llama_write_config, .builtin = builtin_##name, .block_params = block_params,              \
        .add_block = add_block, .emit_block = emit_block, .lora_layers = lora_layers, .may_ignore = may_ignore        \
    };
FAMILY(llama)
FAMILY(mistral)
FAMILY(qwen2)
FAMILY(qwen3)
