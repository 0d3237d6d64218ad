/* thread.c - see thread.h. SPDX-License-Identifier: Apache-2.0 */
#include "base/thread.h"

#include <linux/sched.h>
#include <linux/sched/types.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A few checks of what was read, or a part of an update; the system's own is 1 to 4 ms and takes none below 0.1. */
static const uint64_t turn_ns = 500000;

void dsc_thread_wake_soon(void)
{
    struct sched_attr attr = { .size = sizeof attr };
    if (syscall(SYS_sched_getattr, 0, &attr, sizeof attr, 0) != 0 || attr.sched_policy != SCHED_NORMAL)
        return;
    if (attr.sched_runtime > 0 && attr.sched_runtime <= turn_ns)
        return;
    attr.sched_runtime = turn_ns;
    (void)syscall(SYS_sched_setattr, 0, &attr, 0);
}
