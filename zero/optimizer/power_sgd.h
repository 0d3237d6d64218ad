/* power_sgd.h - gradients that travel as two thin matrices. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ZERO_OPTIMIZER_POWER_SGD_H
#define DSC_ZERO_OPTIMIZER_POWER_SGD_H

#include "zero/core/pass.h"

/* A matrix M of rows x cols that travels as P of rows x rank and Q of cols x rank. */
typedef struct dsc_power_matrix {
    int32_t tensor, rank;
    int64_t rows, cols;
    int64_t p_at, q_at, error_at; /* elements of the buffers */
} dsc_power_matrix;

typedef struct dsc_power_sgd {
    dsc_power_matrix *matrix; /* [count], at most one for each tensor */
    int32_t count;
    int64_t p_elements, q_elements, error_elements, rest_elements;
    dsc_buf error;          /* sum of what the approximations of this rank have left out */
    dsc_buf p, q, rest;     /* factors of all matrices; sums of all other tensors */
    dsc_buf host, first_q;   /* P or Q for the host; Q before the first update */
} dsc_power_sgd;

/* Sets the errors to 0, and Q to its first values. */
dsc_status dsc_power_sgd_forget(dsc_zero *zero, dsc_error *err);

extern const dsc_zero_pass_ops dsc_power_sgd_pass;

#endif
