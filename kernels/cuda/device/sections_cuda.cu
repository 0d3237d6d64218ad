/* sections_cuda.cu - the work of a section of a stream, which repeats every step, started as one CUDA graph.
 *
 * Between begin and end nothing is enqueued: each call is recorded, by value. At the end the list is compared with the
 * earlier lists of the section. If the bytes are equal, the graph made of them is launched; it cannot do anything else
 * than the calls would. Other bytes (another buffer, a scalar that changes) are enqueued one by one. They become a
 * graph for the next time while there is memory for lists, which is allocated once. So a graph is made of calls that
 * ran before: libraries that load code at a first call do not load it inside a recording.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/device/device_cuda.h"

#include <string.h>

namespace {

/* RECORDINGS_MAX of one section: the micro-steps of a step and evaluations may differ in a buffer. CALLS_EACH: about
 * four times what a block's backward has. A section of more than CALLS_MAX calls does not become a graph. */
enum { RECORDINGS_MAX = 8, CALLS_EACH = 96, CALLS_MAX = 512 };

typedef struct recording {
    const cuda_call *calls; /* [count] */
    int64_t count;
    cudaGraphExec_t graph;
} recording;

typedef struct section {
    recording recordings[RECORDINGS_MAX];
    int count;
} section;

} // namespace

typedef struct cuda_sections {
    section *all; /* [count] */
    int32_t count, open; /* -1: none is open */
    cuda_call *calls;    /* [CALLS_MAX]: of the open one, so far */
    int64_t call_count;
    cuda_call *kept; /* [count * CALLS_EACH]: of all recordings */
    int64_t kept_count;
    uint64_t plans_chosen; /* cuda_device's, of the recordings */
} cuda_sections;

namespace {

dsc_status run_all(cuda_stream *s, const cuda_call *calls, int64_t count, dsc_error *err)
{
    for (int64_t i = 0; i < count; i++)
        DSC_TRY(dsc_cuda_call_run(s, &calls[i], err));
    return DSC_OK;
}

/* Enqueues nothing. The recording ends whatever happens in it. */
dsc_status record(cuda_stream *s, const cuda_call *calls, int64_t count, cudaGraphExec_t *out, dsc_error *err)
{
    cuda_device *d = s->device;
    cudaGraph_t graph = NULL;
    DSC_TRY(dsc_cuda_check(d, cudaStreamBeginCapture(s->handle, cudaStreamCaptureModeThreadLocal),
                           "beginning to record a graph", err));
    dsc_status status = run_all(s, calls, count, err);
    const cudaError_t ended = cudaStreamEndCapture(s->handle, &graph);
    if (status == DSC_OK)
        status = dsc_cuda_check(d, ended, "recording a graph", err);
    if (status == DSC_OK)
        status = dsc_cuda_check(d, cudaGraphInstantiate(out, graph, 0), "making a graph", err);
    if (graph != NULL)
        (void)cudaGraphDestroy(graph);
    return status;
}

/* For the next time. */
dsc_status remember(cuda_stream *s, section *sec, dsc_error *err)
{
    cuda_sections *all = s->sections;
    const int64_t count = all->call_count;
    recording *to = &sec->recordings[sec->count];
    if (sec->count == RECORDINGS_MAX || count > all->count * CALLS_EACH - all->kept_count)
        return DSC_OK;
    cuda_call *calls = all->kept + all->kept_count;
    memcpy(calls, all->calls, (size_t)count * sizeof *calls);
    *to = { calls, count, NULL };
    DSC_TRY(record(s, calls, count, &to->graph, err));
    all->kept_count += count;
    sec->count++;
    return DSC_OK;
}

/* All of it: other algorithms are another run of the products. */
void forget(cuda_sections *all)
{
    for (int32_t i = 0; i < all->count; i++) {
        for (int r = 0; r < all->all[i].count; r++)
            (void)cudaGraphExecDestroy(all->all[i].recordings[r].graph);
        all->all[i].count = 0;
    }
    all->kept_count = 0;
}

const recording *find(const section *sec, const cuda_call *calls, int64_t count)
{
    for (int i = 0; i < sec->count; i++) {
        const recording *r = &sec->recordings[i];
        if (r->count == count && memcmp(r->calls, calls, (size_t)count * sizeof *calls) == 0)
            return r;
    }
    return NULL;
}

struct host_bytes { const void *ptr; int64_t bytes; };

/* Host memory that the launch reads becomes a part of the graph, so it is compared too. */
host_bytes host_of(const cuda_call *call)
{
    if (call->kind == CUDA_CALL_LAUNCH && call->kernel == DSC_KERNEL_ROPE_TABLE) {
        const auto *a = (const dsc_rope_table_args *)call->args;
        return { a->frequency, a->pairs * (int64_t)sizeof *a->frequency };
    }
    if (call->kind == CUDA_CALL_LAUNCH && call->kernel == DSC_KERNEL_ORDERED_REDUCE) {
        const auto *a = (const dsc_ordered_reduce_args *)call->args;
        return { a->leaf_ptr, a->leaf_ptr != NULL ? a->grad_part_count * (int64_t)sizeof *a->leaf_ptr : 0 };
    }
    return { NULL, 0 };
}

void write_down(cuda_sections *all, const cuda_call *call, host_bytes host)
{
    all->calls[all->call_count++] = *call;
    for (int64_t at = 0; at < host.bytes; at += DSC_LAUNCH_ARGS_MAX) {
        cuda_call *note = &all->calls[all->call_count++];
        memset(note, 0, sizeof *note);
        note->kind = CUDA_CALL_HOST;
        note->bytes = dsc_min_i64(DSC_LAUNCH_ARGS_MAX, host.bytes - at);
        memcpy(note->args, (const char *)host.ptr + at, (size_t)note->bytes);
    }
}

/* The open section is closed before: calls that run go straight to the stream. */
dsc_status finish(cuda_stream *s, section *sec, dsc_error *err)
{
    cuda_device *d = s->device;
    cuda_sections *all = s->sections;
    if (all->plans_chosen != d->plans_chosen)
        forget(all);
    all->plans_chosen = d->plans_chosen;
    const recording *known = find(sec, all->calls, all->call_count);
    if (known == NULL) {
        DSC_TRY(run_all(s, all->calls, all->call_count, err));
        return remember(s, sec, err);
    }
    for (int64_t i = 0; i < known->count; i++)
        if (known->calls[i].kind == CUDA_CALL_LAUNCH)
            s->last_kernel = (dsc_kernel)known->calls[i].kernel;
    return dsc_cuda_stream_check(s, cudaGraphLaunch(known->graph, s->handle), err);
}

} // namespace

dsc_status dsc_cuda_sections_open(dsc_stream *stream, int32_t count, dsc_error *err)
{
    cuda_stream *s = (cuda_stream *)stream;
    dsc_alloc *alloc = s->device->alloc;
    DSC_ASSERT(s->sections == NULL);
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, 1, sizeof *s->sections, &s->sections, err));
    cuda_sections *all = s->sections;
    all->open = -1;
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, CALLS_MAX, sizeof *all->calls, &all->calls, err));
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, count * (int64_t)CALLS_EACH, sizeof *all->kept, &all->kept, err));
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, count, sizeof *all->all, &all->all, err));
    all->count = count;
    return DSC_OK; /* recorded calls are freed with the stream after an error */
}

void dsc_cuda_sections_close(cuda_stream *s)
{
    cuda_sections *all = s->sections;
    dsc_alloc *alloc = s->device->alloc;
    if (all == NULL)
        return;
    forget(all);
    dsc_alloc_free(alloc, all->calls);
    dsc_alloc_free(alloc, all->kept);
    dsc_alloc_free(alloc, all->all);
    dsc_alloc_free(alloc, all);
    s->sections = NULL;
}

dsc_status dsc_cuda_section_begin(dsc_stream *stream, int32_t section, dsc_error *err)
{
    cuda_stream *s = (cuda_stream *)stream;
    cuda_sections *all = s->sections;
    if (all == NULL)
        return DSC_OK;
    DSC_ASSERT(all->open < 0);
    DSC_ASSERT(section >= 0 && section < all->count);
    all->open = section;
    all->call_count = 0;
    return DSC_OK;
}

dsc_status dsc_cuda_section_call(cuda_stream *s, const cuda_call *call, dsc_error *err)
{
    cuda_sections *all = s->sections;
    if (all == NULL || all->open < 0)
        return dsc_cuda_call_run(s, call, err);
    const host_bytes host = host_of(call);
    if (all->call_count + 1 + dsc_div_ceil(host.bytes, DSC_LAUNCH_ARGS_MAX) <= CALLS_MAX) {
        write_down(all, call, host);
        return DSC_OK;
    }
    DSC_TRY(dsc_cuda_section_leave(s, err));
    return dsc_cuda_call_run(s, call, err);
}

dsc_status dsc_cuda_section_leave(cuda_stream *s, dsc_error *err)
{
    cuda_sections *all = s->sections;
    if (all == NULL || all->open < 0)
        return DSC_OK;
    all->open = -1;
    return run_all(s, all->calls, all->call_count, err);
}

dsc_status dsc_cuda_section_end(dsc_stream *stream, bool run, dsc_error *err)
{
    cuda_stream *s = (cuda_stream *)stream;
    cuda_sections *all = s->sections;
    if (all == NULL || all->open < 0)
        return DSC_OK;
    section *sec = &all->all[all->open];
    all->open = -1;
    if (!run || all->call_count == 0)
        return DSC_OK;
    DSC_TRY(dsc_cuda_enter(s->device, err));
    return finish(s, sec, err);
}
