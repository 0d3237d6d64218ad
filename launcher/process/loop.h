/* loop.h - events of the launcher's epoll descriptor: a kind, and the number of the source.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_LAUNCHER_PROCESS_LOOP_H
#define DSC_LAUNCHER_PROCESS_LOOP_H

#include <sys/epoll.h>

#include "base/base.h"

typedef enum dsc_loop_kind {
    DSC_LOOP_SIGNAL,   /* signalfd */
    DSC_LOOP_LIFELINE, /* from the guardian */
    DSC_LOOP_EXEC,     /* ranks that could not be executed */
    DSC_LOOP_SINK,     /* our own output can be written */
    DSC_LOOP_RANK,     /* output of rank `number`, stream `which` */
    DSC_LOOP_WORLD,    /* a report of rank `number` */
    DSC_LOOP_SCRIPT,   /* output of --host_discovery_script */
    DSC_LOOP_LINK      /* host `number`: 0 reading, 1 writing, 2 its stderr */
} dsc_loop_kind;

typedef struct dsc_loop_event {
    dsc_loop_kind kind;
    int32_t number;
    int which;
} dsc_loop_event;

static inline bool dsc_loop_add(int epoll_fd, int fd, dsc_loop_event what, uint32_t events)
{
    struct epoll_event event = { .events = events };
    event.data.u64 = (uint64_t)what.kind << 40 | (uint64_t)what.which << 32 | (uint32_t)what.number;
    return epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

static inline void dsc_loop_remove(int epoll_fd, int fd) { epoll_ctl(epoll_fd, EPOLL_CTL_DEL, fd, NULL); }

static inline dsc_loop_event dsc_loop_decode(const struct epoll_event *event)
{
    const uint64_t data = event->data.u64;
    return (dsc_loop_event){ (dsc_loop_kind)(data >> 40), (int32_t)(uint32_t)data, (int)(data >> 32 & 0xff) };
}

#endif
