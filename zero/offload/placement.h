/* placement.h - the tier of each state of a group in the plan: device, host memory or files.
 *
 * All functions read the options and the plan, and change nothing. The planner, the streams' work and the traffic
 * report ask the same questions here, so that their answers agree. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ZERO_OFFLOAD_PLACEMENT_H
#define DSC_ZERO_OFFLOAD_PLACEMENT_H

#include "offload/tile_buffers.h"
#include "zero/core/planes.h"

/* ---- files ---- */

bool dsc_state_store_is_used(const dsc_zero *zero); /* some state is in files */
/* The update may still read and write files after dsc_zero_update has returned. */
bool dsc_state_store_updates_behind(const dsc_zero *zero);
/* Parameter files are read into the windows of gathers, without a buffer between. */
bool dsc_state_store_reads_to_windows(const dsc_zero *zero);
/* Such a window starts and ends on whole file blocks. The bytes of the window of a group, and the offset in the window
 * at which the group begins. */
int64_t dsc_state_store_window_bytes(const dsc_zero *zero, int32_t group);
int64_t dsc_state_store_window_start(const dsc_zero *zero, int32_t group);
/* The offset in the window of a packed group at which its packed slice is brought, if it is away from the device. */
int64_t dsc_state_store_packed_start(const dsc_zero *zero, int32_t group);
/* The bytes in a swap file of elements of a group's plane; `first` counts from the start of this rank's slice. */
dsc_piece dsc_state_store_piece(const dsc_zero *zero, int32_t group, dsc_plane plane, int64_t first, int64_t count);
/* The tile of this rank's slice that starts at `first`; 0 bytes after the end of the slice. */
dsc_piece dsc_state_store_tile_piece(const dsc_zero *zero, int32_t group, dsc_plane plane, int64_t first);
/* Bytes of `slot_count` tile buffers of a plane; the number of tile buffers that a plane has, and their bytes. */
int64_t dsc_state_store_slots_bytes(const dsc_zero *zero, dsc_plane plane, int32_t slot_count);
int32_t dsc_state_store_slot_count(const dsc_zero *zero, dsc_plane plane);
int64_t dsc_state_store_tile_buffers_bytes(const dsc_zero *zero, dsc_plane plane);
/* The update reads this plane, and does not only write it. */
bool dsc_state_store_is_read(const dsc_zero *zero, dsc_plane plane);
/* The tile buffers that the update uses for a plane; their swap is NULL where the plane needs none. */
dsc_tile_buffers *dsc_state_store_tile_buffers(dsc_zero *zero, dsc_plane plane);

/* ---- host memory ---- */

/* The host updates the group, because its states are offloaded from a device whose memory the host cannot reach. */
bool dsc_host_update_updates(const dsc_zero *zero, int32_t group);
bool dsc_host_update_is_used(const dsc_zero *zero);
/* The host may still update after dsc_zero_update has returned, while the device is in the next forward pass. */
bool dsc_host_update_runs_behind(const dsc_zero *zero);
/* An update by the device continues after dsc_zero_update has returned, on a stream of its own. */
bool dsc_update_runs_late(const dsc_zero *zero);
/* And sums or parameters of the group (`plane`) pass through the slots of host_update.h. */
bool dsc_host_update_brings(const dsc_zero *zero, int32_t group, int plane);

/* ---- sums of gradients ---- */

/* The sums of the group are not in zero->buf.grad; also where the host reaches the device. */
bool dsc_grad_staging_is_offloaded(const dsc_zero *zero, int32_t group);
bool dsc_grad_staging_in_host_memory(const dsc_zero *zero, int32_t group);
/* And they pass through the slots of grad_staging.h. */
bool dsc_grad_staging_passes(const dsc_zero *zero, int32_t group);

/* The update reads bf16 sums of offloaded groups as they are, without a copy in fp32. */
bool dsc_update_reads_bf16_sums(const dsc_zero *zero);

/* ---- early update in host memory ---- */

bool dsc_speculative_memory_is_used(const dsc_zero *zero);
/* The group's update may begin under the last backward pass, if there is a second place for its states. */
bool dsc_speculative_memory_covers(const dsc_zero *zero, int32_t group);

/* ---- speculative update ---- */

bool dsc_speculative_update_is_used(const dsc_zero *zero);
bool dsc_speculative_update_covers(const dsc_zero *zero, int32_t group);
/* The speculative update shall update the group before a gather requests its parameters. */
bool dsc_speculative_update_targets(const dsc_zero *zero, int32_t group);
/* And the sum is delivered to the update instead of its file. */
bool dsc_speculative_update_covers_sum(const dsc_zero *zero, int32_t group);

#endif
