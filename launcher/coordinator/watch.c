/* watch.c - see watch.h. SPDX-License-Identifier: Apache-2.0 */
#include "launcher/coordinator/watch.h"

#include <string.h>

dsc_status dsc_watch_open(dsc_watch *watch, dsc_alloc *alloc, int32_t rank_count, int32_t limit_s, dsc_error *err)
{
    *watch = (dsc_watch){ .alloc = alloc, .rank_count = rank_count, .limit_ns = limit_s * INT64_C(1000000000) };
    if (rank_count > DSC_WATCH_RANKS_MAX)
        watch->rank_count = 0;
    watch->capacity = watch->rank_count;
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, watch->rank_count, (int64_t)sizeof *watch->stopped_ns,
                             &watch->stopped_ns, err));
    return dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, watch->rank_count, (int64_t)sizeof *watch->view, &watch->view, err);
}

void dsc_watch_close(dsc_watch *watch)
{
    if (watch->alloc != NULL) {
        dsc_alloc_free(watch->alloc, watch->view);
        dsc_alloc_free(watch->alloc, watch->stopped_ns);
    }
    *watch = (dsc_watch){ .alloc = NULL };
}

void dsc_watch_forget(dsc_watch *watch)
{
    for (int32_t r = 0; r < watch->rank_count; r++) {
        watch->view[r] = (dsc_flight_view){ .known = false };
        watch->stopped_ns[r] = 0;
    }
    watch->line_count = 0;
    watch->more = watch->paused = false;
}

void dsc_watch_set_world(dsc_watch *watch, int32_t rank_count)
{
    watch->rank_count = watch->capacity;
    dsc_watch_forget(watch);
    watch->rank_count = (int32_t)dsc_min_i64(rank_count, watch->capacity);
}

/* Reports other waiting ranks too, the first few of a thousand. */
static void keep(dsc_watch *watch, const dsc_launcher_plan *plan, const dsc_hang *hang, bool ended)
{
    dsc_hang_describe(hang, watch->view, plan, watch->line[0]);
    watch->line_count = 1;
    for (int32_t r = 0; r < watch->rank_count && !watch->more; r++) {
        char line[DSC_HANG_LINE_BYTES];
        if (r == hang->waiter || (r == hang->culprit && hang->kind != DSC_HANG_CIRCLE) ||
            !dsc_hang_describe_wait(watch->view, watch->rank_count, r, ended, line))
            continue;
        watch->more = watch->line_count == DSC_WATCH_LINES;
        if (!watch->more)
            memcpy(watch->line[watch->line_count++], line, sizeof line);
    }
}

/* Between two looks that are far apart this process was stopped itself, and saw nothing. */
static void count_stops(dsc_watch *watch, int64_t now_ns)
{
    const int64_t passed_ns = dsc_min_i64(now_ns - watch->looked_ns, 2 * DSC_WATCH_BEAT_NS);
    for (int32_t r = 0; r < watch->rank_count; r++) {
        const bool stopped = watch->view[r].process == 'T' && !watch->paused;
        watch->stopped_ns[r] = stopped ? watch->stopped_ns[r] + passed_ns : 0;
        watch->view[r].stopped_ns = watch->stopped_ns[r];
    }
    watch->looked_ns = now_ns;
}

int dsc_watch_look(dsc_watch *watch, const dsc_launcher_plan *plan, int64_t now_ns)
{
    dsc_hang hang;
    count_stops(watch, now_ns);
    if (watch->paused || watch->line_count > 0)
        return 0;
    dsc_hang_find(watch->view, watch->rank_count, watch->limit_ns, false, &hang);
    if (hang.kind == DSC_HANG_NONE)
        return 0;
    watch->hang = hang;
    keep(watch, plan, &hang, false);
    return dsc_hang_code(&hang);
}

void dsc_watch_ended(dsc_watch *watch, const dsc_launcher_plan *plan, int32_t code)
{
    dsc_hang hang;
    if (code != dsc_status_exit_code(DSC_ERR_STUCK) || watch->line_count > 0)
        return;
    dsc_hang_find(watch->view, watch->rank_count, watch->limit_ns, true, &hang);
    if (hang.kind != DSC_HANG_NONE)
        keep(watch, plan, &hang, true);
}
