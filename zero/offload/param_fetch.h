/* param_fetch.h - parameters of this rank that are offloaded, to the windows of gathers.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ZERO_OFFLOAD_PARAM_FETCH_H
#define DSC_ZERO_OFFLOAD_PARAM_FETCH_H

#include "zero/zero.h"

/* What an update that is under way has not made of a group's parameters yet shall come to `to`, which is free, as it is
 * made; the first who asks after an update began is told so. On the thread of the compute stream. */
bool dsc_param_fetch_request(dsc_zero *zero, int32_t group, char *to);
/* On the fetch stream: this rank's parameters of a group, which are away, to their place in a window; where it has
 * asked for them, after the update, what did not come from there. */
DSC_MUST_USE dsc_status dsc_param_fetch(dsc_zero *zero, int32_t group, char *to, bool asked, dsc_error *err);

#endif
