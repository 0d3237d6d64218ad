/* lstm_v16.h - a step of an LSTM on 16 lanes; compiled by lstm_avx2.c and lstm_avx512.c after their v16 words.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/lstm_internal.h"

/* Gate k of the columns from j on, before its activation. */
V16_INLINE v16 gate_part(const dsc_lstm_fwd_args *a, const dsc_lstm_piece *p, int64_t k, int64_t j, int64_t left,
                         dsc_dtype dtype)
{
    const int64_t at = k * a->shape.hidden + j, columns = 4 * a->shape.hidden;
    v16 sum = v16_load(a->x, p->row * columns + at, left, dtype);
    if (!dsc_lstm_is_first(&a->shape))
        sum = v16_add(sum, v16_load(a->product, p->sample * columns + at, left, DSC_F32));
    return a->bias != NULL ? v16_add(sum, v16_load(a->bias, at, left, dtype)) : sum;
}

V16_INLINE void fwd_part(const dsc_lstm_fwd_args *a, const dsc_lstm_piece *p, int64_t j, int64_t left, dsc_dtype dtype)
{
    const int64_t h = a->shape.hidden, at = p->row * h + j;
    const v16 in = v16_sigmoid(gate_part(a, p, 0, j, left, dtype));
    const v16 forget = v16_sigmoid(gate_part(a, p, 1, j, left, dtype));
    const v16 cell_in = v16_tanh(gate_part(a, p, 2, j, left, dtype));
    const v16 out = v16_sigmoid(gate_part(a, p, 3, j, left, dtype));
    v16 cell = v16_mul(in, cell_in);
    if (!dsc_lstm_is_first(&a->shape))
        cell = v16_fma(forget, v16_load(a->cells, at - h, left, DSC_F32), cell);
    v16_store(a->gates, 4 * p->row * h + j, left, dtype, in);
    v16_store(a->gates, (4 * p->row + 1) * h + j, left, dtype, forget);
    v16_store(a->gates, (4 * p->row + 2) * h + j, left, dtype, cell_in);
    v16_store(a->gates, (4 * p->row + 3) * h + j, left, dtype, out);
    v16_store(a->cells, at, left, DSC_F32, cell);
    v16_store(a->y, at, left, dtype, v16_mul(out, v16_tanh(cell)));
}

V16_INLINE void lstm_fwd(const dsc_lstm_fwd_args *a, int64_t first, int64_t last, dsc_dtype dtype)
{
    for (int64_t block = first; block < last; block++) {
        const dsc_lstm_piece p = dsc_lstm_piece_of(&a->shape, block);
        int64_t j = p.first;
        for (; j + 16 <= p.last; j += 16)
            fwd_part(a, &p, j, 16, dtype);
        if (j < p.last)
            fwd_part(a, &p, j, p.last - j, dtype);
    }
}

/* x (1 - x) */
V16_INLINE v16 bell(v16 x) { return v16_mul(x, v16_sub(v16_set(1), x)); }

V16_INLINE void bwd_part(const dsc_lstm_bwd_args *a, const dsc_lstm_piece *p, int64_t j, int64_t left, dsc_dtype dtype)
{
    const bool follows = !dsc_lstm_is_first(&a->shape), leads = !dsc_lstm_is_last(&a->shape);
    const int64_t h = a->shape.hidden, at = p->row * h + j, of_sample = p->sample * h + j;
    const v16 in = v16_load(a->gates, 4 * p->row * h + j, left, dtype);
    const v16 forget = v16_load(a->gates, (4 * p->row + 1) * h + j, left, dtype);
    const v16 cell_in = v16_load(a->gates, (4 * p->row + 2) * h + j, left, dtype);
    const v16 out = v16_load(a->gates, (4 * p->row + 3) * h + j, left, dtype);
    const v16 one = v16_set(1), zero = v16_set(0), t = v16_tanh(v16_load(a->cells, at, left, DSC_F32));
    v16 dy = v16_load(a->d_y, at, left, dtype);
    if (leads)
        dy = v16_add(dy, v16_load(a->product, of_sample, left, DSC_F32));
    v16 dc = v16_mul(v16_mul(dy, out), v16_fnma(t, t, one));
    if (leads)
        dc = v16_add(dc, v16_load(a->d_cell, of_sample, left, DSC_F32));
    const v16 before = follows ? v16_load(a->cells, at - h, left, DSC_F32) : zero;
    const v16 slope = v16_fnma(cell_in, cell_in, one);
    v16_store(a->d_gates, 4 * p->row * h + j, left, dtype, v16_mul(v16_mul(dc, cell_in), bell(in)));
    v16_store(a->d_gates, (4 * p->row + 1) * h + j, left, dtype, v16_mul(v16_mul(dc, before), bell(forget)));
    v16_store(a->d_gates, (4 * p->row + 2) * h + j, left, dtype, v16_mul(v16_mul(dc, in), slope));
    v16_store(a->d_gates, (4 * p->row + 3) * h + j, left, dtype, v16_mul(v16_mul(dy, t), bell(out)));
    v16_store(a->before, at, left, dtype, follows ? v16_load(a->y, at - h, left, dtype) : zero);
    v16_store(a->d_cell, of_sample, left, DSC_F32, v16_mul(dc, forget));
}

V16_INLINE void lstm_bwd(const dsc_lstm_bwd_args *a, int64_t first, int64_t last, dsc_dtype dtype)
{
    for (int64_t block = first; block < last; block++) {
        const dsc_lstm_piece p = dsc_lstm_piece_of(&a->shape, block);
        int64_t j = p.first;
        for (; j + 16 <= p.last; j += 16)
            bwd_part(a, &p, j, 16, dtype);
        if (j < p.last)
            bwd_part(a, &p, j, p.last - j, dtype);
    }
}

void V16_NAME(lstm_fwd)(const void *args, int64_t first, int64_t last)
{
    const dsc_lstm_fwd_args local = *(const dsc_lstm_fwd_args *)args, *a = &local;
    DSC_FOR_DTYPE(a->dtype, lstm_fwd(a, first, last, dtype));
}

void V16_NAME(lstm_bwd)(const void *args, int64_t first, int64_t last)
{
    const dsc_lstm_bwd_args local = *(const dsc_lstm_bwd_args *)args, *a = &local;
    DSC_FOR_DTYPE(a->dtype, lstm_bwd(a, first, last, dtype));
}
