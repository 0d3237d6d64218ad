/* fp8.h - dsc.fp8: memory and state of products in fp8. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_FP8_H
#define DSC_ENGINE_FP8_H

#include "engine/internal.h"

/* Whether stage 3 gathers weights of products in fp8 in that format; not if the layout has no groups of them. */
bool dsc_plan_gathers_fp8(const dsc_config *config, int32_t world_size);
/* The model's matrices that have groups apart, as dsc_layout_open reads them: [parameters of all modules], which the
 * caller frees; NULL: none. The model is that of all stages. */
DSC_MUST_USE dsc_status dsc_engine_fp8_matrices(const dsc_engine *engine, const dsc_model *model, int64_t **out,
                                                dsc_error *err);
/* Into a plan that is being made; without dsc.fp8 nothing. */
DSC_MUST_USE dsc_status dsc_plan_fp8_open(const dsc_plan_options *options, dsc_plan *plan, dsc_error *err);
/* After the module's plans: inputs are kept behind the module's own repeated values where these are, or alone. */
void dsc_plan_fp8_inputs(const dsc_plan_options *options, dsc_plan *plan, int32_t module);
/* The plan that the module's layers are added to; NULL: the module has no products in fp8. */
dsc_fp8_plan *dsc_plan_fp8_of(const dsc_plan_options *options, dsc_plan *plan, int32_t module);
/* Whether the device has such products, once it is open. */
DSC_MUST_USE dsc_status dsc_engine_check_fp8(const dsc_engine *engine, dsc_error *err);
/* After the plan's memory is open. */
void dsc_engine_open_fp8(dsc_engine *engine);
/* Of a call of the module that begins; NULL: the module has no products in fp8. saves: forward, and a backward follows;
 * saved: the backward of such a forward. */
typedef enum dsc_fp8_pass { DSC_FP8_ALONE, DSC_FP8_SAVES, DSC_FP8_SAVED } dsc_fp8_pass;
dsc_fp8_cache *dsc_engine_fp8(dsc_engine *engine, int32_t module, int32_t mb, dsc_fp8_pass pass);
/* The parameters may have new values. */
void dsc_engine_fp8_changed(dsc_engine *engine);

#endif
