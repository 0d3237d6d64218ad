/* reduce.h - reductions of gradient parts: opening, closing and the end of a step.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ZERO_REDUCE_H
#define DSC_ZERO_REDUCE_H

#include "zero/zero.h"

dsc_status dsc_reduce_open(dsc_zero *zero, dsc_error *err);
void dsc_reduce_close(dsc_zero *zero);
dsc_status dsc_reduce_finish(dsc_zero *zero, dsc_error *err); /* the compute stream has all sums after it */

#endif
