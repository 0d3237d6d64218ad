/* adafactor.c - the params of Adafactor, with the names of torch.optim or of transformers.
 *
 * The two differ in the epsilons of roots and divisors, in the source of the learning rate, and in all other names.
 * A config uses the names of one of the two. SPDX-License-Identifier: Apache-2.0 */
#include "engine/config/internal.h"

#include <float.h>

#define EPS_ROOT_OF_TORCH ((double)FLT_EPSILON)
#define EPS_ROOT_OF_TRANSFORMERS 1e-30
#define EPS_WEIGHTS 1e-3
#define LR_OF_TORCH 1e-2

/* The first of the list that the config names; 0: none. */
static int any_of(const dsc_config_parse_state *s, const int *ids, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (s->given[ids[i]] != NULL || s->is_null[ids[i]])
            return ids[i];
    return 0;
}

static dsc_status choose_words(dsc_config_parse_state *s)
{
    static const int of_torch[] = { DSC_ID_BETA2_DECAY, DSC_ID_D, DSC_ID_MAXIMIZE, DSC_ID_FOREACH };
    static const int of_transformers[] = { DSC_ID_CLIP_THRESHOLD,  DSC_ID_DECAY_RATE,    DSC_ID_BETA1,
                                           DSC_ID_SCALE_PARAMETER, DSC_ID_RELATIVE_STEP, DSC_ID_WARMUP_INIT };
    const int torch = any_of(s, of_torch, DSC_COUNT(of_torch));
    const int transformers = any_of(s, of_transformers, DSC_COUNT(of_transformers));
    dsc_adafactor_config *a = &s->config->optimizer.adafactor;
    if (torch != 0 && transformers != 0)
        return dsc_config_fail(s, transformers, DSC_ERR_CONFIG,
                               "is of transformers' Adafactor, and %s of torch.optim's: "
                               "their formulas differ; use the words of one",
                               dsc_config_key_leaf(torch));
    a->of_transformers = transformers != 0;
    if (!a->of_transformers) {
        a->relative_step = false;
        a->scale_parameter = true;
    } else {
        a->beta2_decay = a->decay_rate;
        a->d = a->clip_threshold;
    }
    return DSC_OK;
}

/* [of squares, of weights]; null where the first is torch's own. */
static dsc_status fill_eps(dsc_config_parse_state *s)
{
    dsc_adafactor_config *a = &s->config->optimizer.adafactor;
    bool from_text;
    a->eps_root = a->of_transformers ? EPS_ROOT_OF_TRANSFORMERS : EPS_ROOT_OF_TORCH;
    a->eps_weights = EPS_WEIGHTS;
    if (!dsc_config_has(s, DSC_ID_EPS))
        return DSC_OK;
    const cJSON *first = s->given[DSC_ID_EPS]->child, *second = first != NULL ? first->next : NULL;
    if (second == NULL || second->next != NULL || (cJSON_IsNull(first) && a->of_transformers) ||
        (!cJSON_IsNull(first) && !dsc_value_float(first, &a->eps_root, &from_text)) ||
        !dsc_value_float(second, &a->eps_weights, &from_text))
        return dsc_config_fail(s, DSC_ID_EPS, DSC_ERR_CONFIG, "Adafactor has two of them: [%g, %g] when absent",
                               a->eps_root, a->eps_weights);
    return DSC_OK;
}

static dsc_status fill_lr(dsc_config_parse_state *s)
{
    dsc_optimizer_config *o = &s->config->optimizer;
    const dsc_adafactor_config *a = &o->adafactor;
    const bool given = s->given[DSC_ID_LR] != NULL;
    if (a->warmup_init && !a->relative_step)
        return dsc_config_fail(s, DSC_ID_WARMUP_INIT, DSC_ERR_CONFIG, "needs relative_step, which is false");
    if (a->relative_step && given)
        return dsc_config_fail(s, DSC_ID_LR, DSC_ERR_CONFIG,
                               "Adafactor makes its own rate where relative_step is true, "
                               "transformers' default; add \"relative_step\": false, or remove lr");
    if (a->of_transformers && !a->relative_step && !given)
        return dsc_config_fail(s, DSC_ID_RELATIVE_STEP, DSC_ERR_CONFIG, "false: Adafactor then needs lr");
    if (!given)
        o->lr = LR_OF_TORCH; /* also the most of relative steps */
    if (a->relative_step && dsc_config_has(s, DSC_ID_SCHEDULER_TYPE))
        return dsc_config_warn(s, DSC_ID_SCHEDULER_TYPE, "no effect: Adafactor makes its own rate (relative_step)");
    return DSC_OK;
}

dsc_status dsc_config_fill_adafactor(dsc_config_parse_state *s)
{
    dsc_optimizer_config *o = &s->config->optimizer;
    DSC_TRY(choose_words(s));
    DSC_TRY(fill_eps(s));
    DSC_TRY(fill_lr(s));
    o->rest_scale = 1.0;
    o->adafactor.has_beta1 = dsc_config_has(s, DSC_ID_BETA1);
    if (o->adafactor.has_beta1 && !(o->beta1 >= 0 && o->beta1 < 1))
        return dsc_config_fail(s, DSC_ID_BETA1, DSC_ERR_CONFIG, "%g; it is at least 0 and below 1", o->beta1);
    dsc_config_note(s->config, "Adafactor: as %s has it",
                    o->adafactor.of_transformers ? "transformers" : "torch.optim");
    return DSC_OK;
}
