/* hpz.c - ZeRO++'s second partition (hpZ): parameters that stage 3 has gathered from all ranks once stay among
 * neighbours, and further gathers of them do not leave the host.
 *
 * Ranks g*k .. g*k + k - 1 are neighbours. The window of the first gather after an update is kept in k-ths:
 * the i-th of the neighbours has elements [i, i + 1) * padded / k, in device memory. Until the next update every gather
 * of that group is an all-gather among the k. Windows hold the same bits as without it, packed or not. Which gather is
 * the first is the same on all ranks, because all run the same order. Source: ZeRO++ (arXiv:2306.10209), section 3.2.
 * SPDX-License-Identifier: Apache-2.0 */
#include "zero/core/internal.h"
#include "zero/hpz.h"

#define KEPT_ALIGN 256

/* Elements that a neighbour keeps. */
static int64_t kept_elements(const dsc_zero *zero, int32_t group)
{
    DSC_ASSERT(zero->o.layout->group[group].padded % zero->o.neighbour_count == 0);
    return zero->o.layout->group[group].slice * (zero->world_size / zero->o.neighbour_count);
}

/* Offsets of the parts of groups, and the buffer of all parts. */
static dsc_need place_parts(dsc_zero *zero)
{
    int64_t bytes = 0;
    for (int32_t g = 0; g < zero->o.layout->group_count && zero->o.neighbour_count > 1; g++) {
        zero->group[g].hpz.at = bytes;
        if (dsc_gather_is_windowed(zero, g) && !dsc_is_packed(zero, g)) /* packed ones would be kept unpacked */
            bytes += dsc_align_up(kept_elements(zero, g) * zero->param_bytes_each, KEPT_ALIGN);
        DSC_ASSERT(zero->group[g].hpz.at % KEPT_ALIGN == 0);
    }
    return (dsc_need) { &zero->buf.hpz, DSC_TAG_GATHER, DSC_TIER_DEVICE, bytes, DSC_NEED_NEIGHBOURS };
}

void dsc_hpz_plan(dsc_zero *zero)
{
    const dsc_need need = place_parts(zero);
    DSC_ASSERT(need.bytes == 0 || zero->o.neighbour_count > 1);
    dsc_zero_plan_needs(zero, &need, 1);
}

dsc_status dsc_hpz_open(dsc_zero *zero, dsc_error *err)
{
    if (zero->o.neighbour_count <= 1)
        return DSC_OK;
    DSC_ASSERT(dsc_comm_size(zero->o.neighbours) == zero->o.neighbour_count);
    DSC_ASSERT(dsc_comm_rank(zero->o.neighbours) == zero->o.rank % zero->o.neighbour_count);
    const dsc_need need = place_parts(zero);
    return dsc_needs_open(&zero->needs, &need, 1, err);
}

void dsc_hpz_close(dsc_zero *zero)
{
    const dsc_need need = { &zero->buf.hpz, DSC_TAG_GATHER, DSC_TIER_DEVICE, 0, DSC_NEED_NEIGHBOURS };
    DSC_ASSERT(zero->o.neighbour_count > 1 || zero->buf.hpz.ptr == NULL);
    dsc_needs_close(&zero->needs, &need, 1);
}

dsc_status dsc_hpz_keep(dsc_zero *zero, int32_t group, const char *window, dsc_error *err)
{
    dsc_group_state *state = &zero->group[group];
    if (zero->o.neighbour_count <= 1)
        return DSC_OK;
    const int64_t bytes = kept_elements(zero, group) * zero->param_bytes_each;
    DSC_ASSERT(state->hpz.at + bytes <= zero->buf.hpz.bytes);
    DSC_ASSERT(dsc_gather_is_windowed(zero, group));
    state->hpz.is_current = true;
    return dsc_copy(zero->stream.gather, (char *)zero->buf.hpz.ptr + state->hpz.at,
                    window + zero->o.rank % zero->o.neighbour_count * bytes, bytes, err);
}

dsc_status dsc_hpz_gather(dsc_zero *zero, int32_t group, char *window, dsc_error *err)
{
    DSC_ASSERT(zero->o.neighbour_count > 1);
    DSC_ASSERT(zero->group[group].hpz.is_current);
    dsc_comm_label_module(zero->o.neighbours, 0, zero->o.layout->group[group].module);
    return dsc_comm_all_gather(zero->o.neighbours, 0, window, (char *)zero->buf.hpz.ptr + zero->group[group].hpz.at,
                               kept_elements(zero, group), zero->o.compute_dtype, zero->stream.gather, err);
}

void dsc_hpz_forget(dsc_zero *zero, bool frozen)
{
    for (int32_t g = 0; g < zero->o.layout->group_count; g++)
        if (frozen || zero->o.layout->group[g].trainable)
            zero->group[g].hpz.is_current = false;
}
