/* window.c - first-fit placement of lifetimes. Larger windows are placed first: the big ones (an embedding's gradient)
 * would otherwise be lifted above small ones that happen to start earlier. SPDX-License-Identifier: Apache-2.0 */
#include "zero/window.h"

#define WINDOW_ALIGN 256

static bool lifetimes_meet(const dsc_window *a, const dsc_window *b)
{
    return a->first <= b->last && b->first <= a->last;
}

/* Not yet placed windows have offset -1. */
static int64_t lowest_free(const dsc_window *windows, int32_t count, const dsc_window *wanted)
{
    int64_t offset = 0;
    bool moved = true;
    while (moved) {
        moved = false;
        for (int32_t i = 0; i < count; i++) {
            const dsc_window *w = &windows[i];
            if (w->offset < 0 || w == wanted || !lifetimes_meet(w, wanted))
                continue;
            if (offset < w->offset + w->bytes && w->offset < offset + wanted->bytes) {
                offset = dsc_align_up(w->offset + w->bytes, WINDOW_ALIGN);
                moved = true;
            }
        }
    }
    return offset;
}

int64_t dsc_window_place(dsc_window *windows, int32_t count)
{
    int64_t arena_bytes = 0;
    for (int32_t i = 0; i < count; i++)
        windows[i].offset = -1;
    for (int32_t placed = 0; placed < count; placed++) {
        dsc_window *next = NULL;
        for (int32_t i = 0; i < count; i++)
            if (windows[i].offset < 0 && (next == NULL || windows[i].bytes > next->bytes))
                next = &windows[i];
        next->offset = lowest_free(windows, count, next);
        arena_bytes = dsc_max_i64(arena_bytes, next->offset + dsc_align_up(next->bytes, WINDOW_ALIGN));
    }
    return arena_bytes;
}
