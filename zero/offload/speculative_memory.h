/* speculative_memory.h - updates by the host in host memory that begin under the last backward pass, before the norm.
 *
 * Without clipping only a skipped step, or another rate of a host program, changes the scalars of an update. So a group
 * is updated as soon as its sum is complete, and the results are written to a second place of its states. Then both
 * places are exchanged. A step that is skipped exchanges them again, and makes the parameters on the device from the
 * first one. The groups whose sums are complete first have second places, up to a share of all.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ZERO_OFFLOAD_SPECULATIVE_MEMORY_H
#define DSC_ZERO_OFFLOAD_SPECULATIVE_MEMORY_H

#include "kernels/needs.h"
#include "zero/core/pass.h"

/* The part of a group's state. */
typedef struct dsc_group_second {
    bool is_listed;    /* its states have a second place */
    bool writes_other; /* on the update's thread: results of its tiles go to the other place */
    float *master;     /* the other place */
    char *moment[DSC_UPDATE_STATES_MAX];
} dsc_group_second;

typedef struct dsc_speculative_memory {
    int32_t *group; /* [group_count] the first `count` have second places, in the order in which sums are complete */
    int32_t count;
    int64_t elements;         /* of this rank's slices of these groups */
    bool begun;               /* in this step */
    bool kept;                /* this step's update goes on behind these groups */
    int32_t started;          /* groups of this step whose update was given to the update's thread */
    int64_t updated_elements; /* in this step */
    int64_t kept_elements;    /* in all finished steps */
    dsc_buf master_buf, moment_buf;
    dsc_stream *in; /* updated parameters to the device: sums of the same pass need the other stream */
} dsc_speculative_memory;

/* After the list of gradient parts and the state store are planned. */
DSC_MUST_USE dsc_status dsc_speculative_memory_plan(dsc_zero *zero, dsc_error *err);
DSC_MUST_USE dsc_status dsc_speculative_memory_open(dsc_zero *zero, dsc_error *err);
void dsc_speculative_memory_close(dsc_zero *zero);
/* Before the last pass of a step, behind the update of the step before. */
void dsc_speculative_memory_begin(dsc_zero *zero);
/* The reductions of the step have completed the group's sum. */
DSC_MUST_USE dsc_status dsc_speculative_memory_start(dsc_zero *zero, int32_t group, dsc_error *err);
/* dsc_zero_update was called with these terms. No group is updated early any more when the function returns. */
DSC_MUST_USE dsc_status dsc_speculative_memory_settle(dsc_zero *zero, const dsc_update_terms *terms, dsc_error *err);
/* The step has no update: all states and parameters are those before it. */
DSC_MUST_USE dsc_status dsc_speculative_memory_drop(dsc_zero *zero, dsc_error *err);

#endif
