/* moe.c - the block of families whose MLP is a mixture of experts. SPDX-License-Identifier: Apache-2.0 */
#include "models/moe.h"

static const dsc_moe_config *config_of(const dsc_lm_config *base) { return (const dsc_moe_config *)(const void *)base; }

/* A buffer without statistics: the value stays, or the run moves it (dsc.moe.bias_update_speed). */
static int32_t declare_bias(const dsc_block *block, const dsc_moe_config *config)
{
    const dsc_program_buffer bias = { .name = config->traits->bias,
                                      .part = "e_score_correction_bias",
                                      .kind = DSC_BUFFER_AVERAGE,
                                      .count = config->rule.experts,
                                      .row = config->traits->bias_row };
    return bias.name != NULL ? dsc_program_declare_buffer(block->program, &bias) : DSC_PROGRAM_NONE;
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
                                             .by_parameter = true,
                                             .as_stored = true, /* as of GPT-OSS: bitsandbytes packs linear layers */
                                             .f32_out = traits->f32_logits,
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

int16_t dsc_moe_feed_layer(const dsc_block *block, const dsc_lm_config *base, int64_t layer, int16_t x)
{
    const dsc_moe_config *config = config_of(base);
    return config->dense[layer] ? dsc_decoder_feed(block, base, layer, x) : dsc_moe_feed(block, config, x);
}

void dsc_moe_emit_block(dsc_program *program, const dsc_lm_config *base, int64_t layer)
{
    dsc_decoder_emit(program, base, layer, dsc_decoder_attend, dsc_moe_feed_layer);
}

/* transformers 5 has the experts of a layer in two tensors, and writes them one by one. */
const dsc_lm_stacked dsc_moe_stacked[] = {
    { "mlp.experts.*.gate_proj.weight", "mlp.experts.gate_up_proj", 0, 2 },
    { "mlp.experts.*.up_proj.weight", "mlp.experts.gate_up_proj", 1, 2 },
    { "mlp.experts.*.down_proj.weight", "mlp.experts.down_proj", 0, 1 },
    { "block_sparse_moe.experts.*.w1.weight", "mlp.experts.gate_up_proj", 0, 2 },
    { "block_sparse_moe.experts.*.w3.weight", "mlp.experts.gate_up_proj", 1, 2 },
    { "block_sparse_moe.experts.*.w2.weight", "mlp.experts.down_proj", 0, 1 },
    { 0 }
};
