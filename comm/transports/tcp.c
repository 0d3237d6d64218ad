/* tcp.c - ranks of several hosts over TCP. Every pair has its own proved connection per channel (mesh.h), data goes
 * straight from its sender to its receiver, and no socket listens while the ranks work.
 *
 * A reduce-scatter sends each owner its piece of the gradient part, rounded to the wire dtype, chunk by chunk through
 * the staging. The owner reduces the received pieces in rank order. fp32 parts need no rounding and are sent from their
 * own buffer.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include <unistd.h>

#include "comm/transports/tcp_internal.h"

#define PIECE_ALIGN 16 /* elements: one cache line of fp32 */

/* ---- open and close ---------------------------------------------------------------------------------------------- */

/* Staging of one channel: half for received data, half for rounded parts to send. */
static int64_t staging_bytes(const dsc_comm_options *options, int32_t channel)
{
    if (options->staging_channels != 0 && (options->staging_channels >> channel & 1u) == 0)
        return 0;
    const int64_t least = 2 * (int64_t)sizeof(float) * PIECE_ALIGN * options->rank_info.size;
    return dsc_align_up(dsc_max_i64(options->staging_bytes, least), 64);
}

int dsc_tcp_list_staging(const dsc_comm_options *options, dsc_buf *staging, dsc_need *list)
{
    int count = 0;
    for (int32_t c = 0; c < options->channel_count; c++) {
        const int64_t bytes = staging_bytes(options, c);
        if (bytes > 0)
            list[count++] = (dsc_need) { staging != NULL ? &staging[c] : NULL, DSC_TAG_COMM, DSC_TIER_HOST, bytes,
                                         DSC_NEED_HOST };
    }
    DSC_ASSERT(count <= DSC_COMM_NEEDS_MAX);
    return count;
}

int dsc_tcp_list_needs(const dsc_comm_options *options, dsc_transport *transport, dsc_need *list)
{
    dsc_tcp *tcp = (dsc_tcp *)transport;
    return dsc_tcp_list_staging(options, tcp != NULL ? tcp->staging : NULL, list);
}

/* Ranks agree on it. */
static int64_t all_staging_bytes(const dsc_comm_options *options)
{
    int64_t bytes = 0;
    for (int32_t c = 0; c < options->channel_count; c++)
        bytes += staging_bytes(options, c);
    return bytes;
}

static dsc_status check_ranks(const dsc_comm_options *options, dsc_error *err)
{
    const dsc_rank_info *info = &options->rank_info;
    if (info->size > DSC_RDV_RANKS_MAX)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "WORLD_SIZE", "%d ranks; between hosts this version takes at most %d",
                        info->size, DSC_RDV_RANKS_MAX);
    if (info->size > 1 && (info->job_token == NULL || info->job_token[0] == 0))
        return DSC_FAIL(err, DSC_ERR_INPUT, "DSC_JOB_TOKEN",
                        "not set, and without it anybody who reaches the ports of this job could join it; dsc-launch "
                        "sets it, with other launchers: export DSC_JOB_TOKEN=$(openssl rand -hex 16) before the start");
    return DSC_OK;
}

/* State that lives only while opening. */
typedef struct opening {
    const dsc_tcp_kind *kind;
    const dsc_comm_options *options;
    dsc_tcp *tcp;
} opening;

static dsc_status open_memory(opening *o, dsc_error *err)
{
    const dsc_comm_options *options = o->options;
    dsc_tcp *tcp = NULL;
    DSC_TRY(dsc_alloc_zeroed(options->alloc, DSC_TAG_CONTROL, 1, o->kind->bytes, &tcp, err));
    o->tcp = tcp;
    tcp->base.ops = o->kind->ops;
    tcp->alloc = options->alloc;
    dsc_comm_math_init(&tcp->math);
    DSC_TRY(dsc_wire_init(&tcp->wire, options, o->kind->second_connections, err));
    tcp->memory.count = dsc_tcp_list_needs(options, &tcp->base, tcp->memory.need);
    return dsc_comm_memory_open(&tcp->memory, options, err);
}

/* The rendezvous calls this when everybody is here: every failure reaches all ranks before anybody has opened. */
static dsc_status connect_all(void *user, const dsc_rdv_net_met *met, dsc_error *err)
{
    opening *o = user;
    DSC_TRY(open_memory(o, err));
    return dsc_wire_connect(&o->tcp->wire, met, dsc_comm_open_timeout_ns(o->options), err);
}

static void waits(void *user, const char *text)
{
    const opening *o = user;
    dsc_comm_log_wait(o->options, text);
}

static dsc_status meet_all(opening *o, dsc_error *err)
{
    const dsc_comm_options *options = o->options;
    const dsc_rank_info *info = &options->rank_info;
    if (info->size == 1)
        return open_memory(o, err);
    dsc_rdv_net_job job = { .self = { .rank = info->rank,
                                      .size = info->size,
                                      .pid = (int32_t)getpid(),
                                      .agree = { options->channel_count, o->kind->number, all_staging_bytes(options) },
                                      .agree_name = { "channels of the communicator",
                                                      "transport (0: tcp, 1: gloo, 2: hier)", "bytes of staging" },
                                      .timeout_ns = dsc_comm_open_timeout_ns(options) },
                            .waits = waits,
                            .token = info->job_token,
                            .host = info->master_addr,
                            .port = info->master_port,
                            .gate = options->gate };
    strncpy(job.self.build, "dsc " DSC_VERSION_TEXT, sizeof job.self.build - 1);
    return dsc_rdv_net_run(&job, connect_all, o, err);
}

dsc_status dsc_tcp_open_kind(const dsc_tcp_kind *kind, dsc_transport **out, const dsc_comm_options *options,
                             dsc_error *err)
{
    opening o = { .kind = kind, .options = options };
    DSC_TRY(check_ranks(options, err));
    const dsc_status status = meet_all(&o, err);
    if (status == DSC_OK)
        *out = &o.tcp->base;
    else if (o.tcp != NULL)
        dsc_tcp_close(&o.tcp->base);
    return status;
}

void dsc_tcp_close(dsc_transport *transport)
{
    dsc_tcp *tcp = (dsc_tcp *)transport;
    dsc_wire_close(&tcp->wire);
    dsc_comm_memory_close(&tcp->memory);
    dsc_alloc_free(tcp->alloc, tcp);
}

static dsc_status tcp_open(dsc_transport **out, const dsc_comm_options *options, dsc_error *err)
{
    static const dsc_tcp_kind kind = { .ops = &dsc_comm_tcp, .bytes = sizeof(dsc_tcp) };
    return dsc_tcp_open_kind(&kind, out, options, err);
}

/* ---- collectives ------------------------------------------------------------------------------------------------- */

static void copy(void *to, const void *from, int64_t bytes)
{
    if (to != from && bytes > 0)
        memcpy(to, from, (size_t)bytes);
}

static dsc_status tcp_all_gather(dsc_transport *transport, int32_t channel, void *recv, const void *send,
                                 int64_t bytes, dsc_stream *stream, dsc_error *err)
{
    dsc_tcp *tcp = (dsc_tcp *)transport;
    dsc_wire *wire = &tcp->wire;
    DSC_TRY(dsc_wire_begin(wire, channel, DSC_COMM_ALL_GATHER, 0, bytes, err));
    for (int32_t r = 0; r < wire->size; r++) {
        if (r == wire->rank)
            continue;
        dsc_wire_send(wire, channel, r, send, bytes);
        dsc_wire_recv(wire, channel, r, (char *)recv + r * bytes, bytes);
    }
    DSC_TRY(dsc_wire_exchange(wire, channel, 0, err));
    copy((char *)recv + wire->rank * bytes, send, bytes);
    return DSC_OK;
}

static dsc_status tcp_all_to_all(dsc_transport *transport, int32_t channel, void *recv, const void *send,
                                 int64_t bytes, dsc_stream *stream, dsc_error *err)
{
    dsc_tcp *tcp = (dsc_tcp *)transport;
    dsc_wire *wire = &tcp->wire;
    DSC_TRY(dsc_wire_begin(wire, channel, DSC_COMM_ALL_TO_ALL, 0, bytes, err));
    for (int32_t r = 0; r < wire->size; r++) {
        if (r == wire->rank)
            continue;
        dsc_wire_send(wire, channel, r, (const char *)send + r * bytes, bytes);
        dsc_wire_recv(wire, channel, r, (char *)recv + r * bytes, bytes);
    }
    DSC_TRY(dsc_wire_exchange(wire, channel, 0, err));
    copy((char *)recv + wire->rank * bytes, (const char *)send + wire->rank * bytes, bytes);
    return DSC_OK;
}

/* Receivers confirm, so that the root learns who was not there. */
static dsc_status tcp_broadcast(dsc_transport *transport, int32_t channel, void *buf, int64_t bytes, int32_t root,
                                dsc_stream *stream, dsc_error *err)
{
    dsc_wire *wire = &((dsc_tcp *)transport)->wire;
    DSC_TRY(dsc_wire_begin(wire, channel, DSC_COMM_BROADCAST, root, bytes, err));
    if (wire->rank != root) {
        dsc_wire_recv(wire, channel, root, buf, bytes);
        DSC_TRY(dsc_wire_exchange(wire, channel, 0, err));
        dsc_wire_send(wire, channel, root, NULL, 0);
        return dsc_wire_exchange(wire, channel, 0, err);
    }
    for (int32_t r = 0; r < wire->size; r++)
        if (r != root) {
            dsc_wire_send(wire, channel, r, buf, bytes);
            dsc_wire_recv(wire, channel, r, NULL, 0);
        }
    return dsc_wire_exchange(wire, channel, 0, err);
}

dsc_status dsc_tcp_barrier(dsc_transport *transport, int32_t channel, dsc_stream *stream, dsc_error *err)
{
    dsc_wire *wire = &((dsc_tcp *)transport)->wire;
    DSC_TRY(dsc_wire_begin(wire, channel, DSC_COMM_BARRIER, 0, 0, err));
    for (int32_t r = 0; r < wire->size; r++)
        if (r != wire->rank) {
            dsc_wire_send(wire, channel, r, NULL, 0);
            dsc_wire_recv(wire, channel, r, NULL, 0);
        }
    return dsc_wire_exchange(wire, channel, 0, err);
}

dsc_status dsc_tcp_send(dsc_transport *transport, int32_t channel, const void *buf, int64_t bytes, int32_t to,
                        dsc_stream *stream, dsc_error *err)
{
    dsc_wire *wire = &((dsc_tcp *)transport)->wire;
    DSC_TRY(dsc_wire_begin(wire, channel, DSC_COMM_SEND, to, bytes, err));
    dsc_wire_send(wire, channel, to, buf, bytes);
    dsc_wire_recv(wire, channel, to, NULL, 0);
    return dsc_wire_exchange(wire, channel, 0, err);
}

dsc_status dsc_tcp_recv(dsc_transport *transport, int32_t channel, void *buf, int64_t bytes, int32_t from,
                        dsc_stream *stream, dsc_error *err)
{
    dsc_wire *wire = &((dsc_tcp *)transport)->wire;
    DSC_TRY(dsc_wire_begin(wire, channel, DSC_COMM_RECV, from, bytes, err));
    dsc_wire_recv(wire, channel, from, buf, bytes);
    DSC_TRY(dsc_wire_exchange(wire, channel, 0, err));
    dsc_wire_send(wire, channel, from, NULL, 0);
    return dsc_wire_exchange(wire, channel, 0, err);
}

/* One chunk: elements first..first+count of every owner's piece. */
static dsc_status reduce_chunk(dsc_tcp *tcp, int32_t channel, const dsc_reduce_scatter_args *args, int64_t first,
                               int64_t count, dsc_error *err)
{
    dsc_wire *wire = &tcp->wire;
    const bool rounds = args->wire_dtype != DSC_F32;
    const int64_t piece_bytes = count * (int64_t)dsc_dtype_bytes(args->wire_dtype);
    char *in = tcp->staging[channel].ptr, *out = in + tcp->staging[channel].bytes / 2;
    const void *leaf[DSC_RDV_RANKS_MAX];
    for (int32_t r = 0; r < wire->size; r++) {
        const float *mine = args->leaf + r * args->leaf_stride + first;
        char *rounded = out + r * piece_bytes;
        if (rounds)
            DSC_TRY(dsc_comm_cast(&tcp->math, rounded, args->wire_dtype, mine, count, NULL, err));
        leaf[r] = r == wire->rank ? (rounds ? rounded : (const void *)mine) : in + r * piece_bytes;
        if (r == wire->rank)
            continue;
        dsc_wire_send(wire, channel, r, rounds ? rounded : (const void *)mine, piece_bytes);
        dsc_wire_recv(wire, channel, r, in + r * piece_bytes, piece_bytes);
    }
    DSC_TRY(dsc_wire_exchange(wire, channel, 0, err));
    const dsc_comm_parts leaves = { .each = leaf, .dtype = args->wire_dtype, .count = wire->size };
    return dsc_comm_ordered_reduce(&tcp->math, args, &leaves, first, count, NULL, err);
}

static dsc_status tcp_reduce_scatter(dsc_transport *transport, int32_t channel, const dsc_reduce_scatter_args *args,
                                     dsc_stream *stream, dsc_error *err)
{
    dsc_tcp *tcp = (dsc_tcp *)transport;
    const int64_t wire_bytes = (int64_t)dsc_dtype_bytes(args->wire_dtype);
    const int64_t most = tcp->staging[channel].bytes / 2 / tcp->wire.size / wire_bytes / PIECE_ALIGN * PIECE_ALIGN;
    DSC_ASSERT(most > 0);
    DSC_TRY(dsc_wire_begin(&tcp->wire, channel, DSC_COMM_REDUCE_SCATTER, (int32_t)args->wire_dtype,
                           args->count * wire_bytes, err));
    for (int64_t first = 0; first == 0 || first < args->count; first += most)
        DSC_TRY(reduce_chunk(tcp, channel, args, first, dsc_min_i64(most, args->count - first), err));
    return DSC_OK;
}

bool dsc_tcp_address(dsc_transport *transport, dsc_net_address *out)
{
    const dsc_wire *wire = &((dsc_tcp *)transport)->wire;
    bool found = false;
    for (int32_t r = 0; r < wire->size && !found; r++)
        found = r != wire->rank && dsc_net_local(wire->fd[r], out);
    out->port = 0;
    return found;
}

dsc_status dsc_tcp_health(dsc_transport *transport, dsc_error *err)
{
    return dsc_wire_health(&((dsc_tcp *)transport)->wire, err);
}

void dsc_tcp_abort(dsc_transport *transport, const char *reason)
{
    dsc_wire *wire = &((dsc_tcp *)transport)->wire;
    dsc_wire_fail(wire, DSC_ERR_PEER, wire->rank, NULL, "%s", reason);
}

const dsc_comm_ops dsc_comm_tcp = {
    .name = "tcp",
    .version = DSC_COMM_OPS_VERSION,
    .list_needs = dsc_tcp_list_needs,
    .open = tcp_open,
    .close = dsc_tcp_close,
    .all_gather = tcp_all_gather,
    .all_to_all = tcp_all_to_all,
    .broadcast = tcp_broadcast,
    .barrier = dsc_tcp_barrier,
    .send = dsc_tcp_send,
    .recv = dsc_tcp_recv,
    .reduce_scatter = tcp_reduce_scatter,
    .health = dsc_tcp_health,
    .address = dsc_tcp_address,
    .abort = dsc_tcp_abort,
};
