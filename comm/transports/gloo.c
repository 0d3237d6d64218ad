/* gloo.c - gloo's collectives between ranks that agree: the transport `tcp` meets, proves, watches and names, and gloo
 * (lib/dsc/libdsc_gloo.so) says which bytes go to whom, over a second connection of each channel.
 *
 * Before gloo is called the ranks meet, so nobody waits inside it for a rank that is late or does something else. When
 * a call of gloo fails nobody knows of whom it had to wait; then all who live say so, and who does not is named.
 * SPDX-License-Identifier: Apache-2.0 */
#include "comm/transports/gloo_api.h"

#include <string.h>

#include "base/plugin.h"
#include "comm/transports/tcp_internal.h"

#define PIECE_ALIGN 16

typedef struct gloo_channel {
    dsc_wire *wire;
    int32_t connection; /* the channel's second one */
    dsc_gloo_context *context;
    dsc_error why; /* failure of the last poll */
} gloo_channel;

typedef struct gloo_transport {
    dsc_tcp tcp;
    const dsc_gloo_api *api;
    gloo_channel channel[DSC_COMM_CHANNELS_MAX];
} gloo_transport;

/* ---- open and close ---------------------------------------------------------------------------------------------- */

static dsc_status find_plugin(const dsc_gloo_api **out, dsc_error *err)
{
    static const dsc_plugin plugin = { .key = "dsc.comm",
                                       .value = "\"gloo\": ",
                                       .file = "libdsc_gloo.so",
                                       .package = "libgloo-dev (make deps-net)",
                                       .instead = "use \"tcp\", which needs no library",
                                       .symbol = DSC_GLOO_SYMBOL,
                                       .version = DSC_GLOO_API_VERSION,
                                       .table_bytes = sizeof(dsc_gloo_api) };
    const void *table = NULL;
    DSC_TRY(dsc_plugin_table(&plugin, &table, err));
    *out = table;
    return DSC_OK;
}

/* ---- gloo's way: the second connection of a channel ---- */

static void way_send(void *user, int to, const void *bytes, int64_t count)
{
    const gloo_channel *c = user;
    dsc_wire_send(c->wire, c->connection, to, bytes, count);
}

static void way_recv(void *user, int from, void *bytes, int64_t count)
{
    const gloo_channel *c = user;
    dsc_wire_recv(c->wire, c->connection, from, bytes, count);
}

static bool way_sending(void *user, int to)
{
    const gloo_channel *c = user;
    return dsc_wire_sending(c->wire, c->connection, to);
}

static bool way_receiving(void *user, int from)
{
    const gloo_channel *c = user;
    return dsc_wire_receiving(c->wire, c->connection, from);
}

/* Exceptions of gloo's say nothing: the reason stays here. */
static int way_turn(void *user)
{
    gloo_channel *c = user;
    return dsc_wire_poll_once(c->wire, c->connection, &c->why) != DSC_OK;
}

static dsc_status open_channel(gloo_transport *gloo, int32_t channel, dsc_error *err)
{
    gloo_channel *c = &gloo->channel[channel];
    dsc_wire *wire = &gloo->tcp.wire;
    char text[DSC_GLOO_TEXT];
    c->wire = wire;
    c->connection = wire->named_count + channel;
    const dsc_gloo_way way = { c,        wire->rank,  wire->size,    way_send,
                               way_recv, way_sending, way_receiving, way_turn };
    if (gloo->api->open(&way, &c->context, text) == 0)
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_COMM, "comm", "gloo: %s", text);
}

static void gloo_close(dsc_transport *transport)
{
    gloo_transport *gloo = (gloo_transport *)transport;
    for (int32_t c = 0; c < DSC_COMM_CHANNELS_MAX; c++)
        if (gloo->channel[c].context != NULL)
            gloo->api->close(gloo->channel[c].context);
    dsc_tcp_close(transport);
}

/* Contexts need nobody else, so they are made when all is connected; the barrier at the end of dsc_comm_open is what
 * tells the others when one is not. */
static dsc_status gloo_open(dsc_transport **out, const dsc_comm_options *options, dsc_error *err)
{
    const dsc_gloo_api *api = NULL;
    const dsc_tcp_kind kind = {
        .ops = &dsc_comm_gloo, .bytes = sizeof(gloo_transport), .second_connections = true, .number = 1
    };
    dsc_transport *made = NULL;
    DSC_TRY(find_plugin(&api, err)); /* before anybody is met */
    DSC_TRY(dsc_tcp_open_kind(&kind, &made, options, err));
    gloo_transport *gloo = (gloo_transport *)made;
    gloo->api = api;
    for (int32_t c = 0; c < options->channel_count; c++) {
        dsc_error first = DSC_ERROR_INIT;
        const dsc_status status = open_channel(gloo, c, &first);
        if (status == DSC_OK)
            continue;
        dsc_tcp_abort(made, first.message);
        gloo_close(made);
        if (err != NULL)
            *err = first;
        return status;
    }
    *out = made;
    return DSC_OK;
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

/* Everybody is here, in the same call of the same size. */
static dsc_status meet(gloo_transport *gloo, int32_t channel, dsc_comm_op op, int32_t detail, int64_t bytes,
                       dsc_error *err)
{
    dsc_wire *wire = &gloo->tcp.wire;
    DSC_TRY(dsc_wire_begin(wire, channel, op, detail, bytes, err));
    for (int32_t r = 0; r < wire->size; r++)
        if (r != wire->rank) {
            dsc_wire_send(wire, channel, r, NULL, 0);
            dsc_wire_recv(wire, channel, r, NULL, 0);
        }
    DSC_TRY(dsc_wire_exchange(wire, channel, 0, err));
    return dsc_wire_begin(wire, gloo->channel[channel].connection, op, detail, bytes, err);
}

static dsc_status ended(gloo_transport *gloo, int32_t channel, int failed, const char *text, dsc_error *err)
{
    gloo_channel *c = &gloo->channel[channel];
    if (failed == 0)
        return DSC_OK;
    dsc_wire_clear(c->wire, c->connection);
    return dsc_wire_roll_call(c->wire, channel, c->why.status != DSC_OK ? c->why.message : text, err);
}

static bool nothing_to_move(const gloo_transport *gloo, int64_t bytes)
{
    return bytes == 0 || gloo->tcp.wire.size == 1;
}

static dsc_status gloo_all_gather(dsc_transport *transport, int32_t channel, void *recv, const void *send,
                                  int64_t bytes, dsc_stream *stream, dsc_error *err)
{
    gloo_transport *gloo = (gloo_transport *)transport;
    char text[DSC_GLOO_TEXT], *mine = (char *)recv + gloo->tcp.wire.rank * bytes;
    DSC_TRY(meet(gloo, channel, DSC_COMM_ALL_GATHER, 0, bytes, err));
    if (mine != send && bytes > 0)
        memcpy(mine, send, (size_t)bytes);
    if (nothing_to_move(gloo, bytes))
        return DSC_OK;
    return ended(gloo, channel, gloo->api->all_gather(gloo->channel[channel].context, recv, bytes, text), text, err);
}

static dsc_status exchange(gloo_transport *gloo, int32_t channel, void *recv, const void *send, int64_t bytes,
                           dsc_error *err)
{
    char text[DSC_GLOO_TEXT];
    if (!nothing_to_move(gloo, bytes))
        return ended(gloo, channel,
                     gloo->api->all_to_all(gloo->channel[channel].context, recv, send, bytes, text), text, err);
    if (bytes > 0)
        memcpy(recv, send, (size_t)bytes);
    return DSC_OK;
}

static dsc_status gloo_all_to_all(dsc_transport *transport, int32_t channel, void *recv, const void *send,
                                  int64_t bytes, dsc_stream *stream, dsc_error *err)
{
    gloo_transport *gloo = (gloo_transport *)transport;
    DSC_TRY(meet(gloo, channel, DSC_COMM_ALL_TO_ALL, 0, bytes, err));
    return exchange(gloo, channel, recv, send, bytes, err);
}

static dsc_status gloo_broadcast(dsc_transport *transport, int32_t channel, void *buf, int64_t bytes, int32_t root,
                                 dsc_stream *stream, dsc_error *err)
{
    gloo_transport *gloo = (gloo_transport *)transport;
    char text[DSC_GLOO_TEXT];
    DSC_TRY(meet(gloo, channel, DSC_COMM_BROADCAST, root, bytes, err));
    if (nothing_to_move(gloo, bytes))
        return DSC_OK;
    dsc_gloo_context *context = gloo->channel[channel].context;
    return ended(gloo, channel, gloo->api->broadcast(context, buf, bytes, root, text), text, err);
}

/* Pieces are cast into one half of the staging, exchanged into the other, and folded there. */
static dsc_status gloo_reduce_scatter(dsc_transport *transport, int32_t channel, const dsc_reduce_scatter_args *args,
                                      dsc_stream *stream, dsc_error *err)
{
    gloo_transport *gloo = (gloo_transport *)transport;
    dsc_tcp *tcp = &gloo->tcp;
    const int32_t size = tcp->wire.size;
    const int64_t wire_bytes = (int64_t)dsc_dtype_bytes(args->wire_dtype);
    const int64_t most = tcp->staging[channel].bytes / 2 / size / wire_bytes / PIECE_ALIGN * PIECE_ALIGN;
    char *in = tcp->staging[channel].ptr, *out = in + tcp->staging[channel].bytes / 2;
    DSC_ASSERT(most > 0);
    DSC_TRY(meet(gloo, channel, DSC_COMM_REDUCE_SCATTER, (int32_t)args->wire_dtype, args->count * wire_bytes, err));
    for (int64_t first = 0; first < args->count; first += most) {
        const int64_t count = dsc_min_i64(most, args->count - first), piece_bytes = count * wire_bytes;
        for (int32_t r = 0; r < size; r++)
            DSC_TRY(dsc_comm_cast(&tcp->math, out + r * piece_bytes, args->wire_dtype,
                                  args->leaf + r * args->leaf_stride + first, count, NULL, err));
        DSC_TRY(exchange(gloo, channel, in, out, piece_bytes, err));
        const dsc_comm_parts leaves = {
            .at = in, .stride_bytes = piece_bytes, .dtype = args->wire_dtype, .count = size
        };
        DSC_TRY(dsc_comm_ordered_reduce(&tcp->math, args, &leaves, first, count, NULL, err));
    }
    return DSC_OK;
}

const dsc_comm_ops dsc_comm_gloo = {
    .name = "gloo",
    .version = DSC_COMM_OPS_VERSION,
    .list_needs = dsc_tcp_list_needs,
    .open = gloo_open,
    .close = gloo_close,
    .all_gather = gloo_all_gather,
    .all_to_all = gloo_all_to_all,
    .broadcast = gloo_broadcast,
    .barrier = dsc_tcp_barrier,
    .send = dsc_tcp_send,
    .recv = dsc_tcp_recv,
    .reduce_scatter = gloo_reduce_scatter,
    .health = dsc_tcp_health,
    .address = dsc_tcp_address,
    .abort = dsc_tcp_abort,
};
