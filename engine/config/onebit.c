/* onebit.c - params of the optimizers that exchange signs (zero/optimizer/onebit.c).
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/config/internal.h"

dsc_onebit_policy dsc_config_signs(const dsc_config *config)
{
    const dsc_optimizer_config *o = &config->optimizer;
    if (o->kind == DSC_OPTIMIZER_ONEBIT_ADAM) /* without a variance there is no step: the first update makes one */
        return (dsc_onebit_policy) { .kind = DSC_ONEBIT_ADAM, .freeze = dsc_max_i64(1, o->freeze_step) };
    if (o->kind == DSC_OPTIMIZER_ZEROONE_ADAM)
        return (dsc_onebit_policy) { .kind = DSC_ONEBIT_ZEROONE,
                                     .freeze = dsc_max_i64(1, o->var_freeze_step),
                                     .variance_scaler = o->var_update_scaler,
                                     .local_scaler = o->local_step_scaler,
                                     .local_most = o->local_step_clipper };
    if (o->kind == DSC_OPTIMIZER_ONEBIT_LAMB)
        return (dsc_onebit_policy) { .kind = DSC_ONEBIT_ADAM,
                                     .freeze = dsc_max_i64(1, o->freeze_step),
                                     .coeff_beta = o->coeff_beta,
                                     .factor_min = o->factor_min,
                                     .factor_max = o->factor_max,
                                     .factor_threshold = o->factor_threshold };
    return (dsc_onebit_policy) { .kind = DSC_ONEBIT_NEVER };
}

static dsc_status warn_unused(dsc_config_parse_state *s, int id)
{
    bool asked = false, from_text;
    if (dsc_config_has(s, id))
        (void)dsc_value_bool(s->given[id], &asked, &from_text);
    return asked ? dsc_config_warn(s, id, "no effect with %s, as in DeepSpeed", s->config->optimizer.type) : DSC_OK;
}

dsc_status dsc_config_warn_onebit(dsc_config_parse_state *s)
{
    if (!dsc_config_compresses_signs(s->config))
        return DSC_OK;
    if (s->config->own.ema.enabled)
        return dsc_config_fail(s, DSC_ID_EMA, DSC_ERR_CONFIG,
                               "averages need the weights of each update, and with %s ranks make updates of their own; "
                               "use AdamW, or leave this section out",
                               s->config->optimizer.type);
    DSC_TRY(warn_unused(s, DSC_ID_BIAS_CORRECTION));
    return warn_unused(s, DSC_ID_EPS_INSIDE_SQRT);
}
