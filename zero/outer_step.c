/* outer_step.c - see outer_step.h. SPDX-License-Identifier: Apache-2.0 */
#include "zero/outer_step.h"

#include <string.h>

#include "zero/core/internal.h"

static bool is_used(const dsc_zero *zero) { return zero->o.outer.every > 0; }

/* Elements of this rank's slices of the trainable groups before `group`. */
static int64_t elements_before(const dsc_zero *zero, int32_t group)
{
    int64_t elements = 0;
    for (int32_t g = 0; g < group; g++)
        elements += zero->o.layout->group[g].trainable ? zero->o.layout->group[g].slice : 0;
    return elements;
}

enum { NEEDS = 3 };
static void list_needs(dsc_zero *zero, dsc_need out[NEEDS])
{
    dsc_outer_step *outer = zero->outer_step;
    const int64_t each = is_used(zero) ? (int64_t)sizeof(float) : 0;
    const int64_t all = elements_before(zero, zero->o.layout->group_count) * each;
    int64_t longest = 0;
    for (int32_t g = 0; g < zero->o.layout->group_count; g++)
        longest = dsc_max_i64(longest, zero->o.layout->group[g].trainable ? zero->o.layout->group[g].slice : 0);
    const dsc_need needs[NEEDS] = {
        { &outer->common, DSC_TAG_MASTER, DSC_TIER_DEVICE, all, DSC_NEED_DEVICE },
        { &outer->momentum, DSC_TAG_MOMENT, DSC_TIER_DEVICE, all, DSC_NEED_DEVICE },
        { &outer->change, DSC_TAG_LEAF, DSC_TIER_DEVICE, longest * each, DSC_NEED_DEVICE },
    };
    memcpy(out, needs, sizeof needs);
}

void dsc_outer_step_plan(dsc_zero *zero)
{
    dsc_need needs[NEEDS];
    list_needs(zero, needs);
    dsc_zero_plan_needs(zero, needs, NEEDS);
}

dsc_status dsc_outer_step_open(dsc_zero *zero, dsc_error *err)
{
    dsc_need needs[NEEDS];
    list_needs(zero, needs);
    DSC_TRY(dsc_needs_open(&zero->needs, needs, NEEDS, err));
    const dsc_buf *momentum = &zero->outer_step->momentum;
    return is_used(zero) ? dsc_fill_zero(zero->o.compute, momentum->ptr, momentum->bytes, err) : DSC_OK;
}

void dsc_outer_step_close(dsc_zero *zero)
{
    dsc_need needs[NEEDS];
    list_needs(zero, needs);
    dsc_needs_close(&zero->needs, needs, NEEDS);
}

float *dsc_zero_outer_momentum(const dsc_zero *zero, int32_t group, int64_t first)
{
    DSC_ASSERT(group >= 0 && group < zero->o.layout->group_count);
    if (!is_used(zero) || !zero->o.layout->group[group].trainable)
        return NULL;
    return (float *)zero->outer_step->momentum.ptr + elements_before(zero, group) + first;
}

static float *common_of(const dsc_zero *zero, int32_t group)
{
    return (float *)zero->outer_step->common.ptr + elements_before(zero, group);
}

/* This rank's slice of the master weights, which local SGD keeps on the device. */
static dsc_status master_of(dsc_zero *zero, int32_t group, bool write, float **out, dsc_error *err)
{
    const int64_t slice = zero->o.layout->group[group].slice;
    int64_t count = slice;
    void *ptr;
    DSC_TRY(dsc_zero_view(zero, group, DSC_PLANE_MASTER, 0, &count, write, &ptr, err));
    DSC_ASSERT(count == slice);
    *out = ptr;
    return DSC_OK;
}

dsc_status dsc_zero_outer_start(dsc_zero *zero, dsc_error *err)
{
    for (int32_t g = 0; g < zero->o.layout->group_count && is_used(zero); g++) {
        float *master;
        if (!zero->o.layout->group[g].trainable)
            continue;
        DSC_TRY(master_of(zero, g, false, &master, err));
        DSC_TRY(dsc_copy(zero->o.compute, common_of(zero, g), master, zero->o.layout->group[g].slice * 4, err));
    }
    return DSC_OK;
}

/* change <- the sum over all copies of common minus own weights. */
static dsc_status add_changes(dsc_zero *zero, int32_t group, const float *master, dsc_error *err)
{
    const int64_t slice = zero->o.layout->group[group].slice;
    float *change = zero->outer_step->change.ptr;
    const dsc_scale_args negate = { .x = change, .count = slice, .factor = -1, .dtype = DSC_F32 };
    const dsc_add_args add = { .to = change, .a = change, .b = common_of(zero, group), .count = slice };
    DSC_TRY(dsc_copy(zero->o.compute, change, master, slice * 4, err));
    DSC_TRY(DSC_RUN(zero->o.compute, SCALE, &negate, err));
    DSC_TRY(DSC_RUN(zero->o.compute, ADD, &add, err));
    dsc_comm_label_module(zero->o.replicas, 0, zero->o.layout->group[group].module);
    return dsc_comm_all_reduce(zero->o.replicas, 0, change, slice, DSC_F32, zero->o.compute, err);
}

/* torch.optim.SGD without dampening: its first step has the formula of all others, as the momentum is 0. */
static dsc_status step_common(dsc_zero *zero, int32_t group, dsc_error *err)
{
    const dsc_outer_options *o = &zero->o.outer;
    dsc_update_args args = { .master = common_of(zero, group),
                             .state = { dsc_zero_outer_momentum(zero, group, 0) },
                             .grad = zero->outer_step->change.ptr,
                             .count = zero->o.layout->group[group].slice,
                             .state_dtype = DSC_F32,
                             .grad_dtype = DSC_F32 };
    args.scalars.grad_scale = (float)(1.0 / zero->o.replica_count);
    args.scalars.decay = 1;
    args.scalars.step_size = o->lr;
    args.scalars.beta1 = o->momentum;
    args.scalars.one_minus_beta1 = 1;
    args.scalars.nesterov = o->nesterov;
    return DSC_RUN(zero->o.compute, MOMENTUM, &args, err);
}

/* Moments are fp32 and on the device, as the masters are. */
static dsc_status share_plane(dsc_zero *zero, int32_t group, dsc_plane plane, dsc_error *err)
{
    const int64_t slice = zero->o.layout->group[group].slice;
    int64_t count = slice;
    void *ptr;
    DSC_ASSERT(dsc_zero_dtype(zero, plane) == DSC_F32);
    DSC_TRY(dsc_zero_view(zero, group, plane, 0, &count, true, &ptr, err));
    DSC_ASSERT(count == slice);
    const dsc_scale_args divide = {
        .x = ptr, .count = slice, .factor = (float)(1.0 / zero->o.replica_count), .dtype = DSC_F32
    };
    dsc_comm_label_module(zero->o.replicas, 0, zero->o.layout->group[group].module);
    DSC_TRY(dsc_comm_all_reduce(zero->o.replicas, 0, ptr, slice, DSC_F32, zero->o.compute, err));
    return DSC_RUN(zero->o.compute, SCALE, &divide, err);
}

dsc_status dsc_outer_step_share_moments(dsc_zero *zero, dsc_error *err)
{
    DSC_ASSERT(is_used(zero) && zero->o.replicas != NULL);
    DSC_ASSERT(zero->state == DSC_ZERO_IDLE);
    DSC_TRY(dsc_zero_sync(zero, err));
    for (int32_t g = 0; g < zero->o.layout->group_count; g++)
        for (int k = 0; k < dsc_moment_count(zero, g) && zero->o.layout->group[g].trainable; k++)
            DSC_TRY(share_plane(zero, g, (dsc_plane)(DSC_PLANE_MOMENT1 + k), err));
    return dsc_zero_sync(zero, err);
}

dsc_status dsc_zero_outer_step(dsc_zero *zero, dsc_error *err)
{
    DSC_ASSERT(is_used(zero) && zero->o.replicas != NULL);
    DSC_ASSERT(zero->state == DSC_ZERO_IDLE);
    DSC_TRY(dsc_zero_sync(zero, err));
    for (int32_t g = 0; g < zero->o.layout->group_count; g++) {
        float *master;
        if (!zero->o.layout->group[g].trainable)
            continue;
        DSC_TRY(master_of(zero, g, true, &master, err));
        DSC_TRY(add_changes(zero, g, master, err));
        DSC_TRY(step_common(zero, g, err));
        DSC_TRY(dsc_copy(zero->o.compute, master, common_of(zero, g), zero->o.layout->group[g].slice * 4, err));
    }
    return dsc_zero_republish(zero, err);
}
