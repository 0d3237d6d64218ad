/* ops_attention.c - launches and costs of rotary positions and attention. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/device.h"
#include "models/program/ops.h"

/* ---- attention --------------------------------------------------------------------------------------------------- */

dsc_status dsc_op_run_rope_table(dsc_exec *exec, const dsc_op *op)
{
    const dsc_call call = dsc_exec_call(exec, op, op->out[0]);
    const dsc_rope_tables tables = { dsc_exec_floats(exec, op->out[0]), dsc_exec_floats(exec, op->out[1]) };
    return dsc_rope_make_tables(&call, op->rope.rope, tables, exec->program->tokens);
}

/* Columns before those that turn are copied first; the kernel then turns in place. */
static dsc_status copy_ahead(dsc_exec *exec, const dsc_op *op)
{
    const dsc_cast_args args = { .to = dsc_exec_at(exec, op->out[0]),
                                 .from = dsc_exec_at(exec, op->in[0]),
                                 .to_dtype = exec->ctx->dtype,
                                 .from_dtype = exec->ctx->dtype,
                                 .count = dsc_exec_elements(exec, op->in[0]) };
    return args.to == args.from ? DSC_OK : DSC_RUN(exec->ctx->stream, CAST, &args, exec->err);
}

dsc_status dsc_op_run_rope(dsc_exec *exec, const dsc_op *op)
{
    const int64_t apart = dsc_exec_place(exec, op->in[0])->apart;
    const int64_t ahead = op->rope.first * (int64_t)dsc_dtype_bytes(exec->ctx->dtype);
    if (ahead > 0)
        DSC_TRY(copy_ahead(exec, op));
    const dsc_rope_args args = { .out = dsc_exec_at(exec, op->out[0]) + ahead,
                                 .in =
                                     (ahead > 0 ? dsc_exec_at(exec, op->out[0]) : dsc_exec_at(exec, op->in[0])) + ahead,
                                 .cos = dsc_exec_floats(exec, op->in[1]),
                                 .sin = dsc_exec_floats(exec, op->in[2]),
                                 .places = dsc_exec_positions(exec),
                                 .rows = dsc_exec_rows(exec, op->in[0]),
                                 .tokens = exec->program->tokens,
                                 .stride = dsc_exec_place(exec, op->in[0])->stride,
                                 .heads = (int32_t)op->rope.heads,
                                 .head_size = (int32_t)(apart > 0 ? apart : op->rope.head_size),
                                 .pairs = op->rope.rope->pairs,
                                 .inverse = op->inverse,
                                 .neighbours = op->rope.rope->neighbours,
                                 .dtype = exec->ctx->dtype };
    return DSC_RUN(exec->ctx->stream, ROPE, &args, exec->err);
}

bool dsc_op_rope_can_lie(const dsc_place *places, const dsc_op *op)
{
    const bool whole = dsc_place_is_whole(&places[op->in[0]]) && dsc_place_is_whole(&places[op->out[0]]);
    return dsc_op_lie_apart_alike(places, op->in[0], op->out[0]) && (whole || op->rope.first == 0);
}

/* `count` columns of each row, from column `from` of op's input to `to` of its output; rows are equally wide. A rotary
 * embedding without pairs copies bits. */
static dsc_status copy_columns(dsc_exec *exec, const dsc_op *op, int64_t from, int64_t to, int64_t count)
{
    const int64_t element = (int64_t)dsc_dtype_bytes(exec->ctx->dtype);
    const dsc_rope_args args = { .out = (char *)dsc_exec_at(exec, op->out[0]) + to * element,
                                 .in = (const char *)dsc_exec_at(exec, op->in[0]) + from * element,
                                 .rows = dsc_exec_rows(exec, op->in[0]),
                                 .tokens = 1,
                                 .stride = dsc_exec_value(exec, op->in[0])->columns,
                                 .heads = 1,
                                 .head_size = (int32_t)count,
                                 .dtype = exec->ctx->dtype };
    return DSC_RUN(exec->ctx->stream, ROPE, &args, exec->err);
}

dsc_status dsc_op_run_regroup(dsc_exec *exec, const dsc_op *op)
{
    const int64_t size = op->regroup.head_size, queries = op->regroup.queries, groups = op->regroup.groups;
    for (int64_t g = 0; g < groups; g++) {
        const int64_t first = g * (queries + 2) * size, all = groups * queries * size;
        const int64_t apart[3] = { first, first + queries * size, first + (queries + 1) * size };
        const int64_t together[3] = { g * queries * size, all + g * size, all + (groups + g) * size };
        for (int i = 0; i < 3; i++) {
            const int64_t from = op->inverse ? together[i] : apart[i];
            const int64_t to = op->inverse ? apart[i] : together[i];
            DSC_TRY(copy_columns(exec, op, from, to, i == 0 ? queries * size : size));
        }
    }
    return DSC_OK;
}

/* A window that reaches further than the text has no effect. */
static int32_t window_of(const dsc_program *program, const dsc_op *op, int64_t past)
{
    const int64_t window = op->attention.window, reach = op->attention.all ? window / 2 + 1 : window;
    return window > 0 && past + program->tokens > reach ? (int32_t)window : 0;
}

static dsc_attention_logits logits_of(const dsc_op_attention *of)
{
    return (dsc_attention_logits) { .softcap = (float)of->softcap,
                                    .alibi = (float)of->alibi,
                                    .alibi_of_key = (float)of->alibi_of_key };
}

static const void *sinks_of(const dsc_exec *exec, const dsc_op_attention *of)
{
    return of->has_sinks ? exec->ctx->param[of->sinks] : NULL;
}

/* Whether devices may choose among kernels for it: other attentions have one. */
static bool has_choice(const dsc_program *program, const dsc_op_attention *of)
{
    const bool limits = of->window > 0 || program->positions >= 0;
    return of->softcap == 0 && of->alibi == 0 && !of->has_sinks && !(of->all && limits);
}

/* The forward without its tensors, whose operands lie at these places. */
static dsc_attention_fwd_args attention_shape(const dsc_program *program, const dsc_op *op, const dsc_place *places,
                                              int64_t batch, dsc_dtype dtype)
{
    const dsc_op_attention *of = &op->attention;
    const int64_t apart = places[op->in[0]].apart;
    return (dsc_attention_fwd_args) { .q_stride = places[op->in[0]].stride,
                                      .k_stride = places[op->in[1]].stride,
                                      .v_stride = places[op->in[2]].stride,
                                      .out_stride = of->heads * of->head_size,
                                      .head_stride = apart > 0 ? apart : of->head_size,
                                      .batch = (int32_t)batch,
                                      .tokens = (int32_t)program->tokens,
                                      .heads = (int32_t)of->heads,
                                      .kv_heads = (int32_t)of->kv_heads,
                                      .head_size = (int32_t)of->head_size,
                                      .scale = (float)of->scale,
                                      .keys = { .all = of->all, .window = window_of(program, op, 0) },
                                      .logits = logits_of(of),
                                      .dtype = dtype };
}

dsc_status dsc_op_run_attention(dsc_exec *exec, const dsc_op *op)
{
    const dsc_module_ctx *ctx = exec->ctx;
    const dsc_program *program = exec->program;
    dsc_attention_fwd_args args = attention_shape(program, op, program->place[0], ctx->batch, ctx->dtype);
    const int64_t past = ctx->past * (int64_t)dsc_dtype_bytes(ctx->dtype);
    args.keys = (dsc_attention_keys) { .all = op->attention.all,
                                       .positions = dsc_exec_positions(exec),
                                       .window = window_of(program, op, ctx->past),
                                       .past = (int32_t)ctx->past };
    args.out = dsc_exec_at(exec, op->out[0]);
    args.lse = dsc_exec_floats(exec, op->out[1]);
    args.q = dsc_exec_at(exec, op->in[0]);
    args.k = dsc_exec_at(exec, op->in[1]) - past * args.k_stride;
    args.v = dsc_exec_at(exec, op->in[2]) - past * args.v_stride;
    args.sinks = sinks_of(exec, &op->attention);
    args.scratch = dsc_exec_work(exec, op);
    return DSC_RUN(ctx->stream, ATTENTION_FWD, &args, exec->err);
}

int64_t dsc_op_attention_scratch(const dsc_program *program, const dsc_op *op, const dsc_op_batch *of)
{
    return dsc_attention_fwd_scratch_bytes((int32_t)of->batch, (int32_t)program->tokens, (int32_t)op->attention.heads,
                                           (int32_t)op->attention.head_size);
}

/* q k^T and p v over [T,T], or the causal half of it. */
double dsc_op_attention_flops(const dsc_program *program, const dsc_op *op, int64_t batch)
{
    const double tokens = (double)program->tokens, keys = op->attention.all ? tokens : (tokens + 1) / 2;
    return 2 * 2.0 * (double)(batch * program->tokens) * keys * (double)(op->attention.heads * op->attention.head_size);
}

bool dsc_op_attention_can_lie(const dsc_place *places, const dsc_op *op)
{
    return places[op->in[0]].apart == places[op->in[1]].apart && places[op->in[0]].apart == places[op->in[2]].apart;
}

/* GPUs may store score gradients in as much as the logits of a chunk take elsewhere in the step. */
static int64_t stored_bytes(const dsc_program *program, const dsc_op *op, int64_t batch, dsc_dtype dtype, int64_t most)
{
    const dsc_op_attention *of = &op->attention;
    const dsc_attention_fwd_args shape = { .batch = (int32_t)batch,
                                           .tokens = (int32_t)program->tokens,
                                           .heads = (int32_t)of->heads,
                                           .kv_heads = (int32_t)of->kv_heads,
                                           .head_size = (int32_t)of->head_size,
                                           .keys = { .all = of->all },
                                           .dtype = dtype };
    return has_choice(program, of) ? dsc_attention_stored_bytes(&shape, most) : 0;
}

/* The shape for who plans the launches. */
dsc_status dsc_op_plan_attention(const dsc_program *program, const dsc_op *op, int64_t batch, dsc_linear_planned *plan,
                                 dsc_error *err)
{
    if (plan->sink == NULL || plan->sink->attention == NULL || !has_choice(program, &op->attention))
        return DSC_OK;
    dsc_attention_fwd_args shape = attention_shape(program, op, program->place[0], batch, plan->dtype);
    shape.stored_bytes =
        stored_bytes(program, op, batch, plan->dtype, plan->sink->stores_score_gradients ? plan->sink->chunk_bytes : 0);
    return plan->sink->attention(plan->sink->user, &shape, err);
}

dsc_status dsc_op_run_attention_bwd(dsc_exec *exec, const dsc_op *op)
{
    const dsc_module_ctx *ctx = exec->ctx;
    const dsc_op_attention *of = &op->attention;
    const dsc_attention_bwd_args args = { .dq = dsc_exec_at(exec, op->out[0]),
                                          .dk = dsc_exec_at(exec, op->out[1]),
                                          .dv = dsc_exec_at(exec, op->out[2]),
                                          .d_out = dsc_exec_at(exec, op->in[0]),
                                          .out = dsc_exec_at(exec, op->in[1]),
                                          .lse = dsc_exec_floats(exec, op->in[2]),
                                          .q = dsc_exec_at(exec, op->in[3]),
                                          .k = dsc_exec_at(exec, op->in[4]),
                                          .v = dsc_exec_at(exec, op->in[5]),
                                          .scratch = dsc_exec_work(exec, op),
                                          .q_stride = dsc_exec_place(exec, op->in[3])->stride,
                                          .k_stride = dsc_exec_place(exec, op->in[4])->stride,
                                          .v_stride = dsc_exec_place(exec, op->in[5])->stride,
                                          .out_stride = of->heads * of->head_size,
                                          .head_stride = dsc_exec_place(exec, op->in[3])->apart,
                                          .batch = (int32_t)ctx->batch,
                                          .tokens = (int32_t)exec->program->tokens,
                                          .heads = (int32_t)of->heads,
                                          .kv_heads = (int32_t)of->kv_heads,
                                          .head_size = (int32_t)of->head_size,
                                          .scale = (float)of->scale,
                                          .keys = { .all = of->all,
                                                    .positions = dsc_exec_positions(exec),
                                                    .window = window_of(exec->program, op, ctx->past),
                                                    .past = (int32_t)ctx->past },
                                          .logits = logits_of(of),
                                          .sinks = sinks_of(exec, of),
                                          .d_sinks = of->has_sinks ? ctx->grad[of->sinks] : NULL,
                                          .dtype = ctx->dtype,
                                          .stored_bytes =
                                              stored_bytes(exec->program, op, ctx->batch, ctx->dtype,
                                                           ctx->stores_score_gradients ? ctx->chunk_bytes : 0) };
    return DSC_RUN(ctx->stream, ATTENTION_BWD, &args, exec->err);
}

int64_t dsc_op_attention_bwd_scratch(const dsc_program *program, const dsc_op *op, const dsc_op_batch *of)
{
    const int32_t batch = (int32_t)of->batch, tokens = (int32_t)program->tokens;
    const int32_t heads = (int32_t)op->attention.heads, size = (int32_t)op->attention.head_size;
    const int64_t most = of->stores_score_gradients ? of->chunk_bytes : 0;
    const int64_t stored = stored_bytes(program, op, batch, of->dtype, most);
    return stored > 0 ? dsc_attention_stored_at(batch, tokens, heads, size) + stored
                      : dsc_attention_bwd_scratch_bytes(batch, tokens, heads, size);
}

bool dsc_op_attention_bwd_can_lie(const dsc_place *places, const dsc_op *op)
{
    const int16_t *in = op->in, *out = op->out;
    bool can = true;
    for (int i = 0; i < 3; i++)
        can &= dsc_op_lie_apart_alike(places, in[3 + i], out[i]) && places[in[3 + i]].apart == places[in[3]].apart;
    return can;
}
