/* gelu.h - GELU with the tanh approximation (Hendrycks & Gimpel 2016, as GPT-2 uses it).
 * gelu(x) = 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))). SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_GELU_H
#define DSC_KERNELS_GELU_H
#include <dsc/types.h>
#ifdef __cplusplus
extern "C" {
#endif

typedef struct dsc_gelu_fwd_args {
    void *out;
    const void *in;
    int64_t count;
    dsc_dtype dtype;
} dsc_gelu_fwd_args;

/* d_in = d_out * gelu'(in); d_in may be d_out. */
typedef struct dsc_gelu_bwd_args {
    void *d_in;
    const void *d_out, *in;
    int64_t count;
    dsc_dtype dtype;
} dsc_gelu_bwd_args;

#ifdef __cplusplus
}
#endif
#endif
