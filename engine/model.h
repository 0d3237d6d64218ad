/* model.h - from the config to the model of the run: its parameters, groups and truncated variants.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_MODEL_H
#define DSC_ENGINE_MODEL_H

#include <dsc/dsc.h>

#include "engine/plan.h"

/* Copies in which some parameters are not trainable (freeze.c); NULL: none is frozen. */
typedef struct dsc_frozen_model {
    dsc_model *model;
    dsc_module *modules;
    dsc_param_spec *specs;
    dsc_buffer_spec *buffers; /* NULL: the model's own */
} dsc_frozen_model;

/* The part of struct dsc_engine: the models behind engine->model. */
typedef struct dsc_engine_models {
    dsc_model *opened; /* opened here; NULL: the caller's */
    dsc_frozen_model frozen;
    dsc_truncated_model *cut; /* [cut_count] by length, all shorter than the model's own */
    int32_t cut_count;
    const dsc_model *now; /* the modules that run: engine->model, or a truncated model within a step */
} dsc_engine_models;

/* config_model.c: for samples of seq_length tokens; 0 means the model's own length. */
dsc_status dsc_engine_open_config_model(const dsc_engine *engine, int64_t seq_length, bool want_weights,
                                        dsc_model **out, dsc_error *err);

/* freeze.c: engine->model becomes a copy in which the parameters of dsc.freeze are not trainable. */
dsc_status dsc_engine_freeze(dsc_engine *engine, dsc_error *err);
void dsc_engine_close_freeze(dsc_engine *engine);
/* The pattern fits the name of a parameter: '*' stands for any text, '?' for one byte. */
bool dsc_name_matches(const char *pattern, const char *name);

/* param_groups.c: sets each tensor's update_class from dsc.param_groups; rank 0 logs each group. */
dsc_status dsc_engine_group_params(const dsc_engine *engine, dsc_layout *layout, dsc_error *err);

/* truncated_model.c. Open follows the model; close accepts an engine that has no truncated model. */
dsc_status dsc_engine_open_cuts(dsc_engine *engine, dsc_error *err);
void dsc_engine_close_cuts(dsc_engine *engine);
/* Selects the model for samples of this length until the next call. */
void dsc_engine_set_length(dsc_engine *engine, int64_t length);
int64_t dsc_engine_length(const dsc_engine *engine, int64_t step);   /* sample length of a step, from 1 */
int32_t dsc_engine_cut_of(const dsc_engine *engine, int64_t length); /* index into plan.shorter; -1: whole samples */
int64_t dsc_engine_step_tokens(const dsc_engine *engine, int64_t step);
int64_t dsc_engine_step_targets(const dsc_engine *engine, int64_t step); /* a masked language model has fewer */
double dsc_engine_step_flops(const dsc_engine *engine, int64_t step); /* over all ranks */

#endif
