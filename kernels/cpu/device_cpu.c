/* device_cpu.c - the cpu device: an inline compute stream, asynchronous streams with one thread each, real events.
 *
 * An event is a (stream, ticket) pair, so recording is one store. A wait captures exactly the work that was queued
 * when the event was recorded, regardless of later records. An event of a closed stream counts as done: streams and
 * their tickets live as long as the device (device_cpu.h). SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"
#include "kernels/cpu/device_cpu.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

struct dsc_cpu_device {
    dsc_device base;
    dsc_alloc *alloc;
    dsc_cpu_threads pool;
    dsc_kernel_table table;
    pthread_mutex_t lock; /* the list and the counts */
    dsc_cpu_stream *streams;
    int64_t open_streams, open_events, open_buffers;
};

typedef struct cpu_event {
    dsc_event base;
    dsc_cpu_device *device;
    pthread_mutex_t lock;
    dsc_cpu_stream *stream; /* NULL: never recorded */
    uint64_t ticket;
} cpu_event;

/* ---- the table's operations ---- */

static dsc_status cpu_copy(dsc_stream *stream, void *to, const void *from, int64_t bytes, dsc_error *err)
{
    dsc_cpu_entry e = { .kind = DSC_CPU_ENTRY_COPY, .to = to, .from = from, .bytes = bytes };
    return dsc_cpu_submit(stream, &e, NULL, 0, err);
}

static dsc_status cpu_zero(dsc_stream *stream, void *to, int64_t bytes, dsc_error *err)
{
    dsc_cpu_entry e = { .kind = DSC_CPU_ENTRY_ZERO, .to = to, .bytes = bytes };
    return dsc_cpu_submit(stream, &e, NULL, 0, err);
}

static dsc_status cpu_launch(dsc_stream *stream, dsc_kernel kernel, const void *args, int64_t args_bytes,
                             dsc_error *err)
{
    dsc_cpu_entry e = { .kind = DSC_CPU_ENTRY_KERNEL, .kernel = ((dsc_cpu_stream *)stream)->device->table.fn[kernel] };
    if (e.kernel == NULL)
        return DSC_FAIL(err, DSC_ERR_INTERNAL, dsc_kernel_text(kernel), "this build has no CPU version of the kernel");
    return dsc_cpu_submit(stream, &e, args, args_bytes, err);
}

static dsc_status cpu_host_call(dsc_stream *stream, dsc_host_fn fn, const void *args, int64_t args_bytes,
                                dsc_error *err)
{
    dsc_cpu_entry e = { .kind = DSC_CPU_ENTRY_HOST, .host = fn };
    return dsc_cpu_submit(stream, &e, args, args_bytes, err);
}

static dsc_status cpu_stream_sync(dsc_stream *stream, dsc_error *err)
{
    dsc_cpu_stream *s = (dsc_cpu_stream *)stream;
    DSC_ASSERT(s->is_open);
    if (dsc_cpu_on_own_thread(s))
        return DSC_FAIL(err, DSC_ERR_STATE, "", "a host call waits for its own stream, which would never end");
    pthread_mutex_lock(&s->lock);
    const uint64_t issued = s->issued;
    pthread_mutex_unlock(&s->lock);
    return dsc_cpu_wait(s, issued, err);
}

static dsc_status cpu_event_open(dsc_device *device, dsc_event **out, dsc_error *err)
{
    dsc_cpu_device *d = (dsc_cpu_device *)device;
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
    dsc_cpu_device *d = e->device;
    pthread_mutex_destroy(&e->lock);
    dsc_alloc_free(d->alloc, e);
    pthread_mutex_lock(&d->lock);
    d->open_events--;
    pthread_mutex_unlock(&d->lock);
}

static dsc_status cpu_event_record(dsc_event *event, dsc_stream *stream, dsc_error *err)
{
    cpu_event *e = (cpu_event *)event;
    dsc_cpu_stream *s = (dsc_cpu_stream *)stream;
    DSC_ASSERT(s->is_open);
    pthread_mutex_lock(&s->lock);
    const dsc_status status = dsc_cpu_failure(s, err);
    const uint64_t issued = s->issued;
    pthread_mutex_unlock(&s->lock);
    DSC_TRY(status);
    pthread_mutex_lock(&e->lock);
    e->stream = s;
    e->ticket = issued;
    pthread_mutex_unlock(&e->lock);
    return DSC_OK;
}

static void capture(cpu_event *e, dsc_cpu_stream **stream, uint64_t *ticket)
{
    pthread_mutex_lock(&e->lock);
    *stream = e->stream;
    *ticket = e->ticket;
    pthread_mutex_unlock(&e->lock);
}

static dsc_status cpu_stream_wait(dsc_stream *stream, dsc_event *event, dsc_error *err)
{
    dsc_cpu_entry e = { .kind = DSC_CPU_ENTRY_WAIT };
    capture((cpu_event *)event, &e.stream, &e.ticket);
    if (e.stream == NULL)
        return DSC_OK;
    return dsc_cpu_submit(stream, &e, NULL, 0, err);
}

static dsc_status cpu_event_sync(dsc_event *event, dsc_error *err)
{
    dsc_cpu_stream *s;
    uint64_t ticket;
    capture((cpu_event *)event, &s, &ticket);
    return s == NULL ? DSC_OK : dsc_cpu_wait(s, ticket, err);
}

static bool cpu_event_passed(dsc_event *event)
{
    dsc_cpu_stream *s;
    uint64_t ticket;
    capture((cpu_event *)event, &s, &ticket);
    return s == NULL || atomic_load_explicit(&s->done, memory_order_acquire) >= ticket;
}

/* A COMPUTE stream works on the calling thread, which waits itself. */
static void cpu_wait_begin(dsc_stream *stream) { ((dsc_cpu_stream *)stream)->wait_from_ns = dsc_clock_ns(); }

static void cpu_wait_end(dsc_stream *stream)
{
    dsc_cpu_stream *s = (dsc_cpu_stream *)stream;
    if (s->kind == DSC_STREAM_COMPUTE)
        s->waited_ns += dsc_clock_ns() - s->wait_from_ns;
}

static int64_t cpu_waited_ns(dsc_stream *stream) { return ((dsc_cpu_stream *)stream)->waited_ns; }

/* Both tiers are host memory here. */
static dsc_status cpu_mem_open(dsc_device *device, dsc_tag tag, dsc_tier tier, int64_t bytes, dsc_buf *out,
                               dsc_error *err)
{
    dsc_cpu_device *d = (dsc_cpu_device *)device;
    DSC_TRY(dsc_buf_open(d->alloc, tag, tier, bytes, out, err));
    pthread_mutex_lock(&d->lock);
    d->open_buffers++;
    pthread_mutex_unlock(&d->lock);
    return DSC_OK;
}

static void cpu_mem_close(dsc_device *device, dsc_buf *buf)
{
    dsc_cpu_device *d = (dsc_cpu_device *)device;
    if (buf->ptr == NULL)
        return;
    dsc_buf_close(buf);
    pthread_mutex_lock(&d->lock);
    d->open_buffers--;
    pthread_mutex_unlock(&d->lock);
}

/* ---- streams come and go ---- */

/* Gives a stream of the device's list that nobody uses, or a new one; it counts as open. */
static dsc_status stream_take(dsc_cpu_device *d, dsc_stream_kind kind, dsc_cpu_stream **out, dsc_error *err)
{
    dsc_cpu_stream *s = NULL;
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
        status = dsc_alloc_zeroed(d->alloc, DSC_TAG_CONTROL, DSC_CPU_RING, sizeof *s->ring, &s->ring, err);
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
static dsc_status thread_start(dsc_cpu_stream *s, const char *name, dsc_error *err)
{
    char short_name[16];
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    const int rc = pthread_create(&s->thread, NULL, dsc_cpu_serve, s);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc != 0)
        return DSC_FAIL(err, DSC_ERR_NOMEM, name, "the system starts no thread for the stream: %s",
                        strerrordesc_np(rc));
    snprintf(short_name, sizeof short_name, "%s", name);
    pthread_setname_np(s->thread, short_name);
    return DSC_OK;
}

static void stream_leave(dsc_cpu_stream *s)
{
    pthread_mutex_lock(&s->device->lock);
    s->is_open = false;
    s->device->open_streams--;
    pthread_mutex_unlock(&s->device->lock);
}

static dsc_status cpu_stream_open(dsc_device *device, dsc_stream_kind kind, const char *name, dsc_stream **out,
                                  dsc_error *err)
{
    dsc_cpu_device *d = (dsc_cpu_device *)device;
    dsc_cpu_stream *s;
    DSC_TRY(stream_take(d, kind, &s, err));
    s->pool = d->pool;
    if (kind == DSC_STREAM_ASYNC)
        s->pool.threads = 1; /* its thread works beside the compute pool; a second pool is not opened */
    pthread_mutex_lock(&s->lock); /* somebody may still ask about the stream's former life */
    s->failed_ticket = 0;
    s->closing = s->idle = false;
    s->wait_from_ns = s->waited_ns = 0;
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
    dsc_cpu_stream *s = (dsc_cpu_stream *)stream;
    DSC_ASSERT(s->is_open);
    DSC_ASSERT(!dsc_cpu_on_own_thread(s));
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
    dsc_cpu_device *d;
    DSC_TRY(dsc_alloc_zeroed(options->alloc, DSC_TAG_CONTROL, 1, sizeof *d, &d, err));
    d->base.ops = &dsc_device_cpu;
    d->alloc = options->alloc;
    d->pool = (dsc_cpu_threads) { .threads = options->threads, .caps = options->caps & dsc_cpu_caps() };
    dsc_kernel_table_init(&d->table, d->pool.caps);
    dsc_status status = dsc_gemm_store_open(d->alloc, d->pool.threads, d->pool.caps, &d->pool.gemm, err);
    if (status == DSC_OK && pthread_mutex_init(&d->lock, NULL) != 0)
        status = DSC_FAIL(err, DSC_ERR_NOMEM, "", "the system has no memory for a lock");
    if (status != DSC_OK) {
        dsc_gemm_store_close(&d->pool.gemm);
        dsc_alloc_free(options->alloc, d);
        return status;
    }
    *out = &d->base;
    return DSC_OK;
}

static void cpu_close(dsc_device *device)
{
    dsc_cpu_device *d = (dsc_cpu_device *)device;
    DSC_ASSERT(d->open_streams == 0);
    DSC_ASSERT(d->open_events == 0);
    DSC_ASSERT(d->open_buffers == 0);
    while (d->streams != NULL) {
        dsc_cpu_stream *s = d->streams;
        d->streams = s->next;
        pthread_cond_destroy(&s->progress);
        pthread_cond_destroy(&s->work);
        pthread_mutex_destroy(&s->lock);
        dsc_alloc_free(d->alloc, s->ring);
        dsc_alloc_free(d->alloc, s);
    }
    dsc_gemm_store_close(&d->pool.gemm);
    pthread_mutex_destroy(&d->lock);
    dsc_alloc_free(d->alloc, d);
}

static dsc_status cpu_gemm_prepare(dsc_device *device, const dsc_gemm_args *shape, dsc_error *err)
{
    return dsc_gemm_store_prepare(((dsc_cpu_device *)device)->pool.gemm, shape, err);
}

static void cpu_props(dsc_device *device, dsc_device_props *out) { snprintf(out->name, sizeof out->name, "cpu"); }

static bool cpu_conv2d_is_whole(dsc_stream *stream, const dsc_conv2d_args *args)
{
    return dsc_conv2d_is_whole_on_cpu(args);
}

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
    .event_passed = cpu_event_passed,
    .copy = cpu_copy,
    .zero = cpu_zero,
    .launch = cpu_launch,
    .host_call = cpu_host_call,
    .mem_open = cpu_mem_open,
    .mem_close = cpu_mem_close,
    .gemm_prepare = cpu_gemm_prepare,
    .conv2d_is_whole = cpu_conv2d_is_whole,
    .props = cpu_props,
    .wait_begin = cpu_wait_begin,
    .wait_end = cpu_wait_end,
    .waited_ns = cpu_waited_ns,
};
