/* needs.c - see needs.h. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/needs.h"

#include <string.h>

/* ---- kinds of memory ---- */

static dsc_status device_open(const dsc_needs *needs, const dsc_need *need, dsc_error *err)
{
    dsc_buf *buf = need->out;
    DSC_ASSERT(needs->device != NULL);
    DSC_TRY(dsc_mem_open(needs->device, need->tag, need->tier, need->bytes, buf, err));
    DSC_ASSERT(buf->bytes == need->bytes);
    return DSC_OK;
}

static void device_close(const dsc_needs *needs, const dsc_need *need) { dsc_mem_close(needs->device, need->out); }

const dsc_need_kind dsc_need_device = { dsc_buf_counted, device_open, device_close };

static dsc_status host_open(const dsc_needs *needs, const dsc_need *need, dsc_error *err)
{
    DSC_ASSERT(needs->alloc != NULL && need->tier != DSC_TIER_NVME);
    return dsc_buf_open(needs->alloc, need->tag, need->tier, need->bytes, need->out, err);
}

static void host_close(const dsc_needs *needs, const dsc_need *need) { dsc_buf_close(need->out); }

const dsc_need_kind dsc_need_host = { dsc_buf_counted, host_open, host_close };

static dsc_status array_open(const dsc_needs *needs, const dsc_need *need, dsc_error *err)
{
    DSC_ASSERT(needs->alloc != NULL && need->tier == DSC_TIER_HOST);
    return dsc_alloc_zeroed(needs->alloc, need->tag, need->bytes, 1, need->out, err);
}

static void array_close(const dsc_needs *needs, const dsc_need *need)
{
    void *ptr = NULL;
    memcpy(&ptr, need->out, sizeof ptr);
    dsc_alloc_free(needs->alloc, ptr);
    ptr = NULL;
    memcpy(need->out, &ptr, sizeof ptr);
}

const dsc_need_kind dsc_need_array = { NULL, array_open, array_close };

static int64_t nothing(int64_t bytes) { return 0; }

const dsc_need_kind dsc_need_small = { nothing, array_open, array_close };

static dsc_status noted_open(const dsc_needs *needs, const dsc_need *need, dsc_error *err)
{
    int64_t *noted_bytes = need->out;
    DSC_ASSERT(*noted_bytes == 0);
    if (need->bytes > 0)
        DSC_TRY(dsc_alloc_note(needs->alloc, need->tag, need->tier, need->bytes, err));
    *noted_bytes = need->bytes;
    return DSC_OK;
}

static void noted_close(const dsc_needs *needs, const dsc_need *need)
{
    int64_t *noted_bytes = need->out;
    DSC_ASSERT(*noted_bytes >= 0);
    if (*noted_bytes > 0)
        dsc_alloc_unnote(needs->alloc, need->tag, need->tier, *noted_bytes);
    *noted_bytes = 0;
}

const dsc_need_kind dsc_need_noted = { NULL, noted_open, noted_close };

const dsc_need_kind dsc_need_inside = { NULL, NULL, NULL };

/* ---- lists ---- */

int64_t dsc_need_planned_bytes(const dsc_need *need)
{
    DSC_ASSERT(need->bytes >= 0);
    DSC_ASSERT((unsigned)need->tag < DSC_TAG_COUNT && (unsigned)need->tier < DSC_TIER_COUNT);
    return need->kind->counted != NULL ? need->kind->counted(need->bytes) : need->bytes;
}

void dsc_needs_plan(dsc_needs *needs, const dsc_need *list, int count)
{
    DSC_ASSERT(count >= 0);
    for (int i = 0; i < count; i++)
        needs->planned[list[i].tag][list[i].tier] += dsc_need_planned_bytes(&list[i]);
}

dsc_status dsc_needs_open(dsc_needs *needs, const dsc_need *list, int count, dsc_error *err)
{
    DSC_ASSERT(count >= 0);
    for (int i = 0; i < count; i++) {
        DSC_ASSERT((list[i].kind->open == NULL) == (list[i].out == NULL));
        if (list[i].kind->open != NULL)
            DSC_TRY(list[i].kind->open(needs, &list[i], err));
        needs->taken[list[i].tag][list[i].tier] += dsc_need_planned_bytes(&list[i]);
    }
    return DSC_OK;
}

dsc_status dsc_needs_plan_and_open(dsc_needs *needs, const dsc_need *list, int count, dsc_error *err)
{
    dsc_needs_plan(needs, list, count);
    return dsc_needs_open(needs, list, count, err);
}

void dsc_needs_close(const dsc_needs *needs, const dsc_need *list, int count)
{
    DSC_ASSERT(count >= 0);
    for (int i = count; i-- > 0;)
        if (list[i].kind->close != NULL)
            list[i].kind->close(needs, &list[i]);
}

void dsc_needs_check(const dsc_needs *needs)
{
    for (int tag = 0; tag < DSC_TAG_COUNT; tag++)
        for (int tier = 0; tier < DSC_TIER_COUNT; tier++)
            DSC_ASSERT(needs->taken[tag][tier] == needs->planned[tag][tier]);
}
