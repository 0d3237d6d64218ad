/* dense.c - the dense block. SPDX-License-Identifier: Apache-2.0 */
#include "models/dense.h"

#include <math.h>

static const dsc_dense_config *config_of(const dsc_lm_config *base)
{
    return (const dsc_dense_config *)(const void *)base;
}

static dsc_block block_of(dsc_program *program, const dsc_dense_config *config)
{
    const dsc_lm_config *base = &config->lm;
    return (dsc_block) { .program = program,
                         .norm = { .kind = DSC_NORM_LAYER, .eps = base->norm_eps, .no_bias = base->norm_no_bias },
                         .out_in = config->traits->out_in || base->turned,
                         .std = base->init_std,
                         .out_std =
                             config->traits->scaled_init ? base->init_std / sqrt(2.0 * (double)base->layers) : 0 };
}

/* The positions of a layer; NULL: it has none. */
static const dsc_rope *rope_of(const dsc_dense_config *config, int64_t layer)
{
    if (!config->traits->rotary || config->alibi > 0)
        return NULL;
    return config->traits->two_ropes && !config->lm.full[layer] ? &config->sliding_rope : &config->rope;
}

static dsc_block_attention attention_of(const dsc_dense_config *config, int64_t layer)
{
    const dsc_lm_config *base = &config->lm;
    const dsc_dense_traits *traits = config->traits;
    const int64_t size = base->channels / config->heads;
    const double usual = config->scale_attention ? 1 / sqrt((double)size) : 1;
    const double scale = config->scale > 0 ? config->scale : usual;
    return (dsc_block_attention) {
        .kind = traits->kind,
        .qkv = { traits->qkv[0], traits->qkv[1], traits->qkv[2] },
        .out = traits->proj,
        .qkv_bias = config->attention_bias,
        .out_bias = config->attention_bias || traits->out_bias,
        .rope = { .rope = rope_of(config, layer) },
        .op = { .heads = config->heads,
                .kv_heads = config->kv_heads > 0 ? config->kv_heads : config->heads,
                .head_size = size,
                .all = base->masked || dsc_lm_has_data(base),
                .scale = config->scale_attention_by_layer ? scale / (double)(layer + 1) : scale,
                .window = base->full[layer] ? 0 : base->window,
                .alibi = config->alibi,
                .alibi_of_key = config->alibi_of_key },
    };
}

static dsc_step_norms norms_of(const dsc_dense_config *config, const char *name, int part)
{
    return (dsc_step_norms) { .before = config->post_norm ? NULL : name,
                              .sum = config->post_norm ? name : NULL,
                              .scale = config->traits->scales[part] };
}

/* x + attention(norm1(x)), then x + mlp(norm2(x)); or both of the same x; or norms of the sums. */
void dsc_dense_emit_block(dsc_program *program, const dsc_lm_config *base, int64_t layer)
{
    const dsc_dense_config *config = config_of(base);
    const dsc_dense_traits *traits = config->traits;
    const dsc_block block = block_of(program, config);
    const dsc_block_attention attention = attention_of(config, layer);
    const dsc_block_mlp mlp = { .gate_in_up = traits->gate_in_up,
                                .no_up_adapter = traits->fc_is_two,
                                .up = traits->fc,
                                .down = traits->out,
                                .up_bias = !config->bare_mlp,
                                .down_bias = !config->bare_mlp,
                                .inner = config->inner,
                                .activation = config->activation,
                                .activation_scale = config->activation_scale };
    const dsc_step_norms first = norms_of(config, traits->bare_first && layer == 0 ? NULL : traits->norm1, 0);
    const dsc_step_norms second = norms_of(config, traits->norm2, 1);
    dsc_step step = dsc_block_begin(&block, program->input, &first);
    const int16_t x = dsc_block_end(&block, &step, dsc_block_attend(&block, step.in, &attention), step.x);
    if (traits->norm2 != NULL)
        step = dsc_block_begin(&block, config->parallel ? program->input : x, &second);
    dsc_program_end(program, dsc_block_end(&block, &step, dsc_block_feed(&block, step.in, &mlp), x));
}
