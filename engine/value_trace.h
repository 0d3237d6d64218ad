/* value_trace.h - numbers about the values that modules compute, for who looks for the first one that went wrong.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_VALUE_TRACE_H
#define DSC_ENGINE_VALUE_TRACE_H

#include "engine/internal.h"

/* Reads DSC_TRACE_VALUES: "1" for all modules, else names of modules or shell patterns of them, with commas between.
 * Unset, empty or "0": nothing is traced. An entry that fits no module is an error. */
dsc_status dsc_value_trace_open(dsc_engine *engine, dsc_error *err);
void dsc_value_trace_close(dsc_engine *engine);
bool dsc_value_trace_wants(const dsc_engine *engine, int32_t module);
/* Before and after the call of a module that is traced. Each value is a line of the log, and the host waits for it. */
void dsc_value_trace_begin(dsc_engine *engine, int32_t module, int32_t mb, dsc_pass pass, dsc_module_ctx *ctx);
dsc_status dsc_value_trace_end(dsc_engine *engine, int32_t module, dsc_pass pass, const dsc_module_ctx *ctx,
                               dsc_error *err);

#endif
