/* averages.c - moving averages of weights between updates: for checkpoints, and in the place of the weights.
 * SPDX-License-Identifier: Apache-2.0 */
#include "zero/core/internal.h"
#include "zero/offload/state_store.h"
#include "zero/optimizer/average.h"
#include "zero/zero.h"

static bool has_average(const dsc_zero *zero) { return zero->o.average_share > 0; }

float *dsc_zero_average(const dsc_zero *zero, int32_t group, int64_t first)
{
    DSC_ASSERT(group >= 0 && group < zero->o.layout->group_count);
    DSC_ASSERT(first >= 0 && first < zero->o.layout->group[group].slice);
    if (!has_average(zero) || !zero->o.layout->group[group].trainable)
        return NULL;
    return zero->average->group[group] + first;
}

bool dsc_zero_has_averages(const dsc_zero *zero)
{
    DSC_ASSERT(has_average(zero) || !zero->average->started);
    return zero->average->started;
}

void dsc_zero_set_averages(dsc_zero *zero, bool present)
{
    DSC_ASSERT(has_average(zero) || !present);
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
        count = visible ? slice - first : dsc_min_i64(slice - first, DSC_AVERAGE_EXCHANGE_ELEMENTS);
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
