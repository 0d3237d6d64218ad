/* router_bias.h - biases of routers, which keep loads of experts even (dsc.moe.bias_update_speed).
 *
 * Buffers "...e_score_correction_bias" (buffers.h), one for each router, are added to scores for the choice of experts
 * alone, so they have no gradient. Before each update every rank adds speed * sign(mean load - load) to them (Wang et
 * al. 2024), by the loads of the whole step over all ranks. So all ranks keep the same values.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_ROUTER_BIAS_H
#define DSC_ENGINE_ROUTER_BIAS_H

#include <dsc/dsc.h>

/* After the model is open: one bias for each router, or no speed. */
dsc_status dsc_engine_check_biases(const dsc_engine *engine, dsc_error *err);
/* After dsc_engine_experts_exchange and the fold of buffers, in a step that is not skipped. */
dsc_status dsc_engine_move_biases(dsc_engine *engine, dsc_error *err);

#endif
