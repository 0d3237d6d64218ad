/* lm_program.c - the programs of modules: compiled once, and shared by the blocks that do not differ.
 * SPDX-License-Identifier: Apache-2.0 */
#include "models/lm_parts.h"

#include <string.h>

static void begin(const dsc_lm *lm, int64_t layer, dsc_program *out)
{
    const dsc_lm_config *config = lm->config;
    if (layer < 0)
        dsc_program_begin_first(out, config->sequence);
    else if (lm->family->begin_block != NULL)
        lm->family->begin_block(out, config, layer);
    else if (layer == config->layers + 1) /* behind a transform */
        dsc_program_begin(out, config->masked ? config->predictions : config->sequence, config->embed_channels,
                          DSC_PROGRAM_NONE);
    else
        dsc_program_begin(out, config->sequence, config->channels,
                          config->documents ? (int32_t)DSC_LM_POSITIONS : DSC_PROGRAM_NONE);
}

/* The family's logits, and their cross-entropy. */
static void emit_last(const dsc_lm *lm, dsc_program *out)
{
    lm->family->emit_last(out, lm->config);
    out->output = dsc_program_loss(out, out->output, DSC_LM_TARGETS);
}

void dsc_lm_describe_module(const dsc_lm *lm, int64_t layer, const dsc_lora *adapters, dsc_program *out)
{
    const dsc_lm_config *config = lm->config;
    begin(lm, layer, out);
    out->ranks = config->ranks;
    out->adapters = adapters;
    if (layer < 0 && lm->family->emit_first != NULL)
        lm->family->emit_first(out, config);
    else if (layer < 0)
        dsc_lm_emit_embedding(out, lm);
    else if (layer < config->layers)
        lm->family->emit_block(out, config, layer);
    else if (layer < lm->module_count - 2)
        dsc_lm_emit_transform(out, lm);
    else if (lm->family->emit_last != NULL)
        emit_last(lm, out);
    else
        dsc_lm_emit_head(out, lm);
}

static dsc_status compile(const dsc_lm *lm, const dsc_lm_module *self, dsc_program *out, dsc_error *err)
{
    const dsc_program_options options = { .lora = &self->lora, .cache_tokens = lm->config->cache };
    dsc_lm_describe_module(lm, self->layer, lm->lora != NULL ? &self->lora : NULL, out);
    out->adapters = NULL; /* equal programs are equal bytes */
    return dsc_program_compile(out, &options, err);
}

dsc_status dsc_lm_compile(dsc_lm *lm, dsc_error *err)
{
    const int64_t modules = lm->module_count;
    DSC_TRY(dsc_alloc_zeroed(lm->alloc, DSC_TAG_CONTROL, modules + 1, sizeof *lm->programs, &lm->programs, err));
    for (int64_t i = 0, count = 0; i < modules; i++) {
        dsc_lm_module *self = &lm->selves[i];
        dsc_program *program = NULL;
        DSC_TRY(dsc_alloc_zeroed(lm->alloc, DSC_TAG_CONTROL, 1, sizeof *program, &program, err));
        lm->programs[count] = program;
        DSC_TRY(compile(lm, self, program, err));
        int64_t same = 0;
        while (memcmp(lm->programs[same], program, sizeof *program) != 0)
            same++;
        self->program = lm->programs[same];
        if (program->list[DSC_PASS_REBUILD].count == 0)
            lm->modules[i].rebuild = NULL;
        if (same == count++)
            continue;
        dsc_alloc_free(lm->alloc, program);
        lm->programs[--count] = NULL;
    }
    const dsc_program *last = lm->selves[modules - 1].program;
    lm->losses = last->value[last->output].rows;
    for (int64_t i = 0; lm->programs[i] != NULL; i++)
        DSC_TRY(dsc_alloc_zeroed(lm->alloc, DSC_TAG_CONTROL, (int64_t)dsc_program_layouts_bytes(lm->programs[i]), 1,
                                 &lm->programs[i]->layouts, err));
    return DSC_OK;
}

/* ---- routers of experts ------------------------------------------------------------------------------------------ */

/* Whether routers that have records are alike so far. */
static bool add_routers(const dsc_program *program, dsc_model_experts *out, bool *softmax)
{
    bool alike = true;
    for (int16_t i = 0; i < program->forward_count; i++) {
        const dsc_op *op = &program->op[i];
        if (op->kind != DSC_OP_ROUTER || op->record == 0)
            continue;
        alike = alike && (out->routers == 0 || out->experts == op->rule.experts);
        *softmax = *softmax && op->rule.score == DSC_MOE_SOFTMAX;
        out->routers++;
        out->experts = op->rule.experts;
        out->top_k = op->rule.top_k;
    }
    return alike;
}

dsc_status dsc_lm_find_routers(dsc_lm *lm, dsc_error *err)
{
    const dsc_lm_config *config = lm->config;
    const bool wanted = config->router_balance > 0 || config->router_z > 0;
    dsc_model_experts *out = &lm->experts;
    bool alike = true, softmax = true;
    *out = (dsc_model_experts) { .targets = config->masked ? -1 : DSC_LM_TARGETS,
                                 .balance = config->router_balance,
                                 .z = config->router_z };
    for (int64_t i = 0; i < config->layers; i++) {
        dsc_lm_module *self = &lm->selves[1 + i];
        self->first_record = out->routers;
        alike = add_routers(self->program, out, &softmax) && alike;
    }
    if (wanted && (out->routers == 0 || !alike || !softmax))
        return DSC_FAIL(err, out->routers == 0 ? DSC_ERR_INPUT : DSC_ERR_UNSUPPORTED, lm->name,
                        "losses of routers (dsc.moe, router_aux_loss_coef) need routers with a softmax over equally "
                        "many experts; the model has %s",
                        out->routers == 0 ? "no experts"
                        : alike           ? "sigmoids"
                                          : "different numbers of experts");
    if (!alike)
        out->routers = 0;
    return DSC_OK;
}

/* ---- a module's operations --------------------------------------------------------------------------------------- */

static dsc_status plan(const dsc_module *module, int64_t batch, dsc_dtype dtype, const dsc_plan_sink *sink,
                       dsc_module_plan *out, dsc_error *err)
{
    const dsc_lm_module *self = module->self;
    const int64_t tokens = self->config->sequence;
    if (batch < 1 || batch > DSC_LM_ROWS_MAX / tokens)
        return DSC_FAIL(err, DSC_ERR_STATE, "", "a micro-batch of %lld samples of %lld tokens is not a possible size",
                        (long long)batch, (long long)tokens);
    return self->program->loss ? dsc_program_plan_loss(self->program, module, &self->lora, batch, dtype, sink, out, err)
                               : dsc_program_plan(self->program, module, &self->lora, batch, dtype, sink, out, err);
}

static dsc_status run(const dsc_module *module, dsc_pass pass, dsc_module_ctx *ctx, dsc_error *err)
{
    const dsc_lm_module *self = module->self;
    ctx->first_record = self->first_record;
    return dsc_program_run(self->program, pass, &self->lora, ctx, err);
}

static dsc_status forward(const dsc_module *module, dsc_module_ctx *ctx, dsc_error *err)
{
    return run(module, DSC_PASS_FORWARD, ctx, err);
}

static dsc_status rebuild(const dsc_module *module, dsc_module_ctx *ctx, dsc_error *err)
{
    return run(module, DSC_PASS_REBUILD, ctx, err);
}

static dsc_status backward(const dsc_module *module, dsc_module_ctx *ctx, dsc_error *err)
{
    return run(module, DSC_PASS_BACKWARD, ctx, err);
}

static dsc_status forward_group(const dsc_module *module, dsc_module_ctx *ctx, int32_t count, dsc_error *err)
{
    const dsc_lm_module *self = module->self;
    return dsc_program_run_group(self->program, DSC_PASS_FORWARD, &self->lora, ctx, count, err);
}

static dsc_status backward_group(const dsc_module *module, dsc_module_ctx *ctx, int32_t count, dsc_error *err)
{
    const dsc_lm_module *self = module->self;
    return dsc_program_run_group(self->program, DSC_PASS_BACKWARD, &self->lora, ctx, count, err);
}

static int64_t norm_numbers(const dsc_module *module)
{
    const dsc_lm_module *self = module->self;
    return dsc_program_norm_numbers(self->program);
}

int dsc_lm_show_module(const dsc_model *model, int32_t module, int64_t batch, dsc_dtype dtype, char *out, size_t bytes)
{
    const dsc_lm_module *self = model->modules[module].self;
    return self->program != NULL ? dsc_program_show(self->program, batch, dtype, out, bytes) : 0;
}

static dsc_status loss(const dsc_module *module, dsc_module_ctx *ctx, dsc_error *err)
{
    const dsc_lm_module *self = module->self;
    return dsc_program_run_loss(self->program, &self->lora, ctx, err);
}

void dsc_lm_module_init(dsc_module *module)
{
    const bool last = (module->flags & DSC_MODULE_LOSS) != 0;
    module->plan = plan;
    module->forward = last ? loss : forward;
    module->backward = last ? NULL : backward;
    module->rebuild = last ? NULL : rebuild;
    module->forward_group = last ? NULL : forward_group;
    module->backward_group = last ? NULL : backward_group;
    module->norm_numbers = norm_numbers;
}
