/* adafactor.h - second moments of matrices as one number for each row and one for each column.
 * The numbers of a matrix are those of its rows and then those of its columns, tensor by tensor.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ZERO_OPTIMIZER_ADAFACTOR_H
#define DSC_ZERO_OPTIMIZER_ADAFACTOR_H

#include "kernels/binned_sum.h"
#include "zero/core/pass.h"

/* Each buffer has the size of W parts of the numbers; W is the number of ranks. */
typedef struct dsc_adafactor {
    int64_t *at;                          /* [tensor_count + 1] index of a tensor's first number */
    int64_t part;                         /* numbers that one rank computes */
    dsc_buf state_buf;                    /* the second moments, on every rank */
    dsc_buf host_sums, device_sums;       /* sums over this rank's slices */
    dsc_buf part_sums;                    /* [W][part] sums of every rank, for the part of this rank */
    dsc_buf host_factors, device_factors; /* factors of the elements */
    dsc_binned_grid grid;                 /* grid of the sums of this update */
} dsc_adafactor;

/* Second moments of the rows or columns of a matrix, in host memory. */
float *dsc_adafactor_factors(const dsc_zero *zero, int32_t tensor, bool cols);

extern const dsc_zero_pass_ops dsc_adafactor_pass;

#endif
