/* nccl.c - ranks on GPUs: NCCL's collectives, put on the caller's stream. The only files that know NCCL are nccl*.
 *
 * Each channel is a communicator of NCCL's own, so that streams never queue behind each other. Ranks meet over host
 * memory (options->host, whose rendezvous is comm/rendezvous/rendezvous.h): there rank 0's ids are handed out,
 * verdicts agreed
 * and deaths noticed. Nothing blocks inside NCCL: communicators are non-blocking, and every wait is a poll that also
 * looks at the peers. A peer that dies in a collective leaves a kernel that never ends; the device's waits ask watch()
 * below every few milliseconds, and abort() ends the kernels.
 *
 * A reduce-scatter is an all-to-all of the leaves and ORDERED_REDUCE on the owner (calls.c): the same bits as every
 * transport. SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "comm/transports/nccl_internal.h"

#define POLL_NS INT64_C(50000)
#define SPIN_NS INT64_C(200000) /* NCCL takes a call in 20 to 150 us, which no sleep may lengthen */
#define CLOSE_WAIT_NS INT64_C(5000000000)
#define BARRIER_BYTES 64 /* one cache line for each rank */
/* Buffers of one communicator between up to 8 GPUs of a host, as 2.18 to 2.28 take them by default. */
#define LIBRARY_BYTES_PER_CHANNEL (INT64_C(160) << 20)
#define WINDOW_GRANULARITY (INT64_C(2) << 20) /* NCCL's own memory comes in multiples of it */

static dsc_nccl_transport *of(dsc_transport *transport) { return (dsc_nccl_transport *)transport; }

/* ---- words about failures ---- */

/* "reduce_scatter (channel 2, call 12, 4096 bytes)" */
static const char *call_text(const dsc_nccl_transport *t, int32_t channel, char *out, size_t out_bytes)
{
    const dsc_nccl_channel *ch = &t->channel[channel];
    snprintf(out, out_bytes, "%s (channel %d, call %lld, %lld bytes)", dsc_comm_op_text(ch->last_op), channel,
             (long long)ch->call_count, (long long)ch->last_bytes);
    return out;
}

static dsc_status nccl_failed(dsc_nccl_transport *t, int32_t channel, dsc_nccl_result result, const char *what,
                              dsc_error *err)
{
    char call[128];
    const bool named = t->channel[channel].call_count > 0;
    const char *detail = t->api.last_error != NULL ? t->api.last_error(t->channel[channel].comm) : NULL;
    const dsc_status status = result == DSC_NCCL_REMOTE_ERROR ? DSC_ERR_PEER : DSC_ERR_COMM;
    DSC_FAIL(err, status, "comm", "NCCL on rank %d, %s: %s%s%.200s", t->rank,
             named ? call_text(t, channel, call, sizeof call) : what, t->api.error_text(result),
             detail != NULL && detail[0] != 0 ? ": " : "", detail != NULL ? detail : "");
    if (err != NULL && status != DSC_ERR_PEER)
        err->rank = t->rank;
    return status;
}

static dsc_status check_aborted(dsc_nccl_transport *t, dsc_error *err)
{
    pthread_mutex_lock(&t->lock);
    const dsc_status status =
        t->aborted ? DSC_FAIL(err, DSC_ERR_PEER, "comm", "%s", t->reason) : DSC_OK;
    pthread_mutex_unlock(&t->lock);
    return status;
}

/* ---- polling ---- */

/* An error of any channel that NCCL found by itself. */
static dsc_status check_async(dsc_nccl_transport *t, int32_t channel, bool *busy, dsc_error *err)
{
    dsc_nccl_result result = DSC_NCCL_SUCCESS;
    dsc_status status = DSC_OK;
    pthread_mutex_lock(&t->lock);
    if (!t->aborted && t->channel[channel].comm != NULL) {
        const dsc_nccl_result asked = t->api.async_error(t->channel[channel].comm, &result);
        result = asked != DSC_NCCL_SUCCESS ? asked : result;
    }
    pthread_mutex_unlock(&t->lock);
    *busy = result == DSC_NCCL_IN_PROGRESS;
    if (result != DSC_NCCL_SUCCESS && !*busy)
        status = nccl_failed(t, channel, result, "a collective", err);
    return status;
}

/* The work of the call is on its stream afterwards. */
dsc_status dsc_nccl_settle(dsc_nccl_transport *t, int32_t channel, dsc_nccl_result result, const char *what,
                           int64_t timeout_ns, dsc_error *err)
{
    const int64_t start_ns = dsc_clock_ns();
    bool busy = result == DSC_NCCL_IN_PROGRESS;
    if (result != DSC_NCCL_SUCCESS && !busy)
        return nccl_failed(t, channel, result, what, err);
    while (busy) {
        DSC_TRY(check_async(t, channel, &busy, err));
        DSC_TRY(check_aborted(t, err));
        if (!busy)
            break;
        DSC_TRY(dsc_comm_health(t->host, err));
        const int64_t waited_ns = dsc_clock_ns() - start_ns;
        if (waited_ns > timeout_ns)
            return DSC_FAIL(err, DSC_ERR_STUCK, "comm", "rank %d waited %.1f s in NCCL for %s", t->rank,
                            (double)waited_ns * 1e-9, what);
        if (waited_ns >= SPIN_NS)
            dsc_clock_sleep_ns(POLL_NS);
    }
    return DSC_OK;
}

static dsc_status health(dsc_transport *transport, dsc_error *err)
{
    dsc_nccl_transport *t = of(transport);
    bool busy;
    DSC_TRY(check_aborted(t, err));
    for (int32_t c = 0; c < t->channel_count; c++)
        DSC_TRY(check_async(t, c, &busy, err));
    return dsc_comm_health(t->host, err);
}

/* The host waits for the device: is there still somebody to wait for? */
static dsc_status watch(void *user, int64_t waited_ns, dsc_error *err)
{
    dsc_nccl_transport *t = user;
    char text[DSC_COMM_CHANNELS_MAX * 128] = "", call[128];
    DSC_TRY(health(&t->base, err));
    if (waited_ns <= t->timeout_ns)
        return DSC_OK;
    for (int32_t c = 0; c < t->channel_count; c++)
        if (t->channel[c].call_count > 0)
            snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", text[0] == 0 ? "" : ", ",
                     call_text(t, c, call, sizeof call));
    return DSC_FAIL(err, DSC_ERR_STUCK, "comm", "rank %d waited %.1f s for its GPU; last collectives: %.300s", t->rank,
                    (double)waited_ns * 1e-9, text);
}

/* ---- opening ---- */

static void nccl_abort(dsc_transport *transport, const char *reason);

/* One rank's word to all others over host memory. */
typedef struct greeting {
    int32_t status, version;
    char message[256];
    dsc_nccl_id id[DSC_COMM_CHANNELS_MAX]; /* rank 0's, but for groups of a parent */
} greeting;

/* The transport of options->parent; NULL: the group has none, and meets by rank 0's id. */
static dsc_nccl_transport *parent_of(const dsc_comm_options *options)
{
    dsc_transport *parent = options->parent != NULL ? dsc_comm_transport_of(options->parent) : NULL;
    return parent != NULL && parent->ops == &dsc_comm_nccl ? of(parent) : NULL;
}

static void greet(dsc_nccl_transport *t, const dsc_comm_options *options, greeting *mine)
{
    dsc_error err = DSC_ERROR_INIT;
    dsc_status status = dsc_nccl_load(&t->api, &err);
    const int32_t ids = t->rank == 0 && parent_of(options) == NULL ? t->channel_count : 0;
    for (int32_t c = 0; status == DSC_OK && c < ids; c++) {
        const dsc_nccl_result result = t->api.get_id(&mine->id[c]);
        if (result != DSC_NCCL_SUCCESS)
            status = nccl_failed(t, c, result, "ncclGetUniqueId", &err);
    }
    mine->status = (int32_t)status;
    mine->version = t->api.version;
    snprintf(mine->message, sizeof mine->message, "%.255s", err.message);
}

/* Every rank has a library of the same version, or nobody goes on. */
static dsc_status compare(const greeting *all, int32_t size, dsc_error *err)
{
    for (int32_t r = 0; r < size; r++) {
        if (all[r].status == DSC_OK && all[r].version == all[0].version)
            continue;
        if (all[r].status != DSC_OK)
            DSC_FAIL(err, (dsc_status)all[r].status, "dsc.comm", "%s", all[r].message);
        else
            DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "dsc.comm",
                     "rank %d has NCCL %d and rank 0 NCCL %d; install one version everywhere", r, all[r].version,
                     all[0].version);
        if (err != NULL)
            err->rank = r;
        return all[r].status != DSC_OK ? (dsc_status)all[r].status : DSC_ERR_UNSUPPORTED;
    }
    return DSC_OK;
}

static void set_channel(dsc_nccl_transport *t, int32_t c, dsc_nccl_comm *comm)
{
    pthread_mutex_lock(&t->lock);
    t->channel[c].comm = comm;
    pthread_mutex_unlock(&t->lock);
}

/* This rank's group of the ranks of `from`, by the first communicator there. A split that does not end leaves `from`
 * unusable: NCCL would write the new communicator into memory that is gone. */
static dsc_status split_channel(dsc_nccl_transport *t, int32_t c, dsc_nccl_transport *from, int32_t color,
                                const dsc_comm_options *options, dsc_error *err)
{
    const int64_t timeout_ns = dsc_comm_open_timeout_ns(options);
    dsc_nccl_config config;
    dsc_nccl_config_fill(t, &config);
    const dsc_nccl_result result = t->api.split(from->channel[0].comm, color, t->rank, &t->channel[c].made, &config);
    dsc_status status = dsc_nccl_settle(from, 0, result, "the other ranks at a split", timeout_ns, err);
    if (status == DSC_OK && t->channel[c].made == NULL)
        status = DSC_FAIL(err, DSC_ERR_COMM, "comm", "NCCL on rank %d made no communicator in a split", t->rank);
    if (status != DSC_OK) {
        nccl_abort(&from->base, err != NULL ? err->message : "a group of ranks could not be opened");
        if (t->channel[c].made != NULL)
            (void)t->api.abort(t->channel[c].made);
        return status;
    }
    set_channel(t, c, t->channel[c].made);
    return dsc_nccl_settle(t, c, DSC_NCCL_IN_PROGRESS, "the other ranks at open", timeout_ns, err);
}

static dsc_status make_channel(dsc_nccl_transport *t, int32_t c, const dsc_nccl_id *id,
                               const dsc_comm_options *options, dsc_error *err)
{
    dsc_nccl_transport *parent = parent_of(options);
    dsc_nccl_config config;
    dsc_nccl_comm *comm = NULL;
    DSC_TRY(dsc_device_bind(t->device, err));
    if (parent != NULL)
        return split_channel(t, c, parent, options->parent_color, options, err);
    dsc_nccl_config_fill(t, &config);
    const dsc_nccl_result result = t->api.init(&comm, t->size, *id, t->rank, &config);
    set_channel(t, c, comm);
    return dsc_nccl_settle(t, c, result, "the other ranks at open", dsc_comm_open_timeout_ns(options), err);
}

/* GPU memory that NCCL takes is estimated, because NCCL does not report it. */
static int nccl_list_needs(const dsc_comm_options *options, dsc_transport *transport, dsc_need *list)
{
    dsc_nccl_transport *t = of(transport);
    const int64_t channels = options->channel_count, size = options->rank_info.size;
    const bool windows = options->nccl.symmetric || options->nccl.policy == DSC_NCCL_POLICY_ZERO;
    const int64_t rounding = windows ? DSC_NCCL_BUFFERS_MAX * WINDOW_GRANULARITY : 0;
    const int64_t library_bytes = size > 1 ? channels * LIBRARY_BYTES_PER_CHANNEL + rounding : 0;
    list[0] = (dsc_need) { t != NULL ? &t->library_bytes : NULL, DSC_TAG_LIBRARY, DSC_TIER_DEVICE, library_bytes,
                           DSC_NEED_NOTED };
    list[1] = (dsc_need) { t != NULL ? &t->barrier : NULL, DSC_TAG_CONTROL, DSC_TIER_DEVICE,
                           channels * size * BARRIER_BYTES, DSC_NEED_DEVICE };
    return 2;
}

static dsc_status make_all(dsc_nccl_transport *t, const dsc_comm_options *options, greeting *all, dsc_error *err)
{
    const int64_t bytes = (int64_t)sizeof *all;
    greet(t, options, &all[t->rank]);
    DSC_TRY(dsc_comm_all_gather(t->host, 0, all, &all[t->rank], bytes, DSC_U8, NULL, err));
    DSC_TRY(compare(all, t->size, err));
    t->memory.count = nccl_list_needs(options, &t->base, t->memory.need);
    DSC_TRY(dsc_comm_memory_open(&t->memory, options, err));
    dsc_nccl_grant(t, options);
    for (int32_t c = 0; c < t->channel_count; c++)
        DSC_TRY(make_channel(t, c, &all[0].id[c], options, err));
    dsc_device_watch(t->device, watch, t);
    if (options->register_memory && t->api.enroll == NULL)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "dsc.nccl_register", "NCCL %d.%d cannot register memory; install "
                        "2.19 or newer, or take the key out", t->api.version / 10000, t->api.version / 100 % 100);
    t->registers = options->register_memory || t->wishes.symmetric;
    return DSC_OK;
}

static void nccl_abort(dsc_transport *transport, const char *reason)
{
    dsc_nccl_transport *t = of(transport);
    dsc_comm_abort(t->host, reason);
    pthread_mutex_lock(&t->lock);
    if (!t->aborted) {
        snprintf(t->reason, sizeof t->reason, "%.255s", reason);
        t->aborted = true;
        for (int32_t c = 0; c < t->channel_count; c++) {
            if (t->channel[c].comm != NULL)
                (void)t->api.abort(t->channel[c].comm); /* ends its kernels and frees it */
            t->channel[c].comm = NULL;
        }
    }
    pthread_mutex_unlock(&t->lock);
}

/* Peers that are still there come to the same end; one that is not must not be waited for. */
static void close_channel(dsc_nccl_transport *t, int32_t c)
{
    dsc_nccl_comm *comm = t->channel[c].comm;
    if (comm == NULL)
        return;
    const dsc_nccl_result result = t->api.finalize(comm);
    if (dsc_nccl_settle(t, c, result, "the other ranks at close", CLOSE_WAIT_NS, NULL) == DSC_OK)
        (void)t->api.destroy(comm);
    else
        (void)t->api.abort(comm);
    t->channel[c].comm = NULL;
}

static void nccl_close(dsc_transport *transport)
{
    dsc_nccl_transport *t = of(transport);
    dsc_device_watch(t->device, NULL, t);
    (void)!dsc_device_bind(t->device, NULL);
    for (int32_t c = 0; c < t->channel_count; c++)
        close_channel(t, c);
    dsc_comm_memory_close(&t->memory);
    pthread_mutex_destroy(&t->lock);
    dsc_alloc_free(t->alloc, t);
}

static dsc_status nccl_open(dsc_transport **out, const dsc_comm_options *options, dsc_error *err)
{
    const dsc_rank_info *info = &options->rank_info;
    if (options->device == NULL || dsc_device_host_visible(options->device) || options->host == NULL)
        return DSC_FAIL(err, DSC_ERR_INPUT, "dsc.comm", "\"nccl\" is for ranks on GPUs; these compute on the CPU");
    dsc_nccl_transport *t = NULL;
    greeting *all = NULL;
    DSC_TRY(dsc_alloc_zeroed(options->alloc, DSC_TAG_CONTROL, 1, sizeof *t, &t, err));
    t->base.ops = &dsc_comm_nccl;
    t->alloc = options->alloc;
    t->device = options->device;
    t->host = options->host;
    t->rank = info->rank;
    t->size = info->size;
    t->channel_count = options->channel_count;
    t->timeout_ns = dsc_comm_timeout_ns(options);
    pthread_mutex_init(&t->lock, NULL); /* cannot fail with default attributes on Linux */
    dsc_status status = dsc_alloc_zeroed(t->alloc, DSC_TAG_CONTROL, t->size, sizeof *all, &all, err);
    if (status == DSC_OK)
        status = make_all(t, options, all, err);
    dsc_alloc_free(t->alloc, all);
    if (status != DSC_OK) {
        nccl_abort(&t->base, err != NULL ? err->message : "a rank could not open NCCL");
        nccl_close(&t->base);
        return status;
    }
    *out = &t->base;
    return DSC_OK;
}

/* ---- collectives ---- */

/* Every call: begin, NCCL's calls, end. */
static dsc_status begin(dsc_nccl_transport *t, int32_t channel, dsc_comm_op op, int64_t bytes, const dsc_stream *stream,
                        dsc_error *err)
{
    DSC_ASSERT(stream != NULL);
    dsc_nccl_channel *ch = &t->channel[channel];
    ch->last_op = op;
    ch->last_bytes = bytes;
    ch->call_count++;
    DSC_TRY(check_aborted(t, err));
    return dsc_device_bind(t->device, err);
}

static dsc_status end(dsc_nccl_transport *t, int32_t channel, dsc_nccl_result result, dsc_error *err)
{
    char call[128];
    return dsc_nccl_settle(t, channel, result, call_text(t, channel, call, sizeof call), t->timeout_ns, err);
}

static dsc_status nccl_all_gather(dsc_transport *transport, int32_t channel, void *recv, const void *send,
                                  int64_t bytes, dsc_stream *stream, dsc_error *err)
{
    dsc_nccl_transport *t = of(transport);
    DSC_TRY(begin(t, channel, DSC_COMM_ALL_GATHER, bytes, stream, err));
    if (bytes == 0)
        return DSC_OK;
    return end(t, channel,
               t->api.all_gather(send, recv, (size_t)bytes, DSC_NCCL_UINT8, t->channel[channel].comm,
                                 dsc_stream_native(stream)),
               err);
}

/* One call, which NCCL gives to copy engines if it may and both buffers are in symmetric windows. */
static dsc_status all_to_all_at_once(dsc_nccl_transport *t, int32_t channel, void *recv, const void *send,
                                     int64_t bytes, dsc_stream *stream, dsc_error *err)
{
    DSC_TRY(begin(t, channel, DSC_COMM_ALL_TO_ALL, bytes, stream, err));
    if (bytes == 0)
        return DSC_OK;
    return end(t, channel,
               t->api.all_to_all(send, recv, (size_t)bytes, DSC_NCCL_UINT8, t->channel[channel].comm,
                                 dsc_stream_native(stream)),
               err);
}

/* Sends and receives to all others are one group; the own piece is a copy. */
static dsc_status nccl_all_to_all(dsc_transport *transport, int32_t channel, void *recv, const void *send,
                                  int64_t bytes, dsc_stream *stream, dsc_error *err)
{
    dsc_nccl_transport *t = of(transport);
    dsc_nccl_comm *comm = t->channel[channel].comm;
    void *native = dsc_stream_native(stream);
    if (t->wishes.policy == DSC_NCCL_POLICY_ZERO)
        return all_to_all_at_once(t, channel, recv, send, bytes, stream, err);
    DSC_TRY(begin(t, channel, DSC_COMM_ALL_TO_ALL, bytes, stream, err));
    if (bytes == 0)
        return DSC_OK;
    DSC_TRY(dsc_copy(stream, (char *)recv + t->rank * bytes, (const char *)send + t->rank * bytes, bytes, err));
    dsc_nccl_result result = t->api.group_start(), ended;
    for (int32_t i = 1; i < t->size && result == DSC_NCCL_SUCCESS; i++) {
        const int32_t to = (t->rank + i) % t->size, from = (t->rank + t->size - i) % t->size;
        result = t->api.send((const char *)send + to * bytes, (size_t)bytes, DSC_NCCL_UINT8, to, comm, native);
        if (result == DSC_NCCL_SUCCESS || result == DSC_NCCL_IN_PROGRESS)
            result = t->api.recv((char *)recv + from * bytes, (size_t)bytes, DSC_NCCL_UINT8, from, comm, native);
        if (result == DSC_NCCL_IN_PROGRESS)
            result = DSC_NCCL_SUCCESS; /* the group's end says it again */
    }
    ended = t->api.group_end();
    return end(t, channel, result != DSC_NCCL_SUCCESS ? result : ended, err);
}

static dsc_status nccl_broadcast(dsc_transport *transport, int32_t channel, void *buf, int64_t bytes, int32_t root,
                                 dsc_stream *stream, dsc_error *err)
{
    dsc_nccl_transport *t = of(transport);
    DSC_TRY(begin(t, channel, DSC_COMM_BROADCAST, bytes, stream, err));
    if (bytes == 0)
        return DSC_OK;
    return end(t, channel,
               t->api.broadcast(buf, buf, (size_t)bytes, DSC_NCCL_UINT8, root, t->channel[channel].comm,
                                dsc_stream_native(stream)),
               err);
}

/* On a stream a gather of one line from everybody; without one the hosts meet. */
static dsc_status nccl_barrier(dsc_transport *transport, int32_t channel, dsc_stream *stream, dsc_error *err)
{
    dsc_nccl_transport *t = of(transport);
    if (stream == NULL)
        return dsc_comm_barrier(t->host, 0, NULL, err);
    char *lines = (char *)t->barrier.ptr + (int64_t)channel * t->size * BARRIER_BYTES;
    DSC_TRY(begin(t, channel, DSC_COMM_BARRIER, 0, stream, err));
    return end(t, channel,
               t->api.all_gather(lines + t->rank * BARRIER_BYTES, lines, BARRIER_BYTES, DSC_NCCL_UINT8,
                                 t->channel[channel].comm, dsc_stream_native(stream)),
               err);
}

static dsc_status nccl_send(dsc_transport *transport, int32_t channel, const void *buf, int64_t bytes, int32_t to,
                            dsc_stream *stream, dsc_error *err)
{
    dsc_nccl_transport *t = of(transport);
    DSC_TRY(begin(t, channel, DSC_COMM_SEND, bytes, stream, err));
    if (bytes == 0)
        return DSC_OK;
    return end(t, channel,
               t->api.send(buf, (size_t)bytes, DSC_NCCL_UINT8, to, t->channel[channel].comm, dsc_stream_native(stream)),
               err);
}

static dsc_status nccl_recv(dsc_transport *transport, int32_t channel, void *buf, int64_t bytes, int32_t from,
                            dsc_stream *stream, dsc_error *err)
{
    dsc_nccl_transport *t = of(transport);
    DSC_TRY(begin(t, channel, DSC_COMM_RECV, bytes, stream, err));
    if (bytes == 0)
        return DSC_OK;
    return end(
        t, channel,
        t->api.recv(buf, (size_t)bytes, DSC_NCCL_UINT8, from, t->channel[channel].comm, dsc_stream_native(stream)),
        err);
}

static dsc_status nccl_native_sum(dsc_transport *transport, int32_t channel, void *recv, const void *send,
                                  int64_t count, dsc_dtype dtype, dsc_stream *stream, dsc_error *err)
{
    dsc_nccl_transport *t = of(transport);
    const dsc_nccl_type type = dtype == DSC_BF16  ? DSC_NCCL_BFLOAT16
                               : dtype == DSC_F16 ? DSC_NCCL_FLOAT16
                                                  : DSC_NCCL_FLOAT32;
    DSC_TRY(begin(t, channel, DSC_COMM_REDUCE_SCATTER, count * (int64_t)dsc_dtype_bytes(dtype), stream, err));
    if (count == 0)
        return DSC_OK;
    return end(t, channel,
               t->api.reduce_scatter(send, recv, (size_t)count, type, DSC_NCCL_SUM, t->channel[channel].comm,
                                     dsc_stream_native(stream)),
               err);
}

const dsc_comm_ops dsc_comm_nccl = {
    .name = "nccl",
    .version = DSC_COMM_OPS_VERSION,
    .enqueues = true,
    .list_needs = nccl_list_needs,
    .open = nccl_open,
    .close = nccl_close,
    .all_gather = nccl_all_gather,
    .all_to_all = nccl_all_to_all,
    .broadcast = nccl_broadcast,
    .barrier = nccl_barrier,
    .send = nccl_send,
    .recv = nccl_recv,
    .native_sum = nccl_native_sum,
    .mem_open = dsc_nccl_mem_open,
    .mem_close = dsc_nccl_mem_close,
    .health = health,
    .abort = nccl_abort,
};
