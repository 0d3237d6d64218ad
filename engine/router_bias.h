/* router_bias.h - biases of routers, which keep loads of experts even (dsc.moe.bias_update_speed).
 *
 * Parameters "...e_score_correction_bias", one for each router, are added to scores for the choice of experts alone, so
 * they have no gradient. Here they are trainable parameters whose gradient is 0. So masters, checkpoints and placements
 * are those of any parameter, and the optimizer leaves their values. Before each update every rank adds
 * speed * sign(mean load - load) to them (Wang et al. 2024), by the loads of the whole step over all ranks.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_ROUTER_BIAS_H
#define DSC_ENGINE_ROUTER_BIAS_H

#include <dsc/dsc.h>

bool dsc_name_is_router_bias(const char *name);
/* After the model is open: one bias for each router, or none of a speed. */
dsc_status dsc_engine_check_biases(const dsc_engine *engine, dsc_error *err);
/* Zeros for the gradients of a module's biases, whose backward writes none. */
dsc_status dsc_engine_zero_biases(const dsc_engine *engine, int32_t module, dsc_error *err);
/* After dsc_engine_experts_exchange, in a step that is not skipped. */
dsc_status dsc_engine_move_biases(dsc_engine *engine, dsc_error *err);

#endif
