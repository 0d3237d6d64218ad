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
#include "comm/transports/nccl_api.h"

#define POLL_NS INT64_C(50000)
#define SPIN_NS INT64_C(200000) /* NCCL takes a call in 20 to 150 us, which no sleep may lengthen */
#define CLOSE_WAIT_NS INT64_C(5000000000)
#define BUFFERS_MAX 8    /* registered ones: the engine has two */
#define BARRIER_BYTES 64 /* one cache line for each rank */
/* Buffers of one communicator between up to 8 GPUs of a host, as 2.18 to 2.28 take them by default. */
#define LIBRARY_BYTES_PER_CHANNEL (INT64_C(160) << 20)

typedef struct nccl_channel {
    dsc_nccl_comm *comm;
    dsc_comm_op last_op; /* for words about a wait; written by the enqueuing thread */
    int64_t last_bytes, call_count;
} nccl_channel;

/* A buffer that NCCL may read and write in place, by channel. */
typedef struct nccl_buffer {
    void *ptr; /* NULL: a free slot */
    void *handle[DSC_COMM_CHANNELS_MAX];
} nccl_buffer;

typedef struct nccl_transport {
    dsc_transport base;
    dsc_alloc *alloc;
    dsc_nccl_api api;
    dsc_device *device;
    dsc_comm *host;
    int32_t rank, size, channel_count;
    int64_t timeout_ns, library_bytes;
    dsc_comm_memory memory;
    bool registers;
    nccl_buffer buffer[BUFFERS_MAX];
    dsc_buf barrier; /* [channel_count * size * BARRIER_BYTES] */
    nccl_channel channel[DSC_COMM_CHANNELS_MAX];
    pthread_mutex_t lock; /* for the members below; also held while communicators are aborted */
    bool aborted;
    char reason[256];
} nccl_transport;

static nccl_transport *of(dsc_transport *transport) { return (nccl_transport *)transport; }

/* ---- words about failures ---- */

/* "reduce_scatter (channel 2, call 12, 4096 bytes)" */
static const char *call_text(const nccl_transport *t, int32_t channel, char *out, size_t out_bytes)
{
    const nccl_channel *ch = &t->channel[channel];
    snprintf(out, out_bytes, "%s (channel %d, call %lld, %lld bytes)", dsc_comm_op_text(ch->last_op), channel,
             (long long)ch->call_count, (long long)ch->last_bytes);
    return out;
}

static dsc_status nccl_failed(nccl_transport *t, int32_t channel, dsc_nccl_result result, const char *what,
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

static dsc_status check_aborted(nccl_transport *t, dsc_error *err)
{
    pthread_mutex_lock(&t->lock);
    const dsc_status status =
        t->aborted ? DSC_FAIL(err, DSC_ERR_PEER, "comm", "%s", t->reason) : DSC_OK;
    pthread_mutex_unlock(&t->lock);
    return status;
}

/* ---- polling ---- */

/* An error of any channel that NCCL found by itself. */
static dsc_status check_async(nccl_transport *t, int32_t channel, bool *busy, dsc_error *err)
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

/* Waits until NCCL has taken the last call of a channel (its work is then on the stream). */
static dsc_status settle(nccl_transport *t, int32_t channel, dsc_nccl_result result, const char *what,
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
    nccl_transport *t = of(transport);
    bool busy;
    DSC_TRY(check_aborted(t, err));
    for (int32_t c = 0; c < t->channel_count; c++)
        DSC_TRY(check_async(t, c, &busy, err));
    return dsc_comm_health(t->host, err);
}

/* The host waits for the device: is there still somebody to wait for? */
static dsc_status watch(void *user, int64_t waited_ns, dsc_error *err)
{
    nccl_transport *t = user;
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

/* One rank's word to all others over host memory. */
typedef struct greeting {
    int32_t status, version;
    char message[256];
    dsc_nccl_id id[DSC_COMM_CHANNELS_MAX]; /* rank 0's */
} greeting;

static void greet(nccl_transport *t, const dsc_comm_options *options, greeting *mine)
{
    dsc_error err = DSC_ERROR_INIT;
    dsc_status status = dsc_nccl_load(&t->api, &err);
    for (int32_t c = 0; status == DSC_OK && t->rank == 0 && c < t->channel_count; c++) {
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

static dsc_status make_channel(nccl_transport *t, int32_t c, const dsc_nccl_id *id, int64_t timeout_ns, dsc_error *err)
{
    dsc_nccl_config config = DSC_NCCL_CONFIG_INIT;
    dsc_nccl_comm *comm = NULL;
    DSC_TRY(dsc_device_bind(t->device, err));
    const dsc_nccl_result result = t->api.init(&comm, t->size, *id, t->rank, &config);
    pthread_mutex_lock(&t->lock);
    t->channel[c].comm = comm;
    pthread_mutex_unlock(&t->lock);
    return settle(t, c, result, "the other ranks at open", timeout_ns, err);
}

/* GPU memory that NCCL takes is estimated, because NCCL does not report it. */
static int nccl_list_needs(const dsc_comm_options *options, dsc_transport *transport, dsc_need *list)
{
    nccl_transport *t = of(transport);
    const int64_t channels = options->channel_count, size = options->rank_info.size;
    const int64_t library_bytes = size > 1 ? channels * LIBRARY_BYTES_PER_CHANNEL : 0;
    list[0] = (dsc_need) { t != NULL ? &t->library_bytes : NULL, DSC_TAG_LIBRARY, DSC_TIER_DEVICE, library_bytes,
                           DSC_NEED_NOTED };
    list[1] = (dsc_need) { t != NULL ? &t->barrier : NULL, DSC_TAG_CONTROL, DSC_TIER_DEVICE,
                           channels * size * BARRIER_BYTES, DSC_NEED_DEVICE };
    return 2;
}

static dsc_status make_all(nccl_transport *t, const dsc_comm_options *options, greeting *all, dsc_error *err)
{
    const int64_t bytes = (int64_t)sizeof *all;
    greet(t, options, &all[t->rank]);
    DSC_TRY(dsc_comm_all_gather(t->host, 0, all, &all[t->rank], bytes, DSC_U8, NULL, err));
    DSC_TRY(compare(all, t->size, err));
    t->memory.count = nccl_list_needs(options, &t->base, t->memory.need);
    DSC_TRY(dsc_comm_memory_open(&t->memory, options, err));
    for (int32_t c = 0; c < t->channel_count; c++)
        DSC_TRY(make_channel(t, c, &all[0].id[c], dsc_comm_open_timeout_ns(options), err));
    dsc_device_watch(t->device, watch, t);
    if (options->register_memory && t->api.enroll == NULL)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "dsc.nccl_register", "NCCL %d.%d cannot register memory; install "
                        "2.19 or newer, or take the key out", t->api.version / 10000, t->api.version / 100 % 100);
    t->registers = options->register_memory;
    return DSC_OK;
}

static void nccl_abort(dsc_transport *transport, const char *reason)
{
    nccl_transport *t = of(transport);
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
static void close_channel(nccl_transport *t, int32_t c)
{
    dsc_nccl_comm *comm = t->channel[c].comm;
    if (comm == NULL)
        return;
    const dsc_nccl_result result = t->api.finalize(comm);
    if (settle(t, c, result, "the other ranks at close", CLOSE_WAIT_NS, NULL) == DSC_OK)
        (void)t->api.destroy(comm);
    else
        (void)t->api.abort(comm);
    t->channel[c].comm = NULL;
}

static void nccl_close(dsc_transport *transport)
{
    nccl_transport *t = of(transport);
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
    nccl_transport *t = NULL;
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

/* ---- memory ---- */

static void strike_buffer(nccl_transport *t, nccl_buffer *buffer)
{
    (void)!dsc_device_bind(t->device, NULL);
    pthread_mutex_lock(&t->lock);
    for (int32_t c = 0; c < t->channel_count; c++)
        if (buffer->handle[c] != NULL && t->channel[c].comm != NULL) /* an aborted one has forgotten it */
            (void)t->api.strike(t->channel[c].comm, buffer->handle[c]);
    pthread_mutex_unlock(&t->lock);
    *buffer = (nccl_buffer){ .ptr = NULL };
}

static dsc_status enroll_buffer(nccl_transport *t, const dsc_buf *buf, dsc_error *err)
{
    nccl_buffer *buffer = t->buffer;
    while (buffer < t->buffer + BUFFERS_MAX && buffer->ptr != NULL)
        buffer++;
    if (buffer == t->buffer + BUFFERS_MAX)
        return DSC_OK; /* works without, too */
    DSC_TRY(dsc_device_bind(t->device, err));
    buffer->ptr = buf->ptr;
    dsc_status status = DSC_OK;
    for (int32_t c = 0; c < t->channel_count && status == DSC_OK; c++) {
        const dsc_nccl_result result =
            t->api.enroll(t->channel[c].comm, buf->ptr, (size_t)buf->bytes, &buffer->handle[c]);
        status = settle(t, c, result, "ncclCommRegister", t->timeout_ns, err);
    }
    if (status != DSC_OK)
        strike_buffer(t, buffer);
    return status;
}

static dsc_status nccl_mem_open(dsc_transport *transport, dsc_tag tag, int64_t bytes, dsc_buf *out, dsc_error *err)
{
    nccl_transport *t = of(transport);
    DSC_TRY(dsc_mem_open(t->device, tag, DSC_TIER_DEVICE, bytes, out, err));
    const dsc_status status = t->registers && bytes > 0 ? enroll_buffer(t, out, err) : DSC_OK;
    if (status != DSC_OK)
        dsc_mem_close(t->device, out);
    return status;
}

static void nccl_mem_close(dsc_transport *transport, dsc_buf *buf)
{
    nccl_transport *t = of(transport);
    for (int32_t i = 0; i < BUFFERS_MAX; i++)
        if (buf->ptr != NULL && t->buffer[i].ptr == buf->ptr)
            strike_buffer(t, &t->buffer[i]);
    dsc_mem_close(t->device, buf);
}

/* ---- collectives ---- */

/* Every call: begin, NCCL's calls, end. */
static dsc_status begin(nccl_transport *t, int32_t channel, dsc_comm_op op, int64_t bytes, const dsc_stream *stream,
                        dsc_error *err)
{
    DSC_ASSERT(stream != NULL);
    nccl_channel *ch = &t->channel[channel];
    ch->last_op = op;
    ch->last_bytes = bytes;
    ch->call_count++;
    DSC_TRY(check_aborted(t, err));
    return dsc_device_bind(t->device, err);
}

static dsc_status end(nccl_transport *t, int32_t channel, dsc_nccl_result result, dsc_error *err)
{
    char call[128];
    return settle(t, channel, result, call_text(t, channel, call, sizeof call), t->timeout_ns, err);
}

static dsc_status nccl_all_gather(dsc_transport *transport, int32_t channel, void *recv, const void *send,
                                  int64_t bytes, dsc_stream *stream, dsc_error *err)
{
    nccl_transport *t = of(transport);
    DSC_TRY(begin(t, channel, DSC_COMM_ALL_GATHER, bytes, stream, err));
    if (bytes == 0)
        return DSC_OK;
    return end(t, channel,
               t->api.all_gather(send, recv, (size_t)bytes, DSC_NCCL_UINT8, t->channel[channel].comm,
                                 dsc_stream_native(stream)),
               err);
}

/* Sends and receives to all others are one group; the own piece is a copy. */
static dsc_status nccl_all_to_all(dsc_transport *transport, int32_t channel, void *recv, const void *send,
                                  int64_t bytes, dsc_stream *stream, dsc_error *err)
{
    nccl_transport *t = of(transport);
    dsc_nccl_comm *comm = t->channel[channel].comm;
    void *native = dsc_stream_native(stream);
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
    nccl_transport *t = of(transport);
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
    nccl_transport *t = of(transport);
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
    nccl_transport *t = of(transport);
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
    nccl_transport *t = of(transport);
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
    nccl_transport *t = of(transport);
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
    .mem_open = nccl_mem_open,
    .mem_close = nccl_mem_close,
    .health = health,
    .abort = nccl_abort,
};
