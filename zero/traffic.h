/* traffic.h - the bytes that an optimizer step moves, and the states that stay.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ZERO_TRAFFIC_H
#define DSC_ZERO_TRAFFIC_H

#include "zero/zero.h"

/* After gathers and gradient parts are planned. */
void dsc_traffic_plan(const dsc_zero *zero, dsc_zero_traffic *out);
void dsc_kept_plan(const dsc_zero *zero, dsc_zero_kept *out);

#endif
