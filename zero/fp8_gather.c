/* fp8_gather.c - see fp8_gather.h. SPDX-License-Identifier: Apache-2.0 */
#include "zero/fp8_gather.h"
#include "zero/zero.h"

#define TOPS_ALIGN 64 /* bytes of a rank's largest numbers */

/* The matrix of a group's fp8 groups that begins with a tensor, and the elements of it in this rank's slice. */
static int64_t own_span(const dsc_zero *zero, const dsc_layout_tensor *tensor, int64_t *first)
{
    const dsc_layout_group *group = &zero->o.layout->group[tensor->group];
    dsc_layout_tensor matrix = *tensor;
    matrix.count = tensor->fp8_count;
    DSC_ASSERT(matrix.count > 0 && matrix.offset + matrix.count <= group->elements);
    return dsc_layout_span(&matrix, group->slice * zero->o.rank, group->slice, first);
}

int64_t dsc_fp8_gather_tops_bytes(const dsc_zero *zero, int32_t g)
{
    DSC_ASSERT(dsc_is_gathered_in_fp8(zero, g));
    return dsc_align_up(zero->group[g].gather.matrix_count * (int64_t)sizeof(uint32_t), TOPS_ALIGN);
}

enum { NEEDS = 2 };
static void list_needs(dsc_zero *zero, int64_t tops_bytes, dsc_need out[NEEDS])
{
    const int64_t scales = zero->fp8_count * (int64_t)sizeof(dsc_fp8_scale);
    DSC_ASSERT(scales >= 0 && tops_bytes >= 0);
    out[0] = (dsc_need) { &zero->buf.fp8_tops, DSC_TAG_GATHER, DSC_TIER_DEVICE, tops_bytes, DSC_NEED_COMM };
    out[1] = (dsc_need) { &zero->buf.fp8_scales, DSC_TAG_GATHER, DSC_TIER_DEVICE, scales, DSC_NEED_DEVICE };
}

/* One group's exchange at a time: the gather stream passes them in order. Returns the largest one's bytes. */
static int64_t count_matrices(dsc_zero *zero)
{
    const dsc_layout *layout = zero->o.layout;
    int64_t most = 0;
    zero->fp8_count = 0;
    for (int32_t g = 0; g < layout->group_count; g++) {
        if (!dsc_is_gathered_in_fp8(zero, g))
            continue;
        dsc_group_gather *gather = &zero->group[g].gather;
        gather->first_matrix = zero->fp8_count;
        for (int32_t t = 0; t < layout->group[g].tensor_count; t++)
            zero->fp8_count += layout->tensor[layout->group[g].first_tensor + t].fp8_count > 0;
        gather->matrix_count = zero->fp8_count - gather->first_matrix;
        most = dsc_max_i64(most, zero->world_size * dsc_fp8_gather_tops_bytes(zero, g));
        DSC_ASSERT(gather->matrix_count > 0); /* a group in fp8 begins with one */
    }
    return most;
}

void dsc_fp8_gather_plan(dsc_zero *zero)
{
    dsc_need needs[NEEDS];
    list_needs(zero, count_matrices(zero), needs);
    DSC_ASSERT(zero->fp8_count == 0 || zero->o.compute_dtype == DSC_BF16);
    dsc_zero_plan_needs(zero, needs, NEEDS);
}

dsc_status dsc_fp8_gather_open(dsc_zero *zero, dsc_error *err)
{
    dsc_need needs[NEEDS];
    const int64_t tops_bytes = count_matrices(zero);
    list_needs(zero, tops_bytes, needs);
    DSC_ASSERT((zero->fp8_count == 0) == (tops_bytes == 0));
    return dsc_needs_open(&zero->needs, needs, NEEDS, err);
}

void dsc_fp8_gather_close(dsc_zero *zero)
{
    dsc_need needs[NEEDS];
    list_needs(zero, 0, needs);
    dsc_needs_close(&zero->needs, needs, NEEDS);
    DSC_ASSERT(zero->buf.fp8_tops.ptr == NULL);
}

void dsc_fp8_gather_forget(dsc_zero *zero, bool frozen)
{
    for (int32_t g = 0; g < zero->o.layout->group_count; g++)
        if (frozen || zero->o.layout->group[g].trainable)
            zero->group[g].gather.fp8_is_scaled = false;
}

static dsc_fp8_scale *scale_of(const dsc_zero *zero, int32_t matrix)
{
    DSC_ASSERT(matrix >= 0 && matrix < zero->fp8_count);
    return (dsc_fp8_scale *)zero->buf.fp8_scales.ptr + matrix;
}

const dsc_fp8_scale *dsc_zero_fp8_scale(const dsc_zero *zero, int32_t t)
{
    const dsc_layout *layout = zero->o.layout;
    DSC_ASSERT(t >= 0 && t < layout->tensor_count);
    const int32_t g = layout->tensor[t].group;
    if (!dsc_is_gathered_in_fp8(zero, g))
        return NULL;
    int32_t matrix = zero->group[g].gather.first_matrix - 1;
    for (int32_t i = layout->group[g].first_tensor; i <= t; i++)
        matrix += layout->tensor[i].fp8_count > 0;
    return scale_of(zero, matrix);
}

/* The scales of the group's matrices, from the largest numbers of all ranks. */
static dsc_status find_scales(dsc_zero *zero, int32_t g, const char *mine, dsc_error *err)
{
    const dsc_layout_group *group = &zero->o.layout->group[g];
    dsc_group_gather *gather = &zero->group[g].gather;
    const int64_t bytes = dsc_fp8_gather_tops_bytes(zero, g);
    char *const tops = zero->buf.fp8_tops.ptr, *const own = tops + zero->o.rank * bytes;
    int32_t matrix = 0;
    DSC_ASSERT(zero->world_size * bytes <= zero->buf.fp8_tops.bytes);
    DSC_TRY(dsc_fill_zero(zero->stream.gather, own, bytes, err));
    for (int32_t t = group->first_tensor; t < group->first_tensor + group->tensor_count; t++) {
        const dsc_layout_tensor *tensor = &zero->o.layout->tensor[t];
        int64_t inside;
        if (tensor->fp8_count == 0)
            continue;
        const int64_t span = own_span(zero, tensor, &inside);
        const dsc_fp8_piece_args top = {
            .work = DSC_FP8_PIECE_TOP,
            .from = span > 0 ? mine + (tensor->offset + inside - group->slice * zero->o.rank) * zero->param_bytes_each
                             : mine,
            .count = span,
            .top = (uint32_t *)(void *)own + matrix++,
        };
        if (span > 0)
            DSC_TRY(DSC_RUN(zero->stream.gather, FP8_PIECE, &top, err));
    }
    DSC_ASSERT(matrix == gather->matrix_count);
    DSC_TRY(dsc_comm_all_gather(zero->o.comm, DSC_CHANNEL_GATHER, tops, own, bytes, DSC_U8, zero->stream.gather, err));
    for (int32_t i = 0; i < gather->matrix_count; i++) {
        const dsc_fp8_piece_args scale = { .work = DSC_FP8_PIECE_SCALE,
                                           .tops = (const uint32_t *)(const void *)tops + i,
                                           .top_count = zero->world_size,
                                           .top_stride = bytes / (int64_t)sizeof(uint32_t),
                                           .scale = scale_of(zero, gather->first_matrix + i) };
        DSC_TRY(DSC_RUN(zero->stream.gather, FP8_PIECE, &scale, err));
    }
    gather->fp8_is_scaled = true;
    return DSC_OK;
}

dsc_status dsc_fp8_gather(dsc_zero *zero, int32_t g, char *window, const char *mine, dsc_error *err)
{
    const dsc_layout_group *group = &zero->o.layout->group[g];
    char *const own = window + group->slice * zero->o.rank;
    int32_t matrix = zero->group[g].gather.first_matrix;
    DSC_ASSERT(dsc_is_gathered_in_fp8(zero, g));
    DSC_ASSERT(mine != NULL);
    if (!zero->group[g].gather.fp8_is_scaled)
        DSC_TRY(find_scales(zero, g, mine, err));
    for (int32_t t = group->first_tensor; t < group->first_tensor + group->tensor_count; t++) {
        const dsc_layout_tensor *tensor = &zero->o.layout->tensor[t];
        int64_t inside;
        if (tensor->fp8_count == 0)
            continue;
        const int64_t span = own_span(zero, tensor, &inside);
        const dsc_fp8_scale *scale = scale_of(zero, matrix++);
        if (span == 0)
            continue;
        const int64_t at = tensor->offset + inside - group->slice * zero->o.rank;
        const dsc_fp8_piece_args cast = { .work = DSC_FP8_PIECE_CAST,
                                          .from = mine + at * zero->param_bytes_each,
                                          .count = span,
                                          .scale = (dsc_fp8_scale *)(uintptr_t)scale,
                                          .to = (uint8_t *)own + at };
        DSC_TRY(DSC_RUN(zero->stream.gather, FP8_PIECE, &cast, err));
    }
    return dsc_comm_all_gather(zero->o.comm, DSC_CHANNEL_GATHER, window, own, group->slice, DSC_U8, zero->stream.gather,
                               err);
}
