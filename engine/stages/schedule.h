/* schedule.h - the work of one stage of a pipeline in an optimizer step: a static list, and the cut of modules into
 * stages. Pure arithmetic. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_STAGES_SCHEDULE_H
#define DSC_ENGINE_STAGES_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/config/config.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Work on one micro-batch. */
typedef enum dsc_stage_work {
    DSC_STAGE_RECV_INPUT, /* the outputs of the stage before */
    DSC_STAGE_FORWARD,    /* of one module; the loss module makes its gradients too */
    DSC_STAGE_SEND_OUTPUT,
    DSC_STAGE_SEND_TIED, /* the last stage: its gradients of tied parameters, to their owners */
    DSC_STAGE_BOUNDARY,  /* the boundary module, in the place of a loss module; an owner of tied parameters receives */
    DSC_STAGE_RECV_GRADIENT, /* the gradient of this stage's outputs */
    DSC_STAGE_BACKWARD,      /* of one module */
    DSC_STAGE_SEND_GRADIENT,
    DSC_STAGE_EVALUATE /* in headers of messages alone: a pass without gradients */
} dsc_stage_work;
const char *dsc_stage_work_text(dsc_stage_work work);

typedef struct dsc_stage_op {
    dsc_stage_work work;
    int32_t module;      /* of the stage, from 0; the boundary module is behind the others */
    int64_t micro_batch; /* its number on this rank, from 0 in the step */
} dsc_stage_op;

typedef struct dsc_stage_shape {
    int32_t stages, stage;
    int32_t modules; /* of this stage, without the boundary */
    int64_t micro_batches;
    int32_t group; /* micro-batches that pass a module before the next one; a divisor of micro_batches */
    dsc_stage_order order;
    int32_t tied_owner; /* the stage that owns the trainable tied parameter of the last stage; -1: there is none */
} dsc_stage_shape;

/* Micro-batches that have buffers of their own: the groups whose backward has not run when the forward of another
 * begins, and that one. */
int32_t dsc_stage_lanes(const dsc_stage_shape *shape);
/* Buffers of gradients of the input: 2, one of them on its way. A stage that is the loss module alone makes those of a
 * whole group before the stage before it takes the first. */
int32_t dsc_stage_slots(const dsc_stage_shape *shape);
/* The list of a stage; returns its length. out = NULL only counts. A pass is that of a group.
 *
 * 1f1b:  w forward passes, then forward and backward in turns, then w backward passes; w = min(stages - 1 - stage,
 *        groups), so that at most w + 1 groups are open.     gpipe: w = groups, but 0 in the last stage.
 *
 * With all micro-batches in one group the order is breadth-first: each module is gathered once in forward and once in
 * backward. A stage begins when the one before it runs its last module. */
int64_t dsc_stage_list(const dsc_stage_shape *shape, dsc_stage_op *out);
/* Cuts `modules` into `stages` <= modules runs of at least one module. The largest sum of weights of a run is as small
 * as it can be; uniform: runs have equal numbers of modules, or one more. first[stages + 1] <- where each begins. */
void dsc_stage_cut(const double *weight, int32_t modules, int32_t stages, bool uniform, int32_t *first);

#ifdef __cplusplus
}
#endif
#endif
