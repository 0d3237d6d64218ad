/* staging.h - the slots of a bounded set of buffers that transfers pass through, one transfer after the other.
 *
 * Transfer n uses slot n % slot_count. A transfer is a file operation or work of a stream, and ends later. The user's
 * `wait` waits for its end. The set only counts, so it takes no memory for a slot.
 *
 *   FREE --acquire--> UNDER WAY --end_oldest, end, or acquire of the transfer slot_count later--> FREE
 *
 * Invariants:
 *  S1. 0 <= begun - ended <= slot_count: a slot has at most one transfer.
 *  S2. Transfers end in the order in which they began, and each is waited for once.
 *  S3. A transfer whose wait failed has ended too. Its slot is free, and its error is returned once.
 *
 * Two users have slots of their own kind. Those of tile_buffers.h are lent, change in number during a long round, and
 * are dropped from the newest one. A slot of engine/activation_offload.c follows from a module's number.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_OFFLOAD_STAGING_H
#define DSC_OFFLOAD_STAGING_H

#include "kernels/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The slot's last transfer has ended for `by`, or for the host if `by` is NULL. */
typedef dsc_status (*dsc_staging_wait_fn)(void *user, int32_t slot, dsc_stream *by, dsc_error *err);

typedef struct dsc_staging {
    dsc_staging_wait_fn wait;
    void *user; /* borrowed */
    int32_t slot_count;
    int64_t begun, ended; /* transfers */
} dsc_staging;

/* All slots are free. */
void dsc_staging_open(dsc_staging *staging, int32_t slot_count, dsc_staging_wait_fn wait, void *user);
static inline int64_t dsc_staging_under_way(const dsc_staging *staging)
{
    DSC_ASSERT(staging->ended <= staging->begun);
    return staging->begun - staging->ended;
}
/* The next transfer begins: *slot is its slot. The slot's last transfer is waited for first, unless it has ended. */
DSC_MUST_USE dsc_status dsc_staging_acquire(dsc_staging *staging, dsc_stream *by, int32_t *slot, dsc_error *err);
/* The oldest transfer under way, of which there is one, is waited for; *slot is its slot, also after a failure. */
DSC_MUST_USE dsc_status dsc_staging_end_oldest(dsc_staging *staging, dsc_stream *by, int32_t *slot, dsc_error *err);
/* The host waits until the first `count` transfers have ended. */
DSC_MUST_USE dsc_status dsc_staging_end(dsc_staging *staging, int64_t count, dsc_error *err);
/* The host waits for all transfers; their errors are dropped. For a close, also after a failure. */
void dsc_staging_drain(dsc_staging *staging);

#ifdef __cplusplus
}
#endif
#endif
