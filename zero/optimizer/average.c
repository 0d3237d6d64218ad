/* average.c - see average.h. SPDX-License-Identifier: Apache-2.0 */
#include "zero/optimizer/average.h"

#include <string.h>

#include "zero/core/internal.h"
#include "zero/core/tile.h"
#include "zero/offload/state_store.h"
#include "zero/zero.h"

#define EXCHANGE_ELEMENTS (1 << 18)

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
        { &a->exchange_buf, DSC_TAG_SCRATCH, DSC_TIER_DEVICE, visible ? 0 : EXCHANGE_ELEMENTS * 4, DSC_NEED_DEVICE },
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

/* ---- outside of updates ---- */

float *dsc_zero_average(const dsc_zero *zero, int32_t group, int64_t first)
{
    DSC_ASSERT(group >= 0 && group < zero->o.layout->group_count);
    DSC_ASSERT(first >= 0 && first < zero->o.layout->group[group].slice);
    if (!is_needed(zero) || !zero->o.layout->group[group].trainable)
        return NULL;
    return zero->average->group[group] + first;
}

bool dsc_zero_has_averages(const dsc_zero *zero)
{
    DSC_ASSERT(is_needed(zero) || !zero->average->started);
    return zero->average->started;
}

void dsc_zero_set_averages(dsc_zero *zero, bool present)
{
    DSC_ASSERT(is_needed(zero) || !present);
    zero->average->started = present;
}

static void exchange_in_place(float *weights, float *averages, int64_t count)
{
    DSC_ASSERT(count > 0);
    for (int64_t i = 0; i < count; i++) {
        const float kept = weights[i];
        weights[i] = averages[i];
        averages[i] = kept;
    }
}

static dsc_status exchange_group(dsc_zero *zero, int32_t g, dsc_error *err)
{
    const int64_t slice = zero->o.layout->group[g].slice;
    const bool visible = dsc_device_host_visible(zero->o.device);
    float *const between = zero->average->exchange_buf.ptr;
    for (int64_t first = 0, count; first < slice; first += count) {
        void *weights;
        float *const averages = zero->average->group[g] + first;
        count = visible ? slice - first : dsc_min_i64(slice - first, EXCHANGE_ELEMENTS);
        DSC_TRY(dsc_zero_view(zero, g, DSC_PLANE_MASTER, first, &count, true, &weights, err));
        DSC_ASSERT(count > 0);
        if (visible) {
            exchange_in_place(weights, averages, count);
            continue;
        }
        DSC_TRY(dsc_copy(zero->o.compute, between, weights, count * 4, err));
        DSC_TRY(dsc_copy(zero->o.compute, weights, averages, count * 4, err));
        DSC_TRY(dsc_copy(zero->o.compute, averages, between, count * 4, err));
        DSC_TRY(dsc_stream_sync(zero->o.compute, err));
    }
    return DSC_OK;
}

dsc_status dsc_zero_exchange_averages(dsc_zero *zero, dsc_error *err)
{
    DSC_ASSERT(dsc_zero_has_averages(zero));
    DSC_TRY(dsc_zero_sync(zero, err));
    for (int32_t g = 0; g < zero->o.layout->group_count; g++)
        if (zero->o.layout->group[g].trainable)
            DSC_TRY(exchange_group(zero, g, err));
    DSC_TRY(dsc_state_store_settle(zero, err));
    return dsc_zero_republish(zero, err);
}
