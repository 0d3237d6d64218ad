/* io_scheduler.h - the order of file I/O among the users of swap files.
 *
 * Each class of requests has one thread and one file engine. A demand request needs its bytes now: a thread announces
 * the demand when it queues the call that reads them. Background work (read-ahead, write-behind, tiles of an update
 * before its norm) runs on the thread of its class between two demand requests.
 *
 *   [QUEUED] --run--> [ROUND] --WORKED----------------------------------> [ROUND]
 *                        |----PENDING--> requests in flight: complete them; none: pause --> [ROUND]
 *                        +----IDLE, a demand, the work's own end, cancel--> [ENDED]
 *
 * Invariants:
 *  I1. Background work ends before its next round if a demand of its class was announced after the work was queued.
 *  I2. Each round is given whether a class of higher priority waits for bytes. Work that yields starts no read-ahead
 *      then, and still completes the requests in flight. The first tiles of an update are read without yielding: they
 *      fill its tile buffers once.
 *  I3. The scheduler pauses between two rounds only if the engine of the class has no request in flight. Work without
 *      rounds always pauses: the caller uses the engine after it.
 *  I4. After cancel no round begins. A class that waits for another class is released.
 *  I5. The work ends with the first error of a round, and the caller gets that error.
 *
 * Functions are thread-safe, except run: each class has one thread that runs its work.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_OFFLOAD_IO_SCHEDULER_H
#define DSC_OFFLOAD_IO_SCHEDULER_H

#include <stdatomic.h>

#include "kernels/device.h"
#include "offload/aio.h"

/* Pauses of background work, and of a thread that waits for a buffer of another thread. */
#define DSC_IO_PAUSE_NS INT64_C(1000000)
#define DSC_IO_SHORT_PAUSE_NS INT64_C(200000)

/* Highest priority first: a pass waits for parameters, the reductions for gradient sums, the update for states. */
typedef enum dsc_io_class { DSC_IO_PARAM, DSC_IO_GRAD, DSC_IO_STATE, DSC_IO_CLASS_COUNT } dsc_io_class;

typedef enum dsc_io_round {
    DSC_IO_IDLE,    /* no work is left and no request is in flight: the work ends */
    DSC_IO_PENDING, /* the next round has to wait for a request or for another thread */
    DSC_IO_WORKED   /* the next round may follow at once */
} dsc_io_round;

/* Background work: one const table per kind of work. */
typedef struct dsc_io_work_ops {
    dsc_io_class io_class;
    int64_t pause_ns;     /* longest time between two rounds */
    bool ignores_demands; /* the work is part of a demand request itself, and ends by `is_over` or cancel */
    /* One round. `yields`: I2. NULL: the work only waits for is_over. */
    dsc_status (*round)(const void *args, bool yields, dsc_io_round *result, dsc_error *err);
    bool (*is_over)(const void *args);                 /* NULL: never */
    void (*after_pause)(const void *args, int64_t ns); /* NULL: the time is not counted */
} dsc_io_work_ops;

typedef struct dsc_io_scheduler {
    dsc_aio *engine[DSC_IO_CLASS_COUNT];    /* borrowed; NULL: the class has no files */
    dsc_event *arrival[DSC_IO_CLASS_COUNT]; /* borrowed; not passed: the class waits for bytes. NULL: see waits */
    atomic_bool waits[DSC_IO_CLASS_COUNT];
    atomic_llong demands[DSC_IO_CLASS_COUNT];
    atomic_bool cancelled;
} dsc_io_scheduler;

/* Announces a demand request: queued and running background work of the class ends. */
void dsc_io_scheduler_demand(dsc_io_scheduler *scheduler, dsc_io_class io_class);
/* Number of demands so far. Background work is queued with it, and later demands end the work. */
long long dsc_io_scheduler_ticket(const dsc_io_scheduler *scheduler, dsc_io_class io_class);
/* Around a read that blocks the thread of the class: classes of lower priority yield. */
void dsc_io_scheduler_set_waiting(dsc_io_scheduler *scheduler, dsc_io_class io_class, bool waits);
/* Whether a class of higher priority waits for bytes. */
bool dsc_io_scheduler_yields(const dsc_io_scheduler *scheduler, dsc_io_class io_class);
/* Ends all background work before its next round. */
void dsc_io_scheduler_cancel(dsc_io_scheduler *scheduler);
bool dsc_io_scheduler_is_cancelled(const dsc_io_scheduler *scheduler);
/* Whether work with this ticket may begin a further round: neither cancelled nor followed by a demand. */
bool dsc_io_scheduler_continues(const dsc_io_scheduler *scheduler, dsc_io_class io_class, long long ticket);

/* Runs rounds until the work ends. Returns DSC_OK, also after a demand or cancel, or the error of a round. */
DSC_MUST_USE dsc_status dsc_io_scheduler_run(dsc_io_scheduler *scheduler, const dsc_io_work_ops *ops, long long ticket,
                                             const void *args, dsc_error *err);

#endif
