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

/* Live from `first` to `last` (both included, in steps of the schedule). */
typedef struct dsc_window {
    int32_t first, last;
    int64_t bytes;
    int64_t offset; /* out: a multiple of 256 */
} dsc_window;

/* Sets every offset; windows whose lifetimes meet do not overlap. Returns the arena's bytes. O(count^2). */
int64_t dsc_window_place(dsc_window *windows, int32_t count);

#ifdef __cplusplus
}
#endif
#endif
