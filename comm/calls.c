/* calls.c - every collective's way from the caller to the transport: arguments asserted, put on the stream, counted and
 * timed (of a transport that enqueues, only how long that takes). Also the sums that a transport leaves to us:
 * all_reduce, and reduce_scatter from all_to_all.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/clock.h"
#include "comm/comm_front.h"

/* Bytes that a rank sends at once, above which two chunks take less time than one and a second exchange. */
#define TWO_SLOTS_BYTES (INT64_C(32) << 20)

/* One call, as it travels on a stream. */
typedef struct comm_call {
    dsc_comm *comm;
    int32_t channel;
    dsc_comm_op op;
    void *recv;
    const void *send;
    int64_t bytes; /* elements for all_reduce */
    int32_t peer;  /* root, receiver or sender */
    dsc_dtype wire_dtype;
    int32_t module; /* for the flight record */
    int64_t step;
    dsc_reduce_scatter_args reduce;
} comm_call;
_Static_assert(sizeof(comm_call) <= DSC_LAUNCH_ARGS_MAX, "a call fits into a host call");

/* ---- sums -------------------------------------------------------------------------------------------------------- */

/* `stream` is that of a transport that enqueues; NULL: all is done on this thread before the return. */

/* Pieces in the wire dtype -> what each owner folds: all leaves of its own piece, or the one sum of them that the
 * transport made. */
static dsc_status exchange(dsc_comm *comm, int32_t channel, bool natively, void *in, const void *out, int64_t count,
                           dsc_dtype dtype, dsc_stream *stream, dsc_error *err)
{
    dsc_transport *t = comm->transport;
    if (natively)
        return t->ops->native_sum(t, channel, in, out, count, dtype, stream, err);
    return t->ops->all_to_all(t, channel, in, out, count * (int64_t)dsc_dtype_bytes(dtype), stream, err);
}

/* One reduce-scatter by an exchange: how it is cut, and the place of each chunk in the staging. */
typedef struct reduction {
    dsc_comm *comm;
    int32_t channel;
    const dsc_reduce_scatter_args *args;
    bool natively;
    int64_t each;                           /* elements of a piece in a chunk, but for the last chunk */
    char *out[DSC_PIPELINE_SLOTS], *in[DSC_PIPELINE_SLOTS];
    const void *packed[DSC_PIPELINE_SLOTS]; /* what is sent */
} reduction;

static int64_t count_of(const reduction *r, int64_t chunk)
{
    return dsc_min_i64(r->each, r->args->count - chunk * r->each);
}

/* Pieces in the wire dtype: in place if they need no cast and follow each other, else cast to the staging. */
static dsc_status pack(void *user, int64_t chunk, int32_t slot, dsc_stream *stream, dsc_error *err)
{
    reduction *r = user;
    const dsc_reduce_scatter_args *args = r->args;
    const int64_t count = count_of(r, chunk);
    const bool whole = args->leaf_stride == count; /* pieces follow each other */
    r->packed[slot] = whole && args->wire_dtype == DSC_F32 ? (const void *)args->leaf : r->out[slot];
    if (r->packed[slot] != r->out[slot])
        return DSC_OK;
    if (whole)
        return dsc_comm_cast(&r->comm->math, r->out[slot], args->wire_dtype, args->leaf, r->comm->size * count, stream,
                             err);
    return dsc_comm_cast_rows(&r->comm->math, r->out[slot], args->wire_dtype, args->leaf + chunk * r->each,
                              r->comm->size, count, args->leaf_stride, stream, err);
}

static dsc_status exchange_chunk(void *user, int64_t chunk, int32_t slot, dsc_stream *stream, dsc_error *err)
{
    const reduction *r = user;
    return exchange(r->comm, r->channel, r->natively, r->in[slot], r->packed[slot], count_of(r, chunk),
                    r->args->wire_dtype, stream, err);
}

static dsc_status fold(void *user, int64_t chunk, int32_t slot, dsc_stream *stream, dsc_error *err)
{
    const reduction *r = user;
    const int64_t count = count_of(r, chunk);
    const dsc_comm_parts leaves = { .at = r->in[slot],
                                    .stride_bytes = count * (int64_t)dsc_dtype_bytes(r->args->wire_dtype),
                                    .dtype = r->args->wire_dtype,
                                    .count = r->natively ? 1 : r->comm->size };
    return dsc_comm_ordered_reduce(&r->comm->math, r->args, &leaves, chunk * r->each, count, stream, err);
}

/* Cuts the pieces into chunks. Two slots halve the staging of a chunk, which pays off for long pieces; those that fit
 * into one slot and are short are a single exchange. */
static int64_t cut(reduction *r, const dsc_buf *staging, bool two_streams)
{
    const int64_t row_bytes = r->comm->size * (int64_t)dsc_dtype_bytes(r->args->wire_dtype);
    const int64_t one_slot = staging->bytes / 2 / row_bytes / DSC_COMM_PIECE_ALIGN * DSC_COMM_PIECE_ALIGN;
    const bool two = two_streams && r->args->count > dsc_min_i64(one_slot, TWO_SLOTS_BYTES / row_bytes);
    const int64_t part = staging->bytes / (two ? 2 * DSC_PIPELINE_SLOTS : 2) / 64 * 64;
    const int64_t most = part / row_bytes / DSC_COMM_PIECE_ALIGN * DSC_COMM_PIECE_ALIGN;
    DSC_ASSERT(most > 0);
    for (int32_t slot = 0; slot < DSC_PIPELINE_SLOTS; slot++) {
        r->out[slot] = (char *)staging->ptr + (two ? 2 * slot : 0) * part;
        r->in[slot] = r->out[slot] + part;
    }
    const int64_t chunks = dsc_max_i64(1, dsc_div_ceil(r->args->count, most));
    r->each = two ? dsc_align_up(dsc_div_ceil(r->args->count, chunks), DSC_COMM_PIECE_ALIGN) : most;
    DSC_ASSERT(r->each <= most);
    return dsc_max_i64(1, dsc_div_ceil(r->args->count, r->each));
}

/* Without a hook: pieces are cast into the staging, exchanged, and folded from the other half of it. */
static dsc_status reduce_by_exchange(dsc_comm *comm, int32_t channel, const dsc_reduce_scatter_args *args,
                                     dsc_stream *stream, dsc_error *err)
{
    const dsc_comm_channel *ch = &comm->channel[channel];
    reduction r = { .comm = comm, .channel = channel, .args = args };
    r.natively =
        comm->native_sums && comm->transport->ops->native_sum != NULL && args->apart == NULL && args->quota == NULL;
    const bool two_streams = stream != NULL && ch->pipeline.beside != NULL;
    const dsc_pipeline_work work = { .user = &r,
                                     .chunks = cut(&r, &ch->staging, two_streams),
                                     .pack = pack,
                                     .exchange = exchange_chunk,
                                     .unpack = fold };
    return dsc_pipeline_run(two_streams ? &ch->pipeline : &(dsc_pipeline){ NULL, NULL, NULL }, &work, stream, err);
}

static dsc_status reduce_scatter(dsc_comm *comm, int32_t channel, const dsc_reduce_scatter_args *args,
                                 dsc_stream *stream, dsc_error *err)
{
    dsc_transport *t = comm->transport;
    if (t->ops->reduce_scatter != NULL)
        return t->ops->reduce_scatter(t, channel, args, stream, err);
    return reduce_by_exchange(comm, channel, args, stream, err);
}

/* buf[count], count <= gather_elements: everybody gathers all leaves and folds them alike. */
static dsc_status all_reduce_short(dsc_comm *comm, int32_t channel, float *buf, int64_t count, dsc_dtype wire_dtype,
                                   dsc_stream *stream, dsc_error *err)
{
    dsc_transport *t = comm->transport;
    float *gathered = comm->channel[channel].gather.ptr;
    DSC_TRY(t->ops->all_gather(t, channel, gathered, buf, count * (int64_t)sizeof(float), stream, err));
    const dsc_reduce_scatter_args args = { .acc = buf, .count = count, .wire_dtype = wire_dtype, .overwrite = true };
    const dsc_comm_parts leaves = {
        .at = gathered, .stride_bytes = count * (int64_t)sizeof(float), .dtype = DSC_F32, .count = comm->size
    };
    return dsc_comm_ordered_reduce(&comm->math, &args, &leaves, 0, count, stream, err);
}

static dsc_status all_reduce(dsc_comm *comm, int32_t channel, float *buf, int64_t count, dsc_dtype wire_dtype,
                             dsc_stream *stream, dsc_error *err)
{
    dsc_transport *t = comm->transport;
    const bool alone = comm->size == 1; /* then the sum is one rounded leaf, and there is nothing to gather */
    if (!alone && count <= comm->channel[channel].gather_elements)
        return all_reduce_short(comm, channel, buf, count, wire_dtype, stream, err);
    const int64_t aligned = count / comm->size / DSC_COMM_PIECE_ALIGN * DSC_COMM_PIECE_ALIGN;
    const int64_t piece = alone ? count : aligned, even = piece * comm->size;
    float *mine = buf + comm->rank * piece;
    const dsc_reduce_scatter_args args = { .acc = mine,
                                           .leaf = buf,
                                           .leaf_stride = piece,
                                           .count = piece,
                                           .wire_dtype = wire_dtype,
                                           .overwrite = true };
    DSC_TRY(reduce_scatter(comm, channel, &args, stream, err));
    if (alone)
        return DSC_OK;
    DSC_TRY(t->ops->all_gather(t, channel, buf, mine, piece * (int64_t)sizeof(float), stream, err));
    return even == count
               ? DSC_OK
               : all_reduce_short(comm, channel, buf + even, count - even, wire_dtype, stream, err);
}

/* ---- to the transport -------------------------------------------------------------------------------------------- */

static dsc_status dispatch(const comm_call *call, dsc_stream *stream, dsc_error *err)
{
    dsc_transport *t = call->comm->transport;
    const dsc_comm_ops *ops = t->ops;
    const int32_t channel = call->channel;
    switch (call->op) {
    case DSC_COMM_ALL_GATHER: return ops->all_gather(t, channel, call->recv, call->send, call->bytes, stream, err);
    case DSC_COMM_ALL_TO_ALL: return ops->all_to_all(t, channel, call->recv, call->send, call->bytes, stream, err);
    case DSC_COMM_BROADCAST: return ops->broadcast(t, channel, call->recv, call->bytes, call->peer, stream, err);
    case DSC_COMM_BARRIER: return ops->barrier(t, channel, stream, err);
    case DSC_COMM_SEND: return ops->send(t, channel, call->send, call->bytes, call->peer, stream, err);
    case DSC_COMM_RECV: return ops->recv(t, channel, call->recv, call->bytes, call->peer, stream, err);
    case DSC_COMM_REDUCE_SCATTER: return reduce_scatter(call->comm, channel, &call->reduce, stream, err);
    case DSC_COMM_ALL_REDUCE:
        return all_reduce(call->comm, channel, call->recv, call->bytes, call->wire_dtype, stream, err);
    case DSC_COMM_OP_COUNT: break;
    }
    DSC_ASSERT(false);
    return DSC_ERR_INTERNAL;
}

/* Payload that this rank receives from others. */
static int64_t received_bytes(const comm_call *call)
{
    const int64_t others = call->comm->size - 1;
    const int64_t wire_bytes = (int64_t)dsc_dtype_bytes(call->wire_dtype);
    switch (call->op) {
    case DSC_COMM_ALL_GATHER: case DSC_COMM_ALL_TO_ALL: return others * call->bytes;
    case DSC_COMM_BROADCAST: return call->peer == call->comm->rank ? 0 : call->bytes;
    case DSC_COMM_RECV: return call->bytes;
    case DSC_COMM_REDUCE_SCATTER: return others * call->reduce.count * wire_bytes;
    case DSC_COMM_ALL_REDUCE: return others * (call->bytes / call->comm->size) * (wire_bytes + (int64_t)sizeof(float));
    case DSC_COMM_BARRIER: case DSC_COMM_SEND: case DSC_COMM_OP_COUNT: break;
    }
    return 0;
}

/* Payload that this rank sends to others: as much, but for the operations with a root or a peer. */
static int64_t sent_bytes(const comm_call *call)
{
    switch (call->op) {
    case DSC_COMM_BROADCAST:
        return call->peer == call->comm->rank ? (call->comm->size - 1) * call->bytes : 0;
    case DSC_COMM_SEND:
        return call->bytes;
    case DSC_COMM_RECV:
        return 0;
    default:
        return received_bytes(call);
    }
}

/* The call record as every rank has it, or both ranks of a send and its recv, with the labels of this rank. */
static dsc_flight_entry flight_entry(const comm_call *call)
{
    const bool pair = call->op == DSC_COMM_SEND || call->op == DSC_COMM_RECV;
    dsc_flight_entry entry = { .call = { .op = (int16_t)call->op, .bytes = call->bytes },
                               .op = dsc_comm_op_text(call->op),
                               .step = call->step,
                               .peer = pair ? call->peer : -1,
                               .module = call->module };
    if (call->op == DSC_COMM_BROADCAST)
        entry.call.detail = call->peer;
    if (call->op == DSC_COMM_REDUCE_SCATTER || call->op == DSC_COMM_ALL_REDUCE)
        entry.call.detail = (int32_t)call->wire_dtype;
    if (call->op == DSC_COMM_REDUCE_SCATTER)
        entry.call.bytes = call->reduce.count * (int64_t)dsc_dtype_bytes(call->wire_dtype);
    if (call->op == DSC_COMM_ALL_REDUCE)
        entry.call.bytes = call->bytes * (int64_t)sizeof(float);
    return entry;
}

/* In the flight record. Without a stream a transport that enqueues has the hosts meet, who record that themselves. */
static void record_begin(const comm_call *call, dsc_stream *stream, int64_t now_ns)
{
    dsc_flight_track *track = call->comm->channel[call->channel].track;
    const dsc_flight_entry entry = flight_entry(call);
    if (call->comm->progress == NULL)
        dsc_flight_begin(track, &entry, now_ns);
    else if (stream != NULL)
        dsc_comm_progress_begin(call->comm->progress, call->channel, &entry, stream);
}

static void record_end(const comm_call *call, dsc_stream *stream, dsc_status status, int64_t now_ns)
{
    dsc_flight_track *track = call->comm->channel[call->channel].track;
    if (call->comm->progress == NULL)
        dsc_flight_end(track, status == DSC_OK ? DSC_FLIGHT_DONE : DSC_FLIGHT_FAILED, now_ns);
    else if (stream != NULL)
        dsc_comm_progress_end(call->comm->progress, call->channel, status, stream);
}

/* The transport knows only the parts that an all_reduce is made of. */
static void name_all_reduce(const comm_call *call, dsc_error *err)
{
    if (call->op != DSC_COMM_ALL_REDUCE || err == NULL)
        return;
    const int32_t rank = err->rank;
    DSC_FAIL(err, err->status, err->where, "in an all_reduce of %lld elements: %s", (long long)call->bytes,
             err->message);
    err->rank = rank;
}

static dsc_status run(const comm_call *call, dsc_stream *stream, dsc_error *err)
{
    dsc_comm_count *count = &call->comm->count[call->op];
    const bool was_busy = atomic_exchange(&call->comm->channel[call->channel].busy, true);
    DSC_ASSERT(!was_busy);
    const int64_t start_ns = dsc_clock_ns();
    record_begin(call, stream, start_ns);
    const dsc_status status = dispatch(call, stream, err);
    const int64_t end_ns = dsc_clock_ns(), bytes = status == DSC_OK ? received_bytes(call) : 0;
    record_end(call, stream, status, end_ns);
    atomic_fetch_add_explicit(&count->ns, end_ns - start_ns, memory_order_relaxed);
    atomic_fetch_add_explicit(&count->calls, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&count->bytes, bytes, memory_order_relaxed);
    if (status != DSC_OK)
        name_all_reduce(call, err);
    if (call->comm->trace.fn != NULL)
        call->comm->trace.fn(call->comm->trace.user, call->channel, call->op, bytes, start_ns, end_ns, status);
    atomic_store(&call->comm->channel[call->channel].busy, false);
    return status;
}

/* A blocking transport's call, on the stream's own thread. */
static dsc_status run_now(void *args, dsc_error *err) { return run(args, NULL, err); }

static void count_payload(const comm_call *call)
{
    dsc_comm_channel *channel = &call->comm->channel[call->channel];
    atomic_fetch_add_explicit(&channel->sent, sent_bytes(call), memory_order_relaxed);
    atomic_fetch_add_explicit(&channel->received, received_bytes(call), memory_order_relaxed);
}

static dsc_status run_blocked(const comm_call *call, dsc_error *err)
{
    const int64_t start_ns = dsc_clock_ns();
    const dsc_status status = run(call, NULL, err);
    if (call->comm->size > 1)
        atomic_fetch_add_explicit(&call->comm->blocked_ns, dsc_clock_ns() - start_ns, memory_order_relaxed);
    return status;
}

/* A stream that computes is occupied by the exchanges that it is given, so that they count as its waits. */
static dsc_status submit(comm_call *call, dsc_stream *stream, dsc_error *err)
{
    DSC_ASSERT(call->channel >= 0 && call->channel < call->comm->channel_count);
    DSC_ASSERT(call->bytes >= 0);
    call->step = atomic_load_explicit(&call->comm->step, memory_order_relaxed);
    call->module = atomic_load_explicit(&call->comm->channel[call->channel].module, memory_order_relaxed);
    count_payload(call);
    if (stream == NULL)
        return run_blocked(call, err);
    if (call->comm->size > 1)
        dsc_wait_begin(stream);
    const dsc_status status = call->comm->ops->enqueues
                                  ? run(call, stream, err)
                                  : dsc_host_call(stream, run_now, call, (int64_t)sizeof *call, err);
    if (call->comm->size > 1)
        dsc_wait_end(stream);
    return status;
}

/* ---- what callers see -------------------------------------------------------------------------------------------- */

static bool overlap(const void *a, int64_t a_bytes, const void *b, int64_t b_bytes)
{
    const uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
    return x < y + (uint64_t)b_bytes && y < x + (uint64_t)a_bytes;
}

static int64_t all_bytes(const dsc_comm *comm, int64_t bytes)
{
    int64_t total = 0;
    const bool fits = dsc_mul_i64(bytes, comm->size, &total);
    DSC_ASSERT(fits);
    return total;
}

dsc_status dsc_comm_all_gather(dsc_comm *comm, int32_t channel, void *recv, const void *send, int64_t count,
                               dsc_dtype dtype, dsc_stream *stream, dsc_error *err)
{
    int64_t bytes = 0;
    const bool fits = dsc_mul_i64(count, (int64_t)dsc_dtype_bytes(dtype), &bytes);
    DSC_ASSERT(fits && count >= 0);
    DSC_ASSERT(dsc_dtype_bytes(dtype) > 0);
    DSC_ASSERT(send == (char *)recv + comm->rank * bytes || !overlap(recv, all_bytes(comm, bytes), send, bytes));
    comm_call call = {
        .comm = comm, .channel = channel, .op = DSC_COMM_ALL_GATHER, .recv = recv, .send = send, .bytes = bytes
    };
    return submit(&call, stream, err);
}

dsc_status dsc_comm_all_to_all(dsc_comm *comm, int32_t channel, void *recv, const void *send, int64_t bytes,
                               dsc_stream *stream, dsc_error *err)
{
    DSC_ASSERT(bytes >= 0);
    DSC_ASSERT(!overlap(recv, all_bytes(comm, bytes), send, all_bytes(comm, bytes)));
    comm_call call = {
        .comm = comm, .channel = channel, .op = DSC_COMM_ALL_TO_ALL, .recv = recv, .send = send, .bytes = bytes
    };
    return submit(&call, stream, err);
}

dsc_status dsc_comm_broadcast(dsc_comm *comm, int32_t channel, void *buf, int64_t bytes, int32_t root,
                              dsc_stream *stream, dsc_error *err)
{
    DSC_ASSERT(root >= 0 && root < comm->size);
    comm_call call = {
        .comm = comm, .channel = channel, .op = DSC_COMM_BROADCAST, .recv = buf, .bytes = bytes, .peer = root
    };
    return submit(&call, stream, err);
}

static bool is_wire_dtype(dsc_dtype dtype) { return dtype == DSC_F32 || dtype == DSC_BF16 || dtype == DSC_F16; }

dsc_status dsc_comm_reduce_scatter(dsc_comm *comm, int32_t channel, const dsc_reduce_scatter_args *args,
                                   dsc_stream *stream, dsc_error *err)
{
    DSC_ASSERT(is_wire_dtype(args->wire_dtype));
    DSC_ASSERT(args->count >= 0 && args->leaf_stride >= args->count);
    DSC_ASSERT(args->count == 0 || args->leaf != NULL);
    DSC_ASSERT(args->count == 0 || (args->acc != NULL) != (args->apart != NULL));
    comm_call call = {
        .comm = comm, .channel = channel, .op = DSC_COMM_REDUCE_SCATTER, .wire_dtype = args->wire_dtype, .reduce = *args
    };
    return submit(&call, stream, err);
}

dsc_status dsc_comm_all_reduce(dsc_comm *comm, int32_t channel, float *buf, int64_t count, dsc_dtype wire_dtype,
                               dsc_stream *stream, dsc_error *err)
{
    DSC_ASSERT(is_wire_dtype(wire_dtype));
    DSC_ASSERT(count >= 0);
    comm_call call = { .comm = comm,
                             .channel = channel,
                             .op = DSC_COMM_ALL_REDUCE,
                             .recv = buf,
                             .bytes = count,
                             .wire_dtype = wire_dtype };
    return submit(&call, stream, err);
}

dsc_status dsc_comm_barrier(dsc_comm *comm, int32_t channel, dsc_stream *stream, dsc_error *err)
{
    comm_call call = { .comm = comm, .channel = channel, .op = DSC_COMM_BARRIER };
    return submit(&call, stream, err);
}

dsc_status dsc_comm_send(dsc_comm *comm, int32_t channel, const void *buf, int64_t bytes, int32_t to,
                         dsc_stream *stream, dsc_error *err)
{
    DSC_ASSERT(to >= 0 && to < comm->size);
    DSC_ASSERT(to != comm->rank);
    comm_call call = {
        .comm = comm, .channel = channel, .op = DSC_COMM_SEND, .send = buf, .bytes = bytes, .peer = to
    };
    return submit(&call, stream, err);
}

dsc_status dsc_comm_recv(dsc_comm *comm, int32_t channel, void *buf, int64_t bytes, int32_t from, dsc_stream *stream,
                         dsc_error *err)
{
    DSC_ASSERT(from >= 0 && from < comm->size);
    DSC_ASSERT(from != comm->rank);
    comm_call call = {
        .comm = comm, .channel = channel, .op = DSC_COMM_RECV, .recv = buf, .bytes = bytes, .peer = from
    };
    return submit(&call, stream, err);
}

/* ---- failures ---- */

void dsc_comm_abort(dsc_comm *comm, const char *reason)
{
    if (comm->progress != NULL)
        dsc_comm_progress_abort(comm->progress);
    comm->transport->ops->abort(comm->transport, reason);
}

dsc_status dsc_comm_health(dsc_comm *comm, dsc_error *err)
{
    dsc_transport *t = comm->transport;
    return t->ops->health != NULL ? t->ops->health(t, err) : DSC_OK;
}
