/* expert_bias.h - biases of experts' products: each row of a routed token gets the bias of its expert. Rows lie in
 * expert order (moe.h): expert e has rows starts[e] .. starts[e + 1] - 1.
 * reference, the only variant: cpu/expert_bias.c   check: tests/checkkern/expert_bias.c
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_EXPERT_BIAS_H
#define DSC_KERNELS_EXPERT_BIAS_H
#include <dsc/types.h>
#ifdef __cplusplus
extern "C" {
#endif

/* x[r] += bias[e] for each row r of expert e: an addition in fp32, rounded once. */
typedef struct dsc_expert_bias_fwd_args {
    void *x;               /* [rows, cols] */
    const void *bias;      /* [experts, cols] */
    const int32_t *starts; /* [experts + 1] */
    int64_t rows, cols;    /* rows: starts[experts] */
    int32_t experts;
    dsc_dtype dtype; /* dtype of x and bias: F32, BF16 or F16 */
} dsc_expert_bias_fwd_args;

/* d_bias[e] = the sum of the expert's rows in order, in fp32; 0 without rows. */
typedef struct dsc_expert_bias_bwd_args {
    float *d_bias;   /* [experts, cols] */
    const void *d_x; /* [rows, cols] */
    const int32_t *starts;
    int64_t rows, cols;
    int32_t experts;
    dsc_dtype dtype;
} dsc_expert_bias_bwd_args;

#ifdef __cplusplus
}
#endif
#endif
