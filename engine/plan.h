/* plan.h - every byte of a rank before it is taken: rows by tag, and the sizes that open needs.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_PLAN_H
#define DSC_ENGINE_PLAN_H

#include "engine/config.h"
#include "zero/zero.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dsc_plan {
    dsc_alloc *alloc;
    int64_t bytes[DSC_TAG_COUNT]; /* planned, host tier on the cpu device */
    int64_t total_bytes;
    dsc_module_plan *module;      /* [module_count] for the micro-batch */
    bool *backward_reads_params;  /* [module_count] */
    int64_t out_bytes_total, saved_bytes_total, saved_bytes_most, d_bytes_most, scratch_bytes, losses_bytes,
        logits_bytes;
    int64_t batch_bytes; /* one micro-batch of the model's batch tensors, each 256-byte aligned */
    double flops_per_micro_batch;
} dsc_plan;

typedef struct dsc_plan_options {
    dsc_alloc *alloc;
    const dsc_model *model;
    const dsc_config *config; /* resolved */
    const dsc_layout *layout;
    dsc_dtype compute_dtype;
    int32_t rank;
    int64_t comm_bytes, data_bytes; /* what transport and reader will take */
    dsc_device *device; /* GEMM shapes are prepared on it */
} dsc_plan_options;

/* The zero options that both the planner and open use, so that they cannot differ. */
void dsc_plan_zero_options(const dsc_plan_options *options, const dsc_plan *plan, dsc_zero_options *out);
DSC_MUST_USE dsc_status dsc_plan_open(const dsc_plan_options *options, dsc_plan *out, dsc_error *err);
void dsc_plan_close(dsc_plan *plan);

#ifdef __cplusplus
}
#endif
#endif
