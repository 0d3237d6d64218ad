/* pipeline_run.c - the static list of a stage, one step long, and passes without gradients.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"
#include "engine/counted_targets.h"
#include "engine/internal.h"
#include "engine/model.h"
#include "engine/pipeline.h"
#include "engine/step.h"

/* The lane of a micro-batch: its buffers between forward and backward. micro_step plus lane is the micro-batch. */
static int32_t enter(dsc_engine *engine, int64_t micro_batch)
{
    const int32_t lane = (int32_t)(micro_batch % engine->plan.lanes);
    engine->progress.micro_step = micro_batch - lane;
    return lane;
}

static bool begins_group(const dsc_engine *engine, int64_t micro_batch)
{
    return micro_batch % engine->plan.micro_batch_group == 0;
}

static bool ends_group(const dsc_engine *engine, int64_t micro_batch) { return begins_group(engine, micro_batch + 1); }

/* A step of zero's order. */
static dsc_status acquire(dsc_engine *engine, int32_t step, int32_t module, dsc_error *err)
{
    return dsc_zero_acquire(engine->zero, step, module, engine->work.param, err);
}

/* One module; the first one begins with the batch, behind the last one is the step of the boundary. */
static dsc_status forward(dsc_engine *engine, const dsc_stage_op *op, int32_t lane, dsc_error *err)
{
    const int32_t m = op->module, boundary = engine->model->module_count - 1;
    const int64_t start = dsc_clock_ns();
    if (m == 0)
        DSC_TRY(dsc_step_read_batch(engine, lane, err));
    if (begins_group(engine, op->micro_batch))
        DSC_TRY(acquire(engine, m, m, err));
    const bool loss = engine->stages.own.ends && m == boundary;
    DSC_TRY(loss ? dsc_step_loss(engine, m, lane, true, err) : dsc_step_module_forward(engine, m, lane, true, err));
    engine->times.forward_ns += dsc_clock_ns() - start;
    if (m != boundary - 1 || engine->stages.own.ends)
        return DSC_OK;
    DSC_TRY(dsc_engine_fetch_statistics(engine, op->micro_batch, err)); /* as behind a loss module */
    if (!ends_group(engine, op->micro_batch))
        return DSC_OK;
    engine->stages.turned = true;
    return acquire(engine, boundary, boundary, err);
}

/* The boundary's step, in which a loss module would make its gradients: those of tied parameters come from the last
 * stage. A pass that begins with its backward first passes the steps of its forward, as zero's order has it. They
 * gather what windows have: parameters at stage 3, and frozen weights that are packed at any stage. */
static dsc_status pass_boundary(dsc_engine *engine, int64_t micro_batch, dsc_error *err)
{
    const int32_t boundary = engine->model->module_count - 1;
    for (int32_t m = 0; begins_group(engine, micro_batch) && !engine->stages.turned && m <= boundary; m++)
        DSC_TRY(acquire(engine, m, m, err));
    engine->stages.turned = engine->stages.turned && !ends_group(engine, micro_batch);
    DSC_TRY(dsc_zero_grad_part(engine->zero, boundary, micro_batch, engine->work.grad, err));
    if (engine->stages.stage == engine->stages.shape.tied_owner)
        DSC_TRY(dsc_stages_recv_tied(engine, micro_batch, engine->work.grad, err));
    return dsc_zero_reduce(engine->zero, boundary, micro_batch, err);
}

static dsc_status backward(dsc_engine *engine, const dsc_stage_op *op, int32_t lane, dsc_error *err)
{
    const int64_t start = dsc_clock_ns();
    if (begins_group(engine, op->micro_batch))
        DSC_TRY(acquire(engine, 2 * engine->model->module_count - 2 - op->module, op->module, err));
    DSC_TRY(dsc_step_module_backward(engine, op->module, lane, err));
    engine->times.backward_ns += dsc_clock_ns() - start;
    return DSC_OK;
}

static dsc_status run_op(dsc_engine *engine, const dsc_stage_op *op, dsc_error *err)
{
    const int32_t lane = enter(engine, op->micro_batch);
    switch (op->work) {
    case DSC_STAGE_RECV_INPUT:
        return dsc_stages_recv(engine, op->work, op->micro_batch, (void *)(uintptr_t)dsc_stages_input(engine, lane),
                               dsc_stages_sizes_now(engine)->in_bytes, err);
    case DSC_STAGE_FORWARD:
        return forward(engine, op, lane, err);
    case DSC_STAGE_SEND_OUTPUT:
        return dsc_stages_send_output(engine, DSC_STAGE_RECV_INPUT, op->micro_batch, lane, err);
    case DSC_STAGE_SEND_TIED:
        return dsc_stages_send_tied(engine, op->micro_batch, err);
    case DSC_STAGE_BOUNDARY:
        return pass_boundary(engine, op->micro_batch, err);
    case DSC_STAGE_RECV_GRADIENT:
        return dsc_stages_recv(engine, op->work, op->micro_batch, dsc_step_output_gradient(engine, op->module, lane),
                               dsc_stages_sizes_now(engine)->out_bytes, err);
    case DSC_STAGE_BACKWARD:
        return backward(engine, op, lane, err);
    case DSC_STAGE_SEND_GRADIENT:
        return dsc_stages_send_gradient(engine, op->micro_batch, err);
    case DSC_STAGE_EVALUATE:
        break;
    }
    DSC_ASSERT(false);
    return DSC_ERR_INTERNAL;
}

static dsc_status run_list(dsc_engine *engine, dsc_error *err)
{
    dsc_engine_stages *stages = &engine->stages;
    DSC_TRY(dsc_step_begin(engine, dsc_clock_ns(), err));
    for (stages->op_now = 0; stages->op_now < stages->op_count; stages->op_now++)
        DSC_TRY(run_op(engine, &stages->op[stages->op_now], err));
    DSC_TRY(dsc_stages_settle(engine, err));
    DSC_TRY(dsc_engine_counts_exchange(engine, err));
    engine->progress.micro_step = engine->config.gradient_accumulation_steps - engine->plan.micro_batch_group;
    engine->progress.phase = DSC_PHASE_BACKWARD_DONE;
    return DSC_OK;
}

dsc_status dsc_stages_train_batch(dsc_engine *engine, dsc_step_result *result, dsc_error *err)
{
    DSC_TRY(dsc_engine_need_values(engine, err));
    DSC_TRY(dsc_engine_fail(engine, run_list(engine, err), err));
    return dsc_engine_step(engine, result, err);
}

/* All modules without gradients, over lane 0, but for a loss module. */
static dsc_status run_modules(dsc_engine *engine, dsc_error *err)
{
    const dsc_engine_stages *stages = &engine->stages;
    const int32_t last = engine->model->module_count - 1;
    for (int32_t m = 0; m < stages->own.count - stages->own.ends; m++) {
        DSC_TRY(acquire(engine, m, m, err));
        DSC_TRY(dsc_step_module_forward(engine, m, 0, false, err));
    }
    return acquire(engine, last, last, err);
}

dsc_status dsc_stages_enter(dsc_engine *engine, dsc_error *err)
{
    dsc_engine_stages *stages = &engine->stages;
    stages->evaluations++;
    stages->op_now = stages->op_count;
    if (stages->stage == 0)
        return DSC_OK;
    return dsc_stages_recv(engine, DSC_STAGE_EVALUATE, stages->evaluations,
                           (void *)(uintptr_t)dsc_stages_input(engine, 0), stages->sizes.in_bytes, err);
}

dsc_status dsc_stages_leave(dsc_engine *engine, dsc_error *err)
{
    dsc_engine_stages *stages = &engine->stages;
    if (dsc_stages_has_loss(stages))
        return DSC_OK;
    stages->op_now = stages->op_count + 1;
    DSC_TRY(dsc_stages_send_output(engine, DSC_STAGE_EVALUATE, stages->evaluations, 0, err));
    DSC_TRY(dsc_stream_sync(stages->transfers.out, err));
    return dsc_stream_sync(engine->compute, err);
}

dsc_status dsc_stages_forward_only(dsc_engine *engine, dsc_error *err)
{
    DSC_TRY(dsc_stages_enter(engine, err));
    DSC_TRY(run_modules(engine, err));
    if (engine->stages.own.ends)
        DSC_TRY(dsc_step_loss(engine, engine->model->module_count - 1, 0, false, err));
    return dsc_stages_leave(engine, err);
}
