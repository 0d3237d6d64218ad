/* stream_cuda.cu - streams, events, copies, launches and host calls of the cuda device.
 *
 * Waiting: without a watch the driver waits. With one (ranks that wait for each other's GPUs) the host polls. A dead
 * peer leaves a collective that never ends, so every few milliseconds the watch is asked whether to go on. Streams do
 * not synchronise with the legacy default stream, which is never used.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/device/device_cuda.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "kernels/cuda/attention/attention_plan.h"
#include "kernels/cuda/conv2d/conv2d_plan.h"
#include "kernels/cuda/gemm/gemm_cublaslt.h"

#define POLL_SPIN_NS INT64_C(100000) /* a step's last microseconds are not slept away */
#define POLL_SLEEP_NS INT64_C(20000)
#define POLL_WATCH_NS INT64_C(5000000)
#define CLOSE_NS INT64_C(10000000000)

static const char *kernel_text(dsc_kernel kernel)
{
    static const char *const texts[DSC_KERNEL_COUNT] = {
#define X(id, args) #id,
#include "kernels/kernels.def"
#undef X
    };
    return texts[kernel];
}

static cuda_stream *of(dsc_stream *stream) { return (cuda_stream *)stream; }

/* ---- streams ---- */

/* Collectives before compute where both could run: they are short and somebody waits for them. Work that nobody waits
 * for soon comes last. */
static int priority_of(dsc_stream_kind kind, int least, int greatest)
{
    const int middle = least > greatest ? least - 1 : least; /* a greater priority is a smaller number */
    return kind == DSC_STREAM_ASYNC ? greatest : kind == DSC_STREAM_COMPUTE ? middle : least;
}

static dsc_status create(cuda_stream *s, dsc_stream_kind kind, dsc_error *err)
{
    cuda_device *d = s->device;
    int least = 0, greatest = 0;
    DSC_TRY(dsc_cuda_check(d, cudaDeviceGetStreamPriorityRange(&least, &greatest), "reading priorities", err));
    DSC_TRY(dsc_cuda_check(
        d, cudaStreamCreateWithPriority(&s->handle, cudaStreamNonBlocking, priority_of(kind, least, greatest)),
        "opening a stream", err));
    DSC_TRY(dsc_alloc_zeroed(d->alloc, DSC_TAG_CONTROL, DSC_CUDA_HOST_CALLS, sizeof *s->calls, &s->calls, err));
    if (kind != DSC_STREAM_COMPUTE)
        return DSC_OK;
    DSC_TRY(dsc_cuda_waits_open(s, err));
    return dsc_cuda_mem_open(&d->base, DSC_TAG_LIBRARY, DSC_TIER_DEVICE, dsc_cuda_gemm_workspace_bytes(d->gemm),
                             &s->workspace, err);
}

/* Queued work runs, and a broken context ends at once. Work that never ends (a collective whose peer is gone) is the
 * device's hang: nothing waits for the device after that, and the end of the process returns its memory. */
static void drain(cuda_stream *s)
{
    const int64_t start_ns = dsc_clock_ns();
    while (cudaStreamQuery(s->handle) == cudaErrorNotReady) {
        (void)cudaGetLastError();
        const int64_t waited_ns = dsc_clock_ns() - start_ns;
        if (waited_ns > CLOSE_NS) {
            pthread_mutex_lock(&s->device->lock);
            s->device->hangs = true;
            pthread_mutex_unlock(&s->device->lock);
            return;
        }
        if (waited_ns >= POLL_SPIN_NS)
            dsc_clock_sleep_ns(POLL_SLEEP_NS);
    }
}

static void destroy(cuda_stream *s)
{
    cuda_device *d = s->device;
    (void)cudaSetDevice(d->index);
    if (s->handle != NULL && !d->hangs)
        drain(s);
    if (s->handle != NULL && !d->hangs)
        (void)cudaStreamDestroy(s->handle);
    (void)cudaGetLastError();
    dsc_cuda_sections_close(s);
    dsc_cuda_waits_close(s);
    dsc_cuda_mem_close(&d->base, &s->workspace);
    dsc_alloc_free(d->alloc, s->calls);
    dsc_alloc_free(d->alloc, s);
}

dsc_status dsc_cuda_stream_open(dsc_device *device, dsc_stream_kind kind, const char *name, dsc_stream **out,
                                dsc_error *err)
{
    cuda_device *d = (cuda_device *)device;
    cuda_stream *s = NULL;
    DSC_TRY(dsc_cuda_enter(d, err));
    DSC_TRY(dsc_alloc_zeroed(d->alloc, DSC_TAG_CONTROL, 1, sizeof *s, &s, err));
    s->base.ops = d->base.ops;
    s->device = d;
    s->last_kernel = DSC_KERNEL_COUNT;
    snprintf(s->name, sizeof s->name, "%s", name);
    const dsc_status status = create(s, kind, err);
    if (status != DSC_OK) {
        destroy(s);
        return status;
    }
    pthread_mutex_lock(&d->lock);
    d->stream_count++;
    pthread_mutex_unlock(&d->lock);
    *out = &s->base;
    return DSC_OK;
}

void dsc_cuda_stream_close(dsc_stream *stream)
{
    cuda_device *d = of(stream)->device;
    destroy(of(stream));
    pthread_mutex_lock(&d->lock);
    d->stream_count--;
    pthread_mutex_unlock(&d->lock);
}

/* ---- waiting ---- */

/* "the stream compute, after CROSS_ENTROPY": the last launch is the most that is known of an asynchronous failure. */
static const char *place_text(const cuda_stream *s, char *out, size_t out_bytes)
{
    if (s->last_kernel == DSC_KERNEL_COUNT)
        snprintf(out, out_bytes, "stream %s", s->name);
    else
        snprintf(out, out_bytes, "stream %s, at or before %s", s->name, kernel_text(s->last_kernel));
    return out;
}

dsc_status dsc_cuda_stream_check(cuda_stream *s, cudaError_t error, dsc_error *err)
{
    char place[96];
    return error == cudaSuccess ? DSC_OK
                                : dsc_cuda_check(s->device, error, place_text(s, place, sizeof place), err);
}

/* cudaErrorNotReady until the work is done. */
typedef cudaError_t (*query_fn)(void *handle);
static cudaError_t query_stream(void *handle) { return cudaStreamQuery((cudaStream_t)handle); }
static cudaError_t query_event(void *handle) { return cudaEventQuery((cudaEvent_t)handle); }

/* *error is CUDA's word at the end; the result is the watch's. */
static dsc_status poll(cuda_device *d, query_fn query, void *handle, cudaError_t *error, dsc_error *err)
{
    const int64_t start_ns = dsc_clock_ns();
    int64_t watched_ns = start_ns;
    for (;;) {
        *error = query(handle);
        if (*error != cudaErrorNotReady)
            return DSC_OK;
        (void)cudaGetLastError();
        const int64_t now_ns = dsc_clock_ns();
        if (now_ns - watched_ns >= POLL_WATCH_NS) {
            for (int i = 0; i < d->watch_count; i++)
                DSC_TRY(d->watch[i].fn(d->watch[i].user, now_ns - start_ns, err));
            watched_ns = now_ns;
        }
        if (now_ns - start_ns >= POLL_SPIN_NS)
            dsc_clock_sleep_ns(POLL_SLEEP_NS);
    }
}

/* A host call that failed has left its error with the device. */
static dsc_status after_wait(cuda_device *d, dsc_error *err) { return dsc_cuda_enter(d, err); }

dsc_status dsc_cuda_stream_sync(dsc_stream *stream, dsc_error *err)
{
    cuda_stream *s = of(stream);
    cudaError_t error = cudaSuccess;
    DSC_TRY(dsc_cuda_enter(s->device, err));
    DSC_TRY(dsc_cuda_section_leave(s, err));
    if (s->device->watch_count == 0)
        error = cudaStreamSynchronize(s->handle);
    else
        DSC_TRY(poll(s->device, query_stream, s->handle, &error, err));
    DSC_TRY(dsc_cuda_stream_check(s, error, err));
    return after_wait(s->device, err);
}

/* ---- events ---- */

dsc_status dsc_cuda_event_open(dsc_device *device, dsc_event **out, dsc_error *err)
{
    cuda_device *d = (cuda_device *)device;
    cuda_event *e = NULL;
    DSC_TRY(dsc_cuda_enter(d, err));
    DSC_TRY(dsc_alloc_zeroed(d->alloc, DSC_TAG_CONTROL, 1, sizeof *e, &e, err));
    e->base.ops = d->base.ops;
    e->device = d;
    const dsc_status status =
        dsc_cuda_check(d, cudaEventCreateWithFlags(&e->handle, cudaEventDisableTiming), "opening an event", err);
    if (status != DSC_OK) {
        dsc_alloc_free(d->alloc, e);
        return status;
    }
    pthread_mutex_lock(&d->lock);
    d->event_count++;
    pthread_mutex_unlock(&d->lock);
    *out = &e->base;
    return DSC_OK;
}

void dsc_cuda_event_close(dsc_event *event)
{
    cuda_event *e = (cuda_event *)event;
    cuda_device *d = e->device;
    (void)cudaSetDevice(d->index);
    (void)cudaEventDestroy(e->handle);
    (void)cudaGetLastError();
    dsc_alloc_free(d->alloc, e);
    pthread_mutex_lock(&d->lock);
    d->event_count--;
    pthread_mutex_unlock(&d->lock);
}

dsc_status dsc_cuda_event_record(dsc_event *event, dsc_stream *stream, dsc_error *err)
{
    cuda_event *e = (cuda_event *)event;
    DSC_TRY(dsc_cuda_enter(e->device, err));
    DSC_TRY(dsc_cuda_section_leave(of(stream), err));
    DSC_TRY(dsc_cuda_stream_check(of(stream), cudaEventRecord(e->handle, of(stream)->handle), err));
    e->recorded = true;
    return DSC_OK;
}

dsc_status dsc_cuda_stream_wait(dsc_stream *stream, dsc_event *event, dsc_error *err)
{
    cuda_event *e = (cuda_event *)event;
    if (!e->recorded)
        return DSC_OK;
    DSC_TRY(dsc_cuda_enter(e->device, err));
    DSC_TRY(dsc_cuda_section_leave(of(stream), err));
    return dsc_cuda_stream_check(of(stream), cudaStreamWaitEvent(of(stream)->handle, e->handle, 0), err);
}

dsc_status dsc_cuda_event_sync(dsc_event *event, dsc_error *err)
{
    cuda_event *e = (cuda_event *)event;
    cudaError_t error = cudaSuccess;
    if (!e->recorded)
        return DSC_OK;
    DSC_TRY(dsc_cuda_enter(e->device, err));
    if (e->device->watch_count == 0)
        error = cudaEventSynchronize(e->handle);
    else
        DSC_TRY(poll(e->device, query_event, e->handle, &error, err));
    DSC_TRY(dsc_cuda_check(e->device, error, "waiting for an event", err));
    return after_wait(e->device, err);
}

/* A failure is permanent: every wait reports it. */
bool dsc_cuda_event_passed(dsc_event *event)
{
    cuda_event *e = (cuda_event *)event;
    if (!e->recorded)
        return true;
    (void)cudaSetDevice(e->device->index);
    const cudaError_t error = cudaEventQuery(e->handle);
    if (error == cudaErrorNotReady)
        (void)cudaGetLastError();
    return error != cudaErrorNotReady;
}

/* ---- work ---- */

static dsc_cuda_launch place_of(const cuda_stream *s)
{
    const cuda_device *d = s->device;
    return { s->handle, d->multiprocessors, d->arch,          d->shared_bytes,    d->l2_bytes,
             d->gemm,   d->attention,       s->workspace.ptr, s->workspace.bytes, d->grouped, d->conv2d };
}

static dsc_status launch(cuda_stream *s, const cuda_call *call, dsc_error *err)
{
    const dsc_kernel kernel = (dsc_kernel)call->kernel;
    s->last_kernel = kernel;
    const dsc_cuda_launch at = place_of(s);
    DSC_TRY(dsc_cuda_kernels[kernel](&at, call->args, err));
    const cudaError_t error = cudaGetLastError(); /* a launch that was refused */
    return error == cudaSuccess ? DSC_OK : dsc_cuda_check(s->device, error, kernel_text(kernel), err);
}

dsc_status dsc_cuda_call_run(cuda_stream *s, const cuda_call *call, dsc_error *err)
{
    const size_t bytes = (size_t)call->bytes;
    switch (call->kind) {
    case CUDA_CALL_LAUNCH: return launch(s, call, err);
    case CUDA_CALL_COPY:
        return dsc_cuda_stream_check(s, cudaMemcpyAsync(call->to, call->from, bytes, cudaMemcpyDefault, s->handle),
                                     err);
    case CUDA_CALL_ZERO: return dsc_cuda_stream_check(s, cudaMemsetAsync(call->to, 0, bytes, s->handle), err);
    default: return DSC_OK;
    }
}

static dsc_status move_bytes(dsc_stream *stream, cuda_call_kind kind, void *to, const void *from, int64_t bytes,
                             dsc_error *err)
{
    cuda_stream *s = of(stream);
    cuda_call call;
    if (bytes == 0)
        return DSC_OK;
    DSC_TRY(dsc_cuda_enter(s->device, err));
    memset(&call, 0, sizeof call);
    call.kind = kind;
    call.bytes = bytes;
    call.to = to;
    call.from = from;
    return dsc_cuda_section_call(s, &call, err);
}

dsc_status dsc_cuda_copy(dsc_stream *stream, void *to, const void *from, int64_t bytes, dsc_error *err)
{
    return move_bytes(stream, CUDA_CALL_COPY, to, from, bytes, err);
}

dsc_status dsc_cuda_zero(dsc_stream *stream, void *to, int64_t bytes, dsc_error *err)
{
    return move_bytes(stream, CUDA_CALL_ZERO, to, NULL, bytes, err);
}

dsc_status dsc_cuda_do_launch(dsc_stream *stream, dsc_kernel kernel, const void *args, int64_t args_bytes,
                              dsc_error *err)
{
    cuda_call call;
    if (dsc_cuda_kernels[kernel] == NULL)
        return DSC_FAIL(err, DSC_ERR_INTERNAL, kernel_text(kernel), "this build has no CUDA version of the kernel");
    DSC_ASSERT(args_bytes <= DSC_LAUNCH_ARGS_MAX);
    DSC_TRY(dsc_cuda_enter(of(stream)->device, err));
    memset(&call, 0, sizeof call);
    call.kind = CUDA_CALL_LAUNCH;
    call.kernel = kernel;
    call.bytes = args_bytes;
    memcpy(call.args, args, (size_t)args_bytes);
    return dsc_cuda_section_call(of(stream), &call, err);
}

bool dsc_cuda_stream_conv2d_is_whole(dsc_stream *stream, const dsc_conv2d_args *args)
{
    return dsc_cuda_conv2d_is_whole(of(stream)->device->conv2d, args);
}

/* A failure in between is the device's: whatever failed was the first work that it was given. */
dsc_status dsc_cuda_measure(dsc_stream *stream, dsc_gemm_choice choice, int64_t chunk_bytes, dsc_gemm_measured *out,
                            dsc_error *err)
{
    cuda_stream *s = of(stream);
    cuda_device *d = s->device;
    dsc_error why = DSC_ERROR_INIT;
    DSC_TRY(dsc_cuda_enter(d, err));
    DSC_ASSERT(d->arena.part_count == 0);
    d->plans_chosen++;
    const dsc_cuda_launch at = place_of(s);
    if (d->arena.base != NULL)
        DSC_CUDA_ALLOW(d->arena.base, d->arena.bytes);
    dsc_status status = choice == DSC_GEMM_FIRST
                            ? DSC_OK
                            : dsc_cuda_gemm_measure(&at, d->arena.base, d->arena.bytes, choice, out, &why);
    if (status == DSC_OK)
        status = dsc_cuda_attention_choose(&at, d->arena.base, d->arena.bytes, choice, &out->attention, &why);
    if (status == DSC_OK)
        status =
            dsc_cuda_conv2d_choose(&at, d->arena.base, d->arena.bytes, choice, chunk_bytes, &out->convolutions, &why);
    if (status != DSC_OK) {
        d->hangs = cudaStreamQuery(s->handle) == cudaErrorNotReady;
        (void)cudaGetLastError();
    }
    if (d->arena.base != NULL && !d->hangs)
        DSC_CUDA_FORBID(d->arena.base, d->arena.bytes);
    if (status == DSC_OK)
        return DSC_OK;
    dsc_error whole = DSC_ERROR_INIT;
    (void)DSC_FAIL(&whole, status, "dsc.device", "GPU %d (%s) %s: %s", d->index, d->name,
                   status == DSC_ERR_NOMEM ? "is out of memory" : "failed", why.message);
    if (status != DSC_ERR_NOMEM)
        dsc_cuda_note_failure(d, &whole);
    if (err != NULL)
        *err = whole;
    return status;
}

/* ---- host calls ---- */

/* On a thread of the driver, in the stream's order. It must not call CUDA. */
static void run_host_call(void *argument)
{
    cuda_host_call *call = (cuda_host_call *)argument;
    cuda_device *d = call->stream->device;
    dsc_error err = DSC_ERROR_INIT;
    pthread_mutex_lock(&d->lock);
    const bool skip = d->failed;
    pthread_mutex_unlock(&d->lock);
    if (!skip && call->fn(call->args, &err) != DSC_OK)
        dsc_cuda_note_failure(d, &err);
    pthread_mutex_lock(&d->lock);
    call->busy = false;
    pthread_mutex_unlock(&d->lock);
}

static bool is_busy(cuda_device *d, const cuda_host_call *call)
{
    pthread_mutex_lock(&d->lock);
    const bool busy = call->busy;
    pthread_mutex_unlock(&d->lock);
    return busy;
}

dsc_status dsc_cuda_host_call(dsc_stream *stream, dsc_host_fn fn, const void *args, int64_t args_bytes,
                              dsc_error *err)
{
    cuda_stream *s = of(stream);
    cuda_device *d = s->device;
    DSC_TRY(dsc_cuda_enter(d, err));
    DSC_TRY(dsc_cuda_section_leave(s, err));
    cuda_host_call *call = &s->calls[s->call_count++ % DSC_CUDA_HOST_CALLS];
    if (is_busy(d, call))
        DSC_TRY(dsc_cuda_stream_sync(stream, err));
    call->busy = true; /* nobody else sees it before the launch */
    call->stream = s;
    call->fn = fn;
    if (args_bytes > 0)
        memcpy(call->args, args, (size_t)args_bytes);
    const cudaError_t error = cudaLaunchHostFunc(s->handle, run_host_call, call);
    if (error != cudaSuccess)
        call->busy = false;
    return dsc_cuda_stream_check(s, error, err);
}
