/* hier.c - several ranks on each of several hosts: shared memory inside a host (shm.c), TCP between hosts (tcp.c).
 *
 * Data for another host travels there once. In a gather, rank l of a host sends its bytes to rank l of every other
 * host, where the ranks read them from each other. Parts of a sum go straight to their owner, because the owner reduces
 * them in rank order, which gives the same bits. Only the parts of the owner's host travel in shared memory.
 *
 * In every call the bytes between hosts come first: nobody waits over TCP for a rank that waits in shared memory in the
 * same call. So a late rank is reported by the ranks that wait for it, and not by ranks that wait for those. A failure
 * of shared memory is published over TCP and the reverse. Ranks that wait in shared memory read the control messages of
 * TCP, and do not give up a rank whose bytes still move.
 *
 * Ranks of a host must have consecutive numbers and be able to share memory. Otherwise each rank is a host of its own,
 * which is the transport "tcp".
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "comm/transports/shm_internal.h"
#include "comm/transports/tcp_internal.h"

#define PIECE_ALIGN 16
/* A wait in shared memory ends after a wait over TCP, which can name the rank that the job waits for. */
#define SHM_PATIENCE_NS INT64_C(1000000000)
#define SHM_OPEN_NS INT64_C(15000000000) /* everybody is there already */

typedef struct hier_host { int32_t first, count; } hier_host; /* its ranks */

typedef struct dsc_hier {
    dsc_tcp tcp;
    dsc_shm *shm; /* the ranks of this host; NULL: this one is alone */
    int32_t host_count, host;
    hier_host hosts[DSC_RDV_RANKS_MAX];
    int32_t host_of[DSC_RDV_RANKS_MAX];
    int32_t called[DSC_SHM_BARRIER_RANKS_MAX]; /* the ranks of this host */
} dsc_hier;

/* ---- who is where ------------------------------------------------------------------------------------------------ */

/* Location of a rank, and then its ability to share memory there. */
typedef struct word {
    int32_t node, local_rank, local_size, status;
} word;

static bool together(const word *a, const word *b) { return a->node == b->node && a->local_size == b->local_size; }

/* `apart`: nobody shares. */
static void find_hosts(dsc_hier *hier, const word *at, bool apart)
{
    const int32_t size = hier->tcp.wire.size;
    for (int32_t r = 0; r < size; r++) { /* numbered in a row: the ranks of each host are local ranks 0, 1, ... */
        const bool first = r == 0 || !together(&at[r], &at[r - 1]) || at[r].local_rank == 0;
        const bool last = r == size - 1 || !together(&at[r], &at[r + 1]) || at[r + 1].local_rank == 0;
        apart = apart || at[r].local_rank != (first ? 0 : at[r - 1].local_rank + 1) ||
                (last && at[r].local_rank != at[r].local_size - 1);
    }
    hier->host_count = 0;
    for (int32_t r = 0; r < size; r++) {
        if (apart || at[r].local_rank == 0)
            hier->hosts[hier->host_count++] = (hier_host){ .first = r };
        hier->host_of[r] = hier->host_count - 1;
        hier->hosts[hier->host_count - 1].count++;
    }
    hier->host = hier->host_of[hier->tcp.wire.rank];
}

static hier_host mine(const dsc_hier *hier) { return hier->hosts[hier->host]; }

/* The rank of `host` that receives for all of it what `rank` of another host sends. */
static int32_t carrier(const dsc_hier *hier, int32_t rank, int32_t host)
{
    const int32_t local = rank - hier->hosts[hier->host_of[rank]].first;
    return hier->hosts[host].first + local % hier->hosts[host].count;
}

/* ---- open and close ---------------------------------------------------------------------------------------------- */

/* The options of the ranks of this host among themselves. `name` is private to them. */
static void inner_options(const dsc_comm_options *options, hier_host host, const char *name, dsc_comm_options *inner)
{
    *inner = *options;
    inner->rank_info.rank = inner->rank_info.local_rank = options->rank_info.rank - host.first;
    inner->rank_info.size = inner->rank_info.local_size = host.count;
    inner->rank_info.job_token = name;
    inner->rank_info.rank_name = inner->rank_info.size_name = NULL; /* the numbers are the host's */
    inner->timeout_ns = dsc_comm_timeout_ns(options) + SHM_PATIENCE_NS;
    inner->open_timeout_ns = dsc_min_i64(dsc_comm_open_timeout_ns(options), SHM_OPEN_NS);
}

/* For the plan alone: open lists the memory of tcp and of shm there. */
static int hier_list_needs(const dsc_comm_options *options, dsc_transport *transport, dsc_need *list)
{
    dsc_comm_options inner;
    const hier_host host = { .first = options->rank_info.rank - options->rank_info.local_rank,
                             .count = options->rank_info.local_size };
    DSC_ASSERT(transport == NULL);
    inner_options(options, host, "", &inner);
    const int count = dsc_tcp_list_needs(options, NULL, list);
    return count + (host.count > 1 ? dsc_shm_list_needs(&inner, NULL, list + count) : 0);
}

static void hier_close(dsc_transport *transport)
{
    dsc_hier *hier = (dsc_hier *)transport;
    if (hier->shm != NULL)
        dsc_shm_close(&hier->shm->base);
    dsc_tcp_close(transport);
}

/* all[size] of everybody; the own one is there. */
static dsc_status tell_all(dsc_hier *hier, word *all, dsc_error *err)
{
    const dsc_wire *wire = &hier->tcp.wire;
    return dsc_comm_tcp.all_gather(&hier->tcp.base, 0, all, &all[wire->rank], (int64_t)sizeof *all, NULL, err);
}

static dsc_status words_from_afar(void *user, dsc_error *err) { return dsc_wire_health(user, err); }

static void moved_afar(void *user, int32_t channel)
{
    dsc_shm_barrier_progressed(&((dsc_hier *)user)->shm->barrier, channel);
}

static dsc_status open_shm(dsc_hier *hier, const dsc_comm_options *options, dsc_error *err)
{
    char name[512];
    dsc_comm_options inner;
    dsc_transport *made = NULL;
    snprintf(name, sizeof name, "%.480s/host %d", options->rank_info.job_token, (int)hier->host);
    inner_options(options, mine(hier), name, &inner);
    DSC_TRY(dsc_shm_open(&dsc_comm_shm, &made, &inner, err));
    hier->shm = (dsc_shm *)made;
    for (int32_t i = 0; i < mine(hier).count; i++)
        hier->called[i] = mine(hier).first + i;
    hier->shm->barrier.called = hier->called;
    hier->shm->barrier.look = words_from_afar;
    hier->shm->barrier.look_user = &hier->tcp.wire;
    hier->tcp.wire.moved = moved_afar;
    hier->tcp.wire.moved_user = hier;
    return DSC_OK;
}

static void be_alone(dsc_hier *hier, const word *at)
{
    hier->tcp.wire.moved = NULL;
    if (hier->shm != NULL)
        dsc_shm_close(&hier->shm->base);
    hier->shm = NULL;
    find_hosts(hier, at, true);
}

/* All ranks go the same way from here: who has no memory ends it for all, who cannot share it makes all do without. */
static dsc_status settle(dsc_hier *hier, const dsc_comm_options *options, dsc_status status, const dsc_error *why,
                         dsc_error *err)
{
    const int32_t rank = hier->tcp.wire.rank, size = hier->tcp.wire.size;
    word all[DSC_RDV_RANKS_MAX];
    bool share = true;
    if (status == DSC_ERR_NOMEM) {
        dsc_wire_fail(&hier->tcp.wire, DSC_ERR_PEER, rank, NULL, "rank %d could not open its communicator: %.240s",
                      rank, why->message);
        if (err != NULL)
            *err = *why;
        return status;
    }
    all[rank] = (word){ .status = (int32_t)status };
    DSC_TRY(tell_all(hier, all, err));
    for (int32_t r = 0; r < size; r++)
        share = share && all[r].status == DSC_OK;
    if (status != DSC_OK)
        dsc_log_printf(options->log, DSC_LOG_WARNING,
                       "comm: rank %d cannot share memory with the other ranks of its host (%s); all goes over TCP",
                       rank, why->message);
    if (!share)
        be_alone(hier, all);
    return DSC_OK;
}

static dsc_status set_up(dsc_hier *hier, const dsc_comm_options *options, dsc_error *err)
{
    word at[DSC_RDV_RANKS_MAX];
    dsc_error why = DSC_ERROR_INIT;
    dsc_status status = DSC_OK;
    at[hier->tcp.wire.rank] =
        (word) { options->rank_info.node, options->rank_info.local_rank, options->rank_info.local_size, DSC_OK };
    DSC_TRY(tell_all(hier, at, err));
    find_hosts(hier, at, false);
    if (mine(hier).count > 1)
        status = open_shm(hier, options, &why);
    return settle(hier, options, status, &why, err);
}

static dsc_status hier_open(dsc_transport **out, const dsc_comm_options *options, dsc_error *err)
{
    static const dsc_tcp_kind kind = { .ops = &dsc_comm_hier, .bytes = sizeof(dsc_hier), .number = 2 };
    dsc_transport *made = NULL;
    DSC_TRY(dsc_tcp_open_kind(&kind, &made, options, err));
    const dsc_status status = set_up((dsc_hier *)made, options, err);
    if (status == DSC_OK)
        *out = made;
    else
        hier_close(made);
    return status;
}

/* ---- parts of calls ---------------------------------------------------------------------------------------------- */

static dsc_status begin_afar(dsc_hier *hier, int32_t channel, const dsc_call_record *call, dsc_error *err)
{
    return dsc_wire_begin(&hier->tcp.wire, channel, (dsc_comm_op)call->op, call->detail, call->bytes, err);
}

/* Distributes the parts that the ranks of this host received from `host` to all of them. */
static dsc_status share(dsc_hier *hier, int32_t channel, const dsc_call_record *call, int32_t host, char *recv,
                        int64_t bytes, dsc_error *err)
{
    const hier_host from = hier->hosts[host], here = mine(hier);
    const int32_t local = hier->tcp.wire.rank - here.first;
    for (int32_t first = 0; first < from.count; first += here.count) {
        char *to = recv + (from.first + first) * bytes;
        if (from.count - first >= here.count) {
            DSC_TRY(dsc_shm_gather(hier->shm, channel, call, to, to + local * bytes, bytes, err));
            continue;
        }
        for (int32_t i = 0; i < from.count - first; i++)
            DSC_TRY(dsc_shm_spread(hier->shm, channel, call, to + i * bytes, bytes, i, err));
    }
    return DSC_OK;
}

static dsc_status gather(dsc_hier *hier, int32_t channel, const dsc_call_record *call, char *recv, const char *send,
                         dsc_error *err)
{
    dsc_wire *wire = &hier->tcp.wire;
    const int64_t bytes = call->bytes;
    DSC_TRY(begin_afar(hier, channel, call, err));
    for (int32_t g = 0; g < hier->host_count; g++)
        if (g != hier->host)
            dsc_wire_send(wire, channel, carrier(hier, wire->rank, g), send, bytes);
    for (int32_t r = 0; r < wire->size; r++)
        if (hier->host_of[r] != hier->host && carrier(hier, r, hier->host) == wire->rank)
            dsc_wire_recv(wire, channel, r, recv + r * bytes, bytes);
    DSC_TRY(dsc_wire_exchange(wire, channel, 0, err));
    if (recv + wire->rank * bytes != send && bytes > 0)
        memcpy(recv + wire->rank * bytes, send, (size_t)bytes);
    for (int32_t g = 0; g < hier->host_count && hier->shm != NULL; g++)
        DSC_TRY(share(hier, channel, call, g, recv, bytes, err));
    return DSC_OK;
}

/* Pieces of `bytes` for all ranks: those for other hosts are on their way, those of this host follow. */
static dsc_status exchange(dsc_hier *hier, int32_t channel, const dsc_call_record *call, char *recv, const char *send,
                           int64_t bytes, dsc_error *err)
{
    const int64_t here = mine(hier).first * bytes;
    DSC_TRY(dsc_wire_exchange(&hier->tcp.wire, channel, 0, err));
    if (hier->shm != NULL)
        return dsc_shm_exchange(hier->shm, channel, call, recv + here, send + here, bytes, err);
    if (bytes > 0)
        memcpy(recv + here, send + here, (size_t)bytes);
    return DSC_OK;
}

static dsc_status all_to_all(dsc_hier *hier, int32_t channel, const dsc_call_record *call, char *recv, const char *send,
                             dsc_error *err)
{
    dsc_wire *wire = &hier->tcp.wire;
    const int64_t bytes = call->bytes;
    DSC_TRY(begin_afar(hier, channel, call, err));
    for (int32_t r = 0; r < wire->size; r++)
        if (hier->host_of[r] != hier->host) {
            dsc_wire_send(wire, channel, r, send + r * bytes, bytes);
            dsc_wire_recv(wire, channel, r, recv + r * bytes, bytes);
        }
    return exchange(hier, channel, call, recv, send, bytes, err);
}

/* From the root to one rank of each other host, which confirms, and from there to the others. */
static dsc_status spread(dsc_hier *hier, int32_t channel, const dsc_call_record *call, char *buf, dsc_error *err)
{
    dsc_wire *wire = &hier->tcp.wire;
    const int32_t root = call->detail, me = wire->rank, host = hier->host_of[root];
    const bool carries = host != hier->host && carrier(hier, root, hier->host) == me;
    DSC_TRY(begin_afar(hier, channel, call, err));
    if (carries) {
        dsc_wire_recv(wire, channel, root, buf, call->bytes);
        DSC_TRY(dsc_wire_exchange(wire, channel, 0, err));
        dsc_wire_send(wire, channel, root, NULL, 0);
    }
    for (int32_t g = 0; g < hier->host_count && me == root; g++)
        if (g != host) {
            dsc_wire_send(wire, channel, carrier(hier, root, g), buf, call->bytes);
            dsc_wire_recv(wire, channel, carrier(hier, root, g), NULL, 0);
        }
    DSC_TRY(dsc_wire_exchange(wire, channel, 0, err));
    if (hier->shm == NULL)
        return DSC_OK;
    return dsc_shm_spread(hier->shm, channel, call, buf, call->bytes,
                          carrier(hier, root, hier->host) - mine(hier).first, err);
}

/* One chunk: elements first..first+count of every owner's piece, rounded, exchanged and folded. Parts that need no
 * rounding are sent to other hosts from their own buffer. */
static dsc_status reduce_chunk(dsc_hier *hier, int32_t channel, const dsc_call_record *call,
                               const dsc_reduce_scatter_args *args, int64_t first, int64_t count, dsc_error *err)
{
    dsc_tcp *tcp = &hier->tcp;
    const int64_t piece_bytes = count * (int64_t)dsc_dtype_bytes(args->wire_dtype);
    char *in = tcp->staging[channel].ptr, *out = in + tcp->staging[channel].bytes / 2;
    for (int32_t r = 0; r < tcp->wire.size; r++) {
        const float *leaf = args->leaf + r * args->leaf_stride + first;
        const bool far = hier->host_of[r] != hier->host, as_it_is = far && args->wire_dtype == DSC_F32;
        char *rounded = out + r * piece_bytes;
        if (!as_it_is)
            DSC_TRY(dsc_comm_cast(&tcp->math, rounded, args->wire_dtype, leaf, count, NULL, err));
        if (!far)
            continue;
        dsc_wire_send(&tcp->wire, channel, r, as_it_is ? (const void *)leaf : rounded, piece_bytes);
        dsc_wire_recv(&tcp->wire, channel, r, in + r * piece_bytes, piece_bytes);
    }
    DSC_TRY(exchange(hier, channel, call, in, out, piece_bytes, err));
    const dsc_comm_parts leaves = {
        .at = in, .stride_bytes = piece_bytes, .dtype = args->wire_dtype, .count = tcp->wire.size
    };
    return dsc_comm_ordered_reduce(&tcp->math, args, &leaves, first, count, NULL, err);
}

static dsc_status reduce(dsc_hier *hier, int32_t channel, const dsc_call_record *call,
                         const dsc_reduce_scatter_args *args, dsc_error *err)
{
    const dsc_tcp *tcp = &hier->tcp;
    const int64_t wire_bytes = (int64_t)dsc_dtype_bytes(args->wire_dtype);
    const int64_t most = tcp->staging[channel].bytes / 2 / tcp->wire.size / wire_bytes / PIECE_ALIGN * PIECE_ALIGN;
    DSC_ASSERT(most > 0);
    DSC_TRY(begin_afar(hier, channel, call, err));
    for (int64_t first = 0; first == 0 || first < args->count; first += most)
        DSC_TRY(reduce_chunk(hier, channel, call, args, first, dsc_min_i64(most, args->count - first), err));
    return DSC_OK;
}

/* ---- hooks ------------------------------------------------------------------------------------------------------- */

/* A failure ends the waits of both ways. */
static dsc_status ended(dsc_hier *hier, int32_t channel, dsc_status status, const dsc_error *why, dsc_error *err)
{
    if (status != DSC_OK) {
        dsc_wire_fail(&hier->tcp.wire, status, why->rank, NULL, "%s", why->message);
        if (hier->shm != NULL)
            dsc_shm_barrier_fail_as(&hier->shm->barrier, why, NULL);
        if (err != NULL)
            *err = *why;
    }
    if (hier->shm != NULL)
        dsc_shm_barrier_end(&hier->shm->barrier, channel);
    return status;
}

#define HIER_HOOK(OP, DETAIL, BYTES, work)                                                                             \
    dsc_hier *hier = (dsc_hier *)transport;                                                                            \
    const dsc_call_record call = { .op = (OP), .detail = (DETAIL), .bytes = (BYTES) };                                 \
    dsc_error own_ = DSC_ERROR_INIT, *why = &own_;                                                                     \
    dsc_status status = DSC_OK;                                                                                        \
    if (hier->shm != NULL)                                                                                             \
        status = dsc_shm_barrier_begin(&hier->shm->barrier, channel, &call, why);                                      \
    if (status == DSC_OK)                                                                                              \
        status = work;                                                                                                 \
    return ended(hier, channel, status, why, err)

static dsc_status hier_all_gather(dsc_transport *transport, int32_t channel, void *recv, const void *send,
                                  int64_t bytes, dsc_stream *stream, dsc_error *err)
{
    HIER_HOOK(DSC_COMM_ALL_GATHER, 0, bytes, gather(hier, channel, &call, recv, send, why));
}

static dsc_status hier_all_to_all(dsc_transport *transport, int32_t channel, void *recv, const void *send,
                                  int64_t bytes, dsc_stream *stream, dsc_error *err)
{
    HIER_HOOK(DSC_COMM_ALL_TO_ALL, 0, bytes, all_to_all(hier, channel, &call, recv, send, why));
}

static dsc_status hier_broadcast(dsc_transport *transport, int32_t channel, void *buf, int64_t bytes, int32_t root,
                                 dsc_stream *stream, dsc_error *err)
{
    HIER_HOOK(DSC_COMM_BROADCAST, root, bytes, spread(hier, channel, &call, buf, why));
}

static dsc_status hier_reduce_scatter(dsc_transport *transport, int32_t channel, const dsc_reduce_scatter_args *args,
                                      dsc_stream *stream, dsc_error *err)
{
    HIER_HOOK(DSC_COMM_REDUCE_SCATTER, (int32_t)args->wire_dtype,
              args->count * (int64_t)dsc_dtype_bytes(args->wire_dtype), reduce(hier, channel, &call, args, why));
}

/* Everybody hears from everybody: a rank that is late is known to all. */
static dsc_status hier_barrier(dsc_transport *transport, int32_t channel, dsc_stream *stream, dsc_error *err)
{
    HIER_HOOK(DSC_COMM_BARRIER, 0, 0, dsc_tcp_barrier(transport, channel, stream, why));
}

static dsc_status hier_send(dsc_transport *transport, int32_t channel, const void *buf, int64_t bytes, int32_t to,
                            dsc_stream *stream, dsc_error *err)
{
    HIER_HOOK(DSC_COMM_SEND, to, bytes, dsc_tcp_send(transport, channel, buf, bytes, to, stream, why));
}

static dsc_status hier_recv(dsc_transport *transport, int32_t channel, void *buf, int64_t bytes, int32_t from,
                            dsc_stream *stream, dsc_error *err)
{
    HIER_HOOK(DSC_COMM_RECV, from, bytes, dsc_tcp_recv(transport, channel, buf, bytes, from, stream, why));
}

static dsc_status hier_mem_open(dsc_transport *transport, dsc_tag tag, int64_t bytes, dsc_buf *out, dsc_error *err)
{
    dsc_hier *hier = (dsc_hier *)transport;
    if (hier->shm != NULL)
        return dsc_shm_mem_open(&hier->shm->base, tag, bytes, out, err);
    return dsc_buf_open(hier->tcp.alloc, tag, DSC_TIER_DEVICE, bytes, out, err);
}

static void hier_mem_close(dsc_transport *transport, dsc_buf *buf)
{
    dsc_hier *hier = (dsc_hier *)transport;
    if (hier->shm != NULL)
        dsc_shm_mem_close(&hier->shm->base, buf);
    else
        dsc_buf_close(buf);
}

static dsc_status hier_health(dsc_transport *transport, dsc_error *err)
{
    dsc_hier *hier = (dsc_hier *)transport;
    DSC_TRY(dsc_tcp_health(transport, err));
    return hier->shm != NULL ? dsc_shm_barrier_health(&hier->shm->barrier, err) : DSC_OK;
}

static void hier_abort(dsc_transport *transport, const char *reason)
{
    dsc_hier *hier = (dsc_hier *)transport;
    const int32_t rank = hier->tcp.wire.rank;
    dsc_tcp_abort(transport, reason);
    if (hier->shm != NULL)
        dsc_shm_barrier_fail(&hier->shm->barrier, DSC_ERR_PEER, rank - mine(hier).first, NULL, "%s", reason);
}

const dsc_comm_ops dsc_comm_hier = {
    .name = "hier",
    .version = DSC_COMM_OPS_VERSION,
    .list_needs = hier_list_needs,
    .open = hier_open,
    .close = hier_close,
    .all_gather = hier_all_gather,
    .all_to_all = hier_all_to_all,
    .broadcast = hier_broadcast,
    .barrier = hier_barrier,
    .send = hier_send,
    .recv = hier_recv,
    .reduce_scatter = hier_reduce_scatter,
    .mem_open = hier_mem_open,
    .mem_close = hier_mem_close,
    .health = hier_health,
    .address = dsc_tcp_address,
    .abort = hier_abort,
};
