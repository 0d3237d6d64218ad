/* aio_threads.c - the portable engine: pread and pwrite on a few threads. SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/thread.h"
#include "offload/aio.h"

struct dsc_aio_engine_state {
    dsc_alloc *alloc;
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    dsc_aio_piece **waiting, **finished; /* rings of `capacity` */
    int32_t capacity, waiting_first, waiting_count, finished_first, finished_count;
    int32_t thread_count;
    pthread_t *threads;
    bool stop;
};

static void *run(void *user)
{
    dsc_aio_engine_state *s = user;
    dsc_thread_wake_soon();
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (s->waiting_count == 0 && !s->stop)
            pthread_cond_wait(&s->work, &s->lock);
        if (s->waiting_count == 0)
            break;
        dsc_aio_piece *p = s->waiting[s->waiting_first];
        DSC_ASSERT(p->bytes > 0);
        s->waiting_first = (s->waiting_first + 1) % s->capacity;
        s->waiting_count--;
        pthread_mutex_unlock(&s->lock);
        const ssize_t n = p->write ? pwrite(p->fd, p->buf, (size_t)p->bytes, p->offset)
                                   : pread(p->fd, p->buf, (size_t)p->bytes, p->offset);
        p->result = n < 0 ? -errno : n;
        pthread_mutex_lock(&s->lock);
        DSC_ASSERT(s->finished_count < s->capacity);
        s->finished[(s->finished_first + s->finished_count++) % s->capacity] = p;
        pthread_cond_signal(&s->done);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static void close_threads(dsc_aio_engine_state *s)
{
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    pthread_cond_broadcast(&s->work);
    pthread_mutex_unlock(&s->lock);
    for (int32_t i = 0; i < s->thread_count; i++)
        pthread_join(s->threads[i], NULL);
    DSC_ASSERT(s->waiting_count == 0); /* the threads have begun all blocks */
    pthread_cond_destroy(&s->work);
    pthread_cond_destroy(&s->done);
    pthread_mutex_destroy(&s->lock);
    dsc_alloc_free(s->alloc, s->waiting);
    dsc_alloc_free(s->alloc, s->finished);
    dsc_alloc_free(s->alloc, s->threads);
    dsc_alloc_free(s->alloc, s);
}

static dsc_status open_threads(const dsc_aio_options *options, dsc_aio_engine_state **out, dsc_error *err)
{
    dsc_aio_engine_state *s = NULL;
    pthread_condattr_t monotonic;
    DSC_TRY(dsc_alloc_zeroed(options->alloc, DSC_TAG_IO, 1, sizeof *s, &s, err));
    s->alloc = options->alloc;
    s->capacity = options->queue_depth;
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&s->work, NULL);
    pthread_cond_init(&s->done, &monotonic);
    pthread_condattr_destroy(&monotonic);
    dsc_status status = dsc_alloc_zeroed(s->alloc, DSC_TAG_IO, s->capacity, sizeof *s->waiting, &s->waiting, err);
    if (status == DSC_OK)
        status = dsc_alloc_zeroed(s->alloc, DSC_TAG_IO, s->capacity, sizeof *s->finished, &s->finished, err);
    if (status == DSC_OK)
        status = dsc_alloc_zeroed(s->alloc, DSC_TAG_IO, options->thread_count, sizeof *s->threads, &s->threads, err);
    for (int32_t i = 0; i < options->thread_count && status == DSC_OK; i++) {
        const int failed = pthread_create(&s->threads[i], NULL, run, s);
        if (failed != 0)
            status = DSC_FAIL(err, DSC_ERR_NOMEM, "aio threads", "thread %d could not be started (error %d)", (int)i,
                              failed);
        else
            s->thread_count++;
    }
    if (status != DSC_OK) {
        close_threads(s);
        return status;
    }
    DSC_ASSERT(s->thread_count == options->thread_count);
    *out = s;
    return DSC_OK;
}

static int submit(dsc_aio_engine_state *s, dsc_aio_piece *const *pieces, int count)
{
    pthread_mutex_lock(&s->lock);
    DSC_ASSERT(count > 0);
    DSC_ASSERT(s->waiting_count + count <= s->capacity);
    for (int i = 0; i < count; i++)
        s->waiting[(s->waiting_first + s->waiting_count++) % s->capacity] = pieces[i];
    if (count > 1)
        pthread_cond_broadcast(&s->work);
    else
        pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
    return count;
}

static int reap(dsc_aio_engine_state *s, dsc_aio_piece **out, int most, int64_t timeout_ns)
{
    const int64_t end = dsc_clock_ns() + timeout_ns;
    const struct timespec until = { (time_t)(end / 1000000000), (long)(end % 1000000000) };
    int count = 0;
    DSC_ASSERT(most > 0);
    pthread_mutex_lock(&s->lock);
    while (s->finished_count == 0 && timeout_ns > 0)
        if (pthread_cond_timedwait(&s->done, &s->lock, &until) == ETIMEDOUT)
            break;
    for (; count < most && s->finished_count > 0; count++, s->finished_count--) {
        out[count] = s->finished[s->finished_first];
        s->finished_first = (s->finished_first + 1) % s->capacity;
    }
    pthread_mutex_unlock(&s->lock);
    return count;
}

/* Blocks that no thread has begun are not begun any more. */
static void cancel(dsc_aio_engine_state *s)
{
    pthread_mutex_lock(&s->lock);
    for (; s->waiting_count > 0; s->waiting_count--) {
        dsc_aio_piece *p = s->waiting[s->waiting_first];
        s->waiting_first = (s->waiting_first + 1) % s->capacity;
        DSC_ASSERT(s->finished_count < s->capacity);
        p->result = -ECANCELED;
        s->finished[(s->finished_first + s->finished_count++) % s->capacity] = p;
    }
    pthread_mutex_unlock(&s->lock);
}

const dsc_aio_engine_ops dsc_aio_threads = {
    .name = "threads", .open = open_threads, .close = close_threads, .submit = submit, .reap = reap,
    .cancel = cancel,
};
