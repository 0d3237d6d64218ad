/* clock.c - how work, waits and calls move the clocks of a virtual GPU's rank. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "kernels/virtual/virtual.h"

static void drop_gap(dsc_virtual_clock *clock, int32_t i)
{
    DSC_ASSERT(i < clock->gap_count);
    clock->gap_count--;
    memmove(&clock->gap[i], &clock->gap[i + 1], (size_t)(clock->gap_count - i) * sizeof clock->gap[0]);
}

/* The oldest gap goes first if there is no room: a stream is seldom so late. */
static void leave_gap(dsc_virtual_clock *clock, double from_s, double to_s)
{
    if (clock->gap_count == DSC_VIRTUAL_GAPS)
        drop_gap(clock, 0);
    clock->gap[clock->gap_count].from_s = from_s;
    clock->gap[clock->gap_count++].to_s = to_s;
}

#define LEAST_S 1e-12 /* less than that of a kernel is left over by rounding */

/* The first gap that ends behind that time. */
static int32_t first_gap(const dsc_virtual_clock *clock, double start_s)
{
    int32_t low = 0, high = clock->gap_count;
    while (low < high) {
        const int32_t middle = (low + high) / 2;
        if (clock->gap[middle].to_s > start_s)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* Uses the card for `seconds` from `start_s` on; the time at which it is done. */
static double use_card(dsc_virtual_clock *clock, double start_s, double seconds)
{
    double left = seconds;
    for (int32_t i = first_gap(clock, start_s); i < clock->gap_count && left > LEAST_S;) {
        const double from = fmax(start_s, clock->gap[i].from_s), to = fmin(clock->gap[i].to_s, from + left);
        if (from >= clock->gap[i].to_s) {
            i++;
            continue;
        }
        left -= to - from;
        if (left <= LEAST_S && from == clock->gap[i].from_s) {
            clock->gap[i].from_s = to;
            return to;
        }
        clock->gap[i].to_s = from; /* the rest behind a last piece is short: it is given up */
        if (clock->gap[i].to_s > clock->gap[i].from_s)
            i++;
        else
            drop_gap(clock, i);
        if (left <= LEAST_S)
            return to;
    }
    if (left <= LEAST_S)
        return start_s;
    const double from = fmax(start_s, clock->card_s);
    if (from > clock->card_s)
        leave_gap(clock, clock->card_s, from);
    clock->card_s = from + left;
    return clock->card_s;
}

/* The calling thread has launched it, and the stream is busy from its clock on. */
static void work(dsc_virtual_clock *clock, double *stream_s, const dsc_virtual_item *item)
{
    const double start = fmax(*stream_s, clock->host_s);
    const bool kernel = item->kind == DSC_VIRTUAL_KERNEL;
    DSC_ASSERT(item->seconds >= 0);
    *stream_s = kernel || clock->rates->cores > 0 ? use_card(clock, start, item->seconds) : start + item->seconds;
    clock->kernels += kernel;
    clock->busy_s[item->part] += item->seconds;
    clock->host_s += clock->rates->launch_s;
}

void dsc_virtual_move(dsc_virtual_clock *clock, double *stream_s, double *event_s, const dsc_virtual_item *item)
{
    switch (item->kind) {
    case DSC_VIRTUAL_KERNEL:
    case DSC_VIRTUAL_TRANSFER:
    case DSC_VIRTUAL_COLLECTIVE:
        work(clock, stream_s, item);
        break;
    case DSC_VIRTUAL_HOST_WORK:
        clock->host_s = fmax(clock->host_s, *stream_s);
        clock->host_s =
            clock->rates->cores > 0 ? use_card(clock, clock->host_s, item->seconds) : clock->host_s + item->seconds;
        clock->busy_s[item->part] += item->seconds;
        *stream_s = clock->host_s;
        break;
    case DSC_VIRTUAL_RECORD:
        *event_s = fmax(*stream_s, clock->host_s);
        break;
    case DSC_VIRTUAL_STREAM_WAIT:
        *stream_s = fmax(*stream_s, *event_s);
        break;
    case DSC_VIRTUAL_STREAM_SYNC:
        clock->host_s = fmax(clock->host_s, *stream_s);
        break;
    case DSC_VIRTUAL_EVENT_SYNC:
        clock->host_s = fmax(clock->host_s, *event_s);
        break;
    case DSC_VIRTUAL_CALL_BEGIN:
        clock->caller_s = clock->host_s;
        clock->host_s = fmax(*stream_s, clock->host_s);
        break;
    case DSC_VIRTUAL_CALL_END:
        *stream_s = clock->host_s;
        clock->host_s = clock->caller_s + clock->rates->launch_s;
        break;
    case DSC_VIRTUAL_WAIT_BEGIN:
        clock->wait_from_s = fmax(*stream_s, clock->host_s);
        break;
    case DSC_VIRTUAL_WAIT_END:
        clock->exposed_s += fmax(0, fmax(*stream_s, clock->host_s) - clock->wait_from_s);
        break;
    }
}
