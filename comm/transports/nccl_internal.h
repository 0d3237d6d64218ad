/* nccl_internal.h - declarations that the files of the transport `nccl` share. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_COMM_TRANSPORTS_NCCL_INTERNAL_H
#define DSC_COMM_TRANSPORTS_NCCL_INTERNAL_H

#include <pthread.h>

#include "comm/transports/nccl_api.h"

#define DSC_NCCL_BUFFERS_MAX 8 /* registered ones: the engine has six at most */

typedef struct dsc_nccl_channel {
    dsc_nccl_comm *comm;
    dsc_nccl_comm *made; /* NCCL writes here, from a thread of its own, what a split has made */
    dsc_comm_op last_op; /* for words about a wait; written by the enqueuing thread */
    int64_t last_bytes, call_count;
} dsc_nccl_channel;

/* A buffer that NCCL may read and write in place, by channel. */
typedef struct dsc_nccl_buffer {
    void *ptr; /* NULL: a free slot */
    void *handle[DSC_COMM_CHANNELS_MAX];
} dsc_nccl_buffer;

typedef struct dsc_nccl_transport {
    dsc_transport base;
    dsc_alloc *alloc;
    dsc_nccl_api api;
    dsc_device *device;
    dsc_comm *host;
    int32_t rank, size, channel_count;
    int64_t timeout_ns, library_bytes;
    dsc_comm_memory memory;
    dsc_nccl_wishes wishes; /* those that this NCCL has */
    bool registers;
    dsc_nccl_buffer buffer[DSC_NCCL_BUFFERS_MAX];
    dsc_buf barrier; /* [channel_count * size * BARRIER_BYTES] */
    dsc_nccl_channel channel[DSC_COMM_CHANNELS_MAX];
    pthread_mutex_t lock; /* for the members below; also held while communicators are aborted */
    bool aborted;
    char reason[256];
} dsc_nccl_transport;

/* nccl.c: waits until NCCL has taken the last call of a channel, whose result is given, or until a failure. */
DSC_MUST_USE dsc_status dsc_nccl_settle(dsc_nccl_transport *t, int32_t channel, dsc_nccl_result result,
                                        const char *what, int64_t timeout_ns, dsc_error *err);

/* nccl_config.c: the wishes that this version has, and a warning that names the others. */
void dsc_nccl_grant(dsc_nccl_transport *t, const dsc_comm_options *options);
/* A config of the size and version that this library knows. */
void dsc_nccl_config_fill(const dsc_nccl_transport *t, dsc_nccl_config *out);

/* nccl_memory.c: hooks mem_open and mem_close. */
DSC_MUST_USE dsc_status dsc_nccl_mem_open(dsc_transport *transport, dsc_tag tag, int64_t bytes, dsc_buf *out,
                                          dsc_error *err);
void dsc_nccl_mem_close(dsc_transport *transport, dsc_buf *buf);

#endif
