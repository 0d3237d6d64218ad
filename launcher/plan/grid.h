/* grid.h - the stages of a pipeline that the arguments of `train` ask for. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_LAUNCHER_PLAN_GRID_H
#define DSC_LAUNCHER_PLAN_GRID_H

#include <stdint.h>

#include "base/alloc.h"
#include "base/flags.h"

/* --pipeline-ranks, or dsc.grid.pipeline or pipeline.stages of the config; 1: none of them, another program, or a
 * config that `train` itself has to refuse. */
int32_t dsc_grid_stages(dsc_alloc *alloc, const dsc_flag_program *program);

#endif
