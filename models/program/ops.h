/* ops.h - what the table of kinds is made of: launches, costs and rules. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_MODELS_PROGRAM_OPS_H
#define DSC_MODELS_PROGRAM_OPS_H

#include "models/program/internal.h"

/* ---- Operands of a launch ---- */

static inline const dsc_value *dsc_exec_value(const dsc_exec *exec, int16_t value)
{
    return &exec->program->value[value];
}

static inline int64_t dsc_exec_rows(const dsc_exec *exec, int16_t value)
{
    return dsc_value_rows(dsc_exec_value(exec, value), exec->ctx->batch);
}

static inline int64_t dsc_exec_elements(const dsc_exec *exec, int16_t value)
{
    return dsc_exec_rows(exec, value) * dsc_exec_value(exec, value)->columns;
}

static inline float *dsc_exec_floats(const dsc_exec *exec, int16_t value)
{
    return (float *)(void *)dsc_exec_at(exec, value);
}

/* For the functions of layers; `of` has the rows. */
static inline dsc_call dsc_exec_call(const dsc_exec *exec, const dsc_op *op, int16_t of)
{
    return (dsc_call) { .ctx = exec->ctx,
                        .rows = dsc_exec_rows(exec, of),
                        .err = exec->err,
                        .lora = exec->lora,
                        .lora_work = dsc_exec_work(exec, op) };
}

static inline const int32_t *dsc_exec_positions(const dsc_exec *exec)
{
    return exec->program->positions >= 0 ? exec->ctx->batch_data[exec->program->positions] : NULL;
}

/* Whether operands that are there have rows, and heads in them, at equal distances. */
static inline bool dsc_op_lie_apart_alike(const dsc_place *places, int16_t a, int16_t b)
{
    if (a == DSC_PROGRAM_NONE || b == DSC_PROGRAM_NONE)
        return true;
    return places[a].stride == places[b].stride && places[a].apart == places[b].apart;
}

/* ---- Products and norms, ops_products.c ---- */
dsc_status dsc_op_run_linear(dsc_exec *exec, const dsc_op *op);
dsc_status dsc_op_run_linear_dx(dsc_exec *exec, const dsc_op *op);
dsc_status dsc_op_run_linear_dw(dsc_exec *exec, const dsc_op *op);
int64_t dsc_op_product_scratch(const dsc_program *program, const dsc_op *op, const dsc_op_batch *of);
double dsc_op_product_flops(const dsc_program *program, const dsc_op *op, int64_t batch);
dsc_status dsc_op_plan_linear(const dsc_program *program, const dsc_op *op, int64_t batch, dsc_linear_planned *plan,
                              dsc_error *err);
dsc_status dsc_op_run_norm(dsc_exec *exec, const dsc_op *op);
dsc_status dsc_op_run_norm_bwd(dsc_exec *exec, const dsc_op *op);
int64_t dsc_op_norm_bwd_scratch(const dsc_program *program, const dsc_op *op, const dsc_op_batch *of);

/* ---- Rotary positions and attention, ops_attention.c ---- */
dsc_status dsc_op_run_rope_table(dsc_exec *exec, const dsc_op *op);
dsc_status dsc_op_run_rope(dsc_exec *exec, const dsc_op *op);
dsc_status dsc_op_run_regroup(dsc_exec *exec, const dsc_op *op);
bool dsc_op_rope_can_lie(const dsc_place *places, const dsc_op *op);
dsc_status dsc_op_run_attention(dsc_exec *exec, const dsc_op *op);
int64_t dsc_op_attention_scratch(const dsc_program *program, const dsc_op *op, const dsc_op_batch *of);
double dsc_op_attention_flops(const dsc_program *program, const dsc_op *op, int64_t batch);
dsc_status dsc_op_plan_attention(const dsc_program *program, const dsc_op *op, int64_t batch, dsc_linear_planned *plan,
                                 dsc_error *err);
bool dsc_op_attention_can_lie(const dsc_place *places, const dsc_op *op);
dsc_status dsc_op_run_attention_bwd(dsc_exec *exec, const dsc_op *op);
int64_t dsc_op_attention_bwd_scratch(const dsc_program *program, const dsc_op *op, const dsc_op_batch *of);
bool dsc_op_attention_bwd_can_lie(const dsc_place *places, const dsc_op *op);

/* ---- Heads, ops_heads.c ---- */
dsc_status dsc_op_run_heads(dsc_exec *exec, const dsc_op *op);
dsc_status dsc_op_run_heads_bwd(dsc_exec *exec, const dsc_op *op);

/* ---- Element by element, ops_elements.c ---- */
dsc_status dsc_op_run_activation(dsc_exec *exec, const dsc_op *op);
dsc_status dsc_op_run_activation_bwd(dsc_exec *exec, const dsc_op *op);
dsc_status dsc_op_run_gated(dsc_exec *exec, const dsc_op *op);
dsc_status dsc_op_run_gated_bwd(dsc_exec *exec, const dsc_op *op);
bool dsc_op_gated_can_lie(const dsc_place *places, const dsc_op *op);
bool dsc_op_gated_bwd_can_lie(const dsc_place *places, const dsc_op *op);
dsc_status dsc_op_run_pairs(dsc_exec *exec, const dsc_op *op);
dsc_status dsc_op_run_pairs_bwd(dsc_exec *exec, const dsc_op *op);
dsc_status dsc_op_run_copy(dsc_exec *exec, const dsc_op *op);
dsc_status dsc_op_run_scale(dsc_exec *exec, const dsc_op *op);
dsc_status dsc_op_run_dropout(dsc_exec *exec, const dsc_op *op);
dsc_status dsc_op_run_add(dsc_exec *exec, const dsc_op *op);
dsc_status dsc_op_run_multiply(dsc_exec *exec, const dsc_op *op);

/* ---- Callbacks, ops_custom.c ---- */
dsc_status dsc_op_run_custom(dsc_exec *exec, const dsc_op *op);
dsc_status dsc_op_run_custom_bwd(dsc_exec *exec, const dsc_op *op);
int64_t dsc_op_custom_scratch(const dsc_program *program, const dsc_op *op, const dsc_op_batch *of);
double dsc_op_custom_flops(const dsc_program *program, const dsc_op *op, int64_t batch);
dsc_status dsc_rule_custom(dsc_tape *tape, dsc_op *op, dsc_error *err);

/* ---- Mixture of experts, ops_moe.c ---- */
dsc_status dsc_op_run_router(dsc_exec *exec, const dsc_op *op);
dsc_status dsc_op_run_router_bwd(dsc_exec *exec, const dsc_op *op);
int64_t dsc_op_router_scratch(const dsc_program *program, const dsc_op *op, const dsc_op_batch *of);
int64_t dsc_op_router_bwd_scratch(const dsc_program *program, const dsc_op *op, const dsc_op_batch *of);
dsc_status dsc_op_run_order(dsc_exec *exec, const dsc_op *op);
dsc_status dsc_op_run_dispatch(dsc_exec *exec, const dsc_op *op);
dsc_status dsc_op_run_dispatch_bwd(dsc_exec *exec, const dsc_op *op);
dsc_status dsc_op_run_grouped(dsc_exec *exec, const dsc_op *op);
dsc_status dsc_op_run_grouped_dx(dsc_exec *exec, const dsc_op *op);
dsc_status dsc_op_run_grouped_dw(dsc_exec *exec, const dsc_op *op);
double dsc_op_grouped_flops(const dsc_program *program, const dsc_op *op, int64_t batch);
dsc_status dsc_op_run_combine(dsc_exec *exec, const dsc_op *op);
dsc_status dsc_op_run_combine_bwd(dsc_exec *exec, const dsc_op *op);

/* ---- Linear attention, ops_delta.c ---- */
dsc_status dsc_op_run_pack(dsc_exec *exec, const dsc_op *op);
dsc_status dsc_op_run_conv(dsc_exec *exec, const dsc_op *op);
dsc_status dsc_op_run_conv_bwd(dsc_exec *exec, const dsc_op *op);
int64_t dsc_op_conv_state(const dsc_program *program, const dsc_op *op, dsc_dtype dtype);
dsc_status dsc_rule_conv(dsc_tape *tape, dsc_op *op, dsc_error *err);
dsc_status dsc_op_run_delta(dsc_exec *exec, const dsc_op *op);
dsc_status dsc_op_run_delta_bwd(dsc_exec *exec, const dsc_op *op);
int64_t dsc_op_delta_scratch(const dsc_program *program, const dsc_op *op, const dsc_op_batch *of);
int64_t dsc_op_delta_bwd_scratch(const dsc_program *program, const dsc_op *op, const dsc_op_batch *of);
int64_t dsc_op_delta_state(const dsc_program *program, const dsc_op *op, dsc_dtype dtype);
double dsc_op_delta_flops(const dsc_program *program, const dsc_op *op, int64_t batch);

/* ---- What a batch brings, and rows of samples, ops_rows.c ---- */
dsc_status dsc_op_run_data(dsc_exec *exec, const dsc_op *op);
dsc_status dsc_op_run_patches(dsc_exec *exec, const dsc_op *op);
dsc_status dsc_op_run_prepend(dsc_exec *exec, const dsc_op *op);
dsc_status dsc_op_run_prepend_bwd(dsc_exec *exec, const dsc_op *op);
dsc_status dsc_op_run_table(dsc_exec *exec, const dsc_op *op);
dsc_status dsc_op_run_table_dw(dsc_exec *exec, const dsc_op *op);
dsc_status dsc_op_run_pick(dsc_exec *exec, const dsc_op *op);
dsc_status dsc_op_run_pick_bwd(dsc_exec *exec, const dsc_op *op);

/* ---- Backward, rules.c ---- */
/* One op of the kind's `gradient_kind`. */
dsc_status dsc_rule_one_op(dsc_tape *tape, dsc_op *op, dsc_error *err);
/* The gradient of the output is that of the inputs too. */
dsc_status dsc_rule_pass(dsc_tape *tape, dsc_op *op, dsc_error *err);
dsc_status dsc_rule_linear(dsc_tape *tape, dsc_op *op, dsc_error *err);
dsc_status dsc_rule_norm(dsc_tape *tape, dsc_op *op, dsc_error *err);
dsc_status dsc_rule_rope(dsc_tape *tape, dsc_op *op, dsc_error *err);
dsc_status dsc_rule_regroup(dsc_tape *tape, dsc_op *op, dsc_error *err);
dsc_status dsc_rule_gated(dsc_tape *tape, dsc_op *op, dsc_error *err);
dsc_status dsc_rule_multiply(dsc_tape *tape, dsc_op *op, dsc_error *err);
dsc_status dsc_rule_slice(dsc_tape *tape, dsc_op *op, dsc_error *err);
dsc_status dsc_rule_heads(dsc_tape *tape, dsc_op *op, dsc_error *err);
dsc_status dsc_rule_prepend(dsc_tape *tape, dsc_op *op, dsc_error *err);
dsc_status dsc_rule_table(dsc_tape *tape, dsc_op *op, dsc_error *err);
dsc_status dsc_rule_dispatch(dsc_tape *tape, dsc_op *op, dsc_error *err);
dsc_status dsc_rule_grouped(dsc_tape *tape, dsc_op *op, dsc_error *err);

#endif
