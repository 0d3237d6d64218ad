/* grad_hooks.h - the host program's functions on gradient parts before they are sent, and on sums.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ZERO_GRAD_HOOKS_H
#define DSC_ZERO_GRAD_HOOKS_H

#include "zero/core/grad_part.h"
#include "zero/zero.h"

/* On the reduce stream, in its order. */
dsc_status dsc_grad_hooks_before_send(dsc_zero *zero, const dsc_grad_part *part, int64_t micro_step, dsc_error *err);
/* Elements of this rank's slice from `first` of the slice on, whose sum is complete. */
dsc_status dsc_grad_hooks_after_reduce(dsc_zero *zero, int32_t group, int64_t first, float *values, int64_t count,
                                       dsc_error *err);

#endif
