/* planned.h - result of the plan and state of the machine, for tools that open an engine with DSC_ENGINE_PLAN_ONLY.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_PLANNED_H
#define DSC_ENGINE_PLANNED_H

#include <dsc/dsc.h>

#include "engine/config/config.h"
#include "zero/zero.h"

typedef struct dsc_engine_planned {
    const dsc_config *config; /* resolved; borrowed until the engine closes, as alloc and compute are */
    dsc_alloc *alloc;
    dsc_stream *compute;
    bool host_visible;         /* the host reaches the device's memory */
    int32_t local_size;        /* ranks of this host */
    int64_t total_bytes;       /* memory of a rank: all tiers but NVME */
    int64_t device_free_bytes; /* free memory of a rank's GPU; 0 if host_visible */
    int64_t host_free_bytes;   /* free memory of the host, for all its ranks; INT64_MAX: unknown */
    double flops_per_micro_batch;
    dsc_zero_traffic traffic; /* bytes of one optimizer step of a rank */
    dsc_zero_kept kept;
} dsc_engine_planned;

void dsc_engine_planned_get(const dsc_engine *engine, dsc_engine_planned *out);
/* DSC_ERR_NOFIT with the largest tags and a way out when the ranks of this host do not fit it together (memory.c). */
DSC_MUST_USE dsc_status dsc_engine_check_fit(const dsc_engine *engine, dsc_error *err);

#endif
