/* ops_elements.c - launches of ops element by element. SPDX-License-Identifier: Apache-2.0 */
#include "base/rng.h"
#include "kernels/device.h"
#include "models/program/ops.h"

/* ---- element by element ------------------------------------------------------------------------------------------ */

dsc_status dsc_op_run_activation(dsc_exec *exec, const dsc_op *op)
{
    const dsc_gelu_fwd_args args = { .out = dsc_exec_at(exec, op->out[0]),
                                     .in = dsc_exec_at(exec, op->in[0]),
                                     .count = dsc_exec_elements(exec, op->in[0]),
                                     .dtype = exec->ctx->dtype,
                                     .kind = op->activation };
    return DSC_RUN(exec->ctx->stream, GELU_FWD, &args, exec->err);
}

dsc_status dsc_op_run_activation_bwd(dsc_exec *exec, const dsc_op *op)
{
    const dsc_gelu_bwd_args args = { .d_in = dsc_exec_at(exec, op->out[0]),
                                     .d_out = dsc_exec_at(exec, op->in[0]),
                                     .in = dsc_exec_at(exec, op->in[1]),
                                     .count = dsc_exec_elements(exec, op->in[0]),
                                     .dtype = exec->ctx->dtype,
                                     .kind = op->activation };
    return DSC_RUN(exec->ctx->stream, GELU_BWD, &args, exec->err);
}

dsc_status dsc_op_run_gated(dsc_exec *exec, const dsc_op *op)
{
    const dsc_swiglu_fwd_args args = { .out = dsc_exec_at(exec, op->out[0]),
                                       .gate = dsc_exec_at(exec, op->in[0]),
                                       .up = dsc_exec_at(exec, op->in[1]),
                                       .rows = dsc_exec_rows(exec, op->out[0]),
                                       .cols = dsc_exec_value(exec, op->out[0])->columns,
                                       .in_stride = dsc_exec_place(exec, op->in[0])->stride,
                                       .dtype = exec->ctx->dtype,
                                       .kind = op->activation };
    return DSC_RUN(exec->ctx->stream, SWIGLU_FWD, &args, exec->err);
}

dsc_status dsc_op_run_gated_bwd(dsc_exec *exec, const dsc_op *op)
{
    /* The output again, but where it is kept. */
    void *const again = exec->ctx->repeated == NULL ? dsc_exec_at(exec, op->out[2]) : NULL;
    const dsc_swiglu_bwd_args args = { .d_gate = dsc_exec_at(exec, op->out[0]),
                                       .d_up = dsc_exec_at(exec, op->out[1]),
                                       .out = again,
                                       .d_out = dsc_exec_at(exec, op->in[0]),
                                       .gate = dsc_exec_at(exec, op->in[1]),
                                       .up = dsc_exec_at(exec, op->in[2]),
                                       .rows = dsc_exec_rows(exec, op->in[0]),
                                       .cols = dsc_exec_value(exec, op->in[0])->columns,
                                       .in_stride = dsc_exec_place(exec, op->in[1])->stride,
                                       .dtype = exec->ctx->dtype,
                                       .kind = op->activation };
    return DSC_RUN(exec->ctx->stream, SWIGLU_BWD, &args, exec->err);
}

bool dsc_op_gated_can_lie(const dsc_place *places, const dsc_op *op)
{
    return dsc_op_lie_apart_alike(places, op->in[0], op->in[1]) && places[op->in[0]].apart == 0;
}

bool dsc_op_gated_bwd_can_lie(const dsc_place *places, const dsc_op *op)
{
    const int16_t *in = op->in, *out = op->out;
    return dsc_op_lie_apart_alike(places, in[1], in[2]) && dsc_op_lie_apart_alike(places, in[1], out[0]) &&
           dsc_op_lie_apart_alike(places, in[2], out[1]) && places[in[1]].apart == 0;
}

dsc_status dsc_op_run_pairs(dsc_exec *exec, const dsc_op *op)
{
    const dsc_swiglu_pairs_fwd_args args = { .out = dsc_exec_at(exec, op->out[0]),
                                             .in = dsc_exec_at(exec, op->in[0]),
                                             .rows = dsc_exec_rows(exec, op->out[0]),
                                             .cols = dsc_exec_value(exec, op->out[0])->columns,
                                             .dtype = exec->ctx->dtype,
                                             .clamp = op->clamp };
    return DSC_RUN(exec->ctx->stream, SWIGLU_PAIRS_FWD, &args, exec->err);
}

dsc_status dsc_op_run_pairs_bwd(dsc_exec *exec, const dsc_op *op)
{
    const dsc_swiglu_pairs_bwd_args args = { .d_in = dsc_exec_at(exec, op->out[0]),
                                             .d_out = dsc_exec_at(exec, op->in[0]),
                                             .in = dsc_exec_at(exec, op->in[1]),
                                             .rows = dsc_exec_rows(exec, op->in[0]),
                                             .cols = dsc_exec_value(exec, op->in[0])->columns,
                                             .dtype = exec->ctx->dtype,
                                             .clamp = op->clamp };
    return DSC_RUN(exec->ctx->stream, SWIGLU_PAIRS_BWD, &args, exec->err);
}

static dsc_status copy(dsc_exec *exec, void *to, const void *from, int64_t count)
{
    const dsc_cast_args args = {
        .to = to, .from = from, .to_dtype = exec->ctx->dtype, .from_dtype = exec->ctx->dtype, .count = count
    };
    return to == from ? DSC_OK : DSC_RUN(exec->ctx->stream, CAST, &args, exec->err);
}

static dsc_status scale(dsc_exec *exec, void *x, int64_t count, double factor)
{
    const dsc_scale_args args = { .x = x, .count = count, .factor = (float)factor, .dtype = exec->ctx->dtype };
    return DSC_RUN(exec->ctx->stream, SCALE, &args, exec->err);
}

dsc_status dsc_op_run_copy(dsc_exec *exec, const dsc_op *op)
{
    return copy(exec, dsc_exec_at(exec, op->out[0]), dsc_exec_at(exec, op->in[0]), dsc_exec_elements(exec, op->in[0]));
}

dsc_status dsc_op_run_scale(dsc_exec *exec, const dsc_op *op)
{
    const int64_t count = dsc_exec_elements(exec, op->in[0]);
    DSC_TRY(dsc_op_run_copy(exec, op));
    return scale(exec, dsc_exec_at(exec, op->out[0]), count, op->factor);
}

/* A soft bound of 1 is tanh. */
static dsc_status bend(dsc_exec *exec, const dsc_op *op, const void *capped)
{
    const dsc_scale_args args = { .x = dsc_exec_at(exec, op->out[0]),
                                  .count = dsc_exec_elements(exec, op->in[0]),
                                  .factor = 1,
                                  .dtype = exec->ctx->dtype,
                                  .cap = 1,
                                  .capped = capped };
    DSC_TRY(dsc_op_run_copy(exec, op));
    return DSC_RUN(exec->ctx->stream, SCALE, &args, exec->err);
}

dsc_status dsc_op_run_tanh(dsc_exec *exec, const dsc_op *op) { return bend(exec, op, NULL); }

dsc_status dsc_op_run_tanh_bwd(dsc_exec *exec, const dsc_op *op)
{
    return bend(exec, op, dsc_exec_at(exec, op->in[1]));
}

/* out = dropped x, or with `add` out + dropped x; nothing is dropped at a threshold of 0. */
static dsc_dropout_args dropout_of(const dsc_exec *exec, void *out, const void *x, int64_t count, bool add)
{
    return (dsc_dropout_args) { .out = out,
                                .x = x,
                                .count = count,
                                .seed = exec->ctx->rng_seed,
                                .factor = 1,
                                .add = add,
                                .dtype = exec->ctx->dtype };
}

static dsc_status drop_samples(dsc_exec *exec, const dsc_op *op)
{
    const dsc_module_ctx *ctx = exec->ctx;
    const double probability = ctx->training ? op->dropout.probability : 0;
    const dsc_sample_dropout_args args = { .out = dsc_exec_at(exec, op->out[0]),
                                           .in = dsc_exec_at(exec, op->in[0]),
                                           .samples = ctx->batch,
                                           .elements = dsc_exec_elements(exec, op->in[0]) / ctx->batch,
                                           .seed = ctx->rng_seed,
                                           .stream = dsc_rng_stream(DSC_RNG_DROPOUT, op->dropout.stream),
                                           .first = ctx->rng_sample,
                                           .threshold = (uint32_t)(probability * 0x1p32),
                                           .factor = (float)(1 / (1 - probability)),
                                           .dtype = ctx->dtype };
    return DSC_RUN(ctx->stream, SAMPLE_DROPOUT, &args, exec->err);
}

dsc_status dsc_op_run_dropout(dsc_exec *exec, const dsc_op *op)
{
    const dsc_module_ctx *ctx = exec->ctx;
    const int64_t count = dsc_exec_elements(exec, op->in[0]);
    if (op->dropout.per_sample)
        return drop_samples(exec, op);
    dsc_dropout_args args = dropout_of(exec, dsc_exec_at(exec, op->out[0]), dsc_exec_at(exec, op->in[0]), count, false);
    args.stream = dsc_rng_stream(DSC_RNG_DROPOUT, op->dropout.stream);
    args.first = ctx->rng_sample * (uint64_t)(count / ctx->batch);
    if (ctx->training) {
        args.threshold = (uint32_t)(op->dropout.probability * 0x1p32);
        args.factor = (float)(1 / (1 - op->dropout.probability));
    }
    return DSC_RUN(ctx->stream, DROPOUT, &args, exec->err);
}

dsc_status dsc_op_run_add(dsc_exec *exec, const dsc_op *op)
{
    char *const to = dsc_exec_at(exec, op->out[0]);
    const char *a = dsc_exec_at(exec, op->in[0]), *b = dsc_exec_at(exec, op->in[1]);
    const int64_t count = dsc_exec_elements(exec, op->in[0]);
    if (exec->ctx->dtype == DSC_F32) {
        const dsc_add_args args = { .to = dsc_exec_floats(exec, op->out[0]),
                                    .a = dsc_exec_floats(exec, op->in[0]),
                                    .b = dsc_exec_floats(exec, op->in[1]),
                                    .count = count };
        return DSC_RUN(exec->ctx->stream, ADD, &args, exec->err);
    }
    if (to == b) {
        b = a;
        a = to;
    }
    DSC_TRY(copy(exec, to, a, count));
    if (b == a || b == to)
        return scale(exec, to, count, 2);
    const dsc_dropout_args args = dropout_of(exec, to, b, count, true);
    return DSC_RUN(exec->ctx->stream, DROPOUT, &args, exec->err);
}

/* The rows are those of one sample. */
dsc_status dsc_op_run_columns(dsc_exec *exec, const dsc_op *op)
{
    const dsc_sample_scale_args args = { .out = dsc_exec_at(exec, op->out[0]),
                                         .in = dsc_exec_at(exec, op->in[0]),
                                         .scale = (void *)(uintptr_t)exec->ctx->param[op->columns],
                                         .samples = 1,
                                         .rows = dsc_exec_rows(exec, op->in[0]),
                                         .channels = dsc_exec_value(exec, op->in[0])->columns,
                                         .dtype = exec->ctx->dtype };
    return DSC_RUN(exec->ctx->stream, SAMPLE_SCALE_FWD, &args, exec->err);
}

/* The products of dy and x. */
int64_t dsc_op_columns_dw_scratch(const dsc_program *program, const dsc_op *op, const dsc_op_batch *of)
{
    return dsc_value_bytes(&program->value[op->in[1]], of->batch, of->dtype);
}

dsc_status dsc_op_run_columns_dw(dsc_exec *exec, const dsc_op *op)
{
    const dsc_gelu_bwd_args products = { .d_in = dsc_exec_work(exec, op),
                                         .d_out = dsc_exec_at(exec, op->in[0]),
                                         .in = dsc_exec_at(exec, op->in[1]),
                                         .count = dsc_exec_elements(exec, op->in[1]),
                                         .dtype = exec->ctx->dtype,
                                         .kind = DSC_HALF_SQUARE };
    const dsc_colsum_args sum = { .out = exec->ctx->grad[op->columns],
                                  .x = products.d_in,
                                  .rows = dsc_exec_rows(exec, op->in[1]),
                                  .cols = dsc_exec_value(exec, op->in[1])->columns,
                                  .ld = dsc_exec_value(exec, op->in[1])->columns,
                                  .x_dtype = exec->ctx->dtype };
    if (sum.out == NULL)
        return DSC_OK;
    DSC_TRY(DSC_RUN(exec->ctx->stream, GELU_BWD, &products, exec->err));
    return DSC_RUN(exec->ctx->stream, COLSUM, &sum, exec->err);
}
