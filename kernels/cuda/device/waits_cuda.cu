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
    bool broken;           /* the events could not be opened: the time stays 0 */
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

/* At the first wait, so that streams that never wait have no events. */
static cuda_waits *waits_of(cuda_stream *s)
{
    if (s->waits != NULL ||
        dsc_alloc_zeroed(s->device->alloc, DSC_TAG_CONTROL, 1, (int64_t)sizeof *s->waits, &s->waits, NULL) != DSC_OK)
        return s->waits;
    for (int i = 0; i < WAITS && !s->waits->broken; i++)
        s->waits->broken = cudaEventCreate(&s->waits->wait[i].begin) != cudaSuccess ||
                           cudaEventCreate(&s->waits->wait[i].end) != cudaSuccess;
    if (s->waits->broken)
        (void)cudaGetLastError();
    return s->waits;
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
    if (!s->computes || dsc_cuda_enter(s->device, &err) != DSC_OK || dsc_cuda_section_leave(s, &err) != DSC_OK)
        return; /* the work that follows finds the failure */
    cuda_waits *w = waits_of(s);
    if (w == NULL || w->broken)
        return;
    DSC_ASSERT(!w->open);
    if (w->begun - w->passed == WAITS)
        read_passed(w);
    if (w->begun - w->passed == WAITS)
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
    if (s->waits == NULL || s->waits->broken)
        return 0;
    if (dsc_cuda_enter(s->device, &err) == DSC_OK)
        read_passed(s->waits);
    return (int64_t)(s->waits->ms * 1e6);
}
