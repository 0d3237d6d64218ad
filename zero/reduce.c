/* reduce.c - gradient parts to owners: the order of the sum, and the location of sums meanwhile.
 *
 * Owners add parts in rank order, micro-step after micro-step, uses of a tied parameter in backward order. grad_parts.c
 * plans their slots until then. One rank's first part of a step is made where the sum is. For sums that must not depend
 * on W, the parts of a micro-step are kept separate and pushed in index order into a binary counter per use. Level l
 * holds the sum of 2^l neighbouring parts. A rank without a micro-batch in a micro-step takes part in its collectives,
 * and its part is left out of the sums. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "zero/compress.h"
#include "zero/core/internal.h"
#include "zero/core/tile.h"
#include "zero/fingerprints.h"
#include "zero/grad_hooks.h"
#include "zero/grad_parts.h"
#include "zero/offload/speculative_memory.h"
#include "zero/offload/grad_tiles.h"
#include "zero/offload/host_update.h"
#include "zero/offload/placement.h"
#include "zero/offload/state_store.h"
#include "zero/reduce.h"
#include "zero/squares.h"
#include "zero/zero.h"

dsc_status dsc_reduce_open(dsc_zero *zero, dsc_error *err)
{
    DSC_TRY(dsc_grad_parts_open(zero, err));
    DSC_TRY(dsc_event_open(dsc_host_update_stream_device(zero), &zero->event.updated, err));
    return dsc_event_open(zero->o.device, &zero->event.idle, err);
}

void dsc_reduce_close(dsc_zero *zero)
{
    dsc_grad_parts_close(zero);
    dsc_event_close(&zero->event.updated);
    dsc_event_close(&zero->event.idle);
}

static dsc_status zero_gaps(dsc_zero *zero, dsc_zero_ranges_args *gaps, dsc_error *err)
{
    DSC_ASSERT(gaps->range_count >= 0);
    if (gaps->range_count == 0)
        return DSC_OK;
    DSC_TRY(DSC_RUN(zero->o.compute, ZERO_RANGES, gaps, err));
    gaps->range_count = 0;
    return DSC_OK;
}

/* Elements [first, end) of the part have no gradient. Short gaps wait in `gaps` for a launch that they share. */
static dsc_status add_gap(dsc_zero *zero, dsc_zero_ranges_args *gaps, int64_t first, int64_t end, dsc_error *err)
{
    DSC_ASSERT(first <= end);
    if (first == end)
        return DSC_OK;
    if (end - first > DSC_ZERO_RANGES_ELEMENTS_MAX)
        return dsc_fill_zero(zero->o.compute, gaps->x + first, (end - first) * 4, err);
    if (gaps->range_count == DSC_ZERO_RANGES_MAX)
        DSC_TRY(zero_gaps(zero, gaps, err));
    gaps->first[gaps->range_count] = first;
    gaps->count[gaps->range_count++] = (int32_t)(end - first);
    return DSC_OK;
}

/* Points the module's gradients into one part and zeroes all elements without a gradient. These are padding, gaps, and
 * in a part of a shared group every tensor that this module does not use. */
static dsc_status open_part(dsc_zero *zero, const dsc_grad_part *part, int64_t pass, float **grad, dsc_error *err)
{
    const dsc_layout *layout = zero->o.layout;
    const dsc_layout_group *group = &layout->group[part->group];
    const int32_t first_param = layout->module_first_param[part->module];
    float *base = dsc_grad_part_base(zero, part, pass);
    dsc_zero_ranges_args gaps = { .x = base };
    int64_t covered = 0;
    for (int32_t t = group->first_tensor; t < group->first_tensor + group->tensor_count; t++) {
        const dsc_layout_tensor *tensor = &layout->tensor[t];
        bool used = false;
        for (int32_t p = first_param; p < layout->module_first_param[part->module + 1]; p++) {
            if (layout->param[p].tensor != t)
                continue;
            grad[p - first_param] = base + tensor->offset;
            used = true;
        }
        if (!used)
            continue;
        DSC_ASSERT(tensor->offset >= covered);
        DSC_TRY(add_gap(zero, &gaps, covered, tensor->offset, err));
        covered = tensor->offset + tensor->count;
    }
    DSC_ASSERT(covered <= group->padded);
    DSC_TRY(add_gap(zero, &gaps, covered, group->padded, err));
    return zero_gaps(zero, &gaps, err);
}

dsc_status dsc_zero_grad_part(dsc_zero *zero, int32_t module, int64_t micro_step, float **grad, dsc_error *err)
{
    const dsc_layout *layout = zero->o.layout;
    const int64_t pass = micro_step / zero->o.micro_batch_group;
    const int32_t mb = (int32_t)(micro_step % zero->o.micro_batch_group);
    DSC_ASSERT(zero->state == DSC_ZERO_ACCUMULATING);
    DSC_ASSERT(module >= 0);
    DSC_ASSERT(module < layout->module_count);
    DSC_ASSERT(micro_step >= 0);
    DSC_ASSERT(micro_step < zero->pass_count * zero->o.micro_batch_group);
    for (int32_t p = layout->module_first_param[module]; p < layout->module_first_param[module + 1]; p++)
        grad[p - layout->module_first_param[module]] = NULL;
    DSC_TRY(dsc_zero_after_update(zero, -1, zero->o.compute, err)); /* which reads the sums of the step before */
    for (int32_t u = layout->module_first_use[module]; u < layout->module_first_use[module + 1]; u++) {
        const int32_t i = zero->parts.of_use[u * zero->o.micro_batch_group + mb];
        if (i < 0)
            continue;
        const dsc_grad_part *part = &zero->parts.part[i];
        DSC_ASSERT(part->module == module);
        DSC_ASSERT(part->mb == mb);
        if (part->slot >= 0)
            DSC_TRY(dsc_zero_after_exchange(zero, zero->stream.reduce,
                                            zero->parts.slot[part->after].mark[part->after_mark], err));
        DSC_TRY(open_part(zero, part, pass, grad, err));
    }
    return DSC_OK;
}

/* Pushes the parts of elements [first, first + count) of all ranks that have one into the counter. Part index k carries
 * through level l while bit l of k is set. All chunks of a slice see the same bits, so the counter's state is just the
 * index. */
static dsc_status push_chunk(dsc_zero *zero, const dsc_grad_part *part, int64_t micro_step, int64_t first,
                             int64_t count, dsc_error *err)
{
    const int64_t slice = zero->o.layout->group[part->group].slice;
    int64_t index = dsc_quota_first(&zero->o.quota, micro_step);
    DSC_ASSERT(first + count <= slice);
    for (int32_t r = 0; r < zero->world_size; r++) {
        if (!dsc_quota_has(&zero->o.quota, r, micro_step))
            continue;
        int32_t level = 0;
        while ((index >> level & 1) != 0)
            level++;
        DSC_ASSERT(level < zero->parts.level_count);
        float *to = part->levels + level * slice + first;
        const float *carry = zero->parts.separate[r];
        for (int32_t l = 0; l < level; l++) {
            const dsc_add_args add = { .to = to, .a = part->levels + l * slice + first, .b = carry, .count = count };
            DSC_TRY(DSC_RUN(zero->stream.reduce, ADD, &add, err));
            carry = to;
        }
        if (level == 0)
            DSC_TRY(dsc_copy(zero->stream.reduce, to, carry, count * 4, err));
        index++;
    }
    return DSC_OK;
}

/* The counter's levels, lowest first, are sums of the last leaves; together they are the sum of the use. */
static dsc_status add_counter(dsc_zero *zero, const dsc_grad_part *part, float *sum, dsc_error *err)
{
    const int64_t slice = zero->o.layout->group[part->group].slice;
    float *carry = NULL;
    for (int32_t l = 0; l < zero->parts.level_count; l++) {
        float *level = part->levels + l * slice;
        if ((zero->o.quota.total >> l & 1) == 0)
            continue;
        if (carry != NULL) {
            const dsc_add_args add = { .to = level, .a = level, .b = carry, .count = slice };
            DSC_TRY(DSC_RUN(zero->stream.reduce, ADD, &add, err));
        }
        carry = level;
    }
    DSC_ASSERT(carry != NULL); /* a step has at least one part */
    if (part->first_use)
        return dsc_copy(zero->stream.reduce, sum, carry, slice * 4, err);
    const dsc_add_args add = { .to = sum, .a = sum, .b = carry, .count = slice };
    return DSC_RUN(zero->stream.reduce, ADD, &add, err);
}

static float *sum_slice(const dsc_zero *zero, int32_t group)
{
    const dsc_group_state *state = &zero->group[group];
    DSC_ASSERT(state->grad != NULL);
    return state->grad + (zero->o.layout->group[group].slice * zero->o.rank - state->local_first);
}

/* All parts of the step are added to a sum: its squares are added on the way. */
static dsc_status add_squares(dsc_zero *zero, const dsc_sum *sum, dsc_error *err)
{
    const int64_t first = zero->o.layout->group[sum->group].slice * zero->o.rank + sum->first;
    DSC_ASSERT(dsc_sum_is_squared_at_once(zero, sum->group));
    if (!zero->sum_started)
        DSC_TRY(dsc_fill_zero(zero->stream.reduce, zero->buf.sum.ptr, (int64_t)sizeof(dsc_fixed_sum), err));
    zero->sum_started = true;
    return dsc_zero_add_squares(zero, zero->stream.reduce, sum->group, sum->acc, first, sum->count, err);
}

/* After a part was added: sums that are stored in bf16 are rounded, in place, wherever they are. */
static dsc_status round_sums(dsc_zero *zero, float *sum, int64_t count, dsc_error *err)
{
    DSC_ASSERT(count > 0);
    const dsc_ordered_reduce_args args = { .acc = sum,
                                           .leaf = sum,
                                           .grad_part_count = 1,
                                           .count = count,
                                           .leaf_dtype = DSC_F32,
                                           .wire_dtype = zero->o.sum_dtype,
                                           .overwrite = true };
    return zero->o.sum_dtype != DSC_F32 ? DSC_RUN(zero->stream.reduce, ORDERED_REDUCE, &args, err) : DSC_OK;
}

/* Elements [first, end) of each rank's slice have been read. */
static dsc_status pass_marks(dsc_zero *zero, const dsc_grad_part *part, int64_t first, int64_t end, dsc_error *err)
{
    DSC_ASSERT(first < end);
    DSC_ASSERT(end <= zero->o.layout->group[part->group].slice);
    if (part->slot < 0)
        return DSC_OK;
    const dsc_grad_part_slot *slot = &zero->parts.slot[part->slot];
    for (int32_t mark = 0; mark < slot->mark_count; mark++)
        if (first < dsc_grad_part_mark_end(zero, part, mark) && dsc_grad_part_mark_end(zero, part, mark) <= end)
            DSC_TRY(dsc_event_record(slot->mark[mark], zero->stream.reduce, err));
    return DSC_OK;
}

/* All parts of this copy of the states are added to a sum; the sums of the other copies follow. */
static dsc_status add_replicas(dsc_zero *zero, const dsc_sum *sum, dsc_error *err)
{
    if (zero->o.replica_count <= 1 || zero->o.outer.every > 0) /* copies exchange weights instead */
        return DSC_OK;
    DSC_ASSERT(zero->o.replicas != NULL);
    dsc_comm_label_module(zero->o.replicas, 0, zero->o.layout->group[sum->group].module);
    DSC_TRY(dsc_comm_all_reduce(zero->o.replicas, 0, sum->acc, sum->count, DSC_F32, zero->stream.reduce, err));
    return round_sums(zero, sum->acc, sum->count, err);
}

/* The memory in which a run's next elements are added: on the device between grouped micro-batches, or the tile of the
 * sum itself. */
static dsc_status acquire_sum(dsc_zero *zero, const dsc_grad_part *first, const dsc_grad_part *last,
                              const dsc_sum_cursor *cursor, dsc_sum *sum, dsc_error *err)
{
    const dsc_group_state *state = &zero->group[first->group];
    const int64_t slice = zero->o.layout->group[first->group].slice;
    const bool reads = dsc_grad_part_reads_sum(first, cursor->pass);
    DSC_ASSERT(first->group == last->group);
    DSC_ASSERT(cursor->first < slice);
    if (!first->sum_is_staged && !last->sum_stays_staged)
        return dsc_grad_tiles_acquire(zero, first->group, cursor, !reads, sum, err);
    float *staged = zero->parts.staged_sums + state->sums.at + cursor->first;
    DSC_ASSERT(zero->parts.staged_sums != NULL);
    *sum = (dsc_sum) { .group = first->group, .first = cursor->first, .acc = staged };
    sum->count = dsc_min_i64(zero->store->tile_elements, slice - cursor->first);
    if (!reads)
        return DSC_OK;
    DSC_TRY(dsc_grad_tiles_acquire(zero, first->group, cursor, false, sum, err));
    DSC_TRY(dsc_copy(zero->stream.reduce, staged, sum->acc, sum->count * 4, err));
    sum->acc = staged;
    return dsc_grad_tiles_release(zero, sum, err);
}

/* Copies or writes the sums to the memory or the file that holds them until the next part. */
static dsc_status store_sum(dsc_zero *zero, const dsc_grad_part *first, const dsc_grad_part *last,
                            const dsc_sum_cursor *cursor, dsc_sum *sum, bool complete, dsc_error *err)
{
    const float *acc = sum->acc;
    DSC_ASSERT(sum->first == cursor->first);
    if (last->sum_stays_staged)
        return DSC_OK;
    if (!dsc_grad_part_writes_sum(zero, last, cursor->pass)) /* all ranks have read the part's elements there */
        return dsc_copy(zero->stream.reduce, dsc_grad_part_base(zero, last, cursor->pass) + cursor->first, acc,
                        sum->count * 4, err);
    if (first->sum_is_staged) {
        DSC_TRY(dsc_grad_tiles_acquire(zero, last->group, cursor, true, sum, err));
        DSC_TRY(dsc_copy(zero->stream.reduce, sum->acc, acc, sum->count * 4, err));
    }
    return dsc_grad_tiles_write_back(zero, sum, complete, err);
}

/* For the reductions of a micro-step; NULL: all ranks have parts. */
static const dsc_quota *quota_of(const dsc_zero *zero, int64_t micro_step)
{
    return dsc_quota_is_full(&zero->o.quota, micro_step) ? NULL : &zero->o.quota;
}

/* The sum of one rank is the part before, as that was made: both are rounded now, as a wire would have done it. */
static dsc_status add_to_first(dsc_zero *zero, const float *part, const dsc_sum *sum, dsc_error *err)
{
    const dsc_ordered_reduce_args args = { .acc = sum->acc,
                                           .leaf = sum->acc,
                                           .leaf_stride_bytes = (intptr_t)part - (intptr_t)sum->acc,
                                           .grad_part_count = 2,
                                           .count = sum->count,
                                           .leaf_dtype = DSC_F32,
                                           .wire_dtype = zero->o.wire_dtype,
                                           .overwrite = true };
    DSC_ASSERT(zero->world_size == 1);
    return DSC_RUN(zero->stream.reduce, ORDERED_REDUCE, &args, err);
}

static dsc_status add_part(dsc_zero *zero, const dsc_grad_part *part, int64_t pass, const dsc_sum *sum, dsc_error *err)
{
    const int64_t micro_step = pass * zero->o.micro_batch_group + part->mb;
    bool *is_unrounded = &zero->group[part->group].sums.is_unrounded;
    const float *base = dsc_grad_part_base(zero, part, pass);
    DSC_ASSERT(sum->group == part->group);
    DSC_ASSERT(sum->first + sum->count <= zero->o.layout->group[part->group].slice);
    if (dsc_grad_part_is_sum(part, pass)) {
        *is_unrounded = zero->o.wire_dtype != DSC_F32;
        return pass_marks(zero, part, sum->first, sum->first + sum->count, err);
    }
    if (*is_unrounded) {
        *is_unrounded = false;
        DSC_TRY(add_to_first(zero, base, sum, err));
        return pass_marks(zero, part, sum->first, sum->first + sum->count, err);
    }
    const dsc_reduce_scatter_args args = { .acc = sum->acc,
                                           .leaf = base + sum->first,
                                           .leaf_stride = zero->o.layout->group[part->group].slice,
                                           .count = sum->count,
                                           .wire_dtype = zero->o.wire_dtype,
                                           .overwrite = pass == 0 && dsc_grad_part_is_first(part),
                                           .quota = quota_of(zero, micro_step),
                                           .micro_step = micro_step };
    DSC_TRY(dsc_pack_reduce(zero, part, &args, err));
    DSC_TRY(pass_marks(zero, part, sum->first, sum->first + sum->count, err));
    return round_sums(zero, sum->acc, sum->count, err);
}

/* A function on gradients gets what a wire would have delivered. */
static dsc_status after_reduce(dsc_zero *zero, const dsc_sum *sum, dsc_error *err)
{
    bool *is_unrounded = &zero->group[sum->group].sums.is_unrounded;
    const dsc_ordered_reduce_args round = { .acc = sum->acc,
                                            .leaf = sum->acc,
                                            .grad_part_count = 1,
                                            .count = sum->count,
                                            .leaf_dtype = DSC_F32,
                                            .wire_dtype = zero->o.wire_dtype,
                                            .overwrite = true };
    if (*is_unrounded && zero->hooks.after_reduce != NULL) {
        DSC_TRY(DSC_RUN(zero->stream.reduce, ORDERED_REDUCE, &round, err));
        *is_unrounded = false;
    }
    return dsc_grad_hooks_after_reduce(zero, sum->group, sum->first, sum->acc, sum->count, err);
}

/* Tile by tile, so that a sum is read and written once for all parts of the run. */
static dsc_status ordered_reduce_run(dsc_zero *zero, const dsc_grad_part *first, const dsc_grad_part *last,
                                     int64_t pass, dsc_error *err)
{
    const int32_t group = first->group;
    const int64_t slice = zero->o.layout->group[group].slice;
    const bool complete = dsc_grad_part_is_last(zero, last) && pass == zero->pass_count - 1;
    dsc_sum_cursor cursor = { .part = (int32_t)(first - zero->parts.part), .pass = pass };
    dsc_sum sum;
    DSC_ASSERT(first <= last);
    for (; cursor.first < slice; cursor.first += sum.count) {
        DSC_TRY(acquire_sum(zero, first, last, &cursor, &sum, err));
        DSC_ASSERT(sum.count > 0);
        for (const dsc_grad_part *part = first; part <= last; part++)
            DSC_TRY(add_part(zero, part, pass, &sum, err));
        if (complete) {
            DSC_TRY(add_replicas(zero, &sum, err));
            DSC_TRY(after_reduce(zero, &sum, err));
        }
        if (complete && dsc_sum_is_squared_at_once(zero, group))
            DSC_TRY(add_squares(zero, &sum, err));
        DSC_TRY(store_sum(zero, first, last, &cursor, &sum, complete, err));
    }
    DSC_ASSERT(cursor.first == slice);
    if (complete)
        DSC_TRY(dsc_speculative_memory_start(zero, group, err));
    if (dsc_in_swap(zero, group, DSC_PLANE_GRAD))
        return dsc_grad_tiles_wait(zero, &cursor, err);
    return complete && dsc_speculative_update_covers(zero, group) ? dsc_grad_tiles_keep(zero, &cursor, err) : DSC_OK;
}

/* The part stays on this rank: ranks exchange signs (onebit.c). */
static dsc_status keep_grad_part(dsc_zero *zero, const dsc_grad_part *part, int64_t micro_step, dsc_error *err)
{
    const dsc_layout_group *group = &zero->o.layout->group[part->group];
    float *sum = zero->group[part->group].grad;
    DSC_ASSERT(zero->o.stage == 0);
    DSC_ASSERT(sum != NULL);
    const dsc_ordered_reduce_args args = { .acc = sum,
                                           .leaf = dsc_grad_part_base(zero, part, zero->pass),
                                           .grad_part_count = 1,
                                           .count = group->padded,
                                           .leaf_dtype = DSC_F32,
                                           .wire_dtype = zero->o.wire_dtype,
                                           .overwrite = micro_step == 0 && part->first_use };
    DSC_TRY(DSC_RUN(zero->stream.reduce, ORDERED_REDUCE, &args, err));
    DSC_TRY(pass_marks(zero, part, 0, group->slice, err));
    return round_sums(zero, sum, group->padded, err);
}

/* For sums that must not depend on W. */
static dsc_status push_part(dsc_zero *zero, const dsc_grad_part *part, int64_t micro_step, dsc_error *err)
{
    const int64_t slice = zero->o.layout->group[part->group].slice;
    DSC_ASSERT(zero->parts.separate_elements > 0);
    DSC_ASSERT(part->levels != NULL);
    dsc_reduce_scatter_args args = { .leaf_stride = slice,
                                     .wire_dtype = zero->o.wire_dtype,
                                     .apart = zero->parts.separate,
                                     .quota = quota_of(zero, micro_step),
                                     .micro_step = micro_step };
    for (int64_t first = 0; first < slice; first += zero->parts.separate_elements) {
        args.leaf = dsc_grad_part_base(zero, part, zero->pass) + first;
        args.count = dsc_min_i64(zero->parts.separate_elements, slice - first);
        DSC_TRY(dsc_pack_reduce(zero, part, &args, err));
        DSC_TRY(pass_marks(zero, part, first, first + args.count, err));
        DSC_TRY(push_chunk(zero, part, micro_step, first, args.count, err));
    }
    return DSC_OK;
}

/* Padding is 0 and stays it. */
static dsc_status scale_part(dsc_zero *zero, const dsc_grad_part *part, dsc_error *err)
{
    const dsc_scale_args args = { .x = dsc_grad_part_base(zero, part, zero->pass),
                                  .count = zero->o.layout->group[part->group].padded,
                                  .factor = zero->o.grad_part_factor,
                                  .dtype = DSC_F32 };
    return args.factor == 0 || args.factor == 1 ? DSC_OK : DSC_RUN(zero->stream.reduce, SCALE, &args, err);
}

static dsc_status reduce_run(dsc_zero *zero, const dsc_grad_part *first, const dsc_grad_part *last, int64_t micro_step,
                             dsc_error *err)
{
    DSC_ASSERT(first->mb == micro_step % zero->o.micro_batch_group);
    for (const dsc_grad_part *part = first; part <= last && dsc_quota_has(&zero->o.quota, zero->o.rank, micro_step);
         part++) {
        DSC_TRY(dsc_fingerprints_add_part(zero, part, err));
        DSC_TRY(dsc_grad_hooks_before_send(zero, part, micro_step, err));
        DSC_TRY(scale_part(zero, part, err));
    }
    if (!zero->sums_are_own && zero->parts.level_count == 0)
        return ordered_reduce_run(zero, first, last, micro_step / zero->o.micro_batch_group, err);
    for (const dsc_grad_part *part = first; part <= last; part++)
        DSC_TRY(zero->sums_are_own ? keep_grad_part(zero, part, micro_step, err)
                                   : push_part(zero, part, micro_step, err));
    return DSC_OK;
}

dsc_status dsc_zero_reduce(dsc_zero *zero, int32_t module, int64_t micro_step, dsc_error *err)
{
    int32_t first, end;
    DSC_ASSERT(zero->state == DSC_ZERO_ACCUMULATING);
    DSC_ASSERT(micro_step >= 0);
    DSC_ASSERT(micro_step < zero->pass_count * zero->o.micro_batch_group);
    zero->pass = micro_step / zero->o.micro_batch_group;
    zero->more_follow = zero->pass + 1 < zero->pass_count;
    DSC_TRY(dsc_zero_after_compute(zero, zero->stream.reduce, err));
    dsc_comm_label_module(zero->o.comm, DSC_CHANNEL_REDUCE, module);
    dsc_grad_parts_of_visit(zero, module, (int32_t)(micro_step % zero->o.micro_batch_group), &first, &end);
    for (const dsc_grad_part *part = zero->parts.part + first, *last; part < zero->parts.part + end; part = last + 1) {
        last = dsc_grad_part_last_of_run(zero, part);
        DSC_ASSERT(last < zero->parts.part + end);
        DSC_TRY(reduce_run(zero, part, last, micro_step, err));
    }
    return DSC_OK;
}

static dsc_status finish_counted_sum(dsc_zero *zero, int32_t group, dsc_error *err)
{
    const int64_t slice = zero->o.layout->group[group].slice;
    DSC_TRY(round_sums(zero, sum_slice(zero, group), slice, err));
    return dsc_grad_hooks_after_reduce(zero, group, 0, sum_slice(zero, group), slice, err);
}

dsc_status dsc_reduce_finish(dsc_zero *zero, dsc_error *err)
{
    for (int32_t i = 0; zero->parts.level_count > 0 && i < zero->parts.count; i++) {
        const dsc_grad_part *part = &zero->parts.part[i];
        if (part->mb > 0)
            continue;
        DSC_TRY(add_counter(zero, part, sum_slice(zero, part->group), err));
        if (part->last_use)
            DSC_TRY(finish_counted_sum(zero, part->group, err));
    }
    DSC_TRY(dsc_grad_tiles_drain(zero, err));
    DSC_TRY(dsc_event_record(zero->event.idle, zero->stream.reduce, err));
    return dsc_zero_after_exchange(zero, zero->stream.reduce, zero->event.idle, err);
}
