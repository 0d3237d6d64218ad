/* swiglu.h - the gated MLP's middle (Shazeer 2020), forward and backward: activation(gate) * up. The activation is SiLU
 * in SwiGLU, GELU in GeGLU (Gemma), ReLU in ReGLU; a sigmoid gates an attention's output.
 * reference: cpu/swiglu_ref.c   variants: swiglu_avx2.c swiglu_avx512.c   check and bench: tests/checkkern/swiglu.c
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_SWIGLU_H
#define DSC_KERNELS_SWIGLU_H
#include <dsc/types.h>

#include "kernels/gelu.h"
#ifdef __cplusplus
extern "C" {
#endif

/* Row r of gate and up starts at r * in_stride elements, so that both may be halves of one product's rows. */
typedef struct dsc_swiglu_fwd_args {
    void *out;             /* [rows, C], dense */
    const void *gate, *up; /* [rows, C], in_stride */
    int64_t rows, cols, in_stride;
    dsc_dtype dtype; /* F32, BF16 or F16 */
    dsc_activation kind;
} dsc_swiglu_fwd_args;

/* d_up = d_out * activation(gate), d_gate = d_out * up * slope(gate), and the forward's output again when `out` is not
 * NULL (the next weight's gradient needs it). Each element is read completely before any is written: d_gate may be
 * gate, d_up may be up, out may be d_out. */
typedef struct dsc_swiglu_bwd_args {
    void *d_gate, *d_up;   /* [rows, C], in_stride */
    void *out;             /* [rows, C], dense, or NULL */
    const void *d_out;     /* [rows, C], dense */
    const void *gate, *up; /* [rows, C], in_stride */
    int64_t rows, cols, in_stride;
    dsc_dtype dtype;
    dsc_activation kind;
} dsc_swiglu_bwd_args;

#ifdef __cplusplus
}
#endif
#endif
