/* host_update.h - update by the host of states that are offloaded from a device whose memory the host cannot reach.
 *
 * Masters and moments are in pinned host memory, or in swap files. Sums of gradients are copied there when they are
 * reduced (grad_staging.h). Parameters may be there too, with only windows on the device. States that stay on the
 * device pass in tiles. Sums are copied out while the host's own exact kernels update the tile before, and the new
 * parameters are copied in behind it. Each direction has its stream. Without files the tiles run on the update stream
 * of the host's device, and dsc_zero_update returns before they are done. The next forward pass waits group by group.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ZERO_OFFLOAD_HOST_UPDATE_H
#define DSC_ZERO_OFFLOAD_HOST_UPDATE_H

#include "offload/staging.h"
#include "zero/core/options.h"

#define DSC_HOST_SLOTS 3

typedef struct dsc_host_slot {
    void *grad, *param;           /* pinned; a tile each, where they are on the device */
    dsc_event *loaded, *uploaded; /* the inputs of the update are in host memory; the parameters are on the device */
} dsc_host_slot;

typedef struct dsc_host_update {
    dsc_device *device; /* the host's cpu device */
    bool runs_behind;   /* as placement.h says */
    dsc_stream *compute;
    dsc_buf master_buf, moment_buf, slot_buf;
    dsc_host_slot slot[DSC_HOST_SLOTS];
    dsc_staging slots; /* of the slots */
    int32_t next_slot; /* slot of the next tile, whose copy has begun; -1: it has not */
} dsc_host_update;

struct dsc_tile;
void dsc_host_update_plan(dsc_zero *zero);
/* The host's device is there before all streams and events, and goes after them. */
DSC_MUST_USE dsc_status dsc_host_update_open_device(dsc_zero *zero, dsc_error *err);
void dsc_host_update_close_device(dsc_zero *zero);
/* The device of the update stream and of its events. */
dsc_device *dsc_host_update_stream_device(const dsc_zero *zero);
DSC_MUST_USE dsc_status dsc_host_update_open(dsc_zero *zero, dsc_error *err);
void dsc_host_update_close(dsc_zero *zero);

DSC_MUST_USE dsc_status dsc_host_update_begin(dsc_zero *zero, dsc_error *err);
/* The host may read the tile's sums, which are in *slot if they are copied. The copy of the following tile (count 0:
 * none) has begun. */
DSC_MUST_USE dsc_status dsc_host_update_acquire(dsc_zero *zero, const struct dsc_tile *tile,
                                                const struct dsc_tile *following, int32_t *slot, dsc_error *err);
/* The host has updated the tile: the copy of its parameters to the device begins, if they are on the device. */
DSC_MUST_USE dsc_status dsc_host_update_release(dsc_zero *zero, const struct dsc_tile *tile, dsc_error *err);
/* The host has updated the group: gathers, and the uses of whole parameters, follow the copy of its parameters. */
DSC_MUST_USE dsc_status dsc_host_update_publish(dsc_zero *zero, int32_t group, dsc_error *err);
/* Makes the parameters of a group in host memory again from its masters, and waits for it. No update is under way. */
DSC_MUST_USE dsc_status dsc_host_update_round_params(dsc_zero *zero, int32_t group, dsc_error *err);
/* `stream` goes on only after the last update of the group's parameters, or of all groups (-1). If the update runs on
 * the host behind a device's passes, the caller waits too: a stream of the device cannot wait for a host's thread. */
DSC_MUST_USE dsc_status dsc_zero_after_update(dsc_zero *zero, int32_t group, dsc_stream *stream, dsc_error *err);

#endif
