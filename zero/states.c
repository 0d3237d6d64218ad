/* states.c - views of the states that a rank owns, and their publication after they were written.
 * SPDX-License-Identifier: Apache-2.0 */
#include "zero/core/internal.h"
#include "zero/fp8_gather.h"
#include "zero/gather.h"
#include "zero/hpz.h"
#include "zero/offload/speculative_memory.h"
#include "zero/offload/host_update.h"
#include "zero/offload/placement.h"
#include "zero/offload/speculative_update.h"
#include "zero/offload/state_store.h"
#include "zero/offload/update_tiles.h"
#include "zero/optimizer/adafactor.h"
#include "zero/optimizer/onebit.h"
#include "zero/optimizer/onebit_lamb.h"
#include "zero/optimizer/sign_compress.h"
#include "zero/zero.h"

bool dsc_zero_stays(const dsc_zero *zero, int32_t group, dsc_plane plane)
{
    DSC_ASSERT(group < zero->o.layout->group_count);
    if (plane == DSC_PLANE_MASTER && zero->o.compute_dtype == DSC_F32)
        plane = DSC_PLANE_PARAM;
    return dsc_device_host_visible(zero->o.device) && !dsc_in_swap(zero, group, plane);
}

dsc_status dsc_zero_view(dsc_zero *zero, int32_t g, dsc_plane plane, int64_t first, int64_t *count, bool write,
                         void **ptr, dsc_error *err)
{
    DSC_ASSERT(g >= 0);
    DSC_ASSERT(g < zero->o.layout->group_count);
    const dsc_group_state *state = &zero->group[g];
    const int64_t slice_first = zero->o.layout->group[g].slice * zero->o.rank;
    const int64_t at = slice_first - state->local_first + first;
    DSC_ASSERT(first >= 0 && *count > 0 && first + *count <= dsc_stored_slice(zero, g, plane));
    DSC_ASSERT(plane == DSC_PLANE_PARAM || zero->o.layout->group[g].trainable);
    if (plane == DSC_PLANE_MASTER && zero->o.compute_dtype == DSC_F32)
        plane = DSC_PLANE_PARAM;
    if (dsc_in_swap(zero, g, plane))
        return dsc_state_store_view(zero, g, plane, first, count, write, ptr, err);
    switch (plane) {
    case DSC_PLANE_PARAM:
        if (state->param_whole)
            first += dsc_stored_slice(zero, g, plane) * zero->o.rank;
        *ptr = state->param + first * zero->param_bytes_each;
        break;
    case DSC_PLANE_MASTER:
        DSC_ASSERT(state->master != NULL);
        *ptr = state->master + at;
        break;
    case DSC_PLANE_MOMENT1:
    case DSC_PLANE_MOMENT2:
    case DSC_PLANE_MOMENT3:
        DSC_ASSERT((int)plane - DSC_PLANE_MOMENT1 < dsc_moment_count(zero, g));
        *ptr = state->moment[plane - DSC_PLANE_MOMENT1] + at * dsc_plane_bytes_each(zero, plane);
        break;
    case DSC_PLANE_GRAD:
    case DSC_PLANE_COUNT:
        DSC_ASSERT(false);
    }
    return DSC_OK;
}

void dsc_zero_kept_params(const dsc_zero *zero, int32_t t, int64_t *first, int64_t *count, void **ptr)
{
    const dsc_layout_tensor *tensor = &zero->o.layout->tensor[t];
    const dsc_layout_group *group = &zero->o.layout->group[tensor->group];
    const dsc_group_state *state = &zero->group[tensor->group];
    const int64_t begin = state->param_whole ? 0 : group->slice * zero->o.rank;
    DSC_ASSERT(!group->trainable && group->packed == DSC_NF4_NONE);
    DSC_ASSERT(!dsc_in_swap(zero, tensor->group, DSC_PLANE_PARAM));
    *first = 0;
    *count = dsc_layout_span(tensor, begin, state->param_whole ? group->padded : group->slice, first);
    *ptr = state->param + (tensor->offset + *first - begin) * zero->param_bytes_each;
}

float *dsc_zero_absmax(const dsc_zero *zero, int32_t g, int32_t moment, int64_t first)
{
    const dsc_group_state *state = &zero->group[g];
    const int64_t at = zero->o.layout->group[g].slice * zero->o.rank - state->local_first + first;
    DSC_ASSERT(zero->o.moment_dtype == DSC_U8);
    DSC_ASSERT(moment >= 0 && moment < dsc_moment_count(zero, g));
    DSC_ASSERT(first >= 0 && first < zero->o.layout->group[g].slice);
    DSC_ASSERT(at % DSC_Q8_BLOCK == 0);
    return state->absmax[moment] + at / DSC_Q8_BLOCK;
}

dsc_status dsc_zero_sync(dsc_zero *zero, dsc_error *err)
{
    dsc_stream *const streams[] = { zero->stream.gather, zero->stream.reduce, zero->stream.fetch, zero->stream.in,
                                    zero->stream.out,    zero->o.compute,     zero->early->in };
    atomic_store(&zero->speculative->stop_requested, true);
    if (zero->stream.update != NULL)
        DSC_TRY(dsc_stream_sync(zero->stream.update, err));
    for (size_t i = 0; i < DSC_COUNT(streams); i++)
        if (streams[i] != NULL)
            DSC_TRY(dsc_stream_sync(streams[i], err));
    return dsc_update_tiles_drain(zero, err);
}

/* Stage 0 keeps whole masters and moments: gathers the slices that were written. */
static dsc_status gather_states(dsc_zero *zero, int32_t g, dsc_error *err)
{
    const int64_t slice = zero->o.layout->group[g].slice;
    dsc_group_state *state = &zero->group[g];
    DSC_ASSERT(zero->o.stage == 0);
    DSC_ASSERT(state->local_count == slice * zero->world_size);
    for (int plane = DSC_PLANE_MASTER; plane < DSC_PLANE_MOMENT1 + dsc_moment_count(zero, g); plane++) {
        char *whole = plane == DSC_PLANE_MASTER ? (char *)state->master : state->moment[plane - DSC_PLANE_MOMENT1];
        const char *mine = whole + slice * zero->o.rank * dsc_plane_bytes_each(zero, (dsc_plane)plane);
        DSC_TRY(dsc_comm_all_gather(zero->o.comm, DSC_CHANNEL_CONTROL, whole, mine, slice,
                                    dsc_zero_dtype(zero, (dsc_plane)plane), zero->o.compute, err));
    }
    const int64_t blocks = slice / DSC_Q8_BLOCK;
    for (int32_t k = 0; k < dsc_moment_count(zero, g) && zero->o.moment_dtype == DSC_U8; k++)
        DSC_TRY(dsc_comm_all_gather(zero->o.comm, DSC_CHANNEL_CONTROL, state->absmax[k],
                                    state->absmax[k] + blocks * zero->o.rank, blocks, DSC_F32, zero->o.compute, err));
    return DSC_OK;
}

static dsc_status round_on_host(dsc_zero *zero, int32_t g, dsc_error *err)
{
    const int64_t slice = zero->o.layout->group[g].slice;
    dsc_host_update *host = &zero->store->host;
    for (int64_t first = 0, count; first < slice; first += count) {
        void *from, *param;
        count = dsc_min_i64(slice - first, zero->store->tile_elements);
        DSC_TRY(dsc_zero_view(zero, g, DSC_PLANE_MASTER, first, &count, false, &from, err));
        DSC_TRY(dsc_zero_view(zero, g, DSC_PLANE_PARAM, first, &count, true, &param, err));
        DSC_ASSERT(count > 0);
        DSC_ASSERT(count <= zero->store->tile_elements);
        const bool brings = dsc_host_update_brings(zero, g, DSC_PLANE_PARAM);
        const dsc_cast_args cast = { .to = brings ? host->slot[0].param : param,
                                     .from = from,
                                     .to_dtype = zero->o.compute_dtype,
                                     .from_dtype = DSC_F32,
                                     .count = count };
        DSC_TRY(DSC_RUN(host->compute, CAST, &cast, err));
        DSC_TRY(dsc_stream_sync(host->compute, err));
        if (!brings)
            continue;
        DSC_TRY(dsc_copy(zero->o.compute, param, cast.to, count * 2, err));
        DSC_TRY(dsc_stream_sync(zero->o.compute, err)); /* the slot is written again */
    }
    return DSC_OK;
}

/* The parameters of this rank's slice from its master weights. */
static dsc_status round_params(dsc_zero *zero, int32_t g, dsc_error *err)
{
    const int64_t slice = zero->o.layout->group[g].slice;
    DSC_ASSERT(zero->o.compute_dtype != DSC_F32); /* the parameters are the masters then */
    if (dsc_host_update_updates(zero, g))
        return round_on_host(zero, g, err);
    for (int64_t first = 0, count; first < slice; first += count) {
        dsc_cast_args cast = { .to_dtype = zero->o.compute_dtype, .from_dtype = DSC_F32 };
        void *from;
        count = slice - first;
        DSC_TRY(dsc_zero_view(zero, g, DSC_PLANE_MASTER, first, &count, false, &from, err));
        DSC_TRY(dsc_zero_view(zero, g, DSC_PLANE_PARAM, first, &count, true, &cast.to, err));
        DSC_ASSERT(count > 0);
        cast.from = from;
        cast.count = count;
        DSC_TRY(DSC_RUN(zero->o.compute, CAST, &cast, err));
    }
    return DSC_OK;
}

/* Whatever depends on the master weights. */
static dsc_status publish_weights(dsc_zero *zero, dsc_error *err)
{
    DSC_ASSERT(!zero->gathers.next_pass_prefetched);
    DSC_TRY(dsc_zero_sync(zero, err));
    dsc_hpz_forget(zero, true);
    dsc_fp8_gather_forget(zero, true);
    for (int32_t g = 0; g < zero->o.layout->group_count; g++) {
        const bool trainable = zero->o.layout->group[g].trainable;
        if (trainable && zero->o.compute_dtype != DSC_F32)
            DSC_TRY(round_params(zero, g, err));
        if (zero->world_size == 1)
            continue;
        if (trainable && zero->o.stage == 0)
            DSC_TRY(gather_states(zero, g, err));
        if (zero->group[g].param_whole)
            DSC_TRY(dsc_gather_params(zero, g, err));
    }
    return DSC_OK;
}

dsc_status dsc_zero_republish(dsc_zero *zero, dsc_error *err)
{
    DSC_ASSERT(!zero->sums_are_own);
    DSC_TRY(publish_weights(zero, err));
    DSC_TRY(dsc_zero_sync(zero, err));
    return dsc_state_store_settle(zero, err);
}

dsc_status dsc_zero_publish(dsc_zero *zero, dsc_error *err)
{
    DSC_ASSERT(zero->optimizer_count <= DSC_ZERO_PASSES_MAX);
    DSC_TRY(publish_weights(zero, err));
    DSC_TRY(dsc_zero_forget_errors(zero, err));
    for (int32_t i = 0; i < zero->optimizer_count; i++)
        if (zero->optimizer[i]->forget != NULL)
            DSC_TRY(zero->optimizer[i]->forget(zero, err));
    DSC_TRY(dsc_zero_sync(zero, err));
    return dsc_state_store_settle(zero, err);
}

void dsc_zero_cancel(dsc_zero *zero) { dsc_io_scheduler_cancel(&zero->store->io); }

/* ---- states of optimizer passes ---- */

bool dsc_zero_sums_are_own(const dsc_zero *zero) { return zero->sums_are_own; }

dsc_status dsc_zero_settle_signs(dsc_zero *zero, double beta1, dsc_error *err)
{
    if (!dsc_sign_compress_are_used(zero))
        return DSC_OK;
    DSC_TRY(dsc_zero_sync(zero, err));
    return dsc_onebit_settle(zero, beta1, err);
}

float *dsc_zero_adafactor_factors(const dsc_zero *zero, int32_t tensor, bool cols)
{
    DSC_ASSERT(tensor >= 0 && tensor < zero->o.layout->tensor_count);
    return dsc_adafactor_factors(zero, tensor, cols);
}

float *dsc_zero_tensor_state(const dsc_zero *zero, int32_t tensor)
{
    DSC_ASSERT(tensor >= 0 && tensor < zero->o.layout->tensor_count);
    return dsc_onebit_lamb_tensor_state(zero, tensor);
}

void dsc_zero_forget_shared(dsc_zero *zero)
{
    DSC_ASSERT(zero->optimizer_count <= DSC_ZERO_PASSES_MAX);
    for (int32_t i = 0; i < zero->optimizer_count; i++)
        if (zero->optimizer[i]->forget_shared != NULL)
            zero->optimizer[i]->forget_shared(zero);
}
