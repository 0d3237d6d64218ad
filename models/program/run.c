/* run.c - the executor, and the exact plan of what it does. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/fp8_cache.h"
#include "models/lora.h"
#include "models/program/ops.h"

static char *stored_at(const dsc_exec *exec, dsc_region region, int16_t forward_buffer)
{
    const dsc_module_ctx *ctx = exec->ctx;
    char *const base = region == DSC_REGION_SAVED     ? ctx->saved
                       : region == DSC_REGION_REBUILT ? ctx->rebuilt
                                                      : ctx->repeated;
    DSC_ASSERT(base != NULL);
    return base + exec->layout->stored[forward_buffer];
}

/* An input or output, or the gradient of one, behind what is carried in front of it. */
static char *behind_carried(const dsc_exec *exec, const void *base, int16_t carried)
{
    return (char *)(uintptr_t)base +
           dsc_program_carried_bytes(exec->program, carried, exec->ctx->batch, exec->ctx->dtype);
}

static char *scratch_at(const dsc_exec *exec, int16_t buffer)
{
    const int64_t offset = exec->layout->scratch[buffer];
    return offset == DSC_LAYOUT_OUT ? behind_carried(exec, exec->ctx->out, exec->program->carried_out)
                                    : (char *)exec->ctx->scratch + offset;
}

/* Addresses of buffers; the input is only read, as ops do with inputs that are not ours. */
static char *buffer_at(const dsc_exec *exec, const dsc_place *place)
{
    const dsc_module_ctx *ctx = exec->ctx;
    const bool backward = exec->pass == DSC_PASS_BACKWARD;
    const dsc_buffer *buffer = &exec->program->buffer[backward][place->buffer];
    const int64_t row = place->stride * (int64_t)dsc_dtype_bytes(ctx->dtype);
    if (!backward && ctx->cache != NULL && buffer->cache != DSC_PROGRAM_NONE)
        return (char *)ctx->cache + exec->layout->cache[buffer->cache] + ctx->past * row;
    const int16_t before_in = buffer->carried ? DSC_PROGRAM_NONE : exec->program->carried;
    const int16_t before_out = buffer->carried ? DSC_PROGRAM_NONE : exec->program->carried_out;
    switch (buffer->region) {
    case DSC_REGION_IN:
        return behind_carried(exec, ctx->in, before_in) + (exec->row >= 0 ? exec->row * row : 0);
    case DSC_REGION_OUT:
        return behind_carried(exec, ctx->out, before_out);
    case DSC_REGION_D_OUT:
        return behind_carried(exec, ctx->d_out, before_out);
    case DSC_REGION_D_IN:
        return behind_carried(exec, ctx->d_in, before_in);
    case DSC_REGION_SAVED:
    case DSC_REGION_REBUILT:
        return stored_at(exec, buffer->region, backward ? buffer->anchor : place->buffer);
    case DSC_REGION_REPEATED:
        return ctx->repeated != NULL ? stored_at(exec, buffer->region, place->buffer) : scratch_at(exec, place->buffer);
    default:
        return scratch_at(exec, place->buffer);
    }
}

static bool is_kept(const dsc_exec *exec, int16_t value)
{
    return exec->pass == DSC_PASS_BACKWARD && exec->ctx->repeated != NULL &&
           exec->program->value[value].store == DSC_STORE_REPEATED;
}

const dsc_place *dsc_exec_place(const dsc_exec *exec, int16_t value)
{
    return &exec->program->place[exec->pass == DSC_PASS_BACKWARD && !is_kept(exec, value)][value];
}

char *dsc_exec_at(const dsc_exec *exec, int16_t value)
{
    if (value == DSC_PROGRAM_NONE)
        return NULL;
    const dsc_place *place = dsc_exec_place(exec, value);
    const dsc_dtype dtype = dsc_exec_dtype(exec, value);
    char *const base =
        is_kept(exec, value) ? stored_at(exec, DSC_REGION_REPEATED, place->buffer) : buffer_at(exec, place);
    return base + place->column * (int64_t)dsc_dtype_bytes(dtype);
}

char *dsc_exec_work(const dsc_exec *exec, const dsc_op *op)
{
    return (char *)exec->ctx->scratch + exec->layout->work[dsc_op_number(exec->program, op)];
}

char *dsc_exec_state(const dsc_exec *exec, const dsc_op *op)
{
    if (exec->ctx->cache == NULL)
        return NULL;
    DSC_ASSERT(exec->layout->has_state);
    return (char *)exec->ctx->cache + exec->layout->state[dsc_op_number(exec->program, op)];
}

static dsc_status report_value(const dsc_exec *exec, int16_t number)
{
    const dsc_value *of = &exec->program->value[number];
    const dsc_place *place = dsc_exec_place(exec, number);
    const dsc_value_sink *sink = exec->ctx->values;
    const dsc_traced_value value = { .name = of->name,
                                     .number = number,
                                     .gradient = number >= exec->program->d_output,
                                     .at = dsc_exec_at(exec, number),
                                     .dtype = dsc_exec_dtype(exec, number),
                                     .rows = dsc_value_rows(of, exec->ctx->batch),
                                     .columns = of->columns,
                                     .stride = place->stride,
                                     .width = place->width,
                                     .apart = place->apart };
    return value.at != NULL ? sink->value(sink->user, exec->ctx->stream, &value, exec->err) : DSC_OK;
}

/* The outputs of an op that was just launched, in the order of their numbers: a product before its activation. */
static dsc_status report_outputs(const dsc_exec *exec, const dsc_op *op)
{
    for (int16_t last = DSC_PROGRAM_NONE;;) {
        int16_t next = DSC_PROGRAM_NONE;
        for (int o = 0; o < DSC_OP_OUTPUTS; o++)
            if (op->out[o] > last && (next == DSC_PROGRAM_NONE || op->out[o] < next))
                next = op->out[o];
        if (next == DSC_PROGRAM_NONE)
            return DSC_OK;
        DSC_TRY(report_value(exec, next));
        last = next;
    }
}

static bool is_joined(const dsc_op *op) { return op->kind == DSC_OP_LINEAR && op->linear.part_count > 0; }

/* Layers of one product are reported as they are named. */
static bool is_layer_of_joined(const dsc_program *program, const dsc_op *op)
{
    const int16_t maker = op->kind == DSC_OP_SLICE ? program->value[op->in[0]].maker : DSC_PROGRAM_NONE;
    return maker != DSC_PROGRAM_NONE && is_joined(&program->op[maker]);
}

/* Whether backward reads nothing of what the op makes again: gradients of weights read kept inputs in fp8 instead. */
static bool is_kept_in_fp8(const dsc_exec *exec, const dsc_op *op)
{
    const dsc_op_list *list = &exec->program->list[DSC_PASS_BACKWARD];
    bool kept = exec->ctx->fp8 != NULL;
    for (int o = 0; o < DSC_OP_OUTPUTS && kept; o++)
        for (int16_t i = 0; i < list->count && kept && op->out[o] != DSC_PROGRAM_NONE; i++) {
            const dsc_op *reader = &exec->program->op[list->op[i]];
            dsc_fp8_matrix input;
            if (reader == op || !dsc_op_reads(reader, op->out[o]))
                continue;
            kept = reader->unless_kept ? is_kept_in_fp8(exec, reader)
                                       : (reader->kind == DSC_OP_LINEAR_DW && reader->in[1] != op->out[o] &&
                                          (exec->lora == NULL || !dsc_lora_has(exec->lora, reader->linear.weight)) &&
                                          dsc_fp8_kept_input(exec->ctx->fp8, reader->linear.weight, &input));
        }
    return kept;
}

static dsc_status run_op(dsc_exec *exec, const dsc_op *op)
{
    const dsc_op_info *info = &dsc_op_infos[op->kind];
    const bool reports = exec->ctx->values != NULL;
    DSC_ASSERT((info->launch != NULL) != info->is_view);
    if (info->is_view)
        return reports && is_layer_of_joined(exec->program, op) ? report_outputs(exec, op) : DSC_OK;
    if (op->unless_kept && (exec->ctx->repeated != NULL || is_kept_in_fp8(exec, op)))
        return DSC_OK;
    DSC_TRY(info->launch(exec, op));
    return reports && !is_joined(op) ? report_outputs(exec, op) : DSC_OK;
}

/* Whether a row of logits needs no more than that row of the input. */
static bool is_by_rows(const dsc_program *program)
{
    const dsc_op_list *list = &program->list[DSC_PASS_FORWARD];
    bool by_rows = true;
    for (int16_t i = 0; i < list->count; i++) {
        const dsc_op_kind kind = program->op[list->op[i]].kind;
        by_rows &= kind == DSC_OP_NORM || kind == DSC_OP_CLASSIFY || kind == DSC_OP_EXCHANGE_SHARE;
    }
    return by_rows;
}

dsc_status dsc_program_run(const dsc_program *program, dsc_pass pass, const dsc_lora *lora, dsc_module_ctx *ctx,
                           dsc_error *err)
{
    const dsc_op_list *list = &program->list[pass];
    dsc_any_pass_layout own;
    const dsc_op_batch of = {
        lora, ctx->batch, ctx->dtype, ctx->chunk_bytes, ctx->stores_score_gradients, ctx->joins_input_gradients
    };
    dsc_exec exec = { .program = program, .pass = pass, .lora = lora, .ctx = ctx, .err = err, .row = -1 };
    DSC_ASSERT(ctx->repeated == NULL || ctx->cache == NULL);
    if (program->ranks.count > 1 && (ctx->group == NULL || ctx->group->size != program->ranks.count))
        return DSC_FAIL(err, DSC_ERR_STATE, "", "a module of %d ranks was called in a group of %d",
                        (int)program->ranks.count, ctx->group != NULL ? (int)ctx->group->size : 1);
    DSC_ASSERT(ctx->cache == NULL || (ctx->batch == 1 && ctx->past + program->tokens <= program->cache_tokens));
    if (ctx->logits != NULL && is_by_rows(program))
        exec.row = ctx->logits_row;
    exec.layout = dsc_program_layout(program, pass, &of, &own);
    for (int16_t i = 0; i < list->count; i++)
        DSC_TRY(run_op(&exec, &program->op[list->op[i]]));
    return DSC_OK;
}

/* ---- micro-batches whose batch norms are synchronised ------------------------------------------------------------ */

/* Ops of the list from `first` on: how many no exchange is in. All micro-batches have the same ones. */
static int16_t ops_until_exchange(const dsc_exec *exec, const dsc_op_list *list, int16_t first)
{
    int16_t end = first;
    while (end < list->count) {
        const dsc_op *op = &exec->program->op[list->op[end]];
        const dsc_op_info *info = &dsc_op_infos[op->kind];
        if (info->numbers != NULL && info->numbers(exec, op) > 0)
            break;
        end++;
    }
    return end;
}

static dsc_status exchange(dsc_exec *exec, int32_t count, const dsc_op *op, dsc_error *err)
{
    const dsc_op_info *info = &dsc_op_infos[op->kind];
    dsc_norm_group *group = exec[0].ctx->norm_group;
    for (int32_t i = 0; i < count; i++)
        DSC_TRY(info->share(&exec[i], op));
    DSC_TRY(group->exchange(group, info->numbers(&exec[0], op), err));
    for (int32_t i = 0; i < count; i++)
        DSC_TRY(info->finish(&exec[i], op));
    return DSC_OK;
}

dsc_status dsc_program_run_group(const dsc_program *program, dsc_pass pass, const dsc_lora *lora, dsc_module_ctx *ctx,
                                 int32_t count, dsc_error *err)
{
    const dsc_op_list *list = &program->list[pass];
    const dsc_op_batch of = { lora,
                              ctx[0].batch,
                              ctx[0].dtype,
                              ctx[0].chunk_bytes,
                              ctx[0].stores_score_gradients,
                              ctx[0].joins_input_gradients };
    dsc_any_pass_layout own;
    dsc_exec exec[DSC_NORM_GROUP_MAX];
    DSC_ASSERT(count >= 1 && count <= DSC_NORM_GROUP_MAX);
    const dsc_pass_layout *layout = dsc_program_layout(program, pass, &of, &own);
    for (int32_t i = 0; i < count; i++)
        exec[i] = (dsc_exec) { .program = program,
                               .pass = pass,
                               .lora = lora,
                               .ctx = &ctx[i],
                               .layout = layout,
                               .err = err,
                               .row = -1,
                               .part = i };
    for (int16_t first = 0; first < list->count;) {
        const int16_t end = ops_until_exchange(&exec[0], list, first);
        for (int32_t i = 0; i < count; i++)
            for (int16_t j = first; j < end; j++)
                DSC_TRY(run_op(&exec[i], &program->op[list->op[j]]));
        if (end < list->count)
            DSC_TRY(exchange(exec, count, &program->op[list->op[end]], err));
        first = (int16_t)(end + 1);
    }
    return DSC_OK;
}

int64_t dsc_program_norm_numbers(const dsc_program *program)
{
    int64_t most = 0;
    for (int16_t i = 0; i < program->forward_count; i++)
        if (program->op[i].kind == DSC_OP_BATCH_STATS)
            most = dsc_max_i64(most, 2 * program->value[program->op[i].in[0]].columns);
    return most;
}

/* ---- the plan ---------------------------------------------------------------------------------------------------- */

/* Payload in bytes that a list sends to other ranks. */
static int64_t sent_bytes(const dsc_program *program, dsc_pass pass, const dsc_op_batch *of)
{
    const dsc_op_list *list = &program->list[pass];
    int64_t bytes = 0;
    for (int16_t i = 0; i < list->count; i++) {
        const dsc_op *op = &program->op[list->op[i]];
        if (dsc_op_infos[op->kind].sent != NULL)
            bytes += dsc_op_infos[op->kind].sent(program, op, of);
    }
    return bytes;
}

/* Work of a list, and its products for the sink. */
static dsc_status plan_list(const dsc_program *program, dsc_pass pass, dsc_linear_planned *gemms, double *other,
                            int64_t batch, dsc_error *err)
{
    const dsc_op_list *list = &program->list[pass];
    for (int16_t i = 0; i < list->count; i++) {
        const dsc_op *op = &program->op[list->op[i]];
        const dsc_op_info *info = &dsc_op_infos[op->kind];
        if (info->flops != NULL && !info->is_product)
            *other += info->flops(program, op, batch);
        if (info->plan != NULL)
            DSC_TRY(info->plan(program, op, batch, gemms, err));
    }
    return DSC_OK;
}

dsc_status dsc_program_plan(const dsc_program *program, const dsc_module *module, const dsc_lora *lora, int64_t batch,
                            dsc_dtype dtype, const dsc_plan_sink *sink, dsc_module_plan *out, dsc_error *err)
{
    dsc_linear_planned gemms = { .module = module, .lora = lora, .dtype = dtype, .sink = sink }, again = gemms;
    const dsc_op_batch of = { lora,
                              batch,
                              dtype,
                              sink != NULL ? sink->chunk_bytes : 0,
                              sink != NULL && sink->stores_score_gradients,
                              sink != NULL && sink->joins_input_gradients };
    double other = 0, other_again = 0;
    dsc_any_pass_layout own;
    const dsc_pass_layout *const at = &own.at;
    again.sink = NULL;
    DSC_TRY(plan_list(program, DSC_PASS_FORWARD, &gemms, &other, batch, err));
    DSC_TRY(plan_list(program, DSC_PASS_REBUILD, &again, &other_again, batch, err));
    dsc_program_lay(program, DSC_PASS_REBUILD, &of, &own);
    const int64_t rebuild_bytes = at->scratch_bytes;
    dsc_program_lay(program, DSC_PASS_FORWARD, &of, &own);
    const dsc_value *y = &program->value[program->output];
    const int64_t carried = dsc_program_carried_bytes(program, program->carried_out, batch, dtype);
    *out = (dsc_module_plan) { .out_elements =
                                   carried / (int64_t)dsc_dtype_bytes(dtype) + dsc_value_rows(y, batch) * y->columns,
                               .saved_bytes = at->saved_bytes,
                               .forward_scratch_bytes = dsc_max_i64(at->scratch_bytes, rebuild_bytes),
                               .forward_flops = gemms.forward_flops + other,
                               .backward_flops = gemms.backward_flops + 2 * other,
                               .cache_bytes = at->cache_bytes,
                               .rebuilt_bytes = at->rebuilt_bytes,
                               .rebuild_flops = again.forward_flops + other_again,
                               .repeated_bytes = at->repeated_bytes,
                               .keeps_state = at->has_state,
                               .forward_sent_bytes = sent_bytes(program, DSC_PASS_FORWARD, &of),
                               .backward_sent_bytes = sent_bytes(program, DSC_PASS_BACKWARD, &of) };
    dsc_program_lay(program, DSC_PASS_BACKWARD, &of, &own);
    out->backward_scratch_bytes = at->scratch_bytes;
    return DSC_OK;
}
