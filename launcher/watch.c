/* watch.c - see watch.h. SPDX-License-Identifier: Apache-2.0 */
#include "launcher/watch.h"

#include <string.h>

dsc_status dsc_watch_open(dsc_watch *watch, dsc_alloc *alloc, int32_t rank_count, int32_t limit_s, dsc_error *err)
{
    *watch = (dsc_watch){ .alloc = alloc, .rank_count = rank_count, .limit_ns = limit_s * INT64_C(1000000000) };
    if (rank_count == 1 || rank_count > DSC_WATCH_RANKS_MAX)
        watch->rank_count = 0;
    return dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, watch->rank_count, (int64_t)sizeof *watch->view, &watch->view, err);
}

void dsc_watch_close(dsc_watch *watch)
{
    if (watch->alloc != NULL)
        dsc_alloc_free(watch->alloc, watch->view);
    *watch = (dsc_watch){ .alloc = NULL };
}

void dsc_watch_forget(dsc_watch *watch)
{
    for (int32_t r = 0; r < watch->rank_count; r++)
        watch->view[r] = (dsc_flight_view){ .known = false };
    watch->line_count = 0;
    watch->more = watch->paused = false;
}

/* Who else waits is said too: of a thousand ranks the first few. */
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

int dsc_watch_look(dsc_watch *watch, const dsc_launcher_plan *plan)
{
    dsc_hang hang;
    if (watch->paused || watch->line_count > 0)
        return 0;
    dsc_hang_find(watch->view, watch->rank_count, watch->limit_ns, false, &hang);
    if (hang.kind == DSC_HANG_NONE)
        return 0;
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
