/* hooks.h - communication hooks: the built-in ones, and the host program's (dsc/hooks.h).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_HOOKS_H
#define DSC_ENGINE_HOOKS_H

#include <dsc/dsc.h>

#include "engine/config/config.h"
#include "zero/core/options.h"

/* PowerSGD of dsc.communication_hook; rank 0: not used. */
dsc_power_sgd_options dsc_hooks_power_sgd(const dsc_config *config);
void dsc_engine_close_hooks(dsc_engine *engine);

#endif
