/* onebit.c - what a config asks of the optimizers that exchange signs (zero/optimizer/onebit.c).
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/config/table.h"

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

static dsc_status says_nothing(dsc_config_parse_state *s, int id)
{
    bool asked = false, from_text;
    if (dsc_config_has(s, id))
        (void)dsc_value_bool(s->given[id], &asked, &from_text);
    return asked ? dsc_config_warn(s, id, "no effect with %s, as in DeepSpeed", s->config->optimizer.type) : DSC_OK;
}

/* What else of the config would exchange gradients its own way, or needs sums that are the same at any world size. */
static const char *what_differs(const dsc_config *config)
{
    if (config->own.reproducible == DSC_REPRODUCIBLE_WORLD_SIZE)
        return "dsc.reproducible \"world_size\": every rank's error is its own; \"plan\" works";
    if (config->own.compression != DSC_QUANT_NONE)
        return "dsc.gradient_compression: momentum is what is compressed; \"none\" works";
    if (config->zero.quantized_gradients)
        return "zero_quantized_gradients: momentum is what is compressed; false works";
    if (config->own.moments != DSC_F32)
        return "dsc.moments \"bf16\": what signs leave out is less than that rounds off; \"fp32\" works";
    return NULL;
}

dsc_status dsc_config_check_onebit(dsc_config_parse_state *s)
{
    const dsc_config *config = s->config;
    if (!dsc_config_sends_signs(config))
        return DSC_OK;
    DSC_TRY(says_nothing(s, DSC_ID_BIAS_CORRECTION));
    DSC_TRY(says_nothing(s, DSC_ID_EPS_INSIDE_SQRT));
    if (config->zero.stage > 0)
        return dsc_config_not_built(s, DSC_ID_OPTIMIZER_TYPE, "%s does not go with ZeRO, as in DeepSpeed: every rank "
                                    "needs all of the momentum; zero_optimization.stage 0 works",
                                    config->optimizer.type);
    const char *with = what_differs(config);
    if (with != NULL)
        return dsc_config_fail(s, DSC_ID_OPTIMIZER_TYPE, DSC_ERR_CONFIG, "%s does not go with %s",
                               config->optimizer.type, with);
    return DSC_OK;
}
