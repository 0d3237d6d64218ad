/* window.c - first-fit placement of lifetimes. Larger windows are placed first: the big ones (an embedding's gradient)
 * would otherwise be lifted above small ones that happen to start earlier. SPDX-License-Identifier: Apache-2.0 */
#include "zero/window.h"

#define WINDOW_ALIGN 256

/* `later`: a's round begins so many steps after b's. */
static bool lifetimes_meet(const dsc_window *a, const dsc_window *b, int32_t later)
{
    return a->first + later <= b->last + b->rest && b->first <= a->last + a->rest + later;
}

/* Not yet placed windows have offset -1. */
static int64_t lowest_free(const dsc_window *windows, int32_t count, int32_t steps, const dsc_window *wanted)
{
    int64_t offset = 0;
    bool moved = true;
    while (moved) {
        moved = false;
        for (int32_t i = 0; i < count; i++) {
            const dsc_window *w = &windows[i];
            if (w->offset < 0 || w == wanted ||
                !(lifetimes_meet(w, wanted, 0) || lifetimes_meet(w, wanted, steps) || lifetimes_meet(wanted, w, steps)))
                continue;
            if (offset < w->offset + w->bytes && w->offset < offset + wanted->bytes) {
                offset = dsc_align_up(w->offset + w->bytes, WINDOW_ALIGN);
                moved = true;
            }
        }
    }
    return offset;
}

/* Bytes of the largest that is not placed, -1: all are. Models have windows of few sizes. */
static int64_t largest_left(const dsc_window *windows, int32_t count)
{
    int64_t bytes = -1;
    for (int32_t i = 0; i < count; i++)
        if (windows[i].offset < 0)
            bytes = dsc_max_i64(bytes, windows[i].bytes);
    return bytes;
}

int64_t dsc_window_place(dsc_window *windows, int32_t count, int32_t steps)
{
    int64_t arena_bytes = 0;
    for (int32_t i = 0; i < count; i++)
        windows[i].offset = -1;
    for (int64_t bytes = largest_left(windows, count); bytes >= 0; bytes = largest_left(windows, count))
        for (int32_t i = 0; i < count; i++)
            if (windows[i].bytes == bytes) {
                windows[i].offset = lowest_free(windows, count, steps, &windows[i]);
                arena_bytes = dsc_max_i64(arena_bytes, windows[i].offset + dsc_align_up(bytes, WINDOW_ALIGN));
            }
    return arena_bytes;
}

/* A large one that waits for small ones would move all that come after it. */
static void set_rests(dsc_window *windows, int32_t count, int64_t large_bytes, int32_t most)
{
    for (int32_t i = 0; i < count; i++) {
        dsc_window *w = &windows[i];
        w->rest = w->bytes >= large_bytes ? 0 : most;
        for (int32_t j = 0; j < count; j++)
            if (windows[j].bytes >= large_bytes && windows[j].first > w->last)
                w->rest = (int32_t)dsc_min_i64(w->rest, windows[j].first - w->last - 1);
    }
}

int64_t dsc_window_spread(dsc_window *windows, int32_t count, int32_t most)
{
    int32_t steps = 1; /* rounds that do not meet */
    for (int32_t i = 0; i < count; i++)
        steps = (int32_t)dsc_max_i64(steps, windows[i].last + most + 1);
    set_rests(windows, count, 0, 0);
    const int64_t arena_bytes = dsc_window_place(windows, count, steps);
    for (; most > 0; most--) {
        set_rests(windows, count, dsc_div_ceil(arena_bytes, 4), most);
        const int64_t bytes = dsc_window_place(windows, count, steps);
        if (bytes <= arena_bytes)
            return bytes;
    }
    set_rests(windows, count, 0, 0);
    return dsc_window_place(windows, count, steps);
}
