/* planned.h - result of the plan and state of the machine, for tools that open an engine with DSC_ENGINE_PLAN_ONLY.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_PLANNED_H
#define DSC_ENGINE_PLANNED_H

#include <dsc/dsc.h>

#include "engine/config/config.h"
#include "zero/zero.h"

struct dsc_virtual_clock;
/* The planned rank's stage of a pipeline, or all modules. Names are borrowed from the engine. */
typedef struct dsc_planned_stage {
    int32_t index, modules;
    const char *first_module, *last_module;
    int64_t parameters;
    int64_t sent_bytes;        /* along the pipeline, by a rank in a step */
    int64_t tensor_sent_bytes; /* payload to tensor ranks in a step */
} dsc_planned_stage;

typedef struct dsc_engine_planned {
    const dsc_config *config; /* resolved; borrowed until the engine closes, as model, alloc and compute are */
    const dsc_model *model;
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
    dsc_grid grid;
    dsc_planned_stage stage;
    bool prefetch_held; /* modules of more than stage3_prefetch_bucket_size are not gathered in advance: no room */
} dsc_engine_planned;

/* A real rank whose launches are timed (kernels/virtual/launch_times.h). `times` is borrowed until the engine closes.
 * Batches are the caller's: the config's data are not opened. */
struct dsc_launch_times;
DSC_MUST_USE dsc_status dsc_engine_open_timed(dsc_engine **out, const dsc_engine_options *options,
                                              struct dsc_launch_times *times, dsc_error *err);
/* Rank 0 of options->plan_world_size virtual GPUs or CPU ranks (kernels/virtual), with DSC_ENGINE_PLAN_ONLY: no file is
 * read beside the config and the model's, and no value is computed. Its passes and steps move `clock`, which is
 * borrowed until the engine closes. Batches are the caller's, with valid tokens. */
DSC_MUST_USE dsc_status dsc_engine_open_virtual(dsc_engine **out, const dsc_engine_options *options,
                                                struct dsc_virtual_clock *clock, dsc_error *err);
void dsc_engine_planned_get(const dsc_engine *engine, dsc_engine_planned *out);
/* DSC_ERR_NOFIT with the largest tags and a way out when the ranks of this host do not fit it together (memory.c). */
DSC_MUST_USE dsc_status dsc_engine_check_fit(const dsc_engine *engine, dsc_error *err);

#endif
