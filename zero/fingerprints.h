/* fingerprints.h - numbers of bits (kernels/fingerprint.h): of the gradient parts that this rank makes in a step, and
 * of the parameters that its modules read. A rank compares the first with those of a repetition, and ranks compare the
 * second with each other. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ZERO_FINGERPRINTS_H
#define DSC_ZERO_FINGERPRINTS_H

#include "zero/core/grad_part.h"
#include "zero/zero.h"

/* The part of struct dsc_zero. */
typedef struct dsc_fingerprints {
    uint32_t watched;         /* kinds that this step takes, DSC_FINGERPRINTS_* */
    dsc_buf on_device, host;  /* uint64: parts [group_count], then parameters [group_count][W] */
    bool *is_read;            /* [group_count] the step has the fingerprint of this group's parameters already */
} dsc_fingerprints;

void dsc_fingerprints_plan(dsc_zero *zero);
dsc_status dsc_fingerprints_open(dsc_zero *zero, dsc_error *err);
void dsc_fingerprints_close(dsc_zero *zero);
/* On the reduce stream, before the part is changed or sent. */
dsc_status dsc_fingerprints_add_part(dsc_zero *zero, const dsc_grad_part *part, dsc_error *err);
/* On the compute stream, before the first use of the group in the step. base: the whole group; NULL: not read. */
dsc_status dsc_fingerprints_add_params(dsc_zero *zero, int32_t group, const char *base, dsc_error *err);

#endif
