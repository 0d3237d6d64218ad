/* scale.h - an array times a number: what a low-rank adapter's product is multiplied by, and leaves before
 * they are sent.
 * reference, the only variant: scale.c   check: tests/checkkern/scale.c   SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_SCALE_H
#define DSC_KERNELS_SCALE_H
#include <dsc/types.h>
#ifdef __cplusplus
extern "C" {
#endif

/* x[i] = x[i] * factor in fp32, rounded once to the dtype: the same bits everywhere. With a cap it is then
 * cap * tanh(that / cap), a soft bound, within a few roundings. With what such a call has given in `capped`, x is a
 * gradient: x[i] = x[i] * factor * (1 - (capped[i] / cap)^2). */
typedef struct dsc_scale_args {
    void *x;
    int64_t count;
    float factor;
    dsc_dtype dtype; /* F32, BF16 or F16 */
    float cap;       /* 0: none */
    const void *capped; /* results of a cap, of the same dtype; NULL: x is not a gradient */
} dsc_scale_args;

#ifdef __cplusplus
}
#endif
#endif
