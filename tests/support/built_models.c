/* built_models.c - see built_models.h. SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/built_models.h"

#include <math.h>
#include <stdio.h>

#include "base/base.h"
#include "base/bf16.h"

/* ---- a block of Llama -------------------------------------------------------------------------------------------- */

static dsc_node llama_block(dsc_builder *b, dsc_node x, int64_t block, void *user)
{
    dsc_build_attention_options options = DSC_BUILD_ATTENTION_OPTIONS_INIT;
    options.heads = 4, options.kv_heads = 2;
    (void)block, (void)user;
    dsc_node n = dsc_build_norm(b, x, "norm1", DSC_BUILD_RMS_NORM, 1, 1e-5);
    const dsc_node q = dsc_build_linear(b, n, "q", 128, false), k = dsc_build_linear(b, n, "k", 64, false);
    const dsc_node v = dsc_build_linear(b, n, "v", 64, false);
    const dsc_node heads =
        dsc_build_attention(b, dsc_build_rope(b, q, 4, 32, 10000), dsc_build_rope(b, k, 2, 32, 10000), v, &options);
    x = dsc_build_add(b, dsc_build_linear(b, heads, "o", 128, false), x);
    n = dsc_build_norm(b, x, "norm2", DSC_BUILD_RMS_NORM, 1, 1e-5);
    const dsc_node gate = dsc_build_linear(b, n, "gate", 352, false), up = dsc_build_linear(b, n, "up", 352, false);
    return dsc_build_add(b, dsc_build_linear(b, dsc_build_gated(b, gate, up), "down", 128, false), x);
}

static dsc_model *finish(dsc_builder *b, bool tied, dsc_build_norm_kind norm)
{
    dsc_build_head_options head = DSC_BUILD_HEAD_OPTIONS_INIT;
    dsc_model *model = NULL;
    dsc_error err = DSC_ERROR_INIT;
    char text[800];
    head.tied = tied, head.norm = norm;
    if (dsc_build_finish(&b, &head, &model, &err) != DSC_OK)
        fprintf(stderr, "built_models: %s\n", dsc_error_format(&err, text, sizeof text));
    DSC_ASSERT(model != NULL);
    DSC_ASSERT(b == NULL);
    return model;
}

static dsc_builder *begin(int64_t tokens, int64_t vocabulary, int64_t channels, bool positions)
{
    dsc_build_options options = DSC_BUILD_OPTIONS_INIT;
    dsc_builder *b = NULL;
    options.name = "built", options.tokens = tokens, options.vocabulary = vocabulary, options.channels = channels;
    options.positions = positions;
    const dsc_status status = dsc_build_open(&b, &options, NULL);
    DSC_ASSERT(status == DSC_OK);
    return b;
}

dsc_model *built_llama_nano(int64_t tokens)
{
    dsc_builder *b = begin(tokens, 256, 128, false);
    dsc_build_blocks(b, 4, llama_block, NULL);
    return finish(b, true, DSC_BUILD_RMS_NORM);
}

/* ---- custom ops -------------------------------------------------------------------------------------------------- */

static float get(const void *x, int64_t i, dsc_dtype dtype)
{
    DSC_ASSERT(dtype == DSC_F32 || dtype == DSC_BF16);
    return dtype == DSC_F32 ? ((const float *)x)[i] : dsc_f32_from_bf16(((const uint16_t *)x)[i]);
}

static void put(void *x, int64_t i, dsc_dtype dtype, float value)
{
    if (dtype == DSC_F32)
        ((float *)x)[i] = value;
    else
        ((uint16_t *)x)[i] = dsc_bf16_from_f32(value);
}

static dsc_status swish_forward(void *user, const dsc_custom_call *call, dsc_error *err)
{
    (void)user, (void)err;
    DSC_ASSERT(call->in_columns[0] == call->out_columns);
    for (int64_t i = 0; i < call->rows * call->out_columns; i++) {
        const float x = get(call->in[0], i, call->dtype), w = get(call->param[0], i % call->out_columns, call->dtype);
        put(call->out, i, call->dtype, x * w / (1 + expf(-x)) + get(call->in[1], i, call->dtype));
    }
    return DSC_OK;
}

/* The scratch has the weight's gradient, which the parameter's gets when it is whole. */
static dsc_status swish_backward(void *user, const dsc_custom_call *call, dsc_error *err)
{
    const int64_t columns = call->out_columns;
    float *sum = call->scratch;
    (void)user, (void)err;
    DSC_ASSERT(call->result == NULL);
    DSC_ASSERT(call->out == NULL);
    for (int64_t c = 0; c < columns; c++)
        sum[c] = 0;
    for (int64_t i = 0; i < call->rows * columns; i++) {
        const float x = get(call->in[0], i, call->dtype), w = get(call->param[0], i % columns, call->dtype);
        const float s = 1 / (1 + expf(-x)), d = get(call->d_out, i, call->dtype);
        put(call->d_in[0], i, call->dtype, d * w * (s + x * s * (1 - s)));
        put(call->d_in[1], i, call->dtype, d);
        sum[i % columns] += d * x * s;
    }
    for (int64_t c = 0; c < columns && call->grad[0] != NULL; c++)
        call->grad[0][c] = sum[c];
    return DSC_OK;
}

static dsc_status tanh_forward(void *user, const dsc_custom_call *call, dsc_error *err)
{
    (void)user, (void)err;
    for (int64_t i = 0; i < call->rows * call->out_columns; i++)
        put(call->out, i, call->dtype, tanhf(get(call->in[0], i, call->dtype)));
    return DSC_OK;
}

static dsc_status tanh_backward(void *user, const dsc_custom_call *call, dsc_error *err)
{
    (void)user, (void)err;
    DSC_ASSERT(call->in[0] == NULL);
    for (int64_t i = 0; i < call->rows * call->out_columns; i++) {
        const float y = get(call->result, i, call->dtype);
        put(call->d_in[0], i, call->dtype, get(call->d_out, i, call->dtype) * (1 - y * y));
    }
    return DSC_OK;
}

const dsc_custom_op built_swish = { .struct_bytes = sizeof built_swish,
                                    .name = "swish",
                                    .input_count = 2,
                                    .backward_reads_in = true,
                                    .scratch_bytes = 4 * 24,
                                    .flops_per_row = 5 * 24,
                                    .param_count = 1,
                                    .param = { { .name = "weight", .columns = 24, .ones = true } },
                                    .forward = swish_forward,
                                    .backward = swish_backward };
const dsc_custom_op built_tanh = { .struct_bytes = sizeof built_tanh,
                                   .name = "tanh",
                                   .input_count = 1,
                                   .backward_reads_out = true,
                                   .forward = tanh_forward,
                                   .backward = tanh_backward };

/* ---- blocks that differ ------------------------------------------------------------------------------------------ */

static dsc_node attention_block(dsc_builder *b, dsc_node x, double dropout)
{
    dsc_build_attention_options options = DSC_BUILD_ATTENTION_OPTIONS_INIT;
    options.heads = 3, options.window = 5, options.scale = 0.3;
    const dsc_node n = dsc_build_norm(b, x, "norm", DSC_BUILD_LAYER_NORM, 1, 1e-5);
    const dsc_node qkv = dsc_build_linear(b, n, "qkv", 3 * 24, true);
    const dsc_node y = dsc_build_attention(b, dsc_build_slice(b, qkv, 0, 24), dsc_build_slice(b, qkv, 24, 24),
                                           dsc_build_slice(b, qkv, 48, 24), &options);
    return dsc_build_add(b, x, dsc_build_dropout(b, dsc_build_linear(b, y, "out", 24, true), dropout));
}

static dsc_node custom_block(dsc_builder *b, dsc_node x)
{
    const dsc_node n = dsc_build_norm(b, x, "norm", DSC_BUILD_RMS_NORM, 3, 1e-5);
    const dsc_node up = dsc_build_activation(b, dsc_build_linear(b, n, "up", 40, false), DSC_BUILD_GELU_TANH);
    const dsc_node in[2] = { n, dsc_build_linear(b, up, "down", 24, true) };
    const dsc_node y = dsc_build_custom(b, in, &built_swish);
    return dsc_build_add(b, dsc_build_scale(b, dsc_build_custom(b, &y, &built_tanh), 0.5), x);
}

dsc_model *built_mixed(double dropout)
{
    dsc_builder *b = begin(12, 50, 24, true);
    dsc_build_end(b, attention_block(b, dsc_build_begin(b), dropout));
    dsc_build_end(b, custom_block(b, dsc_build_begin(b)));
    return finish(b, false, DSC_BUILD_LAYER_NORM);
}
