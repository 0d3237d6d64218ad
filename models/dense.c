/* dense.c - a dense block's parameters, and keys of config.json that its families share.
 * SPDX-License-Identifier: Apache-2.0 */
#include "models/dense.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const dsc_dense_config *config_of(const dsc_lm_config *base)
{
    return (const dsc_dense_config *)(const void *)base;
}

static bool has_param(const dsc_dense_config *config, int32_t kind)
{
    const bool apart = config->traits->kind == DSC_QKV_APART;
    switch (kind) {
    case DSC_DENSE_QKV_B:
    case DSC_DENSE_PROJ_B: return config->attention_bias;
    case DSC_DENSE_K_W:
    case DSC_DENSE_V_W: return apart;
    case DSC_DENSE_K_B:
    case DSC_DENSE_V_B: return apart && config->attention_bias;
    default: return true;
    }
}

int32_t dsc_dense_param(const dsc_dense_config *config, int32_t kind)
{
    int32_t before = 0;
    for (int32_t i = 0; i < kind; i++)
        before += has_param(config, i);
    return kind == DSC_DENSE_PARAM_KINDS || has_param(config, kind) ? before : -1;
}

int32_t dsc_dense_block_params(const dsc_lm_config *config)
{
    return dsc_dense_param(config_of(config), DSC_DENSE_PARAM_KINDS);
}

/* In the order of the enum in dense.h. */
void dsc_dense_add_block(dsc_lm *lm, const dsc_lm_config *base)
{
    const dsc_dense_config *config = config_of(base);
    const dsc_dense_traits *traits = config->traits;
    const int64_t channels = base->channels, inner = config->inner;
    const bool apart = traits->kind == DSC_QKV_APART, out_in = traits->out_in, bias = config->attention_bias;
    const double std = base->init_std, residual = traits->scaled_init ? std / sqrt(2.0 * (double)base->layers) : std;
    const dsc_lm_linear after[] = {
        { traits->proj, { channels, channels, out_in }, .bias = bias, .out_split = false, .std = residual },
        { traits->fc, { channels, inner, out_in }, .bias = true, .out_split = true, .std = std },
        { traits->out, { inner, channels, out_in }, .bias = true, .out_split = false, .std = residual },
    };
    dsc_lm_add_norm(lm, traits->norm1, DSC_NORM_LAYER, channels);
    for (int i = 0; i < (apart ? 3 : 1); i++)
        dsc_lm_add_linear(lm, &(dsc_lm_linear){ traits->qkv[i], { channels, apart ? channels : 3 * channels, out_in },
                                                .bias = bias, .out_split = true, .std = std });
    dsc_lm_add_linear(lm, &after[0]);
    dsc_lm_add_norm(lm, traits->norm2, DSC_NORM_LAYER, channels);
    dsc_lm_add_linear(lm, &after[1]);
    dsc_lm_add_linear(lm, &after[2]);
}

/* ---- the block's ops --------------------------------------------------------------------------------------------- */

static int16_t emit_norm(dsc_program *program, const dsc_dense_config *config, int16_t x, const char *name,
                         int32_t kind)
{
    const dsc_op_norm norm = {
        .kind = DSC_NORM_LAYER, .groups = 1, .eps = config->lm.norm_eps, .weight = dsc_dense_param(config, kind)
    };
    return dsc_program_norm(program, x, name, &norm);
}

static int16_t emit_linear(dsc_program *program, const dsc_dense_config *config, int16_t x, const char *name,
                           int32_t kind, int64_t out)
{
    const int64_t in = program->status == DSC_OK ? program->value[x].columns : 0;
    const dsc_program_linear_args linear = { .name = name,
                                             .shape = { in, out, config->traits->out_in },
                                             .weight = dsc_dense_param(config, kind),
                                             .bias = dsc_dense_param(config, kind + 1) };
    return dsc_program_linear(program, x, &linear);
}

/* q, k and v of `normed`: three products, or slices of one. */
static void emit_qkv(dsc_program *program, const dsc_dense_config *config, int16_t normed, int16_t *qkv)
{
    const dsc_dense_traits *traits = config->traits;
    const int64_t channels = config->lm.channels, size = channels / config->heads;
    for (int i = 0; i < 3 && traits->kind == DSC_QKV_APART; i++)
        qkv[i] = emit_linear(program, config, normed, traits->qkv[i], DSC_DENSE_QKV_W + 2 * i, channels);
    if (traits->kind == DSC_QKV_APART)
        return;
    const int16_t all = emit_linear(program, config, normed, traits->qkv[0], DSC_DENSE_QKV_W, 3 * channels);
    for (int i = 0; i < 3; i++)
        qkv[i] = traits->kind == DSC_QKV_PARTS
                     ? dsc_program_slice(program, all, i * channels, channels)
                     : dsc_program_slice_heads(program, all, i * size, config->heads, size, 3 * size);
}

/* The projection of the attention of `normed`. */
static int16_t emit_attention(dsc_program *program, const dsc_dense_config *config, int16_t normed, int64_t layer)
{
    const dsc_lm_config *base = &config->lm;
    const int64_t size = base->channels / config->heads;
    const dsc_op_rope rope = { .rope = &config->rope, .heads = config->heads, .head_size = size };
    const double scale = config->scale_attention ? 1 / sqrt((double)size) : 1;
    const dsc_op_attention attention = { .heads = config->heads,
                                         .kv_heads = config->heads,
                                         .head_size = size,
                                         .all = base->masked,
                                         .scale =
                                             config->scale_attention_by_layer ? scale / (double)(layer + 1) : scale,
                                         .window = base->full[layer] ? 0 : base->window };
    int16_t qkv[3];
    emit_qkv(program, config, normed, qkv);
    if (config->traits->rotary) {
        const dsc_program_tables tables = dsc_program_rope_tables(program, &config->rope);
        for (int i = 0; i < 2; i++)
            qkv[i] = dsc_program_rope(program, qkv[i], tables, &rope);
    }
    const int16_t heads = dsc_program_attention(program, qkv[0], qkv[1], qkv[2], &attention);
    return emit_linear(program, config, heads, config->traits->proj, DSC_DENSE_PROJ_W, base->channels);
}

static int16_t emit_mlp(dsc_program *program, const dsc_dense_config *config, int16_t normed)
{
    const dsc_dense_traits *traits = config->traits;
    const int16_t fc = emit_linear(program, config, normed, traits->fc, DSC_DENSE_FC_W, config->inner);
    const int16_t act = dsc_program_activation(program, fc, config->activation);
    return emit_linear(program, config, act, traits->out, DSC_DENSE_OUT_W, config->lm.channels);
}

/* x + attention(norm1(x)), then x + mlp(norm2(x)); or both of the same x; or norms of the sums. */
void dsc_dense_emit_block(dsc_program *program, const dsc_lm_config *base, int64_t layer)
{
    const dsc_dense_config *config = config_of(base);
    const dsc_dense_traits *traits = config->traits;
    const int16_t x = program->input;
    const int16_t first = config->post_norm ? x : emit_norm(program, config, x, traits->norm1, DSC_DENSE_NORM1);
    int16_t middle = dsc_program_add(program, emit_attention(program, config, first, layer), x);
    int16_t second = config->parallel ? x : middle;
    if (config->post_norm)
        second = middle = emit_norm(program, config, middle, traits->norm1, DSC_DENSE_NORM1);
    else
        second = emit_norm(program, config, second, traits->norm2, DSC_DENSE_NORM2);
    const int16_t out = dsc_program_add(program, emit_mlp(program, config, second), middle);
    dsc_program_end(program, config->post_norm ? emit_norm(program, config, out, traits->norm2, DSC_DENSE_NORM2) : out);
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

const char *dsc_dense_no_builtin(int32_t index, dsc_lm_config *out)
{
    return NULL;
}
