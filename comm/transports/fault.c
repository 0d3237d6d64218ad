/* fault.c - forwards to another transport and fails the n-th call and every later one, as a broken link would.
 *
 * Peers are not told: they learn it as they would learn of a rank that failed, when this one aborts or closes.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdatomic.h>

#include "comm/comm_internal.h"

typedef struct fault_transport {
    dsc_transport base;
    dsc_comm_ops ops; /* fault_ops without the optional hooks that `inner` has not */
    dsc_alloc *alloc;
    dsc_transport *inner;
    int64_t fault_at;
    _Atomic int64_t call_count;
} fault_transport;

/* `inner` after this call was counted in, or NULL and the error. */
static dsc_transport *pass(dsc_transport *transport, dsc_error *err)
{
    fault_transport *fault = (fault_transport *)transport;
    const int64_t call = atomic_fetch_add(&fault->call_count, 1) + 1;
    if (call < fault->fault_at)
        return fault->inner;
    DSC_FAIL(err, DSC_ERR_COMM, "comm", "injected fault at collective %lld (now at %lld)", (long long)fault->fault_at,
             (long long)call);
    return NULL;
}

static dsc_status fault_open(dsc_transport **out, const dsc_comm_options *options, dsc_error *err)
{
    return DSC_FAIL(err, DSC_ERR_INTERNAL, "comm", "\"fault\" wraps a transport that is open");
}

static void fault_close(dsc_transport *transport)
{
    fault_transport *fault = (fault_transport *)transport;
    fault->inner->ops->close(fault->inner);
    dsc_alloc_free(fault->alloc, fault);
}

static dsc_status fault_all_gather(dsc_transport *transport, int32_t channel, void *recv, const void *send,
                                   int64_t bytes, dsc_stream *stream, dsc_error *err)
{
    dsc_transport *inner = pass(transport, err);
    return inner == NULL ? DSC_ERR_COMM : inner->ops->all_gather(inner, channel, recv, send, bytes, stream, err);
}

static dsc_status fault_all_to_all(dsc_transport *transport, int32_t channel, void *recv, const void *send,
                                   int64_t bytes, dsc_stream *stream, dsc_error *err)
{
    dsc_transport *inner = pass(transport, err);
    return inner == NULL ? DSC_ERR_COMM : inner->ops->all_to_all(inner, channel, recv, send, bytes, stream, err);
}

static dsc_status fault_broadcast(dsc_transport *transport, int32_t channel, void *buf, int64_t bytes, int32_t root,
                                  dsc_stream *stream, dsc_error *err)
{
    dsc_transport *inner = pass(transport, err);
    return inner == NULL ? DSC_ERR_COMM : inner->ops->broadcast(inner, channel, buf, bytes, root, stream, err);
}

static dsc_status fault_barrier(dsc_transport *transport, int32_t channel, dsc_stream *stream, dsc_error *err)
{
    dsc_transport *inner = pass(transport, err);
    return inner == NULL ? DSC_ERR_COMM : inner->ops->barrier(inner, channel, stream, err);
}

static dsc_status fault_send(dsc_transport *transport, int32_t channel, const void *buf, int64_t bytes, int32_t to,
                             dsc_stream *stream, dsc_error *err)
{
    dsc_transport *inner = pass(transport, err);
    return inner == NULL ? DSC_ERR_COMM : inner->ops->send(inner, channel, buf, bytes, to, stream, err);
}

static dsc_status fault_recv(dsc_transport *transport, int32_t channel, void *buf, int64_t bytes, int32_t from,
                             dsc_stream *stream, dsc_error *err)
{
    dsc_transport *inner = pass(transport, err);
    return inner == NULL ? DSC_ERR_COMM : inner->ops->recv(inner, channel, buf, bytes, from, stream, err);
}

static dsc_status fault_reduce_scatter(dsc_transport *transport, int32_t channel, const dsc_reduce_scatter_args *args,
                                       dsc_stream *stream, dsc_error *err)
{
    dsc_transport *inner = pass(transport, err);
    return inner == NULL ? DSC_ERR_COMM : inner->ops->reduce_scatter(inner, channel, args, stream, err);
}

static dsc_status fault_native_sum(dsc_transport *transport, int32_t channel, void *recv, const void *send,
                                   int64_t count, dsc_dtype dtype, dsc_stream *stream, dsc_error *err)
{
    dsc_transport *inner = pass(transport, err);
    return inner == NULL ? DSC_ERR_COMM
                         : inner->ops->native_sum(inner, channel, recv, send, count, dtype, stream, err);
}

static dsc_status fault_mem_open(dsc_transport *transport, dsc_tag tag, int64_t bytes, dsc_buf *out, dsc_error *err)
{
    dsc_transport *inner = ((fault_transport *)transport)->inner;
    return inner->ops->mem_open(inner, tag, bytes, out, err);
}

static void fault_mem_close(dsc_transport *transport, dsc_buf *buf)
{
    dsc_transport *inner = ((fault_transport *)transport)->inner;
    inner->ops->mem_close(inner, buf);
}

static dsc_status fault_health(dsc_transport *transport, dsc_error *err)
{
    dsc_transport *inner = ((fault_transport *)transport)->inner;
    return inner->ops->health(inner, err);
}

static void fault_abort(dsc_transport *transport, const char *reason)
{
    dsc_transport *inner = ((fault_transport *)transport)->inner;
    inner->ops->abort(inner, reason);
}

static bool fault_address(dsc_transport *transport, dsc_net_address *out)
{
    dsc_transport *inner = ((fault_transport *)transport)->inner;
    return inner->ops->address(inner, out);
}

static const dsc_comm_ops fault_ops = {
    .name = "fault",
    .version = DSC_COMM_OPS_VERSION,
    .open = fault_open,
    .close = fault_close,
    .all_gather = fault_all_gather,
    .all_to_all = fault_all_to_all,
    .broadcast = fault_broadcast,
    .barrier = fault_barrier,
    .send = fault_send,
    .recv = fault_recv,
    .reduce_scatter = fault_reduce_scatter,
    .native_sum = fault_native_sum,
    .mem_open = fault_mem_open,
    .mem_close = fault_mem_close,
    .health = fault_health,
    .address = fault_address,
    .abort = fault_abort,
};

dsc_status dsc_comm_fault_wrap(dsc_alloc *alloc, dsc_transport *inner, int64_t fault_at, dsc_transport **out,
                               dsc_error *err)
{
    DSC_ASSERT(fault_at >= 1);
    fault_transport *fault = NULL;
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, 1, sizeof *fault, &fault, err));
    fault->ops = fault_ops;
    fault->ops.enqueues = inner->ops->enqueues;
    if (inner->ops->address == NULL)
        fault->ops.address = NULL;
    if (inner->ops->health == NULL)
        fault->ops.health = NULL;
    if (inner->ops->reduce_scatter == NULL)
        fault->ops.reduce_scatter = NULL;
    if (inner->ops->native_sum == NULL)
        fault->ops.native_sum = NULL;
    if (inner->ops->mem_open == NULL) {
        fault->ops.mem_open = NULL;
        fault->ops.mem_close = NULL;
    }
    fault->base.ops = &fault->ops;
    fault->alloc = alloc;
    fault->inner = inner;
    fault->fault_at = fault_at;
    *out = &fault->base;
    return DSC_OK;
}
