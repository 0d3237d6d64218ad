/* zero.c - opens, plans and closes the model states of one rank. SPDX-License-Identifier: Apache-2.0 */
#include "zero/compress.h"
#include "zero/core/internal.h"
#include "zero/fingerprints.h"
#include "zero/fp8_gather.h"
#include "zero/gather.h"
#include "zero/grad_parts.h"
#include "zero/hpz.h"
#include "zero/offload/borrowed_memory.h"
#include "zero/offload/speculative_memory.h"
#include "zero/offload/host_update.h"
#include "zero/offload/param_prefetch.h"
#include "zero/offload/placement.h"
#include "zero/offload/speculative_update.h"
#include "zero/offload/state_store.h"
#include "zero/optimizer/adafactor.h"
#include "zero/optimizer/average.h"
#include "zero/optimizer/muon.h"
#include "zero/optimizer/onebit.h"
#include "zero/optimizer/onebit_lamb.h"
#include "zero/optimizer/power_sgd.h"
#include "zero/optimizer/sign_compress.h"
#include "zero/optimizer/trust_ratio.h"
#include "zero/outer_step.h"
#include "zero/packed.h"
#include "zero/reduce.h"
#include "zero/traffic.h"
#include "zero/zero.h"

#include <stddef.h>
#include <string.h>

#include "base/thread.h"

/* Sizes of a group in elements: params kept, and owned range. */
static void size_group(const dsc_zero *zero, int32_t g, dsc_group_state *state)
{
    const dsc_layout_group *group = &zero->o.layout->group[g];
    state->param_whole = dsc_is_packed(zero, g) ? zero->o.stage < 3 : !dsc_gather_is_windowed(zero, g);
    state->local_first = zero->o.stage == 0 ? 0 : group->slice * zero->o.rank;
    state->local_count = zero->o.stage == 0 ? group->padded : group->slice;
    DSC_ASSERT(state->local_first + state->local_count <= group->padded);
}

/* Elements of the parameters that stay on the device, as they are stored. */
static int64_t param_elements(const dsc_zero *zero, int32_t g)
{
    if (dsc_zero_param_is_away(zero, g))
        return 0;
    return dsc_stored_slice(zero, g, DSC_PLANE_PARAM) * (zero->group[g].param_whole ? zero->world_size : 1);
}

static void plan_states(dsc_zero *zero)
{
    for (int32_t g = 0; g < zero->o.layout->group_count; g++) {
        const dsc_group_state *state = &zero->group[g];
        size_group(zero, g, &zero->group[g]);
        const int64_t slice_bytes = dsc_stored_slice(zero, g, DSC_PLANE_PARAM) * zero->param_bytes_each;
        const int64_t kept_bytes = param_elements(zero, g) * zero->param_bytes_each;
        if (state->gather.resident) {
            zero->resident_bytes += kept_bytes;
            zero->resident_slice_bytes += slice_bytes;
        }
        zero->state_bytes[DSC_TAG_PARAM] += state->gather.resident ? 0 : kept_bytes;
        if (!zero->o.layout->group[g].trainable)
            continue;
        const int64_t own_bytes = state->local_count * 4;
        zero->state_bytes[DSC_TAG_GRAD] += dsc_grad_staging_is_offloaded(zero, g) ? 0 : own_bytes;
        if (state->tiers.swap_states)
            continue;
        zero->state_bytes[DSC_TAG_MOMENT] += dsc_moments_bytes(zero, g, state->local_count);
        if (zero->o.compute_dtype != DSC_F32)
            zero->state_bytes[DSC_TAG_MASTER] += own_bytes;
    }
    DSC_ASSERT(zero->resident_slice_bytes <= zero->resident_bytes);
}

/* The parts of a group's state whose types zero/core does not know. */
typedef struct group_parts {
    dsc_group_staging staging;
    dsc_group_speculative speculative;
    dsc_group_second early;
    dsc_group_signs signs;
    dsc_group_onebit onebit;
} group_parts;

/* The parts of struct dsc_zero, in one allocation with the struct. */
typedef struct zero_parts {
    dsc_zero zero; /* first: the allocation has the address of the dsc_zero */
    dsc_state_store store;
    dsc_speculative_update speculative;
    dsc_speculative_memory early;
    dsc_trust_ratio trust_ratio;
    dsc_adafactor adafactor;
    dsc_onebit_lamb onebit_lamb;
    dsc_muon muon;
    dsc_sign_compress sign_compress;
    dsc_onebit onebit;
    dsc_average average;
    dsc_power_sgd power_sgd;
    dsc_fingerprints fingerprints;
    dsc_outer_step outer_step;
    group_parts *group; /* [group_count] */
} zero_parts;
_Static_assert(offsetof(zero_parts, zero) == 0, "dsc_zero_close frees the parts by the address of the dsc_zero");

static zero_parts *parts_of(dsc_zero *zero) { return (zero_parts *)(void *)zero; }

static dsc_status open_parts(dsc_alloc *alloc, dsc_zero **out, dsc_error *err)
{
    zero_parts *parts = NULL;
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, 1, sizeof *parts, &parts, err));
    parts->zero.store = &parts->store;
    parts->zero.speculative = &parts->speculative;
    parts->zero.early = &parts->early;
    parts->zero.trust_ratio = &parts->trust_ratio;
    parts->zero.adafactor = &parts->adafactor;
    parts->zero.onebit_lamb = &parts->onebit_lamb;
    parts->zero.muon = &parts->muon;
    parts->zero.sign_compress = &parts->sign_compress;
    parts->zero.onebit = &parts->onebit;
    parts->zero.average = &parts->average;
    parts->zero.power_sgd = &parts->power_sgd;
    parts->zero.fingerprints = &parts->fingerprints;
    parts->zero.outer_step = &parts->outer_step;
    *out = &parts->zero;
    return DSC_OK;
}

enum { GROUP_NEEDS = 2 };
/* The parts come first, so that zero->group is not NULL only if all parts are open. */
static void list_group_needs(dsc_zero *zero, dsc_need out[GROUP_NEEDS])
{
    const int64_t count = zero->o.layout->group_count;
    zero_parts *parts = parts_of(zero);
    const dsc_need needs[GROUP_NEEDS] = {
        { &parts->group, DSC_TAG_CONTROL, DSC_TIER_HOST, count * (int64_t)sizeof *parts->group, DSC_NEED_SMALL },
        { &zero->group, DSC_TAG_CONTROL, DSC_TIER_HOST, count * (int64_t)sizeof *zero->group, DSC_NEED_SMALL },
    };
    memcpy(out, needs, sizeof needs);
}

static dsc_status open_groups(dsc_zero *zero, dsc_error *err)
{
    dsc_need needs[GROUP_NEEDS];
    list_group_needs(zero, needs);
    DSC_TRY(dsc_needs_plan_and_open(&zero->needs, needs, GROUP_NEEDS, err));
    for (int32_t g = 0; g < zero->o.layout->group_count; g++) {
        group_parts *parts = &parts_of(zero)->group[g];
        DSC_ASSERT(zero->group[g].staging == NULL); /* opened once */
        zero->group[g].staging = &parts->staging;
        zero->group[g].speculative = &parts->speculative;
        zero->group[g].early = &parts->early;
        zero->group[g].signs = &parts->signs;
        zero->group[g].onebit = &parts->onebit;
    }
    return DSC_OK;
}

enum { NEEDS = 9 };
static void list_needs(dsc_zero *zero, dsc_need out[NEEDS])
{
    const int64_t sum = (int64_t)sizeof(dsc_fixed_sum);
    /* GPUs receive there. Processes read each other's slices alone, which saves them shared memory. */
    const dsc_need_kind *windows = dsc_device_host_visible(zero->o.device) ? DSC_NEED_DEVICE : DSC_NEED_COMM;
    const dsc_need needs[NEEDS] = {
        { &zero->buf.resident, DSC_TAG_GATHER, DSC_TIER_DEVICE, zero->resident_bytes, DSC_NEED_COMM },
        { &zero->buf.param, DSC_TAG_PARAM, DSC_TIER_DEVICE, zero->state_bytes[DSC_TAG_PARAM], DSC_NEED_COMM },
        { &zero->buf.grad, DSC_TAG_GRAD, DSC_TIER_DEVICE, zero->state_bytes[DSC_TAG_GRAD], DSC_NEED_DEVICE },
        { &zero->buf.master, DSC_TAG_MASTER, DSC_TIER_DEVICE, zero->state_bytes[DSC_TAG_MASTER], DSC_NEED_DEVICE },
        { &zero->buf.moment, DSC_TAG_MOMENT, DSC_TIER_DEVICE, zero->state_bytes[DSC_TAG_MOMENT], DSC_NEED_DEVICE },
        { &zero->buf.gather, DSC_TAG_GATHER, DSC_TIER_DEVICE, zero->window_bytes, windows },
        { &zero->buf.grad_part, DSC_TAG_LEAF, DSC_TIER_DEVICE, zero->grad_part_bytes, DSC_NEED_DEVICE },
        { &zero->buf.sum, DSC_TAG_CONTROL, DSC_TIER_DEVICE, sum, DSC_NEED_DEVICE },
        { &zero->buf.sums, DSC_TAG_CONTROL, DSC_TIER_PINNED, sum * zero->world_size, DSC_NEED_DEVICE },
    };
    memcpy(out, needs, sizeof needs);
}

static void plan_buffers(dsc_zero *zero)
{
    dsc_need needs[NEEDS];
    list_needs(zero, needs);
    dsc_zero_plan_needs(zero, needs, NEEDS);
}

/* The plan is the sum of all lists. A resident group is this rank's slice, a model state like any other, and the window
 * that stays around it. */
static void sum_plan(dsc_zero *zero)
{
    DSC_ASSERT(zero->resident_slice_bytes <= zero->needs.planned[DSC_TAG_GATHER][DSC_TIER_DEVICE]);
    memcpy(zero->plan.bytes, zero->needs.planned, sizeof zero->plan.bytes);
    zero->plan.bytes[DSC_TAG_GATHER][DSC_TIER_DEVICE] -= zero->resident_slice_bytes;
    zero->plan.bytes[DSC_TAG_PARAM][DSC_TIER_DEVICE] += zero->resident_slice_bytes;
    zero->plan.lent_bytes = zero->lent_bytes;
}

/* All optimizer passes, in the order in which they run in an update:
 * 1. sign_compress owns the exchange that onebit and onebit_lamb call.
 * 2. onebit replaces sums by signs, or makes the whole update; it may edit the terms.
 * 3. onebit_lamb reads the terms as they were given, and edits them; onebit leaves them alone then.
 * 4. adafactor walks over matrices: the factors of second moments.
 * 5. trust_ratio walks over all tiles, with the factors of adafactor and the terms of onebit_lamb.
 * 6. muon makes the directions of a round just before the tiles of the round.
 * 7. average reads the weights of tiles that are updated.
 * power_sgd has done its part before the norm. */
static const dsc_zero_pass_ops *const all_passes[DSC_ZERO_PASSES_MAX] = {
    &dsc_sign_compress_pass, &dsc_onebit_pass, &dsc_onebit_lamb_pass, &dsc_adafactor_pass,
    &dsc_trust_ratio_pass,   &dsc_muon_pass,   &dsc_average_pass,     &dsc_power_sgd_pass,
};

static void choose_passes(dsc_zero *zero)
{
    for (size_t i = 0; i < DSC_COUNT(all_passes); i++)
        if (all_passes[i]->is_needed(zero))
            zero->optimizer[zero->optimizer_count++] = all_passes[i];
    DSC_ASSERT(zero->optimizer_count <= DSC_ZERO_PASSES_MAX);
}

static dsc_status plan_passes(dsc_zero *zero, dsc_error *err)
{
    zero->first_round = (dsc_round) { 0, zero->o.layout->group_count, 0 };
    for (int32_t i = 0; i < zero->optimizer_count; i++) {
        const dsc_zero_pass_ops *pass = zero->optimizer[i];
        DSC_TRY(pass->plan(zero, err));
        zero->first_round_matrices_only = zero->first_round_matrices_only || pass->matrices_only;
        if (pass->round != NULL)
            zero->first_round = pass->round(zero, 0);
    }
    DSC_ASSERT(zero->first_round.first >= 0 && zero->first_round.end <= zero->o.layout->group_count);
    return DSC_OK;
}

static dsc_status plan_all(dsc_zero *zero, dsc_error *err)
{
    int64_t window_bytes, sum_bytes;
    DSC_TRY(open_groups(zero, err));
    dsc_state_store_choose(zero);
    DSC_TRY(dsc_gather_plan(zero, &window_bytes, err));
    dsc_state_store_plan(zero);
    plan_states(zero);
    DSC_TRY(dsc_grad_parts_plan(zero, &sum_bytes, err));
    dsc_borrowed_memory_plan(zero);
    DSC_TRY(dsc_speculative_memory_plan(zero, err));
    zero->window_bytes = window_bytes;
    DSC_ASSERT(window_bytes >= 0);
    DSC_ASSERT(sum_bytes >= 0);
    zero->state_bytes[DSC_TAG_GRAD] += sum_bytes;
    plan_buffers(zero);
    dsc_pack_plan(zero);
    dsc_hpz_plan(zero);
    dsc_fp8_gather_plan(zero);
    dsc_fingerprints_plan(zero);
    dsc_outer_step_plan(zero);
    DSC_TRY(dsc_packed_plan(zero, err));
    DSC_TRY(plan_passes(zero, err));
    sum_plan(zero);
    dsc_traffic_plan(zero, &zero->plan.traffic);
    dsc_kept_plan(zero, &zero->plan.kept);
    return DSC_OK;
}

static dsc_status create(const dsc_zero_options *options, dsc_zero **out, dsc_error *err)
{
    DSC_ASSERT(options->stage >= 0 && options->stage <= 3);
    DSC_ASSERT(options->stage >= 1 || (options->swap.state_folder_count == 0 && !options->swap.states_on_host));
    DSC_ASSERT(options->stage == 3 || (options->swap.param_folder_count == 0 && !options->swap.params_on_host));
    DSC_ASSERT(!dsc_device_host_visible(options->device) ||
               (!options->swap.states_on_host && !options->swap.params_on_host));
    DSC_ASSERT(options->rank >= 0 && options->rank < options->layout->world_size);
    DSC_ASSERT(options->neighbour_count <= 1 ||
               (options->stage == 3 && options->layout->world_size % options->neighbour_count == 0));
    DSC_ASSERT(options->replica_count <= 1 || (options->stage == 3 && !options->world_size_reproducible));
    const bool signs = options->signs.kind != DSC_ONEBIT_NEVER;
    DSC_ASSERT(!signs || (options->stage == 0 && options->signs.freeze >= 1));
    DSC_ASSERT(!signs || options->recipe == DSC_RECIPE_ADAMW || options->recipe == DSC_RECIPE_ONEBIT_LAMB);
    DSC_ASSERT(options->signs.kind == DSC_ONEBIT_ADAM || dsc_recipes[options->recipe].tensor_state == NULL);
    DSC_ASSERT(options->moment_dtype != DSC_U8 || options->recipe == DSC_RECIPE_ADAMW);
    DSC_ASSERT(options->layout->tensor_align % (options->moment_dtype == DSC_U8 ? DSC_Q8_BLOCK : 1) == 0);
    DSC_ASSERT(!signs || (!options->world_size_reproducible && options->moment_dtype == DSC_F32));
    DSC_ASSERT(!signs || (options->quant_grad_parts == DSC_QUANT_NONE && options->average_share == 0));
    DSC_ASSERT(options->power_sgd.rank == 0 || (options->stage == 0 && !signs && !options->world_size_reproducible));
    DSC_ASSERT(options->average_share >= 0 && options->average_share <= 1);
    DSC_ASSERT(options->recipe >= 0 && options->recipe < DSC_RECIPE_COUNT);
    DSC_ASSERT(options->quota.ranks == options->layout->world_size);
    const int64_t micro_steps = dsc_quota_micro_steps(&options->quota);
    DSC_ASSERT(options->micro_batch_group >= 1 && micro_steps % options->micro_batch_group == 0);
    DSC_ASSERT(dsc_quota_is_full(&options->quota, micro_steps - 1) || (options->replica_count <= 1 && !signs));
    dsc_zero *zero = NULL;
    DSC_TRY(open_parts(options->alloc, &zero, err));
    zero->o = *options;
    zero->needs = (dsc_needs) { .alloc = options->alloc, .device = options->device, .owner = zero };
    zero->world_size = options->layout->world_size;
    /* A single rank without offloaded states has no transfers to hide; files of a host_visible device always have. */
    const bool files = options->swap.state_folder_count > 0 || options->swap.param_folder_count > 0;
    const bool away = files || options->swap.states_on_host || options->swap.params_on_host;
    const bool others = zero->world_size > 1 || options->replica_count > 1;
    zero->o.overlap = (options->overlap && (others || away)) ||
                      (files && dsc_device_host_visible(options->device));
    zero->step_count = 2 * options->model->module_count - 1;
    zero->pass_count = micro_steps / options->micro_batch_group;
    DSC_ASSERT(zero->pass_count >= 1);
    zero->param_bytes_each = (int64_t)dsc_dtype_bytes(options->compute_dtype);
    choose_passes(zero);
    const dsc_status status = plan_all(zero, err);
    if (status != DSC_OK)
        dsc_zero_close(&zero);
    *out = zero;
    return status;
}

dsc_status dsc_zero_plan(const dsc_zero_options *options, dsc_zero_plan_bytes *out, dsc_error *err)
{
    dsc_zero *zero = NULL;
    DSC_TRY(create(options, &zero, err));
    *out = zero->plan;
    dsc_zero_close(&zero);
    return DSC_OK;
}

/* Cuts the big buffers into groups, in group order. */
static void place_states(dsc_zero *zero)
{
    char *param = zero->buf.param.ptr, *resident = zero->buf.resident.ptr;
    float *grad = zero->buf.grad.ptr, *master = zero->buf.master.ptr;
    char *moment = zero->buf.moment.ptr;
    for (int32_t g = 0; g < zero->o.layout->group_count; g++) {
        dsc_group_state *state = &zero->group[g];
        char **from = state->gather.resident ? &resident : &param;
        state->param = *from;
        *from += param_elements(zero, g) * zero->param_bytes_each;
        if (!zero->o.layout->group[g].trainable)
            continue;
        if (!dsc_grad_staging_is_offloaded(zero, g)) {
            state->grad = grad;
            grad += state->local_count;
        }
        if (zero->o.compute_dtype == DSC_F32 && state->param != NULL)
            state->master = (float *)(void *)state->param + (state->param_whole ? state->local_first : 0);
        if (state->tiers.swap_states)
            continue;
        moment = dsc_zero_place_moments(zero, g, moment);
        if (zero->o.compute_dtype != DSC_F32) {
            state->master = master;
            master += state->local_count;
        }
    }
    /* Each buffer is used to its end, as planned; counters and staged sums follow the sums. */
    DSC_ASSERT(resident == (char *)zero->buf.resident.ptr + zero->buf.resident.bytes);
    DSC_ASSERT(param == (char *)zero->buf.param.ptr + zero->buf.param.bytes);
    DSC_ASSERT(moment == (char *)zero->buf.moment.ptr + zero->buf.moment.bytes);
    DSC_ASSERT((char *)master == (char *)zero->buf.master.ptr + zero->buf.master.bytes);
    DSC_ASSERT((char *)grad <= (char *)zero->buf.grad.ptr + zero->buf.grad.bytes);
}

static dsc_status open_buffers(dsc_zero *zero, dsc_error *err)
{
    dsc_need needs[NEEDS];
    list_needs(zero, needs);
    DSC_TRY(dsc_needs_open(&zero->needs, needs, NEEDS, err));
    zero->resident_retagged = zero->buf.resident.ptr != NULL;
    if (zero->resident_retagged)
        dsc_alloc_retag(zero->o.alloc, DSC_TAG_GATHER, DSC_TAG_PARAM, zero->buf.resident.tier,
                        zero->resident_slice_bytes);
    DSC_TRY(dsc_pack_open(zero, err));
    DSC_TRY(dsc_hpz_open(zero, err));
    DSC_TRY(dsc_fp8_gather_open(zero, err));
    DSC_TRY(dsc_packed_open(zero, err));
    DSC_TRY(dsc_fingerprints_open(zero, err));
    DSC_TRY(dsc_outer_step_open(zero, err));
    place_states(zero);
    for (int32_t i = 0; i < zero->optimizer_count; i++)
        DSC_TRY(zero->optimizer[i]->open(zero, err));
    dsc_zero_forget_shared(zero);
    return DSC_OK;
}

static dsc_status wake_soon(void *args, dsc_error *err)
{
    dsc_thread_wake_soon();
    return DSC_OK;
}

/* One that is not opened here is `instead`. Where files are, all wait for them. Where none are, turns stay as they are:
 * short ones of other ranks' copies would cut into what computes on the same cores, and nothing rests meanwhile. */
static dsc_status open_stream(dsc_zero *zero, bool own, const char *name, dsc_stream *instead, dsc_stream **out,
                              dsc_error *err)
{
    DSC_ASSERT(*out == NULL); /* opened once */
    *out = own ? NULL : instead;
    DSC_ASSERT(!own || zero->o.device != NULL);
    if (!own)
        return DSC_OK;
    DSC_TRY(dsc_stream_open(zero->o.device, DSC_STREAM_ASYNC, name, out, err));
    return dsc_state_store_updates_behind(zero) ? dsc_host_call(*out, wake_soon, NULL, 0, err) : DSC_OK;
}

static dsc_status open_streams(dsc_zero *zero, dsc_error *err)
{
    const bool overlap = zero->o.overlap;
    const bool fetches = overlap && dsc_gather_fetches(zero), updates = overlap && dsc_host_update_is_used(zero);
    DSC_TRY(dsc_event_open(zero->o.device, &zero->event.compute_mark, err));
    DSC_TRY(dsc_event_open(zero->o.device, &zero->event.pass_mark, err));
    DSC_TRY(open_stream(zero, overlap, "gather", zero->o.compute, &zero->stream.gather, err));
    DSC_TRY(open_stream(zero, overlap, "reduce", zero->o.compute, &zero->stream.reduce, err));
    DSC_TRY(open_stream(zero, fetches, "fetch", zero->stream.gather, &zero->stream.fetch, err));
    DSC_TRY(open_stream(zero, updates, "in", zero->stream.reduce, &zero->stream.in, err));
    DSC_TRY(open_stream(zero, dsc_state_store_updates_behind(zero), "update", NULL, &zero->stream.update, err));
    if (zero->store->host.runs_behind)
        DSC_TRY(dsc_stream_open(dsc_host_update_stream_device(zero), DSC_STREAM_ASYNC, "update", &zero->stream.update,
                                err));
    if (dsc_update_runs_late(zero))
        DSC_TRY(dsc_stream_open(zero->o.device, DSC_STREAM_BEHIND, "update", &zero->stream.update, err));
    return open_stream(zero, updates, "out", zero->stream.reduce, &zero->stream.out, err);
}

static void close_streams(dsc_zero *zero)
{
    dsc_stream_close(&zero->stream.update);
    if (zero->stream.out != zero->stream.reduce)
        dsc_stream_close(&zero->stream.out);
    if (zero->stream.in != zero->stream.reduce)
        dsc_stream_close(&zero->stream.in);
    if (zero->stream.fetch != zero->stream.gather)
        dsc_stream_close(&zero->stream.fetch);
    if (zero->stream.gather != zero->o.compute)
        dsc_stream_close(&zero->stream.gather);
    if (zero->stream.reduce != zero->o.compute)
        dsc_stream_close(&zero->stream.reduce);
}

static dsc_status open_all(dsc_zero *zero, dsc_error *err)
{
    DSC_TRY(open_buffers(zero, err));
    DSC_TRY(dsc_host_update_open_device(zero, err));
    DSC_TRY(open_streams(zero, err));
    DSC_TRY(dsc_gather_open(zero, err));
    DSC_TRY(dsc_reduce_open(zero, err));
    DSC_TRY(dsc_speculative_update_open(zero, err));
    DSC_TRY(dsc_state_store_open(zero, err));
    DSC_TRY(dsc_speculative_memory_open(zero, err));
    dsc_needs_check(&zero->needs);
    return DSC_OK;
}

dsc_status dsc_zero_open(const dsc_zero_options *options, dsc_zero **out, dsc_error *err)
{
    *out = NULL;
    DSC_TRY(create(options, out, err));
    const dsc_status status = open_all(*out, err);
    if (status != DSC_OK)
        dsc_zero_close(out);
    return status;
}

void dsc_zero_close(dsc_zero **zero_ptr)
{
    dsc_zero *zero = *zero_ptr;
    if (zero == NULL)
        return;
    dsc_zero_cancel(zero);
    close_streams(zero);
    dsc_speculative_update_close(zero);
    dsc_speculative_memory_close(zero);
    dsc_state_store_close(zero);
    dsc_reduce_close(zero);
    dsc_gather_close(zero);
    dsc_host_update_close_device(zero);
    dsc_event_close(&zero->event.pass_mark);
    dsc_event_close(&zero->event.compute_mark);
    if (zero->o.device != NULL) {
        dsc_outer_step_close(zero);
        dsc_fingerprints_close(zero);
        dsc_packed_close(zero);
        dsc_fp8_gather_close(zero);
        dsc_hpz_close(zero);
        dsc_pack_close(zero);
        for (int32_t i = zero->optimizer_count; i-- > 0;)
            zero->optimizer[i]->close(zero);
        if (zero->resident_retagged)
            dsc_alloc_retag(zero->o.alloc, DSC_TAG_PARAM, DSC_TAG_GATHER, zero->buf.resident.tier,
                            zero->resident_slice_bytes);
        dsc_need needs[NEEDS];
        list_needs(zero, needs);
        dsc_needs_close(&zero->needs, needs, NEEDS);
    }
    dsc_need groups[GROUP_NEEDS];
    list_group_needs(zero, groups);
    dsc_needs_close(&zero->needs, groups, GROUP_NEEDS);
    dsc_alloc_free(zero->o.alloc, parts_of(zero));
    *zero_ptr = NULL;
}

void dsc_zero_begin(dsc_zero *zero, int64_t update)
{
    DSC_ASSERT(update >= 1);
    zero->state = DSC_ZERO_ACCUMULATING;
    for (int32_t i = 0; i < zero->optimizer_count; i++)
        if (zero->optimizer[i]->begin != NULL)
            zero->optimizer[i]->begin(zero, update);
}

/* One pass is planned in another way than several are. */
void dsc_zero_set_quota(dsc_zero *zero, const dsc_quota *quota)
{
    const int64_t micro_steps = dsc_quota_micro_steps(quota);
    DSC_ASSERT(quota->total == zero->o.quota.total && quota->ranks == zero->world_size);
    DSC_ASSERT(zero->o.micro_batch_group == 1 && zero->o.replica_count <= 1);
    DSC_ASSERT(!zero->more_follow && (micro_steps > 1) == (zero->pass_count > 1));
    zero->o.quota = *quota;
    zero->pass_count = micro_steps;
}

/* The reductions of the pass that now runs have not begun. */
static bool is_last_pass(const dsc_zero *zero)
{
    DSC_ASSERT(zero->pass < zero->pass_count);
    return (zero->more_follow ? zero->pass + 1 : 0) == zero->pass_count - 1;
}

dsc_status dsc_zero_step_event(dsc_zero *zero, dsc_zero_event event, dsc_error *err)
{
    DSC_ASSERT(event == DSC_ZERO_HEAD_BEGINS);
    DSC_ASSERT(!zero->gathers.next_pass_prefetched);
    /* The update of the step before still reads the sums that the speculative update chooses anew. */
    DSC_TRY(dsc_zero_after_update(zero, -1, zero->o.compute, err));
    if (!is_last_pass(zero))
        return dsc_param_prefetch_begin(zero, err);
    dsc_speculative_memory_begin(zero);
    return dsc_speculative_update_begin(zero, err);
}
