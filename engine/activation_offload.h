/* activation_offload.h - values of modules in host memory until their backward (activation_offload.c).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_ACTIVATION_OFFLOAD_H
#define DSC_ENGINE_ACTIVATION_OFFLOAD_H

#include "engine/internal.h"

/* No call has an effect when all values stay on the device. */
dsc_status dsc_outputs_open(dsc_engine *engine, dsc_error *err);
void dsc_outputs_close(dsc_engine *engine);
dsc_status dsc_outputs_before_forward(dsc_engine *engine, int32_t module, dsc_error *err);
/* Only in a pass that has a backward: once for each micro-batch of the group, the first one last. */
dsc_status dsc_outputs_after_forward(dsc_engine *engine, int32_t module, int32_t mb, dsc_error *err);
dsc_status dsc_outputs_before_backward(dsc_engine *engine, int32_t module, dsc_error *err);

#endif
