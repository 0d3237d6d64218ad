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
    return exec->row >= 0 ? 1 : dsc_value_rows(dsc_exec_value(exec, value), exec->ctx->batch);
}

static inline int64_t dsc_exec_elements(const dsc_exec *exec, int16_t value)
{
    return dsc_exec_rows(exec, value) * dsc_exec_value(exec, value)->columns;
}

static inline dsc_dtype dsc_exec_dtype(const dsc_exec *exec, int16_t value)
{
    return dsc_exec_value(exec, value)->f32 ? DSC_F32 : exec->ctx->dtype;
}

static inline float *dsc_exec_floats(const dsc_exec *exec, int16_t value)
{
    return (float *)(void *)dsc_exec_at(exec, value);
}

/* Ranks share out the parameter's rows. */
static inline bool dsc_op_is_parted(const dsc_program *program, int32_t param)
{
    return param != DSC_PROGRAM_NONE && program->param[param].share.count > 1;
}

/* The whole tensor's row that is the first one of a rank's part. */
static inline int64_t dsc_op_first_row(const dsc_program *program, int32_t param, int32_t rank)
{
    int64_t row = 0;
    for (int32_t i = 0; i < rank && dsc_op_is_parted(program, param); i++)
        row += dsc_param_part_length(&program->param[param].share, i);
    return row;
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
dsc_op_launch dsc_op_run_linear, dsc_op_run_linear_dx, dsc_op_run_linear_dw, dsc_op_run_norm, dsc_op_run_norm_bwd;
dsc_op_scratch dsc_op_product_scratch, dsc_op_norm_bwd_scratch;
dsc_op_flops dsc_op_product_flops;
dsc_op_plan dsc_op_plan_linear;
dsc_op_can_lie dsc_op_norm_can_lie, dsc_op_norm_bwd_can_lie;

/* ---- Rotary positions and attention, ops_attention.c ---- */
dsc_op_launch dsc_op_run_rope_table, dsc_op_run_rope, dsc_op_run_regroup, dsc_op_run_attention,
    dsc_op_run_attention_bwd;
dsc_op_scratch dsc_op_attention_scratch, dsc_op_attention_bwd_scratch;
dsc_op_flops dsc_op_attention_flops;
dsc_op_plan dsc_op_plan_attention;
dsc_op_can_lie dsc_op_rope_can_lie, dsc_op_attention_can_lie, dsc_op_attention_bwd_can_lie;

/* ---- Heads, ops_heads.c ---- */
dsc_op_launch dsc_op_run_heads, dsc_op_run_heads_bwd;

/* ---- Exchanges of ranks, ops_exchange.c ---- */
dsc_op_launch dsc_op_run_exchange_sum, dsc_op_run_exchange_gather, dsc_op_run_exchange_scatter, dsc_op_run_exchange_dw;
dsc_op_scratch dsc_op_exchange_sum_scratch, dsc_op_exchange_scatter_scratch, dsc_op_exchange_dw_scratch;
dsc_op_sent dsc_op_exchange_sum_sent, dsc_op_exchange_rows_sent, dsc_op_exchange_dw_sent;

/* ---- Element by element, ops_elements.c ---- */
dsc_op_launch dsc_op_run_activation, dsc_op_run_activation_bwd, dsc_op_run_gated, dsc_op_run_gated_bwd,
    dsc_op_run_pairs, dsc_op_run_pairs_bwd, dsc_op_run_copy, dsc_op_run_scale, dsc_op_run_tanh, dsc_op_run_tanh_bwd,
    dsc_op_run_dropout, dsc_op_run_add, dsc_op_run_columns, dsc_op_run_columns_dw;
dsc_op_scratch dsc_op_columns_dw_scratch;
dsc_op_can_lie dsc_op_gated_can_lie, dsc_op_gated_bwd_can_lie;

/* ---- Callbacks, ops_custom.c ---- */
dsc_op_launch dsc_op_run_custom, dsc_op_run_custom_bwd;
dsc_op_scratch dsc_op_custom_scratch;
dsc_op_flops dsc_op_custom_flops;
dsc_op_rule dsc_rule_custom;

/* ---- Mixture of experts, ops_moe.c ---- */
dsc_op_launch dsc_op_run_router, dsc_op_run_router_bwd, dsc_op_run_order, dsc_op_run_dispatch, dsc_op_run_dispatch_bwd,
    dsc_op_run_grouped, dsc_op_run_grouped_dx, dsc_op_run_grouped_dw, dsc_op_run_combine, dsc_op_run_combine_bwd;
dsc_op_scratch dsc_op_router_scratch, dsc_op_router_bwd_scratch, dsc_op_grouped_scratch, dsc_op_grouped_dw_scratch;
dsc_op_flops dsc_op_grouped_flops;
dsc_op_plan dsc_op_plan_grouped;

/* ---- Linear attention, ops_delta.c ---- */
dsc_op_launch dsc_op_run_pack, dsc_op_run_conv, dsc_op_run_conv_bwd, dsc_op_run_delta, dsc_op_run_delta_bwd;
dsc_op_scratch dsc_op_delta_scratch, dsc_op_delta_bwd_scratch;
dsc_op_state dsc_op_conv_state, dsc_op_delta_state;
dsc_op_flops dsc_op_delta_flops;
dsc_op_rule dsc_rule_conv;

/* ---- LSTMs, ops_lstm.c ---- */
dsc_op_launch dsc_op_run_lstm, dsc_op_run_lstm_bwd;
dsc_op_scratch dsc_op_lstm_scratch, dsc_op_lstm_bwd_scratch;
dsc_op_flops dsc_op_lstm_flops, dsc_op_lstm_bwd_flops;
dsc_op_plan dsc_op_plan_lstm;

/* ---- Convolutions of pictures, ops_conv2d.c ---- */
dsc_op_launch dsc_op_run_conv2d, dsc_op_run_conv2d_dx, dsc_op_run_conv2d_dw;
dsc_op_scratch dsc_op_conv2d_scratch;
dsc_op_flops dsc_op_conv2d_flops;
dsc_op_plan dsc_op_plan_conv2d;
dsc_op_rule dsc_rule_conv2d;

/* ---- What a batch brings, and rows of samples, ops_rows.c ---- */
dsc_op_launch dsc_op_run_data, dsc_op_run_patches, dsc_op_run_prepend, dsc_op_run_prepend_bwd, dsc_op_run_table,
    dsc_op_run_table_dw, dsc_op_run_pick, dsc_op_run_pick_bwd, dsc_op_run_gather, dsc_op_run_gather_bwd;

/* ---- Tables of tokens, ops_embed.c ---- */
dsc_op_launch dsc_op_run_embed, dsc_op_run_embed_dw;
dsc_op_scratch dsc_op_embed_scratch, dsc_op_embed_dw_scratch;
dsc_op_rule dsc_rule_embed;

/* ---- Losses, ops_loss.c and ops_vectors.c ---- */
dsc_op_launch dsc_op_run_loss, dsc_op_run_classify, dsc_op_run_vectors, dsc_op_run_vectors_bwd, dsc_op_run_compare;
dsc_op_scratch dsc_op_classify_scratch, dsc_op_compare_scratch;
dsc_op_flops dsc_op_classify_flops, dsc_op_compare_flops;
dsc_op_plan dsc_op_plan_classify, dsc_op_plan_compare;
dsc_op_sent dsc_op_classify_sent;

/* ---- Feature maps, ops_maps.c ---- */
dsc_op_launch dsc_op_run_batch_stats, dsc_op_run_batch_norm, dsc_op_run_batch_norm_bwd, dsc_op_run_pool,
    dsc_op_run_pool_bwd, dsc_op_run_sample_scale, dsc_op_run_sample_scale_bwd;
dsc_op_launch dsc_op_share_batch_stats, dsc_op_finish_batch_stats, dsc_op_share_batch_norm_bwd,
    dsc_op_finish_batch_norm_bwd;
dsc_op_numbers dsc_op_batch_norm_numbers;
dsc_op_scratch dsc_op_batch_norm_scratch;
dsc_op_rule dsc_rule_batch_norm, dsc_rule_sample_scale;

/* ---- Backward, rules.c ---- */
/* One op of the kind's `gradient_kind`; and where the gradient of the output is that of the inputs too. */
dsc_op_rule dsc_rule_one_op, dsc_rule_pass;
dsc_op_rule dsc_rule_linear, dsc_rule_norm, dsc_rule_way_back, dsc_rule_gated, dsc_rule_slice, dsc_rule_heads,
    dsc_rule_prepend, dsc_rule_table, dsc_rule_columns, dsc_rule_router, dsc_rule_dispatch, dsc_rule_grouped;

#endif
