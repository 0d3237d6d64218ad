/* llama.c - the families of Llama's block: their names, what tells them apart, and the block.
 * SPDX-License-Identifier: Apache-2.0 */
#include "models/llama.h"

#include <math.h>
#include <string.h>

static const dsc_llama_config *config_of(const dsc_lm_config *base)
{
    return (const dsc_llama_config *)(const void *)base;
}

/* x + attention(norm(x)), then x + down(silu(gate(norm(x))) * up(norm(x))). Every product starts with the same spread,
 * as in Hugging Face's code. */
static void emit_block(dsc_program *program, const dsc_lm_config *base, int64_t layer)
{
    const dsc_llama_config *config = config_of(base);
    const bool head_norm = config->traits->head_norm;
    const dsc_block block = { .program = program,
                              .norm = { .kind = DSC_NORM_RMS, .eps = base->norm_eps },
                              .out_in = true,
                              .std = base->init_std };
    const dsc_block_attention attention = { .qkv = { "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj" },
                                            .out = "self_attn.o_proj",
                                            .qkv_bias = config->qkv_bias,
                                            .out_bias = config->out_bias,
                                            .q_norm = head_norm ? "self_attn.q_norm" : NULL,
                                            .k_norm = head_norm ? "self_attn.k_norm" : NULL,
                                            .rope = { .rope = &config->rope },
                                            .op = { .heads = config->heads,
                                                    .kv_heads = config->kv_heads,
                                                    .head_size = config->head_size,
                                                    .scale = 1 / sqrt((double)config->head_size),
                                                    .window = base->full[layer] ? 0 : base->window } };
    const dsc_block_mlp mlp = { .gate = "mlp.gate_proj",
                                .up = "mlp.up_proj",
                                .down = "mlp.down_proj",
                                .up_bias = config->mlp_bias,
                                .down_bias = config->mlp_bias,
                                .inner = config->inner };
    dsc_step step = dsc_block_begin(&block, program->input, &(dsc_step_norms) { .before = "input_layernorm" });
    const int16_t x = dsc_block_end(&block, &step, dsc_block_attend(&block, step.in, &attention), step.x);
    step = dsc_block_begin(&block, x, &(dsc_step_norms) { .before = "post_attention_layernorm" });
    dsc_program_end(program, dsc_block_end(&block, &step, dsc_block_feed(&block, step.in, &mlp), x));
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
        .write_config = dsc_llama_write_config, .builtin = builtin_##name, .emit_block = emit_block,                  \
        .lora_layers = lora_layers, .may_ignore = may_ignore                                                          \
    };
FAMILY(llama)
FAMILY(mistral)
FAMILY(qwen2)
FAMILY(qwen3)
