/* launch_times.c - see launch_times.h. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/virtual/launch_times.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- measuring ---- */

/* Streams have the device's table, which is a member of the times. */
static dsc_launch_times *times_of(const dsc_stream *stream)
{
    return (dsc_launch_times *)(void *)((char *)(uintptr_t)stream->ops - offsetof(dsc_launch_times, ops));
}

/* CPU time of this thread: what other programs do on the machine counts little. */
static double thread_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static dsc_launch_time *find(const dsc_launch_times *times, int32_t kind, const int64_t shape[DSC_LAUNCH_SHAPE])
{
    for (int32_t i = 0; i < times->count; i++)
        if (times->row[i].kind == kind && memcmp(times->row[i].shape, shape, sizeof times->row[i].shape) == 0)
            return &times->row[i];
    return NULL;
}

void dsc_launch_times_add(dsc_launch_times *times, int32_t kind, const int64_t shape[DSC_LAUNCH_SHAPE], double seconds)
{
    dsc_launch_time *row = find(times, kind, shape);
    times->seconds += seconds;
    times->launches++;
    if (row == NULL && times->count == DSC_LAUNCH_TIMES) {
        times->full = true;
        return;
    }
    if (row == NULL) {
        row = &times->row[times->count++];
        *row = (dsc_launch_time) { .kind = kind };
        memcpy(row->shape, shape, sizeof row->shape);
    }
    row->sample[row->count++ % DSC_LAUNCH_SAMPLES] = (float)seconds;
}

static dsc_status timed_open(dsc_device **out, const dsc_device_options *options, dsc_error *err)
{
    dsc_launch_times *times = options->times;
    DSC_ASSERT(times != NULL && times->inner != NULL);
    DSC_TRY(times->inner->open(out, options, err));
    (*out)->ops = &times->ops; /* streams and events get it from there */
    return DSC_OK;
}

static dsc_status timed_launch(dsc_stream *stream, dsc_kernel kernel, const void *args, int64_t args_bytes,
                               dsc_error *err)
{
    dsc_launch_times *times = times_of(stream);
    int64_t shape[DSC_LAUNCH_SHAPE];
    if (!times->measures)
        return times->inner->launch(stream, kernel, args, args_bytes, err);
    dsc_launch_shape(kernel, args, shape);
    const double start = thread_s();
    const dsc_status status = times->inner->launch(stream, kernel, args, args_bytes, err);
    dsc_launch_times_add(times, (int32_t)kernel, shape, thread_s() - start);
    return status;
}

static dsc_status timed_copy(dsc_stream *stream, void *to, const void *from, int64_t bytes, dsc_error *err)
{
    dsc_launch_times *times = times_of(stream);
    const int64_t shape[DSC_LAUNCH_SHAPE] = { bytes };
    const double start = thread_s();
    const dsc_status status = times->inner->copy(stream, to, from, bytes, err);
    if (times->measures)
        dsc_launch_times_add(times, DSC_LAUNCH_COPY, shape, thread_s() - start);
    return status;
}

static dsc_status timed_zero(dsc_stream *stream, void *to, int64_t bytes, dsc_error *err)
{
    dsc_launch_times *times = times_of(stream);
    const int64_t shape[DSC_LAUNCH_SHAPE] = { bytes };
    const double start = thread_s();
    const dsc_status status = times->inner->zero(stream, to, bytes, err);
    if (times->measures)
        dsc_launch_times_add(times, DSC_LAUNCH_ZERO, shape, thread_s() - start);
    return status;
}

const dsc_device_ops *dsc_launch_times_device(dsc_launch_times *times)
{
    DSC_ASSERT(times->inner != NULL);
    times->ops = *times->inner;
    times->ops.open = timed_open;
    times->ops.launch = timed_launch;
    times->ops.copy = timed_copy;
    times->ops.zero = timed_zero;
    return &times->ops;
}

static int compare_samples(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

void dsc_launch_times_settle(dsc_launch_times *times)
{
    for (int32_t i = 0; i < times->count; i++) {
        dsc_launch_time *row = &times->row[i];
        const int64_t samples = dsc_min_i64(row->count, DSC_LAUNCH_SAMPLES);
        qsort(row->sample, (size_t)samples, sizeof row->sample[0], compare_samples);
        row->seconds = samples > 0 ? (double)row->sample[samples / 2] : 0;
    }
}

/* ---- reading ---- */

const char *dsc_launch_kind_text(int32_t kind)
{
    static const char *const texts[] = { "COPY", "ZERO", "PULL" };
    DSC_ASSERT(kind >= 0 && kind < DSC_LAUNCH_KINDS);
    return kind >= DSC_KERNEL_COUNT ? texts[kind - DSC_KERNEL_COUNT] : dsc_kernel_text((dsc_kernel)kind);
}

/* How far the amounts of work are apart, as a factor; products of other operands are further away than any. */
static double distance(const dsc_launch_time *row, const int64_t shape[DSC_LAUNCH_SHAPE])
{
    const double work = (double)dsc_max_i64(1, shape[0]), other = (double)dsc_max_i64(1, row->shape[0]);
    return fabs(log(work / other)) + (row->shape[3] == shape[3] ? 0 : 100);
}

double dsc_launch_times_get(const dsc_launch_times *times, int32_t kind, const int64_t shape[DSC_LAUNCH_SHAPE],
                            bool *known)
{
    const dsc_launch_time *best = find(times, kind, shape);
    *known = true;
    if (best != NULL)
        return best->seconds;
    for (int32_t i = 0; i < times->count; i++)
        if (times->row[i].kind == kind && (best == NULL || distance(&times->row[i], shape) < distance(best, shape)))
            best = &times->row[i];
    const double factor = best == NULL ? 0 : (double)dsc_max_i64(1, shape[0]) / (double)dsc_max_i64(1, best->shape[0]);
    *known = best != NULL && factor <= DSC_LAUNCH_FACTOR;
    return best == NULL ? 0 : best->seconds * fmin(factor, DSC_LAUNCH_FACTOR);
}
