/* step.h - pieces of a training step, which the schedule of one stage (step.c) and that of several (pipeline_run.c) put
 * together. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_STEP_H
#define DSC_ENGINE_STEP_H

#include <dsc/dsc.h>

/* Before the first micro-batch of a step; `start`: the time. */
dsc_status dsc_step_begin(dsc_engine *engine, int64_t start, dsc_error *err);
/* The next micro-batch of the reader, into the memory of a lane. */
dsc_status dsc_step_read_batch(dsc_engine *engine, int32_t lane, dsc_error *err);
/* Work on the micro-batch progress.micro_step + mb, after dsc_zero_acquire of the module. `save`: a backward follows.
 */
dsc_status dsc_step_module_forward(dsc_engine *engine, int32_t m, int32_t mb, bool save, dsc_error *err);
dsc_status dsc_step_loss(dsc_engine *engine, int32_t m, int32_t mb, bool save, dsc_error *err);
dsc_status dsc_step_module_backward(dsc_engine *engine, int32_t m, int32_t mb, dsc_error *err);
/* The values before an activation again, which the forward has not kept. */
dsc_status dsc_step_module_rebuild(dsc_engine *engine, int32_t m, int32_t mb, dsc_error *err);
/* module_context.c: the context of a call, without what a pass alone has. */
void dsc_step_context(dsc_engine *engine, int32_t module, int32_t mb, bool save, dsc_module_ctx *ctx);
dsc_status dsc_step_input_gradient(dsc_engine *engine, int32_t m, int32_t mb, void **out, dsc_error *err);
/* Memory for the gradient of a module's output. */
char *dsc_step_output_gradient(const dsc_engine *engine, int32_t module, int32_t mb);

#endif
