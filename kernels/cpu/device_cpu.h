/* device_cpu.h - streams of the cpu device: tickets, entries, and how entries are run. For kernels/device_cpu*.c alone.
 *
 * Tickets: every operation of a stream gets the next number, and `done` is the last one finished. Streams are kept by
 * the device until it closes and their tickets never go back. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CPU_DEVICE_CPU_H
#define DSC_KERNELS_CPU_DEVICE_CPU_H

#include <pthread.h>
#include <stdatomic.h>

#include "kernels/device.h"

/* Reductions to files may be modules behind (zero/grad_parts.c), and one of 20 million elements is 700 entries. */
enum { DSC_CPU_RING = 2048 };

typedef struct dsc_cpu_device dsc_cpu_device;
typedef struct dsc_cpu_stream dsc_cpu_stream;

typedef enum dsc_cpu_entry_kind {
    DSC_CPU_ENTRY_KERNEL,
    DSC_CPU_ENTRY_HOST,
    DSC_CPU_ENTRY_COPY,
    DSC_CPU_ENTRY_ZERO,
    DSC_CPU_ENTRY_WAIT
} dsc_cpu_entry_kind;

typedef struct dsc_cpu_entry {
    dsc_cpu_entry_kind kind;
    dsc_kernel_fn kernel;
    dsc_host_fn host;
    void *to;
    const void *from;
    int64_t bytes;
    dsc_cpu_stream *stream; /* DSC_CPU_ENTRY_WAIT: this one's */
    uint64_t ticket;        /*                     work up to here */
    _Alignas(16) unsigned char args[DSC_LAUNCH_ARGS_MAX];
} dsc_cpu_entry;

struct dsc_cpu_stream {
    dsc_stream base;
    dsc_cpu_device *device;
    dsc_cpu_stream *next; /* in device->streams */
    dsc_stream_kind kind;
    dsc_cpu_threads pool;
    bool is_open;
    dsc_cpu_entry *ring; /* [DSC_CPU_RING], asynchronous streams; ticket t is entry t % DSC_CPU_RING */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t work;     /* to the thread: something queued, or closing */
    pthread_cond_t progress; /* from the thread: `done` moved */
    uint64_t issued;
    _Atomic uint64_t done;
    uint64_t failed_ticket; /* 0: no error */
    int32_t waiters;
    bool idle, closing;
    int64_t wait_from_ns, waited_ns; /* of the thread that calls, on a COMPUTE stream */
    dsc_error error;
};

/* Sleeps until the work up to `ticket` is over; returns its stream's error when the failure is part of that work. */
dsc_status dsc_cpu_wait(dsc_cpu_stream *s, uint64_t ticket, dsc_error *err);
/* With s->lock held: the stream's error, if it has one. */
dsc_status dsc_cpu_failure(const dsc_cpu_stream *s, dsc_error *err);
bool dsc_cpu_on_own_thread(const dsc_cpu_stream *s);
/* Runs an entry at once (inline stream) or queues it. `args` are copied into the entry's. */
dsc_status dsc_cpu_submit(dsc_stream *stream, dsc_cpu_entry *e, const void *args, int64_t args_bytes, dsc_error *err);
/* The thread of an asynchronous stream; ends when the stream is closing and empty. */
void *dsc_cpu_serve(void *stream);

#endif
