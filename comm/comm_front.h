/* comm_front.h - the communicator itself: private to calls.c and front/. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_COMM_COMM_FRONT_H
#define DSC_COMM_COMM_FRONT_H

#include <stdatomic.h>
#include <stdio.h>

#include "base/flight_log.h"
#include "comm/comm_internal.h"
#include "comm/pipeline.h"
#include "comm/progress.h"

/* An all-reduce cuts a vector into pieces of whole cache lines: 16 fp32 elements. */
#define DSC_COMM_PIECE_ALIGN 16

typedef struct dsc_comm_channel {
    dsc_buf gather;          /* [W * gather_elements] fp32: short vectors of an all-reduce; not open at W = 1 */
    int64_t gather_elements; /* longest vector that is gathered whole */
    dsc_buf staging;         /* for transports without a reduce_scatter */
    dsc_pipeline pipeline;   /* casts and folds beside exchanges; open for sums between GPUs */
    atomic_bool busy;        /* a call is inside: two at once on one channel is a bug of the caller */
    dsc_flight_track *track; /* or NULL */
    _Atomic int32_t module;  /* label of calls to come */
    _Atomic int64_t sent, received; /* payload of the calls given so far */
} dsc_comm_channel;

typedef struct dsc_comm_count { _Atomic int64_t calls, bytes, ns; } dsc_comm_count;

#define DSC_COMM_GROUP_NAME 512 /* bytes: a token, and who was split into what */

struct dsc_comm {
    const dsc_comm_ops *ops;  /* table of the transport itself, also under the fault wrapper */
    dsc_transport *transport; /* its ops are what calls go through */
    dsc_transport *inner;     /* the same without the fault wrapper */
    dsc_alloc *alloc;
    dsc_device *device; /* NULL: buffers are host memory */
    int32_t rank, size, channel_count;
    bool native_sums;
    dsc_comm_math math;
    dsc_comm_trace trace;
    dsc_flight flight;
    dsc_comm_progress *progress; /* for a transport that enqueues and a flight log; else NULL */
    _Atomic int64_t step; /* label of calls to come */
    _Atomic int64_t blocked_ns; /* in calls without a stream */
    dsc_comm_channel channel[DSC_COMM_CHANNELS_MAX];
    dsc_comm_memory memory; /* buffers of the channels */
    dsc_comm_count count[DSC_COMM_OP_COUNT];
    uint32_t split_count;                 /* number of splits so far */
    dsc_local_world *group_world;         /* world of a group of threads; NULL: borrowed, or none */
    char group_name[DSC_COMM_GROUP_NAME]; /* "" of what was not split off */
};

/* A world that is freed with the last of its `holders`; each drops it once. NULL is allowed. */
void dsc_local_world_hold(dsc_local_world *world, int32_t holders);
void dsc_local_world_drop(dsc_local_world *world);

#endif
