/* rendezvous_net.h - how the ranks of several hosts find each other: the machines of rendezvous.h over TCP.
 *
 * Rank 0 listens on the address that MASTER_ADDR names, and only while ranks may come. Each rank sends the address at
 * which it accepts connections of its peers, in place of the memory files of one host. That address is on the interface
 * by which the rank reached rank 0.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_COMM_RENDEZVOUS_RENDEZVOUS_NET_H
#define DSC_COMM_RENDEZVOUS_RENDEZVOUS_NET_H

#include "base/net.h"
#include "comm/rendezvous/rendezvous.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dsc_rdv_net_job {
    dsc_rdv_self self; /* key is filled by the driver */
    dsc_rdv_waits_fn waits; /* with the user of `connect`; NULL: no report */
    const char *token; /* not empty: a network has no other gate */
    const char *host;  /* MASTER_ADDR */
    int32_t port;
    const int *gate;   /* NULL, or of rank 0 a listener there; borrowed */
} dsc_rdv_net_job;

/* Result of a rendezvous that all ranks have reached; all borrowed. */
typedef struct dsc_rdv_net_met {
    uint64_t epoch;
    uint8_t key[32];                /* for connections between ranks; not that of the rendezvous */
    const dsc_net_address *address; /* [size] */
    int listener;                   /* this rank's, at address[rank] */
    /* True when the others will not come any more: then the call returns soon, with any error. */
    bool (*lost)(void *user);
    void *lost_user;
} dsc_rdv_net_met;

/* Connects to the peers. Everybody does so at the same time. */
typedef dsc_status (*dsc_rdv_net_fn)(void *user, const dsc_rdv_net_met *met, dsc_error *err);

/* Collective; blocks until `connect` returned on all ranks, or one failed: then all do. Nothing listens after. */
DSC_MUST_USE dsc_status dsc_rdv_net_run(const dsc_rdv_net_job *job, dsc_rdv_net_fn connect, void *user, dsc_error *err);

#ifdef __cplusplus
}
#endif
#endif
