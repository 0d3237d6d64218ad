/* workers.c - see workers.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/data/images/workers.h"

#include <pthread.h>
#include <stdlib.h>

typedef struct worker {
    dsc_workers *all;
    pthread_t thread;
    int32_t number;
} worker;

struct dsc_workers {
    dsc_worker_fn fn;
    void *user;
    worker *each; /* [threads], number 0 is the caller */
    int32_t threads, started;
    pthread_mutex_t mutex;
    pthread_cond_t given, done; /* parts are there; none is left, and none is being done */
    /* Under the mutex: */
    int64_t next, count, busy; /* parts that nobody does yet begin at `next` */
    int64_t failed;            /* the first part that failed, or INT64_MAX */
    dsc_status status;
    dsc_error error;
    bool stop;
};

/* With the mutex held: parts until none is left. */
static void do_parts(dsc_workers *w, int32_t thread)
{
    while (w->next < w->count && w->next < w->failed) {
        const int64_t part = w->next++;
        dsc_error error = DSC_ERROR_INIT;
        w->busy++;
        pthread_mutex_unlock(&w->mutex);
        const dsc_status status = w->fn(w->user, thread, part, &error);
        pthread_mutex_lock(&w->mutex);
        w->busy--;
        if (status != DSC_OK && part < w->failed) {
            w->failed = part;
            w->status = status;
            w->error = error;
        }
    }
    if (w->busy == 0)
        pthread_cond_signal(&w->done);
}

static void *run(void *argument)
{
    worker *own = argument;
    dsc_workers *w = own->all;
    pthread_mutex_lock(&w->mutex);
    while (!w->stop) {
        do_parts(w, own->number);
        if (!w->stop)
            pthread_cond_wait(&w->given, &w->mutex);
    }
    pthread_mutex_unlock(&w->mutex);
    return NULL;
}

dsc_status dsc_workers_open(int32_t threads, dsc_worker_fn fn, void *user, dsc_workers **out, dsc_error *err)
{
    DSC_ASSERT(threads >= 1);
    dsc_workers *w = calloc(1, sizeof *w);
    *out = NULL;
    if (w == NULL || (w->each = calloc((size_t)threads, sizeof *w->each)) == NULL) {
        free(w);
        return DSC_FAIL(err, DSC_ERR_NOMEM, "data", "no memory for the threads that decode pictures");
    }
    w->fn = fn, w->user = user, w->threads = threads, w->failed = INT64_MAX;
    pthread_mutex_init(&w->mutex, NULL);
    pthread_cond_init(&w->given, NULL);
    pthread_cond_init(&w->done, NULL);
    for (w->started = 1; w->started < threads; w->started++) {
        worker *each = &w->each[w->started];
        each->all = w;
        each->number = w->started;
        if (pthread_create(&each->thread, NULL, run, each) != 0) {
            dsc_workers_close(&w);
            return DSC_FAIL(err, DSC_ERR_NOMEM, "data",
                            "a thread that decodes pictures could not be started; lower "
                            "dsc.images.readers");
        }
    }
    *out = w;
    return DSC_OK;
}

void dsc_workers_close(dsc_workers **workers)
{
    dsc_workers *w = *workers;
    *workers = NULL;
    if (w == NULL)
        return;
    pthread_mutex_lock(&w->mutex);
    w->stop = true;
    pthread_cond_broadcast(&w->given);
    pthread_mutex_unlock(&w->mutex);
    for (int32_t i = 1; i < w->started; i++)
        pthread_join(w->each[i].thread, NULL);
    pthread_cond_destroy(&w->done);
    pthread_cond_destroy(&w->given);
    pthread_mutex_destroy(&w->mutex);
    free(w->each);
    free(w);
}

dsc_status dsc_workers_run(dsc_workers *w, int64_t count, dsc_error *err)
{
    pthread_mutex_lock(&w->mutex);
    DSC_ASSERT(w->busy == 0);
    w->next = 0;
    w->count = count;
    w->failed = INT64_MAX;
    w->status = DSC_OK;
    pthread_cond_broadcast(&w->given);
    do_parts(w, 0);
    while (w->busy > 0)
        pthread_cond_wait(&w->done, &w->mutex);
    w->count = 0;
    const dsc_status status = w->status;
    if (status != DSC_OK && err != NULL)
        *err = w->error;
    pthread_mutex_unlock(&w->mutex);
    return status;
}
