/* gather.h - the windows of stage 3: planning, opening and closing. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ZERO_GATHER_H
#define DSC_ZERO_GATHER_H

#include "zero/zero.h"

dsc_status dsc_gather_plan(dsc_zero *zero, int64_t *window_bytes, dsc_error *err);
dsc_status dsc_gather_open(dsc_zero *zero, dsc_error *err);
void dsc_gather_close(dsc_zero *zero);
/* Whole parameters of a group from the slices of all ranks, in place, on the gather stream. */
dsc_status dsc_gather_params(dsc_zero *zero, int32_t group, dsc_error *err);
/* Some parameters are copied to their windows from the memory or the files of a device's host. */
bool dsc_gather_fetches(const dsc_zero *zero);

#endif
