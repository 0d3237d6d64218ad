/* dense.c - the dense block, and keys of config.json that its families share.
 * SPDX-License-Identifier: Apache-2.0 */
#include "models/dense.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const dsc_dense_config *config_of(const dsc_lm_config *base)
{
    return (const dsc_dense_config *)(const void *)base;
}

static dsc_block block_of(dsc_program *program, const dsc_dense_config *config)
{
    const dsc_lm_config *base = &config->lm;
    return (dsc_block) { .program = program,
                         .norm = { .kind = DSC_NORM_LAYER,
                                   .eps = base->norm_eps,
                                   .no_bias = base->norm_no_bias },
                         .out_in = config->traits->out_in,
                         .std = base->init_std,
                         .out_std =
                             config->traits->scaled_init ? base->init_std / sqrt(2.0 * (double)base->layers) : 0 };
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
        .out_bias = config->attention_bias,
        .rope = { .rope = traits->rotary && config->alibi == 0 ? &config->rope : NULL },
        .op = { .heads = config->heads,
                .kv_heads = config->kv_heads > 0 ? config->kv_heads : config->heads,
                .head_size = size,
                .all = base->masked,
                .scale = config->scale_attention_by_layer ? scale / (double)(layer + 1) : scale,
                .window = base->full[layer] ? 0 : base->window,
                .alibi = config->alibi,
                .alibi_of_key = config->alibi_of_key },
    };
}

static dsc_step_norms norms_of(const dsc_dense_config *config, const char *name)
{
    return (dsc_step_norms) { .before = config->post_norm ? NULL : name, .sum = config->post_norm ? name : NULL };
}

/* x + attention(norm1(x)), then x + mlp(norm2(x)); or both of the same x; or norms of the sums. */
void dsc_dense_emit_block(dsc_program *program, const dsc_lm_config *base, int64_t layer)
{
    const dsc_dense_config *config = config_of(base);
    const dsc_dense_traits *traits = config->traits;
    const dsc_block block = block_of(program, config);
    const dsc_block_attention attention = attention_of(config, layer);
    const dsc_block_mlp mlp = { .up = traits->fc,
                                .down = traits->out,
                                .up_bias = !config->bare_mlp,
                                .down_bias = !config->bare_mlp,
                                .inner = config->inner,
                                .activation = config->activation };
    const dsc_step_norms first = norms_of(config, traits->norm1), second = norms_of(config, traits->norm2);
    dsc_step step = dsc_block_begin(&block, program->input, &first);
    const int16_t x = dsc_block_end(&block, &step, dsc_block_attend(&block, step.in, &attention), step.x);
    if (traits->norm2 != NULL)
        step = dsc_block_begin(&block, config->parallel ? program->input : x, &second);
    dsc_program_end(program, dsc_block_end(&block, &step, dsc_block_feed(&block, step.in, &mlp), x));
}

/* ---- keys of config.json ----------------------------------------------------------------------------------------- */

dsc_status dsc_dense_check_heads(dsc_hf_config *reader, const dsc_dense_config *config, const char *channels_key,
                                 const char *heads_key)
{
    if (config->lm.channels % config->heads == 0)
        return DSC_OK;
    return DSC_HF_REFUSE(reader, DSC_ERR_INPUT, "\"%s\" %lld is not a multiple of \"%s\" %lld", channels_key,
                         (long long)config->lm.channels, heads_key, (long long)config->heads);
}

/* The first three are one function under three names. */
static const char *const activation_names[] = { "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu", "relu" };
static const dsc_activation activations[] = { DSC_GELU_TANH, DSC_GELU_TANH, DSC_GELU_TANH, DSC_GELU_ERF, DSC_RELU };

dsc_status dsc_dense_read_activation(dsc_hf_config *reader, const char *key, dsc_activation fallback,
                                     dsc_activation *out)
{
    int32_t index = 0;
    const bool given = dsc_hf_field(reader, key) != NULL;
    DSC_TRY(dsc_hf_choice(reader, key, activation_names, DSC_COUNT(activation_names), &index));
    *out = given ? activations[index] : fallback;
    return DSC_OK;
}

const char *dsc_dense_activation_name(dsc_activation activation)
{
    int32_t index = 0;
    while (activations[index] != activation)
        index++;
    return activation_names[index];
}

dsc_status dsc_dense_read_dropout(dsc_hf_config *reader, const char *const *keys, int32_t count, double fallback)
{
    char list[200] = "";
    bool any = false;
    for (int32_t i = 0; i < count; i++) {
        const size_t used = strlen(list);
        double share = 0;
        DSC_TRY(dsc_hf_number(reader, keys[i], (dsc_hf_range){ 0, 1 }, fallback, &share));
        snprintf(list + used, sizeof list - used, "%s%s %g", i > 0 ? ", " : "", keys[i], share);
        any = any || share > 0;
    }
    if (any)
        dsc_hf_warn(reader->warnings, reader->warnings_bytes, "the model's dropout is off (config.json: %s)", list);
    return DSC_OK;
}
