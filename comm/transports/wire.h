/* wire.h - messages between ranks over the connections of a mesh; every failure names its ranks.
 *
 * Connection 0 is for control: failures and farewells. Each channel has a connection for its messages. A library that
 * decides itself which bytes go to which rank (gloo) gets a second one: channel_count + channel. A message starts with
 * the call of its sender, so a receiver in another call reports both instead of waiting. The first failure
 * (agreement.h) ends every wait and every later call of this rank, and is sent to the peers. Threads: one per channel
 * at a time; fail and health from any.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_COMM_TRANSPORTS_WIRE_H
#define DSC_COMM_TRANSPORTS_WIRE_H

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

#include "comm/agreement.h"
#include "comm/comm_internal.h"
#include "comm/rendezvous/rendezvous_net.h"
#include "comm/transports/mesh.h"

/* The first bytes of every message: the call that its sender is in. */
typedef struct dsc_wire_header {
    uint32_t magic, reserved;
    dsc_call_record call;
} dsc_wire_header;
_Static_assert(sizeof(dsc_wire_header) == 24, "no padding");

typedef struct dsc_wire_part dsc_wire_part; /* data between this rank and one peer in one exchange */

typedef struct dsc_wire_connection {
    dsc_wire_part *part;   /* [size] */
    struct pollfd *poll;   /* [2 * size] */
    dsc_wire_header head;  /* header of the call that runs */
    int64_t number;        /* calls begun, for messages */
    bool calls_roll;       /* any message of a peer is a sign of life */
    int64_t outlast_ns;    /* until then the call may end well after a failure; 0: none came */
    int64_t deadline_ns;   /* put off by every byte that moves */
} dsc_wire_connection;

typedef struct dsc_wire_peer {
    dsc_mesh_peer who;
    bool left;        /* said farewell */
    atomic_bool done; /* left, gone or failed: what it sent is on its way, and no more will come */
    atomic_bool gone; /* the connection ended */
    int32_t have;
    dsc_control_message message; /* received so far: `have` bytes */
} dsc_wire_peer;

typedef struct dsc_wire {
    dsc_alloc *alloc;
    int32_t rank, size;
    int32_t named_count;   /* channels of the communicator */
    int32_t channel_count; /* and their second connections */
    int32_t connection_count;
    int64_t timeout_ns;
    void (*moved)(void *user, int32_t channel); /* NULL, or called when bytes of an exchange moved */
    void *moved_user;
    int *fd; /* [connection * size + rank], connection 0: control, then the channels */
    dsc_wire_peer *peer;
    dsc_wire_connection connection[2 * DSC_COMM_CHANNELS_MAX];
    pthread_mutex_t lock; /* for all members below and the control connection */
    dsc_first_failure failure;
    bool parted; /* farewell was sent */
} dsc_wire;

/* The memory alone, before the ranks meet. */
DSC_MUST_USE dsc_status dsc_wire_init(dsc_wire *wire, const dsc_comm_options *options, bool second_connections,
                                      dsc_error *err);
/* Connects, as what the rendezvous calls when everybody is here. */
DSC_MUST_USE dsc_status dsc_wire_connect(dsc_wire *wire, const dsc_rdv_net_met *met, int64_t timeout_ns,
                                         dsc_error *err);
/* Says farewell and closes; also right for a wire that was zeroed only. */
void dsc_wire_close(dsc_wire *wire);

/* Every call starts with begin. */
DSC_MUST_USE dsc_status dsc_wire_begin(dsc_wire *wire, int32_t channel, dsc_comm_op op, int32_t detail, int64_t bytes,
                                       dsc_error *err);

/* For one exchange: what goes to and comes from a peer. The next exchange starts empty. */
void dsc_wire_send(dsc_wire *wire, int32_t channel, int32_t to, const void *bytes, int64_t count);
void dsc_wire_recv(dsc_wire *wire, int32_t channel, int32_t from, void *bytes, int64_t count);
/* All of it, in both directions at once. `step` tells apart the exchanges of one call. */
DSC_MUST_USE dsc_status dsc_wire_exchange(dsc_wire *wire, int32_t channel, int32_t step, dsc_error *err);

/* For a second connection, whose messages are begun while others are on their way: moves what can move, or sleeps a
 * little. DSC_ERR_STUCK when nothing moved for the timeout; it is not published, since nobody knows yet whose fault it
 * is. */
DSC_MUST_USE dsc_status dsc_wire_poll_once(dsc_wire *wire, int32_t channel, dsc_error *err);
bool dsc_wire_sending(const dsc_wire *wire, int32_t channel, int32_t to);
bool dsc_wire_receiving(const dsc_wire *wire, int32_t channel, int32_t from);
/* Nothing is on its way any more. */
void dsc_wire_clear(dsc_wire *wire, int32_t channel);

/* A call on the second connection failed, for `reason`: all who live say so, and who does not is named. Always a
 * failure. */
DSC_MUST_USE dsc_status dsc_wire_roll_call(dsc_wire *wire, int32_t channel, const char *reason, dsc_error *err);

/* Tells the peers that this rank closes, and does not die; dsc_wire_close does so too. */
void dsc_wire_farewell(dsc_wire *wire);
/* Publishes a failure (the first one stays) and tells the peers. Returns what stands, in *err. */
dsc_status dsc_wire_fail(dsc_wire *wire, dsc_status status, int32_t rank, dsc_error *err, const char *fmt, ...)
    DSC_PRINTF(5, 6);
/* Without waiting: a failure that stands, or a peer that is gone. */
DSC_MUST_USE dsc_status dsc_wire_health(dsc_wire *wire, dsc_error *err);
/* Something of `rank` (-1: somebody) ended that should not have: why, as soon as it is known. Always a failure. */
DSC_MUST_USE dsc_status dsc_wire_why(dsc_wire *wire, int32_t channel, int32_t rank, dsc_error *err);
/* "rank 1 (pid 17 on node-b)" */
const char *dsc_wire_name(const dsc_wire *wire, int32_t rank, char text[DSC_RANK_TEXT_BYTES]);

#endif
