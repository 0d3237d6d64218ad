/* device_cpu.c - the cpu device: an inline compute stream, asynchronous streams with one thread each, real events.
 *
 * Tickets: every operation of a stream gets the next number, and `done` is the last one finished. An event is a
 * (stream, ticket) pair, so recording is one store, and a wait captures exactly the work that was queued when the
 * event was recorded, whatever is recorded later and wherever. Streams are kept by the device until it closes and
 * their tickets never go back: an event of a closed stream is simply over.
 * Asynchronous streams keep their entries in a ring of RING; the caller waits when it is full. An entry is run in
 * place. Waits sleep on condition variables. No deadlock: a ticket that can be waited for is queued already, its queue
 * is served by a thread that waits only for older tickets, and after an error the rest of a queue is skipped, not
 * stopped. SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "kernels/cpu_team.h"
#include "kernels/device.h"
#include "kernels/team.h"

enum { RING = 256 };
/* Copies of the inline stream are spread over the team in blocks; below two blocks one thread is faster. */
#define COPY_BLOCK_BYTES (INT64_C(1) << 20)

typedef struct cpu_device cpu_device;
typedef struct cpu_stream cpu_stream;

typedef enum entry_kind { ENTRY_KERNEL, ENTRY_HOST, ENTRY_COPY, ENTRY_ZERO, ENTRY_WAIT } entry_kind;

typedef struct entry {
    entry_kind kind;
    dsc_kernel_fn kernel;
    dsc_host_fn host;
    void *to;
    const void *from;
    int64_t bytes;
    cpu_stream *stream; /* ENTRY_WAIT: this one's */
    uint64_t ticket;    /*             work up to here */
    _Alignas(16) unsigned char args[DSC_LAUNCH_ARGS_MAX];
} entry;

struct cpu_stream {
    dsc_stream base;
    cpu_device *device;
    cpu_stream *next; /* in device->streams */
    dsc_stream_kind kind;
    dsc_cpu_team team;
    bool is_open;
    entry *ring; /* [RING], asynchronous streams; ticket t is entry t % RING */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t work;     /* to the thread: something queued, or closing */
    pthread_cond_t progress; /* from the thread: `done` moved */
    uint64_t issued;
    _Atomic uint64_t done;
    uint64_t failed_ticket; /* 0: no error */
    int32_t waiters;
    bool idle, closing;
    dsc_error error;
};

typedef struct cpu_event {
    dsc_event base;
    cpu_device *device;
    pthread_mutex_t lock;
    cpu_stream *stream; /* NULL: never recorded */
    uint64_t ticket;
} cpu_event;

struct cpu_device {
    dsc_device base;
    dsc_alloc *alloc;
    dsc_cpu_team team;
    dsc_kernel_table table;
    pthread_mutex_t lock; /* the list and the counts */
    cpu_stream *streams;
    int64_t open_streams, open_events, open_buffers;
};

/* ---- waiting and failing ---- */

/* Sleeps until the work up to `ticket` is over; returns its stream's error when the failure is part of that work. */
static dsc_status wait_for(cpu_stream *s, uint64_t ticket, dsc_error *err)
{
    dsc_status status = DSC_OK;
    pthread_mutex_lock(&s->lock);
    s->waiters++;
    while (atomic_load_explicit(&s->done, memory_order_acquire) < ticket)
        pthread_cond_wait(&s->progress, &s->lock);
    s->waiters--;
    if (s->failed_ticket != 0 && s->failed_ticket <= ticket) {
        status = s->error.status;
        if (err != NULL)
            *err = s->error;
    }
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* With s->lock held. */
static dsc_status sticky(const cpu_stream *s, dsc_error *err)
{
    if (s->failed_ticket == 0)
        return DSC_OK;
    if (err != NULL)
        *err = s->error;
    return s->error.status;
}

/* With s->lock held: the operation after s->done is over. */
static void finish(cpu_stream *s, dsc_status status, const dsc_error *err)
{
    const uint64_t ticket = atomic_load_explicit(&s->done, memory_order_relaxed) + 1;
    if (status != DSC_OK && s->failed_ticket == 0) {
        s->failed_ticket = ticket;
        s->error = *err;
        s->error.status = status;
    }
    atomic_store_explicit(&s->done, ticket, memory_order_release);
    if (s->waiters > 0)
        pthread_cond_broadcast(&s->progress);
}

/* ---- running one entry ---- */

typedef struct copy_ctx {
    char *to;
    const char *from; /* NULL: zeros */
    int64_t bytes;
} copy_ctx;

static void copy_blocks(void *ctx, int64_t first, int64_t last)
{
    const copy_ctx *c = ctx;
    const int64_t begin = first * COPY_BLOCK_BYTES, end = dsc_min_i64(last * COPY_BLOCK_BYTES, c->bytes);
    if (c->from != NULL)
        memcpy(c->to + begin, c->from + begin, (size_t)(end - begin));
    else
        memset(c->to + begin, 0, (size_t)(end - begin));
}

static dsc_status run_entry(cpu_stream *s, entry *e, dsc_error *err)
{
    switch (e->kind) {
    case ENTRY_KERNEL: return e->kernel(e->args, &s->team, err);
    case ENTRY_HOST: return e->host(e->args, err);
    case ENTRY_COPY:
    case ENTRY_ZERO: {
        copy_ctx ctx = { .to = e->to, .from = e->kind == ENTRY_COPY ? e->from : NULL, .bytes = e->bytes };
        if (e->bytes > 0)
            dsc_team_run(&s->team, dsc_div_ceil(e->bytes, COPY_BLOCK_BYTES), copy_blocks, &ctx);
        return DSC_OK;
    }
    case ENTRY_WAIT: return e->stream == s ? DSC_OK : wait_for(e->stream, e->ticket, err);
    }
    return DSC_FAIL(err, DSC_ERR_INTERNAL, "", "a queue entry of no kind");
}

/* After an error only waits still happen: what follows this stream must not overtake what it waits for. */
static dsc_status run_unless_failed(cpu_stream *s, entry *e, bool failed, dsc_error *err)
{
    if (failed && e->kind != ENTRY_WAIT)
        return DSC_OK;
    const uint32_t mode = dsc_fp_strict();
    const dsc_status status = run_entry(s, e, err);
    dsc_fp_restore(mode);
    return status;
}

static void *stream_thread(void *arg)
{
    cpu_stream *s = arg;
    dsc_fp_strict();
    pthread_mutex_lock(&s->lock);
    for (;;) {
        const uint64_t done = atomic_load_explicit(&s->done, memory_order_relaxed);
        if (s->issued == done) {
            if (s->closing)
                break;
            s->idle = true;
            pthread_cond_wait(&s->work, &s->lock);
            s->idle = false;
            continue;
        }
        const bool failed = s->failed_ticket != 0;
        pthread_mutex_unlock(&s->lock);
        dsc_error err = DSC_ERROR_INIT;
        const dsc_status status = run_unless_failed(s, &s->ring[(done + 1) % RING], failed, &err);
        pthread_mutex_lock(&s->lock);
        finish(s, status, &err);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static bool on_own_thread(const cpu_stream *s)
{
    return s->kind == DSC_STREAM_ASYNC && pthread_equal(pthread_self(), s->thread);
}

static dsc_status queue(cpu_stream *s, const entry *e, const void *args, int64_t args_bytes, dsc_error *err)
{
    pthread_mutex_lock(&s->lock);
    s->waiters++;
    while (s->issued - atomic_load_explicit(&s->done, memory_order_relaxed) == RING && s->failed_ticket == 0)
        pthread_cond_wait(&s->progress, &s->lock);
    s->waiters--;
    const dsc_status status = sticky(s, err);
    if (status == DSC_OK) {
        entry *slot = &s->ring[(s->issued + 1) % RING];
        memcpy(slot, e, offsetof(entry, args));
        if (args_bytes > 0)
            memcpy(slot->args, args, (size_t)args_bytes);
        s->issued++;
        if (s->idle)
            pthread_cond_signal(&s->work);
    }
    pthread_mutex_unlock(&s->lock);
    return status;
}

static dsc_status run_inline(cpu_stream *s, entry *e, const void *args, int64_t args_bytes, dsc_error *err)
{
    dsc_error local = DSC_ERROR_INIT;
    pthread_mutex_lock(&s->lock);
    dsc_status status = sticky(s, err);
    if (status == DSC_OK)
        s->issued++;
    pthread_mutex_unlock(&s->lock);
    if (status != DSC_OK)
        return status;
    if (args_bytes > 0)
        memcpy(e->args, args, (size_t)args_bytes);
    status = run_unless_failed(s, e, false, &local);
    pthread_mutex_lock(&s->lock);
    finish(s, status, &local);
    status = sticky(s, err);
    pthread_mutex_unlock(&s->lock);
    return status;
}

static dsc_status submit(dsc_stream *stream, entry *e, const void *args, int64_t args_bytes, dsc_error *err)
{
    cpu_stream *s = (cpu_stream *)stream;
    DSC_ASSERT(s->is_open);
    if (s->kind == DSC_STREAM_COMPUTE)
        return run_inline(s, e, args, args_bytes, err);
    if (on_own_thread(s))
        return DSC_FAIL(err, DSC_ERR_STATE, "",
                        "a host call queued work on its own stream, which would wait for itself");
    return queue(s, e, args, args_bytes, err);
}

/* ---- the table's operations ---- */

static dsc_status cpu_copy(dsc_stream *stream, void *to, const void *from, int64_t bytes, dsc_error *err)
{
    entry e = { .kind = ENTRY_COPY, .to = to, .from = from, .bytes = bytes };
    return submit(stream, &e, NULL, 0, err);
}

static dsc_status cpu_zero(dsc_stream *stream, void *to, int64_t bytes, dsc_error *err)
{
    entry e = { .kind = ENTRY_ZERO, .to = to, .bytes = bytes };
    return submit(stream, &e, NULL, 0, err);
}

static dsc_status cpu_launch(dsc_stream *stream, dsc_kernel kernel, const void *args, int64_t args_bytes,
                             dsc_error *err)
{
    entry e = { .kind = ENTRY_KERNEL, .kernel = ((cpu_stream *)stream)->device->table.fn[kernel] };
    if (e.kernel == NULL)
        return DSC_FAIL(err, DSC_ERR_INTERNAL, dsc_kernel_text(kernel), "this build has no CPU version of the kernel");
    return submit(stream, &e, args, args_bytes, err);
}

static dsc_status cpu_host_call(dsc_stream *stream, dsc_host_fn fn, const void *args, int64_t args_bytes,
                                dsc_error *err)
{
    entry e = { .kind = ENTRY_HOST, .host = fn };
    return submit(stream, &e, args, args_bytes, err);
}

static dsc_status cpu_stream_sync(dsc_stream *stream, dsc_error *err)
{
    cpu_stream *s = (cpu_stream *)stream;
    DSC_ASSERT(s->is_open);
    if (on_own_thread(s))
        return DSC_FAIL(err, DSC_ERR_STATE, "", "a host call waits for its own stream, which would never end");
    pthread_mutex_lock(&s->lock);
    const uint64_t issued = s->issued;
    pthread_mutex_unlock(&s->lock);
    return wait_for(s, issued, err);
}

static dsc_status cpu_event_open(dsc_device *device, dsc_event **out, dsc_error *err)
{
    cpu_device *d = (cpu_device *)device;
    cpu_event *e;
    DSC_TRY(dsc_alloc_zeroed(d->alloc, DSC_TAG_CONTROL, 1, sizeof *e, &e, err));
    e->base.ops = d->base.ops;
    e->device = d;
    if (pthread_mutex_init(&e->lock, NULL) != 0) {
        dsc_alloc_free(d->alloc, e);
        return DSC_FAIL(err, DSC_ERR_NOMEM, "", "the system has no memory for a lock");
    }
    pthread_mutex_lock(&d->lock);
    d->open_events++;
    pthread_mutex_unlock(&d->lock);
    *out = &e->base;
    return DSC_OK;
}

static void cpu_event_close(dsc_event *event)
{
    cpu_event *e = (cpu_event *)event;
    cpu_device *d = e->device;
    pthread_mutex_destroy(&e->lock);
    dsc_alloc_free(d->alloc, e);
    pthread_mutex_lock(&d->lock);
    d->open_events--;
    pthread_mutex_unlock(&d->lock);
}

static dsc_status cpu_event_record(dsc_event *event, dsc_stream *stream, dsc_error *err)
{
    cpu_event *e = (cpu_event *)event;
    cpu_stream *s = (cpu_stream *)stream;
    DSC_ASSERT(s->is_open);
    pthread_mutex_lock(&s->lock);
    const dsc_status status = sticky(s, err);
    const uint64_t issued = s->issued;
    pthread_mutex_unlock(&s->lock);
    DSC_TRY(status);
    pthread_mutex_lock(&e->lock);
    e->stream = s;
    e->ticket = issued;
    pthread_mutex_unlock(&e->lock);
    return DSC_OK;
}

static void capture(cpu_event *e, cpu_stream **stream, uint64_t *ticket)
{
    pthread_mutex_lock(&e->lock);
    *stream = e->stream;
    *ticket = e->ticket;
    pthread_mutex_unlock(&e->lock);
}

static dsc_status cpu_stream_wait(dsc_stream *stream, dsc_event *event, dsc_error *err)
{
    entry e = { .kind = ENTRY_WAIT };
    capture((cpu_event *)event, &e.stream, &e.ticket);
    if (e.stream == NULL)
        return DSC_OK;
    return submit(stream, &e, NULL, 0, err);
}

static dsc_status cpu_event_sync(dsc_event *event, dsc_error *err)
{
    cpu_stream *s;
    uint64_t ticket;
    capture((cpu_event *)event, &s, &ticket);
    return s == NULL ? DSC_OK : wait_for(s, ticket, err);
}

/* Both tiers are host memory here. */
static dsc_status cpu_mem_open(dsc_device *device, dsc_tag tag, dsc_tier tier, int64_t bytes, dsc_buf *out,
                               dsc_error *err)
{
    cpu_device *d = (cpu_device *)device;
    DSC_TRY(dsc_buf_open(d->alloc, tag, tier, bytes, out, err));
    pthread_mutex_lock(&d->lock);
    d->open_buffers++;
    pthread_mutex_unlock(&d->lock);
    return DSC_OK;
}

static void cpu_mem_close(dsc_device *device, dsc_buf *buf)
{
    cpu_device *d = (cpu_device *)device;
    if (buf->ptr == NULL)
        return;
    dsc_buf_close(buf);
    pthread_mutex_lock(&d->lock);
    d->open_buffers--;
    pthread_mutex_unlock(&d->lock);
}

/* ---- streams come and go ---- */

/* Gives a stream of the device's list that nobody uses, or a new one; it counts as open. */
static dsc_status stream_take(cpu_device *d, dsc_stream_kind kind, cpu_stream **out, dsc_error *err)
{
    cpu_stream *s = NULL;
    pthread_mutex_lock(&d->lock);
    for (s = d->streams; s != NULL && (s->is_open || s->kind != kind); s = s->next)
        ;
    if (s != NULL)
        s->is_open = true;
    d->open_streams += s != NULL;
    pthread_mutex_unlock(&d->lock);
    *out = s;
    if (s != NULL)
        return DSC_OK;
    DSC_TRY(dsc_alloc_zeroed(d->alloc, DSC_TAG_CONTROL, 1, sizeof *s, &s, err));
    s->base.ops = d->base.ops;
    s->device = d;
    s->kind = kind;
    dsc_status status = DSC_OK;
    if (kind == DSC_STREAM_ASYNC)
        status = dsc_alloc_zeroed(d->alloc, DSC_TAG_CONTROL, RING, sizeof *s->ring, &s->ring, err);
    if (status == DSC_OK && (pthread_mutex_init(&s->lock, NULL) != 0 || pthread_cond_init(&s->work, NULL) != 0 ||
                             pthread_cond_init(&s->progress, NULL) != 0))
        status = DSC_FAIL(err, DSC_ERR_NOMEM, "", "the system has no memory for a lock");
    if (status != DSC_OK) {
        dsc_alloc_free(d->alloc, s->ring);
        dsc_alloc_free(d->alloc, s);
        return status;
    }
    pthread_mutex_lock(&d->lock);
    s->is_open = true;
    d->open_streams++;
    s->next = d->streams;
    d->streams = s;
    pthread_mutex_unlock(&d->lock);
    *out = s;
    return DSC_OK;
}

/* The thread takes no signals: they are the program's. */
static dsc_status thread_start(cpu_stream *s, const char *name, dsc_error *err)
{
    char short_name[16];
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    const int rc = pthread_create(&s->thread, NULL, stream_thread, s);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc != 0)
        return DSC_FAIL(err, DSC_ERR_NOMEM, name, "the system starts no thread for the stream: %s",
                        strerrordesc_np(rc));
    snprintf(short_name, sizeof short_name, "%s", name);
    pthread_setname_np(s->thread, short_name);
    return DSC_OK;
}

static void stream_leave(cpu_stream *s)
{
    pthread_mutex_lock(&s->device->lock);
    s->is_open = false;
    s->device->open_streams--;
    pthread_mutex_unlock(&s->device->lock);
}

static dsc_status cpu_stream_open(dsc_device *device, dsc_stream_kind kind, const char *name, dsc_stream **out,
                                  dsc_error *err)
{
    cpu_device *d = (cpu_device *)device;
    cpu_stream *s;
    DSC_TRY(stream_take(d, kind, &s, err));
    s->team = d->team;
    if (kind == DSC_STREAM_ASYNC)
        s->team.threads = 1; /* its thread works beside the compute team, not with a second one */
    pthread_mutex_lock(&s->lock); /* somebody may still ask about the stream's former life */
    s->failed_ticket = 0;
    s->closing = s->idle = false;
    pthread_mutex_unlock(&s->lock);
    const dsc_status status = kind == DSC_STREAM_ASYNC ? thread_start(s, name, err) : DSC_OK;
    if (status == DSC_OK)
        *out = &s->base;
    else
        stream_leave(s);
    return status;
}

static void cpu_stream_close(dsc_stream *stream)
{
    cpu_stream *s = (cpu_stream *)stream;
    DSC_ASSERT(s->is_open);
    DSC_ASSERT(!on_own_thread(s));
    if (s->kind == DSC_STREAM_ASYNC) {
        pthread_mutex_lock(&s->lock);
        s->closing = true;
        pthread_cond_signal(&s->work);
        pthread_mutex_unlock(&s->lock);
        pthread_join(s->thread, NULL);
    }
    DSC_ASSERT(s->issued == atomic_load(&s->done));
    stream_leave(s);
}

static dsc_status cpu_open(dsc_device **out, const dsc_device_options *options, dsc_error *err)
{
    cpu_device *d;
    DSC_TRY(dsc_alloc_zeroed(options->alloc, DSC_TAG_CONTROL, 1, sizeof *d, &d, err));
    d->base.ops = &dsc_device_cpu;
    d->alloc = options->alloc;
    d->team = (dsc_cpu_team){ .threads = options->threads, .caps = options->caps & dsc_cpu_caps() };
    dsc_kernel_table_init(&d->table, d->team.caps);
    dsc_status status = dsc_gemm_store_open(d->alloc, d->team.threads, d->team.caps, &d->team.gemm, err);
    if (status == DSC_OK && pthread_mutex_init(&d->lock, NULL) != 0)
        status = DSC_FAIL(err, DSC_ERR_NOMEM, "", "the system has no memory for a lock");
    if (status != DSC_OK) {
        dsc_gemm_store_close(&d->team.gemm);
        dsc_alloc_free(options->alloc, d);
        return status;
    }
    *out = &d->base;
    return DSC_OK;
}

static void cpu_close(dsc_device *device)
{
    cpu_device *d = (cpu_device *)device;
    DSC_ASSERT(d->open_streams == 0);
    DSC_ASSERT(d->open_events == 0);
    DSC_ASSERT(d->open_buffers == 0);
    while (d->streams != NULL) {
        cpu_stream *s = d->streams;
        d->streams = s->next;
        pthread_cond_destroy(&s->progress);
        pthread_cond_destroy(&s->work);
        pthread_mutex_destroy(&s->lock);
        dsc_alloc_free(d->alloc, s->ring);
        dsc_alloc_free(d->alloc, s);
    }
    dsc_gemm_store_close(&d->team.gemm);
    pthread_mutex_destroy(&d->lock);
    dsc_alloc_free(d->alloc, d);
}

static dsc_status cpu_gemm_prepare(dsc_device *device, const dsc_gemm_args *shape, dsc_error *err)
{
    return dsc_gemm_store_prepare(((cpu_device *)device)->team.gemm, shape, err);
}

static void cpu_props(dsc_device *device, dsc_device_props *out) { snprintf(out->name, sizeof out->name, "cpu"); }

const dsc_device_ops dsc_device_cpu = {
    .name = "cpu",
    .version = DSC_DEVICE_OPS_VERSION,
    .host_visible = true,
    .open = cpu_open,
    .close = cpu_close,
    .stream_open = cpu_stream_open,
    .stream_close = cpu_stream_close,
    .stream_sync = cpu_stream_sync,
    .event_open = cpu_event_open,
    .event_close = cpu_event_close,
    .event_record = cpu_event_record,
    .stream_wait = cpu_stream_wait,
    .event_sync = cpu_event_sync,
    .copy = cpu_copy,
    .zero = cpu_zero,
    .launch = cpu_launch,
    .host_call = cpu_host_call,
    .mem_open = cpu_mem_open,
    .mem_close = cpu_mem_close,
    .gemm_prepare = cpu_gemm_prepare,
    .props = cpu_props,
};
