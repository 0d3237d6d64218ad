/* lstm_ref.c - a step of an LSTM in double, rounded once. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/lstm_internal.h"

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

/* Gate k of column j before its activation. */
static double gate_of(const dsc_lstm_fwd_args *a, const dsc_lstm_piece *p, int64_t k, int64_t j)
{
    const int64_t at = k * a->shape.hidden + j, columns = 4 * a->shape.hidden;
    const double h = dsc_lstm_is_first(&a->shape) ? 0 : (double)a->product[p->sample * columns + at];
    const double bias = a->bias != NULL ? (double)dsc_get(a->bias, at, a->dtype) : 0;
    return (double)dsc_get(a->x, p->row * columns + at, a->dtype) + h + bias;
}

void dsc_lstm_fwd_ref(const void *args, int64_t first, int64_t last)
{
    const dsc_lstm_fwd_args *a = args;
    const int64_t h = a->shape.hidden;
    const bool is_first = dsc_lstm_is_first(&a->shape);
    for (int64_t block = first; block < last; block++) {
        const dsc_lstm_piece p = dsc_lstm_piece_of(&a->shape, block);
        for (int64_t j = p.first; j < p.last; j++) {
            double gate[4];
            for (int k = 0; k < 4; k++)
                gate[k] = k == 2 ? tanh(gate_of(a, &p, k, j)) : sigmoid(gate_of(a, &p, k, j));
            const int64_t at = p.row * h + j;
            const float cell = (float)(gate[0] * gate[2] + (is_first ? 0 : gate[1] * (double)a->cells[at - h]));
            for (int64_t k = 0; k < 4; k++)
                dsc_put(a->gates, (4 * p.row + k) * h + j, a->dtype, (float)gate[k]);
            a->cells[at] = cell;
            dsc_put(a->y, at, a->dtype, (float)(gate[3] * tanh((double)cell)));
        }
    }
}

void dsc_lstm_bwd_ref(const void *args, int64_t first, int64_t last)
{
    const dsc_lstm_bwd_args *a = args;
    const int64_t h = a->shape.hidden;
    const bool follows = !dsc_lstm_is_first(&a->shape), leads = !dsc_lstm_is_last(&a->shape);
    for (int64_t block = first; block < last; block++) {
        const dsc_lstm_piece p = dsc_lstm_piece_of(&a->shape, block);
        for (int64_t j = p.first; j < p.last; j++) {
            const int64_t at = p.row * h + j, of_sample = p.sample * h + j;
            double gate[4], d[4];
            for (int64_t k = 0; k < 4; k++)
                gate[k] = (double)dsc_get(a->gates, (4 * p.row + k) * h + j, a->dtype);
            const double t = tanh((double)a->cells[at]), before = follows ? (double)a->cells[at - h] : 0;
            const double dy = (double)dsc_get(a->d_y, at, a->dtype) + (leads ? (double)a->product[of_sample] : 0);
            const double dc = dy * gate[3] * (1 - t * t) + (leads ? (double)a->d_cell[of_sample] : 0);
            d[0] = dc * gate[2] * gate[0] * (1 - gate[0]);
            d[1] = dc * before * gate[1] * (1 - gate[1]);
            d[2] = dc * gate[0] * (1 - gate[2] * gate[2]);
            d[3] = dy * t * gate[3] * (1 - gate[3]);
            for (int64_t k = 0; k < 4; k++)
                dsc_put(a->d_gates, (4 * p.row + k) * h + j, a->dtype, (float)d[k]);
            dsc_put(a->before, at, a->dtype, follows ? dsc_get(a->y, at - h, a->dtype) : 0);
            a->d_cell[of_sample] = (float)(dc * gate[1]);
        }
    }
}
