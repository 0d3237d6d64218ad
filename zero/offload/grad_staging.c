/* grad_staging.c - see grad_staging.h. SPDX-License-Identifier: Apache-2.0 */
#include "zero/core/internal.h"
#include "zero/core/tile.h"
#include "zero/offload/grad_staging.h"
#include "zero/offload/placement.h"
#include "zero/offload/state_store.h"

static int64_t slot_bytes(const dsc_zero *zero)
{
    const int64_t narrow = zero->o.sum_dtype == DSC_F32 ? 0 : (int64_t)dsc_dtype_bytes(zero->o.sum_dtype);
    DSC_ASSERT(narrow <= 2);
    return zero->store->tile_elements * (4 + narrow);
}

static int64_t device_bytes(const dsc_zero *zero)
{
    for (int32_t g = 0; g < zero->o.layout->group_count; g++)
        if (dsc_grad_staging_passes(zero, g)) {
            DSC_ASSERT(zero->store->tile_elements > 0); /* the state store is planned before */
            return DSC_SUM_SLOTS * slot_bytes(zero);
        }
    return 0;
}

static int64_t host_bytes(const dsc_zero *zero)
{
    int64_t elements = 0;
    for (int32_t g = 0; g < zero->o.layout->group_count; g++)
        elements += dsc_grad_staging_in_host_memory(zero, g) ? zero->o.layout->group[g].slice : 0;
    DSC_ASSERT(elements >= 0);
    return elements * dsc_plane_bytes_each(zero, DSC_PLANE_GRAD);
}

/* Spread over the model, as sums in memory are (state_store.c). A step of one pass has nothing to keep. */
static void choose_kept(dsc_zero *zero)
{
    int64_t passed = 0, stay = 0;
    for (int32_t g = 0; g < zero->o.layout->group_count && zero->pass_count > 1; g++) {
        const int64_t slice = zero->o.layout->group[g].slice;
        if (!dsc_grad_staging_in_host_memory(zero, g))
            continue;
        passed += slice;
        zero->group[g].staging->stays = (double)(stay + slice) <= zero->o.swap.sums_on_device * (double)passed;
        stay += zero->group[g].staging->stays ? slice : 0;
    }
    DSC_ASSERT(stay <= passed);
}

static int64_t kept_bytes(const dsc_zero *zero)
{
    int64_t elements = 0;
    for (int32_t g = 0; g < zero->o.layout->group_count; g++)
        elements += zero->group[g].staging->stays ? zero->o.layout->group[g].slice : 0;
    DSC_ASSERT(elements >= 0);
    return elements * 4;
}

enum { NEEDS = 3 };
static void list_needs(dsc_zero *zero, dsc_need out[NEEDS])
{
    dsc_grad_staging *staging = &zero->store->staging;
    out[0] = (dsc_need) { &staging->device_buf, DSC_TAG_IO, DSC_TIER_DEVICE, device_bytes(zero), DSC_NEED_DEVICE };
    out[1] = (dsc_need) { &staging->host_buf, DSC_TAG_GRAD, DSC_TIER_PINNED, host_bytes(zero), DSC_NEED_DEVICE };
    out[2] = (dsc_need) { &staging->kept_buf, DSC_TAG_GRAD, DSC_TIER_DEVICE, kept_bytes(zero), DSC_NEED_DEVICE };
}

void dsc_grad_staging_plan(dsc_zero *zero)
{
    dsc_need needs[NEEDS];
    choose_kept(zero);
    list_needs(zero, needs);
    dsc_needs_plan(&zero->needs, needs, NEEDS);
}

static dsc_status wait_released(void *user, int32_t slot, dsc_stream *by, dsc_error *err)
{
    const dsc_grad_staging *staging = user;
    DSC_ASSERT(by != NULL);
    return dsc_stream_wait(by, staging->slot[slot].released, err);
}

dsc_status dsc_grad_staging_open(dsc_zero *zero, dsc_error *err)
{
    dsc_grad_staging *staging = &zero->store->staging;
    dsc_device *device = zero->o.device;
    if (device_bytes(zero) == 0)
        return DSC_OK;
    dsc_need needs[NEEDS];
    list_needs(zero, needs);
    DSC_TRY(dsc_needs_open(&zero->needs, needs, NEEDS, err));
    dsc_staging_open(&staging->slots, DSC_SUM_SLOTS, wait_released, staging);
    DSC_TRY(dsc_event_open(device, &staging->mark, err));
    for (int32_t i = 0; i < DSC_SUM_SLOTS; i++) {
        dsc_sum_slot *slot = &staging->slot[i];
        slot->acc = (float *)(void *)((char *)staging->device_buf.ptr + i * slot_bytes(zero));
        slot->narrow = slot->acc + zero->store->tile_elements;
        slot->group = -1;
        DSC_TRY(dsc_event_open(device, &slot->released, err));
    }
    char *sum = staging->host_buf.ptr;
    float *kept = staging->kept_buf.ptr;
    for (int32_t g = 0; g < zero->o.layout->group_count; g++) {
        if (!dsc_grad_staging_in_host_memory(zero, g))
            continue;
        zero->group[g].staging->sums = sum;
        if (zero->group[g].staging->stays) {
            zero->group[g].staging->on_device = kept;
            kept += zero->o.layout->group[g].slice;
        }
        sum += zero->o.layout->group[g].slice * dsc_plane_bytes_each(zero, DSC_PLANE_GRAD);
        DSC_TRY(dsc_event_open(device, &zero->group[g].staging->stored, err));
    }
    DSC_ASSERT((intptr_t)sum - (intptr_t)staging->host_buf.ptr == host_bytes(zero)); /* planned = used */
    return DSC_OK;
}

void dsc_grad_staging_close(dsc_zero *zero)
{
    dsc_grad_staging *staging = &zero->store->staging;
    if (staging->device_buf.ptr == NULL)
        return;
    for (int32_t g = 0; g < zero->o.layout->group_count; g++)
        dsc_event_close(&zero->group[g].staging->stored);
    for (int32_t i = 0; i < DSC_SUM_SLOTS; i++)
        dsc_event_close(&staging->slot[i].released);
    dsc_event_close(&staging->mark);
    dsc_need needs[NEEDS];
    list_needs(zero, needs);
    dsc_needs_close(&zero->needs, needs, NEEDS);
}

/* The tile buffers of a file have one user, so both directions are one stream there. */
static dsc_stream *way_in(const dsc_zero *zero, int32_t g)
{
    return dsc_grad_staging_in_host_memory(zero, g) ? zero->stream.in : zero->stream.out;
}

/* Between fp32 on the device and what lies away from it. */
static dsc_status move(const dsc_zero *zero, dsc_stream *stream, const dsc_sum *sum, float *acc, bool in,
                       dsc_error *err)
{
    const dsc_dtype kept = zero->o.sum_dtype;
    DSC_ASSERT(sum->count > 0 && sum->count <= zero->store->tile_elements); /* of a slot */
    DSC_ASSERT(sum->kept != NULL && acc != NULL);
    if (kept == DSC_F32)
        return dsc_copy(stream, in ? acc : sum->kept, in ? sum->kept : acc, sum->count * 4, err);
    void *narrow = zero->store->staging.slot[sum->staging_slot].narrow;
    const int64_t bytes = sum->count * (int64_t)dsc_dtype_bytes(kept);
    const dsc_cast_args cast = { .to = in ? acc : narrow,
                                 .from = in ? narrow : acc,
                                 .count = sum->count,
                                 .to_dtype = in ? DSC_F32 : kept,
                                 .from_dtype = in ? kept : DSC_F32 };
    if (in)
        DSC_TRY(dsc_copy(stream, narrow, sum->kept, bytes, err));
    DSC_TRY(DSC_RUN(stream, CAST, &cast, err));
    return in ? DSC_OK : dsc_copy(stream, sum->kept, narrow, bytes, err);
}

dsc_status dsc_grad_staging_acquire(dsc_zero *zero, dsc_sum *sum, bool overwrite, dsc_error *err)
{
    dsc_grad_staging *staging = &zero->store->staging;
    dsc_stream *in = way_in(zero, sum->group);
    const dsc_group_staging *own = zero->group[sum->group].staging;
    if (own->on_device != NULL) {
        sum->acc = own->on_device + sum->first;
        return overwrite ? dsc_stream_wait(zero->stream.reduce, own->stored, err) : DSC_OK;
    }
    DSC_ASSERT(sum->first % zero->store->tile_elements == 0); /* two tiles are equal or have no element in common */
    DSC_TRY(dsc_staging_acquire(&staging->slots, in, &sum->staging_slot, err));
    dsc_sum_slot *slot = &staging->slot[sum->staging_slot];
    for (int32_t i = 0; i < DSC_SUM_SLOTS; i++) /* this tile may still be written from its last slot */
        if (staging->slot[i].group == sum->group && staging->slot[i].first == sum->first)
            DSC_TRY(dsc_stream_wait(in, staging->slot[i].released, err));
    slot->group = sum->group;
    slot->first = sum->first;
    sum->acc = slot->acc;
    if (!overwrite)
        DSC_TRY(move(zero, in, sum, slot->acc, true, err));
    return dsc_stream_order(staging->mark, in, zero->stream.reduce, err);
}

dsc_status dsc_grad_staging_release(dsc_zero *zero, const dsc_sum *sum, dsc_error *err)
{
    DSC_ASSERT(sum->staging_slot >= 0 && sum->staging_slot < DSC_SUM_SLOTS);
    if (zero->group[sum->group].staging->on_device != NULL)
        return DSC_OK;
    DSC_ASSERT(zero->store->staging.slot[sum->staging_slot].group == sum->group); /* no later tile is in the slot */
    return dsc_event_record(zero->store->staging.slot[sum->staging_slot].released, zero->stream.reduce, err);
}

/* The slot only lends memory for the narrow numbers. */
static dsc_status send_complete(dsc_zero *zero, const dsc_sum *sum, dsc_error *err)
{
    dsc_grad_staging *staging = &zero->store->staging;
    dsc_sum of_slot = *sum;
    DSC_ASSERT(zero->group[sum->group].staging->sums != NULL);
    DSC_TRY(dsc_stream_order(staging->mark, zero->stream.reduce, zero->stream.out, err));
    DSC_TRY(dsc_staging_acquire(&staging->slots, zero->stream.out, &of_slot.staging_slot, err));
    dsc_sum_slot *slot = &staging->slot[of_slot.staging_slot];
    slot->group = -1;
    DSC_TRY(move(zero, zero->stream.out, &of_slot, sum->acc, false, err));
    DSC_TRY(dsc_event_record(slot->released, zero->stream.out, err));
    return dsc_event_record(zero->group[sum->group].staging->stored, zero->stream.out, err);
}

dsc_status dsc_grad_staging_write_back(dsc_zero *zero, const dsc_sum *sum, bool complete, dsc_error *err)
{
    const dsc_sum_slot *slot = &zero->store->staging.slot[sum->staging_slot];
    const dsc_group_state *state = &zero->group[sum->group];
    if (state->staging->on_device != NULL)
        return complete ? send_complete(zero, sum, err) : DSC_OK;
    DSC_ASSERT(sum->staging_slot >= 0 && sum->staging_slot < DSC_SUM_SLOTS);
    DSC_ASSERT(slot->group == sum->group && slot->first == sum->first); /* no later tile is in the slot */
    DSC_TRY(dsc_stream_order(zero->store->staging.mark, zero->stream.reduce, zero->stream.out, err));
    DSC_TRY(move(zero, zero->stream.out, sum, slot->acc, false, err));
    DSC_TRY(dsc_event_record(slot->released, zero->stream.out, err));
    if (state->staging->sums == NULL)
        return DSC_OK;
    return dsc_event_record(state->staging->stored, zero->stream.out, err);
}
