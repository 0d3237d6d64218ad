/* average.h - moving averages of numbers, such as those of weights after each step. The bits are the same everywhere.
 * reference, the only CPU variant: cpu/average.c   check: tests/checkkern/average.c
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_AVERAGE_H
#define DSC_KERNELS_AVERAGE_H
#include <dsc/types.h>
#ifdef __cplusplus
extern "C" {
#endif

/* average[i] = average[i] + share * (value[i] - average[i]) in fp32, three roundings. This is torch.lerp with a weight
 * below 0.5, as torch.optim.swa_utils.get_ema_avg_fn(1 - share) has it. A share of 1 copies the values. */
typedef struct dsc_average_args {
    float *average; /* [count] */
    const float *value;
    int64_t count;
    float share; /* 0..1 */
} dsc_average_args;

#ifdef __cplusplus
}
#endif
#endif
