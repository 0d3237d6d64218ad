/* module_context.c - the context of a module's call: memory of a micro-batch, values of the step.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/internal.h"
#include "engine/model.h"
#include "engine/step.h"

void dsc_step_context(dsc_engine *engine, int32_t module, int32_t mb, bool save, dsc_module_ctx *ctx)
{
    const int32_t at = dsc_engine_at(engine, mb, module);
    *ctx = (dsc_module_ctx) {
        .struct_bytes = (uint32_t)sizeof *ctx,
        .stream = engine->compute,
        .dtype = dsc_engine_dtype(engine),
        .batch = engine->config.train_micro_batch_size_per_gpu,
        .save = save,
        .rng_seed = (uint64_t)engine->config.seed,
        .rng_step = (uint64_t)engine->progress.step + 1,
        .param = engine->work.param,
        .grad = engine->work.grad,
        .batch_data = engine->work.batch[mb],
        .in = module > 0 ? engine->work.out[at - 1] : dsc_stages_input(engine, mb),
        .saved = engine->work.saved[at],
        .scratch = engine->work.scratch_buf.ptr,
        .loss_scale = (float)engine->progress.loss_scaler.scale,
        .rebuilt = engine->work.rebuilt[at],
        .repeated = save && engine->config.own.recompute == DSC_RECOMPUTE_KEPT ? engine->work.repeated[at] : NULL,
        .chunk_bytes = engine->plan.chunk_bytes,
        .experts = &engine->model->experts,
        .records = dsc_engine_records(engine, mb),
        .pairs = dsc_model_prefers(engine->model),
        .joins_input_gradients = engine->plan.joins_input_gradients,
        .stores_score_gradients = engine->plan.stores_score_gradients,
        .buffer = dsc_engine_buffer_values(engine, module),
        .constant = dsc_engine_buffer_constants(engine, module),
        .group = dsc_tensor_group(engine),
    };
    const int64_t micro_step = engine->progress.micro_step + mb; /* in an evaluation the rank may have none */
    const int64_t leaf = dsc_engine_has_micro_batch(engine, micro_step)
                             ? dsc_quota_number(&engine->quota.now, engine->stages.data_rank, micro_step)
                             : 0;
    ctx->rng_sample = (uint64_t)(engine->progress.step * engine->config.train_batch_size + leaf * ctx->batch);
}

/* Buffer of the gradient of a module's output, written by the successor's backward and read by the module's own. There
 * is one more buffer than micro-batches. The first micro-batch writes to the free buffer. Each later micro-batch writes
 * to the buffer that the micro-batch before it has read. Micro-batches of a norm group do so at the same time, in two
 * buffers each. */
char *dsc_step_output_gradient(const dsc_engine *engine, int32_t module, int32_t mb)
{
    const int32_t made_by = engine->model->module_count - 2 - module; /* index of the producer, from 0 */
    if (engine->plan.norm_each > 0)
        return engine->work
            .d_buffer[made_by % 2 * engine->plan.micro_batch_group + mb % engine->plan.micro_batch_group];
    const int32_t count = engine->plan.micro_batch_group + 1;
    return engine->work.d_buffer[(mb % engine->plan.micro_batch_group + count - made_by % count) % count];
}

/* Memory for the gradient of a module's input; the first module of a later stage writes what is sent. */
dsc_status dsc_step_input_gradient(dsc_engine *engine, int32_t m, int32_t mb, void **out, dsc_error *err)
{
    if (m == 0)
        return dsc_stages_input_gradient(engine, engine->progress.micro_step + mb, out, err);
    *out = dsc_step_output_gradient(engine, m - 1, mb);
    return DSC_OK;
}
