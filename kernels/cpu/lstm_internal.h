/* lstm_internal.h - blocks of an LSTM's step, for all variants: a piece of a sample's columns. Private to kernels/.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CPU_LSTM_INTERNAL_H
#define DSC_KERNELS_CPU_LSTM_INTERNAL_H

#include "kernels/cpu/range.h"
#include "kernels/lstm.h"

enum { DSC_LSTM_COLS = 512 };

/* Columns [first, last) of a sample, and its row. */
typedef struct dsc_lstm_piece {
    int64_t sample, row, first, last;
} dsc_lstm_piece;

static inline int64_t dsc_lstm_pieces(const dsc_lstm_shape *of) { return dsc_div_ceil(of->hidden, DSC_LSTM_COLS); }

static inline dsc_lstm_piece dsc_lstm_piece_of(const dsc_lstm_shape *of, int64_t block)
{
    const int64_t pieces = dsc_lstm_pieces(of), sample = block / pieces, first = block % pieces * DSC_LSTM_COLS;
    return (dsc_lstm_piece) { sample, dsc_lstm_row(of, sample), first, dsc_min_i64(of->hidden, first + DSC_LSTM_COLS) };
}

#define DSC_LSTM_DECL(isa)                                                                                             \
    void dsc_lstm_fwd_##isa(const void *args, int64_t first, int64_t last); /* block: dsc_lstm_piece_of */             \
    void dsc_lstm_bwd_##isa(const void *args, int64_t first, int64_t last);
DSC_LSTM_DECL(ref)
DSC_LSTM_DECL(avx2)
DSC_LSTM_DECL(avx512)
#undef DSC_LSTM_DECL

#endif
