/* ops_vectors.c - vectors of texts, and losses of the cosines of all texts of a micro-batch (kernels/text_vectors.h).
 *
 * Vectors and cosines are fp32 in each compute dtype: a micro-batch has few of them.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/device.h"
#include "models/program/ops.h"

#define STRIDE_ALIGN 16 /* elements: rows of cosines start on cache lines */

/* ---- vectors ----------------------------------------------------------------------------------------------------- */

static dsc_text_vectors_args vectors_args(const dsc_exec *exec, const dsc_op *op, int16_t rows)
{
    return (dsc_text_vectors_args) { .rows = dsc_exec_at(exec, rows),
                                     .place = exec->ctx->batch_data[op->vectors.places],
                                     .batch = exec->ctx->batch,
                                     .tokens = dsc_exec_value(exec, rows)->rows,
                                     .channels = dsc_exec_value(exec, rows)->columns,
                                     .mean = op->vectors.mean,
                                     .unit = true,
                                     .dtype = exec->ctx->dtype };
}

/* One text's vector goes straight into the caller's fp32 [C]. */
dsc_status dsc_op_run_vectors(dsc_exec *exec, const dsc_op *op)
{
    const dsc_module_ctx *ctx = exec->ctx;
    dsc_text_vectors_args args = vectors_args(exec, op, op->in[0]);
    args.vectors = dsc_exec_floats(exec, op->out[0]);
    args.lengths = dsc_exec_floats(exec, op->out[1]);
    if (ctx->logits != NULL) {
        const int64_t row_bytes = args.channels * (int64_t)dsc_dtype_bytes(ctx->dtype);
        args.rows = (char *)args.rows + ctx->logits_row * args.tokens * row_bytes;
        args.vectors = ctx->logits;
        args.place += ctx->logits_row;
        args.batch = 1;
        args.unit = op->vectors.unit;
    }
    return DSC_RUN(ctx->stream, TEXT_VECTORS_FWD, &args, exec->err);
}

dsc_status dsc_op_run_vectors_bwd(dsc_exec *exec, const dsc_op *op)
{
    dsc_text_vectors_args args = vectors_args(exec, op, op->out[0]);
    args.d_vectors = dsc_exec_floats(exec, op->in[0]);
    args.vectors = dsc_exec_floats(exec, op->in[1]);
    args.lengths = dsc_exec_floats(exec, op->in[2]);
    return DSC_RUN(exec->ctx->stream, TEXT_VECTORS_BWD, &args, exec->err);
}

/* ---- their comparison -------------------------------------------------------------------------------------------- */

enum { COSINES, D_ANCHORS, D_OTHERS, GEMM_COUNT };

static int64_t stride_of(int64_t batch) { return dsc_align_up(batch, STRIDE_ALIGN); }

/* S = V V^T; dV = D V, and then D^T V is added, for samples that are anchors and for the others. */
static dsc_gemm_args product(int which, int64_t batch, int64_t channels)
{
    const int64_t stride = stride_of(batch);
    dsc_gemm_args args = { .m = batch, .ab_dtype = DSC_F32, .c_dtype = DSC_F32, .epilogue = DSC_EPILOGUE_NONE };
    args.n = which == COSINES ? batch : channels;
    args.k = which == COSINES ? channels : batch;
    args.lda = which == COSINES ? channels : stride;
    args.ldb = channels;
    args.ldc = which == COSINES ? stride : channels;
    args.b_transposed = which == COSINES;
    args.a_transposed = args.accumulate = which == D_OTHERS;
    return args;
}

int64_t dsc_op_compare_scratch(const dsc_program *program, const dsc_op *op, const dsc_op_batch *of)
{
    return of->batch * stride_of(of->batch) * (int64_t)sizeof(float);
}

double dsc_op_compare_flops(const dsc_program *program, const dsc_op *op, int64_t batch)
{
    return 2.0 * (double)batch * (double)batch * (double)program->value[op->in[0]].columns;
}

dsc_status dsc_op_plan_compare(const dsc_program *program, const dsc_op *op, int64_t batch, dsc_linear_planned *plan,
                               dsc_error *err)
{
    const dsc_plan_sink *sink = plan->sink;
    for (int which = 0; which < GEMM_COUNT && sink != NULL && sink->gemm != NULL; which++) {
        const dsc_gemm_args args = product(which, batch, program->value[op->in[0]].columns);
        DSC_TRY(sink->gemm(sink->user, &args, err));
    }
    return DSC_OK;
}

static dsc_status multiply(const dsc_exec *exec, const dsc_op *op, int which)
{
    dsc_gemm_args args = product(which, exec->ctx->batch, dsc_exec_value(exec, op->in[0])->columns);
    args.a = which == COSINES ? dsc_exec_at(exec, op->in[0]) : dsc_exec_work(exec, op);
    args.b = dsc_exec_at(exec, op->in[0]);
    args.c = which == COSINES ? dsc_exec_work(exec, op) : dsc_exec_at(exec, op->out[0]);
    return DSC_RUN(exec->ctx->stream, GEMM, &args, exec->err);
}

dsc_status dsc_op_run_compare(dsc_exec *exec, const dsc_op *op)
{
    const dsc_module_ctx *ctx = exec->ctx;
    const dsc_text_loss_args args = { .matrix = (float *)(void *)dsc_exec_work(exec, op),
                                      .losses = ctx->losses,
                                      .targets = ctx->batch_data[op->compare.targets],
                                      .samples = ctx->batch,
                                      .stride = stride_of(ctx->batch),
                                      .scale = (float)op->compare.scale,
                                      .factor = ctx->loss_scale,
                                      .write_gradient = ctx->save,
                                      .evaluate = !ctx->save && !ctx->training,
                                      .kind = op->compare.kind };
    if (ctx->logits != NULL) /* the vector is given out */
        return DSC_OK;
    DSC_TRY(multiply(exec, op, COSINES));
    DSC_TRY(DSC_RUN(ctx->stream, TEXT_LOSS, &args, exec->err));
    if (!ctx->save)
        return DSC_OK;
    DSC_TRY(multiply(exec, op, D_ANCHORS));
    return multiply(exec, op, D_OTHERS);
}
