/* grid.h - the stages of a pipeline and the tensor ranks that the arguments of `train` ask for.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_LAUNCHER_PLAN_GRID_H
#define DSC_LAUNCHER_PLAN_GRID_H

#include <stdint.h>

#include "base/alloc.h"
#include "base/flags.h"

/* Sizes of axes. 1: not asked for, another program, or a config that `train` itself has to refuse. */
typedef struct dsc_asked_grid {
    int32_t stages; /* --pipeline-ranks, or dsc.grid.pipeline or pipeline.stages of the config */
    int32_t tensor; /* --tensor-ranks, or dsc.grid.tensor or DeepSpeed's tensor_parallel of the config */
} dsc_asked_grid;

dsc_asked_grid dsc_grid_asked(dsc_alloc *alloc, const dsc_flag_program *program);

#endif
