/* ops.c - the table of kinds of ops, and their launches. SPDX-License-Identifier: Apache-2.0 */
#include "base/rng.h"
#include "kernels/device.h"
#include "models/program/internal.h"

/* ---- parts ------------------------------------------------------------------------------------------------------- */

static const dsc_value *value_of(const dsc_exec *exec, int16_t value) { return &exec->program->value[value]; }

static int64_t rows_of(const dsc_exec *exec, int16_t value)
{
    return dsc_value_rows(value_of(exec, value), exec->ctx->batch);
}

static int64_t elements_of(const dsc_exec *exec, int16_t value)
{
    return rows_of(exec, value) * value_of(exec, value)->columns;
}

static float *floats_at(const dsc_exec *exec, int16_t value) { return (float *)(void *)dsc_exec_at(exec, value); }

/* For the functions of layers; `of` has the rows. */
static dsc_call call_of(const dsc_exec *exec, const dsc_op *op, int16_t of)
{
    return (dsc_call) { .ctx = exec->ctx,
                        .rows = rows_of(exec, of),
                        .err = exec->err,
                        .lora = exec->lora,
                        .lora_work = dsc_exec_work(exec, op) };
}

static const int32_t *positions_of(const dsc_exec *exec)
{
    return exec->program->positions >= 0 ? exec->ctx->batch_data[exec->program->positions] : NULL;
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

static dsc_status run_linear(dsc_exec *exec, const dsc_op *op)
{
    const dsc_call call = call_of(exec, op, op->in[0]);
    const int16_t aux = op->out[1] != DSC_PROGRAM_NONE ? op->out[1] : op->in[1];
    return dsc_linear_run(&call, op->linear, dsc_exec_at(exec, op->out[0]), dsc_exec_at(exec, op->in[0]),
                          dsc_exec_at(exec, aux));
}

static dsc_status run_linear_dx(dsc_exec *exec, const dsc_op *op)
{
    const dsc_call call = call_of(exec, op, op->in[0]);
    const int16_t aux = op->in[2] != DSC_PROGRAM_NONE ? op->in[2] : op->in[1];
    return dsc_linear_backward(&call, op->linear, dsc_exec_at(exec, op->out[0]), dsc_exec_at(exec, op->in[0]),
                               dsc_exec_at(exec, aux));
}

static dsc_status run_linear_dw(dsc_exec *exec, const dsc_op *op)
{
    const dsc_call call = call_of(exec, op, op->in[0]);
    return dsc_linear_gradients(&call, op->linear, dsc_exec_at(exec, op->in[0]), dsc_exec_at(exec, op->in[1]));
}

/* ---- norms ------------------------------------------------------------------------------------------------------- */

static dsc_norm norm_of(const dsc_exec *exec, const dsc_op *op, int16_t x, int16_t stats)
{
    return (dsc_norm) { .kind = op->norm.kind,
                        .rows = rows_of(exec, x) * op->norm.groups,
                        .channels = value_of(exec, x)->columns / op->norm.groups,
                        .eps = op->norm.eps,
                        .weight = op->norm.weight,
                        .stats = dsc_exec_at(exec, stats) };
}

static dsc_status run_norm(dsc_exec *exec, const dsc_op *op)
{
    const dsc_call call = call_of(exec, op, op->in[0]);
    return dsc_norm_forward(&call, norm_of(exec, op, op->in[0], op->out[1]), dsc_exec_at(exec, op->out[0]),
                            dsc_exec_at(exec, op->in[0]));
}

static dsc_status run_norm_bwd(dsc_exec *exec, const dsc_op *op)
{
    const dsc_call call = call_of(exec, op, op->in[2]);
    const dsc_norm_gradient buffers = { .d_in = dsc_exec_at(exec, op->out[0]),
                                        .d_out = dsc_exec_at(exec, op->in[0]),
                                        .d_residual = dsc_exec_at(exec, op->in[1]),
                                        .in = dsc_exec_at(exec, op->in[2]),
                                        .scratch = dsc_exec_work(exec, op) };
    return dsc_norm_backward(&call, norm_of(exec, op, op->in[2], op->in[3]), &buffers);
}

static int64_t norm_bwd_scratch(const dsc_program *program, const dsc_op *op, int64_t batch, dsc_dtype dtype)
{
    const dsc_value *x = &program->value[op->in[2]];
    (void)dtype;
    return dsc_norm_backward_scratch_bytes(op->norm.kind, dsc_value_rows(x, batch) * op->norm.groups,
                                           x->columns / op->norm.groups);
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

static dsc_status run_rope_table(dsc_exec *exec, const dsc_op *op)
{
    const dsc_call call = call_of(exec, op, op->out[0]);
    const dsc_rope_tables tables = { floats_at(exec, op->out[0]), floats_at(exec, op->out[1]) };
    return dsc_rope_make_tables(&call, op->rope.rope, tables, exec->program->tokens);
}

static dsc_status run_rope(dsc_exec *exec, const dsc_op *op)
{
    const int64_t apart = dsc_exec_place(exec, op->in[0])->apart;
    const dsc_rope_args args = { .out = dsc_exec_at(exec, op->out[0]),
                                 .in = dsc_exec_at(exec, op->in[0]),
                                 .cos = floats_at(exec, op->in[1]),
                                 .sin = floats_at(exec, op->in[2]),
                                 .places = positions_of(exec),
                                 .rows = rows_of(exec, op->in[0]),
                                 .tokens = exec->program->tokens,
                                 .stride = dsc_exec_place(exec, op->in[0])->stride,
                                 .heads = (int32_t)op->rope.heads,
                                 .head_size = (int32_t)(apart > 0 ? apart : op->rope.head_size),
                                 .pairs = op->rope.rope->pairs,
                                 .inverse = op->rope.inverse,
                                 .dtype = exec->ctx->dtype };
    return DSC_RUN(exec->ctx->stream, ROPE, &args, exec->err);
}

/* A window that reaches further than the text has no effect. */
static int32_t window_of(const dsc_program *program, const dsc_op *op, int64_t past)
{
    return op->attention.window > 0 && past + program->tokens > op->attention.window ? (int32_t)op->attention.window
                                                                                     : 0;
}

dsc_attention_fwd_args dsc_op_attention_shape(const dsc_program *program, const dsc_op *op, const dsc_place *places,
                                              int64_t batch, dsc_dtype dtype)
{
    const dsc_op_attention *of = &op->attention;
    const int64_t apart = places[op->in[0]].apart;
    return (dsc_attention_fwd_args) { .q_stride = places[op->in[0]].stride,
                                      .kv_stride = places[op->in[1]].stride,
                                      .out_stride = of->heads * of->head_size,
                                      .head_stride = apart > 0 ? apart : of->head_size,
                                      .batch = (int32_t)batch,
                                      .tokens = (int32_t)program->tokens,
                                      .heads = (int32_t)of->heads,
                                      .kv_heads = (int32_t)of->kv_heads,
                                      .head_size = (int32_t)of->head_size,
                                      .scale = (float)of->scale,
                                      .keys = { .all = of->all, .window = window_of(program, op, 0) },
                                      .dtype = dtype };
}

static dsc_status run_attention(dsc_exec *exec, const dsc_op *op)
{
    const dsc_module_ctx *ctx = exec->ctx;
    const dsc_program *program = exec->program;
    dsc_attention_fwd_args args = dsc_op_attention_shape(program, op, program->place[0], ctx->batch, ctx->dtype);
    const int64_t past = ctx->past * args.kv_stride * (int64_t)dsc_dtype_bytes(ctx->dtype);
    args.keys = (dsc_attention_keys) { .all = op->attention.all,
                                       .positions = positions_of(exec),
                                       .window = window_of(program, op, ctx->past),
                                       .past = (int32_t)ctx->past };
    args.out = dsc_exec_at(exec, op->out[0]);
    args.lse = floats_at(exec, op->out[1]);
    args.q = dsc_exec_at(exec, op->in[0]);
    args.k = dsc_exec_at(exec, op->in[1]) - past;
    args.v = dsc_exec_at(exec, op->in[2]) - past;
    args.scratch = dsc_exec_work(exec, op);
    return DSC_RUN(ctx->stream, ATTENTION_FWD, &args, exec->err);
}

static int64_t attention_scratch(const dsc_program *program, const dsc_op *op, int64_t batch, dsc_dtype dtype)
{
    (void)dtype;
    return dsc_attention_fwd_scratch_bytes((int32_t)batch, (int32_t)program->tokens, (int32_t)op->attention.heads,
                                           (int32_t)op->attention.head_size);
}

/* q k^T and p v over [T,T], or the causal half of it. */
static double attention_flops(const dsc_program *program, const dsc_op *op, int64_t batch)
{
    const double tokens = (double)program->tokens, keys = op->attention.all ? tokens : (tokens + 1) / 2;
    return 2 * 2.0 * (double)(batch * program->tokens) * keys * (double)(op->attention.heads * op->attention.head_size);
}

static dsc_status run_attention_bwd(dsc_exec *exec, const dsc_op *op)
{
    const dsc_module_ctx *ctx = exec->ctx;
    const dsc_op_attention *of = &op->attention;
    const dsc_attention_bwd_args args = { .dq = dsc_exec_at(exec, op->out[0]),
                                          .dk = dsc_exec_at(exec, op->out[1]),
                                          .dv = dsc_exec_at(exec, op->out[2]),
                                          .d_out = dsc_exec_at(exec, op->in[0]),
                                          .out = dsc_exec_at(exec, op->in[1]),
                                          .lse = floats_at(exec, op->in[2]),
                                          .q = dsc_exec_at(exec, op->in[3]),
                                          .k = dsc_exec_at(exec, op->in[4]),
                                          .v = dsc_exec_at(exec, op->in[5]),
                                          .scratch = dsc_exec_work(exec, op),
                                          .q_stride = dsc_exec_place(exec, op->in[3])->stride,
                                          .kv_stride = dsc_exec_place(exec, op->in[4])->stride,
                                          .out_stride = of->heads * of->head_size,
                                          .head_stride = dsc_exec_place(exec, op->in[3])->apart,
                                          .batch = (int32_t)ctx->batch,
                                          .tokens = (int32_t)exec->program->tokens,
                                          .heads = (int32_t)of->heads,
                                          .kv_heads = (int32_t)of->kv_heads,
                                          .head_size = (int32_t)of->head_size,
                                          .scale = (float)of->scale,
                                          .keys = { .all = of->all,
                                                    .positions = positions_of(exec),
                                                    .window = window_of(exec->program, op, ctx->past),
                                                    .past = (int32_t)ctx->past },
                                          .dtype = ctx->dtype };
    return DSC_RUN(ctx->stream, ATTENTION_BWD, &args, exec->err);
}

static int64_t attention_bwd_scratch(const dsc_program *program, const dsc_op *op, int64_t batch, dsc_dtype dtype)
{
    (void)dtype;
    return dsc_attention_bwd_scratch_bytes((int32_t)batch, (int32_t)program->tokens, (int32_t)op->attention.heads,
                                           (int32_t)op->attention.head_size);
}

/* ---- element by element ------------------------------------------------------------------------------------------ */

static dsc_status run_activation(dsc_exec *exec, const dsc_op *op)
{
    const dsc_gelu_fwd_args args = { .out = dsc_exec_at(exec, op->out[0]),
                                     .in = dsc_exec_at(exec, op->in[0]),
                                     .count = elements_of(exec, op->in[0]),
                                     .dtype = exec->ctx->dtype,
                                     .kind = op->activation };
    return DSC_RUN(exec->ctx->stream, GELU_FWD, &args, exec->err);
}

static dsc_status run_activation_bwd(dsc_exec *exec, const dsc_op *op)
{
    const dsc_gelu_bwd_args args = { .d_in = dsc_exec_at(exec, op->out[0]),
                                     .d_out = dsc_exec_at(exec, op->in[0]),
                                     .in = dsc_exec_at(exec, op->in[1]),
                                     .count = elements_of(exec, op->in[0]),
                                     .dtype = exec->ctx->dtype,
                                     .kind = op->activation };
    return DSC_RUN(exec->ctx->stream, GELU_BWD, &args, exec->err);
}

static dsc_status run_gated(dsc_exec *exec, const dsc_op *op)
{
    const dsc_swiglu_fwd_args args = { .out = dsc_exec_at(exec, op->out[0]),
                                       .gate = dsc_exec_at(exec, op->in[0]),
                                       .up = dsc_exec_at(exec, op->in[1]),
                                       .rows = rows_of(exec, op->out[0]),
                                       .cols = value_of(exec, op->out[0])->columns,
                                       .in_stride = dsc_exec_place(exec, op->in[0])->stride,
                                       .dtype = exec->ctx->dtype };
    return DSC_RUN(exec->ctx->stream, SWIGLU_FWD, &args, exec->err);
}

static dsc_status run_gated_bwd(dsc_exec *exec, const dsc_op *op)
{
    /* The output again, but where it is kept. */
    void *const again = exec->ctx->repeated == NULL ? dsc_exec_at(exec, op->out[2]) : NULL;
    const dsc_swiglu_bwd_args args = { .d_gate = dsc_exec_at(exec, op->out[0]),
                                       .d_up = dsc_exec_at(exec, op->out[1]),
                                       .out = again,
                                       .d_out = dsc_exec_at(exec, op->in[0]),
                                       .gate = dsc_exec_at(exec, op->in[1]),
                                       .up = dsc_exec_at(exec, op->in[2]),
                                       .rows = rows_of(exec, op->in[0]),
                                       .cols = value_of(exec, op->in[0])->columns,
                                       .in_stride = dsc_exec_place(exec, op->in[1])->stride,
                                       .dtype = exec->ctx->dtype };
    return DSC_RUN(exec->ctx->stream, SWIGLU_BWD, &args, exec->err);
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

static dsc_status run_copy(dsc_exec *exec, const dsc_op *op)
{
    return copy(exec, dsc_exec_at(exec, op->out[0]), dsc_exec_at(exec, op->in[0]), elements_of(exec, op->in[0]));
}

static dsc_status run_scale(dsc_exec *exec, const dsc_op *op)
{
    const int64_t count = elements_of(exec, op->in[0]);
    DSC_TRY(run_copy(exec, op));
    return scale(exec, dsc_exec_at(exec, op->out[0]), count, op->factor);
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

static dsc_status run_dropout(dsc_exec *exec, const dsc_op *op)
{
    const dsc_module_ctx *ctx = exec->ctx;
    const int64_t count = elements_of(exec, op->in[0]);
    dsc_dropout_args args = dropout_of(exec, dsc_exec_at(exec, op->out[0]), dsc_exec_at(exec, op->in[0]), count, false);
    args.stream = dsc_rng_stream(DSC_RNG_DROPOUT, op->dropout.stream);
    args.first = ctx->rng_sample * (uint64_t)(count / ctx->batch);
    if (ctx->training) {
        args.threshold = (uint32_t)(op->dropout.probability * 0x1p32);
        args.factor = (float)(1 / (1 - op->dropout.probability));
    }
    return DSC_RUN(ctx->stream, DROPOUT, &args, exec->err);
}

static dsc_status run_add(dsc_exec *exec, const dsc_op *op)
{
    char *const to = dsc_exec_at(exec, op->out[0]);
    const char *a = dsc_exec_at(exec, op->in[0]), *b = dsc_exec_at(exec, op->in[1]);
    const int64_t count = elements_of(exec, op->in[0]);
    if (exec->ctx->dtype == DSC_F32) {
        const dsc_add_args args = { .to = floats_at(exec, op->out[0]),
                                    .a = floats_at(exec, op->in[0]),
                                    .b = floats_at(exec, op->in[1]),
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

/* ---- the table --------------------------------------------------------------------------------------------------- */

#define B DSC_BIT
const dsc_op_info dsc_op_infos[DSC_OP_KINDS] = {
    [DSC_OP_LINEAR] = { .name = "linear", .in_place = { B(1) }, .launch = run_linear },
    [DSC_OP_NORM] = { .name = "norm", .cheap = true, .launch = run_norm },
    [DSC_OP_ROPE_TABLE] = { .name = "rope_table", .cheap = true, .launch = run_rope_table },
    [DSC_OP_ROPE] = { .name = "rope",
                      .cheap = true,
                      .in_place = { B(0) },
                      .strided_in = B(0),
                      .strided_out = B(0),
                      .launch = run_rope },
    [DSC_OP_ATTENTION] = { .name = "attention",
                           .strided_in = B(0) | B(1) | B(2),
                           .launch = run_attention,
                           .scratch = attention_scratch,
                           .flops = attention_flops },
    [DSC_OP_ACTIVATION] = { .name = "activation", .cheap = true, .launch = run_activation },
    [DSC_OP_GATED] = { .name = "gated", .cheap = true, .strided_in = B(0) | B(1), .launch = run_gated },
    [DSC_OP_ADD] = { .name = "add", .cheap = true, .in_place = { B(0) | B(1) }, .launch = run_add },
    [DSC_OP_SCALE] = { .name = "scale", .cheap = true, .in_place = { B(0) }, .launch = run_scale },
    [DSC_OP_DROPOUT] = { .name = "dropout", .cheap = true, .in_place = { B(0) }, .launch = run_dropout },
    [DSC_OP_SLICE] = { .name = "slice", .cheap = true, .is_view = true, .strided_in = B(0), .strided_out = B(0) },
    [DSC_OP_COPY] = { .name = "copy", .cheap = true, .in_place = { B(0) }, .launch = run_copy },
    [DSC_OP_LINEAR_DX] = { .name = "linear_dx", .in_place = { B(1) }, .launch = run_linear_dx },
    [DSC_OP_LINEAR_DW] = { .name = "linear_dw", .launch = run_linear_dw },
    [DSC_OP_NORM_BWD] = { .name = "norm_bwd",
                          .in_place = { B(1) },
                          .launch = run_norm_bwd,
                          .scratch = norm_bwd_scratch },
    [DSC_OP_ATTENTION_BWD] = { .name = "attention_bwd",
                               .strided_in = B(3) | B(4) | B(5),
                               .strided_out = B(0) | B(1) | B(2),
                               .launch = run_attention_bwd,
                               .scratch = attention_bwd_scratch },
    [DSC_OP_ACTIVATION_BWD] = { .name = "activation_bwd", .in_place = { B(0) }, .launch = run_activation_bwd },
    [DSC_OP_GATED_BWD] = { .name = "gated_bwd",
                           .in_place = { B(1), B(2), B(0) },
                           .strided_in = B(1) | B(2),
                           .strided_out = B(0) | B(1),
                           .launch = run_gated_bwd },
    [DSC_OP_JOIN] = { .name = "join", .is_view = true, .strided_in = ~0u, .strided_out = B(0) },
};
