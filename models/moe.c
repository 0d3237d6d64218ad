/* moe.c - the families of mixtures of experts: their names, what tells them apart, and the block.
 * SPDX-License-Identifier: Apache-2.0 */
#include "models/moe.h"

static const dsc_moe_config *config_of(const dsc_lm_config *base) { return (const dsc_moe_config *)(const void *)base; }

/* The bias stands behind the router's weight. */
static int32_t declare_bias(const dsc_block *block, const dsc_moe_config *config)
{
    const bool row = config->traits->bias_row;
    const int64_t experts = config->rule.experts;
    const dsc_program_param bias = { .name = config->traits->bias,
                                     .part = "e_score_correction_bias",
                                     .dim_count = row ? 2 : 1,
                                     .dim = { row ? 1 : experts, row ? experts : 0 },
                                     .init = DSC_INIT_ZEROS,
                                     .as_stored = true,
                                     .frozen = true };
    return bias.name != NULL ? dsc_program_declare(block->program, &bias) : DSC_PROGRAM_NONE;
}

/* An expert that all tokens go to without a weight. */
static int16_t add_whole_expert(const dsc_block *block, const dsc_moe_config *config, int16_t x, int16_t routed)
{
    const dsc_block_mlp shared = { .gate = config->traits->whole[0],
                                   .up = config->traits->whole[1],
                                   .down = config->traits->whole[2],
                                   .up_bias = config->decoder.mlp_bias,
                                   .down_bias = config->decoder.mlp_bias,
                                   .inner = config->shared_inner,
                                   .activation = config->decoder.activation };
    return dsc_program_add(block->program, routed, dsc_block_feed(block, x, &shared));
}

/* The experts that a token is routed to, and in some families one that all tokens go to. */
int16_t dsc_moe_feed(const dsc_block *block, const dsc_moe_config *config, int16_t x)
{
    const dsc_moe_traits *traits = config->traits;
    dsc_program *program = block->program;
    const dsc_program_linear_args router = { .name = traits->router,
                                             .shape = { .out = config->rule.experts, .out_in = true },
                                             .no_adapter = true,
                                             .std = block->std };
    const int16_t logits = dsc_program_linear(program, x, &router);
    const dsc_program_experts_args experts = { .activation = config->decoder.activation,
                                               .gate = traits->gate,
                                               .up = traits->up,
                                               .down = traits->down,
                                               .rule = config->rule,
                                               .has_bias = traits->bias != NULL,
                                               .bias = declare_bias(block, config),
                                               .inner = config->inner,
                                               .std = block->std };
    const int16_t routed = dsc_program_experts(program, x, logits, &experts);
    if (traits->whole[0] != NULL && config->shared_inner > 0)
        return add_whole_expert(block, config, x, routed);
    if (!traits->shared)
        return routed;
    const dsc_program_linear_args gate = { .name = "mlp.shared_expert_gate",
                                           .shape = { .out = 1, .out_in = true },
                                           .std = block->std };
    const dsc_block_mlp shared = { .gate = "mlp.shared_expert.gate_proj",
                                   .up = "mlp.shared_expert.up_proj",
                                   .down = "mlp.shared_expert.down_proj",
                                   .inner = config->shared_inner,
                                   .activation = config->decoder.activation };
    const int16_t all = dsc_block_feed(block, x, &shared);
    return dsc_program_add(program, routed, dsc_program_gate_rows(program, all, dsc_program_linear(program, x, &gate)));
}

/* x + attention(norm(x)), then x + experts(norm(x)). */
void dsc_moe_emit(const dsc_block *block, const dsc_moe_config *config, int64_t layer,
                  const dsc_block_attention *attention)
{
    dsc_program *program = block->program;
    const dsc_block_mlp dense = dsc_decoder_mlp(&config->decoder);
    dsc_step step = dsc_block_begin(block, program->input, &(dsc_step_norms) { .before = "input_layernorm" });
    const int16_t x = dsc_block_end(block, &step, dsc_block_attend(block, step.in, attention), step.x);
    step = dsc_block_begin(block, x, &(dsc_step_norms) { .before = "post_attention_layernorm" });
    const int16_t part =
        config->dense[layer] ? dsc_block_feed(block, step.in, &dense) : dsc_moe_feed(block, config, step.in);
    dsc_program_end(program, dsc_block_end(block, &step, part, x));
}

static void emit_block(dsc_program *program, const dsc_lm_config *base, int64_t layer)
{
    const dsc_moe_config *config = config_of(base);
    const dsc_block block = dsc_decoder_block(program, &config->decoder);
    dsc_block_attention attention = dsc_decoder_attention(&config->decoder, layer);
    attention.norm_whole = config->traits->whole_norm;
    dsc_moe_emit(&block, config, layer, &attention);
}

/* transformers 5 has the experts of a layer in two tensors. */
const dsc_lm_stacked dsc_moe_stacked[] = { { "mlp.experts.*.gate_proj.weight", "mlp.experts.gate_up_proj", 0, 2 },
                                           { "mlp.experts.*.up_proj.weight", "mlp.experts.gate_up_proj", 1, 2 },
                                           { "mlp.experts.*.down_proj.weight", "mlp.experts.down_proj", 0, 1 },
                                           { 0 } };

/* transformers 5 has the experts of a layer in two tensors, and writes them one by one. */
static const dsc_lm_stacked stacked[] = { { "mlp.experts.*.gate_proj.weight", "mlp.experts.gate_up_proj", 0, 2 },
                                          { "mlp.experts.*.up_proj.weight", "mlp.experts.gate_up_proj", 1, 2 },
                                          { "mlp.experts.*.down_proj.weight", "mlp.experts.down_proj", 0, 1 },
                                          { "block_sparse_moe.experts.*.w1.weight", "mlp.experts.gate_up_proj", 0, 2 },
                                          { "block_sparse_moe.experts.*.w3.weight", "mlp.experts.gate_up_proj", 1, 2 },
                                          { "block_sparse_moe.experts.*.w2.weight", "mlp.experts.down_proj", 0, 1 },
                                          { 0 } };
static const char *const aliases[][2] = { { "block_sparse_moe.gate.weight", "mlp.gate.weight" }, { NULL, NULL } };

/* Defaults are those of Hugging Face's configuration classes. */
static const dsc_moe_traits traits_of_mixtral = { .decoder = { .activation = DSC_SILU,
                                                               .architecture = "MixtralForCausalLM",
                                                               .family = &dsc_mixtral_family,
                                                               .vocab = 32000,
                                                               .inner = 14336,
                                                               .positions = 131072,
                                                               .kv_heads = 8,
                                                               .has_head_size = true,
                                                               .norm_eps = 1e-5,
                                                               .theta = 1e6,
                                                               .window = DSC_WINDOW_ALL,
                                                               .one_window = true,
                                                               .window_default = DSC_WINDOW_OFF },
                                                  .router = "block_sparse_moe.gate",
                                                  .gate = "block_sparse_moe.experts.*.w1",
                                                  .up = "block_sparse_moe.experts.*.w3",
                                                  .down = "block_sparse_moe.experts.*.w2",
                                                  .inner_key = "intermediate_size",
                                                  .experts = 8,
                                                  .top_k = 2,
                                                  .moe_inner = 14336,
                                                  .padding = -1,
                                                  .renormalized = true };
#define QWEN_NAMES                                                                                                     \
    .router = "mlp.gate", .gate = "mlp.experts.*.gate_proj", .up = "mlp.experts.*.up_proj",                            \
    .down = "mlp.experts.*.down_proj"
static const dsc_moe_traits traits_of_olmoe = { .decoder = { .activation = DSC_SILU,
                                                             .architecture = "OlmoeForCausalLM",
                                                             .family = &dsc_olmoe_family,
                                                             .vocab = 50304,
                                                             .inner = 2048,
                                                             .positions = 4096,
                                                             .layers = 16,
                                                             .channels = 2048,
                                                             .heads = 16,
                                                             .attention_bias = true,
                                                             .head_norm = true,
                                                             .norm_eps = 1e-5,
                                                             .window = DSC_WINDOW_NONE },
                                                QWEN_NAMES,
                                                .inner_key = "intermediate_size",
                                                .experts = 64,
                                                .top_k = 8,
                                                .moe_inner = 2048,
                                                .padding = 1,
                                                .balance = 0.01,
                                                .whole_norm = true };
static const dsc_moe_traits traits_of_qwen2_moe = { .decoder = { .activation = DSC_SILU,
                                                                 .architecture = "Qwen2MoeForCausalLM",
                                                                 .family = &dsc_qwen2_moe_family,
                                                                 .vocab = 151936,
                                                                 .inner = 5632,
                                                                 .positions = 32768,
                                                                 .layers = 24,
                                                                 .channels = 2048,
                                                                 .heads = 16,
                                                                 .kv_heads = 16,
                                                                 .qkv_bias = true,
                                                                 .window = DSC_WINDOW_NONE },
                                                    QWEN_NAMES,
                                                    .inner_key = "moe_intermediate_size",
                                                    .experts = 60,
                                                    .top_k = 4,
                                                    .moe_inner = 1408,
                                                    .padding = -1,
                                                    .some_dense = true,
                                                    .shared = true };
static const dsc_moe_traits traits_of_qwen3_moe = { .decoder = { .activation = DSC_SILU,
                                                                 .architecture = "Qwen3MoeForCausalLM",
                                                                 .family = &dsc_qwen3_moe_family,
                                                                 .vocab = 151936,
                                                                 .inner = 6144,
                                                                 .positions = 32768,
                                                                 .layers = 24,
                                                                 .channels = 2048,
                                                                 .heads = 32,
                                                                 .kv_heads = 4,
                                                                 .has_head_size = true,
                                                                 .attention_bias = true,
                                                                 .head_norm = true,
                                                                 .window = DSC_WINDOW_NONE },
                                                    QWEN_NAMES,
                                                    .inner_key = "moe_intermediate_size",
                                                    .experts = 128,
                                                    .top_k = 8,
                                                    .moe_inner = 768,
                                                    .padding = -1,
                                                    .some_dense = true };

#define FAMILY(name)                                                                                                   \
    static dsc_status read_##name(dsc_hf_config *reader, dsc_lm_config *out)                                           \
    {                                                                                                                  \
        return dsc_moe_read_config(reader, out, &traits_of_##name);                                                    \
    }                                                                                                                  \
    const dsc_lm_family dsc_##name##_family = {                                                                        \
        .model_type = #name, .layers_key = "num_hidden_layers", .base = "model.", .layer = "layers.",                  \
        .token_table = "embed_tokens.weight", .head_table = "lm_head.weight", .final_norm = "norm",                    \
        .norm = DSC_NORM_RMS, .config_bytes = sizeof(dsc_moe_config), .read_config = read_##name,                      \
        .builtin = dsc_decoder_no_builtin, .emit_block = emit_block, .lora_layers = dsc_decoder_lora_layers,           \
        .may_ignore = dsc_decoder_may_ignore, .aliases = aliases, .stacked = stacked                                   \
    };
FAMILY(mixtral)
FAMILY(olmoe)
FAMILY(qwen2_moe)
FAMILY(qwen3_moe)
