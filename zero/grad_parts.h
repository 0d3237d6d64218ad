/* grad_parts.h - gradient parts of a pass: the order in which they are reduced and their addresses until then.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ZERO_GRAD_PARTS_H
#define DSC_ZERO_GRAD_PARTS_H

#include "zero/zero.h"

/* After gathers and the state store are planned. *sum_bytes: memory of sums beside the sums themselves. */
dsc_status dsc_grad_parts_plan(dsc_zero *zero, int64_t *sum_bytes, dsc_error *err);
dsc_status dsc_grad_parts_open(dsc_zero *zero, dsc_error *err);
void dsc_grad_parts_close(dsc_zero *zero);

#endif
