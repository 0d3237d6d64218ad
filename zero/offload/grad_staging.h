/* grad_staging.h - gradient sums that are offloaded from a device whose memory the host cannot reach, or are in bf16.
 *
 * Each tile is copied to a slot of device memory, gradient parts are added to it, and it is copied back. One tile
 * is read and another is written while a third is in use. The first parts of an optimizer step overwrite the sum: then
 * a tile is only written. Sums in bf16 are converted to fp32 when they are read, and back when they are written. This
 * changes no bit: they were rounded before (reduce.c). A share of the sums may stay on the device between the passes of
 * a step; only a complete sum is copied then. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ZERO_OFFLOAD_GRAD_STAGING_H
#define DSC_ZERO_OFFLOAD_GRAD_STAGING_H

#include "offload/staging.h"
#include "zero/core/options.h"

#define DSC_SUM_SLOTS 3

typedef struct dsc_sum_slot {
    float *acc;    /* a tile of device memory */
    void *narrow;  /* device memory of the tile in sum_dtype, if that is not fp32 */
    int32_t group; /* group of the tile that the slot held last; -1: none */
    int64_t first;
    dsc_event *released; /* the sum is copied back, or was only read: another tile may use the slot */
} dsc_sum_slot;

/* The part of a group's state. */
typedef struct dsc_group_staging {
    char *sums;        /* in host memory, of sum_dtype; the group's `grad` is NULL then */
    bool stays;        /* parts are added on the device, and the complete sum is copied there */
    float *on_device;  /* [slice] if it stays; else NULL */
    dsc_event *stored; /* the sums of this step are in host memory */
} dsc_group_staging;

typedef struct dsc_grad_staging {
    dsc_buf device_buf, host_buf, kept_buf;
    dsc_sum_slot slot[DSC_SUM_SLOTS];
    dsc_staging slots; /* counts the slots */
    dsc_event *mark;   /* orders two streams */
} dsc_grad_staging;

struct dsc_sum;
/* After positions in swap are assigned. */
void dsc_grad_staging_plan(dsc_zero *zero);
DSC_MUST_USE dsc_status dsc_grad_staging_open(dsc_zero *zero, dsc_error *err);
void dsc_grad_staging_close(dsc_zero *zero);

/* sum->kept is where the tile lies in host memory. The reduce stream has it at sum->acc; not its old value with
 * `overwrite`. */
DSC_MUST_USE dsc_status dsc_grad_staging_acquire(dsc_zero *zero, struct dsc_sum *sum, bool overwrite, dsc_error *err);
/* The reduce stream has read it. */
DSC_MUST_USE dsc_status dsc_grad_staging_release(dsc_zero *zero, const struct dsc_sum *sum, dsc_error *err);
/* The result of the reduce stream starts for sum->kept; a sum that stays on the device, only if it is complete. */
DSC_MUST_USE dsc_status dsc_grad_staging_write_back(dsc_zero *zero, const struct dsc_sum *sum, bool complete,
                                                    dsc_error *err);

#endif
