/* memory.h - the plan of the run, its check against the machine, and the working memory that it names.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_MEMORY_H
#define DSC_ENGINE_MEMORY_H

#include "engine/internal.h"
#include "engine/planned.h"

/* plan_options.c: the inputs of the run's plan and of its reader. */
void dsc_engine_plan_options(const dsc_engine *engine, dsc_plan_options *out);
void dsc_engine_reader_options(const dsc_engine *engine, dsc_reader_options *out);

/* memory.c. Makes the plan; "recompute": "auto" becomes the cheapest policy with which every rank fits. Collective,
 * except when the engine only plans. */
dsc_status dsc_engine_open_plan(dsc_engine *engine, const dsc_plan_options *options, dsc_error *err);
/* Collective; logs the table of the plan when it does not fit. */
dsc_status dsc_engine_agree_fit(const dsc_engine *engine, dsc_error *err);
/* world_fit.c: dsc_engine_check_fit of the same run on so many ranks. Each host has as many as this one, if there are
 * enough. */
dsc_status dsc_engine_check_world(const dsc_engine *engine, int32_t ranks, dsc_error *err);
/* Collective; all worlds that the config allows can share the batch, and the smallest one would fit too. */
dsc_status dsc_engine_check_worlds(const dsc_engine *engine, dsc_error *err);
dsc_status dsc_engine_open_memory(dsc_engine *engine, dsc_error *err);
void dsc_engine_close_memory(dsc_engine *engine);

/* offload_space.c: the files' part of dsc_engine_check_fit. */
dsc_status dsc_engine_check_files(const dsc_engine *engine, dsc_error *err);

#endif
