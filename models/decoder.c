/* decoder.c - see decoder.h. SPDX-License-Identifier: Apache-2.0 */
#include "models/decoder.h"

#include <math.h>

const char *const dsc_decoder_lora_layers[] = { "q_proj", "v_proj", NULL };

const char *const dsc_decoder_may_ignore[] = { "self_attn.rotary_emb.inv_freq", NULL };

const dsc_decoder_config *dsc_decoder_config_of(const dsc_lm_config *base)
{
    return (const dsc_decoder_config *)(const void *)base;
}

/* Every product starts with the same spread, as in Hugging Face's code. */
dsc_block dsc_decoder_block(dsc_program *program, const dsc_decoder_config *config)
{
    return (dsc_block) { .program = program,
                         .norm = { .kind = config->traits->family->norm,
                                   .eps = config->lm.norm_eps,
                                   .no_bias = config->lm.norm_no_bias,
                                   .plus_one = config->lm.norm_plus_one },
                         .out_in = true,
                         .std = config->lm.init_std,
                         .residual = config->residual };
}

/* The positions of a layer; NULL: it has none. */
static const dsc_rope *rope_of(const dsc_decoder_config *config, int64_t layer)
{
    if (config->unturned[layer])
        return NULL;
    return config->traits->rope_layers != NULL && !config->lm.full[layer] ? &config->sliding_rope : &config->rope;
}

static const char *name_or(const char *name, const char *usual) { return name != NULL ? name : usual; }

dsc_block_attention dsc_decoder_attention(const dsc_decoder_config *config, int64_t layer)
{
    const dsc_decoder_traits *traits = config->traits;
    const bool head_norm = traits->head_norm || config->head_norm;
    const double scale = config->attention_scale;
    return (dsc_block_attention) { .kind = traits->qkv != NULL ? DSC_QKV_PARTS : DSC_QKV_APART,
                                   .qkv = { name_or(traits->qkv, "self_attn.q_proj"), "self_attn.k_proj",
                                            "self_attn.v_proj" },
                                   .out = name_or(traits->attention_out, "self_attn.o_proj"),
                                   .qkv_bias = config->qkv_bias,
                                   .out_bias = config->out_bias,
                                   .q_norm = head_norm ? name_or(traits->q_norm, "self_attn.q_norm") : NULL,
                                   .k_norm = head_norm ? name_or(traits->k_norm, "self_attn.k_norm") : NULL,
                                   .norm_whole = traits->norm_whole,
                                   .norm_turned = traits->norm_turned,
                                   .rope = { .rope = rope_of(config, layer) },
                                   .op = { .heads = config->heads,
                                           .kv_heads = config->kv_heads,
                                           .head_size = config->head_size,
                                           .scale = scale > 0 ? scale : 1 / sqrt((double)config->head_size),
                                           .softcap = config->attention_softcap,
                                           .window = config->lm.full[layer] ? 0 : config->lm.window } };
}

int16_t dsc_decoder_attend(const dsc_block *block, const dsc_lm_config *base, int64_t layer, int16_t x)
{
    const dsc_block_attention attention = dsc_decoder_attention(dsc_decoder_config_of(base), layer);
    return dsc_block_attend(block, x, &attention);
}

int16_t dsc_decoder_feed(const dsc_block *block, const dsc_lm_config *base, int64_t layer, int16_t x)
{
    (void)layer;
    const dsc_decoder_config *config = dsc_decoder_config_of(base);
    const dsc_decoder_traits *traits = config->traits;
    const dsc_block_mlp mlp = { .gate = traits->no_gate || traits->gate_in_up ? NULL : "mlp.gate_proj",
                                .gate_in_up = traits->gate_in_up,
                                .up = name_or(traits->up, "mlp.up_proj"),
                                .down = name_or(traits->down, "mlp.down_proj"),
                                .up_bias = config->mlp_bias,
                                .down_bias = config->mlp_bias,
                                .inner = config->inner,
                                .activation = config->activation };
    return dsc_block_feed(block, x, &mlp);
}

void dsc_decoder_emit(dsc_program *program, const dsc_lm_config *base, int64_t layer, dsc_decoder_part attend,
                      dsc_decoder_part feed)
{
    static const dsc_step_norms usual[2] = { { .before = "input_layernorm" },
                                             { .before = "post_attention_layernorm" } };
    const dsc_decoder_config *config = dsc_decoder_config_of(base);
    const dsc_step_norms *own = config->traits->steps;
    const dsc_step_norms *norms = own[0].before != NULL || own[0].behind != NULL ? own : usual;
    const dsc_block block = dsc_decoder_block(program, config);
    dsc_step step = dsc_block_begin(&block, program->input, &norms[0]);
    const int16_t x = dsc_block_end(&block, &step, attend(&block, base, layer, step.in), step.x);
    if (!config->parallel)
        step = dsc_block_begin(&block, x, &norms[1]);
    dsc_program_end(program, dsc_block_end(&block, &step, feed(&block, base, layer, step.in), x));
}

void dsc_decoder_emit_block(dsc_program *program, const dsc_lm_config *base, int64_t layer)
{
    dsc_decoder_emit(program, base, layer, dsc_decoder_attend, dsc_decoder_feed);
}
