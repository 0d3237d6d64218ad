/* watch.h - the views of all ranks' collectives, the limit of a wait, and the finding of a hang. The finding is kept as
 * it was made, because the ranks are signalled to end then and their collectives change again.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_LAUNCHER_COORDINATOR_WATCH_H
#define DSC_LAUNCHER_COORDINATOR_WATCH_H

#include "launcher/coordinator/hang.h"

/* How often the supervisor of one host looks. Over several hosts the agents' views come with their notices. */
#define DSC_WATCH_BEAT_NS INT64_C(250000000)
enum { DSC_WATCH_LINES = 9, DSC_WATCH_RANKS_MAX = 1024 }; /* as many as a communicator takes */

typedef struct dsc_watch {
    dsc_alloc *alloc;
    dsc_flight_view *view; /* [rank_count] */
    int32_t capacity;      /* ranks with a view */
    int32_t rank_count;    /* 0: so many that no communicator of ours can hold them */
    int64_t *stopped_ns;   /* [rank_count] how long each was seen stopped */
    int64_t looked_ns;
    int64_t limit_ns;      /* 0: the ranks' own */
    bool paused;           /* the user stopped the job: nobody is late */
    int32_t line_count;    /* lines of the finding; 0: none */
    dsc_hang hang;         /* the finding */
    bool more;             /* ranks wait that have no line */
    char line[DSC_WATCH_LINES][DSC_HANG_LINE_BYTES]; /* the first one is the error line */
} dsc_watch;

DSC_MUST_USE dsc_status dsc_watch_open(dsc_watch *watch, dsc_alloc *alloc, int32_t rank_count, int32_t limit_s,
                                       dsc_error *err);
void dsc_watch_close(dsc_watch *watch); /* safe on a zeroed one */
/* The view of a rank, to be written; NULL: none is kept. */
static inline dsc_flight_view *dsc_watch_view(dsc_watch *watch, int32_t rank)
{
    return rank >= 0 && rank < watch->rank_count ? &watch->view[rank] : NULL;
}
/* Before a start. */
void dsc_watch_forget(dsc_watch *watch);
/* The ranks of a new world are looked at, which may be fewer than at first. */
void dsc_watch_set_world(dsc_watch *watch, int32_t rank_count);
/* Has somebody waited, or been stopped, for too long, or are ranks at odds? 0, or the code that the job ends with. */
int dsc_watch_look(dsc_watch *watch, const dsc_launcher_plan *plan, int64_t now_ns);
/* A rank ended with `code`: when it was stuck, whom for. */
void dsc_watch_ended(dsc_watch *watch, const dsc_launcher_plan *plan, int32_t code);

#endif
