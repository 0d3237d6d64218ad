/* program_reference_lstm.c - see program_reference_lstm.h. SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/program_reference_lstm.h"

#include <math.h>
#include <stdlib.h>

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

/* Gate k of column j of a row, before its activation; `before`: y of the row before, or NULL. */
static double gate_of(const program_reference *r, const dsc_op *op, int64_t row, const double *before, int64_t k,
                      int64_t j)
{
    const int64_t h = op->lstm.hidden, at = k * h + j;
    double sum = r->value[op->in[0]][row * 4 * h + at] + (op->lstm.bias >= 0 ? r->param[op->lstm.bias][at] : 0);
    for (int64_t c = 0; before != NULL && c < h; c++)
        sum += r->param[op->lstm.weight][at * h + c] * before[c];
    return sum;
}

static void forward(program_reference *r, const dsc_op *op, int64_t row, bool first)
{
    const int64_t h = op->lstm.hidden;
    double *y = r->value[op->out[0]] + row * h, *cell = r->value[op->out[2]] + row * h;
    for (int64_t j = 0; j < h; j++) {
        double gate[4];
        for (int64_t k = 0; k < 4; k++) {
            const double x = gate_of(r, op, row, first ? NULL : y - h, k, j);
            gate[k] = k == 2 ? tanh(x) : sigmoid(x);
            r->value[op->out[1]][(4 * row + k) * h + j] = gate[k];
        }
        cell[j] = gate[0] * gate[2] + (first ? 0 : gate[1] * cell[j - h]);
        y[j] = gate[3] * tanh(cell[j]);
    }
}

/* d_y and d_cell [H] are those that come from the row behind, and then those for the row before. */
static void backward(program_reference *r, const dsc_op *op, int64_t row, bool first, double *d_y, double *d_cell)
{
    const int64_t h = op->lstm.hidden;
    const double *y = r->value[op->out[0]] + row * h, *cell = r->value[op->out[2]] + row * h;
    const double *gates = r->value[op->out[1]] + 4 * row * h, *weight = r->param[op->lstm.weight];
    double *d = r->d_value[op->in[0]] + 4 * row * h, *before = calloc((size_t)h, sizeof *before);
    for (int64_t j = 0; j < h; j++) {
        const double in = gates[j], forget = gates[h + j], cell_in = gates[2 * h + j], out = gates[3 * h + j];
        const double t = tanh(cell[j]), dy = r->d_value[op->out[0]][row * h + j] + d_y[j];
        const double dc = dy * out * (1 - t * t) + d_cell[j];
        const double gradient[4] = { dc * cell_in * in * (1 - in), first ? 0 : dc * cell[j - h] * forget * (1 - forget),
                                     dc * in * (1 - cell_in * cell_in), dy * t * out * (1 - out) };
        d_cell[j] = dc * forget;
        for (int64_t k = 0; k < 4; k++) {
            d[k * h + j] += gradient[k];
            if (op->lstm.bias >= 0)
                r->d_param[op->lstm.bias][k * h + j] += gradient[k];
            for (int64_t c = 0; c < h && !first; c++) {
                r->d_param[op->lstm.weight][(k * h + j) * h + c] += gradient[k] * y[c - h];
                before[c] += gradient[k] * weight[(k * h + j) * h + c];
            }
        }
    }
    memcpy(d_y, before, (size_t)h * sizeof *d_y);
    free(before);
}

static void sample_backward(program_reference *r, const dsc_op *op, int64_t sample)
{
    const int64_t h = op->lstm.hidden, steps = r->program->value[op->out[0]].rows;
    double *d_y = calloc((size_t)h, sizeof *d_y), *d_cell = calloc((size_t)h, sizeof *d_cell);
    for (int64_t t = steps - 1; t >= 0; t--)
        backward(r, op, sample * steps + t, t == 0, d_y, d_cell);
    free(d_y);
    free(d_cell);
}

bool program_reference_lstm(program_reference *r, const dsc_op *op, bool is_backward)
{
    if (op->kind != DSC_OP_LSTM)
        return false;
    const int64_t steps = r->program->value[op->out[0]].rows;
    for (int64_t row = 0; row < r->batch * steps && !is_backward; row++)
        forward(r, op, row, row % steps == 0);
    for (int64_t b = 0; b < r->batch && is_backward; b++)
        sample_backward(r, op, b);
    return true;
}
