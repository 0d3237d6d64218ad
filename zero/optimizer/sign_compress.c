/* sign_compress.c - the mean of one vector per rank, for two bits an element on the wire: the exchange of 1-bit Adam
 * (Tang et al. 2021, arXiv:2102.02888) and of its successors (onebit.c).
 *
 * Each rank adds its last compression error to its vector. Signs and a scale per tensor, the root of the mean square,
 * represent the sum; the signs go to the owners of slices by all-to-all. An owner adds up the represented values in
 * rank order, and its own error. The signs of that sum, with a scale for each tensor's part in its slice, go back to
 * all ranks. They are the common mean, with equal bits on every rank, instead of two times 32 bits. DeepSpeed's
 * compressed all-reduce has the same slices.
 *
 * Scales come from fixed-point sums of squares (kernels/exact.h), so they depend on no order. They are needed between
 * two passes over all tensors, so the host waits for the device twice in an exchange. An element whose variance is 0
 * had no gradient before it was frozen: it would be divided by eps alone, and a sign cannot say that nothing moves.
 * It stays 0 (users of DeepSpeed give a mask for that). Only at stage 0: every rank needs all of the momentum.
 * SPDX-License-Identifier: Apache-2.0 */
#include "zero/core/internal.h"
#include "zero/optimizer/sign_compress.h"

#include <math.h>
#include <string.h>

bool dsc_sign_compress_are_used(const dsc_zero *zero)
{
    return zero->o.signs.kind != DSC_ONEBIT_NEVER && zero->world_size > 1;
}

/* Over trainable groups. */
static int64_t longest_group(const dsc_zero *zero)
{
    int64_t longest = 0;
    for (int32_t g = 0; g < zero->o.layout->group_count; g++)
        longest = dsc_max_i64(longest, zero->o.layout->group[g].trainable ? zero->o.layout->group[g].padded : 0);
    return longest;
}

static int64_t trainable_elements(const dsc_zero *zero, bool slices)
{
    int64_t elements = 0;
    for (int32_t g = 0; g < zero->o.layout->group_count; g++) {
        const dsc_layout_group *group = &zero->o.layout->group[g];
        elements += !group->trainable ? 0 : slices ? group->slice : group->padded;
    }
    return elements;
}

enum { NEEDS = 8 };
static void list_needs(dsc_zero *zero, dsc_need out[NEEDS])
{
    dsc_sign_compress *signs = zero->sign_compress;
    const int64_t tensors = zero->o.layout->tensor_count;
    const int64_t errors = (trainable_elements(zero, false) + trainable_elements(zero, true)) * 4;
    const int64_t sums = tensors * (int64_t)sizeof(dsc_fixed_sum), scales = tensors * 4;
    const int64_t all_scales = scales * zero->world_size;
    DSC_ASSERT(errors % 8 == 0);
    const dsc_need needs[NEEDS] = {
        { &signs->error_buf, DSC_TAG_LEAF, DSC_TIER_DEVICE, errors, DSC_NEED_DEVICE },
        { &signs->signs_buf, DSC_TAG_LEAF, DSC_TIER_DEVICE, 2 * dsc_signs_bytes(longest_group(zero)), DSC_NEED_DEVICE },
        { &signs->device_sums, DSC_TAG_CONTROL, DSC_TIER_DEVICE, sums, DSC_NEED_DEVICE },
        { &signs->device_scales, DSC_TAG_CONTROL, DSC_TIER_DEVICE, all_scales, DSC_NEED_DEVICE },
        { &signs->host_sums, DSC_TAG_CONTROL, DSC_TIER_PINNED, sums, DSC_NEED_DEVICE },
        { &signs->own_scales, DSC_TAG_CONTROL, DSC_TIER_PINNED, scales, DSC_NEED_DEVICE },
        { &signs->all_scales, DSC_TAG_CONTROL, DSC_TIER_PINNED, all_scales, DSC_NEED_DEVICE },
        { &signs->by_tensor, DSC_TAG_CONTROL, DSC_TIER_PINNED, all_scales, DSC_NEED_DEVICE },
    };
    memcpy(out, needs, sizeof needs);
}

static dsc_status plan(dsc_zero *zero, dsc_error *err)
{
    dsc_need needs[NEEDS];
    list_needs(zero, needs);
    dsc_needs_plan(&zero->needs, needs, NEEDS);
    return DSC_OK;
}

static void place_errors(dsc_zero *zero)
{
    float *error = zero->sign_compress->error_buf.ptr;
    for (int32_t g = 0; g < zero->o.layout->group_count; g++) {
        const dsc_layout_group *group = &zero->o.layout->group[g];
        if (!group->trainable)
            continue;
        zero->group[g].signs->own_error = error;
        zero->group[g].signs->sum_error = error + group->padded;
        error += group->padded + group->slice;
    }
    DSC_ASSERT((char *)error == (char *)zero->sign_compress->error_buf.ptr + zero->sign_compress->error_buf.bytes);
}

static dsc_status open(dsc_zero *zero, dsc_error *err)
{
    dsc_need needs[NEEDS];
    list_needs(zero, needs);
    DSC_TRY(dsc_needs_open(&zero->needs, needs, NEEDS, err));
    place_errors(zero);
    return DSC_OK;
}

static void close(dsc_zero *zero)
{
    dsc_need needs[NEEDS];
    list_needs(zero, needs);
    dsc_needs_close(&zero->needs, needs, NEEDS);
}

dsc_status dsc_sign_compress_forget(dsc_zero *zero, dsc_error *err)
{
    const dsc_buf *errors = &zero->sign_compress->error_buf;
    return errors->ptr != NULL ? dsc_fill_zero(zero->o.compute, errors->ptr, errors->bytes, err) : DSC_OK;
}

/* The part of a tensor in the slice of `owner`; -1: in all slices. */
static dsc_part part_of(const dsc_zero *zero, int32_t t, int32_t owner)
{
    DSC_ASSERT(t < zero->o.layout->tensor_count);
    DSC_ASSERT(owner < zero->world_size);
    const dsc_layout_tensor *tensor = &zero->o.layout->tensor[t];
    const int64_t slice = zero->o.layout->group[tensor->group].slice;
    if (owner < 0)
        return (dsc_part) { t, tensor->offset, tensor->count, NULL };
    int64_t in_tensor;
    const int64_t count = dsc_layout_span(tensor, slice * owner, slice, &in_tensor);
    DSC_ASSERT(count <= slice);
    return (dsc_part) { t, tensor->offset + in_tensor, count, NULL };
}

/* A slice begins at a multiple of 1024 elements and a tensor at one of 128: their signs at a byte. */
static int64_t signs_before(int64_t element)
{
    DSC_ASSERT(element >= 0);
    DSC_ASSERT(element % 8 == 0);
    return element / 8;
}

/* `terms` may be NULL. */
static dsc_status each_part_with(dsc_zero *zero, int32_t g, int32_t owner, const dsc_update_terms *terms,
                                 dsc_part_fn fn, dsc_error *err)
{
    const dsc_layout_group *group = &zero->o.layout->group[g];
    DSC_ASSERT(group->trainable);
    for (int32_t t = group->first_tensor; t < group->first_tensor + group->tensor_count; t++) {
        dsc_part p = part_of(zero, t, owner);
        p.scalars = terms != NULL ? &terms->scalars[zero->o.layout->tensor[t].update_class] : NULL;
        DSC_ASSERT(p.count == 0 || p.at + p.count <= group->padded);
        if (p.count > 0)
            DSC_TRY(fn(zero, group, &zero->group[g], &p, owner, err));
    }
    return DSC_OK;
}

static dsc_status each_part(dsc_zero *zero, int32_t g, int32_t owner, dsc_part_fn fn, dsc_error *err)
{
    DSC_ASSERT(owner >= -1);
    DSC_ASSERT(owner < zero->world_size);
    return each_part_with(zero, g, owner, NULL, fn, err);
}

static dsc_status each_trainable(dsc_zero *zero, dsc_status (*fn)(dsc_zero *zero, int32_t g, dsc_error *err),
                                 dsc_error *err)
{
    for (int32_t g = 0; g < zero->o.layout->group_count; g++)
        if (zero->o.layout->group[g].trainable && zero->group[g].local_count > 0)
            DSC_TRY(fn(zero, g, err));
    return DSC_OK;
}

dsc_status dsc_sign_compress_each(dsc_zero *zero, const dsc_update_terms *terms, dsc_part_fn fn, dsc_error *err)
{
    DSC_ASSERT(zero->o.stage == 0); /* every rank has all elements */
    for (int32_t g = 0; g < zero->o.layout->group_count; g++)
        if (zero->o.layout->group[g].trainable && zero->group[g].local_count > 0)
            DSC_TRY(each_part_with(zero, g, -1, terms, fn, err));
    return DSC_OK;
}

dsc_status dsc_sign_compress_mask(dsc_zero *zero, int32_t g, float *x, dsc_error *err)
{
    DSC_ASSERT(zero->o.layout->group[g].trainable);
    DSC_ASSERT(zero->group[g].moment[1] != NULL);
    const dsc_signs_mask_args args = { .x = x, .mask = (const float *)(const void *)zero->group[g].moment[1],
                                       .count = zero->o.layout->group[g].padded };
    return DSC_RUN(zero->o.compute, SIGNS_MASK, &args, err);
}

static dsc_status add_squares(dsc_zero *zero, const float *x, const dsc_part *p, dsc_error *err)
{
    DSC_ASSERT(p->tensor < zero->o.layout->tensor_count);
    DSC_ASSERT(p->count > 0);
    dsc_fixed_sum *sums = zero->sign_compress->device_sums.ptr;
    const dsc_sumsq_args args = { .x = x, .count = p->count, .sum = &sums[p->tensor] };
    return DSC_RUN(zero->o.compute, SUMSQ, &args, err);
}

static dsc_status clear_sums(dsc_zero *zero, dsc_error *err)
{
    const dsc_buf *sums = &zero->sign_compress->device_sums;
    DSC_ASSERT(sums->bytes == zero->o.layout->tensor_count * (int64_t)sizeof(dsc_fixed_sum));
    return dsc_fill_zero(zero->o.compute, sums->ptr, sums->bytes, err);
}

/* Scales of what the sums of squares are of, from every rank: all_scales[r * tensor_count + t]. */
static dsc_status exchange_scales(dsc_zero *zero, int32_t owner, dsc_error *err)
{
    dsc_sign_compress *signs = zero->sign_compress;
    const int32_t tensors = zero->o.layout->tensor_count;
    const dsc_fixed_sum *sum = signs->host_sums.ptr;
    float *own = signs->own_scales.ptr;
    DSC_ASSERT(owner == -1 || owner == zero->o.rank);
    DSC_ASSERT(signs->host_sums.bytes == signs->device_sums.bytes);
    DSC_TRY(dsc_copy(zero->o.compute, signs->host_sums.ptr, signs->device_sums.ptr, signs->host_sums.bytes, err));
    DSC_TRY(dsc_stream_sync(zero->o.compute, err));
    for (int32_t t = 0; t < tensors; t++) {
        const bool trainable = zero->o.layout->group[zero->o.layout->tensor[t].group].trainable;
        const int64_t count = trainable ? part_of(zero, t, owner).count : 0;
        own[t] = count > 0 ? (float)sqrt(dsc_fixed_sum_value(&sum[t]) / (double)count) : 0.0f;
    }
    return dsc_comm_all_gather(zero->o.host_comm, DSC_CHANNEL_CONTROL, signs->all_scales.ptr, own, tensors, DSC_F32,
                               NULL, err);
}

static float scale_of(const dsc_zero *zero, int32_t rank, int32_t tensor)
{
    DSC_ASSERT(rank < zero->world_size);
    DSC_ASSERT(tensor < zero->o.layout->tensor_count);
    return ((const float *)zero->sign_compress->all_scales.ptr)[rank * zero->o.layout->tensor_count + tensor];
}

/* Factors of the signs that an owner adds: their rank's scale over the number of ranks, a tensor's side by side. */
static dsc_status fill_factors(dsc_zero *zero, dsc_error *err)
{
    const float part_each = 1.0f / (float)zero->world_size;
    float *by_tensor = zero->sign_compress->by_tensor.ptr;
    DSC_ASSERT(zero->sign_compress->by_tensor.bytes == zero->sign_compress->device_scales.bytes);
    for (int32_t t = 0; t < zero->o.layout->tensor_count; t++)
        for (int32_t r = 0; r < zero->world_size; r++)
            by_tensor[t * zero->world_size + r] = scale_of(zero, r, t) * part_each;
    return dsc_copy(zero->o.compute, zero->sign_compress->device_scales.ptr, by_tensor,
                    zero->sign_compress->by_tensor.bytes, err);
}

/* The half of the buffer that goes out, and the one that others' signs come to. */
static uint8_t *signs_out(const dsc_zero *zero) { return zero->sign_compress->signs_buf.ptr; }
static uint8_t *signs_in(const dsc_zero *zero) { return signs_out(zero) + zero->sign_compress->signs_buf.bytes / 2; }

static dsc_status pack_own(dsc_zero *zero, const dsc_layout_group *group, dsc_group_state *state, const dsc_part *p,
                           int32_t owner, dsc_error *err)
{
    DSC_ASSERT(owner < 0);
    DSC_ASSERT(signs_before(group->padded) <= zero->sign_compress->signs_buf.bytes / 2);
    const dsc_signs_pack_args args = { .to = signs_out(zero) + signs_before(p->at),
                                       .x = state->signs->own_error + p->at,
                                       .count = p->count,
                                       .scale = scale_of(zero, zero->o.rank, p->tensor) };
    return DSC_RUN(zero->o.compute, SIGNS_PACK, &args, err);
}

static dsc_status fold_slice(dsc_zero *zero, const dsc_layout_group *group, dsc_group_state *state, const dsc_part *p,
                             int32_t owner, dsc_error *err)
{
    const int64_t in_slice = p->at - group->slice * owner;
    DSC_ASSERT(owner == zero->o.rank);
    DSC_ASSERT(in_slice >= 0);
    DSC_ASSERT(in_slice + p->count <= group->slice);
    const dsc_signs_reduce_args args = { .acc = state->signs->sum_error + in_slice,
                                         .from = signs_in(zero) + signs_before(in_slice),
                                         .from_stride = signs_before(group->slice),
                                         .scale = (const float *)zero->sign_compress->device_scales.ptr +
                                                  (int64_t)p->tensor * zero->world_size,
                                         .piece_count = zero->world_size,
                                         .count = p->count };
    DSC_TRY(DSC_RUN(zero->o.compute, SIGNS_REDUCE, &args, err));
    return add_squares(zero, args.acc, p, err);
}

static dsc_status pack_slice(dsc_zero *zero, const dsc_layout_group *group, dsc_group_state *state, const dsc_part *p,
                             int32_t owner, dsc_error *err)
{
    DSC_ASSERT(owner == zero->o.rank);
    DSC_ASSERT(p->at >= group->slice * owner);
    const dsc_signs_pack_args args = { .to = signs_in(zero) + signs_before(p->at),
                                       .x = state->signs->sum_error + (p->at - group->slice * owner),
                                       .count = p->count, .scale = scale_of(zero, owner, p->tensor) };
    return DSC_RUN(zero->o.compute, SIGNS_PACK, &args, err);
}

static dsc_status unpack(dsc_zero *zero, const dsc_layout_group *group, dsc_group_state *state, const dsc_part *p,
                         int32_t owner, dsc_error *err)
{
    DSC_ASSERT(owner >= 0);
    DSC_ASSERT(p->at + p->count <= group->slice * (owner + 1));
    float *to = zero->sign_compress->to_moments ? (float *)(void *)state->moment[0] : state->grad;
    const dsc_signs_unpack_args args = { .to = to + p->at,
                                         .from = signs_in(zero) + signs_before(p->at),
                                         .mask = (const float *)(const void *)state->moment[1] + p->at,
                                         .count = p->count, .scale = scale_of(zero, owner, p->tensor) };
    return DSC_RUN(zero->o.compute, SIGNS_UNPACK, &args, err);
}

/* Signs of the whole group to the owners of its slices, and what they stand for into their errors. */
static dsc_status send_group(dsc_zero *zero, int32_t g, dsc_error *err)
{
    const int64_t bytes = signs_before(zero->o.layout->group[g].slice);
    DSC_ASSERT(bytes * zero->world_size <= zero->sign_compress->signs_buf.bytes / 2);
    DSC_TRY(each_part(zero, g, -1, pack_own, err));
    DSC_TRY(dsc_comm_all_to_all(zero->o.comm, DSC_CHANNEL_CONTROL, signs_in(zero), signs_out(zero), bytes,
                                zero->o.compute, err));
    return each_part(zero, g, zero->o.rank, fold_slice, err);
}

static dsc_status gather_group(dsc_zero *zero, int32_t g, dsc_error *err)
{
    const int64_t bytes = signs_before(zero->o.layout->group[g].slice);
    uint8_t *all = signs_in(zero);
    DSC_ASSERT(bytes * zero->world_size <= zero->sign_compress->signs_buf.bytes / 2);
    DSC_TRY(each_part(zero, g, zero->o.rank, pack_slice, err));
    DSC_TRY(dsc_comm_all_gather(zero->o.comm, DSC_CHANNEL_CONTROL, all, all + zero->o.rank * bytes, bytes, DSC_U8,
                                zero->o.compute, err));
    for (int32_t r = 0; r < zero->world_size; r++)
        DSC_TRY(each_part(zero, g, r, unpack, err));
    return DSC_OK;
}

/* Adds the vector of this rank to its errors, and the squares of the result. */
static dsc_status add_own(dsc_zero *zero, const dsc_layout_group *group, dsc_group_state *state, const dsc_part *p,
                          int32_t owner, dsc_error *err)
{
    DSC_ASSERT(zero->sign_compress->fill != NULL); /* an exchange is under way */
    DSC_ASSERT(p->at + p->count <= group->padded);
    DSC_TRY(zero->sign_compress->fill(zero, group, state, p, owner, err));
    return add_squares(zero, state->signs->own_error + p->at, p, err);
}

dsc_status dsc_sign_compress_exchange(dsc_zero *zero, const dsc_update_terms *terms, dsc_part_fn fill, bool to_moments,
                                      dsc_error *err)
{
    DSC_ASSERT(dsc_sign_compress_are_used(zero));
    zero->sign_compress->fill = fill;
    zero->sign_compress->to_moments = to_moments;
    DSC_TRY(clear_sums(zero, err));
    DSC_TRY(dsc_sign_compress_each(zero, terms, add_own, err));
    DSC_TRY(exchange_scales(zero, -1, err));
    DSC_TRY(fill_factors(zero, err));
    DSC_TRY(clear_sums(zero, err));
    DSC_TRY(each_trainable(zero, send_group, err));
    DSC_TRY(exchange_scales(zero, zero->o.rank, err));
    return each_trainable(zero, gather_group, err);
}

static dsc_status scale(dsc_zero *zero, float *x, int64_t count, double factor, dsc_error *err)
{
    DSC_ASSERT(count > 0);
    const dsc_scale_args args = { .x = x, .count = count, .factor = (float)factor, .dtype = DSC_F32 };
    return DSC_RUN(zero->stream.reduce, SCALE, &args, err);
}

/* In fp32, as leaves are reduced. */
dsc_status dsc_sign_compress_mean(dsc_zero *zero, int32_t g, double factor, dsc_error *err)
{
    const int64_t slice = zero->o.layout->group[g].slice, padded = zero->o.layout->group[g].padded;
    float *const own = zero->group[g].signs->own_error, *const reduced = zero->group[g].signs->sum_error;
    DSC_ASSERT(padded == slice * zero->world_size);
    DSC_ASSERT(own != NULL);
    const dsc_reduce_scatter_args sum = { .acc = reduced, .leaf = own, .leaf_stride = slice, .count = slice,
                                          .wire_dtype = DSC_F32 };
    DSC_TRY(dsc_zero_after_compute(zero, zero->stream.reduce, err));
    DSC_TRY(scale(zero, own, padded, 1.0 / zero->world_size, err));
    DSC_TRY(dsc_comm_reduce_scatter(zero->o.comm, DSC_CHANNEL_REDUCE, &sum, zero->stream.reduce, err));
    DSC_TRY(scale(zero, reduced, slice, factor, err));
    DSC_TRY(dsc_comm_all_gather(zero->o.comm, DSC_CHANNEL_REDUCE, own, reduced, slice, DSC_F32, zero->stream.reduce,
                                err));
    DSC_TRY(dsc_event_record(zero->event.idle, zero->stream.reduce, err));
    DSC_TRY(dsc_zero_after_exchange(zero, zero->stream.reduce, zero->event.idle, err));
    return dsc_sign_compress_mask(zero, g, own, err);
}

static int64_t wire_bytes(const dsc_zero *zero)
{
    const int64_t others = zero->world_size - 1;
    DSC_ASSERT(others > 0); /* one rank needs no exchange */
    int64_t bytes = 0;
    for (int32_t g = 0; g < zero->o.layout->group_count; g++)
        if (zero->o.layout->group[g].trainable)
            bytes += 2 * others * signs_before(zero->o.layout->group[g].slice);
    return bytes + 2 * others * zero->o.layout->tensor_count * 4;
}

const dsc_zero_pass_ops dsc_sign_compress_pass = {
    .name = "sign_compress",
    .replaces_sums = true,
    .is_needed = dsc_sign_compress_are_used,
    .plan = plan,
    .open = open,
    .close = close,
    .wire_bytes = wire_bytes,
};
