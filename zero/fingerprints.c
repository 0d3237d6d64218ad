/* fingerprints.c - see fingerprints.h. SPDX-License-Identifier: Apache-2.0 */
#include "zero/fingerprints.h"

#include <string.h>

#include "zero/core/internal.h"

static int64_t group_count(const dsc_zero *zero) { return zero->o.layout->group_count; }

/* Numbers of both kinds. */
static int64_t count_of(const dsc_zero *zero)
{
    const int64_t parts = (zero->o.fingerprints & DSC_FINGERPRINTS_PARTS) != 0 ? 1 : 0;
    const int64_t params = (zero->o.fingerprints & DSC_FINGERPRINTS_PARAMS) != 0 ? zero->world_size : 0;
    return group_count(zero) * (parts + params);
}

/* Those of parameters come after those of parts, where the rank takes these. */
static int64_t first_param(const dsc_zero *zero)
{
    return (zero->o.fingerprints & DSC_FINGERPRINTS_PARTS) != 0 ? group_count(zero) : 0;
}

enum { NEEDS = 3 };
static void list_needs(dsc_zero *zero, dsc_need out[NEEDS])
{
    dsc_fingerprints *f = zero->fingerprints;
    const int64_t bytes = count_of(zero) * (int64_t)sizeof(uint64_t);
    const int64_t marks = zero->o.fingerprints != 0 ? group_count(zero) * (int64_t)sizeof *f->is_read : 0;
    const dsc_need needs[NEEDS] = {
        { &f->on_device, DSC_TAG_CONTROL, DSC_TIER_DEVICE, bytes, DSC_NEED_DEVICE },
        { &f->host, DSC_TAG_CONTROL, DSC_TIER_PINNED, bytes, DSC_NEED_DEVICE },
        { &f->is_read, DSC_TAG_CONTROL, DSC_TIER_HOST, marks, DSC_NEED_SMALL },
    };
    memcpy(out, needs, sizeof needs);
}

void dsc_fingerprints_plan(dsc_zero *zero)
{
    dsc_need needs[NEEDS];
    list_needs(zero, needs);
    dsc_zero_plan_needs(zero, needs, NEEDS);
}

dsc_status dsc_fingerprints_open(dsc_zero *zero, dsc_error *err)
{
    dsc_need needs[NEEDS];
    list_needs(zero, needs);
    return dsc_needs_open(&zero->needs, needs, NEEDS, err);
}

void dsc_fingerprints_close(dsc_zero *zero)
{
    dsc_need needs[NEEDS];
    list_needs(zero, needs);
    dsc_needs_close(&zero->needs, needs, NEEDS);
}

dsc_status dsc_fingerprints_add_part(dsc_zero *zero, const dsc_grad_part *part, dsc_error *err)
{
    const dsc_fingerprints *f = zero->fingerprints;
    if ((f->watched & DSC_FINGERPRINTS_PARTS) == 0)
        return DSC_OK;
    const dsc_fingerprint_args args = { .sum = (uint64_t *)f->on_device.ptr + part->group,
                                        .x = (const uint32_t *)(const void *)dsc_grad_part_base(zero, part, zero->pass),
                                        .word_count = zero->o.layout->group[part->group].padded };
    return DSC_RUN(zero->stream.reduce, FINGERPRINT, &args, err);
}

/* Packed parameters never change; each rank has unpacked them itself. */
dsc_status dsc_fingerprints_add_params(dsc_zero *zero, int32_t group, const char *base, dsc_error *err)
{
    const dsc_fingerprints *f = zero->fingerprints;
    const bool watched = (f->watched & DSC_FINGERPRINTS_PARAMS) != 0;
    if (!watched || f->is_read[group] || base == NULL || dsc_is_packed(zero, group))
        return DSC_OK;
    f->is_read[group] = true;
    const int64_t bytes = zero->o.layout->group[group].slice * dsc_window_bytes_each(zero, group);
    uint64_t *const sums = (uint64_t *)f->on_device.ptr + first_param(zero) + (int64_t)group * zero->world_size;
    DSC_ASSERT(bytes % (int64_t)sizeof(uint32_t) == 0);
    for (int32_t r = 0; r < zero->world_size; r++) {
        const dsc_fingerprint_args args = { .sum = sums + r,
                                            .x = (const uint32_t *)(const void *)(base + r * bytes),
                                            .word_count = bytes / (int64_t)sizeof(uint32_t) };
        DSC_TRY(DSC_RUN(zero->o.compute, FINGERPRINT, &args, err));
    }
    return DSC_OK;
}

dsc_status dsc_zero_watch(dsc_zero *zero, uint32_t watched, dsc_error *err)
{
    dsc_fingerprints *f = zero->fingerprints;
    DSC_ASSERT((watched & ~zero->o.fingerprints) == 0);
    f->watched = watched;
    if (watched == 0)
        return DSC_OK;
    memset(f->is_read, 0, (size_t)group_count(zero) * sizeof *f->is_read);
    return dsc_fill_zero(zero->o.compute, f->on_device.ptr, f->on_device.bytes, err);
}

dsc_status dsc_zero_fingerprints(dsc_zero *zero, const uint64_t **parts, const uint64_t **params, dsc_error *err)
{
    const dsc_fingerprints *f = zero->fingerprints;
    const uint64_t *all = f->host.ptr;
    DSC_ASSERT(f->on_device.bytes > 0);
    DSC_TRY(dsc_copy(zero->o.compute, f->host.ptr, f->on_device.ptr, f->on_device.bytes, err));
    DSC_TRY(dsc_stream_sync(zero->o.compute, err));
    *parts = (zero->o.fingerprints & DSC_FINGERPRINTS_PARTS) != 0 ? all : NULL;
    *params = (zero->o.fingerprints & DSC_FINGERPRINTS_PARAMS) != 0 ? all + first_param(zero) : NULL;
    return DSC_OK;
}

const dsc_fixed_sum *dsc_zero_rank_sums(const dsc_zero *zero)
{
    DSC_ASSERT(zero->state == DSC_ZERO_SUMMED);
    return zero->buf.sums.ptr;
}
