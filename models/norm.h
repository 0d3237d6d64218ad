/* norm.h - a norm of a module, of either kind. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_MODELS_NORM_H
#define DSC_MODELS_NORM_H

#include "models/linear.h"

typedef enum dsc_norm_kind { DSC_NORM_LAYER, DSC_NORM_RMS } dsc_norm_kind;

/* One use of a norm. Its weight and bias are parameters of the module, or DSC_NORM_NONE. */
#define DSC_NORM_NONE (-1)
typedef struct dsc_norm {
    dsc_norm_kind kind;
    int64_t rows, channels;
    double eps;
    int32_t weight, bias; /* the bias is a layer norm's */
    bool plus_one;        /* the factor is 1 + weight */
    void *stats; /* [rows] fp32, of a layer norm [2,rows]: forward writes it, backward reads it */
    dsc_norm_rows wide; /* of `in`, and of backward's d_in */
    const void *add; /* forward, or NULL: the norm is of sum = in + add, which it writes */
    void *sum;       /* may be `in` or `add` */
} dsc_norm;

static inline int64_t dsc_norm_backward_scratch_bytes(dsc_norm_kind kind, int64_t rows, int64_t channels)
{
    return kind == DSC_NORM_LAYER ? dsc_layernorm_bwd_scratch_bytes(rows, channels)
                                  : dsc_rmsnorm_bwd_scratch_bytes(rows, channels);
}

/* The buffers of a backward: d_in = (d_residual or 0) + gradient through the norm. d_in may be d_residual, not d_out.
 */
typedef struct dsc_norm_gradient {
    void *d_in;
    const void *d_out, *d_residual, *in;
    void *scratch;
} dsc_norm_gradient;

DSC_MUST_USE dsc_status dsc_norm_forward(const dsc_call *call, dsc_norm norm, void *out, const void *in);
DSC_MUST_USE dsc_status dsc_norm_backward(const dsc_call *call, dsc_norm norm, const dsc_norm_gradient *buffers);

#endif
