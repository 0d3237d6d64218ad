/* local_sgd.h - research: groups of ranks that update alone and exchange weights every so many updates (local SGD,
 * DiLoCo). A group is one of MiCS's copies of the states; zero/outer_step.h has the exchange.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_LOCAL_SGD_H
#define DSC_ENGINE_LOCAL_SGD_H

#include <dsc/dsc.h>

#include "engine/config/config.h"
#include "zero/core/options.h"

dsc_outer_options dsc_local_sgd_options(const dsc_config *config);
/* Ranks whose gradients an update of this rank adds: those of a group, or all. */
int32_t dsc_local_sgd_ranks(const dsc_engine *engine);
/* The weights of all groups are equal: after first values, or a load. */
dsc_status dsc_local_sgd_start(dsc_engine *engine, dsc_error *err);
/* Collective. After an update: an outer step if inner_steps updates were made since the last one. */
dsc_status dsc_local_sgd_after_update(dsc_engine *engine, dsc_error *err);
/* Collective. Before a save, so that the first group's states are those of all: an outer step, unless the weights are
 * equal, and the mean of the moments. */
dsc_status dsc_local_sgd_settle(dsc_engine *engine, dsc_error *err);

#endif
