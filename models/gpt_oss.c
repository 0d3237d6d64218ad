/* gpt_oss.c - GPT-OSS (OpenAI 2025): a mixture of experts with biases and a clamped activation. Attention has a sink
 * for each head, and a window in every second layer. SPDX-License-Identifier: Apache-2.0 */
#include "models/moe.h"

typedef struct gpt_oss_config {
    dsc_moe_config moe;
    dsc_swiglu_clamp clamp;
} gpt_oss_config;

static int16_t feed(const dsc_block *block, const dsc_lm_config *base, int64_t layer, int16_t x)
{
    (void)layer;
    const gpt_oss_config *config = (const gpt_oss_config *)(const void *)base;
    const dsc_program_linear_args router = { .name = config->moe.traits->router,
                                             .shape = { .out = config->moe.rule.experts, .out_in = true },
                                             .bias = true,
                                             .by_parameter = true,
                                             .as_stored = true, /* bitsandbytes packs modules that are linear layers */
                                             .std = block->std };
    const dsc_program_pair_experts_args experts = { .gate_up = "mlp.experts.gate_up_proj",
                                                    .gate_up_bias = "mlp.experts.gate_up_proj_bias",
                                                    .down = "mlp.experts.down_proj",
                                                    .down_bias = "mlp.experts.down_proj_bias",
                                                    .rule = config->moe.rule,
                                                    .clamp = config->clamp,
                                                    .inner = config->moe.inner,
                                                    .std = block->std };
    return dsc_program_pair_experts(block->program, x, dsc_program_linear(block->program, x, &router), &experts);
}

static int16_t attend(const dsc_block *block, const dsc_lm_config *base, int64_t layer, int16_t x)
{
    const dsc_decoder_config *decoder = dsc_decoder_config_of(base);
    dsc_block_attention attention = dsc_decoder_attention(decoder, layer);
    attention.op.has_sinks = true;
    attention.op.sinks = dsc_block_vector(block, "self_attn.sinks", decoder->heads, DSC_INIT_NORMAL);
    return dsc_block_attend(block, x, &attention);
}

static void emit_block(dsc_program *program, const dsc_lm_config *base, int64_t layer)
{
    dsc_decoder_emit(program, base, layer, attend, feed);
}

/* A file without rotary positions has those of the published models. */
static void set_default_rope(dsc_decoder_config *config)
{
    config->rope = (dsc_rope) { .kind = DSC_ROPE_YARN,
                                .theta = config->rope.theta,
                                .factor = 32,
                                .original_positions = 4096,
                                .beta_fast = 32,
                                .beta_slow = 1 };
    dsc_rope_set(&config->rope, config->head_size);
}

static dsc_status read_more(dsc_hf_config *reader, dsc_decoder_config *config)
{
    static const dsc_hf_range range = { 1e-3, 1e6 };
    gpt_oss_config *own = (gpt_oss_config *)(void *)config;
    bool bias = false;
    double alpha = 0, limit = 0;
    DSC_TRY(dsc_hf_bool(reader, "attention_bias", true, &bias));
    config->qkv_bias = config->out_bias = bias;
    if (dsc_hf_field(reader, "rope_scaling") == NULL && dsc_hf_field(reader, "rope_parameters") == NULL)
        set_default_rope(config);
    DSC_TRY(dsc_hf_number(reader, "swiglu_alpha", range, 1.702, &alpha));
    DSC_TRY(dsc_hf_number(reader, "swiglu_limit", range, 7, &limit));
    own->clamp.alpha = (float)alpha, own->clamp.limit = (float)limit;
    return DSC_OK;
}

/* Defaults are those of Hugging Face's configuration class. */
static const dsc_moe_traits traits = {
    .decoder = { .activation = DSC_SILU, .family = &dsc_gpt_oss_family, .vocab = 201088, .inner = 2880,
                 .positions = 131072, .layers = 36, .channels = 2880, .heads = 64, .kv_heads = 8, .head_size = 64,
                 .norm_eps = 1e-5, .theta = 150000, .window = DSC_WINDOW_ALL, .window_default = 128,
                 .full_every = 2, .read_more = read_more },
    .router = "mlp.router", .inner_key = "intermediate_size", .experts = 128, .top_k = 4, .moe_inner = 2880,
    .padding = -1, .renormalized = true
};

/* Published files name two numbers again, as OpenAI's own code does. Equal ones need no warning. */
static void read_again(dsc_hf_config *reader, const char *key, double known)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(reader->object, key);
    if (cJSON_IsNumber(item) && item->valuedouble == known)
        (void)dsc_hf_field(reader, key);
}

static dsc_status read_config(dsc_hf_config *reader, dsc_lm_config *out)
{
    const dsc_moe_config *config = (const dsc_moe_config *)(const void *)out;
    DSC_TRY(dsc_moe_read(reader, out));
    read_again(reader, "experts_per_token", config->rule.top_k);
    read_again(reader, "initial_context_length", config->decoder.rope.original_positions);
    return DSC_OK;
}

const dsc_lm_family dsc_gpt_oss_family = { DSC_DECODER_FAMILY("gpt_oss", traits, gpt_oss_config, "norm"),
                                           .norm = DSC_NORM_RMS, .read_config = read_config, .emit_block = emit_block,
                                           .lora_layers = dsc_decoder_lora_layers, .has_mxfp4 = true };
