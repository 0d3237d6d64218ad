/* net.h - addresses and sockets of TCP, as small as the rendezvous and the transports need them.
 *
 * Every socket is non-blocking and closed on exec. Nothing here listens on a wildcard address.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_BASE_NET_H
#define DSC_BASE_NET_H

#include "base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* An address as it travels between hosts: numbers in network order, no padding. */
typedef struct dsc_net_address {
    uint8_t ip[16];  /* IPv4: the first four */
    uint16_t port;   /* host order */
    uint16_t family; /* 4, 6; 0: none */
    uint32_t scope;  /* IPv6 link-local: the interface, of this host only; not sent */
} dsc_net_address;
_Static_assert(sizeof(dsc_net_address) == 24, "no padding");

#define DSC_NET_TEXT 80 /* "[ffff:...%interface]:65535" */
const char *dsc_net_text(const dsc_net_address *address, char text[DSC_NET_TEXT]);

/* The address alone, as dsc_net_resolve takes it: "10.0.0.1", "fe80::1%eth0". */
void dsc_net_host_text(const dsc_net_address *address, char text[DSC_NET_TEXT]);

/* Numbers or a name -> its addresses, at most `most`, in the system's order. Wildcards and broadcast are refused. */
DSC_MUST_USE dsc_status dsc_net_resolve(const char *host, int32_t port, dsc_net_address *out, int32_t most,
                                        int32_t *count, dsc_error *err);

/* A listener on exactly this address (port 0: any), or -1 and errno. *bound is where it listens. */
int dsc_net_listen(const dsc_net_address *at, dsc_net_address *bound);
/* Begins to connect: -1 and errno, or a socket that becomes writable when dsc_net_connected may be asked. */
int dsc_net_connect(const dsc_net_address *to);
/* 0: connected, else the errno of why not. */
int dsc_net_connected(int fd);
/* This end's address; false: neither connected nor listening. */
bool dsc_net_local(int fd, dsc_net_address *out);
/* No waiting for more before a small message goes out; `watch`: a host that vanished is noticed within seconds also
 * when nothing is sent. */
void dsc_net_tune(int fd, bool watch);

#ifdef __cplusplus
}
#endif
#endif
