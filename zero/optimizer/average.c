/* average.c - see average.h. SPDX-License-Identifier: Apache-2.0 */
#include "zero/optimizer/average.h"

#include <string.h>

#include "zero/core/internal.h"
#include "zero/core/tile.h"

static bool is_needed(const dsc_zero *zero) { return zero->o.average_share > 0; }

static int64_t elements_of(const dsc_zero *zero, bool offloaded)
{
    int64_t elements = 0;
    for (int32_t g = 0; g < zero->o.layout->group_count; g++)
        if (zero->o.layout->group[g].trainable && zero->group[g].tiers.swap_states == offloaded)
            elements += zero->o.layout->group[g].slice;
    DSC_ASSERT(elements >= 0);
    return elements;
}

enum { NEEDS = 4 };
static void list_needs(dsc_zero *zero, dsc_need out[NEEDS])
{
    dsc_average *a = zero->average;
    const bool visible = dsc_device_host_visible(zero->o.device);
    const dsc_need needs[NEEDS] = {
        { &a->device_buf, DSC_TAG_MOMENT, DSC_TIER_DEVICE, elements_of(zero, false) * 4, DSC_NEED_DEVICE },
        { &a->host_buf, DSC_TAG_MOMENT, DSC_TIER_PINNED, elements_of(zero, true) * 4, DSC_NEED_DEVICE },
        { &a->exchange_buf, DSC_TAG_SCRATCH, DSC_TIER_DEVICE, visible ? 0 : DSC_AVERAGE_EXCHANGE_ELEMENTS * 4,
          DSC_NEED_DEVICE },
        { &a->group, DSC_TAG_CONTROL, DSC_TIER_HOST, zero->o.layout->group_count * (int64_t)sizeof *a->group,
          DSC_NEED_SMALL },
    };
    memcpy(out, needs, sizeof needs);
}

static dsc_status plan(dsc_zero *zero, dsc_error *err)
{
    dsc_need needs[NEEDS];
    (void)err;
    list_needs(zero, needs);
    dsc_needs_plan(&zero->needs, needs, NEEDS);
    return DSC_OK;
}

static dsc_status open(dsc_zero *zero, dsc_error *err)
{
    dsc_need needs[NEEDS];
    list_needs(zero, needs);
    DSC_TRY(dsc_needs_open(&zero->needs, needs, NEEDS, err));
    float *device = zero->average->device_buf.ptr, *host = zero->average->host_buf.ptr;
    for (int32_t g = 0; g < zero->o.layout->group_count; g++) {
        float **from = zero->group[g].tiers.swap_states ? &host : &device;
        if (!zero->o.layout->group[g].trainable)
            continue;
        zero->average->group[g] = *from;
        *from += zero->o.layout->group[g].slice;
    }
    DSC_ASSERT((char *)device == (char *)zero->average->device_buf.ptr + zero->average->device_buf.bytes);
    DSC_ASSERT((char *)host == (char *)zero->average->host_buf.ptr + zero->average->host_buf.bytes);
    return DSC_OK;
}

static void close(dsc_zero *zero)
{
    dsc_need needs[NEEDS];
    list_needs(zero, needs);
    dsc_needs_close(&zero->needs, needs, NEEDS);
}

/* All groups of the update before have been updated: their modules have run since. */
static dsc_status before_update(dsc_zero *zero, dsc_update_terms *terms, bool *complete, dsc_error *err)
{
    (void)terms;
    (void)complete;
    (void)err;
    DSC_ASSERT(!zero->sums_are_own); /* such optimizers make updates without tiles */
    zero->average->share = zero->average->started ? zero->o.average_share : 1;
    zero->average->started = true;
    return DSC_OK;
}

/* At stage 0 tiles have all elements of a group, of which this rank averages its slice. */
static dsc_status after_tile(dsc_zero *zero, const dsc_tile *tile, dsc_error *err)
{
    const int64_t slice = zero->o.layout->group[tile->group].slice, slice_first = slice * zero->o.rank;
    const int64_t first = dsc_max_i64(tile->first, slice_first);
    const int64_t end = dsc_min_i64(tile->first + tile->count, slice_first + slice);
    if (first >= end)
        return DSC_OK;
    DSC_ASSERT(zero->average->group[tile->group] != NULL);
    const dsc_average_args args = { .average = zero->average->group[tile->group] + (first - slice_first),
                                    .value = tile->master + (first - tile->first),
                                    .count = end - first,
                                    .share = zero->average->share };
    return DSC_RUN(tile->stream, AVERAGE, &args, err);
}

const dsc_zero_pass_ops dsc_average_pass = {
    .name = "average",
    .is_needed = is_needed,
    .plan = plan,
    .open = open,
    .close = close,
    .before_update = before_update,
    .after_tile = after_tile,
};
