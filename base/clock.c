/* clock.c - the system's clocks. SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"

#include <errno.h>
#include <time.h>

#define NS_PER_S INT64_C(1000000000)

static int64_t now_ns(clockid_t clock)
{
    struct timespec now;
    const int failed = clock_gettime(clock, &now);
    DSC_ASSERT(failed == 0); /* both clocks always exist on Linux */
    return (int64_t)now.tv_sec * NS_PER_S + now.tv_nsec;
}

int64_t dsc_clock_ns(void)
{
    return now_ns(CLOCK_MONOTONIC);
}

int64_t dsc_clock_wall_ns(void)
{
    return now_ns(CLOCK_REALTIME);
}

void dsc_clock_sleep_ns(int64_t ns)
{
    if (ns <= 0)
        return;
    /* An absolute end: signals that interrupt the sleep cannot make it longer. */
    int64_t end_ns;
    if (!dsc_add_i64(dsc_clock_ns(), ns, &end_ns))
        end_ns = INT64_MAX;
    const struct timespec end = { .tv_sec = end_ns / NS_PER_S, .tv_nsec = end_ns % NS_PER_S };
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &end, NULL) == EINTR) {
    }
}
