/* program_reference_delta.c - linear attention in double, for program_reference.c. SPDX-License-Identifier: Apache-2.0
 */
#include "tests/support/program_reference_delta.h"

#include "tests/support/delta_reference.h"

/* One input of a convolution, whose channels are `first` and so on of the output. */
static void conv(program_reference *r, const dsc_op *op, int input, int64_t first, bool backward)
{
    const int64_t channels = r->program->value[op->in[input]].columns, width = op->conv.width;
    const int64_t all = r->program->value[op->out[0]].columns, tokens = r->program->tokens;
    const double *x = r->value[op->in[input]];
    double *y = r->value[op->out[0]], *dx = r->d_value[op->in[input]];
    for (int64_t t = 0; t < r->batch * tokens; t++)
        for (int64_t c = 0; c < channels; c++)
            for (int64_t j = 0; j < width && j <= t % tokens; j++) {
                const int64_t w = (first + c) * width + width - 1 - j, at = (t - j) * channels + c;
                const double d = r->d_value[op->out[0]][t * all + first + c];
                if (!backward) {
                    y[t * all + first + c] += x[at] * r->param[op->conv.weight][w];
                    continue;
                }
                dx[at] += d * r->param[op->conv.weight][w];
                r->d_param[op->conv.weight][w] += d * x[at];
            }
}

static void delta(program_reference *r, const dsc_op *op, bool backward)
{
    const dsc_op_delta *of = &op->delta;
    const delta_reference args = { .shape = { (int32_t)r->batch, (int32_t)r->program->tokens, (int32_t)of->key_heads,
                                              (int32_t)of->value_heads, (int32_t)of->key_size,
                                              (int32_t)of->value_size },
                                   .qkv = r->value[op->in[0]],
                                   .b = r->value[op->in[1]],
                                   .a = r->value[op->in[2]],
                                   .a_log = r->param[of->a_log],
                                   .dt_bias = r->param[of->dt_bias],
                                   .out = backward ? NULL : r->value[op->out[0]],
                                   .d_out = backward ? r->d_value[op->out[0]] : NULL,
                                   .d_qkv = r->d_value[op->in[0]],
                                   .d_b = r->d_value[op->in[1]],
                                   .d_a = r->d_value[op->in[2]],
                                   .d_a_log = r->d_param[of->a_log],
                                   .d_dt_bias = r->d_param[of->dt_bias] };
    delta_reference_run(&args);
}

bool program_reference_delta(program_reference *r, const dsc_op *op, bool backward)
{
    const int64_t elements = program_reference_elements(r, op->out[0]);
    int64_t first = 0;
    switch (op->kind) {
    case DSC_OP_PACK:
        for (int64_t i = 0; i < elements && backward; i++)
            r->d_value[op->in[0]][i] += r->d_value[op->out[0]][i];
        if (!backward)
            memcpy(r->value[op->out[0]], r->value[op->in[0]], (size_t)elements * sizeof(double));
        return true;
    case DSC_OP_CONV:
        for (int i = 0; i < 3 && op->in[i] != DSC_PROGRAM_NONE; i++) {
            conv(r, op, i, first, backward);
            first += r->program->value[op->in[i]].columns;
        }
        return true;
    case DSC_OP_DELTA:
        delta(r, op, backward);
        return true;
    default:
        return false;
    }
}
