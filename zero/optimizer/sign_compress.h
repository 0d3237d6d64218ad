/* sign_compress.h - the exchange of the 1-bit optimizers: the mean over all ranks of vectors, sent as signs and scales.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ZERO_OPTIMIZER_SIGN_COMPRESS_H
#define DSC_ZERO_OPTIMIZER_SIGN_COMPRESS_H

#include "zero/core/pass.h"

struct dsc_group_state;

/* A tensor's elements in the slice of one rank, or all of them. */
typedef struct dsc_part {
    int32_t tensor;
    int64_t at, count;                 /* elements of the group */
    const dsc_update_scalars *scalars; /* scalars of the update under way; NULL outside one */
} dsc_part;

/* `owner`: rank whose slice the part is in; -1: the part is in all slices. */
typedef dsc_status (*dsc_part_fn)(dsc_zero *zero, const dsc_layout_group *group, struct dsc_group_state *state,
                                  const dsc_part *part, int32_t owner, dsc_error *err);

/* The part of a group's state. */
typedef struct dsc_group_signs {
    float *own_error, *sum_error; /* errors of the whole group, and of this rank's slice */
} dsc_group_signs;

typedef struct dsc_sign_compress {
    dsc_buf error_buf;                /* for each trainable group: errors of own signs, then errors of its slice */
    dsc_buf signs_buf;                /* signs of the longest group: sent ones, then received ones */
    dsc_buf device_sums, host_sums;   /* [tensor_count] sums of squares */
    dsc_buf own_scales, all_scales;   /* [tensor_count], [W][tensor_count] */
    dsc_buf by_tensor, device_scales; /* [tensor_count][W] */
    dsc_part_fn fill;                 /* callback of the exchange under way */
    bool to_moments;                  /* likewise */
} dsc_sign_compress;

bool dsc_sign_compress_are_used(const dsc_zero *zero);
/* Sets the errors of all ranks to 0. */
dsc_status dsc_sign_compress_forget(dsc_zero *zero, dsc_error *err);
/* Calls fn for all whole trainable tensors; `terms` may be NULL outside an update. */
dsc_status dsc_sign_compress_each(dsc_zero *zero, const dsc_update_terms *terms, dsc_part_fn fn, dsc_error *err);
/* Sets x, of a whole group, to 0 wherever the variance is 0. */
dsc_status dsc_sign_compress_mask(dsc_zero *zero, int32_t group, float *x, dsc_error *err);
/* Collective. `fill` adds the vector of this rank to the errors of a tensor. Afterwards the moments of every rank (or
 * else the sums) hold the signs of the mean over all ranks. */
dsc_status dsc_sign_compress_exchange(dsc_zero *zero, const dsc_update_terms *terms, dsc_part_fn fill, bool to_moments,
                                      dsc_error *err);
/* Collective. The errors of a group on each rank become the mean over all ranks, plus the errors of the owners; the
 * result is multiplied by `factor`. */
dsc_status dsc_sign_compress_mean(dsc_zero *zero, int32_t group, double factor, dsc_error *err);

extern const dsc_zero_pass_ops dsc_sign_compress_pass;

#endif
