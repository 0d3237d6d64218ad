/* local_sgd.c - the section "dsc.local_sgd": what groups that update alone cannot have.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/config/internal.h"

typedef struct exclusion {
    bool (*is_asked)(const dsc_config *config);
    const char *key, *reason;
} exclusion;

static bool offloads(const dsc_config *c)
{
    return c->zero.offload_optimizer != DSC_OFFLOAD_NONE || c->zero.offload_param != DSC_OFFLOAD_NONE;
}
static bool watches(const dsc_config *c) { return c->own.spikes.enabled || c->own.check_replicas > 0; }
static bool prescales(const dsc_config *c) { return c->prescale_gradients || c->gradient_sum; }
static bool has_averages(const dsc_config *c) { return c->own.ema.enabled; }
static bool has_other_moments(const dsc_config *c)
{
    return c->own.moments != DSC_F32 || c->optimizer.kind == DSC_OPTIMIZER_ADAFACTOR;
}
static bool saves_beside(const dsc_config *c) { return c->own.save_async; }
static bool compresses(const dsc_config *c) { return c->own.compression != DSC_QUANT_NONE; }

static const exclusion exclusions[] = {
    { offloads, "offload_optimizer or offload_param", "the common weights are on the device" },
    { watches, "dsc.spikes or dsc.check_replicas", "groups have other norms and weights between exchanges" },
    { prescales, "prescale_gradients or a sum of gradients", "a group divides by its own ranks" },
    { has_averages, "dsc.ema", "an average would jump at each exchange" },
    { has_other_moments, "Adafactor or dsc.moments", "a save takes the mean of moments in fp32" },
    { saves_beside, "dsc.save_async", "a save makes an outer step first" },
    { compresses, "dsc.gradient_compression", "not supported together in this version" },
};

dsc_status dsc_config_check_local_sgd(dsc_config_parse_state *s)
{
    const dsc_config *config = s->config;
    if (config->own.local_sgd.inner_steps == 0)
        return DSC_OK;
    if (config->zero.mics_shard_size < 1)
        return dsc_config_fail(s, DSC_ID_LOCAL_STEPS, DSC_ERR_CONFIG,
                               "groups of ranks have a copy of the states each: set zero_optimization.stage 3 and "
                               "mics_shard_size, the ranks of a group");
    for (size_t i = 0; i < DSC_COUNT(exclusions); i++)
        if (exclusions[i].is_asked(config))
            return dsc_config_not_built(s, DSC_ID_LOCAL_STEPS, "conflicts with %s (%s); keep one of them",
                                        exclusions[i].key, exclusions[i].reason);
    return DSC_OK;
}
