/* optimizer.c - the "optimizer" section of a config: names, params and defaults of each optimizer. kernels/update.h
 * has the arithmetic of an element, engine/optimizer.c the scalars of a step.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/config/internal.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

/* Values of Hugging Face's Trainer for "auto" without a user's setting. */
#define TRAINER_LR 5e-5

#define KEYS_MAX 16 /* the last row of keys is 0 */

typedef struct optimizer_row {
    const char *type;  /* as it is best written */
    bool of_deepspeed; /* its names are taken in any case, those of torch.optim exactly */
    double lr, beta1, beta2, eps; /* when not given, as DeepSpeed and torch have them */
    int keys[KEYS_MAX];           /* besides lr and weight_decay; DSC_ID_OPTIMIZER_TYPE ends the list */
} optimizer_row;

#define END DSC_ID_OPTIMIZER_TYPE
#define ADAM_KEYS                                                                                                      \
    { DSC_ID_BETAS, DSC_ID_EPS, DSC_ID_BIAS_CORRECTION, DSC_ID_ADAM_W_MODE, DSC_ID_AMSGRAD, DSC_ID_FP32_STATES,        \
      DSC_ID_TORCH_ADAM, DSC_ID_SET_GRAD_NONE, DSC_ID_FOREACH, END }
static const optimizer_row rows[DSC_OPTIMIZER_KIND_COUNT] = {
    [DSC_OPTIMIZER_NONE] = { "AdamW", true, 1e-3, 0.9, 0.999, 1e-8, ADAM_KEYS },
    [DSC_OPTIMIZER_ADAM] = { "Adam", true, 1e-3, 0.9, 0.999, 1e-8, ADAM_KEYS },
    [DSC_OPTIMIZER_ADAMW] = { "AdamW", true, 1e-3, 0.9, 0.999, 1e-8, ADAM_KEYS },
    [DSC_OPTIMIZER_SGD] = { "SGD", false, 1e-3, 0, 0, 0,
                            { DSC_ID_MOMENTUM, DSC_ID_DAMPENING, DSC_ID_NESTEROV, DSC_ID_MAXIMIZE, DSC_ID_FOREACH,
                              DSC_ID_FUSED, END } },
    [DSC_OPTIMIZER_ADAGRAD] = { "Adagrad", true, 1e-2, 0, 0, 1e-10,
                                { DSC_ID_EPS, DSC_ID_LR_DECAY, DSC_ID_INITIAL_ACCUMULATOR, DSC_ID_AMSGRAD,
                                  DSC_ID_FP32_STATES, DSC_ID_MAXIMIZE, DSC_ID_FOREACH, DSC_ID_FUSED, END } },
    [DSC_OPTIMIZER_LION] = { "Lion", true, 1e-3, 0.9, 0.999, 0,
                             { DSC_ID_BETAS, DSC_ID_FP32_STATES, DSC_ID_SET_GRAD_NONE, END } },
    [DSC_OPTIMIZER_LAMB] = { "Lamb", true, 1e-3, 0.9, 0.999, 1e-8,
                             { DSC_ID_BETAS, DSC_ID_EPS, DSC_ID_BIAS_CORRECTION, DSC_ID_MAX_COEFF, DSC_ID_MIN_COEFF,
                               DSC_ID_EPS_INSIDE_SQRT, DSC_ID_AMSGRAD, END } },
    [DSC_OPTIMIZER_ONEBIT_ADAM] = { "OneBitAdam", true, 1e-3, 0.9, 0.999, 1e-8,
                                    { DSC_ID_BETAS, DSC_ID_EPS, DSC_ID_BIAS_CORRECTION, DSC_ID_EPS_INSIDE_SQRT,
                                      DSC_ID_AMSGRAD, DSC_ID_FREEZE_STEP, DSC_ID_CUDA_AWARE, DSC_ID_COMM_BACKEND,
                                      END } },
    [DSC_OPTIMIZER_ZEROONE_ADAM] = { "ZeroOneAdam", true, 1e-3, 0.9, 0.999, 1e-8,
                                     { DSC_ID_BETAS, DSC_ID_EPS, DSC_ID_BIAS_CORRECTION, DSC_ID_EPS_INSIDE_SQRT,
                                       DSC_ID_AMSGRAD, DSC_ID_VAR_FREEZE_STEP, DSC_ID_VAR_UPDATE_SCALER,
                                       DSC_ID_LOCAL_STEP_SCALER, DSC_ID_LOCAL_STEP_CLIPPER, DSC_ID_CUDA_AWARE,
                                       DSC_ID_COMM_BACKEND, END } },
    [DSC_OPTIMIZER_ONEBIT_LAMB] = { "OneBitLamb", true, 1e-3, 0.9, 0.999, 1e-8,
                                    { DSC_ID_BETAS, DSC_ID_EPS, DSC_ID_BIAS_CORRECTION, DSC_ID_MAX_COEFF,
                                      DSC_ID_MIN_COEFF, DSC_ID_EPS_INSIDE_SQRT, DSC_ID_AMSGRAD, DSC_ID_FREEZE_STEP,
                                      DSC_ID_COEFF_BETA, DSC_ID_FACTOR_MAX, DSC_ID_FACTOR_MIN,
                                      DSC_ID_FACTOR_THRESHOLD, DSC_ID_CUDA_AWARE, DSC_ID_COMM_BACKEND, END } },
    [DSC_OPTIMIZER_ADAFACTOR] = { "Adafactor", false, 1e-2, 0, 0, 0,
                                  { DSC_ID_EPS, DSC_ID_BETA2_DECAY, DSC_ID_D, DSC_ID_DECAY_RATE, DSC_ID_CLIP_THRESHOLD,
                                    DSC_ID_BETA1, DSC_ID_SCALE_PARAMETER, DSC_ID_RELATIVE_STEP, DSC_ID_WARMUP_INIT,
                                    DSC_ID_MAXIMIZE, DSC_ID_FOREACH, END } },
    [DSC_OPTIMIZER_MUON] = { "Muon", true, 0.02, 0.9, 0.95, 1e-10,
                             { DSC_ID_BETAS, DSC_ID_EPS, DSC_ID_MOMENTUM, DSC_ID_NESTEROV, DSC_ID_MUON_LR,
                               DSC_ID_ADAM_LR, DSC_ID_NS_STEPS, DSC_ID_NS_METHOD, END } },
    [DSC_OPTIMIZER_RMSPROP] = { "RMSprop", false, 1e-2, 0, 0, 1e-8,
                                { DSC_ID_ALPHA, DSC_ID_EPS, DSC_ID_MOMENTUM, DSC_ID_CENTERED, DSC_ID_MAXIMIZE,
                                  DSC_ID_FOREACH, END } },
    [DSC_OPTIMIZER_LARS] = { "LARS", true, 0.1, 0, 0, 1e-8,
                             { DSC_ID_MOMENTUM, DSC_ID_NESTEROV, DSC_ID_TRUST_COEFFICIENT, DSC_ID_EPS, END } },
};

/* Optimizers of DeepSpeed and torch.optim that are not built. */
static const char *const optimizers_known[] = {
    "MuAdam", "MuAdamW", "MuSGD", "FusedAdam", "Adadelta", "Adamax",
    "ASGD",   "LBFGS",   "NAdam", "RAdam",     "Rprop",   "SparseAdam",
};

/* bitsandbytes' name, and those of Hugging Face's "optim". */
static bool is_8bit(const char *type)
{
    static const char *const names[] = { "AdamW8bit", "adamw_8bit", "adamw_bnb_8bit" };
    for (size_t i = 0; i < DSC_COUNT(names); i++)
        if (strcasecmp(names[i], type) == 0)
            return true;
    return false;
}

bool dsc_config_names_8bit(const dsc_config_parse_state *s, int id)
{
    return dsc_config_has(s, id) && is_8bit(s->given[id]->valuestring);
}

dsc_optimizer_kind dsc_config_optimizer_kind(const char *type)
{
    if (is_8bit(type))
        return DSC_OPTIMIZER_ADAMW;
    for (int k = DSC_OPTIMIZER_NONE + 1; k < DSC_OPTIMIZER_KIND_COUNT; k++)
        if (rows[k].of_deepspeed ? strcasecmp(rows[k].type, type) == 0 : strcmp(rows[k].type, type) == 0)
            return (dsc_optimizer_kind)k;
    return DSC_OPTIMIZER_NONE;
}

/* The name of an optimizer that is not built gets its own message, not a suggestion of spelling. */
dsc_status dsc_config_check_optimizer(dsc_config_parse_state *s, const cJSON *type)
{
    static const char *const built[] = { "AdamW", "Adam", "SGD",        "Adagrad",  "Lion",
                                         "Lamb",  "Muon", "OneBitAdam", "ZeroOneAdam", "OneBitLamb", "Adafactor",
                                         "RMSprop", "LARS" };
    char where[256], value[128];
    if (type == NULL || dsc_config_optimizer_kind(type->valuestring) != DSC_OPTIMIZER_NONE)
        return DSC_OK;
    dsc_config_where_item(s, type, where);
    dsc_value_text(type, value, sizeof value);
    for (size_t i = 0; i < DSC_COUNT(optimizers_known); i++)
        s->foreign_optimizer |= strcasecmp(optimizers_known[i], type->valuestring) == 0;
    if (s->foreign_optimizer)
        return dsc_config_not_built_at(s, where, "optimizer.type", "%s is not supported in this version; AdamW, Adam, "
                                       "SGD, Adagrad, Lion, Lamb, Muon, Adafactor, RMSprop, LARS, OneBitAdam, "
                                       "ZeroOneAdam and OneBitLamb work", value);
    return DSC_FAIL(s->err, DSC_ERR_CONFIG, where, "optimizer.type: %s is not an optimizer; did you mean \"%s\"?",
                    value, dsc_config_nearest_string(type->valuestring, built, DSC_COUNT(built), "AdamW"));
}

bool dsc_optimizer_has_param(dsc_optimizer_kind kind, int id)
{
    if (id == DSC_ID_LR || id == DSC_ID_WEIGHT_DECAY || id == DSC_ID_MAX_GRAD_NORM)
        return true;
    for (const int *key = rows[kind].keys; *key != END; key++)
        if (*key == id)
            return true;
    return false;
}

/* A key of another optimizer is an error in DeepSpeed's constructors too; those of optimizers that are not built are
 * refused by their rows. */
static dsc_status check_params(dsc_config_parse_state *s, dsc_optimizer_kind kind)
{
    for (int id = 0; id < DSC_KEY_COUNT; id++) {
        if (s->given[id] == NULL || !dsc_config_key_is_in(id, "optimizer.params") || dsc_optimizer_has_param(kind, id))
            continue;
        for (int other = DSC_OPTIMIZER_KIND_COUNT - 1; other > DSC_OPTIMIZER_NONE; other--)
            if (dsc_optimizer_has_param((dsc_optimizer_kind)other, id))
                return dsc_config_fail(s, id, DSC_ERR_CONFIG, "%s does not take it (%s does); remove it",
                                       rows[kind].type, rows[other].type);
    }
    return DSC_OK;
}

static dsc_status fill_betas(dsc_config_parse_state *s)
{
    dsc_optimizer_config *o = &s->config->optimizer;
    bool from_text;
    if (!dsc_config_has(s, DSC_ID_BETAS))
        return DSC_OK;
    const cJSON *first = s->given[DSC_ID_BETAS]->child, *second = first != NULL ? first->next : NULL;
    const bool two = second != NULL && second->next == NULL && dsc_value_float(first, &o->beta1, &from_text) &&
                     dsc_value_float(second, &o->beta2, &from_text);
    if (!two || o->beta1 < 0 || o->beta1 >= 1 || o->beta2 < 0 || o->beta2 >= 1)
        return dsc_config_fail(s, DSC_ID_BETAS, DSC_ERR_CONFIG,
                               "expected a list of two numbers, each at least 0 and below 1");
    return DSC_OK;
}

/* A key that is absent has the optimizer's default; "auto" has the default of the Trainer, which is Adam's. */
static dsc_status fill_values(dsc_config_parse_state *s, const optimizer_row *row)
{
    static const int filled[] = { DSC_ID_BETAS, DSC_ID_EPS, DSC_ID_WEIGHT_DECAY };
    dsc_config *config = s->config;
    dsc_optimizer_config *o = &config->optimizer;
    bool from_text;
    o->beta1 = s->is_auto[DSC_ID_BETAS] ? rows[DSC_OPTIMIZER_ADAM].beta1 : row->beta1;
    o->beta2 = s->is_auto[DSC_ID_BETAS] ? rows[DSC_OPTIMIZER_ADAM].beta2 : row->beta2;
    DSC_TRY(fill_betas(s));
    if (s->given[DSC_ID_LR] == NULL)
        o->lr = row->lr;
    if (s->given[DSC_ID_EPS] == NULL)
        o->eps = row->eps;
    if (row != &rows[DSC_OPTIMIZER_ADAFACTOR] && cJSON_IsArray(s->given[DSC_ID_EPS]))
        return dsc_config_fail(s, DSC_ID_EPS, DSC_ERR_CONFIG, "a list; %s has one number", row->type);
    if (dsc_config_has(s, DSC_ID_BETA1))
        (void)dsc_value_float(s->given[DSC_ID_BETA1], &o->beta1, &from_text);
    if (s->is_auto[DSC_ID_LR]) {
        o->lr = TRAINER_LR;
        config->auto_mask |= DSC_CONFIG_AUTO_LR;
        dsc_config_note(config, "optimizer.params.lr \"auto\": %g, as the Trainer fills it", o->lr);
    }
    for (size_t i = 0; i < DSC_COUNT(filled); i++)
        if (s->is_auto[filled[i]])
            dsc_config_note(config, "%s \"auto\": %s, as the Trainer fills it", dsc_config_keys[filled[i]].path,
                            dsc_config_keys[filled[i]].default_json);
    return DSC_OK;
}

static dsc_status fill_adam(dsc_config_parse_state *s)
{
    dsc_optimizer_config *o = &s->config->optimizer;
    bool w_mode = true, from_text;
    if (dsc_config_has(s, DSC_ID_ADAM_W_MODE))
        (void)dsc_value_bool(s->given[DSC_ID_ADAM_W_MODE], &w_mode, &from_text);
    if (o->kind == DSC_OPTIMIZER_ADAM && w_mode)
        o->kind = DSC_OPTIMIZER_ADAMW; /* DeepSpeed's meaning of Adam */
    else if (o->kind == DSC_OPTIMIZER_ADAMW && !w_mode)
        return dsc_config_warn(s, DSC_ID_ADAM_W_MODE, "no effect with type AdamW, as in DeepSpeed; type Adam takes it");
    return DSC_OK;
}

static dsc_status fill_sgd(dsc_config_parse_state *s)
{
    const dsc_optimizer_config *o = &s->config->optimizer;
    if (o->nesterov && (o->momentum == 0 || o->dampening != 0))
        return dsc_config_fail(s, DSC_ID_NESTEROV, DSC_ERR_CONFIG,
                               "Nesterov's momentum needs a momentum above 0 and a dampening of 0");
    return DSC_OK;
}

static dsc_status check_lamb(dsc_config_parse_state *s)
{
    const dsc_optimizer_config *o = &s->config->optimizer;
    const dsc_config *config = s->config;
    if (config->precision == DSC_PRECISION_FP16 && config->fp16.loss_scale > 0)
        return dsc_config_fail(s, DSC_ID_LOSS_SCALE, DSC_ERR_CONFIG, "%g is a static scale, and %s needs a dynamic "
                               "one, in DeepSpeed too; leave it out, or give 0", config->fp16.loss_scale,
                               rows[o->kind].type);
    if (o->min_coeff > o->max_coeff)
        return dsc_config_fail(s, DSC_ID_MIN_COEFF, DSC_ERR_CONFIG, "%g, but max_coeff is %g", o->min_coeff,
                               o->max_coeff);
    if (o->kind != DSC_OPTIMIZER_ONEBIT_LAMB)
        return DSC_OK;
    if (o->coeff_beta >= 1)
        return dsc_config_fail(s, DSC_ID_COEFF_BETA, DSC_ERR_CONFIG, "%g; it is below 1, or no coefficient would ever "
                               "count", o->coeff_beta);
    if (o->factor_min > o->factor_max)
        return dsc_config_fail(s, DSC_ID_FACTOR_MIN, DSC_ERR_CONFIG, "%g, but factor_max is %g", o->factor_min,
                               o->factor_max);
    return DSC_OK;
}

/* Rate of Muon's Adam part without a rate of its own and without a common rate. */
#define MUON_ADAM_LR 3e-4

/* A schedule gives both parts one rate, as DeepSpeed's do, unless they are given their own. */
static dsc_status fill_muon(dsc_config_parse_state *s)
{
    dsc_optimizer_config *o = &s->config->optimizer;
    const bool lr = s->given[DSC_ID_LR] != NULL, muon = s->given[DSC_ID_MUON_LR] != NULL;
    const bool adam = s->given[DSC_ID_ADAM_LR] != NULL, scheduled = dsc_config_has(s, DSC_ID_SCHEDULER_TYPE);
    const double rest = adam ? o->adam_lr : lr ? o->lr : MUON_ADAM_LR;
    if (muon)
        o->lr = o->muon_lr;
    if (!dsc_config_has(s, DSC_ID_MOMENTUM))
        o->momentum = 0.95;
    if (!dsc_config_has(s, DSC_ID_NESTEROV))
        o->nesterov = true;
    if (o->momentum >= 1)
        return dsc_config_fail(s, DSC_ID_MOMENTUM, DSC_ERR_CONFIG, "%g; Muon's is below 1", o->momentum);
    o->rest_scale = rest == o->lr || (scheduled && !muon && !adam) ? 1.0 : rest / o->lr;
    if (!(o->rest_scale <= 1e9))
        return dsc_config_fail(s, muon ? DSC_ID_MUON_LR : DSC_ID_LR, DSC_ERR_CONFIG,
                               "%g of matrices, but %g of all else: rates of a run are in a fixed ratio; freeze what "
                               "shall stay as it is", o->lr, rest);
    return DSC_OK;
}

/* Elements without a gradient, as the padding of tensors, would be 0 / 0. */
static dsc_status check_rmsprop(dsc_config_parse_state *s)
{
    const dsc_optimizer_config *o = &s->config->optimizer;
    if (o->eps <= 0)
        return dsc_config_fail(s, DSC_ID_EPS, DSC_ERR_CONFIG,
                               "%g; RMSprop's is above 0, because it divides by the root plus eps", o->eps);
    if (o->alpha >= 1)
        return dsc_config_fail(s, DSC_ID_ALPHA, DSC_ERR_CONFIG,
                               "%g; it is below 1, or no gradient would ever count", o->alpha);
    return DSC_OK;
}

static dsc_status fill_lars(dsc_config_parse_state *s)
{
    dsc_optimizer_config *o = &s->config->optimizer;
    if (!dsc_config_has(s, DSC_ID_MOMENTUM))
        o->momentum = 0.9;
    if (o->momentum >= 1)
        return dsc_config_fail(s, DSC_ID_MOMENTUM, DSC_ERR_CONFIG, "%g; that of LARS is below 1", o->momentum);
    return DSC_OK;
}

static dsc_recipe recipe_of(const dsc_optimizer_config *o)
{
    switch (o->kind) {
    case DSC_OPTIMIZER_SGD: return o->momentum != 0 ? DSC_RECIPE_MOMENTUM : DSC_RECIPE_SGD;
    case DSC_OPTIMIZER_ADAGRAD: return DSC_RECIPE_ADAGRAD;
    case DSC_OPTIMIZER_LARS: return DSC_RECIPE_LARS;
    case DSC_OPTIMIZER_RMSPROP:
        if (o->centered)
            return o->momentum != 0 ? DSC_RECIPE_RMSPROP_CM : DSC_RECIPE_RMSPROP_C;
        return o->momentum != 0 ? DSC_RECIPE_RMSPROP_M : DSC_RECIPE_RMSPROP;
    case DSC_OPTIMIZER_LION: return DSC_RECIPE_LION;
    case DSC_OPTIMIZER_LAMB: return DSC_RECIPE_LAMB;
    case DSC_OPTIMIZER_ONEBIT_LAMB: return DSC_RECIPE_ONEBIT_LAMB;
    case DSC_OPTIMIZER_MUON: return DSC_RECIPE_MUON;
    case DSC_OPTIMIZER_ADAFACTOR: return o->adafactor.has_beta1 ? DSC_RECIPE_ADAFACTOR_M : DSC_RECIPE_ADAFACTOR;
    default: return DSC_RECIPE_ADAMW;
    }
}

dsc_status dsc_config_fill_optimizer(dsc_config_parse_state *s)
{
    dsc_config *config = s->config;
    dsc_optimizer_config *o = &config->optimizer;
    const bool named = dsc_config_has(s, DSC_ID_OPTIMIZER_TYPE);
    const char *type = named ? s->given[DSC_ID_OPTIMIZER_TYPE]->valuestring : "";
    o->kind = named ? dsc_config_optimizer_kind(type) : DSC_OPTIMIZER_NONE;
    DSC_TRY(fill_values(s, &rows[o->kind]));
    if (s->foreign_optimizer) { /* refused by name to whoever runs it */
        snprintf(o->type, sizeof o->type, "%s", type);
        o->kind = DSC_OPTIMIZER_ADAMW;
        return DSC_OK;
    }
    DSC_TRY(check_params(s, o->kind));
    if (!named) {
        dsc_config_note(config, "no optimizer is given: AdamW, lr %g, betas %g %g, eps %g, weight_decay %g", o->lr,
                        o->beta1, o->beta2, o->eps, o->weight_decay);
        if (s->given[DSC_ID_OPTIMIZER] != NULL && s->given[DSC_ID_OPTIMIZER]->child != NULL)
            return dsc_config_warn(s, DSC_ID_OPTIMIZER, "it has no type; AdamW is used");
        return DSC_OK;
    }
    snprintf(o->type, sizeof o->type, "%s", type);
    switch (o->kind) {
    case DSC_OPTIMIZER_SGD: DSC_TRY(fill_sgd(s)); break;
    case DSC_OPTIMIZER_MUON: DSC_TRY(fill_muon(s)); break;
    case DSC_OPTIMIZER_RMSPROP: DSC_TRY(check_rmsprop(s)); break;
    case DSC_OPTIMIZER_LARS: DSC_TRY(fill_lars(s)); break;
    case DSC_OPTIMIZER_LAMB: case DSC_OPTIMIZER_ONEBIT_LAMB: DSC_TRY(check_lamb(s)); break;
    case DSC_OPTIMIZER_ADAFACTOR: DSC_TRY(dsc_config_fill_adafactor(s)); break;
    default: DSC_TRY(fill_adam(s));
    }
    o->recipe = recipe_of(o);
    return DSC_OK;
}
