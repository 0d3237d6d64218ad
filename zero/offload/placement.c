/* placement.c - placement.h: questions about the plan, which are answered without any side effect.
 * SPDX-License-Identifier: Apache-2.0 */
#include "zero/core/internal.h"
#include "zero/offload/placement.h"
#include "zero/offload/state_store.h"

#define PARAM_SLOTS 3 /* one is read, one is in use, one is written */

bool dsc_state_store_is_used(const dsc_zero *zero)
{
    for (int s = 0; s < DSC_SPACE_COUNT; s++)
        if (zero->store->space_bytes[s] > 0)
            return true;
    return false;
}

bool dsc_state_store_updates_behind(const dsc_zero *zero)
{
    DSC_ASSERT(zero->o.device != NULL);
    return dsc_state_store_is_used(zero) && dsc_device_host_visible(zero->o.device);
}

bool dsc_state_store_reads_to_windows(const dsc_zero *zero)
{
    return zero->o.swap.param_folder_count > 0 && dsc_device_host_visible(zero->o.device);
}

static int64_t packed_align(const dsc_zero *zero, int64_t bytes)
{
    return dsc_align_up(bytes, dsc_state_store_reads_to_windows(zero) ? DSC_AIO_ALIGN : DSC_LAYOUT_PACKED_ALIGN);
}

int64_t dsc_state_store_packed_start(const dsc_zero *zero, int32_t g)
{
    DSC_ASSERT(dsc_is_packed(zero, g));
    return packed_align(zero, zero->o.layout->group[g].padded * zero->param_bytes_each);
}

/* A rank's slice starts on a block; the same bytes on every rank, since they decide how gathers are planned. */
int64_t dsc_state_store_window_bytes(const dsc_zero *zero, int32_t g)
{
    const dsc_layout_group *group = &zero->o.layout->group[g];
    const int64_t each = dsc_window_bytes_each(zero, g);
    const bool halves = zero->world_size > 1 && group->slice * each % DSC_AIO_ALIGN != 0;
    DSC_ASSERT(group->padded == group->slice * zero->world_size);
    if (dsc_is_packed(zero, g))
        return dsc_state_store_packed_start(zero, g) +
               (dsc_zero_param_is_away(zero, g) ? packed_align(zero, dsc_layout_packed_bytes(group)) : 0);
    if (!dsc_state_store_reads_to_windows(zero))
        return group->padded * each;
    return dsc_align_up(group->padded * each + (halves ? DSC_AIO_ALIGN / 2 : 0), DSC_AIO_ALIGN);
}

int64_t dsc_state_store_window_start(const dsc_zero *zero, int32_t g)
{
    const int64_t before = zero->o.layout->group[g].slice * zero->o.rank * zero->param_bytes_each;
    DSC_ASSERT(g < zero->o.layout->group_count);
    if (dsc_is_packed(zero, g)) /* its file is read behind the window */
        return 0;
    return dsc_state_store_reads_to_windows(zero) ? dsc_align_up(before, DSC_AIO_ALIGN) - before : 0;
}

dsc_piece dsc_state_store_piece(const dsc_zero *zero, int32_t g, dsc_plane plane, int64_t first, int64_t count)
{
    const int64_t each = dsc_plane_bytes_each(zero, plane);
    DSC_ASSERT(dsc_in_swap(zero, g, plane));
    DSC_ASSERT(first >= 0);
    DSC_ASSERT(first + count <= dsc_stored_slice(zero, g, plane));
    return (dsc_piece) { zero->group[g].tiers.at[plane] + first * each, count * each };
}

dsc_piece dsc_state_store_tile_piece(const dsc_zero *zero, int32_t g, dsc_plane plane, int64_t first)
{
    DSC_ASSERT(zero->store->tile_elements > 0);
    DSC_ASSERT(first % zero->store->tile_elements == 0);
    const int64_t count = dsc_min_i64(zero->store->tile_elements, dsc_stored_slice(zero, g, plane) - first);
    return count > 0 ? dsc_state_store_piece(zero, g, plane, first, count) : (dsc_piece) { 0, 0 };
}

int64_t dsc_state_store_slots_bytes(const dsc_zero *zero, dsc_plane plane, int32_t slot_count)
{
    DSC_ASSERT(slot_count >= 0);
    return slot_count * zero->store->tile_elements * dsc_plane_bytes_each(zero, plane);
}

/* Parameters pass to their windows a tile at a time; an update writes them with the other states. */
int32_t dsc_state_store_slot_count(const dsc_zero *zero, dsc_plane plane)
{
    const int32_t most = plane == DSC_PLANE_PARAM ? PARAM_SLOTS : DSC_TILE_BUFFERS_MAX;
    DSC_ASSERT(zero->store->slot_count <= DSC_TILE_BUFFERS_MAX);
    return (int32_t)dsc_min_i64(zero->store->slot_count, most);
}

int64_t dsc_state_store_tile_buffers_bytes(const dsc_zero *zero, dsc_plane plane)
{
    DSC_ASSERT(zero->store->tile_elements * dsc_plane_bytes_each(zero, plane) % DSC_AIO_ALIGN == 0);
    return dsc_state_store_slots_bytes(zero, plane, dsc_state_store_slot_count(zero, plane));
}

/* Parameters in bf16 are made from the master weights. */
bool dsc_state_store_is_read(const dsc_zero *zero, dsc_plane plane)
{
    DSC_ASSERT(plane < DSC_PLANE_COUNT);
    return plane != DSC_PLANE_PARAM || zero->o.compute_dtype == DSC_F32;
}

/* The update's, of a plane. */
dsc_tile_buffers *dsc_state_store_tile_buffers(dsc_zero *zero, dsc_plane plane)
{
    DSC_ASSERT(plane < DSC_PLANE_COUNT);
    if (plane == DSC_PLANE_GRAD && zero->store->update_sums.swap != NULL)
        return &zero->store->update_sums;
    return plane == DSC_PLANE_PARAM ? &zero->store->update_params : &zero->store->buffers[plane];
}

bool dsc_host_update_updates(const dsc_zero *zero, int32_t g)
{
    DSC_ASSERT(g >= 0);
    DSC_ASSERT(g < zero->o.layout->group_count);
    return zero->group[g].tiers.swap_states && !dsc_device_host_visible(zero->o.device);
}

bool dsc_host_update_is_used(const dsc_zero *zero)
{
    for (int32_t g = 0; g < zero->o.layout->group_count; g++)
        if (dsc_host_update_updates(zero, g))
            return true;
    return false;
}

/* Files have buffers of their own between host and device, and other recipes read all tiles before the first update. */
bool dsc_host_update_runs_behind(const dsc_zero *zero)
{
    const dsc_zero_options *o = &zero->o;
    DSC_ASSERT(o->layout != NULL);
    return o->overlap && dsc_host_update_is_used(zero) && !dsc_state_store_is_used(zero) &&
           zero->optimizer_count == 0 && dsc_recipes[o->recipe].needs == DSC_NEEDS_NOTHING;
}

/* Passes of an optimizer read tiles before the first update, and the compute stream does. */
bool dsc_update_runs_late(const dsc_zero *zero)
{
    const dsc_zero_options *o = &zero->o;
    DSC_ASSERT(o->layout != NULL);
    return o->late_update && !dsc_device_host_visible(o->device) && !dsc_host_update_is_used(zero) &&
           !dsc_state_store_is_used(zero) && !o->swap.params_on_host && zero->optimizer_count == 0 &&
           dsc_recipes[o->recipe].needs == DSC_NEEDS_NOTHING;
}

/* The binary counter of sums that do not depend on W needs all of its levels at hand, so these stay. */
static bool leaves_device(const dsc_zero *zero, int32_t g)
{
    return dsc_host_update_updates(zero, g) && !zero->o.world_size_reproducible;
}

bool dsc_grad_staging_passes(const dsc_zero *zero, int32_t g)
{
    DSC_ASSERT(g >= 0 && g < zero->o.layout->group_count);
    return leaves_device(zero, g) || (dsc_in_swap(zero, g, DSC_PLANE_GRAD) && zero->o.sum_dtype != DSC_F32);
}

bool dsc_grad_staging_in_host_memory(const dsc_zero *zero, int32_t g)
{
    return leaves_device(zero, g) && !dsc_in_swap(zero, g, DSC_PLANE_GRAD);
}

bool dsc_grad_staging_is_offloaded(const dsc_zero *zero, int32_t g)
{
    DSC_ASSERT(g >= 0 && g < zero->o.layout->group_count);
    return dsc_in_swap(zero, g, DSC_PLANE_GRAD) || dsc_grad_staging_in_host_memory(zero, g);
}

bool dsc_host_update_brings(const dsc_zero *zero, int32_t g, int plane)
{
    DSC_ASSERT(plane >= 0);
    DSC_ASSERT(plane < DSC_PLANE_COUNT);
    if (!dsc_host_update_updates(zero, g))
        return false;
    return (plane == DSC_PLANE_GRAD && !dsc_grad_staging_is_offloaded(zero, g)) ||
           (plane == DSC_PLANE_PARAM && !dsc_zero_param_is_away(zero, g));
}

/* Passes over whole tensors read sums too. */
bool dsc_update_reads_bf16_sums(const dsc_zero *zero)
{
    DSC_ASSERT(zero->o.layout != NULL);
    return zero->o.sum_dtype == DSC_BF16 && zero->optimizer_count == 0;
}

/* Clipping and hpZ's second parts of parameters come after the norm. In fp32 parameters are masters on the device. */
bool dsc_speculative_memory_is_used(const dsc_zero *zero)
{
    const dsc_zero_options *o = &zero->o;
    DSC_ASSERT(o->swap.early_share >= 0 && o->swap.early_share <= 1);
    return o->swap.early_update && o->swap.unclipped && o->swap.early_share > 0 && dsc_host_update_runs_behind(zero) &&
           !o->world_size_reproducible && o->compute_dtype != DSC_F32 && o->moment_dtype != DSC_U8 &&
           dsc_recipes[o->recipe].state_count <= DSC_UPDATE_STATES_U8 && o->neighbour_count <= 1;
}

bool dsc_speculative_memory_covers(const dsc_zero *zero, int32_t g)
{
    DSC_ASSERT(g >= 0 && g < zero->o.layout->group_count);
    return zero->o.layout->group[g].trainable && dsc_grad_staging_in_host_memory(zero, g);
}

bool dsc_speculative_update_is_used(const dsc_zero *zero)
{
    const dsc_zero_options *o = &zero->o;
    return o->swap.early_update && dsc_device_host_visible(o->device) && o->overlap && !o->world_size_reproducible &&
           o->swap.state_folder_count > 0 && o->swap.param_folder_count > 0 &&
           o->moment_dtype != DSC_U8 && /* an absmax has one place in memory, and is not undone */
           o->average_share == 0 &&     /* likewise an average */
           dsc_recipes[o->recipe].needs == DSC_NEEDS_NOTHING;
}

/* All planes that an update writes are in files. Sums may be, in a step of several passes: under the last one files
 * have little else to do then. In a step of one pass those wait for the next forward pass, when files have time. */
bool dsc_speculative_update_covers(const dsc_zero *zero, int32_t g)
{
    const bool has_sum =
        dsc_in_swap(zero, g, DSC_PLANE_GRAD) || (zero->pass_count > 1 && zero->group[g].tiers.sum_in_memory);
    DSC_ASSERT(!zero->group[g].tiers.sum_in_memory || zero->group[g].tiers.swap_states);
    return dsc_speculative_update_is_used(zero) && dsc_in_swap(zero, g, DSC_PLANE_PARAM) && has_sum;
}

bool dsc_speculative_update_targets(const dsc_zero *zero, int32_t g)
{
    DSC_ASSERT(g >= 0 && g < zero->o.layout->group_count);
    return zero->o.swap.unclipped && dsc_speculative_update_covers(zero, g) && zero->o.sum_dtype == DSC_F32;
}

bool dsc_speculative_update_covers_sum(const dsc_zero *zero, int32_t g)
{
    return dsc_speculative_update_targets(zero, g) && dsc_in_swap(zero, g, DSC_PLANE_GRAD);
}
