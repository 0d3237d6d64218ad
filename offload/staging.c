/* staging.c - see staging.h. SPDX-License-Identifier: Apache-2.0 */
#include "offload/staging.h"

void dsc_staging_open(dsc_staging *staging, int32_t slot_count, dsc_staging_wait_fn wait, void *user)
{
    DSC_ASSERT(slot_count >= 1);
    DSC_ASSERT(wait != NULL);
    *staging = (dsc_staging) { .wait = wait, .user = user, .slot_count = slot_count };
}

static int32_t slot_of(const dsc_staging *staging, int64_t transfer)
{
    DSC_ASSERT(transfer >= 0);
    return (int32_t)(transfer % staging->slot_count);
}

dsc_status dsc_staging_end_oldest(dsc_staging *staging, dsc_stream *by, int32_t *slot, dsc_error *err)
{
    DSC_ASSERT(dsc_staging_under_way(staging) > 0);
    *slot = slot_of(staging, staging->ended++);
    return staging->wait(staging->user, *slot, by, err);
}

dsc_status dsc_staging_acquire(dsc_staging *staging, dsc_stream *by, int32_t *slot, dsc_error *err)
{
    DSC_ASSERT(dsc_staging_under_way(staging) <= staging->slot_count); /* S1 */
    if (dsc_staging_under_way(staging) == staging->slot_count)
        DSC_TRY(dsc_staging_end_oldest(staging, by, slot, err));
    *slot = slot_of(staging, staging->begun++);
    return DSC_OK;
}

dsc_status dsc_staging_end(dsc_staging *staging, int64_t count, dsc_error *err)
{
    DSC_ASSERT(count <= staging->begun);
    for (int32_t slot; staging->ended < count;)
        DSC_TRY(dsc_staging_end_oldest(staging, NULL, &slot, err));
    return DSC_OK;
}

void dsc_staging_drain(dsc_staging *staging)
{
    for (int32_t slot; dsc_staging_under_way(staging) > 0;)
        (void)!dsc_staging_end_oldest(staging, NULL, &slot, NULL);
    DSC_ASSERT(staging->ended == staging->begun);
}
