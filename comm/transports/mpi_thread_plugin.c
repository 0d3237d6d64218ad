/* mpi_thread_plugin.c - see mpi_thread.h. SPDX-License-Identifier: Apache-2.0 */
#include "comm/transports/mpi_thread.h"

#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { PENDING, SLEPT_ON, DONE };

/* Polls before the processor is offered to others: 5 us. On a free processor that costs little. If the awaited rank
 * needs the processor, more polls delay it (64 KiB, busy machine: 2000 polls 214 us, 50 polls 30 us). */
#define LOOKS 50
#define SPIN_NS INT64_C(10000)  /* for a thread on another processor: as long as a short message takes */
#define REST_NS INT64_C(50000)  /* without an order before the thread sleeps: waking it takes 5 to 30 us */
#define YIELDS 20               /* to a thread on this processor, before sleep: each takes 1.4 us */

int64_t dsc_mpi_clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static void futex_wait(_Atomic uint32_t *word, uint32_t old, const struct timespec *time)
{
    syscall(SYS_futex, (uintptr_t)word, FUTEX_WAIT_PRIVATE, old, time, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, (uintptr_t)word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static bool is_done(dsc_mpi_order *order)
{
    return atomic_load_explicit(&order->state, memory_order_acquire) == DONE;
}

/* ---- the thread -------------------------------------------------------------------------------------------------- */

static bool has_orders(dsc_mpi_thread *thread)
{
    return atomic_load_explicit(&thread->posted, memory_order_relaxed) != NULL;
}

/* All that were posted, the first one first. */
static bool run_orders(dsc_mpi_thread *thread)
{
    dsc_mpi_order *order = has_orders(thread) ? atomic_exchange(&thread->posted, NULL) : NULL, *first = NULL;
    while (order != NULL) {
        dsc_mpi_order *next = order->next;
        order->next = first;
        first = order;
        order = next;
    }
    const bool any = first != NULL;
    while (first != NULL) {
        order = first;
        first = order->next; /* `run` may free the order */
        order->run(order);
    }
    return any;
}

/* The last poster may need this processor to post again; then the next order is there at once. */
static void rest(dsc_mpi_thread *thread)
{
    const int64_t until_ns = dsc_mpi_clock_ns() + REST_NS;
    do {
        sched_yield();
        if (has_orders(thread))
            return;
    } while (dsc_mpi_clock_ns() < until_ns);
    atomic_store(&thread->asleep, 1);
    while (atomic_load(&thread->posted) == NULL) {
        futex_wait(&thread->asleep, 1, NULL);
        atomic_store(&thread->asleep, 1);
    }
    atomic_store(&thread->asleep, 0);
}

static void be_seen(dsc_mpi_thread *thread)
{
    atomic_store_explicit(&thread->cpu, sched_getcpu(), memory_order_relaxed);
}

static void *serve(void *user)
{
    dsc_mpi_thread *thread = user;
    int looks = 0;
    be_seen(thread);
    for (;;) {
        if (run_orders(thread))
            looks = 0;
        if (thread->leave)
            return NULL;
        if (!thread->look()) {
            rest(thread);
            be_seen(thread);
        } else if (++looks > LOOKS) {
            sched_yield();
        }
    }
}

/* Signals are for the program's threads. */
int dsc_mpi_thread_start(dsc_mpi_thread *thread, bool callers, bool (*look)(void))
{
    sigset_t all, old;
    thread->look = look;
    thread->callers = callers;
    thread->id = pthread_self();
    if (callers)
        return 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    const int rc = pthread_create(&thread->id, NULL, serve, thread);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc;
}

/* ---- who posts --------------------------------------------------------------------------------------------------- */

bool dsc_mpi_post(dsc_mpi_thread *thread, dsc_mpi_order *order)
{
    atomic_store(&order->state, PENDING);
    if (thread->callers) {
        const bool here = pthread_equal(pthread_self(), thread->id);
        if (here)
            order->run(order);
        return here;
    }
    dsc_mpi_order *top = atomic_load(&thread->posted);
    do
        order->next = top;
    while (!atomic_compare_exchange_weak(&thread->posted, &top, order));
    if (atomic_load(&thread->asleep) != 0 && atomic_exchange(&thread->asleep, 0) != 0)
        futex_wake(&thread->asleep);
    return true;
}

static bool look_until_done(dsc_mpi_thread *thread, dsc_mpi_order *order, int64_t until_ns)
{
    for (int looks = 1; !is_done(order); looks++) {
        thread->look();
        if (looks % LOOKS == 0 && dsc_mpi_clock_ns() > until_ns)
            break;
        if (looks > LOOKS)
            sched_yield();
    }
    return is_done(order);
}

/* A thread that was last seen on this very processor gets on only when this one makes room. */
static bool spin_until_done(dsc_mpi_thread *thread, dsc_mpi_order *order)
{
    if (sched_getcpu() == atomic_load_explicit(&thread->cpu, memory_order_relaxed)) {
        for (int i = 0; i < YIELDS && !is_done(order); i++)
            sched_yield();
        return is_done(order);
    }
    const int64_t until_ns = dsc_mpi_clock_ns() + SPIN_NS;
    do
        for (int i = 0; i < 16 && !is_done(order); i++)
            relax();
    while (!is_done(order) && dsc_mpi_clock_ns() < until_ns);
    return is_done(order);
}

bool dsc_mpi_wait(dsc_mpi_thread *thread, dsc_mpi_order *order, int64_t ns)
{
    const int64_t start_ns = dsc_mpi_clock_ns();
    if (thread->callers)
        return look_until_done(thread, order, ns < INT64_MAX - start_ns ? start_ns + ns : INT64_MAX);
    if (spin_until_done(thread, order))
        return true;
    for (int64_t left = ns; left > 0; left = ns - (dsc_mpi_clock_ns() - start_ns)) {
        const struct timespec time = { .tv_sec = left / 1000000000, .tv_nsec = left % 1000000000 };
        uint32_t was = PENDING;
        if (!atomic_compare_exchange_strong(&order->state, &was, SLEPT_ON) && was == DONE)
            return true;
        futex_wait(&order->state, SLEPT_ON, &time);
    }
    return is_done(order);
}

/* The waiting thread may free the order as soon as it sees the end. A wake at an address without a waiter wakes
 * nobody. */
void dsc_mpi_done(dsc_mpi_order *order)
{
    if (atomic_exchange(&order->state, DONE) == SLEPT_ON)
        futex_wake(&order->state);
}
