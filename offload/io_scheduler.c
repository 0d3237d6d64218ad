/* io_scheduler.c - see io_scheduler.h. SPDX-License-Identifier: Apache-2.0 */
#include "offload/io_scheduler.h"

#include "base/clock.h"

void dsc_io_scheduler_demand(dsc_io_scheduler *scheduler, dsc_io_class io_class)
{
    DSC_ASSERT(io_class < DSC_IO_CLASS_COUNT);
    atomic_fetch_add(&scheduler->demands[io_class], 1);
}

long long dsc_io_scheduler_ticket(const dsc_io_scheduler *scheduler, dsc_io_class io_class)
{
    DSC_ASSERT(io_class < DSC_IO_CLASS_COUNT);
    return atomic_load(&scheduler->demands[io_class]);
}

void dsc_io_scheduler_set_waiting(dsc_io_scheduler *scheduler, dsc_io_class io_class, bool waits)
{
    DSC_ASSERT(atomic_load(&scheduler->waits[io_class]) != waits); /* one thread per class */
    atomic_store(&scheduler->waits[io_class], waits);
}

static bool is_waiting(const dsc_io_scheduler *scheduler, int io_class)
{
    dsc_event *arrival = scheduler->arrival[io_class];
    DSC_ASSERT(io_class < DSC_IO_CLASS_COUNT);
    return (arrival != NULL && !dsc_event_passed(arrival)) || atomic_load(&scheduler->waits[io_class]);
}

bool dsc_io_scheduler_yields(const dsc_io_scheduler *scheduler, dsc_io_class io_class)
{
    DSC_ASSERT(io_class < DSC_IO_CLASS_COUNT);
    for (int higher = 0; higher < (int)io_class; higher++)
        if (is_waiting(scheduler, higher))
            return true;
    return false;
}

void dsc_io_scheduler_cancel(dsc_io_scheduler *scheduler) { atomic_store(&scheduler->cancelled, true); }

bool dsc_io_scheduler_is_cancelled(const dsc_io_scheduler *scheduler) { return atomic_load(&scheduler->cancelled); }

bool dsc_io_scheduler_continues(const dsc_io_scheduler *scheduler, dsc_io_class io_class, long long ticket)
{
    const long long demands = dsc_io_scheduler_ticket(scheduler, io_class);
    DSC_ASSERT(demands >= ticket);
    return demands == ticket && !atomic_load(&scheduler->cancelled);
}

static bool is_over(const dsc_io_scheduler *scheduler, const dsc_io_work_ops *ops, long long ticket, const void *args)
{
    DSC_ASSERT(!ops->ignores_demands || ops->is_over != NULL); /* otherwise only cancel ends it */
    if (ops->is_over != NULL && ops->is_over(args))
        return true;
    return ops->ignores_demands ? atomic_load(&scheduler->cancelled)
                                : !dsc_io_scheduler_continues(scheduler, ops->io_class, ticket);
}

/* Waits for a request in flight, else for the pause of the work. Work without rounds leaves the engine to its owner. */
static void wait_for_round(dsc_io_scheduler *scheduler, const dsc_io_work_ops *ops, const void *args)
{
    dsc_aio *engine = ops->round != NULL ? scheduler->engine[ops->io_class] : NULL;
    DSC_ASSERT(ops->pause_ns > 0);
    if (engine != NULL && dsc_aio_pump(engine, ops->pause_ns))
        return;
    const int64_t begin = dsc_clock_ns();
    dsc_clock_sleep_ns(ops->pause_ns);
    if (ops->after_pause != NULL)
        ops->after_pause(args, dsc_clock_ns() - begin);
}

dsc_status dsc_io_scheduler_run(dsc_io_scheduler *scheduler, const dsc_io_work_ops *ops, long long ticket,
                                const void *args, dsc_error *err)
{
    DSC_ASSERT(ops->io_class < DSC_IO_CLASS_COUNT);
    while (!is_over(scheduler, ops, ticket, args)) {
        dsc_io_round result = DSC_IO_PENDING;
        if (ops->round != NULL)
            DSC_TRY(ops->round(args, dsc_io_scheduler_yields(scheduler, ops->io_class), &result, err));
        if (result == DSC_IO_IDLE)
            return DSC_OK;
        if (result == DSC_IO_PENDING)
            wait_for_round(scheduler, ops, args);
    }
    return DSC_OK;
}
