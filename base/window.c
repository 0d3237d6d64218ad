/* window.c - first-fit placement of lifetimes. Larger windows are placed first: the big ones (an embedding's gradient)
 * would otherwise be lifted above small ones that happen to start earlier. SPDX-License-Identifier: Apache-2.0 */
#include "base/window.h"

#include <stdlib.h>

#define WINDOW_ALIGN 256
#define BLOCK 32 /* windows of which one comparison says that none meets another */

/* `later`: the second one's round begins so many steps after the first one's. */
static bool spans_meet(int32_t first_a, int32_t last_a, int32_t first_b, int32_t last_b, int32_t later)
{
    return first_a <= last_b + later && first_b + later <= last_a;
}

static bool rounds_meet(const dsc_window *wanted, int32_t first, int32_t last, int32_t steps)
{
    const int32_t end = wanted->last + wanted->rest;
    return spans_meet(first, last, wanted->first, end, 0) || spans_meet(first, last, wanted->first, end, steps) ||
           spans_meet(first, last, wanted->first, end, -steps);
}

/* Not yet placed windows have offset -1. */
static int64_t lowest_free(const dsc_window *windows, int32_t count, int32_t steps, const dsc_window *wanted)
{
    int64_t offset = 0;
    DSC_ASSERT(wanted->offset < 0); /* not placed before */
    bool moved = true;
    while (moved) {
        moved = false;
        for (int32_t i = 0; i < count; i++) {
            const dsc_window *w = &windows[i];
            if (i % BLOCK == 0 && !rounds_meet(wanted, w->first, w->block_last, steps)) {
                i += BLOCK - 1;
                continue;
            }
            if (w->offset < 0 || offset >= w->offset + w->bytes || w->offset >= offset + wanted->bytes ||
                !rounds_meet(wanted, w->first, w->last + w->rest, steps))
                continue;
            offset = dsc_align_up(w->offset + w->bytes, WINDOW_ALIGN);
            moved = true;
        }
    }
    DSC_ASSERT(offset % WINDOW_ALIGN == 0);
    return offset;
}

/* Bytes of the largest that is not placed, -1: all are. Models have windows of few sizes. */
static int64_t largest_left(const dsc_window *windows, int32_t count)
{
    int64_t bytes = -1;
    DSC_ASSERT(count > 0);
    for (int32_t i = 0; i < count; i++)
        if (windows[i].offset < 0)
            bytes = dsc_max_i64(bytes, windows[i].bytes);
    return bytes;
}

static int by_first(const void *a, const void *b)
{
    const dsc_window *x = a, *y = b;
    return x->first != y->first ? (x->first < y->first ? -1 : 1) : (x->place > y->place) - (x->place < y->place);
}

static int by_place(const void *a, const void *b)
{
    const dsc_window *x = a, *y = b;
    return (x->place > y->place) - (x->place < y->place);
}

/* In the order in which they begin: a block's lifetimes are then near each other, most blocks are passed at once. */
static void line_up(dsc_window *windows, int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        DSC_ASSERT(windows[i].first <= windows[i].last);
        DSC_ASSERT(windows[i].bytes >= 0);
        DSC_ASSERT(windows[i].rest >= 0);
        windows[i].place = i;
        windows[i].offset = -1;
    }
    qsort(windows, (size_t)count, sizeof *windows, by_first);
    for (int32_t i = 0; i < count; i++) {
        windows[windows[i].place].lies_at = i;
        dsc_window *leader = &windows[i - i % BLOCK];
        const int32_t last = windows[i].last + windows[i].rest;
        leader->block_last = i % BLOCK == 0 || last > leader->block_last ? last : leader->block_last;
    }
}

int64_t dsc_window_assign(dsc_window *windows, int32_t count, int32_t steps)
{
    int64_t arena_bytes = 0;
    DSC_ASSERT(count >= 0);
    DSC_ASSERT(steps > 0);
    if (count == 0)
        return 0;
    line_up(windows, count);
    for (int64_t bytes = largest_left(windows, count); bytes >= 0; bytes = largest_left(windows, count))
        for (int32_t i = 0; i < count; i++) {
            dsc_window *w = &windows[windows[i].lies_at];
            if (w->bytes != bytes)
                continue;
            w->offset = lowest_free(windows, count, steps, w);
            arena_bytes = dsc_max_i64(arena_bytes, w->offset + dsc_align_up(bytes, WINDOW_ALIGN));
        }
    qsort(windows, (size_t)count, sizeof *windows, by_place);
    DSC_ASSERT(arena_bytes % WINDOW_ALIGN == 0);
    return arena_bytes;
}

/* A large one that waits for small ones would move all that come after it. */
static void set_rests(dsc_window *windows, int32_t count, int64_t large_bytes, int32_t most)
{
    DSC_ASSERT(most >= 0);
    for (int32_t i = 0; i < count; i++) {
        dsc_window *w = &windows[i];
        w->rest = w->bytes >= large_bytes ? 0 : most;
        for (int32_t j = 0; j < count; j++)
            if (windows[j].bytes >= large_bytes && windows[j].first > w->last)
                w->rest = (int32_t)dsc_min_i64(w->rest, windows[j].first - w->last - 1);
        DSC_ASSERT(w->rest >= 0);
        DSC_ASSERT(w->rest <= most);
    }
}

int64_t dsc_window_spread(dsc_window *windows, int32_t count, int32_t most)
{
    int32_t steps = 1; /* rounds that do not meet */
    for (int32_t i = 0; i < count; i++)
        steps = (int32_t)dsc_max_i64(steps, windows[i].last + most + 1);
    set_rests(windows, count, 0, 0);
    const int64_t arena_bytes = dsc_window_assign(windows, count, steps);
    for (; most > 0; most--) {
        set_rests(windows, count, dsc_div_ceil(arena_bytes, 4), most);
        const int64_t bytes = dsc_window_assign(windows, count, steps);
        if (bytes <= arena_bytes)
            return bytes;
    }
    set_rests(windows, count, 0, 0);
    const int64_t bytes = dsc_window_assign(windows, count, steps);
    DSC_ASSERT(bytes == arena_bytes); /* without rests the first plan comes again */
    return bytes;
}
