/* report.h - log lines of rank 0, monitors, and spans of the profile.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_REPORT_H
#define DSC_ENGINE_REPORT_H

#include "engine/internal.h"

/* report.c */
void dsc_engine_report_config(const dsc_engine *engine);
void dsc_engine_note(const dsc_engine *engine, const char *what, const char *taken); /* `taken` replaces `what` */
dsc_status dsc_engine_open_profile(dsc_engine *engine, dsc_error *err);  /* precedes the communicators */
dsc_status dsc_engine_start_profile(dsc_engine *engine, dsc_error *err); /* needs the plan; collective */
/* A span of the profile covers the work between these two calls. */
int64_t dsc_engine_span_start(const dsc_engine *engine, dsc_span_kind kind, int32_t module);
void dsc_engine_span_end(const dsc_engine *engine, dsc_span_kind kind, int32_t module, int64_t start_ns);
dsc_status dsc_engine_open_monitors(dsc_engine *engine, dsc_error *err); /* collective */
void dsc_engine_describe(const dsc_engine *engine);                      /* to the monitors, when all is open */
void dsc_engine_report_step(const dsc_engine *engine, const dsc_step_result *result);
void dsc_engine_report_evaluation(const dsc_engine *engine, double loss);

/* info.c: writes engine->numerics, the line "numerics:". */
void dsc_engine_describe_numerics(dsc_engine *engine);

#endif
