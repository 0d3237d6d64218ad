/* reduce.c - leaves to owners: where a module's gradient lies until it is reduced, and the order in which leaves are
 * summed.
 *
 * A leaf is produced at a step and reduced on the reduce stream while the next step computes, so its place in the leaf
 * arena is taken for two steps (one without overlap). Reductions may fall behind by more, above all where sums are in
 * files: so places are given again as late as the arena allows, and one that is reduced in parts is written again as
 * soon as the parts in that place are. Owners fold leaves in rank order, micro-step after micro-step, uses of a tied
 * parameter in backward order. For sums that must not depend on W, the W leaves of a micro-step are kept apart and
 * pushed in index order into a binary counter per leaf: level l holds the sum of 2^l neighbouring leaves.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "zero/internal.h"

#define APART_ELEMENTS (1 << 18) /* per rank: 1 MiB of fp32 leaves kept apart at a time */
#define REST_STEPS_MAX 8         /* reductions that are later than that do not catch up any more */

static void add_leaf(dsc_zero *zero, int32_t step, int32_t module, int32_t group, bool shared)
{
    dsc_leaf *leaf = &zero->leaf[zero->leaf_count];
    *leaf = (dsc_leaf){ .step = step, .module = module, .group = group, .shared = shared, .first_of_group = true };
    leaf->last_of_group = true;
    for (int32_t i = 0; i < zero->leaf_count; i++)
        if (zero->leaf[i].group == group)
            leaf->first_of_group = zero->leaf[i].last_of_group = false;
    zero->leaf_count++;
}

/* Leaves in the order in which backward makes them: the loss module at its forward step, then the others backwards. */
static void list_leaves(dsc_zero *zero)
{
    const dsc_layout *layout = zero->o.layout;
    const int32_t modules = layout->module_count;
    for (int32_t m = modules - 1; m >= 0; m--) {
        const int32_t step = m == modules - 1 ? m : dsc_backward_step(zero, m);
        for (int32_t u = layout->module_first_use[m]; u < layout->module_first_use[m + 1]; u++) {
            const int32_t g = layout->use_group[u];
            if (layout->group[g].trainable)
                add_leaf(zero, step, m, g, layout->group[g].module != m);
        }
    }
}

/* Of a leaf's slice, elements that one call of the reductions takes. */
static int64_t piece_elements(const dsc_zero *zero, const dsc_leaf *leaf)
{
    const int64_t slice = zero->o.layout->group[leaf->group].slice;
    if (zero->o.world_size_reproducible)
        return dsc_min_i64(APART_ELEMENTS, slice);
    return dsc_sum_tier_away(zero, leaf->group) ? dsc_min_i64(zero->store.tile_elements, slice) : slice;
}

/* Elements of each rank's slice that are reduced when a mark is passed. */
static int64_t mark_end(const dsc_zero *zero, const dsc_leaf *leaf, int32_t mark)
{
    return dsc_div_ceil(zero->o.layout->group[leaf->group].slice * (mark + 1), leaf->mark_count);
}

/* How much of each rank's slice of a leaf lies before `end`, where it meets elements [first, end) of the leaf. */
static int64_t slice_end(const dsc_zero *zero, const dsc_leaf *leaf, int64_t first, int64_t end)
{
    const int64_t slice = zero->o.layout->group[leaf->group].slice;
    const int64_t from = dsc_max_i64(first, 0), to = dsc_min_i64(end, slice * zero->world_size);
    return from < to ? dsc_min_i64(to - from / slice * slice, slice) : 0;
}

/* The reductions go on leaf by leaf, so what lay in a leaf's place before the last one there is reduced with it. */
static void plan_place(dsc_zero *zero, dsc_leaf *leaf)
{
    const int64_t bytes = zero->o.layout->group[leaf->group].padded * 4;
    const int32_t index = (int32_t)(leaf - zero->leaf);
    for (int32_t back = 1; back <= zero->leaf_count; back++) { /* the last one is itself, a micro-step before */
        leaf->after = (index + zero->leaf_count - back) % zero->leaf_count;
        const dsc_leaf *before = &zero->leaf[leaf->after];
        const int64_t needed = slice_end(zero, before, (leaf->offset - before->offset) / 4,
                                         (leaf->offset - before->offset + bytes) / 4);
        if (needed == 0)
            continue;
        for (leaf->after_mark = 0; mark_end(zero, before, leaf->after_mark) < needed;)
            leaf->after_mark++;
        return;
    }
}

/* A sum that would go to a file only to be read by the update. */
static bool holds_sum(const dsc_zero *zero, const dsc_leaf *leaf)
{
    const int64_t bytes = zero->o.layout->group[leaf->group].padded * 4;
    if (!leaf->last_of_group || !dsc_in_swap(zero, leaf->group, DSC_PLANE_GRAD) || zero->o.sum_dtype != DSC_F32 ||
        !dsc_device_host_visible(zero->o.device))
        return false;
    for (const dsc_leaf *other = leaf + 1; other < zero->leaf + zero->leaf_count; other++)
        if (slice_end(zero, other, (leaf->offset - other->offset) / 4, (leaf->offset - other->offset + bytes) / 4) > 0)
            return false;
    return true;
}

static void plan_marks(dsc_zero *zero)
{
    for (int32_t i = 0; i < zero->leaf_count; i++) {
        dsc_leaf *leaf = &zero->leaf[i];
        const int64_t slice = zero->o.layout->group[leaf->group].slice;
        leaf->mark_count = (int32_t)dsc_min_i64(DSC_LEAF_MARKS_MAX, dsc_div_ceil(slice, piece_elements(zero, leaf)));
    }
    for (int32_t i = 0; i < zero->leaf_count; i++) {
        plan_place(zero, &zero->leaf[i]);
        zero->leaf[i].holds_sum = holds_sum(zero, &zero->leaf[i]);
    }
}

dsc_status dsc_reduce_plan(dsc_zero *zero, int64_t *leaf_bytes, int64_t *counter_bytes, dsc_error *err)
{
    const dsc_layout *layout = zero->o.layout;
    dsc_alloc *alloc = zero->o.alloc;
    const int32_t uses = layout->module_first_use[layout->module_count];
    dsc_window *windows = NULL;
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, uses, sizeof *zero->leaf, &zero->leaf, err));
    list_leaves(zero);
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, uses, sizeof *windows, &windows, err));
    for (int32_t i = 0; i < zero->leaf_count; i++)
        windows[i] = (dsc_window){ .first = zero->leaf[i].step, .last = zero->leaf[i].step + (zero->o.overlap ? 1 : 0),
                                   .bytes = layout->group[zero->leaf[i].group].padded * 4 };
    *leaf_bytes = dsc_window_spread(windows, zero->leaf_count, zero->o.overlap ? REST_STEPS_MAX : 0);
    for (int32_t i = 0; i < zero->leaf_count; i++)
        zero->leaf[i].offset = windows[i].offset;
    dsc_alloc_free(alloc, windows);
    plan_marks(zero);

    *counter_bytes = 0;
    if (!zero->o.world_size_reproducible)
        return DSC_OK;
    while (((int64_t)1 << zero->level_count) <= zero->o.leaves_per_step)
        zero->level_count++;
    DSC_ASSERT(zero->level_count <= DSC_COUNTER_LEVELS_MAX);
    int64_t longest = 0;
    for (int32_t i = 0; i < zero->leaf_count; i++) {
        const int64_t slice = layout->group[zero->leaf[i].group].slice;
        *counter_bytes += slice * 4 * zero->level_count;
        longest = dsc_max_i64(longest, slice);
    }
    zero->apart_elements = dsc_min_i64(APART_ELEMENTS, longest);
    *counter_bytes += zero->apart_elements * 4 * zero->world_size;
    return DSC_OK;
}

/* Counter levels and the apart chunks lie behind the sums in the gradient buffer, from `base` on. */
static dsc_status place_counters(dsc_zero *zero, float *base, dsc_error *err)
{
    DSC_TRY(dsc_alloc_zeroed(zero->o.alloc, DSC_TAG_CONTROL, zero->world_size, sizeof(float *), &zero->apart, err));
    for (int32_t r = 0; r < zero->world_size; r++, base += zero->apart_elements)
        zero->apart[r] = base;
    for (int32_t i = 0; i < zero->leaf_count; i++)
        for (int32_t l = 0; l < zero->level_count; l++, base += zero->o.layout->group[zero->leaf[i].group].slice)
            zero->leaf[i].level[l] = base;
    return DSC_OK;
}

static float *leaf_base(const dsc_zero *zero, const dsc_leaf *leaf)
{
    return (float *)((char *)zero->leaf_buf.ptr + leaf->offset);
}

dsc_status dsc_reduce_open(dsc_zero *zero, dsc_error *err)
{
    if (zero->level_count > 0) {
        int64_t sums = 0;
        for (int32_t g = 0; g < zero->o.layout->group_count; g++)
            if (zero->group[g].grad != NULL)
                sums += zero->group[g].own_count;
        DSC_TRY(place_counters(zero, (float *)zero->grad_buf.ptr + sums, err));
    }
    for (int32_t i = 0; i < zero->leaf_count; i++)
        for (int32_t mark = 0; mark < zero->leaf[i].mark_count; mark++)
            DSC_TRY(dsc_event_open(zero->o.device, &zero->leaf[i].mark[mark], err));
    for (int32_t i = 0; i < zero->leaf_count; i++)
        if (zero->leaf[i].holds_sum)
            zero->group[zero->leaf[i].group].last_sum = leaf_base(zero, &zero->leaf[i]);
    DSC_TRY(dsc_event_open(zero->o.device, &zero->updated, err));
    return dsc_event_open(zero->o.device, &zero->idle, err);
}

void dsc_reduce_close(dsc_zero *zero)
{
    for (int32_t i = 0; zero->leaf != NULL && i < zero->leaf_count; i++)
        for (int32_t mark = 0; mark < zero->leaf[i].mark_count; mark++)
            dsc_event_close(&zero->leaf[i].mark[mark]);
    dsc_event_close(&zero->updated);
    dsc_event_close(&zero->idle);
    dsc_alloc_free(zero->o.alloc, zero->leaf);
    dsc_alloc_free(zero->o.alloc, zero->apart);
}

/* Points the module's gradients into one leaf and zeroes what no gradient covers: padding, gaps, and in a leaf of a
 * shared group every tensor that this module does not use. */
static dsc_status open_leaf(dsc_zero *zero, const dsc_leaf *leaf, float **grad, dsc_error *err)
{
    const dsc_layout *layout = zero->o.layout;
    const dsc_layout_group *group = &layout->group[leaf->group];
    const int32_t first_param = layout->module_first_param[leaf->module];
    float *base = leaf_base(zero, leaf);
    int64_t covered = 0;
    for (int32_t t = group->first_tensor; t < group->first_tensor + group->tensor_count; t++) {
        const dsc_layout_tensor *tensor = &layout->tensor[t];
        bool used = false;
        for (int32_t p = first_param; p < layout->module_first_param[leaf->module + 1]; p++) {
            if (layout->param[p].tensor != t)
                continue;
            grad[p - first_param] = base + tensor->offset;
            used = true;
        }
        if (!used)
            continue;
        if (tensor->offset > covered)
            DSC_TRY(dsc_zero_bytes(zero->o.compute, base + covered, (tensor->offset - covered) * 4, err));
        covered = tensor->offset + tensor->count;
    }
    if (group->padded > covered)
        DSC_TRY(dsc_zero_bytes(zero->o.compute, base + covered, (group->padded - covered) * 4, err));
    return DSC_OK;
}

/* Before the reductions of a micro-step. */
static bool is_last_pass(const dsc_zero *zero)
{
    const int64_t micro_step = zero->more_follow ? zero->micro_step + 1 : 0;
    return (micro_step + 1) * zero->world_size == zero->o.leaves_per_step;
}

dsc_status dsc_zero_leaf(dsc_zero *zero, int32_t module, float **grad, dsc_error *err)
{
    const dsc_layout *layout = zero->o.layout;
    for (int32_t p = layout->module_first_param[module]; p < layout->module_first_param[module + 1]; p++)
        grad[p - layout->module_first_param[module]] = NULL;
    DSC_TRY(dsc_zero_after_update(zero, -1, zero->o.compute, err)); /* which reads the sums of the step before */
    if (module == layout->module_count - 1) /* files rest under the head's products, the longest of a pass */
        DSC_TRY(is_last_pass(zero) ? dsc_store_rest(zero, true, err) : dsc_ahead_begin(zero, err));
    for (int32_t i = 0; i < zero->leaf_count; i++) {
        const dsc_leaf *leaf = &zero->leaf[i];
        if (leaf->module != module)
            continue;
        DSC_TRY(dsc_stream_wait(zero->o.compute, zero->leaf[leaf->after].mark[leaf->after_mark], err));
        DSC_TRY(open_leaf(zero, leaf, grad, err));
    }
    return DSC_OK;
}

/* Pushes the W leaves of elements [first, first + count) into the counter. Leaf index k carries through level l while
 * bit l of k is set; all chunks of a slice see the same bits, so the counter's state is just the index. */
static dsc_status push_chunk(dsc_zero *zero, const dsc_leaf *leaf, int64_t micro_step, int64_t first, int64_t count,
                             dsc_error *err)
{
    for (int32_t r = 0; r < zero->world_size; r++) {
        const int64_t index = micro_step * zero->world_size + r;
        int32_t level = 0;
        while ((index >> level & 1) != 0)
            level++;
        float *to = leaf->level[level] + first;
        const float *carry = zero->apart[r];
        for (int32_t l = 0; l < level; l++) {
            const dsc_add_args add = { .to = to, .a = leaf->level[l] + first, .b = carry, .count = count };
            DSC_TRY(DSC_RUN(zero->reduce_stream, ADD, &add, err));
            carry = to;
        }
        if (level == 0)
            DSC_TRY(dsc_copy(zero->reduce_stream, to, carry, count * 4, err));
    }
    return DSC_OK;
}

/* The counter's levels, lowest first, are the sums of the last leaves; together they are the leaf's sum. */
static dsc_status add_counter(dsc_zero *zero, const dsc_leaf *leaf, float *sum, dsc_error *err)
{
    const int64_t slice = zero->o.layout->group[leaf->group].slice;
    float *carry = NULL;
    for (int32_t l = 0; l < zero->level_count; l++) {
        if ((zero->o.leaves_per_step >> l & 1) == 0)
            continue;
        if (carry != NULL) {
            const dsc_add_args add = { .to = leaf->level[l], .a = leaf->level[l], .b = carry, .count = slice };
            DSC_TRY(DSC_RUN(zero->reduce_stream, ADD, &add, err));
        }
        carry = leaf->level[l];
    }
    if (leaf->first_of_group)
        return dsc_copy(zero->reduce_stream, sum, carry, slice * 4, err);
    const dsc_add_args add = { .to = sum, .a = sum, .b = carry, .count = slice };
    return DSC_RUN(zero->reduce_stream, ADD, &add, err);
}

static float *sum_slice(const dsc_zero *zero, int32_t group)
{
    const dsc_group_state *state = &zero->group[group];
    return state->grad + (zero->o.layout->group[group].slice * zero->o.rank - state->own_first);
}

/* All leaves of the step are in a sum that may leave memory now: its squares are taken on the way. */
static dsc_status add_squares(dsc_zero *zero, const dsc_sum *sum, dsc_error *err)
{
    const dsc_sumsq_args args = { .x = sum->acc, .count = sum->count, .sum = zero->sum_buf.ptr };
    if (!zero->sum_started)
        DSC_TRY(dsc_zero_bytes(zero->reduce_stream, zero->sum_buf.ptr, (int64_t)sizeof(dsc_fixed_sum), err));
    zero->sum_started = true;
    return DSC_RUN(zero->reduce_stream, SUMSQ, &args, err);
}

/* A leaf is in: sums that are kept in bf16 are rounded, in place, wherever they are kept. */
static dsc_status round_sums(dsc_zero *zero, float *sum, int64_t count, dsc_error *err)
{
    const dsc_fold_args args = { .acc = sum, .leaf = sum, .leaf_count = 1, .count = count, .leaf_dtype = DSC_F32,
                                 .wire_dtype = zero->o.sum_dtype, .overwrite = true };
    return zero->o.sum_dtype != DSC_F32 ? DSC_RUN(zero->reduce_stream, FOLD, &args, err) : DSC_OK;
}

/* Elements [first, end) of each rank's slice have been read. */
static dsc_status pass_marks(dsc_zero *zero, const dsc_leaf *leaf, int64_t first, int64_t end, dsc_error *err)
{
    for (int32_t mark = 0; mark < leaf->mark_count; mark++)
        if (first < mark_end(zero, leaf, mark) && mark_end(zero, leaf, mark) <= end)
            DSC_TRY(dsc_event_record(leaf->mark[mark], zero->reduce_stream, err));
    return DSC_OK;
}

/* All leaves of this copy of the states are in a sum; now those of the others. */
static dsc_status add_replicas(dsc_zero *zero, const dsc_sum *sum, dsc_error *err)
{
    if (zero->o.replica_count <= 1)
        return DSC_OK;
    dsc_comm_label_module(zero->o.replicas, 0, zero->o.layout->group[sum->group].module);
    DSC_TRY(dsc_comm_all_reduce(zero->o.replicas, 0, sum->acc, sum->count, DSC_F32, zero->reduce_stream, err));
    return round_sums(zero, sum->acc, sum->count, err);
}

static dsc_status fold_leaf(dsc_zero *zero, const dsc_leaf *leaf, int64_t micro_step, dsc_error *err)
{
    const int64_t slice = zero->o.layout->group[leaf->group].slice;
    const bool overwrite = micro_step == 0 && leaf->first_of_group;
    const bool complete = leaf->last_of_group && (micro_step + 1) * zero->world_size == zero->o.leaves_per_step;
    dsc_sum_place place = { .leaf = (int32_t)(leaf - zero->leaf), .micro_step = micro_step };
    dsc_sum sum;
    for (int64_t first = 0; first < slice; first += sum.count) {
        place.first = first;
        DSC_TRY(dsc_store_sum_take(zero, leaf->group, &place, overwrite, &sum, err));
        const dsc_reduce_scatter_args args = { .acc = sum.acc,
                                               .leaf = leaf_base(zero, leaf) + first,
                                               .leaf_stride = slice,
                                               .count = sum.count,
                                               .wire_dtype = zero->o.wire_dtype,
                                               .overwrite = overwrite };
        DSC_TRY(dsc_pack_reduce(zero, leaf, &args, err));
        DSC_TRY(pass_marks(zero, leaf, first, first + sum.count, err));
        DSC_TRY(round_sums(zero, sum.acc, sum.count, err));
        if (complete)
            DSC_TRY(add_replicas(zero, &sum, err));
        if (complete && zero->group[leaf->group].grad == NULL)
            DSC_TRY(add_squares(zero, &sum, err));
        if (complete && leaf->holds_sum) /* all ranks have read the leaf's elements there */
            DSC_TRY(dsc_copy(zero->reduce_stream, leaf_base(zero, leaf) + first, sum.acc, sum.count * 4, err));
        else
            DSC_TRY(dsc_store_sum_give(zero, &sum, err));
    }
    return dsc_in_swap(zero, leaf->group, DSC_PLANE_GRAD) ? dsc_store_sum_rest(zero, &place, err) : DSC_OK;
}

/* Nobody else is told of it: ranks exchange signs (onebit.c). */
static dsc_status keep_leaf(dsc_zero *zero, const dsc_leaf *leaf, int64_t micro_step, dsc_error *err)
{
    const dsc_layout_group *group = &zero->o.layout->group[leaf->group];
    float *sum = zero->group[leaf->group].grad;
    const dsc_fold_args args = { .acc = sum, .leaf = leaf_base(zero, leaf), .leaf_count = 1, .count = group->padded,
                                 .leaf_dtype = DSC_F32, .wire_dtype = zero->o.wire_dtype,
                                 .overwrite = micro_step == 0 && leaf->first_of_group };
    DSC_TRY(DSC_RUN(zero->reduce_stream, FOLD, &args, err));
    DSC_TRY(pass_marks(zero, leaf, 0, group->slice, err));
    return round_sums(zero, sum, group->padded, err);
}

static dsc_status reduce_leaf(dsc_zero *zero, const dsc_leaf *leaf, int64_t micro_step, dsc_error *err)
{
    const int64_t slice = zero->o.layout->group[leaf->group].slice;
    if (zero->sums_are_own)
        return keep_leaf(zero, leaf, micro_step, err);
    if (zero->level_count == 0)
        return fold_leaf(zero, leaf, micro_step, err);
    dsc_reduce_scatter_args args = { .leaf_stride = slice, .wire_dtype = zero->o.wire_dtype, .apart = zero->apart };
    for (int64_t first = 0; first < slice; first += zero->apart_elements) {
        args.leaf = leaf_base(zero, leaf) + first;
        args.count = dsc_min_i64(zero->apart_elements, slice - first);
        DSC_TRY(dsc_pack_reduce(zero, leaf, &args, err));
        DSC_TRY(pass_marks(zero, leaf, first, first + args.count, err));
        DSC_TRY(push_chunk(zero, leaf, micro_step, first, args.count, err));
    }
    return DSC_OK;
}

/* Padding is 0 and stays it. */
static dsc_status scale_leaf(dsc_zero *zero, const dsc_leaf *leaf, dsc_error *err)
{
    const dsc_scale_args args = { .x = leaf_base(zero, leaf), .count = zero->o.layout->group[leaf->group].padded,
                                  .factor = zero->o.leaf_factor, .dtype = DSC_F32 };
    return args.factor == 0 || args.factor == 1 ? DSC_OK : DSC_RUN(zero->reduce_stream, SCALE, &args, err);
}

dsc_status dsc_zero_reduce(dsc_zero *zero, int32_t module, int64_t micro_step, dsc_error *err)
{
    zero->micro_step = micro_step;
    zero->more_follow = (micro_step + 1) * zero->world_size < zero->o.leaves_per_step;
    DSC_TRY(dsc_zero_after_compute(zero, zero->reduce_stream, err));
    dsc_comm_label_module(zero->o.comm, DSC_CHANNEL_REDUCE, module);
    for (int32_t i = 0; i < zero->leaf_count; i++) {
        if (zero->leaf[i].module != module)
            continue;
        DSC_TRY(scale_leaf(zero, &zero->leaf[i], err));
        DSC_TRY(reduce_leaf(zero, &zero->leaf[i], micro_step, err));
    }
    return DSC_OK;
}

dsc_status dsc_reduce_finish(dsc_zero *zero, dsc_error *err)
{
    for (int32_t i = 0; zero->level_count > 0 && i < zero->leaf_count; i++) {
        const dsc_leaf *leaf = &zero->leaf[i];
        DSC_TRY(add_counter(zero, leaf, sum_slice(zero, leaf->group), err));
        if (leaf->last_of_group)
            DSC_TRY(round_sums(zero, sum_slice(zero, leaf->group), zero->o.layout->group[leaf->group].slice, err));
    }
    DSC_TRY(dsc_store_sum_drain(zero, err));
    DSC_TRY(dsc_event_record(zero->idle, zero->reduce_stream, err));
    return dsc_stream_wait(zero->o.compute, zero->idle, err);
}
