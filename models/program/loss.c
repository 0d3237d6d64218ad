/* loss.c - a program that ends with the cross-entropy of its output: forward, loss and backward in one call.
 *
 * The logits become their gradients in place. Values that forward keeps for backward lie in the scratch, because both
 * passes are one call. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/device.h"
#include "models/program/internal.h"

/* Byte offsets in ctx->scratch. */
typedef struct loss_layout {
    int64_t rows, logits, saved, rebuilt, work, bytes;
} loss_layout;

static int64_t piece(int64_t *end, int64_t bytes)
{
    const int64_t at = *end;
    *end += dsc_align_up(bytes, 256);
    return at;
}

/* The layout of any pass has the bytes that are stored. */
static loss_layout lay(const dsc_program *program, const dsc_layout *stored, int64_t batch, dsc_dtype dtype)
{
    const dsc_value *logits = &program->value[program->output];
    loss_layout at = { .rows = dsc_value_rows(logits, batch) };
    at.logits = piece(&at.bytes, dsc_value_bytes(logits, batch, dtype));
    at.saved = piece(&at.bytes, stored->saved_bytes);
    at.rebuilt = piece(&at.bytes, stored->rebuilt_bytes);
    at.work = at.bytes;
    return at;
}

dsc_status dsc_program_plan_loss(const dsc_program *program, const dsc_module *module, const dsc_lora *lora,
                                 int64_t batch, dsc_dtype dtype, const dsc_plan_sink *sink, dsc_module_plan *out,
                                 dsc_error *err)
{
    dsc_module_plan plan;
    const dsc_op_batch of = { lora, batch, dtype, sink != NULL ? sink->chunk_bytes : 0 };
    dsc_layout stored;
    DSC_TRY(dsc_program_plan(program, module, lora, batch, dtype, sink, &plan, err));
    dsc_program_lay(program, DSC_PASS_FORWARD, &of, &stored);
    const loss_layout at = lay(program, &stored, batch, dtype);
    const int64_t work = dsc_max_i64(plan.forward_scratch_bytes, plan.backward_scratch_bytes);
    *out = (dsc_module_plan) { .forward_scratch_bytes = at.work + work,
                               .forward_flops = plan.forward_flops,
                               .backward_flops = plan.backward_flops };
    return DSC_OK;
}

/* One row of the logits, which the caller wants in fp32. */
static dsc_status copy_logits(const dsc_program *program, const dsc_module_ctx *ctx, const char *logits, int64_t rows,
                              dsc_error *err)
{
    const int64_t columns = program->value[program->output].columns;
    if (ctx->save || ctx->logits_row < 0 || ctx->logits_row >= rows)
        return DSC_FAIL(err, DSC_ERR_STATE, "", "logits are for one of the %lld items, without save", (long long)rows);
    const dsc_cast_args args = { .to = ctx->logits,
                                 .from = logits + ctx->logits_row * columns * (int64_t)dsc_dtype_bytes(ctx->dtype),
                                 .count = columns,
                                 .to_dtype = DSC_F32,
                                 .from_dtype = ctx->dtype };
    return DSC_RUN(ctx->stream, CAST, &args, err);
}

static dsc_status classify(const dsc_program *program, const dsc_module_ctx *ctx, int32_t targets, void *logits,
                           int64_t rows, dsc_error *err)
{
    const int64_t columns = program->value[program->output].columns;
    const int32_t *labels = ctx->batch_data[targets];
    const dsc_label_loss_args args = { .logits = logits,
                                       .losses = ctx->losses,
                                       .labels = labels,
                                       .rows = rows,
                                       .classes = columns,
                                       .stride = columns,
                                       .scale = (float)((double)ctx->loss_scale / (double)rows),
                                       .smoothing = ctx->label_smoothing,
                                       .mixed = ctx->mixed,
                                       .label_before = labels + rows - 1,
                                       .places = ctx->places,
                                       .write_gradient = ctx->save,
                                       .mark_wrong = rows == ctx->batch && columns <= DSC_LABELS_MAX && !ctx->save &&
                                                     !ctx->training,
                                       .kind = DSC_LABELS_CLASS,
                                       .dtype = ctx->dtype };
    return DSC_RUN(ctx->stream, LABEL_LOSS, &args, err);
}

dsc_status dsc_program_run_loss(const dsc_program *program, int32_t targets, const dsc_lora *lora, dsc_module_ctx *ctx,
                                dsc_error *err)
{
    dsc_layout own;
    const dsc_op_batch of = { lora, ctx->batch, ctx->dtype, ctx->chunk_bytes };
    const dsc_layout *stored = dsc_program_layout(program, DSC_PASS_FORWARD, &of, &own);
    const loss_layout at = lay(program, stored, ctx->batch, ctx->dtype);
    char *const scratch = ctx->scratch;
    dsc_module_ctx inner = *ctx;
    inner.out = scratch + at.logits;
    inner.saved = scratch + at.saved;
    inner.rebuilt = scratch + at.rebuilt;
    inner.repeated = NULL;
    inner.scratch = scratch + at.work;
    DSC_TRY(dsc_program_run(program, DSC_PASS_FORWARD, lora, &inner, err));
    if (ctx->logits != NULL)
        return copy_logits(program, ctx, inner.out, at.rows, err);
    DSC_TRY(classify(program, ctx, targets, inner.out, at.rows, err));
    if (!ctx->save)
        return DSC_OK;
    inner.d_out = inner.out;
    inner.out = NULL;
    return dsc_program_run(program, DSC_PASS_BACKWARD, lora, &inner, err);
}
