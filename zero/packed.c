/* packed.c - see packed.h. SPDX-License-Identifier: Apache-2.0 */
#include "zero/packed.h"
#include "zero/zero.h"

#include <string.h>

#define CHUNK_ELEMENTS (INT64_C(1) << 24) /* of all ranks: about 8 MiB packed */

static bool any_packed(const dsc_zero *zero)
{
    for (int32_t g = 0; g < zero->o.layout->group_count; g++)
        if (dsc_is_packed(zero, g))
            return true;
    return false;
}

/* Packed slices are brought together. */
static bool gathers(const dsc_zero *zero, int32_t g)
{
    DSC_ASSERT(dsc_is_packed(zero, g));
    return zero->world_size > 1 && !zero->group[g].param_whole;
}

/* Elements of each rank that pass at a time, and their bytes of all ranks. */
static int64_t size_chunk(dsc_zero *zero)
{
    int64_t longest = 0, unit_bytes = 0;
    for (int32_t g = 0; g < zero->o.layout->group_count; g++)
        if (dsc_is_packed(zero, g) && gathers(zero, g)) {
            longest = dsc_max_i64(longest, zero->o.layout->group[g].slice);
            unit_bytes = dsc_nf4_unit_bytes(zero->o.layout->group[g].packed);
        }
    const int64_t given = zero->o.packed_gather_elements;
    const int64_t most = given > 0 ? dsc_min_i64(given, CHUNK_ELEMENTS) : CHUNK_ELEMENTS;
    const int64_t even = dsc_max_i64(most / zero->world_size / DSC_NF4_UNIT, 1) * DSC_NF4_UNIT;
    zero->packed_chunk = dsc_min_i64(longest, even);
    DSC_ASSERT(zero->packed_chunk % DSC_NF4_UNIT == 0);
    return zero->packed_chunk / DSC_NF4_UNIT * unit_bytes * zero->world_size;
}

static int64_t tops_of(const dsc_zero *zero, int32_t t)
{
    const dsc_layout_tensor *tensor = &zero->o.layout->tensor[t];
    DSC_ASSERT(tensor->count > 0);
    return zero->o.layout->group[tensor->group].packed == DSC_NF4_NESTED ? dsc_nf4_tops(tensor->count) : 0;
}

enum { NEEDS = 3 };
static void list_needs(dsc_zero *zero, int64_t tensors, int64_t chunk_bytes, int64_t tops, dsc_need out[NEEDS])
{
    const dsc_need needs[NEEDS] = {
        { &zero->packed, DSC_TAG_CONTROL, DSC_TIER_HOST, tensors * (int64_t)sizeof *zero->packed, DSC_NEED_SMALL },
        { &zero->buf.packed_chunk, DSC_TAG_GATHER, DSC_TIER_DEVICE, chunk_bytes, DSC_NEED_COMM },
        { &zero->buf.packed_tops, DSC_TAG_PARAM, DSC_TIER_DEVICE, tops * (int64_t)sizeof(float), DSC_NEED_DEVICE },
    };
    memcpy(out, needs, sizeof needs);
}

static void size_needs(dsc_zero *zero, dsc_need out[NEEDS])
{
    int64_t tops = 0;
    for (int32_t t = 0; t < zero->o.layout->tensor_count; t++)
        tops += tops_of(zero, t);
    list_needs(zero, zero->o.layout->tensor_count, size_chunk(zero), tops, out);
}

dsc_status dsc_packed_plan(dsc_zero *zero, dsc_error *err)
{
    dsc_need needs[NEEDS];
    if (!any_packed(zero))
        return DSC_OK;
    size_needs(zero, needs);
    DSC_TRY(dsc_needs_plan_and_open(&zero->needs, needs, 1, err));
    dsc_zero_plan_needs(zero, needs + 1, NEEDS - 1);
    int64_t first = 0;
    for (int32_t t = 0; t < zero->o.layout->tensor_count; t++) {
        zero->packed[t].first_top = first;
        first += tops_of(zero, t);
    }
    DSC_ASSERT(first * (int64_t)sizeof(float) == needs[NEEDS - 1].bytes);
    return DSC_OK;
}

dsc_status dsc_packed_open(dsc_zero *zero, dsc_error *err)
{
    dsc_need needs[NEEDS];
    if (!any_packed(zero))
        return DSC_OK;
    DSC_ASSERT(zero->packed != NULL);
    size_needs(zero, needs);
    return dsc_needs_open(&zero->needs, needs + 1, NEEDS - 1, err);
}

void dsc_packed_close(dsc_zero *zero)
{
    dsc_need needs[NEEDS];
    list_needs(zero, 0, 0, 0, needs);
    dsc_needs_close(&zero->needs, needs, NEEDS);
    DSC_ASSERT(zero->packed == NULL);
}

dsc_status dsc_zero_set_packed_tops(dsc_zero *zero, int32_t tensor, const float *tops, int64_t count, float offset,
                                    dsc_error *err)
{
    DSC_ASSERT(tensor >= 0 && tensor < zero->o.layout->tensor_count);
    DSC_ASSERT(count == tops_of(zero, tensor) && count > 0);
    zero->packed[tensor].offset = offset;
    return dsc_copy(zero->o.compute, (float *)zero->buf.packed_tops.ptr + zero->packed[tensor].first_top, tops,
                    count * (int64_t)sizeof *tops, err);
}

/* Elements [first, first + count) of a group, which `units` hold, to their places in its window. */
static dsc_status unpack_units(dsc_zero *zero, int32_t g, char *window, const char *units, int64_t first, int64_t count,
                               dsc_error *err)
{
    const dsc_layout_group *group = &zero->o.layout->group[g];
    DSC_ASSERT(first % DSC_NF4_UNIT == 0 && first + count <= group->padded);
    for (int32_t t = group->first_tensor; t < group->first_tensor + group->tensor_count; t++) {
        const dsc_layout_tensor *tensor = &zero->o.layout->tensor[t];
        int64_t inside;
        const int64_t span = dsc_layout_span(tensor, first, count, &inside);
        if (span == 0)
            continue;
        DSC_ASSERT(inside % DSC_NF4_BLOCK == 0); /* units and tensors begin with a block */
        const dsc_nf4_unpack_args args = {
            .to = window + (tensor->offset + inside) * zero->param_bytes_each,
            .units = units,
            .first = tensor->offset + inside - first,
            .count = span,
            .tops = group->packed == DSC_NF4_NESTED
                        ? (const float *)zero->buf.packed_tops.ptr + zero->packed[t].first_top
                        : NULL,
            .block = inside / DSC_NF4_BLOCK,
            .offset = zero->packed[t].offset,
            .to_dtype = zero->o.compute_dtype,
        };
        DSC_TRY(DSC_RUN(zero->stream.gather, NF4_UNPACK, &args, err));
    }
    return DSC_OK;
}

/* A part of every rank's slice at a time, by way of a buffer of a bounded size. */
static dsc_status gather_and_unpack(dsc_zero *zero, int32_t g, char *window, const char *mine, dsc_error *err)
{
    const dsc_layout_group *group = &zero->o.layout->group[g];
    DSC_ASSERT(zero->packed_chunk > 0);
    dsc_comm_label_module(zero->o.comm, DSC_CHANNEL_GATHER, group->module);
    for (int64_t first = 0, count; first < group->slice; first += count) {
        count = dsc_min_i64(zero->packed_chunk, group->slice - first);
        const int64_t bytes = dsc_nf4_bytes(group->packed, count);
        char *chunk = zero->buf.packed_chunk.ptr, *own = chunk + zero->o.rank * bytes;
        DSC_ASSERT(bytes * zero->world_size <= zero->buf.packed_chunk.bytes);
        DSC_TRY(dsc_copy(zero->stream.gather, own, mine + dsc_nf4_bytes(group->packed, first), bytes, err));
        DSC_TRY(
            dsc_comm_all_gather(zero->o.comm, DSC_CHANNEL_GATHER, chunk, own, bytes, DSC_U8, zero->stream.gather, err));
        for (int32_t r = 0; r < zero->world_size; r++)
            DSC_TRY(unpack_units(zero, g, window, chunk + r * bytes, r * group->slice + first, count, err));
    }
    return DSC_OK;
}

dsc_status dsc_packed_unpack(dsc_zero *zero, int32_t g, char *window, const char *mine, dsc_error *err)
{
    const dsc_layout_group *group = &zero->o.layout->group[g];
    DSC_ASSERT(dsc_is_packed(zero, g));
    DSC_ASSERT(mine != NULL);
    if (gathers(zero, g))
        return gather_and_unpack(zero, g, window, mine, err);
    for (int32_t r = 0; r < zero->world_size; r++)
        DSC_TRY(unpack_units(zero, g, window, mine + r * dsc_layout_packed_bytes(group), r * group->slice, group->slice,
                             err));
    return DSC_OK;
}
