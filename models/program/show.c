/* show.c - a compiled program as text for people. SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stdio.h>

#include "models/program/internal.h"

typedef struct text {
    char *out;
    size_t bytes, used; /* `used` counts on where the room ends, as snprintf does */
} text;

__attribute__((format(printf, 2, 3))) static void add(text *t, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    const bool room = t->used < t->bytes;
    const int count = vsnprintf(room ? t->out + t->used : NULL, room ? t->bytes - t->used : 0, format, args);
    va_end(args);
    DSC_ASSERT(count >= 0);
    t->used += (size_t)count;
}

static const char *store_text(const dsc_program *program, int16_t value)
{
    static const char *const texts[] = { "scratch", "input", "saved", "rebuilt", "repeated", "again" };
    return value == program->output ? "out" : texts[program->value[value].store];
}

static const char *activation_text(dsc_activation kind)
{
    static const char *const texts[DSC_ACTIVATIONS] = { [DSC_GELU_TANH] = "gelu tanh",
                                                        [DSC_GELU_ERF] = "gelu erf",
                                                        [DSC_RELU] = "relu",
                                                        [DSC_SILU] = "silu",
                                                        [DSC_RELU2] = "relu squared",
                                                        [DSC_SIGMOID] = "sigmoid",
                                                        [DSC_HALF_SQUARE] = "half square",
                                                        [DSC_RELU6] = "relu6",
                                                        [DSC_HARD_SIGMOID] = "hard sigmoid",
                                                        [DSC_HARD_SWISH] = "hard swish" };
    return texts[kind];
}

static void add_epilogue(text *t, dsc_epilogue epilogue, dsc_activation kind)
{
    static const char *const texts[] = {
        "", " + bias", " + bias, gelu", " + bias + residual", " * gelu'", " + sum", " + bias, ", ", ", " * slope of "
    };
    add(t, "%s", texts[epilogue]);
    if (epilogue >= DSC_EPILOGUE_BIAS_ACTIVATION)
        add(t, "%s", activation_text(kind));
}

static double flops_of(const dsc_program *program, const dsc_op *op, int64_t batch)
{
    return dsc_op_infos[op->kind].flops != NULL ? dsc_op_infos[op->kind].flops(program, op, batch) : 0;
}

static bool is_conv2d(const dsc_op *op)
{
    return op->kind == DSC_OP_CONV2D || op->kind == DSC_OP_CONV2D_DX || op->kind == DSC_OP_CONV2D_DW;
}

/* Bytes of an op's inputs and outputs and, of a product, of its weight or the weight's gradient. A view moves none. */
static int64_t moved_bytes(const dsc_program *program, const dsc_op *op, int64_t batch, dsc_dtype dtype)
{
    int64_t bytes = 0;
    if (dsc_op_infos[op->kind].is_view)
        return 0;
    for (int i = 0; i < DSC_OP_INPUTS + DSC_OP_OUTPUTS; i++) {
        const int16_t value = i < DSC_OP_INPUTS ? op->in[i] : op->out[i - DSC_OP_INPUTS];
        if (value != DSC_PROGRAM_NONE)
            bytes += dsc_value_bytes(&program->value[value], batch, dtype);
    }
    const bool linear = op->kind == DSC_OP_LINEAR || op->kind == DSC_OP_LINEAR_DX || op->kind == DSC_OP_LINEAR_DW;
    if (linear)
        bytes += op->linear.shape.in * op->linear.shape.out *
                 (int64_t)dsc_dtype_bytes(op->kind == DSC_OP_LINEAR_DW ? DSC_F32 : dtype);
    if (op->kind == DSC_OP_LSTM || op->kind == DSC_OP_LSTM_BWD)
        bytes += 4 * op->lstm.hidden * op->lstm.hidden * (int64_t)dsc_dtype_bytes(dtype);
    if (is_conv2d(op))
        bytes += dsc_conv2d_weights(&op->conv2d.shape) *
                 (int64_t)dsc_dtype_bytes(op->kind == DSC_OP_CONV2D_DW ? DSC_F32 : dtype);
    return bytes;
}

/* The parts of a window that are not the usual ones. */
static void add_window(text *t, const dsc_conv2d_shape *s)
{
    add(t, " of %lld x %lld", (long long)s->kernel[0], (long long)s->kernel[1]);
    if (s->stride[0] > 1 || s->stride[1] > 1)
        add(t, " stride %lld x %lld", (long long)s->stride[0], (long long)s->stride[1]);
    if (s->dilation[0] > 1 || s->dilation[1] > 1)
        add(t, " dilation %lld x %lld", (long long)s->dilation[0], (long long)s->dilation[1]);
    if (s->groups > 1)
        add(t, " in %lld groups", (long long)s->groups);
}

static void add_operand(text *t, const dsc_program *program, int16_t value, const char *before)
{
    if (value != DSC_PROGRAM_NONE)
        add(t, "%s%s.%d", before, program->value[value].name, (int)value);
}

static void add_op(text *t, const dsc_program *program, const dsc_op *op, int64_t batch, dsc_dtype dtype)
{
    const int64_t bytes = moved_bytes(program, op, batch, dtype);
    const bool product = op->kind == DSC_OP_LINEAR, back = op->kind == DSC_OP_LINEAR_DX;
    add(t, "  %-14s", dsc_op_infos[op->kind].name);
    for (int i = 0; i < DSC_OP_INPUTS; i++)
        add_operand(t, program, op->in[i], i == 0 ? " " : ", ");
    for (int i = 0; i < DSC_OP_OUTPUTS; i++)
        add_operand(t, program, op->out[i], i == 0 ? " -> " : ", ");
    if (product || back)
        add_epilogue(t, product ? op->linear.forward : op->linear.backward,
                     product ? op->linear.activation : op->linear.slope);
    if ((product || back || op->kind == DSC_OP_LINEAR_DW) && op->linear.part_count > 0)
        add(t, " of %d layers", (int)op->linear.part_count);
    if (op->kind == DSC_OP_NORM && op->in[1] != DSC_PROGRAM_NONE)
        add(t, " of the sum");
    if (op->kind == DSC_OP_ACTIVATION || op->kind == DSC_OP_ACTIVATION_BWD)
        add(t, " (%s)", activation_text(op->activation));
    if (is_conv2d(op))
        add_window(t, &op->conv2d.shape);
    if (flops_of(program, op, batch) > 0)
        add(t, "  %.4g MFLOP", flops_of(program, op, batch) * 1e-6);
    if (bytes > 0)
        add(t, "  %.4g MB", (double)bytes * 1e-6);
    add(t, "%s\n", op->unless_kept ? "  (unless kept)" : "");
}

int dsc_program_show(const dsc_program *program, int64_t batch, dsc_dtype dtype, char *out, size_t bytes)
{
    static const char *const names[] = { "forward", "rebuild", "backward" };
    text t = { out, bytes, 0 };
    const dsc_op_batch of = { .batch = batch, .dtype = dtype };
    dsc_any_pass_layout own;
    const dsc_pass_layout *const at = &own.at;
    for (int pass = 0; pass < DSC_PASSES; pass++) {
        dsc_program_lay(program, (dsc_pass)pass, &of, &own);
        add(&t, "%s: %d ops, %lld bytes of scratch\n", names[pass], (int)program->list[pass].count,
            (long long)at->scratch_bytes);
        for (int16_t i = 0; i < program->list[pass].count; i++)
            add_op(&t, program, &program->op[program->list[pass].op[i]], batch, dtype);
    }
    add(&t, "values: %lld bytes saved, %lld rebuilt, %lld repeated\n", (long long)at->saved_bytes,
        (long long)at->rebuilt_bytes, (long long)at->repeated_bytes);
    for (int16_t i = 0; i < program->d_output; i++) {
        const dsc_value *value = &program->value[i];
        add(&t, "  %-20s [%lld,%lld] %s, %lld bytes, %s\n", value->name, (long long)dsc_value_rows(value, batch),
            (long long)value->columns, value->f32 ? "f32" : "compute", (long long)dsc_value_bytes(value, batch, dtype),
            store_text(program, i));
    }
    return (int)t.used;
}
