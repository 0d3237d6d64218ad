/* stage_model.h - the model of one stage: some modules of the whole one, and a boundary module where others follow.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_STAGES_STAGE_MODEL_H
#define DSC_ENGINE_STAGES_STAGE_MODEL_H

#include <dsc/model.h>

#include "base/alloc.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DSC_STAGE_TIES_MAX 4

/* A tied parameter whose owner is in an earlier stage than the loss module, which uses it too. */
typedef struct dsc_stage_tie {
    int32_t owner_module, owner_param; /* numbers in the whole model */
    int32_t user_param;                /* number in the loss module */
    int64_t elements;
    bool trainable;
} dsc_stage_tie;

/* Modules [first, first + count) of the whole model, with a boundary module behind them unless they end with the loss
 * module. The boundary module stands where zero expects a loss module, so that zero counts steps as it always does. Its
 * parameters are the trainable tied ones that this stage owns: their uses by the loss module, whose gradients come from
 * the last stage.
 *
 * The last stage has copies of tied parameters. Zero sees a copy as a frozen parameter (`states`), which has neither
 * gradient nor optimizer state. The loss module sees the parameter as it is (`run`). */
typedef struct dsc_stage_model {
    dsc_model run; /* first: load_param finds the others by its address */
    dsc_model states;
    const dsc_model *whole;
    int32_t first, count;
    bool ends; /* with the loss module */
    dsc_module *run_modules, *state_modules;
    dsc_param_spec *run_specs, *state_specs;
    dsc_alloc *alloc; /* NULL: not open */
} dsc_stage_model;

/* The ties of the cut that first[stages + 1] describes. Parameters that are shared over stages in another way:
 * DSC_ERR_UNSUPPORTED with the parameter's name. */
dsc_status dsc_stage_find_ties(const dsc_model *whole, const int32_t *first, int32_t stages,
                               dsc_stage_tie ties[DSC_STAGE_TIES_MAX], int32_t *count, dsc_error *err);
/* The stage of a module. */
int32_t dsc_stage_of_module(const int32_t *first, int32_t stages, int32_t module);
/* `whole` is borrowed until close. */
dsc_status dsc_stage_model_open(dsc_alloc *alloc, const dsc_model *whole, int32_t first, int32_t end,
                                const dsc_stage_tie *ties, int32_t tie_count, dsc_stage_model *out, dsc_error *err);
void dsc_stage_model_close(dsc_stage_model *stage);

#ifdef __cplusplus
}
#endif
#endif
