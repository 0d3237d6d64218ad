/* device_cpu_stream.c - how the cpu device's streams run their entries.
 *
 * Asynchronous streams keep their entries in a ring of DSC_CPU_RING; the caller waits when it is full. An entry is
 * run in place. Waits sleep on condition variables. There is no deadlock: a ticket is queued before anything can
 * wait for it, and the thread of its queue waits only for older tickets. After an error the rest of a queue is
 * skipped, not stopped. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/device_cpu.h"

#include <string.h>

#include "kernels/cpu_threads.h"
#include "kernels/thread_pool.h"

/* Copies of the inline stream are spread over the pool in blocks; below two blocks one thread is faster. */
#define COPY_BLOCK_BYTES (INT64_C(1) << 20)

/* ---- waiting and failing ---- */

dsc_status dsc_cpu_wait(dsc_cpu_stream *s, uint64_t ticket, dsc_error *err)
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

dsc_status dsc_cpu_failure(const dsc_cpu_stream *s, dsc_error *err)
{
    if (s->failed_ticket == 0)
        return DSC_OK;
    if (err != NULL)
        *err = s->error;
    return s->error.status;
}

/* With s->lock held: the operation after s->done is over. */
static void finish(dsc_cpu_stream *s, dsc_status status, const dsc_error *err)
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

static dsc_status run_entry(dsc_cpu_stream *s, dsc_cpu_entry *e, dsc_error *err)
{
    switch (e->kind) {
    case DSC_CPU_ENTRY_KERNEL: return e->kernel(e->args, &s->pool, err);
    case DSC_CPU_ENTRY_HOST: return e->host(e->args, err);
    case DSC_CPU_ENTRY_COPY:
    case DSC_CPU_ENTRY_ZERO: {
        copy_ctx ctx = { .to = e->to, .from = e->kind == DSC_CPU_ENTRY_COPY ? e->from : NULL, .bytes = e->bytes };
        if (e->bytes > 0)
            dsc_thread_pool_run(&s->pool, dsc_div_ceil(e->bytes, COPY_BLOCK_BYTES), copy_blocks, &ctx);
        return DSC_OK;
    }
    case DSC_CPU_ENTRY_WAIT: return e->stream == s ? DSC_OK : dsc_cpu_wait(e->stream, e->ticket, err);
    }
    return DSC_FAIL(err, DSC_ERR_INTERNAL, "", "a queue entry of no kind");
}

/* After an error only waits still happen: what follows this stream must not overtake what it waits for. */
static dsc_status run_unless_failed(dsc_cpu_stream *s, dsc_cpu_entry *e, bool failed, dsc_error *err)
{
    if (failed && e->kind != DSC_CPU_ENTRY_WAIT)
        return DSC_OK;
    const uint32_t mode = dsc_fp_strict();
    const dsc_status status = run_entry(s, e, err);
    dsc_fp_restore(mode);
    return status;
}

void *dsc_cpu_serve(void *stream)
{
    dsc_cpu_stream *s = stream;
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
        const dsc_status status = run_unless_failed(s, &s->ring[(done + 1) % DSC_CPU_RING], failed, &err);
        pthread_mutex_lock(&s->lock);
        finish(s, status, &err);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

bool dsc_cpu_on_own_thread(const dsc_cpu_stream *s)
{
    return s->kind == DSC_STREAM_ASYNC && pthread_equal(pthread_self(), s->thread);
}

static dsc_status queue(dsc_cpu_stream *s, const dsc_cpu_entry *e, const void *args, int64_t args_bytes, dsc_error *err)
{
    pthread_mutex_lock(&s->lock);
    s->waiters++;
    while (s->issued - atomic_load_explicit(&s->done, memory_order_relaxed) == DSC_CPU_RING && s->failed_ticket == 0)
        pthread_cond_wait(&s->progress, &s->lock);
    s->waiters--;
    const dsc_status status = dsc_cpu_failure(s, err);
    if (status == DSC_OK) {
        dsc_cpu_entry *slot = &s->ring[(s->issued + 1) % DSC_CPU_RING];
        memcpy(slot, e, offsetof(dsc_cpu_entry, args));
        if (args_bytes > 0)
            memcpy(slot->args, args, (size_t)args_bytes);
        s->issued++;
        if (s->idle)
            pthread_cond_signal(&s->work);
    }
    pthread_mutex_unlock(&s->lock);
    return status;
}

static dsc_status run_inline(dsc_cpu_stream *s, dsc_cpu_entry *e, const void *args, int64_t args_bytes, dsc_error *err)
{
    dsc_error local = DSC_ERROR_INIT;
    pthread_mutex_lock(&s->lock);
    dsc_status status = dsc_cpu_failure(s, err);
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
    status = dsc_cpu_failure(s, err);
    pthread_mutex_unlock(&s->lock);
    return status;
}

dsc_status dsc_cpu_submit(dsc_stream *stream, dsc_cpu_entry *e, const void *args, int64_t args_bytes, dsc_error *err)
{
    dsc_cpu_stream *s = (dsc_cpu_stream *)stream;
    DSC_ASSERT(s->is_open);
    if (s->kind == DSC_STREAM_COMPUTE)
        return run_inline(s, e, args, args_bytes, err);
    if (dsc_cpu_on_own_thread(s))
        return DSC_FAIL(err, DSC_ERR_STATE, "",
                        "a host call queued work on its own stream, which would wait for itself");
    return queue(s, e, args, args_bytes, err);
}
