/* thread.h - what a thread asks of the system's scheduler. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_BASE_THREAD_H
#define DSC_BASE_THREAD_H
#include "base/base.h"
#ifdef __cplusplus
extern "C" {
#endif
/* The calling thread runs in short turns from now on, for which it need not wait long when it is woken: threads that
 * compute hold all cores, and the device whose answer this one waited for rests until it goes on. Its share of them
 * stays the same. Linux 6.12 and later know such turns (the sched_runtime of sched_setattr(2), "slice" in
 * Documentation/scheduler/sched-eevdf.rst); earlier ones take no notice. A thread that has a policy of its own, or
 * shorter turns, keeps them. Speed alone depends on it, so it cannot fail. */
void dsc_thread_wake_soon(void);
#ifdef __cplusplus
}
#endif
#endif
