/* hpz.h - the second parameter partition of ZeRO++ (hpZ) among the ranks of a host.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ZERO_HPZ_H
#define DSC_ZERO_HPZ_H

#include "zero/zero.h"

void dsc_hpz_plan(dsc_zero *zero); /* after gathers */
dsc_status dsc_hpz_open(dsc_zero *zero, dsc_error *err);
void dsc_hpz_close(dsc_zero *zero);
/* On the gather stream: keeps this rank's part of a window that was gathered from all ranks, if neighbours are used;
 * fills a window from the parts of the neighbours. */
dsc_status dsc_hpz_keep(dsc_zero *zero, int32_t group, const char *window, dsc_error *err);
dsc_status dsc_hpz_gather(dsc_zero *zero, int32_t group, char *window, dsc_error *err);
/* The next gather is from all ranks: trainable parameters have changed, or frozen ones too. */
void dsc_hpz_forget(dsc_zero *zero, bool frozen);

#endif
