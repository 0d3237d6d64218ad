/* gelu.h - activations of one number: GELU (Hendrycks & Gimpel 2016) in both forms, ReLU, SiLU and their relatives.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_GELU_H
#define DSC_KERNELS_GELU_H
#include <dsc/types.h>
#ifdef __cplusplus
extern "C" {
#endif

typedef enum dsc_activation {
    DSC_GELU_TANH, /* 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), as GPT-2 uses it */
    DSC_GELU_ERF,  /* 0.5 x (1 + erf(x / sqrt(2))) */
    DSC_RELU,      /* max(x, 0); its slope at 0 is 0 */
    DSC_SILU,      /* x / (1 + exp(-x)), also called swish */
    DSC_RELU2,     /* max(x, 0)^2 (So et al. 2021) */
    DSC_SIGMOID,   /* 1 / (1 + exp(-x)): the gate of an output */
    DSC_HALF_SQUARE, /* x^2 / 2; its slope is x, so that GELU_BWD multiplies two arrays */
    DSC_RELU6,        /* min(max(x, 0), 6); its slope at 0 and 6 is 0 */
    DSC_HARD_SIGMOID, /* min(max(x / 6 + 1/2, 0), 1); its slope at -3 and 3 is 0 (Howard et al. 2019) */
    DSC_HARD_SWISH,   /* x times that; its slope at -3 is 0 and at 3 is 1 */
    DSC_ACTIVATIONS
} dsc_activation;

typedef struct dsc_gelu_fwd_args {
    void *out;
    const void *in;
    int64_t count;
    dsc_dtype dtype;
    dsc_activation kind;
} dsc_gelu_fwd_args;

/* d_in = d_out * slope(in); d_in may be d_out. */
typedef struct dsc_gelu_bwd_args {
    void *d_in;
    const void *d_out, *in;
    int64_t count;
    dsc_dtype dtype;
    dsc_activation kind;
} dsc_gelu_bwd_args;

#ifdef __cplusplus
}
#endif
#endif
