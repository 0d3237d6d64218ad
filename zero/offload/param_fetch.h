/* param_fetch.h - parameters of this rank that are offloaded, to the windows of gathers.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ZERO_OFFLOAD_PARAM_FETCH_H
#define DSC_ZERO_OFFLOAD_PARAM_FETCH_H

#include "zero/core/options.h"

/* Requests that the running update copies a group's parameters to `to`, which is free, as soon as they are updated.
 * True for the first call after an update began. On the thread of the compute stream. */
bool dsc_param_fetch_request(dsc_zero *zero, int32_t group, char *to);
/* On the fetch stream: copies this rank's offloaded parameters of a group to their address in a window. `requested`:
 * the update has copied a part of them, and only the rest is read. */
DSC_MUST_USE dsc_status dsc_param_fetch(dsc_zero *zero, int32_t group, char *to, bool requested, dsc_error *err);

#endif
