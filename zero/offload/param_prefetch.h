/* param_prefetch.h - parameters are read before their windows are free, into tile buffers that the update leaves idle.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ZERO_OFFLOAD_PARAM_PREFETCH_H
#define DSC_ZERO_OFFLOAD_PARAM_PREFETCH_H

#include "zero/core/options.h"

/* After the state store is planned. */
bool dsc_param_prefetch_is_used(const dsc_zero *zero);
int32_t dsc_param_prefetch_slots(const dsc_zero *zero);
dsc_status dsc_param_prefetch_open(dsc_zero *zero, dsc_error *err);
void dsc_param_prefetch_close(dsc_zero *zero);
/* Under the head of a pass that is not the last one of a step, the update lends its tile buffers. Before the update
 * reads its next tiles, the tile buffers are returned. */
dsc_status dsc_param_prefetch_begin(dsc_zero *zero, dsc_error *err);
dsc_status dsc_param_prefetch_end(dsc_zero *zero, dsc_error *err);
/* Reads continue after the work that was queued on the fetch stream, until _end. */
dsc_status dsc_param_prefetch_continue(dsc_zero *zero, dsc_error *err);
/* The caller is about to queue work on the fetch stream. */
void dsc_param_prefetch_request(dsc_zero *zero);
/* On the fetch stream: copies *taken prefetched elements of a group's slice, from its start, to `to`. */
dsc_status dsc_param_prefetch_consume(dsc_zero *zero, int32_t group, int64_t elements, char *to, int64_t *taken,
                                      dsc_error *err);

#endif
