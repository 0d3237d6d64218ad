/* optimizer.c - the scalars of one update, in double, rounded once. SPDX-License-Identifier: Apache-2.0 */
#include <float.h>
#include <math.h>

#include "engine/internal.h"
#include "engine/local_sgd.h"
#include "engine/schedule/schedule.h"
#include "engine/update.h"

/* Clips as torch.nn.utils.clip_grad_norm_ and DeepSpeed do: max / (norm + 1e-6), never above 1. */
static double clip_coefficient(double clipping, double norm)
{
    if (clipping <= 0)
        return 1.0;
    const double coefficient = clipping / (norm + 1e-6);
    return coefficient < 1.0 ? coefficient : 1.0;
}

/* Inputs of an optimizer's scalars. */
typedef struct terms {
    const dsc_config *config;
    int64_t update; /* from 1 */
    double lr, weight_decay;
    double grad_norm; /* norm of the gradients that the recipe reads */
} terms;

/* Those that are not named below do nothing. */
static void plain_scalars(const terms *t, dsc_update_scalars *s)
{
    s->decay = 1.0f;
    s->l2 = (float)t->weight_decay;
    s->step_size = (float)t->lr;
    s->eps = (float)t->config->optimizer.eps;
}

static void betas(double beta1, double beta2, dsc_update_scalars *s)
{
    s->beta1 = (float)beta1;
    s->beta2 = (float)beta2;
    s->one_minus_beta1 = (float)(1.0 - beta1);
    s->one_minus_beta2 = (float)(1.0 - beta2);
}

static void decouple(const terms *t, dsc_update_scalars *s)
{
    s->decay = (float)(1.0 - t->lr * t->weight_decay);
    s->l2 = 0.0f;
}

/* Bias correction of Adam's moments. */
typedef struct biases { double first, second; } biases;

static biases adam_terms(const terms *t, dsc_update_scalars *s)
{
    const double beta1 = dsc_schedule_beta1(t->config, t->update), beta2 = dsc_schedule_beta2(t->config, t->update);
    betas(beta1, beta2, s);
    if (!t->config->optimizer.bias_correction || dsc_config_compresses_signs(t->config))
        return (biases){ 1.0, 1.0 };
    return (biases){ 1.0 - pow(beta1, (double)t->update), 1.0 - pow(beta2, (double)t->update) };
}

static void adam_scalars(const terms *t, dsc_update_scalars *s)
{
    const biases bias = adam_terms(t, s);
    if (t->config->optimizer.kind != DSC_OPTIMIZER_ADAM)
        decouple(t, s);
    s->step_size = (float)(t->lr / bias.first);
    s->inv_sqrt_bias2 = (float)(1.0 / sqrt(bias.second));
    const dsc_onebit_policy signs = dsc_config_signs(t->config);
    if (dsc_onebit_phase_of(&signs, t->update) != DSC_PHASE_SUMS) { /* the variance stays */
        s->beta2 = 1.0f;
        s->one_minus_beta2 = 0.0f;
    }
}

/* As DeepSpeed: trust is of a direction without bias corrections, which the rate has. */
static void lamb_scalars(const terms *t, dsc_update_scalars *s)
{
    const dsc_optimizer_config *o = &t->config->optimizer;
    const biases bias = adam_terms(t, s);
    s->decay = (float)t->weight_decay;
    s->l2 = 0.0f;
    s->step_size = (float)(t->lr * sqrt(bias.second) / bias.first);
    s->eps = o->eps_inside_sqrt ? 0.0f : (float)o->eps;
    s->eps_root = o->eps_inside_sqrt ? (float)o->eps : 0.0f;
    s->trust_least = (float)o->min_coeff;
    s->trust_most = (float)o->max_coeff;
}

/* As DeepSpeed: no bias corrections (adam_terms), and eps is added to the root whatever the config says. When the
 * variance stays is onebit_lamb.c's: another one moves on. */
static void onebit_lamb_scalars(const terms *t, dsc_update_scalars *s)
{
    lamb_scalars(t, s);
    s->eps = (float)t->config->optimizer.eps;
    s->eps_root = 0.0f;
}

/* torch.optim.SGD's first step takes the whole gradient, whatever the dampening. */
static void momentum_scalars(const terms *t, dsc_update_scalars *s)
{
    const dsc_optimizer_config *o = &t->config->optimizer;
    s->beta1 = (float)o->momentum;
    s->one_minus_beta1 = t->update == 1 ? 1.0f : (float)(1.0 - o->dampening);
    s->nesterov = o->nesterov;
}

static void adagrad_scalars(const terms *t, dsc_update_scalars *s)
{
    s->step_size = (float)(t->lr / (1.0 + (double)(t->update - 1) * t->config->optimizer.lr_decay));
}

static void lion_scalars(const terms *t, dsc_update_scalars *s)
{
    betas(dsc_schedule_beta1(t->config, t->update), dsc_schedule_beta2(t->config, t->update), s);
    decouple(t, s);
}

static void rmsprop_scalars(const terms *t, dsc_update_scalars *s)
{
    const dsc_optimizer_config *o = &t->config->optimizer;
    s->beta1 = (float)o->momentum;
    s->beta2 = (float)o->alpha;
    s->one_minus_beta2 = (float)(1.0 - o->alpha);
}

/* The rate is outside of the momentum, as in torch.optim.SGD. */
static void lars_scalars(const terms *t, dsc_update_scalars *s)
{
    const dsc_optimizer_config *o = &t->config->optimizer;
    s->beta1 = (float)o->momentum;
    s->nesterov = o->nesterov;
    s->decay = (float)t->weight_decay;
    s->l2 = 0.0f;
    s->shrink = 1.0f;
    s->trust_most = (float)o->trust_coefficient;
}

/* Scalars of the hidden matrices. */
static void muon_scalars(const terms *t, dsc_update_scalars *s)
{
    const dsc_optimizer_config *o = &t->config->optimizer;
    s->beta1 = (float)o->momentum;
    s->one_minus_beta1 = (float)(1.0 - o->momentum);
    s->nesterov = o->nesterov;
    s->ns_steps = (int32_t)o->ns_steps;
    decouple(t, s);
}

/* Scalars of matrices and of other tensors. In transformers' formula, weights decay by the tensor's own rate. A scalar
 * of 0 divides nothing. */
static void adafactor_scalars(const terms *t, dsc_update_scalars *s)
{
    const dsc_adafactor_config *a = &t->config->optimizer.adafactor;
    const double least = a->of_transformers ? 0.0 : a->eps_root;
    betas(t->config->optimizer.beta1, 0.0, s);
    s->one_minus_beta2 = (float)pow((double)t->update, a->beta2_decay);
    s->l2 = 0.0f;
    s->eps = a->of_transformers ? (float)a->eps_root : 0.0f;
    s->eps_root = fmaxf((float)(least * least), FLT_MIN);
    s->mean_least = fmaxf((float)least, FLT_MIN);
    s->factor_most = (float)fmin(1.0 / least, (double)FLT_MAX);
    s->trust_least = (float)a->eps_weights;
    s->trust_most = (float)a->d;
    s->by_weights = a->scale_parameter;
    s->grad_norm = (float)fmin(t->grad_norm, (double)FLT_MAX);
    if (a->of_transformers) {
        s->shrink = (float)(t->lr * t->weight_decay);
        return;
    }
    decouple(t, s);
    s->step_size = (float)fmin(t->lr, 1.0 / sqrt((double)t->update));
}

static void sgd_scalars(const terms *t, dsc_update_scalars *s) {}

static void (*const scalars_of[DSC_RECIPE_COUNT])(const terms *t, dsc_update_scalars *s) = {
    [DSC_RECIPE_ADAMW] = adam_scalars,
    [DSC_RECIPE_SGD] = sgd_scalars,
    [DSC_RECIPE_MOMENTUM] = momentum_scalars,
    [DSC_RECIPE_ADAGRAD] = adagrad_scalars,
    [DSC_RECIPE_LION] = lion_scalars,
    [DSC_RECIPE_LAMB] = lamb_scalars,
    [DSC_RECIPE_MUON] = muon_scalars,
    [DSC_RECIPE_ADAFACTOR] = adafactor_scalars,
    [DSC_RECIPE_ADAFACTOR_FLAT] = adafactor_scalars,
    [DSC_RECIPE_ADAFACTOR_M] = adafactor_scalars,
    [DSC_RECIPE_ADAFACTOR_FLAT_M] = adafactor_scalars,
    [DSC_RECIPE_RMSPROP] = rmsprop_scalars,
    [DSC_RECIPE_RMSPROP_M] = rmsprop_scalars,
    [DSC_RECIPE_RMSPROP_C] = rmsprop_scalars,
    [DSC_RECIPE_RMSPROP_CM] = rmsprop_scalars,
    [DSC_RECIPE_LARS] = lars_scalars,
    [DSC_RECIPE_ONEBIT_LAMB] = onebit_lamb_scalars,
};

static void group_terms(const dsc_param_group *group, terms *t)
{
    t->lr *= group->lr_scale;
    if (group->has_weight_decay)
        t->weight_decay = group->weight_decay;
}

/* scale: of the gradients' sums: their parts times the loss scale and the share of counted targets */
static void compute(const dsc_config *config, double sumsq, double scale, int64_t update, double lr_override,
                    dsc_update *out)
{
    const dsc_optimizer_config *o = &config->optimizer;
    const double lr = lr_override >= 0 ? lr_override : dsc_schedule_lr(config, update);
    const double norm = sqrt(sumsq) / scale;
    *out = (dsc_update){ .lr = lr, .grad_norm = norm, .skip = !isfinite(norm) };
    const int32_t classes = 2 * config->own.group_count + 2; /* param_groups.c */
    const dsc_recipe rest = dsc_recipes[o->recipe].rest;
    out->class_count = rest == o->recipe ? classes : 2 * classes;
    for (int32_t c = 0; c < out->class_count; c++) {
        const bool of_rest = c >= classes;
        const int32_t of_group = c % classes;
        terms t = { config, update, of_rest ? lr * o->rest_scale : lr, c % 2 == 0 ? o->weight_decay : 0.0,
                    norm * clip_coefficient(config->gradient_clipping, norm) };
        if (of_group >= 2)
            group_terms(&config->own.group[of_group / 2 - 1], &t);
        out->scalars[c].grad_scale = (float)(clip_coefficient(config->gradient_clipping, norm) / scale);
        plain_scalars(&t, &out->scalars[c]);
        scalars_of[of_rest ? rest : o->recipe](&t, &out->scalars[c]);
    }
}

/* Divisor of a sum of `parts` gradient parts of all data ranks. A group that updates alone has its ranks' share. */
static double divisor_of(const dsc_engine *engine, int64_t parts)
{
    const int32_t ranks = dsc_local_sgd_ranks(engine);
    return dsc_config_grad_part_divisor(&engine->config, parts * ranks / engine->stages.grid.data, ranks);
}

void dsc_update_expect(const dsc_engine *engine, dsc_update *out)
{
    const dsc_config *config = &engine->config;
    const double divisor = divisor_of(engine, engine->quota.now.total);
    const dsc_engine_progress *at = &engine->progress;
    compute(config, 0, divisor * dsc_engine_sum_divisor(engine), at->update_count + 1, at->lr_override, out);
}

/* Rank 0 computes the scalars, so that no difference between machines can enter. */
dsc_status dsc_update_decide(dsc_engine *engine, dsc_zero *zero, int64_t parts, double sum_divisor, int64_t update,
                             dsc_update *out, dsc_error *err)
{
    dsc_fixed_sum sum;
    DSC_TRY(dsc_zero_sumsq(zero, &sum, err));
    DSC_TRY(dsc_tensor_add_sums(engine, &sum, err));
    DSC_TRY(dsc_stages_add_sums(engine, &sum, err));
    /* Sums that every rank has its own of are each a share; their norm is the root mean square of the ranks' norms. */
    const double shares = dsc_zero_sums_are_own(zero) ? (double)engine->stages.grid.data : 1.0;
    const double divisor = divisor_of(engine, parts) / shares;
    compute(&engine->config, dsc_fixed_sum_value(&sum) / shares, divisor * sum_divisor, update,
            engine->progress.lr_override, out);
    dsc_comm *const comm =
        engine->config.own.local_sgd.inner_steps > 0 ? dsc_engine_shards(engine) : engine->comms.all; /* of a group */
    return dsc_comm_broadcast(comm, DSC_CHANNEL_CONTROL, out, (int64_t)sizeof *out, 0, NULL, err);
}
