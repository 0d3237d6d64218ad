/* gather.h - the windows of stage 3: planning, opening and closing. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ZERO_GATHER_H
#define DSC_ZERO_GATHER_H

#include <stdatomic.h>

#include "zero/zero.h"

/* One lifetime of a gathered group in the window arena (stage 3, W > 1). */
typedef struct dsc_gather {
    int32_t group;
    int32_t issue_step, last_step; /* a negative step belongs to the pass before */
    bool asked; /* the update copies this rank's slice, except for elements that it had made before */
    dsc_event *fetched, *done; /* this rank's slice is in the window; all of them are */
} dsc_gather;

/* The part of a group's state that gathers and the updates before them share. */
typedef struct dsc_group_gather {
    bool resident;      /* stage 3: whole all the time, because a window for it would take more */
    bool pending;       /* an asynchronous gather of updated parameters is under way */
    dsc_event *updated; /* on the update stream */
    /* An update copies updated parameters to the first window that asks, and writes them to a file as well. */
    _Atomic(char *) hand_to; /* address of this rank's slice in that window; NULL: no window has asked */
    int64_t handed_from;     /* all elements from this one on were copied there; the update owns it until `updated` */
    dsc_event *given, *gathered; /* this rank's updated parameters are on the device; all ranks' are */
} dsc_group_gather;

dsc_status dsc_gather_plan(dsc_zero *zero, int64_t *window_bytes, dsc_error *err);
dsc_status dsc_gather_open(dsc_zero *zero, dsc_error *err);
void dsc_gather_close(dsc_zero *zero);
/* Whole parameters of a group from the slices of all ranks, in place, on the gather stream. */
dsc_status dsc_gather_params(dsc_zero *zero, int32_t group, dsc_error *err);
/* Some parameters are copied to their windows from the memory or the files of a device's host. */
bool dsc_gather_fetches(const dsc_zero *zero);

#endif
