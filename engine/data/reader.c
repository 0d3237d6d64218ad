/* reader.c - reads micro-batches ahead so that a step never waits for a disk. One thread, `depth` buffers in a ring.
 *
 * A failed fill stays in its slot and comes out of dsc_reader_next in its place; the thread then stops until a seek.
 * SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <string.h>

#include "base/clock.h"
#include "engine/data/data.h"
#include "kernels/device.h"

#define READER_ALIGN 256

typedef struct dsc_reader_slot {
    void **tensor; /* [batch_count] */
    int64_t counted; /* targets */
    dsc_status status;
    dsc_error error;
} dsc_reader_slot;

struct dsc_reader {
    dsc_reader_options o;
    dsc_buf buf;
    dsc_reader_slot *slot; /* [depth] */
    void **tensors;        /* [depth * batch_count] */
    pthread_t thread;
    bool started;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    /* Under the mutex: micro-batches are numbered from the last seek. */
    int64_t first_micro; /* number of the first micro-batch since the run's start */
    dsc_skips skips;     /* batches that are left out */
    int64_t produced, taken; /* taken: given back by the caller */
    int64_t held;            /* slots from `taken` on that are in the caller's hands */
    uint64_t generation;     /* grows with every seek; a fill of an older one is thrown away */
    bool stop, waits;
    bool filling; /* a slot, without the mutex; the options stay as they are meanwhile */
};

static int64_t tensor_bytes(const dsc_reader_options *o, int32_t tensor)
{
    return dsc_align_up(dsc_batch_tensor_bytes(o->model, o->micro_batch, tensor), READER_ALIGN);
}

int64_t dsc_reader_plan_bytes(const dsc_reader_options *o)
{
    int64_t bytes = 0;
    for (int32_t i = 0; i < o->model->batch_count; i++)
        bytes += tensor_bytes(o, i);
    return bytes * o->depth;
}

/* This rank's micro-batches of a step. */
static int64_t in_step(const dsc_reader_options *o) { return dsc_quota_of(&o->quota, o->rank); }

/* First sample of this rank's micro-batch `micro`, counted from the run's start. */
static int64_t first_sample(const dsc_reader_options *o, const dsc_skips *skips, int64_t micro)
{
    const int64_t batch = dsc_skips_batch(skips, micro / in_step(o));
    const int64_t number = dsc_quota_number(&o->quota, o->rank, micro % in_step(o));
    return (batch * o->quota.total + number) * o->micro_batch;
}

/* The first `length` elements of each sample follow each other instead of whole ones. */
static void cut_samples(const dsc_reader_options *o, void *const *tensor, int64_t length)
{
    for (int32_t i = 0; i < o->model->batch_count; i++) {
        const int64_t whole = dsc_batch_tensor_bytes(o->model, 1, i), each = whole / o->model->batch[i].dim[0];
        char *data = tensor[i];
        for (int64_t sample = 1; sample < o->micro_batch; sample++)
            memmove(data + sample * length * each, data + sample * whole, (size_t)(length * each));
    }
}

static void fill_slot(const dsc_reader_options *o, dsc_reader_slot *slot, int64_t micro, int64_t first)
{
    slot->error = (dsc_error)DSC_ERROR_INIT;
    slot->status = o->source.fill(o->source.user, first, o->micro_batch, slot->tensor, &slot->error);
    if (slot->status == DSC_OK)
        slot->status = dsc_batch_check(o->model, o->micro_batch, (const void *const *)slot->tensor, &slot->error);
    if (slot->status != DSC_OK)
        return;
    int64_t targets = o->model->losses_per_sample;
    if (o->curriculum != NULL && o->curriculum->enabled) {
        const int64_t step = micro / in_step(o) + 1;
        targets = dsc_curriculum_length(o->curriculum, step, o->model->seq_length);
        cut_samples(o, slot->tensor, targets);
    }
    slot->counted = dsc_batch_counted(o->model, o->micro_batch * targets, (const void *const *)slot->tensor);
}

static void *run(void *argument)
{
    dsc_reader *reader = argument;
    pthread_mutex_lock(&reader->mutex);
    while (!reader->stop) {
        const bool full = reader->produced - reader->taken >= reader->o.depth;
        const bool failed = reader->produced > reader->taken &&
                            reader->slot[(reader->produced - 1) % reader->o.depth].status != DSC_OK;
        if (full || failed || reader->waits) {
            pthread_cond_wait(&reader->changed, &reader->mutex);
            continue;
        }
        const uint64_t generation = reader->generation;
        const int64_t micro = reader->first_micro + reader->produced;
        const int64_t first = first_sample(&reader->o, &reader->skips, micro);
        dsc_reader_slot *slot = &reader->slot[reader->produced % reader->o.depth];
        reader->filling = true;
        pthread_mutex_unlock(&reader->mutex);
        fill_slot(&reader->o, slot, micro, first);
        pthread_mutex_lock(&reader->mutex);
        reader->filling = false;
        if (generation == reader->generation)
            reader->produced++;
        pthread_cond_broadcast(&reader->changed);
    }
    pthread_mutex_unlock(&reader->mutex);
    return NULL;
}

static dsc_status open_slots(dsc_reader *reader, dsc_error *err)
{
    const dsc_reader_options *o = &reader->o;
    const int64_t tensors = o->model->batch_count;
    DSC_TRY(dsc_mem_open(o->device, DSC_TAG_DATA, DSC_TIER_PINNED, dsc_reader_plan_bytes(o), &reader->buf, err));
    DSC_TRY(dsc_alloc_zeroed(o->alloc, DSC_TAG_CONTROL, o->depth, sizeof *reader->slot, &reader->slot, err));
    DSC_TRY(dsc_alloc_zeroed(o->alloc, DSC_TAG_CONTROL, o->depth * tensors, sizeof(void *), &reader->tensors, err));
    char *at = reader->buf.ptr;
    for (int32_t s = 0; s < o->depth; s++) {
        reader->slot[s].tensor = reader->tensors + s * tensors;
        for (int32_t i = 0; i < tensors; i++) {
            reader->slot[s].tensor[i] = at;
            at += tensor_bytes(o, i);
        }
    }
    return DSC_OK;
}

dsc_status dsc_reader_open(const dsc_reader_options *options, int64_t first_step, dsc_reader **out, dsc_error *err)
{
    DSC_ASSERT(options->depth >= 2);
    dsc_reader *reader = NULL;
    *out = NULL;
    DSC_TRY(dsc_alloc_zeroed(options->alloc, DSC_TAG_CONTROL, 1, sizeof *reader, &reader, err));
    reader->o = *options;
    reader->waits = options->waits;
    reader->first_micro = first_step * in_step(options);
    pthread_mutex_init(&reader->mutex, NULL);
    pthread_cond_init(&reader->changed, NULL);
    dsc_status status = open_slots(reader, err);
    if (status == DSC_OK && pthread_create(&reader->thread, NULL, run, reader) != 0)
        status = DSC_FAIL(err, DSC_ERR_NOMEM, "data", "the reader thread could not be started");
    reader->started = status == DSC_OK;
    if (status != DSC_OK)
        dsc_reader_close(&reader);
    *out = reader;
    return status;
}

void dsc_reader_close(dsc_reader **reader_ptr)
{
    dsc_reader *reader = *reader_ptr;
    if (reader == NULL)
        return;
    if (reader->started) {
        pthread_mutex_lock(&reader->mutex);
        reader->stop = true;
        pthread_cond_broadcast(&reader->changed);
        pthread_mutex_unlock(&reader->mutex);
        pthread_join(reader->thread, NULL);
    }
    pthread_cond_destroy(&reader->changed);
    pthread_mutex_destroy(&reader->mutex);
    dsc_alloc_free(reader->o.alloc, reader->tensors);
    dsc_alloc_free(reader->o.alloc, reader->slot);
    dsc_mem_close(reader->o.device, &reader->buf);
    dsc_alloc_free(reader->o.alloc, reader);
    *reader_ptr = NULL;
}

void dsc_reader_release(dsc_reader *reader)
{
    pthread_mutex_lock(&reader->mutex);
    reader->taken += reader->held;
    reader->held = 0;
    pthread_cond_broadcast(&reader->changed);
    pthread_mutex_unlock(&reader->mutex);
}

dsc_status dsc_reader_next(dsc_reader *reader, const void *const **batch_data, int64_t *counted, int64_t *wait_ns,
                           dsc_error *err)
{
    const int64_t start = dsc_clock_ns();
    pthread_mutex_lock(&reader->mutex);
    DSC_ASSERT(reader->held < reader->o.depth);
    DSC_ASSERT(!reader->waits);
    while (reader->produced == reader->taken + reader->held)
        pthread_cond_wait(&reader->changed, &reader->mutex);
    dsc_reader_slot *slot = &reader->slot[(reader->taken + reader->held) % reader->o.depth];
    const dsc_status status = slot->status;
    if (status == DSC_OK)
        reader->held++;
    else if (err != NULL)
        *err = slot->error;
    *batch_data = (const void *const *)slot->tensor;
    *counted = slot->counted;
    pthread_mutex_unlock(&reader->mutex);
    if (wait_ns != NULL)
        *wait_ns += dsc_clock_ns() - start;
    return status;
}

dsc_status dsc_reader_seek(dsc_reader *reader, int64_t step, const dsc_skips *skips, dsc_error *err)
{
    if (step < 0)
        return DSC_FAIL(err, DSC_ERR_STATE, "data", "seek to step %lld", (long long)step);
    pthread_mutex_lock(&reader->mutex);
    reader->generation++;
    reader->waits = false;
    if (skips != &reader->skips)
        reader->skips = *skips;
    reader->first_micro = step * in_step(&reader->o);
    reader->produced = reader->taken = 0;
    reader->held = 0;
    pthread_cond_broadcast(&reader->changed);
    pthread_mutex_unlock(&reader->mutex);
    return DSC_OK;
}

dsc_status dsc_reader_set_quota(dsc_reader *reader, const dsc_quota *quota, int64_t step, dsc_error *err)
{
    pthread_mutex_lock(&reader->mutex);
    reader->waits = true; /* until the seek */
    while (reader->filling)
        pthread_cond_wait(&reader->changed, &reader->mutex);
    reader->o.quota = *quota;
    pthread_mutex_unlock(&reader->mutex);
    return dsc_reader_seek(reader, step, &reader->skips, err);
}
