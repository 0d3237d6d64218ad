/* wire_internal.h - private to wire*.c. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_COMM_TRANSPORTS_WIRE_INTERNAL_H
#define DSC_COMM_TRANSPORTS_WIRE_INTERNAL_H

#include "comm/transports/wire.h"

struct dsc_wire_part {
    bool sends, receives;  /* not done yet */
    const void *out;
    void *in;
    int64_t out_bytes, in_bytes;
    int64_t out_done, in_done; /* below 0: still in the header */
    dsc_wire_header head;      /* of the peer */
};

/* This rank inside the call of a channel, for messages. */
dsc_caller dsc_wire_caller(const dsc_wire *wire, int32_t channel);
#endif
