/* thread.h - requests of a thread to the system's scheduler. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_BASE_THREAD_H
#define DSC_BASE_THREAD_H
#include "base/base.h"
#ifdef __cplusplus
extern "C" {
#endif
/* The calling thread gets short time slices from now on, so that it runs soon after a wake-up. Compute threads hold all
 * cores, and the device that this thread serves is idle until the thread continues. Its share of CPU time stays the
 * same. Linux 6.12 and later have such slices (the sched_runtime of sched_setattr(2), "slice" in
 * Documentation/scheduler/sched-eevdf.rst); earlier ones ignore the request. A thread with its own policy or with
 * shorter slices keeps them. Only speed depends on it, so the call cannot fail. */
void dsc_thread_wake_soon(void);
#ifdef __cplusplus
}
#endif
#endif
