/* step.c - one training step: forward and backward over the modules, leaves to their owners, update at the boundary.
 *
 * The engine knows an order of modules, never a layer. All work goes to the compute stream in the order of steps that
 * zero.h numbers; what overlaps is zero's business. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "engine/activation_offload.h"
#include "engine/batch_transfer.h"
#include "engine/device.h"
#include "engine/fp8.h"
#include "engine/internal.h"
#include "engine/local_sgd.h"
#include "engine/model.h"
#include "engine/replicas.h"
#include "engine/norm_group.h"
#include "engine/report.h"
#include "engine/save.h"
#include "engine/step.h"
#include "engine/update.h"
#include "engine/value_trace.h"

static dsc_status wrong_phase(const char *what, const char *expected, dsc_error *err)
{
    return DSC_FAIL(err, DSC_ERR_STATE, "", "%s called out of order; expected %s", what, expected);
}

/* This rank has that micro-batch of the pass. If not, it only takes part in the collectives of the others'. */
static bool has_part(const dsc_engine *engine, int32_t mb)
{
    return dsc_engine_has_micro_batch(engine, engine->progress.micro_step + mb);
}

static dsc_status call_module(const dsc_module *module, dsc_pass pass, dsc_module_ctx *ctx, dsc_error *err)
{
    return (pass == DSC_PASS_FORWARD    ? module->forward
            : pass == DSC_PASS_BACKWARD ? module->backward
                                        : module->rebuild)(module, ctx, err);
}

/* A module's work is a section of the compute stream (kernels/device.h): each pass over it has its own. A trace of its
 * values waits within the work, so such a module has none. */
static dsc_status run_module(dsc_engine *engine, int32_t m, int32_t mb, dsc_pass pass, dsc_module_ctx *ctx,
                             dsc_error *err)
{
    const dsc_module *module = &engine->models.now->modules[m];
    const int32_t section = (int32_t)pass * engine->plan.micro_batch_group + mb;
    const int64_t start = engine->quota.settled ? 0 : dsc_clock_ns();
    const dsc_fp8_pass in_fp8 = !ctx->save ? DSC_FP8_ALONE : pass == DSC_PASS_BACKWARD ? DSC_FP8_SAVED : DSC_FP8_SAVES;
    ctx->fp8 = dsc_engine_fp8(engine, m, mb, in_fp8);
    if (dsc_value_trace_wants(engine, m)) {
        dsc_value_trace_begin(engine, m, mb, pass, ctx);
        DSC_TRY(call_module(module, pass, ctx, err));
        return dsc_value_trace_end(engine, m, pass, ctx, err);
    }
    DSC_TRY(dsc_section_begin(engine->compute, section * engine->model->module_count + m, err));
    const dsc_status status = call_module(module, pass, ctx, err);
    const dsc_status ended = dsc_section_end(engine->compute, status == DSC_OK, status == DSC_OK ? err : NULL);
    if (!engine->quota.settled)
        engine->quota.module_ns += dsc_clock_ns() - start;
    return status != DSC_OK ? status : ended;
}

/* DSC_PASS_FORWARD or DSC_PASS_REBUILD. */
static dsc_status module_forward(dsc_engine *engine, int32_t m, int32_t mb, dsc_pass pass, bool save,
                                 dsc_span_kind kind, dsc_error *err)
{
    dsc_module_ctx ctx;
    dsc_step_context(engine, m, mb, save, &ctx);
    ctx.training = kind != DSC_SPAN_EVALUATE;
    ctx.statistic = kind == DSC_SPAN_FORWARD ? dsc_engine_buffer_statistics(engine, m, mb) : NULL;
    ctx.out = engine->work.out[dsc_engine_at(engine, mb, m)];
    const int64_t start = dsc_engine_span_start(engine, kind, m);
    DSC_TRY(run_module(engine, m, mb, pass, &ctx, err));
    dsc_engine_span_end(engine, kind, m, start);
    return DSC_OK;
}

dsc_status dsc_step_module_rebuild(dsc_engine *engine, int32_t m, int32_t mb, dsc_error *err)
{
    return module_forward(engine, m, mb, DSC_PASS_REBUILD, true, DSC_SPAN_RECOMPUTE, err);
}

dsc_status dsc_step_module_forward(dsc_engine *engine, int32_t m, int32_t mb, bool save, dsc_error *err)
{
    const bool keep = save && engine->config.own.recompute != DSC_RECOMPUTE_FULL;
    return module_forward(engine, m, mb, DSC_PASS_FORWARD, keep, save ? DSC_SPAN_FORWARD : DSC_SPAN_EVALUATE, err);
}

/* Waits for the losses that are on their way, up to that micro-step's, and takes their means. */
static dsc_status settle_losses(dsc_engine *engine, int64_t micro_step, dsc_error *err)
{
    DSC_TRY(dsc_stream_sync(engine->compute, err));
    for (; engine->progress.settled <= micro_step; engine->progress.settled++) {
        dsc_repeat_note_losses(engine, engine->progress.settled);
        engine->work.step_stats[engine->progress.settled] = dsc_engine_mean_loss(engine, engine->progress.settled) +
                                                            dsc_engine_router_loss(engine, engine->progress.settled);
    }
    return DSC_OK;
}

static dsc_status take_losses(dsc_engine *engine, int64_t micro_step, dsc_error *err)
{
    DSC_TRY(dsc_engine_fetch_losses(engine, micro_step, err));
    DSC_TRY(dsc_engine_fetch_records(engine, micro_step, err));
    DSC_TRY(dsc_engine_fetch_statistics(engine, micro_step, err));
    const bool last_slot = micro_step + 1 - engine->progress.settled == engine->plan.loss_slots;
    return engine->host_visible || last_slot ? settle_losses(engine, micro_step, err) : DSC_OK;
}

/* The loss module of a micro-batch that this rank has: losses and gradients at once. */
static dsc_status loss_and_gradient(dsc_engine *engine, int32_t m, int32_t mb, dsc_module_ctx *ctx, dsc_error *err)
{
    const int64_t micro_step = engine->progress.micro_step + mb;
    DSC_TRY(dsc_zero_grad_part(engine->zero, m, micro_step, engine->work.grad, err));
    DSC_TRY(dsc_stages_tied_gradients(engine, micro_step, engine->work.grad, err));
    DSC_TRY(dsc_step_input_gradient(engine, m, mb, &ctx->d_in, err));
    ctx->statistic = dsc_engine_buffer_statistics(engine, m, mb);
    const int64_t start = dsc_engine_span_start(engine, DSC_SPAN_FORWARD, m);
    DSC_TRY(run_module(engine, m, mb, DSC_PASS_FORWARD, ctx, err));
    dsc_engine_span_end(engine, DSC_SPAN_FORWARD, m, start);
    return DSC_OK;
}

/* The last module: losses, and when a backward follows also its gradients, at once. */
dsc_status dsc_step_loss(dsc_engine *engine, int32_t m, int32_t mb, bool save, dsc_error *err)
{
    const int64_t micro_step = engine->progress.micro_step + mb;
    dsc_module_ctx ctx;
    dsc_step_context(engine, m, mb, save, &ctx);
    ctx.training = save;
    ctx.losses = engine->work.losses;
    ctx.label_smoothing = save ? (float)engine->config.own.label_smoothing : 0.0f;
    ctx.mixed = save ? dsc_engine_mixed(engine, ctx.rng_sample) : 0.0f;
    ctx.places = save ? NULL : dsc_engine_places(engine);
    if (!save)
        return run_module(engine, m, mb, DSC_PASS_FORWARD, &ctx, err);
    if (mb % engine->plan.micro_batch_group == 0)
        DSC_TRY(dsc_zero_step_event(engine->zero, DSC_ZERO_HEAD_BEGINS, err));
    if (has_part(engine, mb))
        DSC_TRY(loss_and_gradient(engine, m, mb, &ctx, err));
    DSC_TRY(dsc_zero_reduce(engine->zero, m, micro_step, err));
    return has_part(engine, mb) ? take_losses(engine, micro_step, err) : DSC_OK;
}

/* With `save`, all micro-batches that run together: each passes a module before any comes to the next one. */
static dsc_status run_forward(dsc_engine *engine, bool save, dsc_error *err)
{
    const int32_t last = engine->model->module_count - 1, mb_count = save ? engine->plan.micro_batch_group : 1;
    for (int32_t m = 0; m < last; m++) {
        DSC_TRY(dsc_zero_acquire(engine->zero, m, m, engine->work.param, err));
        DSC_TRY(dsc_outputs_before_forward(engine, m, err));
        const bool group = save && dsc_norm_group_has(engine, m);
        if (group)
            DSC_TRY(dsc_norm_group_forward(engine, m, err));
        for (int32_t mb = 0; mb < mb_count; mb++) {
            if (save && !has_part(engine, mb))
                continue;
            if (!group)
                DSC_TRY(dsc_step_module_forward(engine, m, mb, save, err));
            if (save)
                DSC_TRY(dsc_outputs_after_forward(engine, m, mb, err));
        }
    }
    DSC_TRY(dsc_zero_acquire(engine->zero, last, last, engine->work.param, err));
    for (int32_t mb = 0; mb < mb_count; mb++)
        DSC_TRY(dsc_step_loss(engine, last, mb, save, err));
    return DSC_OK;
}

/* The gradient part of a micro-batch that this rank has. */
static dsc_status module_gradient(dsc_engine *engine, int32_t m, int32_t mb, dsc_error *err)
{
    const int64_t micro_step = engine->progress.micro_step + mb;
    const dsc_recompute_policy again =
        dsc_plan_recompute(&engine->config, &engine->models.now->modules[m], &engine->plan.module[m]);
    if (again != DSC_RECOMPUTE_NOTHING)
        DSC_TRY(module_forward(engine, m, mb, again == DSC_RECOMPUTE_FORWARD ? DSC_PASS_FORWARD : DSC_PASS_REBUILD,
                               true, DSC_SPAN_RECOMPUTE, err));
    DSC_TRY(dsc_zero_grad_part(engine->zero, m, micro_step, engine->work.grad, err));
    dsc_module_ctx ctx;
    dsc_step_context(engine, m, mb, true, &ctx);
    ctx.training = true;
    ctx.d_out = dsc_step_output_gradient(engine, m, mb);
    DSC_TRY(dsc_step_input_gradient(engine, m, mb, &ctx.d_in, err));
    ctx.out = engine->work.out[dsc_engine_at(engine, mb, m)];
    const int64_t start = dsc_engine_span_start(engine, DSC_SPAN_BACKWARD, m);
    DSC_TRY(run_module(engine, m, mb, DSC_PASS_BACKWARD, &ctx, err));
    dsc_engine_span_end(engine, DSC_SPAN_BACKWARD, m, start);
    return DSC_OK;
}

dsc_status dsc_step_module_backward(dsc_engine *engine, int32_t m, int32_t mb, dsc_error *err)
{
    if (has_part(engine, mb))
        DSC_TRY(module_gradient(engine, m, mb, err));
    return dsc_zero_reduce(engine->zero, m, engine->progress.micro_step + mb, err);
}

static dsc_status backward_module(dsc_engine *engine, int32_t m, dsc_error *err)
{
    const int32_t step = 2 * engine->model->module_count - 2 - m;
    DSC_TRY(dsc_zero_acquire(engine->zero, step, m, engine->work.param, err));
    DSC_TRY(dsc_outputs_before_backward(engine, m, err));
    if (dsc_norm_group_has(engine, m))
        return dsc_norm_group_backward(engine, m, err);
    for (int32_t mb = 0; mb < engine->plan.micro_batch_group; mb++)
        DSC_TRY(dsc_step_module_backward(engine, m, mb, err));
    return DSC_OK;
}

static dsc_status usable(const dsc_engine *engine, dsc_error *err)
{
    if (engine->failed)
        return DSC_FAIL(err, DSC_ERR_STATE, "", "the engine failed before; close it");
    if (engine->zero == NULL)
        return DSC_FAIL(err, DSC_ERR_STATE, "", "the engine was opened without a model");
    return DSC_OK;
}

static dsc_status no_data(dsc_error *err)
{
    return DSC_FAIL(err, DSC_ERR_STATE, "",
                    "no data: give forward a batch, or the engine a data source or \"dsc\".data");
}

/* The reader fills the last pass's memory again. */
static dsc_status read_batches(dsc_engine *engine, dsc_error *err)
{
    if (engine->input.reader == NULL)
        return no_data(err);
    DSC_TRY(dsc_engine_batch_passed(engine, err));
    dsc_reader_release(engine->input.reader);
    const int64_t waited_from = dsc_engine_span_start(engine, DSC_SPAN_DATA, -1);
    for (int32_t mb = 0; mb < engine->plan.micro_batch_group && has_part(engine, mb); mb++) {
        const void *const *batch;
        int64_t counted;
        DSC_TRY(dsc_reader_next(engine->input.reader, &batch, &counted, &engine->times.data_wait_ns, err));
        dsc_engine_warn_of_pictures(engine);
        dsc_engine_counts_add(engine, counted);
        DSC_TRY(dsc_engine_give_batch(engine, mb, batch, err));
    }
    dsc_engine_span_end(engine, DSC_SPAN_DATA, -1, waited_from);
    return DSC_OK;
}

dsc_status dsc_step_read_batch(dsc_engine *engine, int32_t lane, dsc_error *err)
{
    const void *const *batch;
    int64_t counted;
    if (engine->input.reader == NULL)
        return no_data(err);
    dsc_engine_counts_begin_pass(engine);
    DSC_TRY(dsc_reader_next(engine->input.reader, &batch, &counted, &engine->times.data_wait_ns, err));
    dsc_engine_warn_of_pictures(engine);
    dsc_engine_counts_add(engine, counted);
    DSC_TRY(dsc_engine_give_batch(engine, lane, batch, err));
    DSC_TRY(dsc_engine_batch_passed(engine, err));
    dsc_reader_release(engine->input.reader);
    return DSC_OK;
}

static dsc_status take_batch(dsc_engine *engine, const void *const *batch, dsc_error *err)
{
    if (engine->config.curriculum.enabled)
        return DSC_FAIL(err, DSC_ERR_STATE, "curriculum_learning",
                        "the host program gives its own batches; give the "
                        "engine a data source, whose samples it cuts");
    DSC_TRY(dsc_batch_check(engine->model, engine->config.train_micro_batch_size_per_gpu, batch, err));
    dsc_engine_counts_add(engine, dsc_batch_counted(engine->model, dsc_engine_pass_targets(engine), batch));
    return dsc_engine_give_batch(engine, 0, batch, err);
}

/* A host program that runs the passes may set another learning rate before the step. */
static void expect_update(dsc_engine *engine)
{
    dsc_update update;
    dsc_update_expect(engine, &update);
    if (engine->config.own.early_update) /* which may exchange the places of states */
        dsc_engine_snapshot_wait(engine);
    dsc_zero_expect(engine->zero, update.scalars, update.class_count, engine->progress.update_count + 1,
                    engine->progress.in_train_batch);
}

dsc_status dsc_step_begin(dsc_engine *engine, int64_t start, dsc_error *err)
{
    DSC_TRY(dsc_engine_mirror_step(engine, err));
    engine->times.step_start_ns = start;
    dsc_engine_exchange_counts(engine, &engine->times.exchange_before);
    dsc_engine_label_step(engine, engine->progress.step + 1);
    dsc_engine_counts_begin(engine);
    dsc_engine_experts_begin(engine);
    DSC_TRY(dsc_spikes_begin_step(engine, err));
    dsc_zero_begin(engine->zero, engine->progress.update_count + 1);
    dsc_engine_fp8_changed(engine);
    dsc_engine_set_length(engine, dsc_engine_length(engine, engine->progress.step + 1));
    engine->progress.batch_from_reader = true;
    return DSC_OK;
}

static dsc_status forward(dsc_engine *engine, const void *const *batch, double *loss, dsc_error *err)
{
    const int64_t start = dsc_clock_ns();
    if (engine->progress.micro_step == 0)
        DSC_TRY(dsc_step_begin(engine, start, err));
    engine->progress.batch_from_reader = batch == NULL;
    dsc_engine_counts_begin_pass(engine);
    DSC_TRY(batch == NULL ? read_batches(engine, err) : take_batch(engine, batch, err));
    if (dsc_engine_at_boundary(engine)) {
        DSC_TRY(dsc_engine_counts_exchange(engine, err));
        expect_update(engine);
    }
    DSC_TRY(run_forward(engine, true, err));
    if (loss != NULL) {
        DSC_TRY(settle_losses(engine, engine->progress.micro_step, err));
        *loss = dsc_engine_counted_mean(engine, engine->work.step_stats[engine->progress.micro_step],
                                        engine->counts.of_pass, dsc_engine_pass_targets(engine));
    }
    engine->progress.phase = DSC_PHASE_FORWARD_DONE;
    engine->times.forward_ns += dsc_clock_ns() - start;
    return DSC_OK;
}

static dsc_status forward_pass(dsc_engine *engine, const void *const *batch, double *loss, dsc_error *err)
{
    if (engine->progress.phase != DSC_PHASE_IDLE)
        return wrong_phase("forward", "backward and step after the last forward", err);
    DSC_TRY(dsc_engine_need_values(engine, err));
    return dsc_engine_fail(engine, forward(engine, batch, loss, err), err);
}

dsc_status dsc_engine_forward(dsc_engine *engine, const void *const *batch, double *loss, dsc_error *err)
{
    DSC_TRY(usable(engine, err));
    if (dsc_stages_are_used(&engine->stages))
        return DSC_FAIL(err, DSC_ERR_STATE, "dsc.grid.pipeline",
                        "a stage has a part of the model, and forward takes a "
                        "pass of all of it; call train_batch");
    if (dsc_engine_quotas_differ(engine))
        return DSC_FAIL(err, DSC_ERR_STATE, "dsc.quota",
                        "ranks have unequal numbers of micro-batches, and forward takes one of each; call train_batch");
    if (engine->plan.micro_batch_group > 1)
        return DSC_FAIL(err, DSC_ERR_STATE, "dsc.micro_batches_together",
                        "forward takes one micro-batch, and %d run together; call train_batch, or leave the key out",
                        (int)engine->plan.micro_batch_group);
    return forward_pass(engine, batch, loss, err);
}

static dsc_status backward(dsc_engine *engine, dsc_error *err)
{
    const int64_t start = dsc_clock_ns();
    for (int32_t m = engine->model->module_count - 2; m >= 0; m--)
        DSC_TRY(backward_module(engine, m, err));
    if (!engine->progress.batch_from_reader)
        DSC_TRY(dsc_engine_batch_passed(engine, err));
    engine->progress.phase = DSC_PHASE_BACKWARD_DONE;
    engine->times.backward_ns += dsc_clock_ns() - start;
    return DSC_OK;
}

dsc_status dsc_engine_backward(dsc_engine *engine, dsc_error *err)
{
    DSC_TRY(usable(engine, err));
    if (engine->progress.phase != DSC_PHASE_FORWARD_DONE)
        return wrong_phase("backward", "one forward before it", err);
    return dsc_engine_fail(engine, backward(engine, err), err);
}

bool dsc_engine_at_boundary(const dsc_engine *engine)
{
    return engine->progress.micro_step + engine->plan.micro_batch_group == engine->quota.micro_steps;
}

void dsc_engine_request(dsc_engine *engine, uint32_t bits)
{
    atomic_fetch_or_explicit(&engine->progress.requests, bits, memory_order_relaxed);
}

/* Beside the requests: this rank is at work on a save that was started. */
#define WORD_SAVING (UINT64_C(1) << 32)
/* This rank's group has a norm that is not finite; others follow, so that updates have equal numbers. */
#define WORD_SKIPS (UINT64_C(1) << 33)

/* The step's loss: leaf losses in leaf order over all ranks, in double. Requests travel along: they cost no collective
 * of their own, and all ranks learn of them after the same step. */
static dsc_status step_loss(dsc_engine *engine, bool skips, double *loss, uint64_t *requests, dsc_error *err)
{
    const int64_t most = engine->config.micro_steps_most, size = engine->place.size;
    const int64_t words = dsc_step_stat_count(&engine->config);
    const int32_t data_ranks = engine->stages.grid.data;
    if (engine->place.rank < dsc_engine_loss_rank(engine, 0)) /* the losses are the last stage's */
        memset(engine->work.step_stats, 0, (size_t)most * sizeof *engine->work.step_stats);
    else if (engine->progress.settled < engine->quota.own)
        DSC_TRY(settle_losses(engine, engine->quota.own - 1, err));
    const uint64_t asked = atomic_exchange_explicit(&engine->progress.requests, 0, memory_order_relaxed);
    double *own = engine->work.step_stats + most;
    dsc_alloc_stats memory;
    dsc_gpu_reading gpu;
    dsc_alloc_stats_get(engine->alloc, &memory);
    dsc_gpu_sensor_read(engine->output.sensor, &gpu);
    own[DSC_STAT_GPU_WATTS] = gpu.watts;
    own[DSC_STAT_GPU_BUSY] = gpu.busy_percent;
    own[DSC_STAT_GPU_USED_MB] = gpu.used_mb;
    own[DSC_STAT_GPU_CELSIUS] = gpu.celsius;
    own[DSC_STAT_REQUESTS] = (double)(asked | (dsc_engine_saving(engine) ? WORD_SAVING : 0) | (skips ? WORD_SKIPS : 0));
    own[DSC_STAT_WORK_NS] = (double)(engine->times.forward_ns + engine->times.backward_ns);
    own[DSC_STAT_MODULE_NS] = (double)engine->quota.module_ns;
    own[DSC_STAT_DATA_NS] = (double)engine->times.data_wait_ns;
    dsc_exchange_counts exchanged;
    dsc_engine_exchange_counts(engine, &exchanged);
    own[DSC_STAT_WAIT_NS] = (double)dsc_exchange_since(&engine->times.exchange_before, &exchanged).wait_ns;
    own[DSC_STAT_COUNTED] = (double)engine->counts.own;
    own[DSC_STAT_MEMORY_BYTES] = 0;
    for (int tier = 0; tier < DSC_TIER_NVME; tier++)
        own[DSC_STAT_MEMORY_BYTES] += (double)memory.tier_peak_bytes[tier];
    DSC_TRY(dsc_comm_all_gather(engine->comms.all, DSC_CHANNEL_CONTROL, engine->work.step_stat_count,
                                engine->work.step_stats, words, DSC_F64, NULL, err));
    double sum = 0;
    for (int64_t m = 0; m < engine->quota.micro_steps; m++)
        for (int32_t d = 0; d < data_ranks; d++)
            if (dsc_quota_has(&engine->quota.now, d, m))
                sum += engine->work.step_stat_count[dsc_engine_loss_rank(engine, d) * words + m];
    *loss = dsc_engine_counted_mean(engine, sum / (double)engine->quota.now.total, engine->counts.all,
                                    dsc_engine_step_targets(engine, engine->progress.step + 1));
    DSC_TRY(dsc_engine_experts_exchange(engine, err));
    *requests = 0;
    for (int64_t r = 0; r < size; r++)
        *requests |= (uint64_t)engine->work.step_stat_count[r * words + most + DSC_STAT_REQUESTS];
    return DSC_OK;
}

static void close_step(dsc_engine *engine, int64_t start)
{
    const int64_t now = dsc_clock_ns();
    dsc_exchange_counts exchanged;
    dsc_engine_exchange_counts(engine, &exchanged);
    engine->times.last_exchange = dsc_exchange_since(&engine->times.exchange_before, &exchanged);
    engine->times.update_ns = now - start;
    engine->times.last_forward_ns = engine->times.forward_ns;
    engine->times.last_backward_ns = engine->times.backward_ns;
    engine->times.last_data_wait_ns = engine->times.data_wait_ns;
    engine->times.last_step_ns = now - engine->times.step_start_ns;
    engine->times.forward_ns = engine->times.backward_ns = engine->times.data_wait_ns = 0;
    engine->progress.micro_step = engine->progress.settled = 0;
    engine->progress.step++;
    engine->models.now = engine->model; /* evaluation and generation use the whole model */
    /* From here on a step that allocates is a bug. A save on its way does, for its lists, which are in the plan. */
    dsc_alloc_freeze(engine->alloc, !engine->saves.begun);
}

static dsc_status update_or_skip(dsc_engine *engine, const dsc_update *update, dsc_error *err)
{
    const double scale = engine->progress.loss_scaler.scale;
    if (update->skip) {
        DSC_TRY(dsc_zero_skip(engine->zero, err));
        DSC_TRY(dsc_zero_forget_errors(engine->zero, err));
        return dsc_engine_skip_step(engine, err);
    }
    const bool first_average = !dsc_zero_has_averages(engine->zero);
    const int64_t began = dsc_engine_span_start(engine, DSC_SPAN_UPDATE, -1);
    DSC_TRY(dsc_engine_move_biases(engine, err));
    DSC_TRY(dsc_zero_update(engine->zero, update->scalars, update->class_count, engine->progress.update_count + 1,
                            err));
    if (engine->stages.trains_tied)
        DSC_TRY(dsc_stages_share_tied(engine, err));
    dsc_engine_average_buffers(engine, first_average);
    dsc_engine_span_end(engine, DSC_SPAN_UPDATE, -1, began);
    engine->progress.update_count++;
    engine->progress.skipped_in_row = 0;
    DSC_TRY(dsc_local_sgd_after_update(engine, err));
    const bool goes_on = dsc_loss_scaler_next(&engine->config, false, &engine->progress.loss_scaler);
    DSC_ASSERT(goes_on);
    return engine->progress.loss_scaler.scale != scale ? dsc_zero_forget_errors(engine->zero, err) : DSC_OK;
}

static dsc_status step(dsc_engine *engine, dsc_step_result *result, dsc_error *err)
{
    const int64_t start = dsc_clock_ns();
    engine->progress.phase = DSC_PHASE_IDLE;
    if (!dsc_engine_at_boundary(engine)) {
        engine->progress.micro_step += engine->plan.micro_batch_group;
        if (result != NULL)
            result->step = 0;
        return DSC_OK;
    }
    dsc_update update;
    double loss;
    uint64_t requests;
    /* Sums first: they end this rank's work, and hosts that meet with work left on their devices would wait twice. */
    DSC_TRY(dsc_update_decide(engine, engine->zero, engine->quota.now.total, dsc_engine_sum_divisor(engine),
                              engine->progress.update_count + 1, &update, err));
    update.skip = update.skip || engine->counts.all == 0;
    DSC_TRY(step_loss(engine, update.skip, &loss, &requests, err));
    update.skip = (requests & WORD_SKIPS) != 0;
    DSC_TRY(dsc_replicas_compare(engine, err));
    bool again;
    DSC_TRY(dsc_spikes_judge(engine, loss, &update, &requests, &again, err));
    if (again)
        return DSC_OK;
    DSC_TRY(dsc_engine_fold_buffers(engine, err)); /* of a step without update too */
    const double scale = engine->progress.loss_scaler.scale;
    dsc_engine_snapshot_wait(engine);
    DSC_TRY(update_or_skip(engine, &update, err));
    DSC_TRY(dsc_stream_sync(engine->compute, err));
    close_step(engine, start);
    if ((requests & WORD_SAVING) == 0)
        dsc_engine_save_advance(engine);
    dsc_step_result_report(engine, &update, loss, scale, (uint32_t)requests, result);
    return dsc_engine_measure_quota(engine, err);
}

dsc_status dsc_engine_step(dsc_engine *engine, dsc_step_result *result, dsc_error *err)
{
    DSC_TRY(usable(engine, err));
    if (engine->progress.phase != DSC_PHASE_BACKWARD_DONE)
        return wrong_phase("step", "forward and backward before it", err);
    return dsc_engine_fail(engine, step(engine, result, err), err);
}

static dsc_status whole_step(dsc_engine *engine, dsc_step_result *result, dsc_error *err)
{
    if (dsc_stages_are_used(&engine->stages))
        return dsc_stages_train_batch(engine, result, err);
    const int64_t micro_steps = engine->quota.micro_steps; /* a measurement may change it at the end */
    for (int64_t m = 0; m < micro_steps; m += engine->plan.micro_batch_group) {
        DSC_TRY(forward_pass(engine, NULL, NULL, err));
        DSC_TRY(dsc_engine_backward(engine, err));
        DSC_TRY(dsc_engine_step(engine, result, err));
    }
    return DSC_OK;
}

dsc_status dsc_engine_train_batch(dsc_engine *engine, dsc_step_result *result, dsc_error *err)
{
    dsc_step_result local = DSC_STEP_RESULT_INIT;
    if (engine->progress.micro_step != 0)
        return wrong_phase("train_batch", "a step boundary", err);
    if (result == NULL)
        result = &local;
    DSC_TRY(usable(engine, err));
    engine->progress.in_train_batch = true;
    dsc_status status;
    do
        status = whole_step(engine, result, err);
    while (status == DSC_OK && engine->repeat.is_second);
    engine->progress.in_train_batch = false;
    return status;
}

/* ---- without gradients ---- */

dsc_status dsc_engine_check_idle(const dsc_engine *engine, const char *what, dsc_error *err)
{
    DSC_TRY(usable(engine, err));
    if (engine->progress.phase != DSC_PHASE_IDLE || engine->progress.micro_step != 0)
        return wrong_phase(what, "a step boundary", err);
    return DSC_OK;
}

dsc_status dsc_engine_forward_only(dsc_engine *engine, dsc_error *err)
{
    dsc_engine_fp8_changed(engine);
    if (dsc_stages_are_used(&engine->stages))
        return dsc_stages_forward_only(engine, err);
    return run_forward(engine, false, err);
}
