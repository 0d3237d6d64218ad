/* mpi.c - ranks that mpirun or srun started, over the MPI they were started with (lib/dsc/libdsc_mpi.so).
 *
 * Only MPI's messages are used, not its collectives. So missing ranks can be named, and sums keep the order that gives
 * the same bits. A call starts with an exchange of call records between all ranks that take part. Its first data
 * travels with the records and counts when they match. Failures and farewells use a communicator of their own, which a
 * waiting rank polls. MPI does not report a process that died: mpirun ends the job then.
 * SPDX-License-Identifier: Apache-2.0 */
#include "comm/transports/mpi_api.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/plugin.h"
#include "comm/transports/tcp_internal.h"

#define PIECE_ALIGN 16
#define SLICE_NS INT64_C(10000000) /* between two looks around while a rank waits */
#define OUTLAST_NS INT64_C(100000000)

typedef struct mpi_channel {
    dsc_caller caller;
    dsc_call_record *theirs; /* [size] */
    bool *open;              /* [size] */
    dsc_mpi_part *part;      /* [4 * size] of the exchange: first the call records, when it begins a call */
    int part_count, record_count;
} mpi_channel;

typedef struct mpi_transport {
    dsc_transport base;
    dsc_alloc *alloc;
    const dsc_mpi_api *api;
    dsc_mpi_link *link;
    dsc_comm_math math;
    int32_t rank, size, channel_count;
    int64_t timeout_ns;
    atomic_bool *left; /* [size] said farewell */
    mpi_channel channel[DSC_COMM_CHANNELS_MAX];
    dsc_comm_memory memory;
    dsc_buf staging[DSC_COMM_CHANNELS_MAX]; /* as in tcp_internal.h */
    dsc_first_failure failure;
    atomic_bool unsent; /* the peers do not know the failure: it was found by a thread that may not call MPI */
} mpi_transport;

/* ---- failures ---------------------------------------------------------------------------------------------------- */

static void send_failure(mpi_transport *mpi)
{
    if (!atomic_exchange(&mpi->unsent, false))
        return;
    const dsc_control_message message = dsc_control_failure(&mpi->failure);
    if (mpi->api->tell(mpi->link, &message, (int)sizeof message) != 0)
        atomic_store(&mpi->unsent, true);
}

static void publish(mpi_transport *mpi, dsc_status status, int32_t rank, const char *text, bool send)
{
    if (dsc_failure_publish(&mpi->failure, status, rank, text))
        atomic_store(&mpi->unsent, send);
    send_failure(mpi);
}

static dsc_status fail(mpi_transport *mpi, dsc_status status, int32_t rank, dsc_error *err, const char *fmt, ...)
    DSC_PRINTF(5, 6);
static dsc_status fail(mpi_transport *mpi, dsc_status status, int32_t rank, dsc_error *err, const char *fmt, ...)
{
    char text[DSC_FAILURE_TEXT_BYTES];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    publish(mpi, status, rank, text, true);
    return dsc_failure_report(&mpi->failure, err);
}

static dsc_status mpi_failed(mpi_transport *mpi, const char *text, dsc_error *err)
{
    return fail(mpi, DSC_ERR_COMM, mpi->rank, err, "rank %d: MPI: %s", mpi->rank, text);
}

static dsc_status mpi_health(dsc_transport *transport, dsc_error *err)
{
    mpi_transport *mpi = (mpi_transport *)transport;
    send_failure(mpi);
    for (;;) {
        dsc_control_message message;
        int from = -1;
        if (mpi->api->listen(mpi->link, &message, (int)sizeof message, &from) != 0)
            return mpi_failed(mpi, "invalid message on the control communicator", err);
        if (from < 0)
            return dsc_failure_exists(&mpi->failure) ? dsc_failure_report(&mpi->failure, err) : DSC_OK;
        const dsc_control_kind kind = dsc_control_check(&message, from, mpi->size);
        if (kind == DSC_CONTROL_FAREWELL)
            atomic_store(&mpi->left[from], true);
        else if (kind == DSC_CONTROL_FAILURE)
            publish(mpi, (dsc_status)message.status, message.rank, message.text, false);
        else
            return mpi_failed(mpi, "invalid message on the control communicator", err);
    }
}

static void mpi_abort(dsc_transport *transport, const char *reason)
{
    mpi_transport *mpi = (mpi_transport *)transport;
    publish(mpi, DSC_ERR_PEER, mpi->rank, reason, true);
}

/* ---- one exchange ------------------------------------------------------------------------------------------------ */

static void add_send(mpi_channel *state, int32_t to, const void *bytes, int64_t count)
{
    state->part[state->part_count++] = (dsc_mpi_part){ .out = bytes, .count = count, .peer = to };
}

static void add_recv(mpi_channel *state, int32_t from, void *bytes, int64_t count)
{
    state->part[state->part_count++] = (dsc_mpi_part){ .in = bytes, .count = count, .peer = from };
}

/* A call starts with an exchange of call records with all peers, or with `peer` if it is not -1. Messages that are
 * added before the exchange travel with the records. */
static dsc_status start_call(mpi_transport *mpi, int32_t channel, dsc_comm_op op, int32_t detail, int64_t bytes,
                             int32_t peer, dsc_error *err)
{
    mpi_channel *state = &mpi->channel[channel];
    const dsc_call_record call = { .op = (int16_t)op, .detail = detail, .bytes = bytes };
    dsc_caller_begin(&state->caller, mpi->rank, channel, &call);
    state->part_count = 0;
    if (dsc_failure_exists(&mpi->failure)) {
        send_failure(mpi);
        return dsc_failure_report(&mpi->failure, err);
    }
    for (int32_t r = 0; r < mpi->size; r++)
        if (r != mpi->rank && (peer < 0 || r == peer)) {
            add_recv(state, r, &state->theirs[r], (int64_t)sizeof state->theirs[r]);
            add_send(state, r, &state->caller.call, (int64_t)sizeof state->caller.call);
        }
    state->record_count = state->part_count;
    return DSC_OK;
}

/* The records of all peers have come. */
static dsc_status check_calls(mpi_transport *mpi, int32_t channel, dsc_error *err)
{
    const mpi_channel *state = &mpi->channel[channel];
    for (int i = 0; i < state->record_count; i++) {
        char text[DSC_FAILURE_TEXT_BYTES];
        const int32_t r = state->part[i].peer;
        if (dsc_call_matches(&state->caller.call, &state->theirs[r]))
            continue;
        dsc_text_disagree(text, &state->caller, r, &state->theirs[r]);
        return fail(mpi, DSC_ERR_COMM, r, err, "%s", text);
    }
    return DSC_OK;
}

static dsc_status waited(mpi_transport *mpi, int32_t channel, dsc_error *err)
{
    mpi_channel *state = &mpi->channel[channel];
    dsc_missing_ranks missing = { .count = 0 };
    char text[DSC_FAILURE_TEXT_BYTES], name[DSC_RANK_TEXT_BYTES];
    mpi->api->open_with(mpi->link, channel, state->open);
    for (int32_t r = 0; r < mpi->size; r++)
        if (state->open[r])
            dsc_missing_add(&missing, r, dsc_rank_text(r, 0, NULL, name), NULL);
    dsc_text_stuck(text, &state->caller, mpi->timeout_ns, &missing);
    return fail(mpi, DSC_ERR_STUCK, missing.first, err, "%s", text);
}

/* A rank that has closed its communicator makes no further call. */
static dsc_status check_left(mpi_transport *mpi, int32_t channel, dsc_error *err)
{
    mpi_channel *state = &mpi->channel[channel];
    char text[DSC_FAILURE_TEXT_BYTES], name[DSC_RANK_TEXT_BYTES];
    mpi->api->open_with(mpi->link, channel, state->open);
    for (int32_t r = 0; r < mpi->size; r++)
        if (state->open[r] && atomic_load(&mpi->left[r])) {
            dsc_text_closed(text, &state->caller, dsc_rank_text(r, 0, NULL, name));
            return fail(mpi, DSC_ERR_PEER, r, err, "%s", text);
        }
    return DSC_OK;
}

/* While a rank waits: is there anything that it waits in vain for? Data that failed (`broken`, since *broken_ns) does
 * so because ranks disagree, most often, and then the notes say it, which may come later. *outlast_ns: how long the
 * call may still end well; a failure that a peer told may come so, when the peer was done with it. */
static dsc_status look_around(mpi_transport *mpi, int32_t channel, const dsc_mpi_progress *now, const char *broken,
                              int64_t start_ns, int64_t *broken_ns, int64_t *outlast_ns, dsc_error *err)
{
    *outlast_ns = 0;
    if (now->first_left == 0)
        DSC_TRY(check_calls(mpi, channel, err));
    if (broken != NULL && *broken_ns == 0)
        *broken_ns = dsc_clock_ns();
    if (broken != NULL && (now->first_left == 0 || dsc_clock_ns() - *broken_ns > OUTLAST_NS))
        return mpi_failed(mpi, broken, err);
    *outlast_ns = dsc_clock_ns() + OUTLAST_NS;
    DSC_TRY(mpi_health(&mpi->base, err));
    *outlast_ns = 0;
    DSC_TRY(check_left(mpi, channel, err));
    return dsc_clock_ns() - start_ns > mpi->timeout_ns ? waited(mpi, channel, err) : DSC_OK;
}

/* All that was added, in both directions at once; the timeout is for what gets on no more. */
static dsc_status exchange(mpi_transport *mpi, int32_t channel, dsc_error *err)
{
    mpi_channel *state = &mpi->channel[channel];
    char text[DSC_MPI_TEXT];
    int64_t start_ns = dsc_clock_ns(), outlast_ns = 0, broken_ns = 0, left_before = -1;
    dsc_status status = DSC_OK;
    dsc_error why = DSC_ERROR_INIT;
    if (state->part_count == 0)
        return DSC_OK;
    if (mpi->api->begin(mpi->link, channel, state->part, state->part_count, state->record_count, text) != 0)
        return mpi_failed(mpi, text, err);
    for (;;) {
        dsc_mpi_progress now;
        const bool broken = mpi->api->wait(mpi->link, channel, SLICE_NS, &now, text) != 0;
        if (now.left == 0 && !broken) {
            status = check_calls(mpi, channel, err);
            state->part_count = state->record_count = 0;
            return status;
        }
        if (now.left != left_before)
            start_ns = dsc_clock_ns();
        left_before = now.left;
        if (status == DSC_OK)
            status = look_around(mpi, channel, &now, broken ? text : NULL, start_ns, &broken_ns, &outlast_ns, &why);
        if (status != DSC_OK && dsc_clock_ns() >= outlast_ns)
            break;
    }
    mpi->api->give_up(mpi->link, channel);
    if (err != NULL)
        *err = why;
    return status;
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

static void copy(void *to, const void *from, int64_t bytes)
{
    if (to != from && bytes > 0)
        memcpy(to, from, (size_t)bytes);
}

static dsc_status mpi_all_gather(dsc_transport *transport, int32_t channel, void *recv, const void *send,
                                 int64_t bytes, dsc_stream *stream, dsc_error *err)
{
    mpi_transport *mpi = (mpi_transport *)transport;
    mpi_channel *state = &mpi->channel[channel];
    DSC_TRY(start_call(mpi, channel, DSC_COMM_ALL_GATHER, 0, bytes, -1, err));
    for (int32_t i = 1; i < mpi->size; i++) {
        const int32_t to = (mpi->rank + i) % mpi->size, from = (mpi->rank + mpi->size - i) % mpi->size;
        add_recv(state, from, (char *)recv + from * bytes, bytes);
        add_send(state, to, send, bytes);
    }
    copy((char *)recv + mpi->rank * bytes, send, bytes);
    return exchange(mpi, channel, err);
}

static dsc_status mpi_all_to_all(dsc_transport *transport, int32_t channel, void *recv, const void *send,
                                 int64_t bytes, dsc_stream *stream, dsc_error *err)
{
    mpi_transport *mpi = (mpi_transport *)transport;
    mpi_channel *state = &mpi->channel[channel];
    DSC_TRY(start_call(mpi, channel, DSC_COMM_ALL_TO_ALL, 0, bytes, -1, err));
    for (int32_t i = 1; i < mpi->size; i++) {
        const int32_t to = (mpi->rank + i) % mpi->size, from = (mpi->rank + mpi->size - i) % mpi->size;
        add_recv(state, from, (char *)recv + from * bytes, bytes);
        add_send(state, to, (const char *)send + to * bytes, bytes);
    }
    copy((char *)recv + mpi->rank * bytes, (const char *)send + mpi->rank * bytes, bytes);
    return exchange(mpi, channel, err);
}

static dsc_status mpi_broadcast(dsc_transport *transport, int32_t channel, void *buf, int64_t bytes, int32_t root,
                                dsc_stream *stream, dsc_error *err)
{
    mpi_transport *mpi = (mpi_transport *)transport;
    mpi_channel *state = &mpi->channel[channel];
    DSC_TRY(start_call(mpi, channel, DSC_COMM_BROADCAST, root, bytes, -1, err));
    if (mpi->rank != root)
        add_recv(state, root, buf, bytes);
    for (int32_t r = 0; r < mpi->size && mpi->rank == root; r++)
        if (r != root)
            add_send(state, r, buf, bytes);
    return exchange(mpi, channel, err);
}

static dsc_status mpi_barrier(dsc_transport *transport, int32_t channel, dsc_stream *stream, dsc_error *err)
{
    mpi_transport *mpi = (mpi_transport *)transport;
    DSC_TRY(start_call(mpi, channel, DSC_COMM_BARRIER, 0, 0, -1, err));
    return exchange(mpi, channel, err);
}

static dsc_status mpi_send(dsc_transport *transport, int32_t channel, const void *buf, int64_t bytes, int32_t to,
                           dsc_stream *stream, dsc_error *err)
{
    mpi_transport *mpi = (mpi_transport *)transport;
    DSC_TRY(start_call(mpi, channel, DSC_COMM_SEND, to, bytes, to, err));
    add_send(&mpi->channel[channel], to, buf, bytes);
    return exchange(mpi, channel, err);
}

static dsc_status mpi_recv(dsc_transport *transport, int32_t channel, void *buf, int64_t bytes, int32_t from,
                           dsc_stream *stream, dsc_error *err)
{
    mpi_transport *mpi = (mpi_transport *)transport;
    DSC_TRY(start_call(mpi, channel, DSC_COMM_RECV, from, bytes, from, err));
    add_recv(&mpi->channel[channel], from, buf, bytes);
    return exchange(mpi, channel, err);
}

/* One chunk: elements first..first+count of every owner's piece. fp32 leaves go out from where they lie. */
static dsc_status reduce_chunk(mpi_transport *mpi, int32_t channel, const dsc_reduce_scatter_args *args, int64_t first,
                               int64_t count, dsc_error *err)
{
    mpi_channel *state = &mpi->channel[channel];
    const dsc_buf *staging = &mpi->staging[channel];
    const bool rounds = args->wire_dtype != DSC_F32;
    const int64_t piece_bytes = count * (int64_t)dsc_dtype_bytes(args->wire_dtype);
    char *in = staging->ptr, *out = in + staging->bytes / 2;
    const void *leaf[DSC_RDV_RANKS_MAX];
    for (int32_t r = 0; r < mpi->size; r++) {
        const void *mine = args->leaf + r * args->leaf_stride + first;
        if (rounds) {
            DSC_TRY(dsc_comm_cast(&mpi->math, out + r * piece_bytes, args->wire_dtype, mine, count, NULL, err));
            mine = out + r * piece_bytes;
        }
        leaf[r] = r == mpi->rank ? mine : in + r * piece_bytes;
        if (r == mpi->rank)
            continue;
        add_recv(state, r, in + r * piece_bytes, piece_bytes);
        add_send(state, r, mine, piece_bytes);
    }
    DSC_TRY(exchange(mpi, channel, err));
    const dsc_comm_parts leaves = { .each = leaf, .dtype = args->wire_dtype, .count = mpi->size };
    return dsc_comm_ordered_reduce(&mpi->math, args, &leaves, first, count, NULL, err);
}

static dsc_status mpi_reduce_scatter(dsc_transport *transport, int32_t channel, const dsc_reduce_scatter_args *args,
                                     dsc_stream *stream, dsc_error *err)
{
    mpi_transport *mpi = (mpi_transport *)transport;
    const int64_t wire_bytes = (int64_t)dsc_dtype_bytes(args->wire_dtype);
    const int64_t most = mpi->staging[channel].bytes / 2 / mpi->size / wire_bytes / PIECE_ALIGN * PIECE_ALIGN;
    DSC_ASSERT(most > 0);
    DSC_TRY(start_call(mpi, channel, DSC_COMM_REDUCE_SCATTER, (int32_t)args->wire_dtype, args->count * wire_bytes, -1,
                       err));
    if (args->count == 0)
        return exchange(mpi, channel, err);
    for (int64_t first = 0; first < args->count; first += most)
        DSC_TRY(reduce_chunk(mpi, channel, args, first, dsc_min_i64(most, args->count - first), err));
    return DSC_OK;
}

/* ---- open and close ---------------------------------------------------------------------------------------------- */

static dsc_status find_plugin(const dsc_mpi_api **out, dsc_error *err)
{
    static const dsc_plugin plugin = { .key = "dsc.comm",
                                       .value = "\"mpi\": ",
                                       .file = "libdsc_mpi.so",
                                       .package = "libopenmpi-dev (make deps-net)",
                                       .instead = "use \"tcp\", which needs no library",
                                       .symbol = DSC_MPI_SYMBOL,
                                       .version = DSC_MPI_API_VERSION,
                                       .table_bytes = sizeof(dsc_mpi_api) };
    const void *table = NULL;
    DSC_TRY(dsc_plugin_table(&plugin, &table, err));
    *out = table;
    return DSC_OK;
}

#define ARRAYS_MAX (1 + 3 * DSC_COMM_CHANNELS_MAX)

static int list_arrays(mpi_transport *mpi, dsc_need *list)
{
    const int64_t size = mpi->size;
    int count = 0;
    list[count++] = (dsc_need) { &mpi->left, DSC_TAG_CONTROL, DSC_TIER_HOST, size * (int64_t)sizeof *mpi->left,
                                 DSC_NEED_SMALL };
    for (int32_t c = 0; c < mpi->channel_count; c++) {
        mpi_channel *state = &mpi->channel[c];
        list[count++] = (dsc_need) { &state->theirs, DSC_TAG_CONTROL, DSC_TIER_HOST,
                                     size * (int64_t)sizeof *state->theirs, DSC_NEED_SMALL };
        list[count++] = (dsc_need) { &state->open, DSC_TAG_CONTROL, DSC_TIER_HOST,
                                     size * (int64_t)sizeof *state->open, DSC_NEED_SMALL };
        list[count++] = (dsc_need) { &state->part, DSC_TAG_CONTROL, DSC_TIER_HOST,
                                     4 * size * (int64_t)sizeof *state->part, DSC_NEED_SMALL };
    }
    DSC_ASSERT(count <= ARRAYS_MAX);
    return count;
}

static void free_memory(mpi_transport *mpi)
{
    const dsc_needs needs = { .alloc = mpi->alloc };
    dsc_need list[ARRAYS_MAX];
    dsc_comm_memory_close(&mpi->memory);
    dsc_needs_close(&needs, list, list_arrays(mpi, list));
    dsc_alloc_free(mpi->alloc, mpi);
}

static int mpi_list_needs(const dsc_comm_options *options, dsc_transport *transport, dsc_need *list)
{
    mpi_transport *mpi = (mpi_transport *)transport;
    return dsc_tcp_list_staging(options, mpi != NULL ? mpi->staging : NULL, list);
}

static dsc_status open_memory(mpi_transport *mpi, const dsc_comm_options *options, dsc_error *err)
{
    dsc_need list[ARRAYS_MAX];
    dsc_needs needs = { .alloc = mpi->alloc };
    DSC_TRY(dsc_needs_plan_and_open(&needs, list, list_arrays(mpi, list), err));
    mpi->memory.count = mpi_list_needs(options, &mpi->base, mpi->memory.need);
    return dsc_comm_memory_open(&mpi->memory, options, err);
}

static int open_link(mpi_transport *mpi, const dsc_comm_options *options, char text[DSC_MPI_TEXT])
{
    dsc_comm_open_watch watch;
    dsc_comm_open_watch_open(&watch, options);
    const int rc = mpi->api->open(mpi->rank, mpi->size, mpi->channel_count, options->one_thread,
                                  dsc_comm_open_timeout_ns(options), &mpi->link, text);
    dsc_comm_open_watch_close(&watch);
    return rc;
}

static dsc_status mpi_open(dsc_transport **out, const dsc_comm_options *options, dsc_error *err)
{
    const dsc_rank_info *info = &options->rank_info;
    const dsc_mpi_api *api = NULL;
    mpi_transport *mpi = NULL;
    char text[DSC_MPI_TEXT];
    DSC_TRY(find_plugin(&api, err));
    if (info->size > DSC_RDV_RANKS_MAX)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "WORLD_SIZE", "%d ranks; between hosts this version takes at most %d",
                        info->size, DSC_RDV_RANKS_MAX);
    DSC_TRY(dsc_alloc_zeroed(options->alloc, DSC_TAG_CONTROL, 1, sizeof *mpi, &mpi, err));
    *mpi = (mpi_transport) { .base = { &dsc_comm_mpi },
                             .alloc = options->alloc,
                             .api = api,
                             .rank = info->rank,
                             .size = info->size,
                             .channel_count = options->channel_count,
                             .timeout_ns = dsc_comm_timeout_ns(options) };
    dsc_comm_math_init(&mpi->math);
    dsc_error first = DSC_ERROR_INIT;
    dsc_status status = open_memory(mpi, options, &first);
    /* Also without memory: the others are on their way here, and learn of it. */
    const int rc = open_link(mpi, options, text);
    if (rc != 0) {
        const dsc_status why = rc == DSC_MPI_LATE         ? DSC_ERR_STUCK
                               : rc == DSC_MPI_OTHER_RANK ? DSC_ERR_INPUT
                                                          : DSC_ERR_COMM;
        if (status == DSC_OK)
            status = DSC_FAIL(&first, why, "dsc.comm", "\"mpi\": %s", text);
    } else if (status != DSC_OK) {
        char reason[320];
        snprintf(reason, sizeof reason, "rank %d could not open its communicator: %.240s", mpi->rank, first.message);
        publish(mpi, DSC_ERR_PEER, mpi->rank, reason, true);
        api->close(mpi->link, true);
    }
    if (status != DSC_OK) {
        free_memory(mpi);
        if (err != NULL)
            *err = first;
        return status;
    }
    *out = &mpi->base;
    return DSC_OK;
}

static void mpi_close(dsc_transport *transport)
{
    mpi_transport *mpi = (mpi_transport *)transport;
    const dsc_control_message farewell = dsc_control_farewell();
    send_failure(mpi);
    mpi->api->tell(mpi->link, &farewell, (int)sizeof farewell);
    mpi->api->close(mpi->link, dsc_failure_exists(&mpi->failure));
    free_memory(mpi);
}

const dsc_comm_ops dsc_comm_mpi = {
    .name = "mpi",
    .version = DSC_COMM_OPS_VERSION,
    .list_needs = mpi_list_needs,
    .open = mpi_open,
    .close = mpi_close,
    .all_gather = mpi_all_gather,
    .all_to_all = mpi_all_to_all,
    .broadcast = mpi_broadcast,
    .barrier = mpi_barrier,
    .send = mpi_send,
    .recv = mpi_recv,
    .reduce_scatter = mpi_reduce_scatter,
    .health = mpi_health,
    .abort = mpi_abort,
};
