/* traffic.c - the bytes that an optimizer step moves, counted from the lists that the step follows.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "zero/core/internal.h"
#include "zero/offload/grad_staging.h"
#include "zero/offload/placement.h"
#include "zero/fp8_gather.h"
#include "zero/traffic.h"
#include "zero/zero.h"

/* How often a pass brings the group to a window, or adds a part to its sum. */
static int64_t windows_of(const dsc_zero *zero, int32_t g)
{
    DSC_ASSERT(g < zero->o.layout->group_count);
    int64_t count = 0;
    for (int32_t i = 0; i < zero->gathers.count; i++)
        count += zero->gathers.gather[i].group == g;
    return count;
}

static int64_t parts_of(const dsc_zero *zero, int32_t g)
{
    int64_t count = 0;
    for (int32_t i = zero->group[g].sums.newest_part; i >= 0; i = zero->parts.part[i].before)
        count++;
    DSC_ASSERT(count <= zero->parts.count);
    return count;
}

/* How often a step reads the offloaded sum of a group, and writes it. */
static void sums_of(const dsc_zero *zero, int32_t g, int64_t *reads, int64_t *writes, bool *held)
{
    *reads = *writes = 0;
    *held = false; /* by the last part, instead of a write */
    for (int32_t i = zero->group[g].sums.newest_part; i >= 0; i = zero->parts.part[i].before) {
        const dsc_grad_part *part = &zero->parts.part[i];
        DSC_ASSERT(part->group == g);
        *reads += part->sum_is_staged ? 0 : zero->pass_count - dsc_grad_part_is_first(part);
        const bool kept =
            part->holds_sum || (dsc_grad_part_is_last(zero, part) && dsc_speculative_update_covers_sum(zero, g));
        *writes += part->sum_stays_staged ? 0 : zero->pass_count - kept;
        *held = *held || kept;
    }
    DSC_ASSERT(*reads >= 0);
    DSC_ASSERT(*writes >= 0);
}

/* Bytes of a rank's slice on the wire. */
static int64_t wire_bytes(dsc_quant quant, int64_t slice, dsc_dtype dtype)
{
    DSC_ASSERT(slice % DSC_LAYOUT_SLICE_ALIGN == 0);
    return quant != DSC_QUANT_NONE ? dsc_quant_bytes(quant, slice) : slice * (int64_t)dsc_dtype_bytes(dtype);
}

/* With hpZ, the first gather after an update is from all ranks. */
static void add_windows(const dsc_zero *zero, int32_t g, int64_t windows, dsc_zero_traffic *out)
{
    const dsc_layout_group *group = &zero->o.layout->group[g];
    const int64_t neighbours = zero->o.neighbour_count, first = group->trainable ? 1 : 0;
    const bool packed = dsc_is_packed(zero, g);
    const int64_t from_all = neighbours > 1 && !packed ? dsc_min_i64(first, windows) : windows;
    DSC_ASSERT(from_all <= windows);
    DSC_ASSERT(neighbours <= 1 || group->padded % neighbours == 0);
    out->wire_bytes += from_all * (zero->world_size - 1) *
                       (packed ? dsc_nf4_bytes(group->packed, group->slice)
                        : dsc_is_gathered_in_fp8(zero, g)
                            ? group->slice
                            : wire_bytes(dsc_pack_of_params(zero, g), group->slice, zero->o.compute_dtype));
    if (dsc_is_gathered_in_fp8(zero, g) && windows > 0)
        out->wire_bytes += first * (zero->world_size - 1) * dsc_fp8_gather_tops_bytes(zero, g);
    if (neighbours <= 1)
        return;
    const int64_t bytes = (windows - from_all) * (group->padded - group->padded / neighbours) * zero->param_bytes_each;
    out->wire_bytes += bytes;
    out->neighbour_bytes += bytes;
}

static void add_wire(const dsc_zero *zero, int32_t g, int64_t passes, dsc_zero_traffic *out)
{
    const dsc_layout_group *group = &zero->o.layout->group[g];
    const int64_t others = group->padded - group->slice, each = zero->param_bytes_each;
    const int64_t ranks = zero->world_size - 1;
    DSC_ASSERT(others == ranks * group->slice);
    out->wire_bytes +=
        passes * parts_of(zero, g) * ranks * wire_bytes(zero->o.quant_grad_parts, group->slice, zero->o.wire_dtype);
    if (group->trainable && zero->o.replica_count > 1) { /* to the part's owner among them, and back */
        const int64_t copies = zero->o.replica_count, bytes = (copies - 1) * (group->slice / copies) * 2 * 4;
        out->wire_bytes += bytes;
        out->replica_bytes += bytes;
    }
    if (zero->o.stage == 0)
        out->wire_bytes += group->trainable ? others * 4 : 0; /* whole sums; every rank updates all */
    else if (zero->group[g].param_whole)
        out->wire_bytes += group->trainable ? others * each : 0;
    else
        add_windows(zero, g, passes * windows_of(zero, g), out);
}

/* How often an update reads what it works on: each of a recipe's needs is met by a pass before. */
static int64_t update_passes(const dsc_zero *zero, int32_t g)
{
    int64_t passes = 1;
    for (uint32_t needs = dsc_recipes[dsc_group_recipe(zero, g)].needs; needs != 0; needs &= needs - 1)
        passes++;
    return passes;
}

static void add_files(const dsc_zero *zero, int32_t g, int64_t passes, dsc_zero_traffic *out)
{
    const bool trainable = zero->o.layout->group[g].trainable, fp32 = zero->o.compute_dtype == DSC_F32;
    const int64_t slice = zero->o.layout->group[g].slice, sum_bytes = dsc_plane_bytes_each(zero, DSC_PLANE_GRAD);
    const int64_t rounds = update_passes(zero, g);
    if (dsc_in_swap(zero, g, DSC_PLANE_PARAM)) {
        const int64_t stored = dsc_stored_slice(zero, g, DSC_PLANE_PARAM);
        const int64_t bytes = stored * zero->param_bytes_each, windows = windows_of(zero, g);
        const bool handed = trainable && windows > 0 &&
                            dsc_state_store_updates_behind(zero) &&   /* to the step's first one, */
                            !dsc_speculative_update_targets(zero, g); /* unless it is updated before a request */
        DSC_ASSERT(!handed || passes * windows > 0);
        out->pass_read_bytes += (passes * windows - handed) * bytes;
        out->update_read_bytes += trainable && fp32 ? rounds * bytes : 0;
        out->update_written_bytes += trainable ? bytes : 0;
    }
    if (dsc_in_swap(zero, g, DSC_PLANE_GRAD)) {
        int64_t reads, writes;
        bool held;
        sums_of(zero, g, &reads, &writes, &held);
        out->pass_read_bytes += reads * slice * sum_bytes;
        out->pass_written_bytes += writes * slice * sum_bytes;
        out->update_read_bytes += held ? 0 : rounds * slice * sum_bytes;
    }
    for (int p = DSC_PLANE_MASTER; p <= DSC_PLANE_MOMENT3; p++)
        if (dsc_in_swap(zero, g, (dsc_plane)p)) {
            const int64_t bytes = slice * dsc_plane_bytes_each(zero, (dsc_plane)p);
            out->update_read_bytes += rounds * bytes;
            out->update_written_bytes += bytes;
        }
}

/* Bytes between a GPU and its host: sums move in and out with each part, parameters with each window. Planes on the
 * device pass when the host updates them. */
static void add_link(const dsc_zero *zero, int32_t g, int64_t passes, dsc_zero_traffic *out)
{
    const bool trainable = zero->o.layout->group[g].trainable, fp32 = zero->o.compute_dtype == DSC_F32;
    const bool by_host = dsc_host_update_updates(zero, g), away = dsc_zero_param_is_away(zero, g);
    const int64_t slice = zero->o.layout->group[g].slice,
                  param_bytes = dsc_stored_slice(zero, g, DSC_PLANE_PARAM) * zero->param_bytes_each;
    const int64_t sum_bytes = dsc_plane_bytes_each(zero, DSC_PLANE_GRAD);
    if (dsc_device_host_visible(zero->o.device))
        return;
    DSC_ASSERT(!dsc_in_swap(zero, g, DSC_PLANE_PARAM) || away);
    if (away)
        out->to_device_bytes += passes * windows_of(zero, g) * param_bytes;
    if (dsc_grad_staging_is_offloaded(zero, g)) {
        int64_t reads, writes;
        bool held;
        sums_of(zero, g, &reads, &writes, &held);
        if (zero->group[g].staging->stays) {
            reads = 0;
            writes = 1;
        }
        out->to_device_bytes += reads * slice * sum_bytes;
        out->to_host_bytes += writes * slice * sum_bytes;
    }
    if (dsc_host_update_brings(zero, g, DSC_PLANE_GRAD))
        out->to_host_bytes += update_passes(zero, g) * slice * 4;
    if (trainable && by_host != away) { /* updated on another tier than the parameters; in fp32 they are read too */
        *(by_host ? &out->to_device_bytes : &out->to_host_bytes) += param_bytes;
        *(by_host ? &out->to_host_bytes : &out->to_device_bytes) += fp32 ? update_passes(zero, g) * param_bytes : 0;
    }
}

void dsc_traffic_plan(const dsc_zero *zero, dsc_zero_traffic *out)
{
    *out = (dsc_zero_traffic) { 0 };
    for (int32_t i = 0; i < zero->optimizer_count; i++)
        if (zero->optimizer[i]->wire_bytes != NULL)
            *(zero->optimizer[i]->replaces_sums ? &out->signs_bytes : &out->wire_bytes) +=
                zero->optimizer[i]->wire_bytes(zero);
    for (int32_t g = 0; g < zero->o.layout->group_count; g++) {
        add_wire(zero, g, zero->pass_count, out);
        add_files(zero, g, zero->pass_count, out);
        add_link(zero, g, zero->pass_count, out);
        out->updated_elements += zero->o.layout->group[g].trainable ? zero->group[g].local_count : 0;
    }
    DSC_ASSERT(out->neighbour_bytes <= out->wire_bytes);
    DSC_ASSERT(out->replica_bytes <= out->wire_bytes);
}

void dsc_kept_plan(const dsc_zero *zero, dsc_zero_kept *out)
{
    const bool away = zero->o.swap.state_folder_count > 0 || zero->o.swap.states_on_host;
    *out = (dsc_zero_kept) { 0 };
    for (int32_t g = 0; g < zero->o.layout->group_count; g++) {
        const int64_t slice = zero->o.layout->group[g].slice;
        if (!zero->o.layout->group[g].trainable)
            continue;
        const bool states_stay = away && !zero->group[g].tiers.swap_states;
        if (out->group_count == 0 && away && !states_stay && zero->o.swap.state_share < 1)
            out->first_elements = slice;
        out->group_count++;
        out->elements += slice;
        out->state_groups += states_stay;
        out->state_elements += states_stay ? slice : 0;
        out->sum_groups += zero->group[g].tiers.sum_in_memory;
        out->sum_elements += zero->group[g].tiers.sum_in_memory ? slice : 0;
    }
    DSC_ASSERT(out->state_elements + out->sum_elements <= out->elements);
    DSC_ASSERT(out->state_groups + out->sum_groups <= out->group_count);
}

double dsc_zero_first_share(const dsc_zero_kept *kept)
{
    if (kept->first_elements == 0)
        return 1;
    DSC_ASSERT(kept->first_elements <= kept->elements);
    return floor((1 - (double)kept->first_elements / (double)kept->elements) * 1e4) * 1e-4;
}
