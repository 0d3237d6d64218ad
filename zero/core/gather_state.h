/* gather_state.h - the gathers of a pass (stage 3), and the part of a group's state that they share with the updates
 * and the reads of files before them. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ZERO_CORE_GATHER_STATE_H
#define DSC_ZERO_CORE_GATHER_STATE_H

#include <stdatomic.h>

#include "zero/core/options.h"

/* One lifetime of a gathered group in the window arena (stage 3, W > 1). */
typedef struct dsc_gather {
    int32_t group;
    int32_t issue_step, last_step; /* a negative step belongs to the pass before */
    bool requested;            /* the update copies this rank's slice, except for elements that it had updated before */
    dsc_event *fetched, *done; /* this rank's slice is in the window; all of them are */
} dsc_gather;

/* The gathers of a pass in the order of their issue (zero/gather.c). */
typedef struct dsc_gathers {
    dsc_gather *gather;        /* [count] */
    struct dsc_window *window; /* [count] base/window.h */
    int32_t count;
    int32_t *of_use;        /* [2 * use_count]: forward uses, then backward uses -> gather index, -1: none needed */
    int64_t *step_elements; /* [step_count] that a step reads from windows */
    int64_t *live_elements; /* [step_count] that the windows hold during a step */
    int32_t prefetch_steps; /* most steps between the issue of a gather and its use */
    bool one_ahead;         /* a gather may start one step before its use, whatever its size */
    int32_t prefetch_carryover_steps; /* most of these steps in the pass before */
    int32_t keep_steps;               /* a group stays gathered if its next use is at most this many steps later */
    bool next_pass_prefetched;        /* gathers of the next pass are issued */
} dsc_gathers;

/* The part of a group's state that gathers and the updates before them share. */
typedef struct dsc_group_gather {
    bool resident;      /* stage 3: whole all the time, because a window for it would take more */
    bool pending;       /* an asynchronous gather of updated parameters is under way */
    bool unshared;      /* whole parameters that the host still updates are gathered before their next use */
    bool uploading;     /* the host updates it, and no stream has waited for `uploaded` yet */
    dsc_event *updated; /* on the update stream */
    /* An update copies updated parameters to the first window that requests them, and writes them to a file as well. */
    int32_t first_matrix, matrix_count; /* of dsc_zero.fp8, of a group that is gathered in fp8 */
    bool fp8_is_scaled;                 /* its matrices have the scales of the current parameters */
    _Atomic(char *) window_slice; /* address of this rank's slice in that window; NULL: no window has requested it */
    int64_t copied_from; /* all elements from this one on were copied there; the update owns it until `updated` */
    dsc_event *uploaded, *gathered; /* this rank's updated parameters are on the device; all ranks' are */
} dsc_group_gather;

/* The part of a group's state that belongs to hpZ (zero/hpz.c). */
typedef struct dsc_group_hpz {
    bool is_current; /* this rank's hpZ part holds the current parameters */
    int64_t at;      /* bytes in buf.hpz */
} dsc_group_hpz;

#endif
