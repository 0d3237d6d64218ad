/* lstm.h - one step of an LSTM (Hochreiter and Schmidhuber 1997) behind its products, forward and backward, as
 * torch.nn.LSTM has it: four gates, and the cell of the step before.
 *
 *     i, f, o = sigmoid(x + h + bias), g = tanh(x + h + bias);   c_t = f c_{t-1} + i g;   y_t = o tanh(c_t)
 *
 * x is the input's part of the gates, for all steps at once. h is the product of the step before, y_{t-1}, which the
 * caller launches. The columns of gates are those of i, f, g and o in this order. Letters: B samples, T steps, H
 * columns of y. Row b * T + t is step t of sample b. Cells and products are fp32, and every output is rounded once.
 * reference: cpu/lstm_ref.c   variants: lstm_avx2.c lstm_avx512.c   on a GPU: cuda/lstm.cu
 * check: tests/checkkern/lstm.c   SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_LSTM_H
#define DSC_KERNELS_LSTM_H
#include <dsc/types.h>
#ifdef __CUDACC__
#define DSC_LSTM_FN static __host__ __device__ __forceinline__
#else
#define DSC_LSTM_FN static inline
#endif
#ifdef __cplusplus
extern "C" {
#endif

typedef struct dsc_lstm_shape {
    int64_t samples, steps, hidden; /* B, T, H */
    int64_t step;                   /* t: the rows of the others are not written */
} dsc_lstm_shape;

typedef struct dsc_lstm_fwd_args {
    void *y;              /* [B*T, H] */
    void *gates;          /* [B*T, 4H]: i, f, g and o, for backward; it may be the memory of x */
    float *cells;         /* [B*T, H]: c */
    const void *x;        /* [B*T, 4H] */
    const float *product; /* [B, 4H]: h; step 0 has none and does not read it */
    const void *bias;     /* [4H], or NULL */
    dsc_lstm_shape shape;
    dsc_dtype dtype; /* F32, BF16 or F16 */
} dsc_lstm_fwd_args;

/* From the last step to the first. */
typedef struct dsc_lstm_bwd_args {
    void *d_gates;        /* [B*T, 4H]: the gradient of x + h + bias */
    void *before;         /* [B*T, H]: y of the step before, 0 of step 0; for the gradient of h's weight */
    float *d_cell;        /* [B, H]: read as that of c_t from the step behind, written as that of c_{t-1} */
    const void *d_y;      /* [B*T, H] */
    const float *product; /* [B, H]: the gradient of y_t from the step behind */
    const void *y, *gates;
    const float *cells;
    dsc_lstm_shape shape;
    dsc_dtype dtype;
} dsc_lstm_bwd_args; /* the last step reads neither d_cell nor product */

DSC_LSTM_FN int64_t dsc_lstm_row(const dsc_lstm_shape *of, int64_t sample) { return sample * of->steps + of->step; }
DSC_LSTM_FN bool dsc_lstm_is_first(const dsc_lstm_shape *of) { return of->step == 0; }
DSC_LSTM_FN bool dsc_lstm_is_last(const dsc_lstm_shape *of) { return of->step + 1 == of->steps; }

#ifdef __cplusplus
}
#endif
#endif
