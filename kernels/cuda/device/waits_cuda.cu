/* waits_cuda.cu - the time that a COMPUTE stream waits: two events around each wait, read when the stream has passed
 * them. Nothing waits for these events. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/device/device_cuda.h"

/* Waits that are on their way at once. The host is never so far ahead of a card; a wait too many is left out. */
#define WAITS 512

typedef struct cuda_waits {
    struct {
        cudaEvent_t begin, end;
    } wait[WAITS];
    int64_t begun, passed; /* wait n has the events n % WAITS; those from `passed` on have not been read */
    bool open;             /* the last one has a begin and no end yet */
    bool broken;           /* an event could not be opened: later waits are left out */
    double ms;             /* of the waits that passed */
} cuda_waits;

void dsc_cuda_waits_close(cuda_stream *stream)
{
    cuda_waits *w = stream->waits;
    for (int i = 0; w != NULL && i < WAITS; i++) {
        if (w->wait[i].begin != NULL)
            (void)cudaEventDestroy(w->wait[i].begin);
        if (w->wait[i].end != NULL)
            (void)cudaEventDestroy(w->wait[i].end);
    }
    (void)cudaGetLastError();
    dsc_alloc_free(stream->device->alloc, w);
    stream->waits = NULL;
}

dsc_status dsc_cuda_waits_open(cuda_stream *stream, dsc_error *err)
{
    return dsc_alloc_zeroed(stream->device->alloc, DSC_TAG_CONTROL, 1, (int64_t)sizeof *stream->waits, &stream->waits,
                            err);
}

/* Blocking, as nobody spins for it. */
static bool open_event(cudaEvent_t *event)
{
    return *event != NULL || cudaEventCreateWithFlags(event, cudaEventBlockingSync) == cudaSuccess;
}

/* The events of the next wait. A step opens as many as it has waits, and the next step uses them again. */
static bool open_wait(cuda_waits *w)
{
    const int64_t i = w->begun % WAITS;
    w->broken = w->broken || !open_event(&w->wait[i].begin) || !open_event(&w->wait[i].end);
    if (w->broken)
        (void)cudaGetLastError();
    return !w->broken;
}

/* Adds the waits that the stream has passed. */
static void read_passed(cuda_waits *w)
{
    const int64_t ended = w->begun - w->open;
    for (; w->passed < ended; w->passed++) {
        float ms = 0;
        const int64_t i = w->passed % WAITS;
        if (cudaEventQuery(w->wait[i].end) != cudaSuccess)
            break;
        if (cudaEventElapsedTime(&ms, w->wait[i].begin, w->wait[i].end) == cudaSuccess)
            w->ms += ms;
    }
    (void)cudaGetLastError(); /* "not ready" is none */
}

void dsc_cuda_wait_begin(dsc_stream *stream)
{
    cuda_stream *s = (cuda_stream *)stream;
    dsc_error err = DSC_ERROR_INIT;
    cuda_waits *w = s->waits;
    if (w == NULL || dsc_cuda_enter(s->device, &err) != DSC_OK || dsc_cuda_section_leave(s, &err) != DSC_OK)
        return; /* the work that follows finds the failure */
    DSC_ASSERT(!w->open);
    if (w->begun - w->passed == WAITS)
        read_passed(w);
    if (w->begun - w->passed == WAITS || !open_wait(w))
        return;
    w->open = cudaEventRecord(w->wait[w->begun % WAITS].begin, s->handle) == cudaSuccess;
    w->begun += w->open;
}

void dsc_cuda_wait_end(dsc_stream *stream)
{
    cuda_stream *s = (cuda_stream *)stream;
    cuda_waits *w = s->waits;
    if (w == NULL || !w->open)
        return;
    if (cudaEventRecord(w->wait[(w->begun - 1) % WAITS].end, s->handle) != cudaSuccess)
        w->begun--;
    w->open = false;
}

int64_t dsc_cuda_waited_ns(dsc_stream *stream)
{
    cuda_stream *s = (cuda_stream *)stream;
    dsc_error err = DSC_ERROR_INIT;
    if (s->waits == NULL)
        return 0;
    if (dsc_cuda_enter(s->device, &err) == DSC_OK)
        read_passed(s->waits);
    if (s->waits->begun == s->waits->passed)
        s->waits->begun = s->waits->passed = 0;
    return (int64_t)(s->waits->ms * 1e6);
}
