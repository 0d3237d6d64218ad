/* tcp_internal.h - declarations that the transports between hosts share: private to tcp.c, gloo.c, hier.c and mpi.c.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_COMM_TRANSPORTS_TCP_INTERNAL_H
#define DSC_COMM_TRANSPORTS_TCP_INTERNAL_H

#include "comm/transports/wire.h"

typedef struct dsc_tcp {
    dsc_transport base;
    dsc_alloc *alloc;
    dsc_wire wire;
    dsc_comm_math math;
    dsc_comm_memory memory;
    dsc_buf staging[DSC_COMM_CHANNELS_MAX]; /* for sums: one half comes in, from the other the rounded leaves go out */
} dsc_tcp;

/* One of the transports over TCP: its table, its size and its connections. */
typedef struct dsc_tcp_kind {
    const dsc_comm_ops *ops;
    int64_t bytes; /* size of its own struct, which starts with a dsc_tcp */
    bool second_connections;
    int32_t number;      /* ranks agree on the kind by it: 0 tcp, 1 gloo, 2 hier */
} dsc_tcp_kind;

DSC_MUST_USE dsc_status dsc_tcp_open_kind(const dsc_tcp_kind *kind, dsc_transport **out,
                                          const dsc_comm_options *options, dsc_error *err);
/* The staging of all channels, under the tag COMM: half for received data, half for rounded parts to send. `staging` is
 * [channel_count], or NULL while planning. */
int dsc_tcp_list_staging(const dsc_comm_options *options, dsc_buf *staging, dsc_need *list);
int dsc_tcp_list_needs(const dsc_comm_options *options, dsc_transport *transport, dsc_need *list);
void dsc_tcp_close(dsc_transport *transport);
dsc_status dsc_tcp_barrier(dsc_transport *transport, int32_t channel, dsc_stream *stream, dsc_error *err);
dsc_status dsc_tcp_send(dsc_transport *transport, int32_t channel, const void *buf, int64_t bytes, int32_t to,
                        dsc_stream *stream, dsc_error *err);
dsc_status dsc_tcp_recv(dsc_transport *transport, int32_t channel, void *buf, int64_t bytes, int32_t from,
                        dsc_stream *stream, dsc_error *err);
bool dsc_tcp_address(dsc_transport *transport, dsc_net_address *out);
dsc_status dsc_tcp_health(dsc_transport *transport, dsc_error *err);
void dsc_tcp_abort(dsc_transport *transport, const char *reason);

#endif
