/* self.c - the world of one rank: every collective is a copy, a rounding fold or nothing.
 *
 * On a stream it is that stream's own work, so that it takes device memory like any other; without one it is done at
 * once, in host memory. SPDX-License-Identifier: Apache-2.0 */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "comm/comm_internal.h"

typedef struct self_transport {
    dsc_transport base;
    dsc_alloc *alloc;
    dsc_comm_math math;
    atomic_bool aborted;
} self_transport;

static dsc_status self_open(dsc_transport **out, const dsc_comm_options *options, dsc_error *err)
{
    if (options->rank_info.size != 1)
        return DSC_FAIL(err, DSC_ERR_INPUT, "dsc.comm", "\"self\" is for one rank, and there are %d",
                        options->rank_info.size);
    self_transport *self = NULL;
    DSC_TRY(dsc_alloc_zeroed(options->alloc, DSC_TAG_CONTROL, 1, sizeof *self, &self, err));
    self->base.ops = &dsc_comm_self;
    self->alloc = options->alloc;
    dsc_comm_math_init(&self->math);
    *out = &self->base;
    return DSC_OK;
}

static void self_close(dsc_transport *transport)
{
    dsc_alloc_free(((self_transport *)transport)->alloc, transport);
}

static dsc_status check(dsc_transport *transport, dsc_error *err)
{
    if (atomic_load(&((self_transport *)transport)->aborted))
        return DSC_FAIL(err, DSC_ERR_PEER, "comm", "aborted");
    return DSC_OK;
}

static dsc_status self_copy(dsc_transport *transport, int32_t channel, void *recv, const void *send, int64_t bytes,
                            dsc_stream *stream, dsc_error *err)
{
    DSC_TRY(check(transport, err));
    if (recv == send || bytes == 0)
        return DSC_OK;
    if (stream != NULL)
        return dsc_copy(stream, recv, send, bytes, err);
    memcpy(recv, send, (size_t)bytes);
    return DSC_OK;
}

static dsc_status self_broadcast(dsc_transport *transport, int32_t channel, void *buf, int64_t bytes, int32_t root,
                                 dsc_stream *stream, dsc_error *err)
{
    return check(transport, err);
}

static dsc_status self_barrier(dsc_transport *transport, int32_t channel, dsc_stream *stream, dsc_error *err)
{
    return check(transport, err);
}

static dsc_status self_send(dsc_transport *transport, int32_t channel, const void *buf, int64_t bytes, int32_t to,
                            dsc_stream *stream, dsc_error *err)
{
    return DSC_FAIL(err, DSC_ERR_INTERNAL, "comm", "a send in a world of one rank");
}

static dsc_status self_recv(dsc_transport *transport, int32_t channel, void *buf, int64_t bytes, int32_t from,
                            dsc_stream *stream, dsc_error *err)
{
    return DSC_FAIL(err, DSC_ERR_INTERNAL, "comm", "a receive in a world of one rank");
}

static dsc_status self_reduce_scatter(dsc_transport *transport, int32_t channel, const dsc_reduce_scatter_args *args,
                                      dsc_stream *stream, dsc_error *err)
{
    DSC_TRY(check(transport, err));
    const dsc_comm_parts leaves = { .at = args->leaf, .dtype = DSC_F32, .count = 1 };
    return dsc_comm_ordered_reduce(&((self_transport *)transport)->math, args, &leaves, 0, args->count, stream, err);
}

static dsc_status self_health(dsc_transport *transport, dsc_error *err) { return check(transport, err); }

static void self_abort(dsc_transport *transport, const char *reason)
{
    atomic_store(&((self_transport *)transport)->aborted, true);
}

const dsc_comm_ops dsc_comm_self = {
    .name = "self",
    .version = DSC_COMM_OPS_VERSION,
    .enqueues = true,
    .open = self_open,
    .close = self_close,
    .all_gather = self_copy,
    .all_to_all = self_copy,
    .broadcast = self_broadcast,
    .barrier = self_barrier,
    .send = self_send,
    .recv = self_recv,
    .reduce_scatter = self_reduce_scatter,
    .health = self_health,
    .abort = self_abort,
};
