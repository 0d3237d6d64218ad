/* lstm.c - the builder's part for LSTMs, with the parameters of torch.nn.LSTM. SPDX-License-Identifier: Apache-2.0 */
#include "models/program/internal.h"

#include <math.h>

enum { HIDDEN_MAX = 1 << 16 };

/* Names of a layer's parameters: of the input's part of the gates, and of the part of the step before. */
typedef struct layer_parts {
    const char *in_weight, *in_bias, *weight, *bias;
} layer_parts;
#define PARTS(n)                                                                                                       \
    {                                                                                                                  \
        "weight_ih_l" #n, "bias_ih_l" #n, "weight_hh_l" #n, "bias_hh_l" #n                                             \
    }
static const layer_parts parts_of_layer[DSC_PROGRAM_LSTM_LAYERS] = { PARTS(0), PARTS(1), PARTS(2), PARTS(3),
                                                                     PARTS(4), PARTS(5), PARTS(6), PARTS(7) };

/* Torch's first values of all parameters of an LSTM. */
static void begin_uniformly(dsc_program *program, int32_t param, int64_t hidden)
{
    if (program->status == DSC_OK && param != DSC_PROGRAM_NONE)
        program->param[param].init = DSC_INIT_UNIFORM, program->param[param].std = 1 / sqrt((double)hidden);
}

static int32_t declare(dsc_program *program, const dsc_program_lstm_args *args, const char *part, int32_t dims)
{
    const dsc_program_param param = { .name = args->name,
                                      .part = part,
                                      .dim_count = dims,
                                      .dim = { 4 * args->hidden, dims > 1 ? args->hidden : 0 },
                                      .split = DSC_SPLIT_NONE };
    const int32_t number = dsc_program_declare(program, &param);
    begin_uniformly(program, number, args->hidden);
    return number;
}

/* The input's part of the gates of all steps: one product. */
static int16_t multiply_input(dsc_program *program, int16_t x, const dsc_program_lstm_args *args,
                              const layer_parts *parts)
{
    const dsc_program_linear_args linear = { .name = args->name,
                                             .weight_part = parts->in_weight,
                                             .bias_part = parts->in_bias,
                                             .shape = { program->value[x].columns, 4 * args->hidden, true },
                                             .bias = args->bias,
                                             .whole = true,
                                             .no_adapter = true };
    const int32_t layer = dsc_program_declare_linear(program, &linear);
    if (program->status != DSC_OK)
        return DSC_PROGRAM_NONE;
    begin_uniformly(program, program->layer[layer].weight, args->hidden);
    begin_uniformly(program, program->layer[layer].bias, args->hidden);
    return dsc_program_linear_of(program, x, layer);
}

static int16_t add_layer(dsc_program *program, int16_t x, const dsc_program_lstm_args *args, const layer_parts *parts)
{
    const int16_t gates = multiply_input(program, x, args, parts);
    const int32_t weight = declare(program, args, parts->weight, 2);
    const int32_t bias = args->bias ? declare(program, args, parts->bias, 1) : DSC_PROGRAM_NONE;
    dsc_op *op = program->status == DSC_OK ? dsc_program_add_forward(program, DSC_OP_LSTM, args->name) : NULL;
    if (op == NULL)
        return DSC_PROGRAM_NONE;
    op->in[0] = gates;
    op->lstm.hidden = args->hidden, op->lstm.weight = weight, op->lstm.bias = bias;
    dsc_value all = program->value[gates];
    all.height = all.width = 0;
    dsc_value one = all;
    one.columns = args->hidden;
    const int16_t y = dsc_program_add_output(program, op, 0, op->name, one);
    one.f32 = true;
    (void)dsc_program_add_output(program, op, 1, op->name, all);
    (void)dsc_program_add_output(program, op, 2, op->name, one);
    return y;
}

int16_t dsc_program_lstm(dsc_program *program, int16_t x, const dsc_program_lstm_args *args)
{
    if (!dsc_program_is_value(program, DSC_OP_LSTM, args->name, x))
        return DSC_PROGRAM_NONE;
    const dsc_value *in = &program->value[x];
    if (!in->per_sample || in->f32 || program->positions >= 0)
        REFUSE(program,
               "op \"%.60s\" (lstm): its input \"%.60s\" [%lld,%lld] is not a sequence; expected a row for "
               "each step of a sample, which is one document",
               args->name, in->name, (long long)in->rows, (long long)in->columns);
    else if (args->hidden < 1 || args->hidden > HIDDEN_MAX || args->layers < 1 ||
             args->layers > DSC_PROGRAM_LSTM_LAYERS)
        REFUSE(program, "op \"%.60s\" (lstm): %lld columns in %d layers; expected 1 to %d columns and 1 to %d layers",
               args->name, (long long)args->hidden, (int)args->layers, HIDDEN_MAX, DSC_PROGRAM_LSTM_LAYERS);
    for (int32_t i = 0; i < args->layers && program->status == DSC_OK; i++)
        x = add_layer(program, x, args, &parts_of_layer[i]);
    return program->status == DSC_OK ? x : DSC_PROGRAM_NONE;
}
