/* virtual.c - exchanges between virtual GPUs (kernels/virtual): only this rank is there, and its clock moves.
 *
 * All ranks do the same, so that this rank's data stands for what the others would send. An exchange over device
 * memory has two times, for the bytes from cards of its host and for those from other hosts. The longer one counts.
 * Host memory is exchanged at once. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "comm/comm_internal.h"
#include "kernels/virtual/launch_times.h"

enum { SHARED_MAX = 16 }; /* buffers of a CPU rank that the others map */

typedef struct virtual_transport {
    dsc_transport base;
    dsc_alloc *alloc;
    int32_t rank, size;
    const dsc_card_rates *rates; /* NULL: over host memory alone */
    dsc_virtual_clock *clock;    /* of a CPU rank */
    struct {
        const char *at;
        int64_t bytes;
    } shared[SHARED_MAX];
} virtual_transport;

static dsc_status virtual_open(dsc_transport **out, const dsc_comm_options *options, dsc_error *err)
{
    virtual_transport *t = NULL;
    DSC_TRY(dsc_alloc_zeroed(options->alloc, DSC_TAG_CONTROL, 1, sizeof *t, &t, err));
    t->base.ops =
        options->clock != NULL && options->clock->rates->cores > 0 ? &dsc_comm_virtual_cpu : &dsc_comm_virtual;
    t->alloc = options->alloc;
    t->rank = options->rank_info.rank;
    t->size = options->rank_info.size;
    t->clock = options->clock;
    t->rates = options->device != NULL ? dsc_virtual_clock_of(options->device)->rates : NULL;
    *out = &t->base;
    return DSC_OK;
}

static void virtual_close(dsc_transport *transport)
{
    dsc_alloc_free(((virtual_transport *)transport)->alloc, transport);
}

/* This rank receives `bytes` from each of the others. */
static dsc_status exchange(const virtual_transport *t, double bytes, dsc_stream *stream)
{
    const dsc_card_rates *r = t->rates;
    const double near = fmin(t->size, r->cards_of_host), hosts = ceil(t->size / r->cards_of_host);
    const double start = hosts > 1 ? r->network_s * log2(hosts) + r->peer_s : r->peer_s;
    const double inside = (hosts > 1 ? t->size - 1 : near - 1) * bytes / r->peer_bytes;
    const double outside = (t->size - near) * bytes / r->network_bytes;
    dsc_virtual_exchange(stream, t->size, start + fmax(inside, outside));
    return DSC_OK;
}

/* A gathered slice enters a host once, through all of its cards. */
static dsc_status gather_time(const virtual_transport *t, double bytes, dsc_stream *stream)
{
    const dsc_card_rates *r = t->rates;
    const double near = fmin(t->size, r->cards_of_host), hosts = ceil(t->size / r->cards_of_host);
    const double start = hosts > 1 ? r->network_s * log2(hosts) + r->peer_s : r->peer_s;
    const double inside = (t->size - 1) * bytes / r->peer_bytes;
    const double outside = (t->size - near) * bytes / (near * r->network_bytes);
    dsc_virtual_exchange(stream, t->size, start + fmax(inside, outside));
    return DSC_OK;
}

static dsc_status virtual_all_gather(dsc_transport *transport, int32_t channel, void *recv, const void *send,
                                     int64_t bytes, dsc_stream *stream, dsc_error *err)
{
    const virtual_transport *t = (const virtual_transport *)transport;
    if (stream != NULL)
        return gather_time(t, (double)bytes, stream);
    for (int32_t r = 0; r < t->size; r++)
        memmove((char *)recv + r * bytes, send, (size_t)bytes);
    return DSC_OK;
}

static dsc_status virtual_all_to_all(dsc_transport *transport, int32_t channel, void *recv, const void *send,
                                     int64_t bytes, dsc_stream *stream, dsc_error *err)
{
    const virtual_transport *t = (const virtual_transport *)transport;
    if (stream != NULL)
        return exchange(t, (double)bytes, stream);
    for (int32_t r = 0; r < t->size; r++)
        memcpy((char *)recv + r * bytes, (const char *)send + t->rank * bytes, (size_t)bytes);
    return DSC_OK;
}

static dsc_status virtual_broadcast(dsc_transport *transport, int32_t channel, void *buf, int64_t bytes, int32_t root,
                                    dsc_stream *stream, dsc_error *err)
{
    const virtual_transport *t = (const virtual_transport *)transport;
    return stream != NULL ? gather_time(t, (double)bytes / t->size, stream) : DSC_OK;
}

static dsc_status virtual_barrier(dsc_transport *transport, int32_t channel, dsc_stream *stream, dsc_error *err)
{
    return DSC_OK;
}

static dsc_status virtual_send(dsc_transport *transport, int32_t channel, const void *buf, int64_t bytes, int32_t to,
                               dsc_stream *stream, dsc_error *err)
{
    const virtual_transport *t = (const virtual_transport *)transport;
    if (stream != NULL)
        dsc_virtual_exchange(stream, 2, t->rates->peer_s + (double)bytes / t->rates->peer_bytes);
    return DSC_OK;
}

static dsc_status virtual_recv(dsc_transport *transport, int32_t channel, void *buf, int64_t bytes, int32_t from,
                               dsc_stream *stream, dsc_error *err)
{
    if (stream == NULL)
        memset(buf, 0, (size_t)bytes);
    return virtual_send(transport, channel, buf, bytes, from, stream, err);
}

static void virtual_abort(dsc_transport *transport, const char *reason) {}

const dsc_comm_ops dsc_comm_virtual = { .name = "virtual",
                                        .version = DSC_COMM_OPS_VERSION,
                                        .enqueues = true,
                                        .open = virtual_open,
                                        .close = virtual_close,
                                        .all_gather = virtual_all_gather,
                                        .all_to_all = virtual_all_to_all,
                                        .broadcast = virtual_broadcast,
                                        .barrier = virtual_barrier,
                                        .send = virtual_send,
                                        .recv = virtual_recv,
                                        .abort = virtual_abort };

/* ---- ranks on CPUs ---- */

/* The transport shm: each rank reads the others' memory itself, behind a meeting of all and before another. Memory of
 * mem_open is mapped by all of them; other memory is read by a system call. */
static bool is_shared(const virtual_transport *t, const void *p)
{
    for (int i = 0; i < SHARED_MAX; i++)
        if ((const char *)p >= t->shared[i].at && (const char *)p < t->shared[i].at + t->shared[i].bytes)
            return true;
    return false;
}

static dsc_status cpu_mem_open(dsc_transport *transport, dsc_tag tag, int64_t bytes, dsc_buf *out, dsc_error *err)
{
    virtual_transport *t = (virtual_transport *)transport;
    DSC_TRY(dsc_buf_open(t->alloc, tag, DSC_TIER_DEVICE, bytes, out, err));
    for (int i = 0; i < SHARED_MAX; i++)
        if (t->shared[i].at == NULL) {
            t->shared[i].at = out->ptr;
            t->shared[i].bytes = bytes;
            break;
        }
    return DSC_OK;
}

static void cpu_mem_close(dsc_transport *transport, dsc_buf *buf)
{
    virtual_transport *t = (virtual_transport *)transport;
    for (int i = 0; i < SHARED_MAX; i++)
        if (t->shared[i].at == buf->ptr)
            t->shared[i].at = NULL, t->shared[i].bytes = 0;
    dsc_buf_close(buf);
}

static double cpu_read_s(const virtual_transport *t, const void *from, int64_t bytes)
{
    const int64_t shape[DSC_LAUNCH_SHAPE] = { bytes };
    return dsc_virtual_cpu_s(t->clock, is_shared(t, from) ? DSC_LAUNCH_COPY : DSC_LAUNCH_PULL, shape);
}

static dsc_status cpu_exchange(const virtual_transport *t, double seconds, dsc_stream *stream)
{
    dsc_virtual_exchange(stream, t->size, seconds + t->clock->rates->peer_s * fmax(1, t->clock->share));
    return DSC_OK;
}

static dsc_status cpu_copy(const virtual_transport *t, const void *from, int64_t bytes, dsc_stream *stream)
{
    return cpu_exchange(t, cpu_read_s(t, from, bytes), stream);
}

static dsc_status cpu_all_gather(dsc_transport *transport, int32_t channel, void *recv, const void *send, int64_t bytes,
                                 dsc_stream *stream, dsc_error *err)
{
    const virtual_transport *t = (const virtual_transport *)transport;
    return stream != NULL ? cpu_copy(t, send, (t->size - 1) * bytes, stream)
                          : virtual_all_gather(transport, channel, recv, send, bytes, NULL, err);
}

static dsc_status cpu_all_to_all(dsc_transport *transport, int32_t channel, void *recv, const void *send, int64_t bytes,
                                 dsc_stream *stream, dsc_error *err)
{
    const virtual_transport *t = (const virtual_transport *)transport;
    return stream != NULL ? cpu_copy(t, send, t->size * bytes, stream)
                          : virtual_all_to_all(transport, channel, recv, send, bytes, NULL, err);
}

static dsc_status cpu_broadcast(dsc_transport *transport, int32_t channel, void *buf, int64_t bytes, int32_t root,
                                dsc_stream *stream, dsc_error *err)
{
    return stream != NULL ? cpu_copy((const virtual_transport *)transport, buf, bytes, stream) : DSC_OK;
}

/* The owner folds all ranks' leaves where they lie, or where it has pulled them to. */
static dsc_status cpu_reduce_scatter(dsc_transport *transport, int32_t channel, const dsc_reduce_scatter_args *args,
                                     dsc_stream *stream, dsc_error *err)
{
    const virtual_transport *t = (const virtual_transport *)transport;
    const dsc_ordered_reduce_args fold = { .grad_part_count = t->size,
                                           .count = args->count,
                                           .leaf_dtype = DSC_F32,
                                           .wire_dtype = args->wire_dtype,
                                           .overwrite = args->overwrite };
    int64_t shape[DSC_LAUNCH_SHAPE];
    if (stream == NULL)
        return DSC_OK;
    dsc_launch_shape(DSC_KERNEL_ORDERED_REDUCE, &fold, shape);
    const int64_t others = (t->size - 1) * args->count * (int64_t)sizeof(float);
    const double pulled_s = is_shared(t, args->leaf) ? 0 : cpu_read_s(t, args->leaf, others);
    return cpu_exchange(t, pulled_s + dsc_virtual_cpu_s(t->clock, DSC_KERNEL_ORDERED_REDUCE, shape), stream);
}

static dsc_status cpu_send(dsc_transport *transport, int32_t channel, const void *buf, int64_t bytes, int32_t to,
                           dsc_stream *stream, dsc_error *err)
{
    return stream != NULL ? cpu_copy((const virtual_transport *)transport, buf, bytes, stream) : DSC_OK;
}

static dsc_status cpu_recv(dsc_transport *transport, int32_t channel, void *buf, int64_t bytes, int32_t from,
                           dsc_stream *stream, dsc_error *err)
{
    if (stream == NULL)
        memset(buf, 0, (size_t)bytes);
    return cpu_send(transport, channel, buf, bytes, from, stream, err);
}

const dsc_comm_ops dsc_comm_virtual_cpu = { .name = "virtual",
                                            .version = DSC_COMM_OPS_VERSION,
                                            .enqueues = true,
                                            .open = virtual_open,
                                            .close = virtual_close,
                                            .all_gather = cpu_all_gather,
                                            .all_to_all = cpu_all_to_all,
                                            .broadcast = cpu_broadcast,
                                            .reduce_scatter = cpu_reduce_scatter,
                                            .barrier = virtual_barrier,
                                            .mem_open = cpu_mem_open,
                                            .mem_close = cpu_mem_close,
                                            .send = cpu_send,
                                            .recv = cpu_recv,
                                            .abort = virtual_abort };
