/* mesh.h - connections from every rank to every other, as many to each peer as the caller wants, each proved before
 * use.
 *
 * Rank i connects to the ranks below it and accepts the connections of those above. Both ends prove that they know the
 * job's key. The proof covers the epoch, both ranks, the connection and fresh numbers of both, so an observed proof is
 * useless on another connection. A connection without a proof, or with a late one, is closed without an answer. Data is
 * neither encrypted nor signed: a party that can change packets on the way can change the training.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_COMM_TRANSPORTS_MESH_H
#define DSC_COMM_TRANSPORTS_MESH_H

#include "base/alloc.h"
#include "base/net.h"

#define DSC_MESH_CONNECTIONS_MAX 16

/* Process at the other end. */
typedef struct dsc_mesh_peer { int32_t pid; char host[64]; } dsc_mesh_peer;

typedef struct dsc_mesh_spec {
    dsc_alloc *alloc;
    int32_t rank, size, connection_count;
    uint64_t epoch;
    uint8_t key[32];
    const dsc_net_address *address; /* [size] */
    int listener;                   /* at address[rank]; the caller's */
    int64_t timeout_ns;
    bool (*lost)(void *user); /* true: give up */
    void *lost_user;
} dsc_mesh_spec;

/* fd[connection * size + rank], -1 for oneself; peer[rank]. All connected, or none is open. */
DSC_MUST_USE dsc_status dsc_mesh_open(const dsc_mesh_spec *spec, int *fd, dsc_mesh_peer *peer, dsc_error *err);

#endif
