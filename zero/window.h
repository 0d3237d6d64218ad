/* window.h - places buffers whose lifetimes are known before the run into one arena, with the smallest offset first.
 *
 * The engine knows the order of a micro-step exactly, so gathered parameters and leaf gradients get fixed offsets:
 * nothing is searched or allocated inside a step and the peak is part of the plan. SPDX-License-Identifier: Apache-2.0
 */
#ifndef DSC_ZERO_WINDOW_H
#define DSC_ZERO_WINDOW_H

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
/* The same bytes, of rounds that do not meet, in which what is small beside the arena rests as long as there is room,
 * at most `most` steps: who still reads it then keeps nobody from writing. Sets `rest` too. */
int64_t dsc_window_spread(dsc_window *windows, int32_t count, int32_t most);

#ifdef __cplusplus
}
#endif
#endif
