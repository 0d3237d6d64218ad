/* window.h - places buffers whose lifetimes are known before the run into one arena, with the smallest offset first.
 *
 * The engine knows the order of a micro-step exactly, so gathered parameters and gradient parts get fixed offsets. A
 * step neither searches nor allocates, and the peak is part of the plan. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_BASE_WINDOW_H
#define DSC_BASE_WINDOW_H

#include "base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Live from `first` to `last` (both included, in steps of the schedule; a negative `first` is a step of the schedule's
 * last round). `rest`: so many steps more nothing else shall lie there. */
typedef struct dsc_window {
    int32_t first, last, rest;
    int64_t bytes;
    int64_t offset; /* out: a multiple of 256 */
    int32_t place, lies_at, block_last; /* window.c's own, while it places them */
} dsc_window;

/* Sets every offset; windows whose lifetimes meet, also those of the round before, which has `steps` steps, do not
 * overlap. Returns the arena's bytes. */
int64_t dsc_window_assign(dsc_window *windows, int32_t count, int32_t steps);
/* Places windows of separate rounds in the same bytes. Windows that are small relative to the arena stay unused as
 * long as it has capacity, at most `most` steps, so that late readers do not delay writers. Sets `rest` too. */
int64_t dsc_window_spread(dsc_window *windows, int32_t count, int32_t most);

#ifdef __cplusplus
}
#endif
#endif
