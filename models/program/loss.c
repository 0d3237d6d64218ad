/* loss.c - programs that end with an op of losses: their builder, and forward, loss and backward in one call.
 *
 * The op writes the gradient of its input, with which backward begins. Values that forward keeps for backward lie in
 * the scratch, because both passes are one call. SPDX-License-Identifier: Apache-2.0 */
#include "models/program/ops.h"

/* ---- the builder ------------------------------------------------------------------------------------------------- */

/* Its output has the shape of its input. The end of a language model has few values, which are kept; classifiers of
 * pictures have wide ones, which backward makes again. */
static int16_t add_end(dsc_program *program, dsc_op_kind kind, int16_t x, dsc_op **op)
{
    const int16_t y = dsc_program_add_unary(program, kind, NULL, x, op);
    if (y == DSC_PROGRAM_NONE)
        return y;
    program->loss = true;
    program->keeps = kind != DSC_OP_LOSS;
    return y;
}

int16_t dsc_program_loss(dsc_program *program, int16_t logits, int32_t targets)
{
    dsc_op *op;
    const int16_t y = add_end(program, DSC_OP_LOSS, logits, &op);
    if (y != DSC_PROGRAM_NONE)
        op->targets = targets;
    return y;
}

static int64_t elements_of(const dsc_program *program, int32_t param)
{
    int64_t elements = param >= 0 && param < program->param_count ? 1 : 0;
    for (int32_t i = 0; elements > 0 && i < program->param[param].dim_count; i++)
        elements *= program->param[param].dim[i];
    return elements;
}

int16_t dsc_program_classify(dsc_program *program, int16_t x, const dsc_op_classify *args)
{
    dsc_op *op;
    const int16_t y = add_end(program, DSC_OP_CLASSIFY, x, &op);
    if (y == DSC_PROGRAM_NONE)
        return y;
    const int64_t rows = elements_of(program, args->table) / program->value[x].columns;
    if (rows < 1 || rows * program->value[x].columns != elements_of(program, args->table) ||
        (args->bias != DSC_PROGRAM_NONE && elements_of(program, args->bias) != rows))
        REFUSE(program, "op \"classify\": parameters %d and %d are not a table with rows of %lld elements and its bias",
               (int)args->table, (int)args->bias, (long long)program->value[x].columns);
    const dsc_param_part *share = &program->param[args->table].share;
    const int64_t all = share->count > 1 ? share->run[0] : rows;
    if (args->outputs < 1 || args->outputs > all || args->targets < 0)
        REFUSE(program,
               "op \"classify\": %lld of %lld rows are real, with targets in batch tensor %d; expected 1 or more",
               (long long)args->outputs, (long long)all, (int)args->targets);
    /* Field by field: equal programs are equal bytes. */
    op->classify.table = args->table, op->classify.bias = args->bias, op->classify.outputs = args->outputs;
    op->classify.targets = args->targets, op->classify.reference = args->reference;
    op->classify.labels = args->labels;
    op->classify.preference.beta = args->preference.beta;
    op->classify.preference.smoothing = args->preference.smoothing;
    op->classify.logit_scale = args->logit_scale, op->classify.softcap = args->softcap;
    if (share->count > 1) {
        const int64_t behind = args->outputs - dsc_op_first_row(program, args->table, program->ranks.own);
        op->classify.total = args->outputs;
        op->classify.outputs = dsc_min_i64(rows, dsc_max_i64(0, behind));
    }
    return y;
}

int16_t dsc_program_vectors(dsc_program *program, int16_t x, const dsc_op_vectors *args)
{
    dsc_op *op;
    const int16_t y = dsc_program_add_unary(program, DSC_OP_VECTORS, NULL, x, &op);
    if (y == DSC_PROGRAM_NONE)
        return y;
    op->vectors.places = args->places, op->vectors.mean = args->mean, op->vectors.unit = args->unit;
    dsc_value *vector = &program->value[y];
    vector->rows = 1;
    vector->f32 = true;
    vector->height = vector->width = 0;
    const dsc_value length = { .rows = 1, .columns = 1, .per_sample = true, .f32 = true };
    (void)dsc_program_add_output(program, op, 1, op->name, length);
    return y;
}

int16_t dsc_program_compare(dsc_program *program, int16_t vectors, const dsc_op_compare *args)
{
    dsc_op *op;
    const int16_t y = add_end(program, DSC_OP_COMPARE, vectors, &op);
    if (y == DSC_PROGRAM_NONE)
        return y;
    if (!program->value[vectors].f32 || program->value[vectors].rows != 1)
        REFUSE(program, "op \"compare\": its input \"%.60s\" is not one vector of each sample",
               program->value[vectors].name);
    op->compare.targets = args->targets, op->compare.kind = args->kind, op->compare.scale = args->scale;
    return y;
}

/* ---- the module -------------------------------------------------------------------------------------------------- */

/* Byte offsets in ctx->scratch. */
typedef struct loss_layout {
    int64_t gradient, saved, rebuilt, repeated, work;
} loss_layout;

static int64_t piece(int64_t *end, int64_t bytes)
{
    const int64_t at = *end;
    *end += dsc_align_up(bytes, 256);
    return at;
}

/* The layout of any pass has the bytes that are stored. */
static loss_layout lay(const dsc_program *program, const dsc_pass_layout *stored, int64_t batch, dsc_dtype dtype)
{
    const int64_t gradient = dsc_value_bytes(&program->value[program->output], batch, dtype);
    loss_layout at = { 0 };
    at.gradient = piece(&at.work, dsc_program_ends_at_input(program) ? 0 : gradient);
    at.saved = piece(&at.work, stored->saved_bytes);
    at.rebuilt = piece(&at.work, stored->rebuilt_bytes);
    at.repeated = piece(&at.work, program->keeps ? stored->repeated_bytes : 0);
    return at;
}

dsc_status dsc_program_plan_loss(const dsc_program *program, const dsc_module *module, const dsc_lora *lora,
                                 int64_t batch, dsc_dtype dtype, const dsc_plan_sink *sink, dsc_module_plan *out,
                                 dsc_error *err)
{
    dsc_module_plan plan;
    DSC_ASSERT(program->loss);
    DSC_TRY(dsc_program_plan(program, module, lora, batch, dtype, sink, &plan, err));
    const dsc_pass_layout stored = { .saved_bytes = plan.saved_bytes,
                                     .rebuilt_bytes = plan.rebuilt_bytes,
                                     .repeated_bytes = plan.repeated_bytes };
    const int64_t work = dsc_max_i64(plan.forward_scratch_bytes, plan.backward_scratch_bytes);
    *out = (dsc_module_plan) { .forward_scratch_bytes = lay(program, &stored, batch, dtype).work + work,
                               .forward_flops = plan.forward_flops,
                               .backward_flops = plan.backward_flops,
                               .forward_sent_bytes = plan.forward_sent_bytes,
                               .backward_sent_bytes = plan.backward_sent_bytes };
    return DSC_OK;
}

dsc_status dsc_program_run_loss(const dsc_program *program, const dsc_lora *lora, dsc_module_ctx *ctx, dsc_error *err)
{
    dsc_any_pass_layout own;
    const dsc_op_batch of = {
        lora, ctx->batch, ctx->dtype, ctx->chunk_bytes, ctx->stores_score_gradients, ctx->joins_input_gradients
    };
    const dsc_pass_layout *stored = dsc_program_layout(program, DSC_PASS_FORWARD, &of, &own);
    const loss_layout at = lay(program, stored, ctx->batch, ctx->dtype);
    const int64_t items = dsc_value_rows(&program->value[program->output], ctx->batch);
    char *const scratch = ctx->scratch;
    dsc_module_ctx inner = *ctx;
    if (ctx->logits != NULL && (ctx->save || ctx->logits_row < 0 || ctx->logits_row >= items))
        return DSC_FAIL(err, DSC_ERR_STATE, "", "logits are for one of the %lld items, without save", (long long)items);
    inner.out = dsc_program_ends_at_input(program) ? ctx->d_in : scratch + at.gradient;
    inner.saved = scratch + at.saved;
    inner.rebuilt = scratch + at.rebuilt;
    inner.repeated = program->keeps ? scratch + at.repeated : NULL;
    inner.scratch = scratch + at.work;
    inner.cache = NULL; /* no end keeps anything of a text */
    DSC_TRY(dsc_program_run(program, DSC_PASS_FORWARD, lora, &inner, err));
    if (!ctx->save || dsc_program_ends_at_input(program))
        return DSC_OK;
    inner.d_out = inner.out;
    inner.out = NULL;
    return dsc_program_run(program, DSC_PASS_BACKWARD, lora, &inner, err);
}
