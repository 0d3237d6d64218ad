/* plan_grid.h - the stages of a planned pipeline: modules, memory of a rank, bytes of a step along each axis.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TOOLS_PLAN_GRID_H
#define DSC_TOOLS_PLAN_GRID_H

#include <dsc/dsc.h>

#include "engine/planned.h"

/* Prints a line, or a JSON object, for each stage; nothing with one stage. `options` are those of the plan. */
DSC_MUST_USE dsc_status plan_grid_print(const dsc_engine_options *options, const dsc_engine_planned *first, bool json,
                                        dsc_error *err);

#endif
